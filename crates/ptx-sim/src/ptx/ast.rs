//! The tree. Sections are those of the PTX ISA 8.x.

use std::fmt;

/// A text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Module {
    /// `.target`, "sm_80".
    pub(crate) target: String,
    /// `.file`: numbers and names.
    pub(crate) files: Vec<(u32, String)>,
    /// Variables outside functions.
    pub(crate) variables: Vec<Variable>,
    /// Functions with a body, in order; a declaration alone leaves nothing.
    pub(crate) functions: Vec<Function>,
}

/// A state space (section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Const,
    Global,
    Local,
    Param,
    Shared,
}

/// A fundamental type (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

/// A variable with an address (section 5.4).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) ty: Type,
    /// `.align`, or else the size of its type, of all elements of a vector.
    pub(crate) align: u32,
    /// Its size; 0 for an array whose length is open, as `.extern .shared .align 16 .b8 memory[]`.
    pub(crate) bytes: u64,
    /// Its initial bytes, if it has any; as many as `bytes`.
    pub(crate) init: Option<Vec<u8>>,
    /// Addresses among the initial bytes, where those are 0.
    pub(crate) pointers: Vec<Pointer>,
    pub(crate) line: u32,
}

/// `name+4` or `generic(name)+4` in an initialiser: global memory has the same addresses either way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pointer {
    /// Where it stands in its variable.
    pub(crate) at: u64,
    pub(crate) name: String,
    pub(crate) offset: u64,
}

/// `.entry` or `.func` (section 5.4.6 and 11.1).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) entry: bool,
    pub(crate) returns: Vec<Variable>,
    pub(crate) params: Vec<Variable>,
    /// `.maxntid` or `.reqntid`, the product.
    pub(crate) max_threads: Option<u32>,
    /// `.maxnreg`.
    pub(crate) max_registers: Option<u32>,
    pub(crate) body: Vec<Item>,
    pub(crate) line: u32,
}

/// What stands in a body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    /// `.reg .b32 %r<5>;` is five registers `%r0` to `%r4`, `.reg .b32 x, y;` two items with no count.
    Registers {
        ty: Type,
        name: String,
        count: Option<u32>,
        line: u32,
    },
    /// `.shared`, `.local`, `.param`.
    Variable(Variable),
    Label {
        name: String,
        line: u32,
    },
    Instruction(Instruction),
    /// Braces: a scope of names.
    Block(Vec<Item>),
}

/// A line of the source, by `.loc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loc {
    /// The number of a `.file`.
    pub(crate) file: u32,
    pub(crate) line: u32,
    /// File and line of the call, where the line is of a function that was inlined.
    pub(crate) inlined_at: Option<(u32, u32)>,
}

/// `@!p add.rn.f32 a, b, c;`
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    /// "add".
    pub(crate) opcode: String,
    /// "rn", "f32": what stands behind the opcode's dots.
    pub(crate) modifiers: Vec<String>,
    pub(crate) operands: Vec<Operand>,
    /// In the text, from 1.
    pub(crate) line: u32,
    pub(crate) loc: Option<Loc>,
}

/// A predicate that says which lanes execute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Guard {
    pub(crate) register: String,
    pub(crate) negated: bool,
}

/// An operand (chapter 6).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A register, special register ("%tid.x"), label, variable or function; "_" for a result that is not wanted.
    Name(String),
    /// `!p`.
    Not(String),
    /// An integer constant as the 64 bits that it stands for, two's complement: `-1` is `u64::MAX`.
    Integer(u64),
    /// `0f3F800000`.
    F32(u32),
    /// `0d3FF0000000000000`, or `1.0`.
    F64(u64),
    /// `[%rd1+8]`, `[name]`, `[16]`, `[name+%r1]` is not PTX. The base is a [`Name`](Operand::Name) or an
    /// [`Integer`](Operand::Integer). `name+4` without brackets, as `mov` takes it, is an address too, with `loads` false.
    Address { base: Box<Operand>, offset: i64, loads: bool },
    /// `[map, {x, y}]`: an address and coordinates.
    Tensor { base: Box<Operand>, coordinates: Vec<Operand> },
    /// `{a, b, c, d}`.
    Vector(Vec<Operand>),
    /// `p|q`.
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)`, of a call.
    List(Vec<Operand>),
}

impl Type {
    /// Its size; a predicate has none in memory.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Type::Pred => 0,
            Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 2,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::F16x2 | Type::Bf16x2 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
            Type::B128 => 16,
        }
    }

    /// The type of this name, "f16x2".
    pub(crate) fn named(name: &str) -> Option<Type> {
        Some(match name {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::Bf16,
            "bf16x2" => Type::Bf16x2,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }
}

impl fmt::Display for Instruction {
    /// Opcode and modifiers, "ld.global.f32".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.opcode)?;
        self.modifiers.iter().try_for_each(|modifier| write!(f, ".{modifier}"))
    }
}
