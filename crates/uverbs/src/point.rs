//! Points in the protocol between programs, and in the device's part of it, at which a test makes a process die or
//! stop.
//!
//! Only tests have the feature `points`. Without it nothing of this is compiled.

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// A point. Both programs and the device reach the points of queues.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Point {
            $($(#[$doc])* $name),*
        }

        impl Point {
            pub const ALL: &[Self] = &[$(Self::$name),*];

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
    /// A request is in its slot, but not visible yet.
    Filled
    /// The request is visible, but not announced yet.
    Published
    /// The doorbell was rung, but nobody was woken yet.
    Rung
    /// The device took a request.
    Taken
    /// The library may use slots again.
    Released
    /// The library returned a receive.
    GivenBack
    /// A library began to work with shared memory.
    Entered
    /// The library has finished its work with shared memory.
    Left
    /// A receive is noted, but not taken.
    ReceiveNoted
    /// The noted receive is taken.
    ReceiveTaken
    /// A receive of a shared queue is noted, but not claimed.
    ClaimNoted
    /// The noted receive is claimed.
    Claimed
    PartCopied
    /// A piece of a long message was copied.
    PieceCopied
    /// A message is stored in the message ring, whose header does not include it yet.
    RingMessageWritten
    /// The message ring's header includes the message.
    RingMessagePut
    /// An atomic operation was executed, but its result is not stored yet.
    AtomicDone
    /// A place in a completion queue is noted, but not reserved.
    PlaceNoted
    /// The place is reserved, but the note does not say so yet.
    PlaceReserved
    /// The note says that the place is reserved.
    PlaceHeld
    /// A completion is complete except for its number.
    EntryWritten
    /// A completion is complete, but nobody is notified.
    EntryPublished
    /// The channel that must be notified is disarmed, but was not notified.
    Disarmed
    /// A peer notified the channel.
    Told
    /// A completion was taken.
    EntryPolled
    /// The library requested notification.
    Armed
    /// The library sent a request to the device.
    Asked
    /// The device received a request.
    Heard
    /// The device answered the request.
    Answered
    /// The device gave memory to a peer, but did not answer yet.
    Granted
    /// The device ended sharing, but did not wait for anybody yet.
    Closed
    /// The device removed a memory region, but did not wait for anybody yet.
    RegionRemoved
    /// The device found what a dead library left behind, but did nothing about it.
    UnfinishedFound
    /// The device filled a dead library's place.
    HoleFilled
    /// The device completed something, and continues.
    Completed
    /// The device is about to notify a channel.
    Tells
    PacketSent
    /// The device took a packet.
    PacketTaken
}

/// Marks a point that the caller has reached.
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

    /// The number of the armed point, counted from 1; 0 for none.
    static WHERE: AtomicU32 = AtomicU32::new(0);
    static SIGNAL: AtomicU32 = AtomicU32::new(0);
    /// Number of times that the point is still reached before the signal.
    static BEFORE: AtomicU32 = AtomicU32::new(0);
    static REACHED: [AtomicU32; Point::ALL.len()] = [const { AtomicU32::new(0) }; Point::ALL.len()];

    /// Makes the process get a signal when a point is reached for the `time`th time from now, counted from 1.
    pub fn arm(point: Point, time: u32, signal: i32) {
        SIGNAL.store(signal.cast_unsigned(), Ordering::SeqCst);
        BEFORE.store(time.wrapping_sub(1), Ordering::SeqCst);
        WHERE.store(point as u32 + 1, Ordering::SeqCst);
    }

    /// Returns how often each point was reached since the last call.
    pub fn reached() -> Vec<(Point, u32)> {
        let count = |point: &Point| (*point, REACHED[*point as usize].swap(0, Ordering::SeqCst));
        Point::ALL.iter().map(count).collect()
    }

    pub fn reach(point: Point) {
        REACHED[point as usize].fetch_add(1, Ordering::SeqCst);
        if WHERE.load(Ordering::SeqCst) == point as u32 + 1 && BEFORE.fetch_sub(1, Ordering::SeqCst) == 0 {
            WHERE.store(0, Ordering::SeqCst);
            // SAFETY: the signal goes to this thread before it continues, and ends or stops the process.
            unsafe { libc::raise(SIGNAL.load(Ordering::SeqCst).cast_signed()) };
        }
    }
}
