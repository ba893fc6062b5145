//! Tensors that lie on the device, and how a problem's get there and back.

use crate::maps::MapOf;
use crate::params;
use crate::plan::{Launch, Plan};
use attention::{DType, Element, Problem, RowsMut, TensorView};
use bytemuck::{AnyBitPattern, NoUninit, Zeroable};
use device::{Buffer, Device, DeviceError};
use half::{bf16, f16};
use ndarray::{ArrayD, ArrayView1, ArrayViewD, Axis};

/// A tensor `[batch, heads, length, channels]` in device memory. Strides are in elements and may be anything that the rung's
/// kernels [take](Plan::check); a packed tensor has a batch stride of 0, as has every axis along which it is broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// The address of its first element.
    pub address: u64,
    /// The distance of neighbours along batch, heads, length and channels.
    pub strides: [i64; 4],
}

/// The tensors of a planned call, on the device of its rung.
#[derive(Clone, Copy, Debug)]
pub struct Tensors {
    /// Queries, of the shape's element type, as k, v and o.
    pub q: DeviceTensor,
    /// Keys.
    pub k: DeviceTensor,
    /// Values.
    pub v: DeviceTensor,
    /// The output.
    pub o: DeviceTensor,
    /// The lse, f32, without channels.
    pub lse: DeviceTensor,
    /// f32 `[batch, heads]`, as the first two axes.
    pub alibi_slopes: Option<DeviceTensor>,
    /// f32 `[batch, heads, q_len, k_len]`.
    pub bias: Option<DeviceTensor>,
    /// The address of f32 `[heads]`.
    pub sinks: Option<u64>,
    /// The address of [`Plan::workspace_bytes`] bytes.
    pub workspace: u64,
    /// The address of [`Plan::sequences`].
    pub sequences: u64,
}

impl DeviceTensor {
    fn param(self) -> params::Tensor {
        let [batch, head, row, channel] = self.strides;
        params::Tensor { data: self.address, batch, head, row, channel }
    }

    /// Whether every row of two-byte elements begins at a multiple of 16 bytes.
    fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16) && self.strides[..3].iter().all(|stride| stride % 8 == 0)
    }
}

impl Plan {
    /// The table of sequences as kernels read it, to be copied to the device or [written there](crate::CudaRung::put_sequences);
    /// empty if they have no need of it.
    pub fn sequences(&self) -> &[u8] {
        if self.tabled { self.table() } else { &[] }
    }

    /// The table, whether or not it is read.
    fn table(&self) -> &[u8] {
        bytemuck::cast_slice(&self.sequences)
    }

    /// Refuses tensors that do not lie as the planned kernels want them to.
    ///
    /// # Errors
    /// The first of q, k, v and o that does not: which stride or address, and what is wanted.
    pub fn check(&self, Tensors { q, k, v, o, .. }: &Tensors) -> Result<(), DeviceError> {
        let (d, d_v) = (self.problem.d, self.problem.d_v);
        let keys = self.problem.k_len > 0;
        let read = [("q", q, d, true), ("k", k, d, keys), ("v", v, d_v, keys), ("o", o, d_v, true)];
        for (name, tensor, channels, is_read) in read {
            let stride = tensor.strides[3];
            if self.adjacent && !self.launches.is_empty() && is_read && channels > 1 && stride != 1 {
                let (name, found) = (format!("{name}: stride of its channels"), stride.to_string());
                return Err(DeviceError::Value { name, found, wanted: "1".into() });
            }
        }
        let maps = self.maps.iter().flatten();
        maps.zip([q, k, v]).try_for_each(|(map, tensor)| map.check(tensor))
    }

    /// The launches for tensors that lie where these do.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn launches_on(&self, tensors: &Tensors) -> Result<&[Launch], DeviceError> {
        self.check(tensors)?;
        let aligned = [tensors.q, tensors.k, tensors.v, tensors.o].iter().all(DeviceTensor::is_aligned);
        Ok(if aligned || self.unaligned.is_empty() { &self.launches } else { &self.unaligned })
    }

    /// The problem with its tensors in place.
    pub(crate) fn with(&self, tensors: &Tensors) -> params::Problem {
        let mut problem = self.problem;
        let option = |tensor: Option<DeviceTensor>| tensor.map_or_else(Default::default, DeviceTensor::param);
        problem.q = tensors.q.param();
        problem.k = tensors.k.param();
        problem.v = tensors.v.param();
        problem.o = tensors.o.param();
        problem.lse = tensors.lse.param();
        problem.options.slopes = option(tensors.alibi_slopes);
        problem.options.bias = option(tensors.bias);
        problem.options.sinks = tensors.sinks.unwrap_or(0);
        problem.sequences = if self.tabled { tensors.sequences } else { 0 };
        problem
    }
}

/// A problem's tensors on the device, and the memory in which they lie.
#[derive(Debug)]
pub struct Uploaded {
    tensors: Tensors,
    o: Buffer,
    lse: Buffer,
    /// Whatever else the tensors lie in.
    _memory: Vec<Buffer>,
}

/// What a byte of an output holds before a kernel writes it: four of them are a NaN.
const CANARY: u8 = 0xff;

impl Uploaded {
    /// Copies a problem to the device, in the layouts that its tensors have if the plan's kernels take them, else row-major,
    /// with memory for the results and a workspace.
    ///
    /// # Errors
    /// There is no memory for it; the driver fails.
    pub fn new(device: &Device, problem: &Problem, plan: &Plan) -> Result<Self, DeviceError> {
        let mut memory = Vec::new();
        let mut keep = |(buffer, tensor): (Buffer, DeviceTensor)| {
            memory.push(buffer);
            tensor
        };
        let options = problem.options();
        let (q, k, v) = (
            keep(upload_tensor(device, problem.q(), plan, 0)?),
            keep(upload_tensor(device, problem.k(), plan, 1)?),
            keep(upload_tensor(device, problem.v(), plan, 2)?),
        );
        let slopes = options.alibi_slopes.as_ref().map(|slopes| {
            // Slopes for each head are the same for all sequences.
            let slopes = if slopes.ndim() == 1 { slopes.view().insert_axis(Axis(0)) } else { slopes.view() };
            upload(device, slopes.insert_axis(Axis(2)).insert_axis(Axis(3)))
        });
        let alibi_slopes = slopes.transpose()?.map(&mut keep);
        let bias = options.bias.map(|bias| upload(device, bias.into_dyn())).transpose()?.map(&mut keep);
        let sinks = options.sinks.map(|sinks| upload(device, sinks.into_dyn())).transpose()?;
        let sinks = sinks.map(&mut keep).map(|sinks| sinks.address);
        let sequences = device.upload(plan.table())?;
        let workspace = device.alloc(plan.workspace_bytes())?;
        let output = |shape: &[usize], size: usize| {
            let buffer = device.alloc(shape.iter().product::<usize>() * size)?;
            let mut strides = vec![1isize; shape.len()];
            for axis in (1..shape.len()).rev() {
                strides[axis - 1] = strides[axis] * shape[axis] as isize;
            }
            let tensor = DeviceTensor { address: buffer.address(), strides: four(&strides, shape) };
            Ok::<_, DeviceError>((buffer, tensor))
        };
        let (o_buffer, o) = output(&problem.o_shape(), problem.dtype().size())?;
        let lse_shape = [problem.lse_shape(), vec![1]].concat();
        let (lse_buffer, lse) = output(&lse_shape, size_of::<f32>())?;
        let (workspace_at, sequences_at) = (workspace.address(), sequences.address());
        memory.extend([sequences, workspace]);
        let tensors =
            Tensors { q, k, v, o, lse, alibi_slopes, bias, sinks, workspace: workspace_at, sequences: sequences_at };
        let uploaded = Uploaded { tensors, o: o_buffer, lse: lse_buffer, _memory: memory };
        uploaded.clear()?;
        Ok(uploaded)
    }

    /// Overwrites the results with NaN, so that what a launch leaves out shows.
    ///
    /// # Errors
    /// The driver fails.
    pub fn clear(&self) -> Result<(), DeviceError> {
        self.o.fill(CANARY)?;
        self.lse.fill(CANARY)
    }

    /// The memory of o, row-major, NaN until a kernel writes it.
    pub fn o(&self) -> &Buffer {
        &self.o
    }

    /// The memory of lse, row-major, NaN until a kernel writes it.
    pub fn lse(&self) -> &Buffer {
        &self.lse
    }

    /// Where everything lies.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Copies the results into the pieces of an output, once the device is done: the rows of each sequence, and no other.
    ///
    /// # Errors
    /// The driver fails.
    pub(crate) fn download(&self, problem: &Problem, pieces: &mut [RowsMut]) -> Result<(), DeviceError> {
        match problem.dtype() {
            DType::F16 => self.store::<f16>(problem, pieces),
            DType::Bf16 => self.store::<bf16>(problem, pieces),
            _ => self.store::<f32>(problem, pieces),
        }
    }

    fn store<T: Element + AnyBitPattern>(&self, problem: &Problem, pieces: &mut [RowsMut]) -> Result<(), DeviceError> {
        let (o, lse) = (self.o.to_vec::<T>()?, self.lse.to_vec::<f32>()?);
        let (d_v, lengths) = (problem.d_v(), problem.lse_shape());
        for piece in pieces {
            // A packed output has no batch axis, and sequences one behind the other.
            let sequence = if problem.is_packed() { 0 } else { piece.sequence };
            let first = if problem.is_packed() { problem.sequences()[piece.sequence].q.start } else { 0 };
            let head = (sequence * problem.heads() + piece.head) * lengths[lengths.len() - 1] + first;
            for row in piece.rows.clone() {
                let o = &o[(head + row) * d_v..(head + row + 1) * d_v];
                piece.store(row, ArrayView1::from(o), lse[head + row]);
            }
        }
        Ok(())
    }
}

/// Copies q, k or v, which is the tensor of that `place`.
fn upload_tensor(
    device: &Device,
    tensor: &TensorView,
    plan: &Plan,
    place: usize,
) -> Result<(Buffer, DeviceTensor), DeviceError> {
    let map = plan.maps.as_ref().map(|maps| &maps[place]);
    match tensor {
        TensorView::F16(view) => upload_for(device, view.view(), plan.adjacent, map),
        TensorView::Bf16(view) => upload_for(device, view.view(), plan.adjacent, map),
        TensorView::F32(view) => upload_for(device, view.view(), plan.adjacent, map),
        _ => unreachable!("a rung refuses other types"),
    }
}

/// Copies a tensor as [`upload`] does; row-major if the kernels want the channels of a row one behind the other; and with room
/// behind each row, up to a multiple of 16 bytes, if the copy engine wants that.
fn upload_for<T: NoUninit + Zeroable>(
    device: &Device,
    view: ArrayViewD<T>,
    adjacent: bool,
    map: Option<&MapOf>,
) -> Result<(Buffer, DeviceTensor), DeviceError> {
    if adjacent && view.strides().last() != Some(&1) {
        return upload(device, view.as_standard_layout().view());
    }
    let (buffer, tensor) = upload(device, view.view())?;
    if map.is_none_or(|map| map.check(&tensor).is_ok()) {
        return Ok((buffer, tensor));
    }
    let mut shape = view.shape().to_vec();
    let channels = shape.len() - 1;
    shape[channels] = view.shape()[channels].next_multiple_of(8);
    let mut padded = ArrayD::from_elem(shape, T::zeroed());
    padded.slice_axis_mut(Axis(channels), (..view.shape()[channels]).into()).assign(&view);
    let buffer = device.upload(padded.as_slice().expect("it is new"))?;
    let tensor = DeviceTensor { address: buffer.address(), strides: four(padded.strides(), view.shape()) };
    Ok((buffer, tensor))
}

/// Copies a tensor of rank 3 or 4 in the layout it has, or row-major if it has gaps.
fn upload<T: NoUninit>(device: &Device, view: ArrayViewD<T>) -> Result<(Buffer, DeviceTensor), DeviceError> {
    if view.as_slice_memory_order().is_none() {
        return upload(device, view.to_owned().view());
    }
    let memory = view.as_slice_memory_order().expect("it has just been asked for");
    let buffer = device.upload(memory)?;
    // A negative stride puts the first element behind the start of the memory.
    let offset = view.as_ptr() as usize - memory.as_ptr() as usize;
    let tensor =
        DeviceTensor { address: buffer.address() + offset as u64, strides: four(view.strides(), view.shape()) };
    Ok((buffer, tensor))
}

/// Strides along four axes, of a tensor that has no batch axis if its rank is 3; 0 where there is one place and no other.
fn four(strides: &[isize], shape: &[usize]) -> [i64; 4] {
    let mut four = [0; 4];
    let missing = four.len() - strides.len();
    for (to, (&stride, &length)) in four[missing..].iter_mut().zip(strides.iter().zip(shape)) {
        *to = if length == 1 { 0 } else { stride as i64 };
    }
    four
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, TRITON, Target};
    use attention::{Options, Sequence};

    #[test]
    fn triton_has_launches_for_rows_at_any_place_and_none_for_channels_that_lie_apart() {
        let sequences = vec![Sequence { q: 0..9, k: 0..7 }];
        let shape = Shape { dtype: DType::F16, heads: 1, kv_heads: 1, d: 16, d_v: 16, packed: false, sequences };
        let target = Target { shared_per_block: 0, multiprocessors: 1, ..Target::H200 };
        let plan = TRITON.plan(&shape, &Options::default(), target).unwrap();
        let tensor = DeviceTensor { address: 1 << 20, strides: [0, 0, 16, 1] };
        let (alibi_slopes, bias, sinks, lse) = (None, None, None, tensor);
        let [q, k, v, o] = [tensor; 4];
        let tensors = Tensors { q, k, v, o, lse, alibi_slopes, bias, sinks, workspace: 0, sequences: 0 };
        let variant = |tensors: &Tensors| plan.launches_on(tensors).map(|launches| launches[0].variant.name);
        assert_eq!(variant(&tensors), Ok("f16.d64"));
        for elsewhere in [
            DeviceTensor { address: tensor.address + 2, ..tensor },
            DeviceTensor { strides: [0, 0, 17, 1], ..tensor },
            DeviceTensor { strides: [0, 4, 16, 1], ..tensor },
        ] {
            assert_eq!(variant(&Tensors { k: elsewhere, ..tensors }), Ok("f16.d64.unaligned"), "{elsewhere:?}");
        }
        let apart = DeviceTensor { strides: [0, 0, 32, 2], ..tensor };
        let refused = plan.check(&Tensors { v: apart, ..tensors }).unwrap_err().to_string();
        assert_eq!(refused, "v: stride of its channels: found 2, wanted 1");
    }
}
