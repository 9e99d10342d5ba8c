//! What went wrong on the way of a connection's packets, and was mended.

/// Events of a connection since its beginning, with the names that `rdma statistic` has for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that came with a number ahead of the expected one.
    pub out_of_sequence: u64,
    /// Requests that came again.
    pub duplicate_request: u64,
    /// NAKs received for packets out of sequence.
    pub packet_seq_err: u64,
    /// Answers received that tell of the loss of an earlier one.
    pub implied_nak_seq_err: u64,
    /// Times that no answer came.
    pub local_ack_timeout_err: u64,
    /// NAKs received as the peer had no receive.
    pub rnr_nak_retry_err: u64,
    /// NAKs sent as we had no receive.
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
