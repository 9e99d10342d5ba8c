//! The traits through which an executor moves packets. `virtio`, `wire` and `ringport` implement them; the executor
//! sees nothing else of ports.
//!
//! The life of a port, and on which thread each step runs:
//!
//! 1. **Opened**, on a thread of the control plane (`control` asks, `viaductd` calls the crate of the port's
//!    kind). That makes the queues and starts the port's own thread where it needs one: it serves the VMM of a
//!    guest (`virtio`), follows the state of a network device, or keeps a tap (`wire`). The result is
//!    [`Opened`]. Nothing polls it yet.
//! 2. **Started**, on the same thread: the executor's `attach` keeps the [`Port`], gives each [`RxQueue`] to one
//!    worker (with a card in front, to the card's carrier) and every [`TxQueue`] to all of them, by messages
//!    that each worker takes between two bursts.
//! 3. **Polled**, on the workers' threads. A worker calls [`RxQueue::poll`], forwards the burst and calls
//!    [`RxQueue::release`]; it sends by [`TxQueue::burst`], which any worker may call. Before it sleeps it calls
//!    [`RxQueue::arm`] and waits for [`RxQueue::event_fd`]; after that, [`RxQueue::disarm`].
//! 4. **Down and up again**, by the other side: the VMM goes or resets its device, a network device disappears,
//!    a guest breaks its ring. The port's own thread, or the worker that meets the fault, stops the queues. Then
//!    `poll` finds nothing, sending fails with [`NoRoom::Down`], and [`Port::is_up`] is false. Queues and their
//!    descriptors stay the same, so the workers need not be told when the other side comes back.
//! 5. **Stopped**, on a thread of the control plane: the executor's `detach` has every worker drop its queues,
//!    and returns once all have done so, except workers that are stalled: these drop theirs when they move on.
//! 6. **Gone** with the last [`Arc`] of the [`Port`], which the control plane holds: dropping it ends the port's
//!    own thread, waits for it (`virtio` a second at most) and removes its socket or device.

use crate::{Burst, Offload, Segment, copy, scatter};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The receiving half of one queue pair: it takes packets that the guest sent, or that came in through the
/// wire. One worker owns it.
pub trait RxQueue: Send {
    /// Takes packets into the empty `burst`, at most [`crate::BURST`] and about `byte_budget` bytes (but always one
    /// packet if there is one). Returns how many. Malformed ones are returned to the other side at once and counted in
    /// [`PortStatus`]. The memory stays valid until [`RxQueue::release`].
    fn poll(&mut self, burst: &mut Burst, byte_budget: usize) -> usize;

    /// Returns the burst's packets to the other side, in the order in which they came, and clears it. Must follow
    /// every `poll` that returned packets.
    fn release(&mut self, burst: &mut Burst);

    /// Returns a descriptor that polls readable when there are packets after [`RxQueue::arm`]. It stays the
    /// same for the life of the queue, whatever the other side does.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Requests events, before sleeping. True if packets are already waiting (then don't sleep).
    fn arm(&mut self) -> bool;

    /// Ends the request for events and drains pending ones, after waking.
    fn disarm(&mut self);

    /// Tells that the worker waited in the kernel while it served its queues. A queue whose other side can make
    /// that happen finds out whether it did.
    fn suspect(&mut self) {}
}

/// The kinds of unfinished packets that the other side accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepts {
    /// Partial checksums ([`crate::Csum::Partial`]).
    pub csum: bool,
    /// Large TCP segments over IPv4.
    pub tso4: bool,
    /// Large TCP segments over IPv6.
    pub tso6: bool,
    /// Large TCP segments with CWR.
    pub ecn: bool,
}

/// The reason why there is no room for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// No free buffers now, or none found within the work that a packet is worth.
    #[error("no free buffers")]
    Full,
    /// Longer than the largest buffer that the other side posts.
    #[error("packet longer than the receiver's buffers")]
    TooLong,
    /// Too much waits already for the rate of the other side.
    #[error("too much waits for its rate")]
    Waiting,
    /// Not connected, not started, or disabled after a fault.
    #[error("not connected")]
    Down,
}

/// Successive frames for which there was room, and which the other side refused when it got them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Their numbers among the frames that were reserved in this burst.
    pub frames: Range<usize>,
    /// Bytes of all of them.
    pub bytes: usize,
    /// The reason.
    pub why: NoRoom,
}

/// Room for packets in a queue that the caller of [`TxQueue::burst`] has leased.
pub trait Room {
    /// Reserves room for one frame of `len` bytes, in order, and writes its metadata. The caller then fills the
    /// returned segments (whose lengths sum up to `len`) before the next call. `offload` holds only what
    /// [`TxQueue::accepts`] and [`Room::tells_valid`] allow.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing was reserved.
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom>;

    /// Declares that the frames reserved from here on in this burst belong to the flow of Open vSwitch with
    /// this counter, or to no flow. The other side is told if it is that switch.
    fn mark(&mut self, _flow: Option<u32>) {}

    /// Returns whether the other side is told that a checksum is right ([`crate::Csum::Valid`]) although it
    /// accepts no partial checksums.
    fn tells_valid(&self) -> bool {
        false
    }

    /// Sends what was reserved, if the other side may refuse frames only then, and passes the frames of this
    /// burst that it refused to `refused`, in their order. The caller of [`TxQueue::burst`] calls this last.
    fn settle(&mut self, _refused: &mut dyn FnMut(Refusal)) {}

    /// Reserves room for a frame and stores it: first `head`, then the `rest_len` bytes from `rest_at` of the packet
    /// in `rest`.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing was reserved.
    fn put(
        &mut self,
        head: &[u8],
        rest: &[Segment],
        rest_at: usize,
        rest_len: usize,
        offload: &Offload,
    ) -> Result<(), NoRoom> {
        let dst = self.reserve(head.len() + rest_len, offload)?;
        scatter(head, dst, 0);
        if rest_len > 0 {
            copy(rest, rest_at, dst, head.len(), rest_len);
        }
        Ok(())
    }
}

/// The sending half of one queue pair. All workers share it; each burst leases it.
pub trait TxQueue: Send + Sync {
    /// Returns the unfinished packets that the other side accepts, as currently negotiated.
    fn accepts(&self) -> Accepts;

    /// Leases the queue (one atomic exchange, bounded spin), runs `fill`, publishes everything that was
    /// reserved, and notifies the other side if that asked for it. False, with `fill` not run, if a different
    /// worker held the queue for too long.
    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool;

    /// Returns whether there is room for more than a burst. Always true for queues that nobody should wait
    /// for.
    fn has_room(&self) -> bool {
        true
    }

    /// Tells what [`RxQueue::suspect`] does.
    fn suspect(&self) {}
}

/// State of a port, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// Whether packets can flow.
    pub up: bool,
    /// Negotiated features, or the driver's mode, in words.
    pub features: Vec<String>,
    /// Number of queue pairs that the other side uses.
    pub queues: u16,
    /// Why the port was disabled, if a fault of the other side caused it.
    pub fault: Option<String>,
    /// Number of descriptors, chains or frames refused as malformed.
    pub malformed: u64,
    /// Number of frames that the kernel dropped before we received them because its buffers were full (wires,
    /// taps).
    pub lost: u64,
    /// Number of frames that the kernel refused when it got them ([`Room::settle`] tells the reasons; wires, taps), or
    /// for which a guest that is served aside had no buffers then.
    pub refused: u64,
    /// The other side's MTU as agreed, if any.
    pub mtu: Option<u16>,
    /// Link-layer address of the device, if it has its own (wires, taps).
    pub mac: Option<[u8; 6]>,
    /// Whether calls of the kernel for the port are made aside ([`crate::Account`]).
    pub aside: bool,
    /// Whether its memory is touched aside.
    pub pages_aside: bool,
    /// Whether the device is in another network namespace than the daemon, if it can be (taps) and that is known.
    pub elsewhere: Option<bool>,
}

/// A guest's or a wire's device. Dropping it closes it.
pub trait Port: Send + Sync {
    fn status(&self) -> PortStatus;

    /// Returns whether packets can flow, as far as that is known without asking the other side.
    fn is_up(&self) -> bool {
        self.status().up
    }

    /// Makes the other side see its link up or down, if the port is one that can set the link.
    ///
    /// # Errors
    /// The reason why the link stays as it is.
    fn set_link(&self, _up: bool) -> std::io::Result<()> {
        Ok(())
    }

    /// Gives the port's device a different MTU and, if there is one here, a link-layer address, if the device
    /// takes them from us.
    ///
    /// # Errors
    /// The reason why the device keeps what it has.
    fn configure(&self, _mtu: u16, _mac: Option<[u8; 6]>) -> std::io::Result<()> {
        Ok(())
    }

    /// Returns the files that make up the other side's memory, as device and inode number.
    fn memory_files(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Copies the descriptors with which a different process opens the same port: a listening socket, or the
    /// queues of a device. Empty if that process opens the port like any other.
    ///
    /// # Errors
    /// If no descriptors are left.
    fn share(&self) -> std::io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    /// Tells threads of the port that are not needed for packets to rest until [`Port::thaw`], so that nobody waits for
    /// them once packets wait.
    fn rest(&self) {}

    /// Waits for a bounded time until they rest.
    fn await_rest(&self) {}

    /// Begins to stop, so that [`Port::freeze`] waits for less, and several ports stop at the same time.
    fn begin_freeze(&self) {}

    /// Stops at a point where nothing is under way, until [`Port::thaw`], and returns what a different
    /// process needs to go on from there; `None` if there is nothing to go on with.
    ///
    /// # Errors
    /// The reason why the port does not stop, or can't be handed over.
    fn freeze(&self) -> std::io::Result<Option<Frozen>> {
        Ok(None)
    }

    /// Goes on after [`Port::freeze`] or [`Port::adopt`]. A port that was opened to wait for this call
    /// begins.
    fn thaw(&self) {}

    /// Goes on where this port stopped in a different process. The port here was opened to wait for this. Its
    /// VMM is answered after [`Port::thaw`]: until then, the other process may still go on in place of this
    /// one.
    ///
    /// # Errors
    /// The part of `frozen` that can't be used.
    fn adopt(&self, _frozen: Frozen) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// A port that stopped so that a different process can go on with it.
#[derive(Debug, Default)]
pub struct Frozen {
    /// State of the port, in a format of the port's kind that later versions read.
    pub state: String,
    /// The port's open descriptors, in an order that the state tells.
    pub descriptors: Vec<OwnedFd>,
}

/// An opened port: the device and its queues.
pub struct Opened {
    pub port: Arc<dyn Port>,
    /// Receiving queues, each for one worker.
    pub rx: Vec<Box<dyn RxQueue>>,
    /// Sending queues, shared by all workers.
    pub tx: Vec<Arc<dyn TxQueue>>,
}
