//! Products of integers, which are exact whatever the order of a sum.

use crate::harness::{Kernel, LAYOUTS, Layout, READY, Type, place_of};
use half::f16;

/// A product D = A B + D, of which A is in registers without a layout.
#[derive(Clone, Copy, Debug)]
struct Case {
    columns: usize,
    ty: Type,
    f16_sums: bool,
    a: Option<Layout>,
    b: Layout,
    adds: bool,
    scale: [i32; 2],
}

fn a_of(row: usize, k: usize) -> f32 {
    ((row * 7 + k * 3) % 9) as f32 - 4.0
}

fn b_of(column: usize, k: usize) -> f32 {
    ((column * 5 + k * 11 + column / 8) % 7) as f32 - 3.0
}

impl Case {
    fn kernel(self) -> Kernel {
        let Case { columns, ty, a, b, .. } = self;
        let mut image = a.map_or(Vec::new(), |a| a.image(ty, 64, a_of));
        let start = 4 * image.len();
        image.extend(b.image(ty, columns, b_of));
        let copied = image.len();
        let mut body = String::new();
        let a_operand = match a {
            Some(layout) => {
                body += &format!("mov.b64 %d4, {};\n", layout.descriptor(0, 64));
                "%d4".to_string()
            }
            None => {
                for register in 0..4 {
                    image.extend((0..128).map(|thread| self.fragment(register, thread)));
                    let at = 4 * copied + 512 * register;
                    body += &format!("ld.global.b32 %r{}, [%d3+{at}];\n", 4 + register);
                }
                "{%r4, %r5, %r6, %r7}".to_string()
            }
        };
        body += &format!("mov.b64 %d5, {};\n", b.descriptor(start, columns));
        let registers: Vec<String> = if self.f16_sums {
            body += "cvt.rn.f16.u32 %h0, %r0;\n";
            (0..columns / 4).map(|register| format!("%c{register}")).collect()
        } else {
            body += "cvt.rn.f32.u32 %f255, %r0;\n";
            (0..columns / 2).map(|register| format!("%f{register}")).collect()
        };
        for (number, register) in registers.iter().enumerate() {
            body += &match self.f16_sums {
                true => format!("mov.b32 {register}, {{%h0, %h0}};\n"),
                false => format!("add.f32 {register}, %f255, 0f{:08x};\n", (number as f32).to_bits()),
            };
        }
        let [scale_a, scale_b] = self.scale;
        let transposed = |layout: Layout| u32::from(layout.transposed);
        let a_transposed = a.map_or(String::new(), |a| format!("{}, ", transposed(a)));
        let (name, sums) = (ty.name(), if self.f16_sums { "f16" } else { "f32" });
        body += &format!(
            "setp.ne.u32 %p0, %r0, {};\nwgmma.fence.sync.aligned;\n\
             wgmma.mma_async.sync.aligned.m64n{columns}k16.{sums}.{name}.{name} {{{}}}, {a_operand}, %d5, %p0, \
             {scale_a}, {scale_b}, {a_transposed}{};\n\
             wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n",
            if self.adds { "-1" } else { "%r0" },
            registers.join(", "),
            transposed(b)
        );
        Kernel::new(image, copied, READY, &body, &registers)
    }

    /// A register of A: rows 8 apart, then columns 8 apart.
    fn fragment(self, register: usize, thread: usize) -> u32 {
        let (warp, lane) = (thread / 32, thread % 32);
        let (row, k) = (16 * warp + lane / 4 + 8 * (register % 2), lane % 4 * 2 + 8 * (register / 2));
        u32::from(self.ty.bits(a_of(row, k))) | u32::from(self.ty.bits(a_of(row, k + 1))) << 16
    }

    fn wanted(self, row: usize, column: usize, before: f32) -> f32 {
        let sum: f32 = (0..16).map(|k| a_of(row, k) * b_of(column, k)).sum();
        let [a, b] = self.scale;
        (a * b) as f32 * sum + if self.adds { before } else { 0.0 }
    }

    fn holds(self, seeds: std::ops::Range<u64>) {
        let kernel = self.kernel();
        for seed in seeds {
            let (out, counters) = kernel.run(seed).unwrap_or_else(|fault| panic!("{self:?}, seed {seed}: {fault}"));
            assert_eq!(counters.flops.tensor, 2 * 64 * 16 * self.columns as u64);
            for (place, bits) in out.into_iter().enumerate() {
                let (register, thread) = (place / 128, place % 128);
                if self.f16_sums {
                    for half in 0..2 {
                        let (row, column) = place_of(2 * register + half, thread);
                        let wanted = f16::from_f32(self.wanted(row, column, thread as f32)).to_bits();
                        let found = (bits >> (16 * half)) as u16;
                        assert_eq!(found, wanted, "{self:?}, row {row}, column {column}");
                    }
                } else {
                    let (row, column) = place_of(register, thread);
                    let wanted = self.wanted(row, column, (thread + register) as f32);
                    assert_eq!(f32::from_bits(bits), wanted, "{self:?}, row {row}, column {column}");
                }
            }
        }
    }
}

const PLAIN: Case =
    Case { columns: 64, ty: Type::F16, f16_sums: false, a: Some(LAYOUTS[6]), b: LAYOUTS[6], adds: true, scale: [1, 1] };

/// Types of A and B, and whether the sums are f16.
const TYPES: [(Type, bool); 3] = [(Type::F16, false), (Type::Bf16, false), (Type::F16, true)];

#[test]
fn every_number_of_columns() {
    for columns in (8..=256).step_by(8) {
        for (number, (ty, f16_sums)) in TYPES.into_iter().enumerate() {
            let layout = |step: usize| LAYOUTS[(columns / 8 * step + 3 * number) % 8];
            let a = (number != columns / 8 % 3).then_some(layout(1));
            Case { columns, ty, f16_sums, a, b: layout(3), ..PLAIN }.holds(0..2);
        }
    }
}

#[test]
fn every_layout_of_a_with_every_layout_of_b() {
    let sources = || [None].into_iter().chain(LAYOUTS.map(Some));
    for (a, b) in sources().flat_map(|a| LAYOUTS.map(|b| (a, b))) {
        for (ty, f16_sums) in TYPES {
            Case { columns: 40, ty, f16_sums, a, b, ..PLAIN }.holds(5..6);
        }
        Case { columns: 136, a, b, ..PLAIN }.holds(7..8);
    }
}

#[test]
fn scales() {
    for (scale, adds) in
        [[1, 1], [-1, 1], [1, -1], [-1, -1]].into_iter().flat_map(|scale| [(scale, true), (scale, false)])
    {
        for (ty, f16_sums) in TYPES {
            // Thread 0 alone would say otherwise of scale-d, if it is 0.
            Case { ty, f16_sums, scale, adds, ..PLAIN }.holds(1..3);
            Case { ty, f16_sums, scale, adds, a: None, ..PLAIN }.holds(1..3);
        }
    }
}

#[test]
fn many_schedules() {
    PLAIN.holds(0..100);
    Case { a: None, b: LAYOUTS[7], ..PLAIN }.holds(0..100);
}
