//! Memory: loads, stores, atomics, asynchronous copies and matrices of 8 x 8.

use super::{Lowered, Lowering, Modifiers, Result};
use crate::float;
use crate::lanes::{Lane, Source};
use crate::program::{Action, AsyncCopy, Atomic, Extend, Load, Matrix, Order, Store, Update};
use crate::ptx::{Instruction, Operand, Space, Type};

/// Bytes of a lane's access, at most.
pub(crate) const WIDEST_ACCESS: usize = 16;

/// Hints for caches, which there are none of here.
fn is_hint(name: &str) -> bool {
    let operators = ["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "weak"];
    operators.contains(&name) || name.starts_with("L1::") || name.starts_with("L2::")
}

impl<'a> Lowering<'a> {
    pub(super) fn memory(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        match i.opcode.as_str() {
            "ld" | "ldu" => self.load(i, m),
            "st" => self.store(i, m),
            "atom" | "red" => self.atomic(i, m),
            "cp" => self.copy(i, m),
            "ldmatrix" | "stmatrix" => self.matrix(i, m),
            _ if m.flag("tensormap") => self.prefetch_map(i, m),
            _ => {
                let levels = ["global", "local", "param", "const", "L1", "L2"];
                m.skip(|name| is_hint(name) || levels.contains(&name));
                Ok(Action::Nothing.into())
            }
        }
    }

    /// The space, `None` for a generic address, and the order, `None` for a plain access.
    fn access(m: &mut Modifiers<'a>) -> (Option<Space>, Option<Order>) {
        let order = |acquires, releases| Order { acquires, releases };
        let orders = [
            ("volatile", order(false, false)),
            ("relaxed", order(false, false)),
            ("acquire", order(true, false)),
            ("release", order(false, true)),
            ("acq_rel", order(true, true)),
        ];
        let order = m.one_of(&orders);
        m.skip(|name| is_hint(name) || ["cta", "cluster", "gpu", "sys"].contains(&name));
        let spaces = [
            ("global", Space::Global),
            ("const", Space::Const),
            ("shared::cta", Space::Shared),
            ("shared", Space::Shared),
            ("local", Space::Local),
            ("param::entry", Space::Param),
            ("param::func", Space::Param),
            ("param", Space::Param),
        ];
        (m.one_of(&spaces), order)
    }

    fn vector(m: &mut Modifiers<'a>) -> usize {
        m.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1)
    }

    fn load(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let (space, order) = Self::access(m);
        let elements = Self::vector(m);
        let ty = self.memory_type(m)?;
        self.whole(m, ty, elements)?;
        let [d, a] = self.operands(i)?;
        let address = self.address(a, space)?;
        let targets = Self::elements(d);
        if targets.len() != elements {
            return Err(m.error(format!("found {} registers, wanted {elements}", targets.len())));
        }
        let extend = if matches!(ty, Type::S8 | Type::S16 | Type::S32) { Extend::Sign } else { Extend::Zero };
        let mut to = Vec::new();
        for target in targets {
            let (target, bytes) = self.any_target(target, if ty.bytes() == 1 { Type::B16 } else { ty })?;
            if bytes < ty.bytes() {
                return Err(m.error(format!("found a register of {} bits, wanted {}", 8 * bytes, 8 * ty.bytes())));
            }
            to.push(target);
        }
        Ok(Action::Load(Load { address, bytes: ty.bytes(), extend, to, order }).into())
    }

    fn store(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let (space, order) = Self::access(m);
        let elements = Self::vector(m);
        let ty = self.memory_type(m)?;
        self.whole(m, ty, elements)?;
        let [a, b] = self.operands(i)?;
        let address = self.address(a, space)?;
        let sources = Self::elements(b);
        if sources.len() != elements {
            return Err(m.error(format!("found {} registers, wanted {elements}", sources.len())));
        }
        let mut from = Vec::new();
        for source in sources {
            let (source, bytes) = self.any_source(source, ty)?;
            if bytes < ty.bytes() {
                return Err(m.error(format!("found a register of {} bits, wanted {}", 8 * bytes, 8 * ty.bytes())));
            }
            from.push(source);
        }
        Ok(Action::Store(Store { address, bytes: ty.bytes(), from, order }).into())
    }

    /// Whether a lane's access is not larger than 16 bytes.
    fn whole(&self, m: &Modifiers<'a>, ty: Type, elements: usize) -> Result<()> {
        let bytes = ty.bytes() as usize * elements;
        if bytes > WIDEST_ACCESS {
            Err(m.error(format!("found {bytes} bytes, wanted at most {WIDEST_ACCESS}")))
        } else {
            Ok(())
        }
    }

    fn memory_type(&self, m: &mut Modifiers<'a>) -> Result<Type> {
        match m.ty()? {
            Type::Pred | Type::B128 => Err(m.error("found a type that is not simulated in memory")),
            ty => Ok(ty),
        }
    }

    fn atomic(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        let (space, order) = Self::access(m);
        m.flag("noftz");
        let operations = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let operation = m.wanted("operation", &operations.map(|name| (name, name)))?;
        let ty = self.memory_type(m)?;
        let returns = i.opcode == "atom";
        let (to, rest) = match (returns, i.operands.as_slice()) {
            (true, [d, rest @ ..]) => (Some(self.target(d, ty)?), rest),
            (_, rest) => (None, rest),
        };
        let (address, operands) = match (operation, rest) {
            ("cas", [a, b, c]) => (a, [self.source(b, ty)?, self.source(c, ty)?]),
            (other, [a, b]) if other != "cas" => (a, [self.source(b, ty)?, Source::Constant(0)]),
            _ => return Err(m.error("found another number of operands")),
        };
        let address = self.address(address, space)?;
        let update = update(operation, ty).ok_or_else(|| m.error("not simulated for this type"))?;
        Ok(Action::Atomic(Atomic {
            address,
            bytes: ty.bytes(),
            update,
            operands,
            to,
            order: order.unwrap_or_default(),
        })
        .into())
    }

    /// `cp.async` and what belongs to it (PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy").
    fn copy(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        if m.flag("reduce") || m.flag("mbarrier") {
            return Err(m.error("not simulated"));
        }
        m.wanted("kind", &[("async", ())])?;
        if m.flag("bulk") {
            return self.bulk(i, m);
        }
        if m.flag("commit_group") {
            return Ok(Action::CommitCopies.into());
        }
        if m.flag("wait_all") {
            return Ok(Action::WaitCopies(None).into());
        }
        if m.flag("wait_group") {
            let [left] = self.operands(i)?;
            let left = self.immediate(left)?.min(u32::MAX.into()) as u32;
            return Ok(Action::WaitCopies(Some(left)).into());
        }
        let sixteen_only = m.wanted("cache operator", &[("ca", false), ("cg", true)])?;
        m.wanted("destination", &[("shared", ()), ("shared::cta", ())])?;
        m.wanted("source", &[("global", ())])?;
        m.skip(is_hint);
        let (to, from, bytes, read) = match i.operands.as_slice() {
            [to, from, bytes] => (to, from, bytes, bytes),
            [to, from, bytes, read] => (to, from, bytes, read),
            _ => return Err(m.error("found another number of operands")),
        };
        let bytes = self.immediate(bytes)?;
        if !(bytes == 16 || !sixteen_only && (bytes == 4 || bytes == 8)) {
            return Err(m.error(format!("found {bytes} bytes, wanted 4, 8 or 16, of .cg 16")));
        }
        let (to, from) = (self.address(to, Some(Space::Shared))?, self.address(from, Some(Space::Global))?);
        let read = self.source(read, Type::U32)?;
        Ok(Action::Copy(AsyncCopy { to, from, bytes: bytes as u32, read }).into())
    }

    /// `ldmatrix` and `stmatrix`.
    fn matrix(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Result<Lowered> {
        for modifier in ["sync", "aligned", "m8n8", "b16"] {
            m.wanted("form", &[(modifier, ())])?;
        }
        let count = m.wanted("number of matrices", &[("x1", 1), ("x2", 2), ("x4", 4)])?;
        let transposed = m.flag("trans");
        let (space, _) = Self::access(m);
        let [first, second] = self.operands(i)?;
        let stores = i.opcode == "stmatrix";
        let (address, registers): (_, &'a Operand) = if stores { (first, second) } else { (second, first) };
        let address = self.address(address, space)?;
        let registers = self.sources(registers, Type::B32)?;
        let constant = registers.iter().any(|register| matches!(register, Source::Constant(_)));
        if registers.len() != count || constant {
            return Err(m.error(format!("found {} registers, wanted {count}", registers.len())));
        }
        let matrix = Matrix { address, registers, transposed };
        let action = if stores { Action::StoreMatrix(matrix) } else { Action::LoadMatrix(matrix) };
        Ok(Lowered::from(action).whole_warp())
    }
}

/// What an atomic leaves in memory.
fn update(operation: &str, ty: Type) -> Option<Update> {
    fn of<T: Lane>(f: impl Fn(T, T) -> T + Send + Sync + 'static) -> Option<Update> {
        Some(Box::new(move |old, [b, _], _| f(T::from_bits(old), T::from_bits(b)).bits()))
    }
    fn pair<T: Lane>(f: impl Fn(T, T) -> T + Send + Sync + 'static) -> Option<Update> {
        Some(Box::new(move |old, [b, _], _| {
            let half = |shift: u32| f(T::from_bits(old >> shift), T::from_bits(b >> shift)).bits() << shift;
            half(0) | half(16)
        }))
    }
    match (operation, ty) {
        ("exch", _) => Some(Box::new(|_, [b, _], _| b)),
        ("cas", _) => Some(Box::new(move |old, [b, c], _| {
            let low = u64::MAX >> (64 - 8 * ty.bytes());
            if old & low == b & low { c } else { old }
        })),
        ("and", _) => of(|a: u64, b: u64| a & b),
        ("or", _) => of(|a: u64, b: u64| a | b),
        ("xor", _) => of(|a: u64, b: u64| a ^ b),
        ("inc", Type::U32) => of(|a: u32, b: u32| if a >= b { 0 } else { a + 1 }),
        ("dec", Type::U32) => of(|a: u32, b: u32| if a == 0 || a > b { b } else { a - 1 }),
        ("add", Type::F32) => Some(Box::new(|old, [b, _], shared| {
            // Global memory's units have no subnormal numbers, those of a multiprocessor do.
            let number = |x: f32| if shared { x } else { float::flush(x) };
            let [a, b] = [old, b].map(|bits| number(f32::from_bits(bits as u32)));
            float::canonical(number(a + b)).bits()
        })),
        ("add", Type::F64) => of(|a: f64, b: f64| a + b),
        ("add", Type::F16) => of(|a: half::f16, b: half::f16| half::f16::from_f64(a.to_f64() + b.to_f64())),
        ("add", Type::Bf16) => of(|a: half::bf16, b: half::bf16| half::bf16::from_f64(a.to_f64() + b.to_f64())),
        ("add", Type::F16x2) => pair(|a: half::f16, b: half::f16| half::f16::from_f64(a.to_f64() + b.to_f64())),
        ("add", Type::Bf16x2) => pair(|a: half::bf16, b: half::bf16| half::bf16::from_f64(a.to_f64() + b.to_f64())),
        ("add", Type::U32 | Type::S32) => of(u32::wrapping_add),
        ("add", Type::U64 | Type::S64) => of(u64::wrapping_add),
        ("min", Type::U32) => of(u32::min),
        ("min", Type::S32) => of(i32::min),
        ("min", Type::U64) => of(u64::min),
        ("min", Type::S64) => of(i64::min),
        ("max", Type::U32) => of(u32::max),
        ("max", Type::S32) => of(i32::max),
        ("max", Type::U64) => of(u64::max),
        ("max", Type::S64) => of(i64::max),
        _ => None,
    }
}
