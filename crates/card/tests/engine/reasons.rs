//! Every reason for which the card punts a packet, and every one for which it drops one, occurs: in the model and in
//! the engine.

use super::lockstep::{Lockstep, Prepared};
use crate::host::{Known, SECRET};
use card::cuckoo::Cuckoo;
use card::entries;
use card::expect::Outcome;
use card::registers::{Flow4, FlowAction, FlowKind, Path, Punt, Table, Vrf};
use card::step::Step;
use model::DropReason;
use model::generate::Packet;
use model::vectors::{Case, Step as CaseStep, load};
use std::collections::BTreeSet;

/// All reasons for drops that the driver writes to the card: for routes, and for rules' flows. The host makes every
/// other drop.
const DROPS: [DropReason; 3] = [DropReason::DiscardRoute, DropReason::RuleDrop, DropReason::DefaultDrop];

#[test]
fn every_reason_occurs() {
    let mut bench = Lockstep::new();
    for case in load(include_str!("reasons.txt")).unwrap() {
        bench = bench.renewed();
        let last = last_packet(&case, &mut bench);
        let told = last.drop().map_or_else(
            || last.punt().unwrap_or(Punt::None).name(),
            |reason| DropReason::ALL[usize::from(reason)].name(),
        );
        assert_eq!(told, case.name);
        pass(&mut bench, &last);
    }
    bench = flow_entry(bench.renewed());
    bench = without_network(bench.renewed());
    bench = options_to_translate(bench.renewed());
    bench = unreadable(bench.renewed());
    bench.ledger.check_all(bench.host.driver.commands());
    let missing: Vec<_> = Punt::ALL
        .iter()
        // This reason means that a packet is not punted.
        .filter(|punt| **punt != Punt::None && !bench.counts.punted.contains_key(punt))
        .collect();
    assert!(missing.is_empty(), "{missing:?} never occurred");
    let dropped: BTreeSet<_> = bench.counts.dropped.keys().copied().collect();
    assert_eq!(dropped, DROPS.map(|reason| reason as u8).into());
}

fn pass(bench: &mut Lockstep, packet: &Prepared) {
    bench.feed(packet);
    bench.drain();
}

/// Runs a case except for its last packet, which it returns.
fn last_packet(case: &Case, bench: &mut Lockstep) -> Prepared {
    let mut packets = Vec::new();
    for step in &case.steps {
        match step {
            CaseStep::Apply(changes) => assert!(bench.host.apply(changes)),
            CaseStep::Learn(effects) => bench.host.effects(effects, 0),
            CaseStep::GiveUp(scope, addr) => bench.host.tables.give_up(*scope, *addr),
            CaseStep::Wait(seconds) => bench.host.wait(*seconds),
            CaseStep::Packet(packet) => {
                packets.push(Packet { ingress: packet.ingress, frame: packet.frame.clone(), gso_size: None });
            }
        }
    }
    let last = packets.pop().unwrap();
    packets.iter().for_each(|packet| bench.host.hosted(packet));
    bench.prepare(&last)
}

/// Sets up the tables of the case with that name. Returns its last packet.
fn set_up(bench: &mut Lockstep, name: &str) -> Packet {
    let case = load(include_str!("reasons.txt")).unwrap().into_iter().find(|case| case.name == name).unwrap();
    last_packet(&case, bench);
    let Some(CaseStep::Packet(packet)) = case.steps.into_iter().last() else { panic!("no packet in {name}") };
    Packet { ingress: packet.ingress, frame: packet.frame, gso_size: None }
}

/// Sets up a flow whose packets the card punts. The driver never makes one, so this simulates it.
fn flow_entry(mut bench: Lockstep) -> Lockstep {
    let packet = set_up(&mut bench, "flow_miss");
    let [src, dst] = [0x0a02_0101, 0x0a02_0102];
    let key = Flow4 { src, dst, sport: 1000, dport: 53, protocol: 17, vrf: 2, ..Flow4::default() };
    let generation = Vrf::decode(&bench.line(Table::Vrf, 2)).generation;
    let (path, kind) = (Path::Bridged as u8, FlowKind::V4 as u8);
    let flow = Flow4 { path, kind, action: FlowAction::Host as u8, generation, index: 77, ..key };
    let bits = bench.host.driver.commands().identity().flow_buckets;
    for step in Cuckoo::new(bits, SECRET).insert(entries::FlowEntry::V4(flow)).unwrap() {
        if let Step::Write { table, address, data } = step {
            bench.host.driver.commands().write(table, address, &data).unwrap();
        }
    }
    let packet = bench.prepare(&packet);
    assert_eq!(packet.punt(), Some(Punt::FlowHost));
    pass(&mut bench, &packet);
    bench
}

/// Sets up a network whose routes do not fit: it is not on the card.
fn without_network(mut bench: Lockstep) -> Lockstep {
    let packet = set_up(&mut bench, "ttl");
    bench.host.driver.commands().write(Table::Vrf, 1, &Vrf::default().encode()).unwrap();
    let packet = bench.prepare(&packet);
    assert_eq!(packet.punt(), Some(Punt::NoVrf));
    pass(&mut bench, &packet);
    bench
}

/// Sets up a route that HBM answers with an error.
fn unreadable(mut bench: Lockstep) -> Lockstep {
    let packet = set_up(&mut bench, "discard_route");
    let lines = bench.host.card().memory().lines_in_hbm();
    for (table, address) in lines.into_iter().filter(|(table, _)| *table == Table::Route) {
        bench.host.card().fail(table, address, true);
    }
    let packet = bench.prepare(&packet);
    assert_eq!(packet.punt(), Some(Punt::MemoryError));
    bench.errors = None;
    pass(&mut bench, &packet);
    assert!(bench.host.driver.commands().memory_errors().count > 0);
    bench
}

/// Sets up a flow that is translated, and sends a packet of it with IPv4 options.
fn options_to_translate(mut bench: Lockstep) -> Lockstep {
    let tables = "network blue vrf 1 gateway 10.1.1.254/24\n\
        network public vrf 9 gateway 203.0.113.254/24\n\
        guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 policy\n\
        guest out in public mac 02:00:00:00:09:01 address 203.0.113.1\n\
        route blue 0.0.0.0/0 > network public\n\
        nat blue 10.1.1.1 = public 203.0.113.7\n\
        case nat\n\
        in vm1 eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 203.0.113.1 / udp 1000 > 53 / payload 7\n";
    let case = load(tables).unwrap().remove(0);
    last_packet(&case, &mut bench);
    let Some(CaseStep::Packet(packet)) = case.steps.last() else { panic!("no packet") };
    let plain = Packet { ingress: packet.ingress, frame: packet.frame.clone(), gso_size: None };
    bench.host.hosted(&plain);
    assert!(matches!(bench.host.outcome(&plain), Outcome::Forward { index: Some(_), .. }));
    let frame = with_options(&plain.frame);
    let packet = bench.prepare(&Packet { frame, ..plain });
    assert_eq!(packet.punt(), Some(Punt::Nat));
    pass(&mut bench, &packet);
    bench
}

/// Adds four no-op options to the IPv4 header of a frame.
fn with_options(frame: &[u8]) -> Vec<u8> {
    let (ethernet, ip) = frame.split_at(14);
    let (header, rest) = ip.split_at(20);
    let mut header = [header, &[1; 4]].concat();
    header[0] = 0x46;
    let len = u16::from_be_bytes([ip[2], ip[3]]) + 4;
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header[10..12].fill(0);
    let words = header.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum = words.fold(0, |sum, word| (sum + word) % 0xffff);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    [ethernet, &header, rest].concat()
}
