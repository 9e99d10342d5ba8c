//! Limits: some are the same for all devices, others are set for each guest.

/// The one port of a device.
pub(crate) const PORT: u32 = 1;
/// The partition of every port.
pub(crate) const PARTITION: u16 = 0xffff;
/// Requests in a queue.
pub(crate) const MAX_WORK: u32 = 16 << 10;
/// Segments of a request.
pub(crate) const MAX_SEGMENTS: u32 = 32;
/// Bytes of an inline message.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Completions in a queue.
pub(crate) const MAX_COMPLETIONS: u32 = 1 << 20;
/// Most READs and atomics of a queue pair in progress, in either direction.
pub(crate) const MAX_READS: u32 = 16;
/// Protection domains of a device.
pub(crate) const MAX_PDS: u32 = 1024;
/// Multicast groups of a device.
pub(crate) const MAX_GROUPS: u32 = 1024;
/// Most queue pairs attached to a group, which is the number of copies of a datagram.
pub(crate) const MAX_MEMBERS: u32 = 128;
/// Most queue pairs attached to all groups together.
pub(crate) const MAX_ATTACHED: u32 = 4096;

/// Limits of a guest's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Bytes of all memory regions.
    pub registered: u64,
    /// Bytes of queues and tables of regions, both those shared with applications and the daemon's own.
    pub queues: u64,
    /// Applications at a time; the guest's processes.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { qps: 4096, mrs: 65_536, registered: 1 << 40, queues: 512 << 20, connections: 256 }
    }
}

impl Limits {
    /// Completion queues, and completion channels.
    pub(crate) const fn cqs(&self) -> u32 {
        self.qps.saturating_mul(2)
    }

    /// Address handles: a UD queue pair has many peers.
    pub(crate) fn ahs(&self) -> u32 {
        self.qps.saturating_mul(16).max(16 << 10)
    }
}
