//! Returning to TCP.

use crate::conn::Tx;
use crate::table::{self, Ref};
use crate::{daemon, receiving, sys};
use libc::c_int;
use sockring::{BYTES, Breach, Direction, HEADER, Link, Step};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Bytes that are sent again by the kernel at a time.
const PIECE: usize = 16 << 10;
/// Naps of 50 microseconds until a peer must have answered: two seconds.
const PATIENCE: u32 = 40_000;

/// Nanoseconds in which a peer must have returned to TCP when it must.
const TIME: u64 = 2_000_000_000;
/// Milliseconds between looks at connections that must return.
const LOOK: c_int = 100;
/// The peer of a connection that must return has not written anything since.
pub const UNSEEN: u64 = u64::MAX;

/// Whether there are connections whose peers must return.
static RETURNING: AtomicBool = AtomicBool::new(false);
/// Connections whose rest is still to be sent by the kernel.
static UNSENT: AtomicU32 = AtomicU32::new(0);

/// Has the kernel's socket behave as this library needs it, or as the program wants it.
pub fn set_options(conn: &Ref, fd: c_int, ring: bool) {
    let tcp = libc::IPPROTO_TCP;
    if ring {
        let mut value: c_int = 0;
        for (name, kept, needed) in [(libc::TCP_NODELAY, &conn.nodelay, 1), (libc::TCP_CORK, &conn.cork, 0)] {
            if sys::getsockopt(fd, tcp, name, &mut value).is_ok() {
                kept.store(value as u32, Ordering::Relaxed);
            }
            _ = sys::setsockopt(fd, tcp, name, needed);
        }
        conn.quick.store(1, Ordering::Release);
    } else if conn.quick.swap(0, Ordering::AcqRel) == 1 {
        _ = sys::setsockopt(fd, tcp, libc::TCP_NODELAY, conn.nodelay.load(Ordering::Relaxed) as c_int);
        _ = sys::setsockopt(fd, tcp, libc::TCP_CORK, conn.cork.load(Ordering::Relaxed) as c_int);
    }
}

/// Switches from the ring to the kernel; what is in the ring is still read there.
pub fn to_tcp(conn: &Ref, link: &Link, tx: &mut Tx, fd: c_int) {
    if tx.sender.is_ring()
        && (!conn.is_carried() || tx.sender.is_seen(link.tx()))
        && let Some(info) = sys::TcpInfo::of(fd)
    {
        tx.sender.switch(link.tx(), info.sent());
        set_options(conn, fd, false);
        if conn.is_carried() {
            conn.tell();
        }
    }
}

/// Returns this end's direction to TCP for good, because somebody asks for it.
pub fn go_back(conn: &Ref, link: &Link, tx: &mut Tx, fd: c_int) -> Result<(), Breach> {
    let dir = link.tx();
    if tx.over {
        return Ok(());
    }
    if tx.sender.is_ring() {
        if dir.wanted() == Direction::LEAVES {
            if conn.shut.load(Ordering::Acquire) != 0 && tx.sender.is_ahead(dir)? {
                // The kernel sends nothing after the end of the stream.
                return Err(Breach::Position);
            }
            let Some(info) = sys::TcpInfo::of(fd) else { return Ok(()) };
            tx.sender.switch_back(dir, info.sent())?;
            if tx.sender.has_unsent() {
                UNSENT.fetch_add(1, Ordering::AcqRel);
                send_rest(link, tx, fd);
            }
            set_options(conn, fd, false);
        } else {
            to_tcp(conn, link, tx, fd);
            if tx.sender.is_ring() {
                // The other host has not seen the switch before. It is tried again when it has.
                return Ok(());
            }
        }
    }
    tx.over = true;
    dir.set_left();
    if conn.is_carried() {
        conn.tell();
    }
    Ok(())
}

/// Sends by the kernel what a reader has left unread. Returns whether all is sent.
pub fn send_rest(link: &Link, tx: &mut Tx, fd: c_int) -> bool {
    let mut piece = [0; PIECE];
    while tx.sender.has_unsent() {
        // SAFETY: the array has as many bytes.
        let len = unsafe { tx.sender.unsent(link, piece.as_mut_ptr(), PIECE) };
        // SAFETY: as above.
        match unsafe { sys::send(fd, piece.as_ptr(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } {
            Ok(n) => tx.sender.sent(n),
            Err(libc::EAGAIN | libc::EINTR) => return false,
            // Nobody will read it.
            Err(_) => tx.sender.sent(len),
        }
    }
    UNSENT.fetch_sub(1, Ordering::AcqRel);
    true
}

/// Goes on with what could not be done at once. Returns the milliseconds until there is more to do; -1: nothing.
pub fn work() -> c_int {
    let returning = RETURNING.load(Ordering::Acquire) && watch();
    if UNSENT.load(Ordering::Acquire) == 0 {
        return if returning { LOOK } else { -1 };
    }
    table::each_conn(|conn| {
        if conn.is_matched()
            && let (Some(link), Some(fd)) = (conn.link(), table::descriptor(conn))
            && let Some(mut tx) = conn.tx.take()
            && tx.sender.has_unsent()
        {
            send_rest(&link, &mut tx, fd);
        }
    });
    match UNSENT.load(Ordering::Acquire) {
        0 if returning => LOOK,
        0 => -1,
        _ => 2,
    }
}

/// Looks at connections that must return. Returns whether there are any.
fn watch() -> bool {
    let mut any = false;
    table::each_conn(|conn| {
        if conn.returns.load(Ordering::Acquire) != 0 {
            any |= !is_back(conn);
        }
    });
    RETURNING.store(any, Ordering::Release);
    any
}

/// Returns whether nothing new can come by the ring of a connection that must return. Resets it if its peer does not
/// follow in time, whatever the peer has written where it can.
fn is_back(conn: &Ref) -> bool {
    let sealed = match (conn.link().filter(|_| conn.is_matched()), conn.rx.take()) {
        (Some(_), Some(mut rx)) if !rx.started => {
            rx.over = true;
            Ok(true)
        }
        (Some(link), Some(mut rx)) => rx.reader.seal(link.rx()).map(|sealed| sealed || rx.over),
        _ => Ok(true),
    };
    if sealed == Ok(true) {
        conn.returns.store(0, Ordering::Release);
        return true;
    }
    let now = sys::now(libc::CLOCK_MONOTONIC);
    let written = conn.link().map_or(0, |link| link.rx().positions().0);
    if conn.seen.swap(written, Ordering::AcqRel) != written {
        conn.returns.fetch_min(now + TIME, Ordering::AcqRel);
    }
    if sealed.is_ok() && now < conn.returns.load(Ordering::Acquire) {
        return false;
    }
    conn.returns.store(0, Ordering::Release);
    table::descriptor(conn).iter().for_each(|fd| conn.breaks(*fd));
    true
}

/// Returns a connection to TCP, which its peer must do as well: in two seconds, or if it is `patient`, in two seconds
/// after it has written to its ring again. A program that was stopped does not.
pub fn must_return(conn: &Ref, patient: bool) {
    let Some(link) = conn.link().filter(|_| conn.is_matched()) else { return };
    link.tx().want_tcp(Direction::RETURNS);
    link.rx().want_tcp(Direction::RETURNS);
    conn.seen.store(link.rx().positions().0, Ordering::Release);
    let until = if patient { UNSEEN } else { sys::now(libc::CLOCK_MONOTONIC) + TIME };
    conn.returns.store(until, Ordering::Release);
    RETURNING.store(true, Ordering::Release);
    look(conn);
}

/// Returns all connections to TCP: nobody judges by the rules what goes by rings.
pub fn return_all() {
    // Both ends of a connection with another host have returned in time, or nobody knows what has arrived.
    let is_settled = |conn: &Ref| {
        !conn.is_carried() || conn.link().is_some_and(|link| link.rx().has_left() && link.tx().is_settled())
    };
    table::each_conn(|conn| if is_settled(conn) { must_return(conn, true) } else { cut(conn) });
}

/// Ends a connection with another host of which nobody knows what has arrived there.
pub fn cut(conn: &Ref) {
    if !conn.is_matched() {
        return;
    }
    let is_begun = conn.rx.take().is_none_or(|mut rx| {
        rx.over |= !rx.started;
        rx.started
    });
    if is_begun {
        table::descriptor(conn).iter().for_each(|fd| conn.breaks(*fd));
    } else if let Some(mut tx) = conn.tx.take() {
        // Nobody was told that rings are followed here.
        tx.over = true;
    }
}

/// Does what the peer or the daemon asks for.
pub fn look(conn: &Ref) {
    let (Some(link), Some(fd)) = (conn.link(), table::descriptor(conn)) else { return };
    if !conn.is_matched() {
        return;
    }
    let Some(mut tx) = conn.tx.take() else { return };
    if link.tx().wanted() != 0 && go_back(conn, &link, &mut tx, fd).is_err() {
        drop(tx);
        conn.breaks(fd);
    }
}

/// Returns a connection to TCP, before somebody may use it who does not know of rings: then nothing of it is in memory
/// any more.
pub fn leave(conn: &Ref, fd: c_int) {
    if conn.ends_offer() || !conn.is_matched() {
        return;
    }
    let Some(link) = conn.link() else { return };
    if leave_reading(conn, &link, fd).is_none() {
        conn.breaks(fd);
        return;
    }
    if let Some(mut tx) = conn.tx.take() {
        link.tx().want_tcp(Direction::RETURNS);
        if go_back(conn, &link, &mut tx, fd).is_err() {
            drop(tx);
            conn.breaks(fd);
        }
    }
}

/// Returns a connection to TCP whose memory is of a window, and gives that back. What the library noted there goes on
/// in memory of its own.
pub fn leave_window(conn: &Ref, fd: c_int) {
    leave(conn, fd);
    if conn.is_carried() {
        await_switch(conn, fd);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let Some(mut tx) = conn.tx.take() else { return };
    let (at, copied) = (conn.mapped(), if tx.sender.has_unsent() { BYTES } else { HEADER });
    let replaced = !at.is_null()
        && sys::map(-1, 0, BYTES, flags).is_some_and(|own| {
            // SAFETY: both are mapped with as many bytes; nothing is written any more to the ring in which this end
            // sends, and nothing read from the other.
            unsafe { std::ptr::copy_nonoverlapping(at, own, copied) };
            // SAFETY: the copy has what is still needed.
            unsafe { sys::replace(at, BYTES, own) }
        });
    if replaced && conn.in_window.swap(0, Ordering::AcqRel) == 1 {
        daemon::tell_end(conn.number(), conn);
    }
    if !replaced {
        tx.over = true;
        drop(tx);
        conn.breaks(fd);
    }
}

/// Waits until this end of a connection with another host sends by the kernel: the other host must have seen before that
/// it sent by the ring.
fn await_switch(conn: &Ref, fd: c_int) {
    for _ in 0..PATIENCE {
        look(conn);
        if !conn.is_matched() || conn.tx.take().is_none_or(|tx| tx.over) {
            return;
        }
        sys::nap(50);
    }
    conn.breaks(fd);
}

/// Has the peer send by the kernel, what is unread too, and takes the bells before that.
fn leave_reading(conn: &Ref, link: &Link, fd: c_int) -> Option<()> {
    let mut rx = conn.rx.take()?;
    if !rx.started || rx.over {
        rx.over = true;
        return Some(());
    }
    let dir = link.rx();
    // The sender is before its switch, or this reader goes on to the ring as far as it can.
    _ = rx.reader.step(dir).ok()?;
    dir.want_tcp(Direction::LEAVES);
    daemon::poke(conn);
    if let Some(tx) = conn.tx.take()
        && tx.sender.is_ring()
    {
        conn.bell(fd);
    }
    let mut bells = None;
    for turn in 0..PATIENCE {
        // A sender that will never switch has said so.
        bells = rx.reader.bells_to_leave(dir).ok()?.filter(|_| dir.has_left());
        if bells.is_some() {
            break;
        }
        let is_over = || sys::has(fd, libc::POLLRDHUP);
        if turn > 10 && is_over() && receiving::is_all_here(conn, link) {
            // The peer sends no more. If all of the ring was read, what is left are bells.
            bells = (rx.reader.step(dir) == Ok(Step::Empty)).then(|| sys::waiting(fd));
            break;
        }
        sys::nap(50);
    }
    let mut bells = bells?;
    // Waits of a millisecond.
    for _ in 0..PATIENCE / 20 {
        if bells == 0 {
            rx.over = true;
            return Some(());
        }
        let taken = sys::discard(fd, bells).ok()?;
        rx.reader.took(dir, taken);
        bells -= taken;
        if bells > 0 {
            _ = sys::poll(fd, libc::POLLIN, 1);
        }
    }
    None
}
