//! The kernels of this project load.

use flate2::read::GzDecoder;
use ptx_sim::{Memory, Module};
use std::io::Read;
use std::path::Path;

#[test]
fn every_prebuilt_kernel_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/prebuilt");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let mut text = String::new();
        // Long ones are packed.
        let read = match path.extension().is_some_and(|end| end == "gz") {
            true => GzDecoder::new(bytes.as_slice()).read_to_string(&mut text),
            false => bytes.as_slice().read_to_string(&mut text),
        };
        read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let module = Module::load(&text, &mut Memory::new(1 << 20));
        let module = module.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(module.kernels().count() > 0, "{}", path.display());
        count += 1;
    }
    assert!(count >= 11);
}
