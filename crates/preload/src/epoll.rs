//! `epoll`. Descriptors that are connections, or may become some, are in the kernel's set with a tag in place of the
//! program's data; for each set there is a table of what the program said.
//!
//! A connection of a set is *cold* if its sender will ring: then the kernel tells. It is *hot* otherwise, and each
//! wait looks at it. Before a wait sleeps, all become cold.

mod events;
mod set;

pub use set::{forget, forget_range, free_all, is_known, leave, remove_from_all};

use crate::calls::get;
use crate::table::Ref;
use crate::{doors, polling, real, receiving, settings, sys};
use events::{cool, judge, look};
use libc::{c_int, epoll_event, sigset_t, timespec};
use set::{Entry, NOTHING, SETS, Set, make, set};
use sockring::Link;
use std::sync::atomic::Ordering;

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
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
        let has = receiving::has_news(&conn, &link) || events::has_news(&conn, &link, entry);
        let tells = !entry.spent && entry.events & IN != 0 && events::has_news(&conn, &link, entry);
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
