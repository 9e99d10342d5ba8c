//! Ends of guests that have one port of a shared address for all destinations: the engine, compared with the model on
//! the naive tables, while connections come and go and the addresses change; and what this promises.

use super::harness::Host;
use mem::{Accepts, Offload};
use model::generate::Rng;
use model::rewrite::emit;
use model::vectors::{Step, load};
use model::{
    Change, Connection, Endpoint, Lookup, OutsidePort, PacketView, Tables, Verdict, VifId, Vrf, decide, text,
};
use std::collections::BTreeMap;

const STEPS: usize = if cfg!(debug_assertions) { 20_000 } else { 60_000 };
const NANOSECONDS: u64 = 1_000_000_000;

/// Returns tables in which the guests of a network share these addresses, and a port leads to an end.
fn tables((shared, end): (&str, &str)) -> Vec<Change> {
    let text = format!(
        "network blue vrf 1 gateway 10.1.1.254/24
         network public vrf 9 gateway 203.0.113.254/24
         guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 policy
         guest vm2 in blue mac 02:00:00:00:00:02 address 10.1.1.2
         guest out in public mac 02:00:00:00:09:01 address 203.0.113.1 address 203.0.113.2
         route blue 0.0.0.0/0 > network public
         snat blue = public {shared}
         forward blue 17 203.0.113.5 500 > {end}
         case tables
         in vm1 eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 203.0.113.1 / udp 1 > 2"
    );
    let case = load(&text).unwrap().remove(0);
    let Some(Step::Apply(changes)) = case.steps.first() else { panic!("tables") };
    changes.clone()
}

/// Draws a packet of a guest: there are more ports than a block has, and fewer destinations.
fn outward(rng: &mut Rng) -> (VifId, String) {
    let (vif, port) = (1 + rng.below(2), 1000 + rng.below(24));
    let (host, remote) = (1 + rng.below(2), 7 + rng.below(2));
    let l4 = match rng.below(4) {
        0 => format!("icmp echo {port} 1"),
        1 => format!("tcp {port} > {remote} {}", rng.one(&["S seq 5", "A seq 6 ack 8", "R seq 6"])),
        _ => format!("udp {port} > {remote}"),
    };
    let eth = format!("eth 02:00:00:00:00:0{vif} > 00:00:5e:00:01:00");
    (VifId(vif as u16), format!("{eth} / ip4 10.1.1.{vif} > 203.0.113.{host} / {l4} / payload 20"))
}

/// Draws an answer from outside to a port that a guest has, or to any other.
fn inward(rng: &mut Rng, naive: &Tables) -> (VifId, String) {
    let bound: Vec<Connection> =
        naive.connections().map(|(c, _)| c).filter(|c| c.binding.is_some()).collect();
    let port = match rng.below(8) {
        0 => 500,
        1 => 1024 + rng.below(64),
        _ if bound.is_empty() => 1024,
        _ => rng.one(&bound).binding.map_or(0, |binding| binding.port.into()),
    };
    let (host, remote) = (1 + rng.below(2), 7 + rng.below(2));
    let shared = rng.one(&naive.network(Vrf(1)).unwrap().sharing.addresses).outside;
    let l4 = match rng.below(4) {
        0 => format!("icmp reply {port} 1"),
        1 => format!("tcp {remote} > {port} {}", rng.one(&["SA seq 7 ack 6", "R seq 7"])),
        _ => format!("udp {remote} > {port}"),
    };
    let eth = "eth 02:00:00:00:09:01 > 00:00:5e:00:01:00";
    (VifId(3), format!("{eth} / ip4 203.0.113.{host} > {shared} / {l4} / payload 20"))
}

/// Sends a packet through both.
fn send(host: &mut Host, naive: &mut Tables, vif: VifId, text: &str) {
    let frame = text::parse(text).unwrap();
    let packet = PacketView::parse(&frame, frame.len() as u32, None).unwrap();
    let decision = decide(naive, &packet, vif, host.core.now.seconds);
    let wanted = emit(naive, &decision, &packet);
    let now = u64::from(host.core.now.seconds) * NANOSECONDS;
    naive.commit(&decision.effects, frame.len(), now).unwrap();
    let drops = host.drops();
    let sent = host.run(vif, [(frame, Offload::default())]);
    let sent = sent.into_iter().flat_map(|(vif, all)| all.into_iter().map(move |(frame, _)| (vif, frame)));
    assert_eq!(sent.collect::<Vec<_>>(), wanted, "{text}\n{decision:#?}");
    if let Verdict::Drop(reason) = decision.verdict {
        assert_eq!(host.drops()[&reason], drops.get(&reason).unwrap_or(&0) + 1, "{text}: {reason}");
    }
}

/// Checks that both know the same connections, that an end has one port of an address, and a port is of one end.
fn check(host: &Host, naive: &Tables) -> usize {
    let ends = |connection: &Connection| (connection.original, connection.binding);
    let known: BTreeMap<_, _> = naive.connections().map(|(connection, _)| ends(&connection)).collect();
    let mut fast = BTreeMap::new();
    host.shared
        .flows()
        .for_each(host.core.now.seconds, &mut |info| fast.insert(info.key, info.binding).is_none());
    assert_eq!(fast, known);
    let mut port_of: BTreeMap<(Endpoint, u8, u16), OutsidePort> = BTreeMap::new();
    let mut end_of: BTreeMap<(OutsidePort, u8), Endpoint> = BTreeMap::new();
    for (connection, _) in naive.connections() {
        let Some((end, port)) = connection.mapping() else { continue };
        let protocol = connection.original.protocol;
        assert_eq!(*port_of.entry((end, protocol, port.tag)).or_insert(port), port, "{end:?}");
        assert_eq!(*end_of.entry((port, protocol)).or_insert(end), end, "{port:?}");
    }
    port_of.len()
}

#[test]
fn an_end_has_one_port_for_all_destinations_whatever_happens() {
    const SHARED: [(&str, &str); 6] = [
        ("203.0.113.5 ports 16 endpoint-independent", "10.1.1.1 1001"),
        ("203.0.113.5 203.0.113.6 ports 16 endpoint-independent", "10.1.1.1 1001"),
        ("203.0.113.6 ports 16 endpoint-independent", "10.1.1.1 1001"),
        ("203.0.113.5 ports 16", "10.1.1.1 1001"),
        ("203.0.113.5 ports 16 endpoint-independent", "10.1.1.2 1002"),
        ("203.0.113.5 ports 8 endpoint-independent", "10.1.1.1 1001"),
    ];
    let all = SHARED.map(tables);
    let mut rng = Rng::new(1);
    let mut host = Host::new(&all[0], &[], Accepts::default(), 700);
    let mut naive = Tables::new();
    naive.apply(&all[0]).unwrap();
    let mut most = 0;
    for step in 0..STEPS {
        let (vif, text) = if rng.percent(60) { outward(&mut rng) } else { inward(&mut rng, &naive) };
        for _ in 0..1 + rng.below(3) {
            send(&mut host, &mut naive, vif, &text);
        }
        if step % 20 == 0 {
            host.settle();
            host.advance(rng.one(&[1, 1, 5, 40]));
            host.shared.flows().expire(host.core.now.seconds, usize::MAX / 2);
            naive.expire(host.core.now.seconds);
            most = most.max(check(&host, &naive));
        }
        if step % 500 == 499 {
            let changes = rng.one(&all);
            host.shared.apply(&changes).unwrap();
            naive.apply(&changes).unwrap();
        }
    }
    let drops = host.drops();
    assert!(most > 32 && drops[&model::DropReason::SnatPorts] > 100, "{most} ends, {drops:?}");
}
