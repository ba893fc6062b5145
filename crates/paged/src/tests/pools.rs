//! The pool's bytes: what is written where, and that nothing is written when anything does not fit.

use crate::{BlockCopy, BlockManager, Config, KvPool, NULL, PoolShape, Table, block_table};
use attention::{AttentionError, DType, E4m3, Kv, Tensor, TensorView};
use half::{bf16, f16};
use ndarray::{Array3, ArrayD, array, s};

const SHAPE: PoolShape = PoolShape { blocks: 5, page: 4, kv_heads: 2, d: 3, d_v: 1 };

const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::E4m3];

/// `[tokens, 2, channels]` of numbers that E4m3 holds too, all but 0.
fn rows(tokens: usize, channels: usize) -> Array3<f32> {
    Array3::from_shape_fn((tokens, 2, channels), |(t, h, c)| E4m3((16 + (t * 2 + h) * channels + c) as u8).into_f32())
}

trait IntoF32 {
    fn into_f32(self) -> f32;
}

impl IntoF32 for E4m3 {
    fn into_f32(self) -> f32 {
        attention::dtype::Element::to_f32(self)
    }
}

/// The same numbers in another type.
fn typed(dtype: DType, rows: &Array3<f32>) -> Tensor {
    let bits = |x: f32| (0..=255).map(E4m3).find(|e| e.into_f32() == x).expect("a number of E4m3");
    match dtype {
        DType::F32 => rows.clone().into(),
        DType::F64 => rows.mapv(f64::from).into(),
        DType::F16 => rows.mapv(f16::from_f32).into(),
        DType::Bf16 => rows.mapv(bf16::from_f32).into(),
        DType::E4m3 => rows.mapv(bits).into(),
    }
}

/// Everything in a pool.
fn all(pool: &KvPool) -> (ArrayD<f64>, ArrayD<f64>) {
    (pool.k().to_f64(), pool.v().to_f64())
}

#[test]
fn rows_of_any_type_land_in_their_slots_and_nowhere_else() {
    let table = Table::listing(4, vec![3, 1], 6);
    for dtype in DTYPES {
        let mut pool = KvPool::new(dtype, SHAPE).unwrap();
        let (k, v) = (rows(3, 3), rows(3, 1));
        pool.write(&table, 3, &typed(dtype, &k).view(), &typed(dtype, &v).view()).unwrap();
        let mut wanted = (ArrayD::zeros(vec![5, 4, 2, 3]), ArrayD::zeros(vec![5, 4, 2, 1]));
        for (row, (block, slot)) in [(3, 3), (1, 0), (1, 1)].into_iter().enumerate() {
            wanted.0.slice_mut(s![block, slot, .., ..]).assign(&k.slice(s![row, .., ..]).mapv(f64::from));
            wanted.1.slice_mut(s![block, slot, .., ..]).assign(&v.slice(s![row, .., ..]).mapv(f64::from));
        }
        assert_eq!(all(&pool), wanted, "{dtype}");
        // The first two slots of block 1, to block 4.
        pool.copy(BlockCopy { from: 1, to: 4, slots: 2 }).unwrap();
        for both in [&mut wanted.0, &mut wanted.1] {
            let copied = both.slice(s![1, ..2, .., ..]).to_owned();
            both.slice_mut(s![4, ..2, .., ..]).assign(&copied);
        }
        assert_eq!(all(&pool), wanted, "{dtype}, copied");
    }
}

#[test]
fn rows_are_read_through_their_strides() {
    let (k, v) = (rows(4, 3), rows(4, 1));
    let mut pool = KvPool::new(DType::F32, SHAPE).unwrap();
    let reversed = |rows: &Array3<f32>| rows.slice(s![..;-1, ..;-1, ..;-1]).to_owned();
    let (k_back, v_back) = (reversed(&k), reversed(&v));
    let view = |back: &Array3<f32>| TensorView::from(back.slice(s![..;-1, ..;-1, ..;-1])).to_tensor();
    pool.write(&Table::listing(4, vec![2], 4), 0, &view(&k_back).view(), &view(&v_back).view()).unwrap();
    assert_eq!(pool.k().to_f64().slice(s![2, .., .., ..]), k.mapv(f64::from));
    let strided = TensorView::from(k_back.slice(s![..;-1, ..;-1, ..;-1]));
    pool.write(&Table::listing(4, vec![3], 4), 0, &strided, &v.view().into()).unwrap();
    assert_eq!(pool.k().to_f64().slice(s![3, .., .., ..]), k.mapv(f64::from));
}

#[test]
fn what_does_not_fit_writes_nothing() {
    let table = Table::listing(4, vec![3, 1], 6);
    let mut pool = KvPool::new(DType::F32, SHAPE).unwrap();
    pool.write(&table, 0, &rows(6, 3).view().into(), &rows(6, 1).view().into()).unwrap();
    let before = all(&pool);
    let mut refused = |table: &Table, start, k: Tensor, v: Tensor, wanted: &str| {
        let error = pool.write(table, start, &k.view(), &v.view()).unwrap_err();
        assert_eq!((error.to_string().as_str(), all(&pool) == before), (wanted, true));
    };
    let (k, v) = (|n| Tensor::from(rows(n, 3)), |n| Tensor::from(rows(n, 1)));
    refused(&table, 0, k(2), v(3), "v: found shape [3, 2, 1], wanted [2, 2, 1]");
    refused(&table, 0, v(2), v(2), "k: found shape [2, 2, 1], wanted [2, 2, 3]");
    refused(
        &table,
        0,
        Tensor::from(ndarray::Array2::<f32>::ones((1, 3))),
        v(1),
        "k: found shape [1, 3], wanted [1, 2, 3]",
    );
    refused(&table, 0, k(1), typed(DType::F16, &rows(1, 1)), "v: found dtype F16, wanted F32 as in the pool");
    let no_place =
        |n: usize, from: usize| format!("tokens: found {n} from token {from}, wanted tokens that have a place, of 6");
    refused(&table, 5, k(2), v(2), &no_place(2, 5));
    refused(&table, usize::MAX, k(2), v(2), &no_place(2, usize::MAX));
    refused(&Table::listing(4, vec![3, NULL], 6), 2, k(3), v(3), &no_place(3, 2));
    refused(&Table::listing(2, vec![3, 1, 2], 6), 0, k(2), v(2), "page: found 2, wanted 4 as in the pool");
    // A table that lists too few blocks, and ids that are no block's.
    refused(&Table::listing(4, vec![3], 6), 3, k(2), v(2), &no_place(2, 3));
    for id in [-1, 5, 2_147_480_000] {
        let wanted = format!("block_table: found block {id}, wanted a block from 1 to 4");
        refused(&Table::listing(4, vec![3, id], 6), 3, k(2), v(2), &wanted);
    }
}

#[test]
fn a_copy_that_does_not_fit_writes_nothing() {
    let mut pool = KvPool::new(DType::Bf16, SHAPE).unwrap();
    let before = all(&pool);
    for (from, to, slots) in [(0, 1, 1), (1, 0, 1), (5, 1, 1), (1, 5, 1), (-1, 1, 1), (1, i32::MIN, 1), (1, 2, 5)] {
        let refused = pool.copy(BlockCopy { from, to, slots });
        assert!(matches!(refused, Err(AttentionError::Value { .. })), "{from}, {to}, {slots}: {refused:?}");
    }
    assert_eq!(all(&pool), before);
}

#[test]
fn a_pool_without_a_length_or_memory_is_refused() {
    for shape in [
        PoolShape { blocks: 0, ..SHAPE },
        PoolShape { page: 0, ..SHAPE },
        PoolShape { kv_heads: 0, ..SHAPE },
        PoolShape { d: 0, ..SHAPE },
        PoolShape { d_v: 0, ..SHAPE },
    ] {
        let refused = KvPool::new(DType::F32, shape).err();
        assert!(matches!(refused, Some(AttentionError::Value { .. })), "{shape:?}: {refused:?}");
    }
    let refused = KvPool::new(DType::F32, PoolShape { blocks: usize::MAX, page: usize::MAX, ..SHAPE }).err();
    assert!(matches!(refused, Some(AttentionError::Memory { what: "k_pool", .. })), "{refused:?}");
}

#[test]
fn pools_begin_where_pages_of_memory_do() {
    for dtype in DTYPES {
        let pool = KvPool::new(dtype, SHAPE).unwrap();
        for (tensor, channels) in [(pool.k(), SHAPE.d), (pool.v(), SHAPE.d_v)] {
            let address = match &tensor {
                TensorView::F32(rows) => rows.as_ptr().addr(),
                TensorView::F64(rows) => rows.as_ptr().addr(),
                TensorView::F16(rows) => rows.as_ptr().addr(),
                TensorView::Bf16(rows) => rows.as_ptr().addr(),
                TensorView::E4m3(rows) => rows.as_ptr().addr(),
            };
            assert_eq!((address % 4096, tensor.shape()), (0, &[5, 4, 2, channels][..]), "{dtype}");
        }
    }
}

#[test]
fn tables_of_several_lengths_are_one() {
    let mut manager = BlockManager::new(Config::new(10, 4)).unwrap();
    let ids = [9, 0, 2].map(|tokens| manager.admit(&vec![7; tokens], &[]).unwrap().sequence);
    let tables = ids.map(|id| manager.table(id).unwrap());
    let (table, seq_lens) = block_table(&tables).unwrap();
    assert_eq!((table.clone(), seq_lens.clone()), (array![[1, 2, 3], [-1, -1, -1], [4, -1, -1]], vec![9, 0, 2]));
    let pool = KvPool::new(DType::F32, PoolShape { blocks: 10, ..SHAPE }).unwrap();
    let Kv::Paged { k_pool, v_pool, block_table: columns, seq_lens: lens } = pool.kv(&table, &seq_lens) else {
        panic!("pages in a pool");
    };
    assert_eq!((k_pool.shape(), v_pool.shape()), (&[10, 4, 2, 3][..], &[10, 4, 2, 1][..]));
    assert_eq!((columns, lens), (table.view(), &[9, 0, 2][..]));
    assert_eq!(block_table(&[]).unwrap().0.dim(), (0, 0));
    let endless = Table::listing(4, vec![], usize::MAX);
    assert!(matches!(block_table(&[&endless]), Err(AttentionError::Value { name: "seq_lens", .. })));
}
