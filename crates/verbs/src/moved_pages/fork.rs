//! A child of a fork gets its own copy of moved pages, as of all its other memory.
//!
//! The heap's own records may lie in moved pages, which parent and child share at first. So the child allocates and
//! frees nothing before it has its copy, and the parent waits until then.

use super::place::Piece;
use super::{TABLE, Table};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, Once, PoisonError};

struct Fork {
    /// A pipe (reader, writer) through which the child reports that it has its copy. The parent waits for that, or for
    /// the end of the pipe when the child dies.
    copied: Option<(OwnedFd, OwnedFd)>,
    /// Pieces for the child to copy, each with the number of its place.
    pieces: Vec<(u64, Piece)>,
}

static FORK: Mutex<Option<Fork>> = Mutex::new(None);

fn under_way() -> Option<Fork> {
    FORK.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Registers the handlers that run at each later fork.
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
    let places = unsafe { &TABLE.held().places };
    if !places.is_empty() {
        let of = |(number, moved): (&u64, &super::Moved)| {
            let number = *number;
            moved.place.pieces(&(0..moved.place.len)).into_iter().map(move |piece| (number, piece))
        };
        let pieces = places.iter().flat_map(of).collect();
        let fork = Fork { copied: pipe_with(PipeFlags::CLOEXEC).ok(), pieces };
        *FORK.lock().unwrap_or_else(PoisonError::into_inner) = Some(fork);
    }
}

extern "C" fn in_parent() {
    let mut fork = under_way();
    if let Some((ends, writer)) = fork.as_mut().and_then(|fork| fork.copied.take()) {
        drop(writer);
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&ends, &mut [0; 1]));
    }
    drop(fork);
    // SAFETY: it was locked before the fork.
    unsafe { TABLE.release() };
}

extern "C" fn in_child() {
    // SAFETY: it was locked before the fork, by the thread that the child has.
    unsafe {
        if let Some(fork) = under_way() {
            TABLE.held().become_private(&fork.pieces);
            if let Some((_, writer)) = &fork.copied {
                let _ = rustix::io::write(writer, &[0]);
            }
        }
        TABLE.held().disown();
        TABLE.release();
    }
}

impl Table {
    /// Gives this process its own copy of these pieces.
    fn become_private(&self, pieces: &[(u64, Piece)]) {
        for (number, piece) in pieces {
            // Without room for a copy, the child shares them with its parent.
            let _ = self.places.get(number).is_none_or(|moved| moved.place.take_back(piece, false));
        }
    }

    /// Forgets all moved pages without giving them back: they remain the parent's.
    fn disown(&mut self) {
        self.uses.clear();
        std::mem::take(&mut self.places).into_values().for_each(|moved| moved.place.disown());
        std::mem::take(&mut self.spare).into_iter().for_each(|(source, _)| source.disown());
        (self.lenders, self.secret) = Default::default();
    }
}
