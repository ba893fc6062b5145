//! Copies of boxes of tensors. Where bytes go is written out here, or said by a formula of its own.

use super::program::{Program, is_found, is_right, report, wait};
use ptx_sim::FaultKind::{InFlight, Misaligned, OutOfBounds, ProxyFence, TensorMap as WrongMap, Uninitialised};
use ptx_sim::{Element, OutOfBoundsFill, Swizzle, Tiling};

/// What is copied: a tensor of rank `sizes.len()`, packed but for the rows of the innermost dimension.
#[derive(Clone)]
struct Tensor {
    element: Element,
    sizes: Vec<u64>,
    strides: Vec<u64>,
    boxes: Vec<u32>,
    swizzle: Swizzle,
    fill: OutOfBoundsFill,
}

impl Tensor {
    fn new(element: Element, sizes: &[u64], boxes: &[u32]) -> Self {
        let mut strides = vec![(sizes[0] * u64::from(element.bytes())).next_multiple_of(16)];
        for size in &sizes[1..] {
            strides.push(strides[strides.len() - 1] * size);
        }
        strides.truncate(sizes.len() - 1);
        let (swizzle, fill) = (Swizzle::None, OutOfBoundsFill::Zeros);
        Tensor { element, sizes: sizes.to_vec(), strides, boxes: boxes.to_vec(), swizzle, fill }
    }

    fn encode(&self, address: u64) -> [u8; 128] {
        Tiling {
            element: self.element,
            address,
            lengths: &self.sizes,
            strides: &self.strides,
            tile: &self.boxes,
            swizzle: self.swizzle,
            fill: self.fill,
        }
        .encode()
        .unwrap()
    }

    fn bytes(&self) -> u32 {
        self.boxes.iter().product::<u32>() * self.element.bytes()
    }

    /// Of an element of the input, numbered as its bytes lie: where it is, if it is in the tensor.
    fn place(&self, at: &[i64]) -> Option<u64> {
        let inside = at.iter().zip(&self.sizes).all(|(at, size)| (0..*size as i64).contains(at));
        inside.then(|| {
            let rows = at[1..].iter().zip(&self.strides).map(|(at, stride)| *at as u64 * stride).sum::<u64>();
            at[0] as u64 * u64::from(self.element.bytes()) + rows
        })
    }
}

const INIT: &str = "@%p1 bra $L_made;\nmbarrier.init.shared::cta.b64 [bars], 1;\nfence.mbarrier_init.release.cluster;\n\
                    $L_made:\nbar.sync 0;";

/// Copies a box to the tile at a distance, and then so many bytes from there to the output.
fn load(tensor: &Tensor, at: &[i32], to: u32, bytes: u32) -> Program {
    let (rank, count) = (at.len(), tensor.bytes());
    let at = at.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    let copy = format!(
        "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
         [tile+{to}], [map, {{{at}}}], [bars]; // <- at"
    );
    let body = format!(
        "{INIT}\n@%p1 bra $L_issued;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {count};\n{copy}\n\
         $L_issued:\n{}\n$L_again:\nsetp.ge.u32 %p2, %r3, {bytes};\n@%p2 ret;\nld.shared.u32 %r5, [%r3+{to}];\n\
         st.global.u32 [%d1], %r5;\nadd.u32 %r3, %r3, 128;\nadd.u64 %d1, %d1, 128;\nbra $L_again;",
        wait("a", 0, "0")
    );
    let tensor = tensor.clone();
    Program::new(32, &body).words(bytes as usize / 4).map(move |input, _| tensor.encode(input))
}

/// Numbers of 16 bits, each its own place.
fn halves(count: u16) -> Vec<u8> {
    (0..count).flat_map(u16::to_le_bytes).collect()
}

/// Where each 16 bytes of eight rows go, as the tables of the CUDA programming guide have them.
#[test]
fn swizzles_are_those_of_the_tables() {
    let plain = [[0, 1, 2, 3, 4, 5, 6, 7]; 8];
    let of_128 = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 7, 6, 1, 0, 3, 2],
        [6, 7, 4, 5, 2, 3, 0, 1],
        [7, 6, 5, 4, 3, 2, 1, 0],
    ];
    // Two rows of 64 bytes, or four of 32, lie side by side in 128 bytes.
    let of_64 = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
    ];
    let even = [0, 1, 2, 3, 4, 5, 6, 7];
    let odd = [1, 0, 3, 2, 5, 4, 7, 6];
    let of_32 = [even, odd, even, odd, even, odd, even, odd];
    let modes =
        [(Swizzle::None, 64, plain), (Swizzle::B128, 64, of_128), (Swizzle::B64, 32, of_64), (Swizzle::B32, 16, of_32)];
    for (swizzle, columns, table) in modes {
        // The box is 1024 bytes, and the tensor as wide as it, so that its bytes are numbered through.
        let rows = 512 / columns;
        let tensor = Tensor { swizzle, ..Tensor::new(Element::F16, &[columns.into(), 64], &[columns, rows]) };
        for base in [0, 1024, 128, 384] {
            let program = load(&tensor, &[0, 0], base, 1024).input(halves(4096));
            // The pattern is of the address and not of the box: a box that begins later begins later in it.
            let first = base as usize / 128 % 8;
            // In place `table[line][chunk]` of a line lies what would lie in `chunk`; each table is its own inverse.
            is_right_once(&program, |word| {
                let (line, chunk, within) = (word as usize / 32, word / 4 % 8, word % 4);
                let number = 32 * line as u32 + 4 * table[(line + first) % 8][chunk as usize] + within;
                (2 * number) | ((2 * number + 1) << 16)
            });
        }
    }
}

/// As `is_right`, under two schedules: what is looked at is where bytes go.
fn is_right_once(program: &Program, wanted: impl Fn(u32) -> u32) {
    for seed in 0..2 {
        let out = program.run(seed).unwrap_or_else(|fault| panic!("{fault}"));
        let wanted: Vec<u32> = (0..out.len() as u32).map(&wanted).collect();
        assert_eq!(out, wanted);
    }
}

#[test]
fn boxes_of_every_rank_with_any_coordinates() {
    let tensors = [
        Tensor::new(Element::U8, &[200], &[64]),
        Tensor::new(Element::F16, &[24, 9], &[16, 4]),
        Tensor::new(Element::Bf16, &[20, 5, 4], &[8, 3, 2]),
        Tensor::new(Element::F32, &[6, 4, 3, 3], &[4, 2, 2, 2]),
        Tensor::new(Element::U64, &[4, 3, 2, 3, 2], &[2, 2, 2, 1, 2]),
    ];
    for tensor in &tensors {
        for shift in [0, 1, -3, 2] {
            // Rows begin at multiples of 16 bytes.
            let along = |axis: i32| if axis == 0 { 16 / tensor.element.bytes() as i32 } else { 1 };
            let at =
                (0..tensor.sizes.len() as i32).map(|axis| along(axis) * if axis % 2 == 0 { shift } else { -shift });
            let at: Vec<i32> = at.collect();
            let input: Vec<u8> = (0..2048u32).map(|byte| (byte * 7 + byte / 256 + 1) as u8).collect();
            let program = load(tensor, &at, 0, tensor.bytes()).input(input.clone());
            let size = tensor.element.bytes();
            let byte = |byte: u32| {
                let mut element = byte / size;
                let place: Vec<i64> = (at.iter().zip(&tensor.boxes))
                    .map(|(at, size)| {
                        let along = element % size;
                        element /= size;
                        i64::from(*at) + i64::from(along)
                    })
                    .collect();
                tensor.place(&place).map_or(0, |place| u32::from(input[place as usize + (byte % size) as usize]))
            };
            is_right_once(&program, |word| (0..4).map(|part| byte(4 * word + part) << (8 * part)).sum());
        }
    }
}

#[test]
fn elements_outside_are_zeros_or_nan() {
    for element in [Element::F16, Element::Bf16, Element::F32, Element::Tf32, Element::F64] {
        let columns = 64 / element.bytes();
        let tensor = Tensor::new(element, &[columns.into(), 4], &[columns, 2]);
        let tensor = Tensor { fill: OutOfBoundsFill::Nan, ..tensor };
        let input = vec![0; 1024];
        // The second row is outside, and so is half of the first.
        let out = load(&tensor, &[columns as i32 / 2, 3], 0, 128).input(input).run(3).unwrap();
        assert!(out[..8].iter().all(|word| *word == 0), "{element:?} {out:x?}");
        // As an H200 has it.
        assert!(out[8..].iter().all(|word| *word == 0x7ff7_7ff7), "{element:?} {out:x?}");
    }
    // A box wholly outside reads nothing, also where there is nothing to read.
    let tensor = Tensor::new(Element::U16, &[64, 4], &[64, 2]);
    is_right(&load(&tensor, &[0, 1000], 0, 256).input(Vec::new()), |_| 0);
    is_right(&load(&tensor, &[i32::MIN, i32::MAX], 0, 256).input(Vec::new()), |_| 0);
}

/// Of single precision, what an H200 loads of it as TF32: halfway between two numbers and beside, at the ends of ranges, and NaN.
const ROUNDED: [(u32, u32); 44] = [
    (0x3f9e_0653, 0x3f9e_0000),
    (0xc049_0001, 0xc049_0000),
    (0x3f80_0000, 0x3f80_0000),
    (0x3f80_0001, 0x3f80_0000),
    (0xbf80_0fff, 0xbf80_0000),
    (0x3f80_1000, 0x3f80_0000),
    (0xbf80_1000, 0xbf80_0000),
    (0x3f80_1001, 0x3f80_2000),
    (0xbf80_1800, 0xbf80_2000),
    (0x3f80_1fff, 0x3f80_2000),
    (0x3f80_2fff, 0x3f80_2000),
    (0x3f80_3000, 0x3f80_4000),
    (0xbf80_3000, 0xbf80_4000),
    (0x4049_1000, 0x4049_0000),
    (0xc049_f000, 0xc04a_0000),
    (0x3fff_efff, 0x3fff_e000),
    (0x3fff_f000, 0x4000_0000),
    (0xbfff_ffff, 0xc000_0000),
    (0x7f7f_efff, 0x7f7f_e000),
    (0x7f7f_f000, 0x7f80_0000),
    (0xff7f_ffff, 0xff80_0000),
    (0x7f80_0000, 0x7f80_0000),
    (0xff80_0000, 0xff80_0000),
    (0x0000_0000, 0x0000_0000),
    (0x8000_0000, 0x8000_0000),
    (0x0000_0001, 0x0000_0000),
    (0x8000_1000, 0x8000_0000),
    (0x0000_1001, 0x0000_2000),
    (0x8000_3000, 0x8000_4000),
    (0x007f_efff, 0x007f_e000),
    (0x007f_f000, 0x0080_0000),
    (0x807f_ffff, 0x8080_0000),
    (0x0080_1000, 0x0080_0000),
    (0x8080_1001, 0x8080_2000),
    (0x7f80_0001, 0x7fff_e000),
    (0xff80_1000, 0x7fff_e000),
    (0x7f80_2000, 0x7fff_e000),
    (0xffbf_ffff, 0x7fff_e000),
    (0x7fc0_0000, 0x7fff_e000),
    (0xffc0_0000, 0x7fff_e000),
    (0x7fc0_1234, 0x7fff_e000),
    (0x7fff_e000, 0x7fff_e000),
    (0xffff_e000, 0x7fff_e000),
    (0xffff_ffff, 0x7fff_e000),
];

#[test]
fn a_load_rounds_to_tf32() {
    let input: Vec<u8> = ROUNDED.iter().flat_map(|(from, _)| from.to_le_bytes()).collect();
    let of = |element| load(&Tensor::new(element, &[44], &[44]), &[0], 0, 176).input(input.clone());
    is_right_once(&of(Element::Tf32), |word| ROUNDED[word as usize].1);
    is_right_once(&of(Element::F32), |word| ROUNDED[word as usize].0);
}

/// The tile's words, each its own place, are stored to a box of the output by the first thread.
fn store(tensor: &Tensor, at: &[i32], fence: &str, after: &str) -> Program {
    let rank = at.len();
    let at = at.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    let body = format!(
        "$L_again:\nst.shared.u32 [%r3], %r3; // <- with\nadd.u32 %r3, %r3, 128;\nsetp.lt.u32 %p2, %r3, {};\n\
         @%p2 bra $L_again;\n{fence}\nbar.sync 0;\n@%p1 ret;\n\
         cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [map, {{{at}}}], [tile]; // <- at\n\
         cp.async.bulk.commit_group;\n{after}",
        tensor.bytes()
    );
    let tensor = tensor.clone();
    Program::new(32, &body).words(256).map(move |_, out| tensor.encode(out))
}

const FENCE: &str = "fence.proxy.async.shared::cta;";

#[test]
fn a_box_is_stored_where_it_is_inside() {
    // 16 rows of 16 words; the box's 8 columns end 4 behind them, and its 4 rows 1 behind.
    for element in [Element::U32, Element::Tf32] {
        let tensor = Tensor::new(element, &[16, 16], &[8, 4]);
        let right = store(&tensor, &[12, 13], FENCE, "cp.async.bulk.wait_group.read 0;");
        is_right(&right, |word| {
            let (row, column) = (word / 16, word % 16);
            if row >= 13 && column >= 12 { 4 * (8 * (row - 13) + column - 12) } else { 0 }
        });
    }
    let tensor = Tensor::new(Element::U32, &[16, 16], &[8, 4]);
    is_found(&store(&tensor, &[0, 0], "", "cp.async.bulk.wait_group 0;"), &[ProxyFence]);
    let unread = store(&tensor, &[0, 0], FENCE, "");
    assert_eq!(unread.run(0).unwrap_err().kind, InFlight);
    // What a load has mixed, a store puts back.
    let mixed = Tensor { swizzle: Swizzle::B128, ..Tensor::new(Element::U32, &[32, 8], &[32, 8]) };
    is_right(&store(&mixed, &[0, 0], FENCE, "cp.async.bulk.wait_group 0;"), |word| {
        let (row, column) = (word / 32, word % 32);
        4 * (32 * row + ((column / 4) ^ row) * 4 + column % 4)
    });
}

#[test]
fn a_box_is_not_stored_before_the_tensor() {
    let tensor = Tensor::new(Element::U32, &[8, 4, 3, 3, 2], &[4, 2, 1, 1, 2]);
    for axis in 0..5 {
        // As near as it may be, and with nothing of the box inside.
        for at in [if axis == 0 { -4 } else { -1 }, -1 << 20] {
            let mut coordinates = [0; 5];
            coordinates[axis] = at;
            let fault = store(&tensor, &coordinates, FENCE, "cp.async.bulk.wait_group 0;").run(0).unwrap_err();
            assert_eq!(fault.kind, WrongMap);
            assert_eq!(fault.what, format!("found a box to store at {at} along axis {axis}, wanted 0 or more"));
        }
    }
}

/// Two rows of 20 bytes, the second 32 bytes behind the first, and tiles of two rows of 32 bytes.
fn short_rows() -> Tensor {
    Tensor::new(Element::U32, &[5, 2], &[8, 2])
}

#[test]
fn a_store_ends_a_row_with_whole_16_bytes() {
    let waited = "cp.async.bulk.wait_group 0;";
    // A row ends in the second 16 bytes of the tile's.
    let stored = [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 0, 0];
    is_right(&store(&short_rows(), &[0, 0], FENCE, waited).words(18), |word| stored[word as usize]);
    // The tile has only the last 16 bytes, of which 8 are inside.
    let beyond = Tensor::new(Element::U16, &[12, 2], &[8, 2]);
    let stored = [0, 0, 0, 0, 0, 4, 8, 12, 0, 0, 0, 0, 16, 20, 24, 28];
    is_right(&store(&beyond, &[8, 0], FENCE, waited).words(16), |word| stored[word as usize]);
    // A row ends in the first 16 bytes, or with them: the second are not written.
    for columns in [1, 4] {
        let mut narrow = Tensor::new(Element::U32, &[columns, 2], &[8, 2]);
        narrow.strides = vec![32];
        let stored = [0, 4, 8, 12, 0, 0, 0, 0, 32, 36, 40, 44, 0, 0, 0, 0];
        is_right(&store(&narrow, &[0, 0], FENCE, waited).words(16), |word| stored[word as usize]);
    }
    // What comes behind the end lies where the swizzle has it: in rows 4 to 7 the two 16 bytes have changed places.
    let mixed = Tensor { swizzle: Swizzle::B32, ..Tensor::new(Element::U16, &[11, 8], &[16, 8]) };
    is_right(&store(&mixed, &[0, 0], FENCE, waited).words(64), |word| 4 * if word < 32 { word } else { word ^ 4 });
    // A box that begins behind the last 16 bytes is not written at all.
    is_right(&store(&short_rows(), &[8, 0], FENCE, waited).words(18), |_| 0);
}

#[test]
fn what_a_store_writes_behind_a_row_is_looked_at() {
    let waited = "cp.async.bulk.wait_group 0;";
    // The output ends with the second row; then with that row's last 16 bytes.
    let ends = |words: usize| store(&short_rows(), &[0, 0], FENCE, waited).words(words).run(0);
    assert_eq!(ends(13).unwrap_err().kind, OutOfBounds);
    assert!(ends(16).is_ok());
    // Somebody writes behind the first row before the store is waited for; or behind all that the store writes.
    let write =
        |to: u32| store(&short_rows(), &[0, 0], FENCE, &format!("st.global.u32 [%d0+{to}], 1;\n{waited}")).words(18);
    let fault = write(28).run(0).unwrap_err();
    assert_eq!(fault.kind, InFlight);
    assert!(fault.what.starts_with("the byte of global memory at") && fault.earlier.is_some(), "{fault}");
    assert!(write(64).run(0).is_ok());
}

#[test]
fn a_load_that_does_not_fit() {
    let tensor = Tensor::new(Element::F16, &[64, 16], &[64, 8]);
    let found = |tensor: &Tensor, at: &[i32], to| load(tensor, at, to, 1024).input(halves(1024));
    is_right(&found(&tensor, &[0, 8], 0), |word| (512 + 2 * word) | ((513 + 2 * word) << 16));
    is_found(&found(&tensor, &[0, 0], 64), &[Misaligned]);
    is_found(&found(&tensor, &[4, 0], 0), &[Misaligned]);
    is_found(&found(&tensor, &[-1, 0], 0), &[Misaligned]);
    is_found(&found(&tensor, &[0, 0], 16384), &[OutOfBounds]);
    // A map of another rank, and a tensor that is longer than its memory, or than what is written of it.
    is_found(&found(&tensor, &[0, 0, 0], 0), &[WrongMap]);
    let long = Tensor { sizes: vec![64, 17], ..tensor.clone() };
    is_found(&found(&long, &[0, 9], 0), &[OutOfBounds]);
    let far = Tensor { strides: vec![(1 << 40) - 16], sizes: vec![64, 1 << 32], ..tensor.clone() };
    is_found(&found(&far, &[0, i32::MAX - 7], 0), &[OutOfBounds]);
    let large = Tensor::new(Element::U64, &[256; 5], &[256; 5]);
    let boxed = Program::new(1, "mbarrier.init.shared::cta.b64 [bars], 1;\nfence.proxy.async;\n\
        cp.async.bulk.tensor.5d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [map, {0, 0, 0, 0, 0}], [bars]; // <- at")
        .map(move |input, _| large.encode(input));
    is_found(&boxed, &[OutOfBounds]);
}

#[test]
fn a_map_that_is_none() {
    let tensor = Tensor::new(Element::F16, &[64, 16], &[64, 8]);
    let program = |change: fn(&mut [u8; 128])| {
        let of = tensor.clone();
        load(&tensor, &[0, 0], 0, 1024).input(halves(1024)).map(move |input, _| {
            let mut map = of.encode(input);
            change(&mut map);
            map
        })
    };
    is_found(&program(|map| map.fill(0)), &[WrongMap]);
    is_found(&program(|map| map[30] ^= 1), &[WrongMap]);
    is_found(&program(|map| map[127] ^= 0x80), &[WrongMap]);
    assert!(report(&program(|map| map[0] = 0)).contains("no tensor map of this device"));
    // A map in the input, which is not aligned to 64 bytes, or is not written.
    let from = |address: &str| {
        format!(
            "mbarrier.init.shared::cta.b64 [bars], 1;\nfence.proxy.async;\n\
             cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [{address}, {{0, 0}}], [bars]; // <- at"
        )
    };
    is_found(&Program::new(1, &from("%d9+16")), &[Misaligned]);
    is_found(&Program::new(1, &from("%d9+16384")), &[OutOfBounds]);
    is_found(
        &Program::new(1, &format!("mov.u64 %d3, tile;\ncvta.shared.u64 %d3, %d3;\n{}", from("%d3"))),
        &[Uninitialised],
    );
}

#[test]
fn prefetches_are_looked_at_and_do_nothing() {
    let tensor = Tensor::new(Element::F16, &[64, 16], &[64, 8]);
    let prefetches = |map: &str, bytes: u32| {
        let body = format!(
            "mov.u64 %d3, map;\ncvta.param.u64 %d3, %d3;\n{map}\n\
             cp.async.bulk.prefetch.L2.global [%d9+16352], {bytes}; // <- at\nst.global.u32 [%d1], 5;"
        );
        let of = tensor.clone();
        Program::new(1, &body).map(move |input, _| of.encode(input))
    };
    let boxed = "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d3, {0, 0}];";
    for map in ["prefetch.tensormap [%d3];", "prefetch.param.tensormap [map];", boxed] {
        is_right(&prefetches(map, 32), |_| 5);
        let wrong = Program::new(1, &format!("mov.u64 %d3, map;\ncvta.param.u64 %d3, %d3;\n{map} // <- at"));
        is_found(&wrong, &[WrongMap]);
    }
    is_found(&prefetches("", 48), &[OutOfBounds]);
}
