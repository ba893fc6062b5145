//! The reader, against trees, bytes and words that are written by hand.

mod declarations;
mod errors;
mod hostile;
mod instructions;
mod prebuilt;

use super::{Function, Instruction, Item, Module, Operand, read};
use std::io::Read;

/// What every text begins with: three lines.
const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// A text without its head.
fn module(text: &str) -> Module {
    read(&format!("{HEAD}{text}")).unwrap_or_else(|e| panic!("{text}\n{e}"))
}

/// The one function of a text without its head.
fn function(text: &str) -> Function {
    let [function] = module(text).functions.try_into().unwrap();
    function
}

/// What stands in a body. Its first line is the fifth of the text.
fn body(text: &str) -> Vec<Item> {
    function(&format!(".entry k() {{\n{text}\n}}")).body
}

fn name(name: &str) -> Operand {
    Operand::Name(name.into())
}

/// The instructions of a body, blocks included, in order.
fn instructions(items: &[Item]) -> Vec<&Instruction> {
    let mut found = Vec::new();
    for item in items {
        match item {
            Item::Instruction(instruction) => found.push(instruction),
            Item::Block(items) => found.extend(instructions(items)),
            _ => {}
        }
    }
    found
}

/// A file of the repository, unpacked if it is packed.
fn repository_file(path: &str) -> String {
    let file = std::fs::read(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    if !path.ends_with(".gz") {
        return String::from_utf8(file).unwrap();
    }
    let mut text = String::new();
    flate2::read::GzDecoder::new(&*file).read_to_string(&mut text).unwrap();
    text
}

/// The names of the prebuilt PTX.
fn prebuilt_files() -> Vec<String> {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/prebuilt")).unwrap();
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(".ptx") || name.ends_with(".ptx.gz"));
    names.sort();
    assert!(names.len() >= 11, "{names:?}");
    names
}
