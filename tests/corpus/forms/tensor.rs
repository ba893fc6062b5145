//! Bulk copies of boxes of tensors, and of bytes in a line, by one warp.

use crate::compare::integer;
use crate::form::{Program, Recipe, fnv, program};
use crate::map::{Map, SWIZZLES, width};
use crate::run::UNWRITTEN;
use crate::values::{BF16, F16, F32, F64, Format};
use device::{Element, OutOfBoundsFill, Swizzle};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const THREADS: usize = 32;

/// Elements, and of all axes but the innermost how long a tensor is and a box of it.
type Tensor = (Element, &'static [u64], &'static [u32]);

const TENSORS: [Tensor; 7] = [
    (Element::U8, &[], &[]),
    (Element::U8, &[13], &[11]),
    (Element::F16, &[13], &[11]),
    (Element::F32, &[13], &[11]),
    (Element::Bf16, &[7, 4], &[5, 3]),
    (Element::I32, &[4, 3, 3], &[3, 2, 2]),
    (Element::U64, &[3, 4, 3, 3], &[2, 3, 2, 2]),
];

/// Where a box begins, along each axis.
#[derive(Clone, Copy, Debug)]
enum At {
    Inside,
    /// Before the tensor's first element.
    Before,
    /// So that it ends behind the tensor's last element.
    Beyond,
    /// Outside of it.
    Outside,
}

const PLACES: [At; 3] = [At::Inside, At::Before, At::Beyond];

/// Of stores: one that begins before the tensor ends the kernel on an H200, as an illegal instruction does.
const STORED: [At; 2] = [At::Inside, At::Beyond];

pub(crate) fn copies() -> Vec<Program> {
    let zeros = OutOfBoundsFill::Zeros;
    let mut all = Vec::new();
    for (turn, (swizzle, tensor)) in
        SWIZZLES.into_iter().flat_map(|swizzle| TENSORS.map(|of| (swizzle, of))).enumerate()
    {
        let map = map(swizzle, tensor, zeros);
        all.extend(PLACES.map(|at| load_of_box(&map, at)));
        all.push(store_of_box(&map, STORED[turn % 2]));
    }
    all.push(load_of_box(&map(Swizzle::B64, TENSORS[2], zeros), At::Outside));
    let tf32 = map(Swizzle::B128, (Element::Tf32, &[13], &[11]), zeros);
    all.extend([load_of_box(&tf32, At::Inside), store_of_box(&tf32, At::Inside), load_of_rounded()]);
    for (turn, swizzle) in SWIZZLES.into_iter().enumerate() {
        for element in [Element::F16, Element::Bf16, Element::F32, Element::Tf32, Element::F64] {
            let map = map(swizzle, (element, &[13], &[11]), OutOfBoundsFill::Nan);
            all.push(load_of_box(&map, PLACES[1 + turn % 2]));
        }
    }
    for bytes in [16, 48, 4096] {
        all.extend([load_of_line(bytes), store_of_line(bytes)]);
    }
    all.extend([prefetched_box(), prefetched_line(), stores_in_turn(), ring()]);
    all
}

/// A tensor with gaps between its rows, and of a row between its planes, of which a box is as wide as its swizzle. A
/// row of the tensor ends within 16 bytes. Each stride is a multiple of the one before it.
fn map(swizzle: Swizzle, (element, lengths, tile): Tensor, fill: OutOfBoundsFill) -> Map {
    let row = if swizzle == Swizzle::None { 96 } else { width(swizzle) as u64 };
    let size = u64::from(element.bytes());
    let lengths: Vec<u64> = [(2 * row + 24) / size].into_iter().chain(lengths.iter().copied()).collect();
    let mut strides = vec![(2 * row + 24).next_multiple_of(16) + 16];
    for (axis, length) in lengths.iter().enumerate().skip(1) {
        strides.push(strides[axis - 1] * (length + u64::from(axis == 1)));
    }
    strides.truncate(lengths.len() - 1);
    let tile = [(row / size) as u32].into_iter().chain(tile.iter().copied()).collect();
    Map { of_output: false, start: 0, element, lengths, strides, tile, swizzle, fill }
}

/// Coordinates of a box: along rows, a multiple of 16 bytes.
fn coordinates(map: &Map, at: At) -> Vec<i32> {
    let unit = 16 / map.element.bytes() as i32;
    let axes = map.lengths.iter().zip(&map.tile).enumerate();
    let along = |(axis, (length, side)): (usize, (&u64, &u32))| {
        let (length, side) = (*length as i32, *side as i32);
        match (at, axis) {
            (At::Inside, 0) => unit,
            (At::Inside, _) => length - side,
            (At::Before, 0) => -unit,
            (At::Before, _) => -(side / 2),
            (At::Beyond, 0) => 2 * side,
            (At::Beyond, _) => length - side + 1,
            (At::Outside, 0) => 0,
            (At::Outside, _) => length,
        }
    };
    axes.map(along).collect()
}

fn name(what: &str, map: &Map, at: At) -> String {
    let fill = if map.fill == OutOfBoundsFill::Nan { ", NaN" } else { "" };
    format!("{what} {}d, {:?}, {:?}, {at:?}{fill}", map.lengths.len(), map.element, map.swizzle)
}

/// Bytes of a tensor, up to what comes behind its last row.
fn tensor_bytes(map: &Map) -> usize {
    let last = map.strides.last().copied().unwrap_or(map.lengths[0] * u64::from(map.element.bytes()));
    let rows = if map.strides.is_empty() { 1 } else { map.lengths[map.lengths.len() - 1] };
    (last * rows).next_multiple_of(4 * THREADS as u64) as usize
}

/// Bytes of a tensor: any, or whole numbers of a format.
fn drawn(name: &str, bytes: usize, numbers: Option<Format>) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(fnv(name.as_bytes()));
    let Some(format) = numbers else { return (0..bytes).map(|_| random.random()).collect() };
    let numbers = (0..bytes / format.bytes()).flat_map(|_| format.bytes_of(random.random_range(-100..=100).into()));
    numbers.collect()
}

fn format(element: Element) -> Option<Format> {
    match element {
        Element::F16 => Some(F16),
        Element::Bf16 => Some(BF16),
        Element::F32 | Element::Tf32 => Some(F32),
        Element::F64 => Some(F64),
        _ => None,
    }
}

fn load_of_box(map: &Map, at: At) -> Program {
    let name = name("cp.async.bulk.tensor load", map, at);
    let (at, bytes) = (coordinates(map, at), map.box_bytes());
    let fills_nan = map.fill == OutOfBoundsFill::Nan;
    let input = drawn(&name, tensor_bytes(map), format(map.element).filter(|_| fills_nan));
    let size = map.element.bytes() as usize;
    let fill = if fills_nan { 0x7ff7_7ff7_7ff7_7ff7u64 } else { 0 }.to_le_bytes();
    let mut truth = vec![0; bytes];
    for (to, from) in map.boxed(&at) {
        let element = from.map_or(&fill[..size], |from| &input[from..from + size]);
        let rounds = map.element == Element::Tf32 && from.is_some();
        let element = if rounds { rounded(element) } else { element.to_vec() };
        truth[to..to + size].copy_from_slice(&element);
    }
    let text = load(bytes, &[Copied { to: 0, map: 0, at, bytes }]) + &out(bytes);
    copy(name, vec![map.clone()], input, truth, text)
}

/// A number of single precision as it is loaded for TF32: its upper 19 bits, to the nearest and ties to even, and one NaN.
fn rounded(number: &[u8]) -> Vec<u8> {
    let bits = integer(number) as u32;
    let upper = if F32.is_nan(bits.into()) { 0x7fff_e000 } else { (bits + 0xfff + (bits >> 13 & 1)) & !0x1fff };
    upper.to_le_bytes().to_vec()
}

/// Numbers halfway between two of TF32 and beside, at the ends of ranges, and NaN.
fn load_of_rounded() -> Program {
    let name = "cp.async.bulk.tensor load of Tf32, halfway between two".to_string();
    let upper = [0, 0x2000, 0x007f_e000, 0x3f80_0000, 0x3fff_e000, 0x7f7f_e000, 0x7f80_0000, 0x7fc0_0000];
    let lower = [0, 1, 0xfff, 0x1000, 0x1001, 0x1800, 0x1fff, 0x1234];
    let numbers = upper.iter().flat_map(|upper| lower.map(|lower| upper | lower));
    let input: Vec<u8> = numbers.flat_map(|bits: u32| [bits, bits | 0x8000_0000]).flat_map(u32::to_le_bytes).collect();
    let truth = input.chunks(4).flat_map(rounded).collect();
    let (fill, swizzle) = (OutOfBoundsFill::Zeros, Swizzle::None);
    let (lengths, strides, tile) = (vec![128], Vec::new(), vec![128]);
    let map = Map { of_output: false, start: 0, element: Element::Tf32, lengths, strides, tile, swizzle, fill };
    let text = load(512, &[Copied { to: 0, map: 0, at: vec![0], bytes: 512 }]) + &out(512);
    copy(name, vec![map], input, truth, text)
}

fn store_of_box(map: &Map, at: At) -> Program {
    let map = Map { of_output: true, ..map.clone() };
    let name = name("cp.async.bulk.tensor store", &map, at);
    let (at, bytes) = (coordinates(&map, at), map.box_bytes());
    let input = drawn(&name, bytes, None);
    let size = map.element.bytes() as usize;
    let mut truth = vec![UNWRITTEN; tensor_bytes(&map)];
    // The last 16 bytes of a row are written whole.
    let mut whole = map.clone();
    whole.lengths[0] = whole.lengths[0].next_multiple_of(16 / size as u64);
    for (from, to) in whole.boxed(&at) {
        if let Some(to) = to {
            truth[to..to + size].copy_from_slice(&input[from..from + size]);
        }
    }
    let text = store(
        bytes,
        &format!(
            "mov.b64 %map, map0; cvta.param.u64 %map, %map; {}
cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group [%map, {{{}}}], [%s];",
            moved(&at),
            at.len(),
            registers(at.len())
        ),
    );
    copy(name, vec![map], input, truth, text)
}

fn load_of_line(bytes: usize) -> Program {
    let name = format!("cp.async.bulk load of {bytes} bytes");
    let input = drawn(&name, (32 + bytes).next_multiple_of(4 * THREADS), None);
    let truth = shown(&input[32..32 + bytes]);
    let issue =
        format!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%in+32], {bytes}, [%bar];");
    let text = waited(bytes, bytes, &issue) + &out(bytes);
    copy(name, Vec::new(), input, truth, text)
}

fn store_of_line(bytes: usize) -> Program {
    let name = format!("cp.async.bulk store of {bytes} bytes");
    let input = drawn(&name, bytes.next_multiple_of(4 * THREADS), None);
    let mut truth = vec![UNWRITTEN; input.len() + 4 * THREADS];
    truth[32..32 + bytes].copy_from_slice(&input[..bytes]);
    let issue = format!("cp.async.bulk.global.shared::cta.bulk_group [%out+32], [%s], {bytes};");
    let text = store(input.len(), &issue);
    copy(name, Vec::new(), input, truth, text)
}

/// The map, the box and then the box again, which is loaded.
fn prefetched_box() -> Program {
    let map = map(Swizzle::B128, TENSORS[2], OutOfBoundsFill::Zeros);
    let name = "cp.async.bulk.prefetch.tensor, and a load".to_string();
    let (input, bytes) = (drawn(&name, tensor_bytes(&map), None), map.box_bytes());
    let mut truth = vec![0; bytes];
    for (to, from) in map.boxed(&[0, 1]) {
        let from = from.expect("a box inside");
        truth[to..to + 2].copy_from_slice(&input[from..from + 2]);
    }
    let issue = "mov.b64 %map, map0; prefetch.param.tensormap [%map]; cvta.param.u64 %map, %map;
prefetch.tensormap [%map]; mov.s32 %c0, 0; mov.s32 %c1, 1;
cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {%c0, %c1}];
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%map, {%c0, %c1}], [%bar];";
    let text = waited(bytes, bytes, issue) + &out(bytes);
    copy(name, vec![map], input, truth, text)
}

fn prefetched_line() -> Program {
    let name = "cp.async.bulk.prefetch, and a load with a policy".to_string();
    let input = drawn(&name, 256, None);
    let issue = "createpolicy.fractional.L2::evict_last.b64 %map, 0f3F800000;
cp.async.bulk.prefetch.L2.global [%in], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%s], [%in], 256, [%bar], %map;";
    let (text, truth) = (waited(256, 256, issue) + &out(256), input.clone());
    copy(name, Vec::new(), input, truth, text)
}

/// Three times the same 128 bytes of shared memory, written again once they have been read.
fn stores_in_turn() -> Program {
    let name = "cp.async.bulk stores from one place, in three groups".to_string();
    let input = drawn(&name, 384, None);
    let text = "
.shared .align 128 .b8 tile[128]; .reg .b32 %s, %k, %w; .reg .b64 %from, %to; .reg .pred %p, %others;
mov.u32 %s, tile; mad.lo.u32 %x, %t, 4, %s; mul.wide.u32 %from, %t, 4; add.u64 %from, %from, %in; mov.u64 %to, %out;
setp.ne.u32 %others, %t, 0; mov.u32 %k, 0;
NEXT: ld.global.u32 %w, [%from]; st.shared.u32 [%x], %w; fence.proxy.async.shared::cta; bar.sync 0; @%others bra MEET;
cp.async.bulk.global.shared::cta.bulk_group [%to], [%s], 128;
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
MEET: bar.sync 0; add.u64 %from, %from, 128; add.u64 %to, %to, 128; add.u32 %k, %k, 1;
setp.lt.u32 %p, %k, 3; @%p bra NEXT; @%others bra DONE; cp.async.bulk.wait_group 1; cp.async.bulk.wait_group 0;
DONE:
";
    let truth = input.clone();
    copy(name, Vec::new(), input, truth, text.into())
}

/// Bytes of the output column where no more than these are stored.
fn shown(bytes: &[u8]) -> Vec<u8> {
    let mut shown = bytes.to_vec();
    shown.resize(bytes.len().next_multiple_of(THREADS), UNWRITTEN);
    shown
}

fn copy(name: String, maps: Vec<Map>, input: Vec<u8>, truth: Vec<u8>, text: String) -> Program {
    let signature = format!("m{} = m{}", truth.len() / THREADS, input.len() / THREADS);
    let (input, truth) = (Some(input), Some(truth));
    let recipe = Recipe { name, signature, text, maps, input, truth };
    program("", "", "").sm_90().on([1; 3], [THREADS as u32, 1, 1]).build(recipe)
}

/// Two stages of 128 bytes, filled six times by one warp and added up by another.
fn ring() -> Program {
    const ROUNDS: usize = 6;
    let name = "a ring of two stages that bulk copies fill".to_string();
    let input = drawn(&name, 128 * ROUNDS, None);
    let word = |at: usize| u32::from_le_bytes(input[at..at + 4].try_into().expect("4 bytes"));
    let sum = |lane: usize| {
        (0..ROUNDS).fold(0u32, |sum, round| sum.wrapping_mul(3).wrapping_add(word(128 * round + 4 * lane)))
    };
    let sums: Vec<u8> = (0..32).flat_map(|lane| sum(lane).to_le_bytes()).collect();
    let truth = [[0; 128].as_slice(), &sums].concat();
    let text = "
.shared .align 128 .b8 stages[256]; .shared .align 8 .b64 bars[4];
.reg .b32 %k, %stage, %bar, %full, %empty, %w; .reg .b64 %from; .reg .pred %p, %q, %others;
mov.u32 %bar, bars; mov.u32 %k, 0; mov.b32 %d0, 0; mov.u64 %from, %in; setp.ne.u32 %others, %t, 0; @%others bra MADE;
mbarrier.init.shared::cta.b64 [%bar], 1; mbarrier.init.shared::cta.b64 [%bar+8], 1;
mbarrier.init.shared::cta.b64 [%bar+16], 32; mbarrier.init.shared::cta.b64 [%bar+24], 32;
fence.mbarrier_init.release.cluster;
MADE: bar.sync 0; setp.ge.u32 %p, %t, 32; @%p bra CONSUME; @%others bra DONE;
PRODUCE: and.b32 %stage, %k, 1; mov.u32 %bar, bars; mad.lo.u32 %bar, %stage, 8, %bar; mov.u32 %x, stages;
mad.lo.u32 %stage, %stage, 128, %x; shr.u32 %empty, %k, 1; not.b32 %empty, %empty; and.b32 %empty, %empty, 1;
EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %q, [%bar+16], %empty; @!%q bra EMPTY;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%stage], [%from], 128, [%bar];
add.u64 %from, %from, 128; add.u32 %k, %k, 1; setp.lt.u32 %q, %k, 6; @%q bra PRODUCE; bra DONE;
CONSUME: and.b32 %stage, %k, 1; mov.u32 %bar, bars; mad.lo.u32 %bar, %stage, 8, %bar; mov.u32 %x, stages;
mad.lo.u32 %stage, %stage, 128, %x; shr.u32 %full, %k, 1; and.b32 %full, %full, 1; and.b32 %x, %t, 31;
mad.lo.u32 %stage, %x, 4, %stage;
FULL: mbarrier.try_wait.parity.shared::cta.b64 %q, [%bar], %full; @!%q bra FULL;
ld.shared.u32 %w, [%stage]; mad.lo.u32 %d0, %d0, 3, %w; fence.proxy.async.shared::cta;
mbarrier.arrive.shared::cta.b64 _, [%bar+16]; add.u32 %k, %k, 1; setp.lt.u32 %q, %k, 6; @%q bra CONSUME;
DONE:
";
    let (signature, text) = ("u32 = m12".into(), text.into());
    let (input, truth) = (Some(input), Some(truth));
    program("", "", "").sm_90().on([1; 3], [64, 1, 1]).build(Recipe {
        name,
        signature,
        text,
        input,
        truth,
        ..Recipe::default()
    })
}

/// A box that is copied.
pub(crate) struct Copied {
    /// Bytes behind `%s`.
    pub(crate) to: usize,
    /// The number of its map.
    pub(crate) map: usize,
    pub(crate) at: Vec<i32>,
    pub(crate) bytes: usize,
}

/// Copies of boxes to `%s`, where so many bytes of shared memory are. All have come at the end.
pub(crate) fn load(bytes: usize, boxes: &[Copied]) -> String {
    let copies = boxes.iter().map(|Copied { to, map, at, .. }| {
        format!(
            "mov.b64 %map, map{map}; cvta.param.u64 %map, %map; {}
cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s+{to}], [%map, {{{}}}], [%bar];
",
            moved(at),
            at.len(),
            registers(at.len())
        )
    });
    waited(bytes, boxes.iter().map(|copied| copied.bytes).sum(), &copies.collect::<String>())
}

/// What one thread issues and all wait for, so many bytes to `%s`.
fn waited(shared: usize, bytes: usize, issue: &str) -> String {
    format!(
        ".shared .align 1024 .b8 tile[{shared}]; .shared .align 8 .b64 bar;
.reg .b32 %s, %bar, %c<5>; .reg .b64 %map; .reg .pred %come, %others;
mov.u32 %s, tile; mov.u32 %bar, bar; setp.ne.u32 %others, %t, 0; @%others bra MADE;
mbarrier.init.shared::cta.b64 [%bar], 1; fence.mbarrier_init.release.cluster;
MADE: bar.sync 0; @%others bra WAIT; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {bytes};
{issue}
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %come, [%bar], 0; @!%come bra WAIT;
"
    )
}

/// The words at `%s`, to the output.
fn out(bytes: usize) -> String {
    format!(
        ".reg .b32 %o, %w; .reg .b64 %to; .reg .pred %p;
shl.b32 %o, %t, 2; setp.ge.u32 %p, %o, {bytes}; @%p bra OUT;
NEXT: cvt.u64.u32 %to, %o; add.u64 %to, %to, %out; add.u32 %x, %o, %s; ld.shared.u32 %w, [%x]; st.global.u32 [%to], %w;
add.u32 %o, %o, 128; setp.lt.u32 %p, %o, {bytes}; @%p bra NEXT;
OUT:
"
    )
}

/// The input's words, to `%s` and from there by what one thread issues.
fn store(bytes: usize, issue: &str) -> String {
    format!(
        ".shared .align 1024 .b8 tile[{bytes}];
.reg .b32 %s, %o, %w, %c<5>; .reg .b64 %from, %map; .reg .pred %p;
mov.u32 %s, tile; shl.b32 %o, %t, 2; setp.ge.u32 %p, %o, {bytes}; @%p bra STORED;
NEXT: cvt.u64.u32 %from, %o; add.u64 %from, %from, %in; add.u32 %x, %o, %s; ld.global.u32 %w, [%from];
st.shared.u32 [%x], %w; add.u32 %o, %o, 128; setp.lt.u32 %p, %o, {bytes}; @%p bra NEXT;
STORED: fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 %p, %t, 0; @%p bra DONE;
{issue}
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
DONE:
"
    )
}

/// Coordinates go to registers.
fn moved(at: &[i32]) -> String {
    at.iter().enumerate().map(|(axis, at)| format!("mov.s32 %c{axis}, {at}; ")).collect()
}

fn registers(rank: usize) -> String {
    (0..rank).map(|axis| format!("%c{axis}")).collect::<Vec<_>>().join(", ")
}
