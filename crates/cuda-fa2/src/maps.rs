//! Tensor maps of q, k and v, for kernels whose tiles are copied by Hopper's copy engine (TMA): what it asks of tensors.

use crate::params::Schedule;
use crate::plan::{Extra, Launch, Plan, Shape, launch_shape};
use crate::tensors::{DeviceTensor, Tensors};
use attention::{AttentionError, DType};
use device::{Device, DeviceError, Element, OutOfBoundsFill, Swizzle, TensorMap, Tiling, Variant};

/// Columns of a box: 128 bytes of 16-bit numbers, which is as far as the widest swizzle goes.
const COLUMNS: u32 = 64;

/// What the copy engine counts in, and the end of the strides that it has room for, in bytes.
const UNIT: i64 = 16;
const MOST: i64 = 1 << 40;

/// All of a map but where the tensor lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapOf {
    name: &'static str,
    element: Element,
    /// Sequences, heads, rows and channels.
    lengths: [usize; 4],
    /// Rows of a box.
    rows: u32,
}

/// Kernels that take the problem, maps of q, k and v, and a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// The kernels' variant.
    pub variant: &'static Variant,
    /// The place of the kernel among those of the variant.
    pub kernel: usize,
    /// That of one which is launched before it, as a single block, where blocks count the tiles that are taken: it begins the count.
    pub start: usize,
    /// Blocks of the grid.
    pub blocks: usize,
    /// What the blocks share out: tiles of rows, and how many heads a section of them has.
    pub tiles: usize,
    /// See [`tiles`](Self::tiles).
    pub section: usize,
    /// Rows of a box of q, and of one of k and v, 1 to 256.
    pub boxes: [u32; 2],
}

impl Plan {
    /// Adds launches of kernels that take the problem, maps of q, k and v and a schedule, and asks tensors for what the copy engine
    /// does.
    ///
    /// # Errors
    /// There are too many tiles.
    pub fn launch_mapped(&mut self, rung: &'static str, shape: &Shape, mapped: Mapped) -> Result<(), AttentionError> {
        let Mapped { variant, kernel, start, blocks, tiles, section, boxes: [q_rows, k_rows] } = mapped;
        // All tiles fit the grid of a kernel that has a block for each.
        launch_shape(rung, tiles, [1; 3], 0)?;
        let schedule = Schedule { tiles: tiles as i32, section: section.min(tiles) as i32, next: 0 };
        // Under a mask, and in a batch of different lengths, some tiles are more work than others: who is free takes the next.
        let counts = self.tabled || self.problem.options.left >= 0 || self.problem.options.right >= 0;
        if counts {
            self.workspace_bytes = self.workspace_bytes.max(size_of::<u32>());
        }
        for (kernel, blocks) in counts.then_some((start, 1)).into_iter().chain([(kernel, blocks)]) {
            let (kernel, threads, shared_bytes) = variant.kernels[kernel];
            let shape = launch_shape(rung, blocks, [threads, 1, 1], shared_bytes as usize)?;
            let extra = Extra::Maps { schedule, counts };
            self.launches.push(Launch { variant, kernel, shape, extra });
        }
        let batch = if shape.packed { 1 } else { shape.sequences.len() };
        let ends = |end: fn(&attention::Sequence) -> usize| shape.sequences.iter().map(end).max().unwrap_or(0);
        let (q_end, k_end) = (ends(|sequence| sequence.q.end), ends(|sequence| sequence.k.end));
        let element = if shape.dtype == DType::Bf16 { Element::Bf16 } else { Element::F16 };
        self.maps = Some([
            MapOf { name: "q", element, lengths: [batch, shape.heads, q_end, shape.d], rows: q_rows },
            MapOf { name: "k", element, lengths: [batch, shape.kv_heads, k_end, shape.d], rows: k_rows },
            MapOf { name: "v", element, lengths: [batch, shape.kv_heads, k_end, shape.d_v], rows: k_rows },
        ]);
        Ok(())
    }
}

impl MapOf {
    /// Whether the tensor has no element, and nothing of it is ever copied.
    fn is_empty(&self) -> bool {
        self.lengths.contains(&0)
    }

    /// Refuses a tensor that the copy engine cannot read. One that is broadcast along heads or the batch, with a stride of 0, it
    /// can: the map has one place there, and kernels ask for the first.
    ///
    /// # Errors
    /// It begins at no multiple of 16 bytes, has channels that lie apart, or another stride that is no multiple of 16 bytes above
    /// 0 and below 2^40.
    pub(crate) fn check(&self, tensor: &DeviceTensor) -> Result<(), DeviceError> {
        let refuse = |what: &str, found: String, wanted: &str| {
            Err(DeviceError::Value { name: format!("{}: {what}", self.name), found, wanted: wanted.into() })
        };
        if self.is_empty() {
            return Ok(());
        }
        if !tensor.address.is_multiple_of(UNIT as u64) {
            return refuse("address", format!("{:#x}", tensor.address), "a multiple of 16, for the copy engine (TMA)");
        }
        for ((axis, length), stride) in
            ["batch", "heads", "rows"].iter().zip(self.lengths_of(tensor)).zip(tensor.strides)
        {
            let bytes = stride.saturating_mul(2);
            if length > 1 && !((1..MOST).contains(&bytes) && bytes % UNIT == 0) {
                let wanted = "a multiple of 16 bytes above 0 and below 2^40, for the copy engine (TMA)";
                return refuse(&format!("stride of its {axis}"), format!("{bytes} bytes"), wanted);
            }
        }
        match tensor.strides[3] {
            1 => Ok(()),
            _ if self.lengths[3] == 1 => Ok(()),
            apart => refuse("stride of its channels", apart.to_string(), "1"),
        }
    }

    /// The lengths of the tensor as the map has it.
    fn lengths_of(&self, tensor: &DeviceTensor) -> [usize; 4] {
        let [batch, heads, rows, channels] = self.lengths;
        let places = |length, stride| if stride == 0 { 1 } else { length };
        [places(batch, tensor.strides[0]), places(heads, tensor.strides[1]), rows, channels]
    }

    fn encode(&self, device: &Device, tensor: &DeviceTensor) -> Result<TensorMap, DeviceError> {
        let lengths = self.lengths_of(tensor);
        let [batch, heads, rows, channels] = lengths.map(|length| length as u64);
        // Nobody goes along an axis of one place: any stride will do.
        let stride = |axis: usize| if lengths[axis] > 1 { 2 * tensor.strides[axis] } else { UNIT } as u64;
        device.tensor_map(&Tiling {
            element: self.element,
            address: tensor.address,
            lengths: &[channels, rows, heads, batch],
            strides: &[stride(2), stride(1), stride(0)],
            tile: &[COLUMNS, self.rows, 1, 1],
            swizzle: Swizzle::B128,
            fill: OutOfBoundsFill::Zeros,
        })
    }
}

/// The maps for tensors that [are as they must be](Plan::check).
///
/// # Errors
/// The driver fails.
pub(crate) fn encode(device: &Device, maps: &[MapOf; 3], tensors: &Tensors) -> Result<Vec<TensorMap>, DeviceError> {
    let all = maps.iter().zip([&tensors.q, &tensors.k, &tensors.v]);
    // Without a key there is no map of k and v, and none is read: that of q takes the place.
    all.map(
        |(map, tensor)| if map.is_empty() { maps[0].encode(device, &tensors.q) } else { map.encode(device, tensor) },
    )
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_copy_engine_cannot_read_is_refused_with_the_tensor_and_the_axis() {
        let map = MapOf { name: "k", element: Element::F16, lengths: [2, 3, 5, 40], rows: 8 };
        let good = DeviceTensor { address: 1 << 20, strides: [600, 200, 40, 1] };
        assert_eq!(map.check(&good), Ok(()));
        let refused = |tensor| map.check(&tensor).unwrap_err().to_string();
        let wanted = "wanted a multiple of 16 bytes above 0 and below 2^40, for the copy engine (TMA)";
        for (place, stride, found) in [
            (0, 3, "batch: found 6 bytes"),
            (1, -200, "heads: found -400 bytes"),
            (2, 0, "rows: found 0 bytes"),
            (2, 41, "rows: found 82 bytes"),
            (2, 1 << 39, "rows: found 1099511627776 bytes"),
        ] {
            let mut bad = good;
            bad.strides[place] = stride;
            assert_eq!(refused(bad), format!("k: stride of its {found}, {wanted}"));
            let one =
                MapOf { lengths: std::array::from_fn(|axis| if axis == place { 1 } else { map.lengths[axis] }), ..map };
            assert_eq!(one.check(&bad), Ok(()));
        }
        assert_eq!(map.check(&DeviceTensor { strides: [0, 0, 40, 1], ..good }), Ok(()));
        let apart = DeviceTensor { strides: [600, 200, 40, 2], ..good };
        assert_eq!(refused(apart), "k: stride of its channels: found 2, wanted 1");
        let moved = DeviceTensor { address: (1 << 20) + 2, ..good };
        assert_eq!(refused(moved), "k: address: found 0x100002, wanted a multiple of 16, for the copy engine (TMA)");
        assert_eq!(MapOf { lengths: [2, 3, 0, 40], ..map }.check(&moved), Ok(()));
    }
}
