//! Prints what chapter 8's page says of costs: caches of published models, the three forms at DeepSeek-V2's sizes against the
//! number of queries, and where decompressing overtakes absorbing. All of it is computed, nothing timed.
//!
//! `cargo run -p mla --example costs`

use attention::{AttentionError, DEFAULT_FAST_MEMORY, DType};
use fa2::Tiles;
use mla::cost::{MODELS, crossover};
use mla::{Dims, Form};
use std::collections::BTreeSet;

const DIMS: Dims = Dims::DEEPSEEK_V2;

/// Tokens in the cache, the queries' own among them.
const TOKENS: usize = 4096;

fn main() -> Result<(), AttentionError> {
    println!("model, kind, numbers for each token and layer, bytes for each token in BF16, source");
    for model in MODELS {
        let (elements, bytes) = (model.cached.elements(), model.bytes_per_token(DType::Bf16));
        println!("{:<12}  {}  {elements:>5}  {bytes:>7}  {}", model.name, model.kind(), model.source);
    }

    // The fused form's cost has a step behind each full tile of queries.
    let rows = Tiles::fit(DEFAULT_FAST_MEMORY, DIMS.d_qk(), DIMS.d_v)?.rows;
    let edges = (1..=8).flat_map(|tiles| [tiles * rows, tiles * rows + 1]);
    let powers = (0..=10).flat_map(|power| [1 << power, 3 << power]).chain([2048, TOKENS]);
    let lengths: BTreeSet<usize> = powers.chain(edges).chain(crossover(&DIMS, TOKENS)).collect();
    println!("\nDeepSeek-V2, {TOKENS} tokens, BF16, fused in tiles of {rows} queries");
    println!("queries, then GFLOP and MB of naive, fused, absorbed");
    for q_len in lengths {
        let mut line = format!("{q_len:>5}");
        for form in [Form::Naive, Form::Fused, Form::Absorbed] {
            let cost = form.cost(&DIMS, q_len, TOKENS, DType::Bf16)?;
            line += &format!("  {:>9.2} {:>8.1}", cost.flops / 1e9, cost.bytes / 1e6);
        }
        println!("{line}");
    }

    println!("\nDeepSeek-V2: tokens, then the fewest queries for which naive takes fewer operations than absorbed");
    for k_len in [256, 2048, TOKENS, 32 << 10, 1 << 20] {
        let q_len = crossover(&DIMS, k_len).map_or("none".into(), |q_len| q_len.to_string());
        println!("{k_len:>8}  {q_len}");
    }
    Ok(())
}
