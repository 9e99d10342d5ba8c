//! Sets of `epoll`, and what the program said of their descriptors.

use super::{DOORBELL, ET};
use crate::calls::get;
use crate::lock::Lock;
use crate::table::Ref;
use crate::{doors, receiving, sys};
use libc::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// Sets with higher numbers have no connections that move.
pub(super) const SETS: usize = 1 << 16;
/// Descriptors of a set.
pub(super) const DESCRIPTORS: usize = 1 << 20;
/// Connections of a set that are looked at.
const HOT: usize = 4096;
/// The sender's position, whether it sends by the ring, and whether it has said that nothing more comes.
pub(super) type Mark = (u64, bool, bool);
/// No edge was told.
pub(super) const NOTHING: Mark = (u64::MAX, false, false);

pub(super) static SET: [AtomicPtr<Set>; SETS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SETS];

/// A descriptor as the program described it.
#[derive(Clone, Copy, Default)]
pub(super) struct Entry {
    pub(super) events: u32,
    /// The connection: its number plus one, and its generation.
    pub(super) number: u32,
    pub(super) generation: u32,
    pub(super) hot: bool,
    /// A one-shot event was told.
    pub(super) spent: bool,
    /// The kernel is not asked about room.
    pub(super) masked: bool,
    pub(super) data: u64,
    /// The mark when an edge was told.
    pub(super) told: Mark,
    /// The look that found something last, and where it put the event.
    pub(super) look: u32,
    pub(super) at: u32,
}

pub(super) struct State {
    pub(super) entries: *mut Entry,
    pub(super) hot: [c_int; HOT],
    pub(super) count: usize,
    /// How often it was looked.
    pub(super) looks: u32,
}

pub(super) struct Set {
    pub(super) state: Lock<State>,
    /// How many entries wait for room.
    pub(super) waits_out: AtomicU32,
    /// Up to which change all bells are in it ([`doors::changes`]).
    pub(super) bells: AtomicU32,
    /// If true, it is in another set, which knows nothing of doorbells.
    pub(super) is_nested: AtomicBool,
}

impl Set {
    /// Puts the program's bells into the set. Returns whether they are there, so that they wake who sleeps.
    pub(super) fn has_bells(&self, epoll: c_int) -> bool {
        let changes = doors::changes();
        if changes == 0 || self.is_nested.load(Ordering::Relaxed) {
            return false;
        }
        if self.bells.load(Ordering::Relaxed) != changes {
            let add = |bell, events: c_int| {
                let added = sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, bell, events as u32 | ET, DOORBELL);
                matches!(added, Ok(_) | Err(libc::EEXIST))
            };
            if !doors::put_bells(add) {
                return false;
            }
            self.bells.store(changes, Ordering::Relaxed);
        }
        true
    }
}

// SAFETY: the pointer is to memory of the set's alone.
unsafe impl Send for State {}

impl State {
    #[allow(clippy::mut_from_ref, reason = "the lock is held")]
    pub(super) fn entry(&mut self, fd: c_int) -> Option<&mut Entry> {
        // SAFETY: the memory has an entry for each of these descriptors; zeros are a valid entry.
        (0..DESCRIPTORS as c_int).contains(&fd).then(|| unsafe { &mut *self.entries.add(fd as usize) })
    }

    /// Has waits look at a connection. Returns whether they do: there may be too many.
    pub(super) fn warm(&mut self, fd: c_int) -> bool {
        let count = self.count;
        let Some(entry) = self.entry(fd) else { return false };
        if entry.hot || count == HOT {
            return entry.hot;
        }
        entry.hot = true;
        self.hot[count] = fd;
        self.count += 1;
        true
    }

    /// Has waits look at a connection, or its sender ring. Returns whether there is something already that nobody else
    /// will tell.
    pub(super) fn warm_or_arm(&mut self, conn: &Ref, fd: c_int) -> bool {
        let Some(link) = conn.link().filter(|_| !self.warm(fd)) else { return false };
        link.rx().arm();
        receiving::has_news(conn, &link)
    }

    /// Returns the connection of an entry, if it is still the one that the program added.
    pub(super) fn conn(&mut self, fd: c_int) -> Option<Ref> {
        let entry = *self.entry(fd)?;
        let conn = get(fd)?;
        let same =
            entry.number == conn.number() + 1 && entry.generation == conn.generation.load(Ordering::Acquire);
        same.then_some(conn)
    }
}

pub(super) fn set(epoll: c_int) -> Option<&'static Set> {
    // SAFETY: sets stay once they are made.
    unsafe { SET.get(epoll as usize)?.load(Ordering::Acquire).as_ref() }
}

/// Returns whether a descriptor is a set with connections.
pub fn is_known(epoll: c_int) -> bool {
    set(epoll).is_some()
}

pub(super) fn make(epoll: c_int) -> Option<&'static Set> {
    let at = SET.get(epoll as usize)?;
    if let Some(there) = set(epoll) {
        return Some(there);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let new = sys::map(-1, 0, size_of::<Set>(), flags)?.cast::<Set>();
    let entries = sys::map(-1, 0, DESCRIPTORS * size_of::<Entry>(), flags)?.cast::<Entry>();
    // SAFETY: the memory is new and large enough, and nobody else has it yet.
    unsafe {
        (*new).state.renew(State { entries, hot: [0; HOT], count: 0, looks: 0 });
    }
    if at.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread was faster; this memory is never used again.
        return set(epoll);
    }
    set(epoll)
}

/// Forgets a set that is closed.
pub fn forget(epoll: c_int) {
    let Some(set) = set(epoll) else { return };
    if let Some(mut state) = set.state.take() {
        state.count = 0;
        let entries = state.entries.cast::<c_void>();
        // SAFETY: the memory is the set's; it becomes zeros.
        unsafe { libc::madvise(entries, DESCRIPTORS * size_of::<Entry>(), libc::MADV_DONTNEED) };
        set.waits_out.store(0, Ordering::Relaxed);
        set.bells.store(0, Ordering::Relaxed);
        set.is_nested.store(false, Ordering::Relaxed);
    }
}

/// Takes a descriptor of the library out of all sets.
pub fn remove_from_all(fd: c_int) {
    for epoll in (0..SETS as c_int).filter(|epoll| is_known(*epoll)) {
        _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }
}

/// Takes a connection that is about to be closed out of the sets in which it is.
pub fn leave(conn: &Ref, fd: c_int) {
    let last = conn.epoll.load(Ordering::Relaxed) as c_int - 1;
    if conn.is_shared.load(Ordering::Relaxed) != 0 {
        remove_from_all(fd);
    } else if is_known(last) {
        _ = sys::epoll_ctl(last, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }
}

/// Frees the sets in a fork: threads that had them are not here.
pub fn free_all() {
    for set in (0..SETS as c_int).filter_map(set) {
        set.state.free();
        set.bells.store(0, Ordering::Relaxed);
    }
}

pub fn forget_range(first: c_uint, last: c_uint) {
    for epoll in first as usize..=(last as usize).min(SETS - 1) {
        forget(epoll as c_int);
    }
}
