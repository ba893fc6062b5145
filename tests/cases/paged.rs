//! Keys and values in pages: what block tables may and may not say, and what unused slots may hold.

use crate::common::{CANARY_LSE, Dims, Named, Tensors, bits, causal, dims, expect_definition, named, run};
use attention::oracle::Oracle;
use attention::{AttentionError, Batch, Kv, Mask, NoMeter, Options, Problem};
use fa2::{Fa2, Fa2Simd, Simd};
use half::f16;
use ndarray::{Array2, Array4, ArrayView4, ShapeBuilder, arr2, s};
use paged::{Paged, PagedSimd};
use std::num::NonZeroUsize;

/// The oracle, and every rung that takes pages, with tiles of two keys and of many, and with splits.
fn rungs(d: usize, d_v: usize) -> Vec<Named> {
    let splits = |n| NonZeroUsize::new(n).unwrap();
    let small = Fa2::new(32 * (d + d_v), NoMeter);
    let mut rungs = vec![
        named("oracle", Oracle),
        named("paged", Paged::default()),
        named("paged with tiles of two keys", Paged::new(small)),
        named("paged in 3 splits", Paged::new(Fa2::default().with_splits(splits(3)))),
        named("paged with tiles of two keys in 4 splits", Paged::new(small.with_splits(splits(4)))),
    ];
    for simd in Simd::available() {
        rungs.push(named(&format!("paged-simd:{simd}"), PagedSimd::new(Fa2Simd::new(simd).unwrap())));
    }
    rungs
}

/// Pools, a table and lengths.
#[derive(Clone)]
struct Pages {
    k: Array4<f32>,
    v: Array4<f32>,
    table: Array2<i32>,
    lens: Vec<i32>,
}

impl Pages {
    /// The keys and values of `tensors`, of which sequence b has `lens[b]`, in pages of `page` slots: those of sequence b in
    /// the table's row b from the back to the front of the pool. Zeros lie where no key is.
    fn of(tensors: &Tensors, page: usize, lens: &[i32]) -> Self {
        let columns = lens.iter().map(|&len| (len as usize).div_ceil(page)).max().unwrap_or(0);
        let pages = lens.len() * columns;
        let place = |(b, column)| (pages - 1 - (b * columns + column)) as i32;
        let table = Array2::from_shape_fn((lens.len(), columns), place);
        let pool = |rows: &Array4<f32>| {
            let mut pool = Array4::zeros((pages, page, rows.shape()[1], rows.shape()[3]));
            for (b, &len) in lens.iter().enumerate() {
                for j in 0..len as usize {
                    let mut slot = pool.slice_mut(s![table[[b, j / page]], j % page, .., ..]);
                    slot.assign(&rows.slice(s![b, .., j, ..]));
                }
            }
            pool
        };
        Pages { k: pool(&tensors.k), v: pool(&tensors.v), table: table.clone(), lens: lens.to_vec() }
    }

    fn problem<'a>(&'a self, q: &'a Array4<f32>, options: Options<'a>) -> Result<Problem<'a>, AttentionError> {
        paged(q.view(), (self.k.view(), self.v.view()), &self.table, &self.lens, options)
    }

    /// Asserts that every rung gives the same bits with these pages as with those.
    fn assert_same_bits(&self, other: &Pages, q: &Array4<f32>, mask: Mask) {
        let problems = [self, other].map(|pages| pages.problem(q, Options { mask, ..Options::default() }).unwrap());
        for (name, rung) in rungs(problems[0].d(), problems[0].d_v()) {
            let [one, two] = problems.each_ref().map(|problem| bits(&run(&*rung, problem)));
            assert!(one == two, "{name}");
        }
    }
}

fn paged<'a>(
    q: ArrayView4<'a, f32>,
    (k, v): (ArrayView4<'a, f32>, ArrayView4<'a, f32>),
    table: &'a Array2<i32>,
    seq_lens: &'a [i32],
    options: Options<'a>,
) -> Result<Problem<'a>, AttentionError> {
    let kv = Kv::Paged { k_pool: k.into(), v_pool: v.into(), block_table: table.view(), seq_lens };
    Problem::new(q, kv, Batch::Dense, options)
}

/// Asserts that every rung gives with pages what it gives of contiguous keys, which are right by the definition.
fn expect_contiguous(tensors: &Tensors, page: usize, mask: Mask) {
    let options = || Options { mask, ..Options::default() };
    let (contiguous, lens) = (tensors.problem(options()), vec![tensors.k.shape()[2] as i32; tensors.k.shape()[0]]);
    let pages = Pages::of(tensors, page, &lens);
    let problem = pages.problem(&tensors.q, options()).unwrap();
    for (name, rung) in rungs(problem.d(), problem.d_v()) {
        assert!(bits(&run(&*rung, &problem)) == bits(&run(&*rung, &contiguous)), "{name}, page {page}");
    }
}

/// flash-attention 1745, 1395: NaN in cache slots past the length reaches the output.
#[test]
fn a19_unused_slots_of_a_page_hold_anything() {
    let tensors = Tensors::random(19, Dims { batch: 2, heads: 4, kv_heads: 2, d: 8, d_v: 8, ..dims(1, 3) });
    let clean = Pages::of(&tensors, 3, &[1, 3]);
    for poison in [f32::NAN, f32::INFINITY, 1e10] {
        for (in_k, in_v) in [(true, false), (false, true), (true, true)] {
            let mut dirty = clean.clone();
            let unused = |pool: &mut Array4<f32>| pool.slice_mut(s![clean.table[[0, 0]], 1.., .., ..]).fill(poison);
            if in_k {
                unused(&mut dirty.k);
            }
            if in_v {
                unused(&mut dirty.v);
            }
            clean.assert_same_bits(&dirty, &tensors.q, Mask::Causal);
        }
    }
}

/// flashinfer 941: the last page not full, or another request's page all NaN.
#[test]
fn a20_another_requests_pages_hold_anything() {
    let shape = Dims { batch: 2, d: 4, d_v: 4, ..dims(1, 13) };
    let tensors = Tensors::random(20, shape);
    let clean = Pages::of(&tensors, 4, &[13, 13]);
    let mut dirty = clean.clone();
    for pool in [&mut dirty.k, &mut dirty.v] {
        for &page in clean.table.row(1) {
            pool.slice_mut(s![page, .., .., ..]).fill(f32::NAN);
        }
        pool.slice_mut(s![clean.table[[0, 3]], 1.., .., ..]).fill(f32::NAN);
    }
    let problems = [&clean, &dirty].map(|pages| pages.problem(&tensors.q, causal()).unwrap());
    for (name, rung) in rungs(4, 4) {
        let [clean, dirty] = problems.each_ref().map(|problem| run(&*rung, problem));
        let first =
            |output: &attention::Output| (output.o.view().rows(0..1).index_first(0).to_f64(), output.lse[[0, 0, 0]]);
        assert_eq!(first(&clean), first(&dirty), "{name}");
        assert!(dirty.lse[[1, 0, 0]].is_nan(), "{name}: the second request attends NaN");
    }
}

/// vllm PR 47305: tile bounds overshoot the length in cross attention.
#[test]
fn a21_cross_attention_ends_with_the_last_page() {
    let tensors = Tensors::random(21, Dims { d: 4, d_v: 4, ..dims(3, 18) });
    expect_definition(&tensors.problem(Options::default()), |_, dot| Some(dot / 2.0));
    expect_contiguous(&tensors, 16, Mask::Full);
    let clean = Pages::of(&tensors, 16, &[18]);
    let mut dirty = clean.clone();
    for pool in [&mut dirty.k, &mut dirty.v] {
        pool.slice_mut(s![clean.table[[0, 1]], 2.., .., ..]).fill(f32::NAN);
    }
    clean.assert_same_bits(&dirty, &tensors.q, Mask::Full);
}

/// pytorch 101967, on a block that a window has left behind and a table still lists.
#[test]
fn a22_pages_left_of_a_window_hold_anything() {
    let tensors = Tensors::random(22, Dims { d: 4, d_v: 4, ..dims(2, 12) });
    let clean = Pages::of(&tensors, 4, &[12]);
    let mut dirty = clean.clone();
    // Rows 0 and 1 see keys 7 to 10 and 8 to 11: nothing of the first page.
    for pool in [&mut dirty.k, &mut dirty.v] {
        pool.slice_mut(s![clean.table[[0, 0]], .., .., ..]).fill(f32::NAN);
    }
    clean.assert_same_bits(&dirty, &tensors.q, Mask::window(3, 0));
}

/// vllm PR 37442, sglang PR 1779: rows of requests without keys are skipped.
#[test]
fn a23_rows_of_requests_without_keys_are_written() {
    let tensors = Tensors::random(23, Dims { batch: 8, d: 4, d_v: 4, ..dims(1, 5) });
    let pages = Pages::of(&tensors, 2, &[5, 0, 0, 0, 0, 0, 0, 0]);
    let problem = pages.problem(&tensors.q, causal()).unwrap();
    for (name, rung) in rungs(4, 4) {
        let output = run(&*rung, &problem);
        for b in 0..8 {
            let (o, lse) = (output.o.view().to_f64(), output.lse[[b, 0, 0]]);
            let o = o.slice(s![b, 0, 0, ..]);
            match b {
                0 => assert!(o.iter().all(|o| o.is_finite() && *o != 0.0) && lse.is_finite(), "{name}: {o} {lse}"),
                _ => assert!(o.iter().all(|&o| o == 0.0) && lse == f32::NEG_INFINITY, "{name}: {b} {o} {lse}"),
            }
            assert_ne!(lse, CANARY_LSE, "{name}");
        }
    }
}

/// flashinfer 3130, vllm PR 47671: page number times page stride wraps at 2^31.
///
/// The pages between are reserved and never touched.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reserves 4.3 GB, which this system may have to back with memory")]
fn a39_pages_beyond_31_bits_are_read_right() {
    for (stride, ids) in [(64 * 576, [58254, 58255]), (276_480, [7767, 7768])] {
        let tensors = Tensors::random(39, Dims { d: 4, d_v: 4, ..dims(2, 6) });
        let pages = ids[1] + 1;
        let mut memory = vec![0u16; pages * stride];
        let low = [1, 0];
        for (page, ids) in [low, ids].into_iter().flat_map(|ids| ids.into_iter().enumerate()) {
            for slot in 0..3 {
                let at = ids * stride + slot * 4;
                let row = tensors.k.slice(s![0, 0, 3 * page + slot, ..]).mapv(|x| f16::from_f32(x).to_bits());
                memory[at..at + 4].copy_from_slice(row.as_slice().unwrap());
            }
        }
        let memory: &[f16] = half::slice::HalfBitsSliceExt::reinterpret_cast(&memory[..]);
        let pool = ArrayView4::from_shape((pages, 3, 1, 4).strides((stride, 4, 4, 1)), memory).unwrap();
        let q = tensors.q.mapv(f16::from_f32);
        let outputs = [low, ids].map(|ids| {
            let table = arr2(&[ids.map(|id| id as i32)]);
            let kv = || pool.into();
            let kv = Kv::Paged { k_pool: kv(), v_pool: kv(), block_table: table.view(), seq_lens: &[6] };
            let problem = Problem::new(q.view(), kv, Batch::Dense, causal()).unwrap();
            rungs(4, 4).into_iter().map(|(name, rung)| (name, bits(&run(&*rung, &problem)))).collect::<Vec<_>>()
        });
        assert!(outputs[0] == outputs[1], "stride {stride}");
    }
}

/// flash-attention 2709: a length beyond the table's columns reads behind it.
#[test]
fn a42_a_length_beyond_the_table_is_an_error() {
    let tensors = Tensors::random(42, Dims { d: 2, d_v: 2, ..dims(1, 256) });
    let mut pages = Pages::of(&tensors, 256, &[256]);
    assert!(pages.problem(&tensors.q, causal()).is_ok());
    for len in [257, i32::MAX, -1, i32::MIN] {
        pages.lens = vec![len];
        let error = pages.problem(&tensors.q, causal()).unwrap_err();
        assert!(matches!(error, AttentionError::Value { name: "seq_lens", .. }), "{len}: {error}");
    }
}

/// vllm-project/flash-attention PR 42: the last tile has fewer pages than a full one.
#[test]
fn a43_a_last_tile_of_fewer_pages_ends_with_the_table() {
    let tensors = Tensors::random(43, Dims { d: 8, d_v: 8, ..dims(1, 18) });
    // Two columns and no more, and nothing behind them in memory.
    assert_eq!(Pages::of(&tensors, 16, &[18]).table.dim(), (1, 2));
    expect_contiguous(&tensors, 16, Mask::Causal);
}

/// onnxruntime PR 32391, FlashMLA's tests: page numbers out of range, and anything behind the used ones.
#[test]
fn a44_page_numbers_out_of_range_are_errors_where_they_are_used() {
    let tensors = Tensors::random(44, Dims { d: 4, d_v: 4, ..dims(1, 10) });
    let clean = Pages::of(&tensors, 4, &[10]);
    for id in [-1, 3, i32::MIN, 2_147_480_000] {
        for column in 0..3 {
            let mut used = clean.clone();
            used.table[[0, column]] = id;
            let error = used.problem(&tensors.q, causal()).unwrap_err();
            assert!(matches!(error, AttentionError::Value { name: "block_table", .. }), "{error}");
            assert!(error.to_string().contains(&format!("{id} in column {column} of sequence 0")), "{error}");
        }
        let mut behind = clean.clone();
        behind.table = Array2::from_elem((1, 5), id);
        behind.table.slice_mut(s![.., ..3]).assign(&clean.table);
        clean.assert_same_bits(&behind, &tensors.q, Mask::Causal);
    }
}

/// sglang PR 11985: pages counted by a constant that is right for one page size.
#[test]
fn a45_any_page_size_is_read_to_its_end() {
    let tensors = Tensors::random(45, Dims { d: 4, d_v: 4, ..dims(1, 4097) });
    for page in [1, 2, 16, 32, 61, 64, 128, 4096, 5000] {
        expect_contiguous(&tensors, page, Mask::Causal);
    }
}
