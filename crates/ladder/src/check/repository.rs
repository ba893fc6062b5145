//! Where the repository is, and its chapters.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// One chapter's package.
#[derive(Clone, Debug)]
pub(crate) struct Chapter {
    pub(crate) number: u32,
    /// The rung's name, "fa1".
    pub(crate) rung: String,
    /// The package, "chapter-03-fa1".
    pub(crate) package: String,
    /// The folder in the repository, "chapters/03-fa1".
    pub(crate) folder: String,
    /// The repository.
    pub(crate) root: PathBuf,
}

/// The repository that the current folder is in, or else the one that this program was built in.
pub(crate) fn root() -> Result<PathBuf> {
    let here = env::current_dir().context("the current folder")?;
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/ladder is two folders deep");
    let is_root = |folder: &&Path| folder.join("Cargo.toml").is_file() && folder.join("chapters").is_dir();
    let Some(root) = here.ancestors().find(is_root).or(Some(built).filter(is_root)) else {
        bail!("the repository: found no folder with Cargo.toml and chapters at {} or above it", here.display());
    };
    Ok(root.into())
}

/// The chapters of the repository.
pub(crate) fn chapters() -> Result<Vec<Chapter>> {
    let root = root()?;
    let mut chapters = Vec::new();
    for entry in fs::read_dir(root.join("chapters")).context("chapters")? {
        let name = entry.context("chapters")?.file_name().to_string_lossy().into_owned();
        let Some((number, rung)) = name.split_once('-') else { continue };
        let Ok(number) = number.parse() else { continue };
        chapters.push(Chapter {
            number,
            rung: rung.into(),
            package: format!("chapter-{name}"),
            folder: format!("chapters/{name}"),
            root: root.clone(),
        });
    }
    chapters.sort_by_key(|chapter| chapter.number);
    Ok(chapters)
}

impl Chapter {
    /// The learner's file: a kernel, where the chapter has one, or else the library.
    pub(crate) fn source(&self) -> String {
        let file = if self.is_kernel() { "mine.cu" } else { "lib.rs" };
        format!("{}/src/{file}", self.folder)
    }

    /// Whether the learner writes a kernel in CUDA.
    pub(crate) fn is_kernel(&self) -> bool {
        self.root.join(&self.folder).join("src/mine.cu").is_file()
    }

    /// Where the reference is: a kernel beside the chapter's tests, or the rung's crate.
    pub(crate) fn reference(&self) -> String {
        if self.is_kernel() {
            format!("{}/tests/reference.cu", self.folder)
        } else {
            format!("crates/{}/src", self.rung)
        }
    }

    /// The book's page, if it is there.
    pub(crate) fn page(&self) -> Option<String> {
        let page = format!("book/src/{}.md", self.folder.trim_start_matches("chapters/"));
        self.root.join(&page).is_file().then_some(page)
    }

    /// The line of the learner's file where a step is still to be written.
    pub(crate) fn todo_line(&self, step: u32) -> Option<usize> {
        let source = fs::read_to_string(self.root.join(self.source())).ok()?;
        let todo = ["todo!", "TODO"].map(|todo| format!("{todo}(\"step {step},"));
        source.lines().position(|line| todo.iter().any(|todo| line.contains(todo))).map(|line| line + 1)
    }
}
