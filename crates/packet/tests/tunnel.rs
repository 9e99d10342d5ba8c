//! Decapsulation headers: what is read, what is refused.

use crate::common;
use crate::common::{A4, A6, B4, B6, frame, hex, udp};
use packet::{Headers, ParseError, Tunnel, TunnelKind, checksum, proto};

fn decap(bytes: &[u8]) -> Result<Option<Tunnel>, ParseError> {
    let headers = Headers::ethernet(bytes, 0, bytes.len()).unwrap();
    packet::tunnel(bytes, &headers, bytes.len())
}

fn mpls_udp(stack: &str) -> Result<Option<Tunnel>, ParseError> {
    decap(&frame(A4, B4, proto::UDP, &udp(A4, B4, 50000, 6635, &hex(stack))))
}

fn gre(packet: &str) -> Result<Option<Tunnel>, ParseError> {
    decap(&frame(A6, B6, proto::GRE, &hex(packet)))
}

#[test]
fn mpls_over_udp() {
    // Label 100, traffic class 5, bottom, TTL 63; then the payload.
    let tunnel = mpls_udp("00064b3f 45000000").unwrap().unwrap();
    assert_eq!((tunnel.kind, tunnel.id, tunnel.bottom), (TunnelKind::MplsUdp, 100, true));
    assert_eq!((tunnel.mpls_tc, tunnel.mpls_ttl, tunnel.outer_tos), (5, 63, 0));
    assert_eq!((tunnel.inner_at, tunnel.inner_end), (46, 50));
}

#[test]
fn label_stacks_are_read_to_their_bottom() {
    let labels = |stack: &str| mpls_udp(stack).map(|tunnel| tunnel.unwrap().labels.to_vec());
    assert_eq!(labels("00064040 000c8040 0012c140"), Ok(vec![100, 200, 300]));
    assert_eq!(labels("00000040 00002040 00064140"), Ok(vec![100]), "explicit nulls on top");
    assert_eq!(labels("00000140"), Ok(vec![0]), "explicit null alone");
    assert_eq!(labels("00064040 00000140"), Ok(vec![100, 0]), "explicit null below");
    assert_eq!(labels(&("00064040".repeat(3) + "00064140")).map(|labels| labels.len()), Ok(4));
    assert_eq!(labels(&("00064040".repeat(4) + "00064140")), Err(ParseError::TunnelMalformed));
    assert_eq!(labels("00064040 000c8040"), Err(ParseError::TunnelMalformed), "no bottom");
    assert_eq!(labels(""), Err(ParseError::TunnelMalformed));
    let tunnel = mpls_udp("00064007 000c81ff").unwrap().unwrap();
    assert_eq!((tunnel.id, tunnel.bottom, tunnel.mpls_ttl), (100, false, 7));
}

#[test]
fn mpls_over_gre_may_have_a_key_and_a_sequence_number() {
    let tunnel = gre("0000 8847 00064140 45").unwrap().unwrap();
    assert_eq!((tunnel.kind, tunnel.id, tunnel.inner_at), (TunnelKind::MplsGre, 100, 62));
    let tunnel = gre("3000 8847 00000001 00000002 00064140").unwrap().unwrap();
    assert_eq!((tunnel.id, tunnel.inner_at), (100, 70), "key and sequence number");
    assert_eq!(gre("0000 0800 45"), Ok(None), "IP over GRE");
    for flags in ["4000", "0800", "0400", "0001"] {
        let refused = gre(&format!("{flags} 8847 00064140 00000000"));
        assert_eq!(refused, Err(ParseError::TunnelMalformed), "{flags}");
    }
}

#[test]
fn geneve_with_critical_options_is_refused() {
    let with = |header: &str| decap(&frame(A4, B4, proto::UDP, &udp(A4, B4, 50000, 6081, &hex(header))));
    let tunnel = with("0000 6558 00004d00 ffff").unwrap().unwrap();
    assert_eq!((tunnel.kind, tunnel.id, tunnel.inner_at), (TunnelKind::Geneve, 77, 50));
    let tunnel = with("0200 6558 00004d00 0102000100000000 ffff").unwrap().unwrap();
    assert_eq!((tunnel.id, tunnel.inner_at), (77, 58), "an option that is not critical");
    for refused in ["0240 6558 00004d00 0102800100000000", "0080 6558 00004d00", "4000 6558 00004d00"] {
        assert_eq!(with(refused), Err(ParseError::TunnelRefused), "critical, control, version: {refused}");
    }
    assert_eq!(with("0000 0800 00004d00 45"), Err(ParseError::TunnelRefused), "IP without Ethernet");
    assert_eq!(with("0000 6558 00004d"), Err(ParseError::TunnelMalformed));
}

#[test]
fn a_gre_checksum_is_verified() {
    let mut packet = hex("8000 8847 0000 0000 00064140 450000");
    let sum = checksum::sum(&packet).finish();
    packet[4..6].copy_from_slice(&sum.to_be_bytes());
    let bytes = frame(A4, B4, proto::GRE, &packet);
    assert_eq!(decap(&bytes).unwrap().unwrap().inner_at, 46);
    let headers = Headers::ethernet(&bytes, 0, bytes.len()).unwrap();
    let snapshot = packet::tunnel(&bytes[..bytes.len() - 1], &headers, bytes.len());
    assert_eq!(snapshot, Err(ParseError::HeaderTooLong));
    packet[12] ^= 1;
    assert_eq!(decap(&frame(A4, B4, proto::GRE, &packet)), Err(ParseError::TunnelMalformed));
}

#[test]
fn vxlan_needs_a_network_identifier() {
    let with = |payload: &str| decap(&frame(A4, B4, proto::UDP, &udp(A4, B4, 50000, 4789, &hex(payload))));
    let tunnel = with("08000000 001389ff 0102").unwrap().unwrap();
    assert_eq!((tunnel.kind, tunnel.id), (TunnelKind::Vxlan, 5001));
    assert_eq!((tunnel.inner_at, tunnel.inner_end, tunnel.bottom), (50, 52, true));
    assert_eq!(with("00000000 00138900"), Err(ParseError::TunnelMalformed), "no VNI");
    assert_eq!(with("08000000 001389"), Err(ParseError::TunnelMalformed));
}

#[test]
fn the_datagram_may_end_before_its_packet() {
    let mut datagram = udp(A4, B4, 50000, 4789, &hex("08000000 00138900 0102"));
    datagram.extend([0; 9]);
    let tunnel = decap(&frame(A4, B4, proto::UDP, &datagram)).unwrap().unwrap();
    assert_eq!(tunnel.inner_end, 52);
}

#[test]
fn other_packets_are_no_tunnels() {
    assert_eq!(decap(&frame(A4, B4, proto::UDP, &udp(A4, B4, 4789, 53, b"abcdefgh"))), Ok(None));
    assert_eq!(decap(&common::ethernet(&[], 0x88cc)), Ok(None));
    let mut first = frame(A4, B4, proto::UDP, &udp(A4, B4, 50000, 4789, &hex("08000000 00138900")));
    first[20] = 0x20;
    first[24..26].fill(0);
    let checksum = checksum::sum(&first[14..34]).finish();
    first[24..26].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(decap(&first), Ok(None), "fragment");
}
