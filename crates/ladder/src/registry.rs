//! The rungs in order. A new rung is one more entry of [`RUNGS`], or of [`DEVICE_RUNGS`] if it runs on a GPU.

use attention::oracle::Oracle;
use attention::{
    Attention, AttentionError, DEFAULT_FAST_MEMORY, DType, Mask, NoMeter, Options, Problem, Traffic, TrafficMeter,
};
use cuda_fa2::{Algorithm, CudaRung, Plan, Shape, Step, Target, Tiles};
use device::{Device, DeviceError};
use fa1::Fa1;
use fa2::{Fa2, Fa2Simd};
use mla::MlaAbsorbed;
use naive::Naive;
use online_softmax::OnlineSoftmax;
use paged::{Paged, PagedSimd};
use std::borrow::Cow;
use testkit::OwnedProblem;
use testkit::problems::Spec;

/// The name of the oracle, which can be run like a rung but is none.
pub const ORACLE: &str = "oracle";

/// Slots of a page, as vLLM has them.
const PAGE: usize = 16;

/// Seed of the order in which pages lie.
const PAGE_SEED: u64 = 7;

/// What a rung is built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of fast memory that a tiled rung may fill.
    pub fast_memory: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { fast_memory: DEFAULT_FAST_MEMORY }
    }
}

/// One rung: who it is and how to get at it.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// The name that [`Attention::name`] gives too.
    pub name: &'static str,
    /// The chapter that explains it.
    pub chapter: u32,
    /// What it is, in a few words.
    pub summary: &'static str,
    /// Whether it takes latents alone: one kv head whose values are the first channels of its keys.
    pub latents: bool,
    /// Slots of the pages in which it is given keys and values that lie in none; `None` if it takes them as they are.
    pub page: Option<usize>,
    build: fn(Settings) -> Box<dyn Attention>,
    /// `None` where what moves is for the caches of the machine to decide.
    counts: Option<Counts>,
}

/// One rung that runs on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRung {
    /// The name that [`Attention::name`] gives too.
    pub name: &'static str,
    /// The chapter that explains it.
    pub chapter: u32,
    /// What it is, in a few words.
    pub summary: &'static str,
    /// The rung of [`RUNGS`] that is the same algorithm on the CPU.
    pub on_cpu: &'static str,
    /// The rung of [`DEVICE_RUNGS`] that it is a step up from, if there is one.
    pub below: Option<&'static str>,
    /// What it takes.
    pub takes: Takes,
    algorithm: &'static Algorithm,
}

/// What a rung on a device takes, of problems whose keys and values are contiguous; how much memory it has for them aside.
#[derive(Clone, Copy, Debug)]
pub struct Takes {
    /// Types of tensors.
    pub dtypes: &'static [DType],
    /// Channels, at most.
    pub channels: usize,
    /// Whether windows, soft caps, ALiBi, biases and sinks.
    pub options: bool,
    /// Whether products that overflow f32, NaN and infinities come out as on the CPU.
    pub beyond_f32: bool,
}

/// How a rung's traffic is counted and predicted.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    build: for<'m> fn(Settings, &'m TrafficMeter) -> Box<dyn Attention + 'm>,
    traffic: fn(&Problem, Settings) -> Result<Traffic, AttentionError>,
    formula: fn(&Problem, Settings) -> Result<f64, AttentionError>,
}

/// Every rung, from the lowest up.
pub static RUNGS: &[Rung] = &[
    Rung {
        name: "naive",
        chapter: 1,
        summary: "S and P in full, three passes",
        latents: false,
        page: None,
        build: |_| Box::new(Naive::default()),
        counts: Some(Counts {
            build: |_, meter| Box::new(Naive::with_meter(meter)),
            traffic: |problem, _| Ok(naive::traffic(problem)),
            formula: |problem, _| Ok(naive::formula(problem)),
        }),
    },
    Rung {
        name: "online-softmax",
        chapter: 2,
        summary: "one pass over the keys, no score stored",
        latents: false,
        page: None,
        build: |_| Box::new(OnlineSoftmax::default()),
        counts: Some(Counts {
            build: |_, meter| Box::new(OnlineSoftmax::with_meter(meter)),
            traffic: |problem, _| Ok(online_softmax::traffic(problem)),
            formula: |problem, _| Ok(online_softmax::formula(problem)),
        }),
    },
    Rung {
        name: "fa1",
        chapter: 3,
        summary: "tiles sized to a fast memory, K/V in the outer loop",
        latents: false,
        page: None,
        build: |settings| Box::new(Fa1::new(settings.fast_memory, NoMeter)),
        counts: Some(Counts {
            build: |settings, meter| Box::new(Fa1::new(settings.fast_memory, meter)),
            traffic: |problem, settings| fa1::traffic(problem, settings.fast_memory),
            formula: |problem, settings| fa1::formula(problem, settings.fast_memory),
        }),
    },
    Rung {
        name: "fa2",
        chapter: 4,
        summary: "Q in the outer loop, one division at the end, parallel over the sequence",
        latents: false,
        page: None,
        build: |settings| Box::new(Fa2::new(settings.fast_memory, NoMeter)),
        counts: Some(Counts {
            build: |settings, meter| Box::new(Fa2::new(settings.fast_memory, meter)),
            traffic: |problem, settings| fa2::traffic(problem, &Fa2::new(settings.fast_memory, NoMeter)),
            formula: |problem, settings| fa2::formula(problem, &Fa2::new(settings.fast_memory, NoMeter)),
        }),
    },
    Rung {
        name: "fa2-simd",
        chapter: 4,
        summary: "the same on the vector units of the CPU",
        latents: false,
        page: None,
        build: |_| Box::new(Fa2Simd::default()),
        counts: None,
    },
    Rung {
        name: "paged",
        chapter: 7,
        summary: "FlashAttention-2 through block tables",
        latents: false,
        page: Some(PAGE),
        build: |settings| Box::new(Paged::new(Fa2::new(settings.fast_memory, NoMeter))),
        counts: Some(Counts {
            build: |settings, meter| Box::new(Paged::new(Fa2::new(settings.fast_memory, meter))),
            traffic: |problem, settings| fa2::traffic(problem, &Fa2::new(settings.fast_memory, NoMeter)),
            formula: |problem, settings| fa2::formula(problem, &Fa2::new(settings.fast_memory, NoMeter)),
        }),
    },
    Rung {
        name: "paged-simd",
        chapter: 7,
        summary: "the same on the vector units of the CPU",
        latents: false,
        page: Some(PAGE),
        build: |_| Box::new(PagedSimd::default()),
        counts: None,
    },
    Rung {
        name: "mla-absorbed",
        chapter: 8,
        summary: "many query heads on latents that are keys and values at once",
        latents: true,
        page: None,
        build: |_| Box::new(MlaAbsorbed::default()),
        counts: None,
    },
];

/// Every rung that runs on a device, from the lowest up.
pub static DEVICE_RUNGS: &[DeviceRung] = &[
    DeviceRung {
        name: "cuda-naive",
        chapter: 5,
        summary: "S and P in device memory, three kernels",
        on_cpu: "naive",
        below: None,
        takes: Takes { dtypes: &[DType::F32, DType::F16], channels: usize::MAX, options: true, beyond_f32: true },
        algorithm: &cuda_fa2::NAIVE,
    },
    DeviceRung {
        name: "cuda-fa1",
        chapter: 5,
        summary: "tiles in shared memory, a block of threads a head",
        on_cpu: "fa1",
        below: Some("cuda-naive"),
        takes: Takes { dtypes: &[DType::F32, DType::F16], channels: usize::MAX, options: true, beyond_f32: true },
        algorithm: &cuda_fa2::FA1,
    },
    DeviceRung {
        name: "cuda-fa2-simt",
        chapter: 5,
        summary: "a tile of rows in registers, on CUDA cores",
        on_cpu: "fa2",
        below: Some("cuda-fa1"),
        takes: Takes { dtypes: &[DType::F32, DType::F16], channels: 256, options: true, beyond_f32: true },
        algorithm: &cuda_fa2::FA2_SIMT,
    },
    DeviceRung {
        name: "cuda-fa2",
        chapter: 5,
        summary: "the same on tensor cores, with copies that nobody waits for",
        on_cpu: "fa2",
        below: Some("cuda-fa2-simt"),
        takes: Takes { dtypes: &[DType::F16, DType::Bf16], channels: 256, options: true, beyond_f32: true },
        algorithm: &cuda_fa2::FA2,
    },
    DeviceRung {
        name: "triton-fa2",
        chapter: 5,
        summary: "the same in Triton, on tensor cores",
        on_cpu: "fa2",
        below: Some("cuda-fa2-simt"),
        takes: Takes { dtypes: &[DType::F16, DType::Bf16], channels: 128, options: false, beyond_f32: false },
        algorithm: &cuda_fa2::TRITON,
    },
    DeviceRung {
        name: "fa3",
        chapter: 6,
        summary: "a warp that copies, warpgroups that multiply: for Hopper",
        on_cpu: "fa2",
        below: Some("cuda-fa2"),
        takes: Takes { dtypes: &[DType::F16, DType::Bf16], channels: 256, options: true, beyond_f32: true },
        algorithm: &fa3::FA3,
    },
];

/// The rung of that name.
pub fn rung(name: &str) -> Option<&'static Rung> {
    RUNGS.iter().find(|rung| rung.name == name)
}

/// The rung of that name that runs on a device.
pub fn device_rung(name: &str) -> Option<&'static DeviceRung> {
    DEVICE_RUNGS.iter().find(|rung| rung.name == name)
}

/// The rungs that run on such a device, from the lowest up.
pub fn rungs_of(device: &Device) -> impl Iterator<Item = &'static DeviceRung> + use<> {
    let target = Target::from(device.attributes());
    DEVICE_RUNGS.iter().filter(move |rung| rung.runs_on(target))
}

/// The implementation of that name that runs on the CPU: a rung or the oracle.
pub fn attention(name: &str, settings: Settings) -> Option<Box<dyn Attention>> {
    if name == ORACLE { Some(Box::new(Oracle)) } else { rung(name).map(|rung| rung.build(settings)) }
}

impl Rung {
    /// The rung, ready to run.
    pub fn build(&self, settings: Settings) -> Box<dyn Attention> {
        (self.build)(settings)
    }

    /// The problem as this rung is given it: in [pages](Rung::page), if it asks for them.
    ///
    /// # Panics
    /// If the tensors do not fit together.
    pub fn input<'a>(&self, owned: &'a OwnedProblem) -> Cow<'a, OwnedProblem> {
        match self.page {
            Some(page) if owned.pages.is_none() => Cow::Owned(owned.paged(page, PAGE_SEED)),
            _ => Cow::Borrowed(owned),
        }
    }

    /// How its traffic is counted, if it is.
    pub fn counts(&self) -> Option<&Counts> {
        self.counts.as_ref()
    }
}

impl DeviceRung {
    /// The rung, ready to run on that device.
    ///
    /// # Errors
    /// The device fails.
    pub fn build(&self, device: &Device) -> Result<CudaRung, DeviceError> {
        CudaRung::new(self.algorithm, device)
    }

    /// The steps in which its kernel was made, after each of which it is [there](CudaRung::at_step); none of most.
    pub fn steps(&self) -> &'static [Step] {
        self.algorithm.steps
    }

    /// The step of that number, from 1 up, and its place among them.
    ///
    /// # Errors
    /// A sentence that says what there is.
    pub fn step(&self, number: usize) -> Result<(usize, &'static Step), String> {
        let place = number.wrapping_sub(1);
        let wanted = match self.steps().len() {
            0 => format!("{} has none", self.name),
            count => format!("{} has 1 to {count}", self.name),
        };
        self.steps().get(place).map(|step| (place, step)).ok_or_else(|| format!("step: found {number}, but {wanted}"))
    }

    /// Whether it runs on such a device at all.
    pub fn runs_on(&self, target: Target) -> bool {
        let (shape, options) = (Shape::one(self.takes.dtypes[0]), Options::default());
        self.plan(&shape, &options, target).is_ok()
    }

    /// The rung in each of the forms among which its plans choose, since small problems alone would see but one: with any number of
    /// tiles of rows; and with the keys of short queries in as many parts as keep an H200 busy, in two, and in three.
    ///
    /// # Errors
    /// The device fails.
    pub fn forms(&self, device: &Device) -> Result<Vec<CudaRung>, DeviceError> {
        if !std::ptr::eq(self.algorithm, &cuda_fa2::FA2) {
            return Ok(vec![self.build(device)?]);
        }
        let target = Target::from(device.attributes());
        let target = Target { multiprocessors: target.multiprocessors.max(Target::H200.multiprocessors), ..target };
        let forms = [(Tiles::Fewer, None), (Tiles::Few, Some(2)), (Tiles::Many, Some(3))];
        let targets = forms.map(|(tiles, splits)| Target { tiles: Some(tiles), splits, ..target });
        targets.map(|target| Ok(self.build(device)?.with_target(target))).into_iter().collect()
    }

    /// The plan of a call. No device is needed.
    ///
    /// # Errors
    /// As [`Algorithm::plan`].
    pub fn plan(&self, shape: &Shape, options: &Options, target: Target) -> Result<Plan, AttentionError> {
        self.algorithm.plan(shape, options, target)
    }
}

impl Takes {
    /// Whether it takes a problem.
    pub fn problem(&self, problem: &Problem) -> bool {
        let options = problem.options();
        let plain = !matches!(options.mask, Mask::Window { .. })
            && options.softcap == 0.0
            && options.alibi_slopes.is_none()
            && options.bias.is_none()
            && options.sinks.is_none();
        self.dtypes.contains(&problem.dtype())
            && problem.d().max(problem.d_v()) <= self.channels
            && problem.block_table().is_none()
            && (self.options || plain)
    }

    /// What is taken of a problem: in a type and with as many channels as are, without options that are not.
    pub fn narrowed(&self, spec: Spec) -> Spec {
        let any = self.dtypes[spec.seed as usize % self.dtypes.len()];
        let dtype = if self.dtypes.contains(&spec.dtype) { spec.dtype } else { any };
        let spec = Spec { dtype, d: spec.d.min(self.channels), d_v: spec.d_v.min(self.channels), ..spec };
        if self.options {
            return spec;
        }
        let mask = if let Mask::Window { .. } = spec.mask { Mask::Causal } else { spec.mask };
        Spec { mask, softcap: 0.0, alibi: None, bias: None, sinks: false, ..spec }
    }
}

impl Counts {
    /// The rung, ready to run with its traffic counted.
    pub fn build<'m>(&self, settings: Settings, meter: &'m TrafficMeter) -> Box<dyn Attention + 'm> {
        (self.build)(settings, meter)
    }

    /// The traffic of the algorithm by its own exact count: what a metered run counts.
    ///
    /// # Errors
    /// The settings cannot serve these shapes.
    pub fn traffic(&self, problem: &Problem, settings: Settings) -> Result<Traffic, AttentionError> {
        (self.traffic)(problem, settings)
    }

    /// Bytes moved, as the closed formula predicts.
    ///
    /// # Errors
    /// The settings cannot serve these shapes.
    pub fn formula(&self, problem: &Problem, settings: Settings) -> Result<f64, AttentionError> {
        (self.formula)(problem, settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_agree_with_what_is_built() {
        for (place, entry) in RUNGS.iter().enumerate() {
            assert_eq!(entry.build(Settings::default()).name(), entry.name);
            let meter = TrafficMeter::default();
            let metered = entry.counts().map(|counts| counts.build(Settings::default(), &meter).name());
            assert!(metered.is_none_or(|name| name == entry.name));
            assert!(RUNGS[..place].iter().all(|other| other.name != entry.name && other.chapter <= entry.chapter));
            assert_ne!(entry.name, ORACLE);
        }
        for entry in DEVICE_RUNGS {
            assert_eq!(entry.algorithm.name, entry.name);
            assert!(rung(entry.on_cpu).is_some() && rung(entry.name).is_none());
            assert!(
                entry.below.is_none_or(|below| device_rung(below).is_some_and(|below| below.chapter <= entry.chapter))
            );
        }
        assert_eq!(attention(ORACLE, Settings::default()).map(|oracle| oracle.name()), Some(ORACLE));
        assert!(rung("no such rung").is_none());
    }
}
