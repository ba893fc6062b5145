//! A manager for several threads.

use crate::{Append, BlockCopy, BlockManager, ExtraKey, ManagerError, SequenceId};
use std::hash::{BuildHasher, RandomState};
use std::sync::PoisonError;

// The unit tests of this crate run threads in every order, which needs locks that are part of the game.
#[cfg(test)]
use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(test))]
use std::sync::{Arc, Mutex, MutexGuard};

/// One manager, shared by threads. A clone is another handle on the same one.
///
/// A block is found by others from the moment its last token is placed, not from the moment its bytes are written. Where
/// threads write too, they hold [`lock`](Self::lock) from the one to the other, and call the guard:
/// `guard.append(lease.id(), token)`. A lease takes the same lock, so a thread that holds it must neither call nor drop one.
///
/// ```
/// use paged::{BlockManager, Config, SharedBlockManager};
///
/// let shared = SharedBlockManager::new(BlockManager::new(Config::new(100, 16))?);
/// let lease = shared.admit(&[1, 2, 3], &[])?;
/// lease.append(4)?;
/// assert_eq!(shared.lock().table(lease.id())?.len, 4);
/// drop(lease);
/// assert_eq!(shared.lock().stats().used, 0);
/// # Ok::<(), paged::ManagerError>(())
/// ```
#[derive(Debug)]
pub struct SharedBlockManager<S = RandomState>(Arc<Mutex<BlockManager<S>>>);

impl<S> Clone for SharedBlockManager<S> {
    fn clone(&self) -> Self {
        SharedBlockManager(self.0.clone())
    }
}

impl<S: BuildHasher> SharedBlockManager<S> {
    /// A first handle on a manager.
    pub fn new(manager: BlockManager<S>) -> Self {
        SharedBlockManager(Arc::new(Mutex::new(manager)))
    }

    /// The manager, to this thread alone until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, BlockManager<S>> {
        // A thread that panicked meanwhile did so in its own code: the manager has no panic of its own.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`BlockManager::admit`], as a sequence that is freed when the lease is dropped.
    ///
    /// # Errors
    /// Those of [`BlockManager::admit`].
    pub fn admit(&self, prompt: &[u32], keys: &[ExtraKey]) -> Result<Lease<S>, ManagerError> {
        let admission = self.lock().admit(prompt, keys)?;
        Ok(Lease { manager: self.clone(), id: admission.sequence, cached: admission.cached })
    }
}

/// A sequence of a shared manager. It is freed when the lease is dropped.
#[derive(Debug)]
pub struct Lease<S: BuildHasher = RandomState> {
    manager: SharedBlockManager<S>,
    id: SequenceId,
    cached: usize,
}

impl<S: BuildHasher> Lease<S> {
    /// The sequence.
    pub fn id(&self) -> SequenceId {
        self.id
    }
    /// Its first tokens, which were found in the cache.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// [`BlockManager::append`].
    ///
    /// # Errors
    /// Those of [`BlockManager::append`].
    pub fn append(&self, token: u32) -> Result<Append, ManagerError> {
        self.manager.lock().append(self.id, token)
    }

    /// [`BlockManager::extend`].
    ///
    /// # Errors
    /// Those of [`BlockManager::extend`].
    pub fn extend(&self, tokens: &[u32]) -> Result<Vec<BlockCopy>, ManagerError> {
        self.manager.lock().extend(self.id, tokens)
    }

    /// [`BlockManager::fork`], as a lease of its own.
    ///
    /// # Errors
    /// Those of [`BlockManager::fork`].
    pub fn fork(&self) -> Result<Self, ManagerError> {
        let id = self.manager.lock().fork(self.id)?;
        Ok(Lease { manager: self.manager.clone(), id, cached: self.cached })
    }
}

impl<S: BuildHasher> Drop for Lease<S> {
    fn drop(&mut self) {
        // Whoever freed the sequence through the manager itself has left nothing to do.
        let _ = self.manager.lock().free(self.id);
    }
}
