//! Calls on tensors that lie on the device: plan and launch, without an upload between.

use crate::laws::{bits, few_rows, some_tiles};
use crate::problems::all_forms;
use attention::{Attention, DType, Problem, oracle};
use cuda_fa2::{CudaRung, Shape, Uploaded};
use device::{Device, DeviceError, Image, Variant, prebuilt};
use ladder::bench::Resident;
use ladder::kernels::variants;
use ladder::registry::{DeviceRung, rungs_of};
use libtest_mimic::Failed;
use testkit::judge;
use testkit::problems::Spec;

/// Whether a rung runs kernels of a variant: "cuda-fa2-simt" those of "05_fa2_simt.cu".
pub(crate) fn runs(rung: &DeviceRung, variant: &Variant) -> bool {
    let own = variant.file.split_once('_').map_or(variant.file, |(_, own)| own).trim_end_matches(".cu");
    let algorithm = rung.name.trim_start_matches("cuda-").replace('-', "_");
    own.strip_suffix("_mma").unwrap_or(own) == algorithm
}

/// What the driver makes of the prebuilt PTX gives the bits of what NVRTC makes of the source: every variant, in long tiles
/// and short ones.
pub(crate) fn prebuilt_ptx_gives_what_nvrtc_gives(device: &Device) -> Result<(), Failed> {
    for rung in rungs_of(device) {
        let variants = variants().filter(|variant| !variant.is_triton() && runs(rung, variant));
        let images = variants.map(|variant| Ok((variant, device.image(variant, &variant.source()?)?)));
        let images = images.collect::<Result<Vec<_>, DeviceError>>()?;
        for (mut compiled, mut from_ptx) in rung.forms(device)?.into_iter().zip(rung.forms(device)?) {
            for (variant, image) in &images {
                compiled = compiled.with_image(variant, image)?;
                from_ptx = from_ptx.with_image(variant, &Image::Ptx(prebuilt::ptx(variant)?.into_owned()))?;
            }
            let problems = rung.takes.dtypes.iter().flat_map(|&dtype| [32, 64, 96, 128, 192, 256].map(|d| (dtype, d)));
            for (dtype, d) in problems {
                for spec in [some_tiles(device, dtype, d), few_rows(device, dtype, d)] {
                    let owned = rung.takes.narrowed(spec).build();
                    if bits(&from_ptx.forward(&owned.problem())?) != bits(&compiled.forward(&owned.problem())?) {
                        return Err(format!("{}: other bits from prebuilt PTX, {dtype} {d}", rung.name).into());
                    }
                }
            }
        }
    }
    Ok(())
}

/// Rungs that share tensors share a layout that each takes, in whatever order they come: rows of 200 bytes are no multiples of 16,
/// which some ask for.
pub(crate) fn rungs_share_tensors(device: &Device) -> Result<(), Failed> {
    let takes = |rung: &&DeviceRung| rung.takes.dtypes.contains(&DType::F16);
    let owned = Spec { dtype: DType::F16, ..Spec::plain(40, 40, 100) }.build();
    let problem = owned.problem();
    let truth = oracle::truth(&problem);
    let built = rungs_of(device).filter(takes).map(|rung| rung.build(device)).collect::<Result<Vec<_>, _>>()?;
    for rungs in [built.iter().collect::<Vec<_>>(), built.iter().rev().collect()] {
        let resident = Resident::new(rungs.clone(), &problem, 1)?;
        for (place, rung) in rungs.into_iter().enumerate() {
            let verdict = judge(&problem, &truth, &resident.output(place)?, rung.weights(&problem));
            if !verdict.passes() {
                return Err(format!("{}: {verdict}", rung.name()).into());
            }
        }
    }
    Ok(())
}

/// The bytes of o and lse.
fn results(uploaded: &Uploaded) -> Result<Vec<u8>, DeviceError> {
    Ok([uploaded.o().to_vec()?, uploaded.lse().to_vec()?].concat())
}

pub(crate) fn a_captured_graph_gives_the_same_bits(device: &Device) -> Result<(), Failed> {
    for spec in [some_tiles(device, DType::F16, 64), few_rows(device, DType::F16, 64)] {
        let owned = spec.build();
        for (rung, attention) in all_forms(device)? {
            captured(device, &attention, &owned.problem()).map_err(|why| format!("{}: {why}", rung.name))?;
        }
    }
    Ok(())
}

/// A capture before the first launch fails, and a graph captured after it does what the launch does.
fn captured(device: &Device, attention: &CudaRung, problem: &Problem) -> Result<(), Box<dyn std::error::Error>> {
    let plan = attention.plan(&Shape::from(problem), problem.options())?;
    let uploaded = Uploaded::new(device, problem, &plan)?;
    let launch = |stream: &device::Stream| launch(attention, &plan, &uploaded, stream);
    let early = attention.stream().capture(launch).unwrap_err().to_string();
    if !early.starts_with("stream: found one that is captured, and ") {
        return Err(format!("a capture loads kernels: {early}").into());
    }
    launch(attention.stream())?;
    let direct = results(&uploaded)?;
    uploaded.clear()?;
    let graph = attention.stream().capture(launch)?;
    let untouched = results(&uploaded)?.iter().all(|&byte| byte == 0xff);
    graph.launch(attention.stream())?;
    if !untouched || results(&uploaded)? != direct {
        return Err("a graph gives other bits".into());
    }
    Ok(())
}

#[allow(unsafe_code)]
fn launch(
    attention: &CudaRung,
    plan: &cuda_fa2::Plan,
    uploaded: &Uploaded,
    stream: &device::Stream,
) -> Result<(), DeviceError> {
    // SAFETY: the tensors are the plan's problem's, and their memory outlives the stream's work: whoever calls reads it back.
    unsafe { attention.launch(plan, uploaded.tensors(), stream) }
}

/// o, lse and the workspace lie in the middle of larger buffers full of one byte, which stays wherever they are not.
pub(crate) fn nothing_outside_the_output_is_written(device: &Device) -> Result<(), Failed> {
    for (rung, attention) in all_forms(device)? {
        for (dtype, d) in [(DType::F32, 40), (DType::F16, 64), (DType::F16, 37), (DType::Bf16, 200)] {
            for spec in [some_tiles(device, dtype, d), few_rows(device, dtype, d)] {
                let owned = rung.takes.narrowed(spec).build();
                let written = written_outside(device, &attention, &owned.problem())?;
                if let Some((what, place)) = written {
                    return Err(format!("{}: byte {place} of the margins of {what} was written", rung.name).into());
                }
            }
        }
    }
    Ok(())
}

/// Of which buffer a byte of the margins was written, and which.
#[allow(unsafe_code)]
fn written_outside(
    device: &Device,
    attention: &CudaRung,
    problem: &Problem,
) -> Result<Option<(&'static str, usize)>, Failed> {
    const MARGIN: usize = 4096;
    let plan = attention.plan(&Shape::from(problem), problem.options())?;
    let uploaded = Uploaded::new(device, problem, &plan)?;
    let mut tensors = *uploaded.tensors();
    let wide = |bytes: usize| {
        let wide = device.alloc(bytes + 2 * MARGIN)?;
        wide.fill(0xa5)?;
        Ok::<_, DeviceError>(wide)
    };
    let (o, lse) = (wide(uploaded.o().len())?, wide(uploaded.lse().len())?);
    let workspace = wide(plan.workspace_bytes())?;
    tensors.o.address = o.address() + MARGIN as u64;
    tensors.lse.address = lse.address() + MARGIN as u64;
    tensors.workspace = workspace.address() + MARGIN as u64;
    // SAFETY: the tensors are the plan's, in live buffers that nothing else uses; reading them back waits.
    unsafe { attention.launch(&plan, &tensors, attention.stream())? };
    for (what, buffer) in [("o", &o), ("lse", &lse), ("the workspace", &workspace)] {
        let bytes: Vec<u8> = buffer.to_vec()?;
        let mut margins = bytes[..MARGIN].iter().chain(&bytes[bytes.len() - MARGIN..]);
        if let Some(place) = margins.position(|&byte| byte != 0xa5) {
            return Ok(Some((what, place)));
        }
    }
    Ok(None)
}
