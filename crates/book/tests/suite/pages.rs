//! The directives and formulas of a page: what they become, and that what is missing is an error.

use crate::common::{RESULTS, repository};
use book::{BookError, PageError, Pages};
use tempfile::TempDir;

const CODE: &str = "\
//! Doc.
fn outer() {
    // ANCHOR: body
    let price = \"$5 and $6\";

    // ANCHOR: inner
    if price.is_empty() {
        todo();
    }
    // ANCHOR_END: inner
    // ANCHOR_END: body
}
// ANCHOR: open
// ANCHOR: twice
// ANCHOR_END: twice
// ANCHOR: twice
// ANCHOR: empty

// ANCHOR_END: empty
";

const SVG: &str = "<?xml version=\"1.0\"?>\n<!-- made by hand -->\n<svg viewBox=\"0 0 9 9\">\n\n<title>Nine</title><!-- a\n\nb --></svg>\n";

fn example() -> TempDir {
    repository(&[
        ("src/lib.rs", CODE),
        ("book/results/cpu.json", RESULTS),
        ("book/src/nine.svg", SVG),
        ("book/src/fixed.svg", "<svg width=\"9\"><title>No viewBox</title></svg>"),
        ("book/src/silent.svg", "<svg viewBox=\"0 0 9 9\"></svg>"),
    ])
}

fn expand(text: &str) -> String {
    let repository = example();
    Pages::new(repository.path()).expand("page.md", text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The line and the error of a page that must not build.
fn error(text: &str) -> (usize, PageError) {
    let repository = example();
    match Pages::new(repository.path()).expand("page.md", text) {
        Err(BookError::Page { page, line, error }) if page == "page.md" => (line, *error),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn code_is_cut_at_its_anchors_and_dedented() {
    let page = expand("Before.\n\n{{#code src/lib.rs:body}}\n\nAfter.\n");
    let block = "```rust\nlet price = \"$5 and $6\";\n\nif price.is_empty() {\n    todo();\n}\n```\n";
    assert!(page.contains(block), "{page}");
    assert!(page.contains("<figcaption><code>src/lib.rs</code>, from line 4</figcaption>"), "{page}");
    assert!(!page.contains("ANCHOR") && !page.contains("<a "), "{page}");
    assert!(page.starts_with("Before.\n\n<figure") && page.ends_with("</figure>\n\nAfter.\n"), "{page}");
}

#[test]
fn a_fence_in_the_code_does_not_end_the_block() {
    let code = "// ANCHOR: doc\n/// ```\n/// f();\n/// ```\nfn f() {}\n// ANCHOR_END: doc\n";
    let repository = repository(&[("a.rs", code)]);
    let page = Pages::new(repository.path()).expand("page.md", "{{#code a.rs:doc}}").unwrap();
    assert!(page.contains("````rust\n/// ```\n") && page.contains("fn f() {}\n````\n"), "{page}");
}

#[test]
fn a_diff_is_shown_whole() {
    let diff = "--- a/a.rs\n+++ b/a.rs\n@@ -1 +1 @@\n-// ANCHOR: x\n+// ANCHOR: y\n";
    let repository = repository(&[("steps/one.diff", diff)]);
    let page = Pages::new(repository.path()).expand("page.md", "{{#code steps/one.diff}}").unwrap();
    assert!(
        page.contains(&format!("<figcaption><code>steps/one.diff</code></figcaption>\n\n```diff\n{diff}```\n")),
        "{page}"
    );
    assert!(matches!(error("{{#code steps/two.diff}}"), (1, PageError::File { .. })));
}

#[test]
fn code_that_is_not_there_is_an_error() {
    for (anchor, wanted) in
        [("nowhere", "is missing"), ("open", "has no end"), ("twice", "is there more than once"), ("empty", "is empty")]
    {
        match error(&format!("One\n\n{{{{#code src/lib.rs:{anchor}}}}}")) {
            (3, PageError::Anchor { what, found, .. }) => {
                assert_eq!(what, wanted, "{anchor}");
                assert_eq!(found, "body, inner, open, twice, twice, empty");
            }
            other => panic!("{anchor}: {other:?}"),
        }
    }
    assert!(matches!(error("{{#code src/main.rs:body}}"), (1, PageError::File { .. })));
    assert!(matches!(error("{{#code ../outside.rs:body}}"), (1, PageError::Path { .. })));
    assert!(matches!(error("{{#code /etc/hosts:body}}"), (1, PageError::Path { .. })));
    assert!(matches!(error("{{#code src/lib.rs}}"), (1, PageError::Arguments { .. })));
}

#[test]
fn a_directive_must_be_known_closed_and_in_its_place() {
    for name in ["include", "rustdoc_include", "title", "codes", ""] {
        let found = error(&format!("{{{{#{name} src/lib.rs:body}}}}"));
        assert!(matches!(found, (1, PageError::UnknownDirective { .. })), "{name}: {found:?}");
    }
    assert!(matches!(error("a\n{{#code src/lib.rs:body"), (2, PageError::Unclosed { .. })));
    assert!(matches!(error("a {{#result cpu.json ms\nwho=fa1}}"), (1, PageError::Unclosed { .. })));
    for text in [
        "See {{#code src/lib.rs:body}}",
        "  {{#code src/lib.rs:body}}",
        "{{#code src/lib.rs:body}} and more",
        "```rust\n{{#code src/lib.rs:body}}\n```",
        "~~~~\n~~~\n{{#results cpu.json columns=ms}}\n~~~~",
    ] {
        let found = error(text);
        assert!(matches!(found, (_, PageError::NotAlone { .. })), "{text}: {found:?}");
    }
    assert_eq!(expand("Write `\\{{#code FILE:ANCHOR}}`."), "Write `{{#code FILE:ANCHOR}}`.");
}

#[test]
fn a_figure_is_inlined_without_blank_lines() {
    let page = expand("{{#figure nine.svg Nine of $T_{B_{r}}$.}}\n");
    assert!(
        page.starts_with("<figure>\n<svg viewBox=\"0 0 9 9\">\n<title>Nine</title></svg>\n<figcaption>\n\nNine of ")
    );
    assert!(page.contains("class=\"katex\""), "{page}");
    for (file, wanted) in [("fixed.svg", "viewBox"), ("silent.svg", "<title>")] {
        match error(&format!("{{{{#figure {file} Caption}}}}")) {
            (1, PageError::Figure { wanted: found, .. }) => assert!(found.contains(wanted), "{file}: {found}"),
            other => panic!("{file}: {other:?}"),
        }
    }
    assert!(matches!(error("{{#figure nine.svg}}"), (1, PageError::Arguments { .. })));
    let nested = error("{{#figure nine.svg Takes {{#result cpu.json ms who=fa1}} ms}}");
    assert!(matches!(nested, (1, PageError::Arguments { .. })), "{nested:?}");
}

#[test]
fn numbers_come_from_results() {
    let page = expand(
        "fa1 takes {{#result cpu.json ms who=fa1}} ms, a peer {{#result cpu.json ms who=\"a | peer\" head_dim=64}} ms,\n\
         fa2 is {{#ratio cpu.json ms q_len=1024 mask=full both who=fa1 over who=fa2}} times faster,\n\
         causal takes {{#ratio cpu.json ms who=fa2 mask=causal over who=fa2 mask=full}} of the time.\n\n\
         {{#provenance cpu.json}}\n",
    );
    assert!(
        page.starts_with("fa1 takes 12.3 ms, a peer 1235 ms,\nfa2 is 3.00 times faster,\ncausal takes 0.608 of"),
        "{page}"
    );
    assert!(
        page.contains("Measured on Example 9000, 8 threads; 2026-01-31; commit 0123abc. Median of 5 alternations.")
    );
}

#[test]
fn a_share_is_that_of_the_ceiling_of_the_row() {
    const ROWS: &str = r#"{
        "machine": {"cpu": "Example 9000"}, "date": "2026-01-31", "commit": "0123abc", "method": "by hand",
        "ceilings": [
            {"threads": 1, "fma_gflops": 100, "bf16_gflops": 160, "read_gbps": 12.5},
            {"threads": 2, "fma_gflops": 200, "bf16_gflops": 160, "read_gbps": 20}
        ],
        "rows": [
            {"who": "fa2", "dtype": "F32", "threads": 1, "tflops": 0.05, "ms": 1},
            {"who": "fa2", "dtype": "BF16", "threads": 1, "tflops": 0.04, "ms": 1},
            {"who": "fa2", "dtype": "BF16", "threads": 2, "tflops": 0.05, "ms": 1},
            {"who": "decode", "dtype": "BF16", "threads": 1, "tflops": 0.02, "gbps": 10, "ms": 1},
            {"who": "many", "dtype": "F32", "threads": 3, "tflops": 0.02, "ms": 1},
            {"who": "timed", "dtype": "F32", "threads": 2, "ms": 1}
        ]
    }"#;
    let folder = repository(&[("book/results/cpu.json", ROWS)]);
    let expand = |arguments: &str| {
        let text = format!("{{{{#provenance cpu.json}}}}\n{{{{#share cpu.json {arguments}}}}} %");
        Pages::new(folder.path()).expand("page.md", &text)
    };
    for (conditions, wanted) in [
        ("who=fa2 dtype=F32", "50 %"),
        ("who=fa2 dtype=BF16 threads=1", "25 %"),
        ("who=fa2 dtype=BF16 threads=2", "25 %"),
        ("who=decode", "80 %"),
    ] {
        let page = expand(conditions).unwrap();
        assert!(page.ends_with(&format!("\n{wanted}")), "{conditions}: {page}");
    }
    let error = |conditions: &str| match expand(conditions) {
        Err(BookError::Page { error, .. }) => *error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error("who=fa2"), PageError::Rows { found: 3, .. }));
    assert!(matches!(error("who=many"), PageError::Ceiling { .. }));
    assert!(matches!(error("who=timed"), PageError::Value { .. }));
    assert!(matches!(error("fa2"), PageError::Arguments { .. }));
    assert!(matches!(Pages::new(folder.path()).expand("p", "{{#share}}").unwrap_err(), BookError::Page { .. }));
    let alone = Pages::new(folder.path()).expand("p", "{{#share cpu.json who=decode}}");
    assert!(alone.unwrap_err().to_string().contains("#provenance"), "no number without its source");
}

#[test]
fn a_ceiling_is_that_of_the_threads_or_of_the_device() {
    const CEILINGS: &str = r#"{
        "machine": {"gpu": "Some GPU"}, "date": "2026-01-31", "commit": "0123abc", "method": "by hand",
        "ceilings": [
            {"threads": 2, "fma_gflops": 200, "read_gbps": 20},
            {"fma_gflops": 64000, "copy_gbps": 4000},
            {"threads": 4, "fma_gflops": 400}
        ],
        "rows": []
    }"#;
    let folder = repository(&[("book/results/gpu.json", CEILINGS)]);
    let expand = |arguments: &str| {
        let text = format!("{{{{#provenance gpu.json}}}}\nAt most {{{{#ceiling gpu.json {arguments}}}}}.");
        Pages::new(folder.path()).expand("page.md", &text)
    };
    for (arguments, wanted) in
        [("tflops", "64"), ("gbps", "4000"), ("tflops threads=2", "0.200"), ("gbps threads=2", "20")]
    {
        let page = expand(arguments).unwrap();
        assert!(page.ends_with(&format!("\nAt most {wanted}.")), "{arguments}: {page}");
    }
    let error = |arguments: &str| match expand(arguments) {
        Err(BookError::Page { line: 2, error, .. }) => *error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error("tflops threads=3"), PageError::Ceiling { .. }));
    assert!(matches!(error("gbps threads=4"), PageError::Ceiling { .. }));
    for arguments in ["", "ms", "tflops who=fa2", "tflops threads=two", "tflops threads=2 threads=2"] {
        assert!(matches!(error(arguments), PageError::Arguments { .. }), "{arguments}");
    }
    let alone = Pages::new(folder.path()).expand("p", "{{#ceiling gpu.json tflops}}");
    assert!(alone.unwrap_err().to_string().contains("#provenance"), "no number without its source");
}

#[test]
fn a_table_holds_the_matching_rows_and_where_they_were_measured() {
    let page = expand("{{#results cpu.json columns=who,ms,tflops where mask=full}}\n");
    let table = "| who | ms | TFLOP/s |\n|:--|--:|--:|\n| fa1 | 12.3 | 0.0271 |\n| fa2 | 4.11 | – |\n| a &#124; peer | 1235 | – |\n";
    assert!(page.contains(table), "{page}");
    assert!(page.contains("Measured on Example 9000"), "{page}");
    assert!(expand("{{#results cpu.json columns=who}}").matches("\n| ").count() == 5);
}

#[test]
fn results_of_a_gpu_have_shares_of_its_own_ceilings_and_bytes_in_units() {
    const ROWS: &str = r#"{
        "machine": {"gpu": "Some GPU", "driver": "580.1", "cuda": "13.0"},
        "date": "2026-01-31", "commit": "0123abc", "method": "by hand",
        "ceilings": [{"fma_gflops": 50000, "copy_gbps": 4000}],
        "rows": [
            {"who": "cuda-naive", "dtype": "F16", "tflops": 5, "ms": 1, "ncu_read_bytes": 3221225472, "counted_read_bytes": 1610612736},
            {"who": "cuda-fa1", "dtype": "F16", "tflops": 10, "ms": 0.5, "ncu_read_bytes": 52428800, "formula_bytes": 1048576.5},
            {"who": "step", "dtype": "F16", "tflops": 1, "gbps": 1000, "ms": 2}
        ]
    }"#;
    let folder = repository(&[("book/results/gpu.json", ROWS)]);
    let expand = |text: &str| Pages::new(folder.path()).expand("page.md", text).unwrap();
    let table = "{{#results gpu.json columns=who,ncu_read_bytes,counted_read_bytes,formula_bytes where dtype=F16}}\n";
    let page = expand(table);
    let wanted = "| who | read, by ncu | read, counted | moved, by the formula |\n|:--|--:|--:|--:|\n\
                  | cuda-naive | 3 GiB | 1.50 GiB | – |\n| cuda-fa1 | 50 MiB | – | 1.00 MiB |\n| step | – | – | – |\n";
    assert!(page.contains(wanted), "{page}");
    assert!(page.contains("Measured on Some GPU, cuda 13.0, driver 580.1; 2026-01-31"), "{page}");
    let numbers = "{{#result gpu.json ncu_read_bytes who=cuda-fa1}}, \
                   {{#ratio gpu.json ncu_read_bytes who=cuda-naive over who=cuda-fa1}}, \
                   {{#share gpu.json who=cuda-naive}}, {{#share gpu.json who=step}}";
    let page = expand(&format!("{{{{#provenance gpu.json}}}}\n{numbers}"));
    assert!(page.ends_with("\n50 MiB, 61.4, 10, 25"), "{page}");
}

#[test]
fn where_numbers_come_from_is_told_once_in_units_for_people_and_without_columns_that_no_table_shows() {
    let results = RESULTS
        .replace("\"threads\": 8", "\"threads\": 8, \"memory_bytes\": 25276502016")
        .replace("2026-01-31", "2026-01-31T16:36:00Z")
        .replace(
            "median of 5 alternations",
            "rungs in turn: ms is the median of 7, ms_burst the best of 7; 2(d + d_v) FLOPs for each pair",
        );
    let repository = repository(&[("book/results/cpu.json", &results)]);
    let expand = |text: &str| Pages::new(repository.path()).expand("page.md", text).unwrap();
    let table = "{{#results cpu.json columns=who,ms where mask=full}}\n";
    let page = expand(&format!("{table}\nThen:\n\n{table}"));
    let from = "Measured on Example 9000, 23.5 GiB of memory, 8 threads; 2026-01-31; commit 0123abc. Rungs in turn: ms is \
                the median of 7; 2(d + d&#95;v) FLOPs for each pair.";
    assert_eq!(page.matches(from).count(), 1, "{page}");
    assert_eq!(page.matches("Measured on").count(), 1, "{page}");
    assert!(page.trim_end().ends_with("From the same run.\n\n</figcaption>\n</figure>"), "{page}");
    let page = expand(&format!("`ms_burst` is short.\n\n{table}").replace('`', "\""));
    assert!(page.contains("ms&#95;burst the best of 7; 2(d"), "{page}");
}

#[test]
fn a_test_that_a_page_names_is_there() {
    let repository = repository(&[
        ("chapters/03-fa1/tests/checks/mod.rs", "fn step_1_fit_by_hand() {}\n// fn the_old_name is gone\n"),
        ("chapters/03-fa1/tests/wrong.rs", "fn grid_floored() { let q_len = 1; }\n"),
        ("chapters/04-fa2/tests/wrong.rs", "    fn o_not_rescaled(keys in keys()) {}\n"),
        ("kernels/05_naive.cu", "void naive_scores() {}\n"),
        ("kernels/06_other.cu", "void other_scores() {}\n"),
        ("kernels/tile/softmax.cuh", "float max_over(float x);\n"),
        ("tests/gpu/laws.rs", "fn the_same_bits_again() {}\n"),
    ]);
    let expand =
        |page: &str, name: &str| Pages::new(repository.path()).expand(page, &format!("One.\n\nSee `{name}`.\n"));
    for (page, name) in [
        ("03-fa1.md", "step_1_fit_by_hand"),
        ("03-fa1.md", "grid_floored"),
        ("03-fa1.md", "q_len"),
        ("04-fa2.md", "o_not_rescaled"),
        ("how-to-use.md", "step_1_fit_by_hand"),
        ("03-fa1.md", "cargo test -p some_long_name"),
        ("03-fa1.md", "B_c"),
        ("05-cuda.md", "naive_scores"),
        ("05-cuda.md", "max_over"),
        ("05-cuda.md", "the_same_bits_again"),
        ("05-cuda.md", "grid_floored"),
    ] {
        assert!(expand(page, name).is_ok(), "{page}: {name}");
    }
    for (page, name) in [
        ("03-fa1.md", "the_old_name"),
        ("03-fa1.md", "o_not_rescaled"),
        ("03-fa1.md", "grid_rounded"),
        ("how-to-use.md", "fit_by_hand"),
        ("03-fa1.md", "naive_scores"),
        ("05-cuda.md", "other_scores"),
        ("05-cuda.md", "the_same_bits"),
    ] {
        match expand(page, name) {
            Err(BookError::Page { line: 3, error, .. }) if matches!(*error, PageError::Name { .. }) => {}
            other => panic!("{page}: {name}: {other:?}"),
        }
    }
}

#[test]
fn a_number_that_is_not_there_is_an_error() {
    let source = "{{#provenance cpu.json}}\n";
    let number = |arguments: &str| error(&format!("{source}{{{{#result cpu.json {arguments}}}}}"));
    assert!(matches!(number("ms who=fa2"), (2, PageError::Rows { found: 2, .. })));
    assert!(matches!(number("ms who=fa3"), (2, PageError::Rows { found: 0, .. })));
    assert!(matches!(number("tflops who=fa2 mask=full"), (2, PageError::Value { .. })));
    assert!(matches!(number("mask who=fa1"), (2, PageError::Value { .. })));
    assert!(matches!(number("seconds who=fa1"), (2, PageError::UnknownColumn { .. })));
    assert!(matches!(number("ms name=fa1"), (2, PageError::UnknownColumn { .. })));
    assert!(matches!(number("ms fa1"), (2, PageError::Arguments { .. })));
    assert!(matches!(number("ms who=\"fa1"), (2, PageError::Arguments { .. })));
    assert!(matches!(error("{{#result gpu.json ms who=fa1}}"), (1, PageError::File { .. })));
    assert!(matches!(
        error("{{#results cpu.json columns=who where mask=window}}"),
        (1, PageError::Rows { found: 0, .. })
    ));
    assert!(matches!(error("{{#results cpu.json columns=who,gbps}}"), (1, PageError::Results { .. })));
    assert!(matches!(error("{{#results cpu.json who,ms}}"), (1, PageError::Arguments { .. })));
}

#[test]
fn a_number_without_its_provenance_is_an_error() {
    assert!(matches!(error("a\n{{#result cpu.json ms who=fa1}}"), (2, PageError::NoProvenance { .. })));
}

#[test]
fn results_must_follow_the_schema() {
    for (found, replaced, wanted) in [
        ("\"ms\": 12.3456", "\"milliseconds\": 12.3456", "row 1 has an unknown column `milliseconds`"),
        ("\"ms\": 12.3456", "\"ms\": null", "row 1: `ms` is null"),
        ("\"commit\"", "\"revision\"", "unknown field `revision`"),
        ("0123abc", "", "`commit` is empty"),
        ("\"cpu\"", "\"processor\"", "neither a cpu nor a gpu"),
    ] {
        let repository = repository(&[("book/results/cpu.json", &RESULTS.replace(found, replaced))]);
        let result = Pages::new(repository.path()).expand("page.md", "{{#provenance cpu.json}}");
        let message = result.unwrap_err().to_string();
        assert!(message.starts_with("page.md, line 1: cpu.json: ") && message.contains(wanted), "{message}");
    }
}

#[test]
fn formulas_become_html_and_mathml() {
    let page =
        expand("Traffic is $\\Theta(N^2 d^2 / M)$.\n\n$$O_i = \\frac{1}{\\ell_i}\n  \\sum_j e^{s_{ij} - m_i} v_j$$\n");
    assert_eq!(page.matches("class=\"katex-display\"").count(), 1, "{page}");
    assert_eq!(page.matches("<math ").count(), 2, "{page}");
    assert!(page.lines().all(|line| !line.contains('$') && !line.starts_with("  ")), "{page}");
    // Markdown would make emphasis of it.
    assert!(!page.contains("O_i") && page.contains("O&#95;i"), "{page}");
}

#[test]
fn formulas_stand_in_tables_and_headings() {
    let page = expand("## The $N^2$ matrix {#matrix}\n\n| $a$ | b |\n|--|--|\n| $x \\mid y$ | $\\lvert z \\rvert$ |\n");
    assert_eq!(page.matches("<math ").count(), 4, "{page}");
    let row = page.lines().last().unwrap();
    assert_eq!(row.matches('|').count(), 3, "{row}");
}

#[test]
fn the_same_page_gives_the_same_bytes() {
    let text =
        "$$\\sqrt{\\frac{a}{b}} \\begin{cases} a & b \\\\ c & d \\end{cases} \\widehat{x} \\left(\\sum_i x_i\\right)$$";
    let first = expand(text);
    for _ in 0..20 {
        assert_eq!(expand(text), first);
    }
}

#[test]
fn dollars_in_code_and_escaped_ones_are_left_alone() {
    for text in [
        "`$x$` and `$$`",
        "```bash\necho $HOME $PATH $$\n```",
        "    indented $x$\n",
        "\\$5 and \\$6",
        "5&#36; and 6&#36;",
    ] {
        assert_eq!(expand(text), text);
    }
}

#[test]
fn a_broken_formula_is_an_error_that_names_it() {
    for (text, line, broken) in [
        ("One\n\ntwo $\\frac{a}$ three", 3, "\\frac{a}"),
        ("$\\undefined x$", 1, "\\undefined x"),
        ("$$\nx^2^3\n$$", 1, "x^2^3"),
    ] {
        match error(text) {
            (at, PageError::Formula { formula, .. }) => assert_eq!((at, &*formula), (line, broken)),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn a_dollar_sign_without_a_partner_is_an_error() {
    for (text, wanted) in [
        ("costs $5", "$5"),
        ("costs \\$5 or $6", "$6"),
        ("$ x $", "$ x $"),
        ("a $$x\n\ny$$ b", "$$x"),
        ("of $\\frac{a}{$ braces", "$\\frac{a}{$ braces"),
    ] {
        match error(text) {
            (1, PageError::StrayDollar { near }) => assert_eq!(near, wanted),
            other => panic!("{text}: {other:?}"),
        }
    }
    let found = error("a\n\n<div>\nhere $x$ is not read\n</div>");
    assert!(matches!(found, (_, PageError::DollarInHtml { .. })), "{found:?}");
}
