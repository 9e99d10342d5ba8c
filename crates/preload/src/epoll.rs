//! `epoll`. Descriptors that are connections, or may become some, are in the kernel's set with a tag in place of the
//! program's data; for each set there is a table of what the program said.
//!
//! A connection of a set is *cold* if its sender will ring: then the kernel tells. It is *hot* otherwise, and each
//! wait looks at it. Before a wait sleeps, all become cold.

use crate::calls::get;
use crate::lock::Lock;
use crate::table::Ref;
use crate::{doors, polling, real, receiving, sending, settings, sys};
use libc::{c_int, c_uint, c_void, epoll_event, sigset_t, timespec};
use sockring::Link;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// Sets with higher numbers have no connections that move.
const SETS: usize = 1 << 16;
/// Descriptors of a set.
const DESCRIPTORS: usize = 1 << 20;
/// Connections of a set that are looked at.
const HOT: usize = 4096;
/// Connections for which a wait spins.
const SPINS: usize = 64;
/// The kernel is asked in every so-many'th wait, though rings have bytes.
const TURNS: u32 = 8;
/// Milliseconds between looks for room, if a bell does not come.
const LOOK: c_int = 5;
/// The upper bits of the data of descriptors that are connections.
const TAG: u64 = 0x7a3c_91e5_d400_0000;
/// Waits that find nothing though somebody rang, before the next ones sleep a little: a peer may ring for ever.
const RINGS: u32 = 64;
/// The data of bells, and of what the program's threads wake each other by.
const DOORBELL: u64 = 0x7a3c_91e5_d500_0000;
/// The upper bits of the data of what wakes connections with other hosts.
const WAKER: u64 = 0x7a3c_91e5_d600_0000;

/// No edge was told.
const NOTHING: (u64, bool) = (u64::MAX, false);

static SET: [AtomicPtr<Set>; SETS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SETS];

/// A descriptor as the program described it.
#[derive(Clone, Copy, Default)]
struct Entry {
    events: u32,
    /// The connection: its number plus one, and its generation.
    number: u32,
    generation: u32,
    hot: bool,
    /// A one-shot event was told.
    spent: bool,
    /// The kernel is not asked about room.
    masked: bool,
    data: u64,
    /// The sender's position when an edge was told, and whether it sent by the ring.
    told: (u64, bool),
    /// The look that found something last, and where it put the event.
    look: u32,
    at: u32,
}

struct State {
    entries: *mut Entry,
    hot: [c_int; HOT],
    count: usize,
    /// How often it was looked.
    looks: u32,
}

struct Set {
    state: Lock<State>,
    /// How many entries wait for room.
    waits_out: AtomicU32,
    /// Up to which change all bells are in it ([`doors::changes`]).
    bells: AtomicU32,
    /// Whether it is in another set, which knows nothing of doorbells.
    is_nested: AtomicBool,
}

impl Set {
    /// Puts the program's bells into the set. Returns whether they are there, so that they wake who sleeps.
    fn has_bells(&self, epoll: c_int) -> bool {
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
    fn entry(&mut self, fd: c_int) -> Option<&mut Entry> {
        // SAFETY: the memory has an entry for each of these descriptors; zeros are a valid entry.
        (0..DESCRIPTORS as c_int).contains(&fd).then(|| unsafe { &mut *self.entries.add(fd as usize) })
    }

    /// Has waits look at a connection. Returns whether they do: there may be too many.
    fn warm(&mut self, fd: c_int) -> bool {
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
    fn warm_or_arm(&mut self, conn: &Ref, fd: c_int) -> bool {
        let Some(link) = conn.link().filter(|_| !self.warm(fd)) else { return false };
        link.rx().arm();
        receiving::has_news(conn, &link)
    }

    /// Returns the connection of an entry, if it is still the one that the program added.
    fn conn(&mut self, fd: c_int) -> Option<Ref> {
        let entry = *self.entry(fd)?;
        let conn = get(fd)?;
        let same =
            entry.number == conn.number() + 1 && entry.generation == conn.generation.load(Ordering::Acquire);
        same.then_some(conn)
    }
}

fn set(epoll: c_int) -> Option<&'static Set> {
    // SAFETY: sets stay once they are made.
    unsafe { SET.get(epoll as usize)?.load(Ordering::Acquire).as_ref() }
}

/// Returns whether a descriptor is a set with connections.
pub fn is_known(epoll: c_int) -> bool {
    set(epoll).is_some()
}

fn make(epoll: c_int) -> Option<&'static Set> {
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

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: as the program calls it.
    let kernel = || unsafe { real::epoll_ctl(epoll, op, fd, event) };
    let Some(conn) = get(fd) else {
        if let Some(inner) = set(fd) {
            inner.is_nested.store(true, Ordering::Relaxed);
        }
        if let Some(set) = set(epoll)
            && let Some(mut state) = set.state.take()
            && let Some(entry) = state.entry(fd)
        {
            // The number was another descriptor's.
            let hot = entry.hot;
            *entry = Entry { hot, ..Entry::default() };
        }
        return kernel();
    };
    let Some(set) = make(epoll) else {
        crate::leaving::leave(&conn, fd);
        return kernel();
    };
    let Some(mut state) = set.state.take() else { return kernel() };
    let Some(entry) = state.entry(fd) else { return kernel() };
    if op == libc::EPOLL_CTL_DEL {
        let hot = entry.hot;
        *entry = Entry { hot, ..Entry::default() };
        _ = conn.epoll.compare_exchange(epoll as u32 + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
        return kernel();
    }
    // SAFETY: as the program calls it.
    let Some(given) = (unsafe { event.as_ref() }) else { return kernel() };
    let before = *entry;
    *entry = Entry {
        events: given.events,
        number: conn.number() + 1,
        generation: conn.generation.load(Ordering::Acquire),
        hot: before.hot,
        data: given.u64,
        told: NOTHING,
        ..Entry::default()
    };
    let wants_in = given.events & IN != 0;
    let readable = wants_in && conn.is_matched() && receiving::is_readable(&conn, fd) == Some(true);
    // Who sleeps already on the set is woken by the room that the kernel's socket has.
    let kick = if readable { libc::EPOLLOUT as u32 } else { 0 };
    let mut tagged = epoll_event { events: given.events | kick, u64: TAG | fd as u64 };
    // SAFETY: the event is there.
    let result = unsafe { real::epoll_ctl(epoll, op, fd, &mut tagged) };
    if result != 0 {
        if let Some(entry) = state.entry(fd) {
            *entry = before;
        }
    } else {
        let before = conn.epoll.swap(epoll as u32 + 1, Ordering::Relaxed);
        let number = conn.epoll_fd.swap(fd, Ordering::Relaxed);
        if before != 0 && (before, number) != (epoll as u32 + 1, fd) {
            conn.is_shared.store(1, Ordering::Relaxed);
        }
        watch(epoll, &conn, fd);
        if conn.is_matched() && state.warm_or_arm(&conn, fd) && !readable && wants_in {
            tagged.events |= libc::EPOLLOUT as u32;
            // SAFETY: the event is there.
            _ = unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, &mut tagged) };
        }
    }
    result
}

/// Has waits look at connections for which somebody has rung at a door.
fn hear(epoll: c_int) {
    doors::take_news(|conn| {
        let (its, fd) =
            (conn.epoll.load(Ordering::Relaxed) as c_int - 1, conn.epoll_fd.load(Ordering::Relaxed));
        let Some(set) = set(its) else { return };
        if let Some(mut state) = set.state.take()
            && state.conn(fd).is_some_and(|its| its.number() == conn.number())
            && !state.warm(fd)
            && let Some(entry) = state.entry(fd)
            && !entry.spent
        {
            // There are too many to look at: the room that the kernel's socket has makes it tell.
            let events = entry.events | libc::EPOLLOUT as u32;
            _ = sys::epoll_ctl(its, libc::EPOLL_CTL_MOD, fd, events, TAG | fd as u64);
        }
        if its != epoll {
            doors::wake_others();
        }
    });
}

/// Has the sender of a connection ring, for a program that does not wait: by the door, if that wakes who waits later.
pub fn arm_for(conn: &Ref, link: &Link, fd: c_int) {
    let epoll = conn.epoll.load(Ordering::Relaxed) as c_int - 1;
    let is_heard = set(epoll).is_some_and(|set| {
        set.has_bells(epoll) && set.state.take().is_some_and(|mut state| state.conn(fd).is_some())
    });
    arm_one(conn, link, is_heard);
}

fn arm_one(conn: &Ref, link: &Link, is_heard: bool) {
    match is_heard && conn.is_shared.load(Ordering::Relaxed) == 0 && doors::hears(conn) {
        true => link.rx().arm_door(),
        false => link.rx().arm(),
    }
}

/// Has what wakes a connection with another host wake who sleeps on a set.
fn watch(epoll: c_int, conn: &Ref, fd: c_int) {
    if let Some(wake) = conn.waker() {
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        // It may be there already.
        _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, wake, events, WAKER | fd as u64);
    }
}

/// Does so in all sets that have the connection, which has just got what wakes it.
pub fn watch_all(conn: &Ref, fd: c_int) {
    for epoll in 0..SETS as c_int {
        let has = |set: &Set| set.state.take().is_some_and(|mut state| state.conn(fd).is_some());
        if set(epoll).is_some_and(has) {
            watch(epoll, conn, fd);
        }
    }
}

/// Looks at what the rings of a set have. Fills `events`; returns how many, and the number of this look.
fn look(set: &Set, epoll: c_int, events: &mut [epoll_event]) -> (usize, u32) {
    hear(epoll);
    let Some(mut state) = set.state.take() else { return (0, 0) };
    state.looks = state.looks.wrapping_add(1);
    let look = state.looks;
    let (mut found, mut at) = (0, 0);
    while at < state.count && found < events.len() {
        let fd = state.hot[at];
        let conn = state.conn(fd);
        let Some(conn) = conn.filter(|conn| conn.is_matched()) else {
            cool(&mut state, at);
            continue;
        };
        at += 1;
        let Some(entry) = state.entry(fd) else { continue };
        if entry.spent {
            continue;
        }
        let ready = ready(&conn, fd, entry);
        if ready != 0 {
            events[found] = epoll_event { events: ready, u64: entry.data };
            (entry.look, entry.at) = (look, found as u32);
            found += 1;
            told(set, epoll, fd, entry, ready);
        }
    }
    // Who comes late in the list comes first the next time.
    if found == events.len() && at > 0 && at < state.count {
        let count = state.count;
        state.hot[..count].rotate_left(at);
    }
    (found, look)
}

/// Takes a connection off the list.
fn cool(state: &mut State, at: usize) {
    let fd = state.hot[at];
    state.count -= 1;
    state.hot[at] = state.hot[state.count];
    if let Some(entry) = state.entry(fd) {
        entry.hot = false;
    }
}

/// Returns what bytes and switches of the sender change. A switch alone is news: from another host, the kernel's byte,
/// whose edge is used up then, may come before it.
fn mark(link: &Link) -> (u64, bool) {
    (link.rx().positions().0, link.rx().is_ring())
}

/// Returns what of an entry's events the ring has.
fn ready(conn: &Ref, fd: c_int, entry: &mut Entry) -> u32 {
    let Some(link) = conn.link() else { return 0 };
    let mut ready = 0;
    if entry.events & IN != 0 && receiving::has_news(conn, &link) {
        let now = mark(&link);
        let new = entry.events & ET == 0 || entry.told != now;
        // An edge of the kernel's may have come before the switch that explains it.
        let by_kernel = || entry.events & ET != 0 && sys::has(fd, libc::POLLIN);
        if new && receiving::is_readable(conn, fd).unwrap_or_else(by_kernel) {
            entry.told = now;
            ready |= entry.events & IN;
        }
    }
    let waits = entry.masked || (entry.events & OUT != 0 && conn.waits_out.load(Ordering::Acquire) != 0);
    // An event tells of all that is possible.
    let also = ready != 0 && entry.events & OUT != 0 && !waits;
    if waits && has_room(conn, fd, entry.masked) || also && may_send(conn, fd) {
        ready |= entry.events & OUT;
    }
    ready
}

/// Returns whether there is room for a program that waits for it. One that went back to TCP waits for the kernel's, which
/// tells by itself from then on.
fn has_room(conn: &Ref, fd: c_int, masked: bool) -> bool {
    sending::is_writable(conn, fd).unwrap_or_else(|| {
        conn.waits_out.store(0, Ordering::Release);
        masked || sys::has(fd, libc::POLLOUT)
    })
}

fn may_send(conn: &Ref, fd: c_int) -> bool {
    sending::is_writable(conn, fd).unwrap_or_else(|| sys::has(fd, libc::POLLOUT))
}

/// Notes that an event was told.
fn told(set: &Set, epoll: c_int, fd: c_int, entry: &mut Entry, ready: u32) {
    if entry.events & ONESHOT != 0 {
        entry.spent = true;
        // Urgent bytes, errors and ends are told no more either.
        _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, ONESHOT, TAG | fd as u64);
    }
    if ready & OUT != 0 && entry.masked {
        unmask(set, epoll, fd, entry);
    }
}

fn unmask(set: &Set, epoll: c_int, fd: c_int, entry: &mut Entry) {
    entry.masked = false;
    set.waits_out.fetch_sub(1, Ordering::AcqRel);
    if !entry.spent {
        _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, entry.events, TAG | fd as u64);
    }
}

/// Notes that a program waits for room: the set that it told last of the connection looks for it.
pub fn note_full(conn: &Ref, fd: c_int) {
    if let Some(set) = set(conn.epoll.load(Ordering::Relaxed) as c_int - 1)
        && let Some(mut state) = set.state.take()
        && state.conn(fd).is_some()
    {
        _ = state.warm(fd);
    }
}

/// Returns whether the set that was told last of a connection looks at it when somebody waits.
pub fn looks_at(conn: &Ref, fd: c_int) -> bool {
    let set = set(conn.epoll.load(Ordering::Relaxed) as c_int - 1);
    set.and_then(|set| set.state.take())
        .is_some_and(|mut state| state.conn(fd).is_some() && state.entry(fd).is_some_and(|entry| entry.hot))
}

/// Makes all connections of a set cold. Returns whether one of them has something to tell, and whether one waits for
/// room.
fn arm(set: &Set, epoll: c_int) -> (bool, bool) {
    let is_heard = set.has_bells(epoll);
    let Some(mut state) = set.state.take() else { return (false, false) };
    let mut at = 0;
    let (mut news, mut full) = (false, false);
    while at < state.count {
        let fd = state.hot[at];
        let conn = state.conn(fd);
        let Some(conn) = conn.filter(|conn| conn.is_matched()) else {
            cool(&mut state, at);
            continue;
        };
        at += 1;
        let (Some(link), Some(entry)) = (conn.link(), state.entry(fd)) else { continue };
        arm_one(&conn, &link, is_heard);
        let has = receiving::has_news(&conn, &link);
        let tells = has
            && !entry.spent
            && entry.events & IN != 0
            && (entry.events & ET == 0 || entry.told != mark(&link));
        news |= tells;
        let waits = entry.events & OUT != 0 && (entry.masked || conn.waits_out.load(Ordering::Acquire) != 0);
        full |= waits;
        if !has && !waits {
            at -= 1;
            cool(&mut state, at);
        }
    }
    (news, full)
}

/// Spins for the hot connections of a set.
fn spin(set: &Set) -> bool {
    let mut of = [const { None }; SPINS];
    {
        let Some(mut state) = set.state.take() else { return false };
        if state.count > SPINS {
            return false;
        }
        for (at, place) in of.iter_mut().enumerate().take(state.count) {
            let fd = state.hot[at];
            let waits = state.entry(fd).is_some_and(|entry| !entry.spent && entry.events & IN != 0);
            *place = state.conn(fd).filter(|conn| waits && conn.is_matched()).map(|conn| (fd, conn));
        }
    }
    // An edge that was told is no news: it would end the spin at once.
    let fresh =
        of.iter().flatten().all(|(_, conn)| conn.link().is_none_or(|link| !receiving::has_news(conn, &link)));
    fresh && polling::spin_on(&of, doors::have_news)
}

/// Corrects what the kernel says, after as many events that a look has found. Returns how many events there are.
fn judge(set: &Set, epoll: c_int, events: &mut [epoll_event], (found, look): (usize, u32)) -> usize {
    let Some(mut state) = set.state.take() else { return events.len() };
    let mut kept = found;
    for at in found..events.len() {
        let mut event = events[at];
        if event.u64 == DOORBELL {
            continue;
        }
        if event.u64 & !(DESCRIPTORS as u64 - 1) == WAKER {
            // Waits look at it from now on, and at once.
            warm_woken(&mut state, event.u64);
            continue;
        }
        if event.u64 & !(DESCRIPTORS as u64 - 1) == TAG {
            let fd = (event.u64 & (DESCRIPTORS as u64 - 1)) as c_int;
            let Some(judged) = judge_one(&mut state, set, epoll, fd, event.events) else { continue };
            event = judged;
            // The kernel tells of a descriptor once.
            let earlier =
                state.entry(fd).filter(|entry| found > 0 && entry.look == look).map(|entry| entry.at);
            if let Some(earlier) = earlier.and_then(|at| events[..found].get_mut(at as usize)) {
                earlier.events |= event.events;
                continue;
            }
        }
        events[kept] = event;
        kept += 1;
    }
    kept
}

fn warm_woken(state: &mut State, data: u64) {
    let fd = (data & (DESCRIPTORS as u64 - 1)) as c_int;
    if state.conn(fd).is_some() {
        state.warm(fd);
    }
}

fn judge_one(state: &mut State, set: &Set, epoll: c_int, fd: c_int, mut got: u32) -> Option<epoll_event> {
    let conn = state.conn(fd);
    let entry = *state.entry(fd)?;
    if entry.number == 0 {
        return None;
    }
    let Some(conn) = conn else {
        // The number was closed, and another descriptor of the connection is open.
        return Some(epoll_event { events: got, u64: entry.data });
    };
    let mut kicked = false;
    if conn.is_matched() {
        if entry.events & IN != 0 {
            match receiving::is_readable(&conn, fd) {
                Some(true) => got |= entry.events & IN,
                Some(false) => {
                    got &= !IN;
                    // The kernel does not repeat this edge: the next look tells of what it stood for.
                    state.entry(fd)?.told = NOTHING;
                }
                None => {}
            }
        }
        if got & OUT != 0 && sending::is_writable(&conn, fd) == Some(false) {
            got &= !OUT;
            if entry.events & OUT != 0 && !entry.masked {
                // The kernel's socket has room all the time, and would say so all the time.
                set.waits_out.fetch_add(1, Ordering::AcqRel);
                state.entry(fd)?.masked = true;
                kicked = true;
            }
        }
    }
    if got & OUT & !entry.events != 0 {
        got &= !OUT | entry.events;
        kicked = true;
    }
    let mut told = got & (entry.events | (libc::EPOLLERR | libc::EPOLLHUP) as u32);
    if entry.spent {
        return None;
    }
    if conn.is_matched() && state.warm_or_arm(&conn, fd) {
        told |= entry.events & IN;
    }
    let entry = state.entry(fd)?;
    let (once, none) = (entry.events & ONESHOT != 0, told == 0);
    if kicked || (once && none) {
        let out = if entry.masked { OUT } else { 0 };
        let events = if once && !none { ONESHOT } else { entry.events & !out };
        _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, events, TAG | fd as u64);
    }
    if none {
        return None;
    }
    if told & IN != 0
        && let Some(link) = conn.link()
    {
        entry.told = mark(&link);
    }
    entry.spent = once;
    Some(epoll_event { events: told, u64: entry.data })
}

/// Returns whether a set has something to tell, for who waits for the set itself; makes its connections cold.
pub fn must_not_wait(epoll: c_int) -> bool {
    set(epoll).is_some_and(|set| {
        hear(epoll);
        arm(set, epoll).0
    })
}

/// Waits on a set.
fn wait(
    set: &Set,
    epoll: c_int,
    events: &mut [epoll_event],
    nanoseconds: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    let end = nanoseconds.map(|span| sys::now(libc::CLOCK_MONOTONIC).saturating_add(span));
    let left = || end.map(|end| end.saturating_sub(sys::now(libc::CLOCK_MONOTONIC)));
    let kernel = |events: &mut [epoll_event], milliseconds: c_int| {
        let (at, count) = (events.as_mut_ptr(), events.len() as c_int);
        // SAFETY: the slice is the caller's, the mask too.
        unsafe { real::epoll_pwait(epoll, at, count, milliseconds, mask) }
    };
    let mut rings = 0;
    loop {
        let (found, turn) = look(set, epoll, events);
        if found > 0 {
            if !turn.is_multiple_of(TURNS) || found == events.len() {
                return found as c_int;
            }
            let n = kernel(&mut events[found..], 0).max(0) as usize;
            return judge(set, epoll, &mut events[..found + n], (found, turn)) as c_int;
        }
        if left() != Some(0) {
            let hot = set.state.take().is_some_and(|state| state.count > 0);
            if hot {
                let n = kernel(events, 0);
                if n < 0 {
                    return n;
                }
                let n = judge(set, epoll, &mut events[..n as usize], (0, 0));
                if n > 0 {
                    return n as c_int;
                }
                if rings < RINGS && spin(set) {
                    rings += 1;
                    continue;
                }
            }
        }
        let (news, waits_out) = arm(set, epoll);
        let rung = !doors::sleep();
        let milliseconds = left().map_or(-1, |left| left.div_ceil(1_000_000).min(c_int::MAX as u64) as c_int);
        // Bytes on their way by the kernel are news, too: a call that does not wait goes on.
        rings = if news || rung { rings + 1 } else { 0 };
        let most = match rings {
            0 if waits_out && !(0..=LOOK).contains(&milliseconds) => LOOK,
            1 if milliseconds != 0 => {
                doors::wake_up();
                continue;
            }
            // Others are heard all the same.
            1.. if milliseconds != 0 => c_int::from(rings > RINGS),
            _ => milliseconds,
        };
        let n = kernel(events, most);
        doors::wake_up();
        if n < 0 {
            return n;
        }
        let n = judge(set, epoll, &mut events[..n as usize], (0, 0));
        if n > 0 {
            return n as c_int;
        }
        if left() == Some(0) {
            return look(set, epoll, events).0 as c_int;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    milliseconds: c_int,
    mask: *const sigset_t,
) -> c_int {
    let Some(set) = set(epoll).filter(|_| settings::is_on() && !events.is_null() && count > 0) else {
        // SAFETY: as the program calls it.
        return unsafe { real::epoll_pwait(epoll, events, count, milliseconds, mask) };
    };
    // SAFETY: the program gave them.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count as usize) };
    let span = (milliseconds >= 0).then(|| milliseconds as u64 * 1_000_000);
    wait(set, epoll, events, span, mask)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    milliseconds: c_int,
) -> c_int {
    // SAFETY: as the program calls it.
    unsafe { epoll_pwait(epoll, events, count, milliseconds, std::ptr::null()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let Some(set) = set(epoll).filter(|_| settings::is_on() && !events.is_null() && count > 0) else {
        // SAFETY: as the program calls it.
        return unsafe { real::epoll_pwait2(epoll, events, count, time, mask) };
    };
    // SAFETY: the program gave them.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count as usize) };
    // SAFETY: as the program calls it.
    let span = unsafe { time.as_ref() }.map(|time| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
    wait(set, epoll, events, span, mask)
}
