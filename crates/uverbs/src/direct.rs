//! The direct session of two queue pairs whose libraries share memory: one library does the work of the other's device.
//!
//! The device can end it at any time. Memory is withdrawn once nobody works with it. The library notes each step
//! before it takes it, so the device can complete the work of one that died in the middle.

use crate::point::{Point, point};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_after_exchange};
use crate::{Hold, Memory};

/// The memory of a session. Each side writes to its own cache line.
#[repr(C, align(64))]
struct Page {
    /// Written by devices: [`OPEN`], [`CLOSED`] or [`GONE`].
    closed: AtomicU32,
    _device: [u32; 15],
    /// Written by the library: odd while it works. Each note below is valid for the turn that is stored with it.
    turns: AtomicU32,
    _rest: u32,
    messages: AtomicU64,
    bytes: AtomicU64,
    /// The receive that the library works with: turn and number, and identifier.
    receive: AtomicU64,
    id: AtomicU64,
    /// The places that the library tries to get or has, in the peer's completion queue and in its own: turn and number.
    place: AtomicU64,
    own_place: AtomicU64,
    _library: u64,
}

const OPEN: u32 = 0;
/// A device has ended the session.
const CLOSED: u32 = 1;
/// A device has ended the session, and the library's process has ended, too.
const GONE: u32 = 2;

const _: () = assert!(size_of::<Page>() == 128);

/// A session, any end.
#[derive(Debug)]
pub struct DirectSession(Memory);

impl DirectSession {
    pub const BYTES: usize = size_of::<Page>();

    /// Returns the session in this memory.
    ///
    /// # Panics
    /// If the memory is shorter than [`Self::BYTES`].
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        assert!(memory.len() >= Self::BYTES, "no room for a direct session");
        Self(memory)
    }

    fn page(&self) -> &Page {
        // SAFETY: at the start of memory that `self` keeps mapped, and within it (`at`); it consists of atomics.
        unsafe { self.0.at::<Page>(0).as_ref() }
    }

    /// Is true once a device has ended the session.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.page().closed.load(Ordering::Relaxed) != OPEN
    }

    /// Begins a turn of the library. Returns false if it may not work any more; otherwise [`Self::leave`] must follow.
    ///
    /// The device first makes its change (closes the session, removes a region from the table) and then reads turns.
    /// Here the turn comes first, then the reads. A fence separates the two on both sides, so at least one side sees
    /// what the other did.
    #[must_use]
    pub fn enter(&self) -> bool {
        let page = self.page();
        let turn = page.turns.load(Ordering::Relaxed);
        page.turns.swap(turn | 1, Ordering::SeqCst);
        // To read `closed`, the exchange would suffice, but the following reads of tables use weaker loads.
        fence_after_exchange();
        if page.closed.load(Ordering::SeqCst) == OPEN {
            point(Point::Entered);
            return true;
        }
        self.leave();
        false
    }

    /// Ends a turn of the library.
    pub fn leave(&self) {
        let page = self.page();
        let turn = page.turns.load(Ordering::Relaxed);
        // Release: whoever sees that the turn has ended sees all its work.
        page.turns.store((turn | 1).wrapping_add(1), Ordering::Release);
        point(Point::Left);
    }

    /// Counts a message of the library.
    pub fn count(&self, bytes: u64) {
        let page = self.page();
        let add = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&page.messages, 1);
        add(&page.bytes, bytes);
    }

    /// Writes a note of the library, with the current turn.
    #[inline]
    fn note(&self, field: &AtomicU64, hold: Hold) {
        let turn = self.page().turns.load(Ordering::Relaxed);
        let (turn, number) = match hold {
            Hold::Tries(number) => (turn, number),
            // Turns with notes are odd, and nothing is noted in turn 0.
            Hold::Has(number) => (turn.wrapping_add(1), number),
        };
        // Release: the work on the previously noted place, and the identifier of a receive, come before the note.
        field.store(u64::from(turn) << 32 | u64::from(number), Ordering::Release);
    }

    /// Returns the library's note of the current turn, if the library works.
    fn noted(&self, field: &AtomicU64) -> Option<Hold> {
        let (turn, noted) = (self.turn()?, field.load(Ordering::Acquire));
        let (noted_in, number) = ((noted >> 32) as u32, noted as u32);
        match noted_in {
            _ if noted_in == turn => Some(Hold::Tries(number)),
            _ if noted_in == turn.wrapping_add(1) => Some(Hold::Has(number)),
            _ => None,
        }
    }

    /// Notes, for the library, that it will take the receive with this number and identifier.
    pub fn hold(&self, number: u32, id: u64) {
        self.page().id.store(id, Ordering::Relaxed);
        self.note(&self.page().receive, Hold::Tries(number));
    }

    /// Notes, for the library, what it does with a place in its peer's completion queue.
    #[inline]
    pub fn note_place(&self, place: Hold) {
        self.note(&self.page().place, place);
    }

    /// Notes, for the library, what it does with a place in its own completion queue.
    #[inline]
    pub fn note_own_place(&self, place: Hold) {
        self.note(&self.page().own_place, place);
    }

    /// Returns, for the device, number and identifier of the receive that the library works with.
    #[must_use]
    pub fn held(&self) -> Option<(u32, u64)> {
        let Hold::Tries(number) = self.noted(&self.page().receive)? else { return None };
        Some((number, self.page().id.load(Ordering::Relaxed)))
    }

    /// Returns, for the device, the place in the peer's completion queue that the library tries to get or has.
    #[must_use]
    pub fn place(&self) -> Option<Hold> {
        self.noted(&self.page().place)
    }

    /// Returns, for the device, the place in the library's own completion queue that the library tries to get or has.
    #[must_use]
    pub fn own_place(&self) -> Option<Hold> {
        self.noted(&self.page().own_place)
    }

    /// Returns the numbers of messages and bytes that the library counted.
    #[must_use]
    pub fn counted(&self) -> (u64, u64) {
        (self.page().messages.load(Ordering::Relaxed), self.page().bytes.load(Ordering::Relaxed))
    }

    /// Ends the session, for either device.
    pub fn close(&self) {
        let _ = self.page().closed.compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Notes, for the library's device, that the library's process has ended: nobody works any more, whatever the turn
    /// says.
    pub fn end(&self) {
        self.page().closed.store(GONE, Ordering::SeqCst);
    }

    /// Is true once the library's process has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.page().closed.load(Ordering::SeqCst) == GONE
    }

    /// Returns, for a device, the turn in which the library works, if it does. A library that begins a turn later sees
    /// the device's earlier changes.
    #[must_use]
    pub fn turn(&self) -> Option<u32> {
        // Pairs with the fence in `enter`.
        fence();
        Some(self.page().turns.load(Ordering::Acquire)).filter(|turn| turn % 2 == 1)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn ends() -> (DirectSession, DirectSession) {
        let (memory, file) = Memory::create("test", DirectSession::BYTES).unwrap();
        (DirectSession::new(memory), DirectSession::new(Memory::open(&file, DirectSession::BYTES).unwrap()))
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
