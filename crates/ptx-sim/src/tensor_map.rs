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
const MOST_SIZE: u64 = 1 << 32;
const MOST_STRIDE: u64 = 1 << 40;
const MOST_BOX: u32 = 256;
const MOST_ELEMENT_STRIDE: u32 = 8;

/// A tensor in global memory and the boxes that copies move, the innermost dimension first.
///
/// ```
/// use ptx_sim::{Element, Interleave, OutOfBoundsFill, Swizzle, TensorMap};
///
/// // 1000 rows of 128 halves, of which copies move 64 columns of 32 rows.
/// let map = TensorMap {
///     element: Element::F16,
///     address: 0x7000_0000_0000,
///     sizes: &[128, 1000],
///     strides: &[256],
///     box_sizes: &[64, 32],
///     element_strides: &[1, 1],
///     interleave: Interleave::None,
///     swizzle: Swizzle::B128,
///     fill: OutOfBoundsFill::Zeros,
/// };
/// assert_eq!(map.encode().unwrap().len(), 128);
/// let wide = TensorMap { box_sizes: &[128, 32], ..map };
/// let refused = wide.encode().unwrap_err().to_string();
/// assert_eq!(refused, "tensor map: box_sizes[0]: found 256 bytes, wanted at most the 128 of the swizzle");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap<'a> {
    /// What it is made of.
    pub element: Element,
    /// Of its first element.
    pub address: u64,
    /// Elements along each dimension.
    pub sizes: &'a [u64],
    /// Bytes from one to the next along each dimension but the innermost, whose elements lie side by side.
    pub strides: &'a [u64],
    /// Elements of a box along each dimension.
    pub box_sizes: &'a [u32],
    /// Of how many elements along a dimension one is taken. Only 1 is simulated.
    pub element_strides: &'a [u32],
    /// How channels lie in slices. Only none is simulated.
    pub interleave: Interleave,
    /// How rows of a box are mixed in shared memory.
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
    /// Single precision, of which tensor cores read the upper 19 bits. Copied as it is.
    Tf32,
}

/// How channels lie in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interleave {
    /// They do not.
    None,
    /// 16 bytes a slice.
    B16,
    /// 32 bytes a slice.
    B32,
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
    /// NaN, of floating-point elements.
    Nan,
}

/// A map that a device cannot have, or that is not simulated.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TensorMapError {
    /// An argument against the rules.
    #[error("tensor map: {argument}: found {found}, wanted {wanted}")]
    Rule {
        /// Which argument.
        argument: String,
        /// What it is.
        found: String,
        /// What it may be.
        wanted: String,
    },
    /// An argument that a device takes, and this one does not.
    #[error("tensor map: {argument}: found {found}, which is not simulated")]
    NotSimulated {
        /// Which argument.
        argument: String,
        /// What it is.
        found: String,
    },
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

    /// A NaN, of floating-point numbers.
    fn nan(self) -> Option<u64> {
        match self {
            Element::F16 | Element::Bf16 => Some(0x7fff),
            Element::F32 | Element::Tf32 => Some(0x7fff_ffff),
            Element::F64 => Some(0x7fff_ffff_ffff_ffff),
            _ => None,
        }
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

impl TensorMap<'_> {
    /// The map as a kernel takes it: a parameter of 128 bytes, aligned to 64.
    ///
    /// # Errors
    /// The first argument that is against the rules, or not simulated.
    pub fn encode(&self) -> Result<[u8; BYTES], TensorMapError> {
        self.check_lengths()?;
        self.check_tensor()?;
        self.check_box()?;
        let fill = match self.fill {
            OutOfBoundsFill::Zeros => 0,
            OutOfBoundsFill::Nan => self
                .element
                .nan()
                .ok_or_else(|| rule("fill", format!("NaN of {:?}", self.element), "floating-point elements"))?,
        };
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(MAGIC);
        bytes.extend([self.sizes.len() as u8, self.element.bytes() as u8, self.swizzle as u8, 0]);
        bytes.extend(fill.to_le_bytes());
        bytes.extend(self.address.to_le_bytes());
        // Sizes are at least 1, and one less fits 32 bits.
        padded(self.sizes, 1).for_each(|size| bytes.extend((size as u32).wrapping_sub(1).to_le_bytes()));
        padded(self.strides, 0).for_each(|stride| bytes.extend(stride.to_le_bytes()));
        padded(self.box_sizes, 1).for_each(|size| bytes.extend((size as u16).to_le_bytes()));
        let mut map = [0; BYTES];
        map[..bytes.len()].copy_from_slice(&bytes);
        let sum = checksum(&map[..CHECKSUM]);
        map[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        Ok(map)
    }

    fn check_lengths(&self) -> Result<(), TensorMapError> {
        let rank = self.sizes.len();
        if !(1..=RANK).contains(&rank) {
            return Err(rule("sizes", format!("{rank} dimensions"), format!("1 to {RANK}")));
        }
        let lengths = [
            ("strides", self.strides.len(), rank - 1),
            ("box_sizes", self.box_sizes.len(), rank),
            ("element_strides", self.element_strides.len(), rank),
        ];
        match lengths.iter().find(|(_, found, wanted)| found != wanted) {
            Some((what, found, wanted)) => Err(rule(what, format!("{found} dimensions"), wanted)),
            None => Ok(()),
        }
    }

    fn check_tensor(&self) -> Result<(), TensorMapError> {
        if self.interleave != Interleave::None {
            if self.sizes.len() < 3 {
                let found = format!("{:?} of {} dimensions", self.interleave, self.sizes.len());
                return Err(rule("interleave", found, "3 or more"));
            }
            return Err(not_simulated("interleave", format!("{:?}", self.interleave)));
        }
        if !self.address.is_multiple_of(UNIT) {
            return Err(rule("address", format!("{:#x}", self.address), format!("a multiple of {UNIT}")));
        }
        for (axis, size) in self.sizes.iter().enumerate() {
            if !(1..=MOST_SIZE).contains(size) {
                return Err(rule(format!("sizes[{axis}]"), size, format!("1 to {MOST_SIZE}")));
            }
        }
        for (axis, stride) in self.strides.iter().enumerate() {
            if !stride.is_multiple_of(UNIT) || *stride >= MOST_STRIDE {
                let wanted = format!("a multiple of {UNIT} below {MOST_STRIDE}");
                return Err(rule(format!("strides[{axis}]"), format!("{stride} bytes"), wanted));
            }
        }
        Ok(())
    }

    fn check_box(&self) -> Result<(), TensorMapError> {
        for (axis, size) in self.box_sizes.iter().enumerate() {
            if !(1..=MOST_BOX).contains(size) {
                return Err(rule(format!("box_sizes[{axis}]"), size, format!("1 to {MOST_BOX}")));
            }
        }
        for (axis, stride) in self.element_strides.iter().enumerate() {
            let argument = format!("element_strides[{axis}]");
            match *stride {
                1 => {}
                2..=MOST_ELEMENT_STRIDE => return Err(not_simulated(argument, stride)),
                _ => return Err(rule(argument, stride, format!("1 to {MOST_ELEMENT_STRIDE}"))),
            }
        }
        let row = u64::from(self.box_sizes[0]) * u64::from(self.element.bytes());
        let found = format!("{row} bytes");
        if !row.is_multiple_of(UNIT) {
            return Err(rule("box_sizes[0]", found, format!("a multiple of {UNIT}")));
        }
        match self.swizzle.width() {
            Some(width) if row > width => {
                Err(rule("box_sizes[0]", found, format!("at most the {width} of the swizzle")))
            }
            // How such rows lie is not said where the rules are.
            Some(width) if row < width => {
                Err(not_simulated("box_sizes[0]", format!("{found}, less than the {width} of the swizzle")))
            }
            _ => Ok(()),
        }
    }
}

/// A map as the device reads it, the innermost dimension first.
pub(crate) struct Layout {
    pub(crate) rank: usize,
    pub(crate) element_bytes: u32,
    pub(crate) swizzle: Swizzle,
    /// An element outside of the tensor.
    pub(crate) fill: [u8; 8],
    pub(crate) address: u64,
    pub(crate) sizes: [u64; RANK],
    /// Of the innermost dimension, the size of an element.
    pub(crate) strides: [u64; RANK],
    pub(crate) box_sizes: [u32; RANK],
}

impl Layout {
    /// What [`TensorMap::encode`] wrote; `None` for all else.
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
            if axis == 0 { element_bytes.into() } else { number(28 + 4 * RANK + 8 * (axis - 1), 8) }
        };
        let boxes = 28 + 4 * RANK + 8 * (RANK - 1);
        let layout = Layout {
            rank: body[8].into(),
            element_bytes,
            swizzle: Swizzle::ALL[usize::from(body[10] % 4)],
            fill: number(12, 8).to_le_bytes(),
            address: number(20, 8),
            sizes: std::array::from_fn(|axis| number(28 + 4 * axis, 4) + 1),
            strides: std::array::from_fn(strides),
            box_sizes: std::array::from_fn(|axis| number(boxes + 2 * axis, 2) as u32),
        };
        // A checksum can be forged.
        let whole = (1..=RANK).contains(&layout.rank)
            && matches!(element_bytes, 1 | 2 | 4 | 8)
            && layout.box_sizes.iter().all(|size| (1..=MOST_BOX).contains(size))
            && (layout.box_sizes[0] * element_bytes).is_multiple_of(UNIT as u32);
        whole.then_some(layout)
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

fn rule(argument: impl ToString, found: impl ToString, wanted: impl ToString) -> TensorMapError {
    let (argument, found, wanted) = (argument.to_string(), found.to_string(), wanted.to_string());
    TensorMapError::Rule { argument, found, wanted }
}

fn not_simulated(argument: impl ToString, found: impl ToString) -> TensorMapError {
    TensorMapError::NotSimulated { argument: argument.to_string(), found: found.to_string() }
}
