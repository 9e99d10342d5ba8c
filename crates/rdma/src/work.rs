//! The work requests of a queue pair, their completions, and the interface to its surroundings.

use packet::roce::Datagram;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The application's identifier of the request.
    pub id: u64,
    pub operation: SendOperation,
    /// Bytes of the message: the length of its scatter/gather list.
    pub len: u32,
    /// Whether success is completed too, rather than only failure.
    pub signaled: bool,
    /// Whether the message wakes the receiver.
    pub solicited: bool,
    /// Whether the request waits for the READs and atomics before it.
    pub fence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum SendOperation {
    Send(With),
    Write { address: u64, rkey: u32, immediate: Option<[u8; 4]> },
    Read { address: u64, rkey: u32 },
    Atomic { address: u64, rkey: u32, operation: AtomicOperation },
}

/// Data that a SEND carries besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
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
        /// The value that must be in memory.
        compare: u64,
        /// The value that replaces it.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The application's identifier of the request.
    pub id: u64,
    pub status: Status,
    /// Bytes received or read.
    pub len: u32,
    /// Details of the message, for a work request of the receive queue.
    pub received: Option<Received>,
}

/// Details of a message that came into a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The peer's operation: a SEND into the receive's memory, or a WRITE with immediate.
    pub by: Arrival,
    /// Immediate data, in the order of the wire.
    pub immediate: Option<[u8; 4]>,
    /// The remote key that became invalid.
    pub invalidated: Option<u32>,
    /// Whether to wake a completion channel that is armed for solicited events.
    pub solicited: bool,
    /// The queue pair from which a datagram comes.
    pub source: Option<u32>,
    /// Whether a datagram came over IPv4; otherwise it came over IPv6.
    pub by_ipv4: bool,
}

/// The operation with which a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Arrival {
    Send,
    WriteWithImmediate,
}

/// A peer's access to a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Access {
    Write,
    Read,
    Atomic,
}

/// The payload of a packet. It is copied once, to the place from which it is sent.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// The packet has no payload.
    None,
    /// `len` bytes from `offset` of the memory that a request sends.
    #[allow(missing_docs)]
    Message { request: &'a SendRequest, offset: u32, len: u32 },
    /// Memory that the peer reads, if it is permitted to.
    #[allow(missing_docs)]
    Region { rkey: u32, address: u64, len: u32 },
}

/// A reason why memory is not accessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no such region, it is too short, or it does not permit the access.
    #[error("no such memory")]
    Protection,
    /// The message is longer than the memory for it.
    #[error("message too long")]
    Length,
    /// Another thread has used this memory for too long. The request is not answered: the sender repeats it, as after a
    /// loss.
    #[error("memory in use")]
    Busy,
}

/// The interface of a queue pair to its surroundings: memory, receives, completion queues, and a way to its peer.
///
/// Offsets are in bytes of a message. Every region is checked at every access, because it may be gone by the next one.
pub trait Verbs {
    /// Copies bytes that were read, or the value before an atomic operation, into the memory of `request`.
    ///
    /// # Errors
    /// If it isn't the application's memory.
    fn scatter(&mut self, request: &SendRequest, offset: u32, bytes: &[u8]) -> Result<(), Fault>;

    /// Takes a work request from the receive queue, or the shared one; returns its identifier.
    fn take_receive(&mut self) -> Option<u64>;

    /// Takes a work request to flush from the receive queue, but not from a shared one (IBTA 10.2.9.3); returns its
    /// identifier.
    fn take_flushed(&mut self) -> Option<u64>;

    /// Is true if receives come from a shared queue. A receive that is too short for its message is then
    /// completed, since it can't wait here for the next message (IBTA 9.9.3).
    fn shares_receives(&self) -> bool;

    /// Copies received bytes into the memory of the receive that was taken last.
    ///
    /// # Errors
    /// If it isn't the application's memory, or is too short.
    fn fill(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Fault>;

    /// Checks that the peer may make this access.
    ///
    /// # Errors
    /// If it may not.
    fn check(&mut self, rkey: u32, address: u64, len: u32, access: Access) -> Result<(), Fault>;

    /// Copies the bytes that the peer writes. If they end its message (`ends`), the last byte is written after all
    /// others.
    ///
    /// # Errors
    /// If the peer may not write them.
    fn write(&mut self, rkey: u32, address: u64, bytes: &[u8], ends: bool) -> Result<(), Fault>;

    /// Executes the peer's atomic operation on eight bytes. Returns the former value.
    ///
    /// # Errors
    /// If the peer may not execute it.
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
