//! Keys of short queries in parts: however many there are, a row is what it is.

use attention::{DType, Mask, oracle};
use cuda_fa2::Target;
use device::Device;
use ladder::registry::device_rung;
use libtest_mimic::Failed;
use testkit::problems::{BatchKind, Spec};
use testkit::{forward_on_canaries, judge};

/// Into how many parts the keys are to be split: the last ones ask for more than there are tiles of keys, and get as many.
const SPLITS: [usize; 9] = [1, 2, 3, 5, 17, 32, 55, 97, 133];

/// Query heads of a kv head, and kv heads.
const HEADS: [(usize, usize); 7] = [(1, 2), (2, 2), (3, 2), (5, 2), (8, 2), (7, 1), (16, 1)];

/// Masks, channels, types and sinks take turns.
fn spec(place: usize, (group, kv_heads): (usize, usize), rows: usize, keys: [usize; 4]) -> Spec {
    let masks = [Mask::Full, Mask::Causal, Mask::window(70, 0), Mask::window(3, 40)];
    Spec {
        lengths: keys.map(|keys| (rows, keys)).to_vec(),
        batch: [BatchKind::KeyLens, BatchKind::Packed][place / 2 % 2],
        kv_heads,
        group,
        d_v: [64, 128, 33][place % 3],
        dtype: [DType::F16, DType::Bf16][place % 2],
        mask: masks[place % 4],
        sinks: place.is_multiple_of(5),
        seed: place as u64,
        ..Spec::plain(rows, keys[0], [64, 128, 40, 200, 17][place % 5])
    }
}

/// On a GPU with 1 to 16 rows of each group of heads; of a simulated one with a few of them.
pub(crate) fn splits_change_nothing_but_rounding(device: &Device) -> Result<(), Failed> {
    let simulated = matches!(device, Device::Simulated(_));
    let specs: Vec<Spec> = if simulated {
        let some = [(2, 5), (5, 3)];
        some.map(|(heads, rows)| spec(heads, HEADS[heads], rows, [200, 0, 65, 1])).to_vec()
    } else {
        let all = HEADS.iter().flat_map(|&heads| (1..=16).map(move |rows| (heads, rows)));
        all.enumerate().map(|(place, (heads, rows))| spec(place, heads, rows, [3500, 0, 129, 1])).collect()
    };
    let splits = if simulated { &SPLITS[1..5] } else { &SPLITS[..] };
    let entry = device_rung("cuda-fa2").ok_or("no such rung")?;
    for (place, spec) in specs.iter().enumerate() {
        let owned = spec.build();
        let (problem, truth) = (owned.problem(), oracle::truth(&owned.problem()));
        // A simulated device is given one number a problem.
        let splits = if simulated { &splits[place % 2 + 1..][..1] } else { splits };
        for &splits in splits {
            let target = Target { splits: Some(splits), ..device.attributes().into() };
            let attention = entry.build(device)?.with_target(target);
            let verdict = judge(&problem, &truth, &forward_on_canaries(&attention, &problem)?, problem.dtype());
            if !verdict.passes() {
                return Err(format!("{splits} splits of {spec:?}: {verdict}").into());
            }
        }
    }
    Ok(())
}
