//! Embeds the folder `kernels`: tables of names with texts, and of packed files with their bytes, so that the program stands
//! alone.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root =
        Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../kernels").canonicalize()?;
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    list(&root, &mut files)?;
    files.sort();
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let (packed, texts): (Vec<_>, Vec<_>) =
        files.iter().partition(|file| file.extension().is_some_and(|kind| kind == "gz"));
    for (files, include, table) in [(texts, "include_str", "kernels.rs"), (packed, "include_bytes", "packed.rs")] {
        let line = |file: &&PathBuf| {
            let name = file.strip_prefix(&root).expect("it was found there").to_string_lossy().replace('\\', "/");
            format!("    ({name:?}, {include}!({:?})),\n", file.display().to_string())
        };
        fs::write(Path::new(&out).join(table), format!("&[\n{}]\n", files.iter().map(line).collect::<String>()))?;
    }
    Ok(())
}

/// The kernels, headers, steps, prebuilt files and what Triton compiles, under a folder.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|kind| ["cu", "cuh", "py", "diff", "ptx", "gz"].iter().any(|wanted| kind == *wanted))
        {
            files.push(path);
        }
    }
    Ok(())
}
