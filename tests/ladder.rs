//! Every rung against the oracle and against the rung below, on drawn problems.
//!
//! `PROPTEST_CASES=20000 cargo test --release -p flash-ladder-tests --test ladder` runs it long.
use attention::{DType, oracle};
use proptest::prelude::*;
use proptest::sample::select;

fn check(spec: &testkit::problems::Spec, fast_memory: usize) -> Result<(), TestCaseError> {
    let owned = spec.build();
    let problem = owned.problem();
    let truth = oracle::truth(&problem);
    let rungs: Vec<Box<dyn attention::Attention>> = vec![
        Box::new(naive::Naive::default()),
        Box::new(online_softmax::OnlineSoftmax::default()),
        Box::new(fa1::Fa1::new(fast_memory, attention::NoMeter)),
        Box::new(fa2::Fa2::new(fast_memory, attention::NoMeter)),
    ];
    for rung in rungs {
        let output = rung.forward(&problem).unwrap();
        let verdict = testkit::judge(&problem, &truth, &output, DType::F32);
        prop_assert!(verdict.passes(), "{}: {verdict}", rung.name());
    }
    Ok(())
}
proptest! {
    #[test]
    fn every_rung_agrees(spec in testkit::problems::problems(), fast_memory in select(vec![8 * 1024, 20000, 102400])) {
        check(&spec, fast_memory)?;
    }
}
