//! Instruction forms as a table writes them, and the programs that they stand for.
//!
//! A form is an instruction and a signature. `<a|b>` in the instruction stands for either, so that one line is many programs.
//! The signature says what is loaded before and stored after: "f32 pred = 2*f32 b32:shift". A program is one kernel; each of its
//! threads takes the input tuple of its index, one element of each input column, and writes one element of each output column.
//!
//! In the instruction `%a0`, `%a1` are the inputs and `%d0`, `%d1` the outputs, in registers; `%p0` and `%q0` are the global
//! addresses of the thread's element of the first input and output, `%in` and `%out` those of all, `%i` is the tuple's index
//! and `%t` the thread's in its block. An instruction without operands gets the outputs and then the inputs.

use crate::map::Map;
use crate::values::{self, Draw};
use std::fmt::Write;

/// What a program stores, by its thread: a number for each output column.
type Says = fn(&Program, usize) -> Vec<u64>;

/// A line of a table.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    /// Empty where the instruction says enough.
    name: &'static str,
    /// Behind the name, where one instruction has two signatures.
    kind: &'static str,
    text: &'static str,
    signature: &'static str,
    /// What stands before the kernel: functions and variables.
    declarations: &'static str,
    target: &'static str,
    grid: [u32; 3],
    /// No threads: as many as the signature asks for.
    block: [u32; 3],
    shared_bytes: u32,
    /// A third parameter of the kernel, a struct by value.
    argument: &'static [u8],
    /// Directives of the kernel.
    limits: &'static str,
    says: Option<Says>,
}

/// One instruction or a few, in all its variants.
pub(crate) const fn form(text: &'static str, signature: &'static str) -> Form {
    Form {
        name: "",
        kind: "",
        text,
        signature,
        declarations: "",
        target: "sm_80",
        grid: [1; 3],
        block: [0; 3],
        shared_bytes: 0,
        argument: &[],
        limits: "",
        says: None,
    }
}

/// A program with a name.
pub(crate) const fn program(name: &'static str, signature: &'static str, text: &'static str) -> Form {
    Form { name, ..form(text, signature) }
}

impl Form {
    /// Told apart from others of the same instruction.
    pub(crate) const fn of(self, kind: &'static str) -> Self {
        Form { kind, ..self }
    }

    /// For Hopper and newer.
    pub(crate) const fn sm_90(self) -> Self {
        Form { target: "sm_90", ..self }
    }

    /// For Hopper alone.
    pub(crate) const fn sm_90a(self) -> Self {
        Form { target: "sm_90a", ..self }
    }

    /// With these functions and variables.
    pub(crate) const fn with(self, declarations: &'static str) -> Self {
        Form { declarations, ..self }
    }

    /// On blocks of that shape, one tuple a thread.
    pub(crate) const fn on(self, grid: [u32; 3], block: [u32; 3]) -> Self {
        Form { grid, block, ..self }
    }

    /// With dynamic shared memory.
    pub(crate) const fn shared(self, shared_bytes: u32) -> Self {
        Form { shared_bytes, ..self }
    }

    /// With a struct as third parameter, `argument`.
    pub(crate) const fn argument(self, argument: &'static [u8]) -> Self {
        Form { argument, ..self }
    }

    /// With directives behind the kernel's parameters.
    pub(crate) const fn limits(self, limits: &'static str) -> Self {
        Form { limits, ..self }
    }

    /// With what arithmetic says that it stores.
    pub(crate) const fn says(self, says: Says) -> Self {
        Form { says: Some(says), ..self }
    }

    /// Its programs.
    pub(crate) fn programs(&self) -> Vec<Program> {
        let texts = if self.name.is_empty() { alternatives(self.text) } else { vec![self.text.into()] };
        texts.into_iter().map(|text| self.program(text)).collect()
    }

    fn program(&self, text: String) -> Program {
        let name = if self.name.is_empty() { text.clone() } else { self.name.into() };
        let name = if self.kind.is_empty() { name } else { format!("{name} // {}", self.kind) };
        self.build(Recipe { name, signature: self.signature.into(), text, ..Recipe::default() })
    }

    /// A program that is not in a table, but for what this form says of its kernel.
    pub(crate) fn build(&self, recipe: Recipe) -> Program {
        let Recipe { name, signature, text, maps, input, truth } = recipe;
        let (outputs, inputs) = signature.split_once('=').expect("a signature has an =");
        let columns =
            |list: &str| list.split_whitespace().flat_map(|word| Column::some(word, &text)).collect::<Vec<_>>();
        let (outputs, inputs) = (columns(outputs), columns(inputs));
        let (mut grid, mut block) = (self.grid, self.block);
        if block[0] == 0 {
            (grid, block) = threads(&outputs, &inputs);
        }
        let count = grid.iter().chain(&block).product::<u32>() as usize;
        let body = if text.contains('%') { text } else { with_operands(&text, outputs.len(), inputs.len()) };
        let mut program = Program {
            input: input.unwrap_or_else(|| values::draw(&inputs, count, fnv(name.as_bytes()))),
            name,
            body,
            text: String::new(),
            inputs,
            outputs,
            count,
            target: self.target,
            grid,
            block,
            shared_bytes: self.shared_bytes,
            argument: self.argument,
            maps,
            truth,
        };
        let bytes: usize = program.inputs.iter().map(|column| count * column.bytes).sum();
        assert_eq!(program.input.len(), bytes, "{}: bytes of the input", program.name);
        program.text = program.write(self.declarations, self.limits);
        if let Some(says) = self.says {
            program.truth = Some(program.said(says));
        }
        program
    }
}

/// Grid and block of a form: more tuples where there are more pairs of values to see, fewer where bytes are only moved.
fn threads(outputs: &[Column], inputs: &[Column]) -> ([u32; 3], [u32; 3]) {
    let moves = outputs.iter().chain(inputs).any(|column| column.ty.starts_with('m'));
    match inputs.len() {
        0 => ([1; 3], [32, 1, 1]),
        1 if moves => ([1; 3], [128, 1, 1]),
        2.. if !moves => ([3, 1, 1], [128, 1, 1]),
        _ => ([2, 1, 1], [128, 1, 1]),
    }
}

/// What a program is made of that is not in a table.
#[derive(Default)]
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) signature: String,
    pub(crate) text: String,
    /// Parameters `map0`, `map1` and so on of the kernel.
    pub(crate) maps: Vec<Map>,
    /// Not drawn.
    pub(crate) input: Option<Vec<u8>>,
    pub(crate) truth: Option<Vec<u8>>,
}

/// A program and what it is run on.
pub(crate) struct Program {
    /// The instruction, or a name.
    pub(crate) name: String,
    /// The instruction with its operands.
    pub(crate) body: String,
    /// PTX, of one kernel: `program`.
    pub(crate) text: String,
    pub(crate) inputs: Vec<Column>,
    pub(crate) outputs: Vec<Column>,
    /// Tuples, one a thread.
    pub(crate) count: usize,
    pub(crate) target: &'static str,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) argument: &'static [u8],
    pub(crate) maps: Vec<Map>,
    /// The input columns, one behind the other.
    pub(crate) input: Vec<u8>,
    /// The outputs, as arithmetic says them.
    pub(crate) truth: Option<Vec<u8>>,
}

/// An input or output.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// "f32", or "m16": 16 bytes of memory, which the program itself reads or writes.
    pub(crate) ty: String,
    pub(crate) draw: Draw,
    /// Bytes of an element.
    pub(crate) bytes: usize,
}

impl Column {
    /// "4*f32" is four of them.
    fn some(word: &str, text: &str) -> Vec<Self> {
        let (count, word) = word.split_once('*').unwrap_or(("1", word));
        vec![Column::new(word, text); count.parse().expect("a count stands before *")]
    }

    /// A word of a signature, beside an instruction: T is the type that its last opcode ends with, U the one before, W the
    /// integer of twice T's width.
    fn new(word: &str, text: &str) -> Self {
        let (ty, draw) = word.split_once(':').unwrap_or((word, ""));
        let last = text.trim_end_matches(';').rsplit(';').next().unwrap_or_default();
        let mut modifiers = last.split_whitespace().next().unwrap_or_default().rsplit('.');
        let ty = match ty {
            "T" => modifiers.next().unwrap_or_default().into(),
            "U" => modifiers.nth(1).unwrap_or_default().into(),
            "W" => twice(modifiers.next().unwrap_or_default()),
            ty => ty.to_string(),
        };
        let bytes = match ty.as_str() {
            "pred" => 1,
            // In a register of 16 bits, which PTX's smallest are.
            "u8" | "s8" => 2,
            "f16x2" | "bf16x2" => 4,
            ty => number(ty) / if ty.starts_with('m') { 1 } else { 8 },
        };
        Column { draw: Draw::named(draw), bytes, ty }
    }

    /// The type of its register, if it has one.
    fn register(&self) -> Option<String> {
        match self.ty.as_str() {
            "pred" => Some("pred".into()),
            ty if ty.starts_with('m') => None,
            _ => Some(format!("b{}", 8 * self.bytes)),
        }
    }
}

/// The number that a type's name ends with.
fn number(ty: &str) -> usize {
    ty.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap_or_else(|_| panic!("no type: {ty}"))
}

fn twice(ty: &str) -> String {
    format!("{}{}", &ty[..1], 2 * number(ty))
}

/// Every choice of alternatives in a text; `%r<4>` is none.
fn alternatives(text: &str) -> Vec<String> {
    let mut in_brackets = text.match_indices('<').filter_map(|(start, _)| {
        let (choices, after) = text[start + 1..].split_once('>')?;
        choices.contains('|').then_some((&text[..start], choices, after))
    });
    let Some((before, choices, after)) = in_brackets.next() else { return vec![text.into()] };
    let rests = alternatives(after);
    choices.split('|').flat_map(|choice| rests.iter().map(move |rest| format!("{before}{choice}{rest}"))).collect()
}

fn with_operands(opcode: &str, outputs: usize, inputs: usize) -> String {
    let outputs = (0..outputs).map(|k| format!("%d{k}"));
    let operands: Vec<String> = outputs.chain((0..inputs).map(|k| format!("%a{k}"))).collect();
    format!("{opcode} {};", operands.join(", "))
}

impl Program {
    /// Bytes of all outputs.
    pub(crate) fn output_bytes(&self) -> usize {
        self.outputs.iter().map(|column| self.count * column.bytes).sum()
    }

    /// A hash of all that decides what it computes.
    pub(crate) fn hash(&self) -> u64 {
        let shape: Vec<u8> =
            self.grid.iter().chain(&self.block).chain([&self.shared_bytes]).flat_map(|n| n.to_le_bytes()).collect();
        let maps: String = self.maps.iter().map(|map| format!("{map:?}")).collect();
        fnv(&[self.text.as_bytes(), &self.input, &shape, self.argument, maps.as_bytes()].concat())
    }

    /// The output columns, as a function of the thread says.
    fn said(&self, says: Says) -> Vec<u8> {
        let tuples: Vec<Vec<u64>> = (0..self.count).map(|i| says(self, i)).collect();
        let columns = self.outputs.iter().enumerate();
        columns
            .flat_map(|(k, column)| {
                tuples.iter().flat_map(move |tuple| tuple[k].to_le_bytes()[..column.bytes].to_vec())
            })
            .collect()
    }

    fn write(&self, declarations: &str, limits: &str) -> String {
        let mut text = String::new();
        self.write_into(declarations, limits, &mut text).expect("a string takes any text");
        text
    }

    fn write_into(&self, declarations: &str, limits: &str, text: &mut String) -> std::fmt::Result {
        writeln!(text, ".version 8.0\n.target {}\n.address_size 64", self.target)?;
        writeln!(text, "{declarations}")?;
        write!(text, ".visible .entry program(.param .u64 in, .param .u64 out")?;
        if !self.argument.is_empty() {
            write!(text, ", .param .align 16 .b8 argument[{}]", self.argument.len())?;
        }
        for number in 0..self.maps.len() {
            write!(text, ", .param .align 64 .b8 map{number}[128]")?;
        }
        writeln!(text, ")")?;
        if !limits.is_empty() {
            writeln!(text, "{limits}")?;
        }
        writeln!(text, "{{")?;
        writeln!(
            text,
            "    .reg .b64 %in, %out;\n    .reg .b32 %i, %t, %x;\n    .reg .b16 %bit;\n    .reg .pred %set;"
        )?;
        for (register, address, columns) in [('a', 'p', &self.inputs), ('d', 'q', &self.outputs)] {
            for (k, column) in columns.iter().enumerate() {
                writeln!(text, "    .reg .b64 %{address}{k};")?;
                if let Some(ty) = column.register() {
                    writeln!(text, "    .reg .{ty} %{register}{k};")?;
                }
            }
        }
        writeln!(text, "    ld.param.u64 %in, [in];\n    ld.param.u64 %out, [out];")?;
        writeln!(text, "    cvta.to.global.u64 %in, %in;\n    cvta.to.global.u64 %out, %out;")?;
        writeln!(text, "    mov.u32 %t, %tid.x;\n    mov.u32 %x, %ctaid.x;")?;
        writeln!(text, "    mad.lo.u32 %i, %x, {}, %t;", self.block[0])?;
        self.write_addresses(text, "in", 'p', &self.inputs)?;
        self.write_addresses(text, "out", 'q', &self.outputs)?;
        for (k, column) in self.inputs.iter().enumerate() {
            match column.register().as_deref() {
                Some("pred") => writeln!(text, "    ld.global.u8 %bit, [%p{k}];\n    setp.ne.u16 %a{k}, %bit, 0;")?,
                Some(ty) => writeln!(text, "    ld.global.{ty} %a{k}, [%p{k}];")?,
                None => {}
            }
        }
        let body = self.body.trim_matches('\n').replace('\n', "\n    ");
        writeln!(text, "    {{\n    {body}\n    }}")?;
        for (k, column) in self.outputs.iter().enumerate() {
            match column.register().as_deref() {
                Some("pred") => writeln!(text, "    selp.u16 %bit, 1, 0, %d{k};\n    st.global.u8 [%q{k}], %bit;")?,
                Some(ty) => writeln!(text, "    st.global.{ty} [%q{k}], %d{k};")?,
                None => {}
            }
        }
        writeln!(text, "    ret;\n}}")
    }

    /// The address of the thread's element in each column.
    fn write_addresses(&self, text: &mut String, base: &str, address: char, columns: &[Column]) -> std::fmt::Result {
        let mut start = 0;
        for (k, column) in columns.iter().enumerate() {
            writeln!(text, "    mad.wide.u32 %{address}{k}, %i, {}, %{base};", column.bytes)?;
            if start > 0 {
                writeln!(text, "    add.s64 %{address}{k}, %{address}{k}, {start};")?;
            }
            start += self.count * column.bytes;
        }
        Ok(())
    }
}

/// FNV-1a: tells texts apart, and is the same everywhere.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
