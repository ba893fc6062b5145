//! Strided tensors and offsets beyond 32 bits.

use crate::common::{CANARY_LSE, Dims, Tensors, assert_same_bits, dims, o, run_all, rungs};
use attention::{Mask, Options, OutputMut, Problem};
use half::f16;
use half::slice::HalfBitsSliceExt;
use ndarray::{Array4, ArrayD, ArrayView4, ArrayViewMut4, Axis, IxDyn, ShapeBuilder, s};

/// `len` zeros of the operating system: pages that are never touched take no memory.
fn zero_pages(len: usize) -> Vec<u16> {
    vec![0; len]
}

/// Writes `values` [batch, 1, rows, channels] into `memory` from `start` on, batches `stride` elements apart.
fn place(values: &Array4<f32>, memory: &mut [u16], start: usize, stride: usize) {
    for (b, values) in values.outer_iter().enumerate() {
        for (at, &x) in (start + b * stride..).zip(values.iter()) {
            memory[at] = f16::from_f32(x).to_bits();
        }
    }
}

/// What [`place`] wrote.
fn placed(dims: (usize, usize, usize, usize), memory: &[u16], start: usize, stride: usize) -> ArrayView4<'_, f16> {
    let strides = dims.strides((stride, dims.2 * dims.3, dims.3, 1));
    ArrayView4::from_shape(strides, memory[start..].reinterpret_cast()).unwrap()
}

/// Runs every rung on tensors whose batches lie `stride` elements apart, and compares with contiguous ones.
fn reads_across(stride: usize, batch: usize) {
    let tensors = Tensors::random(37, Dims { batch, d: 4, d_v: 4, ..dims(3, 5) });
    let mut memory = zero_pages((batch - 1) * stride + 64);
    place(&tensors.q, &mut memory, 0, stride);
    place(&tensors.k, &mut memory, 12, stride);
    place(&tensors.v, &mut memory, 32, stride);
    let far = |a: &Array4<f32>, start| placed(a.dim(), &memory, start, stride);
    let far = Problem::dense(far(&tensors.q, 0), far(&tensors.k, 12), far(&tensors.v, 32), Options::default()).unwrap();
    let [q, k, v] = [&tensors.q, &tensors.k, &tensors.v].map(|a| a.mapv(f16::from_f32));
    let near = Problem::dense(q.view(), k.view(), v.view(), Options::default()).unwrap();
    assert_same_bits(&far, &near);
}

/// flash-attention 47, 767, 1311 and PR 1500: offsets beyond 2^31 elements wrap.
///
/// The second batch lies 2^31 elements behind the first. The pages between are reserved and never touched.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reserves 4.3 GB, which this system may have to back with memory")]
fn a37_offsets_beyond_31_bits_are_read_right() {
    reads_across(1 << 31, 2);
}

/// flash-attention 772: with a batch stride of 2^30 elements, batch 4 is at offset 2^32 and falls on batch 0.
#[test]
#[ignore = "reserves 8.6 GB of address space, of which it touches some pages; small machines refuse that"]
fn a38_a_batch_stride_of_2_to_the_30_reaches_batch_4() {
    reads_across(1 << 30, 5);
}

/// flash-attention 772, 47: the same for what is written. The output's second batch lies 2^31 elements behind the
/// first.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reserves 4.3 GB, which this system may have to back with memory")]
fn a38_offsets_beyond_31_bits_are_written_right() {
    let tensors = Tensors::random(38, Dims { batch: 2, d: 4, d_v: 4, ..dims(3, 5) });
    let [q, k, v] = [&tensors.q, &tensors.k, &tensors.v].map(|a| a.mapv(f16::from_f32));
    let problem = Problem::dense(q.view(), k.view(), v.view(), Options::default()).unwrap();
    const STRIDE: usize = 1 << 31;
    let mut memory = zero_pages(STRIDE + 16);
    for ((name, rung), (_, near)) in rungs(4, 4).into_iter().zip(run_all(&problem)) {
        for batch in [0, STRIDE] {
            memory[batch..batch + 16].fill(0x7EAB);
        }
        let mut lse = ArrayD::from_elem(IxDyn(&[2, 1, 3]), CANARY_LSE);
        let far = ArrayViewMut4::from_shape((2, 1, 3, 4).strides((STRIDE, 12, 4, 1)), memory.reinterpret_cast_mut::<f16>());
        let mut out = OutputMut { o: far.unwrap().into(), lse: lse.view_mut() };
        rung.forward_into(&problem, &mut out).unwrap();
        let wanted = o(&near).mapv(|x| f16::from_f32(x).to_bits());
        for (b, start) in [0, STRIDE].into_iter().enumerate() {
            let wanted: Vec<u16> = wanted.index_axis(Axis(0), b).iter().copied().collect();
            assert_eq!(memory[start..start + 12], wanted, "{name}, batch {b}");
            assert_eq!(memory[start + 12..start + 16], [0x7EAB; 4], "{name} wrote behind batch {b}");
        }
        assert_eq!(lse, near.lse, "{name}");
    }
}

/// A way for a tensor to lie in memory: its values stored that way, and the view that reads them back.
type Layout = (&'static str, fn(&Array4<f32>) -> Array4<f32>, fn(&Array4<f32>) -> ArrayView4<'_, f32>);

const LAYOUTS: [Layout; 5] = [
    ("[batch, length, heads, channels]", |a| stored(a, [0, 2, 1, 3]), |a| a.view().permuted_axes([0, 2, 1, 3])),
    ("[batch, heads, channels, length]", |a| stored(a, [0, 1, 3, 2]), |a| a.view().permuted_axes([0, 1, 3, 2])),
    (
        "every second channel",
        |a| {
            let (b, h, n, d) = a.dim();
            let mut wide = Array4::from_elem((b, h, n, 2 * d), f32::NAN);
            wide.slice_mut(s![.., .., .., ..;2]).assign(a);
            wide
        },
        |a| a.slice(s![.., .., .., ..;2]),
    ),
    ("last row first", |a| a.slice(s![.., .., ..;-1, ..]).to_owned(), |a| a.slice(s![.., .., ..;-1, ..])),
    ("last channel first", |a| a.slice(s![.., .., .., ..;-1]).to_owned(), |a| a.slice(s![.., .., .., ..;-1])),
];

fn stored(a: &Array4<f32>, axes: [usize; 4]) -> Array4<f32> {
    a.view().permuted_axes(axes).as_standard_layout().to_owned()
}

/// flagos-ai/FlagGems 5896, ROCm/pytorch 3230, flash-attention PR 2670, pytorch PR 187506: a transposed view of v (or of
/// all) is read as if it were contiguous.
#[test]
fn a41_strided_inputs_equal_contiguous_ones() {
    let shape = Dims { batch: 2, heads: 16, kv_heads: 16, d: 128, d_v: 128, ..dims(62, 62) };
    let small = Dims { heads: 4, kv_heads: 2, d: 6, d_v: 5, ..shape };
    for dims in [shape, small] {
        let tensors = Tensors::random(41, dims);
        let plain = run_all(&tensors.problem(Options { mask: Mask::Causal, ..Options::default() }));
        // Of the large shape only the reported layout, for v alone; of the small one all, for each tensor and for all.
        let layouts = if dims.d == 128 { &LAYOUTS[..1] } else { &LAYOUTS };
        let choices: &[[bool; 3]] = if dims.d == 128 {
            &[[false, false, true]]
        } else {
            &[[true, false, false], [false, true, false], [false, false, true], [true; 3]]
        };
        for (layout, store, view) in layouts {
            for choice in choices {
                let originals = [&tensors.q, &tensors.k, &tensors.v];
                let moved = originals.map(store);
                let pick = |n: usize| if choice[n] { view(&moved[n]) } else { originals[n].view() };
                let options = Options { mask: Mask::Causal, ..Options::default() };
                let problem = Problem::dense(pick(0), pick(1), pick(2), options).unwrap();
                for ((name, found), (_, plain)) in run_all(&problem).iter().zip(&plain) {
                    assert_eq!(o(found), o(plain), "{name}: {layout} for {choice:?}");
                    assert_eq!(found.lse, plain.lse, "{name}: {layout} for {choice:?}");
                }
            }
        }
    }
}

/// The same for o: every layout is written as contiguous memory is, and what lies between stays.
#[test]
fn a41_strided_outputs_equal_contiguous_ones() {
    let tensors = Tensors::random(42, Dims { batch: 2, heads: 3, d: 6, d_v: 5, ..dims(7, 9) });
    let problem = tensors.problem(Options::default());
    for ((name, rung), (_, plain)) in rungs(6, 5).into_iter().zip(run_all(&problem)) {
        let mut lse = plain.lse.clone();
        let wanted = o(&plain);
        let mut check = |memory: &mut Array4<f32>, view: fn(&mut Array4<f32>) -> ArrayViewMut4<'_, f32>| {
            let mut out = OutputMut { o: view(memory).into(), lse: lse.view_mut() };
            rung.forward_into(&problem, &mut out).unwrap();
            assert_eq!(view(memory).into_dyn(), wanted, "{name}");
            view(memory).fill(f32::NAN);
            assert!(memory.iter().all(|x| x.is_nan()), "{name} wrote between its channels");
        };
        let memory = |b, h, n, d| Array4::from_elem((b, h, n, d), f32::NAN);
        check(&mut memory(2, 7, 3, 5), |a| a.view_mut().permuted_axes([0, 2, 1, 3]));
        check(&mut memory(2, 3, 5, 7), |a| a.view_mut().permuted_axes([0, 1, 3, 2]));
        check(&mut memory(2, 3, 7, 10), |a| a.slice_mut(s![.., .., .., ..;2]));
        check(&mut memory(2, 3, 7, 5), |a| a.slice_mut(s![.., .., ..;-1, ..]));
        check(&mut memory(3, 2, 7, 5), |a| a.view_mut().permuted_axes([1, 0, 2, 3]));
    }
}
