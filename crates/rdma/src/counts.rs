//! Errors that a connection recovered from.

/// Events of a connection since its start, with the names that `rdma statistic` gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests whose number was ahead of the expected one.
    pub out_of_sequence: u64,
    /// Requests that came again.
    pub duplicate_request: u64,
    /// NAKs received for packets out of sequence.
    pub packet_seq_err: u64,
    /// Answers received that show that an earlier one was lost.
    pub implied_nak_seq_err: u64,
    /// Timeouts without an answer.
    pub local_ack_timeout_err: u64,
    /// NAKs received because the peer had no receive posted.
    pub rnr_nak_retry_err: u64,
    /// NAKs sent because we had no receive posted.
    pub rnr_nak: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.out_of_sequence += other.out_of_sequence;
        self.duplicate_request += other.duplicate_request;
        self.packet_seq_err += other.packet_seq_err;
        self.implied_nak_seq_err += other.implied_nak_seq_err;
        self.local_ack_timeout_err += other.local_ack_timeout_err;
        self.rnr_nak_retry_err += other.rnr_nak_retry_err;
        self.rnr_nak += other.rnr_nak;
    }
}
