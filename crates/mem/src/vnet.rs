//! Conversion between `struct virtio_net_hdr` (VIRTIO 1.2, 5.1.6), which guests, taps and packet sockets put before
//! each frame, and [`Offload`].
//!
//! All fields are little-endian, as in VIRTIO 1 and in the kernel on the hosts we run on.

use crate::{Accepts, Csum, Gso, Offload};

/// Bytes of the header with `num_buffers`: guests with VIRTIO 1, taps.
pub const VNET_HEADER: usize = 12;

/// Bytes of the header without `num_buffers`: packet sockets.
pub const VNET_HEADER_SHORT: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Whether to trust a sender that claims to have verified a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataValid {
    /// The sender is the kernel, which has verified it.
    Trust,
    /// The sender is a guest's driver, which VIRTIO forbids to claim it (5.1.6.2.1).
    Ignore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVnetHeader {
    /// The checksum field lies outside the frame.
    #[error("checksum field outside the frame")]
    CsumOutside,
    /// The checksum is partial, which the sender did not negotiate.
    #[error("partial checksum not negotiated")]
    CsumRefused,
    /// The segmentation type is unknown, or the sender did not negotiate it.
    #[error("segmentation type unknown or not negotiated")]
    GsoRefused,
    /// The header of a large segment has no segment size.
    #[error("large segment with segment size 0")]
    GsoSize,
    /// The checksum of a large segment is not partial, so that its segments could not get theirs.
    #[error("large segment without partial checksum")]
    GsoWithoutCsum,
}

/// Reads the header of a frame of `frame_len` bytes. The sender may leave unfinished what `allowed` contains.
///
/// `header` is a private copy, whose bytes were read once. Unknown flags are ignored (VIRTIO 1.2, 5.1.6.2.2).
/// `hdr_len` is only a hint, and `csum_start` is only known to be within the frame: users of these fields compare them
/// with the parsed headers.
///
/// # Errors
/// [`BadVnetHeader`].
#[inline]
pub fn parse(
    header: &[u8; VNET_HEADER_SHORT],
    frame_len: usize,
    allowed: Accepts,
    data_valid: DataValid,
) -> Result<Offload, BadVnetHeader> {
    let &[flags, gso_type, ..] = header;
    if flags == 0 && gso_type == GSO_NONE {
        return Ok(Offload::default());
    }
    parse_unfinished(header, frame_len, allowed, data_valid)
}

/// Reads the header of a frame of which something is unfinished.
fn parse_unfinished(
    header: &[u8; VNET_HEADER_SHORT],
    frame_len: usize,
    allowed: Accepts,
    data_valid: DataValid,
) -> Result<Offload, BadVnetHeader> {
    let &[flags, gso_type, ..] = header;
    let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let csum = if flags & NEEDS_CSUM != 0 {
        if !allowed.csum {
            return Err(BadVnetHeader::CsumRefused);
        }
        let (start, offset) = (field(6), field(8));
        if usize::from(start) + usize::from(offset) + 2 > frame_len {
            return Err(BadVnetHeader::CsumOutside);
        }
        Csum::Partial { start, offset }
    } else if flags & DATA_VALID != 0 && data_valid == DataValid::Trust {
        Csum::Valid
    } else {
        Csum::Unknown
    };
    let ecn = gso_type & GSO_ECN != 0;
    let v6 = match gso_type & !GSO_ECN {
        GSO_NONE if !ecn => return Ok(Offload { csum, gso: None }),
        GSO_TCPV4 if allowed.tso4 => false,
        GSO_TCPV6 if allowed.tso6 => true,
        _ => return Err(BadVnetHeader::GsoRefused),
    };
    if ecn && !allowed.ecn {
        return Err(BadVnetHeader::GsoRefused);
    }
    let (hdr_len, size) = (field(2), field(4));
    if size == 0 {
        return Err(BadVnetHeader::GsoSize);
    }
    if !matches!(csum, Csum::Partial { .. }) {
        return Err(BadVnetHeader::GsoWithoutCsum);
    }
    Ok(Offload { csum, gso: Some(Gso { v6, size, hdr_len, ecn }) })
}

/// Builds the header for a frame with `offload`; `num_buffers` (the last two bytes) is left zero for the
/// caller.
#[must_use]
#[inline]
pub fn build(offload: &Offload) -> [u8; VNET_HEADER] {
    if *offload == Offload::default() { [0; VNET_HEADER] } else { build_unfinished(offload) }
}

fn build_unfinished(offload: &Offload) -> [u8; VNET_HEADER] {
    let mut header = [0; VNET_HEADER];
    let mut set = |at: usize, value: u16| header[at..at + 2].copy_from_slice(&value.to_le_bytes());
    let flags = match offload.csum {
        Csum::Unknown => 0,
        Csum::Valid => DATA_VALID,
        Csum::Partial { start, offset } => {
            set(6, start);
            set(8, offset);
            NEEDS_CSUM
        }
    };
    let gso_type = match offload.gso {
        None => GSO_NONE,
        Some(gso) => {
            set(2, gso.hdr_len);
            set(4, gso.size);
            (if gso.v6 { GSO_TCPV6 } else { GSO_TCPV4 }) | (if gso.ecn { GSO_ECN } else { 0 })
        }
    };
    header[0] = flags;
    header[1] = gso_type;
    header
}

/// Builds the header of a frame that holds several UDP datagrams. Their payload follows the `hdr_len` bytes
/// up to and including UDP's header at `udp`: `size` bytes for each datagram, perhaps fewer for the last one.
/// Their checksums are partial.
#[must_use]
pub fn build_datagrams(udp: u16, hdr_len: u16, size: u16) -> [u8; VNET_HEADER_SHORT] {
    let [[h0, h1], [s0, s1], [u0, u1]] = [hdr_len, size, udp].map(u16::to_le_bytes);
    [NEEDS_CSUM, GSO_UDP_L4, h0, h1, s0, s1, u0, u1, 6, 0]
}

/// Returns the payload bytes of each datagram, if the frame with this header holds several. [`parse`] refuses
/// such headers: these frames are only for receivers that split them.
#[must_use]
#[inline]
pub fn datagrams(header: &[u8; VNET_HEADER_SHORT]) -> Option<u16> {
    let &[_, gso_type, _, _, s0, s1, ..] = header;
    (gso_type == GSO_UDP_L4).then(|| u16::from_le_bytes([s0, s1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: true };
    const PARTIAL: Csum = Csum::Partial { start: 34, offset: 16 };

    fn short(header: [u8; VNET_HEADER]) -> [u8; VNET_HEADER_SHORT] {
        let mut short = [0; VNET_HEADER_SHORT];
        short.copy_from_slice(&header[..VNET_HEADER_SHORT]);
        short
    }

    fn parse_trusted(
        offload: &Offload,
        frame_len: usize,
        allowed: Accepts,
    ) -> Result<Offload, BadVnetHeader> {
        parse(&short(build(offload)), frame_len, allowed, DataValid::Trust)
    }

    fn tso(v6: bool, ecn: bool) -> Offload {
        Offload { csum: PARTIAL, gso: Some(Gso { v6, size: 1448, hdr_len: 66, ecn }) }
    }

    #[test]
    fn layout_is_that_of_virtio() {
        let header = build(&tso(true, true));
        assert_eq!(header, [1, 0x84, 66, 0, 0xa8, 0x05, 34, 0, 16, 0, 0, 0]);
    }

    #[test]
    fn every_offload_comes_back_as_it_went() {
        for offload in [
            Offload::default(),
            Offload { csum: Csum::Valid, gso: None },
            Offload { csum: PARTIAL, gso: None },
            tso(false, false),
            tso(false, true),
            tso(true, false),
            tso(true, true),
        ] {
            assert_eq!(parse_trusted(&offload, 3000, ALL), Ok(offload));
        }
    }

    #[test]
    fn checksum_field_must_lie_in_the_frame() {
        let offload = Offload { csum: PARTIAL, gso: None };
        assert_eq!(parse_trusted(&offload, 52, ALL), Ok(offload));
        assert_eq!(parse_trusted(&offload, 51, ALL), Err(BadVnetHeader::CsumOutside));
        let far = Offload { csum: Csum::Partial { start: u16::MAX, offset: u16::MAX }, gso: None };
        assert_eq!(parse_trusted(&far, 65_550, ALL), Err(BadVnetHeader::CsumOutside));
    }

    #[test]
    fn what_was_not_negotiated_is_refused() {
        let csum = Offload { csum: PARTIAL, gso: None };
        assert_eq!(parse_trusted(&csum, 100, Accepts::default()), Err(BadVnetHeader::CsumRefused));
        for (offload, allowed) in [
            (tso(false, false), Accepts { tso4: false, ..ALL }),
            (tso(true, false), Accepts { tso6: false, ..ALL }),
            (tso(false, true), Accepts { ecn: false, ..ALL }),
        ] {
            assert_eq!(parse_trusted(&offload, 3000, allowed), Err(BadVnetHeader::GsoRefused));
        }
    }

    #[test]
    fn segmentation_must_be_known_and_whole() {
        let good = short(build(&tso(false, false)));
        for unknown in [2, 3, 5, 0x80, 0x83, 0xff] {
            let mut header = good;
            header[1] = unknown;
            assert_eq!(
                parse(&header, 3000, ALL, DataValid::Trust),
                Err(BadVnetHeader::GsoRefused),
                "{unknown}"
            );
        }
        let mut header = good;
        header[4..6].fill(0);
        assert_eq!(parse(&header, 3000, ALL, DataValid::Trust), Err(BadVnetHeader::GsoSize));
        let mut header = good;
        header[0] = 0;
        assert_eq!(parse(&header, 3000, ALL, DataValid::Trust), Err(BadVnetHeader::GsoWithoutCsum));
    }

    #[test]
    fn datagrams_are_for_those_who_ask_for_them() {
        let header = build_datagrams(34, 42, 1000);
        assert_eq!(header, [1, 5, 42, 0, 0xe8, 0x03, 34, 0, 6, 0]);
        assert_eq!(datagrams(&header), Some(1000));
        assert_eq!(parse(&header, 3000, ALL, DataValid::Trust), Err(BadVnetHeader::GsoRefused));
        assert_eq!(datagrams(&short(build(&tso(false, false)))), None);
    }

    #[test]
    fn guests_are_not_believed_that_a_checksum_is_right() {
        let header = short(build(&Offload { csum: Csum::Valid, gso: None }));
        assert_eq!(parse(&header, 60, ALL, DataValid::Ignore), Ok(Offload::default()));
    }

    #[test]
    fn unknown_flags_are_ignored() {
        let mut header = [0; VNET_HEADER_SHORT];
        header[0] = 0xfc;
        assert_eq!(parse(&header, 60, ALL, DataValid::Trust), Ok(Offload::default()));
    }
}
