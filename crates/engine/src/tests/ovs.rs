//! Ports that an Open vSwitch programs, compared with the naive tables and the reference rewrite while flows come and
//! go. The host keeps its cache, actions and contexts all the time.

use super::differential;
use super::harness::{Host, Output};
use super::offloads::{ALL, unfinished};
use crate::receivers::Receiver;
use mem::{Accepts, Csum, Offload};
use model::generate::{self, OVS_PORTS, Rng, UNDERLAY};
use model::ovs::{Action, Change, Flow, FlowId, Key, Match};
use model::{
    DropReason, Effects, PacketView, Tables, Verdict, Vif, VifId, VifKind, Vrf, decide, rewrite, text,
};
use packet::Headers;
use packet::checksum::{L4Check, pseudo_header, sum, verify_l4};
use rustix::event::{Timespec, epoll};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of hosts, and of steps for each.
const WORLDS: u64 = if cfg!(debug_assertions) { 40 } else { 400 };
const STEPS: usize = 400;

type Frames = BTreeMap<VifId, Vec<Vec<u8>>>;

/// Enters the neighbours on the underlay.
fn learn_neighbours(tables: &mut Tables) {
    for neighbour in generate::ovs_neighbours() {
        tables.commit(&Effects { neighbour: Some(neighbour), ..Effects::default() }, 0, 0).unwrap();
    }
}

/// Returns what leaves according to the model, and why the packet is dropped; `None` if a neighbour is
/// solicited, too.
fn expected(tables: &Tables, vif: VifId, frame: &[u8]) -> Option<(Frames, Option<DropReason>)> {
    let mut frames = Frames::new();
    let packet = match PacketView::arrived(tables, vif, frame, frame.len() as u32, None) {
        Ok(packet) => packet,
        Err(error) => return Some((frames, Some(error.into()))),
    };
    let decision = decide(tables, &packet, vif, 0);
    if matches!(decision.verdict, Verdict::Hold { .. }) || decision.effects.solicit.is_some() {
        return None;
    }
    for (port, frame) in rewrite::emit(tables, &decision, &packet) {
        frames.entry(port).or_default().push(frame);
    }
    let dropped = if let Verdict::Drop(reason) = decision.verdict { Some(reason) } else { None };
    Some((frames, dropped))
}

fn plain(output: Output) -> Frames {
    let frames = |packets: Vec<(Vec<u8>, Offload)>| packets.into_iter().map(|(frame, _)| frame).collect();
    output.into_iter().map(|(vif, packets)| (vif, frames(packets))).collect()
}

/// Returns the same packet with a checksum that is still to be completed, if it has one.
fn partial(frame: &[u8]) -> Option<(Vec<u8>, Offload)> {
    let whole = Headers::ethernet(frame, 0, frame.len()).ok()?;
    let ip = whole.ip()?;
    let fit = matches!(whole.l4, packet::L4::Tcp { .. } | packet::L4::Udp { .. })
        && ip.fragment == packet::Fragment::Whole
        && verify_l4(frame, &whole) == L4Check::Right;
    fit.then(|| unfinished(&text::show(frame), None))
}

/// Returns how many packets went to Open vSwitch with a mark since the last call; checks that each has the
/// mark of the flow that the model finds for this packet.
fn marked(host: &Host, tables: &Tables, vif: VifId, frame: &[u8]) -> usize {
    let view = PacketView::arrived(tables, vif, frame, frame.len() as u32, None).ok();
    let decision = view.map(|view| decide(tables, &view, vif, 0));
    let mut all = 0;
    for (to, port) in &host.ports {
        for counter in port.take_marks().into_iter().flatten() {
            let decision = decision.as_ref().unwrap();
            let Verdict::Forward(forward) = &decision.verdict else { panic!("{:?}", decision.verdict) };
            let wanted = (forward.port, decision.effects.ovs_counter);
            assert_eq!((*to, Some(counter)), wanted, "{}", text::show(frame));
            assert!(to.0 > 10, "{to} is no port's OVS side");
            all += 1;
        }
    }
    all
}

fn check(host: &mut Host, tables: &Tables, vif: VifId, frame: &[u8], csum: bool) {
    let expected = expected(tables, vif, frame);
    let before = host.drops();
    let sent = if csum { partial(frame) } else { None };
    let sent = sent.unwrap_or_else(|| (frame.to_vec(), Offload::default()));
    let output = plain(host.run(vif, [sent]));
    let Some((frames, dropped)) = expected else {
        while host.core.hold.pop().is_some() {}
        return;
    };
    let mut drops = host.drops();
    before.iter().for_each(|(reason, n)| *drops.get_mut(reason).unwrap() -= n);
    drops.retain(|_, n| *n > 0);
    let what = || format!("{vif} csum {csum} {}", text::show(frame));
    assert_eq!(drops, dropped.into_iter().map(|reason| (reason, 1)).collect(), "{}", what());
    assert_eq!(output, frames, "{}", what());
}

/// Sends packets while flows and ports change. Returns how many the cache answered, how many of these went to
/// several ports, and how many packets of each kind there were; "marked" are those that the cache answered
/// with a mark.
fn compare(
    ports_of: fn(&mut Rng) -> Vec<model::Change>,
    packet_of: fn(&mut Rng) -> generate::Packet,
) -> (u64, u64, BTreeMap<&'static str, usize>) {
    let (mut hits, mut copied, mut kinds) = (0, 0, BTreeMap::new());
    for seed in 0..WORLDS {
        let mut rng = Rng::new(seed);
        let mut tables = Tables::new();
        let ports = ports_of(&mut rng);
        tables.apply(&ports).unwrap();
        learn_neighbours(&mut tables);
        let mut host = Host::new(&ports, &generate::ovs_neighbours(), Accepts::default(), 90);
        let (mut next, mut recent) = (0, Vec::new());
        for _ in 0..STEPS {
            if rng.percent(30) {
                let changes: Vec<_> =
                    (0..=rng.below(3)).map(|_| generate::ovs_change(&mut rng, &tables, &mut next)).collect();
                tables.apply_ovs(&changes);
                assert!(host.shared.apply_ovs(&changes).settled);
            }
            if rng.percent(1) {
                let others = ports_of(&mut rng);
                let change = rng.one(&others);
                tables.apply(std::slice::from_ref(&change)).unwrap();
                host.shared.apply(&[change]).unwrap();
            }
            if recent.len() < 24 || rng.percent(20) {
                recent.push(packet_of(&mut rng));
            }
            let packet: generate::Packet = rng.one(&recent);
            let before = host.hits();
            for _ in 0..=rng.below(3) {
                check(&mut host, &tables, packet.ingress, &packet.frame, rng.percent(30));
                let marked = marked(&host, &tables, packet.ingress, &packet.frame);
                *kinds.entry("marked").or_default() += marked;
            }
            let view = PacketView::parse(&packet.frame, packet.frame.len() as u32, None).ok();
            let kind = view.map(|view| match decide(&tables, &view, packet.ingress, 0).verdict {
                Verdict::Outputs(outputs) if outputs.len() > 1 => "several",
                Verdict::Outputs(outputs) if outputs[0].strip > 0 => "out of a tunnel",
                Verdict::Outputs(outputs) if outputs[0].port == UNDERLAY => "into a tunnel",
                Verdict::Forward(f) if f.strip > 0 => "missed, out of a tunnel",
                Verdict::Outputs(outputs) if outputs[0].wrap.is_some() => "tunnelled",
                Verdict::Outputs(outputs) if !outputs[0].changes_nothing() => "edited",
                Verdict::Forward(f) if f.port.0 > 10 => "missed",
                Verdict::Forward(_) | Verdict::Outputs(_) => "forwarded",
                _ => "dropped",
            });
            if kind == Some("several") {
                copied += host.hits() - before;
            }
            *kinds.entry(kind.unwrap_or("malformed")).or_default() += 1;
            if rng.percent(2) {
                host.advance(rng.one(&[1, 2, 11]));
            }
        }
        hits += host.hits();
    }
    (hits, copied, kinds)
}

fn has_all(kinds: &BTreeMap<&str, usize>, wanted: &[&str]) {
    assert!(wanted.iter().all(|kind| kinds.get(kind).is_some_and(|n| *n > 50)), "{kinds:?}");
}

#[test]
fn engine_is_the_model_at_ports_of_open_vswitch() {
    let (hits, copied, kinds) = compare(generate::ovs_ports, generate::ovs_packet);
    has_all(&kinds, &["tunnelled", "edited", "missed", "marked", "forwarded", "several", "dropped"]);
    assert!(hits > WORLDS * 50 && copied > WORLDS * 5, "too few hits to mean anything: {hits}, {copied}");
}

#[test]
fn engine_is_the_model_at_ports_of_tunnels() {
    let (hits, _, kinds) = compare(generate::tunnelled_ovs_ports, generate::tunnelled_ovs_packet);
    let wanted =
        ["out of a tunnel", "into a tunnel", "missed, out of a tunnel", "marked", "several", "dropped"];
    has_all(&kinds, &wanted);
    assert!(hits > WORLDS * 50, "too few hits to mean anything: {hits}");
}

/// Ports of which some obey rules, whose packets go by flows and by Open vSwitch, while all of that changes.
#[test]
fn engine_is_the_model_at_ports_with_rules() {
    let (mut hits, mut kinds) = (0, BTreeMap::<&str, usize>::new());
    for seed in 0..WORLDS {
        let mut rng = Rng::new(seed);
        let mut tables = Tables::new();
        let ports = generate::ruled_ovs_ports(&mut rng);
        tables.apply(&ports).unwrap();
        let mut host = Host::new(&ports, &[], Accepts::default(), 90);
        let (mut next, mut recent) = (0, Vec::new());
        for step in 0..STEPS {
            if rng.percent(20) {
                let changes = [generate::ovs_change(&mut rng, &tables, &mut next)];
                tables.apply_ovs(&changes);
                assert!(host.shared.apply_ovs(&changes).settled);
            }
            if rng.percent(1) {
                let others = generate::ruled_ovs_ports(&mut rng);
                let change = rng.one(&others);
                tables.apply(std::slice::from_ref(&change)).unwrap();
                host.shared.apply(&[change]).unwrap();
            }
            if recent.len() < 24 || rng.percent(20) {
                recent.push(generate::ovs_packet(&mut rng));
            }
            let packet: generate::Packet = rng.one(&recent);
            let what = format!("seed {seed}, step {step}: {}", text::show(&packet.frame));
            for _ in 0..=rng.below(3) {
                differential::check(&mut host, packet.ingress, &what, &packet.frame);
            }
            if let Ok(view) = PacketView::parse(&packet.frame, packet.frame.len() as u32, None) {
                let decision = host.decide(packet.ingress, &view);
                let kind = match (&decision.verdict, decision.effects.flow) {
                    (Verdict::Outputs(_), Some(_)) => "tracked, by a flow",
                    (Verdict::Forward(_), Some(_)) => "tracked, from or to Open vSwitch",
                    (Verdict::Drop(DropReason::DefaultDrop | DropReason::RuleDrop), _) => "refused",
                    _ => "other",
                };
                *kinds.entry(kind).or_default() += 1;
            }
            if rng.percent(2) {
                host.advance(rng.one(&[1, 2, 11]));
            }
        }
        hits += host.hits();
    }
    assert!(kinds.len() == 4 && kinds.values().all(|n| *n > 100), "{kinds:?}");
    assert!(hits > WORLDS * 50, "too few hits to mean anything: {hits}");
}

const UDP: &str =
    "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.0.0.1 > 10.0.0.2 / udp 1 > 2 / payload 300";

/// Creates a host with ports of ordinary MTU; the first port has these flows.
fn host_with(flows: &[(u64, Match, Vec<Action>)]) -> Host {
    host_of(generate::ovs_ports(&mut Rng::new(3)), flows)
}

/// Creates such a host with different ports.
fn host_of(ports: Vec<model::Change>, flows: &[(u64, Match, Vec<Action>)]) -> Host {
    host_accepting(ports, flows, ALL)
}

/// Creates such a host with receivers that accept different offloads.
fn host_accepting(
    mut ports: Vec<model::Change>,
    flows: &[(u64, Match, Vec<Action>)],
    accepts: Accepts,
) -> Host {
    for port in &mut ports {
        if let model::Change::PutVif(vif) = port {
            vif.mtu = 1500;
        }
    }
    let host = Host::new(&ports, &[], accepts, 200);
    let add = |(id, matching, actions): &(u64, Match, Vec<Action>)| {
        host.core.cells.ovs.make_room(*id as u32);
        let (id, counter, port) = (FlowId(*id), *id as u32, OVS_PORTS[0]);
        Change::Add(Arc::new(Flow { id, counter, port, matching: *matching, actions: actions.clone() }))
    };
    let changes: Vec<_> = flows.iter().map(add).collect();
    host.shared.apply_ovs(&changes);
    host
}

/// Returns ports of which only `ruled` obeys rules, and only the default of its network.
fn ports_with_default(ruled: VifId, default: model::Action) -> Vec<model::Change> {
    let mut ports = generate::ruled_ovs_ports(&mut Rng::new(3));
    ports.retain(|change| !matches!(change, model::Change::PutRule(_)));
    for change in &mut ports {
        match change {
            model::Change::PutVif(vif) => vif.rules = (vif.id == ruled).then_some(Vrf(1)),
            model::Change::PutNetwork(network) => network.default_action = default,
            _ => {}
        }
    }
    ports
}

fn all() -> Match {
    Match::new(&Key::default(), &Key::default())
}

#[test]
fn a_new_flow_leaves_the_cached_packets_of_others_alone() {
    let mut host = host_with(&[(1, all(), vec![Action::Output(OVS_PORTS[1])])]);
    let frame = text::parse(UDP).unwrap();
    let send = |host: &mut Host| host.run(OVS_PORTS[0], [(frame.clone(), Offload::default())]);
    send(&mut host);
    send(&mut host);
    assert_eq!(host.hits(), 1);
    let other = Flow { id: FlowId(2), counter: 2, port: OVS_PORTS[0], matching: all(), actions: vec![] };
    host.shared.apply_ovs(&[Change::Add(Arc::new(other))]);
    assert!(send(&mut host).contains_key(&OVS_PORTS[1]));
    assert_eq!(host.hits(), 2, "decided anew");
    host.shared.apply_ovs(&[Change::Remove { port: OVS_PORTS[0], id: FlowId(1) }]);
    for drops in 1..=3 {
        assert!(send(&mut host).is_empty());
        assert_eq!(host.drops()[&DropReason::OvsDrop], drops);
    }
    assert_eq!(host.hits(), 4, "drops are cached, too");
}

#[test]
fn what_may_belong_to_a_connection_later_is_not_cached() {
    const ECHO_REPLY: &str = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.0.0.1 > 10.0.0.2 / \
                              icmp reply 7 1 / payload 60";
    let [from, ruled, open] = [0, 1, 2].map(|n| OVS_PORTS[n]);
    let cases = [
        // The sender's rules allow no answer to a packet that was not seen.
        (from, model::Action::Allow, ECHO_REPLY, vec![ruled]),
        // The rules of one receiver refuse the packet, and the other has none.
        (ruled, model::Action::Drop, UDP, vec![open]),
    ];
    for (obeys, default, packet, reached) in cases {
        let actions = reached.iter().chain((obeys == ruled).then_some(&ruled)).map(|to| Action::Output(*to));
        let mut host = host_of(ports_with_default(obeys, default), &[(1, all(), actions.collect())]);
        let frame = text::parse(packet).unwrap();
        for _ in 0..3 {
            let output = host.run(OVS_PORTS[0], [(frame.clone(), Offload::default())]);
            assert_eq!(output.into_keys().collect::<Vec<_>>(), reached, "{packet}");
        }
        assert_eq!(host.hits(), 0, "{packet}");
    }
}

#[test]
fn packets_and_bytes_are_counted_by_flow() {
    let udp = Key { ip_proto: 17, ..Key::default() };
    let mask = Key { ip_proto: u8::MAX, ..Key::default() };
    let mut host = host_with(&[
        (1, Match::new(&udp, &mask), vec![Action::Output(OVS_PORTS[1])]),
        (2, all(), vec![Action::Output(OVS_PORTS[1]), Action::Output(OVS_PORTS[2])]),
    ]);
    let (udp, tcp) =
        (text::parse(UDP).unwrap(), text::parse(&UDP.replace("udp 1 > 2", "tcp 1 > 2 A")).unwrap());
    for _ in 0..100 {
        host.run(OVS_PORTS[0], [(udp.clone(), Offload::default()), (tcp.clone(), Offload::default())]);
    }
    host.settle();
    let counted = [1, 2].map(|counter| host.core.cells.ovs.get(counter));
    assert_eq!(counted.map(|counters| counters.packets), [100, 100]);
    assert_eq!(counted.map(|counters| counters.bytes), [100 * udp.len() as u64, 100 * tcp.len() as u64]);
    assert_eq!(host.core.cells.ovs.get(7), Default::default());
}

/// Open vSwitch knows packets by their mark, also the segments of a large send. What no flow marks has none.
#[test]
fn packets_of_flows_that_open_vswitch_carries_out_are_marked() {
    let (port, side) = (OVS_PORTS[0], VifId(OVS_PORTS[0].0 + 10));
    let tcp = Key { ip_proto: 6, ..Key::default() };
    let mask = Key { ip_proto: u8::MAX, ..Key::default() };
    let flow = (1, Match::new(&tcp, &mask), vec![Action::Mark]);
    let mut host = host_accepting(generate::ovs_ports(&mut Rng::new(3)), &[flow], Accepts::default());
    let large = unfinished(&UDP.replace("udp 1 > 2", "tcp 1 > 2 A").replace("300", "3000"), Some(1000));
    let udp = (text::parse(UDP).unwrap(), Offload::default());
    let send = |host: &mut Host, packet: &(Vec<u8>, Offload)| {
        let arrived = host.run(port, [packet.clone()])[&side].len();
        let marks = host.ports[&side].take_marks();
        assert_eq!(marks.len(), arrived);
        marks
    };
    assert_eq!(send(&mut host, &large), [None; 3], "the first one is decided");
    assert_eq!(send(&mut host, &large), [Some(1); 3]);
    assert_eq!(send(&mut host, &udp), [None]);
    assert_eq!(send(&mut host, &udp), [None]);
    assert_eq!(send(&mut host, &large), [Some(1); 3]);
    host.settle();
    assert_eq!(host.core.cells.ovs.get(1).packets, 3);
    host.shared.apply_ovs(&[Change::Remove { port, id: FlowId(1) }]);
    assert_eq!(send(&mut host, &large), [None; 3], "it is gone");
    assert_eq!(send(&mut host, &large), [None; 3]);
}

#[test]
fn ports_of_tunnels_count_what_is_inside() {
    const INNER: &str =
        "eth 02:00:00:00:00:02 > 02:00:00:00:00:01 / ip4 10.0.0.2 > 10.0.0.1 / udp 1 > 2 / payload 300";
    let (tunnel, guest) = (OVS_PORTS[0], OVS_PORTS[2]);
    let mut ports = generate::tunnelled_ovs_ports(&mut Rng::new(3));
    for port in &mut ports {
        let model::Change::PutVif(vif) = port else { continue };
        vif.mtu = 1500;
        let remote = "192.0.2.2".parse().unwrap();
        let id = if vif.id == tunnel { 77 } else { 78 };
        if vif.tunnel().is_some() {
            let of = model::Tunnel { kind: packet::TunnelKind::Geneve, remote, id, mac: None };
            vif.kind = model::VifKind::Tunnel(of);
        }
    }
    let mut host = Host::new(&ports, &generate::ovs_neighbours(), ALL, 400);
    let flow = |id, port, to| {
        let (matching, actions) = (all(), vec![Action::Output(to)]);
        Change::Add(Arc::new(Flow { id: FlowId(id), counter: id as u32, port, matching, actions }))
    };
    host.core.cells.ovs.make_room(1);
    host.shared.apply_ovs(&[flow(1, tunnel, guest), flow(2, guest, tunnel)]);
    let inner = text::parse(INNER).unwrap();
    let outer = "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.2 > 192.0.2.1 / udp 50000 > 6081 nosum / geneve 77";
    let whole = text::parse(&format!("{outer} / {INNER}")).unwrap();
    for _ in 0..100 {
        let came = plain(host.run(UNDERLAY, [(whole.clone(), Offload::default())]));
        assert_eq!(came[&guest], std::slice::from_ref(&inner));
        let went = plain(host.run(guest, [(inner.clone(), Offload::default())]));
        assert_eq!(went[&UNDERLAY][0][50..], inner);
    }
    assert_eq!(host.hits(), 2 * 99, "the cache answers in both directions");
    host.settle();
    let wanted = executor::Counters { packets: 100, bytes: 100 * inner.len() as u64 };
    let counted = host.core.cells.vif_counters(tunnel);
    assert_eq!((counted.received, counted.sent), (wanted, wanted));
    assert_eq!([1, 2].map(|counter| host.core.cells.ovs.get(counter)), [wanted, wanted]);
}

fn flows(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| text::parse(&UDP.replace("udp 1", &format!("udp {}", n + 1))).unwrap()).collect()
}

#[test]
fn copies_leave_in_the_order_of_their_packets() {
    let [first, second] = [OVS_PORTS[1], OVS_PORTS[2]];
    let tag = [Action::PushVlan { service: false }, Action::SetVlanVid(7)];
    let actions = [Action::Output(first)].into_iter().chain(tag);
    let actions = actions.chain([Action::Output(first), Action::Output(second)]).collect();
    let mut host = host_with(&[(1, all(), actions)]);
    // The copies for such a burst need more lanes than there are.
    let frames = flows(64);
    let tagged = |frame: &Vec<u8>| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    let wanted = Frames::from([
        (first, frames.iter().flat_map(|frame| [frame.clone(), tagged(frame)]).collect()),
        (second, frames.iter().map(tagged).collect()),
    ]);
    for round in 0..3 {
        let sent = frames.iter().map(|frame| (frame.clone(), Offload::default()));
        assert_eq!(plain(host.run(OVS_PORTS[0], sent)), wanted);
        assert_eq!(host.hits(), round * 64 + 63, "they share an entry");
    }
    host.settle();
    assert_eq!(host.core.cells.ovs.get(1).packets, 3 * 64);
}

#[test]
fn packets_share_an_entry_while_no_flow_looks_at_addresses_and_ports() {
    let mut host = host_with(&[(1, all(), vec![Action::Output(OVS_PORTS[1])])]);
    host.core.cells.ovs.make_room(2);
    let packets = || flows(8).into_iter().map(|frame| (frame, Offload::default()));
    let first = host.run(OVS_PORTS[0], packets());
    assert_eq!((first[&OVS_PORTS[1]].len(), host.hits()), (8, 7));
    // From now on, one of the packets belongs to a new flow; it comes after others in the burst.
    let port = |n| Key { l4_src: n, ..Key::default() };
    let matching = Match::new(&port(3), &port(u16::MAX));
    let flow = |id, counter, actions| Flow { id: FlowId(id), counter, port: OVS_PORTS[0], matching, actions };
    let earlier = flow(0, 2, vec![Action::Output(OVS_PORTS[2])]);
    host.shared.apply_ovs(&[Change::Add(Arc::new(earlier))]);
    for hits in [7, 15] {
        let output = host.run(OVS_PORTS[0], packets());
        assert_eq!([1, 2].map(|to| output[&OVS_PORTS[to]].len()), [7, 1]);
        assert_eq!(host.hits(), hits, "each has its own");
    }
    host.settle();
    assert_eq!([1, 2].map(|counter| host.core.cells.ovs.get(counter).packets), [8 + 14, 2]);
    host.shared.apply_ovs(&[Change::Remove { port: OVS_PORTS[0], id: FlowId(0) }]);
    assert_eq!(host.run(OVS_PORTS[0], packets())[&OVS_PORTS[1]].len(), 8);
    assert_eq!(host.hits(), 15 + 7);
}

#[test]
fn copies_are_bounded_by_the_turns_budget() {
    let copies = 32;
    let mut host = host_with(&[(1, all(), vec![Action::Output(OVS_PORTS[1]); copies])]);
    let frame = text::parse(&UDP.replace("payload 300", "payload 1400")).unwrap();
    let (mut lost, mut missing) = (Vec::new(), 0);
    for packets in [1, 64, 64] {
        let sent = std::iter::repeat_n((frame.clone(), Offload::default()), packets);
        let arrived = host.run(OVS_PORTS[0], sent)[&OVS_PORTS[1]].len();
        missing += packets * copies - arrived;
        lost.push(host.drops().get(&DropReason::TurnBudget).copied().unwrap_or(0));
        assert_eq!(*lost.last().unwrap(), missing as u64);
        assert!(arrived >= packets, "the first copies take nothing of it");
    }
    assert!(lost[0] == 0 && lost[1] > 0 && lost[2] == 2 * lost[1], "{lost:?}");
    assert_eq!(host.hits(), 128);
}

#[test]
fn offloads_are_passed_on_with_changed_fields() {
    let actions = vec![
        Action::SetIpDst("10.9.9.9".parse().unwrap()),
        Action::SetPortDst(99),
        Action::Output(OVS_PORTS[1]),
    ];
    let mut host = host_with(&[(1, all(), actions)]);
    for text in [UDP.to_owned(), UDP.replace("udp 1 > 2", "tcp 1 > 2 A")] {
        let gso = text.contains("tcp").then_some(100);
        for _ in 0..3 {
            let output = host.run(OVS_PORTS[0], [unfinished(&text, gso)]);
            let changed = text.replace("10.0.0.2", "10.9.9.9").replace("> 2 ", "> 99 ");
            let (frame, mut offload) = unfinished(&changed, gso);
            if let Some(gso) = &mut offload.gso {
                gso.hdr_len = 54;
            }
            assert_eq!(output[&OVS_PORTS[1]], [(frame, offload)], "{text}");
        }
    }
    assert_eq!(host.hits(), 4);
}

/// Packets from Open vSwitch leave unchanged, except that checksums are finished, also if Viaduct does not
/// know the packet.
#[test]
fn checksums_of_what_is_not_parsed_are_finished() {
    const SOURCE: std::ops::Range<usize> = 26..30;
    for text in
        [UDP.to_owned(), UDP.replace("udp 1 > 2", "tcp 1 > 2 A"), UDP.replace("payload 300", "payload 301")]
    {
        for source in [[127, 0, 0, 1], [224, 0, 0, 9]] {
            let (mut frame, offload) = unfinished(&text, None);
            let Csum::Partial { start, offset } = offload.csum else { panic!() };
            let field = usize::from(start + offset)..usize::from(start + offset + 2);
            frame[SOURCE].copy_from_slice(&source);
            frame[24..26].fill(0);
            let header = sum(&frame[14..34]).finish();
            frame[24..26].copy_from_slice(&header.to_be_bytes());
            let (ip, len) = (packet::proto::IPV4_LEN, frame.len() as u32 - 34);
            assert_eq!(usize::from(start), 14 + ip);
            let addresses = (source.into(), [10, 0, 0, 2].into());
            let pseudo = pseudo_header(addresses.0, addresses.1, frame[23], len);
            frame[field.clone()].copy_from_slice(&pseudo.fold().to_be_bytes());
            let mut finished = frame.clone();
            finished[field.clone()]
                .copy_from_slice(&sum(&frame[usize::from(start)..]).finish().to_be_bytes());

            let mut host = host_with(&[]);
            let output = host.run(VifId(OVS_PORTS[1].0 + 10), [(frame, offload)]);
            assert_eq!(output[&OVS_PORTS[1]], [(finished, Offload::default())], "{text} {source:?}");
        }
    }
}

#[test]
fn a_large_send_is_segmented_behind_a_tunnels_headers() {
    for sum in ["", " nosum"] {
        let eth = "eth 02:aa:00:00:00:01 > 02:bb:00:00:00:02";
        let headers = format!("{eth} / ip4 192.0.2.1 > 192.0.2.2 df / udp 0 > 4789{sum} / vxlan 7");
        let outer = model::ovs::Outer::new(&text::parse(&headers).unwrap()).unwrap();
        let actions =
            vec![Action::PushVlan { service: false }, Action::Encap(outer), Action::Output(OVS_PORTS[1])];
        let mut host = host_with(&[(1, all(), actions)]);
        for _ in 0..2 {
            let output =
                host.run(OVS_PORTS[0], [unfinished(&UDP.replace("udp 1 > 2", "tcp 1 > 2 A"), Some(100))]);
            let segments = &output[&OVS_PORTS[1]];
            assert_eq!(segments.len(), 3);
            for (frame, offload) in segments {
                assert_eq!(*offload, Offload { csum: Csum::Unknown, gso: None });
                let outer = Headers::ethernet(frame, 0, frame.len()).unwrap();
                let right = verify_l4(frame, &outer) == L4Check::Right && frame[40..42] != [0, 0];
                assert_eq!(right, sum.is_empty());
                let tunnel = packet::tunnel(frame, &outer, frame.len()).unwrap().unwrap();
                let inner = Headers::ethernet(frame, tunnel.inner_at, tunnel.inner_end).unwrap();
                assert_eq!(tunnel.inner_end, frame.len());
                assert_eq!(verify_l4(frame, &inner), L4Check::Right);
                assert_eq!(inner.eth.unwrap().tags.len(), 1);
            }
        }
    }
}

#[test]
fn what_nobody_takes_is_dropped_by_name() {
    let mut host = Host::new(&generate::ovs_ports(&mut Rng::new(3)), &[], ALL, 200);
    let side = VifId(OVS_PORTS[0].0 + 10);
    host.core.ports.detach(side);
    for _ in 0..2 {
        assert!(host.run(OVS_PORTS[0], [(text::parse(UDP).unwrap(), Offload::default())]).is_empty());
    }
    assert_eq!(host.drops(), [(DropReason::OvsAbsent, 2)].into());
}

/// A guest's queue waits while its Open vSwitch has no room, and until that has some. Packets of a wire come from many.
#[test]
fn a_guest_waits_for_its_open_vswitch_and_a_wire_does_not() {
    let (port, side) = (OVS_PORTS[0], VifId(OVS_PORTS[0].0 + 10));
    for (kind, waits) in [(VifKind::Vhost, true), (VifKind::Tap, true), (VifKind::Wire, false)] {
        let vifs = [(port, side, kind), (side, port, VifKind::Ovs)];
        let put = |(id, other, kind)| {
            let wire = (kind == VifKind::Wire).then(Default::default);
            model::Change::PutVif(Vif { ovs: Some(other), wire, ..Vif::new(id, "port", kind) })
        };
        let mut host = Host::new(&vifs.map(put), &[], Accepts::default(), 200);
        let mut receiver = Receiver::new(port, Box::new(host.ports[&port].receiver()));
        receiver.look_up_kind(&host.shared.snapshot());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, receiver.queue.event_fd(), receiver.event(), epoll::EventFlags::IN).unwrap();
        let wakes = |receiver: &mut Receiver| {
            receiver.rest(5);
            receiver.watch(&epoll);
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
            epoll::wait(&epoll, &mut events[..], Some(&Timespec::default())).unwrap() == 1
        };
        for (room, waits) in [(usize::MAX, false), (0, waits)] {
            host.ports[&side].set_room(room);
            host.run(port, [(text::parse(UDP).unwrap(), Offload::default())]);
            assert!(host.core.asked_ovs);
            receiver.asked_ovs(&host.core.ports, 5);
            assert_eq!((receiver.patience.waits(), receiver.is_held(&host.core.ports, 6)), (waits, waits));
            assert_eq!(wakes(&mut receiver), !waits, "its descriptor is readable all the time");
        }
        host.ports[&side].set_room(1);
        assert!(!receiver.is_held(&host.core.ports, 7) && !receiver.patience.waits());
        assert!(wakes(&mut receiver));
        // A flow decides: there is nothing to wait for.
        let flow = Flow { id: FlowId(1), counter: 0, port, matching: all(), actions: vec![Action::Drop] };
        host.core.cells.ovs.make_room(0);
        host.shared.apply_ovs(&[Change::Add(Arc::new(flow))]);
        host.run(port, [(text::parse(UDP).unwrap(), Offload::default())]);
        assert!(!host.core.asked_ovs);
    }
}
