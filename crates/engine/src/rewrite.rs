//! Rewrites the head of a packet in its scratch, in the order that [`model::Forward`] defines.

use crate::key::Layout;
use crate::template::{OuterHeaders, Rewrite, Side, Template};
use model::rewrite::{translate_addresses, translate_ports};
use model::{Nat, ovs};
use packet::checksum::{self, Delta};
use packet::{Headers, WriteError, edit, proto};
use std::net::IpAddr;

/// Room for new headers before a packet's head: two cache lines, so that heads are aligned.
pub(crate) const HEADROOM: usize = 128;

/// Edits the IP header of a packet that the fast parse accepted. `frame` starts with the original frame; `port` is the
/// translated port, if the template translates one.
#[inline(always)]
pub(crate) fn edit_fast(
    frame: &mut [u8],
    at: &Layout,
    template: &Template,
    port: u32,
    partial: bool,
) -> Option<()> {
    let ip = frame.get_mut(usize::from(at.l3)..)?;
    if at.v6 { edit_ipv6(ip, template) } else { edit_ipv4(ip, template) }?;
    if template.src.is_some() || template.dst.is_some() {
        translate(frame, at, template, port as u16, partial)?;
    }
    Some(())
}

/// Sets fields of a packet that the fast parse accepted, as a flow of Open vSwitch says. The packet's own frame begins
/// at `strip`.
#[inline(never)]
pub(crate) fn set_fields(
    frame: &mut [u8],
    strip: u16,
    at: &Layout,
    fields: &ovs::Edits,
    partial: bool,
) -> Option<()> {
    let checksum_at = match at.protocol {
        proto::TCP => 16,
        proto::UDP => 6,
        // The general editor handles the other cases.
        _ => {
            let end = usize::from(at.l3) + usize::from(at.ip_len);
            let headers = Headers::ethernet(frame, strip.into(), end).ok()?;
            return fields.set_fields(frame, &headers, partial).ok();
        }
    };
    let addresses: &mut [u8; 12] = frame.get_mut(usize::from(strip)..)?.first_chunk_mut()?;
    if let Some(dst) = fields.mac_dst {
        addresses[..6].copy_from_slice(&dst.0);
    }
    if let Some(src) = fields.mac_src {
        addresses[6..].copy_from_slice(&src.0);
    }
    if !fields.changes_ip() {
        return Some(());
    }
    let ip = frame.get_mut(usize::from(at.l3)..)?;
    let mut covered = if at.v6 { set_ipv6(ip, fields) } else { set_ipv4(ip, fields) }?;
    let l4 = frame.get_mut(usize::from(at.l4)..)?;
    for (place, port) in [(0, fields.port_src), (2, fields.port_dst)] {
        if let Some(port) = port {
            let field: &mut [u8; 2] = l4.get_mut(place..)?.first_chunk_mut()?;
            if !partial {
                covered.replace_u16(u16::from_be_bytes(*field), port);
            }
            *field = port.to_be_bytes();
        }
    }
    let field: &mut [u8; 2] = l4.get_mut(checksum_at..)?.first_chunk_mut()?;
    let before = u16::from_be_bytes(*field);
    let after = match covered.apply(before) {
        _ if partial => covered.apply_partial(before),
        _ if before == 0 && at.protocol == proto::UDP => 0,
        0 if at.protocol == proto::UDP => 0xffff,
        after => after,
    };
    *field = after.to_be_bytes();
    Some(())
}

/// Sets IPv4 fields; returns how the addresses changed.
fn set_ipv4(ip: &mut [u8], fields: &ovs::Edits) -> Option<Delta> {
    let ip: &mut [u8; proto::IPV4_LEN] = ip.first_chunk_mut()?;
    let mut addresses = Delta::default();
    for (place, addr) in [(12, fields.ip_src), (16, fields.ip_dst)] {
        match addr {
            Some(IpAddr::V4(new)) => {
                let field: &mut [u8; 4] = ip[place..].first_chunk_mut()?;
                addresses.replace_u32(u32::from_be_bytes(*field), new.to_bits());
                *field = new.octets();
            }
            Some(IpAddr::V6(_)) => return None,
            None => {}
        }
    }
    let mut all = addresses;
    if let Some(ttl) = fields.ttl {
        all.replace_u16(u16::from_be_bytes([ip[8], ip[9]]), u16::from_be_bytes([ttl, ip[9]]));
        ip[8] = ttl;
    }
    let tos = fields.tos(ip[1]);
    if tos != ip[1] {
        all.replace_u16(u16::from_be_bytes([ip[0], ip[1]]), u16::from_be_bytes([ip[0], tos]));
        ip[1] = tos;
    }
    let checksum = all.apply(u16::from_be_bytes([ip[10], ip[11]]));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(addresses)
}

/// Sets IPv6 fields; returns how the addresses changed.
fn set_ipv6(ip: &mut [u8], fields: &ovs::Edits) -> Option<Delta> {
    let ip: &mut [u8; proto::IPV6_LEN] = ip.first_chunk_mut()?;
    let mut addresses = Delta::default();
    for (place, addr) in [(8, fields.ip_src), (24, fields.ip_dst)] {
        match addr {
            Some(IpAddr::V6(new)) => {
                let field: &mut [u8; 16] = ip[place..].first_chunk_mut()?;
                addresses.replace_bytes16(*field, new.octets());
                *field = new.octets();
            }
            Some(IpAddr::V4(_)) => return None,
            None => {}
        }
    }
    if let Some(ttl) = fields.ttl {
        ip[7] = ttl;
    }
    let before = ip[0] << 4 | ip[1] >> 4;
    let tos = fields.tos(before);
    if tos != before {
        ip[0] = 6 << 4 | tos >> 4;
        ip[1] = tos << 4 | ip[1] & 0xf;
    }
    Some(addresses)
}

#[inline(always)]
fn edit_ipv4(ip: &mut [u8], template: &Template) -> Option<()> {
    let ip: &mut [u8; proto::IPV4_LEN] = ip.first_chunk_mut()?;
    let mut delta = Delta::default();
    if let Some(tos) = template.tos {
        delta.replace_u16(u16::from_be_bytes([ip[0], ip[1]]), u16::from_be_bytes([ip[0], tos]));
        ip[1] = tos;
    } else if template.ttl_decrement == 0 {
        return Some(());
    }
    let ttl = ip[8].checked_sub(template.ttl_decrement)?;
    delta.replace_u16(u16::from_be_bytes([ip[8], ip[9]]), u16::from_be_bytes([ttl, ip[9]]));
    ip[8] = ttl;
    let checksum = delta.apply(u16::from_be_bytes([ip[10], ip[11]]));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

#[inline(always)]
fn edit_ipv6(ip: &mut [u8], template: &Template) -> Option<()> {
    let ip: &mut [u8; proto::IPV6_LEN] = ip.first_chunk_mut()?;
    if let Some(tos) = template.tos {
        ip[0] = 6 << 4 | tos >> 4;
        ip[1] = tos << 4 | ip[1] & 0xf;
    }
    ip[7] = ip[7].checked_sub(template.ttl_decrement)?;
    Some(())
}

/// Translates outside addresses with the general editor, because they are rare.
#[inline(never)]
fn translate(frame: &mut [u8], at: &Layout, template: &Template, port: u16, partial: bool) -> Option<()> {
    let l3 = usize::from(at.l3);
    let mut headers = Headers::network(frame, l3, l3 + usize::from(at.ip_len)).ok()?;
    let (src_port, dst_port) = match template.ported {
        Some(Side::Source) => (Some(port), None),
        Some(Side::Destination) => (None, Some(port)),
        None => (None, None),
    };
    let nat = Nat { src: template.src, dst: template.dst, src_port, dst_port, quoted: None };
    translate_ports(frame, &mut headers, &nat, partial).ok()?;
    translate_addresses(frame, &mut headers, &nat, partial).ok()
}

/// Edits the IP header of any packet. `headers` are those of the forwarded packet, which is the inner one if a tunnel
/// is stripped; `end` is where that packet ends in the frame.
///
/// # Errors
/// [`WriteError`] if headers and template do not fit each other.
pub(crate) fn edit_any(
    frame: &mut [u8],
    headers: &Headers,
    end: usize,
    rewrite: &Rewrite<'_>,
    partial: bool,
) -> Result<(), WriteError> {
    let Rewrite { template, fields, nat, .. } = rewrite;
    if let Some(fields) = fields {
        return fields.set_fields(frame, headers, partial);
    }
    if !template.edits_ip() && *nat == Nat::default() {
        return Ok(());
    }
    let mut edited = headers.clone();
    edited.ip().ok_or(WriteError::Mismatch)?;
    if let Some(tos) = template.tos {
        edit::set_tos(frame, &mut edited, tos)?;
    }
    for _ in 0..template.ttl_decrement {
        edit::decrement_ttl(frame, &mut edited)?;
    }
    if let Some(mss) = template.mss {
        edit::lower_mss(frame, &edited, mss, partial)?;
    }
    if *nat == Nat::default() {
        return Ok(());
    }
    model::rewrite::translate(frame, &mut edited, end, nat, partial)
}

/// Returns the headers of the packet that remains after `template` strips the frame, and where that packet
/// ends: the padding of stripped links is left out.
pub(crate) fn kept(
    frame: &[u8],
    headers: &Headers,
    len: usize,
    strip: u16,
    keeps_ip: bool,
) -> Option<(Headers, usize)> {
    if strip == 0 {
        return Some((headers.clone(), len));
    }
    if !keeps_ip {
        let tunnel = packet::tunnel(frame, headers, len).ok()??;
        let inner = Headers::ethernet(frame, tunnel.inner_at, tunnel.inner_end).ok()?;
        return Some((inner, tunnel.inner_end));
    }
    let inner = if strip == headers.l3_at {
        headers.clone()
    } else {
        Headers::network(frame, usize::from(strip), len).ok()?
    };
    let end = inner.ip().map_or(len, |ip| usize::from(ip.at) + ip.len as usize);
    Some((inner, end))
}

/// Puts the new headers of `template` in front. `buffer` holds [`HEADROOM`] bytes, then the frame; `len` is the length
/// of the frame that is left after stripping. Returns where in `buffer` the new frame starts.
#[inline(always)]
pub(crate) fn reframe(buffer: &mut [u8], len: usize, template: &Template, entropy: u32) -> Option<usize> {
    let mut start = HEADROOM + usize::from(template.strip);
    let mut len = len;
    if template.pop_tags > 0 {
        let popped = usize::from(template.pop_tags) * proto::VLAN_LEN;
        buffer.get(start..start + 12 + popped)?;
        buffer.copy_within(start..start + 12, start + popped);
        start += popped;
        len -= popped;
    }
    if !template.tags().is_empty() {
        let pushed = template.tags().len();
        buffer.get(start..start + 12)?;
        buffer.copy_within(start..start + 12, start - pushed);
        start -= pushed;
        len += pushed;
        buffer[start + 12..start + 12 + pushed].copy_from_slice(template.tags());
    }
    let prefix = template.prefix();
    if prefix.is_empty() {
        return Some(start);
    }
    let new_start = template.put_prefix(buffer, start)?;
    if let Some(outer) = template.tunnel {
        let sums = ipv4_sums(prefix);
        finish_outer(&mut buffer[new_start..start], outer, sums, len + prefix.len(), entropy)?;
    }
    Some(new_start)
}

/// Puts the new headers before a lane's edited head. `end` is where the forwarded packet ends in the frame. Returns
/// where the new frame starts in the head, where its part there ends, and how many bytes follow.
#[inline(always)]
pub(crate) fn place(
    head: &mut [u8],
    head_len: usize,
    end: usize,
    template: &Template,
    entropy: u32,
) -> Option<(usize, usize, usize)> {
    let len = end.checked_sub(usize::from(template.strip))?;
    let in_head = head_len.min(end);
    let start = reframe(&mut head[..HEADROOM + head_len], len, template, entropy)?;
    Some((start, HEADROOM + in_head, end - in_head))
}

/// Returns the total length and the checksum in the outer IPv4 header of `headers`.
#[inline(always)]
pub(crate) fn ipv4_sums(headers: &[u8]) -> Option<(u16, u16)> {
    let ip: &[u8; proto::IPV4_LEN] = headers.get(OuterHeaders::IP..)?.first_chunk()?;
    Some((u16::from_be_bytes([ip[2], ip[3]]), u16::from_be_bytes([ip[10], ip[11]])))
}

/// Sets the fields that depend on length and flow in the outer headers at the start of `frame`, a frame of
/// `len` bytes. `sums` are the length and checksum that were in it before ([`ipv4_sums`]). UDP's checksum is
/// left zero, because it covers the payload.
#[inline(always)]
pub(crate) fn finish_outer(
    frame: &mut [u8],
    outer: OuterHeaders,
    sums: Option<(u16, u16)>,
    len: usize,
    entropy: u32,
) -> Option<()> {
    let l4 = outer.l4();
    if outer.v6 {
        let ip: &mut [u8; proto::IPV6_LEN] = frame.get_mut(OuterHeaders::IP..)?.first_chunk_mut()?;
        let payload = u16::try_from(len - l4).ok()?;
        ip[4..6].copy_from_slice(&payload.to_be_bytes());
        let label = entropy & 0xf_ffff;
        ip[1] = ip[1] & 0xf0 | (label >> 16) as u8;
        ip[2..4].copy_from_slice(&(label as u16).to_be_bytes());
    } else {
        let ip: &mut [u8; proto::IPV4_LEN] = frame.get_mut(OuterHeaders::IP..)?.first_chunk_mut()?;
        let total = u16::try_from(len - OuterHeaders::IP).ok()?;
        let (before, checksum) = sums?;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[10..12].copy_from_slice(&checksum::update_u16(checksum, before, total).to_be_bytes());
    }
    if outer.udp {
        let udp: &mut [u8; proto::UDP_LEN] = frame.get_mut(l4..)?.first_chunk_mut()?;
        udp[..2].copy_from_slice(&packet::entropy_port(entropy).to_be_bytes());
        udp[4..6].copy_from_slice(&u16::try_from(len - l4).ok()?.to_be_bytes());
    }
    Some(())
}

pub(crate) fn outer_addresses(frame: &[u8], outer: OuterHeaders) -> Option<(IpAddr, IpAddr)> {
    let ip = frame.get(OuterHeaders::IP..outer.l4())?;
    if outer.v6 {
        let (pairs, _) = ip.get(8..)?.as_chunks::<16>();
        let &[src, dst] = pairs else { return None };
        Some((IpAddr::from(src), IpAddr::from(dst)))
    } else {
        let (pairs, _) = ip.get(12..)?.as_chunks::<4>();
        let &[src, dst] = pairs else { return None };
        Some((IpAddr::from(src), IpAddr::from(dst)))
    }
}
