//! Compiled kernels kept on disk, each in a file named by the hash of all that decides what is in it.
//!
//! Nothing is ever taken out; the folder can be deleted at any time.

use sha2::{Digest, Sha256};
use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Bytes of the digest at a file's beginning, by which a broken one, or one of another key, is known.
const DIGEST: usize = 32;
/// Bytes of a file, at most: far more than a cubin has.
const MOST: u64 = 64 << 20;

/// The folder: `flash-ladder` in the user's cache folder, if there is one.
pub(crate) fn folder() -> Option<PathBuf> {
    let own = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env::home_dir().filter(|path| path.is_absolute()).map(|path| path.join(".cache"));
    own.or_else(home).map(|path| path.join("flash-ladder"))
}

/// What the cache has under a key, or else what is built, which it then has. A folder that cannot be read or written is as
/// good as none.
pub(crate) fn get<E>(
    folder: Option<&Path>,
    key: &str,
    build: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let Some(folder) = folder else { return build() };
    let path = folder.join(format!("{key}.cubin"));
    if let Some(found) = read(&path).and_then(|file| opened(key, file)) {
        return Ok(found);
    }
    let built = build()?;
    // A reader sees all of a file or none: it gets its name when it is whole. Without a cache, the next run builds again.
    let _ = store(folder, &path, key, &built);
    Ok(built)
}

/// What a file has in it, if it is one: what is no file may have no end, or never begin.
fn read(path: &Path) -> Option<Vec<u8>> {
    let found = fs::metadata(path).ok()?;
    if !found.is_file() || found.len() > MOST {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// What a file holds, if it is whole and of that key.
fn opened(key: &str, mut file: Vec<u8>) -> Option<Vec<u8>> {
    let built = (file.len() >= DIGEST).then(|| file.split_off(DIGEST))?;
    (digest(key, &built)[..] == file).then_some(built)
}

fn digest(key: &str, built: &[u8]) -> [u8; DIGEST] {
    // The length before the key, so that no key runs into what was built.
    let key_length = (key.len() as u64).to_le_bytes();
    Sha256::new().chain_update(key_length).chain_update(key).chain_update(built).finalize().into()
}

fn store(folder: &Path, path: &Path, key: &str, built: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut draft = NamedTempFile::new_in(folder)?;
    draft.write_all(&digest(key, built))?;
    draft.write_all(built)?;
    draft.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    #[cfg(unix)]
    use std::process::Command;

    fn built(text: &str) -> impl FnOnce() -> Result<Vec<u8>, Infallible> {
        move || Ok(text.into())
    }

    #[test]
    fn what_is_kept_is_not_built_again_and_a_broken_file_is() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        assert_eq!(get(Some(&folder), "one", built("first")), Ok(b"first".to_vec()));
        assert_eq!(get(Some(&folder), "one", built("second")), Ok(b"first".to_vec()));
        assert_eq!(get(Some(&folder), "two", built("other")), Ok(b"other".to_vec()));
        let path = folder.join("one.cubin");
        let whole = fs::read(&path).unwrap();
        for broken in [&whole[..whole.len() - 1], &whole[..DIGEST - 1], b"", &[&whole[..], b"x"].concat()] {
            fs::write(&path, broken).unwrap();
            assert_eq!(get(Some(&folder), "one", built("third")), Ok(b"third".to_vec()));
            assert_eq!(get(Some(&folder), "one", built("fourth")), Ok(b"third".to_vec()));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no draft is left");
        fs::copy(folder.join("two.cubin"), &path).unwrap();
        assert_eq!(get(Some(&folder), "one", built("fifth")), Ok(b"fifth".to_vec()), "a file of another key");
    }

    #[test]
    #[cfg(unix)]
    fn what_is_no_file_or_is_too_long_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("one.cubin");
        let pipe = || Command::new("mkfifo").arg(&path).status().map(|status| assert!(status.success()));
        let endless = || std::os::unix::fs::symlink("/dev/zero", &path);
        let long = || File::create(&path).and_then(|file| file.set_len(MOST + 1));
        for plant in [&pipe as &dyn Fn() -> io::Result<()>, &endless, &long] {
            plant().unwrap();
            assert_eq!(get(Some(root.path()), "one", built("first")), Ok(b"first".to_vec()));
            assert_eq!(get(Some(root.path()), "one", built("second")), Ok(b"first".to_vec()));
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_failure_is_not_kept_and_a_folder_that_cannot_be_written_is_no_failure() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(get(Some(root.path()), "one", || Err("no")), Err("no"));
        assert_eq!(get(Some(root.path()), "one", built("yes")), Ok(b"yes".to_vec()));
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(get(Some(&file.join("sub")), "one", built("yes")), Ok(b"yes".to_vec()));
        assert_eq!(get(None, "one", built("yes")), Ok(b"yes".to_vec()));
    }
}
