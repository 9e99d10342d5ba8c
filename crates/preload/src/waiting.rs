//! Waiting for a peer: spinning for as long as that tends to help, then sleeping on the kernel's socket.

use crate::conn::Rx;
use crate::table::Ref;
use crate::{real, receiving, settings, sys};
use libc::c_int;
use sockring::Link;

/// Most waits that don't spin after spins in vain.
const MOST: u32 = 64;
/// Most waits that don't give the CPU away after somebody took it for long: a program that computes takes milliseconds.
const MOST_STAYS: u32 = 4096;
/// Nanoseconds after which somebody has taken the CPU for long.
const TURN: u64 = 50_000;
/// Looks between two looks at the clock.
const LOOKS: u32 = 64;

/// Spins until `done` is true, as long as the settings allow. Returns whether it became true.
pub fn spin(mut done: impl FnMut() -> bool) -> bool {
    let end = sys::now(libc::CLOCK_MONOTONIC) + settings::get().spin;
    loop {
        for _ in 0..LOOKS {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if sys::now(libc::CLOCK_MONOTONIC) > end {
            return false;
        }
    }
}

/// The thing to do before a wait sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Nothing,
    /// The peer is on another CPU.
    Spin,
    /// It is on this one.
    GiveWay,
}

/// The result of a wait that did not sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    News,
    Nothing,
    /// Somebody else took the CPU for long.
    Late,
}

/// Lets others have this CPU, until `done` is true. A peer that sleeps comes when its bell has arrived.
fn give_way(done: impl Fn() -> bool) -> Came {
    let mut now = sys::now(libc::CLOCK_MONOTONIC);
    let end = now + settings::get().spin;
    while now < end {
        let began = now;
        sys::give_way();
        now = sys::now(libc::CLOCK_MONOTONIC);
        if now - began > TURN {
            return Came::Late;
        }
        if done() {
            return Came::News;
        }
    }
    Came::Nothing
}

/// Waits a little without sleeping, until `done` is true.
pub fn briefly(before: Before, done: impl Fn() -> bool) -> Came {
    match before {
        Before::Spin if spin(&done) => Came::News,
        Before::Nothing | Before::Spin => Came::Nothing,
        Before::GiveWay => give_way(done),
    }
}

/// Learns whether that was of use.
pub fn learn(rx: &mut Rx, before: Before, came: Came) {
    let (skip, loss) = match before {
        Before::Nothing => return,
        Before::Spin => (&mut rx.skip, &mut rx.penalty),
        Before::GiveWay => (&mut rx.stay, &mut rx.loss),
    };
    *loss = match came {
        Came::News => 0,
        Came::Nothing => (*loss * 2 + 1).min(MOST),
        Came::Late => (*loss * 2 + 1).min(MOST_STAYS),
    };
    *skip = *loss;
}

/// Waits until there may be something to read.
///
/// # Errors
/// What a blocking call of the kernel returns: a signal came, or the time is up.
pub fn for_bytes(conn: &Ref, link: &Link, fd: c_int) -> Result<(), c_int> {
    let (before, ahead) = {
        let Some(mut rx) = conn.rx.take() else { return Err(libc::EINTR) };
        let is_ring = rx.reader.is_ring();
        let before =
            if is_ring { receiving::before_sleep(&mut rx, link, sys::cpu()) } else { Before::Nothing };
        (before, *rx)
    };
    if before != Before::Nothing {
        let news = || ahead.reader.has_news(link.rx());
        let came = briefly(before, news);
        let Some(mut rx) = conn.rx.take() else { return Err(libc::EINTR) };
        learn(&mut rx, before, came);
        if news() {
            return Ok(());
        }
    }
    if let Some(wake) = conn.waker() {
        sys::drain(wake);
        link.rx().arm();
        return match receiving::is_readable(conn, fd) {
            Some(true) => Ok(()),
            // The kernel may have bytes that nobody may read yet: the daemon wakes this program when they are due.
            Some(false) => for_wake(fd, if sys::has(fd, libc::POLLIN) { 0 } else { libc::POLLIN }, wake),
            None => for_wake(fd, libc::POLLIN, wake),
        };
    }
    link.rx().arm();
    {
        let Some(rx) = conn.rx.take() else { return Err(libc::EINTR) };
        if rx.over || rx.reader.has_news(link.rx()) {
            return Ok(());
        }
    }
    // This call of the kernel ends for a byte, for signals as the program has them, and after the socket's time.
    let mut byte = 0_u8;
    // SAFETY: the byte is there.
    match unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) } {
        0.. => Ok(()),
        _ => match sys::errno() {
            error @ (libc::EINTR | libc::EAGAIN) => Err(error),
            error => {
                conn.set_error(error);
                Ok(())
            }
        },
    }
}

/// Waits until the daemon wakes this program, or the kernel's socket has one of these events.
fn for_wake(fd: c_int, events: i16, wake: c_int) -> Result<(), c_int> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    _ = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &mut time);
    let most = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    let began = sys::now(libc::CLOCK_MONOTONIC);
    match sys::poll_two(fd, events, wake, (most != 0).then_some(most)) {
        Err(libc::EINTR) if crate::signals::interrupts() => Err(libc::EINTR),
        _ if most != 0 && sys::now(libc::CLOCK_MONOTONIC) - began >= most => Err(libc::EAGAIN),
        _ => Ok(()),
    }
}

/// Waits until there may be room in the ring, or the connection ends.
///
/// # Errors
/// A signal came that has a handler, or the socket's time is up.
pub fn for_room(conn: &Ref, link: &Link, fd: c_int) -> Result<(), c_int> {
    let has_room = || {
        let (wr, rd) = link.tx().positions();
        wr.wrapping_sub(rd) < sockring::SIZE
    };
    if !link.tx().is_on(sys::cpu()) && spin(has_room) {
        return Ok(());
    }
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    _ = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &mut time);
    let most = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    let (began, mut turn) = (sys::now(libc::CLOCK_MONOTONIC), 0);
    loop {
        {
            let Some(mut tx) = conn.tx.take() else { return Err(libc::EINTR) };
            let unsent = tx.sender.has_unsent() && !crate::leaving::send_rest(link, &mut tx, fd);
            if !unsent && (!tx.sender.is_ring() || has_room() || link.tx().wanted() != 0) {
                return Ok(());
            }
            crate::sending::probe(conn, link, &mut tx, fd);
        }
        // The reader's bell comes by the kernel, if nothing else is there: otherwise it is looked from time to time.
        _ = receiving::is_readable(conn, fd);
        let quiet = sys::waiting(fd) == 0 && conn.fin.load(std::sync::atomic::Ordering::Acquire) == 0;
        let events = if quiet { libc::POLLIN } else { 0 };
        turn = (turn + 1).min(10);
        let polled = match conn.room_waker() {
            Some(wake) => {
                sys::drain(wake);
                link.tx().arm_room();
                let span = if has_room() { 0 } else { turn as u64 * 1_000_000 };
                sys::poll_two(fd, events, wake, Some(span))
            }
            None => sys::poll(fd, events, turn),
        };
        match polled {
            Ok(got) if got & (libc::POLLERR | libc::POLLHUP) != 0 => return Ok(()),
            Err(libc::EINTR) if crate::signals::interrupts() => return Err(libc::EINTR),
            _ => {}
        }
        if most != 0 && sys::now(libc::CLOCK_MONOTONIC) - began > most {
            return Err(libc::EAGAIN);
        }
    }
}
