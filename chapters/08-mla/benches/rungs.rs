//! Chapter 8's rung against the one below it, on latents. The cases are those of `ladder bench`.

fn main() {
    ladder::bench::chapter(8);
}
