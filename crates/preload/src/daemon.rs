//! The connection to the daemon, and the thread that listens to it. Signals don't reach that thread, and the program's
//! calls don't wait for it.

use crate::conn::{self, MATCHED, OFFERED};
use crate::table::{self, Ref};
use crate::{doors, leaving, settings, sys};
use libc::{c_int, c_void};
use sockring::{BYTES, HEADER, MESSAGE_LEN, Message};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// The library's descriptors have numbers from here on, where programs seldom close what they did not open.
pub const LEAST: c_int = 600;
/// Nanoseconds until it is tried again to reach a daemon.
const AGAIN: u64 = 1_000_000_000;
/// The stack of the thread.
const STACK: usize = 128 << 10;

static SOCKET: AtomicI32 = AtomicI32::new(-1);
static TRIED: AtomicU64 = AtomicU64::new(0);
static CONNECTING: AtomicBool = AtomicBool::new(false);
/// Whether this process is a fork that has not told the daemon of its connections.
pub static FORKED: AtomicBool = AtomicBool::new(false);
static RUNS: AtomicBool = AtomicBool::new(false);

/// The library's event descriptors, a bit each.
static OWN: [AtomicU64; 2048] = [const { AtomicU64::new(0) }; 2048];

fn is_event(fd: c_int) -> bool {
    OWN.get(fd as usize / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (fd % 64) & 1 == 1)
}

/// Returns the lowest event descriptor from a number on.
fn next_event(from: c_int) -> Option<c_int> {
    let begin = from as usize / 64;
    OWN.iter().enumerate().skip(begin).find_map(|(at, word)| {
        let before = if at == begin { (1 << (from % 64)) - 1 } else { 0 };
        let there = word.load(Ordering::Relaxed) & !before;
        (there != 0).then(|| at as c_int * 64 + there.trailing_zeros() as c_int)
    })
}

/// Returns whether a descriptor is the library's own.
pub fn is_own(fd: c_int) -> bool {
    fd >= LEAST && (fd == SOCKET.load(Ordering::Relaxed) || is_event(fd) || doors::next_own(fd) == Some(fd))
}

/// Returns the lowest of the library's descriptors from a number on.
pub fn next_own(from: c_int) -> Option<c_int> {
    let socket = Some(SOCKET.load(Ordering::Relaxed)).filter(|fd| *fd >= from);
    socket.into_iter().chain(doors::next_own(from)).chain(next_event(from)).min()
}

fn token(conn: &Ref) -> u64 {
    u64::from(conn.generation.load(Ordering::Acquire)) << 32 | u64::from(conn.number())
}

fn by_token(token: u64) -> Option<Ref> {
    table::by_number(token as u32).filter(|found| self::token(found) == token)
}

fn send(message: Message, descriptor: Option<c_int>) -> bool {
    let socket = SOCKET.load(Ordering::Acquire);
    socket >= 0 && sys::send_message(socket, &message.bytes(), descriptor).is_ok()
}

/// Offers a connection to the daemon. Returns whether it was told.
pub fn offer(conn: &Ref, fd: c_int) -> bool {
    connect() && start() && offer_again(conn, fd)
}

fn offer_again(conn: &Ref, fd: c_int) -> bool {
    let carries = settings::get().carries;
    send(Message::Offer { token: token(conn), doors: true, carries, relays: false }, Some(fd))
}

/// Takes an offer back.
pub fn cancel(conn: &Ref) {
    send(Message::Cancel { token: token(conn) }, None);
}

/// Has the peer look at its directions.
pub fn poke(conn: &Ref) {
    connect();
    send(Message::Poke { pair: conn.pair.load(Ordering::Relaxed) }, None);
}

/// Has no more connections put into the files that this program has.
pub fn fill() {
    send(Message::Full { file: 0 }, None);
}

/// Tells that a connection ended, to be called when nobody has it any more.
pub fn tell_end(number: u32, conn: &conn::Conn) {
    let token = u64::from(conn.generation.load(Ordering::Acquire)) << 32 | u64::from(number);
    match conn.state() {
        OFFERED => _ = send(Message::Cancel { token }, None),
        MATCHED | conn::BROKEN => {
            _ = send(Message::Gone { token, pair: conn.pair.load(Ordering::Relaxed) }, None)
        }
        _ => {}
    }
}

/// Connects to the daemon, if that was not tried in vain a moment ago.
fn connect() -> bool {
    if SOCKET.load(Ordering::Acquire) >= 0 {
        return true;
    }
    let now = sys::now(libc::CLOCK_MONOTONIC_COARSE);
    if now < TRIED.load(Ordering::Relaxed) || CONNECTING.swap(true, Ordering::AcqRel) {
        return false;
    }
    let made = try_connect();
    match made {
        Some(fd) => SOCKET.store(fd, Ordering::Release),
        None => TRIED.store(now + AGAIN, Ordering::Relaxed),
    }
    CONNECTING.store(false, Ordering::Release);
    made.is_some()
}

fn try_connect() -> Option<c_int> {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    for (to, from) in address.sun_path.iter_mut().zip(settings::get().path) {
        *to = from as libc::c_char;
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let fd = sys::socket(libc::AF_UNIX, kind).ok()?;
    let connected = sys::connect(fd, &address);
    let high = connected.and_then(|_| sys::duplicate(fd, LEAST));
    sys::close(fd);
    high.ok()
}

/// Starts the thread, if this process has none yet.
fn start() -> bool {
    if RUNS.swap(true, Ordering::AcqRel) {
        return true;
    }
    // SAFETY: the attributes and sets are initialised before they are used; the thread needs nothing of this one.
    let started = unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let mut thread = std::mem::zeroed();
        let failed = libc::pthread_create(&mut thread, &attributes, run, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        libc::pthread_attr_destroy(&mut attributes);
        failed == 0
    };
    if !started {
        RUNS.store(false, Ordering::Release);
    }
    started
}

/// Forgets the daemon in a fork, which has no thread. A fork that uses connections connects anew.
pub fn forget() {
    RUNS.store(false, Ordering::Release);
    CONNECTING.store(false, Ordering::Release);
    TRIED.store(0, Ordering::Relaxed);
    let socket = SOCKET.swap(-1, Ordering::AcqRel);
    if socket >= 0 {
        sys::close(socket);
    }
    doors::forget();
}

/// Tells the daemon of the connections that a fork has inherited, so that their peers reach it.
pub fn adopt_all() {
    if !connect() || !start() {
        return;
    }
    table::each_conn(|conn| {
        if conn.is_matched() {
            let pair = conn.pair.load(Ordering::Relaxed);
            send(Message::Adopt { token: token(conn), pair }, None);
        }
    });
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    loop {
        let socket = SOCKET.load(Ordering::Acquire);
        if socket < 0 {
            _ = leaving::work();
            sys::nap(100_000);
            if connect() {
                adopt_all();
            }
            continue;
        }
        match sys::poll(socket, libc::POLLIN, leaving::work()) {
            Ok(0) | Err(libc::EINTR) => continue,
            _ => {}
        }
        let mut bytes = [0; MESSAGE_LEN];
        match sys::receive_message(socket, &mut bytes, false) {
            Ok((len @ 1.., descriptors)) => {
                if let Some(message) = Message::read(&bytes[..len]) {
                    handle(message, descriptors);
                }
                descriptors.into_iter().flatten().for_each(sys::close);
            }
            Err(libc::EAGAIN | libc::EINTR) => {}
            _ => {
                // The daemon is gone, or somebody closed the descriptor.
                if SOCKET.compare_exchange(socket, -1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    sys::close(socket);
                }
                table::each_conn(|conn| _ = conn.moves(OFFERED, conn::FRESH));
                leaving::return_all();
                doors::fill_all();
            }
        }
    }
}

/// Takes a connection whose other end is on another host.
fn take_carried(conn: &Ref, offset: u64, descriptors: [Option<c_int>; sys::FILES]) -> Option<()> {
    let [Some(memory), Some(bell), Some(wake), Some(room)] = descriptors else { return None };
    let at = sys::map(memory, offset, BYTES, libc::MAP_SHARED)?;
    // SAFETY: as many bytes were mapped.
    conn.set_mapped(at, unsafe { at.add(HEADER) });
    conn.in_window.store((offset != 0).into(), Ordering::Relaxed);
    let [bell, wake, room] = [bell, wake, room].map(own_duplicate);
    let set = |bell: Option<c_int>| {
        let set = sys::set_of(bell?).ok()?;
        let own = own_duplicate(set);
        sys::close(set);
        own
    };
    conn.set_events([bell, set(wake), set(room), wake, room].map(|own| own.unwrap_or(-1)));
    conn.events().iter().all(|event| *event >= 0).then_some(())
}

/// Duplicates an event descriptor to where programs seldom close what they did not open.
fn own_duplicate(event: c_int) -> Option<c_int> {
    let own = sys::duplicate(event, LEAST).ok()?;
    if own as usize >= 64 * OWN.len() {
        sys::close(own);
        return None;
    }
    OWN[own as usize / 64].fetch_or(1 << (own % 64), Ordering::AcqRel);
    Some(own)
}

/// Gives an event descriptor another number.
fn move_event(fd: c_int) {
    let new = own_duplicate(fd).unwrap_or(-1);
    OWN[fd as usize / 64].fetch_and(!(1 << (fd % 64)), Ordering::AcqRel);
    table::each_conn(|conn| conn.move_event(fd, new));
}

/// Closes the event descriptors of a connection, in this process.
pub fn close_events(conn: &conn::Conn) {
    for own in conn.events().into_iter().filter(|own| *own >= 0) {
        let bit = 1 << (own % 64);
        if OWN[own as usize / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            sys::close(own);
        }
    }
}

fn handle(message: Message, descriptors: [Option<c_int>; sys::FILES]) {
    let descriptor = descriptors[0];
    doors::tidy();
    match message {
        Message::File { file, second } => {
            descriptor.into_iter().for_each(|descriptor| doors::open(file, second, descriptor));
        }
        Message::Bell { file, second, own } => {
            descriptor.into_iter().for_each(|descriptor| doors::take_bell(file, second, own, descriptor));
        }
        Message::Full { file } => doors::fill(file),
        Message::Carried { token, pair, second, offset } => {
            let conn = by_token(token).filter(|conn| conn.state() == OFFERED);
            let is_moved = conn.as_ref().is_some_and(|conn| {
                take_carried(conn, offset, descriptors).is_some() && conn.set_matched(pair, second)
            });
            match conn.filter(|_| is_moved) {
                Some(conn) => {
                    if let Some(fd) = table::descriptor(&conn) {
                        crate::epoll::watch_all(&conn, fd);
                    }
                }
                None => {
                    send(Message::Gone { token, pair }, None);
                    by_token(token).iter().for_each(|conn| _ = conn.moves(OFFERED, conn::TCP));
                }
            }
        }
        Message::Cut { token } => by_token(token).iter().for_each(leaving::cut),
        Message::Matched { token, pair, second, offset, slot } => {
            let conn = by_token(token).filter(|conn| conn.state() == OFFERED);
            let is_moved = conn.as_ref().is_some_and(|conn| {
                let places = match slot {
                    0 => descriptor.and_then(|fd| sys::map(fd, offset, BYTES, libc::MAP_SHARED)).map(|at| {
                        // SAFETY: as many bytes were mapped.
                        [at.cast_const(), unsafe { at.add(HEADER) }.cast_const()]
                    }),
                    slot => doors::place(conn.number(), offset, second, slot),
                };
                let Some([at, rings]) = places else { return false };
                conn.set_mapped(at.cast_mut(), rings.cast_mut());
                conn.in_window.store((slot == 0 && offset != 0).into(), Ordering::Relaxed);
                conn.set_matched(pair, second)
            });
            if !is_moved {
                // Nobody waits for it any more, or it can't be used.
                send(Message::Gone { token, pair }, None);
                conn.iter().for_each(|conn| _ = conn.moves(OFFERED, conn::TCP));
            }
        }
        Message::Return { token } => {
            by_token(token).iter().for_each(|conn| leaving::must_return(conn, false))
        }
        Message::Look { token } => by_token(token).iter().for_each(leaving::look),
        Message::Again { token } => {
            let conn = by_token(token).filter(|conn| conn.state() == OFFERED);
            if let Some((conn, fd)) = conn.and_then(|conn| table::descriptor(&conn).map(|fd| (conn, fd))) {
                offer_again(&conn, fd);
            }
        }
        Message::Refused { token } => {
            by_token(token).iter().for_each(|conn| _ = conn.moves(OFFERED, conn::TCP))
        }
        _ => {}
    }
}

/// Frees a number that a descriptor of the library has.
pub fn move_from(fd: c_int) {
    doors::move_from(fd);
    if fd >= LEAST && is_event(fd) {
        move_event(fd);
    }
    if fd >= LEAST && fd == SOCKET.load(Ordering::Relaxed) {
        match sys::duplicate(fd, LEAST) {
            // The program gets the old number, which is closed by what it does.
            Ok(new) => SOCKET.store(new, Ordering::Release),
            Err(_) => SOCKET.store(-1, Ordering::Release),
        }
    }
}
