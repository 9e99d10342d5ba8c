//! `poll` and `select`.

use crate::calls::get;
use crate::table::Ref;
use crate::waiting::Before;
use crate::{doors, epoll, real, receiving, sending, settings, sys, waiting};
use libc::{c_int, c_long, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::sync::atomic::Ordering;

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// Most connections for which a call spins.
const MOST: usize = 16;
/// Nanoseconds between looks for room, if a bell does not come.
const LOOK: u64 = 5_000_000;
/// Rounds that find nothing though somebody rang, before the next ones sleep for so many nanoseconds: a peer may ring
/// for ever.
const RINGS: u32 = 64;
const REST: u64 = 1_000_000;

/// Returns a connection that has memory.
fn moved(fd: c_int) -> Option<Ref> {
    get(fd).filter(|conn| conn.is_matched())
}

/// Time that is left of a call.
#[derive(Clone, Copy)]
struct Time {
    /// `None`: for ever.
    end: Option<u64>,
}

impl Time {
    fn of(time: Option<&timespec>) -> Self {
        let now = || sys::now(libc::CLOCK_MONOTONIC);
        let span = |time: &timespec| time.tv_sec.max(0) as u64 * 1_000_000_000 + time.tv_nsec.max(0) as u64;
        Self { end: time.map(|time| now().saturating_add(span(time))) }
    }

    fn left(self) -> Option<u64> {
        self.end.map(|end| end.saturating_sub(sys::now(libc::CLOCK_MONOTONIC)))
    }

    fn is_up(self) -> bool {
        self.left() == Some(0)
    }
}

const fn as_time(nanoseconds: u64) -> timespec {
    timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as c_long,
    }
}

/// Polls. `fds` are the caller's.
fn wait(fds: &mut [pollfd], time: Time, mask: *const sigset_t) -> c_int {
    let call = |fds: &mut [pollfd], nanoseconds: Option<u64>| {
        let span = nanoseconds.map(as_time);
        let at = span.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the slice is the caller's, the mask too.
        unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, at, mask) }
    };
    if !settings::is_on() || !fds.iter().any(|one| get(one.fd).is_some() || epoll::is_known(one.fd)) {
        return call(fds, time.left());
    }
    let has_sets = fds.iter().any(|one| epoll::is_known(one.fd));
    let mut rings = 0;
    loop {
        let mut may_wait = !any_ready(fds);
        if may_wait && !time.is_up() && spin(fds) {
            may_wait = false;
        }
        let mut waits_out = false;
        for one in fds.iter() {
            if one.events & IN != 0 && (epoll::must_not_wait(one.fd) || arm(one.fd)) {
                may_wait = false;
            }
            waits_out |= one.events & OUT != 0 && moved(one.fd).is_some_and(|conn| is_full(&conn, one.fd));
        }
        let most = match (may_wait, waits_out) {
            (false, _) => Some(0),
            (true, false) => time.left(),
            (true, true) => Some(time.left().map_or(LOOK, |left| left.min(LOOK))),
        };
        // The kernel's socket has room while the ring has none.
        let full =
            |one: &pollfd| one.events & OUT != 0 && moved(one.fd).is_some_and(|conn| is_full(&conn, one.fd));
        let (mut masked, mut bells) = ([0_u64; 16], [0_u64; 16]);
        if waits_out {
            for (at, one) in fds.iter_mut().enumerate().take(1024) {
                if full(one) {
                    masked[at / 64] |= 1 << (at % 64);
                    one.events &= !OUT;
                    if one.events & IN == 0 && moved(one.fd).is_some_and(|conn| hears_bells(&conn, one.fd)) {
                        bells[at / 64] |= 1 << (at % 64);
                        one.events |= libc::POLLIN;
                    }
                }
            }
        }
        // Whoever waits for a set waits for the doorbell in it.
        rings = if has_sets && !doors::sleep() { rings + 1 } else { 0 };
        let most = match rings {
            0 => most,
            1..=RINGS => Some(0),
            _ => Some(most.map_or(REST, |most| most.min(REST))),
        };
        let n = with_wakers(fds, most, call);
        let error = sys::errno();
        if has_sets {
            doors::wake_up();
        }
        let mut found = 0;
        for (at, one) in fds.iter_mut().enumerate() {
            if at < 1024 && masked[at / 64] >> (at % 64) & 1 != 0 {
                one.events |= libc::POLLOUT;
            }
            if at < 1024 && bells[at / 64] >> (at % 64) & 1 != 0 {
                one.events &= !libc::POLLIN;
                one.revents &= !libc::POLLIN;
            }
            if n >= 0 {
                judge(one);
            }
            found += c_int::from(one.revents != 0);
        }
        if n < 0 {
            sys::set_errno(error);
            return n;
        }
        if found > 0 || time.is_up() {
            return found;
        }
    }
}

/// Descriptors of a call with those that wake it for connections with other hosts.
const TOGETHER: usize = 512;

/// Calls the kernel with descriptors that wake it, too. If there are too many, it waits for a moment only.
fn with_wakers(
    fds: &mut [pollfd],
    most: Option<u64>,
    call: impl Fn(&mut [pollfd], Option<u64>) -> c_int,
) -> c_int {
    let waker = |one: &pollfd| moved(one.fd).and_then(|conn| conn.waker()).filter(|_| one.events != 0);
    let count = fds.iter().filter_map(waker).count();
    if count == 0 || most == Some(0) {
        return call(fds, most);
    }
    if fds.len() + count > TOGETHER {
        return call(fds, Some(most.map_or(LOOK, |most| most.min(LOOK))));
    }
    let mut all = [pollfd { fd: -1, events: 0, revents: 0 }; TOGETHER];
    all[..fds.len()].copy_from_slice(fds);
    let mut len = fds.len();
    for wake in fds.iter().filter_map(waker).take(TOGETHER - fds.len()) {
        all[len] = pollfd { fd: wake, events: libc::POLLIN, revents: 0 };
        len += 1;
    }
    let n = call(&mut all[..len], most);
    fds.copy_from_slice(&all[..fds.len()]);
    n
}

fn is_full(conn: &Ref, fd: c_int) -> bool {
    sending::is_writable(conn, fd) == Some(false)
}

/// Takes bells that came before. Returns whether the next one would be all that there is to read.
fn hears_bells(conn: &Ref, fd: c_int) -> bool {
    _ = receiving::is_readable(conn, fd);
    is_full(conn, fd) && sys::waiting(fd) == 0 && conn.fin.load(Ordering::Acquire) == 0
}

/// Returns whether one of the descriptors has bytes in its ring, without system calls.
fn any_ready(fds: &[pollfd]) -> bool {
    fds.iter().any(|one| one.events & IN != 0 && has_news(one.fd))
}

fn has_news(fd: c_int) -> bool {
    moved(fd).is_some_and(|conn| {
        conn.link().is_some_and(|link| receiving::has_news(&conn, &link))
            && receiving::is_readable(&conn, fd) == Some(true)
    })
}

/// Has the senders ring. Returns whether there is something already.
fn arm(fd: c_int) -> bool {
    let Some(conn) = moved(fd) else { return false };
    let Some(link) = conn.link() else { return false };
    if !link.rx().is_ready()
        && let Some(mut rx) = conn.rx.take()
    {
        conn.start_reader(&link, &mut rx, fd);
    }
    conn.waker().into_iter().for_each(sys::drain);
    link.rx().arm();
    has_news(fd)
}

/// Spins for bytes in rings, if that tends to help.
fn spin(fds: &[pollfd]) -> bool {
    let mut of = [const { None }; MOST];
    let mut count = 0;
    for one in fds.iter().filter(|one| one.events & IN != 0) {
        if let Some(conn) = moved(one.fd) {
            if count == MOST {
                return false;
            }
            of[count] = Some((one.fd, conn));
            count += 1;
        }
    }
    spin_on(&of[..count], || false)
}

/// Spins for bytes on one of these connections, or for something else.
pub fn spin_on(of: &[Option<(c_int, Ref)>], other: fn() -> bool) -> bool {
    let cpu = sys::cpu();
    let mut before = Before::Nothing;
    for (_, conn) in of.iter().flatten() {
        if let (Some(link), Some(mut rx)) = (conn.link(), conn.rx.take())
            && rx.reader.is_ring()
        {
            match receiving::before_sleep(&mut rx, &link, cpu) {
                Before::Nothing => {}
                // A peer that runs beside this one need not wait for the others.
                other if before != Before::Spin => before = other,
                _ => {}
            }
        }
    }
    if before == Before::Nothing {
        return false;
    }
    let news = || {
        let has = |conn: &Ref| conn.link().is_some_and(|link| receiving::has_news(conn, &link));
        of.iter().flatten().any(|(_, conn)| has(conn)) || other()
    };
    let came = waiting::briefly(before, news);
    for (_, conn) in of.iter().flatten() {
        if let Some(mut rx) = conn.rx.take() {
            waiting::learn(&mut rx, before, came);
        }
    }
    news()
}

/// Corrects what the kernel says of a descriptor.
fn judge(one: &mut pollfd) {
    let Some(conn) = moved(one.fd) else {
        if one.events & IN != 0 && epoll::must_not_wait(one.fd) {
            one.revents |= libc::POLLIN & one.events;
        }
        return;
    };
    if one.events & IN != 0 {
        match receiving::is_readable(&conn, one.fd) {
            Some(true) => one.revents |= one.events & IN,
            Some(false) => one.revents &= !IN,
            None => {}
        }
    }
    if one.events & OUT != 0 {
        match sending::is_writable(&conn, one.fd) {
            Some(true) => one.revents |= one.events & OUT,
            Some(false) => one.revents &= !OUT,
            None => {}
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, milliseconds: c_int) -> c_int {
    if !settings::is_on() || fds.is_null() || count > 1 << 20 {
        // SAFETY: as the program calls it.
        return unsafe { real::poll(fds, count, milliseconds) };
    }
    // SAFETY: the program gave them.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    let span = as_time(milliseconds.max(0) as u64 * 1_000_000);
    wait(fds, Time::of((milliseconds >= 0).then_some(&span)), std::ptr::null())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, milliseconds: c_int, room: usize) -> c_int {
    assert!(room / size_of::<pollfd>() >= count as usize, "buffer overflow detected");
    // SAFETY: as the program calls it.
    unsafe { poll(fds, count, milliseconds) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the program calls it.
    let span = unsafe { time.as_ref() };
    let odd = span.is_some_and(|span| span.tv_sec < 0 || !(0..1_000_000_000).contains(&span.tv_nsec));
    if !settings::is_on() || fds.is_null() || count > 1 << 20 || odd {
        // SAFETY: as the program calls it.
        return unsafe { real::ppoll(fds, count, time, mask) };
    }
    // SAFETY: the program gave them.
    wait(unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }, Time::of(span), mask)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    assert!(room / size_of::<pollfd>() >= count as usize, "buffer overflow detected");
    // SAFETY: as the program calls it.
    unsafe { ppoll(fds, count, time, mask) }
}

/// Descriptors that a `select` may have.
const SELECTED: usize = 1024;

/// A set of `select`.
struct Set(*mut u64);

impl Set {
    fn has(&self, fd: usize) -> bool {
        // SAFETY: the program's sets have as many bits as it says.
        !self.0.is_null() && unsafe { self.0.add(fd / 64).read() } >> (fd % 64) & 1 != 0
    }

    fn set(&self, fd: usize, to: bool) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: as above.
        unsafe {
            let word = self.0.add(fd / 64);
            word.write(word.read() & !(1 << (fd % 64)) | u64::from(to) << (fd % 64));
        }
    }
}

/// Selects by polling. `None`: no connection is among the descriptors.
fn selected(count: c_int, sets: [*mut fd_set; 3], time: Time, mask: *const sigset_t) -> Option<c_int> {
    let [read, write, except] = sets.map(|set| Set(set.cast()));
    let count = usize::try_from(count).ok().filter(|count| *count <= SELECTED && settings::is_on())?;
    let mut fds = [pollfd { fd: -1, events: 0, revents: 0 }; SELECTED];
    let (mut used, mut ours) = (0, false);
    for fd in 0..count {
        let events = [(&read, libc::POLLIN), (&write, libc::POLLOUT), (&except, libc::POLLPRI)];
        let events = events.iter().filter(|(set, _)| set.has(fd)).fold(0, |all, (_, event)| all | event);
        if events != 0 {
            fds[used] = pollfd { fd: fd as c_int, events, revents: 0 };
            used += 1;
            ours |= get(fd as c_int).is_some() || epoll::is_known(fd as c_int);
        }
    }
    if !ours {
        return None;
    }
    let fds = &mut fds[..used];
    if wait(fds, time, mask) < 0 {
        return Some(-1);
    }
    if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
        sys::set_errno(libc::EBADF);
        return Some(-1);
    }
    let mut found = 0;
    for one in fds {
        let fd = one.fd as usize;
        let is = |events: i16| one.revents & events != 0;
        let readable = is(libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR);
        for (set, ready) in
            [(&read, readable), (&write, is(libc::POLLOUT | libc::POLLERR)), (&except, is(libc::POLLPRI))]
        {
            if set.has(fd) {
                set.set(fd, ready);
                found += c_int::from(ready);
            }
        }
    }
    Some(found)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: as the program calls it.
    let given = unsafe { time.as_mut() };
    let span = given.as_ref().map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 });
    let odd = span.is_some_and(|span| span.tv_sec < 0 || span.tv_nsec < 0);
    let until = Time::of(span.as_ref());
    match if odd { None } else { selected(count, [read, write, except], until, std::ptr::null()) } {
        // SAFETY: as the program calls it.
        None => unsafe { real::select(count, read, write, except, time) },
        Some(n) => {
            if let (Some(time), Some(left)) = (given, until.left()) {
                *time = timeval {
                    tv_sec: (left / 1_000_000_000) as i64,
                    tv_usec: (left / 1000 % 1_000_000) as i64,
                };
            }
            n
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the program calls it.
    let span = unsafe { time.as_ref() };
    let odd = span.is_some_and(|span| span.tv_sec < 0 || span.tv_nsec < 0);
    match if odd { None } else { selected(count, [read, write, except], Time::of(span), mask) } {
        Some(n) => n,
        // SAFETY: as the program calls it.
        None => unsafe { real::pselect(count, read, write, except, time, mask) },
    }
}
