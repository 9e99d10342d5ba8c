//! Answers, byte for byte, and to whom none is given.

use crate::common::{
    A, A4, A6, B, B4, B6, GATEWAY, ethernet, frame, hex, icmp, ip, tcp, udp, v4, v6, written,
};
use packet::checksum::{L4Check, verify_l4};
use packet::reply::{echo_reply, icmp_error, tcp_reset};
use packet::{Headers, IcmpError, L4, Nd, WriteError, checksum, mld, neighbour, proto};
use std::net::IpAddr;

fn parse(bytes: &[u8]) -> Headers {
    let headers = Headers::ethernet(bytes, 0, bytes.len()).unwrap();
    assert_ne!(verify_l4(bytes, &headers), L4Check::Wrong, "{bytes:02x?}");
    headers
}

/// Returns the answer that a writer gives. The writer must fail cleanly in every shorter buffer.
fn answer(write: impl Fn(&mut [u8]) -> Result<usize, WriteError>) -> Vec<u8> {
    let bytes = written(&write);
    for len in (0..bytes.len()).step_by(if cfg!(miri) { 13 } else { 1 }) {
        assert_eq!(write(&mut vec![0; len]), Err(WriteError::TooShort), "{len}");
    }
    assert_eq!(write(&mut vec![0; bytes.len()]), Ok(bytes.len()));
    bytes
}

#[test]
fn an_arp_request_asks_everybody() {
    let request = answer(|out| neighbour::arp_request(out, A, v4(A4), v4(B4)));
    let expected = hex("ffffffffffff 020000000001 0806
         0001 0800 06 04 0001 020000000001 0a010101 000000000000 0a010102");
    assert_eq!(request, expected);
}

#[test]
fn neighbour_discovery() {
    let request = answer(|out| neighbour::neighbour_solicitation(out, A, v6(A6), v6(B6)));
    let expected = hex("3333ff000002 020000000001 86dd
         60000000 0020 3a ff fd000001000000000000000000000001 ff0200000000000000000001ff000002
         8700 7d95 00000000 fd000001000000000000000000000002 0101 020000000001");
    assert_eq!(request, expected);
    let headers = parse(&request);
    let reply =
        answer(|out| neighbour::neighbour_advertisement(out, &request, &headers, GATEWAY, true, None));
    assert_eq!(reply[..14], hex("020000000001 00005e000100 86dd"));
    assert_eq!(reply[58], 0xe0);
    let parsed = parse(&reply);
    let expected = Nd {
        solicitation: false,
        target: v6(B6),
        link_addr: Some(GATEWAY),
        solicited: true,
        overrides: true,
    };
    assert_eq!(parsed.nd, Some(expected));
    assert_eq!(parsed.ip().unwrap().dst, A6);
}

#[test]
fn a_neighbour_is_asked_alone_and_announced() {
    let asked = answer(|out| neighbour::arp_probe(out, B, A, v4(A4), v4(B4)));
    assert_eq!(asked[..14], hex("020000000002 020000000001 0806"));
    let asked = answer(|out| neighbour::neighbour_probe(out, B, A, v6(A6), v6(B6)));
    assert_eq!(asked[..14], hex("020000000002 020000000001 86dd"));
    assert_eq!(parse(&asked).ip().unwrap().dst, B6);
    let told = answer(|out| neighbour::unsolicited_advertisement(out, A, v6(A6), false));
    assert_eq!(told[..14], hex("333300000001 020000000001 86dd"));
    assert_eq!(told[58], 0x20, "override alone");
    let expected =
        Nd { solicitation: false, target: v6(A6), link_addr: Some(A), solicited: false, overrides: true };
    assert_eq!(parse(&told).nd, Some(expected));
    let told = answer(|out| neighbour::unsolicited_advertisement(out, A, v6(A6), true));
    assert_eq!(told[58], 0xa0, "a router's");
}

#[test]
fn groups_are_reported() {
    let group = neighbour::solicited_node(v6(B6));
    let report = answer(|out| mld::report(out, A, &[group, group]));
    let expected = hex("333300000016 020000000001 86dd
         60000000 0038 00 01 fe80000000000000000000fffe000001 ff020000000000000000000000000016
         3a00 0502 0000 0100
         8f00 0000 0000 0002
         02000000 ff0200000000000000000001ff000002
         02000000 ff0200000000000000000001ff000002");
    assert_eq!([&report[..64], &report[66..]].concat(), [&expected[..64], &expected[66..]].concat());
    parse(&report);
    assert_eq!(mld::report(&mut [0; 4000], A, &[group; 61]), Err(WriteError::TooShort));
}

#[test]
fn duplicate_address_detection_is_answered_to_all_nodes() {
    let mut payload = hex("00000000 fd000001000000000000000000000002");
    let (nobody, group) = ("::".parse().unwrap(), "ff02::1:ff00:2".parse().unwrap());
    payload = icmp(nobody, group, 135, 0, &payload);
    let mut probe = frame(nobody, group, proto::ICMPV6, &payload);
    probe[21] = 255;
    let headers = parse(&probe);
    let reply = answer(|out| neighbour::neighbour_advertisement(out, &probe, &headers, GATEWAY, false, None));
    assert_eq!(reply[..12], hex("333300000001 00005e000100"));
    assert_eq!(reply[58], 0x20);
    let all_nodes: IpAddr = "ff02::1".parse().unwrap();
    assert_eq!(parse(&reply).ip().unwrap().dst, all_nodes);
    assert!(parse(&reply).nd.is_some());
}

#[test]
fn an_echo_request_is_answered() {
    for (a, b, protocol, asked, answered) in [(A4, B4, proto::ICMP, 8, 0), (A6, B6, proto::ICMPV6, 128, 129)]
    {
        let request = frame(a, b, protocol, &icmp(a, b, asked, 0, b"\x12\x34\0\x01odd"));
        let reply = answer(|out| echo_reply(out, &request, &parse(&request), B, b));
        let expected = frame(b, a, protocol, &icmp(b, a, answered, 0, b"\x12\x34\0\x01odd"));
        assert_eq!(reply[..12], hex("020000000001 020000000002"));
        let l3 = if a.is_ipv4() { 34 } else { 54 };
        assert_eq!(reply[l3..], expected[l3..]);
        assert_eq!(parse(&reply).ip().map(|ip| (ip.src, ip.dst)), Some((b, a)));
        let snapshot = echo_reply(&mut [0; 256], &request[..request.len() - 1], &parse(&request), B, b);
        assert_eq!(snapshot, Err(WriteError::TooShort));
        let again = echo_reply(&mut [0; 256], &reply, &parse(&reply), A, a);
        assert_eq!(again, Err(WriteError::Mismatch));
    }
}

#[test]
fn echo_keeps_tags_and_works_without_ethernet() {
    let packet = ip(A4, B4, proto::ICMP, &icmp(A4, B4, 8, 0, b"\x12\x34\0\x01"));
    let mut request = ethernet(&[7], proto::ETHERTYPE_IPV4);
    request.extend(&packet);
    let reply = answer(|out| echo_reply(out, &request, &parse(&request), B, B4));
    assert_eq!(reply[..18], hex("020000000001 020000000002 8100 0007 0800"));
    let headers = Headers::network(&packet, 0, packet.len()).unwrap();
    let bare = answer(|out| echo_reply(out, &packet, &headers, B, B4));
    assert_eq!(bare, reply[18..]);
}

#[test]
fn an_anycast_address_answers_from_a_unicast_one() {
    let other: IpAddr = "fd00:1::ffff".parse().unwrap();
    let request = frame(A6, B6, proto::ICMPV6, &icmp(A6, B6, 128, 0, b"\x12\x34\0\x01odd"));
    let reply = answer(|out| echo_reply(out, &request, &parse(&request), B, other));
    let expected = frame(other, A6, proto::ICMPV6, &icmp(other, A6, 129, 0, b"\x12\x34\0\x01odd"));
    assert_eq!(reply[54..], expected[54..]);
    assert_eq!(parse(&reply).ip().map(|ip| ip.src), Some(other));
    let asked = answer(|out| neighbour::neighbour_solicitation(out, A, v6(A6), v6(B6)));
    let from = Some(v6(other));
    let told =
        answer(|out| neighbour::neighbour_advertisement(out, &asked, &parse(&asked), GATEWAY, true, from));
    assert_eq!((told[58], parse(&told).ip().unwrap().src), (0xc0, other), "it overrides nothing");
}

#[test]
fn a_fragment_of_an_echo_request_is_answered_by_one() {
    for (a, b, protocol, asked, answered) in [(A4, B4, proto::ICMP, 8, 0), (A6, B6, proto::ICMPV6, 128, 129)]
    {
        let (request, expected) = (icmp(a, b, asked, 0, &[7; 44]), icmp(b, a, answered, 0, &[7; 44]));
        for (part, offset, more) in [(0..16, 0_u16, true), (16..request.len(), 16, false)] {
            let fragment = |a, b, body: &[u8]| match a {
                IpAddr::V4(_) => {
                    let mut packet = ip(a, b, protocol, body);
                    let field = (offset / 8) | if more { 0x2000 } else { 0 };
                    packet[4..8].copy_from_slice(&[1, 2, (field >> 8) as u8, field as u8]);
                    packet[10..12].fill(0);
                    let sum = checksum::sum(&packet[..20]).finish();
                    packet[10..12].copy_from_slice(&sum.to_be_bytes());
                    packet
                }
                IpAddr::V6(_) => {
                    let mut header = vec![protocol, 0];
                    header.extend((offset | u16::from(more)).to_be_bytes());
                    header.extend([1, 2, 3, 4]);
                    ip(a, b, proto::FRAGMENT, &[&header, body].concat())
                }
            };
            let asked = fragment(a, b, &request[part.clone()]);
            let headers = Headers::network(&asked, 0, asked.len()).unwrap();
            let reply = answer(|out| echo_reply(out, &asked, &headers, B, b));
            assert_eq!(reply, fragment(b, a, &expected[part]), "{a} at {offset}");
        }
    }
}

#[test]
fn icmp_errors_have_the_types_of_their_reasons() {
    let mtu = IcmpError::TooBig { mtu: 1400 };
    let v4 = [
        (IcmpError::TimeExceeded, 11, 0, 0),
        (mtu, 3, 4, 1400),
        (IcmpError::NoRoute, 3, 0, 0),
        (IcmpError::HostUnreachable, 3, 1, 0),
        (IcmpError::PortUnreachable, 3, 3, 0),
        (IcmpError::AdminProhibited, 3, 13, 0),
    ];
    let v6 = [
        (IcmpError::TimeExceeded, 3, 0, 0),
        (mtu, 2, 0, 1400),
        (IcmpError::NoRoute, 1, 0, 0),
        (IcmpError::HostUnreachable, 1, 3, 0),
        (IcmpError::PortUnreachable, 1, 4, 0),
        (IcmpError::AdminProhibited, 1, 1, 0),
    ];
    for (a, b, from, cases) in [(A4, B4, "10.1.1.254", v4), (A6, B6, "fd00:1::ffff", v6)] {
        let from: IpAddr = from.parse().unwrap();
        let request = frame(a, b, proto::UDP, &udp(a, b, 5000, 53, b"question"));
        let headers = parse(&request);
        for (error, kind, code, rest) in cases {
            let reply = answer(|out| icmp_error(out, &request, &headers, error, GATEWAY, from));
            let parsed = parse(&reply);
            assert_eq!(parsed.ip().map(|ip| (ip.src, ip.dst)), Some((from, a)));
            assert_eq!(parsed.l4, L4::Icmp { kind, code, id: 0 });
            let at = usize::from(parsed.l4_at);
            assert_eq!(reply[at + 4..at + 8], u32::to_be_bytes(rest));
            assert_eq!(reply[at + 8..], request[14..]);
            let quoted = parsed.quoted(&reply, reply.len()).unwrap().unwrap();
            assert_eq!((quoted.l4, quoted.ip().unwrap().src), (headers.l4, a));
        }
        let other = if a.is_ipv4() { A6 } else { A4 };
        let refused = icmp_error(&mut [0; 2048], &request, &headers, mtu, GATEWAY, other);
        assert_eq!(refused, Err(WriteError::Mismatch));
    }
}

#[test]
fn icmp_errors_are_bounded() {
    for (a, b, from, max) in [(A4, B4, "10.1.1.254", 576), (A6, B6, "fd00:1::ffff", 1280)] {
        let from: IpAddr = from.parse().unwrap();
        let request = frame(a, b, proto::UDP, &udp(a, b, 1, 2, &[0; 1400]));
        let headers = parse(&request);
        let error = IcmpError::TimeExceeded;
        let reply = written(|out| icmp_error(out, &request, &headers, error, GATEWAY, from));
        assert_eq!(reply.len(), 14 + max);
        parse(&reply);
        let snapshot = written(|out| icmp_error(out, &request[..128], &headers, error, GATEWAY, from));
        assert!(snapshot.ends_with(&request[14..128]));
        parse(&snapshot);
    }
}

#[test]
fn no_icmp_error_about() {
    let report = |bytes: &[u8], error| {
        let headers = parse(bytes);
        let from = if headers.ip().unwrap().src.is_ipv4() { B4 } else { B6 };
        icmp_error(&mut [0; 2048], bytes, &headers, error, GATEWAY, from).map(|_| ())
    };
    let refused = Err(WriteError::Unanswerable);
    let exceeded = IcmpError::TimeExceeded;
    let datagram = |src, dst| frame(src, dst, proto::UDP, &udp(src, dst, 1, 2, b""));
    assert_eq!(report(&frame(A4, B4, proto::ICMP, &icmp(A4, B4, 3, 1, &[0; 32])), exceeded), refused);
    assert_eq!(report(&frame(A6, B6, proto::ICMPV6, &icmp(A6, B6, 1, 1, &[0; 44])), exceeded), refused);
    assert_eq!(report(&frame(A6, B6, proto::ICMPV6, &icmp(A6, B6, 137, 0, &[0; 44])), exceeded), refused);
    assert_eq!(report(&frame(A4, B4, proto::ICMP, &icmp(A4, B4, 8, 0, &[0; 4])), exceeded), Ok(()));
    assert_eq!(report(&datagram(A4, "224.0.0.5".parse().unwrap()), exceeded), refused);
    assert_eq!(report(&datagram(A4, "255.255.255.255".parse().unwrap()), exceeded), refused);
    assert_eq!(report(&datagram("0.0.0.0".parse().unwrap(), B4), exceeded), refused);
    let group = datagram(A6, "ff0e::1".parse().unwrap());
    assert_eq!(report(&group, exceeded), refused);
    assert_eq!(report(&group, IcmpError::TooBig { mtu: 1280 }), Ok(()));
    let mut to_all = datagram(A4, B4);
    to_all[..6].fill(0xff);
    assert_eq!(report(&to_all, exceeded), refused);
}

#[test]
fn a_reset_fits_the_segment_that_it_answers() {
    for (a, b) in [(A4, B4), (A6, B6)] {
        let reset = |flags, payload: &[u8]| {
            let request = frame(a, b, proto::TCP, &tcp(a, b, flags, &[1; 4], payload));
            let reply = answer(|out| tcp_reset(out, &request, &parse(&request), B));
            let at = usize::from(parse(&reply).l4_at);
            reply[at..at + 14].to_vec()
        };
        // Sequence number, acknowledgment, header length, flags.
        assert_eq!(reset(0x02, b""), hex("0050 03e8 00000000 00000002 50 14"), "SYN");
        assert_eq!(reset(0x01, b"data"), hex("0050 03e8 00000000 00000006 50 14"), "FIN");
        assert_eq!(reset(0x10, b"data"), hex("0050 03e8 00000002 00000000 50 04"), "ACK");
        let rst = frame(a, b, proto::TCP, &tcp(a, b, 0x14, b"", b""));
        let refused = tcp_reset(&mut [0; 256], &rst, &parse(&rst), B);
        assert_eq!(refused, Err(WriteError::Unanswerable));
    }
}
