//! Small programs, run.

use ptx_sim::{Counters, Fault, LaunchError, Memory, Module, Schedule, Shape};

/// A program whose parameter `out` is an array of `u32`.
pub(crate) struct Program {
    text: String,
    pub(crate) shape: Shape,
}

/// Steps that no program here needs.
const STEPS: u64 = 1 << 20;

impl Program {
    /// A kernel of this body, with registers of every kind, for so many threads a block. `{shared}` bytes of shared memory begin
    /// at address 0.
    pub(crate) fn new(threads: u32, body: &str) -> Self {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry kernel(.param .u64 out)\n{{\n\
             .reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<40>;\n.reg .f32 %f<9>;\n.reg .b64 %d<20>;\n\
             .shared .align 16 .b8 tile[4096];\n\
             ld.param.u64 %d0, [out];\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\n\
             mad.lo.s32 %r2, %r1, {threads}, %r0;\nmul.wide.u32 %d1, %r2, 4;\nadd.s64 %d1, %d0, %d1;\n\
             mul.lo.s32 %r3, %r0, 4;\n{body}\n}}\n"
        );
        let shape = Shape { grid: [1, 1, 1], block: [threads, 1, 1], shared_bytes: 0 };
        Program { text, shape }
    }

    pub(crate) fn blocks(mut self, blocks: u32) -> Self {
        self.shape.grid[0] = blocks;
        self
    }

    /// The line of the text that has these words.
    pub(crate) fn line(&self, words: &str) -> u32 {
        let mut lines = (1..).zip(self.text.lines()).filter(|(_, line)| line.contains(words));
        let (line, _) = lines.next().unwrap_or_else(|| panic!("no line has {words}"));
        assert!(lines.next().is_none(), "{words} is on two lines");
        line
    }

    /// The line of the earlier access, if the text has one.
    pub(crate) fn with(&self) -> Option<u32> {
        self.text.contains("<- with").then(|| self.line("<- with"))
    }

    /// Runs it under a seed: `out` as it is afterwards, one number a thread, all of which are written before.
    pub(crate) fn run(&self, seed: u64) -> Result<(Vec<u32>, Counters), Box<Fault>> {
        let mut memory = Memory::new(1 << 20);
        let module = Module::load(&self.text, &mut memory).unwrap_or_else(|error| panic!("{error}\n{}", self.text));
        let count = (self.shape.grid[0] * self.shape.block[0]) as usize;
        let out = memory.alloc(4 * count as u64).unwrap();
        memory.fill(out, 4 * count as u64, 0).unwrap();
        let kernel = module.kernel("kernel").unwrap();
        let schedule = Schedule { seed, steps: STEPS };
        let counters = match kernel.launch(&mut memory, self.shape, &[&out.to_le_bytes()], schedule) {
            Ok(counters) => counters,
            Err(LaunchError::Fault(fault)) => return Err(fault),
            Err(refused) => panic!("{refused}"),
        };
        let mut bytes = vec![0; 4 * count];
        memory.read(out, &mut bytes).unwrap();
        Ok((bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect(), counters))
    }
}
