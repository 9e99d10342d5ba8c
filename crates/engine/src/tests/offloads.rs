//! Unfinished checksums and large sends: passed on if the receiver takes them, finished otherwise.

use super::harness::{Host, only};
use super::world::{WIRE, neighbours, tables};
use mem::{Accepts, Csum, Gso, Offload};
use model::generate::Rng;
use model::{Change, DropReason, Service, VifId, Vrf};
use packet::checksum::{L4Check, verify_l4};
use packet::{Headers, TunnelKind, checksum, proto};

pub const ALL: Accepts = Accepts { csum: true, tso4: true, tso6: true, ecn: true };

fn host(accepts: Accepts) -> Host {
    Host::new(&tables(), &neighbours(), accepts, 333)
}

/// Returns a frame whose L4 checksum field holds the pseudo-header's sum, with the offload request for it.
pub fn unfinished(text: &str, gso: Option<u16>) -> (Vec<u8>, Offload) {
    let mut frame = model::text::parse(text).unwrap();
    let headers = Headers::ethernet(&frame, 0, frame.len()).unwrap();
    let ip = *headers.ip().unwrap();
    let offset = if ip.protocol == proto::TCP { 16 } else { 6 };
    let len = u32::from(ip.at) + ip.len - u32::from(headers.l4_at);
    let pseudo = checksum::pseudo_header(ip.src, ip.dst, ip.protocol, len).fold();
    let field = usize::from(headers.l4_at + offset);
    frame[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
    let v6 = ip.src.is_ipv6();
    let gso = gso.map(|size| Gso { v6, size, hdr_len: 0, ecn: text.contains('C') });
    (frame, Offload { csum: Csum::Partial { start: headers.l4_at, offset }, gso })
}

/// Returns the packet in a frame from its IP header on, whatever tunnel it is in. Checks all checksums on the
/// way.
fn tenant(frame: &[u8]) -> Vec<u8> {
    let outer = Headers::ethernet(frame, 0, frame.len()).unwrap();
    let (at, headers) = match packet::tunnel(frame, &outer, frame.len()).unwrap() {
        None => (usize::from(outer.l3_at), outer),
        Some(tunnel) => {
            if outer.ip().unwrap().src.is_ipv6() && tunnel.kind != TunnelKind::MplsGre {
                assert_eq!(verify_l4(frame, &outer), L4Check::Right, "outer checksum");
            }
            let parse = if tunnel.kind == TunnelKind::Vxlan { Headers::ethernet } else { Headers::network };
            let inner = parse(frame, tunnel.inner_at, tunnel.inner_end).unwrap();
            (usize::from(inner.l3_at), inner)
        }
    };
    assert_eq!(verify_l4(frame, &headers), L4Check::Right, "checksum");
    frame[at..at + headers.ip().unwrap().len as usize].to_vec()
}

pub const GATEWAY: &str = "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00";

#[test]
fn partial_checksum_is_passed_on_where_accepted() {
    let mut host = host(ALL);
    let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp 1000 > 53 / payload 300");
    for _ in 0..2 {
        let (frame, offload) = unfinished(&text, None);
        let output = host.run(VifId(1), [(frame.clone(), offload)]);
        let (port, (delivered, passed)) = only(&output);
        assert_eq!((port, *passed), (VifId(2), offload));
        assert_eq!(delivered[24..26].len() + delivered.len(), frame.len() + 2);
        assert_eq!(delivered[40..42], frame[40..42]);
    }
    assert_eq!(host.hits(), 1);
}

/// An Open vSwitch takes nothing unfinished, but sums what it tracks.
#[test]
fn a_checksum_that_was_completed_is_told_to_those_who_ask() {
    let tcp = |payload| format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / tcp 1000 > 80 A / payload {payload}");
    for told in [false, true] {
        let mut host = host(Accepts::default());
        if told {
            host.ports[&VifId(2)].tell_valid();
        }
        let known = |valid| Offload { csum: if valid { Csum::Valid } else { Csum::Unknown }, gso: None };
        for (payload, gso, packets) in [(300, None, 1), (3000, Some(1000), 3)] {
            let output = host.run(VifId(1), [unfinished(&tcp(payload), gso)]);
            let all: Vec<_> = output.values().flatten().map(|(_, offload)| *offload).collect();
            assert_eq!(all, vec![known(told); packets]);
        }
        // Nobody has summed a checksum that its sender completed.
        let whole = model::text::parse(&tcp(300)).unwrap();
        let output = host.run(VifId(1), [(whole, Offload::default())]);
        assert_eq!(only(&output).1.1, known(false));
    }
}

#[test]
fn partial_checksum_is_completed_for_those_who_do_not_accept_it_and_in_tunnels() {
    for accepts in [ALL, Accepts::default()] {
        let mut host = host(accepts);
        let destinations = ["10.1.1.2", "10.9.0.7", "10.9.1.7", "10.9.2.7", "10.9.3.7", "203.0.113.50"];
        for (dst, payload) in destinations.iter().flat_map(|dst| [1, 17, 300, 1201].map(|len| (dst, len))) {
            for l4 in ["udp 1000 > 53", "tcp 1000 > 80 A"] {
                let text = format!("{GATEWAY} / ip4 10.1.1.1 > {dst} / {l4} / payload {payload}");
                for _ in 0..3 {
                    let output = host.run(VifId(1), [unfinished(&text, None)]);
                    let (port, (frame, offload)) = only(&output);
                    if accepts == ALL && *dst == "10.1.1.2" {
                        continue;
                    }
                    if matches!(offload.csum, Csum::Partial { .. }) {
                        assert_eq!((port, *dst), (super::world::PROVIDER, "203.0.113.50"));
                        continue;
                    }
                    let packet = tenant(frame);
                    assert!(packet.ends_with(&[(payload - 1) as u8]), "{text}");
                }
            }
        }
        assert!(host.hits() > 10);
    }
}

fn told(frame: &[u8]) -> Option<u16> {
    packet::mss(frame, &Headers::network(frame, 0, frame.len()).unwrap()).map(|(_, mss)| mss)
}

#[test]
fn a_syn_with_a_partial_checksum_tells_a_lower_mss_and_its_segments_take_no_slow_path() {
    let mut changes = tables();
    for change in &mut changes {
        if let model::Change::PutNetwork(network) = change {
            network.tcp.mss_clamp = true;
        }
    }
    for accepts in [ALL, Accepts::default()] {
        let mut host = Host::new(&changes, &neighbours(), accepts, 333);
        for dst in ["10.1.1.2", "10.9.0.7", "10.9.1.7"] {
            for (options, wanted) in
                [("mss 8960", 1460), ("options 0102042300000000", 1460), ("mss 536", 536)]
            {
                let segment = |l4: &str| format!("{GATEWAY} / ip4 10.1.1.1 > {dst} / tcp 1000 > 80 {l4}");
                host.run(VifId(1), [unfinished(&segment("A / payload 9"), None)]);
                let hits = host.hits();
                host.run(VifId(1), [unfinished(&segment("A / payload 9"), None)]);
                assert_eq!(host.hits(), hits + 1, "{dst}");
                let output = host.run(VifId(1), [unfinished(&segment(&format!("S {options}")), None)]);
                assert_eq!(host.hits(), hits + 1, "{dst}");
                let (_, (frame, offload)) = only(&output);
                let mut frame = frame.clone();
                if let Csum::Partial { start, offset } = offload.csum {
                    let (start, field) = (usize::from(start), usize::from(start + offset));
                    let checksum = checksum::sum(&frame[start..]).finish();
                    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
                }
                assert_eq!(told(&tenant(&frame)), Some(wanted), "{dst} {options}");
            }
        }
    }
}

#[test]
fn a_large_send_is_passed_on_where_accepted() {
    let mut host = host(ALL);
    let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / tcp 1000 > 80 A / payload 20000");
    for _ in 0..2 {
        let output = host.run(VifId(1), [unfinished(&text, Some(1400))]);
        let (_, (frame, offload)) = only(&output);
        assert_eq!(frame.len(), 14 + 20 + 20 + 20_000);
        assert_eq!(offload.gso, Some(Gso { v6: false, size: 1400, hdr_len: 54, ecn: false }));
        assert_eq!(offload.csum, Csum::Partial { start: 34, offset: 16 });
    }
}

/// Put together again, the segments are the data that was sent; each fits, and each is right by itself.
#[test]
fn segments_are_the_large_send() {
    let mut rng = Rng::new(3);
    for accepts in [Accepts::default(), ALL] {
        let mut host = host(accepts);
        for case in 0..400 {
            let v6 = rng.percent(40);
            let (src, dst) = if v6 {
                ("fd00:1::1", rng.one(&["fd00:1::2", "fd00:9::7", "fd00:9:1::7"]))
            } else {
                ("10.1.1.1", rng.one(&["10.1.1.2", "10.9.0.7", "10.9.1.7", "10.9.2.7", "10.9.3.7"]))
            };
            let ip = if v6 { "ip6" } else { "ip4" };
            let id = if v6 { String::new() } else { format!(" id {}", rng.below(65_536)) };
            let flags = rng.one(&["A", "PA", "FPA", "CA"]);
            let payload = 1 + rng.below(60_000);
            let size = rng.one(&[100, 536, 1399, 1400]);
            let seq = rng.next_u64() as u32;
            let sport = 1000 + rng.below(3);
            let text = format!(
                "{GATEWAY} / {ip} {src} > {dst}{id} / tcp {sport} > 80 {flags} seq {seq} / payload {payload}"
            );
            let (frame, offload) = unfinished(&text, Some(size));
            let output = host.run(VifId(1), [(frame.clone(), offload)]);
            let (port, packets) = output.first_key_value().unwrap_or_else(|| panic!("{text}: nothing"));
            if *port != WIRE && accepts == ALL {
                continue;
            }
            check_segments(&frame, packets, size, &format!("case {case}: {text}"));
        }
        assert!(host.drops().is_empty(), "{:?}", host.drops());
        assert!(host.hits() > 100);
    }
}

fn check_segments(whole: &[u8], packets: &[(Vec<u8>, Offload)], size: u16, case: &str) {
    let headers = Headers::ethernet(whole, 0, whole.len()).unwrap();
    let tcp_at = usize::from(headers.l4_at);
    let payload = &whole[tcp_at + 20..];
    let be32 = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut put_together, count) = (Vec::new(), packets.len());
    for (index, (frame, offload)) in packets.iter().enumerate() {
        assert_eq!(*offload, Offload::default(), "{case}");
        let packet = tenant(frame);
        let v6 = packet[0] >> 4 == 6;
        let tcp = &packet[if v6 { 40 } else { 20 }..];
        assert!(tcp.len() - 20 <= usize::from(size), "{case}");
        assert_eq!(be32(tcp, 4), be32(whole, tcp_at + 4).wrapping_add(put_together.len() as u32), "{case}");
        let mut flags = whole[tcp_at + 13];
        if index > 0 {
            flags &= !proto::TCP_CWR;
        }
        if index + 1 < count {
            flags &= !(proto::TCP_FIN | proto::TCP_PSH);
        }
        assert_eq!(tcp[13], flags, "{case}, segment {index}");
        if !v6 {
            let id = u16::from_be_bytes([whole[18], whole[19]]).wrapping_add(index as u16);
            assert_eq!(u16::from_be_bytes([packet[4], packet[5]]), id, "{case}");
        }
        put_together.extend_from_slice(&tcp[20..]);
    }
    assert_eq!(count, payload.len().div_ceil(usize::from(size)).max(1), "{case}");
    assert!(put_together == payload, "{case}: payload differs");
}

#[test]
fn requests_that_do_not_fit_the_packet_are_dropped() {
    let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / tcp 1000 > 80 A / payload 2000");
    let (frame, good) = unfinished(&text, Some(500));
    let gso = good.gso.unwrap();
    let bad = [
        Offload { csum: Csum::Partial { start: 34, offset: 6 }, ..good },
        Offload { csum: Csum::Partial { start: 30, offset: 16 }, ..good },
        Offload { csum: Csum::Unknown, ..good },
        Offload { gso: Some(Gso { v6: true, ..gso }), ..good },
        Offload { gso: Some(Gso { size: 0, ..gso }), ..good },
    ];
    let mut host = host(Accepts::default());
    // First on the slow path, then by the cache.
    for round in 1..=2 {
        for offload in bad {
            assert!(host.run(VifId(1), [(frame.clone(), offload)]).is_empty(), "{offload:?}");
        }
        assert_eq!(host.drops(), [(DropReason::OffloadMalformed, 5 * round)].into());
        assert_eq!(host.run(VifId(1), [(frame.clone(), good)])[&VifId(2)].len(), 4);
    }
    let tiny = Offload { gso: Some(Gso { size: 1, ..gso }), ..good };
    host.run(VifId(1), [(frame, tiny)]);
    assert_eq!(host.drops()[&DropReason::SegmentTooSmall], 1);
}

#[test]
fn what_the_kernel_verified_is_passed_on_as_verified() {
    let frame =
        model::text::parse(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp 1 > 2 / payload 9")).unwrap();
    for (accepts, csum) in [(ALL, Csum::Valid), (Accepts::default(), Csum::Unknown)] {
        let mut host = host(accepts);
        for _ in 0..2 {
            let output = host.run(VifId(1), [(frame.clone(), Offload { csum: Csum::Valid, gso: None })]);
            assert_eq!(only(&output).1.1.csum, csum);
        }
    }
}

/// Returns the IP packet whose fragments these frames are, whatever tunnel they are in.
fn reassembled(frames: &[crate::testing::Packet], mtu: usize) -> Vec<u8> {
    let mut packet = Vec::new();
    for (frame, offload) in frames {
        assert_eq!(*offload, Offload::default());
        let outer = Headers::ethernet(frame, 0, frame.len()).unwrap();
        let tunnel = packet::tunnel(frame, &outer, frame.len()).unwrap();
        let ip = match tunnel {
            None => *outer.ip().unwrap(),
            Some(tunnel) => {
                let over6 = outer.ip().unwrap().src.is_ipv6() && tunnel.kind != TunnelKind::MplsGre;
                assert!(!over6 || verify_l4(frame, &outer) == L4Check::Right, "outer checksum");
                let parse =
                    if tunnel.kind == TunnelKind::Vxlan { Headers::ethernet } else { Headers::network };
                *parse(frame, tunnel.inner_at, tunnel.inner_end).unwrap().ip().unwrap()
            }
        };
        let piece = &frame[usize::from(ip.at)..][..ip.len as usize];
        assert!(piece.len() <= mtu, "{} bytes", piece.len());
        let (head, body) = piece.split_at(20);
        assert_eq!(checksum::sum(head).finish(), 0, "header checksum");
        let field = u16::from_be_bytes([head[6], head[7]]);
        if packet.is_empty() {
            packet.extend_from_slice(head);
        }
        assert_eq!(usize::from(field & 0x1fff) * 8, packet.len() - 20, "in order");
        packet.extend_from_slice(body);
        let is_last = std::ptr::eq(frame, &frames[frames.len() - 1].0);
        assert_eq!(field & 0x2000 == 0, is_last);
    }
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[6..8].fill(0);
    packet[10..12].fill(0);
    let sum = checksum::sum(&packet[..20]).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Each way out of the host, and packets whose ends and checksums lie differently.
#[test]
fn a_packet_that_may_be_fragmented_leaves_in_fragments_that_make_it_whole() {
    for accepts in [ALL, Accepts::default()] {
        for dst in ["10.1.1.2", "10.9.0.7", "10.9.1.7", "10.9.2.7", "10.9.3.7", "203.0.113.50"] {
            let mut host = host(accepts);
            for payload in [1473_usize, 1480, 1481, 2952, 2953, 8000, 60_001] {
                let text =
                    format!("{GATEWAY} / ip4 10.1.1.1 > {dst} id 7 / udp 1000 > 53 / payload {payload}");
                let whole = model::text::parse(&text).unwrap();
                for frame in [(whole, Offload::default()), unfinished(&text, None)] {
                    let output = host.run(VifId(1), [frame]);
                    let frames = output.values().next().unwrap();
                    assert_eq!((output.len(), frames.len()), (1, (payload + 8).div_ceil(1480)), "{text}");
                    let packet = reassembled(frames, 1500);
                    let headers = Headers::network(&packet, 0, packet.len()).unwrap();
                    assert_eq!(verify_l4(&packet, &headers), L4Check::Right, "{text}");
                    assert_eq!(packet.len(), payload + 28, "{text}");
                    assert!(packet.ends_with(&[(payload - 1) as u8]), "{text}");
                }
            }
            assert!(host.drops().is_empty(), "{:?}", host.drops());
        }
    }
}

#[test]
fn a_large_send_that_may_be_fragmented_gets_smaller_segments() {
    for accepts in [ALL, Accepts::default()] {
        let mut host = host(accepts);
        let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / tcp 1000 > 80 A / payload 20000");
        let output = host.run(VifId(1), [unfinished(&text, Some(4000))]);
        let frames = &output[&VifId(2)];
        if accepts == ALL {
            assert_eq!(frames[0].1.gso.map(|gso| gso.size), Some(1460));
        } else {
            assert_eq!(frames.len(), 20_000_usize.div_ceil(1460));
            assert!(frames.iter().all(|(frame, _)| tenant(frame).len() <= 1500));
        }
    }
}

#[test]
fn a_service_gets_what_a_guest_asks_with_its_checksum() {
    let mut host = host(ALL);
    let mut blue = host.shared.snapshot().network(Vrf(1)).unwrap().clone();
    blue.services.dhcp = true;
    host.shared.apply(&[Change::PutNetwork(blue)]).unwrap();
    let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.254 / udp 68 > 67 / payload 301");
    let question = model::text::parse(&text).unwrap();
    for asked in [(question.clone(), Offload::default()), unfinished(&text, None)] {
        assert!(host.run(VifId(1), [asked]).is_empty());
        let [served] = &host.served[..] else { panic!("{:?}", host.served) };
        assert_eq!((served.guest, served.service, &served.frame), (VifId(1), Service::Dhcp, &question));
    }
    let drops = |host: &Host| host.drops().get(&DropReason::ServiceFull).copied();
    host.run(VifId(1), std::iter::repeat_n((question, Offload::default()), 12));
    assert_eq!((host.served.len(), drops(&host)), (8, Some(4)));
}
