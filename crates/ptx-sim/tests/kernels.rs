//! The kernels of this project load.

use flate2::read::GzDecoder;
use ptx_sim::{Memory, Module};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

#[test]
fn every_prebuilt_kernel_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/prebuilt");
    let mut count = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let mut text = String::new();
        if path.extension().is_some_and(|end| end == "gz") {
            GzDecoder::new(File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
        } else {
            text = fs::read_to_string(&path).unwrap();
        }
        let module = Module::load(&text, &mut Memory::new(1 << 20));
        let module = module.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(module.kernels().count() > 0, "{}", path.display());
        count += 1;
    }
    assert!(count >= 11);
}
