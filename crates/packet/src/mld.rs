//! Multicast listener reports (RFC 3810).

use crate::build::{self, Ipv6};
use crate::neighbour::multicast_mac;
use crate::{Mac, WriteError, checksum, proto};
use std::net::Ipv6Addr;

/// ff02::16, all routers that understand MLDv2.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Type of a version 2 report.
const REPORT: u8 = 143;
/// A hop-by-hop header with the router alert option (RFC 2711) and padding.
const ALERT: [u8; 8] = [proto::ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// Length of a report's header, and of a record without sources, bytes.
const HEADER_LEN: usize = 8;
const RECORD_LEN: usize = 20;
/// Record type: listen to all sources (RFC 3810, 5.2.12: MODE_IS_EXCLUDE).
const IS_EXCLUDE: u8 = 2;

/// Most groups in one report, so that it fits IPv6's minimum MTU (1280 bytes).
pub const MAX_GROUPS: usize = 60;

/// Returns the length of the frame that reports `groups` groups, bytes.
#[must_use]
pub const fn report_len(groups: usize) -> usize {
    proto::ETHERNET_LEN + proto::IPV6_LEN + ALERT.len() + HEADER_LEN + groups * RECORD_LEN
}

/// Writes an untagged frame by which the host at `mac` reports the groups that it listens to. Returns the
/// frame's length, bytes.
///
/// # Errors
/// [`WriteError::TooShort`]; also for more than [`MAX_GROUPS`].
pub fn report(out: &mut [u8], mac: Mac, groups: &[Ipv6Addr]) -> Result<usize, WriteError> {
    let len = report_len(groups.len());
    let out = out.get_mut(..len).filter(|_| groups.len() <= MAX_GROUPS).ok_or(WriteError::TooShort)?;
    let body_at = report_len(0) - HEADER_LEN;
    let src = mac.link_local();
    let ip = Ipv6 {
        src,
        dst: ROUTERS,
        next_header: proto::HOP_BY_HOP,
        hop_limit: 1,
        traffic_class: 0,
        flow_label: 0,
        payload_len: (len - proto::ETHERNET_LEN - proto::IPV6_LEN) as u16,
    };
    let at = build::ethernet(out, multicast_mac(ROUTERS), mac, proto::ETHERTYPE_IPV6)?;
    build::ipv6(&mut out[at..], &ip)?;
    out[body_at - ALERT.len()..body_at].copy_from_slice(&ALERT);
    let body = &mut out[body_at..];
    body[..HEADER_LEN].copy_from_slice(&[REPORT, 0, 0, 0, 0, 0, 0, groups.len() as u8]);
    for (record, group) in body[HEADER_LEN..].chunks_exact_mut(RECORD_LEN).zip(groups) {
        record[..4].copy_from_slice(&[IS_EXCLUDE, 0, 0, 0]);
        record[4..].copy_from_slice(&group.octets());
    }
    let checksum = checksum::l4(src.into(), ROUTERS.into(), proto::ICMPV6, body);
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    Ok(len)
}
