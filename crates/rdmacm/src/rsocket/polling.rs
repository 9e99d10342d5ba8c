//! `rpoll` and `rselect`: sockets among other descriptors.

use super::socket::Socket;
use super::table;
use super::waiting::{SPIN, Waker, left};
use crate::error::{Errno, last};
use libc::{c_int, nfds_t, pollfd, timespec};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits for events; returns the number of descriptors that have some.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let sockets: Vec<Option<Arc<Socket>>> = fds.iter().map(|one| table::find(one.fd)).collect();
    if sockets.iter().all(Option::is_none) {
        return system_poll(fds, deadline);
    }
    let begun = Instant::now();
    loop {
        let found = look(fds, &sockets, false)?;
        if found > 0 {
            return Ok(found);
        }
        if timeout != Some(Duration::ZERO) && begun.elapsed() < SPIN {
            std::hint::spin_loop();
            continue;
        }
        let found = sleep(fds, &sockets, deadline)?;
        if found > 0 || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(found);
        }
    }
}

/// Checks all descriptors for events, without waiting. Returns the number of those that have some.
fn look(fds: &mut [pollfd], sockets: &[Option<Arc<Socket>>], sleeps: bool) -> Result<usize, Errno> {
    let mut others: Vec<pollfd> = fds.iter().zip(sockets).map(|(one, socket)| other(*one, socket)).collect();
    if sockets.iter().any(Option::is_none) {
        system_poll(&mut others, Some(Instant::now()))?;
    }
    let mut found = 0;
    for ((one, socket), other) in fds.iter_mut().zip(sockets).zip(&others) {
        one.revents = socket.as_ref().map_or(other.revents, |socket| socket.polled(one.events, sleeps));
        found += usize::from(one.revents != 0);
    }
    Ok(found)
}

/// Returns the entry for the system's `poll`, which ignores our sockets.
const fn other(one: pollfd, socket: &Option<Arc<Socket>>) -> pollfd {
    let fd = if socket.is_some() { -1 } else { one.fd };
    pollfd { fd, revents: 0, ..one }
}

/// Sleeps until something may have happened, and checks all descriptors again.
fn sleep(
    fds: &mut [pollfd],
    sockets: &[Option<Arc<Socket>>],
    deadline: Option<Instant>,
) -> Result<usize, Errno> {
    let waker = Waker::of_thread()?;
    let ours = || sockets.iter().flatten();
    ours().for_each(|socket| socket.watch(&waker));
    let found = look(fds, sockets, true);
    let mut slept = Ok(0);
    if matches!(found, Ok(0)) {
        let readable = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
        let others = fds.iter().zip(sockets).map(|(one, socket)| other(*one, socket));
        let watched: Vec<_> = fds
            .iter()
            .zip(sockets)
            .filter_map(|(one, socket)| socket.as_ref().map(|it| (it, it.descriptors(one.events))))
            .collect();
        let descriptors = watched.iter().flat_map(|(_, descriptors)| descriptors.iter().copied());
        let waking = descriptors.chain([waker.fd()]).map(|fd| readable(fd.as_raw_fd()));
        let mut all: Vec<pollfd> = others.chain(waking).collect();
        slept = system_poll(&mut all, deadline);
        waker.clear();
        // Only sockets with readable descriptors are asked: among thousands, these are few.
        let mut waking = &all[fds.len()..];
        for (socket, descriptors) in &watched {
            let (its, rest) = waking.split_at(descriptors.len());
            waking = rest;
            if its.iter().any(|one| one.revents != 0) {
                socket.hear();
            }
        }
    }
    ours().for_each(|socket| socket.unwatch(&waker));
    found?;
    slept?;
    look(fds, sockets, false)
}

fn system_poll(fds: &mut [pollfd], deadline: Option<Instant>) -> Result<usize, Errno> {
    let time = left(deadline).map(|left| timespec { tv_sec: left.tv_sec, tv_nsec: left.tv_nsec as _ });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: there are as many, and a time or none.
    let found = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, time, std::ptr::null()) };
    usize::try_from(found).map_err(|_| last())
}

#[derive(Clone, Copy, Debug)]
pub struct Selected {
    pub fd: c_int,
    /// Whether it is in the sets for reading, writing and exceptions.
    pub wanted: [bool; 3],
}

/// Waits until some descriptors are ready, and removes the others from the sets.
pub fn select(wanted: &mut [Selected], timeout: Option<Duration>) -> Result<usize, Errno> {
    const MEANS: [i16; 3] =
        [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];
    const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let asked = |one: &Selected| {
        let bits = ASKED.iter().zip(one.wanted).map(|(bit, wanted)| if wanted { *bit } else { 0 });
        pollfd { fd: one.fd, events: bits.sum(), revents: 0 }
    };
    let mut fds: Vec<pollfd> = wanted.iter().map(asked).collect();
    poll(&mut fds, timeout)?;
    if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    for (one, found) in wanted.iter_mut().zip(&fds) {
        for (wanted, means) in one.wanted.iter_mut().zip(MEANS) {
            *wanted &= found.revents & means != 0;
        }
    }
    Ok(wanted.iter().flat_map(|one| one.wanted).filter(|is| *is).count())
}
