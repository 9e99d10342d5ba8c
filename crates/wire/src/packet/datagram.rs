//! UDP segmentation: one frame for several datagrams that differ only in their payload, as the kernel passes it
//! between devices that support it. Its headers are those of one datagram, followed by all payloads.

use mem::{Csum, Offload, Segment, gather};
use packet::checksum::{self, pseudo_header};
use packet::{Fragment, L4, proto};
use std::net::IpAddr;

/// Most bytes of headers: Ethernet with two tags, IPv4 with all its options (or IPv6 with some), UDP.
pub(super) const MAX_HEADERS: usize = 96;

/// Most bytes of a joined frame: the kernel segments longer ones at once.
const MAX_JOINED: usize = u16::MAX as usize;

/// Offset of the destination port in a frame without tags and IP options.
const PORT_V4: usize = proto::ETHERNET_LEN + proto::IPV4_LEN + 2;
const PORT_V6: usize = proto::ETHERNET_LEN + proto::IPV6_LEN + 2;

/// The headers of a UDP packet, and the length of its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    /// The headers, with zeros in the fields in which the datagrams of one frame differ.
    common: [u8; MAX_HEADERS],
    ip: usize,
    /// Offset of the UDP header.
    pub udp: usize,
    addresses: (IpAddr, IpAddr),
    /// IPv4's identification; zero in IPv6.
    id: u16,
    pub payload: usize,
}

impl Datagram {
    /// Parses the headers of `frame`; `None` if it isn't exactly one whole UDP packet.
    pub fn parse(frame: Segment) -> Option<Self> {
        let mut common = [0; MAX_HEADERS];
        let head = gather(&[frame], 0, &mut common);
        let headers = packet::Headers::ethernet(&common[..head], 0, frame.len()).ok()?;
        let whole = headers.ip().filter(|ip| ip.fragment == Fragment::Whole)?;
        let (ip, udp) = (usize::from(whole.at), usize::from(headers.l4_at));
        let payload = (ip + whole.len as usize).checked_sub(udp + proto::UDP_LEN)?;
        let udp_len = u16::from_be_bytes([*common.get(udp + 4)?, *common.get(udp + 5)?]);
        let fits = udp + proto::UDP_LEN + payload == frame.len()
            && usize::from(udp_len) == proto::UDP_LEN + payload
            && matches!(headers.l4, L4::Udp { .. });
        if !fits || udp + proto::UDP_LEN > head {
            return None;
        }
        let mut datagram = Self { common, ip, udp, addresses: (whole.src, whole.dst), id: 0, payload };
        datagram.common[udp + proto::UDP_LEN..].fill(0);
        datagram.common[udp + 4..udp + 8].fill(0);
        if whole.src.is_ipv4() {
            datagram.id = u16::from_be_bytes([common[ip + 4], common[ip + 5]]);
            datagram.common[ip + 2..ip + 6].fill(0);
            datagram.common[ip + 10..ip + 12].fill(0);
        } else {
            datagram.common[ip + 4..ip + 6].fill(0);
        }
        Some(datagram)
    }

    /// Like [`Self::parse`], but only for a tunnel packet that may be joined with others. A joined packet arrives with
    /// a checksum (over IPv6, the one that it had) and a new identification. The identification means nothing, because
    /// the packet must not be fragmented.
    pub fn joinable(frame: Segment) -> Option<Self> {
        let port = match frame.load::<2>(12).map(u16::from_be_bytes)? {
            proto::ETHERTYPE_IPV4 => PORT_V4,
            proto::ETHERTYPE_IPV6 => PORT_V6,
            _ => return None,
        };
        let port = u16::from_be_bytes(frame.load(port)?);
        if !matches!(port, proto::PORT_MPLS | proto::PORT_VXLAN) {
            return None;
        }
        let datagram = Self::parse(frame)?;
        let unaltered = match datagram.addresses.0 {
            IpAddr::V4(_) => {
                const DONT_FRAGMENT: u8 = 0x40;
                let no_checksum = frame.load::<2>(datagram.udp + 6)? == [0, 0];
                no_checksum && datagram.common[datagram.ip + 6] & DONT_FRAGMENT != 0
            }
            IpAddr::V6(_) => true,
        };
        let is_tunnel =
            datagram.common[datagram.udp + 2..datagram.headers()].starts_with(&port.to_be_bytes());
        (unaltered && is_tunnel && datagram.payload > 0).then_some(datagram)
    }

    /// Returns the length of all headers, in bytes.
    pub const fn headers(&self) -> usize {
        self.udp + proto::UDP_LEN
    }

    /// Returns whether `next` may be appended to a frame that starts with this datagram and has `payload` bytes of
    /// payload so far. All datagrams of a frame except the last must be as long as the first.
    pub fn takes(&self, next: &Self, payload: usize) -> bool {
        next.payload <= self.payload
            && payload.is_multiple_of(self.payload)
            && self.headers() + payload + next.payload <= MAX_JOINED
            && self.common == next.common
    }

    /// Makes the headers of datagram `index` of the frame, for `payload` bytes of payload. The checksum is partial.
    pub fn headers_of(&self, index: usize, payload: usize) -> [u8; MAX_HEADERS] {
        let mut head = self.common;
        let mut set = |at: usize, value: u16| head[at..at + 2].copy_from_slice(&value.to_be_bytes());
        let udp_len = proto::UDP_LEN + payload;
        let packet_len = self.udp - self.ip + udp_len;
        let (src, dst) = self.addresses;
        set(self.udp + 4, udp_len as u16);
        set(self.udp + 6, pseudo_header(src, dst, proto::UDP, udp_len as u32).fold());
        if src.is_ipv6() {
            set(self.ip + 4, (packet_len - proto::IPV6_LEN) as u16);
        } else {
            set(self.ip + 2, packet_len as u16);
            set(self.ip + 4, self.id.wrapping_add(index as u16));
            let sum = checksum::sum(&head[self.ip..self.udp]).finish();
            head[self.ip + 10..self.ip + 12].copy_from_slice(&sum.to_be_bytes());
        }
        head
    }

    /// Returns the offload of a frame with the headers of [`Self::headers_of`].
    pub const fn offload(&self) -> Offload {
        Offload { csum: Csum::Partial { start: self.udp as u16, offset: 6 }, gso: None }
    }
}
