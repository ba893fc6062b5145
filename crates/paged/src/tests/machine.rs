//! Random calls, one after another, on the manager and on the naive one: the same results, the same tables, the same
//! order of reuse, every invariant, and in a pool the bytes that each sequence should have.

use super::audit::audit;
use super::model::{Naive, Outcome};
use crate::{Admission, BlockManager, Config, ExtraKey, KvPool, ManagerError, NULL, PoolShape, SequenceId, Table};
use attention::{DType, TensorView};
use ndarray::{Array3, s};
use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::num::NonZeroUsize;

#[derive(Clone, Debug)]
pub(crate) enum Call {
    Admit {
        prompt: Vec<u32>,
        keys: Vec<ExtraKey>,
        chunk: usize,
    },
    AdmitRolling {
        prompt: Vec<u32>,
        ring: usize,
    },
    Append {
        sequence: u64,
        token: u32,
    },
    Extend {
        sequence: u64,
        tokens: Vec<u32>,
    },
    Fork {
        sequence: u64,
    },
    Free {
        sequence: u64,
    },
    /// All calls on a sequence that is gone, or not made yet.
    Strangers {
        sequence: u64,
    },
}

/// The naive manager, and what its last call gave.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    naive: Naive,
    outcome: Outcome,
    /// Whether all hashes are equal.
    constant: bool,
}

fn configs() -> impl Strategy<Value = Config> {
    let window = prop_oneof![2 => Just(None), 1 => (1usize..12).prop_map(NonZeroUsize::new)];
    let columns = prop_oneof![3 => Just(None), 1 => (1usize..8).prop_map(Some)];
    (2usize..20, 1usize..6, columns, window).prop_map(|(blocks, page, columns, window)| Config {
        blocks,
        page,
        columns,
        window,
    })
}

/// Prompts that often begin alike: 0, 1, 2 and so on, up to where one of a few variants begins.
fn prompts() -> impl Strategy<Value = Vec<u32>> {
    (0u32..40, 0u32..40, 1u32..4)
        .prop_map(|(len, common, variant)| (0..len).map(|t| if t < common { t } else { 100 * variant + t }).collect())
}

fn keys(prompt: usize) -> BoxedStrategy<Vec<ExtraKey>> {
    let one = prop_oneof![
        select(vec!["a", "b"]).prop_map(|name| ExtraKey::Adapter(name.into())),
        select(vec!["a", "b"]).prop_map(|name| ExtraKey::Salt(name.into())),
        (0u8..2, 0..prompt.max(1), 1usize..9).prop_map(move |(image, first, count)| {
            let count = count.min(prompt.saturating_sub(first)).max(1);
            ExtraKey::Image { digest: [image; 32], first, count }
        }),
    ];
    let one = one.prop_filter(
        "an image lies in its prompt",
        move |key| !matches!(key, ExtraKey::Image { first, count, .. } if first + count > prompt),
    );
    prop_oneof![3 => Just(vec![]), 1 => prop::collection::vec(one, 1..3)].boxed()
}

impl ReferenceStateMachine for Reference {
    type State = Reference;
    type Transition = Call;

    fn init_state() -> BoxedStrategy<Self::State> {
        let reference = |(config, constant)| Reference { naive: Naive::new(config), outcome: Outcome::Done, constant };
        (configs(), prop::bool::weighted(0.2)).prop_map(reference).boxed()
    }

    fn transitions(state: &Self::State) -> BoxedStrategy<Self::Transition> {
        let chunk = prop_oneof![2 => Just(usize::MAX), 1 => 0usize..9];
        let admit = (prompts(), chunk).prop_flat_map(|(prompt, chunk)| {
            keys(prompt.len()).prop_map(move |keys| Call::Admit { prompt: prompt.clone(), keys, chunk })
        });
        let rolling = (prompts(), 1usize..5).prop_map(|(prompt, ring)| Call::AdmitRolling { prompt, ring });
        let stranger = (0..state.naive.made + 2).prop_map(|sequence| Call::Strangers { sequence });
        let live: Vec<u64> = state.naive.sequences.keys().copied().collect();
        if live.is_empty() {
            return prop_oneof![4 => admit, 1 => rolling, 1 => stranger].boxed();
        }
        let live = select(live);
        let append = (live.clone(), 0u32..3).prop_map(|(sequence, token)| Call::Append { sequence, token });
        let tokens = prop::collection::vec(0u32..3, 0..12);
        let extend = (live.clone(), tokens).prop_map(|(sequence, tokens)| Call::Extend { sequence, tokens });
        let fork = live.clone().prop_map(|sequence| Call::Fork { sequence });
        let free = live.prop_map(|sequence| Call::Free { sequence });
        prop_oneof![4 => admit, 1 => rolling, 9 => append, 2 => extend, 3 => fork, 5 => free, 1 => stranger].boxed()
    }

    fn preconditions(state: &Self::State, call: &Self::Transition) -> bool {
        let lives = |sequence| state.naive.sequences.contains_key(sequence);
        match call {
            Call::Admit { .. } | Call::AdmitRolling { .. } => true,
            Call::Append { sequence, .. } | Call::Extend { sequence, .. } => lives(sequence),
            Call::Fork { sequence } | Call::Free { sequence } => lives(sequence),
            Call::Strangers { sequence } => !lives(sequence),
        }
    }

    fn apply(mut state: Self::State, call: &Self::Transition) -> Self::State {
        let naive = &mut state.naive;
        state.outcome = match call {
            Call::Admit { prompt, keys, chunk } => naive.admit(prompt, keys, *chunk),
            Call::AdmitRolling { prompt, ring } => naive.admit_rolling(prompt, *ring),
            Call::Append { sequence, token } => naive.append(*sequence, *token),
            Call::Extend { sequence, tokens } => naive.extend(*sequence, tokens),
            Call::Fork { sequence } => naive.fork(*sequence),
            Call::Free { sequence } => naive.free(*sequence),
            Call::Strangers { .. } => Outcome::Done,
        };
        state
    }
}

/// A hash for tests: the same in every run, or the same for everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashes {
    pub(crate) constant: bool,
}

impl BuildHasher for Hashes {
    type Hasher = MaybeConstant;

    fn build_hasher(&self) -> MaybeConstant {
        MaybeConstant { constant: self.constant, hasher: DefaultHasher::new() }
    }
}

#[derive(Debug)]
pub(crate) struct MaybeConstant {
    constant: bool,
    hasher: DefaultHasher,
}

impl Hasher for MaybeConstant {
    fn write(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
    }
    fn finish(&self) -> u64 {
        if self.constant { 7 } else { self.hasher.finish() }
    }
}

/// The manager, and a pool that does what it orders.
pub(crate) struct Machine {
    manager: BlockManager<Hashes>,
    pool: KvPool,
    /// How many tokens of each sequence have their keys and values in the pool.
    written: BTreeMap<SequenceId, usize>,
}

impl Machine {
    fn call(&mut self, call: Call, made: SequenceId) -> Result<Outcome, ManagerError> {
        let manager = &mut self.manager;
        match call {
            Call::Admit { prompt, keys, chunk } => {
                let known = manager.look_up(&prompt, &keys)?;
                let Admission { sequence, cached } = manager.admit_chunk(&prompt, &keys, chunk)?;
                assert_eq!((sequence, cached), (made, known), "the number, not given before, and what look_up said");
                self.written.insert(sequence, cached);
                Ok(Outcome::Admitted { cached })
            }
            Call::AdmitRolling { prompt, ring } => {
                let ring = NonZeroUsize::new(ring).expect("at least 1");
                assert_eq!(manager.admit_rolling(&prompt, ring)?, made);
                self.written.insert(made, 0);
                Ok(Outcome::Done)
            }
            Call::Append { sequence, token } => {
                let append = manager.append(SequenceId(sequence), token)?;
                append.copy.iter().for_each(|copy| self.pool.copy(*copy).unwrap());
                Ok(Outcome::Appended(append))
            }
            Call::Extend { sequence, tokens } => {
                let copies = manager.extend(SequenceId(sequence), &tokens)?;
                copies.iter().for_each(|copy| self.pool.copy(*copy).unwrap());
                Ok(Outcome::Extended(copies))
            }
            Call::Fork { sequence } => {
                assert_eq!(manager.fork(SequenceId(sequence))?, made);
                self.written.insert(made, manager.table(made)?.len);
                Ok(Outcome::Done)
            }
            Call::Free { sequence } => {
                self.written.remove(&SequenceId(sequence));
                manager.free(SequenceId(sequence)).map(|()| Outcome::Done)
            }
            Call::Strangers { sequence } => {
                let (id, wanted) = (SequenceId(sequence), ManagerError::UnknownSequence(SequenceId(sequence)));
                assert_eq!(manager.free(id), Err(wanted.clone()));
                assert_eq!(manager.fork(id), Err(wanted.clone()));
                assert_eq!(manager.append(id, 0), Err(wanted.clone()));
                assert_eq!(manager.extend(id, &[]), Err(wanted.clone()));
                assert_eq!(manager.table(id), Err(wanted));
                Ok(Outcome::Done)
            }
        }
    }

    /// Writes the keys and values of tokens that have places and no bytes yet.
    fn write(&mut self, naive: &Naive) {
        for (&id, copied) in &naive.sequences {
            let id = SequenceId(id);
            let contents = copied.contents();
            let new = self.written.insert(id, contents.len()).expect("a live sequence");
            let (k, v) = rows(&contents[new..]);
            self.pool.write(self.manager.table(id).unwrap(), new, &k.view().into(), &v.view().into()).unwrap();
        }
    }

    /// NaN in all blocks that nobody holds and no hit finds.
    fn poison(&mut self, naive: &Naive) {
        let page = naive.config.page;
        let nan = Array3::from_elem((page, 2, 2), f32::NAN);
        for &block in naive.free.iter().filter(|&&block| naive.cache.iter().all(|(_, cached)| *cached != block)) {
            let table = Table::listing(page, vec![block], page);
            self.pool.write(&table, 0, &nan.view().into(), &nan.view().into()).unwrap();
        }
    }

    /// What attention would read through each table is what the contiguous copy has.
    fn read(&self, naive: &Naive) {
        let (TensorView::F32(k), TensorView::F32(v)) = (self.pool.k(), self.pool.v()) else { panic!("a pool in F32") };
        for (&id, copied) in &naive.sequences {
            let table = self.manager.table(SequenceId(id)).unwrap();
            let contents = copied.contents();
            let (wanted_k, wanted_v) = rows(&contents);
            let page = naive.config.page;
            let from = copied.ring.map_or(0, |ring| contents.len().saturating_sub(ring * page));
            for t in from..contents.len() {
                let block = copied.table[t / page];
                let Some(slot) = table.slot(t) else {
                    assert_eq!(block, NULL, "token {t} of sequence {id} has no place");
                    continue;
                };
                assert_eq!((slot.block, slot.offset), (block, t % page));
                let place = s![slot.block as usize, slot.offset, .., ..];
                let wanted = (wanted_k.slice(s![t, .., ..]), wanted_v.slice(s![t, .., ..]));
                assert_eq!((k.slice(place), v.slice(place)), wanted, "token {t} of sequence {id}, at {slot:?}");
            }
        }
    }
}

/// Keys and values `[tokens, 2, 2]`, of which no two numbers are alike.
fn rows(contents: &[u16]) -> (Array3<f32>, Array3<f32>) {
    let row = |sign: f32| {
        Array3::from_shape_fn((contents.len(), 2, 2), |(t, head, channel)| {
            sign * (f32::from(contents[t]) + 0.25 * head as f32 + 0.5 * channel as f32 + 1.0)
        })
    };
    (row(1.0), row(-1.0))
}

impl StateMachineTest for Machine {
    type SystemUnderTest = Machine;
    type Reference = Reference;

    fn init_test(reference: &Reference) -> Machine {
        let config = reference.naive.config;
        let shape = PoolShape { blocks: config.blocks, page: config.page, kv_heads: 2, d: 2, d_v: 2 };
        let manager = BlockManager::with_hasher(config, Hashes { constant: reference.constant }).unwrap();
        Machine { manager, pool: KvPool::new(DType::F32, shape).unwrap(), written: BTreeMap::new() }
    }

    fn apply(mut machine: Machine, reference: &Reference, call: Call) -> Machine {
        let made = SequenceId(reference.naive.made.wrapping_sub(1));
        let outcome = machine.call(call, made).unwrap_or_else(|error| Outcome::Refused(error.into()));
        assert_eq!(outcome, reference.outcome, "what the call gave, and what the naive manager gives");
        machine.write(&reference.naive);
        machine.poison(&reference.naive);
        machine
    }

    fn check_invariants(machine: &Machine, reference: &Reference) {
        audit(&machine.manager, &reference.naive, &Hashes { constant: reference.constant });
        machine.read(&reference.naive);
    }
}

/// `cases` times `calls` calls.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

prop_state_machine! {
    #![proptest_config(config(100))]

    #[test]
    fn twenty_thousand_calls_are_those_of_the_naive_manager(sequential 200..201 => Machine);
}

prop_state_machine! {
    #![proptest_config(config(2500))]

    #[test]
    #[ignore = "a million calls take half a minute: run with --ignored"]
    fn a_million_calls_are_those_of_the_naive_manager(sequential 400..401 => Machine);
}
