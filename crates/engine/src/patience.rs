//! Guests wait for their Open vSwitch: what stays in a guest's queue is not lost.
//!
//! Packets that match no flow go to Open vSwitch by a ring. A guest that begins connections faster than that handles
//! their first packets fills it, and each packet lost costs a connection the time until it is sent again. So a queue of
//! that guest is not polled while the ring is nearly full. This holds up all that the guest sends, as an Open vSwitch
//! that forwards by itself does, and nobody else. Wires and tunnels never wait: their packets come from many.

/// How long a queue waits at most, nanoseconds. An Open vSwitch that polls takes packets within microseconds,
/// one that shares its CPU within tens of milliseconds. One that hangs delays the packets for which it has
/// flows once, for this long.
const LONGEST_NS: u64 = 100_000_000;

/// For how long the queue's worker polls meanwhile, nanoseconds. An Open vSwitch that polls on a different
/// CPU makes room within that, and a worker that slept would come back too late to keep it busy.
const SHORT_NS: u64 = 200_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The queue does not wait.
    #[default]
    Ready,
    /// The queue waits until there is room, or until this time.
    Waits(u64),
    /// The queue waited in vain, and does not wait again until there has been room.
    Over,
}

impl Patience {
    /// Updates the state after a burst that sent packets to Open vSwitch. `has_room`: whether there is room
    /// for more.
    pub const fn sent(&mut self, has_room: bool, now_ns: u64) {
        *self = match (has_room, *self) {
            (true, _) => Self::Ready,
            (false, Self::Over) => Self::Over,
            (false, _) => Self::Waits(now_ns + LONGEST_NS),
        };
    }

    /// Returns whether the queue must not be polled now. Ends the wait if there is room, or if it took too
    /// long.
    pub const fn holds(&mut self, has_room: bool, now_ns: u64) -> bool {
        if let Self::Waits(end) = *self {
            *self = match has_room {
                true => Self::Ready,
                false if now_ns >= end => Self::Over,
                false => return true,
            };
        }
        false
    }

    /// Returns whether it has begun to wait so recently that its worker polls.
    pub const fn waits_shortly(self, now_ns: u64) -> bool {
        matches!(self, Self::Waits(end) if now_ns + LONGEST_NS < end + SHORT_NS)
    }

    pub const fn waits(self) -> bool {
        matches!(self, Self::Waits(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_waits_for_room() {
        let mut patience = Patience::default();
        patience.sent(true, 1);
        assert!(!patience.waits() && !patience.holds(false, 1));
        patience.sent(false, 5);
        assert!(patience.waits() && patience.holds(false, 5 + LONGEST_NS - 1));
        assert!(patience.waits_shortly(4 + SHORT_NS) && !patience.waits_shortly(5 + SHORT_NS));
        assert!(!patience.holds(true, 5 + LONGEST_NS - 1) && !patience.waits());
        patience.sent(false, 6 + LONGEST_NS);
        assert!(patience.holds(false, 5 + 2 * LONGEST_NS));
    }

    /// An Open vSwitch that takes nothing holds up a guest once.
    #[test]
    fn a_queue_that_waited_in_vain_goes_on_until_there_was_room() {
        let mut patience = Patience::default();
        patience.sent(false, 0);
        assert!(!patience.holds(false, LONGEST_NS));
        for now in 0..10 {
            patience.sent(false, LONGEST_NS + now);
            assert!(!patience.waits() && !patience.holds(false, LONGEST_NS + now));
        }
        patience.sent(true, LONGEST_NS + 10);
        patience.sent(false, LONGEST_NS + 11);
        assert!(patience.holds(false, LONGEST_NS + 11));
    }
}
