//! Which rungs run where, and the device that a command line asks for.

use anyhow::{Context, Result, bail};
use attention::Attention;
use clap::{Args, ValueEnum};
use device::Device;
use ladder::registry::{self, DEVICE_RUNGS, ORACLE, RUNGS, Settings};

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The first GPU that CUDA shows
    Cuda,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DeviceArgs {
    /// Run on this device the rungs that are made for it
    #[arg(long, value_enum)]
    device: Option<Kind>,
}

impl DeviceArgs {
    /// The device, if one is asked for.
    pub(crate) fn open(self) -> Result<Option<Device>> {
        let open = |Kind::Cuda| Device::cuda(0).context("--device cuda");
        self.device.map(open).transpose()
    }

    /// Refuses the first of these rungs that does not run where it was asked for.
    pub(crate) fn check(self, names: &[String]) -> Result<()> {
        for name in names {
            match (registry::device_rung(name), self.device) {
                (Some(_), None) => bail!("{name} runs on a device: add --device cuda"),
                (None, Some(Kind::Cuda)) => bail!("{name} runs on the CPU: leave out --device cuda"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Which rungs have no part in a command that takes all rungs, and why; `None` if all have.
    pub(crate) fn not_run(self) -> Option<String> {
        if self.device.is_some() {
            return None;
        }
        let names = names().collect::<Vec<_>>().join(", ");
        Some(match device::cuda_devices() {
            Ok(_) => format!("{names} were not run: they need --device cuda."),
            Err(missing) => format!("{names} were not run: {missing}; `ladder doctor` says more."),
        })
    }
}

/// The names of the rungs that run on a device.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    DEVICE_RUNGS.iter().map(|rung| rung.name)
}

/// The names of all rungs and of the oracle, wherever they run.
pub(crate) fn all_names() -> impl Iterator<Item = &'static str> {
    RUNGS.iter().map(|rung| rung.name).chain([ORACLE]).chain(names())
}

/// The implementation of that name: on the device, if there is one.
pub(crate) fn attention(name: &str, settings: Settings, device: Option<&Device>) -> Result<Box<dyn Attention>> {
    let found: Option<Box<dyn Attention>> = match (device, registry::device_rung(name)) {
        (Some(device), Some(rung)) => Some(Box::new(rung.build(device)?)),
        _ => registry::attention(name, settings),
    };
    found.with_context(|| format!("--rung: found {name}, wanted a rung"))
}
