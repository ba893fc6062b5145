//! A trace: who asks for what, and when. One request a line, in JSON:
//!
//! | field | what it is |
//! |---|---|
//! | `id` | its name, one no other line has |
//! | `arrival` | the step at which it joins the queue |
//! | `prefix` | `{"name": ..., "tokens": n}`: the prompt begins with the first n tokens of the text of that name |
//! | `prompt` | then come these token numbers |
//! | `own` | then so many tokens that no other request has |
//! | `generate` | how many tokens its answer takes |
//! | `at_most` | how long the answer might have become, for all that a server knows (if left out: `generate`) |
//!
//! Of `prefix`, `prompt` and `own` any may be left out, but not all. So a trace of long prompts stays small. Lines are read one
//! at a time, and every number is checked before anything of its size is made.

use super::model::{VOCABULARY, mix};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::{self, BufRead, Read};
use std::ops::RangeInclusive;
use thiserror::Error;

/// Bytes of a line.
const LINE: u64 = 1 << 17;

/// The last step at which a request may arrive.
const LAST_ARRIVAL: u64 = 1_000_000;

/// Tokens of one request, its prompt and the longest answer together.
const LENGTH: u64 = 2048;

/// Tokens of all requests together.
const TOTAL: u64 = 1 << 15;

/// Pairs of a query and a key that a calm run attends: some ten seconds.
const PAIRS: u64 = 1 << 23;

/// Letters of an id, or of a prefix's name.
const NAME: u64 = 64;

/// A request, its prompt written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) arrival: usize,
    /// At least one token.
    pub(crate) prompt: Vec<u32>,
    /// Tokens of the answer, at least 1.
    pub(crate) generate: usize,
    /// Tokens that the answer might have had, at least `generate`.
    pub(crate) at_most: usize,
}

impl Request {
    /// Tokens of the prompt and of the longest answer.
    pub(crate) fn longest(&self) -> usize {
        self.prompt.len() + self.at_most
    }
}

/// What is wrong with a trace, and where.
#[derive(Debug, Error)]
pub(crate) enum TraceError {
    #[error("line {line}: {error}")]
    Read { line: usize, error: io::Error },
    #[error("line {line}: found more than {LINE} bytes, wanted at most so many")]
    Long { line: usize },
    #[error("line {line}, column {column}: {what}")]
    Form { line: usize, column: usize, what: String },
    #[error("line {line}: {name}: found {found}, wanted {} to {}", .wanted.start(), .wanted.end())]
    Value { line: usize, name: &'static str, found: u64, wanted: RangeInclusive<u64> },
    #[error("line {line}: id: found {id:?} of line {first} again, wanted another")]
    Repeated { line: usize, id: String, first: usize },
    #[error("found no line, wanted a request on each")]
    Empty,
}

impl TraceError {
    fn form(line: usize, error: &serde_json::Error) -> Self {
        // Of its own place the parser knows the column alone: it was given one line.
        let (column, what) = (error.column(), error.to_string());
        let place = format!(" at line {} column {column}", error.line());
        TraceError::Form { line, column, what: what.trim_end_matches(&place).into() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    arrival: u64,
    prefix: Option<Prefix>,
    #[serde(default)]
    prompt: Vec<u32>,
    #[serde(default)]
    own: u64,
    generate: u64,
    at_most: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prefix {
    name: String,
    tokens: u64,
}

/// The requests of a trace, in order of arrival; of those that arrive together, in order of their lines.
///
/// # Errors
/// [`TraceError`] names the first line that is no request, or with which the trace becomes too large.
pub(crate) fn read(mut lines: impl BufRead) -> Result<Vec<Request>, TraceError> {
    let (mut requests, mut known, mut total, mut pairs) = (Vec::new(), HashMap::new(), 0, 0);
    for line in 1.. {
        let mut bytes = Vec::new();
        let read = lines.by_ref().take(LINE + 1).read_until(b'\n', &mut bytes);
        if read.map_err(|error| TraceError::Read { line, error })? == 0 {
            break;
        }
        if bytes.len() as u64 > LINE {
            return Err(TraceError::Long { line });
        }
        let form: Line = serde_json::from_slice(&bytes).map_err(|error| TraceError::form(line, &error))?;
        if let Some(first) = known.insert(form.id.clone(), line) {
            return Err(TraceError::Repeated { line, id: form.id, first });
        }
        let tokens = form.check(line)?;
        (total, pairs) = (total + tokens, pairs + tokens * tokens / 2);
        within(line, "tokens of the trace so far", total, 0..=TOTAL)?;
        within(line, "pairs of query and key of the trace so far", pairs, 0..=PAIRS)?;
        requests.push(form.request());
    }
    requests.sort_by_key(|request| request.arrival);
    if requests.is_empty() { Err(TraceError::Empty) } else { Ok(requests) }
}

impl Line {
    /// Its tokens, if every number is in its range.
    fn check(&self, line: usize) -> Result<u64, TraceError> {
        let (name, tokens) = self.prefix.as_ref().map_or(("-", 0), |prefix| (prefix.name.as_str(), prefix.tokens));
        let prompt = tokens.saturating_add(self.prompt.len() as u64).saturating_add(self.own);
        let at_most = self.at_most.unwrap_or(self.generate);
        within(line, "letters of id", self.id.chars().count() as u64, 1..=NAME)?;
        within(line, "letters of prefix.name", name.chars().count() as u64, 1..=NAME)?;
        within(line, "arrival", self.arrival, 0..=LAST_ARRIVAL)?;
        within(line, "tokens of the prompt", prompt, 1..=LENGTH - 1)?;
        within(line, "generate", self.generate, 1..=LENGTH - prompt)?;
        within(line, "at_most", at_most, self.generate..=LENGTH - prompt)?;
        Ok(prompt + self.generate)
    }

    /// The request of a checked line.
    fn request(self) -> Request {
        let prefix = self.prefix.iter().flat_map(|prefix| text("prefix", &prefix.name, prefix.tokens));
        let own = text("own", &self.id, self.own);
        Request {
            prompt: prefix.chain(self.prompt.iter().copied()).chain(own).collect(),
            id: self.id,
            arrival: self.arrival as usize,
            generate: self.generate as usize,
            at_most: self.at_most.unwrap_or(self.generate) as usize,
        }
    }
}

fn within(line: usize, name: &'static str, found: u64, wanted: RangeInclusive<u64>) -> Result<(), TraceError> {
    if wanted.contains(&found) { Ok(()) } else { Err(TraceError::Value { line, name, found, wanted }) }
}

/// The first tokens of the text that has this name among its kind.
fn text(kind: &str, name: &str, tokens: u64) -> impl Iterator<Item = u32> + use<> {
    let seed = kind.bytes().chain([0]).chain(name.bytes()).fold(0, |seed, byte| mix(seed ^ u64::from(byte)));
    (0..tokens).map(move |place| (mix(seed.wrapping_add(place)) % VOCABULARY) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: impl AsRef<[u8]>) -> String {
        read(text.as_ref()).unwrap_err().to_string()
    }

    #[test]
    fn a_line_becomes_a_request() {
        let text = "{\"id\":\"b\",\"arrival\":3,\"prompt\":[7,8],\"generate\":2}\n\
                    {\"id\":\"a\",\"arrival\":0,\"prefix\":{\"name\":\"p\",\"tokens\":3},\"own\":2,\"generate\":1,\"at_most\":9}\n\
                    {\"id\":\"c\",\"arrival\":3,\"prefix\":{\"name\":\"p\",\"tokens\":4},\"prompt\":[1],\"generate\":1}";
        let requests = read(text.as_bytes()).unwrap();
        assert_eq!(requests.iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        let [a, b, c] = &requests[..] else { unreachable!() };
        assert_eq!((b.arrival, b.prompt.as_slice(), b.generate, b.at_most), (3, &[7, 8][..], 2, 2));
        assert_eq!((a.prompt.len(), a.longest(), c.prompt.len()), (5, 14, 5));
        // Texts of one name begin alike whatever their length; what is a request's own is no one else's.
        assert_eq!(a.prompt[..3], c.prompt[..3]);
        assert_ne!(a.prompt[3], c.prompt[3]);
        assert_ne!(text_of("prefix", "x"), text_of("own", "x"));
        assert_ne!(text_of("own", "ab"), text_of("own", "ba"));
    }

    fn text_of(kind: &str, name: &str) -> Vec<u32> {
        text(kind, name, 8).collect()
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_line() {
        let good = r#"{"id":"a","arrival":0,"own":3,"generate":2}"#;
        for (bad, wanted) in [
            ("", "EOF"),
            ("[]", "line 2"),
            ("{", "EOF"),
            ("\u{0}", "expected value"),
            (r#"{"id":"b","arrival":0,"own":3}"#, "missing field `generate`"),
            (r#"{"id":"b","arrival":0,"own":3,"generate":2,"owner":1}"#, "unknown field `owner`"),
            (r#"{"id":"b","id":"b","arrival":0,"own":3,"generate":2}"#, "duplicate field `id`"),
            (r#"{"id":"b","arrival":0,"own":-3,"generate":2}"#, "integer `-3`"),
            (r#"{"id":"b","arrival":0,"own":1e18,"generate":2}"#, "floating point `"),
            (r#"{"id":"b","arrival":0,"own":2.5,"generate":2}"#, "floating point `2.5`"),
            (r#"{"id":"b","arrival":0,"prompt":[4294967296],"generate":2}"#, "integer `4294967296`"),
            (r#"{"id":"b","arrival":0,"generate":2}"#, "tokens of the prompt: found 0, wanted 1 to 2047"),
            (
                r#"{"id":"b","arrival":0,"own":18446744073709551615,"prompt":[1],"generate":2}"#,
                "tokens of the prompt: found 18446744073709551615, wanted 1 to 2047",
            ),
            (r#"{"id":"b","arrival":0,"own":3,"generate":0}"#, "generate: found 0, wanted 1 to 2045"),
            (r#"{"id":"b","arrival":0,"own":3,"generate":1000000000000000000}"#, "wanted 1 to 2045"),
            (r#"{"id":"b","arrival":0,"own":3,"generate":4,"at_most":3}"#, "at_most: found 3, wanted 4 to 2045"),
            (r#"{"id":"b","arrival":0,"own":3,"generate":4,"at_most":2046}"#, "at_most: found 2046"),
            (r#"{"id":"b","arrival":1000001,"own":3,"generate":4}"#, "arrival: found 1000001, wanted 0 to 1000000"),
            (r#"{"id":"","arrival":0,"own":3,"generate":4}"#, "letters of id: found 0, wanted 1 to 64"),
            (
                r#"{"id":"b","arrival":0,"prefix":{"name":"","tokens":1},"generate":4}"#,
                "letters of prefix.name: found 0",
            ),
            (r#"{"id":"a","arrival":0,"own":3,"generate":4}"#, r#"id: found "a" of line 1 again"#),
        ] {
            let refusal = refusal(format!("{good}\n{bad}\n"));
            assert!(refusal.starts_with("line 2") && !refusal.contains("line 1 column"), "{bad}: {refusal}");
            assert!(refusal.contains(wanted), "{bad}: {refusal}");
        }
        assert_eq!(refusal(""), "found no line, wanted a request on each");
        assert!(refusal([0xFF, 0xFE]).starts_with("line 1, column 1: "));
    }

    #[test]
    fn a_trace_is_bounded_in_bytes_and_in_tokens() {
        // A line that never ends, and lines that never end.
        let endless = io::BufReader::new(io::repeat(b' '));
        assert_eq!(
            read(endless).unwrap_err().to_string(),
            "line 1: found more than 131072 bytes, wanted at most so many"
        );
        assert!(read(io::BufReader::new(io::repeat(b'\n'))).is_err());
        let lines = |own: u32, count: u32| {
            let line = |id| format!("{{\"id\":\"{id}\",\"arrival\":0,\"own\":{own},\"generate\":56}}\n");
            (0..count).map(line).collect::<String>()
        };
        assert_eq!(read(lines(200, 128).as_bytes()).unwrap().len(), 128);
        assert_eq!(refusal(lines(200, 129)), "line 129: tokens of the trace so far: found 33024, wanted 0 to 32768");
        assert_eq!(read(lines(1992, 4).as_bytes()).unwrap().len(), 4);
        let pairs = "line 5: pairs of query and key of the trace so far: found 10485760, wanted 0 to 8388608";
        assert_eq!(refusal(lines(1992, 5)), pairs);
    }
}
