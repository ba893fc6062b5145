//! A rung that runs on a device: the whole call, with the copies to it and back, and its kernels alone. On a simulated device it
//! runs once.

use super::{Found, Measured, RUNS, Time, judged, timed};
use attention::oracle::Truth;
use attention::{Attention, AttentionError, Problem};
use cuda_fa2::{CudaRung, Shape};
use device::Device;
use indicatif::ProgressBar;
use ladder::bench::{BenchError, Resident};
use ladder::registry::DeviceRung;

pub(super) fn measure_rung(
    rung: &DeviceRung,
    device: &Device,
    problem: &Problem,
    truth: &Truth,
    below: Option<&Found>,
    bar: &ProgressBar,
) -> Result<Measured, AttentionError> {
    let failed = |what: String| AttentionError::Device { rung: rung.name, what };
    let attention = rung.build(device).map_err(|error| failed(error.to_string()))?;
    attention.supports(problem)?;
    let peak_extra = attention.plan(&Shape::from(problem), problem.options())?.workspace_bytes();
    bar.inc(1);

    let output = attention.forward(problem)?;
    let (truth, below) = judged(&attention, problem, &output, truth, below);
    bar.inc(1);
    let measured = Measured { truth, below, time: None, peak_extra, traffic: None };
    if let Device::Simulated(_) = device {
        bar.finish();
        return Ok(measured);
    }
    let time = timed(&attention, problem, output, bar)?;
    let kernels = kernel_ms(&attention, problem).map_err(|error| match error {
        BenchError::Rung { error, .. } => error,
        other => failed(other.to_string()),
    })?;
    Ok(Measured { time: Some(Time { kernel_seconds: Some(kernels / 1e3), ..time }), ..measured })
}

/// The median of some launches on data that is there already, in milliseconds.
fn kernel_ms(rung: &CudaRung, problem: &Problem) -> Result<f64, BenchError> {
    let resident = Resident::new(vec![rung], problem, 1)?;
    let mut times = (0..RUNS).map(|_| resident.once(0)).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}
