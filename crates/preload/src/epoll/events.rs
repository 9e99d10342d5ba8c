//! The events that a wait tells: those of rings, and the kernel's, corrected.

use super::set::{DESCRIPTORS, Entry, Mark, NOTHING, Set, State};
use super::{DOORBELL, ET, IN, ONESHOT, OUT, TAG, WAKER, hear};
use crate::table::Ref;
use crate::{receiving, sending, sys};
use libc::{c_int, epoll_event};
use sockring::Link;
use std::sync::atomic::Ordering;

/// Looks at what the rings of a set have. Fills `events`; returns how many, and the number of this look.
pub(super) fn look(set: &Set, epoll: c_int, events: &mut [epoll_event]) -> (usize, u32) {
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
pub(super) fn cool(state: &mut State, at: usize) {
    let fd = state.hot[at];
    state.count -= 1;
    state.hot[at] = state.hot[state.count];
    if let Some(entry) = state.entry(fd) {
        entry.hot = false;
    }
}

/// Returns what bytes, switches and the end of the sender change. A switch or the end alone is news: from another host,
/// what the kernel has, whose edge is used up then, may come before it.
pub(super) fn mark(link: &Link) -> Mark {
    let rx = link.rx();
    (rx.positions().0, rx.is_ring(), rx.is_whole() || rx.has_left())
}

/// Returns whether there may be something to read that was not told.
pub(super) fn has_news(conn: &Ref, link: &Link, entry: &Entry) -> bool {
    let is_edge = entry.events & ET != 0;
    let now = mark(link);
    let ends = is_edge && conn.is_carried() && now.2 && entry.told != now;
    receiving::has_news(conn, link) && (!is_edge || entry.told != now) || ends
}

/// Returns what of an entry's events the ring has.
fn ready(conn: &Ref, fd: c_int, entry: &mut Entry) -> u32 {
    let Some(link) = conn.link() else { return 0 };
    let mut ready = 0;
    if entry.events & IN != 0 && has_news(conn, &link, entry) {
        let now = mark(&link);
        // An edge of the kernel's may have come before the switch that explains it.
        let by_kernel = || entry.events & ET != 0 && sys::has(fd, libc::POLLIN);
        if receiving::is_readable(conn, fd).unwrap_or_else(by_kernel) {
            entry.told = now;
            ready |= entry.events & IN;
        } else if now.2 {
            // Later bytes of the kernel have an edge of their own.
            entry.told = now;
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

/// Returns whether there is room for a program that waits for it. One that went back to TCP waits for the kernel's,
/// which tells by itself from then on.
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

/// Corrects what the kernel says, after as many events that a look has found. Returns how many events there are.
pub(super) fn judge(
    set: &Set,
    epoll: c_int,
    events: &mut [epoll_event],
    (found, look): (usize, u32),
) -> usize {
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
