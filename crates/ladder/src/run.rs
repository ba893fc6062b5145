//! `ladder run`: one rung on tensors from a file.

use crate::cli::{self, RunArgs};
use crate::devices::{self, Want};
use crate::format;
use crate::input::{Input, check_problem_memory};
use anyhow::{Context, Result};
use attention::{DType, Output, Tensor};
use device::Device;
use ladder::registry::RUNGS;
use ndarray::Axis;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Instant;
use testkit::files::{FileTensor, write_safetensors};

pub(crate) fn main(args: &RunArgs) -> Result<bool> {
    args.device.check(std::slice::from_ref(&args.rung), Want::Results)?;
    let device = args.device.open()?;
    let input = Input::read(&args.input, args.mask, args.score)?;
    let problem = input.owned.try_problem().with_context(|| input.label.clone())?;
    let attention = devices::attention(&args.rung, args.machine.settings(), device.as_ref())?;
    if attention.name() == RUNGS[0].name {
        // The one that takes more memory than O(N).
        check_problem_memory(&problem)?;
    }
    let start = Instant::now();
    let mut output = attention.forward(&problem).context(attention.name())?;
    let seconds = start.elapsed().as_secs_f64();
    if input.unbatched {
        output = without_batch_axis(output);
    }
    let done = Done { args, input: &input, dtype: problem.dtype(), device: device.as_ref(), seconds };
    let summary = if args.json { done.json(&output).to_string() } else { done.text(&output) };
    if let Some(path) = &args.output {
        write(path, output)?;
    }
    cli::print(&summary)?;
    Ok(true)
}

/// What was run, where, and for how long.
struct Done<'a> {
    args: &'a RunArgs,
    input: &'a Input,
    dtype: DType,
    device: Option<&'a Device>,
    seconds: f64,
}

impl Done<'_> {
    fn json(&self, output: &Output) -> Value {
        json!({
            "rung": self.args.rung,
            "input": self.input.label,
            "ignored": self.input.ignored,
            "output": self.args.output.as_ref().map(|path| path.display().to_string()),
            "dtype": self.dtype.to_string(),
            "o_shape": output.o.shape(),
            "lse_shape": output.lse.shape(),
            "mask": self.args.mask.to_string(),
            "threads": self.device.is_none().then(rayon::current_num_threads),
            "device": self.device.map(Device::name),
            "seconds": self.seconds,
            "empty_rows": empty_rows(output),
            "not_finite": not_finite(output),
        })
    }

    fn text(&self, output: &Output) -> String {
        let args = self.args;
        let ignored = match self.input.ignored.join(", ") {
            names if names.is_empty() => names,
            names => format!("\nnot used: {names}"),
        };
        let written = args.output.as_ref().map_or("not written".into(), |path| format!("in {}", path.display()));
        let on_cpu = || format!("in {} threads", rayon::current_num_threads());
        format!(
            "{} on {}: {}, mask {}, {} {}\no {:?} and lse {:?} {written}; {} rows see no key, \
             {} elements of o are not finite{ignored}",
            args.rung,
            self.input.label,
            self.dtype,
            args.mask,
            format::seconds(self.seconds),
            self.device.map_or_else(on_cpu, |device| format!("on {}", device.name())),
            output.o.shape(),
            output.lse.shape(),
            empty_rows(output),
            not_finite(output),
        )
    }
}

fn empty_rows(output: &Output) -> usize {
    output.lse.iter().filter(|lse| **lse == f32::NEG_INFINITY).count()
}

fn not_finite(output: &Output) -> usize {
    output.o.view().to_f64().iter().filter(|o| !o.is_finite()).count()
}

/// The same output of a batch of one, without its first axis.
fn without_batch_axis(output: Output) -> Output {
    let o = match output.o {
        Tensor::F32(o) => o.index_axis_move(Axis(0), 0).into(),
        Tensor::F64(o) => o.index_axis_move(Axis(0), 0).into(),
        Tensor::F16(o) => o.index_axis_move(Axis(0), 0).into(),
        Tensor::Bf16(o) => o.index_axis_move(Axis(0), 0).into(),
        Tensor::E4m3(_) => unreachable!("an output is never E4m3"),
    };
    Output { o, lse: output.lse.index_axis_move(Axis(0), 0) }
}

fn write(path: &Path, output: Output) -> Result<()> {
    let tensors = BTreeMap::from([
        ("o".to_string(), FileTensor::Float(output.o)),
        ("lse".to_string(), FileTensor::from(Tensor::F32(output.lse))),
    ]);
    Ok(write_safetensors(path, &tensors, &HashMap::new())?)
}
