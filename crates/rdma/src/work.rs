//! The work requests of a queue pair, their completions, and the interface to its surroundings.

use packet::roce::Datagram;

/// A work request of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The application's identifier for it.
    pub id: u64,
    /// The operation.
    pub operation: SendOperation,
    /// Bytes of the message: the length of its scatter/gather list.
    pub len: u32,
    /// Whether success is completed too, rather than only failure.
    pub signaled: bool,
    /// Whether it wakes the receiver.
    pub solicited: bool,
    /// It waits for the READs and atomics before it.
    pub fence: bool,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum SendOperation {
    Send(With),
    Write { address: u64, rkey: u32, immediate: Option<[u8; 4]> },
    Read { address: u64, rkey: u32 },
    Atomic { address: u64, rkey: u32, operation: AtomicOperation },
}

/// What a SEND carries besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// Nothing.
    Nothing,
    /// Immediate data, in the order of the wire.
    Immediate([u8; 4]),
    /// A remote key of the receiver, which becomes invalid.
    Invalidate(u32),
}

/// An operation on eight bytes of the responder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Stores `swap` if memory holds `compare`.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// Adds to the value in memory.
    FetchAdd(u64),
}

/// The result of a work request (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the standard's names
pub enum Status {
    Success,
    LocalLength,
    LocalOperation,
    LocalProtection,
    /// Memory management operation error, for operations without a peer (`IBV_WC_MW_BIND_ERR`).
    WindowBind,
    Flushed,
    RemoteInvalidRequest,
    RemoteAccess,
    RemoteOperation,
    RetryExceeded,
    RnrRetryExceeded,
}

/// The completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The application's identifier for it.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// Bytes received or read.
    pub len: u32,
    /// What was received, for a work request of the receive queue.
    pub received: Option<Received>,
}

/// What came into a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// By SEND, into the receive's memory; or by WRITE with immediate.
    pub by: Arrival,
    /// Immediate data, in the order of the wire.
    pub immediate: Option<[u8; 4]>,
    /// The remote key that became invalid.
    pub invalidated: Option<u32>,
    /// Whether to wake a completion channel that is armed for solicited events.
    pub solicited: bool,
    /// The queue pair from which a datagram comes.
    pub source: Option<u32>,
    /// Whether a datagram came over IPv4; otherwise over IPv6.
    pub by_ipv4: bool,
}

/// How it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Arrival {
    Send,
    WriteWithImmediate,
}

/// How a peer accesses a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Access {
    Write,
    Read,
    Atomic,
}

/// The payload of a packet, which is copied once, to where it is sent from.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Nothing.
    None,
    /// `len` bytes from `offset` of the memory that a request sends.
    #[allow(missing_docs)]
    Message { request: &'a SendRequest, offset: u32, len: u32 },
    /// Memory that the peer reads, if it is permitted to.
    #[allow(missing_docs)]
    Region { rkey: u32, address: u64, len: u32 },
}

/// Why memory is not accessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no such region, it is too short, or it does not permit the access.
    #[error("no such memory")]
    Protection,
    /// The message is longer than the memory for it.
    #[error("message too long")]
    Length,
    /// Another thread uses this memory, for too long. The request is not answered: the sender repeats it, as after a
    /// loss.
    #[error("memory in use")]
    Busy,
}

/// What a queue pair needs from its surroundings: memory, receives, completion queues, a way to its peer.
///
/// Offsets are in bytes of a message. Every region is checked at every access, because it may be gone by the next one.
pub trait Verbs {
    /// Copies what was read, or the value before an atomic operation, into the memory of `request`.
    ///
    /// # Errors
    /// If it isn't the application's memory.
    fn scatter(&mut self, request: &SendRequest, offset: u32, bytes: &[u8]) -> Result<(), Fault>;

    /// Takes a work request from the receive queue, or the shared one; returns its identifier.
    fn take_receive(&mut self) -> Option<u64>;

    /// Takes a work request to flush from the receive queue, but not from a shared one (IBTA 10.2.9.3); returns its
    /// identifier.
    fn take_flushed(&mut self) -> Option<u64>;

    /// Whether receives come from a shared queue. A receive that is too short for its message is then completed, since
    /// it can't wait here for the next message (IBTA 9.9.3).
    fn shares_receives(&self) -> bool;

    /// Copies received bytes into the memory of the receive that was taken last.
    ///
    /// # Errors
    /// If it isn't the application's memory, or ends before.
    fn fill(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Fault>;

    /// Whether the peer may make this access.
    ///
    /// # Errors
    /// Where it may not.
    fn check(&mut self, rkey: u32, address: u64, len: u32, access: Access) -> Result<(), Fault>;

    /// Copies the bytes that the peer writes. If they end its message (`ends`), the last byte is written after all
    /// others.
    ///
    /// # Errors
    /// Where it may not.
    fn write(&mut self, rkey: u32, address: u64, bytes: &[u8], ends: bool) -> Result<(), Fault>;

    /// Executes the peer's atomic operation on eight bytes. Returns the former value.
    ///
    /// # Errors
    /// Where it may not.
    fn atomic(&mut self, rkey: u32, address: u64, operation: AtomicOperation) -> Result<u64, Fault>;

    /// Invalidates a remote key.
    ///
    /// # Errors
    /// If there is no such key that peers may invalidate.
    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault>;

    /// Puts a work request's completion into its completion queue.
    fn complete(&mut self, completion: Completion);

    /// Sends a packet with this payload to the peer, or to the address handle `to`.
    ///
    /// # Errors
    /// If the payload is not accessible.
    fn send(&mut self, to: Option<u32>, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<(), Fault>;
}
