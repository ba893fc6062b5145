//! Chapter 1's rung, alone: nothing is below it. The cases are those of `ladder bench`.

fn main() {
    ladder::bench::chapter(1);
}
