//! Ways a tensor may lie in memory, for testing that a rung reads through strides.

use attention::{DType, Tensor, TensorView};
use half::{bf16, f16};
use ndarray::{ArrayD, ArrayViewD, Axis, Slice};

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
            _ => {
                let view = self.apply(values.view());
                let mut stored = ArrayD::zeros(view.raw_dim());
                stored.assign(&view);
                stored
            }
        };
        match dtype {
            DType::F32 => stored.mapv(|x| x as f32).into(),
            DType::F64 => stored.into(),
            DType::F16 => stored.mapv(f16::from_f64).into(),
            DType::Bf16 => stored.mapv(bf16::from_f64).into(),
            DType::E4m3 => unreachable!("no strategy draws E4m3"),
        }
    }

    /// The logical view of a tensor stored in this layout.
    pub(crate) fn view<'a>(self, stored: &'a Tensor) -> TensorView<'a> {
        match stored {
            Tensor::F32(a) => TensorView::F32(self.apply(a.view())),
            Tensor::F64(a) => TensorView::F64(self.apply(a.view())),
            Tensor::F16(a) => TensorView::F16(self.apply(a.view())),
            Tensor::Bf16(a) => TensorView::Bf16(self.apply(a.view())),
            Tensor::E4m3(a) => TensorView::E4m3(self.apply(a.view())),
        }
    }

    fn apply<T>(self, mut view: ArrayViewD<'_, T>) -> ArrayViewD<'_, T> {
        let rank = view.ndim();
        match self {
            Layout::Contiguous => {}
            Layout::LengthFirst => view.swap_axes(rank - 3, rank - 2),
            Layout::ChannelMajor => view.swap_axes(rank - 2, rank - 1),
            Layout::EverySecondChannel => view.slice_axis_inplace(Axis(rank - 1), Slice::new(0, None, 2)),
            Layout::Reversed => view.invert_axis(Axis(rank - 2)),
        }
        view
    }
}
