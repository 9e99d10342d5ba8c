//! Files of memory for many connections with the same other program, and the bells by which such programs wake each
//! other. Only the thread that listens to the daemon adds files.
//!
//! A sleeper in `epoll_wait` is woken by the bells of this program's sides, which are in its set; all others by their
//! sockets. A file has a bell for each side, which only its two programs have.

use crate::table::{self, CONNECTIONS, Ref};
use crate::{daemon, epoll, sys};
use libc::c_int;
use sockring::{Doors, FILE, Side, Slots};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Files at a time. Connections of more stay with TCP.
const FILES: usize = 1024;
/// Slots of a file, with that of the doors.
const PLACES_OF_FILE: usize = sockring::SLOTS + 1;
/// Naps for which an unused file waits for threads that look at files.
const TURNS: u32 = 100;

struct File {
    /// The daemon's number; 0: there is none here.
    number: AtomicU64,
    second: AtomicBool,
    base: AtomicPtr<u8>,
    /// The bell of this side, and that of the other one; -1: sockets wake it.
    own: AtomicI32,
    bell: AtomicI32,
    /// Connections here.
    count: AtomicUsize,
    /// No more come.
    is_full: AtomicBool,
    /// It is from before a fork: another process waits at the door.
    is_foreign: AtomicBool,
    /// The connections of the slots: their numbers plus one.
    conns: [AtomicU32; PLACES_OF_FILE],
    /// The slots that have one.
    used: Slots,
}

static ALL: [File; FILES] = [const {
    File {
        number: AtomicU64::new(0),
        second: AtomicBool::new(false),
        base: AtomicPtr::new(std::ptr::null_mut()),
        own: AtomicI32::new(-1),
        bell: AtomicI32::new(-1),
        count: AtomicUsize::new(0),
        is_full: AtomicBool::new(false),
        is_foreign: AtomicBool::new(false),
        conns: [const { AtomicU32::new(0) }; PLACES_OF_FILE],
        used: Slots::none(),
    }
}; FILES];
/// Files from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// For each connection: its file plus one, and its slot in the lower eight bits.
static PLACES: [AtomicU32; CONNECTIONS] = [const { AtomicU32::new(0) }; CONNECTIONS];
/// An event descriptor by which threads of this program wake each other; nobody else has it.
static WAKER: AtomicI32 = AtomicI32::new(-1);
/// How often there was one bell more to hear. 0: there is none.
static CHANGES: AtomicU32 = AtomicU32::new(0);
/// Threads that sleep, or are about to.
static SLEEPERS: AtomicUsize = AtomicUsize::new(0);
/// Threads that look at files without a connection there: as long as there are some, nothing is unmapped.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// A thread's look at files.
struct Reading;

impl Reading {
    fn begin() -> Self {
        READERS.fetch_add(1, Ordering::SeqCst);
        Self
    }

    /// Returns the files in which others may ring.
    fn doors(&self) -> impl Iterator<Item = (&'static File, Doors)> {
        let is_own =
            |file: &&File| file.count.load(Ordering::SeqCst) > 0 && !file.is_foreign.load(Ordering::Relaxed);
        files().iter().filter(is_own).filter_map(|file| Some((file, file.doors()?)))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn files() -> &'static [File] {
    &ALL[..USED.load(Ordering::Acquire)]
}

impl File {
    fn doors(&self) -> Option<Doors> {
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: it is mapped as long as this process has connections there, or the daemon may give it some.
        (!base.is_null()).then(|| unsafe { Doors::new(base) })
    }

    fn side(&self) -> Side {
        if self.second.load(Ordering::Relaxed) { Side::Second } else { Side::First }
    }

    fn other_side(&self) -> Side {
        if self.second.load(Ordering::Relaxed) { Side::First } else { Side::Second }
    }

    /// Returns whether nothing uses it any more.
    fn is_unused(&self) -> bool {
        let is_full = self.number.load(Ordering::Acquire) != 0 && self.is_full.load(Ordering::Relaxed);
        is_full && self.count.load(Ordering::SeqCst) == 0
    }
}

/// Unmaps files that nothing uses any more. For the thread that adds files.
pub fn tidy() {
    for file in files().iter().filter(|file| file.is_unused()) {
        // Whoever looked while there was a connection is soon done; who comes later does not look at this one.
        for _ in 0..TURNS {
            if READERS.load(Ordering::SeqCst) == 0 {
                break;
            }
            sys::nap(50);
        }
        if READERS.load(Ordering::SeqCst) > 0 {
            return;
        }
        let base = file.base.swap(std::ptr::null_mut(), Ordering::AcqRel);
        close(file.bell.swap(-1, Ordering::AcqRel));
        let own = file.own.swap(-1, Ordering::AcqRel);
        if own >= 0 {
            // The other side has it too, so that it would stay in the sets.
            epoll::remove_from_all(own);
            sys::close(own);
        }
        // A fork has none if the other thread was just here.
        if !base.is_null() {
            // SAFETY: no connection of this process is in it, and nobody looks at it.
            unsafe { sys::unmap(base, FILE) };
        }
        file.number.store(0, Ordering::Release);
    }
}

fn close(fd: c_int) {
    if fd >= 0 {
        sys::close(fd);
    }
}

/// Returns the file of a number that the daemon uses. Both sides of a file may be this program's.
fn find(number: u64, second: Option<bool>) -> Option<&'static File> {
    let is_it = |file: &&File| {
        number != 0
            && file.number.load(Ordering::Acquire) == number
            && second.is_none_or(|second| file.second.load(Ordering::Relaxed) == second)
    };
    files().iter().find(is_it)
}

/// Maps a new file.
pub fn open(number: u64, second: bool, descriptor: c_int) {
    let place = ALL.iter().position(|file| file.number.load(Ordering::Acquire) == 0);
    let Some((place, at)) = place.zip(sys::map(descriptor, 0, FILE, libc::MAP_SHARED)) else { return };
    let file = &ALL[place];
    file.second.store(second, Ordering::Relaxed);
    file.base.store(at, Ordering::Release);
    [&file.own, &file.bell].iter().for_each(|bell| bell.store(-1, Ordering::Relaxed));
    file.is_full.store(false, Ordering::Relaxed);
    file.is_foreign.store(false, Ordering::Relaxed);
    file.number.store(number, Ordering::Release);
    USED.fetch_max(place + 1, Ordering::AcqRel);
}

/// Takes a bell of a file, of which this program has a side.
pub fn take_bell(number: u64, second: bool, is_own: bool, descriptor: c_int) {
    let Some(file) = find(number, Some(second)) else { return };
    let bell = if is_own { &file.own } else { &file.bell };
    if bell.load(Ordering::Relaxed) >= 0 || is_own && !has_waker() {
        return;
    }
    if let Ok(descriptor) = sys::duplicate(descriptor, daemon::LEAST) {
        bell.store(descriptor, Ordering::Release);
    }
}

fn has_waker() -> bool {
    if WAKER.load(Ordering::Relaxed) < 0
        && let Ok(low) = sys::event()
    {
        WAKER.store(sys::duplicate(low, daemon::LEAST).unwrap_or(-1), Ordering::Release);
        sys::close(low);
    }
    WAKER.load(Ordering::Relaxed) >= 0
}

/// Notes that a file gets no more connections.
pub fn fill(number: u64) {
    for file in files().iter().filter(|file| file.number.load(Ordering::Acquire) == number) {
        file.is_full.store(true, Ordering::Relaxed);
    }
    tidy();
}

/// Has the daemon put no more connections into the files of this program, which a fork is about to share.
pub fn begin_anew() {
    if files().iter().any(|file| {
        file.number.load(Ordering::Acquire) != 0
            && !file.is_full.load(Ordering::Relaxed)
            && !file.is_foreign.load(Ordering::Relaxed)
    }) {
        daemon::fill();
    }
}

/// Notes that no file gets more connections.
pub fn fill_all() {
    files().iter().for_each(|file| file.is_full.store(true, Ordering::Relaxed));
    tidy();
}

/// Forgets the doors in a fork: others ring there for the parent.
pub fn forget() {
    close(WAKER.swap(-1, Ordering::AcqRel));
    CHANGES.store(0, Ordering::Relaxed);
    files().iter().for_each(|file| close(file.own.swap(-1, Ordering::AcqRel)));
    SLEEPERS.store(0, Ordering::Relaxed);
    READERS.store(0, Ordering::Relaxed);
    files().iter().for_each(|file| file.is_foreign.store(true, Ordering::Relaxed));
    fill_all();
}

/// Gives a connection a slot. Returns where its header and its rings are.
pub fn place(conn: u32, number: u64, second: bool, slot: u8) -> Option<[*const u8; 2]> {
    let file = find(number, Some(second))?;
    let places = file.doors()?.places(slot)?;
    let at = ALL.iter().position(|other| std::ptr::eq(other, file))? as u32;
    if file.count.fetch_add(1, Ordering::SeqCst) == 0 && file.own.load(Ordering::Relaxed) >= 0 {
        CHANGES.fetch_add(1, Ordering::Release);
    }
    file.conns[usize::from(slot)].store(conn + 1, Ordering::Release);
    file.used.add(slot);
    PLACES[conn as usize].store((at + 1) << 8 | u32::from(slot), Ordering::Release);
    Some(places)
}

fn place_of(conn: u32) -> Option<(&'static File, u8)> {
    let place = PLACES[conn as usize].load(Ordering::Acquire);
    Some((ALL.get((place >> 8).checked_sub(1)? as usize)?, place as u8))
}

/// Takes the slot of a connection away. Returns false if it has none.
pub fn release(conn: u32) -> bool {
    let Some((file, slot)) = place_of(conn) else { return false };
    PLACES[conn as usize].store(0, Ordering::Release);
    file.used.remove(slot);
    file.conns[usize::from(slot)].store(0, Ordering::Release);
    file.count.fetch_sub(1, Ordering::SeqCst);
    true
}

/// Returns whether a connection's peer can ring at this program's door.
pub fn hears(conn: &Ref) -> bool {
    let has_bell = |file: &File| file.own.load(Ordering::Relaxed) >= 0;
    conn.is_alone() && place_of(conn.number()).is_some_and(|(file, _)| has_bell(file))
}

/// Rings at the door of a connection's peer. Returns false if it must be woken by its socket.
pub fn ring(conn: &Ref) -> bool {
    let Some((file, slot)) = place_of(conn.number()) else { return false };
    let Some(doors) = file.doors() else { return false };
    let bell = file.bell.load(Ordering::Acquire);
    !doors.ring(file.other_side(), slot) || bell >= 0 && sys::take_event(bell).is_ok()
}

/// Wakes the other threads of this program.
pub fn wake_others() {
    let waker = WAKER.load(Ordering::Acquire);
    if SLEEPERS.load(Ordering::SeqCst) > 0 && waker >= 0 {
        _ = sys::write(waker, &1_u64.to_ne_bytes());
    }
}

/// Returns whether somebody has rung.
pub fn have_news() -> bool {
    Reading::begin().doors().any(|(file, doors)| doors.has_news(file.side(), &file.used))
}

/// Calls `each` with the connections for which somebody has rung.
pub fn take_news(mut each: impl FnMut(&Ref)) {
    let reading = Reading::begin();
    for (file, doors) in reading.doors() {
        doors.take(file.side(), &file.used, |slot| {
            let conn = file.conns[usize::from(slot)].load(Ordering::Acquire);
            conn.checked_sub(1).and_then(table::by_number).iter().for_each(&mut each);
        });
    }
}

/// Notes that this thread is about to sleep. Returns false if somebody has rung.
pub fn sleep() -> bool {
    SLEEPERS.fetch_add(1, Ordering::SeqCst);
    Reading::begin().doors().fold(true, |quiet, (file, doors)| doors.sleep(file.side(), &file.used) && quiet)
}

/// Notes that this thread does not sleep.
pub fn wake_up() {
    let is_last = SLEEPERS.fetch_sub(1, Ordering::SeqCst) == 1;
    let reading = Reading::begin();
    for (file, doors) in reading.doors() {
        match is_last {
            true => doors.wake(file.side()),
            // Who rang has woken all, and others may have gone to sleep again.
            false => _ = doors.sleep(file.side(), &file.used),
        }
    }
}

/// Returns how often there was one bell more to hear. 0: there is none.
pub fn changes() -> u32 {
    CHANGES.load(Ordering::Acquire)
}

/// Has `add` put the bells of this program's sides, and what its own threads wake each other by, into a set: with the
/// events to wait for. Returns whether all are there.
pub fn put_bells(mut add: impl FnMut(c_int, c_int) -> bool) -> bool {
    let waker = WAKER.load(Ordering::Acquire);
    let own = |file: &File| file.own.load(Ordering::Acquire);
    waker >= 0
        && add(waker, libc::EPOLLIN)
        && Reading::begin().doors().all(|(file, _)| own(file) < 0 || add(own(file), libc::EPOLLOUT))
}

fn own_descriptors() -> impl Iterator<Item = &'static AtomicI32> {
    files().iter().flat_map(|file| [&file.own, &file.bell]).chain([&WAKER])
}

/// Returns the lowest of the library's descriptors here from a number on.
pub fn next_own(from: c_int) -> Option<c_int> {
    own_descriptors().map(|own| own.load(Ordering::Relaxed)).filter(|fd| *fd >= from).min()
}

/// Frees a number that a doorbell has.
pub fn move_from(fd: c_int) {
    for own in own_descriptors().filter(|own| own.load(Ordering::Relaxed) == fd) {
        epoll::remove_from_all(fd);
        own.store(sys::duplicate(fd, daemon::LEAST).unwrap_or(-1), Ordering::Release);
        CHANGES.fetch_add(1, Ordering::Release);
    }
}
