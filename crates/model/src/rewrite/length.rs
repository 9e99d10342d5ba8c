//! The length of a packet as it leaves, which policers count.

use super::{encap_len, is_network, kept};
use crate::decide::segment_size;
use crate::{Cut, Forward, PacketView, Verdict};
use packet::{Fragment, Headers, L4, Pieces, proto};

/// Returns how many bytes of a packet its policers count: the length of the frames that leave because of the
/// packet, from the Ethernet header on, tunnel headers included. A large send counts as its segments, each
/// with its own headers, even if its receiver takes it whole. A flooded packet counts once, as the longest of
/// its copies; a packet that is not delivered counts with its length on arrival.
#[must_use]
pub fn metered_len(verdict: &Verdict, packet: &PacketView<'_>) -> usize {
    match verdict {
        Verdict::Forward(_) | Verdict::Flood(_) => {
            let copies = verdict.deliveries().iter();
            copies.map(|forward| leaving(forward, packet)).max().unwrap_or(0)
        }
        Verdict::Outputs(_) => {
            let copies = verdict.outputs().iter();
            copies.map(|output| whole(output.grown(), packet)).max().unwrap_or(0)
        }
        Verdict::Reply(_)
        | Verdict::Hold { .. }
        | Verdict::Reassemble
        | Verdict::Serve { .. }
        | Verdict::Consumed
        | Verdict::Drop(_) => whole(0, packet),
    }
}

/// Returns the bytes of a packet's frames, if nothing is stripped and each grows by `grown` bytes.
fn whole(grown: isize, packet: &PacketView<'_>) -> usize {
    let len = (packet.len as usize).saturating_add_signed(grown);
    segmented_len(len, &packet.headers, grown, packet.gso_size).unwrap_or(len)
}

/// The start of an outer IPv4 header, as far as its length goes.
const OUTER: [u8; proto::IPV4_LEN] = {
    let mut header = [0; proto::IPV4_LEN];
    header[0] = 0x45;
    header
};

/// Returns the bytes of the frames of one delivery.
fn leaving(forward: &Forward, packet: &PacketView<'_>) -> usize {
    let kept = kept(forward, packet);
    let ethernet = if forward.ethernet.is_some() { proto::ETHERNET_LEN } else { 0 };
    let tag = if forward.push_vlan.is_some() { proto::VLAN_LEN } else { 0 };
    let popped = usize::from(forward.pop_tags) * proto::VLAN_LEN;
    let front = forward.encap.as_ref().map_or(0, encap_len) + ethernet + tag;
    // The headers added, minus the bytes removed.
    let grown = front as isize - popped as isize - kept.start as isize;
    let len = kept.end.saturating_add_signed(grown);
    if packet.gso_size.is_none() && forward.cut.is_none() {
        return len;
    }
    let parse = if is_network(forward) { Headers::network } else { Headers::ethernet };
    let Ok(headers) = parse(packet.bytes, kept.start, kept.end) else { return len };
    let cut = match (packet.gso_size, forward.cut) {
        (Some(size), Some(Cut::Packet(mtu))) => {
            let least = segment_size(&headers, mtu).unwrap_or(size);
            segmented_len(len, &headers, grown, Some(size.min(least)))
        }
        (Some(size), _) => segmented_len(len, &headers, grown, Some(size)),
        (None, Some(Cut::Packet(mtu))) => packet.bytes.get(kept.start..).and_then(|head| {
            let pieces = Pieces::new(head, kept.len(), mtu.into())?;
            Some(pieces.total() + pieces.number() * front)
        }),
        (None, Some(Cut::Tunnel(mtu))) => {
            let pieces = Pieces::new(&OUTER, len - proto::ETHERNET_LEN, mtu.into());
            pieces.map(|pieces| pieces.total() + pieces.number() * proto::ETHERNET_LEN)
        }
        (None, None) => None,
    };
    cut.unwrap_or(len)
}

/// Returns the bytes of a large send's segments, whose headers grow by `grown` bytes each. Returns `len` if
/// the packet isn't a large send.
fn segmented_len(len: usize, headers: &Headers, grown: isize, gso_size: Option<u16>) -> Option<usize> {
    let ip = headers.ip().filter(|ip| ip.fragment == Fragment::Whole)?;
    let (L4::Tcp { header_len, .. }, Some(size)) = (headers.l4, gso_size.filter(|size| *size > 0)) else {
        return Some(len);
    };
    let l4_end = usize::from(headers.l4_at) + usize::from(header_len);
    let payload = (usize::from(ip.at) + ip.len as usize).saturating_sub(l4_end);
    let segments = payload.div_ceil(size.into()).max(1);
    Some(segments * l4_end.saturating_add_signed(grown) + payload)
}
