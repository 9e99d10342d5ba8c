//! The synchronisation primitives of [`crate::rcu`]: the standard ones, or loom's, which try every interleaving.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicPtr, AtomicU64, Ordering, fence},
    },
    thread::yield_now as pause,
};
pub(crate) use std::sync::TryLockError;
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop as pause,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicPtr, AtomicU64, Ordering, fence},
    },
};
