//! Address handles.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Outcome, code, or_minus_one, pointer};
use crate::gid::index_of;
use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};
use uverbs::{Reply, Request};

/// Creates an address handle.
///
/// # Safety
/// `pd` must be one of our domains.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Outcome<*mut ibv_ah> {
    // SAFETY: the caller's promise.
    let (context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
    let request = Request::CreateAh { pd: pd_handle, vector: attr.into() };
    // SAFETY: the domain's context.
    let Reply::Handle(handle) = unsafe { Context::of(context) }.link.ask(&request)? else {
        return Err(libc::EIO);
    };
    Ok(Box::into_raw(Box::new(ibv_ah { context, pd, handle })))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: a domain of ours, and the program's attributes.
    pointer(unsafe { create(pd, &*attr) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: a handle of ours, which the program gives back.
    code(unsafe {
        let taken = Context::of((*ah).context).link.take_away(&Request::DestroyAh { ah: (*ah).handle });
        taken.map(|()| drop(Box::from_raw(ah)))
    })
}

/// The route of a datagram according to its first 40 bytes: an IPv6 header, or 20 bytes and an IPv4 header.
#[derive(Debug, PartialEq, Eq)]
struct Way {
    from: Ipv6Addr,
    to: Ipv6Addr,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
}

/// `UDP`, as the next header of RoCE v2.
const UDP: u8 = 17;

fn way(header: &[u8; 40]) -> Outcome<Way> {
    let part =
        |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).map_or(Ipv6Addr::UNSPECIFIED, Into::into);
    let v4 = |at: usize| {
        Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]).to_ipv6_mapped()
    };
    let is_v6 = header[0] >> 4 == 6;
    // The last 20 bytes of an IPv6 header may look like an IPv4 header by accident.
    if header[20] == 0x45 && (!is_v6 || is_checked(&header[20..])) {
        let (from, to) = (v4(32), v4(36));
        return Ok(Way { from, to, flow_label: 0, hop_limit: header[28], traffic_class: header[21] });
    }
    if !is_v6 || header[6] != UDP {
        return Err(libc::EPROTONOSUPPORT);
    }
    let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    Ok(Way {
        from: part(8),
        to: part(24),
        flow_label: first & 0xf_ffff,
        hop_limit: header[7],
        traffic_class: (first >> 20) as u8,
    })
}

/// Is true if the checksum of an IPv4 header is right.
fn is_checked(header: &[u8]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// Returns the attributes of an address handle for an answer to the datagram that `wc` reports.
///
/// # Safety
/// Pointers must be as the man page specifies.
unsafe fn answer(context: &Context, port_num: u8, wc: &ibv_wc, grh: *const ibv_grh) -> Outcome<ibv_ah_attr> {
    let (dlid, src_path_bits) = (wc.slid, wc.dlid_path_bits);
    // A datagram has no service level: `wc.sl` is its packet type (`packet_type`).
    let mut attr = ibv_ah_attr { dlid, src_path_bits, port_num, ..ibv_ah_attr::default() };
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    // SAFETY: the caller's promise: 40 bytes of the program's, at any alignment.
    let way = way(unsafe { &*grh.cast() })?;
    let is_group = way.to.is_multicast() || way.to.to_ipv4_mapped().is_some_and(|to| to.is_multicast());
    if is_group {
        return Err(libc::EINVAL);
    }
    attr.grh = ibv_global_route {
        dgid: way.from.into(),
        flow_label: way.flow_label,
        sgid_index: index_of(context, port_num.into(), way.to)?,
        hop_limit: way.hop_limit,
        traffic_class: way.traffic_class,
    };
    attr.is_global = 1;
    Ok(attr)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    to: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: a context of ours, the program's completion, and room for the attributes.
    or_minus_one(
        unsafe { answer(Context::of(context), port, &*wc, grh).map(|attr| to.write(attr)) }.map(|()| 0),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: a domain of ours, and the program's completion.
    pointer(unsafe { answer(Context::of((*pd).context), port, &*wc, grh).and_then(|attr| create(pd, &attr)) })
}

/// Derives a MAC address from a link-local address. Other addresses do not contain one, and only the device knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    // SAFETY: the program's attributes, and room for what it asks for.
    unsafe {
        let gid = (*attr).grh.dgid.raw;
        if gid[..8] != [0xfe, 0x80, 0, 0, 0, 0, 0, 0] || gid[11..13] != [0xff, 0xfe] {
            return -crate::errno::set(libc::EHOSTUNREACH);
        }
        mac.write([gid[8] ^ 2, gid[9], gid[10], gid[13], gid[14], gid[15]]);
        if !vlan.is_null() {
            vlan.write(u16::MAX);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4_header() -> [u8; 40] {
        let mut header = [0; 40];
        let ip = [69, 8, 0, 64, 0, 0, 64, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        header[20..].copy_from_slice(&ip);
        header
    }

    #[test]
    fn ipv4_lies_in_the_last_twenty_bytes() {
        let found = way(&v4_header()).unwrap();
        assert_eq!(found.from, Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        assert_eq!(found.to, Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped());
        assert_eq!((found.hop_limit, found.traffic_class), (63, 8));
    }

    #[test]
    fn ipv6_is_told_from_ipv4_by_the_checksum() {
        let mut header = v4_header();
        (header[0], header[1], header[2], header[3], header[6], header[7]) = (0x6a, 0xb1, 2, 3, UDP, 9);
        let found = way(&header).unwrap();
        assert_eq!(found.from.octets(), header[8..24]);
        assert_eq!(found.to.octets(), header[24..]);
        assert_eq!((found.flow_label, found.hop_limit, found.traffic_class), (0x1_0203, 9, 0xab));
        let sum: u32 = header[20..].chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(p[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        header[30..32].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(way(&header).unwrap().hop_limit, 63);
    }

    #[test]
    fn what_is_neither_is_refused() {
        assert_eq!(way(&[0; 40]), Err(libc::EPROTONOSUPPORT));
        let mut header = [0; 40];
        header[0] = 0x60;
        assert_eq!(way(&header), Err(libc::EPROTONOSUPPORT));
    }
}
