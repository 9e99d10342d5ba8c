//! The reference rewrite: the bytes that leave according to a [`Decision`]. It copies whole packets; executors that
//! rewrite in place are tested against it.

mod encap;
mod length;
mod reply;

pub use encap::{encap_len, write_encap};
pub use length::metered_len;
pub use reply::build_reply;

use crate::{Cut, Decision, Effects, Forward, Lookup, Nat, PacketView, Reply, Verdict, VifId, copy_to};
use packet::{Headers, L4, Piece, Pieces, WriteError, build, edit, proto};
use std::ops::Range;

/// Returns every frame that leaves because of a packet: copies of the frame as it came in, deliveries, an
/// answer, and copies of the answer or of the first delivery before encapsulation. `packet.bytes` must hold
/// the whole packet, and its checksum must be complete.
#[must_use]
pub fn emit<T: Lookup>(tables: &T, decision: &Decision, packet: &PacketView<'_>) -> Vec<(VifId, Vec<u8>)> {
    let mut out = Vec::new();
    let Effects { mirror_in, mirror_out, .. } = &decision.effects;
    let copy = |mirror: &VifId, base: &Forward, frame: &PacketView<'_>| {
        let forward = copy_to(tables, &packet.headers, *mirror, base)?;
        Some(frames(&forward, frame).into_iter().map(move |frame| (forward.port, frame)))
    };
    let unchanged = Forward::unchanged(VifId(0));
    out.extend(mirror_in.iter().filter_map(|mirror| copy(mirror, &unchanged, packet)).flatten());
    if let Verdict::Reply(reply) = &decision.verdict {
        out.extend(answer(reply, packet).map(|frame| (reply.forward.port, frame)));
        let bare = answer(&reply.bare(), packet).unwrap_or_default();
        if let Ok(frame) = PacketView::parse(&bare, bare.len() as u32, None) {
            out.extend(mirror_out.iter().filter_map(|mirror| copy(mirror, &unchanged, &frame)).flatten());
        }
    }
    let deliveries = decision.verdict.deliveries();
    for forward in deliveries {
        out.extend(frames(forward, packet).into_iter().map(|frame| (forward.port, frame)));
    }
    let outputs = decision.verdict.outputs();
    out.extend(outputs.iter().filter_map(|output| Some((output.port, output.rewrite(packet)?))));
    if let Some(first) = deliveries.first() {
        out.extend(mirror_out.iter().filter_map(|mirror| copy(mirror, first, packet)).flatten());
    }
    out
}

fn answer(reply: &Reply, packet: &PacketView<'_>) -> Option<Vec<u8>> {
    let mut frame = vec![0; packet.bytes.len() + MAX_ANSWER];
    let len = build_reply(reply, packet, &mut frame).ok()?;
    frame.truncate(len);
    Some(frame)
}

/// Greatest difference in length between an answer and the packet that it answers, bytes: an ICMP error's
/// headers, and a tunnel's.
const MAX_ANSWER: usize = 256;

/// Returns the bytes of a packet that are kept: from `strip` on, without the padding of the links that it
/// leaves. If the Ethernet header is removed, the IP packet is kept; if a tunnel is removed, the packet in
/// the tunnel.
#[must_use]
pub fn kept(forward: &Forward, packet: &PacketView<'_>) -> Range<usize> {
    let start = usize::from(forward.strip);
    let all = packet.len as usize;
    let end = match (start, is_network(forward)) {
        (0, _) => all,
        (_, true) => Headers::network(packet.bytes, start, all)
            .map_or(all, |headers| headers.ip().map_or(all, |ip| start + ip.len as usize)),
        (_, false) => {
            packet::tunnel(packet.bytes, &packet.headers, all).ok().flatten().map_or(all, |t| t.inner_end)
        }
    };
    start..end.max(start)
}

/// Returns whether the kept bytes begin with the IP header rather than an Ethernet header.
fn is_network(forward: &Forward) -> bool {
    forward.ethernet.is_some() || forward.encap.is_some_and(|encap| !encap.kind.has_ethernet())
}

/// Returns the frames of one delivery: several, if the packet is cut into fragments. A large send stays whole. There are
/// none if the decision does not fit this packet.
#[must_use]
pub fn frames(forward: &Forward, packet: &PacketView<'_>) -> Vec<Vec<u8>> {
    let cut = forward.cut.filter(|_| packet.gso_size.is_none() && is_network(forward));
    match cut {
        None => rewrite(forward, packet).into_iter().collect(),
        Some(cut) => pieces(forward, packet, cut).unwrap_or_default(),
    }
}

fn pieces(forward: &Forward, packet: &PacketView<'_>, cut: Cut) -> Option<Vec<Vec<u8>>> {
    let whole = rewrite(forward, packet)?;
    let encap = forward.encap.as_ref().filter(|_| matches!(cut, Cut::Packet(_)));
    let outer = encap.map_or(0, encap_len);
    let ethernet = if forward.ethernet.is_some() { proto::ETHERNET_LEN } else { 0 };
    let tag = if forward.push_vlan.is_some() { proto::VLAN_LEN } else { 0 };
    let (ip, mtu) = match cut {
        Cut::Packet(mtu) => (outer + ethernet + tag, mtu),
        Cut::Tunnel(mtu) => (proto::ETHERNET_LEN, mtu),
    };
    let pieces = Pieces::new(whole.get(ip..)?, whole.len() - ip, mtu.into())?;
    let body = ip + pieces.header_len();
    let piece = |piece: Piece| {
        let mut frame = whole[..body].to_vec();
        piece.write_header(&mut frame[ip..]);
        frame.extend_from_slice(whole.get(body + piece.at..body + piece.at + piece.len)?);
        if let Some(encap) = encap {
            let payload = frame.len() - outer;
            write_encap(&mut frame, encap, payload).ok()?;
        }
        Some(frame)
    };
    pieces.map(piece).collect()
}

/// Returns the frame of one delivery, not cut. `None` if the decision does not fit this packet.
#[must_use]
pub fn rewrite(forward: &Forward, packet: &PacketView<'_>) -> Option<Vec<u8>> {
    // The packet may be one that does not parse (`PacketView::arrived`).
    if *forward == Forward::unchanged(forward.port) {
        return Some(packet.bytes.to_vec());
    }
    let mut body = packet.bytes.get(kept(forward, packet))?.to_vec();
    let parse = if is_network(forward) { Headers::network } else { Headers::ethernet };
    let mut headers = parse(&body, 0, body.len()).ok()?;
    if let Some(tos) = forward.tos.filter(|_| headers.ip().is_some()) {
        edit::set_tos(&mut body, &mut headers, tos).ok()?;
    }
    for _ in 0..forward.ttl_decrement {
        edit::decrement_ttl(&mut body, &mut headers).ok()?;
    }
    let end = body.len();
    translate(&mut body, &mut headers, end, &forward.nat, false).ok()?;
    if let Some(mss) = forward.mss {
        edit::lower_mss(&mut body, &headers, mss, false).ok()?;
    }
    let mut frame = Vec::with_capacity(body.len() + MAX_ANSWER);
    if let Some(ethernet) = &forward.ethernet {
        frame.resize(proto::ETHERNET_LEN, 0);
        build::ethernet(&mut frame, ethernet.dst, ethernet.src, ethernet.ethertype).ok()?;
    }
    frame.append(&mut body);
    let popped = usize::from(forward.pop_tags) * proto::VLAN_LEN;
    let tags = popped > 0 || forward.push_vlan.is_some();
    if tags && frame.len() < TAG_AT + popped {
        return None;
    }
    frame.drain(TAG_AT..TAG_AT + popped);
    if let Some(vlan) = forward.push_vlan {
        frame.splice(TAG_AT..TAG_AT, tag(vlan));
    }
    let Some(encap) = &forward.encap else { return Some(frame) };
    let len = frame.len();
    frame.splice(0..0, std::iter::repeat_n(0, encap_len(encap)));
    write_encap(&mut frame, encap, len).ok()?;
    Some(frame)
}

/// Offset of the outermost tag in a frame: after the addresses.
const TAG_AT: usize = 12;

fn tag(vlan: u16) -> [u8; proto::VLAN_LEN] {
    let ([a, b], [c, d]) = (proto::ETHERTYPE_VLAN.to_be_bytes(), vlan.to_be_bytes());
    [a, b, c, d]
}

/// Translates addresses and ports in a packet that ends at `end`, also in the packet that an ICMP error quotes
/// ([`Nat`]).
///
/// With `partial`, the L4 checksum is still to be completed ([`edit::set_source`]).
///
/// # Errors
/// [`WriteError`] if headers and translation do not fit each other.
pub fn translate(
    bytes: &mut [u8],
    headers: &mut Headers,
    end: usize,
    nat: &Nat,
    partial: bool,
) -> Result<(), WriteError> {
    let Some(ip) = headers.ip().copied() else { return Ok(()) };
    let quoted = headers.quoted(bytes, end).ok().flatten();
    if let Some(mut quoted) = quoted
        && let Some(refused) = quoted.ip().copied()
    {
        if let Some(dst) = nat.dst.filter(|_| refused.src == ip.dst || nat.dst_port.is_some()) {
            edit::set_quoted_source(bytes, headers, &mut quoted, dst, partial)?;
        }
        let src = nat.src.filter(|_| refused.dst == ip.src || nat.src_port.is_some());
        if let Some(dst) = nat.quoted.or(src) {
            edit::set_quoted_destination(bytes, headers, &mut quoted, dst, partial)?;
        }
        if let Some(port) = nat.dst_port {
            edit::set_quoted_source_port(bytes, headers, &mut quoted, port, partial)?;
        }
        if let Some(port) = nat.src_port {
            edit::set_quoted_destination_port(bytes, headers, &mut quoted, port, partial)?;
        }
    } else {
        translate_ports(bytes, headers, nat, partial)?;
    }
    translate_addresses(bytes, headers, nat, partial)
}

/// Translates the addresses of a packet's own IP header.
///
/// # Errors
/// As for [`translate`].
pub fn translate_addresses(
    bytes: &mut [u8],
    headers: &mut Headers,
    nat: &Nat,
    partial: bool,
) -> Result<(), WriteError> {
    if let Some(src) = nat.src {
        edit::set_source(bytes, headers, src, partial)?;
    }
    if let Some(dst) = nat.dst {
        edit::set_destination(bytes, headers, dst, partial)?;
    }
    Ok(())
}

/// Translates the ports of a packet's own L4 header, or the identifier of a ping. Later fragments have neither.
///
/// # Errors
/// As for [`translate`].
pub fn translate_ports(
    bytes: &mut [u8],
    headers: &mut Headers,
    nat: &Nat,
    partial: bool,
) -> Result<(), WriteError> {
    match headers.l4 {
        L4::Icmp { .. } => match nat.src_port.or(nat.dst_port) {
            Some(id) => edit::set_echo_id(bytes, headers, id),
            None => Ok(()),
        },
        L4::Tcp { .. } | L4::Udp { .. } => {
            if let Some(port) = nat.src_port {
                edit::set_source_port(bytes, headers, port, partial)?;
            }
            if let Some(port) = nat.dst_port {
                edit::set_destination_port(bytes, headers, port, partial)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
