//! Ways a tensor may lie in memory, for testing that a rung reads through strides.

use attention::{DType, Tensor};
use half::{bf16, f16};
use ndarray::{ArrayBase, ArrayD, Axis, IxDyn, RawData, Slice};

/// A memory layout of a tensor `[.., heads, length, channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Row-major.
    Contiguous,
    /// `[.., length, heads, channels]`, as projections write it.
    LengthFirst,
    /// `[.., heads, channels, length]`.
    ChannelMajor,
    /// Every second channel of rows twice as long; NaN lies between.
    EverySecondChannel,
    /// The last row first: a negative stride.
    Reversed,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 5] =
        [Layout::Contiguous, Layout::LengthFirst, Layout::ChannelMajor, Layout::EverySecondChannel, Layout::Reversed];

    /// Stores `values`, given in logical order, in this layout, rounded to `dtype`.
    pub(crate) fn store(self, values: &ArrayD<f64>, dtype: DType) -> Tensor {
        let rank = values.ndim();
        let stored = match self {
            Layout::EverySecondChannel => {
                let mut shape = values.raw_dim();
                shape[rank - 1] *= 2;
                let mut stored = ArrayD::from_elem(shape, f64::NAN);
                stored.slice_axis_mut(Axis(rank - 1), Slice::new(0, None, 2)).assign(values);
                stored
            }
            // The other layouts are their own inverses.
            _ => self.apply(values.view()).as_standard_layout().into_owned(),
        };
        match dtype {
            DType::F32 => self.apply(stored.mapv(|x| x as f32)).into(),
            DType::F64 => self.apply(stored).into(),
            DType::F16 => self.apply(stored.mapv(f16::from_f64)).into(),
            DType::Bf16 => self.apply(stored.mapv(bf16::from_f64)).into(),
            DType::E4m3 => unreachable!("no strategy draws E4m3"),
        }
    }

    /// The same elements with axes and strides such that a tensor stored in this layout comes out in logical order.
    fn apply<S: RawData>(self, mut array: ArrayBase<S, IxDyn>) -> ArrayBase<S, IxDyn> {
        let rank = array.ndim();
        match self {
            Layout::Contiguous => {}
            Layout::LengthFirst => array.swap_axes(rank - 3, rank - 2),
            Layout::ChannelMajor => array.swap_axes(rank - 2, rank - 1),
            Layout::EverySecondChannel => array.slice_axis_inplace(Axis(rank - 1), Slice::new(0, None, 2)),
            Layout::Reversed => array.invert_axis(Axis(rank - 2)),
        }
        array
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;
    use attention::{DType, Tensor};
    use ndarray::{ArrayD, IxDyn};

    #[test]
    fn a_layout_changes_strides_and_no_value() {
        let mut next = 0.0;
        let values = ArrayD::from_shape_simple_fn(IxDyn(&[2, 3, 4, 5]), || {
            next += 1.0;
            next
        });
        let strides = [[60, 20, 5, 1], [60, 5, 15, 1], [60, 20, 1, 4], [120, 40, 10, 2], [60, 20, -5, 1]];
        for (layout, strides) in Layout::ALL.into_iter().zip(strides) {
            for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
                let stored = layout.store(&values, dtype);
                assert_eq!(stored.view().to_f64(), values, "{layout:?} {dtype}");
                let found = match &stored {
                    Tensor::F32(array) => array.strides(),
                    Tensor::F64(array) => array.strides(),
                    Tensor::F16(array) => array.strides(),
                    Tensor::Bf16(array) => array.strides(),
                    Tensor::E4m3(_) => unreachable!("it was not asked for"),
                };
                assert_eq!(found, strides, "{layout:?} {dtype}");
            }
        }
    }
}
