//! The fast tables, compared with the naive ones, over random batches of changes and learning; and memoised answers,
//! compared with fresh ones.

use ipnet::IpNet;
use model::snat::SharedAddress;
use model::{
    Action, BridgeTarget, Change, Connection, Effects, Endpoint, FloatingAddress, FlowChange, FlowKey,
    FlowState, FragmentKey, Host, KernelPath, Learn, Lookup, MeterConfig, MeterId, Modifier, NeighbourFound,
    NeighbourScope, Network, Nexthop, NexthopId, PortRange, Rule, RuleAction, RuleId, RuleQuery, Seconds,
    Sharing, Tables, Transport, Tunnel, TunnelKind, Vif, VifId, VifKind, Vrf, WireAttachment, WireAttributes,
};
use packet::Mac;
use proptest::prelude::*;
use proptest::sample::select;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tables::{Account, FlowLimits, Shared};

const VRFS: u16 = 4;
const VIFS: u16 = 5;
const NEXTHOPS: u32 = 5;

fn addresses() -> Vec<IpAddr> {
    let v4 = [[10, 1, 0, 1], [10, 1, 0, 2], [10, 1, 7, 1], [10, 2, 0, 1], [192, 0, 2, 1]];
    let v6 = [[0xfd00, 1, 0, 1], [0xfd00, 1, 0, 2], [0xfd00, 2, 0, 1]];
    let v4 = v4.into_iter().map(|a| IpAddr::V4(Ipv4Addr::from(a)));
    v4.chain(v6.into_iter().map(|[a, b, c, d]| IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, d)))).collect()
}

fn macs() -> Vec<Mac> {
    (0..4).map(|n| Mac([2, 0, 0, 0, 0, n])).collect()
}

fn vrf() -> impl Strategy<Value = Vrf> {
    (0..VRFS).prop_map(Vrf)
}

fn vif() -> impl Strategy<Value = VifId> {
    (0..VIFS).prop_map(VifId)
}

fn nexthop_id() -> impl Strategy<Value = NexthopId> {
    (0..NEXTHOPS).prop_map(NexthopId)
}

fn addr() -> impl Strategy<Value = IpAddr> {
    select(addresses())
}

fn mac() -> impl Strategy<Value = Mac> {
    select(macs())
}

fn prefix() -> impl Strategy<Value = IpNet> {
    let lens = vec![0, 7, 8, 15, 16, 17, 24, 31, 32, 47, 48, 49, 64, 128];
    (addr(), select(lens)).prop_map(|(addr, len)| {
        let most = if addr.is_ipv4() { 32 } else { 128 };
        IpNet::new(addr, u8::min(len, most)).expect("not too long")
    })
}

fn target() -> impl Strategy<Value = BridgeTarget> {
    prop_oneof![
        vif().prop_map(BridgeTarget::Vif),
        nexthop_id().prop_map(BridgeTarget::Nexthop),
        (addr(), 0..4_u32).prop_map(|(remote, vni)| BridgeTarget::Vtep { remote, vni }),
    ]
}

/// Returns ways out of the host: wires, and ports of tunnels.
fn ways() -> Vec<VifKind> {
    let [first, second, ..] = addresses()[..] else { return Vec::new() };
    let tunnel = |kind, remote, id| VifKind::Tunnel(Tunnel { kind, remote, id, mac: None });
    let (vxlan, geneve) = (TunnelKind::Vxlan, TunnelKind::Geneve);
    vec![
        VifKind::Wire,
        VifKind::Wire,
        tunnel(vxlan, first, 1),
        tunnel(vxlan, second, 1),
        tunnel(geneve, first, 1),
    ]
}

fn any_vif() -> impl Strategy<Value = Vif> {
    let attached = prop::option::of((prop::option::of(1..9u16), vrf()));
    (
        (vif(), prop::option::of(select(ways())), prop::option::of(vrf()), prop::option::of(mac())),
        prop::collection::vec(addr(), 0..3),
        (any::<bool>(), prop::option::of((0..2u32).prop_map(MeterId)), prop::option::of(vif()), attached),
    )
        .prop_map(|((id, way, vrf, mac), addresses, (policy, meter, mirror, attached))| Vif {
            vrf: vrf.filter(|_| way.is_none()),
            mac,
            addresses,
            policy,
            meter,
            mirror,
            wire: (way == Some(VifKind::Wire))
                .then(|| WireAttributes { networks: attached.into_iter().collect(), ..Default::default() }),
            ..Vif::new(id, &format!("v{id}"), way.unwrap_or(VifKind::Tap))
        })
}

fn action() -> impl Strategy<Value = Action> {
    select(vec![Action::Allow, Action::Drop, Action::Reject])
}

fn network() -> impl Strategy<Value = Network> {
    let wire = prop::option::of((vif(), prop::option::of(1..9u16)));
    let lists = (prop::collection::vec(vif(), 0..3), prop::collection::vec(nexthop_id(), 0..2));
    let shared = (vrf(), addr()).prop_map(|(outside_vrf, outside)| SharedAddress { outside_vrf, outside });
    let lists = (lists, prop::collection::vec(shared, 0..3));
    (vrf(), action(), lists, wire).prop_map(|(vrf, default_action, ((members, flood), addresses), wire)| {
        Network {
            sharing: Sharing { addresses, ..Sharing::default() },
            learning: true,
            mtu: 1450,
            default_action,
            members,
            flood,
            wire: wire.map(|(vif, vlan)| WireAttachment { vif, vlan }),
            ..Network::new(vrf, &format!("n{vrf}"))
        }
    })
}

fn nexthop() -> impl Strategy<Value = Nexthop> {
    prop_oneof![
        Just(Nexthop::Discard),
        Just(Nexthop::Receive),
        (vif(), mac()).prop_map(|(vif, mac)| Nexthop::Encap { vif, mac }),
        addr().prop_map(|remote| Nexthop::Tunnel(Tunnel {
            kind: TunnelKind::Vxlan,
            remote,
            id: 7,
            mac: None
        })),
        vrf().prop_map(|vrf| Nexthop::VrfTranslate { vrf }),
        prop::collection::vec(nexthop_id(), 0..3).prop_map(Nexthop::Ecmp),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let action = prop_oneof![
        action().prop_map(RuleAction::End),
        vif().prop_map(|vif| RuleAction::Modify(Modifier::Mirror(vif))),
        (0..2u32).prop_map(|id| RuleAction::Modify(Modifier::Police(MeterId(id)))),
    ];
    let prefixes = || prop::collection::vec(prefix(), 0..2);
    let ports = prop::option::of(select(vec![PortRange::ANY, PortRange { first: 80, last: 443 }]));
    let protocol = prop::option::of(select(vec![6, 17]));
    ((0..6u32, vrf(), 0..3u32), prefixes(), prefixes(), protocol, ports, action).prop_map(
        |((id, vrf, priority), from, to, protocol, ports, action)| Rule {
            id: RuleId(id),
            vrf,
            priority,
            from,
            to,
            protocol,
            ports,
            action,
        },
    )
}

fn change() -> impl Strategy<Value = Change> {
    let meter = || (0..2u32).prop_map(MeterId);
    let floating = (vrf(), addr(), vrf(), addr());
    let put = prop_oneof![
        1 => any_vif().prop_map(Change::PutVif),
        1 => network().prop_map(Change::PutNetwork),
        1 => (nexthop_id(), nexthop()).prop_map(|(id, nexthop)| Change::PutNexthop(id, nexthop)),
        3 => (vrf(), prefix(), nexthop_id())
            .prop_map(|(vrf, prefix, nexthop)| Change::PutRoute { vrf, prefix, nexthop }),
        1 => (vrf(), mac(), target()).prop_map(|(vrf, mac, target)| Change::PutMac { vrf, mac, target }),
        1 => (vrf(), addr(), mac()).prop_map(|(vrf, addr, mac)| Change::PutOwner { vrf, addr, mac }),
        1 => (16..19u32, nexthop_id()).prop_map(|(label, nexthop)| Change::PutMpls { label, nexthop }),
        1 => (0..3u32, vrf()).prop_map(|(vni, vrf)| Change::PutVxlan { vni, vrf }),
        1 => floating.prop_map(|(inside_vrf, inside, outside_vrf, outside)| {
            Change::PutFloating(FloatingAddress { inside_vrf, inside, outside_vrf, outside })
        }),
        1 => (meter(), 1..3u64)
            .prop_map(|(id, n)| Change::PutMeter(id, MeterConfig { bits_per_second: n, burst_bytes: n })),
        3 => rule().prop_map(Change::PutRule),
        1 => (addr(), addr(), 0..3u16).prop_map(|(remote, hop, count)| {
            let path = |weight| KernelPath { wire: VifId(1), hop, mac: None, weight, mtu: Some(1400 - weight) };
            Change::PutPaths { remote, paths: (0..count).map(path).collect() }
        }),
        1 => (addr(), any::<bool>()).prop_map(|(remote, is_down)| Change::SetDown { remote, is_down }),
        1 => (addr(), addr(), any::<bool>()).prop_map(|(remote, hop, is_down)| {
            Change::SetPathDown { remote, wire: VifId(1), hop, is_down }
        }),
        1 => (addr(), any::<bool>()).prop_map(|(remote, is_watched)| Change::SetWatched { remote, is_watched }),
        1 => (addr(), prefix()).prop_map(|(a, p)| Change::SetHost(Host {
            name: "h".into(), tunnel_source: vec![a], tunnel_peers: vec![p], ..Host::default()
        })),
    ];
    let del = prop_oneof![
        1 => vif().prop_map(Change::DelVif),
        1 => vrf().prop_map(Change::DelNetwork),
        1 => nexthop_id().prop_map(Change::DelNexthop),
        3 => (vrf(), prefix()).prop_map(|(vrf, prefix)| Change::DelRoute { vrf, prefix }),
        1 => (vrf(), mac()).prop_map(|(vrf, mac)| Change::DelMac { vrf, mac }),
        1 => (vrf(), addr()).prop_map(|(vrf, addr)| Change::DelOwner { vrf, addr }),
        1 => (16..19u32).prop_map(|label| Change::DelMpls { label }),
        1 => (0..3u32).prop_map(|vni| Change::DelVxlan { vni }),
        1 => (vrf(), addr()).prop_map(|(outside_vrf, outside)| Change::DelFloating { outside_vrf, outside }),
        1 => meter().prop_map(Change::DelMeter),
        3 => (vrf(), 0..6u32).prop_map(|(vrf, id)| Change::DelRule { vrf, id: RuleId(id) }),
    ];
    prop_oneof![3 => put, 2 => del]
}

fn flow_key() -> impl Strategy<Value = FlowKey> {
    let port = || select(vec![0, 80, 4791]);
    (vrf(), addr(), port(), vrf(), addr(), port(), select(vec![6, 17])).prop_map(
        |(src_vrf, src, sport, dst_vrf, dst, dport, protocol)| FlowKey {
            src: Endpoint { vrf: src_vrf, addr: src, port: sport },
            dst: Endpoint { vrf: dst_vrf, addr: dst, port: dport },
            protocol,
        },
    )
}

#[derive(Clone, Debug)]
enum Event {
    Apply(Vec<Change>),
    /// Removes what an earlier change added.
    Undo(prop::sample::Index),
    Learn(Learn),
    Neighbour(NeighbourFound),
    /// A packet of a connection, and the state to which it brings a known one.
    Flow(FlowKey, FlowState, u8),
    Fragment(FragmentKey, u16),
    Pass(Seconds),
}

fn event() -> impl Strategy<Value = Event> {
    let state = select(vec![FlowState::New, FlowState::Established, FlowState::Closing, FlowState::Closed]);
    let scope = prop_oneof![vif().prop_map(NeighbourScope::Wire), vrf().prop_map(NeighbourScope::Network)];
    let fragment = (vif(), vrf(), addr(), addr(), any::<u16>());
    prop_oneof![
        6 => prop::collection::vec(change(), 1..4).prop_map(Event::Apply),
        4 => any::<prop::sample::Index>().prop_map(Event::Undo),
        2 => (vrf(), mac(), target()).prop_map(|(vrf, mac, at)| Event::Learn(Learn { vrf, mac, at })),
        2 => (scope, addr(), mac())
            .prop_map(|(scope, addr, mac)| Event::Neighbour(NeighbourFound { scope, addr, mac })),
        4 => (flow_key(), state, 0..8u8).prop_map(|(key, state, seen)| Event::Flow(key, state, seen)),
        1 => fragment.prop_map(|(ingress, vrf, src, dst, port)| {
            Event::Fragment(FragmentKey { ingress, vrf, src, dst, protocol: Some(17), id: 7 }, port)
        }),
        1 => (0..100u32).prop_map(Event::Pass),
    ]
}

/// Returns a batch of objects to which a random batch can refer.
fn foundation() -> Vec<Change> {
    let networks = (0..VRFS)
        .map(|vrf| Change::PutNetwork(Network { learning: true, mtu: 1450, ..Network::new(Vrf(vrf), "") }));
    let meters =
        (0..2).map(|id| Change::PutMeter(MeterId(id), MeterConfig { bits_per_second: 1, burst_bytes: 1 }));
    let nexthops = (0..NEXTHOPS).map(|id| Change::PutNexthop(NexthopId(id), Nexthop::Discard));
    networks.chain(meters).chain(nexthops).collect()
}

type Question = Box<dyn Fn(&dyn Lookup) -> String>;

/// Returns all possible questions; their answers are texts.
fn questions() -> Vec<Question> {
    let mut out: Vec<Question> = Vec::new();
    macro_rules! ask {
        (|$t:ident| $answer:expr) => {
            out.push(Box::new(move |$t| format!("{:?}", $answer)))
        };
    }
    ask!(|t| t.host());
    ask!(|t| t.wires());
    (0..VIFS).for_each(|id| ask!(|t| t.vif(VifId(id))));
    (0..NEXTHOPS).for_each(|id| ask!(|t| t.nexthop(NexthopId(id))));
    (16..19).for_each(|label| ask!(|t| t.mpls(label)));
    (0..3).for_each(|vni| ask!(|t| t.vxlan(vni)));
    for (kind, remote) in [TunnelKind::Vxlan, TunnelKind::Geneve]
        .into_iter()
        .flat_map(|kind| addresses().into_iter().map(move |addr| (kind, addr)))
    {
        ask!(|t| t.tunnel_port(kind, remote, 1));
    }
    for addr in addresses() {
        ask!(|t| (t.is_remote(addr), t.is_port_remote(addr)));
        ask!(|t| t.kernel_paths(addr).to_vec());
        ask!(|t| t.is_down(addr));
        addresses().into_iter().for_each(|hop| ask!(|t| t.is_path_down(addr, VifId(1), hop)));
        (0..VIFS).for_each(|vif| ask!(|t| t.neighbour(NeighbourScope::Wire(VifId(vif)), addr)));
    }
    for vrf in (0..VRFS).map(Vrf) {
        ask!(|t| t.network(vrf));
        macs().into_iter().for_each(|mac| ask!(|t| t.bridge(vrf, mac)));
        for addr in addresses() {
            ask!(|t| t.guest_by_address(vrf, addr));
            ask!(|t| t.owner(vrf, addr));
            ask!(|t| t.route(vrf, addr));
            ask!(|t| t.neighbour(NeighbourScope::Network(vrf), addr));
            ask!(|t| t.inside_of(vrf, addr));
            ask!(|t| t.shared_by(vrf, addr));
            (0..VRFS).for_each(|outside| ask!(|t| t.floating_of(vrf, addr, Vrf(outside))));
            for (protocol, dst_port) in [(6, Some(80)), (17, Some(9)), (1, None)] {
                let query = RuleQuery { src: addr, dst: addresses()[0], protocol, dst_port };
                ask!(|t| t.rules(vrf, &query));
            }
        }
    }
    out
}

/// The tables under test, with the naive ones beside them.
struct Both {
    shared: Shared,
    naive: Tables,
    now: Seconds,
    applied: Vec<Change>,
}

/// Returns the change that removes what a change added.
fn undo(change: &Change) -> Option<Change> {
    Some(match change {
        Change::PutVif(vif) => Change::DelVif(vif.id),
        Change::PutNetwork(network) => Change::DelNetwork(network.vrf),
        Change::PutNexthop(id, _) => Change::DelNexthop(*id),
        Change::PutRoute { vrf, prefix, .. } => Change::DelRoute { vrf: *vrf, prefix: *prefix },
        Change::PutMac { vrf, mac, .. } => Change::DelMac { vrf: *vrf, mac: *mac },
        Change::PutOwner { vrf, addr, .. } => Change::DelOwner { vrf: *vrf, addr: *addr },
        Change::PutMpls { label, .. } => Change::DelMpls { label: *label },
        Change::PutVxlan { vni, .. } => Change::DelVxlan { vni: *vni },
        Change::PutFloating(f) => Change::DelFloating { outside_vrf: f.outside_vrf, outside: f.outside },
        Change::PutMeter(id, _) => Change::DelMeter(*id),
        Change::PutRule(rule) => Change::DelRule { vrf: rule.vrf, id: rule.id },
        _ => return None,
    })
}

impl Both {
    /// Applies what the naive tables learn.
    fn commit(&mut self, effects: Effects) {
        self.naive.commit(&effects, 64, u64::from(self.now) * 1_000_000_000).expect("there is room");
    }

    fn apply(&mut self, changes: &[Change]) {
        let (fast, naive) = (self.shared.apply(changes), self.naive.apply(changes));
        assert_eq!(fast.is_ok(), naive.is_ok(), "{changes:?} {naive:?}");
        if naive.is_ok() {
            self.applied.extend_from_slice(changes);
        }
    }

    fn happen(&mut self, event: &Event) {
        self.now += 1;
        let now = self.now;
        match event {
            Event::Apply(changes) => self.apply(changes),
            Event::Undo(which) => {
                let change = undo(which.get(&self.applied));
                self.apply(change.as_slice());
            }
            Event::Learn(learn) => {
                let there = match learn.at {
                    BridgeTarget::Vif(vif) => self.naive.vif(vif).is_some(),
                    BridgeTarget::Nexthop(id) => self.naive.nexthop(id).is_some(),
                    BridgeTarget::Vtep { .. } => true,
                };
                let fixed = self.naive.bridge(learn.vrf, learn.mac).is_some_and(|entry| entry.is_static);
                if there && !fixed && self.naive.network(learn.vrf).is_some() {
                    self.shared.learn(&self.shared.snapshot(), learn, now);
                    self.commit(Effects { learn: Some(*learn), ..Effects::default() });
                }
            }
            Event::Neighbour(found) => {
                let there = match found.scope {
                    NeighbourScope::Wire(vif) => self.naive.vif(vif).is_some(),
                    NeighbourScope::Network(vrf) => self.naive.network(vrf).is_some(),
                };
                if there {
                    self.shared.neighbour(&self.shared.snapshot(), found, VifId(0), now);
                    self.commit(Effects { neighbour: Some(*found), ..Effects::default() });
                }
            }
            Event::Flow(key, state, seen) => {
                let there = |vrf| self.naive.network(vrf).is_some();
                if there(key.src.vrf) && there(key.dst.vrf) {
                    self.flow(key, *state, *seen);
                }
            }
            Event::Fragment(key, port) => {
                if self.naive.network(key.vrf).is_some() {
                    let transport = Transport { protocol: 17, ports: Some((*port, *port)) };
                    self.shared.flows().fragments().insert(*key, transport, now);
                    self.commit(Effects { fragment: Some((*key, transport)), ..Effects::default() });
                    assert_eq!(self.naive.fragment(key, now), self.shared.flows().fragments().get(key, now));
                }
            }
            Event::Pass(seconds) => {
                self.now += seconds;
                self.shared.age(self.now);
                self.shared.flows().expire(self.now, usize::MAX / 2);
                self.naive.expire(self.now);
            }
        }
    }

    /// Sends a packet of a connection: the first, or one that only advances its state.
    fn flow(&mut self, key: &FlowKey, state: FlowState, seen: u8) {
        let known = self.naive.connection(key, self.now);
        let snapshot = self.shared.snapshot();
        assert_eq!(snapshot.view(self.shared.flows(), self.now).connection(key, self.now), known);
        let both = Connection::FIN | Connection::REPLY_FIN;
        let flow = match known {
            Some((old, reply)) if state as u8 >= old.state as u8 => {
                let seen = if state == FlowState::Closing { old.seen } else { old.seen | seen };
                let state = if seen & both == both { FlowState::Closed } else { state };
                FlowChange::Update { connection: Connection { state, seen, ..old }, reply }
            }
            _ => {
                let connection = Connection {
                    original: *key,
                    state: FlowState::New,
                    seen: 0,
                    tcp: Default::default(),
                    binding: None,
                };
                FlowChange::Create { connection, rule: None }
            }
        };
        self.shared.flows().apply(&flow, Account::of_guest(VifId(1)), self.now).expect("there is room");
        self.commit(Effects { flow: Some(flow), ..Effects::default() });
        for key in [*key, key.reverse()] {
            let view = snapshot.view(self.shared.flows(), self.now);
            assert_eq!(view.connection(&key, self.now), self.naive.connection(&key, self.now));
        }
        assert_eq!(self.shared.flows().len(), self.naive.connections().count());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn fast_and_naive_tables_agree(events in prop::collection::vec(event(), 1..40)) {
        let limits = FlowLimits { connections: 4096, ..FlowLimits::default() };
        let mut both = Both { shared: Shared::new(limits), naive: Tables::new(), now: 0, applied: vec![] };
        both.happen(&Event::Apply(foundation()));
        let questions = questions();
        for event in &events {
            // Each answer is kept with its dependencies, as an executor memoises decisions.
            let before = both.shared.snapshot();
            let memoised: Vec<_> = questions
                .iter()
                .map(|question| {
                    let view = before.view(both.shared.flows(), both.now);
                    (question(&view), view.deps())
                })
                .collect();
            both.happen(event);
            let after = both.shared.snapshot();
            let view = after.view(both.shared.flows(), both.now);
            for (question, (answer, deps)) in questions.iter().zip(memoised) {
                let fresh = question(&view);
                prop_assert_eq!(&fresh, &question(&both.naive));
                let valid = both.shared.still_valid(&deps, before.epoch());
                prop_assert!(!valid || answer == fresh, "{} became {} unnoticed", answer, fresh);
            }
        }
    }
}
