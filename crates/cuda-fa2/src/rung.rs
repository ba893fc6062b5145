//! The rungs themselves.

// The launches: their arguments are addresses, which nothing can check.
#![allow(unsafe_code)]

use crate::algorithm::Algorithm;
use crate::plan::{Extra, Plan, Shape, Target};
use crate::tensors::{Tensors, Uploaded};
use crate::trace::{Marks, TRACE, Track};
use crate::{maps, steps, triton};
use attention::{Attention, AttentionError, DType, Options, OutputMut, Problem, supports_contiguous};
use device::{Arg, Device, DeviceError, Image, Kernel, Module, Stream, Variant};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

/// A rung that runs on a device.
#[derive(Debug)]
pub struct CudaRung {
    algorithm: &'static Algorithm,
    device: Device,
    target: Target,
    /// The place of the step among the algorithm's.
    step: Option<usize>,
    stream: Stream,
    /// Kernels that have been launched, by file, variant and name.
    kernels: Mutex<HashMap<[&'static str; 3], Kernel>>,
    /// Where kernels keep marks of what they do, if they do.
    marks: Option<Marks>,
}

impl CudaRung {
    /// The rung, with a stream of its own. Kernels are compiled when they are first needed.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new(algorithm: &'static Algorithm, device: &Device) -> Result<Self, DeviceError> {
        let (device, target, stream) = (device.clone(), device.attributes().into(), device.stream()?);
        Ok(CudaRung { algorithm, device, target, step: None, stream, kernels: Mutex::default(), marks: None })
    }

    /// The rung with plans for this target in place of the device. On `cuda-fa2` a sequence's result has the same bits in any
    /// batch, if the target says how many tiles and splits there are, among batches whose longest sequence has up to 16 rows,
    /// and among those where it has more.
    pub fn with_target(self, target: Target) -> Self {
        CudaRung { target, ..self }
    }

    /// The rung with its kernels as they were after a [step](Algorithm::steps) of its making, the first is 0; the last and those
    /// beyond it are the kernels as they are. They are compiled by NVRTC, which must be there. Kernels of
    /// [images](Self::with_image) are the rung's no more.
    pub fn at_step(self, step: usize) -> Self {
        CudaRung { step: Some(step), kernels: Mutex::default(), ..self }
    }

    /// The rung with the kernels of a variant from this image, for trying a change to a kernel. The image has all kernels of
    /// the variant, with their signatures.
    ///
    /// # Errors
    /// The image does not load, or a kernel is not in it.
    pub fn with_image(self, variant: &'static Variant, image: &Image) -> Result<Self, DeviceError> {
        let module = self.device.load(image)?;
        self.with_module(variant, &module)
    }

    /// The rung with kernels that keep marks of what some threads of a block do, and when: those of a plan, for `ladder trace`.
    /// NVRTC compiles them, which must be there. Whoever wants those of a [step](Self::at_step) asks for it first. Of each of the
    /// block's warpgroups the first `most` marks are kept.
    ///
    /// # Errors
    /// The plan launches nothing; its kernels have no marks to keep; they do not compile; there is no memory for it.
    pub fn with_marks(self, plan: &Plan, block: u32, most: u32) -> Result<Self, DeviceError> {
        let launch = plan.launches.last().ok_or_else(|| DeviceError::Value {
            name: "plan".into(),
            found: "no launch".into(),
            wanted: "one whose kernel keeps marks".into(),
        })?;
        let (room, variant) = (most.to_string(), launch.variant);
        let defines = [variant.defines, &[(TRACE, room.as_str())]].concat();
        let (steps, step) = (self.algorithm.steps, self.step.unwrap_or(usize::MAX));
        let module = steps::module(steps, step, &self.device, variant, &defines)?;
        let marks = Marks::new(&self.device, &self.stream, &module, launch.shape.block[0], block, most)?;
        Ok(CudaRung { marks: Some(marks), ..self.with_module(variant, &module)? })
    }

    /// The marks of the launch before, once the device is done: a track for each warpgroup of the block; none if the rung keeps none.
    ///
    /// # Errors
    /// The driver fails.
    pub fn marks(&self) -> Result<Vec<Track>, DeviceError> {
        self.marks.as_ref().map_or(Ok(Vec::new()), Marks::read)
    }

    fn with_module(self, variant: &'static Variant, module: &Module) -> Result<Self, DeviceError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        for &(name, ..) in variant.kernels {
            kernels.insert([variant.file, variant.name, name], module.kernel(name)?);
        }
        drop(kernels);
        Ok(self)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream that [`Attention::forward_into`] uses.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// [`Algorithm::plan`] for this rung's device.
    ///
    /// # Errors
    /// As there.
    pub fn plan(&self, shape: &Shape, options: &Options) -> Result<Plan, AttentionError> {
        self.algorithm.plan(shape, options, self.target)
    }

    /// Puts a planned call into a stream of the device. It can be captured once it has run before.
    ///
    /// # Errors
    /// A kernel does not compile; it is first needed in a capture; the tensors [do not lie](Plan::check) as the kernels want; the
    /// driver fails.
    ///
    /// # Safety
    /// The tensors are those of the shape that was planned, with the options that were planned, and lie in live memory of this
    /// rung's device until the stream is done, where nothing else is written. Lengths and starts of sequences are the planned.
    /// In a [capture](Stream::capture) all this holds whenever the graph is launched, and the rung is not dropped before it.
    pub unsafe fn launch(&self, plan: &Plan, tensors: &Tensors, stream: &Stream) -> Result<(), DeviceError> {
        let (problem, launches) = (plan.with(tensors), plan.launches_on(tensors)?);
        let maps =
            plan.maps.as_ref().map(|maps| maps::encode(&self.device, maps, tensors)).transpose()?.unwrap_or_default();
        for launch in launches {
            let kernel = self.kernel(launch.variant, launch.kernel, stream)?;
            let extra = launch.extra.at(tensors.workspace);
            let mut shape = launch.shape;
            let step = self.step.and_then(|step| self.algorithm.steps.get(step));
            // A kernel of one thread only makes a beginning.
            if let Some(step) = step.filter(|_| shape.block[0] > 1) {
                shape.block[0] -= step.fewer_threads;
                if let Extra::Maps { schedule, .. } = &extra
                    && !step.blocks_stay
                {
                    shape.grid[0] = schedule.tiles as u32;
                }
            }
            let mut args = vec![Arg::Bytes(bytemuck::bytes_of(&problem))];
            match &extra {
                Extra::None => {}
                Extra::Triton => args = triton::arguments(&problem).to_vec(),
                Extra::Maps { schedule, .. } => {
                    args.extend([Arg::Bytes(bytemuck::cast_slice(&maps)), Arg::Bytes(bytemuck::bytes_of(schedule))]);
                }
                Extra::Splits(splits) => args.push(Arg::Bytes(bytemuck::bytes_of(splits))),
                Extra::Scores(scores) => args.push(Arg::Bytes(bytemuck::bytes_of(scores))),
                Extra::Running(blocks, running) => {
                    args.extend([Arg::Bytes(bytemuck::bytes_of(blocks)), Arg::Bytes(bytemuck::bytes_of(running))]);
                }
            }
            // SAFETY: the arguments are those that each kernel file declares, in its order. A kernel stays within the
            // shapes and lengths of the plan, which the caller has promised to be those of the tensors.
            unsafe { kernel.launch(stream, shape, &args)? };
        }
        Ok(())
    }

    /// Copies the results of a launch into `out`, once the device is done: the rows of each sequence, and no other.
    ///
    /// # Errors
    /// `out` does not fit the problem; the driver fails.
    pub fn download(&self, uploaded: &Uploaded, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        uploaded.download(problem, &mut out.heads(problem)?).map_err(|error| self.failed(error))
    }

    /// A kernel, loaded when it is first needed.
    ///
    /// # Errors
    /// It does not compile; the stream is captured and it is not loaded; the driver fails.
    pub(crate) fn kernel(
        &self,
        variant: &'static Variant,
        name: &'static str,
        stream: &Stream,
    ) -> Result<Kernel, DeviceError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match kernels.entry([variant.file, variant.name, name]) {
            Entry::Occupied(kernel) => kernel.get().clone(),
            // Loading it would spoil the capture.
            Entry::Vacant(_) if stream.is_captured()? => return Err(not_loaded(name)),
            Entry::Vacant(place) => place.insert(self.module(variant)?.kernel(name)?).clone(),
        })
    }

    fn module(&self, variant: &'static Variant) -> Result<Module, DeviceError> {
        match self.step {
            Some(step) if !self.algorithm.steps.is_empty() => {
                steps::module(self.algorithm.steps, step, &self.device, variant, variant.defines)
            }
            _ => self.device.compile(variant),
        }
    }

    fn failed(&self, error: DeviceError) -> AttentionError {
        match error {
            DeviceError::Memory { bytes, .. } => {
                AttentionError::Memory { what: "tensors on the device", bytes: bytes as u128 }
            }
            other => AttentionError::Device { rung: self.algorithm.name, what: other.to_string() },
        }
    }
}

impl Attention for CudaRung {
    fn name(&self) -> &'static str {
        self.algorithm.name
    }

    fn supports(&self, problem: &Problem) -> Result<(), AttentionError> {
        supports_contiguous(self.name(), problem)?;
        self.plan(&Shape::from(problem), problem.options()).map(drop)
    }

    fn weights(&self, problem: &Problem) -> DType {
        if self.algorithm.on_tensor_cores { problem.dtype() } else { DType::F32 }
    }

    fn forward_into(&self, problem: &Problem, out: &mut OutputMut) -> Result<(), AttentionError> {
        supports_contiguous(self.name(), problem)?;
        let plan = self.plan(&Shape::from(problem), problem.options())?;
        out.heads(problem)?;
        let uploaded = Uploaded::new(&self.device, problem, &plan).map_err(|error| self.failed(error))?;
        // SAFETY: tensors, options and lengths are those of the problem that was planned; they live until the stream is done,
        // and nothing else knows of them.
        unsafe { self.launch(&plan, uploaded.tensors(), &self.stream) }.map_err(|error| self.failed(error))?;
        self.stream.synchronize().map_err(|error| self.failed(error))?;
        self.download(&uploaded, problem, out)
    }
}

/// The error of a capture that needs a kernel which has not been launched before.
fn not_loaded(kernel: &str) -> DeviceError {
    DeviceError::Value {
        name: "stream".into(),
        found: format!("one that is captured, and {kernel} not loaded"),
        wanted: "a call like it before the capture".into(),
    }
}

impl Extra {
    /// The arguments for a workspace at this address.
    fn at(self, workspace: u64) -> Extra {
        match self {
            Extra::None | Extra::Triton => self,
            Extra::Maps { mut schedule, counts } => {
                if counts {
                    schedule.next = workspace;
                }
                Extra::Maps { schedule, counts }
            }
            Extra::Splits(mut splits) => {
                splits.o += workspace;
                splits.m += workspace;
                splits.l += workspace;
                Extra::Splits(splits)
            }
            Extra::Scores(mut scores) => {
                scores.data += workspace;
                Extra::Scores(scores)
            }
            Extra::Running(blocks, mut running) => {
                running.o += workspace;
                running.l += workspace;
                running.m += workspace;
                Extra::Running(blocks, running)
            }
        }
    }
}
