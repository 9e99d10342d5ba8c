//! UDP datagrams in frames.

use crate::Refused;
use packet::build::{Ipv4, ethernet, ipv4, udp};
use packet::checksum::{self, L4Check, verify_l4};
use packet::{Headers, L4, Mac, WriteError, proto};
use std::net::{IpAddr, Ipv4Addr};

/// Time to live of answers.
const TTL: u8 = 64;

/// A datagram that came from a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    /// The sender's MAC.
    pub(crate) from: Mac,
    pub(crate) src: IpAddr,
    pub(crate) to_port: u16,
    pub(crate) payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    pub(crate) fn read(frame: &'a [u8]) -> Result<Self, Refused> {
        let read = || {
            let headers = Headers::ethernet(frame, 0, frame.len()).ok()?;
            let (ip, L4::Udp { dst: to_port, .. }) = (headers.ip()?, headers.l4) else { return None };
            let is_right = matches!(verify_l4(frame, &headers), L4Check::Right | L4Check::Absent);
            let udp = usize::from(headers.l4_at);
            let len = u16::from_be_bytes(*frame.get(udp + 4..)?.first_chunk()?);
            let end = (usize::from(ip.at) + ip.len as usize).min(udp + usize::from(len));
            let payload = frame.get(udp + proto::UDP_LEN..end).filter(|_| is_right)?;
            Some(Self { from: headers.eth.as_ref()?.src, src: ip.src, to_port, payload })
        };
        read().ok_or(Refused::Malformed)
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
