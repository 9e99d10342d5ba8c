//! Packets for display: dropped and captured ones.

use crate::Filter;
use model::{DropReason, VifId};

/// A dropped packet in the drop log.
#[derive(Clone, Debug, PartialEq)]
pub struct DroppedPacket {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The interface by which the packet came in.
    pub ingress: VifId,
    /// The reason for the drop.
    pub reason: DropReason,
    /// Whole length, bytes.
    pub len: u32,
    /// The first bytes of the packet.
    pub head: Vec<u8>,
}

/// The packets that a capture takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CaptureFilter {
    /// Only at this interface.
    pub vif: Option<VifId>,
    /// Only packets for which this filter holds. A tunnel packet has the properties of its outer and of its
    /// inner headers.
    pub filter: Filter,
    /// Number of bytes kept of each packet.
    pub snap_len: u32,
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The interface.
    pub vif: VifId,
    /// Whether it left by the interface; otherwise it came in.
    pub outbound: bool,
    /// The reason for the drop, if the packet was dropped.
    pub dropped: Option<DropReason>,
    /// Whole length, bytes.
    pub len: u32,
    /// The packet's bytes, at most `snap_len`.
    pub bytes: Vec<u8>,
}
