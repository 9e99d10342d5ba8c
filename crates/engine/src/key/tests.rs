//! The fast parse, compared with the parser of `packet`: it accepts exactly the common forms of what that accepts, and
//! finds the same.

use super::*;
use model::VifId;
use packet::checksum::sum;
use packet::{Fragment, Headers, L4};

const VIF: VifId = VifId(3);
const ETHERNET: &str = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02";

/// Returns packets of each kind: some that are accepted, and some that are not.
fn packets() -> Vec<Vec<u8>> {
    let ip4 = "ip4 10.1.1.1 > 10.9.0.7 tos 72";
    let ip6 = "ip6 fd00:1::1 > fd00:9::7 tos 184";
    let mut texts = Vec::new();
    let l4s = [
        "udp 1000 > 53 / payload 9",
        "udp 1000 > 53",
        "tcp 33000 > 80 PA / payload 3",
        "tcp 1000 > 80 S",
        "tcp 1000 > 80 FA",
        "tcp 1000 > 80 R",
        "sctp 1000 > 36412 / payload 12",
        "gre / mpls 16 / ip4 10.3.3.3 > 10.4.4.4 / udp 7 > 9 / payload 4",
    ];
    for ip in [ip4, ip6] {
        // ESP, GRE with a key, a tunnel within the network, VRRP. Authentication headers are extensions of IPv6.
        for protocol in [50, 47, 4, 112, 51] {
            texts.push(format!("{ETHERNET} / {ip} proto {protocol} / hex 2000080000000007 / payload 30"));
        }
    }
    for (ip, ping) in [(ip4, "icmp"), (ip6, "icmp6")] {
        let pings = ["echo 700 1 / payload 8", "reply 700 1"].map(|l4| format!("{ping} {l4}"));
        for l4 in l4s.iter().map(ToString::to_string).chain(pings) {
            texts.extend(["", " vlan 7"].map(|tag| format!("{ETHERNET}{tag} / {ip} / {l4}")));
        }
    }
    texts.push(format!("{ETHERNET} vlan 7 vlan 8 / {ip4} / udp 1 > 2"));
    texts.push(format!("{ETHERNET} / {ip4} id 9 more / udp 1 > 2 / payload 24"));
    texts.push(format!("{ETHERNET} / {ip4} id 9 frag 1480 / udp 1 > 2 / payload 24"));
    texts.push(format!("{ETHERNET} / {ip4} / udp 1 > 2 / payload 9 / pad 20"));
    texts.push(format!("{ETHERNET} / arp request 10.1.1.1 at 02:00:00:00:00:01 for 10.1.1.2"));
    let outers = ["ip4 192.0.2.2 > 192.0.2.1 tos 3", "ip6 2001:db8::2 > 2001:db8::1 tos 1"];
    let inners = [
        format!("{ip4} / tcp 33000 > 80 PA / payload 3"),
        format!("{ip6} / udp 7 > 9 / payload 5 / pad 6"),
        "ip4 10.1.1.1 > 10.9.0.7 ttl 2 / udp 7 > 9".to_owned(),
    ];
    for (outer, inner) in outers.iter().flat_map(|outer| inners.iter().map(move |inner| (outer, inner))) {
        texts.push(format!("{ETHERNET} / {outer} / udp 50000 > 6635 nosum / mpls 77 / {inner}"));
        texts.push(format!("{ETHERNET} / {outer} / gre / mpls 1048575 / {inner}"));
        for tag in ["", " vlan 9"] {
            let ethernet = format!("eth 02:dd:00:00:00:01 > 02:00:00:00:00:01{tag}");
            for tunnel in [
                "4789 nosum / vxlan 5001",
                "6081 nosum / geneve 5001",
                "6081 nosum / hex 02006558001389000102000100000000",
                "6081 nosum / hex 02406558001389000102800100000000",
            ] {
                texts.push(format!("{ETHERNET} / {outer} / udp 50000 > {tunnel} / {ethernet} / {inner}"));
            }
        }
    }
    texts.push(format!("{ETHERNET} vlan 7 / {} / udp 5 > 6635 nosum / mpls 77 / {}", outers[0], inners[0]));
    texts.iter().map(|text| model::text::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))).collect()
}

fn fast(head: &[u8], len: usize, wire: bool) -> Option<(Context, Fast)> {
    let (mut context, mut fast) = (Context::of(VIF), Fast::default());
    parse(head, len, wire, &mut context, &mut fast).map(|()| (context, fast))
}

/// Returns the result that the fast parse should have.
fn expected(head: &[u8], len: usize, wire: bool) -> Option<(Context, Fast)> {
    let outer = Headers::ethernet(head, 0, len).ok()?;
    let tags = outer.eth.as_ref()?.tags.len();
    let mut context = Context::of(VIF);
    context.set_macs(contexts::macs(head.first_chunk()?));
    match tags {
        0 => {}
        1 => context.set_tag(u16::from_be_bytes([head[14], head[15]])),
        _ => return None,
    }
    let found = common(head, &outer)?;
    let kind = match (outer.l4, found.at.protocol) {
        (L4::Udp { dst: 4789, .. }, _) => Some(TunnelKind::Vxlan),
        (L4::Udp { dst: 6081, .. }, _) => Some(TunnelKind::Geneve),
        (L4::Udp { dst: 6635, .. }, _) => Some(TunnelKind::MplsUdp),
        (_, 47) if found.key.0[5] == 0 => Some(TunnelKind::MplsGre),
        _ => None,
    };
    let Some(kind) = kind.filter(|_| wire) else { return Some((context, found)) };
    let tunnel = packet::tunnel(head, &outer, len).ok()??;
    let ip = outer.ip()?;
    let at = usize::from(found.at.l4_end);
    // Explicit nulls and label stacks are left to the parser.
    let plain = tunnel.bottom && (kind.has_ethernet() || tunnel.inner_at == at + 4);
    if tags > 0 || !plain || tunnel.mpls_ttl <= LOW_TTL || at + 8 > tunnel.inner_end {
        return None;
    }
    let mapped = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    context.enter(kind, mapped(ip.src), mapped(ip.dst));
    let mut options = 0;
    let inner = if kind.has_ethernet() {
        options = tunnel.inner_at - at - 8;
        let inner = Headers::ethernet(head, tunnel.inner_at, tunnel.inner_end).ok()?;
        context.set_macs(contexts::macs(head.get(tunnel.inner_at..)?.first_chunk()?));
        match inner.eth.as_ref()?.tags[..] {
            [] => {}
            [tag] if !tag.service => context.set_tag(tag.tci),
            _ => return None,
        }
        inner
    } else {
        Headers::network(head, tunnel.inner_at, tunnel.inner_end).ok()?
    };
    let mut found = common(head, &inner)?;
    context.set_id(tunnel.id | (options as u32) << 24);
    found.key.0[0] |= u64::from(ip.tos & 3) << 50 | u64::from(tunnel.mpls_tc) << 52;
    found.key.0[0] |= u64::from(tunnel.lacks_checksum) << 55;
    found.at.tunnelled = true;
    found.tunnel_end = tunnel.inner_end as u32;
    let has_sum = kind != TunnelKind::MplsGre && head[at - 2..at] != [0, 0];
    found.summed_at = if has_sum { at as u16 } else { 0 };
    Some((context, found))
}

/// Returns the expected result for a packet of a common form with these headers.
fn common(head: &[u8], headers: &Headers) -> Option<Fast> {
    let ip = headers.ip()?;
    let v6 = ip.src.is_ipv6();
    let bare = ip.header_len == if v6 { 40 } else { 20 };
    let ip_len = u16::try_from(ip.len).ok()?;
    let protocol = if v6 { head[usize::from(ip.at) + 6] } else { ip.protocol };
    if !bare || ip.fragment != Fragment::Whole || ip.ttl <= LOW_TTL {
        return None;
    }
    let mut about = u64::from(protocol) << 32 | u64::from(ip.tos) << 40 | u64::from(v6) << 48;
    let l4 = usize::from(headers.l4_at);
    let both = |src: u16, dst: u16| u64::from(src) << 16 | u64::from(dst);
    let (ports, header_len) = match headers.l4 {
        L4::Tcp { src, dst, flags, header_len, .. } if flags & 0b111 == 0 => (both(src, dst), header_len),
        L4::Udp { src, dst } => (both(src, dst), 8),
        L4::Sctp { src, dst } => (both(src, dst), 12),
        L4::Icmp { kind, code, id } if matches!((v6, kind), (false, 0 | 8) | (true, 128 | 129)) => {
            about |= u64::from(kind == 0 || kind == 129) << 49 | u64::from(code) << 56;
            (id.into(), 8)
        }
        L4::Other if !matches!(protocol, 1 | 58) => {
            let end = usize::from(ip.at) + usize::from(ip_len);
            let start = head.get(l4..end.min(head.len())).filter(|start| start.len() >= 8)?;
            match (protocol, start[..4] == [0, 0, 0x88, 0x47]) {
                (47, mpls) => ((!mpls).into(), 4),
                _ => (0, 0),
            }
        }
        _ => return None,
    };
    let mut key = [about, 0, 0, 0, 0, ports];
    match (ip.src, ip.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            key[1] = u64::from(src.to_bits()) | u64::from(dst.to_bits()) << 32
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (src, dst) = (src.to_bits(), dst.to_bits());
            [key[1], key[2], key[3], key[4]] =
                [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64];
        }
        _ => return None,
    }
    let at = Layout {
        l3: ip.at,
        l4: headers.l4_at,
        l4_end: headers.l4_at + u16::from(header_len),
        ip_len,
        protocol,
        v6,
        tunnelled: false,
    };
    Some(Fast { key: Key(key), at, mtu_len: ip_len, ttl: ip.ttl, tunnel_end: 0, summed_at: 0 })
}

/// Compares both on the first bytes of a frame; returns whether the packet is accepted.
fn check(head: &[u8], len: usize) -> bool {
    let taken = [false, true].map(|wire| {
        let (found, wanted) = (fast(head, len, wire), expected(head, len, wire));
        assert_eq!(found, wanted, "wire: {wire}, {} of {len} bytes: {head:02x?}", head.len());
        found.is_some()
    });
    taken[1]
}

fn ipv4_headers(frame: &[u8]) -> Vec<usize> {
    let Ok(outer) = Headers::ethernet(frame, 0, frame.len()) else { return Vec::new() };
    let tunnel = packet::tunnel(frame, &outer, frame.len()).ok().flatten();
    let inner = tunnel.and_then(|tunnel| {
        let parse = if tunnel.kind.has_ethernet() { Headers::ethernet } else { Headers::network };
        parse(frame, tunnel.inner_at, tunnel.inner_end).ok()
    });
    let ips = [Some(&outer), inner.as_ref()].into_iter().flatten().filter_map(Headers::ip);
    ips.filter(|ip| ip.src.is_ipv4()).map(|ip| ip.at.into()).collect()
}

/// Sets the checksum of the IPv4 header at `at`.
fn mend(frame: &mut [u8], at: usize) {
    frame[at + 10..at + 12].fill(0);
    let checksum = sum(&frame[at..at + 20]).finish();
    frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn each_kind_is_taken_or_not_as_it_should_be() {
    let taken: Vec<_> = packets().iter().map(|frame| check(frame, frame.len())).collect();
    let count = taken.iter().filter(|taken| **taken).count();
    // Accepted are 13 of the 20 of each family; the padded one; in tunnels, all whose TTL does not expire and
    // that have no critical option; and all the other protocols except IPv6's authentication header.
    assert_eq!((taken.len(), count), (116, 68), "{taken:?}");
}

/// Whatever byte of the headers is changed, a packet that is accepted is one that the parser accepts, with
/// the same result.
#[test]
fn whatever_byte_is_changed_both_say_the_same() {
    let mut taken = 0;
    for frame in packets() {
        let headers = ipv4_headers(&frame);
        for at in 12..frame.len().min(120) {
            let values = (0..8).map(|bit| frame[at] ^ 1 << bit);
            for value in
                values.chain([0, 1, 2, 3, 4, 8, 0x45, 0x60, 0x7f, 0xe0, 0xff, frame[at].wrapping_add(1)])
            {
                let mut changed = frame.clone();
                changed[at] = value;
                taken += u32::from(check(&changed, changed.len()));
                headers.iter().for_each(|at| mend(&mut changed, *at));
                taken += u32::from(check(&changed, changed.len()));
            }
        }
    }
    assert!(taken > 40_000, "{taken}");
}

#[test]
fn wherever_a_frame_or_its_snapshot_ends_both_say_the_same() {
    for frame in packets() {
        for end in 0..=frame.len() {
            check(&frame[..end], end);
            check(&frame[..end], frame.len());
            check(&frame, end);
        }
        let mut padded = frame.clone();
        padded.extend([0; 30]);
        check(&padded, padded.len());
    }
}

/// Sources that no host may have are not accepted; those next to them are.
#[test]
fn forbidden_sources_are_for_the_parser() {
    let sources = [
        "223.255.255.255",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "255.255.255.254",
        "126.255.255.255",
        "127.0.0.1",
        "127.255.255.255",
        "128.0.0.0",
        "0.0.0.0",
    ];
    for source in sources {
        let frame = format!("{ETHERNET} / ip4 {source} > 10.9.0.7 / udp 1 > 2 / payload 9");
        let Ok(frame) = model::text::parse(&frame) else { panic!("{source}") };
        check(&frame, frame.len());
    }
    for source in ["::1", "::2", "1::1", "::", "ff02::1", "feff::1", "::1:0:0:0:1"] {
        let frame = format!("{ETHERNET} / ip6 {source} > fd00::7 / udp 1 > 2 / payload 9");
        let frame = model::text::parse(&frame).unwrap_or_else(|e| panic!("{source}: {e}"));
        check(&frame, frame.len());
    }
}

/// Addresses of a tunnel over IPv6 that are mapped IPv4 addresses are left to the parser: their context would
/// be that of a tunnel over IPv4, whose headers are shorter.
#[test]
fn tunnels_between_mapped_addresses_are_for_the_parser() {
    let taken = |outer: &str| {
        let inner = "eth 02:dd:00:00:00:01 > 02:00:00:00:00:01 / ip4 10.1.1.1 > 10.9.0.7 / udp 7 > 9";
        let frame = format!("{ETHERNET} / {outer} / udp 50000 > 4789 / vxlan 5001 / {inner}");
        let frame = model::text::parse(&frame).unwrap();
        fast(&frame, frame.len(), true).map(|(context, fast)| (context, fast.key))
    };
    assert!(taken("ip4 192.0.2.2 > 192.0.2.1").is_some());
    assert!(taken("ip6 2001:db8::2 > 2001:db8::1").is_some());
    assert_eq!(taken("ip6 ::ffff:192.0.2.2 > ::ffff:192.0.2.1"), None);
}

/// A ping of one family's ICMP over the other family is not accepted.
#[test]
fn pings_are_of_their_family() {
    for (text, protocol_at, other, kinds) in [
        ("ip4 10.1.1.1 > 10.9.0.7 / icmp echo 700 1 / payload 8", 23, 58, [128, 129]),
        ("ip6 fd00:1::1 > fd00:9::7 / icmp6 echo 700 1 / payload 8", 20, 1, [8, 0]),
    ] {
        let ping = model::text::parse(&format!("{ETHERNET} / {text}")).unwrap();
        for kind in kinds {
            let mut frame = ping.clone();
            let l4 = if other == 58 { 34 } else { 54 };
            (frame[protocol_at], frame[l4]) = (other, kind);
            ipv4_headers(&ping).iter().for_each(|at| mend(&mut frame, *at));
            assert_eq!(fast(&frame, frame.len(), false), None, "{text} as {other}, {kind}");
        }
    }
}

/// A packet longer than an IP packet may be, according to its own header.
#[test]
fn the_longest_packets_are_taken() {
    for (payload, takes) in [(65_535_u16 - 40, true), (65_535 - 39, false), (65_535, false)] {
        let text = format!("{ETHERNET} / ip6 fd00:1::1 > fd00:9::7 / tcp 1 > 2 A / payload 9");
        let mut frame = model::text::parse(&text).unwrap();
        frame[18..20].copy_from_slice(&payload.to_be_bytes());
        frame.resize(14 + 40 + usize::from(payload), 0);
        assert_eq!(fast(&frame, frame.len(), false).is_some(), takes, "{payload}");
    }
}

#[test]
fn a_key_knows_its_connection_and_context() {
    for (ip, src, dst) in [("ip4", "10.1.1.1", "10.9.0.7"), ("ip6", "fd00:1::1:2", "fd00:9:8:7:6:5:4:3")] {
        for (l4, protocol) in [("tcp 33000 > 80 A", 6), ("udp 33000 > 80", 17), ("sctp 33000 > 80", 132)] {
            let frame = model::text::parse(&format!("{ETHERNET} / {ip} {src} > {dst} / {l4}")).unwrap();
            let (_, mut found) = fast(&frame, frame.len(), false).unwrap();
            let end = |addr: &str, port| Endpoint { vrf: Vrf(5), addr: addr.parse().unwrap(), port };
            let flow = FlowKey { src: end(src, 33_000), dst: end(dst, 80), protocol };
            let wanted = (protocol != 132).then_some(flow);
            assert_eq!(found.key.flow(Vrf(5)), wanted);
            assert_eq!(found.key.context(), 0);
            for number in [0xffff_ffff, 7, 0x8000_0001] {
                found.key.set_context(number);
                assert_eq!((found.key.context(), found.key.flow(Vrf(5))), (number, wanted));
            }
        }
    }
}

/// The part that is kept of a frame ends with its IP packet, its tunnel, or the frame itself.
#[test]
fn what_is_kept_ends_where_its_headers_say() {
    use model::{EthernetRewrite, Forward};
    let text = format!(
        "{ETHERNET} / ip4 192.0.2.2 > 192.0.2.1 / udp 5 > 4789 nosum / vxlan 5001 / {ETHERNET} \
         / ip4 10.1.1.1 > 10.9.0.7 / udp 1 > 2 / payload 9 / pad 6"
    );
    let frame = model::text::parse(&text).unwrap();
    let (_, found) = fast(&frame, frame.len(), true).unwrap();
    let ip_end = usize::from(found.at.l3) + 37;
    let ethernet =
        Some(EthernetRewrite { dst: packet::Mac([1; 6]), src: packet::Mac([2; 6]), ethertype: 0x800 });
    let forward = |strip, ethernet| Template::new(&Forward { strip, ethernet, ..Forward::unchanged(VIF) });
    assert_eq!(found.end(500, &forward(0, None)), 500);
    assert_eq!(found.end(500, &forward(50, None)), found.tunnel_end as usize);
    assert_eq!(found.end(500, &forward(64, ethernet)), ip_end);
    assert!(ip_end <= found.tunnel_end as usize && found.tunnel_end as usize <= frame.len());
}
