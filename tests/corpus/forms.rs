//! The table: every form that the simulated GPU executes. What Hopper does in the background is written by functions, from
//! tables of their own.

mod atomic;
mod barrier;
mod control;
mod convert;
mod copies;
mod float;
mod hopper;
mod integer;
mod matrix;
mod memory;
mod moves;
mod operand;
mod predicate;
mod product;
mod tensor;
mod warp;

use crate::form::{Form, Program};

/// Forms of one kind.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    forms: &'static [Form],
    others: fn() -> Vec<Program>,
}

impl Family {
    /// Their programs.
    pub(crate) fn programs(&self) -> Vec<Program> {
        self.forms.iter().flat_map(Form::programs).chain((self.others)()).collect()
    }
}

const fn family(name: &'static str, forms: &'static [Form]) -> Family {
    Family { name, forms, others: Vec::new }
}

const fn written(name: &'static str, others: fn() -> Vec<Program>) -> Family {
    Family { name, forms: &[], others }
}

pub(crate) const FAMILIES: &[Family] = &[
    family("integer_arithmetic", integer::ARITHMETIC),
    family("bits", integer::BITS),
    family("arithmetic_in_f32", float::SINGLE),
    family("arithmetic_in_f64", float::DOUBLE),
    family("arithmetic_in_f16_and_bf16", float::HALF),
    family("approximations", float::APPROXIMATIONS),
    family("integers_to_integers", convert::INTEGERS),
    family("integers_to_floats", convert::FROM_INTEGERS),
    family("floats_to_integers", convert::TO_INTEGERS),
    family("floats_to_floats", convert::FLOATS),
    family("comparisons_and_selections", predicate::FORMS),
    family("moves_and_constants", moves::FORMS),
    family("loads", memory::LOADS),
    family("stores", memory::STORES),
    family("state_spaces", memory::SPACES),
    family("control", control::FORMS),
    family("lanes_of_a_warp", warp::FORMS),
    family("barriers", barrier::FORMS),
    family("atomics", atomic::FORMS),
    family("order_by_atomics", atomic::ORDERS),
    family("asynchronous_copies", copies::FORMS),
    family("matrix_moves", matrix::MOVES),
    family("matrix_products", matrix::PRODUCTS),
    family("barriers_in_memory", hopper::BARRIERS),
    family("elections_and_registers", hopper::REGISTERS),
    written("tensor_copies", tensor::copies),
    written("warpgroup_products", product::products),
    written("tensor_copies_into_products", product::fed),
];
