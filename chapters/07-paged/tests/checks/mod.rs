//! The checks of chapter 7, in the order of its steps. Each step's checks use that step alone.

use crate::laws::*;
use crate::subject::{BlockManager, SequenceId, Table, chain_hash, longest_hit};
use paged::{Append, BlockCopy, BlockId, Blocks, Config, ExtraKey, ManagerError, Slot};
use proptest::prelude::*;
use std::hash::{BuildHasherDefault, DefaultHasher};
use testkit::must;

/// The manager under test.
struct Tested(BlockManager);

impl Tested {
    fn new(blocks: usize, page: usize) -> Self {
        Tested(BlockManager::new(Config::new(blocks, page)).expect("a small pool"))
    }
}

impl Manager for Tested {
    type Id = SequenceId;

    fn admit(&mut self, prompt: &[u32], keys: &[ExtraKey]) -> Had<(SequenceId, usize)> {
        self.0.admit(prompt, keys).map(|admission| (admission.sequence, admission.cached))
    }
    fn append(&mut self, sequence: SequenceId, token: u32) -> Had<Append> {
        self.0.append(sequence, token)
    }
    fn fork(&mut self, sequence: SequenceId) -> Had<SequenceId> {
        self.0.fork(sequence)
    }
    fn free(&mut self, sequence: SequenceId) -> Had<()> {
        self.0.free(sequence)
    }
    fn table(&self, sequence: SequenceId) -> Had<Table> {
        self.0.table(sequence).cloned()
    }
    fn blocks(&self) -> &Blocks {
        self.0.blocks()
    }
}

/// Hashes that are the same in every run.
fn hash(parent: u64, tokens: &[u32], keys: &[ExtraKey]) -> u64 {
    chain_hash(&BuildHasherDefault::<DefaultHasher>::default(), parent, tokens, keys)
}

fn hit(prompt: &[u32], page: usize, cached: &mut dyn FnMut(usize, &[u32]) -> Option<BlockId>) -> Vec<BlockId> {
    longest_hit(prompt, page, cached)
}

fn keys() -> impl Strategy<Value = Vec<ExtraKey>> {
    prop::sample::select(vec![
        vec![],
        vec![ExtraKey::Adapter("a".into())],
        vec![ExtraKey::Salt("a".into())],
        vec![ExtraKey::Salt("b".into())],
    ])
}

fn salt(name: &str) -> [ExtraKey; 1] {
    [ExtraKey::Salt(name.into())]
}

#[test]
fn step_1_slot_by_hand() {
    let table = Table::listing(4, vec![7, 3], 6);
    let slot = |block, offset| Some(Slot { block, offset });
    for (t, wanted) in [(0, slot(7, 0)), (3, slot(7, 3)), (4, slot(3, 0)), (5, slot(3, 1)), (6, None), (8, None)] {
        let found = table.slot(t);
        assert!(
            found == wanted,
            "6 tokens in blocks [7, 3] of 4 slots: token {t} lies in {found:?}, wanted {wanted:?}"
        );
    }
}

#[test]
fn step_2_grow_by_hand() {
    // Three tokens in pages of two: the third takes the second block.
    let mut blocks = Blocks::new(10, 2).unwrap();
    let mut table = Table::new(2);
    for (tokens, wanted) in [(1, vec![1]), (2, vec![1]), (3, vec![1, 2])] {
        table.grow(&mut blocks).unwrap();
        let found = (table.len, &table.blocks);
        assert!(found == (tokens, &wanted), "after {tokens} tokens: {table:?}, wanted blocks {wanted:?}");
    }
}

#[test]
fn step_2_grow_without_a_block_by_hand() {
    must(blocks_come_with_their_first_token(Table::grow, 2, 1));
}

#[test]
fn step_3_share_by_hand() {
    must(a_fork_holds_each_block_once_more(Table::share, &[0, 1]));
}

#[test]
fn step_3_share_of_a_block_that_is_listed_twice_by_hand() {
    must(a_fork_holds_each_block_once_more(Table::share, &[0, 1, 0]));
}

#[test]
fn step_4_own_by_hand() {
    // Six tokens in pages of four: block 2 has two of them, and two holders.
    let mut blocks = Blocks::new(10, 4).unwrap();
    let held = [(); 2].map(|()| blocks.allocate().unwrap());
    held.iter().for_each(|&block| blocks.retain(block).unwrap());
    let mut table = Table::listing(4, held.to_vec(), 6);
    let (found, wanted) = (table.own(&mut blocks), BlockCopy { from: 2, to: 3, slots: 2 });
    assert!(
        found == Ok(Some(wanted)),
        "6 tokens in blocks [1, 2] of 4 slots, two holders: {found:?}, wanted {wanted:?}"
    );
    assert!(table.blocks == [1, 3], "after the copy to block 3 the table lists {:?}, wanted [1, 3]", table.blocks);
    let refs = [1, 2, 3].map(|block| blocks.refs(block));
    assert!(refs == [2, 1, 1], "after the copy blocks 1, 2 and 3 have {refs:?} holders, wanted [2, 1, 1]");
}

#[test]
fn step_4_own_of_a_block_of_one_holder_by_hand() {
    must(a_written_block_has_one_holder(
        Table::own,
        &Before { page: 4, len: 6, holders: 1, twice: false, spare: true },
    ));
}

#[test]
fn step_4_own_of_a_full_block_by_hand() {
    must(a_written_block_has_one_holder(
        Table::own,
        &Before { page: 4, len: 8, holders: 3, twice: false, spare: true },
    ));
}

#[test]
fn step_4_own_without_a_block_by_hand() {
    must(a_written_block_has_one_holder(
        Table::own,
        &Before { page: 4, len: 6, holders: 2, twice: false, spare: false },
    ));
}

#[test]
fn step_5_hash_by_hand() {
    // The same second page behind two first pages, and the same prompt for two tenants.
    let (one, other) = ([1, 2, 3, 4], [5, 6, 3, 4]);
    must(a_hash_is_of_all_that_stands_before(hash, 2, (&one, &[]), (&other, &[])));
    must(a_hash_is_of_all_that_stands_before(hash, 2, (&one, &salt("a")), (&one, &salt("b"))));
    must(a_hash_is_of_all_that_stands_before(hash, 2, (&one, &salt("a")), (&one, &[ExtraKey::Adapter("a".into())])));
}

#[test]
fn step_5_hash_of_turned_pages_by_hand() {
    must(a_hash_is_of_all_that_stands_before(hash, 2, (&[1, 2, 3, 4], &[]), (&[3, 4, 1, 2], &[])));
    must(a_hash_is_of_all_that_stands_before(hash, 2, (&[1, 2], &[]), (&[2, 1], &[])));
}

#[test]
fn step_6_hit_by_hand() {
    for len in [0, 3, 4, 5, 11, 12, 13] {
        must(a_hit_is_the_longest_beginning(hit, 4, len, &[true; 5]));
    }
}

#[test]
fn step_6_hit_ends_where_a_page_is_missing_by_hand() {
    must(a_hit_is_the_longest_beginning(hit, 4, 17, &[true, false, true, true]));
}

proptest! {
    #![proptest_config(testkit::config())]

    #[test]
    fn step_1_slot_of_any_table(page in 1usize..6, blocks in prop::collection::vec(1i32..9, 0..5), free in 0usize..5) {
        let len = (blocks.len() * page).saturating_sub(free.min(page - 1));
        slots_are_in_the_tables_order(Table::slot, page, &blocks, len)?;
    }

    #[test]
    fn step_2_grow_to_any_length(page in 1usize..8, blocks in 1usize..6) {
        blocks_come_with_their_first_token(Table::grow, page, blocks)?;
    }

    #[test]
    fn step_3_share_of_any_table(listed in prop::collection::vec(0usize..4, 0..8)) {
        a_fork_holds_each_block_once_more(Table::share, &listed)?;
    }

    #[test]
    fn step_4_own_of_any_table(case in before()) {
        a_written_block_has_one_holder(Table::own, &case)?;
    }

    #[test]
    fn step_5_hash_of_any_prompts(
        page in 1usize..4, one in prop::collection::vec(0u32..3, 0..9), other in prop::collection::vec(0u32..3, 0..9),
        one_keys in keys(), other_keys in keys(),
    ) {
        a_hash_is_of_all_that_stands_before(hash, page, (&one, &one_keys), (&other, &other_keys))?;
    }

    #[test]
    fn step_6_hit_of_any_prompt(page in 1usize..6, len in 0u32..30, there in prop::collection::vec(any::<bool>(), 0..9)) {
        a_hit_is_the_longest_beginning(hit, page, len, &there)?;
    }

    #[test]
    fn step_7_manager_keeps_what_was_written(blocks in 2usize..12, page in 1usize..5, calls in calls()) {
        sequences_keep_their_tokens(Tested::new(blocks, page), (blocks, page), &calls)?;
    }
}

#[test]
fn step_7_manager_forks_by_hand() {
    // A parent of six tokens in pages of four, two forks, and one token more for each of the three.
    let mut manager = BlockManager::new(Config::new(10, 4)).unwrap();
    let parent = manager.admit(&[1, 2, 3, 4, 5, 6], &[]).unwrap().sequence;
    let siblings = [parent, manager.fork(parent).unwrap(), manager.fork(parent).unwrap()];
    let copies = siblings.map(|sequence| manager.append(sequence, 9).unwrap().copy.is_some());
    assert!(copies == [true, true, false], "which of three siblings copied: {copies:?}, wanted the first two");
    let tables = siblings.map(|sequence| manager.table(sequence).unwrap().blocks.clone());
    let (first, last) = (tables.each_ref().map(|table| table[0]), tables.each_ref().map(|table| table[1]));
    assert!(
        first == [1; 3] && manager.blocks().refs(1) == 3,
        "the first blocks are {first:?}, wanted one of all three"
    );
    assert!(last[0] != last[1] && last[1] != last[2] && last[0] != last[2], "the last blocks are {last:?}");
}

#[test]
fn step_7_manager_finds_prompts_again_by_hand() {
    for (tokens, second) in [(15, 0), (16, 0), (17, 16), (32, 16)] {
        let mut manager = BlockManager::new(Config::new(20, 16)).unwrap();
        let prompt: Vec<u32> = (0..40).collect();
        let mut cached = |tokens: usize, keys: &[ExtraKey]| {
            let admission = manager.admit(&prompt[..tokens], keys).unwrap();
            manager.free(admission.sequence).unwrap();
            admission.cached
        };
        let found = (cached(tokens, &[]), cached(tokens, &[]), cached(tokens, &salt("tenant")));
        let wanted = (0, second, 0);
        assert!(
            found == wanted,
            "a prompt of {tokens} tokens in pages of 16, sent twice, then by another tenant: {found:?} tokens found, \
             wanted {wanted:?}"
        );
    }
}

#[test]
fn step_7_manager_reuses_the_tail_first_by_hand() {
    // Four blocks of four slots. A prompt of 9 tokens has two full blocks; 7 others then take three blocks.
    let mut manager = BlockManager::new(Config::new(5, 4)).unwrap();
    let prompt: Vec<u32> = (0..9).collect();
    let first = manager.admit(&prompt, &[]).unwrap().sequence;
    manager.free(first).unwrap();
    let other = manager.admit(&[20, 21, 22, 23, 24, 25, 26, 27, 28], &[]).unwrap().sequence;
    manager.free(other).unwrap();
    let found = manager.admit(&prompt, &[]).unwrap().cached;
    assert!(found == 4, "{found} tokens are found, wanted 4: the second block was reused, the first was not");
}

#[test]
fn step_7_manager_refuses_without_a_trace_by_hand() {
    let mut manager = BlockManager::new(Config::new(4, 4)).unwrap();
    let parent = manager.admit(&[1, 2, 3, 4, 5, 6], &[]).unwrap().sequence;
    manager.fork(parent).unwrap();
    let filler = manager.admit(&[7, 8, 9], &[]).unwrap().sequence;
    let before = (manager.table(parent).unwrap().clone(), manager.blocks().uses());
    // No block is left for the copy.
    let refused = manager.append(parent, 7);
    assert!(refused == Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 }), "{refused:?}");
    let after = (manager.table(parent).unwrap().clone(), manager.blocks().uses());
    assert!(after == before, "a refused token changed {before:?} to {after:?}");
    manager.free(filler).unwrap();
    assert!(manager.append(parent, 7).is_ok());
}
