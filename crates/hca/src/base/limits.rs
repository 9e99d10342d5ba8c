//! Limits: some are the same for all devices, others are set for each guest.

pub(crate) const PORT: u32 = 1;
/// The partition of every port: the default partition, with full membership.
pub(crate) const PARTITION: u16 = 0xffff;
/// Most requests in a queue.
pub(crate) const MAX_WORK: u32 = 16 << 10;
/// Most segments of a request.
pub(crate) const MAX_SEGMENTS: u32 = 32;
/// Most bytes of an inline message.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Most completions in a queue.
pub(crate) const MAX_COMPLETIONS: u32 = 1 << 20;
/// Most READs and atomics of a queue pair in progress, in either direction.
pub(crate) const MAX_READS: u32 = 16;
/// Most protection domains of a device.
pub(crate) const MAX_PDS: u32 = 1024;
/// Most multicast groups of a device.
pub(crate) const MAX_GROUPS: u32 = 1024;
/// Most queue pairs attached to a group, which is the number of copies of a datagram.
pub(crate) const MAX_MEMBERS: u32 = 128;
/// Most queue pairs attached to all groups together.
pub(crate) const MAX_ATTACHED: u32 = 4096;

/// Limits of a guest's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most queue pairs.
    pub qps: u32,
    /// Most memory regions.
    pub mrs: u32,
    /// Most bytes of all memory regions.
    pub registered: u64,
    /// Bytes of queues and tables of regions, both those shared with applications and the daemon's own.
    pub queues: u64,
    /// Most applications at a time: processes of the guest.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { qps: 4096, mrs: 65_536, registered: 1 << 40, queues: 512 << 20, connections: 256 }
    }
}

impl Limits {
    /// Returns the most completion queues, which is also the most completion channels.
    pub(crate) const fn cqs(&self) -> u32 {
        self.qps.saturating_mul(2)
    }

    /// Returns the most address handles: a UD queue pair has many peers.
    pub(crate) fn ahs(&self) -> u32 {
        self.qps.saturating_mul(16).max(16 << 10)
    }
}
