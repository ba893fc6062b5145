//! The kernels of this project load.

use ptx_sim::{Memory, Module};
use std::path::Path;

#[test]
fn every_prebuilt_kernel_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/prebuilt");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let module = Module::load(&text, &mut Memory::new(1 << 20));
        let module = module.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(module.kernels().count() > 0, "{}", path.display());
        count += 1;
    }
    assert!(count >= 11);
}
