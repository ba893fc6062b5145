//! What a block spent its time with, in numbers.

use super::timeline::{Did, Lane, Timeline};
use crate::format;
use comfy_table::Cell;
use serde_json::{Value, json};

/// What warpgroups that multiply do.
const CONSUMER: [Did; 12] = [
    Did::WaitForJob,
    Did::WaitForQ,
    Did::WaitForTurn,
    Did::StartS,
    Did::WaitForV,
    Did::StartO,
    Did::WaitForS,
    Did::Softmax,
    Did::WaitForK,
    Did::WaitForO,
    Did::Pack,
    Did::Finish,
];

/// What the thread that copies does.
const PRODUCER: [Did; 4] = [Did::WaitForJob, Did::WaitToCopyQ, Did::WaitToCopyK, Did::WaitToCopyV];

/// How often something was done, its median, and its share of the block's time.
struct Share {
    name: &'static str,
    count: usize,
    median: Option<u64>,
    share: f64,
}

/// What a lane did, in the order of a tile; of a warpgroup that multiplies, what several of these are together too.
fn shares(timeline: &Timeline, lane: &Lane, producer: bool) -> Vec<Share> {
    let share = |name, mut clocks: Vec<u64>| {
        clocks.sort_unstable();
        let all = clocks.iter().sum::<u64>() as f64 / timeline.clocks.max(1) as f64;
        Share { name, count: clocks.len(), median: clocks.get(clocks.len() / 2).copied(), share: all }
    };
    let kinds: &[Did] = if producer { &PRODUCER } else { &CONSUMER };
    let mut shares: Vec<Share> = kinds.iter().map(|&did| share(did.name(), lane.of(did))).collect();
    if !producer {
        shares.push(share("= row tile known to its first S", lane.prologues()));
        shares.push(share("= last O to the next first S", lane.gaps()));
    }
    shares
}

/// The tables of warpgroups that multiply and of the thread that copies.
pub(super) fn table(timeline: &Timeline) -> String {
    let consumers = timeline.consumers();
    let mut header = vec![String::new()];
    for number in 0..consumers.len() {
        header.extend([format!("wg {number}\ncount"), format!("{}\nmedian", unit(timeline)), "% of\nblock".into()]);
    }
    let columns: Vec<Vec<Share>> = consumers.iter().map(|lane| shares(timeline, lane, false)).collect();
    let producer = vec![shares(timeline, timeline.producer(), true)];
    let head = ["copies", "count", &format!("{}\nmedian", unit(timeline)), "% of\nblock"];
    format!("{}\n\n{}", rows(header.iter().map(String::as_str), &columns), rows(head, &producer))
}

fn rows<'a>(header: impl IntoIterator<Item = &'a str>, columns: &[Vec<Share>]) -> String {
    let row = |place: usize| {
        let cells = columns.iter().flat_map(|column| {
            let Share { count, median, share, .. } = &column[place];
            let median = median.map_or("-".into(), |median| median.to_string());
            [count.to_string(), median, format!("{:.1}", 100.0 * share)]
        });
        std::iter::once(columns[0][place].name.to_string()).chain(cells).map(Cell::new).collect()
    };
    format::table(header, (0..columns[0].len()).map(row)).to_string()
}

/// The block's time, the share of it with products, and marks that were lost.
pub(super) fn lines(timeline: &Timeline) -> Vec<String> {
    let [one, two] = timeline.multiplying().map(|clocks| 100.0 * clocks as f64 / timeline.clocks.max(1) as f64);
    let time = match timeline.clocks_per_us {
        Some(per_us) => format!(
            "The block took {} clocks, {} at {:.0} MHz.",
            timeline.clocks,
            format::seconds(timeline.clocks as f64 / per_us / 1e6),
            per_us,
        ),
        None => format!(
            "The block took {} steps of the simulator, an instruction of a warp each: an order, and no time.",
            timeline.clocks
        ),
    };
    let products = format!(
        "Products of one warpgroup or more were under way in {one:.1}% of that, of two or more in {two:.1}%: from their \
         first instruction until they had been waited for."
    );
    let lost: u32 = timeline.lanes.iter().map(|lane| lane.lost).sum();
    let lost = (lost > 0).then(|| format!("{lost} marks had no room: what is told is the beginning of the block."));
    [Some(time), Some(products), lost].into_iter().flatten().collect()
}

/// The same for programs.
pub(super) fn json(timeline: &Timeline) -> Value {
    let lane = |lane: &Lane, producer| {
        let shares = shares(timeline, lane, producer);
        let told = |share: &Share| json!({ "what": share.name.trim_start_matches("= "), "count": share.count, "median": share.median, "share": share.share });
        json!({ "lost": lane.lost, "shares": shares.iter().map(told).collect::<Vec<_>>() })
    };
    let [one, two] = timeline.multiplying();
    json!({
        "unit": unit(timeline),
        "block": timeline.clocks,
        "clocks_per_us": timeline.clocks_per_us,
        "products_of_one_or_more": one,
        "products_of_two_or_more": two,
        "warpgroups": timeline.consumers().iter().map(|one| lane(one, false)).collect::<Vec<_>>(),
        "copies": lane(timeline.producer(), true),
    })
}

/// What the block's clock counts.
fn unit(timeline: &Timeline) -> &'static str {
    if timeline.clocks_per_us.is_some() { "clocks" } else { "steps" }
}
