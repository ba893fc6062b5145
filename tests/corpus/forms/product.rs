//! `wgmma`: products of whole numbers, which are exact in any order of sums, by one warpgroup.
//!
//! A program's input is what goes to shared memory, the accumulators of each thread, and, where A is in registers, its
//! fragments of each thread.

use super::operand::{LAYOUTS, Layout, Matrix, Operand};
use super::tensor::{Copied, load};
use crate::form::{Program, Recipe, fnv, program};
use crate::map::{Map, SWIZZLES, width};
use crate::values::{BF16, F16, F32, Format};
use device::{Element, OutOfBoundsFill};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Rows of A and D, numbers along K of an instruction, and threads.
const ROWS: usize = 64;
const K: usize = 16;
const THREADS: usize = 128;

/// Of A and B, and of the sums.
#[derive(Clone, Copy)]
struct Types {
    name: &'static str,
    format: Format,
    element: Element,
    sum: Format,
}

const TYPES: [Types; 3] = [
    Types { name: "f32.f16.f16", format: F16, element: Element::F16, sum: F32 },
    Types { name: "f32.bf16.bf16", format: BF16, element: Element::Bf16, sum: F32 },
    Types { name: "f16.f16.f16", format: F16, element: Element::F16, sum: F16 },
];

/// How operands come to shared memory, to `%s` and on.
struct Filled {
    text: String,
    maps: Vec<Map>,
    input: Vec<u8>,
    /// Where A and B begin.
    starts: [usize; 2],
}

/// D = A B + D, where A is in registers if it has no layout.
#[derive(Clone, Copy)]
struct Product {
    columns: usize,
    types: Types,
    a: Option<Layout>,
    b: Layout,
    /// Instructions along K, each on the sums of the one before.
    steps: usize,
    /// Groups under way at once, each with sums of its own and its part of K.
    groups: usize,
    /// The first step adds to D.
    adds: bool,
    scale: [i32; 2],
    loose: bool,
    base: usize,
    /// Copies of boxes of tensors fill shared memory; else stores do.
    copied: bool,
}

const PLAIN: Product = Product {
    columns: 24,
    types: TYPES[0],
    a: Some(LAYOUTS[6]),
    b: LAYOUTS[6],
    steps: 1,
    groups: 1,
    adds: true,
    scale: [1, 1],
    loose: false,
    base: 0,
    copied: false,
};

pub(crate) fn products() -> Vec<Program> {
    let mut all = Vec::new();
    for (number, columns) in [8, 16, 24, 64, 96, 128, 176, 256].into_iter().enumerate() {
        for (turn, types) in TYPES.into_iter().enumerate() {
            let a = (number % 3 != turn).then_some(LAYOUTS[(number + 3 * turn) % 8]);
            all.push(Product { columns, types, a, b: LAYOUTS[(3 * number + turn + 1) % 8], ..PLAIN });
        }
    }
    let sources = || [None].into_iter().chain(LAYOUTS.map(Some));
    for (number, (a, b)) in sources().flat_map(|a| LAYOUTS.map(|b| (a, b))).enumerate() {
        all.push(Product { types: TYPES[number % 3], a, b, steps: 2, ..PLAIN });
    }
    // Through a row of the swizzle and into the next; with other distances between pieces. A and B lie in different
    // ways: were the same numbers along K exchanged in both, no sum would tell.
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        let (types, b) = (TYPES[number % 2], LAYOUTS[(number + 3) % 8]);
        let product = Product { columns: 64, types, a: Some(layout), b, ..PLAIN };
        all.extend([Product { steps: 8, ..product }, Product { steps: 4, loose: true, ..product }]);
        if number > 1 {
            all.push(Product { steps: 2, base: 3, b: LAYOUTS[2 + (number + 1) % 6], ..product });
        }
        // More columns than a row has.
        all.push(Product { columns: 96, a: None, steps: 4, groups: 2, adds: number % 4 < 2, ..product });
    }
    for (number, scale) in [[1, 1], [-1, 1], [1, -1], [-1, -1]].into_iter().enumerate() {
        for (adds, types) in TYPES.into_iter().flat_map(|types| [(true, types), (false, types)]) {
            let a = (number % 2 == 0 || !adds).then_some(LAYOUTS[0]);
            all.push(Product { columns: 8, types, a, b: LAYOUTS[7], scale, adds, ..PLAIN });
        }
    }
    for types in TYPES {
        all.push(Product { columns: 64, types, b: LAYOUTS[5], steps: 2, groups: 2, ..PLAIN });
    }
    all.into_iter().map(Product::program).collect()
}

pub(crate) fn fed() -> Vec<Program> {
    let fed = |number: usize, b: Layout| {
        // All swizzles of A with each kind of B, of which those along K have another one.
        let a = Some(LAYOUTS[if b.mn { number - 1 } else { (number + 2) % 8 }]);
        Product { columns: 96, types: TYPES[number / 2 % 2], a, b, steps: 4, copied: true, ..PLAIN }.program()
    };
    LAYOUTS.into_iter().enumerate().map(|(number, b)| fed(number, b)).collect()
}

impl Product {
    fn name(&self) -> String {
        let laid = |layout: Layout| {
            let swizzle = if layout.row == 16 { "not swizzled".into() } else { format!("{}B", layout.row) };
            format!("{}-major {swizzle}", if layout.mn { "MN" } else { "K" })
        };
        let signed = |matrix: &str, scale: i32| format!("{}{matrix}", if scale < 0 { "-" } else { "" });
        let [a, b] = self.scale;
        let (a, b) = (signed("A", a), signed("B", b));
        let of_a = self.a.map_or("registers".into(), laid);
        let mut name =
            format!("wgmma.mma_async.m64n{}k16.{}: {a} {of_a}, {b} {}", self.columns, self.types.name, laid(self.b));
        for (said, what) in [
            (self.steps > 1, format!("{} steps", self.steps)),
            (self.groups > 1, format!("{} groups", self.groups)),
            (!self.adds, "without D".into()),
            (self.loose, "apart".into()),
            (self.base > 0, format!("base offset {}", self.base)),
            (self.copied, "from tensors".into()),
        ] {
            if said {
                name += &format!(", {what}");
            }
        }
        name
    }

    fn depth(&self) -> usize {
        K * self.steps * self.groups
    }

    /// Registers of D that a thread has, of each group.
    fn registers(&self) -> usize {
        self.columns * self.types.sum.bits() as usize / 64
    }

    fn operand(&self, layout: Layout, lines: usize) -> Operand {
        Operand { layout, lines, depth: self.depth(), loose: self.loose, base: self.base }
    }

    fn program(self) -> Program {
        let name = self.name();
        let mut random = StdRng::seed_from_u64(fnv(name.as_bytes()));
        // No zeros: what the sign of a sum of them is nobody says.
        let mut matrix = |rows: usize, columns: usize| -> Matrix {
            let mut number = || random.random_range(1..=5) * if random.random() { 1 } else { -1 };
            (0..rows).map(|_| (0..columns).map(|_| number()).collect()).collect()
        };
        let (a, b) = (matrix(ROWS, self.depth()), matrix(self.columns, self.depth()));
        let before: Vec<Matrix> = (0..self.groups).map(|_| matrix(ROWS, self.columns)).collect();
        let Filled { text: fill, maps, mut input, starts } =
            if self.copied { self.by_copies(&a, &b) } else { self.by_stores(&a, &b) };
        let (image, each) = (input.len() / THREADS, 4 * self.registers());
        let outputs = format!("m{each} ").repeat(self.groups);
        let mut signature = format!("{outputs}= m{image} m{}", self.groups * each);
        for t in 0..THREADS {
            input.extend(before.iter().flat_map(|sums| self.of_thread(t, sums)));
        }
        if self.a.is_none() {
            signature += &format!(" m{}", self.depth());
            input.extend((0..THREADS).flat_map(|t| self.fragments(t, &a)));
        }
        let mut truth = Vec::new();
        for (group, before) in before.iter().enumerate() {
            let sums = self.sums(group, &a, &b, before);
            truth.extend((0..THREADS).flat_map(|t| self.of_thread(t, &sums)));
        }
        let (text, input, truth) = (self.text(&fill, starts), Some(input), Some(truth));
        let recipe = Recipe { name, signature, text, maps, input, truth };
        program("", "", "").sm_90a().on([1; 3], [THREADS as u32, 1, 1]).build(recipe)
    }

    /// D of a group, as arithmetic has it.
    fn sums(&self, group: usize, a: &Matrix, b: &Matrix, before: &Matrix) -> Matrix {
        let part = group * K * self.steps..(group + 1) * K * self.steps;
        let sign = self.scale[0] * self.scale[1];
        let of = |row: &[i32], column: &[i32], before: i32| {
            let product: i32 = row[part.clone()].iter().zip(&column[part.clone()]).map(|(x, y)| x * y).sum();
            sign * product + if self.adds { before } else { 0 }
        };
        let rows = a.iter().zip(before);
        rows.map(|(row, before)| b.iter().zip(before).map(|(column, before)| of(row, column, *before)).collect())
            .collect()
    }

    /// The registers of D of a thread, in order (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16").
    fn of_thread(&self, thread: usize, sums: &Matrix) -> Vec<u8> {
        let (warp, lane) = (thread / 32, thread % 32);
        let numbers = (0..self.columns / 2).map(|number| {
            let row = 16 * warp + lane / 4 + 8 * (number / 2 % 2);
            sums[row][number / 4 * 8 + lane % 4 * 2 + number % 2]
        });
        numbers.flat_map(|x| self.types.sum.bytes_of(x.into())).collect()
    }

    /// The registers of A of a thread, four for each step.
    fn fragments(&self, thread: usize, a: &Matrix) -> Vec<u8> {
        let (warp, lane) = (thread / 32, thread % 32);
        let numbers = (0..self.depth() / 2).map(|number| {
            let (step, number) = (number / 8, number % 8);
            let row = 16 * warp + lane / 4 + 8 * (number / 2 % 2);
            a[row][K * step + lane % 4 * 2 + number % 2 + 8 * (number / 4)]
        });
        numbers.flat_map(|x| self.types.format.bytes_of(x.into())).collect()
    }

    /// Threads store the operands as they shall lie.
    fn by_stores(&self, a: &Matrix, b: &Matrix) -> Filled {
        let mut image = self.a.map_or(Vec::new(), |layout| self.operand(layout, ROWS).image(a, self.types.format));
        image.resize(image.len().next_multiple_of(1024), 0xff);
        let start = image.len();
        image.extend(self.operand(self.b, self.columns).image(b, self.types.format));
        let round = 16 * THREADS;
        image.resize(image.len().next_multiple_of(round), 0xff);
        let text = format!(
            ".shared .align 1024 .b8 tile[{bytes}];
.reg .b32 %s, %o, %w<4>; .reg .b64 %g; .reg .pred %p;
mov.u32 %s, tile; shl.b32 %o, %t, 4; cvt.u64.u32 %g, %o; add.u64 %g, %g, %in; add.u32 %o, %o, %s;
STORE: ld.global.v4.b32 {{%w0, %w1, %w2, %w3}}, [%g]; st.shared.v4.b32 [%o], {{%w0, %w1, %w2, %w3}};
add.u64 %g, %g, {round}; add.u32 %o, %o, {round}; sub.u32 %x, %o, %s; setp.lt.u32 %p, %x, {bytes}; @%p bra STORE;
fence.proxy.async; bar.sync 0;
",
            bytes = image.len()
        );
        Filled { text, maps: Vec::new(), input: image, starts: [0, start] }
    }

    /// Boxes are copied of two tensors, one behind the other in the input.
    fn by_copies(&self, a: &Matrix, b: &Matrix) -> Filled {
        let (mut maps, mut input, mut boxes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut starts, mut end) = ([0; 2], 0);
        let operands = [(self.a.unwrap_or(self.b), ROWS, a), (self.b, self.columns, b)];
        for (number, (layout, lines, numbers)) in operands.into_iter().enumerate() {
            let operand = self.operand(layout, lines);
            let ((along, across), per_row) = (operand.sides(), operand.per_row());
            let map = Map {
                of_output: false,
                start: input.len(),
                element: self.types.element,
                lengths: vec![along as u64, across as u64],
                strides: vec![2 * along as u64],
                tile: vec![per_row as u32, across as u32],
                swizzle: SWIZZLES.into_iter().find(|swizzle| width(*swizzle) == layout.row).expect("a swizzle"),
                fill: OutOfBoundsFill::Zeros,
            };
            starts[number] = end;
            for from in (0..along).step_by(per_row) {
                boxes.push(Copied { to: end, map: number, at: vec![from as i32, 0], bytes: map.box_bytes() });
                end += operand.piece();
            }
            for (i, j) in (0..across).flat_map(|i| (0..along).map(move |j| (i, j))) {
                let number = if layout.mn { numbers[j][i] } else { numbers[i][j] };
                input.extend(self.types.format.bytes_of(number.into()));
            }
            maps.push(map);
        }
        Filled { text: load(end, &boxes), maps, input, starts }
    }

    /// The kernel, once its operands are filled.
    fn text(&self, fill: &str, [start_a, start_b]: [usize; 2]) -> String {
        let (count, steps) = (self.registers(), self.steps * self.groups);
        let ty = if self.types.sum == F16 { "b32" } else { "f32" };
        let mut text = format!(
            "{fill}.reg .{ty} %f<{}>; .reg .b32 %a<{}>; .reg .b64 %from, %da, %db; .reg .pred %adds, %always;
shr.u32 %x, %s, 4; cvt.u64.u32 %from, %x; setp.ne.u32 %always, %t, 1000; setp.{}.u32 %adds, %t, 1000;
",
            count * self.groups,
            4 * steps,
            if self.adds { "ne" } else { "eq" }
        );
        for register in 0..count * self.groups {
            text += &format!("ld.global.{ty} %f{register}, [%p1+{}];\n", 4 * register);
        }
        let four = |step: usize| {
            let registers = (4 * step..4 * step + 4).map(|register| format!("%a{register}"));
            format!("{{{}}}", registers.collect::<Vec<_>>().join(", "))
        };
        for step in (0..steps).filter(|_| self.a.is_none()) {
            text += &format!("ld.global.v4.b32 {}, [%p2+{}];\n", four(step), 16 * step);
        }
        text += "wgmma.fence.sync.aligned;\n";
        let sums = |group: usize| (count * group..count * (group + 1)).map(|register| format!("%f{register}"));
        let [scale_a, scale_b] = self.scale;
        for step in 0..steps {
            let (a, by_a) = match self.a {
                None => (four(step), String::new()),
                Some(layout) => {
                    let bits = self.operand(layout, ROWS).descriptor(start_a, step);
                    text += &format!("add.u64 %da, %from, {bits:#x};\n");
                    ("%da".into(), format!("{}, ", u8::from(layout.mn)))
                }
            };
            let bits = self.operand(self.b, self.columns).descriptor(start_b, step);
            let first = step % self.steps == 0;
            text += &format!(
                "add.u64 %db, %from, {bits:#x};
wgmma.mma_async.sync.aligned.m64n{}k16.{} {{{}}}, {a}, %db, {}, {scale_a}, {scale_b}, {by_a}{};
",
                self.columns,
                self.types.name,
                sums(step / self.steps).collect::<Vec<_>>().join(", "),
                if first { "%adds" } else { "%always" },
                u8::from(self.b.mn)
            );
            if (step + 1) % self.steps == 0 {
                text += "wgmma.commit_group.sync.aligned;\n";
            }
        }
        for group in 0..self.groups {
            text += &format!("wgmma.wait_group.sync.aligned {};\n", self.groups - 1 - group);
            for (place, register) in sums(group).enumerate() {
                text += &format!("st.global.{ty} [%q{group}+{}], {register};\n", 4 * place);
            }
        }
        text
    }
}
