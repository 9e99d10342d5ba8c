//! Which descriptors are connections, and the memory of these: shared with forks, as the connections are.

use crate::conn::Conn;
use crate::sys;
use libc::c_int;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Descriptors with higher numbers stay with TCP.
const DESCRIPTORS: usize = 1 << 20;
/// Connections of a program at a time; more stay with TCP.
pub const CONNECTIONS: usize = 1 << 16;

/// For each descriptor: the number of its connection plus one, or 0.
static TABLE: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// The highest descriptor that ever was a connection.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// For each connection: the descriptors of this process, and the calls in progress.
static USES: [AtomicU32; CONNECTIONS] = [const { AtomicU32::new(0) }; CONNECTIONS];
/// For each connection: where this process has mapped its rings.
static MAPPED: [AtomicPtr<u8>; CONNECTIONS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CONNECTIONS];
/// For each connection: where the large rings are.
static RINGS: [AtomicPtr<u8>; CONNECTIONS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CONNECTIONS];
static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());

#[repr(C)]
struct Arena {
    /// The first free connection plus one, and above 32 bits a count of changes.
    free: std::sync::atomic::AtomicU64,
    /// Connections from here on were never used.
    unused: AtomicUsize,
    conns: [Conn; CONNECTIONS],
}

/// Makes the memory of connections.
pub fn open() {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if let Some(at) = sys::map(-1, 0, size_of::<Arena>(), flags) {
        ARENA.store(at.cast(), Ordering::Release);
    }
}

fn arena() -> Option<&'static Arena> {
    // SAFETY: it is mapped once, and stays. Zeros are a valid arena.
    unsafe { ARENA.load(Ordering::Acquire).as_ref() }
}

/// A connection that stays as long as this.
pub struct Ref(u32);

impl std::ops::Deref for Ref {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        conn(self.0)
    }
}

fn conn(number: u32) -> &'static Conn {
    // SAFETY: there is a number only if there is the arena.
    unsafe { &(*ARENA.load(Ordering::Relaxed)).conns[number as usize] }
}

impl Ref {
    pub const fn number(&self) -> u32 {
        self.0
    }

    pub fn mapped(&self) -> *mut u8 {
        MAPPED[self.0 as usize].load(Ordering::Acquire)
    }

    /// Returns where the rings are of memory that is mapped.
    pub fn rings(&self) -> *mut u8 {
        RINGS[self.0 as usize].load(Ordering::Acquire)
    }

    pub fn set_mapped(&self, at: *mut u8, rings: *mut u8) {
        RINGS[self.0 as usize].store(rings, Ordering::Release);
        MAPPED[self.0 as usize].store(at, Ordering::Release);
    }

    /// Returns whether no other process has the connection.
    pub fn is_alone(&self) -> bool {
        self.processes.load(Ordering::Acquire) == 1
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        if USES[self.0 as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            release(self.0);
        }
    }
}

/// Takes a connection by its number, if this process has it.
pub fn by_number(number: u32) -> Option<Ref> {
    let uses = USES.get(number as usize)?;
    let mut now = uses.load(Ordering::Acquire);
    while now != 0 {
        match uses.compare_exchange_weak(now, now + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(Ref(number)),
            Err(other) => now = other,
        }
    }
    None
}

/// Returns the connection of a descriptor, if it is one.
#[inline]
pub fn get(fd: c_int) -> Option<Ref> {
    let entry = TABLE.get(fd as usize)?;
    loop {
        let there = entry.load(Ordering::Acquire);
        if there == 0 {
            return None;
        }
        if let Some(found) = by_number(there - 1)
            && entry.load(Ordering::Acquire) == there
        {
            return Some(found);
        }
    }
}

/// Starts to follow a new socket.
pub fn add(fd: c_int) -> Option<Ref> {
    let arena = arena()?;
    if fd as usize >= DESCRIPTORS {
        return None;
    }
    remove(fd);
    let number = take_free(arena)?;
    let new = &arena.conns[number as usize];
    // SAFETY: the number was free, so that nobody has the connection.
    unsafe { new.renew() };
    new.processes.store(1, Ordering::Relaxed);
    MAPPED[number as usize].store(std::ptr::null_mut(), Ordering::Relaxed);
    // One for the descriptor, one for the caller.
    USES[number as usize].store(2, Ordering::Release);
    enter(fd, number);
    Some(Ref(number))
}

fn enter(fd: c_int, number: u32) {
    HIGHEST.fetch_max(fd as usize, Ordering::AcqRel);
    TABLE[fd as usize].store(number + 1, Ordering::Release);
}

/// Notes another descriptor of a connection.
pub fn duplicate(of: &Ref, fd: c_int) {
    if fd < 0 || fd as usize >= DESCRIPTORS {
        return of.stays_tcp();
    }
    remove(fd);
    USES[of.0 as usize].fetch_add(1, Ordering::AcqRel);
    enter(fd, of.0);
}

/// Forgets a descriptor.
pub fn remove(fd: c_int) {
    let Some(entry) = TABLE.get(fd as usize) else { return };
    let there = entry.swap(0, Ordering::AcqRel);
    if there != 0 {
        drop(Ref(there - 1));
    }
}

/// Returns how many descriptors of this process a connection has, with the calls in progress.
pub fn uses(of: &Ref) -> u32 {
    USES[of.0 as usize].load(Ordering::Acquire)
}

/// Calls `each` for every descriptor that is a connection.
pub fn each(mut each: impl FnMut(c_int, &Ref)) {
    for fd in 0..=HIGHEST.load(Ordering::Acquire) as c_int {
        if let Some(conn) = get(fd) {
            each(fd, &conn);
        }
    }
}

fn each_number(mut each: impl FnMut(u32)) {
    let Some(arena) = arena() else { return };
    let used = arena.unused.load(Ordering::Acquire).min(CONNECTIONS);
    (0..used as u32).filter(|number| USES[*number as usize].load(Ordering::Acquire) != 0).for_each(&mut each);
}

/// Calls `each` for every connection of this process.
pub fn each_conn(mut each: impl FnMut(&Ref)) {
    each_number(|number| by_number(number).iter().for_each(&mut each));
}

/// Counts a process more, or one fewer if it was not made.
pub fn fork(made: bool) {
    each_number(|number| {
        let processes = &conn(number).processes;
        _ = if made {
            processes.fetch_add(1, Ordering::AcqRel)
        } else {
            processes.fetch_sub(1, Ordering::AcqRel)
        };
    });
}

fn release(number: u32) {
    let at = MAPPED[number as usize].swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !crate::doors::release(number) && !at.is_null() {
        // SAFETY: nobody of this process has the connection any more.
        unsafe { sys::unmap(at, sockring::BYTES) };
    }
    let gone = conn(number);
    crate::daemon::close_events(gone);
    if gone.processes.fetch_sub(1, Ordering::AcqRel) == 1 {
        crate::daemon::tell_end(number, gone);
        gone.generation.fetch_add(1, Ordering::AcqRel);
        put_free(number);
    }
}

fn take_free(arena: &Arena) -> Option<u32> {
    loop {
        let free = arena.free.load(Ordering::Acquire);
        let first = free as u32;
        if first == 0 {
            let unused = arena.unused.fetch_add(1, Ordering::AcqRel);
            if unused >= CONNECTIONS {
                arena.unused.store(CONNECTIONS, Ordering::Release);
                return None;
            }
            return Some(unused as u32);
        }
        // A fork may have written anything there.
        if first as usize > CONNECTIONS || USES[first as usize - 1].load(Ordering::Acquire) != 0 {
            return None;
        }
        let next = arena.conns[first as usize - 1].next.load(Ordering::Acquire);
        let then = ((free >> 32) + 1) << 32 | u64::from(next);
        if arena.free.compare_exchange(free, then, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Some(first - 1);
        }
    }
}

fn put_free(number: u32) {
    let Some(arena) = arena() else { return };
    loop {
        let free = arena.free.load(Ordering::Acquire);
        arena.conns[number as usize].next.store(free as u32, Ordering::Release);
        let then = ((free >> 32) + 1) << 32 | u64::from(number + 1);
        if arena.free.compare_exchange(free, then, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
    }
}

/// Returns a descriptor of a connection.
pub fn descriptor(of: &Ref) -> Option<c_int> {
    let entries = TABLE.iter().take(HIGHEST.load(Ordering::Acquire) + 1);
    entries
        .enumerate()
        .find(|(_, entry)| entry.load(Ordering::Acquire) == of.0 + 1)
        .map(|(fd, _)| fd as c_int)
}
