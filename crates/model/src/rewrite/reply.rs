//! Viaduct's own answers.

use super::{encap_len, write_encap};
use crate::{PacketView, Reply, ReplyKind};
use packet::{Arp, Headers, L3, Mac, WriteError, build, neighbour, proto, reply};

/// Builds the whole frame of an answer to a packet in `out`. Returns the frame's length, bytes. An echo needs
/// the whole packet in `packet.bytes`, other answers only its headers; an ICMP error quotes as much as is
/// there.
///
/// # Errors
/// [`WriteError`]; nothing can be sent.
pub fn build_reply(reply: &Reply, packet: &PacketView<'_>, out: &mut [u8]) -> Result<usize, WriteError> {
    let forward = &reply.forward;
    let headers = answered(reply, packet).ok_or(WriteError::Mismatch)?;
    let outer = forward.encap.as_ref().map_or(0, encap_len);
    let ethernet = if forward.ethernet.is_some() { proto::ETHERNET_LEN } else { 0 };
    let tag = if forward.push_vlan.is_some() { proto::VLAN_LEN } else { 0 };
    let at = outer + ethernet + tag;
    let body = out.get_mut(at..).ok_or(WriteError::TooShort)?;
    let len = write_body(reply, packet, &headers, body)?;
    if let Some(eth) = &forward.ethernet {
        let frame = &mut out[outer..];
        let outermost = if tag > 0 { proto::ETHERTYPE_VLAN } else { eth.ethertype };
        build::ethernet(frame, eth.dst, eth.src, outermost)?;
        if let Some(vlan) = forward.push_vlan {
            build::vlan(&mut frame[proto::ETHERNET_LEN..], vlan, eth.ethertype)?;
        }
    }
    if let Some(encap) = &forward.encap {
        write_encap(&mut out[..at + len], encap, ethernet + tag + len)?;
    }
    Ok(at + len)
}

/// Returns the headers of the answered packet, as if it had no Ethernet header.
fn answered(reply: &Reply, packet: &PacketView<'_>) -> Option<Headers> {
    let outer = &packet.headers;
    if reply.forward.strip == outer.l3_at {
        return Some(Headers { eth: None, ..outer.clone() });
    }
    let len = packet.len as usize;
    let tunnel = packet::tunnel(packet.bytes, outer, len).ok()??;
    let parse = if tunnel.kind.has_ethernet() { Headers::ethernet } else { Headers::network };
    let inner = parse(packet.bytes, tunnel.inner_at, tunnel.inner_end).ok()?;
    Some(Headers { eth: None, ..inner })
}

fn write_body(
    answer: &Reply,
    packet: &PacketView<'_>,
    headers: &Headers,
    out: &mut [u8],
) -> Result<usize, WriteError> {
    // These answers have no Ethernet header, so no MAC either.
    let no_mac = Mac::default();
    match answer.kind {
        ReplyKind::Arp { mac } => {
            let L3::Arp(asked) = headers.l3 else { return Err(WriteError::Mismatch) };
            let (sender, target) = (asked.target, asked.sender);
            build::arp(
                out,
                &Arp { request: false, sender_mac: mac, sender, target_mac: asked.sender_mac, target },
            )
        }
        ReplyKind::NeighbourAdvertisement { mac, router, anycast } => {
            neighbour::neighbour_advertisement(out, packet.bytes, headers, mac, router, anycast)
        }
        ReplyKind::Echo { src } => reply::echo_reply(out, packet.bytes, headers, no_mac, src),
        ReplyKind::IcmpError { src, error } => {
            reply::icmp_error(out, packet.bytes, headers, error, no_mac, src)
        }
        ReplyKind::TcpReset => reply::tcp_reset(out, packet.bytes, headers, no_mac),
    }
}
