//! Packets to services of the host, on their way from the workers to who serves them. The packets that a guest may
//! have waiting are bounded, and so is how many it may send in a second: no other guest's are lost because of them.

use crate::counters::MAX_VIFS;
use model::{DropReason, Seconds, Service, VifId};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// How many packets of a guest.
#[derive(Clone, Copy, Debug)]
struct Most {
    /// Waiting ones, with the answers to them.
    waiting: u8,
    /// Those in a second.
    per_second: u64,
}

const MOST: Most = Most { waiting: 8, per_second: 500 };
/// Those of a remote's BFD session, which has eight paths at most, and asks by each.
const MOST_OF_SESSIONS: Most = Most { waiting: 32, per_second: 2000 };
/// Those of whom nothing is known.
const MOST_OF_STRANGERS: Most = Most { waiting: 2, per_second: 10 };
/// Longest packet to a service, bytes: longer than any that a service understands.
const LONGEST: usize = 2048;

/// Returns the number that stands for a tunnel's remote. Two may have the same.
pub(crate) fn asker(remote: IpAddr) -> VifId {
    let bits = match remote {
        IpAddr::V4(addr) => addr.to_bits().into(),
        IpAddr::V6(addr) => addr.to_bits(),
    };
    let mixed = (bits ^ bits >> 64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as u64 >> 32;
    VifId((mixed % MAX_VIFS as u64) as u16)
}

/// A packet to a service.
#[derive(Debug)]
pub struct Asked {
    /// The guest's interface; for a VLAN of the guest, the one that stands for it. For BFD, the wire.
    pub guest: VifId,
    pub service: Service,
    /// The frame as it came, with complete checksums.
    pub frame: Vec<u8>,
    /// The packet's place in its guest's queue, free again when this is dropped: pass it on with the answer.
    pub place: Place,
}

/// A place in a guest's queue of packets that wait to be answered, and of answers that wait to be sent.
#[derive(Debug)]
pub struct Place(Arc<[Guest]>, VifId);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(guest) = self.0.get(usize::from(self.1.0)) {
            guest.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default)]
struct Guest {
    waiting: AtomicU8,
    /// The second of the last packet in the upper half, the number of packets in that second in the lower.
    asked: AtomicU64,
}

impl Guest {
    fn may_ask(&self, most: Most, now: Seconds) -> bool {
        let second = u64::from(now) << 32;
        let count = |asked: u64| Some(if asked >> 32 == u64::from(now) { asked + 1 } else { second + 1 });
        let before = self.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).unwrap_or(0);
        before >> 32 != u64::from(now) || before - second < most.per_second
    }

    fn may_wait(&self, most: Most) -> bool {
        let more = |waiting: u8| (waiting < most.waiting).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// The workers' end of the way to services.
#[derive(Clone, Debug)]
pub(crate) struct Questions {
    guests: Arc<[Guest]>,
    most: Most,
    to: Sender<Asked>,
}

impl Questions {
    pub fn new() -> (Self, Receiver<Asked>) {
        let (to, from) = channel();
        (Self::with(MOST, to), from)
    }

    /// Returns the way for packets of BFD sessions.
    pub fn of_sessions() -> (Self, Receiver<Asked>) {
        let (to, from) = channel();
        (Self::with(MOST_OF_SESSIONS, to), from)
    }

    /// Returns another way to the same end, for few packets, which take nobody's place here.
    pub fn few(&self) -> Self {
        Self::with(MOST_OF_STRANGERS, self.to.clone())
    }

    fn with(most: Most, to: Sender<Asked>) -> Self {
        Self { guests: (0..MAX_VIFS).map(|_| Guest::default()).collect(), most, to }
    }

    /// Puts a packet of a guest where `service` takes it from. `asker`: the number of the queue that it fills.
    ///
    /// # Errors
    /// The reason to drop the packet.
    pub fn put(
        &self,
        asker: VifId,
        (guest, service): (VifId, Service),
        frame: &[u8],
        complete: impl FnOnce(&mut [u8]),
        now: Seconds,
    ) -> Result<(), DropReason> {
        let its = self.guests.get(usize::from(asker.0)).ok_or(DropReason::NoNetwork)?;
        if frame.len() > LONGEST {
            return Err(DropReason::TxTooLong);
        }
        if !its.may_ask(self.most, now) || !its.may_wait(self.most) {
            return Err(DropReason::ServiceFull);
        }
        let place = Place(self.guests.clone(), asker);
        let mut frame = frame.to_vec();
        complete(&mut frame);
        let asked = Asked { guest, service, frame, place };
        self.to.send(asked).map_err(|_| DropReason::ServiceFull)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::DropReason::ServiceFull;
    use std::collections::BTreeSet;

    fn ask(questions: &Questions, guest: u16, now: Seconds) -> Result<(), DropReason> {
        questions.put(VifId(guest), (VifId(guest), Service::Dhcp), b"frame", |_| {}, now)
    }

    #[test]
    fn a_guest_fills_its_own_queue_alone() {
        let (questions, from) = Questions::new();
        (0..MOST.waiting).for_each(|_| assert_eq!(ask(&questions, 1, 7), Ok(())));
        assert_eq!(ask(&questions, 1, 7), Err(ServiceFull));
        assert_eq!(ask(&questions, 2, 7), Ok(()));
        let Asked { place, .. } = from.recv().unwrap();
        assert_eq!(ask(&questions, 1, 7), Err(ServiceFull), "the answer waits");
        drop(place);
        assert_eq!((ask(&questions, 1, 7), ask(&questions, 1, 7)), (Ok(()), Err(ServiceFull)));
        drop(from);
        assert_eq!(ask(&questions, 3, 7), Err(ServiceFull), "nobody serves");
    }

    #[test]
    fn remotes_of_a_subnet_have_queues_of_their_own() {
        let v4 = (0..256).map(|n| IpAddr::from([192, 0, n as u8, 7]));
        let v6 = (0..256).map(|n| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]));
        for remotes in [v4.collect::<Vec<_>>(), v6.collect()] {
            let numbers: BTreeSet<_> = remotes.iter().map(|remote| asker(*remote).0).collect();
            assert!(numbers.len() > 225, "{}", numbers.len());
        }
    }

    #[test]
    fn a_guest_asks_so_often_in_a_second() {
        let (questions, from) = Questions::new();
        let asked = |now| {
            (0..2 * MOST.per_second)
                .filter(|_| ask(&questions, 1, now).is_ok() && from.recv().is_ok())
                .count()
        };
        assert_eq!([asked(7), asked(7), asked(8)], [MOST.per_second as usize, 0, MOST.per_second as usize]);
        let long = questions.put(VifId(2), (VifId(2), Service::Dhcp), &[0; LONGEST + 1], |_| {}, 9);
        assert_eq!(long, Err(DropReason::TxTooLong));
    }
}
