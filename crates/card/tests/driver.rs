//! The limits of a card's room, and the reuse of numbers.

use card::Commands;
use card::compile::Attachment;
use card::driver::Driver;
use card::expect::{Memory, Outcome, Sizes, outcome};
use card::registers::{Punt, Table};
use model::{
    Action, Change, Decision, Lookup, Network, Nexthop, NexthopId, PacketView, Rule, RuleAction, RuleId,
    Tables, Verdict, Vif, VifId, VifKind, Vrf, decide, text,
};
use packet::Mac;

const VRF: Vrf = Vrf(5);
const ONE: VifId = VifId(1);
const OTHER: VifId = VifId(2);

fn mac(number: u16) -> Mac {
    Mac([2, 0, 0, 0, 0, number as u8])
}

fn guest(id: VifId, policy: bool) -> Change {
    Change::PutVif(Vif {
        vrf: Some(VRF),
        mac: Some(mac(id.0)),
        addresses: vec![[10, 0, 0, id.0 as u8].into()],
        policy,
        ..Vif::new(id, "guest", VifKind::Vhost)
    })
}

fn network(default_action: Action) -> Change {
    Change::PutNetwork(Network { default_action, members: vec![ONE, OTHER], ..Network::new(VRF, "net") })
}

/// Returns the change that sets up the network, with or without lowering the MSS of SYNs.
fn clamping(mss_clamp: bool) -> Change {
    let Change::PutNetwork(mut network) = network(Action::Allow) else { unreachable!() };
    network.tcp.mss_clamp = mss_clamp;
    Change::PutNetwork(network)
}

fn encap(number: u32) -> Change {
    Change::PutNexthop(NexthopId(number), Nexthop::Encap { vif: OTHER, mac: mac(100 + number as u16) })
}

fn route(prefix: &str, nexthop: u32) -> Change {
    Change::PutRoute { vrf: VRF, prefix: prefix.parse().unwrap(), nexthop: NexthopId(nexthop) }
}

struct Host {
    tables: Tables,
    driver: Driver<Memory>,
}

impl Host {
    fn new(sizes: Sizes, policy: bool) -> Self {
        let commands = Commands::open(Memory::new(sizes)).unwrap();
        let mut host = Self { tables: Tables::new(), driver: Driver::new(commands, [9; 5]).unwrap() };
        for id in [ONE, OTHER] {
            host.driver.attach(&host.tables, id, Some(Attachment { port: id.0, egress: 0 })).unwrap();
        }
        host.apply(&[network(Action::Allow), guest(ONE, policy), guest(OTHER, policy)]);
        host
    }

    fn apply(&mut self, changes: &[Change]) {
        self.tables.apply(changes).unwrap();
        self.driver.apply(&self.tables, changes).unwrap();
    }

    fn card(&mut self, port: VifId, frame: &[u8]) -> Outcome {
        outcome(self.driver.commands().card(), port.0, frame, frame.len())
    }

    /// Decides about a packet, as the host does.
    fn host(&mut self, port: VifId, frame: &[u8]) -> Decision {
        let view = PacketView::parse(frame, frame.len() as u32, None).unwrap();
        let decision = decide(&self.tables, &view, port, 0);
        self.tables.commit(&decision.effects, frame.len(), 0).unwrap();
        self.driver.decided(&self.tables, &view, port, &decision).unwrap();
        decision
    }
}

fn frame(text: &str) -> Vec<u8> {
    text::parse(text).unwrap()
}

/// Makes a packet that the first guest sends to be routed.
fn routed(src: &str, dst: &str) -> Vec<u8> {
    let ip = if dst.contains(':') { "ip6" } else { "ip4" };
    let gateway = model::GATEWAY_MAC;
    frame(&format!("eth {} > {gateway} / {ip} {src} > {dst} ttl 9 / udp 7 > 8 / payload 20", mac(1)))
}

fn is_sent_to(outcome: &Outcome, to: Mac) -> bool {
    matches!(outcome, Outcome::Forward { forward, .. } if forward.ethernet.is_some_and(|e| e.dst == to))
}

#[test]
fn nexthops_without_room_are_the_hosts_and_numbers_are_used_again() {
    // Number 0, and those of the guests themselves: there is room for two more.
    let mut host = Host::new(Sizes { nexthops: 5, ..Sizes::default() }, false);
    for number in 0..4 {
        host.apply(&[encap(number), route(&format!("192.0.2.{number}/32"), number)]);
    }
    let there: Vec<_> = (0..4)
        .map(|n| is_sent_to(&host.card(ONE, &routed("10.0.0.1", &format!("192.0.2.{n}"))), mac(100 + n)))
        .collect();
    assert_eq!(there, [true, true, false, false]);
    let outcome = host.card(ONE, &routed("10.0.0.1", "192.0.2.3"));
    assert_eq!(outcome, Outcome::Punt(Punt::Nexthop));
    for (gone, new) in [(0, 4), (1, 5), (4, 6), (5, 7)] {
        host.apply(&[Change::DelRoute { vrf: VRF, prefix: format!("192.0.2.{gone}/32").parse().unwrap() }]);
        host.apply(&[encap(new), route(&format!("192.0.2.{new}/32"), new)]);
        let outcome = host.card(ONE, &routed("10.0.0.1", &format!("192.0.2.{new}")));
        assert!(is_sent_to(&outcome, mac(100 + new as u16)), "{outcome:?}");
    }
}

#[test]
fn a_network_that_lowers_the_mss_of_syns_is_the_hosts_from_either_side() {
    let mut host = Host::new(Sizes::default(), false);
    host.apply(&[encap(0), route("192.0.2.0/24", 0)]);
    let syn = frame(&format!(
        "eth {} > {} / ip4 10.0.0.1 > 192.0.2.1 ttl 9 / tcp 7 > 8 S mss 8960",
        mac(1),
        model::GATEWAY_MAC
    ));
    for clamp in [false, true, false] {
        host.apply(&[clamping(clamp)]);
        let outcome = host.card(ONE, &syn);
        assert_eq!(is_sent_to(&outcome, mac(100)), !clamp, "{outcome:?}");
    }
    let other = Vrf(6);
    let (Change::PutVif(mut one), Change::PutNetwork(mut near)) = (guest(ONE, false), clamping(false)) else {
        unreachable!()
    };
    (one.vrf, near.vrf) = (Some(other), other);
    let prefix = "192.0.2.0/24".parse().unwrap();
    let route = Change::PutRoute { vrf: other, prefix, nexthop: NexthopId(0) };
    host.apply(&[Change::PutNetwork(near), Change::PutVif(one), route]);
    for clamp in [false, true, false] {
        host.apply(&[clamping(clamp)]);
        let outcome = host.card(ONE, &syn);
        assert_eq!(is_sent_to(&outcome, mac(100)), !clamp, "{outcome:?}");
    }
}

#[test]
fn nexthops_are_on_chip_as_long_as_there_is_room_and_in_memory_they_change_at_once() {
    // On chip: number 0, those of the guests themselves, and one more.
    let mut host = Host::new(Sizes { nexthops_on_chip: 4, ..Sizes::default() }, false);
    for number in 0..3 {
        host.apply(&[encap(number), route(&format!("192.0.2.{number}/32"), number)]);
    }
    let lines = |host: &mut Host| {
        let card = host.driver.commands().card();
        (1..8).map(|number| card.nexthop_line(number)).collect::<Vec<_>>()
    };
    let before = lines(&mut host);
    assert!(
        before[..5].iter().all(|line| *line != [0; 64]) && before[5..].iter().all(|line| *line == [0; 64])
    );
    let old = host.driver.commands().card().clone();
    host.driver.commands().card().record();
    host.driver.attach(&host.tables, OTHER, Some(Attachment { port: 77, egress: 3 })).unwrap();
    let (after, writes) = (lines(&mut host), host.driver.commands().card().recorded());
    // Whichever half is written, a nexthop in memory gives the old or the new result: meanwhile a replacement on chip
    // stands in for it.
    let mut memory = old;
    for write in &writes {
        let torn = write.table() == Table::Nexthop && write.address() >= 4;
        memory.replay(write);
        assert!(!torn || memory.is_changing(write.address()), "{write:?}");
    }
    assert!(after[1..5].iter().zip(&before[1..5]).all(|(after, before)| after != before));
    assert!((0..=7).all(|number| number == 0 || !memory.is_changing(number)));
    // Free ones on chip are reused first.
    host.apply(&[Change::DelRoute { vrf: VRF, prefix: "192.0.2.0/32".parse().unwrap() }]);
    host.apply(&[encap(5), route("192.0.2.5/32", 5)]);
    let last = lines(&mut host);
    assert!(last[2] != after[2] && last[3..] == after[3..]);
}

#[test]
fn a_network_goes_and_comes_again() {
    let mut host = Host::new(Sizes::default(), false);
    let prefix = "192.0.2.0/24".parse().unwrap();
    let all =
        [network(Action::Allow), guest(ONE, false), guest(OTHER, false), encap(0), route("192.0.2.0/24", 0)];
    host.apply(&all);
    let packet = routed("10.0.0.1", "192.0.2.9");
    let sent = host.card(ONE, &packet);
    assert!(is_sent_to(&sent, mac(100)));
    let gone = [
        Change::DelRoute { vrf: VRF, prefix },
        Change::DelNexthop(NexthopId(0)),
        Change::DelVif(ONE),
        Change::DelVif(OTHER),
        Change::DelNetwork(VRF),
    ];
    host.apply(&gone);
    assert_eq!(host.card(ONE, &packet), Outcome::Punt(Punt::HostPort));
    host.apply(&all);
    assert_eq!(host.card(ONE, &packet), sent);
    host.driver.attach(&host.tables, ONE, None).unwrap();
    assert_eq!(host.card(ONE, &packet), Outcome::Punt(Punt::HostPort));
    host.driver.attach(&host.tables, ONE, Some(Attachment { port: ONE.0, egress: 0 })).unwrap();
    host.driver.attach(&host.tables, OTHER, Some(Attachment { port: 77, egress: 3 })).unwrap();
    let Outcome::Forward { forward, egress, .. } = host.card(ONE, &packet) else { panic!("not forwarded") };
    assert_eq!((forward.port, egress), (VifId(77), 3));
}

#[test]
fn a_nexthop_that_another_takes_the_place_of_is_not_used_any_more() {
    let mut host = Host::new(Sizes::default(), false);
    host.apply(&[encap(0), route("192.0.2.0/24", 0)]);
    let packet = routed("10.0.0.1", "192.0.2.9");
    assert!(is_sent_to(&host.card(ONE, &packet), mac(100)));
    let other = Nexthop::Encap { vif: OTHER, mac: mac(66) };
    host.apply(&[Change::DelNexthop(NexthopId(0)), Change::PutNexthop(NexthopId(0), other)]);
    assert!(is_sent_to(&host.card(ONE, &packet), mac(66)));
    host.apply(&[Change::PutNexthop(NexthopId(0), Nexthop::Discard)]);
    assert_eq!(host.card(ONE, &packet), Outcome::Drop(model::DropReason::DiscardRoute as u8));
}

#[test]
fn a_flow_with_a_nexthop_of_its_own_ends_where_routes_change() {
    let mut host = Host::new(Sizes::default(), true);
    let group = Change::PutNexthop(NexthopId(7), Nexthop::Ecmp(vec![NexthopId(0)]));
    host.apply(&[encap(0), encap(1), group, route("192.0.2.0/24", 7)]);
    let packet = routed("10.0.0.1", "192.0.2.9");
    assert_eq!(host.card(ONE, &packet), Outcome::Punt(Punt::FlowMiss));
    host.host(ONE, &packet);
    assert!(is_sent_to(&host.card(ONE, &packet), mac(100)));
    host.apply(&[route("192.0.2.9/32", 1)]);
    assert_eq!(host.card(ONE, &packet), Outcome::Punt(Punt::FlowMiss));
    host.host(ONE, &packet);
    assert!(is_sent_to(&host.card(ONE, &packet), mac(101)));
}

#[test]
fn a_network_whose_routes_do_not_fit_is_the_hosts() {
    let mut host = Host::new(Sizes::default(), false);
    host.apply(&[encap(0), route("192.0.2.0/24", 0)]);
    let packet = routed("10.0.0.1", "192.0.2.9");
    let sent = host.card(ONE, &packet);
    assert!(is_sent_to(&sent, mac(100)));
    for length in 100..116 {
        host.apply(&[route(&format!("2001:db8::/{length}"), 0)]);
        assert_eq!(host.card(ONE, &packet), sent);
    }
    host.apply(&[route("2001:db8::/116", 0)]);
    assert_eq!(host.card(ONE, &packet), Outcome::Punt(Punt::NoVrf));
    assert_eq!(host.driver.spilled().collect::<Vec<_>>(), [VRF]);
    host.apply(&[route("192.0.3.0/24", 0)]);
    assert_eq!(host.card(ONE, &packet), Outcome::Punt(Punt::NoVrf));
}

#[test]
fn flows_of_old_do_not_hold_when_generations_begin_anew() {
    let mut host = Host::new(Sizes::default(), true);
    host.apply(&[encap(0), route("192.0.2.0/24", 0)]);
    let packet = routed("10.0.0.1", "192.0.2.9");
    let rule = |id, action| {
        let action = RuleAction::End(action);
        let (from, to) = (Vec::new(), Vec::new());
        Rule { id: RuleId(id), vrf: VRF, priority: 0, from, to, protocol: None, ports: None, action }
    };
    assert_eq!(host.card(ONE, &packet), Outcome::Punt(Punt::FlowMiss));
    host.host(ONE, &packet);
    assert!(is_sent_to(&host.card(ONE, &packet), mac(100)));
    for _ in 0..256 {
        host.apply(&[Change::PutRule(rule(1, Action::Drop))]);
        assert_eq!(host.card(ONE, &packet), Outcome::Punt(Punt::FlowMiss));
    }
    assert_eq!(host.driver.flows(), 0);
    assert!(matches!(host.host(ONE, &packet).verdict, Verdict::Drop(_)));
}

#[test]
fn a_connection_from_the_other_side_ends_a_drop() {
    let mut host = Host::new(Sizes::default(), true);
    let bridged = |from: VifId, to: VifId, ports: &str| {
        let (src, dst) = (mac(from.0), mac(to.0));
        frame(&format!("eth {src} > {dst} / ip4 10.0.0.{from} > 10.0.0.{to} / udp {ports} / payload 20"))
    };
    let (there, back) = (bridged(ONE, OTHER, "7 > 8"), bridged(OTHER, ONE, "8 > 7"));
    let rule = Rule {
        id: RuleId(1),
        vrf: VRF,
        priority: 0,
        from: vec!["10.0.0.2/32".parse().unwrap()],
        to: Vec::new(),
        protocol: None,
        ports: None,
        action: RuleAction::End(Action::Drop),
    };
    host.apply(&[Change::PutRule(rule)]);
    assert!(matches!(host.host(OTHER, &back).verdict, Verdict::Drop(_)));
    assert_eq!(host.card(OTHER, &back), Outcome::Drop(model::DropReason::RuleDrop as u8));
    assert!(matches!(host.host(ONE, &there).verdict, Verdict::Forward(_)));
    assert_eq!(host.card(OTHER, &back), Outcome::Punt(Punt::FlowMiss));
    assert!(matches!(host.host(OTHER, &back).verdict, Verdict::Forward(_)));
    assert!(matches!(host.card(OTHER, &back), Outcome::Forward { .. }));
    let connection = host.tables.connections().next().unwrap().0.original;
    host.driver.forgotten(&connection).unwrap();
    assert_eq!(host.card(OTHER, &back), Outcome::Punt(Punt::FlowMiss));
    assert_eq!(host.card(ONE, &there), Outcome::Punt(Punt::FlowMiss));
}

#[test]
fn sweeping_removes_what_does_not_hold() {
    let mut host = Host::new(Sizes::default(), true);
    host.apply(&[encap(0), route("192.0.2.0/24", 0)]);
    for host_number in 1..40 {
        host.host(ONE, &routed("10.0.0.1", &format!("192.0.2.{host_number}")));
    }
    assert_eq!(host.driver.flows(), 39);
    host.apply(&[guest(ONE, true)]);
    host.host(ONE, &routed("10.0.0.1", "192.0.2.1"));
    for _ in 0..10 {
        host.driver.sweep(5).unwrap();
    }
    assert_eq!(host.driver.flows(), 1);
    assert!(host.tables.route(VRF, "192.0.2.1".parse().unwrap()).is_some());
}
