//! Checksums of frames whose head is summed separately from the rest.

use crate::key::Layout;
use crate::rewrite::outer_addresses;
use crate::template::OuterHeaders;
use mem::{Csum, Offload};
use packet::checksum::{Sum, pseudo_header};
use packet::proto;
use std::net::IpAddr;

/// Finishes the checksum of a single packet by its request alone, as a device does (VIRTIO 1.2, 5.1.6.2): it is the sum
/// of all bytes from there on. A request that does not fit the packet is ignored.
pub(crate) fn complete(packet: &mut [u8], offload: &Offload) {
    let Offload { csum: Csum::Partial { start, offset }, gso: None } = *offload else { return };
    let Some(bytes) = packet.get_mut(usize::from(start)..) else { return };
    let sum = packet::checksum::sum(bytes).finish();
    let field = bytes.get_mut(usize::from(offset)..).and_then(|rest| rest.first_chunk_mut());
    // A UDP checksum of zero means that there is none. For TCP, zero and all ones are equal.
    let value = if sum == 0 { [0xff; 2] } else { sum.to_be_bytes() };
    field.into_iter().for_each(|field| *field = value);
}

/// Sets the outer UDP checksum (over IPv6: RFC 8200, 8.1) of the frame of `len` bytes that starts with `head`; `rest`
/// is the sum of the bytes after `head`.
pub(crate) fn complete_outer(head: &mut [u8], outer: OuterHeaders, rest: Sum, len: usize) {
    let udp = outer.l4();
    let (Some((src, dst)), true) = (outer_addresses(head, outer), head.len() >= udp + proto::UDP_LEN) else {
        return;
    };
    let mut sum = pseudo_header(src, dst, proto::UDP, (len - udp) as u32);
    sum.add(&head[udp..]);
    append(&mut sum, rest, head.len() - udp);
    let checksum = match sum.finish() {
        0 => 0xffff,
        checksum => checksum,
    };
    head[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
}

/// Adds `tail`, the sum of the bytes that follow `len` summed bytes; `len` may be odd.
pub(crate) fn append(sum: &mut Sum, tail: Sum, len: usize) {
    let words = tail.fold();
    let mut aligned = Sum::default();
    aligned.add_u16(sum.fold());
    aligned.add_u16(if len % 2 == 1 { words.swap_bytes() } else { words });
    *sum = aligned;
}

pub(crate) fn addresses(frame: &[u8], at: &Layout) -> Option<(IpAddr, IpAddr)> {
    let ip = frame.get(usize::from(at.l3)..)?;
    if at.v6 {
        let (pairs, _) = ip.get(8..40)?.as_chunks::<16>();
        let &[src, dst] = pairs else { return None };
        Some((src.into(), dst.into()))
    } else {
        let (pairs, _) = ip.get(12..20)?.as_chunks::<4>();
        let &[src, dst] = pairs else { return None };
        Some((src.into(), dst.into()))
    }
}
