//! Every way a call can be wrong, the error it gives and the name in it; and that nothing was written then.

use crate::common::{Dims, Tensors, bits, canaries, dims, rungs};
use attention::AttentionError::{self, DType as WrongDType, Shape, Unsupported, Value};
use attention::{
    Attention, Batch, DType, E4m3, Kv, Mask, NoMeter, Options, OutputMut, Problem, TensorView, TensorViewMut,
};
use fa1::Fa1;
use fa2::Fa2;
use ndarray::{Array1, Array4, ArrayD, ArrayView4, ArrayViewD, IxDyn, arr1};

/// The kind of an error and the tensor, option or rung that it names.
fn summary(error: &AttentionError) -> (&'static str, &'static str) {
    match error {
        Shape { tensor, .. } => ("shape", tensor),
        WrongDType { tensor, .. } => ("dtype", tensor),
        Value { name, .. } => ("value", name),
        Unsupported { rung, .. } => ("unsupported", rung),
        AttentionError::Memory { what, .. } => ("memory", what),
        AttentionError::Device { rung, .. } => ("device", rung),
    }
}

fn assert_error<T>(what: &str, result: Result<T, AttentionError>, wanted: (&str, &str)) {
    let Err(error) = result else { panic!("{what}: accepted, wanted {wanted:?}") };
    assert_eq!(summary(&error), wanted, "{what}: {error}");
    assert!(error.to_string().contains(wanted.1), "{what}: the message does not name {}: {error}", wanted.1);
}

fn zeros(shape: &[usize]) -> ArrayD<f32> {
    ArrayD::zeros(IxDyn(shape))
}

fn problem<'a>(
    q: &'a ArrayD<f32>,
    k: &'a ArrayD<f32>,
    v: &'a ArrayD<f32>,
    batch: Batch<'_>,
) -> Result<Problem<'a>, AttentionError> {
    Problem::new(q.view(), Kv::Contiguous { k: k.view().into(), v: v.view().into() }, batch, Options::default())
}

/// What is wrong, the shapes of q, k and v, and the tensor to name.
type Case = (&'static str, &'static [usize], &'static [usize], &'static [usize], &'static str);

#[test]
fn shapes_that_do_not_fit_name_the_tensor() {
    let cases: &[Case] = &[
        ("q of rank 3", &[2, 3, 4], &[1, 2, 5, 4], &[1, 2, 5, 4], "q"),
        ("q of rank 5", &[1, 1, 2, 3, 4], &[1, 2, 5, 4], &[1, 2, 5, 4], "q"),
        ("k of rank 3", &[1, 2, 3, 4], &[2, 5, 4], &[1, 2, 5, 4], "k"),
        ("v of rank 0", &[1, 2, 3, 4], &[1, 2, 5, 4], &[], "v"),
        ("d = 0", &[1, 2, 3, 0], &[1, 2, 5, 0], &[1, 2, 5, 4], "q"),
        ("d = 0 of k alone", &[1, 2, 3, 4], &[1, 2, 5, 0], &[1, 2, 5, 4], "k"),
        ("d_v = 0", &[1, 2, 3, 4], &[1, 2, 5, 4], &[1, 2, 5, 0], "v"),
        ("no query head", &[1, 0, 3, 4], &[1, 2, 5, 4], &[1, 2, 5, 4], "q"),
        ("no kv head", &[1, 2, 3, 4], &[1, 0, 5, 4], &[1, 0, 5, 4], "k"),
        ("another d", &[1, 2, 3, 4], &[1, 2, 5, 8], &[1, 2, 5, 4], "k"),
        ("another batch of k", &[2, 2, 3, 4], &[1, 2, 5, 4], &[1, 2, 5, 4], "k"),
        ("another batch of v", &[1, 2, 3, 4], &[1, 2, 5, 4], &[2, 2, 5, 4], "v"),
        ("fewer values than keys", &[1, 2, 3, 4], &[1, 2, 5, 4], &[1, 2, 4, 4], "v"),
        ("other heads of v", &[1, 2, 3, 4], &[1, 2, 5, 4], &[1, 1, 5, 4], "v"),
        ("heads that do not divide", &[1, 3, 3, 4], &[1, 2, 5, 4], &[1, 2, 5, 4], "k"),
        ("more kv heads than heads", &[1, 2, 3, 4], &[1, 4, 5, 4], &[1, 4, 5, 4], "k"),
    ];
    for (what, q, k, v, tensor) in cases {
        assert_error(what, problem(&zeros(q), &zeros(k), &zeros(v), Batch::Dense), ("shape", tensor));
    }
    // Packed tensors have rank 3.
    let cu = Batch::Packed { cu_seqlens_q: &[0, 3], cu_seqlens_k: &[0, 5] };
    let (q, k) = (zeros(&[2, 3, 4]), zeros(&[2, 5, 4]));
    assert_error("packed q of rank 4", problem(&zeros(&[1, 2, 3, 4]), &k, &k, cu), ("shape", "q"));
    assert_error("packed k of another d", problem(&q, &zeros(&[2, 5, 3]), &k, cu), ("shape", "k"));
    assert_error("packed v of another length", problem(&q, &k, &zeros(&[2, 6, 4]), cu), ("shape", "v"));
    assert_error("packed d = 0", problem(&zeros(&[2, 3, 0]), &zeros(&[2, 5, 0]), &k, cu), ("shape", "q"));
    let found = problem(&zeros(&[1, 3, 3, 4]), &zeros(&[1, 2, 5, 4]), &zeros(&[1, 2, 5, 4]), Batch::Dense).unwrap_err();
    assert!(
        matches!(&found, Shape { found, wanted, .. } if found == &[1, 2, 5, 4] && wanted.contains("3 heads")),
        "{found}"
    );
}

fn packed<'a>(cu_seqlens_q: &'a [i32], cu_seqlens_k: &'a [i32]) -> Batch<'a> {
    Batch::Packed { cu_seqlens_q, cu_seqlens_k }
}

#[test]
fn lengths_out_of_range_are_errors() {
    let (q, k) = (zeros(&[2, 2, 3, 4]), zeros(&[2, 2, 5, 4]));
    for (k_lens, kind) in [
        (&[1, -1][..], "value"),
        (&[6, 0], "value"),
        (&[i32::MIN, 0], "value"),
        (&[5], "shape"),
        (&[5, 5, 5], "shape"),
        (&[], "shape"),
    ] {
        assert_error(&format!("{k_lens:?}"), problem(&q, &k, &k, Batch::KeyLens(k_lens)), (kind, "k_lens"));
    }
    assert!(problem(&q, &k, &k, Batch::KeyLens(&[0, 5])).is_ok());

    let (q, k) = (zeros(&[2, 6, 4]), zeros(&[2, 9, 4]));
    for bad in [&[][..], &[1, 6], &[-1, 6], &[0, 4, 3], &[0, 7], &[0, 6, 7], &[0, 3, -3], &[0, i32::MAX]] {
        let k_lens: Vec<i32> = vec![0; bad.len()];
        assert_error(&format!("q {bad:?}"), problem(&q, &k, &k, packed(bad, &k_lens)), ("value", "cu_seqlens_q"));
    }
    for bad in [&[][..], &[2, 9], &[0, 5, 4], &[0, 10], &[0, -1]] {
        let q_lens: Vec<i32> = vec![0; bad.len().max(1)];
        assert_error(&format!("k {bad:?}"), problem(&q, &k, &k, packed(&q_lens, bad)), ("value", "cu_seqlens_k"));
    }
    let unequal = problem(&q, &k, &k, packed(&[0, 3, 6], &[0, 9]));
    assert_error("one sequence more in q", unequal, ("shape", "cu_seqlens_k"));
    for (cu_q, cu_k) in [(&[0][..], &[0][..]), (&[0, 0, 6], &[0, 9, 9]), (&[0, 2], &[0, 3])] {
        assert!(problem(&q, &k, &k, packed(cu_q, cu_k)).is_ok(), "{cu_q:?} {cu_k:?}");
    }
}

#[test]
fn types_that_do_not_fit_name_the_tensor() {
    let single = Array4::<f32>::zeros((1, 1, 2, 4));
    let half = Array4::from_elem((1, 1, 2, 4), half::f16::ZERO);
    let brain = Array4::from_elem((1, 1, 2, 4), half::bf16::ZERO);
    let dense = |q: TensorView<'static>, k: TensorView<'static>, v: TensorView<'static>| {
        Problem::dense(q, k, v, Options::default()).map(drop)
    };
    // Leaked, for these few bytes, to keep the table short.
    let (single, half, brain): (&'static Array4<f32>, &'static Array4<half::f16>, &'static Array4<half::bf16>) =
        (Box::leak(Box::new(single)), Box::leak(Box::new(half)), Box::leak(Box::new(brain)));
    let (f32s, f16s, bf16s) = (|| single.view().into(), || half.view().into(), || brain.view().into());
    assert_error("k in F16", dense(f32s(), f16s(), f32s()), ("dtype", "k"));
    assert_error("v in BF16", dense(f16s(), f16s(), bf16s()), ("dtype", "v"));
    assert_error("q in F16", dense(f16s(), f32s(), f32s()), ("dtype", "k"));
    let wanted = WrongDType { tensor: "v", found: DType::Bf16, wanted: "F16 as in q".into() };
    assert_eq!(dense(f16s(), f16s(), bf16s()), Err(wanted));
}

#[test]
fn what_no_rung_takes_is_refused_by_the_problem() {
    let fp8 = Array4::from_elem((1, 1, 2, 4), E4m3(0x38));
    let refused = Problem::dense(fp8.view(), fp8.view(), fp8.view(), Options::default());
    assert_error("E4m3", refused, ("unsupported", "Problem"));
}

fn check<'a>(tensors: &'a Tensors, what: &str, options: Options<'a>, wanted: Option<(&str, &str)>) {
    let result = Problem::dense(tensors.q.view(), tensors.k.view(), tensors.v.view(), options);
    match wanted {
        Some(wanted) => assert_error(what, result, wanted),
        None => assert!(result.is_ok(), "{what}: {result:?}"),
    }
}

#[test]
fn options_out_of_range_are_errors() {
    let tensors = Tensors::flat(Dims { batch: 2, heads: 4, kv_heads: 2, d: 8, ..dims(3, 5) });
    for (softcap, right) in [
        (0.0, true),
        (1e-30, true),
        (3e38, true),
        (-1.0, false),
        (-1e-300, false),
        (f64::NAN, false),
        (f64::INFINITY, false),
        (1e-60, false), // 0 in f32, which would mean off
        (1e39, false),
    ] {
        let options = Options { softcap, ..Options::default() };
        check(&tensors, &format!("softcap {softcap}"), options, (!right).then_some(("value", "softcap")));
    }
    for (scale, right) in [
        (0.0, true),
        (-2.0, true),
        (1e-60, true),
        (3e38, true),
        (f64::NAN, false),
        (f64::INFINITY, false),
        (f64::NEG_INFINITY, false),
        (1e39, false),
        (-1e39, false),
    ] {
        let options = Options { scale: Some(scale), ..Options::default() };
        check(&tensors, &format!("scale {scale}"), options, (!right).then_some(("value", "scale")));
    }
    for (shape, right) in [
        (&[4][..], true),
        (&[2, 4], true),
        (&[2], false),
        (&[1], false),
        (&[4, 2], false),
        (&[1, 4], false),
        (&[], false),
        (&[2, 4, 1], false),
    ] {
        let slopes = zeros(shape);
        let options = Options { alibi_slopes: Some(slopes.view()), ..Options::default() };
        check(&tensors, &format!("slopes {shape:?}"), options, (!right).then_some(("shape", "alibi_slopes")));
    }
    for slope in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let slopes = arr1(&[0.0, 0.0, slope, 0.0]).into_dyn();
        let options = Options { alibi_slopes: Some(slopes.view()), ..Options::default() };
        check(&tensors, &format!("slope {slope}"), options, Some(("value", "alibi_slopes")));
    }
    for (len, right) in [(4, true), (2, false), (1, false), (0, false), (8, false)] {
        let sinks = Array1::zeros(len);
        let options = Options { sinks: Some(sinks.view()), ..Options::default() };
        check(&tensors, &format!("{len} sinks"), options, (!right).then_some(("shape", "sinks")));
    }
    for (shape, right) in [
        ((1, 1, 3, 5), true),
        ((2, 4, 3, 5), true),
        ((1, 4, 3, 5), true),
        ((2, 1, 3, 5), true),
        ((3, 1, 3, 5), false),
        ((1, 2, 3, 5), false), // kv heads
        ((1, 1, 1, 5), false),
        ((1, 1, 3, 1), false),
        ((1, 1, 5, 3), false),
        ((0, 1, 3, 5), false),
    ] {
        let bias = Array4::zeros(shape);
        let options = Options { bias: Some(bias.view()), ..Options::default() };
        check(&tensors, &format!("bias {shape:?}"), options, (!right).then_some(("shape", "bias")));
    }
    let (cu_q, cu_k) = ([0, 2, 3], [0, 1, 5]);
    let rank_3 = |a| ArrayView4::index_axis_move(a, ndarray::Axis(0), 0);
    for (shape, right) in [((1, 1, 2, 4), true), ((2, 4, 2, 4), true), ((1, 1, 3, 5), false), ((3, 1, 2, 4), false)] {
        let bias = Array4::zeros(shape);
        let kv = Kv::Contiguous { k: rank_3(tensors.k.view()).into(), v: rank_3(tensors.v.view()).into() };
        let batch = Batch::Packed { cu_seqlens_q: &cu_q, cu_seqlens_k: &cu_k };
        let options = Options { bias: Some(bias.view()), ..Options::default() };
        let result = Problem::new(rank_3(tensors.q.view()), kv, batch, options);
        assert_eq!(result.as_ref().err().map(summary), (!right).then_some(("shape", "bias")), "packed bias {shape:?}");
    }
}

/// Runs a call that must fail, and asserts that neither o nor lse changed.
fn refuses(what: &str, rung: &dyn Attention, problem: &Problem, wanted: (&str, &str)) -> AttentionError {
    let mut output = canaries(problem);
    let error = rung.forward_into(problem, &mut output.view_mut());
    assert!(bits(&output) == bits(&canaries(problem)), "{what}: {} wrote before it refused", rung.name());
    assert_error(what, error.clone(), wanted);
    assert_error(what, rung.supports(problem), wanted);
    assert_error(what, rung.forward(problem), wanted);
    error.unwrap_err()
}

#[test]
fn rungs_refuse_f64_by_name_and_write_nothing() {
    let a = Array4::<f64>::ones((1, 2, 3, 4));
    let problem = Problem::dense(a.view(), a.view(), a.view(), Options::default()).unwrap();
    for (_, rung) in rungs(4, 4).into_iter().filter(|(name, _)| *name != "oracle") {
        let error = refuses("F64", &*rung, &problem, ("unsupported", rung.name()));
        assert!(error.to_string().contains("F64"), "{error}");
    }
    assert!(attention::oracle::Oracle.forward(&problem).is_ok(), "the oracle takes F64");
}

#[test]
fn a_fast_memory_too_small_says_how_much_it_takes() {
    let tensors = Tensors::random(80, Dims { heads: 2, d: 24, d_v: 40, ..dims(3, 5) });
    let problem = tensors.problem(Options { mask: Mask::Causal, ..Options::default() });
    for make in [fa1_of, fa2_of] {
        for too_small in [0, 1, 100] {
            let error = refuses("memory", &*make(too_small), &problem, ("value", "fast_memory"));
            let Value { found, wanted, .. } = &error else { panic!("{error}") };
            assert!(found.contains(&too_small.to_string()), "{found}");
            let words: Vec<&str> = wanted.split(' ').collect();
            let bytes: usize = words.iter().find_map(|word| word.parse().ok()).expect("the bytes wanted");
            // What it asks for is enough, and one byte less is not.
            assert!(make(bytes).forward(&problem).is_ok(), "{error}");
            refuses("one byte less", &*make(bytes - 1), &problem, ("value", "fast_memory"));
        }
    }
}

fn fa1_of(fast_memory: usize) -> Box<dyn Attention> {
    Box::new(Fa1::new(fast_memory, NoMeter))
}

fn fa2_of(fast_memory: usize) -> Box<dyn Attention> {
    Box::new(Fa2::new(fast_memory, NoMeter))
}

#[test]
fn outputs_that_do_not_fit_are_refused_and_left_alone() {
    let tensors = Tensors::random(81, Dims { batch: 2, heads: 4, kv_heads: 2, d: 8, d_v: 6, ..dims(3, 5) });
    let dense = tensors.problem(Options::default());
    let packed = tensors.packed(&[0, 1, 3], &[0, 2, 5], Options::default());
    let cases: &[(&Problem, &[usize], &[usize], &str)] = &[
        (&dense, &[2, 4, 3, 8], &[2, 4, 3], "o"),
        (&dense, &[2, 4, 4, 6], &[2, 4, 3], "o"),
        (&dense, &[2, 3, 4, 6], &[2, 4, 3], "o"),
        (&dense, &[4, 3, 6], &[2, 4, 3], "o"),
        (&dense, &[2, 4, 3, 6], &[2, 3, 4], "lse"),
        (&dense, &[2, 4, 3, 6], &[2, 4, 3, 1], "lse"),
        (&dense, &[2, 4, 3, 6], &[2, 4, 128], "lse"),
        (&packed, &[1, 4, 3, 6], &[4, 3], "o"),
        (&packed, &[3, 4, 6], &[4, 3], "o"),
        (&packed, &[4, 3, 6], &[3, 4], "lse"),
        (&packed, &[4, 3, 6], &[2, 4, 2], "lse"),
    ];
    for (name, rung) in rungs(8, 6) {
        for (problem, o_shape, lse_shape, tensor) in cases {
            let (mut o, mut lse) = (zeros(o_shape), zeros(lse_shape));
            let mut out = OutputMut { o: o.view_mut().into(), lse: lse.view_mut() };
            let what = format!("{name}, {o_shape:?} {lse_shape:?}");
            assert_error(&what, rung.forward_into(problem, &mut out), ("shape", tensor));
            assert!(o.iter().chain(&lse).all(|&x| x == 0.0), "{what}: written");
        }
        let mut half = ArrayD::from_elem(IxDyn(&[2, 4, 3, 6]), half::f16::ZERO);
        let mut lse = zeros(&[2, 4, 3]);
        let mut out = OutputMut { o: TensorViewMut::from(half.view_mut()), lse: lse.view_mut() };
        assert_error(&name, rung.forward_into(&dense, &mut out), ("dtype", "o"));
        let untouched: ArrayViewD<half::f16> = half.view();
        assert!(untouched.iter().all(|x| x.to_bits() == 0) && lse.iter().all(|&x| x == 0.0), "{name}: written");
    }
}
