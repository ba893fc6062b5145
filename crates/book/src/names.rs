//! Names of tests and functions on a page: each must be in the chapters, or in the kernels of the page's chapter.

use crate::PageError;
use crate::directive::AtLine;
use pulldown_cmark::{Event, Parser};
use std::fs;
use std::path::{Path, PathBuf};

/// What the kernels of all chapters share, and their tests.
const SHARED: [&str; 5] = ["kernels/tile", "kernels/ptx", "tests/gpu", "tests/sim", "tests/corpus"];

/// Checks the code spans of `page` that are small words joined by `_`. In the chapter that the page belongs to, or in all of
/// them if it belongs to none, three words or more must be a function, as a test is, and two must at least be there. The
/// kernels of the chapter count as its sources, with what they share with those of others and their tests.
pub(crate) fn check(root: &Path, page: &str, text: &str) -> Result<(), AtLine> {
    let own = format!("chapters/{}", page.trim_end_matches(".md"));
    let folder = if root.join(&own).is_dir() { own } else { "chapters".into() };
    let mut sources = None;
    for (event, place) in Parser::new(text).into_offset_iter() {
        let Event::Code(name) = event else { continue };
        let Some(words) = joined_words(&name) else { continue };
        let sources = sources.get_or_insert_with(|| read(&root.join(&folder)) + &kernels(root, page));
        let there = if words > 2 { sources.contains(&format!("fn {name}(")) } else { has_word(sources, &name) };
        if !there {
            let line = text[..place.start].matches('\n').count() + 1;
            let what = if words > 2 { "test" } else { "name" };
            return Err((line, PageError::Name { name: name.to_string(), what, folder }));
        }
    }
    Ok(())
}

/// How many words are joined in `three_small_words`; none in anything else.
fn joined_words(name: &str) -> Option<usize> {
    let word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let words = name.split('_').count();
    (words > 1 && name.split('_').all(word)).then_some(words)
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

/// The kernels whose number is that of the page, and what comes with them; nothing where there are none.
fn kernels(root: &Path, page: &str) -> String {
    let number = page.split('-').next().unwrap_or_default();
    let files = fs::read_dir(root.join("kernels")).into_iter().flatten().flatten();
    let own = files.filter(|file| file.file_name().to_string_lossy().starts_with(&format!("{number}_")));
    let own: String = own.map(|file| fs::read_to_string(file.path()).unwrap_or_default()).collect();
    if own.is_empty() { own } else { own + &SHARED.map(|folder| read(&root.join(folder))).concat() }
}

/// All sources in Rust and CUDA under `folder`, one after the other; nothing where there are none.
fn read(folder: &Path) -> String {
    let (mut text, mut folders) = (String::new(), vec![PathBuf::from(folder)]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "rs" || extension == "cuh" => {
                    text += &fs::read_to_string(path).unwrap_or_default()
                }
                _ => {}
            }
        }
    }
    text
}
