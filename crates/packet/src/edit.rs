//! Edits of single fields in place. Checksums stay as right (or as wrong) as they were: they are updated
//! incrementally (RFC 1624), never recomputed. The parsed headers are kept in step with the bytes.

use crate::checksum::Delta;
use crate::{Fragment, Headers, Ip, L3, L4, Mac, WriteError, proto};
use std::net::IpAddr;

/// Sets the addresses of the Ethernet header.
///
/// # Errors
/// [`WriteError::Mismatch`] if the packet has no Ethernet header.
pub fn set_macs(bytes: &mut [u8], headers: &mut Headers, dst: Mac, src: Mac) -> Result<(), WriteError> {
    let eth = headers.eth.as_mut().ok_or(WriteError::Mismatch)?;
    let header: &mut [u8; 12] = field(bytes, usize::from(headers.at))?;
    header[..6].copy_from_slice(&dst.0);
    header[6..].copy_from_slice(&src.0);
    (eth.dst, eth.src) = (dst, src);
    Ok(())
}

/// Decrements the TTL or hop limit. 0 stays 0: the caller drops packets that arrive with 0 or 1.
///
/// # Errors
/// [`WriteError::Mismatch`] if the packet isn't IP.
pub fn decrement_ttl(bytes: &mut [u8], headers: &mut Headers) -> Result<(), WriteError> {
    let ttl = ip_mut(headers)?.ttl.saturating_sub(1);
    set_ttl(bytes, headers, ttl)
}

/// Sets the TTL or hop limit.
///
/// # Errors
/// [`WriteError::Mismatch`] if the packet isn't IP.
pub fn set_ttl(bytes: &mut [u8], headers: &mut Headers, ttl: u8) -> Result<(), WriteError> {
    let ip = ip_mut(headers)?;
    let at = usize::from(ip.at);
    if ip.src.is_ipv4() {
        let header: &mut [u8; proto::IPV4_LEN] = field(bytes, at)?;
        set_ipv4_word(header, 8, [ttl, header[9]]);
    } else {
        let header: &mut [u8; proto::IPV6_LEN] = field(bytes, at)?;
        header[7] = ttl;
    }
    ip.ttl = ttl;
    Ok(())
}

/// Sets the traffic class: DSCP and ECN.
///
/// # Errors
/// [`WriteError::Mismatch`] if the packet isn't IP.
pub fn set_tos(bytes: &mut [u8], headers: &mut Headers, tos: u8) -> Result<(), WriteError> {
    let ip = ip_mut(headers)?;
    let at = usize::from(ip.at);
    if ip.src.is_ipv4() {
        let header: &mut [u8; proto::IPV4_LEN] = field(bytes, at)?;
        set_ipv4_word(header, 0, [header[0], tos]);
    } else {
        let header: &mut [u8; proto::IPV6_LEN] = field(bytes, at)?;
        header[0] = 6 << 4 | tos >> 4;
        header[1] = tos << 4 | header[1] & 0xf;
    }
    ip.tos = tos;
    Ok(())
}

/// Sets the source address, and updates the checksums that cover it.
///
/// With `partial`, the L4 checksum field holds the pseudo-header's sum, which somebody completes later
/// (NEEDS_CSUM).
///
/// # Errors
/// [`WriteError::Mismatch`] if the packet isn't IP of the address's family.
pub fn set_source(
    bytes: &mut [u8],
    headers: &mut Headers,
    addr: IpAddr,
    partial: bool,
) -> Result<(), WriteError> {
    set_address(bytes, headers, Side::Source, addr, partial).map(|_| ())
}

/// Sets the destination address as [`set_source`] sets the source.
///
/// # Errors
/// As for [`set_source`].
pub fn set_destination(
    bytes: &mut [u8],
    headers: &mut Headers,
    addr: IpAddr,
    partial: bool,
) -> Result<(), WriteError> {
    set_address(bytes, headers, Side::Destination, addr, partial).map(|_| ())
}

/// Sets the source port of a TCP or UDP packet, and updates its checksum.
///
/// With `partial`, the checksum does not cover the port yet and stays as it is.
///
/// # Errors
/// [`WriteError::Mismatch`] if the packet is neither TCP nor UDP.
pub fn set_source_port(
    bytes: &mut [u8],
    headers: &mut Headers,
    port: u16,
    partial: bool,
) -> Result<(), WriteError> {
    set_port_of(bytes, headers, Side::Source, port, partial)
}

/// Sets the destination port as [`set_source_port`] sets the source port.
///
/// # Errors
/// As for [`set_source_port`].
pub fn set_destination_port(
    bytes: &mut [u8],
    headers: &mut Headers,
    port: u16,
    partial: bool,
) -> Result<(), WriteError> {
    set_port_of(bytes, headers, Side::Destination, port, partial)
}

/// Sets the identifier of an ICMP or ICMPv6 echo request or reply, and updates its checksum.
///
/// # Errors
/// [`WriteError::Mismatch`] if the packet isn't ICMP.
pub fn set_echo_id(bytes: &mut [u8], headers: &mut Headers, id: u16) -> Result<(), WriteError> {
    match headers.l4 {
        L4::Icmp { .. } => set_port(bytes, headers, Side::Source, id, false).map(|_| ()),
        _ => Err(WriteError::Mismatch),
    }
}

/// Sets the source address of the packet `quoted` in the ICMP error `headers` ([`Headers::quoted`]). Updates
/// the error's own checksum, and those checksums of the quoted packet that lie in the quote.
///
/// With `partial`, the error's own checksum is still to be completed and stays as it is.
///
/// # Errors
/// As for [`set_source`].
pub fn set_quoted_source(
    bytes: &mut [u8],
    headers: &Headers,
    quoted: &mut Headers,
    addr: IpAddr,
    partial: bool,
) -> Result<(), WriteError> {
    set_quoted_address(bytes, headers, quoted, Side::Source, addr, partial)
}

/// Sets the destination address of a quoted packet as [`set_quoted_source`] sets the source.
///
/// # Errors
/// As for [`set_source`].
pub fn set_quoted_destination(
    bytes: &mut [u8],
    headers: &Headers,
    quoted: &mut Headers,
    addr: IpAddr,
    partial: bool,
) -> Result<(), WriteError> {
    set_quoted_address(bytes, headers, quoted, Side::Destination, addr, partial)
}

/// Sets the source port of a quoted packet, or the identifier of a quoted echo request or reply, as
/// [`set_quoted_source`] sets the source.
///
/// # Errors
/// [`WriteError::Mismatch`] if it is none of these.
pub fn set_quoted_source_port(
    bytes: &mut [u8],
    headers: &Headers,
    quoted: &mut Headers,
    port: u16,
    partial: bool,
) -> Result<(), WriteError> {
    in_quote(bytes, headers, partial, |bytes| set_port(bytes, quoted, Side::Source, port, false))
}

/// Sets the destination port of a quoted packet as [`set_quoted_source_port`] sets the source port.
///
/// # Errors
/// As for [`set_quoted_source_port`].
pub fn set_quoted_destination_port(
    bytes: &mut [u8],
    headers: &Headers,
    quoted: &mut Headers,
    port: u16,
    partial: bool,
) -> Result<(), WriteError> {
    in_quote(bytes, headers, partial, |bytes| set_port(bytes, quoted, Side::Destination, port, false))
}

/// Lowers the MSS that a SYN announces to at most `most`, and updates its checksum. A packet without an MSS
/// ([`crate::mss()`]), or with a lower one, stays as it is.
///
/// With `partial`, the checksum does not cover the option yet and stays as it is.
///
/// # Errors
/// [`WriteError::TooShort`] if the headers are not those of these bytes.
pub fn lower_mss(bytes: &mut [u8], headers: &Headers, most: u16, partial: bool) -> Result<(), WriteError> {
    let Some((at, told)) = crate::mss(bytes, headers).filter(|(_, told)| *told > most) else { return Ok(()) };
    *field(bytes, at)? = most.to_be_bytes();
    if partial {
        return Ok(());
    }
    let l4 = usize::from(headers.l4_at);
    let mut delta = Delta::default();
    if (at - l4).is_multiple_of(2) {
        delta.replace_u16(told, most);
    } else {
        // At an odd offset the value spans two words, with its bytes swapped (RFC 1071, 2 B).
        delta.replace_u16(told.swap_bytes(), most.swap_bytes());
    }
    let checksum: &mut [u8; 2] = field(bytes, l4 + 16)?;
    *checksum = delta.apply(u16::from_be_bytes(*checksum)).to_be_bytes();
    Ok(())
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn set_quoted_address(
    bytes: &mut [u8],
    headers: &Headers,
    quoted: &mut Headers,
    side: Side,
    addr: IpAddr,
    partial: bool,
) -> Result<(), WriteError> {
    in_quote(bytes, headers, partial, |bytes| set_address(bytes, quoted, side, addr, false))
}

/// Edits the packet quoted in the ICMP error `headers`, and updates the error's own checksum by the change that `edit`
/// returns.
fn in_quote(
    bytes: &mut [u8],
    headers: &Headers,
    partial: bool,
    edit: impl FnOnce(&mut [u8]) -> Result<Delta, WriteError>,
) -> Result<(), WriteError> {
    let (Some(ip), L4::Icmp { .. }) = (headers.ip(), headers.l4) else {
        return Err(WriteError::Mismatch);
    };
    // Bytes past the error's end are padding, not a checksum field of the quoted packet.
    let end = bytes.len().min(usize::from(ip.at) + ip.len as usize);
    let bytes = &mut bytes[..end];
    let delta = edit(bytes)?;
    if partial {
        return Ok(());
    }
    let checksum: &mut [u8; 2] = field(bytes, usize::from(headers.l4_at) + 2)?;
    *checksum = delta.apply(u16::from_be_bytes(*checksum)).to_be_bytes();
    Ok(())
}

/// Sets an address, the header checksum and the L4 checksum. Returns the change to a checksum that covers all three.
fn set_address(
    bytes: &mut [u8],
    headers: &mut Headers,
    side: Side,
    addr: IpAddr,
    partial: bool,
) -> Result<Delta, WriteError> {
    let l4 = l4_checksum(headers);
    let ip = ip_mut(headers)?;
    let at = usize::from(ip.at);
    let old = match side {
        Side::Source => &mut ip.src,
        Side::Destination => &mut ip.dst,
    };
    let mut address = Delta::default();
    let mut all;
    match (*old, addr) {
        (IpAddr::V4(old), IpAddr::V4(new)) => {
            let header: &mut [u8; proto::IPV4_LEN] = field(bytes, at)?;
            let place = if matches!(side, Side::Source) { 12 } else { 16 };
            header[place..place + 4].copy_from_slice(&new.octets());
            address.replace_u32(old.to_bits(), new.to_bits());
            let before = u16::from_be_bytes([header[10], header[11]]);
            let after = address.apply(before);
            header[10..12].copy_from_slice(&after.to_be_bytes());
            all = address;
            all.replace_u16(before, after);
        }
        (IpAddr::V6(old), IpAddr::V6(new)) => {
            let header: &mut [u8; proto::IPV6_LEN] = field(bytes, at)?;
            let place = if matches!(side, Side::Source) { 8 } else { 24 };
            header[place..place + 16].copy_from_slice(&new.octets());
            address.replace_bytes16(old.octets(), new.octets());
            all = address;
        }
        _ => return Err(WriteError::Mismatch),
    }
    *old = addr;
    // A quoted packet may end before its checksum.
    if let Some((at, udp)) = l4
        && let Ok(checksum) = field::<2>(bytes, at)
    {
        let before = u16::from_be_bytes(*checksum);
        let after = updated(before, address, udp, partial);
        *checksum = after.to_be_bytes();
        all.replace_u16(before, after);
    }
    Ok(all)
}

/// Sets a port of a TCP or UDP packet.
fn set_port_of(
    bytes: &mut [u8],
    headers: &mut Headers,
    side: Side,
    port: u16,
    partial: bool,
) -> Result<(), WriteError> {
    match headers.l4 {
        L4::Tcp { .. } | L4::Udp { .. } => set_port(bytes, headers, side, port, partial).map(|_| ()),
        _ => Err(WriteError::Mismatch),
    }
}

/// Sets a port, or the identifier in its place, and the checksum. Returns the change to a checksum that covers both.
fn set_port(
    bytes: &mut [u8],
    headers: &mut Headers,
    side: Side,
    port: u16,
    partial: bool,
) -> Result<Delta, WriteError> {
    let l4 = usize::from(headers.l4_at);
    let (old, at, checksum_at, udp) = match (&mut headers.l4, side) {
        (L4::Tcp { src, .. }, Side::Source) => (src, l4, l4 + 16, false),
        (L4::Tcp { dst, .. }, Side::Destination) => (dst, l4 + 2, l4 + 16, false),
        (L4::Udp { src, .. }, Side::Source) => (src, l4, l4 + 6, true),
        (L4::Udp { dst, .. }, Side::Destination) => (dst, l4 + 2, l4 + 6, true),
        (L4::Icmp { id, .. }, _) => (id, l4 + 4, l4 + 2, false),
        _ => return Err(WriteError::Mismatch),
    };
    *field(bytes, at)? = port.to_be_bytes();
    let mut all = Delta::default();
    all.replace_u16(*old, port);
    *old = port;
    // A quoted packet may end before its checksum.
    if !partial && let Ok(checksum) = field::<2>(bytes, checksum_at) {
        let before = u16::from_be_bytes(*checksum);
        let after = updated(before, all, udp, false);
        *checksum = after.to_be_bytes();
        all.replace_u16(before, after);
    }
    Ok(all)
}

/// Returns the L4 checksum after a change of its pseudo-header, or of the data that it covers.
fn updated(before: u16, address: Delta, udp: bool, partial: bool) -> u16 {
    if partial {
        return address.apply_partial(before);
    }
    if udp && before == 0 {
        return 0;
    }
    match address.apply(before) {
        0 if udp => 0xffff,
        after => after,
    }
}

/// Returns the offset of the checksum that covers the pseudo-header, and whether UDP or UDP-Lite (RFC 3828)
/// has it: theirs is never 0. DCCP's (RFC 4340, 9.1) behaves like TCP's.
fn l4_checksum(headers: &Headers) -> Option<(usize, bool)> {
    let ip = headers.ip()?;
    if matches!(ip.fragment, Fragment::Later { .. }) {
        return None;
    }
    let at = usize::from(headers.l4_at);
    match headers.l4 {
        L4::Tcp { .. } => Some((at + 16, false)),
        L4::Udp { .. } => Some((at + 6, true)),
        L4::Icmp { .. } if ip.src.is_ipv6() => Some((at + 2, false)),
        L4::Other if usize::from(ip.header_len) + 8 > ip.len as usize => None,
        L4::Other if ip.protocol == proto::UDP_LITE => Some((at + 6, true)),
        L4::Other if ip.protocol == proto::DCCP => Some((at + 6, false)),
        _ => None,
    }
}

/// Sets the 16 bits at `at` of an IPv4 header.
#[inline(always)]
fn set_ipv4_word(header: &mut [u8; proto::IPV4_LEN], at: usize, word: [u8; 2]) {
    let mut delta = Delta::default();
    delta.replace_u16(u16::from_be_bytes([header[at], header[at + 1]]), u16::from_be_bytes(word));
    header[at..at + 2].copy_from_slice(&word);
    let checksum = delta.apply(u16::from_be_bytes([header[10], header[11]]));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[inline(always)]
fn ip_mut(headers: &mut Headers) -> Result<&mut Ip, WriteError> {
    match &mut headers.l3 {
        L3::Ip(ip) => Ok(ip),
        _ => Err(WriteError::Mismatch),
    }
}

#[inline(always)]
fn field<const N: usize>(bytes: &mut [u8], at: usize) -> Result<&mut [u8; N], WriteError> {
    bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()).ok_or(WriteError::TooShort)
}
