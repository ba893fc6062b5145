//! Launches.

use super::driver::call;
use super::{Kernel, Stream};
use crate::{Arg, DeviceError, LaunchShape};
use cudarc::driver::sys;
use std::ffi::c_void;

impl Kernel {
    /// See [`Kernel::launch`](crate::Kernel::launch).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn launch(&self, stream: &Stream, shape: LaunchShape, args: &[Arg]) -> Result<(), DeviceError> {
        let gpu = self.module.gpu();
        if stream.gpu != *gpu {
            return Err(DeviceError::other_device("stream", "kernel"));
        }
        shape.check(&self.name, gpu.attributes(), self.resources())?;
        self.allow_shared(shape.shared_bytes)?;
        let mut pointers: Vec<*mut c_void> = args.iter().map(|arg| arg.bytes().as_ptr().cast_mut().cast()).collect();
        let mut attributes = shape.attributes();
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block[0],
            blockDimY: shape.block[1],
            blockDimZ: shape.block[2],
            sharedMemBytes: shape.shared_bytes,
            hStream: stream.stream.0,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: function and stream are live, and the attributes are as many as said. The driver reads as many bytes behind
        // each pointer as the signature says, which the caller has promised to be there.
        unsafe { call!(cuLaunchKernelEx(&config, self.function.0, pointers.as_mut_ptr(), std::ptr::null_mut())) }
    }
}

impl LaunchShape {
    fn attributes(&self) -> Vec<sys::CUlaunchAttribute> {
        if self.cluster == [1; 3] {
            return Vec::new();
        }
        let [x, y, z] = self.cluster;
        vec![sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z },
            },
        }]
    }
}
