//! A file of memory for many connections between the same two programs, and the doorbells by which they wake each other.
//!
//! | page | what is there |
//! |---|---|
//! | 0 | a door for each side |
//! | 1 to [`SLOTS`] | a slot for each connection: its header, with the small rings |
//! | the rest | large rings, for each slot in turn |
//!
//! A side that sleeps says so at its door. Whoever has news for it notes the slot there, and wakes it if it sleeps. All
//! of it is the peer's to write: a side asks for news of slots that it has.

use crate::layout::{Direction, HEADER, Link, RINGS, Side};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Connections of a file. Slots are counted from 1.
pub const SLOTS: usize = 255;
/// Bytes of the slots, with the page of the doors.
const BEFORE: usize = (1 + SLOTS) * HEADER;
/// Bytes of a file of all slots. Programs map as many, also of one that is shorter.
pub const FILE: usize = file_bytes(SLOTS);

/// Returns the bytes of a file whose first slots, so many, are used.
#[must_use]
pub const fn file_bytes(slots: usize) -> usize {
    BEFORE + slots * RINGS
}

/// A bit for each slot of a file.
#[derive(Debug, Default)]
pub struct Slots([AtomicU64; 4]);

impl Slots {
    /// Makes a set of none.
    #[must_use]
    pub const fn none() -> Self {
        Self([const { AtomicU64::new(0) }; 4])
    }

    /// Adds a slot.
    pub fn add(&self, slot: u8) {
        self.0[usize::from(slot / 64)].fetch_or(1 << (slot % 64), Ordering::SeqCst);
    }

    /// Takes a slot away.
    pub fn remove(&self, slot: u8) {
        self.0[usize::from(slot / 64)].fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
    }
}

/// The door of a side.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Door {
    /// Whether the side sleeps, or may.
    asleep: AtomicU32,
    pad: u32,
    /// The slots with news.
    news: Slots,
}

/// A file for many connections.
#[derive(Clone, Copy, Debug)]
pub struct Doors(*const u8);

// SAFETY: the memory has only atomics, and bytes that are copied by pointers.
unsafe impl Send for Doors {}
// SAFETY: as for `Send`.
unsafe impl Sync for Doors {}

impl Doors {
    /// Takes memory that was mapped.
    ///
    /// # Safety
    /// `base` is aligned to a page, and [`FILE`] bytes from there stay mapped as long as there is this or a link from
    /// here. Those of the file's slots ([`file_bytes`]) can be read and written, and no other slots are asked for.
    #[must_use]
    pub const unsafe fn new(base: *const u8) -> Self {
        Self(base)
    }

    fn door(&self, side: Side) -> &Door {
        // SAFETY: `new` promises the page, which has room for two; all values are atomic, and any bits are valid.
        unsafe { &*self.0.cast::<Door>().add(usize::from(side == Side::Second)) }
    }

    /// Returns where a slot and its large rings are. `None`: there is none of this number.
    #[must_use]
    pub fn places(&self, slot: u8) -> Option<[*const u8; 2]> {
        let slot = usize::from(slot);
        // SAFETY: `new` promises as many bytes.
        (slot > 0).then(|| [slot * HEADER, BEFORE + (slot - 1) * RINGS].map(|at| unsafe { self.0.add(at) }))
    }

    /// Returns the connection of a slot, from one side.
    #[must_use]
    pub fn link(&self, slot: u8, side: Side) -> Option<Link> {
        let [header, rings] = self.places(slot)?;
        // SAFETY: `new` promises both.
        Some(unsafe { Link::apart(header, rings, side) })
    }

    /// Notes that there is news for a side. Returns whether it sleeps and is to be woken.
    #[must_use]
    pub fn ring(&self, side: Side, slot: u8) -> bool {
        let door = self.door(side);
        door.news.add(slot);
        door.asleep.load(Ordering::SeqCst) == 1 && door.asleep.swap(0, Ordering::SeqCst) == 1
    }

    /// Returns whether there is news for a side of these slots.
    #[must_use]
    pub fn has_news(&self, side: Side, of: &Slots) -> bool {
        let mut words = self.door(side).news.0.iter().zip(&of.0);
        words.any(|(word, of)| word.load(Ordering::Acquire) & of.load(Ordering::Relaxed) != 0)
    }

    /// Takes the news of a side: calls `each` with those of these slots.
    pub fn take(&self, side: Side, of: &Slots, mut each: impl FnMut(u8)) {
        for (at, (word, of)) in (0_u8..).zip(self.door(side).news.0.iter().zip(&of.0)) {
            let of = of.load(Ordering::Acquire);
            if word.load(Ordering::Acquire) & of == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst) & of;
            while bits != 0 {
                each(at * 64 + bits.trailing_zeros() as u8);
                bits &= bits - 1;
            }
        }
    }

    /// Notes that a side is about to sleep. Returns false if there is news for it of these slots.
    #[must_use]
    pub fn sleep(&self, side: Side, of: &Slots) -> bool {
        self.door(side).asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        !self.has_news(side, of)
    }

    /// Notes that a side does not sleep.
    pub fn wake(&self, side: Side) {
        self.door(side).asleep.store(0, Ordering::Release);
    }
}

impl Link {
    /// Makes the header as for a new connection, whose bytes go by the small rings at first. For whoever gives slots to
    /// others.
    pub fn renew(&self) {
        for at in 0..2 * size_of::<Direction>() / 8 {
            // SAFETY: the header is there and aligned, and has only atomics.
            unsafe { (*self.base().cast::<AtomicU64>().add(at)).store(0, Ordering::Relaxed) };
        }
        self.tx().start_small();
        self.rx().start_small();
    }
}
