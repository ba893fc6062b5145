//! Chapter 7's rungs against the one below them, on keys and values in pages. The cases are those of `ladder bench`.

fn main() {
    ladder::bench::chapter(7);
}
