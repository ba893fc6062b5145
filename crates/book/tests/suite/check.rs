//! The whole book builds and passes its check, and the check finds what it is there for.

use crate::common::{RESULTS, here, repository, write};
use book::{Book, BookError, FEWEST_WORDS};
use std::fs;
use std::path::Path;

/// A book of two pages: `a.md` with the given text, and `b.md` with a heading to link to.
fn book_of(text: &str) -> tempfile::TempDir {
    let prose = "word ".repeat(FEWEST_WORDS);
    repository(&[
        ("book/book.toml", &fs::read_to_string(here().join("book/book.toml")).unwrap()),
        ("book/theme/house.css", "body { color: red }"),
        ("book/theme/katex/katex.min.css", "@font-face { src: url(fonts/a.woff2) }"),
        ("book/theme/katex/fonts/a.woff2", ""),
        ("book/src/SUMMARY.md", "[A](a.md)\n[B](b.md)\n"),
        ("book/src/a.md", &format!("# A\n\n{prose}\n\n{text}\n")),
        ("book/src/b.md", &format!("# B\n\n{prose}\n\n## Deep in it\n\n{prose}\n")),
        ("book/results/cpu.json", RESULTS),
    ])
}

fn build_and_check(root: &Path) -> Result<Vec<String>, BookError> {
    let (book, output) = (Book::at(root), root.join("out"));
    book.build(&output)?;
    Ok(book.check(&output)?.iter().map(ToString::to_string).collect())
}

/// What the check says of page a.
fn problems(text: &str) -> Vec<String> {
    let problems = build_and_check(book_of(text).path()).unwrap();
    // The first page is the index too, and every page is part of the print page.
    problems.into_iter().filter(|problem| problem.starts_with("a.html")).collect()
}

#[test]
fn this_book_has_no_problem() {
    let output = tempfile::tempdir().unwrap();
    let book = Book::at(here());
    book.build(output.path()).unwrap();
    assert_eq!(book.check(output.path()).unwrap(), []);
}

#[test]
fn good_links_are_no_problem() {
    let text = "[b](b.md), [deep](b.md#deep-in-it), [here](#a), [out](https://example.org/x#y), <me@example.org>";
    assert_eq!(problems(text), [""; 0]);
}

#[test]
fn broken_links_are_found() {
    for (text, wanted) in [
        ("[x](nowhere.md)", "`nowhere.html`: there is no nowhere.html"),
        ("[x](b.md#shallow)", "`b.html#shallow`: b.html has no id `shallow`"),
        ("[x](#shallow)", "`#shallow`: a.html has no id `shallow`"),
        ("[x](/b.html)", "an absolute path"),
        ("[x](../b.html)", "leads out of the book"),
        ("[x](file:///b.html)", "wanted a page of the book"),
        ("![x](missing.png)", "there is no missing.png"),
        ("<p id=\"a\">x</p>", "the id `a` stands twice"),
    ] {
        let found = problems(text);
        assert!(!found.is_empty() && found.iter().all(|found| found.contains(wanted)), "{text}: {found:?}");
    }
}

#[test]
fn what_comes_from_elsewhere_is_found() {
    for text in [
        "<script src=\"https://example.org/x.js\"></script>",
        "<link rel=\"stylesheet\" href=\"//example.org/x.css\">",
        "![x](http://example.org/x.png)",
        "<img alt=\"x\" src=\"b.html\" srcset=\"https://example.org/x.png 2x\">",
        "<p style=\"background: url('https://example.org/x.png')\">x</p>",
        "<svg viewBox=\"0 0 1 1\"><image href=\"https://example.org/x.png\"/></svg>",
    ] {
        let (found, wanted) = (problems(text), "loaded from elsewhere");
        assert!(!found.is_empty() && found.iter().all(|found| found.contains(wanted)), "{text}: {found:?}");
    }
    for css in ["a { background: url(https://example.org/a.png) }", "@import \"https://example.org/a.css\";"] {
        let repository = book_of("");
        write(repository.path(), "book/theme/house.css", css);
        let found = build_and_check(repository.path()).unwrap();
        assert!(found.len() == 1 && found[0].starts_with("theme/house.css: url(https://example.org"), "{found:?}");
    }
}

#[test]
fn stubs_and_pages_out_of_the_summary_are_found() {
    let repository = book_of("");
    let code = format!("# A\n\n```text\n{}\n```\n", "word ".repeat(FEWEST_WORDS));
    write(repository.path(), "book/src/a.md", &code);
    write(repository.path(), "book/src/lost.md", "# Lost\n");
    write(repository.path(), "book/results/bad.json", "{}");
    let found = build_and_check(repository.path()).unwrap();
    for wanted in ["a.html: a stub of 1 words", "src/lost.md: missing in SUMMARY.md", "results/bad.json: missing field"]
    {
        assert!(found.iter().any(|problem| problem.starts_with(wanted)), "{wanted}: {found:?}");
    }
}

#[test]
fn a_page_that_cannot_be_built_names_page_and_line() {
    let error = build_and_check(book_of("$\\frac{a}$").path()).unwrap_err();
    assert!(error.to_string().starts_with("a.md, line 5: formula `\\frac{a}`: "), "{error}");
    let error = build_and_check(book_of("{{#code src/lib.rs:moved}}").path()).unwrap_err();
    assert!(error.to_string().starts_with("a.md, line 5: src/lib.rs: "), "{error}");
}

#[test]
fn an_entry_without_its_page_does_not_build() {
    let repository = book_of("");
    write(repository.path(), "book/src/SUMMARY.md", "[A](a.md)\n[B](b.md)\n[C](c.md)\n");
    let error = build_and_check(repository.path()).unwrap_err();
    assert!(error.to_string().contains("c.md"), "{error}");
}

#[test]
fn what_mdbook_only_warns_of_is_an_error() {
    let error = build_and_check(book_of("<div class=\"predict\">\n\nNever closed.").path()).unwrap_err();
    assert!(matches!(&error, BookError::Warned { first, .. } if first.contains("<div>")), "{error}");
}

/// Code that gives an exercise away stands in a box that opens on a click, and is read as Markdown there.
#[test]
fn code_in_a_box_is_rendered() {
    let text = "<details><summary>The code</summary>\n\n{{#code src/lib.rs:f}}\n\n</details>";
    let repository = book_of(text);
    write(repository.path(), "src/lib.rs", "// ANCHOR: f\nfn f() {}\n// ANCHOR_END: f\n");
    assert_eq!(build_and_check(repository.path()).unwrap(), [""; 0]);
    let page = fs::read_to_string(repository.path().join("out/a.html")).unwrap();
    let (_, inside) = page.split_once("<summary>The code</summary>").unwrap();
    let (inside, _) = inside.split_once("</details>").unwrap();
    assert!(inside.contains("<code class=\"language-rust\">fn f() {}"), "{inside}");
}

/// The first build takes minutes: cargo's progress is to be seen.
#[test]
fn the_alias_is_not_quiet() {
    let config = fs::read_to_string(here().join(".cargo/config.toml")).unwrap();
    assert!(config.contains("book = \"run --release --package book --\""), "{config}");
}

/// A crate that is missing there would be left out by `cargo test`.
#[test]
fn every_crate_but_this_one_is_a_default_member() {
    let manifest = fs::read_to_string(here().join("Cargo.toml")).unwrap();
    let (_, rest) = manifest.split_once("default-members = [").unwrap();
    let (members, _) = rest.split_once(']').unwrap();
    for entry in fs::read_dir(here().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        // A crate with a lock file of its own is no part of the workspace.
        if folder.join("Cargo.toml").exists() && !folder.join("Cargo.lock").exists() {
            assert_eq!(members.contains(&format!("\"crates/{name}\"")), name != "book", "{name}");
        }
    }
}
