//! Points of the protocol between programs, and of the device's part in it, at which a test has a process end, or
//! stand still.
//!
//! Only tests have the feature `points`. Without it nothing is left of them.

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// A point. Those of queues are reached by whoever works with them: programs, and the device.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Point {
            $($(#[$doc])* $name),*
        }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What tests call it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),*
                }
            }
        }
    };
}

points! {
    /// A request is in its slot, and not seen yet.
    Filled
    /// It is seen, and not announced yet.
    Published
    /// The doorbell was rung, and nobody was woken yet.
    Rung
    /// A request was taken by the device.
    Taken
    /// The library may use slots again.
    Released
    /// The library gave a receive back.
    GivenBack
    /// One began to work with what is shared.
    Entered
    /// It is done.
    Left
    /// A receive is noted, and not taken.
    ReceiveNoted
    /// It is taken.
    ReceiveTaken
    /// A receive of a shared queue is noted, and not claimed.
    ClaimNoted
    /// It is claimed.
    Claimed
    /// A part of a message was copied.
    PartCopied
    /// A piece of a long message was copied.
    PieceCopied
    /// A message lies among the parcels, which do not know it yet.
    ParcelWritten
    /// They do.
    ParcelPut
    /// An atomic operation was done, whose result is nowhere yet.
    AtomicDone
    /// A place in a completion queue is noted, and not reserved.
    PlaceNoted
    /// It is reserved, and that is not noted.
    PlaceReserved
    /// That is noted.
    PlaceHeld
    /// A completion is there, but for its number.
    EntryWritten
    /// It is there, and nobody is told.
    EntryPublished
    /// Who is to be told is known, and was not told.
    Disarmed
    /// It was told by a peer.
    Told
    /// A completion was taken.
    EntryPolled
    /// The library asked to be told.
    Armed
    /// The library sent a request to the device.
    Asked
    /// The device heard a request.
    Heard
    /// It answered.
    Answered
    /// The device gave memory to a peer, and did not say so yet.
    Granted
    /// The device ended what is shared, and waited for nobody yet.
    Closed
    /// The device removed a memory region, and waited for nobody yet.
    RegionRemoved
    /// The device found out what one that died left behind, and did nothing about it.
    LeftFound
    /// The device filled a place of one that died.
    HoleFilled
    /// The device completed something, and goes on.
    Completed
    /// The device is about to tell a channel.
    Tells
    /// The device sent a packet.
    PacketSent
    /// The device took a packet.
    PacketTaken
}

/// Here it is.
#[inline(always)]
#[allow(clippy::missing_const_for_fn, reason = "it is none with the feature")]
pub fn point(_point: Point) {
    #[cfg(feature = "points")]
    armed::reach(_point);
}

#[cfg(feature = "points")]
pub use armed::{arm, reached};

#[cfg(feature = "points")]
mod armed {
    use super::Point;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counted from 1; 0: none.
    static WHERE: AtomicU32 = AtomicU32::new(0);
    static SIGNAL: AtomicU32 = AtomicU32::new(0);
    /// Times that it is reached before.
    static BEFORE: AtomicU32 = AtomicU32::new(0);
    static REACHED: [AtomicU32; Point::ALL.len()] = [const { AtomicU32::new(0) }; Point::ALL.len()];

    /// Has the process get a signal when a point is reached for the `time`th time from now on, which counts from 1.
    pub fn arm(point: Point, time: u32, signal: i32) {
        SIGNAL.store(signal.cast_unsigned(), Ordering::SeqCst);
        BEFORE.store(time.wrapping_sub(1), Ordering::SeqCst);
        WHERE.store(point as u32 + 1, Ordering::SeqCst);
    }

    /// How often each was reached since this was asked last.
    pub fn reached() -> Vec<(Point, u32)> {
        let count = |point: &Point| (*point, REACHED[*point as usize].swap(0, Ordering::SeqCst));
        Point::ALL.iter().map(count).collect()
    }

    pub fn reach(point: Point) {
        REACHED[point as usize].fetch_add(1, Ordering::SeqCst);
        if WHERE.load(Ordering::SeqCst) == point as u32 + 1 && BEFORE.fetch_sub(1, Ordering::SeqCst) == 0 {
            WHERE.store(0, Ordering::SeqCst);
            // SAFETY: the signal is to this thread, before it goes on, and ends or stops the process.
            unsafe { libc::raise(SIGNAL.load(Ordering::SeqCst).cast_signed()) };
        }
    }
}
