//! What each step of chapter 7 must do, as laws that take the step as an argument: the checks apply them to the code
//! under test, and `wrong.rs` proves that each rejects a wrong step.

use crate::subject::Table;
use attention::{DType, TensorView};
use ndarray::Array3;
use paged::{Append, BlockCopy, BlockId, Blocks, ExtraKey, KvPool, ManagerError, PoolShape, Slot};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A step of a table that may lack a block.
pub(crate) type Had<T> = Result<T, ManagerError>;

/// A pool of `blocks` blocks, at least one, beside the null block; and the first `held` of them, each held once.
fn pool(blocks: usize, held: usize, page: usize) -> (Blocks, Vec<BlockId>) {
    let mut pool = Blocks::new(blocks.max(1) + 1, page).expect("a small pool");
    let held = (0..held).map(|_| pool.allocate().expect("there are so many")).collect();
    (pool, held)
}

/// How many hold each of `blocks`.
fn refs(pool: &Blocks, blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|&block| pool.refs(block)).collect()
}

/// Tokens lie one behind the other in the slots of the blocks, in the table's order.
pub(crate) fn slots_are_in_the_tables_order(
    slot: impl Fn(&Table, usize) -> Option<Slot>,
    page: usize,
    blocks: &[BlockId],
    len: usize,
) -> Result<(), TestCaseError> {
    let table = Table::listing(page, blocks.to_vec(), len);
    let places = blocks.iter().flat_map(|&block| (0..page).map(move |offset| Slot { block, offset }));
    let places: Vec<Slot> = places.take(len).collect();
    for t in 0..len + 2 * page {
        let (found, wanted) = (slot(&table, t), places.get(t).copied());
        prop_assert!(
            found == wanted,
            "{len} tokens in blocks {blocks:?} of {page} slots: token {t} lies in {found:?}, wanted {wanted:?}"
        );
    }
    Ok(())
}

/// A table takes a block with the first token of each page, and changes in nothing when there is none.
pub(crate) fn blocks_come_with_their_first_token(
    grow: impl Fn(&mut Table, &mut Blocks) -> Had<Slot>,
    page: usize,
    blocks: usize,
) -> Result<(), TestCaseError> {
    let (mut pool, _) = pool(blocks, 0, page);
    let mut table = Table::new(page);
    for t in 0..blocks * page {
        let before = table.blocks.clone();
        let place = grow(&mut table, &mut pool);
        let at = format!("token {t} in pages of {page}: table {:?}, before it {before:?}", table.blocks);
        let is_first = t % page == 0;
        prop_assert!(table.len == t + 1, "{at}, length {}, wanted {}", table.len, t + 1);
        prop_assert!(
            table.blocks.len() == before.len() + usize::from(is_first) && table.blocks.starts_with(&before),
            "{at}, wanted {}",
            if is_first { "one block more" } else { "no block more" }
        );
        let taken = pool.usable() - pool.free();
        prop_assert!(taken == table.blocks.len(), "{at}, and {taken} blocks taken from the pool");
        let wanted = Slot { block: *table.blocks.last().expect("there is one"), offset: t % page };
        prop_assert!(place == Ok(wanted), "{at}: its place is {place:?}, wanted {wanted:?}");
    }
    let before = table.clone();
    let refused = grow(&mut table, &mut pool);
    let at = format!("token {} in pages of {page}, with all {blocks} blocks taken", before.len);
    prop_assert!(refused == Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 }), "{at}: {refused:?}");
    prop_assert!(table == before, "{at}: the table changed from {before:?} to {table:?}");
    Ok(())
}

/// A fork holds each different block of the table once more, and takes none. `listed` are places in a pool of 5 blocks.
pub(crate) fn a_fork_holds_each_block_once_more(
    share: impl Fn(&Table, &mut Blocks) -> Had<Table>,
    listed: &[usize],
) -> Result<(), TestCaseError> {
    let (mut pool, held) = pool(5, 4, 2);
    let blocks: Vec<BlockId> = listed.iter().map(|&place| held[place]).collect();
    let table = Table::listing(2, blocks.clone(), 2 * blocks.len());
    let holders = |pool: &Blocks, forks: u32| -> Result<(), TestCaseError> {
        let wanted: Vec<u32> = held.iter().map(|block| 1 + forks * u32::from(blocks.contains(block))).collect();
        let found = refs(pool, &held);
        prop_assert!(
            found == wanted,
            "the table {blocks:?} and forks of it, {forks} in number: blocks {held:?} have {found:?} holders, wanted {wanted:?}"
        );
        prop_assert!(pool.free() == 1, "a fork of {blocks:?} takes or gives back a block of the pool");
        Ok(())
    };
    for forks in 1..=2 {
        let fork = share(&table, &mut pool);
        prop_assert!(fork.as_ref() == Ok(&table), "the fork of {table:?} is {fork:?}");
        holders(&pool, forks)?;
    }
    for forks in [1, 0] {
        table.clone().discard(&mut pool)?;
        holders(&pool, forks)?;
    }
    Ok(())
}

/// A table before its next token is written.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    pub(crate) page: usize,
    pub(crate) len: usize,
    /// How many hold the last block.
    pub(crate) holders: u32,
    /// Whether the first entry lists the last block too.
    pub(crate) twice: bool,
    /// Whether the pool has a block left.
    pub(crate) spare: bool,
}

pub(crate) fn before() -> impl Strategy<Value = Before> {
    (1usize..5, 0usize..14, 1u32..4, any::<bool>(), prop::bool::weighted(0.8))
        .prop_map(|(page, len, holders, twice, spare)| Before { page, len, holders, twice, spare })
}

/// The block of the next token is the table's alone afterwards, or nothing has changed.
pub(crate) fn a_written_block_has_one_holder(
    own: impl Fn(&mut Table, &mut Blocks) -> Had<Option<BlockCopy>>,
    case: &Before,
) -> Result<(), TestCaseError> {
    let Before { page, len, holders, twice, spare } = *case;
    let entries = len.div_ceil(page);
    let (mut pool, held) = pool(entries + usize::from(spare), entries, page);
    let mut blocks = held.clone();
    let twice = twice && entries > 1;
    if twice {
        blocks[0] = blocks[entries - 1];
    }
    for _ in 1..holders {
        blocks.last().map_or(Ok(()), |&last| pool.retain(last))?;
    }
    let mut table = Table::listing(page, blocks.clone(), len);
    let (before, counts) = (table.clone(), refs(&pool, &held));
    let found = own(&mut table, &mut pool);
    let at = format!("{len} tokens in blocks {blocks:?} of {page} slots, of which the last is held by {holders}");
    let shared = holders > 1 && len % page > 0;
    if !shared || !spare {
        let wanted = if shared { Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 }) } else { Ok(None) };
        prop_assert!(found == wanted, "{at}: {found:?}, wanted {wanted:?}");
        prop_assert!(table == before, "{at}: the table changed to {table:?}");
        let now = refs(&pool, &held);
        prop_assert!(now == counts, "{at}: {found:?}, and blocks {held:?} have {now:?} holders, before {counts:?}");
        return Ok(());
    }
    let (from, to) = (blocks[entries - 1], entries as BlockId + 1);
    let wanted = BlockCopy { from, to, slots: if twice { page } else { len % page } };
    prop_assert!(found == Ok(Some(wanted)), "{at}: {found:?}, wanted {wanted:?}");
    let listed: Vec<BlockId> = blocks.iter().map(|&block| if block == from { to } else { block }).collect();
    prop_assert!(
        (&table.blocks, table.len) == (&listed, len),
        "{at}: the table is {table:?}, wanted blocks {listed:?}"
    );
    let now = (pool.refs(from), pool.refs(to));
    prop_assert!(
        now == (holders - 1, 1),
        "{at}: now {from} and {to} have {now:?} holders, wanted {:?}",
        (holders - 1, 1)
    );
    Ok(())
}

/// Two prompts have the same hash at the end of a page exactly if they are the same up to there, under the same keys.
pub(crate) fn a_hash_is_of_all_that_stands_before(
    hash: impl Fn(u64, &[u32], &[ExtraKey]) -> u64,
    page: usize,
    (one, one_keys): (&[u32], &[ExtraKey]),
    (other, other_keys): (&[u32], &[ExtraKey]),
) -> Result<(), TestCaseError> {
    let chain = |prompt: &[u32], keys: &[ExtraKey]| -> Vec<u64> {
        let mut parent = 0;
        let mut next = |(i, tokens): (usize, &[u32])| {
            parent = hash(parent, tokens, &ExtraKey::of_block(keys, i * page..(i + 1) * page));
            parent
        };
        prompt.chunks_exact(page).enumerate().map(&mut next).collect()
    };
    let (one_chain, other_chain) = (chain(one, one_keys), chain(other, other_keys));
    for (i, one_hash) in one_chain.iter().enumerate() {
        for (j, other_hash) in other_chain.iter().enumerate() {
            let same = i == j && one[..(i + 1) * page] == other[..(j + 1) * page] && one_keys == other_keys;
            prop_assert!(
                (one_hash == other_hash) == same,
                "page {i} of {one:?} under {one_keys:?} and page {j} of {other:?} under {other_keys:?}, {page} tokens a \
                 page: the hashes are {one_hash} and {other_hash}, wanted {} ones",
                if same { "equal" } else { "different" }
            );
        }
    }
    Ok(())
}

/// A hit is all pages from the first to the last before one is missing, full ones alone, without the prompt's last token.
pub(crate) fn a_hit_is_the_longest_beginning(
    longest_hit: impl Fn(&[u32], usize, &mut dyn FnMut(usize, &[u32]) -> Option<BlockId>) -> Vec<BlockId>,
    page: usize,
    len: u32,
    there: &[bool],
) -> Result<(), TestCaseError> {
    let prompt: Vec<u32> = (100..100 + len).collect();
    let mut asked: Vec<(usize, Vec<u32>)> = Vec::new();
    let mut cached = |i: usize, tokens: &[u32]| {
        asked.push((i, tokens.to_vec()));
        there.get(i).copied().unwrap_or(false).then_some(i as BlockId + 7)
    };
    let found = longest_hit(&prompt, page, &mut cached);
    let (mut wanted, mut questions) = (Vec::new(), Vec::new());
    // Page i may be asked for while a token behind it remains.
    for i in (0..).take_while(|i| (i + 1) * page < prompt.len()) {
        questions.push((i, prompt[i * page..(i + 1) * page].to_vec()));
        if !there.get(i).copied().unwrap_or(false) {
            break;
        }
        wanted.push(i as BlockId + 7);
    }
    let at = format!("a prompt of {len} tokens in pages of {page}, cached {there:?}");
    prop_assert!(asked == questions, "{at}: it asks for {asked:?}, wanted {questions:?}");
    prop_assert!(found == wanted, "{at}: {found:?}, wanted {wanted:?}");
    Ok(())
}

/// One call in a row of calls; a sequence is named by its place among the live ones, counted round.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// A prompt of so many tokens that begins like others for the first of them, and a tenant or none.
    Admit {
        len: u32,
        common: u32,
        tenant: Option<u8>,
    },
    Append {
        place: usize,
        token: u32,
    },
    Fork {
        place: usize,
    },
    Free {
        place: usize,
    },
}

pub(crate) fn calls() -> impl Strategy<Value = Vec<Call>> {
    let admit = (0u32..12, 0u32..12, prop::option::weighted(0.3, 0u8..2));
    let call = prop_oneof![
        2 => admit.prop_map(|(len, common, tenant)| Call::Admit { len, common, tenant }),
        5 => (0usize..9, 0u32..3).prop_map(|(place, token)| Call::Append { place, token }),
        2 => (0usize..9).prop_map(|place| Call::Fork { place }),
        2 => (0usize..9).prop_map(|place| Call::Free { place }),
    ];
    prop::collection::vec(call, 1..40)
}

/// What the law of the whole asks of a manager.
pub(crate) trait Manager {
    type Id: Copy;
    fn admit(&mut self, prompt: &[u32], keys: &[ExtraKey]) -> Had<(Self::Id, usize)>;
    fn append(&mut self, sequence: Self::Id, token: u32) -> Had<Append>;
    fn fork(&mut self, sequence: Self::Id) -> Had<Self::Id>;
    fn free(&mut self, sequence: Self::Id) -> Had<()>;
    fn table(&self, sequence: Self::Id) -> Had<Table>;
    fn blocks(&self) -> &Blocks;
}

/// A sequence written out: its tokens one behind the other.
struct Copied<Id> {
    id: Id,
    tokens: Vec<u32>,
    keys: Vec<ExtraKey>,
}

impl<Id> Copied<Id> {
    /// What the key of token t is: a number made of the keys and of all tokens up to it, as that of a model would be.
    fn row(&self, t: usize) -> f32 {
        let mut state = DefaultHasher::new();
        (&self.keys, &self.tokens[..=t]).hash(&mut state);
        f32::from(state.finish() as u16) + 1.0
    }
}

/// A pool of one head of one channel, filled as a manager says.
struct Bytes {
    pool: KvPool,
    page: usize,
}

impl Bytes {
    fn new(blocks: usize, page: usize) -> Self {
        let shape = PoolShape { blocks, page, kv_heads: 1, d: 1, d_v: 1 };
        Bytes { pool: KvPool::new(DType::F32, shape).expect("a small pool"), page }
    }

    fn write(&mut self, slot: Slot, row: f32) -> Result<(), TestCaseError> {
        let block = paged::Table::listing(self.page, vec![slot.block], self.page);
        let rows = |row: f32| Array3::from_elem((1, 1, 1), row);
        let (k, v) = (rows(row), rows(-row));
        Ok(self.pool.write(&block, slot.offset, &k.view().into(), &v.view().into())?)
    }

    fn read(&self, slot: Slot) -> (f32, f32) {
        let (TensorView::F32(k), TensorView::F32(v)) = (self.pool.k(), self.pool.v()) else {
            unreachable!("a pool in F32")
        };
        let place = [slot.block as usize, slot.offset, 0, 0];
        (k[&place[..]], v[&place[..]])
    }
}

/// Where token t lies by the table's own blocks.
fn place(table: &Table, page: usize, t: usize) -> Slot {
    Slot { block: table.blocks.get(t / page).copied().unwrap_or(-1), offset: t % page }
}

/// Through its table each sequence reads what it wrote, whatever the others did since; and every count is right.
pub(crate) fn sequences_keep_their_tokens<M: Manager>(
    manager: M,
    (blocks, page): (usize, usize),
    calls: &[Call],
) -> Result<(), TestCaseError> {
    let mut whole = Whole { manager, bytes: Bytes::new(blocks, page), live: Vec::new() };
    for (number, call) in calls.iter().enumerate() {
        let free = whole.manager.blocks().free();
        let at = format!("call {number}, {call:?}, {} sequences, {free} blocks free", whole.live.len());
        whole.call(call, free, &at)?;
        all_is_there(&whole.manager, &whole.bytes, &whole.live, &at)?;
    }
    Ok(())
}

/// A manager, the bytes that it orders, and what they should be.
struct Whole<M: Manager> {
    manager: M,
    bytes: Bytes,
    live: Vec<Copied<M::Id>>,
}

impl<M: Manager> Whole<M> {
    fn call(&mut self, call: &Call, free: usize, at: &str) -> Result<(), TestCaseError> {
        let any = self.live.len();
        match *call {
            Call::Admit { len, common, tenant } => {
                let tokens: Vec<u32> = (0..len).map(|t| if t < common { t } else { 50 + t }).collect();
                let keys = tenant.map(|tenant| ExtraKey::Salt(tenant.to_string())).into_iter().collect();
                self.admit(tokens, keys, free, at)?;
            }
            Call::Append { place, token } if any > 0 => {
                let sequence = &mut self.live[place % any];
                match self.manager.append(sequence.id, token) {
                    Ok(append) => {
                        sequence.tokens.push(token);
                        append.copy.map_or(Ok(()), |copy| self.bytes.pool.copy(copy))?;
                        self.bytes.write(append.slot, sequence.row(sequence.tokens.len() - 1))?;
                    }
                    Err(error) => prop_assert!(free == 0, "{at}: {error}"),
                }
            }
            Call::Fork { place } if any > 0 => {
                let parent = &self.live[place % any];
                let id = self.manager.fork(parent.id)?;
                self.live.push(Copied { id, tokens: parent.tokens.clone(), keys: parent.keys.clone() });
            }
            Call::Free { place } if any > 0 => {
                let gone = self.live.remove(place % any);
                self.manager.free(gone.id)?;
                prop_assert!(self.manager.free(gone.id).is_err(), "{at}: freed twice without an error");
            }
            Call::Append { .. } | Call::Fork { .. } | Call::Free { .. } => {}
        }
        Ok(())
    }

    fn admit(&mut self, tokens: Vec<u32>, keys: Vec<ExtraKey>, free: usize, at: &str) -> Result<(), TestCaseError> {
        let page = self.bytes.page;
        match self.manager.admit(&tokens, &keys) {
            Ok((id, cached)) => {
                let right = cached % page == 0 && (cached == 0 || cached < tokens.len());
                prop_assert!(right, "{at}: {cached} of {} tokens found, in pages of {page}", tokens.len());
                let (sequence, table) = (Copied { id, tokens, keys }, self.manager.table(id)?);
                for t in cached..sequence.tokens.len() {
                    self.bytes.write(place(&table, page, t), sequence.row(t))?;
                }
                self.live.push(sequence);
            }
            Err(error) => prop_assert!((tokens.len() + 1).div_ceil(page) > free, "{at}: {error}"),
        }
        Ok(())
    }
}

/// The bytes and the counts, after a call.
fn all_is_there<M: Manager>(manager: &M, bytes: &Bytes, live: &[Copied<M::Id>], at: &str) -> Result<(), TestCaseError> {
    let page = bytes.page;
    let mut uses: BTreeMap<BlockId, u32> = BTreeMap::new();
    for (number, sequence) in live.iter().enumerate() {
        let table = manager.table(sequence.id)?;
        let tokens = &sequence.tokens;
        let wanted = (tokens.len(), tokens.len().div_ceil(page));
        prop_assert!(
            (table.len, table.blocks.len()) == wanted,
            "after {at}: sequence {number} has {} tokens in blocks {:?} of {page} slots, wanted {} in {}",
            table.len,
            table.blocks,
            wanted.0,
            wanted.1
        );
        for t in 0..tokens.len() {
            let (slot, row) = (place(&table, page, t), sequence.row(t));
            let found = bytes.read(slot);
            prop_assert!(
                found == (row, -row),
                "after {at}: sequence {number} of tokens {tokens:?} in blocks {:?} reads {found:?} for token {t}, wanted \
                 {:?}",
                table.blocks,
                (row, -row)
            );
        }
        let distinct: BTreeSet<BlockId> = table.blocks.iter().copied().collect();
        distinct.into_iter().for_each(|block| *uses.entry(block).or_default() += 1);
    }
    let blocks = manager.blocks();
    for (&block, &wanted) in &uses {
        let found = blocks.refs(block);
        prop_assert!(found == wanted, "after {at}: block {block} has {found} holders, wanted {wanted}");
    }
    let (used, total) = (blocks.usable() - blocks.free(), uses.values().sum::<u32>() as usize);
    prop_assert!(
        (used, blocks.uses()) == (uses.len(), total),
        "after {at}: {used} blocks are held by {} in all, wanted {} by {total}",
        blocks.uses(),
        uses.len()
    );
    Ok(())
}
