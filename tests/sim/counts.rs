//! What kernels do, counted, is what formulas say beforehand.

use crate::edit::{dropped, edited, first_operand, second_operand};
use crate::mutants::fa3::{FA3 as FA3_FILE, ZEROS};
use crate::mutants::mma::JOIN_M;
use attention::{Attention, DType, Mask, NoMeter};
use device::{Counters, Device, Image};
use fa2::Fa2;
use ladder::registry::{DEVICE_RUNGS, DeviceRung, device_rung};
use std::collections::HashMap;
use testkit::problems::{BatchKind, Spec};

/// Queries and keys, and channels.
const N: u64 = 256;
const D: u64 = 64;
/// Bytes of an f32.
const E: u64 = 4;
/// Bytes of a sequence's lengths and starts.
const SEQUENCE: u64 = 20;

/// Bytes read and written, passes over the banks, bank conflicts.
type Counts = (u64, u64, Option<u64>, u64);

/// What the kernels of a rung did, in each of its forms, on one head of N rows without a mask.
fn counted(rung: &DeviceRung, n: u64, d: u64) -> HashMap<String, Counters> {
    let owned = rung.takes.narrowed(Spec::plain(n as usize, n as usize, d as usize)).build();
    let device = Device::simulated();
    let Device::Simulated(simulator) = &device else { unreachable!() };
    let kernels = rung.forms(&device).unwrap().into_iter().flat_map(|form| {
        form.forward(&owned.problem()).unwrap();
        simulator.take_counters()
    });
    kernels.collect()
}

/// Blocks of 256 threads, each of which stores two tiles of 32 x 32 and reads so many times for each of 32 steps.
fn naive_passes(blocks_and_tiles: u64, reads: u64) -> u64 {
    blocks_and_tiles * (2 * 32 + 8 * 32 * reads)
}

fn predicted() -> [(&'static str, Counts); 10] {
    let (scores, rows) = (E * N * N, E * N * D);
    let (state, lse) = (E * 2 * N, E * N);
    let naive_scores = (4 * scores, scores, Some(naive_passes(64 * 2, 5)), 0);
    let naive_softmax = (3 * scores, scores + lse, Some(0), 0);
    // A value is read again for each of four rows: not at all where the weight is 0.
    let naive_output = (2 * scores + 8 * rows, rows, Some(naive_passes(16 * 8, 8)), 0);
    // Keys and values, two passes of all rows, and at the end l once a number of O: m is for sinks.
    let fa1_reads = 2 * rows + 2 * (2 * rows + state) + 2 * rows + state;
    let fa1 = (fa1_reads, 3 * (rows + state) + rows + lse, None, 0);
    // A step of a product reads 4 times 16 bytes a lane, each in 4 passes. Stores of Q and K take 2 passes in place of 1, those
    // of P 8 in place of 4.
    let (warps, tiles) = (2 * 4, N / 64);
    let fa2_passes = warps * (2 * 64 + tiles * (2 * 64 * 4 * 4 + 2 * 32 + 8 * 4 + 16 * 8));
    let fa2_conflicts = warps * (64 + tiles * (32 + 16 * 4));
    let fa2_simt = (rows + 2 * 2 * rows, rows + lse, Some(fa2_passes), fa2_conflicts);
    // In F16, 128 rows a block of 256 threads, each of which reads the table of sequences, of a dense batch too.
    let fa2 = ((1 + 2 * N / 128) * rows / 2 + SEQUENCE * (N / 128) * 256, rows / 2 + lse, None, 0);
    [
        ("naive_scores", naive_scores),
        ("naive_softmax", naive_softmax),
        ("naive_output", naive_output),
        ("fa1", fa1),
        ("fa2_simt", fa2_simt),
        ("fa2", fa2),
        ("fa2_mma_fewer", HALF.counts(N, D)),
        ("fa2_mma_few", LONG.counts(N, D)),
        ("fa2_mma", LONG.counts(N, D)),
        ("fa3", FA3.counts(N, D)),
    ]
}

/// A block of threads of a kernel on tensor cores, and the keys that it takes at a time.
struct Block {
    rows: u64,
    keys: u64,
}

/// For 64 channels; where two groups share the keys, of each.
const LONG: Block = Block { rows: 128, keys: 128 };
const HALF: Block = Block { rows: 64, keys: 128 };
/// Three warpgroups.
const FA3: Block = Block { rows: 192, keys: 128 };

impl Block {
    /// On one head without a mask, in F16. A dense batch has no table of sequences.
    fn counts(&self, n: u64, d: u64) -> Counts {
        let (rows, blocks) = (2 * n * d, n.div_ceil(self.rows));
        (rows + blocks * 2 * rows, rows + 4 * n, None, 0)
    }

    /// Of `05_fa2_mma.cu`, 4 warps: passes over the banks for tiles, 128 bytes each. O leaves from registers.
    fn passes(&self, n: u64, d: u64) -> u64 {
        let (blocks, tiles, warps) = (n / self.rows, n.div_ceil(self.keys), n / self.rows * 4);
        let copied = 2 * d * (n + blocks * tiles * 2 * self.keys);
        // Matrices of 8 x 8 numbers, which are 128 bytes: of Q those of the warp's rows, of K and V all.
        let matrices = warps * tiles * d * (self.rows / 4 + 2 * self.keys) / 64;
        copied / 128 + matrices
    }
}

/// Passes for what the threads of a block share besides tiles. How much of it is read anew for each tile, and in which pieces, is
/// the compiler's choice; 8 bytes of one address for a whole warp are two passes.
fn passes_for_shared(counters: &Counters) -> u64 {
    let passes = |(name, count): (&String, &u64)| match name.as_str() {
        "ld.shared.s32" | "ld.shared.u32" => *count,
        "st.shared.u32" | "st.shared.u64" | "st.shared.v2.u32" => *count, // by one thread
        "ld.shared.u64" | "ld.shared.v2.u32" => 2 * count,
        _ => 0,
    };
    counters.instructions.iter().map(passes).sum()
}

#[test]
fn tensor_core_kernels_pass_over_the_banks_as_formulas_say() {
    let counted = counted(device_rung("cuda-fa2").unwrap(), N, D);
    // What one group leaves of its rows for the other, a lane of two or four rows: m, l and O, written and read.
    let joined = |block: &Block| N / block.rows * 4 * 2 * (block.rows / 32) * (2 + D / 4);
    for (kernel, block, joined) in
        [("fa2_mma_fewer", HALF, joined(&HALF)), ("fa2_mma_few", LONG, joined(&LONG)), ("fa2_mma", LONG, 0)]
    {
        let counters = &counted[kernel];
        let (counted, predicted) = (counters.shared.passes, block.passes(N, D) + joined + passes_for_shared(counters));
        assert_eq!(counted, predicted, "{kernel}");
        assert!(passes_for_shared(counters) < counters.shared.passes / 8, "{kernel}: {counters:?}");
    }
}

/// At 512 rows of 128 channels what moves is what the rung on the CPU moves with as many rows a tile, counted and by its closed
/// formula, and lse besides.
#[test]
fn tensor_core_kernels_move_what_the_closed_formula_says() {
    let (n, d) = (512, 128);
    let owned = Spec { dtype: DType::F16, ..Spec::plain(n, n, d) }.build();
    let counted = counted(device_rung("cuda-fa2").unwrap(), n as u64, d as u64);
    let problem = owned.problem();
    // Fast memory of so many numbers holds tiles of as many rows as the kernel's.
    let on_cpu = Fa2::new(4 * 52_429, NoMeter);
    assert_eq!(on_cpu.tiles(&problem).unwrap().rows, 128);
    for kernel in ["fa2_mma_few", "fa2_mma"] {
        let traffic = fa2::traffic(&problem, &on_cpu).unwrap();
        let Counters { global_reads, global_writes, .. } = &counted[kernel];
        assert_eq!((global_reads.bytes, global_writes.bytes), (traffic.read, traffic.written), "{kernel}");
        let lse = 4 * n as u64;
        let formula = fa2::formula(&problem, &on_cpu).unwrap();
        assert_eq!((global_reads.bytes + global_writes.bytes - lse) as f64, formula, "{kernel}");
    }
}

/// A row of NaN is computed again, with care, by loads that each wait. `fa3` clears of a tile of V what no row sees, and reads
/// as much whatever lies there; not so without the zeros.
#[test]
fn what_no_row_sees_costs_no_care() {
    let fa3 = device_rung("fa3").unwrap();
    let variant =
        ladder::kernels::variants().find(|variant| variant.file == FA3_FILE && variant.name == "f16.d64").unwrap();
    let read = |poison: f64, image: Option<&Image>| {
        let spec =
            Spec { lengths: vec![(70, 140), (70, 100)], batch: BatchKind::KeyLens, poison, ..Spec::plain(70, 140, 64) };
        let owned = fa3.takes.narrowed(Spec { dtype: DType::F16, ..spec }).build();
        let device = Device::simulated();
        let Device::Simulated(simulator) = &device else { unreachable!() };
        let mut form = fa3.forms(&device).unwrap().swap_remove(0);
        if let Some(image) = image {
            form = form.with_image(variant, image).unwrap();
        }
        form.forward(&owned.problem()).unwrap();
        simulator.take_counters().into_iter().map(|(_, counters)| counters.global_reads.bytes).sum::<u64>()
    };
    let without_zeros = Image::Ptx(edited(variant, ZEROS, "st.shared", dropped));
    assert_eq!(read(f64::NAN, None), read(0.0, None));
    assert_eq!(read(0.0, Some(&without_zeros)), read(0.0, None));
    assert!(read(f64::NAN, Some(&without_zeros)) > 2 * read(0.0, None));
}

/// Rows of which one of two groups of warps sees all keys, the first group or the other, are not computed again; they are where
/// the m of one group alone is taken for that of both.
#[test]
fn rows_that_one_group_sees_alone_cost_no_care() {
    let rung = device_rung("cuda-fa2").unwrap();
    let variant =
        ladder::kernels::variants().find(|variant| (variant.file, variant.name) == (JOIN_M.0, "f16.d64")).unwrap();
    let owned = Spec { dtype: DType::F16, mask: Mask::window(20, 0), ..Spec::plain(110, 300, 64) }.build();
    // The forms with `fa2_mma_few` and with `fa2_mma`.
    let read = |form: usize, image: Option<&Image>| {
        let device = Device::simulated();
        let Device::Simulated(simulator) = &device else { unreachable!() };
        let mut form = rung.forms(&device).unwrap().swap_remove(form);
        if let Some(image) = image {
            form = form.with_image(variant, image).unwrap();
        }
        form.forward(&owned.problem()).unwrap();
        simulator.take_counters().into_iter().map(|(_, counters)| counters.global_reads.bytes).sum::<u64>()
    };
    assert_eq!(read(1, None), read(2, None));
    for of_one_group in [first_operand, second_operand] {
        let wrong = Image::Ptx(edited(variant, JOIN_M, "max.f32", of_one_group));
        assert!(read(1, Some(&wrong)) > 2 * read(1, None));
    }
}

#[test]
fn kernels_do_what_formulas_say() {
    let counted: HashMap<_, _> = DEVICE_RUNGS.iter().flat_map(|rung| counted(rung, N, D)).collect();
    for (kernel, (read, written, passes, conflicts)) in predicted() {
        let Counters { global_reads, global_writes, shared, .. } = &counted[kernel];
        assert_eq!((global_reads.bytes, global_writes.bytes), (read, written), "{kernel}");
        assert_eq!(shared.passes, passes.unwrap_or(shared.passes), "{kernel}");
        assert_eq!(shared.conflicts, conflicts, "{kernel}");
    }
    assert_eq!(counted.len(), predicted().len());
}
