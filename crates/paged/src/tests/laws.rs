//! What random calls do not reach: settings, limits, and cases whose numbers can be worked by hand.

use crate::*;
use std::collections::BTreeSet;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::num::NonZeroUsize;
use std::slice::from_ref;

fn manager(blocks: usize, page: usize) -> BlockManager {
    BlockManager::new(Config::new(blocks, page)).unwrap()
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).collect()
}

#[test]
fn a_pool_has_a_null_block_and_another_and_slots() {
    for (blocks, page) in [(0, 16), (1, 16), (usize::MAX, 16), (10, 0), (10, usize::MAX)] {
        let found = BlockManager::new(Config::new(blocks, page)).err();
        assert!(matches!(found, Some(ManagerError::Value { .. })), "{blocks} blocks of {page}: {found:?}");
    }
    let error = Blocks::new(1, 16).unwrap_err();
    assert_eq!(error.to_string(), "blocks: found 1, wanted 2 to 2147483647");
    assert!(Blocks::new(2, i32::MAX as usize).is_ok(), "slots are counted and not allocated");
}

#[test]
fn blocks_that_nobody_holds_are_neither_shared_nor_given_back() {
    let mut blocks = Blocks::new(4, 16).unwrap();
    let held = blocks.allocate().unwrap();
    let before = (blocks.free(), blocks.uses());
    for stranger in [NULL, held + 1, 4, 2_147_480_000, -1, BlockId::MIN] {
        assert_eq!(blocks.refs(stranger), 0);
        assert_eq!(blocks.retain(stranger), Err(ManagerError::UnknownBlock(stranger)));
        assert_eq!(blocks.release(stranger), Err(ManagerError::UnknownBlock(stranger)));
    }
    assert_eq!((blocks.free(), blocks.uses()), before);
    blocks.release(held).unwrap();
    assert_eq!(blocks.release(held), Err(ManagerError::UnknownBlock(held)));
    assert_eq!((blocks.free(), blocks.uses()), (3, 0));
}

#[test]
fn the_cache_takes_full_blocks_that_are_held_and_no_others() {
    let mut blocks = Blocks::new(4, 2).unwrap();
    let held = blocks.allocate().unwrap();
    let mut enter = |tokens: &[u32], block| blocks.enter(Prefix::EMPTY, 1, (tokens, vec![]), block);
    for stranger in [NULL, held + 1, -1] {
        assert_eq!(enter(&[1, 2], stranger), Err(ManagerError::UnknownBlock(stranger)));
    }
    assert!(matches!(enter(&[1], held), Err(ManagerError::Value { .. })));
    assert!(matches!(enter(&[1, 2, 3], held), Err(ManagerError::Value { .. })));
    let grown = enter(&[1, 2], held).unwrap();
    assert_eq!(enter(&[1, 2], held), Err(ManagerError::UnknownBlock(held)), "it is cached already");
    assert_eq!(blocks.prefixes().block(grown), Some(held));
    // One hold too many is given up: the cache knows better.
    (0..5).for_each(|_| blocks.leave(grown));
    blocks.leave(Prefix::EMPTY);
    blocks.release(held).unwrap();
    assert_eq!([(); 3].map(|()| blocks.allocate().is_ok()), [true; 3]);
    assert_eq!(blocks.allocate(), Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 }));
}

#[test]
fn a_table_that_gets_no_block_is_what_it_was() {
    let ring = NonZeroUsize::new(2).unwrap();
    for (mut table, tokens) in [(Table::new(4), 6), (Table::new(4), 8), (Table::rolling(4, ring), 10)] {
        let mut blocks = Blocks::new(3, 4).unwrap();
        (0..tokens).for_each(|_| assert!(table.append(&mut blocks).is_ok()));
        let fork = table.share(&mut blocks).unwrap();
        let before = (table.clone(), blocks.uses(), blocks.refs(1), blocks.refs(2));
        assert!(blocks.free() == 0 && table.wanted(1, &blocks) == 1);
        assert_eq!(table.append(&mut blocks), Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 }), "{table:?}");
        assert_eq!((table.clone(), blocks.uses(), blocks.refs(1), blocks.refs(2)), before);
        fork.discard(&mut blocks).unwrap();
        table.discard(&mut blocks).unwrap();
        assert_eq!((blocks.free(), blocks.uses()), (2, 0));
    }
}

#[test]
fn walks_can_be_counted_round() {
    let mut blocks = Blocks::new(4, 4).unwrap();
    for before in [0, u32::MAX, u32::MAX - 1] {
        // The first walk has left its number, which is that of the second again.
        blocks.visit = before;
        blocks.start_visit();
        assert_eq!([1, 2, 1, NULL].map(|block| blocks.first_visit(block)), [true, true, false, false], "{before}");
    }
}

#[test]
fn any_count_of_tokens_is_answered_at_once() {
    let mut manager = BlockManager::new(Config { columns: None, ..Config::new(10, 1) }).unwrap();
    let sequence = manager.admit(&[1, 2], &[]).unwrap().sequence;
    let table = manager.table(sequence).unwrap();
    assert_eq!(table.wanted(usize::MAX, manager.blocks()), usize::MAX - 2);
    let ring = Table::rolling(1, NonZeroUsize::new(3).unwrap());
    assert_eq!(ring.wanted(usize::MAX, manager.blocks()), 3);
    let ring = Table::rolling(1, NonZeroUsize::MAX);
    assert_eq!(ring.wanted(usize::MAX, manager.blocks()), usize::MAX);
    assert_eq!(Table::new(0).page(), 1);
}

#[test]
fn a_length_is_at_most_what_attention_can_be_told() {
    // A ring of one block never runs out of blocks.
    let mut manager = manager(2, 16);
    let ring = NonZeroUsize::MIN;
    let sequence = manager.admit_rolling(&[], ring).unwrap();
    let most = i32::MAX as usize;
    let too_long = Sequenced(&mut manager, sequence).at(most).append(sequence, 1);
    assert_eq!(too_long, Err(ManagerError::TooLong { tokens: most + 1, most }));
}

/// Sets a length that would take hours to reach.
struct Sequenced<'a>(&'a mut BlockManager, SequenceId);

impl<'a> Sequenced<'a> {
    fn at(self, len: usize) -> &'a mut BlockManager {
        self.0.sequences.get_mut(&self.1).unwrap().table.len = len;
        self.0
    }
}

#[test]
fn a_hash_is_that_of_everything_before() {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let (adapter, salt) = (ExtraKey::Adapter("a".into()), ExtraKey::Salt("a".into()));
    let hash = |parent, tokens: &[u32], keys: &[ExtraKey]| chain_hash(&hasher, parent, tokens, keys);
    let hashes = [
        hash(0, &[1, 2], &[]),
        hash(1, &[1, 2], &[]),
        hash(0, &[2, 1], &[]),
        hash(0, &[1, 2, 0], &[]),
        hash(0, &[1, 2], from_ref(&adapter)),
        hash(0, &[1, 2], from_ref(&salt)),
        hash(0, &[1, 2], &[adapter, salt]),
    ];
    let different: BTreeSet<u64> = hashes.into_iter().collect();
    assert_eq!(different.len(), hashes.len(), "{hashes:?}");
    assert_eq!(hash(0, &[1, 2], &[]), hashes[0]);
}

#[test]
fn extra_keys_share_with_their_equals_alone() {
    let (adapter, salt) = (ExtraKey::Adapter("a".into()), ExtraKey::Salt("a".into()));
    let image = |digest: u8, first| ExtraKey::Image { digest: [digest; 32], first, count: 6 };
    let kinds: [&[ExtraKey]; 8] = [
        &[],
        from_ref(&adapter),
        &[ExtraKey::Adapter("b".into())],
        from_ref(&salt),
        &[adapter.clone(), salt.clone()],
        &[image(1, 0)],
        &[image(2, 0)],
        &[image(1, 0), salt.clone()],
    ];
    let mut manager = manager(100, 4);
    for keys in kinds {
        assert_eq!(manager.admit(&prompt(17), keys).unwrap().cached, 0, "{keys:?} for the first time");
    }
    for keys in kinds {
        assert_eq!(manager.look_up(&prompt(17), keys), Ok(16), "{keys:?} for the second time");
    }
    assert_eq!(manager.look_up(&prompt(17), &[salt.clone(), adapter, salt]), Ok(16), "in any order, any number");
    // Text before an image is shared, what follows is not.
    assert_eq!(manager.look_up(&prompt(17), &[image(3, 9)]), Ok(8));
}

#[test]
fn an_image_lies_in_its_prompt() {
    let mut manager = manager(100, 4);
    for (first, count) in [(0, 0), (10, 8), (17, 1), (usize::MAX, 2), (2, usize::MAX)] {
        let keys = [ExtraKey::Image { digest: [0; 32], first, count }];
        for found in [manager.look_up(&prompt(17), &keys).err(), manager.admit(&prompt(17), &keys).err()] {
            assert!(matches!(found, Some(ManagerError::Value { name: "image", .. })), "{first}, {count}: {found:?}");
        }
    }
    assert_eq!(manager.stats().used, 0);
}

#[test]
fn what_can_never_fit_is_refused_and_what_does_not_fit_now_is_told_apart() {
    let mut manager = manager(5, 4);
    assert_eq!(manager.admit(&prompt(16), &[]), Err(ManagerError::NeverFits { tokens: 16, wanted: 5, most: 4 }));
    let first = manager.admit(&prompt(15), &[]).unwrap().sequence;
    assert_eq!(manager.admit(&[9; 5], &[]), Err(ManagerError::OutOfBlocks { free: 0, wanted: 2 }));
    manager.free(first).unwrap();
    assert_eq!(manager.admit(&[9; 5], &[]).unwrap().cached, 0);
    // A ring has room for any length.
    assert!(manager.admit_rolling(&prompt(100), NonZeroUsize::new(2).unwrap()).is_ok());
}

#[test]
fn a_window_gives_back_what_it_leaves_and_is_found_all_the_same() {
    let config = Config { window: NonZeroUsize::new(6), ..Config::new(40, 4) };
    let mut manager = BlockManager::new(config).unwrap();
    let sequence = manager.admit(&prompt(20), &[]).unwrap().sequence;
    assert_eq!(manager.table(sequence).unwrap().blocks, [1, 2, 3, 4, 5]);
    // Token 20 sees tokens 15 to 20: tokens 0 to 11 fill blocks that nothing reaches any more.
    manager.append(sequence, 20).unwrap();
    assert_eq!(manager.table(sequence).unwrap().blocks, [NULL, NULL, NULL, 4, 5, 6]);
    assert_eq!(manager.table(sequence).unwrap().slot(11), None);
    assert_eq!((manager.stats().used, manager.stats().cached), (3, 3));
    manager.free(sequence).unwrap();
    // 34 blocks without hashes are taken first, then the three that the window left, the last one first.
    let filler = manager.admit(&[7; 4 * 35], &[]).unwrap().sequence;
    manager.free(filler).unwrap();
    let stats = manager.stats();
    assert!(manager.blocks().refs(3) == 0 && stats.cached > 0);
    // The window of token 20 needs two blocks, and they are there.
    assert_eq!(manager.look_up(&prompt(21), &[]), Ok(20));
    let again = manager.admit(&prompt(21), &[]).unwrap();
    assert_eq!(again.cached, 20);
    assert_eq!(manager.table(again.sequence).unwrap().blocks[..5], [NULL, NULL, NULL, 4, 5]);
}

#[test]
fn a_window_admits_in_chunks_what_would_never_fit_whole() {
    let config = Config { window: NonZeroUsize::new(8), ..Config::new(6, 4) };
    let mut manager = BlockManager::new(config).unwrap();
    assert!(matches!(manager.admit(&prompt(100), &[]), Err(ManagerError::NeverFits { wanted: 26, most: 5, .. })));
    let Admission { sequence, cached } = manager.admit_chunk(&prompt(100), &[], 4).unwrap();
    assert_eq!(cached, 0);
    for chunk in prompt(100)[4..].chunks(4) {
        manager.extend(sequence, chunk).unwrap();
        assert!(manager.stats().used <= 4, "{:?}", manager.stats());
    }
    assert_eq!(manager.table(sequence).unwrap().len, 100);
}

#[test]
fn a_prefix_outlives_its_first_blocks() {
    let mut manager = manager(12, 4);
    // Two at once: neither finds the other's blocks, and those of the second are not cached.
    let [first, second] = [0; 2].map(|chunk| manager.admit_chunk(&prompt(8), &[], chunk).unwrap().sequence);
    manager.extend(first, &prompt(8)).unwrap();
    manager.extend(second, &prompt(8)).unwrap();
    manager.free(first).unwrap();
    let filler = manager.admit(&[7; 35], &[]).unwrap().sequence;
    manager.free(filler).unwrap();
    assert_eq!(manager.look_up(&prompt(13), &[]), Ok(0), "the cached blocks have been reused");
    // The second goes on where it was, and its third block is cached behind two that are not.
    manager.extend(second, &[8, 9, 10, 11]).unwrap();
    manager.free(second).unwrap();
    assert_eq!(manager.look_up(&prompt(13), &[]), Ok(0));
    manager.admit(&prompt(9), &[]).unwrap();
    assert_eq!(manager.look_up(&prompt(13), &[]), Ok(12), "all three are there again");
}

#[test]
fn what_no_prefix_needs_is_used_again() {
    let mut manager = manager(8, 4);
    let mut round = |first: u32| {
        let tokens: Vec<u32> = (first..first + 23).collect();
        let sequence = manager.admit(&tokens, &[]).unwrap().sequence;
        manager.free(sequence).unwrap();
        manager.blocks().prefixes().nodes.len()
    };
    let nodes = (0..3).map(|first| round(1000 * first)).max();
    assert!((3..100).all(|first| Some(round(1000 * first)) <= nodes), "more than {nodes:?} nodes");
}

#[test]
fn stats_by_hand() {
    let mut manager = manager(11, 4);
    assert_eq!((manager.stats().sharing(), manager.stats().waste(), manager.stats().hit_rate()), (0.0, 0.0, 0.0));
    let parent = manager.admit(&prompt(6), &[]).unwrap().sequence;
    manager.fork(parent).unwrap();
    // Two blocks of two holders; two of eight slots hold no token.
    let stats = manager.stats();
    assert_eq!((stats.sequences, stats.used, stats.uses, stats.slots, stats.wasted), (2, 2, 4, 8, 2));
    assert_eq!((stats.sharing(), stats.waste()), (2.0, 0.25));
    // The copy: three blocks, of which one has two holders, and 4, 3 and 2 tokens.
    manager.append(parent, 6).unwrap();
    let stats = manager.stats();
    assert_eq!((stats.used, stats.uses, stats.wasted, stats.free, stats.cached), (3, 4, 3, 7, 0));
    // A prompt that finds 4 of its 10 tokens, after one that found none of 6.
    let found = manager.admit(&prompt(10), &[]).unwrap();
    assert_eq!((found.cached, manager.stats().hit_rate()), (4, 4.0 / 16.0));
    manager.free(found.sequence).unwrap();
    assert_eq!((manager.stats().cached, manager.stats().free), (1, 6));
}

#[test]
fn a_lease_frees_what_it_holds_once() {
    // Locks of the thread tests work only inside them.
    loom::model(|| {
        let shared = SharedBlockManager::new(manager(10, 4));
        let lease = shared.admit(&prompt(9), &[]).unwrap();
        let fork = lease.fork().unwrap();
        fork.extend(&[9, 10]).unwrap();
        assert_eq!(lease.cached(), 0);
        assert_eq!(shared.lock().stats().used, 4);
        // Freed by hand: the lease has nothing left to do.
        shared.lock().free(lease.id()).unwrap();
        drop(lease);
        assert_eq!(shared.lock().stats().used, 3);
        drop(fork);
        assert_eq!(shared.lock().stats().uses, 0);
    });
}

#[test]
fn a_table_that_claims_more_tokens_than_it_has_places_for_grows_where_it_ends() {
    let mut blocks = Blocks::new(5, 4).unwrap();
    let mut table = Table::listing(4, Vec::new(), 100);
    assert_eq!(table.own(&mut blocks), Ok(None));
    assert_eq!(table.grow(&mut blocks).map(|slot| (slot.block, slot.offset)), Ok((1, 0)));
    assert_eq!((table.len, table.blocks.as_slice()), (1, &[1][..]));
}
