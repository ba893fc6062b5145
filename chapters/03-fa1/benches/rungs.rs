//! Chapter 3's rung against the one below it. The cases are those of `ladder bench`.

fn main() {
    ladder::bench::chapter(3);
}
