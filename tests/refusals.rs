//! What a rung may refuse is written down in `refusals.tsv`. Here every feature meets every rung: a refusal that is not
//! in the table fails, and so does a line of the table that no longer happens.

use attention::{Attention, AttentionError, Batch, DType, E4m3, Kv, Mask, Options, Problem};
use ladder::registry::{DEVICE_RUNGS, ORACLE, RUNGS, Settings, attention};
use ndarray::{Array2, Array4};
use std::collections::BTreeSet;
use testkit::Layout;
use testkit::problems::{AlibiKind, BatchKind, Magnitude, Spec};

/// A rung's name, and what it says it does not support.
type Refusal = (String, String);

fn table() -> BTreeSet<Refusal> {
    let mut lines = include_str!("refusals.tsv").lines();
    assert_eq!(lines.next(), Some("rung\trefuses\twhy"), "the head of the table");
    let mut table = BTreeSet::new();
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        let [rung, refuses, why] = fields[..] else { panic!("not three fields: {line:?}") };
        assert!(!why.is_empty(), "no reason: {line:?}");
        // What rungs of a device refuse, the test on the device looks at.
        if DEVICE_RUNGS.iter().any(|known| known.name == rung) {
            continue;
        }
        assert!(rung == "Problem" || rung == ORACLE || RUNGS.iter().any(|known| known.name == rung), "who is {rung}?");
        assert!(table.insert((rung.to_string(), refuses.to_string())), "twice: {line:?}");
    }
    table
}

/// Every feature by name, on top of a plain problem of two heads.
fn features() -> Vec<(&'static str, Spec)> {
    let plain = || Spec { kv_heads: 2, ..Spec::plain(5, 7, 8) };
    let mut features = vec![
        ("plain", plain()),
        ("grouped heads, no power of two", Spec { group: 3, ..plain() }),
        ("one kv head", Spec { kv_heads: 1, group: 5, ..plain() }),
        ("d above d_v", Spec { d: 24, d_v: 16, ..plain() }),
        ("d below d_v", Spec { d: 3, d_v: 40, ..plain() }),
        ("d and d_v of 1", Spec { d: 1, d_v: 1, ..plain() }),
        ("large d", Spec { d: 576, d_v: 512, kv_heads: 1, group: 4, ..plain() }),
        ("scale", Spec { scale: Some(-0.3), ..plain() }),
        ("scale of 0", Spec { scale: Some(0.0), ..plain() }),
        ("soft cap", Spec { softcap: 2.0, ..plain() }),
        ("slopes per head", Spec { alibi: Some(AlibiKind::PerHead), ..plain() }),
        ("slopes per sequence", Spec { alibi: Some(AlibiKind::PerSequence), lengths: vec![(5, 7); 2], ..plain() }),
        ("bias", Spec { bias: Some((false, false)), lengths: vec![(5, 7); 2], ..plain() }),
        ("bias for all heads", Spec { bias: Some((false, true)), lengths: vec![(5, 7); 2], ..plain() }),
        ("bias for all sequences", Spec { bias: Some((true, false)), lengths: vec![(5, 7); 2], ..plain() }),
        ("one bias", Spec { bias: Some((true, true)), lengths: vec![(5, 7); 2], ..plain() }),
        ("sinks", Spec { sinks: true, ..plain() }),
        ("outliers", Spec { magnitude: Magnitude::Outliers, ..plain() }),
        ("large batch", Spec { lengths: vec![(2, 3); 40], ..plain() }),
        ("long decode", Spec { lengths: vec![(1, 5000)], ..plain() }),
        ("no query", Spec { lengths: vec![(0, 7)], ..plain() }),
        ("no key", Spec { lengths: vec![(5, 0)], ..plain() }),
        ("neither", Spec { lengths: vec![(0, 0)], ..plain() }),
        ("more queries than keys", Spec { lengths: vec![(9, 4)], mask: Mask::Causal, ..plain() }),
    ];
    for (name, mask) in [
        ("causal", Mask::Causal),
        ("window to both sides", Mask::window(2, 1)),
        ("window to the left", Mask::window(2, -1)),
        ("window to the right", Mask::window(-1, 1)),
        ("window of one key", Mask::window(0, 0)),
        ("window without limits", Mask::window(-1, -1)),
    ] {
        features.push((name, Spec { mask, ..plain() }));
    }
    for (name, batch) in [("key lengths", BatchKind::KeyLens), ("packed", BatchKind::Packed)] {
        let lengths = vec![(5, 7), (0, 3), (4, 0), (0, 0), (9, 2)];
        features.push((name, Spec { batch, lengths: lengths.clone(), mask: Mask::Causal, ..plain() }));
        let everything = Spec {
            batch,
            lengths,
            mask: Mask::window(3, 1),
            group: 3,
            softcap: 5.0,
            alibi: Some(AlibiKind::PerSequence),
            bias: Some((false, false)),
            sinks: true,
            scale: Some(0.7),
            layouts: [Layout::LengthFirst; 3],
            ..plain()
        };
        features.push(("everything at once", everything));
    }
    for layout in Layout::ALL {
        let name = match layout {
            Layout::Contiguous => "contiguous",
            Layout::LengthFirst => "length before heads",
            Layout::ChannelMajor => "channels before length",
            Layout::EverySecondChannel => "every second channel",
            Layout::Reversed => "last row first",
        };
        features.push((name, Spec { layouts: [layout; 3], ..plain() }));
    }
    // Again with one kv head whose values are the first channels of its keys, which some rungs want.
    let latent = |spec: Spec| {
        let (d, d_v, group) = (spec.d.max(spec.d_v), spec.d.min(spec.d_v), spec.heads());
        Spec { d, d_v, group, kv_heads: 1, values_are_keys: true, ..spec }
    };
    let latents: Vec<_> = features.iter().map(|(name, spec)| (*name, latent(spec.clone()))).collect();
    features.extend(latents);
    features
}

/// The problems that the door refuses: they never reach a rung.
fn refused_at_the_door() -> Vec<AttentionError> {
    let fp8 = Array4::from_elem((1, 1, 2, 4), E4m3(0x38));
    let (table, pool) = (Array2::zeros((1, 1)), || fp8.view().into());
    let paged = Kv::Paged { k_pool: pool(), v_pool: pool(), block_table: table.view(), seq_lens: &[1] };
    let problems = [
        Problem::dense(fp8.view(), fp8.view(), fp8.view(), Options::default()),
        Problem::new(fp8.view(), paged, Batch::Dense, Options::default()),
    ];
    problems.into_iter().filter_map(Result::err).collect()
}

#[test]
fn rungs_refuse_what_the_table_says_and_nothing_else() {
    let mut found = BTreeSet::new();
    let mut record = |what: &str, error: AttentionError| match error {
        AttentionError::Unsupported { rung, what } => drop(found.insert((rung.to_string(), what))),
        other => panic!("{what}: {other}"),
    };
    for error in refused_at_the_door() {
        record("at the door", error);
    }
    let names = || std::iter::once(ORACLE).chain(RUNGS.iter().map(|rung| rung.name));
    for (feature, spec) in features() {
        for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F64] {
            let owned = Spec { dtype, ..spec.clone() }.build();
            for (name, owned) in names().flat_map(|name| [(name, owned.clone()), (name, owned.paged(3, 0))]) {
                let (problem, paged) = (owned.problem(), owned.pages.is_some());
                let rung: Box<dyn Attention> = attention(name, Settings::default()).expect("a name of the registry");
                let what = format!("{name}: {feature} in {dtype}, paged {paged}");
                let (says, does) = (rung.supports(&problem), rung.forward(&problem));
                assert_eq!(says.as_ref().err(), does.as_ref().err(), "{what}: says one thing and does another");
                let known = dtype == DType::F64 || !spec.values_are_keys || paged;
                assert!(does.is_ok() || known, "{what}: latents in a type that every rung takes are refused");
                if let Err(error) = does {
                    assert!(
                        matches!(error, AttentionError::Unsupported { rung, .. } if rung == name),
                        "{what}: {error}"
                    );
                    record(&what, error);
                }
            }
        }
    }
    let table = table();
    let of = |left: &BTreeSet<Refusal>, right| left.difference(right).cloned().collect::<Vec<_>>();
    assert!(found.is_subset(&table), "refused without a line in refusals.tsv: {:?}", of(&found, &table));
    assert!(table.is_subset(&found), "lines of refusals.tsv that no longer happen: {:?}", of(&table, &found));
}
