//! A flat array that knows which of its bytes were written.

use std::fmt;

/// Bytes, and which of them were written: shared memory, local memory, the inside of an allocation of global memory.
///
/// The system's zeroed pages back it, so what is never touched costs nothing. Callers check bounds against [`Bytes::len`].
pub(crate) struct Bytes {
    data: Vec<u8>,
    /// A bit for each byte, and four bytes beyond so that 32 bits can be read from any of them.
    initialised: Vec<u8>,
}

/// The bits of one access fit 32 bits together with those of the same byte before them.
const STEP: usize = 16;

impl Bytes {
    /// So many bytes, none of them written.
    pub(crate) fn new(len: usize) -> Self {
        Self { data: vec![0; len], initialised: vec![0; Self::bitmap(len)] }
    }

    /// As [`Bytes::new`], or nothing where the system does not give so much.
    pub(crate) fn try_new(len: usize) -> Option<Self> {
        // `vec!` ends the process where there is no memory, and is the one way to zeroed pages: ask first.
        let mut asked: Vec<u8> = Vec::new();
        asked.try_reserve_exact(len.checked_add(Self::bitmap(len))?).ok()?;
        drop(std::hint::black_box(asked));
        Some(Self::new(len))
    }

    const fn bitmap(len: usize) -> usize {
        len.div_ceil(8) + 4
    }

    /// How many.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    /// Reads written bytes.
    ///
    /// # Errors
    /// The first of them that was not written.
    #[inline]
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Result<(), usize> {
        self.check(at, to.len())?;
        copy(to, &self.data[at..at + to.len()]);
        Ok(())
    }

    /// Writes.
    #[inline]
    pub(crate) fn write(&mut self, at: usize, from: &[u8]) {
        copy(&mut self.data[at..at + from.len()], from);
        self.mark(at, from.len());
    }

    /// Writes the same byte everywhere.
    pub(crate) fn fill(&mut self, at: usize, bytes: usize, byte: u8) {
        self.data[at..at + bytes].fill(byte);
        self.mark(at, bytes);
    }

    /// The bytes as they are; those that were never written are 0.
    pub(crate) fn raw(&self, at: usize, bytes: usize) -> &[u8] {
        &self.data[at..at + bytes]
    }

    /// The first byte that was not written is the error.
    #[inline]
    fn check(&self, at: usize, bytes: usize) -> Result<(), usize> {
        let mut at = at;
        let end = at + bytes;
        while at < end {
            let step = (end - at).min(STEP);
            let missing = !(self.bits(at) >> (at % 8)) & ones(step);
            if missing != 0 {
                return Err(at + missing.trailing_zeros() as usize);
            }
            at += step;
        }
        Ok(())
    }

    #[inline]
    fn mark(&mut self, at: usize, bytes: usize) {
        let mut at = at;
        let end = at + bytes;
        if bytes > 4 * STEP {
            // Whole bytes of the bitmap, between their first and last ones.
            let whole = at.next_multiple_of(8)..end / 8 * 8;
            self.initialised[whole.start / 8..whole.end / 8].fill(0xff);
            self.mark(at, whole.start - at);
            at = whole.end;
        }
        while at < end {
            let step = (end - at).min(STEP);
            let bits = self.bits(at) | ones(step) << (at % 8);
            self.initialised[at / 8..at / 8 + 4].copy_from_slice(&bits.to_le_bytes());
            at += step;
        }
    }

    /// The bits from the byte of the bitmap on that has this one's.
    #[inline]
    fn bits(&self, at: usize) -> u32 {
        let mut four = [0; 4];
        four.copy_from_slice(&self.initialised[at / 8..at / 8 + 4]);
        u32::from_le_bytes(four)
    }
}

#[inline]
const fn ones(count: usize) -> u32 {
    (1 << count) - 1
}

/// A copy whose usual lengths are known where it is compiled, and become a move or two.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    match from.len() {
        1 => to[0] = from[0],
        2 => to[..2].copy_from_slice(&from[..2]),
        4 => to[..4].copy_from_slice(&from[..4]),
        8 => to[..8].copy_from_slice(&from[..8]),
        16 => to[..16].copy_from_slice(&from[..16]),
        _ => to.copy_from_slice(from),
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bytes").field("len", &self.len()).finish_non_exhaustive()
    }
}
