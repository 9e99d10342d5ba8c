//! Parsing: byte-exact packets, and what is refused with which reason.

use crate::common;
use crate::common::{A, A4, A6, B, B4, B6, ethernet, frame, hex, icmp, ip, samples, tcp, udp, v4, v6};
use packet::{Arp, Fragment, Headers, L3, L4, Nd, ParseError, Tag, checksum, neighbour, proto};
use std::net::Ipv6Addr;

fn parse(bytes: &[u8]) -> Result<Headers, ParseError> {
    Headers::ethernet(bytes, 0, bytes.len())
}

/// Sets the header checksum after a test changed an IPv4 header behind an untagged Ethernet header.
fn fix_checksum(frame: &mut [u8]) {
    let len = usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let checksum = packet::checksum::sum(&frame[14..14 + len]).finish();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn udp_over_ipv4_is_parsed() {
    // The IPv4 header is the example of the Wikipedia article on its checksum.
    let mut bytes = hex("020000000002 020000000001 0800
         4500 0073 0000 4000 4011 b861 c0a80001 c0a800c7
         0035 e97c 005f 279f");
    bytes.resize(14 + 0x73 + 5, 0);
    let headers = parse(&bytes).unwrap();
    let eth = headers.eth.as_ref().unwrap();
    assert_eq!((eth.dst, eth.src, eth.ethertype), (B, A, 0x0800));
    let ip = headers.ip().unwrap();
    assert_eq!((ip.at, ip.header_len, ip.len), (14, 20, 0x73));
    assert_eq!((ip.src.to_string(), ip.dst.to_string()), ("192.168.0.1".into(), "192.168.0.199".into()));
    assert_eq!((ip.protocol, ip.ttl, ip.tos), (17, 64, 0));
    assert_eq!((ip.fragment, ip.dont_fragment), (Fragment::Whole, true));
    assert_eq!(headers.l4, L4::Udp { src: 53, dst: 0xe97c });
    assert_eq!((headers.at, headers.l3_at, headers.l4_at), (0, 14, 34));
    assert_eq!(headers.ports(), (53, 0xe97c));
}

#[test]
fn tags_are_kept_outermost_first() {
    let mut bytes = hex("020000000002 020000000001 88a8 0007 8100 a008 0800");
    bytes.extend(ip(A4, B4, proto::UDP, &udp(A4, B4, 1, 2, b"")));
    let headers = parse(&bytes).unwrap();
    let eth = headers.eth.as_ref().unwrap();
    let tags = [Tag { service: true, tci: 7 }, Tag { service: false, tci: 0xa008 }];
    assert_eq!((eth.tags.as_slice(), eth.ethertype), (tags.as_slice(), 0x0800));
    assert_eq!(headers.l3_at, 22);
    assert_eq!(parse(&ethernet(&[1, 2, 3], 0x0800)), Err(ParseError::TooManyTags));
}

#[test]
fn headers_may_start_anywhere() {
    let inner = frame(A4, B4, proto::UDP, &udp(A4, B4, 1, 2, b"x"));
    let mut bytes = vec![0xee; 33];
    bytes.extend(&inner);
    let headers = Headers::ethernet(&bytes, 33, bytes.len()).unwrap();
    assert_eq!((headers.at, headers.l3_at, headers.l4_at), (33, 47, 67));
    let headers = Headers::network(&bytes, 47, bytes.len()).unwrap();
    assert_eq!((headers.at, headers.l3_at, headers.l4_at, headers.eth), (47, 47, 67, None));
    bytes[47] = 0x55;
    assert_eq!(Headers::network(&bytes, 47, bytes.len()), Err(ParseError::IpHeader));
    assert_eq!(Headers::network(&bytes, bytes.len(), bytes.len()), Err(ParseError::IpTruncated));
    assert_eq!(Headers::ethernet(&bytes, usize::MAX, 60), Err(ParseError::EthernetTruncated));
}

#[test]
fn arp_is_parsed_for_ipv4_over_ethernet_alone() {
    let bytes = hex("ffffffffffff 020000000001 0806
         0001 0800 06 04 0001 020000000001 0a010101 000000000000 0a010102");
    let expected = Arp {
        request: true,
        sender_mac: A,
        sender: v4(A4),
        target_mac: packet::Mac::default(),
        target: v4(B4),
    };
    assert_eq!(parse(&bytes).unwrap().l3, L3::Arp(expected));
    for (at, value) in [(15, 6), (17, 1), (18, 8), (19, 6), (21, 3), (21, 0)] {
        let mut bad = bytes.clone();
        bad[at] = value;
        assert_eq!(parse(&bad), Err(ParseError::ArpMalformed), "byte {at} = {value}");
    }
}

#[test]
fn ipv4_header_is_checked() {
    let good = frame(A4, B4, proto::UDP, &udp(A4, B4, 1, 2, b"data"));
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        fix_checksum(&mut bytes);
        parse(&bytes).map(|_| ())
    };
    assert_eq!(with(14, 0x65), Err(ParseError::IpHeader));
    assert_eq!(with(14, 0x44), Err(ParseError::IpHeader));
    assert_eq!(with(17, 33), Err(ParseError::IpLength));
    assert_eq!(with(17, 19), Err(ParseError::IpLength));
    assert_eq!(with(26, 127), Err(ParseError::IpSource));
    assert_eq!(with(26, 224), Err(ParseError::IpSource));
    assert_eq!(with(26, 239), Err(ParseError::IpSource));
    let mut bytes = good.clone();
    bytes[22] -= 1;
    assert_eq!(parse(&bytes), Err(ParseError::IpChecksum));
    let broadcast = "255.255.255.255".parse().unwrap();
    assert_eq!(parse(&frame(broadcast, B4, proto::ICMP, &[0; 8])), Err(ParseError::IpSource));
    let nobody = "0.0.0.0".parse().unwrap();
    assert!(parse(&frame(nobody, B4, proto::UDP, &udp(nobody, B4, 68, 67, b""))).is_ok());
}

#[test]
fn ipv4_options_are_part_of_the_header() {
    let mut bytes = frame(A4, B4, proto::UDP, &hex("94040000 0001 0002 0008 0000"));
    bytes[14] = 0x46;
    fix_checksum(&mut bytes);
    let headers = parse(&bytes).unwrap();
    assert_eq!((headers.ip().unwrap().header_len, headers.l4_at), (24, 38));
    assert_eq!(headers.l4, L4::Udp { src: 1, dst: 2 });
}

#[test]
fn ipv4_fragments() {
    let with = |flags: u16, protocol: u8, payload: &[u8]| {
        let mut bytes = frame(A4, B4, protocol, payload);
        bytes[20..22].copy_from_slice(&flags.to_be_bytes());
        fix_checksum(&mut bytes);
        parse(&bytes)
    };
    let head = hex("0001 0002 0100 0000 0102030405060708");
    let first = with(0x2000, proto::UDP, &head).unwrap();
    assert_eq!(first.ip().unwrap().fragment, Fragment::First { id: 7 });
    assert_eq!(first.l4, L4::Udp { src: 1, dst: 2 });
    let later = with(0x0002, proto::UDP, b"end").unwrap();
    assert_eq!(later.ip().unwrap().fragment, Fragment::Later { id: 7 });
    assert_eq!((later.l4, later.l4_at), (L4::Other, 0));
    for (flags, protocol, payload, why) in [
        (0x2000, proto::TCP, &head[..], "first without the whole TCP header"),
        (0x2000, proto::UDP, &head[..15], "not a multiple of 8"),
        (0x1fff, proto::UDP, &head[..], "ends past 65535"),
        (0x0001, proto::TCP, &head[..], "overwrites TCP flags"),
    ] {
        assert_eq!(with(flags, protocol, payload), Err(ParseError::Fragment), "{why}");
    }
}

#[test]
fn ipv6_extension_headers() {
    let upper = hex("0001 0002 0008 0000");
    let packet = |first: u8, chain: &str| {
        let mut payload = hex(chain);
        payload.extend(&upper);
        parse(&frame(A6, B6, first, &payload))
    };
    let headers = packet(0, "3c00 050200000100 3300 010400000000 1101 000000000001 00000002").unwrap();
    let ip = headers.ip().unwrap();
    assert_eq!((ip.protocol, ip.header_len, headers.l4_at), (17, 40 + 8 + 8 + 12, 14 + 68));
    assert_eq!(headers.l4, L4::Udp { src: 1, dst: 2 });

    let fragment = |chain: &str| packet(44, chain).map(|headers| headers.ip().unwrap().fragment);
    assert_eq!(fragment("1100 0000 0000abcd"), Ok(Fragment::Whole), "atomic");
    assert_eq!(fragment("1100 0001 0000abcd"), Ok(Fragment::First { id: 0xabcd }));
    assert_eq!(fragment("1100 0008 0000abcd"), Ok(Fragment::Later { id: 0xabcd }));
    assert_eq!(fragment("0600 0001 0000abcd"), Err(ParseError::Fragment), "TCP header not whole");
    assert_eq!(fragment("1100 fff8 0000abcd"), Err(ParseError::Fragment), "ends past 65535");

    for (first, chain, why) in [
        (60, "0000 010400000000 1100 010400000000", "hop-by-hop not first"),
        (44, "2c00 0000 00000001 1100 0000 00000001", "two fragment headers"),
        (43, "1102 0001 00000000 00000000000000000000000000000000", "type 0 source route"),
        (60, "11ff 010400000000", "longer than the packet"),
    ] {
        assert_eq!(packet(first, chain), Err(ParseError::Ipv6Extension), "{why}");
    }
    assert!(packet(60, &("3c00010400000000".repeat(7) + "1100010400000000")).is_ok());
    assert_eq!(
        packet(60, &("3c00010400000000".repeat(8) + "1100010400000000")),
        Err(ParseError::Ipv6Extension),
        "nine"
    );
}

#[test]
fn ipv6_header_is_checked() {
    let loopback = "::1".parse().unwrap();
    let group = "ff02::1".parse().unwrap();
    assert_eq!(parse(&frame(loopback, B6, 59, b"")), Err(ParseError::IpSource));
    assert_eq!(parse(&frame(group, B6, 59, b"")), Err(ParseError::IpSource));
    assert!(parse(&frame("::".parse().unwrap(), B6, 59, b"")).is_ok());
    let mut bytes = frame(A6, B6, 59, b"");
    bytes[14] = 0x40;
    assert_eq!(parse(&bytes), Err(ParseError::IpHeader));
    bytes[14] = 0x6a;
    bytes[15] = 0xbc;
    assert_eq!(parse(&bytes).unwrap().ip().unwrap().tos, 0xab);
    bytes[19] = 1;
    assert_eq!(parse(&bytes), Err(ParseError::IpLength));
    let jumbo = frame(A6, B6, proto::HOP_BY_HOP, b"");
    assert_eq!(parse(&jumbo), Err(ParseError::IpLength));
}

#[test]
fn l4_headers_are_checked() {
    let syn = tcp(A4, B4, proto::TCP_SYN, &[2, 4, 5, 0xb4], b"");
    let headers = parse(&frame(A4, B4, proto::TCP, &syn)).unwrap();
    let (seq, ack, window, scale) = (1, 2, 0xffff, None);
    assert_eq!(headers.l4, L4::Tcp { src: 1000, dst: 80, flags: 2, header_len: 24, seq, ack, window, scale });
    let mut bad = syn.clone();
    bad[12] = 0x70;
    assert_eq!(parse(&frame(A4, B4, proto::TCP, &bad)), Err(ParseError::L4Malformed));
    bad[12] = 0x40;
    assert_eq!(parse(&frame(A4, B4, proto::TCP, &bad)), Err(ParseError::L4Malformed));
    for (len, good) in [(0, false), (7, false), (8, true), (12, true), (13, false)] {
        let mut datagram = udp(A4, B4, 1, 2, b"data");
        datagram[5] = len;
        assert_eq!(parse(&frame(A4, B4, proto::UDP, &datagram)).is_ok(), good, "length {len}");
    }
    let sctp = hex("0007 0008 00000000 00000000");
    assert_eq!(parse(&frame(A6, B6, proto::SCTP, &sctp)).unwrap().l4, L4::Sctp { src: 7, dst: 8 });
    assert_eq!(parse(&frame(A6, B6, proto::SCTP, &sctp[..11])), Err(ParseError::L4Malformed));
    let echo = icmp(A6, B6, 129, 0, b"\x12\x34\0\x01");
    let expected = L4::Icmp { kind: 129, code: 0, id: 0x1234 };
    assert_eq!(parse(&frame(A6, B6, proto::ICMPV6, &echo)).unwrap().l4, expected);
    let other = parse(&frame(A4, B4, proto::ICMPV6, &echo)).unwrap();
    assert_eq!(other.l4, L4::Other, "ICMPv6 in IPv4");
}

#[test]
fn neighbour_discovery() {
    let good = common::written(|out| neighbour::neighbour_solicitation(out, A, v6(A6), v6(B6)));
    let nd = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes[56..58].fill(0);
        let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap()).into();
        let sum = checksum::l4(address(22), address(38), proto::ICMPV6, &bytes[54..]);
        bytes[56..58].copy_from_slice(&sum.to_be_bytes());
        parse(&bytes).unwrap().nd
    };
    let expected =
        Nd { solicitation: true, target: v6(B6), link_addr: Some(A), solicited: false, overrides: false };
    assert_eq!(nd(&|_| ()), Some(expected));
    assert_eq!(nd(&|bytes| bytes[78] = 14), Some(Nd { link_addr: None, ..expected }), "nonce option");
    assert_eq!(nd(&|bytes| bytes[21] = 64), None, "routed");
    assert_eq!(nd(&|bytes| bytes[55] = 1), None, "code");
    assert_eq!(nd(&|bytes| bytes[79] = 0), None, "option of length 0");
    assert_eq!(nd(&|bytes| bytes[79] = 2), None, "option past the end");
    assert_eq!(nd(&|bytes| bytes[62] = 0xff), None, "group as target");
    assert_eq!(nd(&|bytes| bytes[22..38].fill(0)), None, ":: with a link-layer address");
    let many = |count: u8| {
        nd(&|bytes| {
            for _ in 0..count {
                bytes.extend(hex("0e01000000000000"));
            }
            bytes[19] += 8 * count;
        })
    };
    assert_eq!((many(7), many(8)), (Some(expected), None));
    let mut wrong = good.clone();
    wrong[57] ^= 1;
    assert_eq!(parse(&wrong).unwrap().nd, None, "checksum");
    let cut = Headers::ethernet(&good[..80], 0, good.len());
    assert_eq!(cut, Err(ParseError::HeaderTooLong), "the checksum is over all of it");
}

#[test]
fn the_window_scale_of_a_syn() {
    let scale =
        |flags, options: &[u8]| match parse(&frame(A4, B4, proto::TCP, &tcp(A4, B4, flags, options, b"")))
            .unwrap()
            .l4
        {
            L4::Tcp { scale, .. } => scale,
            l4 => panic!("{l4:?}"),
        };
    let (syn, ack) = (proto::TCP_SYN, proto::TCP_ACK);
    assert_eq!(scale(syn, &[1, 3, 3, 7]), Some(7));
    assert_eq!(scale(syn | ack, &[2, 4, 5, 0xb4, 4, 2, 1, 3, 3, 9, 0, 0]), Some(9));
    assert_eq!(scale(syn, &[3, 3, 200, 0]), Some(14), "no shift is larger (RFC 7323, 2.3)");
    assert_eq!(scale(ack, &[1, 3, 3, 7]), None, "only a SYN says so");
    // Options that end early, are cut off, too short or too long.
    for options in
        [[0, 3, 3, 7], [1, 1, 3, 3], [3, 2, 3, 7], [3, 4, 7, 7], [8, 0, 3, 3], [1, 1, 1, 8], [8, 200, 3, 3]]
    {
        assert_eq!(scale(syn, &options), None, "{options:?}");
    }
}

#[test]
fn the_packet_in_an_icmp_error_is_parsed() {
    let original = ip(A4, B4, proto::TCP, &tcp(A4, B4, 0x10, b"", &[7; 100]));
    let mut body = hex("000005b4");
    body.extend(&original[..28]);
    let bytes = frame(B4, A4, proto::ICMP, &icmp(B4, A4, 3, 4, &body));
    let error = parse(&bytes).unwrap();
    let quoted = error.quoted(&bytes, bytes.len()).unwrap().unwrap();
    let ip = quoted.ip().unwrap();
    assert_eq!((ip.src, ip.dst, ip.len, ip.at, quoted.l4_at), (A4, B4, 140, 42, 62));
    let (seq, ack, window, scale) = (1, 0, 0, None);
    assert_eq!(quoted.l4, L4::Tcp { src: 1000, dst: 80, flags: 0, header_len: 0, seq, ack, window, scale });

    let mut short = bytes.clone();
    short[17] -= 1;
    fix_checksum(&mut short);
    let error = parse(&short).unwrap();
    assert_eq!(error.quoted(&short, short.len()), Err(ParseError::L4Malformed));
    let echo = frame(A4, B4, proto::ICMP, &icmp(A4, B4, 8, 0, &[0; 40]));
    assert_eq!(parse(&echo).unwrap().quoted(&echo, echo.len()), Ok(None));
}

/// A frame that ends early has a reason of its own. A snapshot that ends early always gives `HeaderTooLong`.
#[test]
fn truncation_at_every_byte() {
    let step = if cfg!(miri) { 13 } else { 1 };
    for bytes in samples() {
        let whole = parse(&bytes).unwrap();
        for cut in (0..bytes.len()).step_by(step) {
            match Headers::ethernet(&bytes[..cut], 0, bytes.len()) {
                Ok(headers) => assert_eq!(headers, whole, "{cut} of {bytes:02x?}"),
                Err(error) => assert_eq!(error, ParseError::HeaderTooLong, "{cut} of {bytes:02x?}"),
            }
            let truncated = Headers::ethernet(&bytes, 0, cut);
            assert_eq!(truncated, Headers::ethernet(&bytes[..cut], 0, cut));
            match truncated {
                Err(error) => assert_ne!(error, ParseError::HeaderTooLong, "{cut} of {bytes:02x?}"),
                Ok(headers) => assert_eq!(headers.l3, whole.l3, "{cut} of {bytes:02x?}"),
            }
        }
    }
}
