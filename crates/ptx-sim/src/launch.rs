//! What a program calls: modules, kernels and launches.

use crate::lower::{self, Addresses};
use crate::program::Program;
use crate::ptx::{self, Space};
use crate::{Counters, Fault, Memory, PtxError, exec};
use std::sync::Arc;
use thiserror::Error;

/// Threads of a block, at most.
const MOST_THREADS: u32 = 1024;

/// Bytes of a block's registers, at most: those of PTX, which an assembler would share.
const MOST_REGISTERS: u64 = 1 << 30;

/// Dynamic and static shared memory of a block, at most: what Hopper has.
const MOST_SHARED: u32 = 227 << 10;

/// Kernels from a text, with the variables that they share.
#[derive(Clone, Debug)]
pub struct Module {
    kernels: Vec<Kernel>,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Kernel(Arc<Program>);

/// How many blocks of how many threads run a kernel, and what each block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// Which of the orders that the memory model allows is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Seed 0 draws nothing: warps take turns, each as far as it gets. Any other draws warps, and when copies land.
    pub seed: u64,
    /// Instructions of all warps after which the kernel is taken to hang.
    pub steps: u64,
}

/// Why a launch did not end well.
#[derive(Clone, Debug, Error)]
pub enum LaunchError {
    /// An argument or the shape does not fit the kernel; nothing was run.
    #[error("{kernel}: {what}: found {found}, wanted {wanted}")]
    Shape {
        /// The kernel.
        kernel: String,
        /// What it is.
        what: String,
        /// Its value.
        found: String,
        /// What would do.
        wanted: String,
    },
    /// The kernel did something wrong.
    #[error(transparent)]
    Fault(Box<Fault>),
}

impl Module {
    /// Reads a text and puts its variables into memory, where they stay as long as the memory.
    ///
    /// # Errors
    /// It is not PTX, or has an instruction that is not simulated: the line and what it is. There is no memory for it.
    pub fn load(text: &str, memory: &mut Memory) -> Result<Module, PtxError> {
        let tree = ptx::read(text)?;
        let mut globals = Addresses::new();
        for variable in tree.variables.iter().filter(|one| matches!(one.space, Space::Global | Space::Const)) {
            let fails = |error| PtxError::new(variable.line, format!("variable {}: {error}", variable.name));
            let address = memory.alloc(variable.bytes).map_err(fails)?;
            // What has no initial value begins as 0 (section 5.4.4).
            memory.fill(address, variable.bytes, 0).map_err(fails)?;
            memory.write(address, variable.init.as_deref().unwrap_or_default()).map_err(fails)?;
            globals.insert(variable.name.clone(), address);
        }
        for variable in &tree.variables {
            for pointer in &variable.pointers {
                let fails = |what: String| PtxError::new(variable.line, format!("variable {}: {what}", variable.name));
                let to = globals.get(&pointer.name);
                let to = to.ok_or_else(|| fails(format!("found {}, wanted a global variable", pointer.name)))?;
                let address = globals[&variable.name] + pointer.at;
                let written = memory.write(address, &to.wrapping_add(pointer.offset).to_le_bytes());
                written.map_err(|error| fails(error.to_string()))?;
            }
        }
        let entries = tree.functions.iter().filter(|function| function.entry);
        let kernels =
            entries.map(|entry| lower::lower(&tree, entry, &globals).map(|program| Kernel(Arc::new(program))));
        Ok(Module { kernels: kernels.collect::<Result<_, _>>()? })
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        self.kernels.iter().find(|kernel| kernel.name() == name).cloned()
    }

    /// The names of its kernels, in the text's order.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(Kernel::name)
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The size of each parameter, in bytes.
    pub fn parameters(&self) -> &[u32] {
        &self.0.param_sizes
    }

    /// Static shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.0.shared_bytes
    }

    /// Threads of a block, at most: what the kernel was compiled for, or 1024.
    pub fn max_threads(&self) -> u32 {
        self.0.max_threads.unwrap_or(MOST_THREADS).min(MOST_THREADS)
    }

    /// Runs the kernel to its end. The arguments are the bytes of each parameter.
    ///
    /// # Errors
    /// [`LaunchError::Shape`] before anything is run; [`LaunchError::Fault`] at the first thing that the kernel does wrong.
    pub fn launch(
        &self,
        memory: &mut Memory,
        shape: Shape,
        arguments: &[&[u8]],
        schedule: Schedule,
    ) -> Result<Counters, LaunchError> {
        self.check(shape)?;
        let sizes = self.parameters();
        if arguments.len() != sizes.len() {
            return Err(self.refuse("arguments", arguments.len(), sizes.len()));
        }
        let program = &self.0;
        let end = program.param_offsets.iter().zip(sizes).map(|(offset, bytes)| offset + bytes).max();
        let mut params = vec![0; end.unwrap_or(0) as usize];
        for (place, (argument, (offset, bytes))) in
            arguments.iter().zip(program.param_offsets.iter().zip(sizes)).enumerate()
        {
            if argument.len() != *bytes as usize {
                let what = format!("bytes of argument {place}");
                return Err(self.refuse(&what, argument.len(), bytes));
            }
            let offset = *offset as usize;
            params[offset..offset + argument.len()].copy_from_slice(argument);
        }
        exec::run(program, memory, shape, params, schedule).map_err(LaunchError::Fault)
    }

    fn check(&self, shape: Shape) -> Result<(), LaunchError> {
        let product = |sizes: [u32; 3]| sizes.iter().try_fold(1u32, |product, size| product.checked_mul(*size));
        let threads = product(shape.block).unwrap_or(u32::MAX);
        if threads == 0 || threads > self.max_threads() {
            return Err(self.refuse("threads of a block", threads, format!("1 to {}", self.max_threads())));
        }
        let blocks = product(shape.grid).unwrap_or(u32::MAX);
        if blocks == 0 || blocks > i32::MAX as u32 {
            return Err(self.refuse("blocks", blocks, format!("1 to {}", i32::MAX)));
        }
        let shared = shape.shared_bytes.saturating_add(self.shared_bytes());
        if shared > MOST_SHARED {
            return Err(self.refuse("bytes of shared memory of a block", shared, format!("at most {MOST_SHARED}")));
        }
        let registers = u64::from(threads.div_ceil(32)) * self.0.register_bytes();
        if registers > MOST_REGISTERS {
            let wanted = format!("at most {MOST_REGISTERS}");
            return Err(self.refuse("bytes of registers of a block, of which PTX has any number", registers, wanted));
        }
        Ok(())
    }

    fn refuse(&self, what: &str, found: impl ToString, wanted: impl ToString) -> LaunchError {
        let (kernel, what) = (self.name().to_string(), what.to_string());
        LaunchError::Shape { kernel, what, found: found.to_string(), wanted: wanted.to_string() }
    }
}
