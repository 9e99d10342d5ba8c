//! The counters of a device, with the names that `rdma statistic` uses.

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub(crate) enum Counter {
    SentPackets,
    SentBytes,
    ReceivedPackets,
    ReceivedBytes,
    SendError,
    UnknownQp,
    UnknownGroup,
    NoRoom,
    MulticastPace,
    Forged,
    NotTaken,
    Malformed,
    Icrc,
    OutOfSequence,
    Duplicate,
    SequenceError,
    ImpliedSequenceError,
    AckTimeout,
    RnrRetry,
    Rnr,
    RemoteAccess,
    QkeyViolation,
    PkeyViolation,
    OutOfBuffer,
    LocalLength,
    RequesterError,
    ResponderError,
    CnpSent,
    CnpHandled,
    AtomicBusy,
}

/// Their names, in their order.
const NAMES: [&str; 30] = [
    "sent_pkts",
    "sent_bytes",
    "rcvd_pkts",
    "rcvd_bytes",
    "send_err",
    "rcvd_pkts_unknown_qp",
    "rcvd_pkts_unknown_group",
    "rcvd_pkts_no_room",
    "rcvd_pkts_multicast_limit",
    "rcvd_pkts_forged",
    "rcvd_pkts_not_taken",
    "rcvd_pkts_malformed",
    "rx_icrc_encapsulated",
    "out_of_sequence",
    "duplicate_request",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "rnr_nak",
    "remote_access_errors",
    "qkey_violations",
    "pkey_violations",
    "out_of_buffer",
    "resp_local_length_error",
    "req_cqe_error",
    "resp_cqe_error",
    "np_cnp_sent",
    "rp_cnp_handled",
    "atomic_busy",
];

/// Counters of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; NAMES.len()]);

impl Counters {
    /// Adds to a counter.
    pub(crate) const fn add(&mut self, counter: Counter, more: u64) {
        self.0[counter as usize] += more;
    }

    /// Adds what the transport of a connection counted.
    pub(crate) fn add_connection(&mut self, counts: &rdma::Counts) {
        for (counter, value) in [
            (Counter::OutOfSequence, counts.out_of_sequence),
            (Counter::Duplicate, counts.duplicate_request),
            (Counter::SequenceError, counts.packet_seq_err),
            (Counter::ImpliedSequenceError, counts.implied_nak_seq_err),
            (Counter::AckTimeout, counts.local_ack_timeout_err),
            (Counter::RnrRetry, counts.rnr_nak_retry_err),
            (Counter::Rnr, counts.rnr_nak),
        ] {
            self.add(counter, value);
        }
    }

    /// The value of the counter with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// All counters, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.into_iter().zip(self.0)
    }
}

impl std::ops::AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}
