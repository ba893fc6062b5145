//! The kernels that rungs on a GPU run.

use device::Variant;

/// Every variant of each crate that has kernels, in the order of the rungs.
pub fn variants() -> impl Iterator<Item = &'static Variant> {
    cuda_fa2::variants().chain(fa3::variants())
}

/// Those that NVRTC compiles: all but Triton's.
pub fn of_nvrtc() -> impl Iterator<Item = &'static Variant> {
    variants().filter(|variant| !variant.is_triton())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_variant_has_its_prebuilt_ptx_of_the_sources_that_are_here_and_no_other_is_there() {
        let mut wanted = BTreeSet::new();
        for variant in variants() {
            device::prebuilt::ptx(variant).unwrap_or_else(|error| panic!("{error}"));
            assert!(wanted.insert(format!("prebuilt/{}", variant.ptx_name())), "{} twice", variant.ptx_name());
        }
        let found = device::files().map(|name| name.trim_end_matches(".gz")).filter(|name| name.ends_with(".ptx"));
        let found: BTreeSet<String> = found.map(String::from).collect();
        assert_eq!(found, wanted);
    }
}
