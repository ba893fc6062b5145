//! What caches and forms cost, counted by hand and by walking the pairs.

use attention::DType;
use mla::cost::{Cost, MODELS, crossover};
use mla::{Cached, Dims, Form};

/// Elements for each token and layer: the paper's table 1 in numbers, and what the models' papers give.
#[test]
fn caches_of_published_models() {
    let rows =
        MODELS.map(|model| (model.name, model.kind(), model.cached.elements(), model.bytes_per_token(DType::Bf16)));
    assert_eq!(
        rows,
        [
            ("LLaMA 7B", "MHA", 8192, 524_288),
            ("PaLM 540B", "MQA", 512, 120_832),
            ("Llama 3 8B", "GQA", 2048, 131_072),
            ("Llama 3 70B", "GQA", 2048, 327_680),
            ("Llama 3 405B", "GQA", 2048, 516_096),
            ("DeepSeek-V2", "MLA", 576, 69_120),
            ("DeepSeek-V3", "MLA", 576, 70_272),
        ]
    );
    // DeepSeek-V2's heads with a cache of their own: 57 times as much, 16.1 GB against 0.28 GB at 4096 tokens of 60 layers.
    let (mha, mla) = (Cached::KeysAndValues { kv_heads: 128, d: 128 }, Cached::Latent { d_c: 512, d_rope: 64 });
    let bytes = |cached: Cached| (4096 * 60 * cached.bytes(DType::F16)) as f64;
    assert_eq!(bytes(mha) / bytes(mla), 32_768.0 / 576.0);
    assert!((bytes(mha) / 1e9 - 16.1).abs() < 0.05 && (bytes(mla) / 1e9 - 0.28).abs() < 0.005);
}

/// Two queries, the last of three keys, two heads: five pairs of query and key each.
#[test]
fn costs_by_hand() {
    let dims = Dims { d_model: 1, heads: 2, d_nope: 3, d_rope: 2, d_v: 4, d_c: 5, d_cq: 1 };
    let cost = |form: Form| form.cost(&dims, 2, 3, DType::Bf16).unwrap();
    // Up: 5 * (3 + 4) = 35 products a head and token. A pair: 5 + 4 channels decompressed, 7 + 5 absorbed.
    // Numbers: 3 latents of 7 and 35 weights a head; K and V of 3 tokens, written and read, q and o of 2 tokens; or q^C,
    // q of 7 written and read, o of 5 written and read, and o.
    let naive = Cost { flops: 4.0 * (3.0 * 35.0 + 45.0), bytes: 2.0 * (21.0 + 2.0 * (35.0 + 2.0 * 27.0 + 18.0)) };
    let fused = Cost { flops: naive.flops, bytes: 2.0 * (21.0 + 2.0 * (35.0 + 18.0)) };
    let absorbed =
        Cost { flops: 4.0 * (2.0 * 35.0 + 60.0), bytes: 2.0 * (21.0 + 2.0 * (35.0 + 2.0 * (3.0 + 14.0 + 10.0 + 4.0))) };
    assert_eq!([Form::Naive, Form::Fused, Form::Absorbed].map(cost), [naive, fused, absorbed]);
}

#[test]
fn the_forms_cross_once_and_where_it_says() {
    let small = Dims { d_model: 8, heads: 3, d_nope: 4, d_rope: 2, d_v: 6, d_c: 20, d_cq: 5 };
    for (dims, k_len) in [(small, 1), (small, 2), (small, 7), (small, 300), (Dims::DEEPSEEK_V2, 1000)] {
        let flops = |form: Form, q_len| form.cost(&dims, q_len, k_len, DType::F32).unwrap().flops;
        let cheaper: Vec<bool> = (1..=k_len).map(|n| flops(Form::Naive, n) < flops(Form::Absorbed, n)).collect();
        let at = crossover(&dims, k_len).unwrap();
        assert!((1..=k_len).zip(cheaper).all(|(n, naive)| naive == (n >= at)), "{dims:?}, {k_len} keys: {at}");
    }
    // Where a latent is no wider than half of K and V absorbing never costs more, and without keys nothing does.
    assert_eq!(crossover(&Dims { d_c: 5, ..small }, 300), None);
    assert_eq!(crossover(&small, 0), None);
}

/// DeepSeek-V2 at 4096 tokens: decoding absorbed takes a hundredth of the arithmetic and a fifteenth of the bytes, and a
/// whole prompt more than twice the arithmetic.
#[test]
fn decoding_absorbs_and_prefill_decompresses() {
    let cost = |form: Form, q_len| form.cost(&Dims::DEEPSEEK_V2, q_len, 4096, DType::Bf16).unwrap();
    let (naive, absorbed) = (cost(Form::Naive, 1), cost(Form::Absorbed, 1));
    assert!(naive.flops / absorbed.flops > 100.0 && naive.bytes / absorbed.bytes > 15.0, "{naive:?} {absorbed:?}");
    let (naive, absorbed) = (cost(Form::Naive, 4096), cost(Form::Absorbed, 4096));
    assert!(absorbed.flops > 2.0 * naive.flops, "{naive:?} {absorbed:?}");
}
