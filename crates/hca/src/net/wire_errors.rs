//! Counters of packets that a device does not deliver.

use crate::base::counters::{Counter, Counters};
use std::sync::atomic::{AtomicU64, Ordering};

/// Packets from the wire that were not delivered, by reason.
#[derive(Debug, Default)]
pub(crate) struct WireErrors {
    pub icrc: AtomicU64,
    pub malformed: AtomicU64,
    pub icmp: AtomicU64,
    pub unknown_qp: AtomicU64,
    /// No queue pair is attached to the group.
    pub unknown_group: AtomicU64,
    /// The inbox of the program is full.
    pub no_room: AtomicU64,
    pub queue_key: AtomicU64,
    pub partition: AtomicU64,
    /// The rate of copies for groups is reached.
    pub paced: AtomicU64,
    /// The source is the guest's own address, but the packet came over the wire.
    pub forged: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl WireErrors {
    pub fn count_into(&self, counters: &mut Counters) {
        let errors = [
            (Counter::Icrc, &self.icrc),
            (Counter::Malformed, &self.malformed),
            (Counter::Icmp, &self.icmp),
            (Counter::UnknownQp, &self.unknown_qp),
            (Counter::UnknownGroup, &self.unknown_group),
            (Counter::NoRoom, &self.no_room),
            (Counter::QkeyViolation, &self.queue_key),
            (Counter::PkeyViolation, &self.partition),
            (Counter::MulticastPace, &self.paced),
            (Counter::Forged, &self.forged),
        ];
        errors.into_iter().for_each(|(counter, value)| counters.add(counter, value.load(Ordering::Relaxed)));
    }
}
