//! The metadata of a packet: an unfinished checksum, and segmentation yet to be done.

/// State of the packet's L4 checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Csum {
    /// In the packet, not checked yet.
    #[default]
    Unknown,
    /// Known to be right end to end, whether it is in the packet or not (VIRTIO_NET_HDR_F_DATA_VALID).
    Valid,
    /// To be completed: the sum from `start` (bytes from the frame's first) to the end must be stored at `start +
    /// offset`, where the pseudo-header's sum already is (VIRTIO_NET_HDR_F_NEEDS_CSUM).
    Partial {
        /// Offset at which summing starts, in bytes from the start of the frame.
        start: u16,
        /// Offset at which the sum is stored, in bytes from `start`.
        offset: u16,
    },
}

/// Segmentation that is yet to be done: the packet is one large TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Over IPv6 (TSO6) rather than IPv4 (TSO4).
    pub v6: bool,
    /// TCP payload bytes per segment.
    pub size: u16,
    /// Bytes of headers up to and including TCP's, as claimed. Whoever segments the packet checks it.
    pub hdr_len: u16,
    /// CWR is set on the first segment only (VIRTIO_NET_HDR_GSO_ECN).
    pub ecn: bool,
}

/// Offload metadata of one packet, in terms of `struct virtio_net_hdr` (VIRTIO 1.2, 5.1.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    pub csum: Csum,
    /// Large segment, if any.
    pub gso: Option<Gso>,
}
