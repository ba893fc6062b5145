//! Tensor maps: what a host says of a tensor for the copies of its boxes (CUDA Driver API, "Tensor Map Object Management").
//!
//! A kernel has a map as 128 bytes that mean something to the device alone. What a real device has in them is not public; here
//! they are the arguments, between a magic number and a checksum, so that a copy whose map is none, or was changed, is
//! a fault. The rules are those of `cuTensorMapEncodeTiled`.

use thiserror::Error;

/// Bytes of a map.
const BYTES: usize = 128;
/// Dimensions, at most.
const RANK: usize = 5;
const MAGIC: [u8; 8] = *b"simTMAP1";
/// Where the checksum of the bytes before it stands.
const CHECKSUM: usize = BYTES - 8;
/// What addresses, strides and the bytes of a box's row are multiples of.
const UNIT: u64 = 16;
const MOST_LENGTH: u64 = 1 << 32;
const MOST_STRIDE: u64 = 1 << 40;
const MOST_SIDE: u32 = 256;

/// A tensor in global memory, and the tile of it that one copy moves. The innermost axis comes first, whose elements lie side by
/// side. Along it a tile begins at a multiple of 16 bytes. One that is loaded may begin before the tensor, along any axis; one that
/// is stored may not. A kernel that asks for another place ends.
///
/// ```
/// use ptx_sim::{Element, OutOfBoundsFill, Swizzle, Tiling};
///
/// // 1000 rows of 128 halves, of which copies move 64 columns of 32 rows.
/// let tiling = Tiling {
///     element: Element::F16,
///     address: 0x7000_0000_0000,
///     lengths: &[128, 1000],
///     strides: &[256],
///     tile: &[64, 32],
///     swizzle: Swizzle::B128,
///     fill: OutOfBoundsFill::Zeros,
/// };
/// assert_eq!(tiling.encode().unwrap().len(), 128);
/// let wide = Tiling { tile: &[128, 32], ..tiling };
/// let refused = wide.encode().unwrap_err().to_string();
/// assert_eq!(refused, "tensor map: tile[0]: found 256 bytes, wanted at most the 128 of the swizzle");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling<'a> {
    /// What it is made of.
    pub element: Element,
    /// Of its first element, a multiple of 16 above 0.
    pub address: u64,
    /// Elements along each of one to five axes, 1 to 2^32. A store writes the last 16 bytes of a row whole, behind its end too.
    pub lengths: &'a [u64],
    /// Bytes from one element to the next along each axis but the innermost: multiples of 16 above 0 and below 2^40.
    pub strides: &'a [u64],
    /// Elements of the tile along each axis, 1 to 256; bytes of a row are a multiple of 16 within the swizzle.
    pub tile: &'a [u32],
    /// How rows of a tile are mixed in shared memory.
    pub swizzle: Swizzle,
    /// What is read outside of the tensor.
    pub fill: OutOfBoundsFill,
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 8 bits with no sign.
    U8,
    /// 16 bits with no sign.
    U16,
    /// 32 bits with no sign.
    U32,
    /// 32 bits with a sign.
    I32,
    /// 64 bits with no sign.
    U64,
    /// 64 bits with a sign.
    I64,
    /// IEEE half precision.
    F16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// The upper half of single precision.
    Bf16,
    /// Single precision, of which tensor cores read the upper 19 bits. A load rounds to these, to the nearest and ties to even,
    /// and makes any NaN `0x7fffe000`; a store changes nothing.
    Tf32,
}

/// How rows of a box are mixed in shared memory, so that columns lie in different banks: bits 4 and up of a byte's address are
/// changed by those from bit 7 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// They are not.
    None,
    /// One bit: two places of 16 bytes change, over 256 bytes.
    B32,
    /// Two bits: four places, over 512 bytes.
    B64,
    /// Three bits: eight places, over 1024 bytes.
    B128,
}

/// What is read outside of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfBoundsFill {
    /// Zeros.
    Zeros,
    /// NaN, of floating-point elements: `0x7ff7` over and over.
    Nan,
}

/// An argument against the rules, or of what is not simulated.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("tensor map: {argument}: found {found}, wanted {wanted}")]
pub struct TilingError {
    /// Which argument.
    pub argument: String,
    /// What it is.
    pub found: String,
    /// What it may be.
    pub wanted: String,
}

impl Element {
    /// Its size.
    pub fn bytes(self) -> u32 {
        match self {
            Element::U8 => 1,
            Element::U16 | Element::F16 | Element::Bf16 => 2,
            Element::U32 | Element::I32 | Element::F32 | Element::Tf32 => 4,
            Element::U64 | Element::I64 | Element::F64 => 8,
        }
    }

    fn has_nan(self) -> bool {
        matches!(self, Element::F16 | Element::Bf16 | Element::F32 | Element::Tf32 | Element::F64)
    }
}

impl Swizzle {
    const ALL: [Self; 4] = [Self::None, Self::B32, Self::B64, Self::B128];

    /// The bytes that a row of a box has at most, if there is a swizzle.
    fn width(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 => Some(128),
        }
    }
}

impl Tiling<'_> {
    /// The map as a kernel on the simulated device takes it: a parameter of 128 bytes, aligned to 64.
    ///
    /// # Errors
    /// As of [`check`](Self::check); and rows narrower than their swizzle, of which no rule says how they lie.
    pub fn encode(&self) -> Result<[u8; BYTES], TilingError> {
        self.check()?;
        if let Some(width) = self.swizzle.width().filter(|width| self.row_bytes() < *width) {
            let wanted = format!("the {width} of the swizzle: narrower rows are not simulated");
            return Err(rule("tile[0]", format!("{} bytes", self.row_bytes()), wanted));
        }
        let fill: u16 = match self.fill {
            OutOfBoundsFill::Zeros => 0,
            OutOfBoundsFill::Nan => 0x7ff7,
        };
        let rounds = self.element == Element::Tf32;
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(MAGIC);
        bytes.extend([self.lengths.len() as u8, self.element.bytes() as u8, self.swizzle as u8, rounds.into()]);
        bytes.extend(fill.to_le_bytes());
        bytes.extend(self.address.to_le_bytes());
        // Lengths are at least 1, and one less fits 32 bits.
        padded(self.lengths, 1).for_each(|length| bytes.extend((length as u32).wrapping_sub(1).to_le_bytes()));
        padded(self.strides, 0).for_each(|stride| bytes.extend(stride.to_le_bytes()));
        padded(self.tile, 1).for_each(|side| bytes.extend((side as u16).to_le_bytes()));
        let mut map = [0; BYTES];
        map[..bytes.len()].copy_from_slice(&bytes);
        let sum = checksum(&map[..CHECKSUM]);
        map[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        Ok(map)
    }

    /// The rules of `cuTensorMapEncodeTiled`, which itself does not say which was broken.
    ///
    /// # Errors
    /// The first argument that is against one.
    pub fn check(&self) -> Result<(), TilingError> {
        self.check_tensor()?;
        self.check_tile()?;
        match self.fill {
            OutOfBoundsFill::Nan if !self.element.has_nan() => {
                Err(rule("fill", format!("NaN of {:?}", self.element), "floating-point elements"))
            }
            _ => Ok(()),
        }
    }

    fn check_tensor(&self) -> Result<(), TilingError> {
        let rank = self.lengths.len();
        if !(1..=RANK).contains(&rank) {
            return Err(rule("lengths", format!("{rank} axes"), format!("1 to {RANK}")));
        }
        for (what, found, wanted) in [("strides", self.strides.len(), rank - 1), ("tile", self.tile.len(), rank)] {
            if found != wanted {
                return Err(rule(what, format!("{found} axes"), wanted));
            }
        }
        if self.address == 0 || !self.address.is_multiple_of(UNIT) {
            return Err(rule("address", format!("{:#x}", self.address), format!("a multiple of {UNIT} above 0")));
        }
        for (axis, length) in self.lengths.iter().enumerate() {
            if !(1..=MOST_LENGTH).contains(length) {
                return Err(rule(format!("lengths[{axis}]"), length, format!("1 to {MOST_LENGTH}")));
            }
        }
        for (axis, stride) in self.strides.iter().enumerate() {
            if *stride == 0 || !stride.is_multiple_of(UNIT) || *stride >= MOST_STRIDE {
                let wanted = format!("a multiple of {UNIT} above 0 and below {MOST_STRIDE}");
                return Err(rule(format!("strides[{axis}]"), format!("{stride} bytes"), wanted));
            }
        }
        Ok(())
    }

    fn check_tile(&self) -> Result<(), TilingError> {
        for (axis, side) in self.tile.iter().enumerate() {
            if !(1..=MOST_SIDE).contains(side) {
                return Err(rule(format!("tile[{axis}]"), side, format!("1 to {MOST_SIDE}")));
            }
        }
        let (row, found) = (self.row_bytes(), format!("{} bytes", self.row_bytes()));
        if !row.is_multiple_of(UNIT) {
            return Err(rule("tile[0]", found, format!("a multiple of {UNIT}")));
        }
        match self.swizzle.width() {
            Some(width) if row > width => Err(rule("tile[0]", found, format!("at most the {width} of the swizzle"))),
            _ => Ok(()),
        }
    }

    /// Bytes of a row of the tile.
    fn row_bytes(&self) -> u64 {
        u64::from(self.tile[0]) * u64::from(self.element.bytes())
    }
}

/// A map as the device reads it, the innermost dimension first.
pub(crate) struct Layout {
    pub(crate) rank: usize,
    pub(crate) element_bytes: u32,
    pub(crate) swizzle: Swizzle,
    /// Loads round elements to TF32.
    pub(crate) rounds: bool,
    /// What is outside of the tensor, over and over.
    pub(crate) fill: [u8; 2],
    pub(crate) address: u64,
    pub(crate) sizes: [u64; RANK],
    /// Of the innermost dimension, the size of an element.
    pub(crate) strides: [u64; RANK],
    pub(crate) box_sizes: [u32; RANK],
}

impl Layout {
    /// What [`Tiling::encode`] wrote; `None` for all else.
    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let (body, sum) = bytes.split_at(CHECKSUM);
        if body[..8] != MAGIC || checksum(body).to_le_bytes() != *sum {
            return None;
        }
        let number = |at: usize, len: usize| {
            body[at..at + len].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let element_bytes = u32::from(body[9]);
        let strides = |axis: usize| {
            if axis == 0 { element_bytes.into() } else { number(22 + 4 * RANK + 8 * (axis - 1), 8) }
        };
        let boxes = 22 + 4 * RANK + 8 * (RANK - 1);
        let layout = Layout {
            rank: body[8].into(),
            element_bytes,
            swizzle: Swizzle::ALL[usize::from(body[10] % 4)],
            rounds: body[11] != 0,
            fill: [body[12], body[13]],
            address: number(14, 8),
            sizes: std::array::from_fn(|axis| number(22 + 4 * axis, 4) + 1),
            strides: std::array::from_fn(strides),
            box_sizes: std::array::from_fn(|axis| number(boxes + 2 * axis, 2) as u32),
        };
        // A checksum can be forged.
        let whole = (1..=RANK).contains(&layout.rank)
            && matches!(element_bytes, 1 | 2 | 4 | 8)
            && (element_bytes == 4 || !layout.rounds)
            && layout.box_sizes.iter().all(|size| (1..=MOST_SIDE).contains(size))
            && (layout.box_sizes[0] * element_bytes).is_multiple_of(UNIT as u32);
        whole.then_some(layout)
    }

    /// The tensor as an H200 stores to it: a row's last 16 bytes are written whole, those behind its end from the tile too.
    pub(crate) fn stored(mut self) -> Self {
        self.sizes[0] = self.sizes[0].next_multiple_of(UNIT / u64::from(self.element_bytes));
        self
    }

    /// The bytes of a box.
    pub(crate) fn box_bytes(&self) -> u64 {
        self.box_sizes[..self.rank].iter().map(|size| u64::from(*size)).product::<u64>() * u64::from(self.element_bytes)
    }
}

/// The numbers of all dimensions that a map can have, those that it does not have at the end.
fn padded<T: Copy + Into<u64>>(numbers: &[T], missing: u64) -> impl Iterator<Item = u64> {
    let wanted = if missing == 0 { RANK - 1 } else { RANK };
    let numbers: Vec<u64> = numbers.iter().map(|number| (*number).into()).collect();
    (0..wanted).map(move |axis| numbers.get(axis).copied().unwrap_or(missing))
}

/// FNV-1a, whose every bit depends on every byte.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn rule(argument: impl ToString, found: impl ToString, wanted: impl ToString) -> TilingError {
    TilingError { argument: argument.to_string(), found: found.to_string(), wanted: wanted.to_string() }
}
