//! `ladder sim`: a rung of the GPU on a simulated one, in one order of its warps after the other.
//!
//! Each order is a run on a device of its own, so that what a seed shows it shows again. What a kernel does wrong ends with the
//! report of the simulator; what it computes is held against the oracle, and all orders against the first, bit for bit.

mod counts;
mod schedules;

use crate::cli::{self, SimArgs};
use crate::input::{Input, check_problem_memory};
use anyhow::{Context, Result, anyhow, ensure};
use attention::{Problem, Traffic};
use counts::Formula;
use cuda_fa2::{Plan, Shape, Target};
use device::Device;
use ladder::bench;
use ladder::registry::{self, DeviceRung, Settings};
use schedules::{Failure, Schedules, Simulated};
use serde_json::{Value, json};

pub(crate) fn main(args: &SimArgs) -> Result<bool> {
    let rung = registry::device_rung(&args.rung).with_context(|| format!("found {}, wanted a rung", args.rung))?;
    let most = u64::MAX - (args.schedules as u64 - 1);
    ensure!(args.seed <= most, "--seed: found {}, wanted at most {most} with so many --schedules", args.seed);
    let step = args.step.map(|number| rung.step(number)).transpose().map_err(|error| anyhow!("--{error}"))?;
    // F32, where the rung takes it.
    let input = Input::from_args(&args.problem, true, rung.takes.dtypes[0])?;
    let problem = input.owned.try_problem().with_context(|| input.label.clone())?;
    check_problem_memory(&problem)?;
    let target = Target::from(Device::simulated().attributes());
    let plan = rung.plan(&Shape::from(&problem), problem.options(), target)?;
    let seeds = Schedules { first: args.seed, count: args.schedules };
    let bar = cli::progress(args.schedules)?;
    let build = |device: &Device| {
        let rung = rung.build(device)?;
        Ok(if let Some((place, _)) = step { rung.at_step(place) } else { rung })
    };
    let simulated = schedules::run(&problem, seeds, build, &bar)?;
    bar.finish_and_clear();
    let formula = formula(rung, &problem, target.shared_per_block);
    let done = Done {
        args,
        step: step.map(|(_, step)| step.name),
        used: input.describe(&problem),
        plan,
        rung,
        formula,
        simulated,
    };
    cli::print(&if args.json { done.json().to_string() } else { done.text() })?;
    if let Err(failure) = &done.simulated {
        // The report is printed already.
        let what = failure.what.lines().next().unwrap_or_default();
        cli::complain(&format!("failed: {} under seed {}: {what}", args.rung, failure.seed));
    }
    Ok(done.simulated.is_ok())
}

/// What can be said of a call beforehand.
fn formula(rung: &DeviceRung, problem: &Problem, shared: usize) -> Formula {
    let counts = registry::rung(rung.on_cpu).and_then(|rung| rung.counts());
    Formula {
        flops: bench::flops(problem),
        moved: counts.and_then(|counts| counts.traffic(problem, Settings { fast_memory: shared }).ok()),
        compulsory: Traffic::compulsory(problem),
    }
}

/// What was asked for, and what came of it.
struct Done<'a> {
    args: &'a SimArgs,
    /// The step's name, if one was asked for.
    step: Option<&'static str>,
    /// What input was used, for people.
    used: String,
    plan: Plan,
    rung: &'static DeviceRung,
    formula: Formula,
    simulated: Result<Simulated, Failure>,
}

impl Done<'_> {
    fn text(&self) -> String {
        let step = self.step.map_or(String::new(), |step| format!(", step {step}"));
        let head = format!("{}{step} on a simulated GPU. {}", self.args.rung, self.used);
        let tail = match &self.simulated {
            Ok(simulated) => format!("{}\n{}", self.counts(simulated), self.verdict(simulated)),
            Err(failure) => {
                let passed = failure.seed - self.args.seed;
                let before = if passed > 0 { format!(" ({passed} before it passed)") } else { String::new() };
                let again = repeat(self.args, failure.seed);
                format!("seed {}{before}: {}\nThe same again: {again}", failure.seed, failure.what)
            }
        };
        format!("{head}\n{tail}")
    }

    fn counts(&self, simulated: &Simulated) -> String {
        let fast_memory = Device::simulated().attributes().shared_per_block;
        let table = counts::table(&simulated.counters, &self.formula);
        let instructions = self.plan.launches().filter_map(|(kernel, grid, block)| {
            let (_, counters) = simulated.counters.iter().find(|(name, _)| name == kernel)?;
            // A step may have fewer threads than the kernel as it is.
            Some(counts::instructions(kernel, grid, Some(block).filter(|_| self.step.is_none()), counters))
        });
        let instructions: Vec<String> = instructions.collect();
        let legend = counts::legend(&self.formula, self.rung.on_cpu, fast_memory);
        format!("{table}\n{}\n{legend}", instructions.join("\n"))
    }

    fn verdict(&self, simulated: &Simulated) -> String {
        let orders = match self.args.schedules {
            1 => format!("seed {}: no fault", self.args.seed),
            count => {
                format!(
                    "seeds {} to {}: no fault, and the same bits",
                    self.args.seed,
                    self.args.seed + count as u64 - 1
                )
            }
        };
        format!("{orders}; error/tol against the f64 oracle {:.3}.", simulated.verdict.ratio())
    }

    fn json(&self) -> Value {
        let mut value = json!({
            "rung": self.args.rung,
            "step": self.step,
            "input": self.used,
            "seed": self.args.seed,
            "schedules": self.args.schedules,
            "passed": self.simulated.is_ok(),
            "formula": self.formula.json(),
        });
        match &self.simulated {
            Ok(simulated) => {
                value["error_over_tol"] = json!(simulated.verdict.ratio());
                value["o_error_over_tol"] = json!(simulated.verdict.o.ratio);
                value["lse_error_over_tol"] = json!(simulated.verdict.lse.ratio);
                let counters = simulated.counters.iter();
                value["kernels"] = counters.map(|(kernel, counters)| counts::json(kernel, counters)).collect();
            }
            Err(Failure { seed, what }) => {
                value["failure"] = json!({ "seed": seed, "what": what, "repeat": repeat(self.args, *seed) });
            }
        }
        value
    }
}

/// The command that runs one of the orders again.
fn repeat(args: &SimArgs, seed: u64) -> String {
    let problem = &args.problem;
    let shape = problem.shape;
    let mut words = vec!["ladder".into(), "sim".into(), args.rung.clone(), "--seed".into(), seed.to_string()];
    let mut add = |name: &str, value: Option<String>| words.extend(value.map(|value| format!("--{name}={value}")));
    let number = |number: Option<usize>| number.map(|number| number.to_string());
    add("step", args.step.map(|number| number.to_string()));
    add("n", number(shape.n));
    add("d", number(shape.d));
    add("heads", number(shape.heads));
    add("kv-heads", number(shape.kv_heads));
    add("batch", number(shape.batch));
    add("input", problem.input.as_ref().map(|path| path.display().to_string()));
    add("mask", problem.mask.map(|mask| mask.to_string()));
    add("scale", problem.score.scale.map(|scale| scale.to_string()));
    add("softcap", Some(problem.score.softcap).filter(|&cap| cap != 0.0).map(|cap| cap.to_string()));
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+".contains(c);
    if word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sim_args;
    use testkit::problems::Spec;

    const TARGET: Target = Target { shared_per_block: 1 << 16, multiprocessors: 1, ..Target::H200 };

    #[test]
    fn a_failure_is_told_with_its_seed_and_the_command_that_repeats_it() {
        let args = sim_args(&["cuda-fa1", "--n=3", "--d=4", "--seed=5", "--schedules=10"]);
        let (owned, rung) = (Spec::plain(3, 3, 4).build(), registry::device_rung("cuda-fa1").unwrap());
        let problem = owned.problem();
        let done = |seed| Done {
            step: None,
            args: &args,
            used: "some numbers".into(),
            plan: rung.plan(&Shape::from(&problem), problem.options(), TARGET).unwrap(),
            rung,
            formula: formula(rung, &problem, TARGET.shared_per_block),
            simulated: Err(Failure { seed, what: "fa1: race: it was\n  at line 3".into() }),
        };
        let head = "cuda-fa1 on a simulated GPU. some numbers\n";
        let told = |seed, before: &str| {
            format!(
                "{head}seed {seed}{before}: fa1: race: it was\n  at line 3\nThe same again: {}",
                repeat(&args, seed)
            )
        };
        assert_eq!(done(5).text(), told(5, ""));
        assert_eq!(done(7).text(), told(7, " (2 before it passed)"));
        let json = done(7).json();
        let failure = json!({ "seed": 7, "what": "fa1: race: it was\n  at line 3", "repeat": repeat(&args, 7) });
        assert_eq!((&json["passed"], &json["failure"], &json["kernels"]), (&false.into(), &failure, &Value::Null));
        assert_eq!(repeat(&args, 7), "ladder sim cuda-fa1 --seed 7 --n=3 --d=4");
    }

    #[test]
    fn a_seed_runs_again_by_the_command_that_is_printed() {
        let told = |words: &[&str], seed| repeat(&sim_args(words), seed);
        assert_eq!(told(&["cuda-fa1", "--schedules", "9"], 7), "ladder sim cuda-fa1 --seed 7");
        let shape = ["--n=9", "--d=8", "--heads=4", "--kv-heads=2", "--batch=3"];
        let rest = ["--mask=window:3,-1", "--scale=-0.25", "--softcap=1.5"];
        let words = [&["cuda-naive"], &shape[..], &rest].concat();
        let wanted = format!("ladder sim cuda-naive --seed 0 {} {}", shape.join(" "), rest.join(" "));
        assert_eq!(told(&words, 0), wanted);
        let file = ["cuda-naive", "--input", "it's here.safetensors"];
        assert_eq!(told(&file, 1), r"ladder sim cuda-naive --seed 1 '--input=it'\''s here.safetensors'");
    }
}
