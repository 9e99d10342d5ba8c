//! The bond between two queue pairs whose libraries share memory: one does what the other's device would do.
//!
//! The device can end it at any time. Memory that is taken away is taken away once nobody is at work with it. The
//! library notes what it does before it does it: the device can make good for one that died in the middle.

use crate::point::{Point, point};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_after_exchange};
use crate::{Hold, Memory};

/// Both sides write to a cache line of their own.
#[repr(C, align(64))]
struct Page {
    /// The devices': [`OPEN`], [`CLOSED`] or [`GONE`].
    closed: AtomicU32,
    _device: [u32; 15],
    /// The library's: odd while it is at work. What it notes below counts for the turn that is noted with it.
    turns: AtomicU32,
    _rest: u32,
    messages: AtomicU64,
    bytes: AtomicU64,
    /// The receive that it is at work with: turn and number, and identifier.
    receive: AtomicU64,
    id: AtomicU64,
    /// The place in the peer's completion queue, and in its own, that it tries to get or has: turn and number.
    place: AtomicU64,
    own_place: AtomicU64,
    _library: u64,
}

const OPEN: u32 = 0;
/// It is over.
const CLOSED: u32 = 1;
/// The library's process is gone, too.
const GONE: u32 = 2;

const _: () = assert!(size_of::<Page>() == 128);

/// A bond, any end.
#[derive(Debug)]
pub struct Bond(Memory);

impl Bond {
    /// Bytes of its memory.
    pub const BYTES: usize = size_of::<Page>();

    /// A bond in memory of that size.
    ///
    /// # Panics
    /// Where it is shorter.
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        assert!(memory.len() >= Self::BYTES, "no room for a bond");
        Self(memory)
    }

    fn page(&self) -> &Page {
        // SAFETY: at the beginning of memory that `self` keeps mapped, and within (`at`); it consists of atomics.
        unsafe { self.0.at::<Page>(0).as_ref() }
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.page().closed.load(Ordering::Relaxed) != OPEN
    }

    /// The library's: begins to work. False where it may not; else [`Self::leave`] follows.
    ///
    /// The device changes first (closes the bond, takes a region out of the table) and looks for turns then; here the
    /// turn comes first, then the looks. A fence is between the two on both sides, so that one of them sees what the
    /// other did.
    #[must_use]
    pub fn enter(&self) -> bool {
        let page = self.page();
        let turn = page.turns.load(Ordering::Relaxed);
        page.turns.swap(turn | 1, Ordering::SeqCst);
        // For the look at `closed`, the exchange would do. What follows reads tables by weaker loads.
        fence_after_exchange();
        if page.closed.load(Ordering::SeqCst) == OPEN {
            point(Point::Entered);
            return true;
        }
        self.leave();
        false
    }

    /// The library's: its work is done.
    pub fn leave(&self) {
        let page = self.page();
        let turn = page.turns.load(Ordering::Relaxed);
        // Release: who sees that we are done finds all that we did done.
        page.turns.store((turn | 1).wrapping_add(1), Ordering::Release);
        point(Point::Left);
    }

    /// The library's: counts a message.
    pub fn count(&self, bytes: u64) {
        let page = self.page();
        let add = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&page.messages, 1);
        add(&page.bytes, bytes);
    }

    /// With the turn that it is noted in.
    #[inline]
    fn note(&self, field: &AtomicU64, hold: Hold) {
        let turn = self.page().turns.load(Ordering::Relaxed);
        let (turn, number) = match hold {
            Hold::Tries(number) => (turn, number),
            // Turns in which something is noted are odd, and nothing is noted in turn 0.
            Hold::Has(number) => (turn.wrapping_add(1), number),
        };
        // Release: what was done with the place noted before, and the identifier of a receive, come before the note.
        field.store(u64::from(turn) << 32 | u64::from(number), Ordering::Release);
    }

    /// What was noted in this turn, of one who is at work.
    fn noted(&self, field: &AtomicU64) -> Option<Hold> {
        let (turn, noted) = (self.turn()?, field.load(Ordering::Acquire));
        let (noted_in, number) = ((noted >> 32) as u32, noted as u32);
        match noted_in {
            _ if noted_in == turn => Some(Hold::Tries(number)),
            _ if noted_in == turn.wrapping_add(1) => Some(Hold::Has(number)),
            _ => None,
        }
    }

    /// The library's: it is about to take the receive with this number and identifier.
    pub fn hold(&self, number: u32, id: u64) {
        self.page().id.store(id, Ordering::Relaxed);
        self.note(&self.page().receive, Hold::Tries(number));
    }

    /// The library's: what it does about a place in its peer's completion queue.
    #[inline]
    pub fn note_place(&self, place: Hold) {
        self.note(&self.page().place, place);
    }

    /// The library's: the same, in its own completion queue.
    #[inline]
    pub fn note_own_place(&self, place: Hold) {
        self.note(&self.page().own_place, place);
    }

    /// The device's: number and identifier of the receive that the library is at work with.
    #[must_use]
    pub fn held(&self) -> Option<(u32, u64)> {
        let Hold::Tries(number) = self.noted(&self.page().receive)? else { return None };
        Some((number, self.page().id.load(Ordering::Relaxed)))
    }

    /// The device's: the place in the peer's completion queue that the library tries to get, or has, at this moment.
    #[must_use]
    pub fn place(&self) -> Option<Hold> {
        self.noted(&self.page().place)
    }

    /// The device's: the same, in the library's own completion queue.
    #[must_use]
    pub fn own_place(&self) -> Option<Hold> {
        self.noted(&self.page().own_place)
    }

    /// Messages and bytes that were counted.
    #[must_use]
    pub fn counted(&self) -> (u64, u64) {
        (self.page().messages.load(Ordering::Relaxed), self.page().bytes.load(Ordering::Relaxed))
    }

    /// A device's: ends it.
    pub fn close(&self) {
        let _ = self.page().closed.compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The device's of the library: its process is gone, and nobody is at work any more, whatever it looks like.
    pub fn end(&self) {
        self.page().closed.store(GONE, Ordering::SeqCst);
    }

    /// Whether the library's process is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.page().closed.load(Ordering::SeqCst) == GONE
    }

    /// A device's: the turn in which the library is at work, if it is. Who begins later sees what was changed before.
    #[must_use]
    pub fn turn(&self) -> Option<u32> {
        // Of the pair that `enter` tells of.
        fence();
        Some(self.page().turns.load(Ordering::Acquire)).filter(|turn| turn % 2 == 1)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn ends() -> (Bond, Bond) {
        let (memory, file) = Memory::create("test", Bond::BYTES).unwrap();
        (Bond::new(memory), Bond::new(Memory::open(&file, Bond::BYTES).unwrap()))
    }

    #[test]
    fn nobody_is_at_work_once_it_is_over() {
        let (device, library) = ends();
        let gone = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while library.enter() {
                    assert!(!gone.load(Ordering::Relaxed));
                    library.count(3);
                    library.leave();
                }
            });
            while device.counted().0 < 1000 {
                std::thread::yield_now();
            }
            device.close();
            while device.turn().is_some() {
                std::thread::yield_now();
            }
            gone.store(true, Ordering::Relaxed);
        });
        let (messages, bytes) = device.counted();
        assert_eq!(bytes, messages * 3);
        assert!(device.is_closed() && !library.enter());
    }

    #[test]
    fn what_is_noted_counts_for_its_turn() {
        let (device, library) = ends();
        for turn in 0..3 {
            assert!(library.enter());
            assert_eq!((device.held(), device.place(), device.own_place()), (None, None, None));
            library.hold(0, turn);
            library.note_place(Hold::Tries(7));
            library.note_own_place(Hold::Has(0));
            assert_eq!(
                (device.held(), device.place(), device.own_place()),
                (Some((0, turn)), Some(Hold::Tries(7)), Some(Hold::Has(0)))
            );
            library.leave();
            assert_eq!((device.turn(), device.held(), device.place()), (None, None, None));
        }
    }

    #[test]
    fn who_is_gone_stays_gone() {
        let (device, library) = ends();
        assert!(library.enter());
        device.close();
        assert!(!device.is_gone());
        device.end();
        device.close();
        assert!(library.is_gone() && library.is_closed());
    }
}
