//! The three forms timed at several numbers of queries, to see where decompressing overtakes absorbing. The projections
//! that all forms share are left out, as in [`mla::cost`].
//!
//! `cargo bench -p mla` prints, for a few heads of DeepSeek-V2's sizes on one thread and on all, milliseconds (the median
//! of five turns) and computed GFLOP of each form. `cargo bench -p mla -- --output FILE.json` keeps them.

use attention::{AttentionError, DType, Mask, TensorView};
use ladder::bench::{self, Machine, Results, Row};
use mla::cost::crossover;
use mla::{
    Cache, Dims, Form, Heads, Interleaved, LatentCache, Layer, Queries, Rope, Weights, absorbed, fused, naive, queries,
};
use ndarray::Array2;
use std::error::Error;
use std::time::{Instant, SystemTime};

/// DeepSeek-V2 with 16 of its 128 heads, as one of eight machines has them, and narrower tokens.
const DIMS: Dims = Dims { d_model: 512, heads: 16, d_cq: 256, ..Dims::DEEPSEEK_V2 };

/// Tokens in the cache, the queries' own among them.
const TOKENS: usize = 2048;

const TURNS: usize = 5;

const METHOD: &str = "Seeded uniform inputs, the forms in turn on the same cache: ms is the median of 5 turns; operations are those \
    that `cost` counts. Projections that all forms share are left out.";

type Attend = fn(&Layer<Interleaved>, &Queries<Interleaved>, &Cache<Interleaved>) -> Result<Heads, AttentionError>;

const FORMS: [(Form, Attend); 3] = [(Form::Naive, naive), (Form::Fused, fused), (Form::Absorbed, absorbed)];

/// Numbers spread evenly over -1 to 1, times `scale`.
fn numbers(seed: &mut u64, rows: usize, columns: usize, scale: f32) -> Array2<f32> {
    Array2::from_shape_simple_fn((rows, columns), || {
        *seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        scale * ((*seed >> 40) as f32 / (1u32 << 23) as f32 - 1.0)
    })
}

fn layer(seed: &mut u64) -> Result<Layer<Interleaved>, AttentionError> {
    let Dims { d_model, heads, d_nope, d_rope, d_v, d_c, d_cq } = DIMS;
    let shapes = [
        (d_cq, d_model),
        (heads * d_nope, d_cq),
        (heads * d_rope, d_cq),
        (d_c, d_model),
        (heads * d_nope, d_c),
        (heads * d_v, d_c),
        (d_rope, d_model),
        (d_model, heads * d_v),
    ];
    let w = shapes.map(|(out, from)| numbers(seed, out, from, (3.0 / from as f32).sqrt()));
    let [dq, uq, qr, dkv, uk, uv, kr, o] = w.each_ref().map(|w| TensorView::from(w.view()));
    let weights = Weights { dq, uq, qr, dkv, uk, uv, kr, o, norms: None };
    Layer::new(DIMS, &weights, Rope::new(d_rope, 1e4)?, None)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--output");
    let output = arguments.nth(1);
    let (commit, date) = (bench::commit(), humantime::format_rfc3339_seconds(SystemTime::now()).to_string());
    let mut rows = Vec::new();
    let mut seed = 8;
    let layer = layer(&mut seed)?;
    let mut cache = layer.cache(TOKENS)?;
    cache.append(numbers(&mut seed, TOKENS, DIMS.latent(), 1.7).view())?;
    let computed = crossover(&DIMS, TOKENS).map_or("nowhere".into(), |q_len| format!("at {q_len} queries"));
    println!("{TOKENS} keys, {DIMS:?}\ncomputed operations of naive and absorbed cross {computed}");
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in [1, all] {
        println!("\n{threads} threads: queries, then ms (GFLOP) of naive, fused, absorbed");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        for q_len in [1, 4, 16, 64, 128, 171, 256, 512, 1024, TOKENS] {
            let h = numbers(&mut seed, q_len, DIMS.d_model, 1.7);
            let queries = queries(&layer, h.view(), TOKENS - q_len);
            let mut line = format!("{q_len:>5}");
            for (form, attend) in FORMS {
                let cost = form.cost(&DIMS, q_len, TOKENS, DType::F32)?;
                let mut times = Vec::new();
                for _ in 0..TURNS {
                    let start = Instant::now();
                    pool.install(|| attend(&layer, &queries, &cache))?;
                    times.push(start.elapsed().as_secs_f64());
                }
                times.sort_by(f64::total_cmp);
                let ms = 1e3 * times[TURNS / 2];
                line += &format!("  {ms:>8.2} ({:>6.2})", cost.flops / 1e9);
                rows.push(row(form, q_len, threads, ms, cost.flops));
            }
            println!("{line}");
        }
    }
    if let Some(path) = output {
        let (machine, method, ceilings) = (Machine::cpu(), METHOD.into(), Vec::new());
        Results { machine, date, commit, method, ceilings, rows }.write(path.as_ref())?;
    }
    Ok(())
}

fn row(form: Form, q_len: usize, threads: usize, ms: f64, flops: f64) -> Row {
    let digits = |x: f64| format!("{x:.4e}").parse().unwrap_or(x);
    Row {
        who: form.name().into(),
        dtype: DType::F32.to_string(),
        head_dim: DIMS.d_qk(),
        mask: Mask::Causal.to_string(),
        batch: 1,
        heads: DIMS.heads,
        kv_heads: DIMS.heads,
        q_len,
        kv_len: TOKENS,
        threads: Some(threads),
        ms: digits(ms),
        tflops: Some(digits(flops / ms / 1e9)),
        ..Row::default()
    }
}
