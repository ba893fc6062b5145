//! The shared manager in every order in which two threads can take its lock.

use crate::{BlockManager, Config, ManagerError, SharedBlockManager};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

fn shared(blocks: usize) -> SharedBlockManager {
    SharedBlockManager::new(BlockManager::new(Config::new(blocks, 4)).unwrap())
}

/// Nobody holds anything, and the list has every block once.
fn assert_unused(shared: &SharedBlockManager) {
    let mut manager = shared.lock();
    assert_eq!((manager.stats().used, manager.stats().uses, manager.stats().sequences), (0, 0, 0));
    let blocks: BTreeSet<_> = (0..manager.blocks.usable()).map(|_| manager.blocks.allocate().unwrap()).collect();
    assert_eq!(blocks.len(), manager.blocks.usable());
}

#[test]
fn two_threads_with_one_beginning_have_it_once_or_twice_and_leave_nothing() {
    let orders = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = orders.clone();
    loom::model(move || {
        let shared = shared(12);
        let work = |shared: &SharedBlockManager, token: u32| {
            let lease = shared.admit(&[1, 2, 3, 4, 5], &[]).unwrap();
            lease.append(token).unwrap();
            lease.cached()
        };
        let other = shared.clone();
        let thread = loom::thread::spawn(move || work(&other, 6));
        let (here, there) = (work(&shared, 7), thread.join().unwrap());
        // Whoever comes first finds nothing; what it placed is found from then on.
        seen.lock().unwrap().insert((here, there));
        assert_unused(&shared);
    });
    assert_eq!(*orders.lock().unwrap(), BTreeSet::from([(0, 4), (4, 0)]));
}

#[test]
fn a_parent_and_its_fork_copy_once_whoever_is_first() {
    loom::model(|| {
        let shared = shared(12);
        let parent = shared.admit(&[1, 2, 3, 4, 5, 6], &[]).unwrap();
        let child = parent.fork().unwrap();
        let thread = loom::thread::spawn(move || child.append(7).unwrap().copy.is_some());
        let here = parent.append(8).unwrap().copy.is_some();
        let there = thread.join().unwrap();
        // The child may have been freed before its parent wrote, which then needs no copy.
        assert!(!(here && there), "one block has two holders, and is copied by one of them at most");
        drop(parent);
        assert_unused(&shared);
    });
}

#[test]
fn the_last_block_goes_to_one_of_two_threads() {
    loom::model(|| {
        let shared = shared(4);
        let leases = [1, 2].map(|first| shared.admit(&[first, 0, 0, 0], &[]).unwrap());
        let [here, there] = leases;
        let thread = loom::thread::spawn(move || (there.append(9).map(drop), there));
        let mine = here.append(9).map(drop);
        let (theirs, there) = thread.join().unwrap();
        let full = Err(ManagerError::OutOfBlocks { free: 0, wanted: 1 });
        assert!([(&mine, &theirs), (&theirs, &mine)].contains(&(&Ok(()), &full)), "{mine:?} and {theirs:?}");
        drop((here, there));
        assert_unused(&shared);
    });
}
