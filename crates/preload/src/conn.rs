//! A connection: what the library knows of a socket.

use crate::lock::Lock;
use crate::{daemon, settings, sys, table};
use libc::c_int;
use sockring::{Direction, Link, Reader, Sender, Side};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Nothing was offered.
pub const FRESH: u32 = 0;
/// The daemon has it, and has found no other end yet.
pub const OFFERED: u32 = 1;
/// There is memory.
pub const MATCHED: u32 = 2;
/// It stays with TCP for good.
pub const TCP: u32 = 3;
/// The peer broke the protocol.
pub const BROKEN: u32 = 4;

/// The calls after which a connection is offered. If the counts don't agree, as when another thread is in a call, it is
/// tried again after twice as many.
const OFFER_AT: u32 = 4;
/// The calls after which it is tried no more.
const LAST: u32 = 1 << 20;

/// Milliseconds for which a connection's sends may wait in all for acknowledgements of bells, which a receiver may put
/// off for 40.
const DELAYS: u32 = 100;
/// Bytes of a socket's buffer that has room for as many bells as a receiver may leave without an acknowledgement.
const BELLS: c_int = 256 << 10;

/// The reader's side of a connection.
#[derive(Clone, Copy, Default)]
pub struct Rx {
    pub reader: Reader,
    /// Whether the reader follows switches.
    pub started: bool,
    /// Whether it is plain TCP for good.
    pub over: bool,
    /// The epoch that the other host was told.
    pub told: u32,
    /// Waits that are not to spin, and how many come after the next spin in vain.
    pub skip: u32,
    pub penalty: u32,
    /// The same for waits that are not to give the CPU to a peer on it.
    pub stay: u32,
    pub loss: u32,
}

/// The sender's side.
#[derive(Clone, Copy, Default)]
pub struct Tx {
    pub sender: Sender,
    pub over: bool,
    /// When it was looked last whether the peer is still there.
    pub looked: u64,
    /// When to find out again whether a peer that has sent its last is gone.
    pub probes: u64,
    /// Calls, for the mode that switches all the time.
    pub calls: u32,
    /// Short messages in a row, each after an answer of the peer's.
    pub turns: u32,
}

#[repr(C, align(64))]
pub struct Conn {
    pub next: AtomicU32,
    /// Processes that have it.
    pub processes: AtomicU32,
    pub generation: AtomicU32,
    pub state: AtomicU32,
    /// Calls so far, and what they moved: as long as nothing was offered.
    calls: AtomicU32,
    sent: AtomicU64,
    received: AtomicU64,
    /// Calls in progress that go straight to the kernel.
    pub readers: AtomicU32,
    pub senders: AtomicU32,
    pub pair: AtomicU64,
    second: AtomicU32,
    /// If the other end is on another host: bytes that the program has sent since it received something.
    pub unanswered: AtomicU64,
    /// Whether its memory is of a window, where others get it once the daemon thinks that this program is gone.
    pub in_window: AtomicU32,
    /// If the other end is on another host: descriptors, the numbers plus one. The first is the bell of the daemon,
    /// which carries the bytes. The others are sets of one bell each, which the daemon rings: for anything, and for
    /// room alone, for a thread that waits for that while another reads.
    bell: AtomicI32,
    wake: AtomicI32,
    room: AtomicI32,
    /// The bells in these sets, which would not have them any more once the daemon has closed its copies.
    kept: [AtomicI32; 2],
    /// An error that the kernel told this library, and that the program is to hear.
    pub error: AtomicI32,
    /// Milliseconds that sends have waited for room for a bell.
    delayed: AtomicU32,
    /// Whether the peer sends no more.
    pub fin: AtomicU32,
    /// Whether the program sends no more.
    pub shut: AtomicU32,
    pub nonblocking: AtomicU32,
    /// Options as the program set them, while this library needs others.
    pub cork: AtomicU32,
    pub nodelay: AtomicU32,
    pub quick: AtomicU32,
    /// Whether the program waits for room.
    pub waits_out: AtomicU32,
    /// The set of `epoll` that was told last of it, plus one.
    pub epoll: AtomicU32,
    /// The descriptor by which it is there.
    pub epoll_fd: AtomicI32,
    /// Whether it is in several sets, so that its sockets must wake them.
    pub is_shared: AtomicU32,
    /// When the peer must have returned to TCP: 0 if it need not, [`leaving::UNSEEN`] as long as it is quiet.
    pub returns: AtomicU64,
    /// The peer's position in its ring, as it was seen last while it had to return.
    pub seen: AtomicU64,
    pub rx: Lock<Rx>,
    pub tx: Lock<Tx>,
}

impl Conn {
    /// Makes it new.
    ///
    /// # Safety
    /// Nobody has it.
    pub unsafe fn renew(&self) {
        for word in [&self.state, &self.calls, &self.readers, &self.senders, &self.fin, &self.shut] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.nonblocking, &self.cork, &self.nodelay, &self.quick, &self.waits_out, &self.epoll]
        {
            word.store(0, Ordering::Relaxed);
        }
        for word in self.events_of().into_iter().chain([&self.error]) {
            word.store(0, Ordering::Relaxed);
        }
        self.in_window.store(0, Ordering::Relaxed);
        self.delayed.store(0, Ordering::Relaxed);
        self.is_shared.store(0, Ordering::Relaxed);
        for word in [&self.sent, &self.received, &self.pair, &self.returns, &self.seen, &self.unanswered] {
            word.store(0, Ordering::Relaxed);
        }
        // SAFETY: the caller promises that nobody has it.
        unsafe {
            self.rx.renew(Rx::default());
            self.tx.renew(Tx::default());
        }
    }

    pub fn state(&self) -> u32 {
        self.state.load(Ordering::SeqCst)
    }

    /// Changes the state if it is `from`.
    pub fn moves(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    const fn events_of(&self) -> [&AtomicI32; 5] {
        [&self.bell, &self.room, &self.kept[0], &self.kept[1], &self.wake]
    }

    /// Notes the descriptors of a connection with another host: the bell of the daemon, the sets, and the bells in
    /// these.
    pub fn set_events(&self, [bell, wake, room, first, second]: [c_int; 5]) {
        for (event, to) in self.events_of().into_iter().zip([bell, room, first, second, wake]) {
            event.store(to + 1, Ordering::Release);
        }
    }

    /// Returns all of them; -1: none.
    pub fn events(&self) -> [c_int; 5] {
        self.events_of().map(|event| event.load(Ordering::Acquire) - 1)
    }

    /// Returns what wakes a thread that waits for room, if the other end is on another host.
    pub fn room_waker(&self) -> Option<c_int> {
        self.is_carried().then(|| self.room.load(Ordering::Acquire) - 1)
    }

    /// Returns what wakes this program, if the other end is on another host.
    #[inline]
    pub fn waker(&self) -> Option<c_int> {
        Some(self.wake.load(Ordering::Acquire) - 1).filter(|wake| *wake >= 0)
    }

    /// Returns whether the daemon carries its bytes to another host.
    #[inline]
    pub fn is_carried(&self) -> bool {
        self.waker().is_some()
    }

    /// Tells the daemon that there is something to carry.
    pub fn tell(&self) {
        _ = sys::take_event(self.bell.load(Ordering::Relaxed) - 1);
    }

    /// Gives one of the event descriptors another number.
    pub fn move_event(&self, from: c_int, to: c_int) {
        for event in self.events_of() {
            _ = event.compare_exchange(from + 1, to + 1, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    pub fn is_matched(&self) -> bool {
        self.state() == MATCHED
    }

    /// Notes the pair. Returns false if nobody waits for it any more.
    pub fn set_matched(&self, pair: u64, second: bool) -> bool {
        self.pair.store(pair, Ordering::Relaxed);
        self.second.store(second.into(), Ordering::Relaxed);
        self.moves(OFFERED, MATCHED)
    }

    pub fn take_error(&self) -> Option<c_int> {
        if self.error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(self.error.swap(0, Ordering::AcqRel)).filter(|error| *error != 0)
    }

    pub fn set_error(&self, error: c_int) {
        self.error.store(error, Ordering::Release);
    }
}

impl table::Ref {
    /// Returns the memory, if it is mapped here.
    pub fn link(&self) -> Option<Link> {
        let at = self.mapped();
        let side = if self.second.load(Ordering::Relaxed) == 1 { Side::Second } else { Side::First };
        // SAFETY: it is mapped as long as this process has the connection, which the reference keeps.
        (!at.is_null()).then(|| unsafe { Link::apart(at, self.rings(), side) })
    }

    /// Has the connection stay with TCP, if nothing was matched yet. Returns whether it does.
    pub fn ends_offer(&self) -> bool {
        loop {
            match self.state() {
                FRESH if self.moves(FRESH, TCP) => return true,
                OFFERED if self.moves(OFFERED, TCP) => {
                    daemon::cancel(self);
                    return true;
                }
                FRESH | OFFERED => {}
                state => return state == TCP,
            }
        }
    }

    /// Does what [`Self::ends_offer`] does, for a descriptor that can't be followed: a matched connection returns to
    /// TCP when it can.
    pub fn stays_tcp(&self) {
        if !self.ends_offer()
            && let Some(link) = self.link()
        {
            link.tx().want_tcp(Direction::RETURNS);
            link.rx().want_tcp(Direction::RETURNS);
        }
    }

    /// Counts a call that went to the kernel, and offers the connection when it is worth it.
    pub fn count(&self, fd: c_int, sent: usize, received: usize) {
        if self.state() != FRESH {
            return;
        }
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
        self.received.fetch_add(received as u64, Ordering::Relaxed);
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if settings::get().eager {
            return self.begins(fd);
        }
        let least = if settings::get().soon { 1 } else { OFFER_AT };
        if calls >= least && calls.is_power_of_two() && self.agrees(fd) {
            self.offer(fd);
        }
        if calls > LAST {
            _ = self.moves(FRESH, TCP);
        }
    }

    /// Returns whether the kernel counts what this library counts: then nobody uses the socket past it.
    fn agrees(&self, fd: c_int) -> bool {
        if !self.is_alone() || !settings::get().allows(fd) {
            return false;
        }
        let Some(info) = sys::TcpInfo::of(fd).filter(sys::TcpInfo::is_established) else { return false };
        info.sent() == self.sent.load(Ordering::Relaxed)
            && sys::taken(fd) == Some(self.received.load(Ordering::Relaxed))
    }

    fn offer(&self, fd: c_int) {
        if self.moves(FRESH, OFFERED) && !daemon::offer(self, fd) {
            _ = self.moves(OFFERED, FRESH);
        }
    }

    /// Offers a new connection and waits a while for the other end, in the mode for tests.
    pub fn begins(&self, fd: c_int) {
        let settings = settings::get();
        let established = || sys::TcpInfo::of(fd).is_some_and(|info| info.is_established());
        if !settings.eager || self.state() != FRESH || !settings.allows(fd) || !established() {
            return;
        }
        for turn in 0..20_000 {
            match self.state() {
                // Another thread may be just connecting to the daemon.
                FRESH if turn < 200 => self.offer(fd),
                OFFERED => {}
                _ => return self.starts(fd),
            }
            sys::nap(100);
        }
    }

    fn starts(&self, fd: c_int) {
        let (Some(link), Some(mut rx)) = (self.link(), self.rx.take()) else { return };
        self.start_reader(&link, &mut rx, fd);
    }

    /// Begins to follow the sender's switches, if nobody reads from the kernel now.
    pub fn start_reader(&self, link: &Link, rx: &mut Rx, fd: c_int) {
        if rx.started || rx.over || self.readers.load(Ordering::SeqCst) != 0 {
            return;
        }
        if let Some(taken) = sys::taken(fd) {
            rx.started = true;
            rx.reader.start(link.rx(), taken);
            if self.is_carried() {
                self.tell();
            }
        }
    }

    /// Ends the connection, whose peer broke the protocol.
    pub fn breaks(&self, fd: c_int) {
        if self.moves(MATCHED, BROKEN) {
            self.set_error(libc::ECONNRESET);
            sys::reset(fd);
        }
    }

    /// Wakes the peer, who sleeps on the kernel's socket.
    pub fn bell(&self, fd: c_int) {
        if self.is_carried() {
            return self.tell();
        }
        loop {
            // SAFETY: the byte is there.
            match unsafe { sys::send(fd, b"!".as_ptr(), 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } {
                Ok(_) | Err(libc::EPIPE) => return,
                // The bells that fill the buffer will wake the peer, unless it took them and has not acknowledged them.
                Err(libc::EAGAIN) if self.is_behind() && self.makes_room(fd) => {}
                Err(libc::EAGAIN) => return,
                Err(error) => return self.set_error(error),
            }
        }
    }

    /// Makes room for a bell: the first time by a larger buffer, then by waiting for a millisecond. A connection that
    /// has waited for [`DELAYS`] returns to TCP, which needs no bells. Returns whether it is worth another attempt.
    fn makes_room(&self, fd: c_int) -> bool {
        let waited = self.delayed.fetch_add(1, Ordering::Relaxed);
        match waited {
            0 => _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, BELLS),
            1..DELAYS => _ = sys::poll(fd, libc::POLLOUT, 1),
            _ => self.stays_tcp(),
        }
        waited < DELAYS
    }

    /// Returns whether the peer has not read all of the ring.
    fn is_behind(&self) -> bool {
        self.link().is_some_and(|link| {
            let (wr, rd) = link.tx().positions();
            wr != rd
        })
    }
}
