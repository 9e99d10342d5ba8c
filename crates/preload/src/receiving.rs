//! Receiving on a connection that has memory.

use crate::conn::Rx;
use crate::cursor::Cursor;
use crate::table::Ref;
use crate::waiting::Before;
use crate::{epoll, sending, settings, sys, waiting};
use libc::c_int;
use sockring::{Breach, Link, Step};
use std::sync::atomic::Ordering;

/// How a call reads.
#[derive(Clone, Copy)]
pub struct How {
    pub peek: bool,
    pub all: bool,
    pub discard: bool,
    pub nonblocking: bool,
}

impl How {
    pub const fn of(flags: c_int) -> Self {
        Self {
            peek: flags & libc::MSG_PEEK != 0,
            all: flags & libc::MSG_WAITALL != 0,
            discard: flags & libc::MSG_TRUNC != 0,
            nonblocking: flags & libc::MSG_DONTWAIT != 0,
        }
    }
}

/// The result of a look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Bytes(usize),
    Nothing,
    /// The peer sends no more.
    End,
    Error(c_int),
}

/// Whether the kernel takes a call, or it is done.
pub enum Taken {
    Kernel,
    Done(Result<usize, c_int>),
}

/// Receives, unless the kernel is to do that: then the call counts among the connection's readers until
/// [`kernel_done`].
pub fn receive(conn: &Ref, fd: c_int, mut cursor: Cursor, how: How) -> Taken {
    conn.readers.fetch_add(1, Ordering::SeqCst);
    if !conn.is_matched() {
        return match conn.take_error() {
            Some(error) => {
                kernel_done(conn);
                Taken::Done(Err(error))
            }
            None => Taken::Kernel,
        };
    }
    kernel_done(conn);
    let Some(link) = conn.link() else {
        conn.readers.fetch_add(1, Ordering::SeqCst);
        return Taken::Kernel;
    };
    let (mut done, mut again) = (0, true);
    loop {
        let found = {
            let Some(mut rx) = conn.rx.take() else { return Taken::Done(Err(libc::EINTR)) };
            if !rx.started && done == 0 {
                conn.start_reader(&link, &mut rx, fd);
            }
            if !rx.started || rx.over {
                conn.readers.fetch_add(1, Ordering::SeqCst);
                if done == 0 {
                    return Taken::Kernel;
                }
                kernel_done(conn);
                return Taken::Done(Ok(done));
            }
            let found = if how.peek {
                peek(conn, &link, &mut rx, fd, &mut cursor)
            } else {
                pull(conn, &link, &mut rx, fd, &mut cursor, how.discard)
            };
            tell_epoch(conn, &mut rx);
            match found {
                Ok(found) => found,
                Err(_) => {
                    drop(rx);
                    conn.breaks(fd);
                    Found::Error(libc::ECONNRESET)
                }
            }
        };
        match found {
            Found::Bytes(n) => {
                done += n;
                conn.unanswered.store(0, Ordering::Relaxed);
                if !how.all || how.peek || cursor.is_done() {
                    return Taken::Done(Ok(done));
                }
            }
            // The library broke it while this call waited.
            Found::End if done == 0 && !conn.is_matched() => {
                return Taken::Done(Err(conn.take_error().unwrap_or(libc::ECONNRESET)));
            }
            Found::End => return Taken::Done(Ok(done)),
            Found::Error(error) if done > 0 => {
                conn.set_error(error);
                return Taken::Done(Ok(done));
            }
            Found::Error(error) => {
                conn.take_error();
                // The kernel told of the reset already, while this call waited.
                let is_told = error == libc::ENOTCONN;
                return Taken::Done(Err(if is_told { libc::ECONNRESET } else { error }));
            }
            Found::Nothing => {
                let nothing = || if done > 0 { Ok(done) } else { Err(libc::EAGAIN) };
                if how.nonblocking || conn.nonblocking.load(Ordering::Relaxed) != 0 {
                    // Whoever waits arms the bell, but for sets that do not look at the connection.
                    if done == 0 && !epoll::looks_at(conn, fd) {
                        epoll::arm_for(conn, &link, fd);
                        if has_news(conn, &link) && std::mem::replace(&mut again, false) {
                            continue;
                        }
                    }
                    return Taken::Done(nothing());
                }
                match waiting::for_bytes(conn, &link, fd) {
                    Ok(()) => {}
                    Err(error) if done == 0 => return Taken::Done(Err(error)),
                    Err(_) => return Taken::Done(Ok(done)),
                }
            }
        }
    }
}

/// Ends a call of the kernel's.
pub fn kernel_done(conn: &Ref) {
    conn.readers.fetch_sub(1, Ordering::SeqCst);
}

/// Notes that the reader has gone on, and wakes a sender that waits for room.
fn went_on(conn: &Ref, link: &Link, rx: &Rx, fd: c_int) {
    if rx.reader.must_ring(link.rx()) {
        if conn.is_carried() {
            return conn.tell();
        }
        // The bell goes in this end's own direction, which must be a ring's for that. Otherwise the peer finds out by
        // itself.
        if let Some(mut tx) = conn.tx.take() {
            if !tx.sender.is_ring() {
                sending::to_ring(conn, link, &mut tx, fd);
            }
            if tx.sender.is_ring() {
                conn.bell(fd);
            }
        }
    }
}

/// Takes what is there, into the pieces of the call.
fn pull(
    conn: &Ref,
    link: &Link,
    rx: &mut Rx,
    fd: c_int,
    cursor: &mut Cursor,
    discard: bool,
) -> Result<Found, Breach> {
    let dir = link.rx();
    let mut done = 0;
    while let Some((to, len)) = cursor.next() {
        let n = match rx.reader.step(dir)? {
            Step::Ring(there) if discard => {
                let n = there.min(len as u64);
                rx.reader.skip(dir, n);
                n as usize
            }
            // SAFETY: the program gave this memory.
            Step::Ring(_) => unsafe { rx.reader.read(link, to, len) },
            Step::Kernel(most) => {
                if rx.reader.is_done(dir) {
                    rx.over = true;
                }
                // SAFETY: the program gave this memory.
                match unsafe {
                    sys::recv(fd, to, len.min(most as usize), libc::MSG_PEEK | libc::MSG_DONTWAIT)
                } {
                    // The sender said that there would be more before it switched.
                    Ok(0) if most != u64::MAX => return Err(Breach::Position),
                    Ok(n) => {
                        let data = rx.reader.limit(dir, n as u64)?;
                        let taken = sys::discard(fd, data).unwrap_or_default();
                        rx.reader.took(dir, taken);
                        match (n, taken) {
                            (0, _) if dir_moved(rx, link)? => continue,
                            (0, _) if !is_all_here(conn, link) => return Ok(not_yet(done)),
                            (0, _) => {
                                conn.fin.store(1, Ordering::Release);
                                return Ok(if done > 0 { Found::Bytes(done) } else { Found::End });
                            }
                            // The sender switched just there.
                            (_, 0) => continue,
                            _ => taken as usize,
                        }
                    }
                    Err(error) => return Ok(no_bytes(conn, error, done)),
                }
            }
            Step::Bells(bells) => match take_bells(conn, link, rx, fd, bells) {
                Ok(()) => continue,
                Err(error) => return Ok(no_bytes(conn, error, done)),
            },
            Step::Empty if done > 0 => break,
            Step::Empty => match empty(conn, link, rx, fd)? {
                Some(found) => return Ok(found),
                None => continue,
            },
        };
        cursor.advance(n);
        done += n;
        went_on(conn, link, rx, fd);
    }
    Ok(Found::Bytes(done))
}

/// Tells another host that the reader has followed a switch.
fn tell_epoch(conn: &Ref, rx: &mut Rx) {
    if conn.is_carried() && rx.told != rx.reader.epoch() {
        rx.told = rx.reader.epoch();
        conn.tell();
    }
}

/// Returns whether the end of the kernel's stream is the end: what another host has sent may still be on its way.
pub fn is_all_here(conn: &Ref, link: &Link) -> bool {
    !conn.is_carried() || link.rx().is_whole() || link.rx().has_left()
}

/// Waits a little for what is on its way from another host, as the kernel's socket is readable all the time.
fn not_yet(done: usize) -> Found {
    if done > 0 {
        return Found::Bytes(done);
    }
    sys::nap(50);
    Found::Nothing
}

/// Returns whether the sender has switched since the reader looked.
fn dir_moved(rx: &mut Rx, link: &Link) -> Result<bool, Breach> {
    Ok(!matches!(rx.reader.step(link.rx())?, Step::Kernel(u64::MAX)))
}

/// Takes bells that come before other bytes.
///
/// # Errors
/// The kernel's; `EAGAIN` if they are still on their way.
fn take_bells(conn: &Ref, link: &Link, rx: &mut Rx, fd: c_int, bells: u64) -> Result<(), c_int> {
    match sys::discard(fd, bells)? {
        0 => {
            let mut byte = 0;
            // SAFETY: the byte is there.
            match unsafe { sys::recv(fd, &mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) }? {
                // The connection ended before they came.
                0 => {
                    conn.fin.store(1, Ordering::Release);
                    Err(libc::ECONNRESET)
                }
                _ => Ok(()),
            }
        }
        n => {
            rx.reader.took(link.rx(), n);
            Ok(())
        }
    }
}

/// Returns what it means that the kernel has no bytes.
fn no_bytes(conn: &Ref, error: c_int, done: usize) -> Found {
    match error {
        _ if done > 0 && error == libc::EAGAIN => Found::Bytes(done),
        libc::EAGAIN => conn.take_error().map_or(Found::Nothing, Found::Error),
        _ if done > 0 => {
            conn.set_error(error);
            Found::Bytes(done)
        }
        _ => Found::Error(error),
    }
}

/// Returns how a connection ended that the kernel says has failed, whose bytes came by the ring to the last. A peer
/// that was killed while a bell waited for it resets, where with TCP it would have ended the stream. Between hosts no
/// bells go by the kernel, and a connection that this library broke did not end.
fn failed(conn: &Ref, link: &Link, fd: c_int, error: c_int) -> Found {
    let (wr, rd) = link.tx().positions();
    let bell = || sys::TcpInfo::of(fd).is_some_and(|info| info.sent() > link.tx().taken());
    let may_ring = conn.is_matched() && !conn.is_carried() && link.tx().is_ring();
    if error == libc::ECONNRESET && may_ring && wr == rd && bell() {
        return Found::End;
    }
    Found::Error(error)
}

/// Looks at the kernel's socket while the ring is empty: takes bells, and finds the end. `None`: look again.
fn empty(conn: &Ref, link: &Link, rx: &mut Rx, fd: c_int) -> Result<Option<Found>, Breach> {
    let dir = link.rx();
    let mut bells = [0; 64];
    // SAFETY: the array is there.
    let there =
        unsafe { sys::recv(fd, bells.as_mut_ptr(), bells.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    let is_empty = |rx: &mut Rx| Ok(rx.reader.step(dir)? == Step::Empty);
    match there {
        Ok(0) if is_empty(rx)? && !is_all_here(conn, link) => Ok(Some(not_yet(0))),
        // These bytes come after a switch that is still on its way.
        Ok(1..) if conn.is_carried() => Ok(is_empty(rx)?.then(|| not_yet(0))),
        Ok(0) if is_empty(rx)? => {
            conn.fin.store(1, Ordering::Release);
            Ok(Some(end(conn, link, fd)))
        }
        Ok(0) => Ok(None),
        Ok(n) => {
            let bells = rx.reader.bells(dir, n as u64)?;
            let taken = sys::discard(fd, bells).unwrap_or_default();
            rx.reader.took(dir, taken);
            Ok(None)
        }
        Err(libc::EAGAIN) if !is_empty(rx)? => Ok(None),
        Err(libc::EAGAIN) => Ok(Some(conn.take_error().map_or(Found::Nothing, Found::Error))),
        Err(error) if is_empty(rx)? => {
            conn.fin.store(1, Ordering::Release);
            Ok(Some(failed(conn, link, fd, error)))
        }
        // The ring holds what was sent before.
        Err(error) => {
            conn.set_error(error);
            Ok(None)
        }
    }
}

/// Returns how the stream of a peer ends that has sent its last: an error may have come before bytes of the ring were
/// read.
fn end(conn: &Ref, link: &Link, fd: c_int) -> Found {
    conn.take_error().map_or(Found::End, |error| failed(conn, link, fd, error))
}

/// Copies what is there, which stays.
fn peek(conn: &Ref, link: &Link, rx: &mut Rx, fd: c_int, cursor: &mut Cursor) -> Result<Found, Breach> {
    let dir = link.rx();
    loop {
        let Some((to, len)) = cursor.next() else { return Ok(Found::Bytes(0)) };
        match rx.reader.step(dir)? {
            Step::Ring(_) => {
                let mut done = 0;
                while let Some((to, len)) = cursor.next() {
                    // SAFETY: the program gave this memory.
                    let n = unsafe { rx.reader.peek(link, done as u64, to, len) };
                    if n == 0 {
                        break;
                    }
                    cursor.advance(n);
                    done += n;
                }
                return Ok(Found::Bytes(done));
            }
            Step::Kernel(most) => {
                // SAFETY: the program gave this memory.
                match unsafe {
                    sys::recv(fd, to, len.min(most as usize), libc::MSG_PEEK | libc::MSG_DONTWAIT)
                } {
                    Ok(n) => match rx.reader.limit(dir, n as u64)? {
                        0 if n > 0 || dir_moved(rx, link)? => {}
                        0 if !is_all_here(conn, link) => return Ok(not_yet(0)),
                        0 => return Ok(Found::End),
                        data => return Ok(Found::Bytes(data as usize)),
                    },
                    Err(error) => return Ok(no_bytes(conn, error, 0)),
                }
            }
            Step::Bells(bells) => {
                if let Err(error) = take_bells(conn, link, rx, fd, bells) {
                    return Ok(no_bytes(conn, error, 0));
                }
            }
            Step::Empty => {
                if let Some(found) = empty(conn, link, rx, fd)? {
                    return Ok(found);
                }
            }
        }
    }
}

/// Returns whether a call to read would not wait. `None`: the kernel knows.
pub fn is_readable(conn: &Ref, fd: c_int) -> Option<bool> {
    if !conn.is_matched() {
        return None;
    }
    let link = conn.link()?;
    let mut rx = conn.rx.take()?;
    conn.start_reader(&link, &mut rx, fd);
    if !rx.started || rx.over {
        return None;
    }
    if conn.error.load(Ordering::Relaxed) != 0 {
        return Some(true);
    }
    loop {
        let step = rx.reader.step(link.rx());
        tell_epoch(conn, &mut rx);
        match step {
            Ok(Step::Ring(_)) => return Some(true),
            Ok(Step::Kernel(most)) => return is_readable_there(conn, &link, most, fd),
            Ok(Step::Bells(bells)) => match take_bells(conn, &link, &mut rx, fd, bells) {
                Ok(()) => {}
                Err(libc::EAGAIN) => return Some(false),
                Err(_) => return Some(true),
            },
            Ok(Step::Empty) => match empty(conn, &link, &mut rx, fd) {
                Ok(Some(Found::Nothing)) => return Some(false),
                Ok(Some(Found::Error(error))) => {
                    conn.set_error(error);
                    return Some(true);
                }
                Ok(Some(_)) | Err(_) => return Some(true),
                Ok(None) => {}
            },
            Err(_) => return Some(true),
        }
    }
}

/// Returns whether the kernel's socket has something for a call to read: `None` as it says.
fn is_readable_there(conn: &Ref, link: &Link, most: u64, fd: c_int) -> Option<bool> {
    if !conn.is_carried() || is_all_here(conn, link) {
        return None;
    }
    let mut byte = 0;
    // SAFETY: the byte is there.
    match unsafe { sys::recv(fd, &mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) } {
        Ok(0) if most == u64::MAX => Some(not_yet(0) != Found::Nothing),
        _ => None,
    }
}

/// Returns whether there may be bytes, without a system call.
pub fn has_news(conn: &Ref, link: &Link) -> bool {
    conn.rx.take().is_some_and(|rx| rx.started && !rx.over && rx.reader.has_news(link.rx()))
}

/// Returns how many bytes can be read, if the kernel does not know.
pub fn readable_bytes(conn: &Ref, fd: c_int) -> Option<u64> {
    let link = conn.link().filter(|_| conn.is_matched())?;
    let mut rx = conn.rx.take().filter(|rx| rx.started && !rx.over)?;
    Some(match rx.reader.step(link.rx()).ok()? {
        Step::Ring(there) => there,
        Step::Kernel(most) => sys::waiting(fd).min(most),
        Step::Bells(_) | Step::Empty => 0,
    })
}

/// Says what to do before this wait sleeps.
pub fn before_sleep(rx: &mut Rx, link: &Link, cpu: u32) -> Before {
    let (skip, before) = match link.rx().is_on(cpu) {
        _ if settings::get().spin == 0 => return Before::Nothing,
        true => (&mut rx.stay, Before::GiveWay),
        false => (&mut rx.skip, Before::Spin),
    };
    if *skip > 0 {
        *skip -= 1;
        return Before::Nothing;
    }
    before
}

impl Ref {
    /// Takes bells that nobody will take any more. Returns whether there are bytes in the ring that nobody has read.
    pub fn has_unread(&self, fd: c_int) -> bool {
        let (Some(link), Some(mut rx)) = (self.link(), self.rx.take()) else { return false };
        if !rx.started || rx.over {
            return false;
        }
        for _ in 0..100 {
            match rx.reader.step(link.rx()) {
                Ok(Step::Ring(_)) => return true,
                Ok(Step::Bells(bells)) => match take_bells(self, &link, &mut rx, fd, bells) {
                    Ok(()) => {}
                    Err(_) => return false,
                },
                Ok(Step::Empty) => match empty(self, &link, &mut rx, fd) {
                    Ok(None) => {}
                    _ => return false,
                },
                _ => return false,
            }
        }
        false
    }
}
