//! Compiled kernels kept on disk, each in a file named by the hash of all that decides what is in it.
//!
//! Nothing is ever taken out; the folder can be deleted at any time.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io, process};

/// Bytes of the digest at a file's beginning, by which a broken one is known.
const DIGEST: usize = 32;

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
    if let Some(found) = fs::read(&path).ok().and_then(opened) {
        return Ok(found);
    }
    let built = build()?;
    // A reader sees all of a file or none: it gets its name when it is whole. Without a cache, the next run builds again.
    let _ = store(folder, &path, &built);
    Ok(built)
}

/// What a file holds, if it is whole.
fn opened(mut file: Vec<u8>) -> Option<Vec<u8>> {
    let rest = file.get(DIGEST..)?;
    (Sha256::digest(rest)[..] == file[..DIGEST]).then(|| file.split_off(DIGEST))
}

fn store(folder: &Path, path: &Path, built: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let draft = folder.join(format!("{}-{}.tmp", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let stored =
        fs::write(&draft, [&Sha256::digest(built)[..], built].concat()).and_then(|()| fs::rename(&draft, path));
    if stored.is_err() {
        let _ = fs::remove_file(&draft);
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

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
