//! Kernels of warpgroups whose operands come from the test.

use half::{bf16, f16};
use ptx_sim::{Counters, Fault, LaunchError, Memory, Module, Schedule, Shape};

/// Steps that no program here needs.
const STEPS: u64 = 1 << 22;

/// A kernel that copies an image into shared memory, does `body`, and stores registers.
pub(crate) struct Kernel {
    pub(crate) text: String,
    pub(crate) image: Vec<u32>,
    pub(crate) threads: u32,
    /// Numbers that each thread stores.
    pub(crate) stores: u32,
}

/// What makes stores of the copy visible to the async proxy.
pub(crate) const READY: &str = "fence.proxy.async;\nbar.sync 0;";

impl Kernel {
    /// `%r0` is the thread, `%r1` four times its number in its warpgroup, `%d3` the address of the image's words from that one
    /// on, `%d1` of what it stores. The first `copied` words of the image go to shared memory, by the first warpgroup, before
    /// `ready`.
    pub(crate) fn new(image: Vec<u32>, copied: usize, ready: &str, body: &str, stored: &[String]) -> Self {
        let threads = 128;
        let copies: String = (0..copied.div_ceil(128))
            .map(|round| {
                let at = 512 * round;
                format!("ld.global.u32 %r2, [%d3+{at}];\nst.shared.u32 [%r1+{at}], %r2;\n")
            })
            .collect();
        let stores: String = (0..)
            .zip(stored)
            .map(|(place, register)| format!("st.global.b32 [%d1+{}], {register};\n", 512 * place))
            .collect();
        let text = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry kernel(.param .u64 out, .param .u64 in)\n{{\n\
             .reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<40>;\n.reg .b32 %c<64>;\n.reg .f32 %f<256>;\n\
             .reg .b64 %d<20>;\n.shared .align 1024 .b8 tile[{}];\n\
             ld.param.u64 %d0, [out];\nld.param.u64 %d2, [in];\nmov.u32 %r0, %tid.x;\nand.b32 %r1, %r0, 127;\nmul.lo.s32 %r1, %r1, 4;\n\
             cvt.u64.u32 %d1, %r1;\nadd.s64 %d3, %d2, %d1;\nadd.s64 %d1, %d0, %d1;\n\
             shr.u32 %r3, %r0, 7;\nmul.wide.u32 %d2, %r3, {};\nadd.s64 %d1, %d1, %d2;\n\
             setp.ne.u32 %p8, %r3, 0;\n@%p8 bra $L_copied;\n{copies}$L_copied:\n{ready}\n{body}\n{stores}ret;\n}}\n",
            (512 * copied.div_ceil(128)).max(1024),
            512 * stored.len()
        );
        Kernel { text, image, threads, stores: stored.len() as u32 }
    }

    /// The line of the text that has these words.
    pub(crate) fn line(&self, words: &str) -> u32 {
        let mut lines = (1..).zip(self.text.lines()).filter(|(_, line)| line.contains(words));
        let (line, _) = lines.next().unwrap_or_else(|| panic!("no line has {words}"));
        assert!(lines.next().is_none(), "{words} is on two lines");
        line
    }

    /// What each thread stores, by warpgroup, register and thread.
    pub(crate) fn run(&self, seed: u64) -> Result<(Vec<u32>, Counters), Box<Fault>> {
        let mut memory = Memory::new(1 << 22);
        let module = Module::load(&self.text, &mut memory).unwrap_or_else(|error| panic!("{error}\n{}", self.text));
        let bytes = 4 * u64::from(self.threads * self.stores.max(1));
        let (out, image) = (memory.alloc(bytes).unwrap(), memory.alloc(4 * self.image.len().max(128) as u64 + 512));
        let image = image.unwrap();
        memory.fill(out, bytes, 0).unwrap();
        memory.fill(image, 4 * self.image.len().max(128) as u64 + 512, 0).unwrap();
        let words: Vec<u8> = self.image.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write(image, &words).unwrap();
        let shape = Shape { grid: [1, 1, 1], block: [self.threads, 1, 1], shared_bytes: 0 };
        let schedule = Schedule { seed, steps: STEPS };
        let kernel = module.kernel("kernel").unwrap();
        let arguments: [&[u8]; 2] = [&out.to_le_bytes(), &image.to_le_bytes()];
        let counters = match kernel.launch(&mut memory, shape, &arguments, schedule) {
            Ok(counters) => counters,
            Err(LaunchError::Fault(fault)) => return Err(fault),
            Err(refused) => panic!("{refused}"),
        };
        let mut stored = vec![0; bytes as usize];
        memory.read(out, &mut stored).unwrap();
        Ok((stored.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect(), counters))
    }
}

/// The type of A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    F16,
    Bf16,
}

impl Type {
    pub(crate) fn bits(self, x: f32) -> u16 {
        match self {
            Type::F16 => f16::from_f32(x).to_bits(),
            Type::Bf16 => bf16::from_f32(x).to_bits(),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Type::F16 => "f16",
            Type::Bf16 => "bf16",
        }
    }
}

/// How an operand lies in shared memory: bytes of a swizzled row, 16 for none, and along which dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) row: usize,
    pub(crate) transposed: bool,
}

pub(crate) const LAYOUTS: [Layout; 8] = {
    let mut layouts = [Layout { row: 16, transposed: false }; 8];
    let mut place = 0;
    while place < 8 {
        layouts[place] = Layout { row: 16 << (place / 2), transposed: place % 2 == 1 };
        place += 1;
    }
    layouts
};

impl Layout {
    /// Bytes of an operand of so many rows of M or N.
    pub(crate) fn bytes(self, mn: usize) -> usize {
        match (self.row, self.transposed) {
            (16, _) => mn * 32,
            (row, false) => mn * row,
            (row, true) => mn.div_ceil(row / 2) * 16 * row,
        }
    }

    /// A descriptor of an operand that begins there, as the documentation of the layouts has it.
    pub(crate) fn descriptor(self, start: usize, mn: usize) -> u64 {
        let (leading, stride) = match (self.row, self.transposed) {
            (16, false) => (128, 256),
            (16, true) => (mn * 16, 128),
            (row, false) => (16, 8 * row),
            (row, true) => (16 * row, 8 * row),
        };
        let mode = match self.row {
            16 => 0,
            32 => 3,
            64 => 2,
            _ => 1,
        };
        (start as u64 >> 4) | (leading as u64 >> 4) << 16 | (stride as u64 >> 4) << 32 | mode << 62
    }

    /// Where an element lies: pieces of 16 bytes of a row, whose places are changed by the number of the row.
    fn place(self, mn: usize, rows: usize, k: usize) -> usize {
        let (line, along) = if self.transposed { (k, mn) } else { (mn, k) };
        let (piece, byte) = (along / 8, along % 8 * 2);
        if self.row == 16 {
            // Core matrices of eight lines: one beside the other along K, and then along M or N; transposed, the other way.
            let core = if self.transposed { k / 8 * (rows / 8) + mn / 8 } else { mn / 8 * 2 + k / 8 };
            return 128 * core + line % 8 * 16 + byte;
        }
        let pieces = self.row / 16;
        let change = line % 8 * self.row / 128;
        let atom = if self.transposed { along / (self.row / 2) * 16 * self.row } else { 0 };
        atom + line * self.row + ((piece % pieces) ^ change) * 16 + byte
    }

    /// The operand's bytes: what is no element of it is NaN.
    pub(crate) fn image(self, ty: Type, rows: usize, element: impl Fn(usize, usize) -> f32) -> Vec<u32> {
        let mut bytes = vec![0xff; self.bytes(rows).next_multiple_of(1024)];
        for mn in 0..rows {
            for k in 0..16 {
                let at = self.place(mn, rows, k);
                bytes[at..at + 2].copy_from_slice(&ty.bits(element(mn, k)).to_le_bytes());
            }
        }
        bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect()
    }
}

/// Row and column of a number of D, by register and thread, of f32.
pub(crate) fn place_of(register: usize, thread: usize) -> (usize, usize) {
    let (warp, lane) = (thread / 32, thread % 32);
    let row = 16 * warp + lane / 4 + 8 * (register / 2 % 2);
    (row, register / 4 * 8 + lane % 4 * 2 + register % 2)
}
