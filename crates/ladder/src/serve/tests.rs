//! The laws of the scheduler, on drawn traces; that all policies agree bit for bit; and that wrong ones do not.

use super::cache::{Cache, fa2};
use super::model::{D, HEADS, Rows, mix};
use super::trace::{Request, read};
use super::*;
use crate::cli::ServeArgs;
use attention::oracle::Oracle;
use attention::{Attention, Mask, Options, Output, Problem, Tensor};
use careless::{Careless, Fault};
use ndarray::{Array3, ArrayD, Axis, s};
use std::collections::HashSet;
use std::sync::LazyLock;

mod careless;

fn args(blocks: usize, page: usize, budget: usize) -> ServeArgs {
    ServeArgs { trace: None, blocks, page, budget, report: None, json: false }
}

fn served(trace: &[Request], blocks: usize, page: usize, budget: usize) -> Vec<Served> {
    serve(trace, &args(blocks, page, budget)).unwrap()
}

/// Up to 12 requests of up to 90 tokens, many of which begin alike, some of which may be too long for a small memory.
fn drawn(seed: u64) -> Vec<Request> {
    let draw = |place: u64, below: u64| mix(mix(seed) ^ place) % below;
    let line = |i: u64| {
        let [arrival, prefix, own] = [draw(5 * i, 6) * i, draw(5 * i + 1, 40), draw(5 * i + 2, 30) + 1];
        let [generate, more] = [draw(5 * i + 3, 15) + 1, draw(5 * i + 4, 20)];
        let at_most = generate + more;
        format!(
            "{{\"id\":\"{i}\",\"arrival\":{arrival},\"prefix\":{{\"name\":\"{}\",\"tokens\":{prefix}}},\"own\":{own},\
             \"generate\":{generate},\"at_most\":{at_most}}}\n",
            i % 2
        )
    };
    read((0..draw(100, 12) + 1).map(line).collect::<String>().as_bytes()).unwrap()
}

/// Rounding of values up to 3, in f32.
const CLOSE: f32 = 6e-6;

/// Budgets and pages that fit nothing: not each other, not key tiles, not prompts.
const BUDGETS: [usize; 6] = [1, 2, 7, 31, 33, usize::MAX];
const PAGES: [usize; 5] = [1, 3, 16, 32, 45];

/// A drawn trace, served by all policies.
struct Case {
    trace: Vec<Request>,
    blocks: usize,
    page: usize,
    budget: usize,
    served: Vec<Served>,
}

/// In memories of 60 to 250 slots.
static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let case = |seed: usize| {
        let (page, budget) = (PAGES[seed % PAGES.len()], BUDGETS[seed / PAGES.len() % BUDGETS.len()]);
        let (trace, blocks) = (drawn(seed as u64), (60 + 190 * (seed % 7) / 6).div_ceil(page).max(2));
        let served = served(&trace, blocks, page, budget);
        Case { trace, blocks, page, budget, served }
    };
    (0..60).map(case).collect()
});

#[test]
fn all_policies_are_equal_bit_for_bit_whatever_chunks_pages_and_preemptions() {
    let (mut preemptions, mut hits) = (0, 0);
    for Case { trace, blocks, page, budget, served } in CASES.iter() {
        assert!(verdict::compare(trace, served).unwrap() > 0 || served.iter().any(|s| !s.outcome.refused.is_empty()));
        // Alone, in one piece, and with room for all: what every request's answer is in truth.
        let calm = Scheduler::run(trace, Contiguous::new(2000), usize::MAX).unwrap();
        for Served { policy, outcome } in served {
            for (place, (found, wanted)) in outcome.requests.iter().zip(&calm.requests).enumerate() {
                if !outcome.refused.contains(&place) {
                    assert_eq!(found.tokens, wanted.tokens, "{policy}, {blocks} blocks of {page}, budget {budget}");
                }
            }
            preemptions += outcome.preemptions;
            hits += outcome.hits;
        }
    }
    assert!(preemptions > 20 && hits > 500, "the traces try both: {preemptions}, {hits}");
}

#[test]
fn no_step_holds_more_than_there_is_or_computes_more_than_its_budget() {
    for Case { blocks, page, budget, served, .. } in CASES.iter() {
        for Served { policy, outcome } in served {
            let usable = if *policy == "contiguous" { *blocks } else { blocks - 1 };
            for sample in &outcome.samples {
                let usage = sample.usage;
                assert!(usage.filled <= usage.held && usage.held <= usage.uses, "{policy}: {usage:?}");
                assert!(usage.held <= usable * page && sample.running > 0, "{policy}: {usage:?}");
                assert!(*policy == "paged, shared" || usage.uses == usage.held, "{policy}: {usage:?}");
            }
            let computed: usize = outcome.samples.iter().map(|sample| sample.computed).sum();
            assert!(outcome.samples.iter().all(|sample| (1..=*budget).contains(&sample.computed)));
            assert_eq!(computed, outcome.prefill + outcome.decode + outcome.recomputed, "{policy}");
        }
    }
}

#[test]
fn every_request_ends_or_is_refused_and_none_overtakes_another() {
    for Case { trace, blocks, page, served, .. } in CASES.iter() {
        for Served { policy, outcome } in served {
            let most = page * if *policy == "contiguous" { *blocks } else { blocks - 1 };
            for (place, (request, progress)) in trace.iter().zip(&outcome.requests).enumerate() {
                let refused = request.longest() > most;
                assert_eq!(outcome.refused.contains(&place), refused, "{policy}: {}", request.id);
                let generated = if refused { 0 } else { request.generate };
                assert_eq!(progress.tokens.len(), request.prompt.len() + generated, "{policy}: {}", request.id);
                assert_eq!(progress.tokens[..request.prompt.len()], request.prompt);
            }
            let mut known = HashSet::new();
            let first: Vec<usize> =
                outcome.admissions.iter().copied().filter(|&request| known.insert(request)).collect();
            let wanted: Vec<usize> = (0..trace.len()).filter(|place| !outcome.refused.contains(place)).collect();
            assert_eq!(first, wanted, "{policy}");
            assert_eq!(outcome.admissions.len() - first.len(), outcome.preemptions, "{policy}");
        }
    }
}

#[test]
fn the_latest_is_preempted_and_comes_back_before_those_who_wait() {
    // Four blocks of 4 for three requests: the first two take two each. When the first needs a third, the second goes.
    let line = |id: u32, own: u32, generate: u32| {
        format!("{{\"id\":\"{id}\",\"arrival\":0,\"own\":{own},\"generate\":{generate}}}\n")
    };
    let trace = read([line(0, 7, 4), line(1, 6, 5), line(2, 3, 2)].concat().as_bytes()).unwrap();
    let served = served(&trace, 5, 4, 100);
    let paged = &served[1].outcome;
    assert_eq!((paged.preemptions, paged.admissions.as_slice()), (1, &[0, 1, 1, 2][..]));
    // It had computed 6 + 1 tokens when it went, while the first filled its two blocks with 7 + 1.
    assert_eq!(paged.recomputed, 7);
    assert_eq!(verdict::compare(&trace, &served), Ok(2 * (10 + 10 + 4)));
}

#[test]
fn attention_is_that_of_the_oracle() {
    let trace = read(&b"{\"id\":\"a\",\"arrival\":0,\"own\":70,\"generate\":1}"[..]).unwrap();
    let rows = Rows::new(&trace[0].prompt, 0);
    let heads = |x: &Array3<f32>| x.clone().permuted_axes([1, 0, 2]).insert_axis(Axis(0));
    let (q, k, v) = (rows.q.clone().permuted_axes([2, 1, 0, 3]), heads(&rows.k), heads(&rows.v));
    let truth = numbers(Oracle.forward(&Problem::dense(q.view(), k.view(), v.view(), causal()).unwrap()).unwrap());
    for mut cache in [Box::new(Contiguous::new(80)) as Box<dyn Cache>, Box::new(PagedCache::new(9, 10, true).unwrap())]
    {
        assert_eq!(cache.admit(0, &trace[0].prompt, 70, 71).unwrap(), Some(0));
        cache.write(0, 0, &rows).unwrap();
        let o = numbers(cache.attend(0, 0, &rows).unwrap());
        for token in 0..70 {
            for (head, c) in (0..HEADS).flat_map(|head| (0..D).map(move |c| (head, c))) {
                let (found, wanted) = (o[[token, head, 0, c]], truth[[0, head, token, c]]);
                assert!((found - wanted).abs() < CLOSE, "{token}: {found}, {wanted}");
            }
        }
    }
}

#[test]
fn a_chunk_in_one_sequence_would_not_be_equal_bit_for_bit() {
    let rows = Rows::new(&[5; 70], 0);
    let heads = |x: &Array3<f32>| x.clone().permuted_axes([1, 0, 2]).insert_axis(Axis(0));
    let (q, k, v) = (rows.q.clone().permuted_axes([2, 1, 0, 3]), heads(&rows.k), heads(&rows.v));
    let chunk = |end: usize| {
        let [q, k, v] = [&q, &k, &v].map(|x| x.slice(s![.., .., ..end, ..]));
        numbers(fa2().forward(&Problem::dense(q, k, v, causal()).unwrap()).unwrap())
    };
    let (whole, part) = (chunk(70), chunk(45));
    let whole = whole.slice(s![.., .., ..45, ..]).into_dyn();
    assert!(whole != part, "the bits differ");
    assert!(whole.iter().zip(&part).all(|(a, b)| (a - b).abs() < CLOSE), "the numbers do not");
}

fn causal<'a>() -> Options<'a> {
    Options { mask: Mask::Causal, ..Options::default() }
}

fn numbers(output: Output) -> ArrayD<f32> {
    let Tensor::F32(o) = output.o else { unreachable!("q is F32") };
    o
}

#[test]
fn a_policy_that_is_wrong_does_not_agree() {
    let trace = read(TRACE).unwrap()[..10].to_vec();
    let outcome = Scheduler::run(&trace, Contiguous::new(4000), 50).unwrap();
    let verdict = |fault: Option<Fault>| {
        let careless = Scheduler::run(&trace, Careless::new(10, fault), 50).unwrap();
        let served = [("contiguous", outcome.clone()), ("careless", careless)];
        verdict::compare(&trace, &served.map(|(policy, outcome)| Served { policy, outcome }))
    };
    assert!(verdict(None).unwrap() > 500);
    for fault in Fault::ALL {
        let difference = verdict(Some(fault)).unwrap_err();
        assert!(difference.contains("careless"), "{fault:?}: {difference}");
    }
}

#[test]
fn rows_computed_again_are_compared_too() {
    let trace = drawn(3);
    let mut served = served(&trace, 40, 16, 20);
    served[1].outcome.unlike = Some((0, 4));
    let difference = verdict::compare(&trace, &served).unwrap_err();
    assert_eq!(difference, "paged: o of token 4 of 0 was another when it was computed again");
}
