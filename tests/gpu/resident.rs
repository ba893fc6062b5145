//! Calls on tensors that lie on the device: plan and launch, without an upload between.

use crate::laws::{bits, some_tiles};
use attention::{Attention, DType};
use cuda_fa2::{CudaRung, Shape, Uploaded, variants};
use device::nvrtc::Nvrtc;
use device::{Device, DeviceError, Image, Source, Variant, prebuilt};
use ladder::registry::DEVICE_RUNGS;
use libtest_mimic::Failed;

/// What NVRTC makes of a variant's source for a device: machine code, or PTX for a simulated one.
pub(crate) fn image(device: &Device, variant: &Variant, source: &Source) -> Result<Image, DeviceError> {
    let (nvrtc, (major, minor)) = (Nvrtc::find()?, device.attributes().compute_capability);
    Ok(match device {
        Device::Simulated(_) => {
            Image::Ptx(String::from_utf8_lossy(&nvrtc.ptx(source, variant.arch)?.code).into_owned())
        }
        _ => Image::Cubin(nvrtc.cubin(source, &format!("sm_{major}{minor}"))?.code),
    })
}

/// What the driver makes of the prebuilt PTX gives the bits of what NVRTC makes of the source.
pub(crate) fn prebuilt_ptx_gives_what_nvrtc_gives(device: &Device) -> Result<(), Failed> {
    let images = variants().filter(|variant| !variant.is_triton());
    let images = images.map(|variant| Ok((variant, image(device, variant, &variant.source()?)?)));
    let images = images.collect::<Result<Vec<_>, DeviceError>>()?;
    for rung in DEVICE_RUNGS {
        let (mut compiled, mut from_ptx) = (rung.build(device)?, rung.build(device)?);
        for (variant, image) in &images {
            compiled = compiled.with_image(variant, image)?;
            from_ptx = from_ptx.with_image(variant, &Image::Ptx(prebuilt::ptx(variant)?.into()))?;
        }
        for (dtype, d) in [(DType::F32, 64), (DType::F16, 128), (DType::F16, 200)] {
            let owned = rung.takes.narrowed(some_tiles(device, dtype, d)).build();
            if bits(&from_ptx.forward(&owned.problem())?) != bits(&compiled.forward(&owned.problem())?) {
                return Err(format!("{}: other bits from prebuilt PTX, {dtype} {d}", rung.name).into());
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
    for rung in DEVICE_RUNGS {
        let (attention, owned) = (rung.build(device)?, some_tiles(device, DType::F16, 64).build());
        let problem = owned.problem();
        let plan = attention.plan(&Shape::from(&problem), problem.options())?;
        let uploaded = Uploaded::new(device, &problem, &plan)?;
        let launch = |stream: &device::Stream| launch(&attention, &plan, &uploaded, stream);
        let early = attention.stream().capture(launch).unwrap_err().to_string();
        if !early.starts_with("stream: found one that is captured, and ") {
            return Err(format!("{}: a capture loads kernels: {early}", rung.name).into());
        }
        launch(attention.stream())?;
        let direct = results(&uploaded)?;
        uploaded.clear()?;
        let graph = attention.stream().capture(launch)?;
        let untouched = results(&uploaded)?.iter().all(|&byte| byte == 0xff);
        graph.launch(attention.stream())?;
        if !untouched || results(&uploaded)? != direct {
            return Err(format!("{}: a graph gives other bits", rung.name).into());
        }
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

/// o and lse lie in the middle of larger buffers full of one byte, which stays wherever they are not.
#[allow(unsafe_code)]
pub(crate) fn nothing_outside_the_output_is_written(device: &Device) -> Result<(), Failed> {
    const MARGIN: usize = 4096;
    for rung in DEVICE_RUNGS {
        for (dtype, d) in [(DType::F32, 40), (DType::F16, 64), (DType::F16, 37), (DType::F16, 200)] {
            let (attention, owned) = (rung.build(device)?, rung.takes.narrowed(some_tiles(device, dtype, d)).build());
            let problem = owned.problem();
            let plan = attention.plan(&Shape::from(&problem), problem.options())?;
            let uploaded = Uploaded::new(device, &problem, &plan)?;
            let mut tensors = *uploaded.tensors();
            let wide = |buffer: &device::Buffer| {
                let wide = device.alloc(buffer.len() + 2 * MARGIN)?;
                wide.fill(0xa5)?;
                Ok::<_, DeviceError>(wide)
            };
            let (o, lse, workspace) =
                (wide(uploaded.o())?, wide(uploaded.lse())?, device.alloc(plan.workspace_bytes() + 2 * MARGIN)?);
            workspace.fill(0xa5)?;
            tensors.o.address = o.address() + MARGIN as u64;
            tensors.lse.address = lse.address() + MARGIN as u64;
            tensors.workspace = workspace.address() + MARGIN as u64;
            // SAFETY: the tensors are the plan's, in live buffers that nothing else uses; reading them back waits.
            unsafe { attention.launch(&plan, &tensors, attention.stream())? };
            for (what, buffer) in [("o", &o), ("lse", &lse), ("the workspace", &workspace)] {
                let bytes: Vec<u8> = buffer.to_vec()?;
                let margins = bytes[..MARGIN].iter().chain(&bytes[bytes.len() - MARGIN..]);
                if let Some(place) = margins.clone().position(|&byte| byte != 0xa5) {
                    return Err(format!("{}: byte {place} of the margins of {what} was written", rung.name).into());
                }
            }
        }
    }
    Ok(())
}
