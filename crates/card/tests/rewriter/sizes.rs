//! Every size near a multiple of the beat size, and the cycles per packet.

use super::bench::{BEAT, FULL, Job, Pace, run};
use model::generate::Rng;
use model::{Encap, EthernetRewrite, Forward, GATEWAY_MAC, PacketView, TunnelKind, VifId, text};
use packet::Mac;
use std::net::IpAddr;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
const NEAR: &str = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02";
const V4: &str = "ip4 10.0.0.1 > 10.0.0.2";
const V6: &str = "ip6 fd00::1 > fd00::2";

fn encap(kind: TunnelKind, v6: bool) -> Encap {
    let (src, dst): (IpAddr, IpAddr) = if v6 {
        ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap())
    } else {
        ([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
    };
    let (id, src_mac, dst_mac, entropy, tos) = (0xabcde, MAC, GATEWAY_MAC, 0x1234_5678, 0xb8);
    Encap { kind, id, src, dst, src_mac, dst_mac, entropy, tos, dont_fragment: true }
}

/// Returns forwardings that put headers in front of an IP packet.
fn routed() -> Vec<Forward> {
    let ethernet = |ethertype| Some(EthernetRewrite { dst: MAC, src: GATEWAY_MAC, ethertype });
    let tunnel = |kind, v6| Some(encap(kind, v6));
    let base = || Forward { ttl_decrement: 1, ..Forward::unchanged(VifId(5)) };
    vec![
        Forward { ethernet: ethernet(0x0800), ..base() },
        Forward { ethernet: ethernet(0x86dd), encap: tunnel(TunnelKind::Vxlan, false), ..base() },
        Forward { encap: tunnel(TunnelKind::MplsUdp, false), ..base() },
        Forward { encap: tunnel(TunnelKind::MplsGre, false), ..base() },
        Forward { encap: tunnel(TunnelKind::MplsGre, true), ..base() },
        Forward { encap: tunnel(TunnelKind::MplsUdp, true), ..base() },
        // The longest: 84 bytes.
        Forward { ethernet: ethernet(0x0800), encap: tunnel(TunnelKind::Vxlan, true), ..base() },
    ]
}

/// Returns forwardings that put headers in front of a frame.
fn bridged() -> Vec<Forward> {
    let vxlan = |v6| Forward { encap: Some(encap(TunnelKind::Vxlan, v6)), ..Forward::unchanged(VifId(7)) };
    vec![Forward::unchanged(VifId(6)), vxlan(false), vxlan(true)]
}

/// Headers in front of a packet, and the number of their bytes that are removed.
type Fronts = Vec<(String, u16)>;

/// Returns the headers in front of IP packets, and those in front of frames.
fn fronts() -> (Fronts, Fronts) {
    let tag = " vlan 7";
    let mut packets = vec![
        (NEAR.to_owned(), 14),
        (format!("{NEAR}{tag}"), 18),
        (format!("{NEAR}{tag}{tag}"), 22),
        (format!("{NEAR} / {V4} / udp 50000 > 6635 / mpls 7"), 46),
        (format!("{NEAR} / {V4} / gre / mpls 7"), 42),
        (format!("{NEAR} / {V6} / udp 50000 > 6635 / mpls 7"), 66),
        (format!("{NEAR} / {V6} / gre / mpls 7"), 62),
    ];
    let mut frames = vec![(NEAR.to_owned(), 0)];
    for (ip, len) in [(V4, 50), (V6, 70)] {
        let outer = format!("{NEAR} / {ip} / udp 50000 > 4789 / vxlan 7 / {NEAR}");
        packets.push((outer.clone(), len + 14));
        packets.push((format!("{outer}{tag}"), len + 18));
        frames.push((outer.clone(), len));
        frames.push((format!("{outer}{tag}{tag}"), len));
    }
    (packets, frames)
}

/// Makes a packet of `size` bytes with these headers in front.
fn sized(front: &str, inner: &str, size: usize) -> Option<Vec<u8>> {
    let smallest = text::parse(&format!("{front} / {inner} / payload 0")).unwrap();
    let payload = size.checked_sub(smallest.len())?;
    let frame = text::parse(&format!("{front} / {inner} / payload {payload}")).unwrap();
    assert_eq!(frame.len(), size);
    Some(frame)
}

fn job(frame: &[u8], forward: &Forward) -> Job {
    let view = PacketView::parse(frame, frame.len() as u32, None).unwrap();
    Job::forward(forward, &view).expect("the card can do it")
}

/// Makes every combination of headers removed and added, for packets of these sizes.
fn combinations(sizes: impl Iterator<Item = usize> + Clone) -> Vec<Job> {
    let (packets, frames) = fronts();
    let mut jobs = Vec::new();
    for (fronts, forwards) in [(packets, routed()), (frames, bridged())] {
        for (front, strip) in &fronts {
            for forward in &forwards {
                let forward =
                    Forward { strip: *strip, tos: (strip % 4 == 2).then_some(3), ..forward.clone() };
                for size in sizes.clone() {
                    let v4 = format!("{V4} / udp 1 > 2");
                    let v6 = format!("{V6} tos 2 / tcp 1 > 2 A");
                    let inner = if size % 3 == 0 { v6 } else { v4 };
                    jobs.extend(sized(front, &inner, size).map(|frame| job(&frame, &forward)));
                }
            }
        }
    }
    jobs
}

/// Returns the cycles for the packets, from the end of the first to the end of the last, so without the first.
fn cycles(jobs: &[Job]) -> u64 {
    let ends = run(jobs, FULL, 1);
    ends.last().unwrap() - ends.first().unwrap()
}

#[test]
fn every_size_around_the_beats_with_every_combination_of_headers() {
    let jobs = combinations(60..=330);
    assert!(jobs.len() > 10_000, "{} packets", jobs.len());
    run(&jobs, FULL, 1);
}

#[test]
fn stalls_and_other_packets_between_change_nothing() {
    let mut rng = Rng::new(11);
    let mut jobs = combinations((60..=330).step_by(7));
    for n in (1..jobs.len()).rev() {
        jobs.swap(n, rng.below(n + 1));
    }
    for job in &mut jobs {
        let frame = job.frame.clone();
        match rng.below(10) {
            0 => *job = Job::drop(frame),
            1 => *job = Job::punt(&mut rng, frame),
            _ => {}
        }
    }
    for (beats, edits, out) in [(50, 100, 100), (100, 20, 100), (100, 100, 30), (70, 70, 70), (10, 100, 100)]
    {
        run(&jobs, Pace { beats, edits, out }, 3);
    }
}

#[test]
fn payloads_up_to_jumbo_frames() {
    let mut all = combinations((330..1600).step_by(61).chain([8900, 8959, 9000]));
    let mut rng = Rng::new(5);
    all.extend((0..500).map(|_| {
        let frame = sized(NEAR, &format!("{V4} / udp 1 > 2"), 42 + rng.below(9001)).unwrap();
        job(&frame, &Forward { strip: 14, ..routed()[2].clone() })
    }));
    run(&all, FULL, 1);
    run(&all, Pace { beats: 80, edits: 80, out: 80 }, 2);
}

#[test]
fn small_packets_leave_at_full_rate() {
    const PACKETS: u64 = 1000;
    let inner = format!("{V4} / udp 1 > 2");
    let small = sized(NEAR, &inner, 64).unwrap();
    let tunnelled = sized(&format!("{NEAR} / {V4} / udp 50000 > 6635 / mpls 7"), &inner, 96).unwrap();
    let (packets, frames) = (routed(), bridged());
    let cases = [
        // One beat becomes two: MPLS over UDP.
        (&small, 14, &packets[2], 2),
        // VXLAN.
        (&small, 0, &frames[1], 2),
        // One beat stays one: bridged, and routed to a guest.
        (&small, 0, &frames[0], 1),
        (&small, 14, &packets[0], 1),
        // Two beats become one: decapsulated.
        (&tunnelled, 46, &packets[0], 2),
    ];
    for (frame, strip, forward, expected) in cases {
        let forward = Forward { strip, ..forward.clone() };
        let jobs: Vec<_> = (0..=PACKETS).map(|_| job(frame, &forward)).collect();
        let cycles = cycles(&jobs);
        println!(
            "{} bytes, {strip} off, {forward:?}: {} cycles per packet",
            frame.len(),
            cycles as f64 / PACKETS as f64
        );
        assert_eq!(cycles, expected * PACKETS);
    }
}

#[test]
fn punted_and_dropped_packets_take_as_many_cycles_as_beats() {
    let small = sized(NEAR, &format!("{V4} / udp 1 > 2"), 64).unwrap();
    let mut rng = Rng::new(2);
    let punts: Vec<_> = (0..=100).map(|_| Job::punt(&mut rng, small.clone())).collect();
    assert_eq!(cycles(&punts), 200);
    let mut drops: Vec<_> = (0..99).map(|_| Job::drop(small.clone())).collect();
    drops.insert(0, job(&small, &bridged()[0]));
    drops.push(job(&small, &bridged()[0]));
    assert_eq!(cycles(&drops), 100);
}

#[test]
fn no_size_costs_more_cycles_than_beats() {
    const PACKETS: usize = 8;
    let forward = Forward { strip: 14, ..routed()[2].clone() };
    for size in 64..=1518 {
        let frame = sized(NEAR, &format!("{V4} / udp 1 > 2"), size).unwrap();
        let jobs: Vec<_> = (0..=PACKETS).map(|_| job(&frame, &forward)).collect();
        let beats = size.max(size - 14 + 46).div_ceil(BEAT);
        assert_eq!(cycles(&jobs), (PACKETS * beats) as u64, "{size} bytes");
    }
}
