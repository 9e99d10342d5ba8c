//! In-place edits: afterwards the packet is what it would be, had it been built that way.

use crate::common;
use crate::common::{A, A4, A6, B, B4, B6, frame, icmp, ip, tcp, udp};
use packet::checksum::{self, L4Check, verify_l4};
use packet::{Headers, WriteError, edit, proto};
use proptest::prelude::*;
use std::net::IpAddr;

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None,
        ..Default::default()
    }
}

fn parse(bytes: &[u8]) -> Headers {
    Headers::ethernet(bytes, 0, bytes.len()).unwrap()
}

/// Returns a packet of each L4 protocol that has a checksum over the addresses, and ICMP, which has none.
fn build(kind: usize, src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<u8> {
    let (protocol, segment) = match kind {
        0 => (proto::TCP, tcp(src, dst, 0x10, &[], payload)),
        1 => (proto::UDP, udp(src, dst, 1, 2, payload)),
        _ if src.is_ipv4() => (proto::ICMP, icmp(src, dst, 8, 0, &[&[0; 4], payload].concat())),
        _ => (proto::ICMPV6, icmp(src, dst, 128, 0, &[&[0; 4], payload].concat())),
    };
    frame(src, dst, protocol, &segment)
}

fn addresses() -> impl Strategy<Value = [IpAddr; 4]> {
    let v4 = |bits: u32| IpAddr::from((bits & 0x00ff_ffff | 0x0a00_0000).to_be_bytes());
    let v6 = |bits: u128| IpAddr::from((bits >> 8 | 0xfd << 120).to_be_bytes());
    prop_oneof![
        any::<[u32; 4]>().prop_map(move |all| all.map(v4)),
        any::<[u128; 4]>().prop_map(move |all| all.map(v6)),
    ]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn addresses_are_translated(
        [src, dst, new_src, new_dst] in addresses(),
        kind in 0_usize..3,
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = build(kind, src, dst, &payload);
        let mut headers = parse(&bytes);
        edit::set_source(&mut bytes, &mut headers, new_src, false).unwrap();
        edit::set_destination(&mut bytes, &mut headers, new_dst, false).unwrap();
        prop_assert_eq!(&bytes, &build(kind, new_src, new_dst, &payload));
        prop_assert_eq!(headers, parse(&bytes));
    }

    #[test]
    fn partial_checksums_stay_pseudo_header_sums(
        [src, dst, new_src, new_dst] in addresses(),
        kind in 0_usize..2,
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = build(kind, src, dst, &payload);
        let mut headers = parse(&bytes);
        let (protocol, place) = if kind == 0 { (proto::TCP, 16) } else { (proto::UDP, 6) };
        let field = usize::from(headers.l4_at) + place;
        let len = (bytes.len() - usize::from(headers.l4_at)) as u32;
        let pseudo = |src, dst| checksum::pseudo_header(src, dst, protocol, len).fold().to_be_bytes();
        bytes[field..field + 2].copy_from_slice(&pseudo(src, dst));
        edit::set_source(&mut bytes, &mut headers, new_src, true).unwrap();
        edit::set_destination(&mut bytes, &mut headers, new_dst, true).unwrap();
        prop_assert_eq!(&bytes[field..field + 2], &pseudo(new_src, new_dst));
    }

    #[test]
    fn a_lower_mss_keeps_the_checksum(
        [src, dst, ..] in addresses(),
        before in 0_usize..5,
        [told, most] in any::<[u16; 2]>(),
    ) {
        let with = |mss: u16| {
            let mut options = vec![1; before];
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
            options.resize(12, 0);
            frame(src, dst, proto::TCP, &tcp(src, dst, proto::TCP_SYN, &options, &[]))
        };
        let mut bytes = with(told);
        let headers = parse(&bytes);
        edit::lower_mss(&mut bytes, &headers, most, false).unwrap();
        prop_assert_eq!(&bytes, &with(told.min(most)));
        prop_assert_eq!(headers, parse(&bytes));

        let mut partial = with(told);
        let field = usize::from(parse(&partial).l4_at) + 16;
        let checksum = [partial[field], partial[field + 1]];
        let headers = parse(&partial);
        edit::lower_mss(&mut partial, &headers, most, true).unwrap();
        prop_assert_eq!(&partial[field..field + 2], &checksum);
        partial[field..field + 2].copy_from_slice(&bytes[field..field + 2]);
        prop_assert_eq!(partial, bytes);
    }

    #[test]
    fn any_options_of_a_syn_are_read(options in prop::collection::vec(0_u8..9, 0..40), cut in 0_usize..9) {
        let (src, dst) = (A4, B4);
        let mut options = options;
        options.truncate(options.len() / 4 * 4);
        let bytes = frame(src, dst, proto::TCP, &tcp(src, dst, proto::TCP_SYN, &options, &[]));
        let headers = parse(&bytes);
        let mut lowered = bytes.clone();
        edit::lower_mss(&mut lowered, &headers, 1, false).unwrap();
        prop_assert_eq!(verify_l4(&lowered, &headers), L4Check::Right);
        let cut = &mut lowered[..bytes.len() - cut];
        edit::lower_mss(cut, &headers, 0, false).unwrap();
    }

    #[test]
    fn ttl_and_tos_keep_the_header_checksum(
        [src, dst, ..] in addresses(),
        tos in any::<u8>(),
        times in 0_u8..80,
    ) {
        let mut bytes = build(1, src, dst, b"data");
        let mut headers = parse(&bytes);
        for _ in 0..times {
            edit::decrement_ttl(&mut bytes, &mut headers).unwrap();
        }
        edit::set_tos(&mut bytes, &mut headers, tos).unwrap();
        prop_assert_eq!(&headers, &parse(&bytes));
        let ip = headers.ip().unwrap();
        prop_assert_eq!((ip.ttl, ip.tos), (64_u8.saturating_sub(times), tos));
    }

    #[test]
    fn quoted_addresses_are_translated(
        [src, dst, new_src, new_dst] in addresses(),
        kind in 0_usize..3,
        payload in prop::collection::vec(any::<u8>(), 0..40),
        words in 4_usize..50,
    ) {
        let error = |src: IpAddr, dst: IpAddr| {
            let original = build(kind, src, dst, &payload);
            let head = if src.is_ipv4() { 34 } else { 54 };
            let quoted = &original[14..original.len().min(head + 2 * words)];
            let body = [&[0; 4], quoted].concat();
            let (protocol, kind) = if src.is_ipv4() { (proto::ICMP, 3) } else { (proto::ICMPV6, 1) };
            frame(dst, src, protocol, &icmp(dst, src, kind, 1, &body))
        };
        let mut bytes = error(src, dst);
        // Bytes after the packet do not belong to it.
        bytes.extend([0x55; 30]);
        let mut headers = parse(&bytes);
        let mut quoted = headers.quoted(&bytes, bytes.len()).unwrap().unwrap();
        edit::set_quoted_source(&mut bytes, &headers, &mut quoted, new_src, false).unwrap();
        edit::set_quoted_destination(&mut bytes, &headers, &mut quoted, new_dst, false).unwrap();
        edit::set_source(&mut bytes, &mut headers, new_dst, false).unwrap();
        edit::set_destination(&mut bytes, &mut headers, new_src, false).unwrap();
        prop_assert_eq!(headers.quoted(&bytes, bytes.len()).unwrap().unwrap(), quoted);
        prop_assert_eq!(verify_l4(&bytes, &headers), L4Check::Right);
        let mut expected = error(new_src, new_dst);
        expected.extend([0x55; 30]);
        prop_assert_eq!(bytes, expected);
    }
}

#[test]
fn a_udp_checksum_of_zero_stays() {
    let mut bytes = frame(A4, B4, proto::UDP, &udp(A4, B4, 1, 2, b"data"));
    bytes[40..42].fill(0);
    let mut headers = parse(&bytes);
    edit::set_source(&mut bytes, &mut headers, "10.9.9.9".parse().unwrap(), false).unwrap();
    assert_eq!(bytes[40..42], [0, 0]);
    assert_eq!(verify_l4(&bytes, &parse(&bytes)), L4Check::Absent);
}

#[test]
fn a_udp_checksum_that_becomes_zero_is_written_as_ones() {
    // The payload is such that the sum over the translated datagram is 0xffff.
    let new: IpAddr = "10.9.9.9".parse().unwrap();
    let mut datagram = udp(new, B4, 1, 2, &[0, 0]);
    let payload = [datagram[6], datagram[7]];
    datagram = udp(A4, B4, 1, 2, &payload);
    let mut bytes = frame(A4, B4, proto::UDP, &datagram);
    let mut headers = parse(&bytes);
    edit::set_source(&mut bytes, &mut headers, new, false).unwrap();
    assert_eq!(bytes[40..42], [0xff, 0xff]);
    assert_eq!(verify_l4(&bytes, &headers), L4Check::Right);
}

#[test]
fn later_fragments_have_no_l4_checksum() {
    let mut bytes = frame(A4, B4, proto::UDP, &[0xaa; 16]);
    bytes[21] = 1;
    bytes[20] = 0;
    bytes[24..26].fill(0);
    let sum = checksum::sum(&bytes[14..34]).finish();
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut headers = parse(&bytes);
    edit::set_source(&mut bytes, &mut headers, "10.9.9.9".parse().unwrap(), false).unwrap();
    assert_eq!(bytes[34..], [0xaa; 16]);
    assert_eq!(parse(&bytes), headers);
}

#[test]
fn checks_what_it_edits() {
    let mut bytes = frame(A4, B4, proto::UDP, &udp(A4, B4, 1, 2, b"data"));
    let mut headers = parse(&bytes);
    let before = (bytes.clone(), headers.clone());
    let mismatch = Err(WriteError::Mismatch);
    assert_eq!(edit::set_source(&mut bytes, &mut headers, A6, false), mismatch);
    assert_eq!(edit::set_source(&mut bytes[..20], &mut headers, B4, false), Err(WriteError::TooShort));
    assert_eq!(edit::decrement_ttl(&mut bytes[..20], &mut headers), Err(WriteError::TooShort));
    assert_eq!((bytes, headers), before);

    let mut packet = ip(A6, B6, 59, b"");
    let mut headers = Headers::network(&packet, 0, packet.len()).unwrap();
    assert_eq!(edit::set_macs(&mut packet, &mut headers, A, B), mismatch);
    let mut arp =
        common::written(|out| packet::neighbour::arp_request(out, A, common::v4(A4), common::v4(B4)));
    let mut headers = parse(&arp);
    assert_eq!(edit::set_tos(&mut arp, &mut headers, 1), mismatch);
    edit::set_macs(&mut arp, &mut headers, B, A).unwrap();
    assert_eq!(parse(&arp), headers);
    assert_eq!(headers.eth.map(|eth| (eth.dst, eth.src)), Some((B, A)));
}

#[test]
fn l4_checksums_are_verified() {
    for bytes in common::samples() {
        let headers = parse(&bytes);
        if verify_l4(&bytes, &headers) == L4Check::Right {
            let mut bad = bytes.clone();
            bad[usize::from(headers.l4_at)] ^= 1;
            assert_eq!(verify_l4(&bad, &headers), L4Check::Wrong);
            assert_eq!(verify_l4(&bytes[..bytes.len() - 1], &headers), L4Check::TooShort);
        }
    }
    // RFC 9260's CRC over an all-zero common header but the ports, computed with an independent CRC-32C.
    let sctp = |crc: &str| {
        let bytes = frame(A4, B4, proto::SCTP, &common::hex(&format!("0007 0008 00000000 {crc}")));
        verify_l4(&bytes, &parse(&bytes))
    };
    assert_eq!(sctp("00000000"), L4Check::Wrong);
    assert_eq!(sctp("9e1b7279"), L4Check::Right);
}
