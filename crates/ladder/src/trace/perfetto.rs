//! The timeline in the trace event format of Chrome, which <https://ui.perfetto.dev> opens.

use super::timeline::{Product, Timeline};
use serde_json::{Value, json};

/// A process, with a thread for what each warpgroup does and for each kind of its products.
pub(super) fn json(timeline: &Timeline, title: &str) -> Value {
    // The format counts microseconds. A step of the simulator is shown as one.
    let per_us = timeline.clocks_per_us.unwrap_or(1.0);
    let us = |clocks: u64| clocks as f64 / per_us;
    let named = |what: &str, thread: usize, name: &str| json!({ "ph": "M", "name": what, "pid": 0, "tid": thread, "args": { "name": name } });
    let mut events = vec![named("process_name", 0, title)];
    for (number, lane) in timeline.lanes.iter().enumerate() {
        let copies = number == timeline.consumers().len();
        let name = if copies { "producer".into() } else { format!("warpgroup {number}") };
        events.push(named("thread_name", 3 * number, &name));
        let mut add = |thread: usize, name: &str, span: &super::timeline::Span| {
            events.push(json!({
                "ph": "X",
                "name": name,
                "pid": 0,
                "tid": thread,
                "ts": us(span.from),
                "dur": us(span.to - span.from),
                "args": { "tile of rows": span.rows, "tile of keys": span.keys, "clocks": span.to - span.from },
            }));
        };
        lane.spans.iter().for_each(|span| add(3 * number, span.did.name(), span));
        for (product, span) in &lane.products() {
            let (thread, kind) = if *product == Product::S { (1, "S") } else { (2, "O") };
            add(3 * number + thread, kind, span);
        }
        if !copies {
            events.push(named("thread_name", 3 * number + 1, &format!("{name}: S")));
            events.push(named("thread_name", 3 * number + 2, &format!("{name}: O")));
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}
