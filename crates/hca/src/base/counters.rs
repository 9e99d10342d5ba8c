//! The counters of a device, with the names that `rdma statistic` uses.

macro_rules! counters {
    ($($counter:ident = $name:literal, $help:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Counter {
            $(#[doc = $help] $counter,)*
        }

        /// The names of all counters, with descriptions.
        pub const COUNTERS: [(&str, &str); [$($name),*].len()] = [$(($name, $help)),*];
    };
}

counters! {
    SentPackets = "sent_pkts", "Packets sent, and messages that programs brought to peers with which they share memory.";
    SentBytes = "sent_bytes", "Bytes sent.";
    ReceivedPackets = "rcvd_pkts", "Packets received, and messages that such peers brought.";
    ReceivedBytes = "rcvd_bytes", "Bytes received.";
    SendError = "send_err", "Packets that could not be sent.";
    UnknownQp = "rcvd_pkts_unknown_qp", "Packets received for a queue pair that is not there.";
    UnknownGroup = "rcvd_pkts_unknown_group", "Datagrams received for a multicast group that no queue pair is attached to.";
    NoRoom = "rcvd_pkts_no_room", "Packets received, and copies of them, for a program that does not take what waits.";
    MulticastPace = "rcvd_pkts_multicast_limit", "Datagrams received for multicast groups beyond the copies that are made in a second.";
    Forged = "rcvd_pkts_forged", "Requests to the connection manager from elsewhere under the guest's own address.";
    NotTaken = "rcvd_pkts_not_taken", "Packets received for a queue pair that is not ready, or that are not of its service or peer.";
    Icmp = "rcvd_pkts_icmp", "ICMP messages received: mostly that packets of the device can't be delivered.";
    Malformed = "rcvd_pkts_malformed", "Packets received that are no RoCEv2.";
    Icrc = "rx_icrc_encapsulated", "Packets received with a wrong ICRC.";
    OutOfSequence = "out_of_sequence", "Packets received out of sequence.";
    Duplicate = "duplicate_request", "Requests received again.";
    SequenceError = "packet_seq_err", "NAKs received for packets out of sequence.";
    ImpliedSequenceError = "implied_nak_seq_err", "Answers received that imply the loss of an earlier one.";
    AckTimeout = "local_ack_timeout_err", "Times an acknowledgement did not come in time.";
    RnrRetry = "rnr_nak_retry_err", "NAKs received because the other end had no receive request posted.";
    Rnr = "rnr_nak", "NAKs sent because no receive request was posted.";
    RemoteAccess = "remote_access_errors", "Requests received that were refused access to memory.";
    QkeyViolation = "qkey_violations", "Datagrams received with a wrong Q_Key.";
    PkeyViolation = "pkey_violations", "Datagrams received of another partition.";
    OutOfBuffer = "out_of_buffer", "Datagrams received while no receive request was posted.";
    LocalLength = "resp_local_length_error", "Datagrams received that were longer than the receive request.";
    RequesterError = "req_cqe_error", "Requests completed in error.";
    ResponderError = "resp_cqe_error", "Receive requests completed in error.";
    CnpSent = "np_cnp_sent", "Congestion notifications sent.";
    CnpHandled = "rp_cnp_handled", "Congestion notifications received.";
    AtomicBusy = "atomic_busy", "Atomic requests left without an answer, since others were at work for too long.";
}

/// The values of all counters of a device or an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([u64; COUNTERS.len()]);

impl Counters {
    pub(crate) const fn add(&mut self, counter: Counter, more: u64) {
        self.0[counter as usize] += more;
    }

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

    /// Returns the value of the counter with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Returns all counters with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        COUNTERS.into_iter().map(|(name, _)| name).zip(self.0)
    }
}

impl std::ops::AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}
