//! Sending on a connection that has memory.

use crate::conn::Tx;
use crate::cursor::Cursor;
use crate::receiving::Taken;
use crate::table::Ref;
use crate::{doors, leaving, settings, sys, waiting};
use libc::c_int;
use sockring::{Bell, Breach, Direction, Link};
use std::sync::atomic::Ordering;

/// Bytes without an answer that make a stream, if the other end is on another host.
const STREAM: u64 = 64 << 10;
/// Shorter messages in a row, each after an answer, that end a stream.
const TURNS: u32 = 8;

/// Nanoseconds between bytes that find out whether a peer is gone.
const PROBE: u64 = 100_000_000;

/// The result of one attempt to send.
enum Sent {
    Bytes(usize),
    /// There is no room.
    Full,
    /// The kernel is to send.
    Kernel,
}

/// Sends, unless the kernel is to do that: then the call counts among the connection's senders until
/// [`kernel_done`].
pub fn send(conn: &Ref, fd: c_int, mut cursor: Cursor, flags: c_int) -> Taken {
    conn.senders.fetch_add(1, Ordering::SeqCst);
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
        conn.senders.fetch_add(1, Ordering::SeqCst);
        return Taken::Kernel;
    };
    if !link.rx().is_ready()
        && let Some(mut rx) = conn.rx.take()
    {
        conn.start_reader(&link, &mut rx, fd);
    }
    if let Some(error) = conn.take_error() {
        return Taken::Done(Err(error));
    }
    let mut done = 0;
    loop {
        let sent = {
            let Some(mut tx) = conn.tx.take() else { return Taken::Done(Err(libc::EINTR)) };
            let sent = attempt(conn, &link, &mut tx, fd, &mut cursor, flags);
            if matches!(sent, Ok(Sent::Kernel)) {
                conn.senders.fetch_add(1, Ordering::SeqCst);
            }
            sent
        };
        match sent {
            Ok(Sent::Bytes(n)) => {
                done += n;
                if cursor.is_done() {
                    return Taken::Done(Ok(done));
                }
            }
            // The rest is short of what the program asked for, which a program must expect of a socket.
            Ok(Sent::Kernel) if done > 0 => match rest_by_kernel(conn, fd, &mut cursor, flags) {
                Ok(n) => return Taken::Done(Ok(done + n)),
                Err(_) => return Taken::Done(Ok(done)),
            },
            Ok(Sent::Kernel) => return Taken::Kernel,
            Ok(Sent::Full) => {
                let nonblocking =
                    flags & libc::MSG_DONTWAIT != 0 || conn.nonblocking.load(Ordering::Relaxed) != 0;
                if nonblocking {
                    crate::epoll::note_full(conn, fd);
                    return Taken::Done(if done > 0 { Ok(done) } else { Err(libc::EAGAIN) });
                }
                if let Err(error) = waiting::for_room(conn, &link, fd) {
                    return Taken::Done(if done > 0 { Ok(done) } else { Err(error) });
                }
            }
            Err(_) => {
                conn.breaks(fd);
                return Taken::Done(if done > 0 { Ok(done) } else { Err(libc::ECONNRESET) });
            }
        }
    }
}

/// Sends the rest of a call by the kernel, as the call would: the connection returned to TCP in its middle.
fn rest_by_kernel(conn: &Ref, fd: c_int, cursor: &mut Cursor, flags: c_int) -> Result<usize, c_int> {
    let mut done = 0;
    while let Some((from, len)) = cursor.next() {
        // SAFETY: the program gave this memory.
        match unsafe { crate::real::send(fd, from.cast(), len, flags) } {
            n @ 1.. => {
                cursor.advance(n as usize);
                done += n as usize;
            }
            _ => break,
        }
    }
    kernel_done(conn);
    if done > 0 { Ok(done) } else { Err(sys::errno()) }
}

/// Ends a call of the kernel's.
pub fn kernel_done(conn: &Ref) {
    conn.senders.fetch_sub(1, Ordering::SeqCst);
}

fn attempt(
    conn: &Ref,
    link: &Link,
    tx: &mut Tx,
    fd: c_int,
    cursor: &mut Cursor,
    flags: c_int,
) -> Result<Sent, Breach> {
    let dir = link.tx();
    if dir.wanted() != 0 {
        leaving::go_back(conn, link, tx, fd)?;
    }
    if tx.sender.has_unsent() && !leaving::send_rest(link, tx, fd) {
        return Ok(Sent::Full);
    }
    if conn.shut.load(Ordering::Acquire) != 0 || tx.over || flags & libc::MSG_OOB != 0 {
        if flags & libc::MSG_OOB != 0 {
            // The kernel's urgent byte has its place among the kernel's bytes.
            dir.want_tcp(Direction::RETURNS);
            leaving::go_back(conn, link, tx, fd)?;
            if tx.sender.is_ring() {
                // The other host has not seen the switch before.
                sys::nap(50);
                return Ok(Sent::Full);
            }
        }
        return Ok(Sent::Kernel);
    }
    maybe_switch(conn, link, tx, fd, cursor.left());
    if !tx.sender.is_ring() || is_gone(conn, link, tx, fd)? {
        return Ok(Sent::Kernel);
    }
    let mut done = 0;
    while let Some((from, len)) = cursor.next() {
        // SAFETY: the program gave this memory.
        let n = unsafe { tx.sender.write(link, from, len) }?;
        if n == 0 {
            break;
        }
        cursor.advance(n);
        done += n;
    }
    // The CPUs of a peer in another machine are others, whatever their numbers.
    if conn.in_window.load(Ordering::Relaxed) == 0 && !conn.is_carried() {
        dir.set_cpu(sys::cpu());
    }
    let bell = match conn.is_carried() {
        true => tx.sender.must_tell(dir).then_some(Bell::Kernel),
        false => tx.sender.must_ring(dir),
    };
    match bell {
        Some(Bell::Door) if doors::ring(conn) => {}
        Some(_) => conn.bell(fd),
        None => {}
    }
    if done > 0 || cursor.is_done() {
        return Ok(Sent::Bytes(done));
    }
    dir.arm_room();
    conn.waits_out.store(1, Ordering::Release);
    if tx.sender.room(dir)? > 0 {
        return Ok(Sent::Bytes(0));
    }
    Ok(Sent::Full)
}

/// Switches to the ring when both ends are ready, and back and forth in the mode for tests.
fn maybe_switch(conn: &Ref, link: &Link, tx: &mut Tx, fd: c_int, len: u64) {
    tx.calls = tx.calls.wrapping_add(1);
    let is_turn = !settings::get().flap || tx.calls.is_multiple_of(3);
    let is_for_ring = is_for_ring(conn, tx, len);
    if tx.sender.is_ring() {
        if !is_for_ring || (settings::get().flap && is_turn) {
            leaving::to_tcp(conn, link, tx, fd);
        }
    } else if is_for_ring && is_turn {
        to_ring(conn, link, tx, fd);
    }
}

/// Returns whether `len` bytes are to go by the ring. To another host, only streams do: short messages are there sooner
/// by the kernel, because the ring's way is by two more threads of each daemon.
fn is_for_ring(conn: &Ref, tx: &mut Tx, len: u64) -> bool {
    if !conn.is_carried() || settings::get().eager {
        return true;
    }
    let unanswered = conn.unanswered.fetch_add(len, Ordering::Relaxed).saturating_add(len);
    let is_short = unanswered == len && len < STREAM;
    tx.turns = if is_short { tx.turns.saturating_add(1) } else { 0 };
    unanswered >= STREAM || (tx.sender.is_ring() && tx.turns < TURNS)
}

/// Switches to the ring, if both ends are ready.
pub fn to_ring(conn: &Ref, link: &Link, tx: &mut Tx, fd: c_int) {
    let dir = link.tx();
    // Without the other direction's reader, the peer could not ring when there is room.
    if dir.wanted() == 0
        && !tx.over
        && tx.sender.may_switch(dir)
        && link.rx().is_ready()
        && conn.shut.load(Ordering::Acquire) == 0
        && conn.senders.load(Ordering::SeqCst) == 0
        && let Some(info) = sys::TcpInfo::of(fd).filter(sys::TcpInfo::is_established)
    {
        leaving::set_options(conn, fd, true);
        tx.sender.switch(dir, info.sent());
    }
}

/// Returns whether the peer is gone, so that the kernel knows what a call must return. It is looked from time to time,
/// and at each call once the peer has sent its last.
fn is_gone(conn: &Ref, link: &Link, tx: &mut Tx, fd: c_int) -> Result<bool, Breach> {
    let now = sys::now(libc::CLOCK_MONOTONIC_COARSE);
    let fin = conn.fin.load(Ordering::Acquire) != 0;
    if !fin && now == tx.looked {
        return Ok(false);
    }
    let first = tx.looked == 0;
    tx.looked = now;
    if first && !fin {
        return Ok(false);
    }
    let got = sys::poll(fd, libc::POLLRDHUP, 0).unwrap_or_default();
    if got & (libc::POLLERR | libc::POLLHUP) != 0 && sys::TcpInfo::of(fd).is_none_or(|info| info.is_closed())
    {
        return Ok(true);
    }
    if got & libc::POLLRDHUP != 0 && !conn.is_carried() && tx.sender.is_ahead(link.tx())? {
        conn.bell(fd);
    }
    Ok(false)
}

/// Finds out whether a peer that has sent its last has only shut its side or is gone, for a sender that waits for room: a
/// byte by the kernel is reset if it is gone. That is tried from time to time.
pub fn probe(conn: &Ref, link: &Link, tx: &mut Tx, fd: c_int) {
    let now = sys::now(libc::CLOCK_MONOTONIC_COARSE);
    if conn.is_carried() || now < tx.probes || !tx.sender.is_ring() {
        return;
    }
    let has_ended = sys::poll(fd, libc::POLLRDHUP, 0).unwrap_or_default() & libc::POLLRDHUP != 0;
    if has_ended && tx.sender.is_ahead(link.tx()).unwrap_or_default() {
        tx.probes = now + PROBE;
        conn.bell(fd);
    }
}

/// Returns whether a call to send would not wait. `None`: the kernel knows.
pub fn is_writable(conn: &Ref, fd: c_int) -> Option<bool> {
    if !conn.is_matched() {
        return None;
    }
    let link = conn.link()?;
    let mut tx = conn.tx.take()?;
    if tx.sender.has_unsent() {
        return Some(leaving::send_rest(&link, &mut tx, fd));
    }
    if !tx.sender.is_ring() {
        return None;
    }
    let dir = link.tx();
    let room = |tx: &mut Tx| tx.sender.room(dir).unwrap_or(1) > 0;
    if room(&mut tx) {
        conn.waits_out.store(0, Ordering::Relaxed);
        return Some(true);
    }
    dir.arm_room();
    probe(conn, &link, &mut tx, fd);
    Some(room(&mut tx))
}
