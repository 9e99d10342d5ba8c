//! A child of a fork gets its own copy of moved pages, as of all others.

use super::{TABLE, Table};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, Once, PoisonError};

/// Through this the child reports that it has its copy, for which the parent waits; it ends if the child does.
static COPIED: Mutex<Option<(OwnedFd, OwnedFd)>> = Mutex::new(None);

fn copied() -> Option<(OwnedFd, OwnedFd)> {
    COPIED.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Has it done at each later fork.
pub fn prepare_for_it() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions that a fork may call at any time, one after the other.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    TABLE.acquire();
    // SAFETY: the table is locked.
    if !unsafe { TABLE.held() }.places.is_empty() {
        *COPIED.lock().unwrap_or_else(PoisonError::into_inner) = pipe_with(PipeFlags::CLOEXEC).ok();
    }
}

extern "C" fn in_parent() {
    if let Some((ends, writer)) = copied() {
        drop(writer);
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&ends, &mut [0; 1]));
    }
    // SAFETY: it was locked before the fork.
    unsafe { TABLE.release() };
}

extern "C" fn in_child() {
    // SAFETY: it was locked before the fork, by the thread that the child has.
    unsafe {
        TABLE.held().become_private();
        if let Some((_, writer)) = copied() {
            let _ = rustix::io::write(writer, &[0]);
        }
        TABLE.release();
    }
}

impl Table {
    /// Gives this process its own copy of everything. The pages stay the parent's.
    fn become_private(&mut self) {
        self.uses.clear();
        for (_, moved) in std::mem::take(&mut self.places) {
            // Without room for a copy, it shares them with its parent.
            let _ = moved.place.make_private(&(0..moved.place.len), false);
            moved.place.disown();
        }
        std::mem::take(&mut self.spare).into_iter().for_each(|(source, _)| source.disown());
        (self.lenders, self.secret) = Default::default();
    }
}
