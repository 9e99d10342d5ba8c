//! Frames: UDP datagrams, ICMPv6, and the way back to a client.

use crate::{Binding, Plan, Refused};
use packet::build::{Ipv4, Ipv6, ethernet, ipv4, ipv6, udp};
use packet::checksum::{self, L4Check, verify_l4};
use packet::{Headers, L4, Mac, WriteError, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Time to live of answers.
const TTL: u8 = 64;
/// The hop limit of neighbour discovery: no router has forwarded it (RFC 4861, 3.1).
const LINK_HOPS: u8 = 255;
/// All nodes of the link.
pub(crate) const ALL_NODES: (Mac, Ipv6Addr) =
    (Mac([0x33, 0x33, 0, 0, 0, 1]), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));

/// A datagram that came from a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    /// The sender's MAC.
    pub(crate) from: Mac,
    pub(crate) src: IpAddr,
    pub(crate) payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    pub(crate) fn read(frame: &'a [u8], headers: &Headers) -> Result<Self, Refused> {
        let read = || {
            let (ip, L4::Udp { .. }) = (headers.ip()?, headers.l4) else { return None };
            let is_right = matches!(verify_l4(frame, headers), L4Check::Right | L4Check::Absent);
            let udp = usize::from(headers.l4_at);
            let len = u16::from_be_bytes(*frame.get(udp + 4..)?.first_chunk()?);
            let end = (usize::from(ip.at) + ip.len as usize).min(udp + usize::from(len));
            let payload = frame.get(udp + proto::UDP_LEN..end).filter(|_| is_right)?;
            Some(Self { from: headers.eth.as_ref()?.src, src: ip.src, payload })
        };
        read().ok_or(Refused::Malformed)
    }
}

/// The way back to who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Back {
    /// The MACs and addresses of the gateway and the guest, and their ports.
    macs: (Mac, Mac),
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
}

impl Back {
    pub(crate) fn of(headers: &Headers) -> Result<Self, Refused> {
        let (Some(eth), Some(ip)) = (&headers.eth, headers.ip()) else { return Err(Refused::Malformed) };
        let (L4::Udp { src, dst } | L4::Tcp { src, dst, .. }) = headers.l4 else {
            return Err(Refused::Malformed);
        };
        Ok(Self { macs: (eth.dst, eth.src), addresses: (ip.dst, ip.src), ports: (dst, src) })
    }

    /// Returns how long an answer may be on a link with this MTU.
    pub(crate) fn room(&self, mtu: u16) -> usize {
        let headers = if self.addresses.0.is_ipv4() { proto::IPV4_LEN } else { proto::IPV6_LEN };
        usize::from(mtu).saturating_sub(headers + proto::UDP_LEN)
    }

    /// Returns the address of the gateway.
    pub(crate) fn own(&self) -> IpAddr {
        self.addresses.0
    }

    /// Returns the address of the guest.
    pub(crate) fn guest(&self) -> IpAddr {
        self.addresses.1
    }

    /// Returns the MAC of the guest.
    pub(crate) fn mac(&self) -> Mac {
        self.macs.1
    }

    /// Returns the ports of the gateway and the guest.
    pub(crate) fn ports(&self) -> (u16, u16) {
        self.ports
    }

    /// Returns the frame with an IP packet to the guest.
    pub(crate) fn framed(&self, packet: &[u8]) -> Result<Vec<u8>, Refused> {
        let kind = if self.addresses.0.is_ipv4() { proto::ETHERTYPE_IPV4 } else { proto::ETHERTYPE_IPV6 };
        let mut frame = vec![0; proto::ETHERNET_LEN];
        ethernet(&mut frame, self.macs.1, self.macs.0, kind).map_err(|_| Refused::Malformed)?;
        frame.extend_from_slice(packet);
        Ok(frame)
    }

    /// Returns the frame of an answer.
    pub(crate) fn frame(&self, payload: &[u8]) -> Result<Vec<u8>, Refused> {
        match self.addresses {
            (IpAddr::V4(own), IpAddr::V4(guest)) => {
                let from = End { mac: self.macs.0, addr: own, port: self.ports.0 };
                let to = End { mac: self.macs.1, addr: guest, port: self.ports.1 };
                datagram(from, to, payload).map_err(|_| Refused::Malformed)
            }
            (IpAddr::V6(own), IpAddr::V6(guest)) => {
                let mut body = udp_body(self.ports, payload)?;
                packet6((self.macs.0, own), (proto::UDP, TTL, 6), (self.macs.1, guest), &mut body)
            }
            _ => Err(Refused::Malformed),
        }
    }
}

/// Who sends a datagram, or gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) mac: Mac,
    pub(crate) addr: Ipv4Addr,
    pub(crate) port: u16,
}

/// Returns the frame of a datagram.
pub(crate) fn datagram(from: End, to: End, payload: &[u8]) -> Result<Vec<u8>, WriteError> {
    const IP: usize = proto::ETHERNET_LEN;
    const UDP: usize = IP + proto::IPV4_LEN;
    const PAYLOAD: usize = UDP + proto::UDP_LEN;
    let len = |all: usize| u16::try_from(all).map_err(|_| WriteError::TooShort);
    let mut frame = vec![0; PAYLOAD + payload.len()];
    let ip = Ipv4 {
        src: from.addr,
        dst: to.addr,
        protocol: proto::UDP,
        ttl: TTL,
        tos: 0,
        id: 0,
        dont_fragment: true,
        len: len(frame.len() - IP)?,
    };
    let udp_len = len(frame.len() - UDP)?;
    ethernet(&mut frame, to.mac, from.mac, proto::ETHERTYPE_IPV4)?;
    ipv4(&mut frame[IP..], &ip)?;
    udp(&mut frame[UDP..], from.port, to.port, udp_len, 0)?;
    frame[PAYLOAD..].copy_from_slice(payload);
    let sum = checksum::l4(from.addr.into(), to.addr.into(), proto::UDP, &frame[UDP..]);
    frame[UDP + 6..PAYLOAD].copy_from_slice(&sum.to_be_bytes());
    Ok(frame)
}

/// Returns the frame of a datagram from the router to a host on the link. `ports`: from and to.
pub(crate) fn datagram6(
    plan: &Plan,
    guest: &Binding,
    ports: (u16, u16),
    to: (Mac, Ipv6Addr),
    payload: &[u8],
) -> Result<Vec<u8>, Refused> {
    let mut body = udp_body(ports, payload)?;
    packet6((plan.gateway_mac, guest.router(plan)), (proto::UDP, TTL, 6), to, &mut body)
}

/// Returns a datagram without checksum. `ports`: from and to.
fn udp_body(ports: (u16, u16), payload: &[u8]) -> Result<Vec<u8>, Refused> {
    let len = u16::try_from(proto::UDP_LEN + payload.len()).map_err(|_| Refused::Malformed)?;
    let mut body = vec![0; len.into()];
    udp(&mut body, ports.0, ports.1, len, 0).map_err(|_| Refused::Malformed)?;
    body[proto::UDP_LEN..].copy_from_slice(payload);
    Ok(body)
}

/// Returns the frame of an ICMPv6 message from the router, whose checksum is missing.
pub(crate) fn icmpv6(
    plan: &Plan,
    guest: &Binding,
    to: (Mac, Ipv6Addr),
    message: &mut [u8],
) -> Result<Vec<u8>, Refused> {
    packet6((plan.gateway_mac, guest.router(plan)), (proto::ICMPV6, LINK_HOPS, 2), to, message)
}

/// Returns the frame of an IPv6 packet. `kind`: protocol, hop limit, and where the checksum is.
fn packet6(
    (from, src): (Mac, Ipv6Addr),
    (next_header, hop_limit, sum_at): (u8, u8, usize),
    (mac, dst): (Mac, Ipv6Addr),
    body: &mut [u8],
) -> Result<Vec<u8>, Refused> {
    let payload_len = u16::try_from(body.len()).map_err(|_| Refused::Malformed)?;
    let sum = checksum::l4(src.into(), dst.into(), next_header, body);
    body[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let ip = Ipv6 { src, dst, next_header, hop_limit, traffic_class: 0, flow_label: 0, payload_len };
    let mut frame = vec![0; proto::ETHERNET_LEN + proto::IPV6_LEN];
    ethernet(&mut frame, mac, from, proto::ETHERTYPE_IPV6).map_err(|_| Refused::Malformed)?;
    ipv6(&mut frame[proto::ETHERNET_LEN..], &ip).map_err(|_| Refused::Malformed)?;
    frame.extend_from_slice(body);
    Ok(frame)
}
