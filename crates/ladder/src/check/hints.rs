//! The steps of a chapter and their hints, from the file hints.md beside it.

use super::repository::Chapter;
use anyhow::{Context, Result};
use std::fs;

/// One step: a function to write, or the whole rung.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) number: u32,
    pub(crate) title: String,
    /// From the most general to the reference's place.
    pub(crate) hints: Vec<String>,
}

pub(crate) fn read(chapter: &Chapter) -> Result<Vec<Step>> {
    let file = format!("{}/hints.md", chapter.folder);
    let text = fs::read_to_string(chapter.root.join(&file)).with_context(|| file.clone())?;
    Ok(parse(&text))
}

/// Steps are headings `## Step 2: title`, hints the items `1. ...` of a list, over one or more lines.
fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        let heading = line.strip_prefix("## Step ").and_then(|rest| rest.split_once(": "));
        if let Some((number, title)) = heading.and_then(|(number, title)| Some((number.parse().ok()?, title))) {
            steps.push(Step { number, title: title.trim().into(), hints: Vec::new() });
        } else if let Some(step) = steps.last_mut() {
            let item = line.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok());
            match (item, step.hints.last_mut()) {
                (Some((_, first)), _) => step.hints.push(first.trim().into()),
                (None, Some(hint)) if !line.trim().is_empty() => {
                    hint.push(' ');
                    hint.push_str(line.trim());
                }
                _ => {}
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn steps_and_their_hints_are_read() {
        let text =
            "# Chapter\n\nBefore.\n\n## Step 1: fit\n\n1. One\n   line more.\n2. Two.\n\n## Step 2: all\n\n1. Go.\n";
        let step = |number, title: &str, hints: &[&str]| Step {
            number,
            title: title.into(),
            hints: hints.iter().map(|hint| hint.to_string()).collect(),
        };
        assert_eq!(parse(text), [step(1, "fit", &["One line more.", "Two."]), step(2, "all", &["Go."])]);
    }

    #[test]
    fn every_step_of_every_chapter_has_three_hints_and_the_last_names_a_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let chapters = super::super::repository::chapters().unwrap();
        assert!(chapters.len() >= 4);
        for chapter in chapters {
            let steps = read(&chapter).unwrap();
            assert!(steps.len() >= 5, "{}", chapter.folder);
            for (place, step) in steps.iter().enumerate() {
                assert_eq!(step.number as usize, place + 1, "{}: {}", chapter.folder, step.title);
                assert_eq!(step.hints.len(), 3, "{}: {}", chapter.folder, step.title);
                let file = step.hints[2]
                    .split_whitespace()
                    .map(|word| word.trim_matches([';', '.']))
                    .find(|word| word.ends_with(".rs") || word.ends_with(".cu"));
                assert!(file.is_some_and(|file| root.join(file).is_file()), "{}: {}", chapter.folder, step.hints[2]);
            }
        }
    }
}
