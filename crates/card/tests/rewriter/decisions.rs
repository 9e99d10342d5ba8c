//! The model's decisions over generated tables and packets, and over the conformance vectors.

use super::bench::{FULL, Job, Pace, run};
use model::generate::{self, Rng};
use model::vectors::{Case, Step, load};
use model::{Forward, GATEWAY_MAC, Nat, PacketView, Tables, TunnelKind, Verdict, VifId, decide, text};
use packet::{Headers, L4, proto};
use std::collections::BTreeMap;

const WORLDS: u64 = 2000;
const PACKETS: usize = 200;

type Kinds = BTreeMap<&'static str, usize>;

/// Decides about packets in order, and keeps those that the card can forward.
#[derive(Default)]
struct Decided {
    jobs: Vec<Job>,
    kinds: Kinds,
    left_to_host: usize,
}

impl Decided {
    fn packet(&mut self, tables: &mut Tables, frame: &[u8], gso: Option<u16>, ingress: VifId, now: u32) {
        let Ok(view) = PacketView::parse(frame, frame.len() as u32, gso) else { return };
        let decision = decide(tables, &view, ingress, now);
        let _ = tables.commit(&decision.effects, frame.len(), u64::from(now) * 1_000_000_000);
        let deliveries = match &decision.verdict {
            Verdict::Forward(forward) => std::slice::from_ref(forward),
            Verdict::Flood(flood) => &flood.to,
            _ => &[],
        };
        for forward in deliveries {
            match Job::forward(forward, &view) {
                Some(job) if is_for_card(forward, &view) => {
                    self.count(forward, &view);
                    self.jobs.push(job);
                }
                _ => self.left_to_host += 1,
            }
        }
    }

    fn assert_tried(&self, kinds: &[(&str, usize)]) {
        for (kind, least) in kinds {
            let count = self.kinds.get(kind).copied().unwrap_or(0);
            assert!(count >= *least, "{kind}: {count} tried, {least} wanted");
        }
    }

    fn count(&mut self, forward: &Forward, packet: &PacketView<'_>) {
        let headers = forwarded(forward, packet);
        let kinds = [
            ("bridged", forward.strip == 0 && forward.ttl_decrement == 0),
            ("routed", forward.ttl_decrement == 1),
            ("decapsulated", forward.strip > 22),
            ("traffic class changed", forward.tos.is_some()),
            ("IPv6", headers.ip().is_some_and(|ip| ip.src.is_ipv6())),
        ];
        let tried = kinds.into_iter().filter_map(|(kind, is)| is.then_some(kind));
        for kind in tried.chain(tunnel(forward)).chain(translated(forward, &headers, packet)) {
            *self.kinds.entry(kind).or_default() += 1;
        }
    }
}

/// Returns the headers of the packet that is forwarded.
fn forwarded(forward: &Forward, packet: &PacketView<'_>) -> Headers {
    let inside = if forward.ethernet.is_some() { Headers::network } else { Headers::ethernet };
    inside(packet.bytes, forward.strip.into(), packet.bytes.len()).unwrap_or_default()
}

/// Returns whether the driver leaves such packets to the card: it lowers no MSS, and knows only the checksums of common
/// protocols, which new addresses change.
fn is_for_card(forward: &Forward, packet: &PacketView<'_>) -> bool {
    let protocol = forwarded(forward, packet).ip().map(|ip| ip.protocol);
    let knows_sum = !matches!(protocol, Some(proto::DCCP | proto::UDP_LITE));
    forward.mss.is_none() && (forward.nat == Nat::default() || knows_sum)
}

fn tunnel(forward: &Forward) -> Option<&'static str> {
    let encap = forward.encap?;
    Some(match (encap.kind, encap.dst.is_ipv4()) {
        (TunnelKind::MplsUdp, true) => "MPLS over UDP",
        (TunnelKind::MplsUdp, false) => "MPLS over UDP over IPv6",
        (TunnelKind::MplsGre, true) => "MPLS over GRE",
        (TunnelKind::MplsGre, false) => "MPLS over GRE over IPv6",
        (TunnelKind::Vxlan, false) if forward.ethernet.is_some() => "routed into VXLAN over IPv6",
        (TunnelKind::Vxlan, false) => "bridged into VXLAN over IPv6",
        (TunnelKind::Vxlan, true) if forward.ethernet.is_some() => "routed into VXLAN",
        (TunnelKind::Vxlan, true) => "bridged into VXLAN",
        (TunnelKind::Geneve, _) => return None,
    })
}

fn translated(forward: &Forward, headers: &Headers, packet: &PacketView<'_>) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    kinds.extend(forward.nat.src.map(|_| "new source"));
    kinds.extend(forward.nat.dst.map(|_| "new destination"));
    if !kinds.is_empty() {
        let at = usize::from(headers.l4_at);
        kinds.extend(match headers.l4 {
            L4::Tcp { .. } => Some("new address, TCP"),
            L4::Udp { .. } if packet.bytes[at + 6..at + 8] == [0, 0] => {
                Some("new address, UDP without checksum")
            }
            L4::Udp { .. } => Some("new address, UDP"),
            L4::Icmp { .. } => Some("new address, ICMP"),
            _ => None,
        });
    }
    kinds
}

/// Decides about generated packets with generated tables.
fn generated() -> Decided {
    let mut decided = Decided::default();
    for seed in 0..WORLDS {
        let mut rng = Rng::new(seed);
        let mut tables = Tables::new();
        tables.apply(&generate::tables(&mut rng)).unwrap();
        for packet in generate::warm_up(&mut rng, &tables) {
            decided.packet(&mut tables, &packet.frame, packet.gso_size, packet.ingress, 0);
        }
        for n in 0..PACKETS {
            let packet = generate::packet(&mut rng, &tables);
            decided.packet(&mut tables, &packet.frame, packet.gso_size, packet.ingress, n as u32 / 4);
        }
    }
    decided
}

/// Inserts packets that are punted or dropped between the others.
fn mixed(jobs: Vec<Job>) -> Vec<Job> {
    let mut rng = Rng::new(1);
    let mut all = Vec::new();
    for job in jobs {
        while rng.percent(20) {
            let frame = job.frame.clone();
            all.push(if rng.percent(50) { Job::drop(frame) } else { Job::punt(&mut rng, frame) });
        }
        all.push(job);
    }
    all
}

#[test]
fn generated_decisions_leave_as_the_model_rewrites_them() {
    let decided = generated();
    println!("{:?}, {} left to the host", decided.kinds, decided.left_to_host);
    decided.assert_tried(&[
        ("bridged", 10_000),
        ("routed", 10_000),
        ("decapsulated", 1000),
        ("traffic class changed", 100),
        ("IPv6", 10_000),
        ("MPLS over UDP", 300),
        ("MPLS over GRE", 300),
        ("MPLS over GRE over IPv6", 100),
        ("bridged into VXLAN", 1000),
        ("routed into VXLAN", 500),
        ("MPLS over UDP over IPv6", 100),
        ("bridged into VXLAN over IPv6", 300),
        ("routed into VXLAN over IPv6", 100),
        ("new destination", 100),
    ]);
    let jobs = mixed(decided.jobs);
    let part = jobs.len() / 4;
    let paces = [
        FULL,
        Pace { beats: 60, edits: 60, out: 60 },
        Pace { beats: 100, edits: 100, out: 40 },
        Pace { beats: 90, edits: 30, out: 100 },
    ];
    for (seed, (jobs, pace)) in jobs.chunks(part + 1).zip(paces).enumerate() {
        run(jobs, pace, seed as u64);
    }
}

fn vectors() -> Vec<(String, Vec<Case>)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/vectors");
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let text = paths.filter(|path| path.extension().is_some_and(|end| end == "txt"));
    text.map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, load(&std::fs::read_to_string(path).unwrap()).unwrap())
    })
    .collect()
}

/// Decides about packets between guests with floating addresses and other guests, with the tables of the vectors about
/// them.
fn floating() -> Decided {
    let (_, cases) = vectors().into_iter().find(|(name, _)| name.contains("nat")).unwrap();
    let mut case = cases.into_iter().next().unwrap();
    let mut tables = Tables::new();
    for step in &case.steps {
        let Step::Apply(changes) = step else { break };
        tables.apply(changes).unwrap();
    }
    let gateway = GATEWAY_MAC;
    let (mut rng, mut decided) = (Rng::new(9), Decided::default());
    for now in 0..4000 {
        let guest = 1 + rng.below(3);
        let (port, own, ip) = if rng.percent(50) {
            (format!("vm{guest}"), format!("00:0{guest}"), format!("10.1.1.{guest} > 203.0.113.1"))
        } else {
            ("out".into(), "09:01".into(), format!("203.0.113.1 > 203.0.113.{}", 6 + guest))
        };
        let (a, b, len) = (rng.below(9), rng.below(9), rng.below(1400));
        let udp = format!("udp {a} > {b}");
        let l4 = [&*udp, &format!("{udp} nosum"), &format!("tcp {a} > {b} A"), &format!("icmp echo {a} {b}")];
        let l4 = rng.one(&l4);
        let text = format!("eth 02:00:00:00:{own} > {gateway} / ip4 {ip} / {l4} / payload {len}");
        let frame = text::parse(&text).unwrap();
        decided.packet(&mut tables, &frame, None, case.setup.vif_id(&port), now / 16);
    }
    decided
}

#[test]
fn floating_addresses_leave_as_the_model_translates_them() {
    let decided = floating();
    println!("{:?}, {} left to the host", decided.kinds, decided.left_to_host);
    decided.assert_tried(&[
        ("new source", 1000),
        ("new destination", 1000),
        ("new address, TCP", 400),
        ("new address, UDP", 400),
        ("new address, UDP without checksum", 400),
        ("new address, ICMP", 400),
    ]);
    run(&mixed(decided.jobs), FULL, 1);
}

#[test]
fn vectors_leave_as_the_model_rewrites_them() {
    let mut decided = Decided::default();
    for case in vectors().iter().flat_map(|(_, cases)| cases) {
        let (mut tables, mut now) = (Tables::new(), 1);
        for step in &case.steps {
            match step {
                Step::Apply(changes) => tables.apply(changes).unwrap(),
                Step::Learn(effects) => tables.commit(effects, 0, 0).unwrap(),
                Step::GiveUp(scope, addr) => tables.give_up(*scope, *addr),
                Step::Wait(seconds) => {
                    now += seconds;
                    tables.expire(now);
                }
                Step::Packet(packet) => {
                    decided.packet(&mut tables, &packet.frame, packet.gso_size, packet.ingress, now);
                }
            }
        }
    }
    println!("{:?}, {} left to the host", decided.kinds, decided.left_to_host);
    assert!(decided.jobs.len() > 100, "{} of the vectors forward", decided.jobs.len());
    let jobs = mixed(decided.jobs);
    run(&jobs, FULL, 1);
    run(&jobs, Pace { beats: 50, edits: 50, out: 50 }, 2);
}
