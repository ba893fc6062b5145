//! The timeline as a picture: the beginning of the block, and where one tile of rows ends and the next begins.
//!
//! Colours are the classes of the book's figures. Opened alone, the file has colours of its own.

use super::timeline::{Did, Lane, Product, Span, Timeline};
use crate::page::escape;
use std::fmt::Write;
use std::ops::Range;

/// All in pixels of the picture: its width, what names of lanes take of it, and the heights of a product's lane and of another.
const WIDTH: f64 = 900.0;
const NAMES: f64 = 108.0;
const PRODUCT: f64 = 14.0;
const WORK: f64 = 20.0;
/// Between warpgroups, and what a panel has above its lanes and below.
const GAP: f64 = 10.0;
const HEADING: f64 = 26.0;
const AXIS: f64 = 44.0;

/// What a colour stands for: its class, and its name in the key.
const KEY: [(&str, &str); 4] = [
    ("fill-b", "S = QK^T under way"),
    ("fill-c", "O += PV under way"),
    ("fill-a", "softmax, P rounded, O rescaled"),
    ("fill-d", "epilogue"),
];

/// The strokes of copies.
const COPIES: [(&str, &str); 3] = [("stroke-d", "Q"), ("stroke-b", "K"), ("stroke-c", "V")];

/// Outside of a page, as the root of its own document.
const STYLE: &str = "<style>
svg:root { background: #fff; color: #222; font-family: sans-serif }
svg:root text { fill: currentColor }
svg:root .fill-a { fill: #ecd0b8 } svg:root .fill-b { fill: #bfd7ec } svg:root .fill-c { fill: #bbdad2 } svg:root .fill-d { fill: #e4cade }
svg:root .stroke-b { stroke: #1d6fb8 } svg:root .stroke-c { stroke: #0f7b5f } svg:root .stroke-d { stroke: #9d3f83 }
@media (prefers-color-scheme: dark) {
svg:root { background: #1b1b1b; color: #ddd }
svg:root .fill-a { fill: #5a4128 } svg:root .fill-b { fill: #324a60 } svg:root .fill-c { fill: #294f44 } svg:root .fill-d { fill: #563a4e }
svg:root .stroke-b { stroke: #6db3f2 } svg:root .stroke-c { stroke: #4cc9a0 } svg:root .stroke-d { stroke: #e08cc8 }
}
</style>";

/// The picture, with windows of about so many tiles of keys.
pub(super) fn draw(timeline: &Timeline, title: &str, tiles: usize) -> String {
    let panels = panels(timeline, tiles);
    let consumers = timeline.consumers().len() as f64;
    let lanes = WORK + consumers * (GAP + 2.0 * PRODUCT + WORK);
    let height = panels.len() as f64 * (HEADING + lanes + AXIS) + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" style=\"max-width: {WIDTH}px\">\n\
         <title>{}</title>\n{STYLE}\n",
        escape(title)
    );
    let mut top = 0.0;
    for (heading, window) in panels {
        let scale = (WIDTH - NAMES - 12.0) / (window.end - window.start).max(1) as f64;
        let mut panel = Panel { svg: &mut svg, timeline, window, scale };
        panel.text(8.0, top + 16.0, "font-size: 12px; font-weight: 700", heading);
        panel.lanes(top + HEADING);
        panel.axis(top + HEADING + lanes + 6.0);
        top += HEADING + lanes + AXIS;
    }
    key(&mut svg, top + 4.0);
    svg.push_str("</svg>\n");
    svg
}

/// What is shown: all of a short block; else its beginning, and the end of its first tile of rows.
fn panels(timeline: &Timeline, tiles: usize) -> Vec<(&'static str, Range<u64>)> {
    let whole = vec![("The block", 0..timeline.clocks)];
    let Some(lane) = timeline.consumers().first() else { return whole };
    let there: Vec<u64> = lane.spans.iter().filter(|span| span.did == Did::WaitForS).map(|span| span.to).collect();
    let mut periods: Vec<u64> = there.windows(2).map(|two| two[1] - two[0]).collect();
    periods.sort_unstable();
    let length = periods.get(periods.len() / 2).map_or(timeline.clocks, |period| period * tiles as u64);
    let seam = lane.spans.iter().find(|span| span.did == Did::Finish).map_or(timeline.clocks, |span| span.from);
    if timeline.clocks <= 2 * length || seam < length + length / 2 {
        let end = seam.saturating_add(2 * length);
        return if end < timeline.clocks { vec![("The block begins", 0..end)] } else { whole };
    }
    let (from, to) = (seam - length / 2, (seam + length / 2).min(timeline.clocks));
    vec![("The block begins", 0..length), ("From one tile of rows to the next", from..to)]
}

/// A window of the timeline.
struct Panel<'a> {
    svg: &'a mut String,
    timeline: &'a Timeline,
    window: Range<u64>,
    /// Pixels of a clock.
    scale: f64,
}

impl Panel<'_> {
    fn lanes(&mut self, top: f64) {
        let timeline = self.timeline;
        let mut y = top;
        self.name(y + WORK / 2.0, "copies");
        self.copies(timeline.producer(), y);
        y += WORK;
        for (number, lane) in timeline.consumers().iter().enumerate() {
            y += GAP;
            self.name(y + PRODUCT, &format!("warpgroup {number}"));
            for (product, span) in lane.products() {
                let (down, class, letter) =
                    if product == Product::S { (0.0, "fill-b", 'S') } else { (PRODUCT, "fill-c", 'O') };
                self.bar(&span, y + down, PRODUCT, class, &format!("{letter}{}", span.keys));
            }
            y += 2.0 * PRODUCT;
            for span in &lane.spans {
                match span.did {
                    Did::Softmax => self.bar(span, y, WORK, "fill-a", &format!("P{}", span.keys)),
                    Did::Pack => self.bar(span, y, WORK, "fill-a", ""),
                    Did::Finish => self.bar(span, y, WORK, "fill-d", "end"),
                    Did::WaitForTurn => self.turn(span, y + WORK / 2.0),
                    _ => {}
                }
            }
            y += WORK;
        }
    }

    fn x(&self, clock: u64) -> f64 {
        NAMES + clock.saturating_sub(self.window.start) as f64 * self.scale
    }

    /// The part of a span that is in the window, from and to in pixels.
    fn part(&self, span: &Span) -> Option<(f64, f64)> {
        let (from, to) = (span.from.max(self.window.start), span.to.min(self.window.end));
        (from < to).then(|| (self.x(from), self.x(to)))
    }

    fn bar(&mut self, span: &Span, y: f64, height: f64, class: &str, label: &str) {
        let Some((from, to)) = self.part(span) else { return };
        let _ = writeln!(
            self.svg,
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" class=\"{class}\" \
             stroke=\"currentColor\" stroke-width=\".5\"/>",
            to - from
        );
        if to - from > 7.0 * label.len() as f64 {
            self.text((from + to) / 2.0, y + height / 2.0 + 3.5, "font-size: 10px; text-anchor: middle", label);
        }
    }

    /// A wait for a turn: a dashed line.
    fn turn(&mut self, span: &Span, y: f64) {
        let Some((from, to)) = self.part(span) else { return };
        let _ = writeln!(
            self.svg,
            "<path d=\"M{from:.1} {y:.1}H{to:.1}\" stroke=\"currentColor\" stroke-dasharray=\"3 3\"/>"
        );
    }

    /// A stroke where a copy starts, with its name where there is room before the next.
    fn copies(&mut self, lane: &Lane, y: f64) {
        let copies = lane.spans.iter().filter_map(|span| match span.did {
            Did::WaitToCopyQ => Some(("stroke-d", "Q".to_string(), span.to)),
            Did::WaitToCopyK => Some(("stroke-b", format!("K{}", span.keys), span.to)),
            Did::WaitToCopyV => Some(("stroke-c", format!("V{}", span.keys), span.to)),
            _ => None,
        });
        let copies: Vec<_> = copies.filter(|(.., at)| self.window.contains(at)).collect();
        for (place, (class, name, at)) in copies.iter().enumerate() {
            let x = self.x(*at);
            let _ = writeln!(self.svg, "<path d=\"M{x:.1} {y:.1}v{WORK}\" class=\"{class}\" stroke-width=\"2\"/>");
            let next = copies.get(place + 1).map_or(WIDTH, |(.., at)| self.x(*at));
            if next - x > 5.0 + 7.0 * name.len() as f64 {
                self.text(x + 3.0, y + 10.0, "font-size: 10px", name);
            }
        }
    }

    /// Time, from the block's beginning on.
    fn axis(&mut self, y: f64) {
        let per_unit = self.timeline.clocks_per_us.unwrap_or(1.0);
        let unit =
            if self.timeline.clocks_per_us.is_some() { "microseconds" } else { "steps of the simulator, no time" };
        let window = [self.window.start, self.window.end].map(|clock| clock as f64 / per_unit);
        let rough = (window[1] - window[0]) / 8.0;
        let ten = 10f64.powf(rough.max(f64::MIN_POSITIVE).log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|times| times * ten).into_iter().find(|&step| step >= rough).unwrap_or(ten);
        let _ = writeln!(self.svg, "<path d=\"M{NAMES} {y:.1}H{:.1}\" stroke=\"currentColor\"/>", WIDTH - 12.0);
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let mut at = (window[0] / step).ceil() * step;
        while at <= window[1] {
            let x = NAMES + (at - window[0]) * per_unit * self.scale;
            let _ = writeln!(self.svg, "<path d=\"M{x:.1} {y:.1}v4\" stroke=\"currentColor\"/>");
            self.text(x, y + 15.0, "font-size: 10px; text-anchor: middle", &format!("{at:.digits$}"));
            at += step;
        }
        self.text((WIDTH + NAMES) / 2.0, y + 29.0, "font-size: 11px; text-anchor: middle", unit);
    }

    fn name(&mut self, y: f64, name: &str) {
        self.text(NAMES - 8.0, y + 4.0, "font-size: 12px; text-anchor: end", name);
    }

    fn text(&mut self, x: f64, y: f64, style: &str, text: &str) {
        let _ = writeln!(self.svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" style=\"{style}\">{}</text>", escape(text));
    }
}

/// Which colour is what.
fn key(svg: &mut String, y: f64) {
    let mut x = 8.0;
    let text = |svg: &mut String, x: f64, text: &str| {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\" style=\"font-size: 11px\">{}</text>", y + 10.0, escape(text));
    };
    for (class, name) in KEY {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"16\" height=\"12\" class=\"{class}\" stroke=\"currentColor\" stroke-width=\".5\"/>"
        );
        text(svg, x + 21.0, name);
        x += 36.0 + 6.3 * name.len() as f64;
    }
    let _ = writeln!(svg, "<path d=\"M{x} {}h16\" stroke=\"currentColor\" stroke-dasharray=\"3 3\"/>", y + 6.0);
    text(svg, x + 21.0, "waits for its turn");
    x += 132.0;
    for (class, name) in COPIES {
        let _ = writeln!(svg, "<path d=\"M{x} {y}v12\" class=\"{class}\" stroke-width=\"2\"/>");
        text(svg, x + 5.0, name);
        x += 20.0;
    }
    text(svg, x, "are sent for");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::example;

    fn timeline(rows: usize, keys: usize) -> Timeline {
        Timeline::new(&example::tracks(rows, keys), false).unwrap()
    }

    #[test]
    fn a_short_block_is_shown_whole_and_a_long_one_at_its_beginning_and_where_a_tile_of_rows_ends() {
        let short = timeline(1, 3);
        assert_eq!(panels(&short, 6), [("The block", 0..short.clocks)]);
        let long = timeline(4, 40);
        let end = long.lanes[0].spans.iter().find(|span| span.did == Did::Finish).unwrap();
        let [(_, first), (_, second)] = &panels(&long, 6)[..] else { panic!("two panels") };
        // A tile of keys is as long as the example has it.
        assert_eq!((first.start, first.end), (0, 6 * example::KEYS));
        assert_eq!((second.start, second.end), (end.from - 3 * example::KEYS, end.from + 3 * example::KEYS));
        let [(_, first), _] = &panels(&long, 2)[..] else { panic!("two panels") };
        assert_eq!(first.end, 2 * example::KEYS);
    }

    #[test]
    fn what_is_drawn_lies_within_the_picture_and_has_its_names() {
        let svg = draw(&timeline(3, 20), "a < b", 6);
        let number = |text: &str, name: &str| {
            let value = text.split_once(&format!(" {name}=\"")).map(|(_, rest)| rest.split('"').next().unwrap());
            value.and_then(|value| value.parse::<f64>().ok())
        };
        for line in svg.lines().filter(|line| line.starts_with("<rect") || line.starts_with("<text")) {
            let (x, width) = (number(line, "x").unwrap(), number(line, "width").unwrap_or(0.0));
            assert!(x >= 0.0 && x + width <= WIDTH, "{line}");
        }
        for part in ["a &lt; b", ">S5<", ">O4<", ">P5<", ">end<", ">microseconds<", ">warpgroup 1<", ">K1<"] {
            assert!(svg.contains(part), "{part}");
        }
    }
}
