//! Where variables lie in the memory of a block and of a thread.

use crate::PtxError;
use crate::ptx::{Function, Item, Module, Space, Variable};
use std::collections::HashMap;

/// Bytes of parameters, at most (section 11.1, `.entry`).
const MOST_PARAM_BYTES: u64 = 32764;

/// Bytes of shared memory, and of a thread's local memory, at most.
const MOST_VARIABLE_BYTES: u64 = 512 << 10;

/// Addresses from here on in the space of parameters are of a thread's own: of parameters of functions.
pub(crate) const OWN_PARAMS: u64 = 1 << 32;

/// A variable of the tree: where it is declared tells it from another of its name.
type Declared = *const Variable;

#[derive(Default)]
pub(super) struct Layout {
    params: u64,
    shared: u64,
    local: u64,
    shared_places: HashMap<Declared, u64>,
}

impl Layout {
    /// Gives all shared variables of the module and its functions, and of the entry, their places, those of open length behind
    /// all others. A function has its own once, however often it is called, and also if it is not.
    pub(super) fn new(module: &Module, entry: &Function) -> Result<Self, PtxError> {
        let mut variables: Vec<&Variable> = module.variables.iter().filter(|one| one.space == Space::Shared).collect();
        let functions = module.functions.iter().filter(|function| !function.entry);
        functions.chain([entry]).for_each(|function| shared(&function.body, &mut variables));
        let mut layout = Layout::default();
        let (open, closed): (Vec<&Variable>, Vec<_>) = variables.iter().partition(|variable| variable.bytes == 0);
        for variable in closed {
            let address = place(&mut layout.shared, variable, MOST_VARIABLE_BYTES)?;
            layout.shared_places.insert(variable, address);
        }
        for variable in &open {
            place(&mut layout.shared, variable, MOST_VARIABLE_BYTES)?;
        }
        // All of open length begin where dynamic shared memory does.
        layout.shared_places.extend(open.into_iter().map(|variable| (variable as Declared, layout.shared)));
        Ok(layout)
    }

    /// A parameter of the kernel: its place.
    pub(super) fn param(&mut self, variable: &Variable) -> Result<u32, PtxError> {
        let offset = place(&mut self.params, variable, MOST_PARAM_BYTES)?;
        Ok(offset as u32)
    }

    /// A variable of a body: its address.
    pub(super) fn variable(&mut self, variable: &Variable) -> Result<u64, PtxError> {
        match variable.space {
            Space::Shared => Ok(self.shared(variable)),
            Space::Local => place(&mut self.local, variable, MOST_VARIABLE_BYTES),
            Space::Param => Ok(OWN_PARAMS + place(&mut self.local, variable, MOST_VARIABLE_BYTES)?),
            Space::Const | Space::Global => {
                let what = format!("variable {}: found a global one in a function, wanted it outside", variable.name);
                Err(PtxError::new(variable.line, what))
            }
        }
    }

    /// A shared variable's address.
    pub(super) fn shared(&self, variable: &Variable) -> u64 {
        self.shared_places.get(&(variable as Declared)).copied().unwrap_or(self.shared)
    }

    pub(super) fn shared_bytes(&self) -> u32 {
        self.shared as u32
    }

    pub(super) fn local_bytes(&self) -> u32 {
        self.local as u32
    }
}

/// Adds the shared variables of a body.
fn shared<'a>(items: &'a [Item], variables: &mut Vec<&'a Variable>) {
    for item in items {
        match item {
            Item::Variable(variable) if variable.space == Space::Shared => variables.push(variable),
            Item::Block(items) => shared(items, variables),
            _ => {}
        }
    }
}

/// Takes the next aligned place behind `end`.
fn place(end: &mut u64, variable: &Variable, most: u64) -> Result<u64, PtxError> {
    let refuse = |what: String| Err(PtxError::new(variable.line, format!("variable {}: {what}", variable.name)));
    let align = u64::from(variable.align.max(1));
    if !align.is_power_of_two() || align > 1 << 16 {
        return refuse(format!("found an alignment of {align}, wanted a power of two"));
    }
    let offset = end.next_multiple_of(align);
    match offset.checked_add(variable.bytes).filter(|end| *end <= most) {
        Some(new) => *end = new,
        None => return refuse(format!("found {} bytes at {offset}, wanted at most {most} in all", variable.bytes)),
    }
    Ok(offset)
}
