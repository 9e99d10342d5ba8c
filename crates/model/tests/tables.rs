//! The naive tables and what depends on them: batches, meters, choice of paths, solicitations, explanations.

use model::vectors::{Setup, Step, load};
use model::{
    ApplyError, BridgeTarget, Change, Effects, Forward, Learn, Lookup, Meter, MeterConfig, Names,
    NeighbourScope, Nexthop, NexthopId, PacketView, Question, Solicitation, Tables, Tunnel, TunnelKind,
    Verdict, VifId, Vrf, decide, ecmp_member, explain, solicit, text,
};
use packet::Mac;
use std::net::IpAddr;

const TABLES: &str = "
wire up0 mac 02:aa:00:00:00:01 address 192.0.2.1/24 address 2001:db8::1/64 mtu 9000
network blue vrf 1 gateway 10.1.1.254/24 gateway fd00:1::ffff/64 vni 5001 learning wire up0 vlan 7
guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1 policy
guest vm2 in blue mac 02:00:00:00:00:02 address 10.1.1.2
case setup
in vm1 eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / payload 46
";

fn tables() -> (Tables, Setup) {
    tables_of(TABLES)
}

fn tables_of(text: &str) -> (Tables, Setup) {
    let case = load(text).unwrap().remove(0);
    let mut tables = Tables::new();
    for step in &case.steps {
        if let Step::Apply(changes) = step {
            tables.apply(changes).unwrap();
        }
    }
    (tables, case.setup)
}

#[test]
fn a_batch_is_applied_as_a_whole_or_not_at_all() {
    let (mut tables, _) = tables();
    let prefix = "10.9.0.0/16".parse().unwrap();
    let nexthop = NexthopId(900);
    let good = Change::PutNexthop(nexthop, Nexthop::Discard);
    let bad = Change::PutRoute { vrf: Vrf(1), prefix, nexthop: NexthopId(901) };
    assert_eq!(tables.apply(&[good.clone(), bad]), Err(ApplyError::Missing("nexthop 901".into())));
    assert!(tables.nexthop(nexthop).is_none());
    // A change may refer to something later in the batch.
    tables.apply(&[Change::PutRoute { vrf: Vrf(1), prefix, nexthop }, good]).unwrap();
    let route = tables.route(Vrf(1), IpAddr::from([10, 9, 1, 1])).unwrap();
    assert_eq!((route.nexthop, route.prefix_len), (nexthop, 16));
}

#[test]
fn nothing_that_is_in_use_is_deleted_and_nothing_twice() {
    let (mut tables, mut setup) = tables();
    assert!(matches!(tables.apply(&[Change::DelNetwork(Vrf(1))]), Err(ApplyError::Missing(_))));
    let vm2 = setup.vif_id("vm2");
    assert!(matches!(tables.apply(&[Change::DelVif(vm2)]), Err(ApplyError::Missing(_))), "its routes remain");
    assert_eq!(tables.apply(&[Change::DelMpls { label: 7 }]), Err(ApplyError::Missing("label 7".into())));
}

#[test]
fn host_bits_of_a_prefix_do_not_count() {
    let (mut tables, _) = tables();
    let put = Change::PutRoute {
        vrf: Vrf(1),
        prefix: "10.9.1.1/16".parse().unwrap(),
        nexthop: tables.routes().next().unwrap().2,
    };
    tables.apply(&[put]).unwrap();
    assert_eq!(tables.route(Vrf(1), IpAddr::from([10, 9, 200, 1])).unwrap().prefix_len, 16);
    tables.apply(&[Change::DelRoute { vrf: Vrf(1), prefix: "10.9.0.0/16".parse().unwrap() }]).unwrap();
    assert!(tables.route(Vrf(1), IpAddr::from([10, 9, 200, 1])).is_none());
}

#[test]
fn a_meter_passes_its_burst_and_then_its_rate() {
    // One byte per millisecond, and a burst of a hundred bytes.
    let mut meter = Meter::new(MeterConfig { bits_per_second: 8_000, burst_bytes: 100 });
    assert!(meter.conforms(0, 100));
    assert!(!meter.conforms(0, 1));
    assert!(!meter.conforms(49_999_999, 50));
    assert!(meter.conforms(50_000_000, 50));
    assert!(!meter.conforms(50_000_000, 1));
    assert!(meter.conforms(10_000_000_000, 100), "no more than the burst is saved");
    assert!(!meter.conforms(10_000_000_000, 1));
    assert!(!meter.conforms(0, 1), "time that runs backwards adds nothing");
    assert!(!meter.conforms(10_000_000_000, 1));
}

fn tunnels(n: u8) -> Vec<Nexthop> {
    let tunnel = |host| Tunnel {
        kind: TunnelKind::MplsUdp,
        remote: IpAddr::from([192, 0, 2, host]),
        id: 100,
        mac: None,
    };
    (1..=n).map(|host| Nexthop::Tunnel(tunnel(host))).collect()
}

fn best(members: &[Nexthop], flow: u32) -> &Nexthop {
    members.iter().max_by_key(|member| member.score(0, flow)).unwrap()
}

#[test]
fn paths_share_flows_evenly_and_keep_them() {
    let flows = |n: u16| packet::entropy(IpAddr::from([10, 1, 1, 1]), IpAddr::from([10, 1, 1, 2]), 17, n, 53);
    for n in [2, 3, 5] {
        let members = tunnels(n);
        let mut counts = vec![0_u32; usize::from(n)];
        for flow in (0..10_000).map(flows) {
            let chosen = best(&members, flow);
            counts[members.iter().position(|member| member == chosen).unwrap()] += 1;
            // Without the last member only its own flows move.
            if *chosen != members[members.len() - 1] {
                assert_eq!(chosen, best(&members[..members.len() - 1], flow));
            }
        }
        let fair = 10_000 / u32::from(n);
        assert!(counts.iter().all(|count| count.abs_diff(fair) < fair / 5), "{counts:?}");
    }
}

/// Returns the member of a group that each of some flows takes, by its host. `weights`: of hosts from 1 on.
fn choices(weights: &[usize]) -> Vec<u32> {
    let members = || (1..).zip(tunnels(weights.len() as u8)).map(|(id, tunnel)| (NexthopId(id), tunnel));
    let places = members().zip(weights).flat_map(|((id, _), weight)| std::iter::repeat_n(id, *weight));
    let group = (NexthopId(0), Nexthop::Ecmp(places.collect()));
    let mut tables = Tables::new();
    let changes = members().chain([group]).map(|(id, nexthop)| Change::PutNexthop(id, nexthop));
    tables.apply(&changes.collect::<Vec<_>>()).unwrap();
    let flow = |n: u16| packet::entropy(IpAddr::from([10, 1, 1, 1]), IpAddr::from([10, 1, 1, 2]), 17, n, 53);
    (0..FLOWS).map(|n| ecmp_member(&tables, NexthopId(0), flow(n)).unwrap().0.0).collect()
}

const FLOWS: u16 = 20_000;

const WEIGHTS: [&[usize]; 8] =
    [&[1, 1], &[4, 1], &[1, 63], &[3, 2, 1], &[10, 10, 20], &[1, 1, 1, 61], &[5, 7, 11, 13, 17, 11], &[8; 8]];

#[test]
fn flows_are_shared_by_weight() {
    for weights in WEIGHTS {
        let (chosen, places) = (choices(weights), weights.iter().sum::<usize>());
        let differences = (1..).zip(weights).map(|(host, weight)| {
            let expected = f64::from(FLOWS) * *weight as f64 / places as f64;
            (chosen.iter().filter(|one| **one == host).count() as f64 - expected).powi(2) / expected
        });
        // Random choices exceed this once in ten thousand times with eight members, and less often with fewer.
        assert!(differences.sum::<f64>() < 29.9, "{weights:?}");
    }
}

#[test]
fn flows_move_only_to_a_member_that_weighs_more_or_from_one_that_weighs_less() {
    for weights in WEIGHTS {
        let before = choices(weights);
        for (host, at) in (1..).zip(0..weights.len()) {
            for less in [0, weights[at] - 1, weights[at] / 2] {
                let mut changed = weights.to_vec();
                changed[at] = less;
                if changed.iter().sum::<usize>() == 0 {
                    continue;
                }
                let moved = before.iter().zip(choices(&changed)).filter(|(before, after)| **before != *after);
                assert!(moved.clone().all(|(before, _)| *before == host), "{weights:?} {changed:?}");
                let whole = less > 0 || moved.count() == before.iter().filter(|one| **one == host).count();
                assert!(whole, "{weights:?} {changed:?}");
            }
        }
    }
}

#[test]
fn the_order_of_members_and_places_does_not_matter() {
    let group = |places: &[u32]| Nexthop::Ecmp(places.iter().copied().map(NexthopId).collect());
    let chosen = |places: &[u32]| {
        let mut tables = Tables::new();
        let members = (1..).map(NexthopId).zip(tunnels(3)).chain([(NexthopId(9), group(places))]);
        let changes: Vec<_> = members.map(|(id, nexthop)| Change::PutNexthop(id, nexthop)).collect();
        tables.apply(&changes).unwrap();
        (0..500).map(|flow| ecmp_member(&tables, NexthopId(9), flow).unwrap().0).collect::<Vec<_>>()
    };
    assert_eq!(chosen(&[1, 1, 1, 2, 3, 3]), chosen(&[3, 1, 2, 1, 3, 1]));
    assert_eq!(group(&[1, 1, 2]).to_string(), "ecmp of 2 nexthops with weights 2, 1");
    assert_eq!(group(&[1, 2]).to_string(), "ecmp of 2 nexthops");
}

#[test]
fn equal_nexthops_weigh_the_same_whatever_their_numbers() {
    let encap = |vif| Nexthop::Encap { vif: VifId(vif), mac: Mac([2, 0, 0, 0, 0, 1]) };
    assert_eq!(encap(1).score(0, 77), encap(2).score(0, 77));
    // FNV-1a of 0x00.
    assert_eq!(Nexthop::Discard.fingerprint(), 0x050c_5d1f);
}

fn ask(tables: &Tables, scope: NeighbourScope, addr: IpAddr) -> Vec<Solicitation> {
    solicit(tables, &Question { scope, addr, at: None }).into_iter().collect()
}

#[test]
fn the_underlay_is_asked_from_the_wire() {
    let (tables, mut setup) = tables();
    let up0 = setup.vif_id("up0");
    let asked = ask(&tables, NeighbourScope::Wire(up0), IpAddr::from([192, 0, 2, 9])).remove(0);
    assert_eq!(
        text::show(&asked.frame),
        "eth 02:aa:00:00:00:01 > ff:ff:ff:ff:ff:ff / arp request 192.0.2.1 at 02:aa:00:00:00:01 for 192.0.2.9"
    );
    assert_eq!(asked.to.iter().map(|forward| forward.port).collect::<Vec<_>>(), [up0]);
}

#[test]
fn a_network_is_asked_from_its_gateway_and_by_its_attachment() {
    let (tables, mut setup) = tables();
    let asked = ask(&tables, NeighbourScope::Network(Vrf(1)), "fd00:1::77".parse().unwrap());
    let [members, wire] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(
        text::show(&members.frame),
        "eth 00:00:5e:00:01:00 > 33:33:ff:00:00:77 / ip6 fd00:1::ffff > ff02::1:ff00:77 ttl 255 \
         / ns fd00:1::77 at 00:00:5e:00:01:00"
    );
    assert_eq!(
        text::show(&wire.frame),
        "eth 02:aa:00:00:00:01 > 33:33:ff:00:00:77 / ip6 fd00:1::ffff > ff02::1:ff00:77 ttl 255 \
         / ns fd00:1::77 at 02:aa:00:00:00:01"
    );
    let to = members.to.iter().chain(&wire.to);
    let to: Vec<_> = to.map(|forward| (forward.port, forward.push_vlan)).collect();
    let ports = ["vm1", "vm2", "up0"].map(|name| setup.vif_id(name));
    assert_eq!(to, [(ports[0], None), (ports[1], None), (ports[2], Some(7))]);
    let other_family = ask(&tables, NeighbourScope::Network(Vrf(9)), "fd00:1::77".parse().unwrap());
    assert!(other_family.is_empty());
}

#[test]
fn a_network_without_gateway_is_asked_from_no_address() {
    let flat = TABLES.replace(" gateway 10.1.1.254/24 gateway fd00:1::ffff/64", "");
    let (tables, _) = tables_of(&flat);
    let asked = |addr: &str| {
        let asked = ask(&tables, NeighbourScope::Network(Vrf(1)), addr.parse().unwrap()).remove(0);
        text::show(&asked.frame)
    };
    assert_eq!(
        asked("10.1.1.9"),
        "eth 00:00:5e:00:01:00 > ff:ff:ff:ff:ff:ff / arp request 0.0.0.0 at 00:00:5e:00:01:00 for 10.1.1.9"
    );
    assert_eq!(
        asked("fd00:1::9"),
        "eth 00:00:5e:00:01:00 > 33:33:ff:00:00:09 / ip6 fe80::200:5eff:fe00:100 > ff02::1:ff00:9 ttl 255 \
         / ns fd00:1::9 at 00:00:5e:00:01:00"
    );
}

#[test]
fn a_known_neighbour_is_asked_alone() {
    let (mut tables, mut setup) = tables();
    let (vm1, up0) = (setup.vif_id("vm1"), setup.vif_id("up0"));
    let mac = Mac([2, 0, 0, 0, 0, 0x77]);
    let at = |vif| Learn { vrf: Vrf(1), mac, at: BridgeTarget::Vif(vif) };
    let scope = NeighbourScope::Network(Vrf(1));
    let ask = |tables: &Tables, scope, addr: &str| {
        let asked = Question { scope, addr: addr.parse().unwrap(), at: Some(mac) };
        let Solicitation { frame, to } = solicit(tables, &asked).remove(0);
        (text::show(&frame), to.iter().map(|forward| forward.port).collect::<Vec<_>>())
    };
    let effects = Effects { learn: Some(at(up0)), ..Effects::default() };
    tables.commit(&effects, 0, 0).unwrap();
    let (frame, to) = ask(&tables, scope, "10.1.1.77");
    assert_eq!(
        frame,
        "eth 02:aa:00:00:00:01 > 02:00:00:00:00:77 \
         / arp request 10.1.1.254 at 02:aa:00:00:00:01 for 10.1.1.77"
    );
    assert_eq!(to, [up0]);
    let effects = Effects { learn: Some(at(vm1)), ..Effects::default() };
    tables.commit(&effects, 0, 1_000_000_000).unwrap();
    let (frame, to) = ask(&tables, scope, "fd00:1::77");
    assert_eq!(
        frame,
        "eth 00:00:5e:00:01:00 > 02:00:00:00:00:77 / ip6 fd00:1::ffff > fd00:1::77 ttl 255 \
         / ns fd00:1::77 at 00:00:5e:00:01:00"
    );
    assert_eq!(to, [vm1]);
    let (frame, to) = ask(&tables, NeighbourScope::Wire(up0), "192.0.2.9");
    assert!(
        frame.starts_with("eth 02:aa:00:00:00:01 > 02:00:00:00:00:77 / arp request 192.0.2.1 "),
        "{frame}"
    );
    assert_eq!(to, [up0]);
}

struct NamesOf<'a>(&'a Tables);

impl Names for NamesOf<'_> {
    fn vif(&self, id: VifId) -> String {
        self.0.vif(id).unwrap().name.to_string()
    }

    fn network(&self, vrf: Vrf) -> String {
        self.0.network(vrf).unwrap().name.to_string()
    }
}

#[test]
fn an_explanation_names_what_was_looked_up() {
    let (tables, mut setup) = tables();
    let frame = text::parse(
        "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.1.1.2 / udp 1000 > 53 / payload 4",
    )
    .unwrap();
    let view = PacketView::parse(&frame, frame.len() as u32, None).unwrap();
    let explained = explain(&tables, &view, setup.vif_id("vm1"), 0);
    let names = NamesOf(&tables);
    let lines: Vec<_> = explained
        .steps
        .iter()
        .map(|step| {
            let result = step.result(&names);
            format!("{} {}: {}", step.table(), step.key(&names), result.as_deref().unwrap_or("no"))
        })
        .collect();
    for line in [
        "route blue 10.1.1.2: 10.1.1.2/32 to nexthop 4",
        "nexthop 4: encap 02:00:00:00:00:02 to vm2",
        "flow blue 10.1.1.1 port 1000 > blue 10.1.1.2 port 53 protocol 17: no",
        "rule blue 10.1.1.1 > 10.1.1.2 protocol 17 port 53: no",
        "rule blue default: allow",
    ] {
        assert!(lines.iter().any(|known| known == line), "{line} is not in {lines:#?}");
    }
    assert_eq!(explained.steps.iter().find_map(model::Step::protocol), Some(packet::proto::UDP));
    let forwarded = &explained.decision.verdict;
    let words = "forward to vm2, ttl -1, ethernet 00:00:5e:00:01:00 > 02:00:00:00:00:02";
    assert_eq!((forwarded.name(), forwarded.lines(&names)), ("forward", vec![words.to_owned()]));
    let vm2 = setup.vif_id("vm2");
    assert_eq!((forwarded.egress(), forwarded.reason()), (vec![vm2], None));
    assert_eq!(
        explained.decision.to_string(),
        format!(
            "forward to vif {vm2}, ttl -1, ethernet 00:00:5e:00:01:00 > 02:00:00:00:00:02; creates a connection (state new)"
        )
    );
}

#[test]
fn what_open_vswitch_sends_leaves_as_it_is_even_if_it_is_malformed() {
    let (tables, mut setup) =
        tables_of("ovs vm1\ncase setup\nin vm1 eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / payload 46\n");
    let (vm1, side) = (setup.vif_id("vm1"), setup.vif_id("vm1:ovs"));
    let whole =
        |line: &str| text::parse(&format!("eth 02:00:00:00:00:09 > 02:00:00:00:00:01 {line}")).unwrap();
    let mut cut_off = whole("/ arp request 10.0.0.9 at 02:00:00:00:00:09 for 10.0.0.1");
    cut_off.truncate(40);
    for frame in [whole("/ ip4 224.0.0.9 > 10.0.0.1 / udp 1 > 2"), cut_off] {
        let arrived = |vif| PacketView::arrived(&tables, vif, &frame, frame.len() as u32, None);
        assert!(arrived(vm1).is_err());
        let decision = decide(&tables, &arrived(side).unwrap(), side, 0);
        assert_eq!(decision.verdict, Verdict::Forward(Forward::unchanged(vm1)));
    }
}
