//! Tests of the book and of what builds it.

mod browser;
mod check;
mod common;
mod pages;
mod serve;
