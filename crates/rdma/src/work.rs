//! What a queue pair is asked for, what it says when that is done, and what it needs of its surroundings.

use packet::roce::Datagram;

/// A work request of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// What the application calls it.
    pub id: u64,
    /// What is to be done.
    pub operation: SendOperation,
    /// Bytes of the message: what its scatter/gather list holds.
    pub len: u32,
    /// Whether its success is completed too, not its failure alone.
    pub signaled: bool,
    /// The receiver is woken by it.
    pub solicited: bool,
    /// It waits for the READs and atomics before it.
    pub fence: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum SendOperation {
    Send(With),
    Write { address: u64, rkey: u32, immediate: Option<[u8; 4]> },
    Read { address: u64, rkey: u32 },
    Atomic { address: u64, rkey: u32, operation: AtomicOperation },
}

/// What goes with a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// Nothing.
    Nothing,
    /// Immediate data, in the order of the wire.
    Immediate([u8; 4]),
    /// A remote key of the receiver that is invalid then.
    Invalidate(u32),
}

/// An operation on eight bytes of the responder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Puts `swap` there if `compare` is.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// Adds to what is there.
    FetchAdd(u64),
}

/// How a work request ended (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the standard's names
pub enum Status {
    Success,
    LocalLength,
    LocalOperation,
    LocalProtection,
    /// Memory management operation error: of what needs no peer (`IBV_WC_MW_BIND_ERR`).
    WindowBind,
    Flushed,
    RemoteInvalidRequest,
    RemoteAccess,
    RemoteOperation,
    RetryExceeded,
    RnrRetryExceeded,
}

/// The end of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the application calls it.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// Bytes received or read.
    pub len: u32,
    /// What came, for a work request of the receive queue.
    pub received: Option<Received>,
}

/// What came into a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// By SEND, into the receive's memory; else by WRITE with immediate.
    pub by: Arrival,
    /// Immediate data, in the order of the wire.
    pub immediate: Option<[u8; 4]>,
    /// The remote key that is invalid now.
    pub invalidated: Option<u32>,
    /// Whether a completion channel armed for solicited events is to be woken.
    pub solicited: bool,
    /// The queue pair that a datagram comes from.
    pub source: Option<u32>,
    /// Whether a datagram came by IPv4, else by IPv6.
    pub by_ipv4: bool,
}

/// How it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Arrival {
    Send,
    WriteWithImmediate,
}

/// What a peer wants to do with a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Access {
    Write,
    Read,
    Atomic,
}

/// What a packet carries: it is copied once, to where it leaves from.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Nothing.
    None,
    /// `len` bytes, `offset` bytes into the memory that a request sends.
    #[allow(missing_docs)]
    Message { request: &'a SendRequest, offset: u32, len: u32 },
    /// Memory that the peer reads, if it may.
    #[allow(missing_docs)]
    Region { rkey: u32, address: u64, len: u32 },
}

/// Why memory can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No such region, or not so long, or not for that.
    #[error("no such memory")]
    Protection,
    /// The message is longer than the memory for it.
    #[error("message too long")]
    Length,
    /// Somebody is at work with such memory, for too long. The request is not answered: its sender asks again, as for
    /// what was lost.
    #[error("memory in use")]
    Busy,
}

/// What a queue pair needs of its surroundings: memory, receives, completion queues, a way to its peer.
///
/// Offsets are bytes of a message. Every region is checked at every access: it may be gone by the next.
pub trait Verbs {
    /// Copies what was read, or was there before an atomic operation, into the memory of `request`.
    ///
    /// # Errors
    /// Where it isn't the application's.
    fn scatter(&mut self, request: &SendRequest, offset: u32, bytes: &[u8]) -> Result<(), Fault>;

    /// Takes a work request from the receive queue, or the shared one; its identifier.
    fn take_receive(&mut self) -> Option<u64>;

    /// Takes a work request that is to be flushed: from the receive queue, but not from a shared one (IBTA 10.2.9.3);
    /// its identifier.
    fn take_flushed(&mut self) -> Option<u64>;

    /// Whether receives are taken from a queue that others take from too: one that is too short for its message is
    /// completed then, as it can't wait for the next message here (IBTA 9.9.3).
    fn shares_receives(&self) -> bool;

    /// Copies what was received into the memory of the receive taken last.
    ///
    /// # Errors
    /// Where it isn't the application's, or ends before.
    fn fill(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Fault>;

    /// Whether the peer may access memory so.
    ///
    /// # Errors
    /// Where it may not.
    fn check(&mut self, rkey: u32, address: u64, len: u32, access: Access) -> Result<(), Fault>;

    /// Copies what the peer writes. Where it `ends` its message, the last byte comes after all others.
    ///
    /// # Errors
    /// Where it may not.
    fn write(&mut self, rkey: u32, address: u64, bytes: &[u8], ends: bool) -> Result<(), Fault>;

    /// Does what the peer wants done atomically with eight bytes. Returns what was there.
    ///
    /// # Errors
    /// Where it may not.
    fn atomic(&mut self, rkey: u32, address: u64, operation: AtomicOperation) -> Result<u64, Fault>;

    /// Makes a remote key invalid.
    ///
    /// # Errors
    /// Where there is no such key of a kind that peers may invalidate.
    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault>;

    /// Puts the end of a work request into its completion queue.
    fn complete(&mut self, completion: Completion);

    /// Sends a packet with this payload to the peer, or to where an address handle points.
    ///
    /// # Errors
    /// Where the payload can't be had.
    fn send(&mut self, to: Option<u32>, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<(), Fault>;
}
