//! Expands the directives and formulas of each page, before mdBook renders it.

use crate::directive::{self, Directive};
use crate::math::Math;
use crate::{BookError, PageError, code, figure, names, results};
use mdbook_driver::book::{Book, BookItem};
use mdbook_driver::errors::Result as MdbookResult;
use mdbook_preprocessor::{Preprocessor, PreprocessorContext};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Expands pages whose code, figures and results lie in one repository.
pub struct Pages {
    root: PathBuf,
    math: Math,
}

impl Pages {
    /// For the repository at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Pages { root: root.into(), math: Math::new() }
    }

    /// The text of a page as mdBook gets it. Errors name `page`.
    pub fn expand(&self, page: &str, text: &str) -> Result<String, BookError> {
        let at = |(line, error)| BookError::Page { page: page.into(), line, error: Box::new(error) };
        names::check(&self.root, page, text).map_err(at)?;
        let text = self.directives(text).map_err(at)?;
        self.math.expand(&text).map_err(at)
    }

    fn directives(&self, text: &str) -> Result<String, (usize, PageError)> {
        let (mut used, mut explained) = (Vec::new(), HashSet::new());
        let expanded = directive::expand(text, |directive| {
            let (text, file) = match directive.name {
                "code" => return code::block(&self.root, directive),
                "figure" => return figure::block(&self.root.join("book/src"), directive),
                "result" => results::result(&self.folder(), directive)?,
                "ratio" => results::ratio(&self.folder(), directive)?,
                "share" => results::share(&self.folder(), directive)?,
                "ceiling" => results::ceiling(&self.folder(), directive)?,
                "results" => results::table(&self.folder(), directive, text, &explained)?,
                _ => results::provenance(&self.folder(), directive, text)?,
            };
            match directive {
                Directive { name: "result" | "ratio" | "share" | "ceiling", line, .. } => used.push((line, file)),
                _ => drop(explained.insert(file)),
            }
            Ok(text)
        })?;
        // A measured number never stands without its machine, date, commit and method.
        match used.into_iter().find(|(_, file)| !explained.contains(file)) {
            Some((line, path)) => Err((line, PageError::NoProvenance { path })),
            None => Ok(expanded),
        }
    }

    fn folder(&self) -> PathBuf {
        self.root.join("book/results")
    }
}

impl Preprocessor for Pages {
    fn name(&self) -> &str {
        "flash-ladder"
    }

    fn run(&self, _: &PreprocessorContext, mut book: Book) -> MdbookResult<Book> {
        let mut first_error = Ok(());
        book.for_each_mut(|item| {
            let BookItem::Chapter(chapter) = item else { return };
            if first_error.is_err() {
                return;
            }
            let page = chapter.source_path.as_deref().unwrap_or(Path::new(&chapter.name)).display().to_string();
            match self.expand(&page, &chapter.content) {
                Ok(text) => chapter.content = text,
                Err(error) => first_error = Err(error),
            }
        });
        first_error?;
        Ok(book)
    }
}
