//! What the check needs to know of a built page: its ids, its references, its words.

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer};
use std::cell::RefCell;

/// One built page.
#[derive(Debug, Default)]
pub(crate) struct Document {
    /// Every `id`, in order; one that stands twice is here twice.
    pub(crate) ids: Vec<String>,
    /// Every attribute that refers to something.
    pub(crate) references: Vec<Reference>,
    /// The text of style elements and style attributes, with its line.
    pub(crate) styles: Vec<(String, u64)>,
    /// Words of prose in `main`; none where the page has no `main`. Code, drawings and formulas do not count.
    pub(crate) words: Option<usize>,
}

/// An attribute such as `href`.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) element: String,
    pub(crate) target: String,
    pub(crate) line: u64,
}

/// Reads a page.
pub(crate) fn read(html: &str) -> Document {
    let input = BufferQueue::default();
    input.push_back(StrTendril::from(html));
    let tokenizer = Tokenizer::new(Sink::default(), Default::default());
    // Scripts are raw text to the sink, so the tokenizer never stops for one.
    let _ = tokenizer.feed(&input);
    tokenizer.end();
    tokenizer.sink.0.into_inner().document
}

#[derive(Default)]
struct State {
    document: Document,
    in_style: bool,
    /// Elements inside one whose text is no prose, that one included: its name, and how deep we are in elements of
    /// that name.
    no_prose: Option<(String, usize)>,
}

#[derive(Default)]
struct Sink(RefCell<State>);

impl TokenSink for Sink {
    type Handle = ();

    fn process_token(&self, token: Token, line: u64) -> TokenSinkResult<()> {
        let mut state = self.0.borrow_mut();
        match token {
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => return state.open(&tag, line),
            Token::TagToken(tag) => state.close(&tag),
            Token::CharacterTokens(text) => state.text(&text, line),
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

impl State {
    fn open(&mut self, tag: &Tag, line: u64) -> TokenSinkResult<()> {
        let element = tag.name.to_string();
        for attribute in &tag.attrs {
            let value = attribute.value.to_string();
            let refer = |target: &str| Reference { element: element.clone(), target: target.trim().into(), line };
            match &*attribute.name.local {
                "id" => self.document.ids.push(value),
                "href" | "xlink:href" | "src" | "poster" | "data" => self.document.references.push(refer(&value)),
                "srcset" => {
                    let urls = value.split(',').filter_map(|candidate| candidate.split_whitespace().next());
                    self.document.references.extend(urls.map(refer));
                }
                "style" => self.document.styles.push((value, line)),
                _ => {}
            }
        }
        if element == "main" {
            self.document.words.get_or_insert(0);
        }
        let formula = tag.attrs.iter().any(|a| &*a.name.local == "class" && a.value.split(' ').any(|c| c == "katex"));
        match &mut self.no_prose {
            Some((name, depth)) if *name == element && !tag.self_closing => *depth += 1,
            None if formula || matches!(&*element, "pre" | "svg" | "script" | "style" | "nav") => {
                self.no_prose = Some((element.clone(), 1));
            }
            _ => {}
        }
        match &*element {
            "script" => TokenSinkResult::RawData(RawKind::ScriptData),
            "style" => {
                self.in_style = true;
                TokenSinkResult::RawData(RawKind::Rawtext)
            }
            _ => TokenSinkResult::Continue,
        }
    }

    fn close(&mut self, tag: &Tag) {
        if &*tag.name == "style" {
            self.in_style = false;
        }
        if let Some((name, depth)) = &mut self.no_prose
            && **name == *tag.name
        {
            *depth -= 1;
            if *depth == 0 {
                self.no_prose = None;
            }
        }
    }

    fn text(&mut self, text: &str, line: u64) {
        if self.in_style {
            self.document.styles.push((text.into(), line));
        } else if let (Some(words), None) = (&mut self.document.words, &self.no_prose) {
            *words += text.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count();
        }
    }
}
