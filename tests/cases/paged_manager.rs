//! Block tables and who holds which block: faults of block managers.

use crate::common::{Dims, Tensors, expect_definition};
use attention::{AttentionError, DType, Options, Tensor, TensorView};
use ndarray::{Array3, Array4, s};
use paged::{
    Append, BlockCopy, BlockManager, Config, ExtraKey, KvPool, ManagerError, NULL, PoolShape, SequenceId, Table,
};
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroUsize;

fn manager(blocks: usize, page: usize) -> BlockManager {
    BlockManager::new(Config::new(blocks, page)).unwrap()
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).collect()
}

/// Admits, frees, and says how many tokens were found.
fn cached<S: BuildHasher>(manager: &mut BlockManager<S>, prompt: &[u32]) -> usize {
    let admission = manager.admit(prompt, &[]).unwrap();
    manager.free(admission.sequence).unwrap();
    admission.cached
}

#[test]
fn a42_a_length_beyond_the_columns_is_refused() {
    let mut manager = BlockManager::new(Config { columns: Some(1), ..Config::new(10, 256) }).unwrap();
    // One more token is to be generated, for which there has to be a column.
    assert_eq!(manager.admit(&prompt(257), &[]), Err(ManagerError::TooLong { tokens: 258, most: 256 }));
    assert_eq!(manager.admit(&prompt(256), &[]), Err(ManagerError::TooLong { tokens: 257, most: 256 }));
    let sequence = manager.admit(&prompt(255), &[]).unwrap().sequence;
    assert_eq!(manager.extend(sequence, &[1, 2]), Err(ManagerError::TooLong { tokens: 257, most: 256 }));
    manager.append(sequence, 255).unwrap();
    assert_eq!(manager.append(sequence, 256), Err(ManagerError::TooLong { tokens: 257, most: 256 }));
    let table = manager.table(sequence).unwrap();
    assert_eq!((table.len, table.blocks.as_slice(), manager.blocks().free()), (256, &[1][..], 8));
}

#[test]
fn a44_ids_out_of_range_are_refused_where_they_are_used_and_ignored_behind() {
    let shape = PoolShape { blocks: 4, page: 2, kv_heads: 1, d: 1, d_v: 1 };
    let mut pool = KvPool::new(DType::F32, shape).unwrap();
    let rows = |n: usize| Tensor::from(Array3::<f32>::ones((n, 1, 1)));
    for id in [-1, 4, 2_147_480_000, NULL] {
        let used = Table::listing(2, vec![1, id], 3);
        let refused = pool.write(&used, 1, &rows(2).view(), &rows(2).view());
        assert!(matches!(refused, Err(AttentionError::Value { .. })), "{id}: {refused:?}");
        assert_eq!(pool.k().to_f64().sum(), 0.0, "nothing is written, not even token 1");
        for (from, to) in [(id, 1), (1, id)] {
            let refused = pool.copy(BlockCopy { from, to, slots: 1 });
            assert!(matches!(refused, Err(AttentionError::Value { .. })), "{from} to {to}: {refused:?}");
        }
    }
    for id in [-1, 4, 2_147_480_000] {
        let behind = Table::listing(2, vec![1, 2, id, id], 4);
        pool.write(&behind, 0, &rows(4).view(), &rows(4).view()).unwrap();
    }
    assert_eq!(pool.k().to_f64().sum(), 4.0);
}

#[test]
fn a46_a_block_that_a_table_lists_twice_is_held_once_by_it() {
    let mut manager = manager(5, 4);
    // A ring of two blocks: tokens 8 to 11 take the places of tokens 0 to 3.
    let parent = manager.admit_rolling(&prompt(10), NonZeroUsize::new(2).unwrap()).unwrap();
    let [a, b] = [1, 2];
    assert_eq!(manager.table(parent).unwrap().blocks, [a, b, a]);
    let child = manager.fork(parent).unwrap();
    assert_eq!([a, b].map(|block| manager.blocks().refs(block)), [2, 2]);
    manager.free(parent).unwrap();
    assert_eq!([a, b].map(|block| manager.blocks().refs(block)), [1, 1]);
    manager.free(child).unwrap();
    assert_eq!([a, b].map(|block| manager.blocks().refs(block)), [0, 0]);
    // Both are on the list once: the four usable blocks can be had, each once, and no fifth.
    let mut taken: Vec<i32> = (0..4)
        .map(|_| {
            let sequence = manager.admit(&[7], &[]).unwrap().sequence;
            manager.table(sequence).unwrap().blocks[0]
        })
        .collect();
    taken.sort_unstable();
    assert_eq!(taken, [1, 2, 3, 4]);
    assert_eq!(manager.admit(&[7], &[]), Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 }));
    assert_eq!(manager.free(child), Err(ManagerError::UnknownSequence(child)));
}

/// The key and the value of a token at a position.
fn row(token: u32, position: usize) -> [f32; 2] {
    [(token as f32 * 0.37 + position as f32 * 0.11).sin(), (token as f32 * 0.53 - position as f32 * 0.29).cos()]
}

/// Writes the last token's row, and does the copy before.
fn write(pool: &mut KvPool, manager: &BlockManager, sequence: SequenceId, append: Append, token: u32) {
    append.copy.into_iter().for_each(|copy| pool.copy(copy).unwrap());
    let table = manager.table(sequence).unwrap();
    assert_eq!(table.slot(table.len - 1), Some(append.slot));
    let at = Array3::from_shape_fn((1, 1, 2), |(_, _, c)| row(token, table.len - 1)[c]);
    pool.write(table, table.len - 1, &at.view().into(), &at.view().into()).unwrap();
}

/// Attention over what the table leads to, on every rung, is that over the tokens themselves in f64.
fn expect_tokens(pool: &KvPool, table: &Table, tokens: &[u32]) {
    let (TensorView::F32(k), TensorView::F32(v)) = (pool.k(), pool.v()) else { panic!("a pool in F32") };
    let dims = Dims { batch: 1, heads: 1, kv_heads: 1, q_len: 1, k_len: tokens.len(), d: 2, d_v: 2 };
    let gather = |pool: &ndarray::ArrayViewD<f32>| {
        Array4::from_shape_fn((1, 1, tokens.len(), 2), |(_, _, t, c)| {
            let slot = table.slot(t).unwrap();
            pool[[slot.block as usize, slot.offset, 0, c]]
        })
    };
    let read = Tensors { k: gather(&k), v: gather(&v), ..Tensors::random(47, dims) };
    let written = Array4::from_shape_fn((1, 1, tokens.len(), 2), |(_, _, t, c)| row(tokens[t], t)[c]);
    assert_eq!((&read.k, &read.v), (&written, &written), "{tokens:?} in {:?}", table.blocks);
    // q . k of the tokens, and not of what was read.
    let q = read.q.slice(s![0, 0, 0, ..]).to_owned();
    let dot = |t: i64| (0..2).map(|c| f64::from(q[c]) * f64::from(written[[0, 0, t as usize, c]])).sum::<f64>();
    let scale = Some(1.0);
    expect_definition(&read.problem(Options { scale, ..Options::default() }), |pair, _| Some(dot(pair.j)));
}

#[test]
fn a47_siblings_do_not_see_each_others_tokens() {
    let mut manager = manager(10, 4);
    let shape = PoolShape { blocks: 10, page: 4, kv_heads: 1, d: 2, d_v: 2 };
    let mut pool = KvPool::new(DType::F32, shape).unwrap();
    let parent = manager.admit(&[], &[]).unwrap().sequence;
    for token in 0..6 {
        let append = manager.append(parent, token).unwrap();
        write(&mut pool, &manager, parent, append, token);
    }
    let siblings = [parent, manager.fork(parent).unwrap(), manager.fork(parent).unwrap()];
    let mut copies = 0;
    for (sequence, token) in siblings.into_iter().zip([100, 200, 300]) {
        let append = manager.append(sequence, token).unwrap();
        copies += append.copy.iter().count();
        write(&mut pool, &manager, sequence, append, token);
    }
    assert_eq!(copies, 2, "the last of the three has the block to itself");
    let tables = siblings.map(|sequence| manager.table(sequence).unwrap());
    assert_eq!(tables.map(|table| table.blocks[0]), [1; 3]);
    assert_eq!(manager.blocks().refs(1), 3);
    let last = tables.map(|table| table.blocks[1]);
    assert!(last[0] != last[1] && last[1] != last[2] && last[0] != last[2], "{last:?}");
    assert_eq!(last.map(|block| manager.blocks().refs(block)), [1; 3]);
    for (table, token) in tables.into_iter().zip([100, 200, 300]) {
        expect_tokens(&pool, table, &[0, 1, 2, 3, 4, 5, token]);
    }
}

#[test]
fn a48_a_prompt_cached_in_full_recomputes_its_last_block_and_a_partial_one_is_never_found() {
    for (tokens, second) in [(15, 0), (16, 0), (17, 16), (32, 16)] {
        let mut manager = manager(20, 16);
        assert_eq!(cached(&mut manager, &prompt(tokens)), 0, "{tokens} tokens for the first time");
        assert_eq!(cached(&mut manager, &prompt(tokens)), second, "{tokens} tokens for the second time");
        // A longer one finds every full block.
        let full = tokens as usize / 16 * 16;
        assert_eq!(cached(&mut manager, &prompt(40)), full, "40 tokens after twice {tokens}");
        // One that differs in the last of those tokens finds what stands before it.
        let mut other = prompt(40);
        other[tokens as usize - 1] = 1000;
        assert_eq!(manager.look_up(&other, &[]), Ok((tokens as usize - 1) / 16 * 16));
    }
}

/// All hashes are equal.
#[derive(Clone, Copy)]
struct Constant;

impl BuildHasher for Constant {
    type Hasher = Constant;

    fn build_hasher(&self) -> Constant {
        Constant
    }
}

impl Hasher for Constant {
    fn finish(&self) -> u64 {
        0
    }
    fn write(&mut self, _: &[u8]) {}
}

#[test]
fn a49_equal_hashes_give_no_false_hit() {
    let mut manager = BlockManager::with_hasher(Config::new(100, 16), Constant).unwrap();
    let (a, b) = (prompt(50), (1000..1050).collect::<Vec<u32>>());
    // The first block of a before the second and third of b, and the other way round.
    let mixed = [[&a[..16], &b[16..]].concat(), [&b[..16], &a[16..]].concat()];
    assert_eq!((cached(&mut manager, &a), cached(&mut manager, &b)), (0, 0));
    assert_eq!((cached(&mut manager, &a), cached(&mut manager, &b)), (48, 48));
    assert_eq!(mixed.each_ref().map(|prompt| cached(&mut manager, prompt)), [16, 16]);
    assert_eq!(mixed.each_ref().map(|prompt| cached(&mut manager, prompt)), [48, 48]);
    let salted = [ExtraKey::Salt("tenant".into())];
    assert_eq!(manager.look_up(&a, &salted), Ok(0));
    // Those found are each prompt's own.
    let tables = [&a, &b, &mixed[0], &mixed[1]].map(|prompt| {
        let sequence = manager.admit(prompt, &[]).unwrap().sequence;
        manager.table(sequence).unwrap().blocks.clone()
    });
    let [a, b, a_b, b_a] = tables.each_ref().map(|blocks| &blocks[..3]);
    assert_eq!((a[0], b[0]), (a_b[0], b_a[0]));
    let others: std::collections::BTreeSet<_> = [a, b, &a_b[1..], &b_a[1..]].concat().into_iter().collect();
    assert_eq!(others.len(), 10, "{tables:?}");
}

#[test]
fn a50_the_tail_of_a_chain_is_reused_before_its_head() {
    let mut manager = manager(11, 16);
    assert_eq!(cached(&mut manager, &prompt(55)), 0);
    // 160 tokens and one to generate take 11 blocks of 10.
    let other: Vec<u32> = (1000..1160).collect();
    assert_eq!(manager.admit(&other, &[]), Err(ManagerError::NeverFits { tokens: 160, wanted: 11, most: 10 }));
    // The partial block goes first, then the six that were never used, then the chain from its end.
    for (blocks, left) in [(7, 48), (8, 32), (9, 16), (10, 0)] {
        let mut manager = manager.clone();
        let sequence = manager.admit(&other[..blocks * 16 - 1], &[]).unwrap().sequence;
        assert_eq!(manager.look_up(&prompt(55), &[]), Ok(left), "{blocks} blocks taken");
        assert_eq!(manager.table(sequence).unwrap().blocks[0], 4, "the partial block");
    }
}

#[test]
fn a50_blocks_that_a_request_hits_are_not_taken_for_its_rest() {
    let mut manager = manager(11, 16);
    assert_eq!(cached(&mut manager, &prompt(55)), 0);
    // Two blocks are held; of the other eight three are the chain. Three found and six more are one too many.
    let held = manager.admit(&[7; 20], &[]).unwrap().sequence;
    let long: Vec<u32> = (0..9 * 16 - 1).collect();
    let before = (manager.stats(), manager.table(held).unwrap().clone());
    assert_eq!(manager.admit(&long, &[]), Err(ManagerError::OutOfBlocks { free: 5, wanted: 6 }));
    assert_eq!((manager.stats(), manager.table(held).unwrap().clone()), before);
    assert_eq!([1, 2, 3].map(|block| manager.blocks().refs(block)), [0; 3]);
    assert_eq!(manager.look_up(&long, &[]), Ok(48), "the three are found as before");
    // One token less, and all eight are its own: the three found and five more.
    let fits = manager.admit(&long[..8 * 16], &[]).unwrap();
    assert_eq!((fits.cached, manager.blocks().free()), (48, 0));
    assert_eq!(manager.table(fits.sequence).unwrap().blocks[..3], [1, 2, 3]);
}
