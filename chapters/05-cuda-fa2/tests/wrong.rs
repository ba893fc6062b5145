//! Wrong variants of chapter 5: slips that are easy to make, as edits of the reference. The checks must reject each of them; and
//! where a slip shows in no result, the simulated GPU must name the line.

mod laws;

use attention::Mask;
use chapter_05_cuda_fa2::{CudaFa2, KEYS, ROWS};
use kernelkit::named;
use laws::*;
use proptest::prelude::*;
use testkit::problems::Spec;
use testkit::{Also, ByHand, Row, assert_caught, by_hand_with_nan, check_by_hand, must, rows, scores_with_nan};

const REFERENCE: &str = include_str!("reference.cu");

fn main() -> std::process::ExitCode {
    let with_nvrtc = named![
        wrong_ends,
        wrong_loads,
        wrong_scores,
        wrong_updates,
        updates_that_drop_nan_or_read_hidden_values,
        wrong_ends_of_a_row,
        barriers_left_out,
        barriers_that_not_all_threads_reach,
        a_tile_that_is_written_twice,
        a_row_that_writes_beyond_its_own,
        a_loop_that_never_ends,
        masked_rows_of_the_wrong_corner,
        keys_or_rows_left_out,
        tiles_that_nobody_sees,
    ];
    kernelkit::run_or_ignore(with_nvrtc, vec![])
}

/// The reference with the only `old` in it replaced.
fn with(old: &str, new: &str) -> String {
    assert_eq!(REFERENCE.matches(old).count(), 1, "{old}");
    REFERENCE.replace(old, new)
}

/// Asserts that a law failed with all of these words.
fn assert_says<T>(name: &str, law: Result<T, TestCaseError>, words: &[&str]) {
    let said = law.err().unwrap_or_else(|| panic!("the wrong variant \"{name}\" passes")).to_string();
    words.iter().for_each(|word| assert!(said.contains(word), "{name}: {word} in {said}"));
}

/// Where a line of a text that has it once stands, as reports name it.
fn place(text: &str, line: &str) -> String {
    let mut lines = text.lines().zip(1..).filter(|(other, _)| other.contains(line));
    let (_, number) = lines.next().unwrap_or_else(|| panic!("no {line}"));
    assert!(lines.next().is_none(), "{line} stands there twice");
    format!("mine.cu:{number}")
}

fn wrong_ends() {
    const RIGHT: &str = "max(0, min(k_len, i + k_len - q_len + 1))";
    for (name, wrong) in [
        ("aligned to the top left", "min(k_len, i + 1)"),
        ("its own key hidden", "max(0, min(k_len, i + k_len - q_len))"),
        ("below zero", "min(k_len, i + k_len - q_len + 1)"),
        ("beyond the last key", "max(0, i + k_len - q_len + 1)"),
    ] {
        let text = with(RIGHT, wrong);
        let kernels = Kernels::new(&text, 1);
        assert_caught(name, 200, (1usize..70, 0usize..70, any::<bool>()), |(q_len, k_len, causal)| {
            rows_see_what_the_mask_shows(&kernels, (q_len, k_len), causal)
        });
    }
}

fn wrong_loads() {
    const RIGHT: &str = "tile[j][c] = first + j < len ? matrix[(first + j) * D + c] : 0.0f;";
    let beyond = with(RIGHT, "tile[j][c] = matrix[(first + j) * D + c];");
    let law = |text: &str| load_fills_the_tile(&Kernels::new(text, 5), KEYS + 1, KEYS, 0);
    assert_says("an unmasked tail", law(&beyond), &["out of bounds", &place(&beyond, "tile[j][c] = ")]);
    let unset = with(RIGHT, "if (first + j < len) tile[j][c] = matrix[(first + j) * D + c];");
    assert_says("a tail left as it was", law(&unset), &["uninitialised memory"]);
    assert_says(
        "from the first row",
        law(&with(RIGHT, "tile[j][c] = j < len ? matrix[j * D + c] : 0.0f;")),
        &["row 0 of the tile"],
    );
    assert_says(
        "a thread a number",
        law(&with("x < KEYS * D; x += ROWS", "x < 32; x += ROWS")),
        &["uninitialised memory"],
    );
    let by_row = with(
        "for (int x = threadIdx.x; x < KEYS * D; x += ROWS) {\n        const int j = x / D, c = x % D;",
        "for (int x = threadIdx.x; x < KEYS * D; x += ROWS) {\n        const int j = x % KEYS, c = x / KEYS;",
    );
    assert_says("by columns", load_reads_whole_sectors(&Kernels::new(&by_row, 16)), &["neighbouring"]);
}

fn wrong_scores() {
    for (name, old, wrong) in [
        ("no scale", "scale * dot", "dot"),
        ("one key too many", "first + j < end ? scale", "first + j <= end ? scale"),
        ("counted from the tile", "first + j < end ? scale", "j < end ? scale"),
        ("hidden by zero", "scale * dot : NEG_INFINITY", "scale * dot : 0.0f"),
        ("the tile transposed", "k[j][c], dot", "k[c][j % D], dot"),
        (
            "the sum not begun anew",
            "    for (int j = 0; j < KEYS; ++j) {
        float dot = 0.0f;
",
            "    float dot = 0.0f;
    for (int j = 0; j < KEYS; ++j) {
",
        ),
    ] {
        let text = with(old, wrong);
        let kernels = Kernels::new(&text, 2);
        let number = || (-8i8..=8).prop_map(f32::from);
        let row = move || prop::collection::vec(number(), 2);
        assert_caught(name, 200, (row(), prop::collection::vec(row(), KEYS), 0i32..20), |(q, keys, end)| {
            scores_are_line_8(&kernels, (&q, &keys), 0.5, (KEYS as i32, end))
        });
    }
}

fn wrong_updates() {
    for (name, old, wrong) in [
        ("o not rescaled", "    for (int c = 0; c < D; ++c) o[c] *= rescale;\n", ""),
        ("l not rescaled", "    l *= rescale;\n", ""),
        ("the inverse factor, as printed", "o[c] *= rescale", "o[c] /= rescale == 0.0f ? 1.0f : rescale"),
        ("the tile's maximum alone", "float m_new = m;", "float m_new = NEG_INFINITY;"),
        ("m that stays behind", "    m = m_new;\n", ""),
        (
            "m too early",
            "    const float rescale = weight(m, m_new);\n    m = m_new;\n",
            "    m = m_new;\n    const float rescale = weight(m, m_new);\n",
        ),
        ("o overwritten", "o[c] = fmaf(p, v[j][c], o[c])", "o[c] = p * v[j][c]"),
        ("channel 0 only", "o[c] = fmaf(p, v[j][c], o[c])", "o[c] = fmaf(p, v[j][0], o[c])"),
        ("e^-m without a maximum of -inf in mind", "m == NEG_INFINITY ? 0.0f : m", "m"),
    ] {
        let text = with(old, wrong);
        let kernels = Kernels::new(&text, 2);
        assert_caught(name, 200, rows(), |rows| {
            rows.iter().try_for_each(|row| update_is_lines_9_and_10(&kernels, row))
        });
    }
}

fn updates_that_drop_nan_or_read_hidden_values() {
    let text = with("if (p == 0.0f) continue;", "");
    let kernels = Kernels::new(&text, 2);
    assert_caught("hidden values read", 200, rows(), |rows| {
        rows.iter().try_for_each(|row| update_is_lines_9_and_10(&kernels, row))
    });
    let text = with("const float rescale", "if (m_new == NEG_INFINITY) return;\n    const float rescale");
    let kernels = Kernels::new(&text, 2);
    assert_caught("hidden by the maximum", 200, (rows(), scores_with_nan()), |(mut rows, tile)| {
        update_keeps_nan(&kernels, &Row { tile, ..rows.remove(0) })
    });
}

fn wrong_ends_of_a_row() {
    for (name, old, wrong) in [
        ("not divided", "l == 0.0f ? 0.0f : o[c] / l", "o[c]"),
        ("divided by zero", "l == 0.0f ? 0.0f : o[c] / l", "o[c] / l"),
        ("lse without m", "m + logf(l)", "logf(l)"),
        ("lse in base two", "m + logf(l)", "m + log2f(l)"),
    ] {
        let text = with(old, wrong);
        let kernels = Kernels::new(&text, 2);
        assert_caught(name, 200, rows(), |rows| {
            rows.iter().try_for_each(|row| finish_is_lines_12_to_15(&kernels, &row.before))
        });
    }
}

/// A tile of rows and one row more, two tiles of keys and some more, in some orders of the warps; an error says what each of
/// them shows.
fn in_orders_of_warps(text: &str) -> Result<(), TestCaseError> {
    let spec = Spec { mask: Mask::Causal, ..Spec::plain(ROWS + 1, 2 * KEYS + 3, 8) };
    let (mut rung, mut said) = (CudaFa2::new(text), Vec::new());
    for seed in 0..4 {
        rung = rung.with_schedule(seed);
        said.extend(kernel_agrees_with_the_oracle(&rung, &spec).err().map(|error| error.to_string()));
    }
    prop_assert!(said.is_empty(), "{}", said.join("\n"));
    Ok(())
}

const WRITES: &str = "tile[j][c] = ";
const READS: &str = "dot = fmaf(q[c], k[j][c], dot)";

fn barriers_left_out() {
    for line in [
        "        __syncthreads();  // the tiles are whole\n",
        "        __syncthreads();  // the tiles before have been read\n",
    ] {
        let text = with(line, "");
        let (write, read) = (place(&text, WRITES), place(&text, READS));
        assert_says(line, in_orders_of_warps(&text), &["race", &write, &read, WRITES, READS]);
    }
    // A warp alone keeps step by `__syncwarp`, and not with the other one.
    let text = with("__syncthreads();  // the tiles are whole", "__syncwarp();");
    assert_says("a barrier of the warp", in_orders_of_warps(&text), &["race", &place(&text, READS)]);
}

fn barriers_that_not_all_threads_reach() {
    let text = with("    float q_i[D];", "    if (i >= q_len) return;\n    float q_i[D];");
    assert_says("rows that are not there leave", in_orders_of_warps(&text), &["mine.cu:"]);
    let text = with("min(first_row + ROWS, q_len) - 1", "min(i, q_len - 1)");
    assert_says("a thread to the end of its own keys", in_orders_of_warps(&text), &["mine.cu:"]);
}

fn a_tile_that_is_written_twice() {
    let text = with(
        "for (int x = threadIdx.x; x < KEYS * D; x += ROWS)",
        "for (int x = threadIdx.x % 32; x < KEYS * D; x += 32)",
    );
    let write = place(&text, WRITES);
    assert_says("every warp loads all", load_fills_the_tile(&Kernels::new(&text, 5), KEYS, 0, 1), &["race", &write]);
    let text = with(
        "__shared__ float k_tile[KEYS][D], v_tile[KEYS][D];",
        "__shared__ float k_tile[KEYS][D];\n    float (&v_tile)[KEYS][D] = k_tile;",
    );
    assert_says("one tile for both", in_orders_of_warps(&text), &["off by"]);
}

fn a_row_that_writes_beyond_its_own() {
    let text = with("if (i < q_len) finish", "finish");
    assert_says("rows that are not there", in_orders_of_warps(&text), &["out of bounds", &place(&text, "out[c] = ")]);
    let text = with("finish(o + i * D,", "finish(o + i,");
    assert_says("rows that overlap", in_orders_of_warps(&text), &["race", &place(&text, "out[c] = ")]);
}

fn a_loop_that_never_ends() {
    let text = with("first += KEYS", "first += 0");
    let spec = Spec::plain(1, 1, 1);
    let law = kernel_agrees_with_the_oracle(&CudaFa2::new(&text), &spec);
    assert_says("a step of nothing", law, &["step limit", "mine.cu:"]);
}

/// Several heads and sequences, round the edges of tiles.
fn agrees_with_the_oracle(text: &str) -> Result<(), TestCaseError> {
    let rung = CudaFa2::new(text);
    [(1, 1), (ROWS + 1, KEYS + 1), (5, 3 * KEYS), (33, 0)].into_iter().try_for_each(|lengths| {
        [Mask::Full, Mask::Causal].into_iter().try_for_each(|mask| {
            let spec = Spec { mask, group: 2, kv_heads: 2, ..Spec::plain(lengths.0, lengths.1, 3) };
            kernel_agrees_with_the_oracle(&rung, &spec)
        })
    })
}

fn masked_rows_of_the_wrong_corner() {
    must(agrees_with_the_oracle(REFERENCE));
    for (name, old, wrong) in [
        ("no mask", "visible(i, q_len, k_len, causal));", "k_len);"),
        ("the row of the tile", "visible(i, q_len, k_len, causal));", "visible(threadIdx.x, q_len, k_len, causal));"),
        ("the top left", "i + k_len - q_len + 1", "i + 1"),
        ("the head of q for k and v", "kv_head = head / group", "kv_head = head % 2"),
    ] {
        assert_says(name, agrees_with_the_oracle(&with(old, wrong)), &["off by"]);
    }
}

fn keys_or_rows_left_out() {
    for (name, old, wrong) in [
        ("the last tile of keys left out", "first < end; first += KEYS", "first + KEYS <= end; first += KEYS"),
        ("what the first row of the tile sees", "min(first_row + ROWS, q_len) - 1, q_len", "first_row, q_len"),
        ("the last row of a tile left out", "if (i < q_len) finish", "if (i < q_len - 1) finish"),
    ] {
        assert_says(name, agrees_with_the_oracle(&with(old, wrong)), &["off by"]);
    }
    let hidden = CudaFa2::new(&with("if (p == 0.0f) continue;", ""));
    assert_caught("values of hidden keys", 200, by_hand_with_nan(), |case| {
        check_by_hand(&hidden, &ByHand { also: Also::Nothing, ..case })
    });
}

fn tiles_that_nobody_sees() {
    let spec = Spec { mask: Mask::Causal, ..Spec::plain(2 * ROWS, 2 * ROWS, 2) };
    let all = with(
        "const int end = visible(min(first_row + ROWS, q_len) - 1, q_len, k_len, causal);",
        "const int end = k_len;",
    );
    assert_says("all tiles", kernel_moves_what_algorithm_1_moves(&all, &spec), &["wanted at most"]);
    must(kernel_moves_what_algorithm_1_moves(REFERENCE, &spec));
}
