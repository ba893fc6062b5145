//! What beside its tokens a cached block depends on.

use crate::ManagerError;
use std::ops::Range;
use std::sync::Arc;

/// A condition under which keys and values were computed. Blocks are shared only under equal ones. The kind is a part of
/// the key: an adapter and a salt of the same name are two keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtraKey {
    /// Weights added to the model's, by their name.
    Adapter(String),
    /// A tenant's own: sequences with different salts share nothing, so that none learns by a hit what others asked.
    Salt(String),
    /// An image whose embeddings stand in the places of some tokens.
    Image {
        /// A cryptographic digest of what the image shows: images of equal digests are taken for equal.
        digest: [u8; 32],
        /// The first token of the prompt whose place it takes.
        first: usize,
        /// How many places it takes, at least 1.
        count: usize,
    },
}

impl ExtraKey {
    /// The keys that are hashed with the block of these tokens: images that begin in it, and with the first block all
    /// others. What stands behind is chained to it, and so depends on them too.
    ///
    /// ```
    /// use paged::ExtraKey;
    ///
    /// let image = ExtraKey::Image { digest: [7; 32], first: 20, count: 15 };
    /// let keys = [ExtraKey::Salt("tenant".into()), image.clone()];
    /// assert_eq!(ExtraKey::of_block(&keys, 0..16), keys[..1]);
    /// assert_eq!(ExtraKey::of_block(&keys, 16..32), [image]);
    /// assert_eq!(ExtraKey::of_block(&keys, 32..48), []);
    /// ```
    pub fn of_block(keys: &[ExtraKey], tokens: Range<usize>) -> Vec<ExtraKey> {
        let begins = |key: &&ExtraKey| match key {
            ExtraKey::Adapter(_) | ExtraKey::Salt(_) => tokens.start == 0,
            ExtraKey::Image { first, .. } => tokens.contains(first),
        };
        keys.iter().filter(begins).cloned().collect()
    }

    /// The keys of a prompt in one order, each once.
    pub(crate) fn checked(keys: &[ExtraKey], prompt: usize) -> Result<Arc<[ExtraKey]>, ManagerError> {
        for key in keys {
            if let &ExtraKey::Image { first, count, .. } = key
                && (count == 0 || first.checked_add(count).is_none_or(|end| end > prompt))
            {
                return Err(ManagerError::Value {
                    name: "image",
                    found: format!("{count} tokens from token {first}"),
                    wanted: format!("at least 1, all of a prompt of {prompt} tokens"),
                });
            }
        }
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys.into())
    }
}
