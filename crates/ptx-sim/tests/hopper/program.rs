//! Small programs for sm_90a, run.

use ptx_sim::{Fault, FaultKind, LaunchError, Memory, Module, Schedule, Shape};

/// Steps that no program here needs.
const STEPS: u64 = 1 << 18;

/// Schedules of a right program, and of a wrong one.
const SEEDS: u64 = 100;
const WRONG_SEEDS: u64 = 20;

/// Makes the bytes of a tensor map from the address of the input and that of the output.
type MakeMap = Box<dyn Fn(u64, u64) -> [u8; 128]>;

/// A kernel with an output of words, an input of bytes, and a tensor map.
pub(crate) struct Program {
    text: String,
    threads: u32,
    words: usize,
    input: Vec<u8>,
    map: MakeMap,
}

impl Program {
    /// A kernel of this body. `tile`, 16 KiB of shared memory, begins at address 0, `bars` behind it. `%d1` is the thread's word
    /// of the output, `%d9` the input, `%r0` the thread, `%r3` four times that. The input's words are 100, 101, ...
    pub(crate) fn new(threads: u32, body: &str) -> Self {
        let text = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n\
             .visible .entry kernel(.param .u64 out, .param .u64 in, .param .align 64 .b8 map[128])\n{{\n\
             .reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<40>;\n.reg .b64 %d<20>;\n\
             .shared .align 1024 .b8 tile[16384];\n.shared .align 8 .b8 bars[64];\n\
             ld.param.u64 %d0, [out];\nld.param.u64 %d9, [in];\nmov.u32 %r0, %tid.x;\nmul.wide.u32 %d1, %r0, 4;\n\
             add.s64 %d1, %d0, %d1;\nmul.lo.s32 %r3, %r0, 4;\nsetp.ne.u32 %p1, %r0, 0;\n{body}\nret;\n}}\n"
        );
        let input = (100..100 + 4096u32).flat_map(u32::to_le_bytes).collect();
        Program { text, threads, words: threads as usize, input, map: Box::new(|_, _| [0; 128]) }
    }

    pub(crate) fn words(self, words: usize) -> Self {
        Program { words, ..self }
    }

    pub(crate) fn input(self, input: Vec<u8>) -> Self {
        Program { input, ..self }
    }

    pub(crate) fn map(self, map: impl Fn(u64, u64) -> [u8; 128] + 'static) -> Self {
        Program { map: Box::new(map), ..self }
    }

    /// Runs it under a seed: the words of the output, which are 0 before.
    pub(crate) fn run(&self, seed: u64) -> Result<Vec<u32>, Box<Fault>> {
        let mut memory = Memory::new(1 << 20);
        let module = Module::load(&self.text, &mut memory).unwrap_or_else(|error| panic!("{error}\n{}", self.text));
        let bytes = 4 * self.words as u64;
        let out = memory.alloc(bytes).unwrap();
        memory.fill(out, bytes, 0).unwrap();
        let input = memory.alloc(self.input.len() as u64).unwrap();
        memory.write(input, &self.input).unwrap();
        let shape = Shape { grid: [1, 1, 1], block: [self.threads, 1, 1], shared_bytes: 0 };
        let arguments: [&[u8]; 3] = [&out.to_le_bytes(), &input.to_le_bytes(), &(self.map)(input, out)];
        let kernel = module.kernel("kernel").unwrap();
        match kernel.launch(&mut memory, shape, &arguments, Schedule { seed, steps: STEPS }) {
            Ok(_) => {}
            Err(LaunchError::Fault(fault)) => return Err(fault),
            Err(refused) => panic!("{refused}"),
        }
        let mut read = vec![0; bytes as usize];
        memory.read(out, &mut read).unwrap();
        Ok(read.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect())
    }

    /// The lines of the text that have these words.
    fn lines(&self, words: &str) -> Vec<u32> {
        (1..).zip(self.text.lines()).filter(|(_, line)| line.contains(words)).map(|(line, _)| line).collect()
    }
}

/// It runs under every schedule, and leaves what `wanted` says of each word.
pub(crate) fn is_right(program: &Program, wanted: impl Fn(u32) -> u32) {
    let wanted: Vec<u32> = (0..program.words as u32).map(wanted).collect();
    for seed in 0..SEEDS {
        match program.run(seed) {
            Ok(out) => assert_eq!(out, wanted, "seed {seed}"),
            Err(fault) => panic!("seed {seed}: {fault}\n{}", program.text),
        }
    }
}

/// Under every schedule a fault of one of these kinds, at a line with `<- at`, with an earlier access at one with `<- with` if
/// the text has any. Of two accesses that nothing orders, either may come first.
pub(crate) fn is_found(program: &Program, kinds: &[FaultKind]) {
    let (here, other) = (program.lines("<- at"), program.lines("<- with"));
    for seed in 0..WRONG_SEEDS {
        let fault = program.run(seed).expect_err(&format!("seed {seed}: no fault, wanted {kinds:?}\n{}", program.text));
        assert!(kinds.contains(&fault.kind), "seed {seed}, wanted {kinds:?}: {fault}");
        let at = fault.at.as_ref().map(|site| site.ptx_line).unwrap();
        let earlier = fault.earlier.as_ref().map(|(_, site)| site.ptx_line);
        let with = |lines: &[u32]| earlier.map_or(other.is_empty(), |line| lines.contains(&line));
        let swapped = kinds.contains(&FaultKind::Race) && other.contains(&at) && with(&here);
        let found = here.contains(&at) && (with(&other) || fault.kind == FaultKind::Uninitialised);
        assert!(found || swapped, "seed {seed}, wanted lines {here:?} and {other:?}: {fault}");
    }
}

/// The report of a fault under seed 1.
pub(crate) fn report(program: &Program) -> String {
    program.run(1).expect_err("a fault").to_string()
}

/// A loop that waits for a phase, by its parity, of the barrier at `[bars]` plus a distance.
pub(crate) fn wait(label: &str, bar: u32, parity: &str) -> String {
    format!("$L_{label}:\nmbarrier.try_wait.parity.shared::cta.b64 %p7, [bars+{bar}], {parity};\n@!%p7 bra $L_{label};")
}
