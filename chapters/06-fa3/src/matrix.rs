//! What tiles are copied from.

use crate::{COLUMNS, ROWS};
use device::{Arg, Buffer, Device, DeviceError, Element, OutOfBoundsFill, Swizzle, TensorMap, Tiling};

/// A matrix in device memory, as a kernel is told of it.
#[derive(Debug)]
pub struct Matrix {
    map: TensorMap,
    /// The map shows it.
    _numbers: Buffer,
}

impl Matrix {
    /// A matrix with these numbers, [`COLUMNS`] a row. That without a row has a map of one that nobody wrote.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(device: &Device, numbers: &[f32]) -> Result<Self, DeviceError> {
        let row = size_of::<f32>() * COLUMNS;
        let buffer = if numbers.is_empty() { device.alloc(row)? } else { device.upload(numbers)? };
        let rows = (numbers.len() / COLUMNS).max(1) as u64;
        let all = row as u64 * rows;
        let map = device.tensor_map(&Tiling {
            element: Element::F32,
            address: buffer.address(),
            lengths: &[COLUMNS as u64, rows, 1, 1],
            strides: &[row as u64, all, all],
            tile: &[COLUMNS as u32, ROWS as u32, 1, 1],
            swizzle: Swizzle::None,
            fill: OutOfBoundsFill::Zeros,
        })?;
        Ok(Matrix { map, _numbers: buffer })
    }

    /// The argument for it.
    pub fn arg(&self) -> Arg<'_> {
        Arg::TensorMap(&self.map)
    }
}
