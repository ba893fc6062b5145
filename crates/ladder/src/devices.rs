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
    /// A simulated GPU, which runs the same kernels on the CPU and checks what they do: slow, and without a clock
    Sim,
}

/// What a command asks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Results,
    /// Which take a clock.
    Times,
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
        let open = |kind| match kind {
            Kind::Cuda => Device::cuda(0).context("--device cuda"),
            Kind::Sim => Ok(Device::simulated()),
        };
        self.device.map(open).transpose()
    }

    /// Whether one is asked for.
    pub(crate) fn is_some(self) -> bool {
        self.device.is_some()
    }

    /// Whether the device is a simulated one.
    pub(crate) fn is_simulated(self) -> bool {
        self.device == Some(Kind::Sim)
    }

    /// Refuses a device that does not give what is wanted, and the first of these rungs that does not run where it was asked
    /// for.
    pub(crate) fn check(self, names: &[String], want: Want) -> Result<()> {
        if (self.device, want) == (Some(Kind::Sim), Want::Times) {
            bail!("--device sim: found a simulated device, which has no clock, wanted --device cuda");
        }
        let kind = if self.is_simulated() { "sim" } else { "cuda" };
        for name in names {
            match (registry::device_rung(name), self.device, want) {
                (Some(_), None, Want::Times) => bail!("{name} runs on a device: add --device cuda"),
                (Some(_), None, Want::Results) => {
                    bail!("{name} runs on a device: add --device cuda, or --device sim without a GPU")
                }
                (None, Some(_), _) => bail!("{name} runs on the CPU: leave out --device {kind}"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Which rungs have no part in a command that takes all rungs, and why; `None` if all have.
    pub(crate) fn not_run(self, want: Want) -> Option<String> {
        if self.device.is_some() {
            return None;
        }
        let names = names().collect::<Vec<_>>().join(", ");
        Some(match (device::cuda_devices(), want) {
            (Ok(_), Want::Times) => format!("{names} were not run: they need --device cuda."),
            (Ok(_), Want::Results) => format!("{names} were not run: they need --device cuda or --device sim."),
            (Err(missing), Want::Times) => format!("{names} were not run: {missing}; `ladder doctor` says more."),
            (Err(missing), Want::Results) => {
                format!("{names} were not run: {missing}; --device sim runs them on a simulated GPU.")
            }
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
