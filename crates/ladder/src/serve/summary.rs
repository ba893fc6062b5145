//! What three policies did, in one table.

use super::Served;
use super::model::{TOKEN_BYTES, mix};
use super::scheduler::{Outcome, Sample};
use super::trace::Request;
use crate::cli::ServeArgs;
use crate::format;
use comfy_table::Cell;
use serde_json::{Value, json};

pub(crate) struct Summary<'a> {
    /// Where the trace comes from, for people.
    pub(crate) source: String,
    pub(crate) trace: &'a [Request],
    pub(crate) served: &'a [Served],
    /// Tokens compared, or what was not equal.
    pub(crate) equal: &'a Result<usize, String>,
    pub(crate) args: &'a ServeArgs,
}

impl Outcome {
    /// A number of each step, added up.
    fn sum(&self, number: impl Fn(&Sample) -> usize) -> f64 {
        self.samples.iter().map(number).sum::<usize>() as f64
    }

    fn most(&self, number: impl Fn(&Sample) -> usize) -> usize {
        self.samples.iter().map(number).max().unwrap_or(0)
    }

    fn mean_running(&self) -> f64 {
        self.sum(|sample| sample.running) / self.samples.len().max(1) as f64
    }

    /// The part of the held slots that has no token.
    fn waste(&self) -> f64 {
        self.sum(|sample| sample.usage.held - sample.usage.filled) / self.sum(|sample| sample.usage.held).max(1.0)
    }

    /// How many requests hold a held slot.
    fn sharing(&self) -> f64 {
        self.sum(|sample| sample.usage.uses) / self.sum(|sample| sample.usage.held).max(1.0)
    }

    /// A hash of all generated tokens.
    fn answers(&self, trace: &[Request]) -> u64 {
        let answers = trace.iter().zip(&self.requests).map(|(request, done)| &done.tokens[request.prompt.len()..]);
        answers.flatten().fold(0, |hash, &token| mix(hash ^ u64::from(token)))
    }

    fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.asked.max(1) as f64
    }
}

impl Summary<'_> {
    /// The headings of the table.
    pub(crate) const COLUMNS: [&'static str; 14] = [
        "policy",
        "steps",
        "prefill",
        "decode",
        "again",
        "at once\npeak",
        "at once\nmean",
        "held\nat peak",
        "filled\nat peak",
        "waste",
        "sharing",
        "hit\nrate",
        "preempted",
        "refused",
    ];

    /// The cells of the table, a row for each policy.
    pub(crate) fn cells(&self) -> Vec<Vec<String>> {
        self.served.iter().map(cells).collect()
    }

    /// Bytes of the memory.
    pub(crate) fn bytes(&self) -> usize {
        self.args.blocks * self.args.page * TOKEN_BYTES
    }

    /// What was served, and in what.
    pub(crate) fn used(&self) -> String {
        let prompts: usize = self.trace.iter().map(|request| request.prompt.len()).sum();
        let generate: usize = self.trace.iter().map(|request| request.generate).sum();
        let ServeArgs { blocks, page, budget, .. } = self.args;
        format!(
            "{}: {} requests, {prompts} tokens of prompts, {generate} to generate; memory {}, {blocks} blocks of {page} slots \
             of {TOKEN_BYTES} B; at most {budget} tokens a step",
            self.source,
            self.trace.len(),
            format::bytes(self.bytes() as f64),
        )
    }

    /// What the columns mean.
    pub(crate) const LEGEND: [&'static str; 3] = [
        "contiguous reserves the longest length that a request may reach; paged takes a block of the same memory when its first \
         token comes; shared finds the full blocks of prompts that began alike.",
        "prefill, decode: tokens of prompts and of answers, computed once; again: once more after a preemption. at once: requests \
         that hold memory in a step. held, filled: memory that is no other's, and with a token in it, at peak.",
        "waste: slots held without a token, of those held, over all steps. sharing: how many requests hold a slot, on average. \
         hit rate: tokens found in the cache at an admission. preempted: times; refused: requests that could never fit.",
    ];

    /// Whether the policies agree, and who was refused: a line each.
    pub(crate) fn verdict(&self) -> Vec<String> {
        let equal = match self.equal {
            Ok(compared) => format!("o of every token is equal bit for bit in all policies: {compared} comparisons."),
            Err(difference) => format!("NOT EQUAL: {difference}."),
        };
        let refused = self.served.iter().filter(|served| !served.outcome.refused.is_empty()).map(|served| {
            let length = |&request: &usize| format!("{:?} ({})", self.trace[request].id, self.trace[request].longest());
            let refused: Vec<String> = served.outcome.refused.iter().map(length).collect();
            format!("refused by {}, with the tokens they may reach: {}.", served.policy, refused.join(", "))
        });
        [equal].into_iter().chain(refused).collect()
    }

    pub(crate) fn text(&self) -> String {
        let rows = self.cells().into_iter().map(|cells| cells.into_iter().map(Cell::new).collect());
        let table = format::table(Self::COLUMNS, rows);
        format!("{}\n{table}\n{}\n{}", self.used(), Self::LEGEND.join("\n"), self.verdict().join("\n"))
    }

    pub(crate) fn json(&self) -> Value {
        let policy = |Served { policy, outcome }: &Served| {
            json!({
                "policy": policy,
                "steps": outcome.samples.len(),
                "computed": outcome.sum(|sample| sample.computed) as usize,
                "prefill": outcome.prefill,
                "decode": outcome.decode,
                "recomputed": outcome.recomputed,
                "running_peak": outcome.most(|sample| sample.running),
                "running_mean": outcome.mean_running(),
                "held_peak_bytes": TOKEN_BYTES * outcome.most(|sample| sample.usage.held),
                "filled_peak_bytes": TOKEN_BYTES * outcome.most(|sample| sample.usage.filled),
                "waste": outcome.waste(),
                "sharing": outcome.sharing(),
                "hit_rate": outcome.hit_rate(),
                "preemptions": outcome.preemptions,
                "refused": outcome.refused.iter().map(|&request| &self.trace[request].id).collect::<Vec<_>>(),
                "answers": format!("{:016x}", outcome.answers(self.trace)),
            })
        };
        json!({
            "trace": self.source,
            "requests": self.trace.len(),
            "blocks": self.args.blocks,
            "page": self.args.page,
            "budget": self.args.budget,
            "memory_bytes": self.bytes(),
            "equal": self.equal.is_ok(),
            "compared": self.equal.as_ref().ok(),
            "policies": self.served.iter().map(policy).collect::<Vec<_>>(),
        })
    }
}

fn cells(Served { policy, outcome }: &Served) -> Vec<String> {
    let bytes = |slots: usize| format::bytes((slots * TOKEN_BYTES) as f64);
    let percent = |part: f64| format!("{:.1}%", 100.0 * part);
    vec![
        policy.to_string(),
        outcome.samples.len().to_string(),
        outcome.prefill.to_string(),
        outcome.decode.to_string(),
        outcome.recomputed.to_string(),
        outcome.most(|sample| sample.running).to_string(),
        format!("{:.1}", outcome.mean_running()),
        bytes(outcome.most(|sample| sample.usage.held)),
        bytes(outcome.most(|sample| sample.usage.filled)),
        percent(outcome.waste()),
        format!("{:.2}", outcome.sharing()),
        percent(outcome.hit_rate()),
        outcome.preemptions.to_string(),
        outcome.refused.len().to_string(),
    ]
}
