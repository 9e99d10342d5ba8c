//! Adding and removing objects one by one leaves the host as a fresh start with the remaining ones would. After each
//! change, the tables and the verdict of the checks are compared with those for all objects (`is_as_compiled_whole`).

use super::*;
use crate::compile::BridgeChange;
use model::{Lookup, Nexthop, NexthopId, Vrf};
use packet::Mac;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

pub(super) const WORLD: &str = r#"
[host]
name = "a"
[[wire]]
name = "up0"
driver = "af-packet"
device = "e0"
addresses = ["192.0.2.1/24"]
[[network]]
name = "blue"
vrf = 1
gateways = ["10.1.1.254/24"]
[[network]]
name = "red"
vrf = 2
gateways = ["fd00::1/64"]
[[guest]]
name = "vm1"
network = "blue"
kind = "tap"
device = "t1"
mac = "02:00:00:00:00:01"
addresses = ["10.1.1.1"]
[[nexthop]]
name = "spine"
to = [
  { tunnel = "mpls-over-udp", remote = "192.0.2.2", label = 100 },
  { tunnel = "mpls-over-udp", remote = "192.0.2.3", label = 100 },
]
[[route]]
network = "red"
prefix = "10.20.0.0/16"
to = "drop"
[[nat]]
network = "blue"
inside = "10.1.1.1"
outside = "10.20.0.9"
outside_network = "red"
"#;

/// Forms of a network, the first of which the world has.
const NETWORKS: [&str; 4] = [
    "vrf = 2\ngateways = [\"fd00::1/64\"]",
    "vrf = 2\ngateways = [\"fd00::1/64\"]\nmtu = 1300\nlearning = false",
    "vrf = 2\ngateways = [\"fd00::1/64\", \"10.20.0.1/24\"]",
    "vrf = 2\ngateways = [\"10.1.1.2/16\"]\nmetadata = true",
];

pub(super) const PREFIXES: [&str; 8] = [
    "0.0.0.0/0",
    "10.1.1.0/24",
    "10.1.0.0/16",
    "10.20.0.0/16",
    "10.20.0.0/24",
    "10.1.1.2/32",
    "fd00::/64",
    "fd01::/48",
];

/// MAC addresses that objects may have: vm1's, that of a `[[mac]]`, and none's.
const MACS: [Mac; 3] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 9]), Mac([2, 0, 0, 0, 0, 10])];

/// Addresses whose owners are learned.
const OWNED: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 1, 1, 40)), IpAddr::V4(Ipv4Addr::new(10, 1, 1, 41))];

pub(super) const TARGETS: [&str; 11] = [
    "{ guest = \"vm2\" }",
    "{ nexthop = \"leaf\" }",
    "{ network = \"green\" }",
    "\"drop\"",
    "{ guest = \"vm1\" }",
    "{ nexthop = \"spine\" }",
    "{ network = \"blue\" }",
    "{ tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 100 }",
    "{ tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 101 }",
    "[{ tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 100 }, \
      { tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 101 }]",
    "{ guest = \"nobody\" }",
];

/// Objects that are no routes, and on which routes may depend.
pub(super) const OTHERS: [&str; 19] = [
    "[[guest]]\nname = \"vm2\"\nnetwork = \"blue\"\nkind = \"tap\"\ndevice = \"t2\"\nmac = \"02:00:00:00:00:02\"\n\
     addresses = [\"10.1.1.2\"]\nlabel = 102\n",
    "[[guest]]\nname = \"vm3\"\nnetwork = \"red\"\nkind = \"tap\"\ndevice = \"t3\"\nmac = \"02:00:00:00:00:03\"\n\
     addresses = [\"10.20.0.9\", \"fd00::3\"]\nrate = { mbps = 5 }\nmirror = \"vm1\"\n",
    "[[guest]]\nname = \"vm4\"\nnetwork = \"green\"\nkind = \"tap\"\ndevice = \"t4\"\nmac = \"02:00:00:00:00:04\"\n\
     vlans = [{ tag = 7, network = \"blue\", addresses = [\"10.1.1.4\"] }]\n",
    "[[network]]\nname = \"green\"\nvrf = 3\ngateways = [\"10.1.1.254/24\"]\n",
    "[[nexthop]]\nname = \"leaf\"\nto = [{ tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 100 }]\n",
    "[[rule]]\nnetwork = \"blue\"\npriority = 5\nto = { guest = \"vm2\" }\naction = \"allow\"\n",
    "[[rule]]\nnetwork = \"red\"\npriority = 5\naction = \"police:3\"\n",
    "[[rule]]\nnetwork = \"blue\"\npriority = 5\nto = { guest = \"vm1\" }\naction = \"drop\"\n",
    "[[rule]]\nnetwork = \"red\"\npriority = 6\naction = \"mirror:vxlan:192.0.2.3:7\"\n",
    "[[rule]]\nnetwork = \"blue\"\nname = \"twin\"\npriority = 7\naction = \"drop\"\n",
    "[[rule]]\nnetwork = \"blue\"\nname = \"twin\"\npriority = 8\naction = \"police:4\"\n",
    "[[nat]]\nnetwork = \"blue\"\ninside = \"10.1.1.2\"\noutside = \"10.20.0.10\"\noutside_network = \"red\"\n",
    "[[nat]]\nnetwork = \"blue\"\ninside = \"10.1.1.4\"\noutside = \"10.1.0.10\"\noutside_network = \"green\"\n",
    "[[mac]]\nnetwork = \"blue\"\nmac = \"02:00:00:00:00:09\"\nto = { guest = \"vm2\" }\n",
    "[[mpls]]\nlabel = 102\nto = { guest = \"vm1\" }\n",
    "[[flood]]\nnetwork = \"red\"\nto = [{ tunnel = \"vxlan\", remote = \"192.0.2.3\", vni = 7 }]\n",
    "[[default]]\nnetwork = \"green\"\naction = \"drop\"\n",
    "[[vxlan]]\nvni = 9\nnetwork = \"green\"\n",
    "[[guest]]\nname = \"vm5\"\nnetwork = \"red\"\nkind = \"tap\"\ndevice = \"t5\"\nmac = \"02:00:00:00:00:05\"\n\
     mirror = \"vxlan:192.0.2.3:8\"\n",
];

#[derive(Clone, Debug)]
struct Request {
    what: What,
    objects: Vec<Pick>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Add,
    Remove,
    /// Apply a file that has these objects besides those of the start, with this one of [`NETWORKS`].
    Apply(usize),
    /// A program sends or withdraws these routes.
    Learn,
    /// The daemon starts again.
    Restart,
}

#[derive(Clone, Debug)]
enum Pick {
    Route { red: bool, prefix: usize, target: usize },
    Other(usize),
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let route = (any::<bool>(), 0..PREFIXES.len(), 0..TARGETS.len());
    let route = route.prop_map(|(red, prefix, target)| Pick::Route { red, prefix, target });
    let pick = prop_oneof![3 => route, 2 => (0..OTHERS.len()).prop_map(Pick::Other)];
    let objects = proptest::collection::vec(pick, 1..4);
    let what = prop_oneof![3 => Just(What::Add), 3 => Just(What::Remove), 3 => (0..NETWORKS.len()).prop_map(What::Apply), 3 => Just(What::Learn), 1 => Just(What::Restart)];
    let request = (what, objects).prop_map(|(what, objects)| Request { what, objects });
    proptest::collection::vec(request, 1..24)
}

fn object(pick: Pick) -> Object {
    let text = match pick {
        Pick::Route { red, prefix, target } => {
            let (network, prefix, to) = (if red { "red" } else { "blue" }, PREFIXES[prefix], TARGETS[target]);
            format!("[[route]]\nnetwork = \"{network}\"\nprefix = \"{prefix}\"\nto = {to}\n")
        }
        Pick::Other(other) => OTHERS[other].to_owned(),
    };
    config::parse_objects(&text).unwrap_or_else(|e| panic!("{e}\n{text}")).remove(0)
}

impl Bench {
    /// Returns routes and nexthops in force, with nexthops' contents in place of numbers.
    pub(super) fn routing(&self) -> (Vec<String>, Vec<String>) {
        let (view, tables) = (self.core.view(), self.executor.tables());
        let routes =
            tables.routes().map(|(vrf, net, to)| format!("{vrf} {net} {}", content(&view, &tables, to)));
        let mut nexthops: Vec<_> =
            view.tables.nexthops.iter().map(|(id, _)| content(&view, &tables, id)).collect();
        nexthops.sort();
        let mut shown: Vec<_> = view.tables.routes_in_force().collect();
        shown.sort();
        let shown = shown.into_iter().map(|((vrf, net), to)| (vrf, net, to));
        assert!(shown.eq(tables.routes()), "what is shown is in force");
        let macs: BTreeMap<_, _> = view.tables.macs_in_force().collect();
        for place in [1, 2].into_iter().flat_map(|vrf| MACS.map(|mac| (Vrf(vrf), mac))) {
            let in_force =
                tables.bridge(place.0, place.1).filter(|entry| entry.is_static).map(|entry| entry.target);
            assert_eq!(macs.get(&place).copied(), in_force, "what is shown is in force");
        }
        for place in [1, 2].into_iter().flat_map(|vrf| OWNED.map(|addr| (Vrf(vrf), addr))) {
            let owner = view.tables.bridges.owners.get(&place).copied();
            assert_eq!(tables.owner(place.0, place.1), owner, "who is known is in force");
        }
        (routes.collect(), nexthops)
    }

    /// Sends a route to one or two hosts, or withdraws it.
    fn learn(&self, of: SourceId, picks: &[Pick]) -> Result<Done, Error> {
        for pick in picks {
            let Pick::Route { red, prefix, target } = *pick else { continue };
            let vrf = Vrf(if red { 2 } else { 1 });
            let by = |kind, n| {
                let remote = Ipv4Addr::new(192, 0, 2, n).into();
                model::Tunnel { kind, remote, id: 7, mac: None }
            };
            let tunnel = |n| rib::Path::Tunnel(by(model::TunnelKind::MplsUdp, n));
            let vxlan = |n| by(model::TunnelKind::Vxlan, n);
            let (paths, flood) = match target % 4 {
                0 => (None, vec![]),
                1 => (rib::PathSet::new([tunnel(2)]), vec![vxlan(3)]),
                2 => (rib::PathSet::new([tunnel(2), tunnel(3)]), vec![vxlan(2), vxlan(3)]),
                _ => (rib::PathSet::new([rib::Path::Discard]), vec![vxlan(2)]),
            };
            let macs = vec![(MACS[prefix % MACS.len()], flood.first().copied())];
            let owners = vec![(OWNED[prefix % OWNED.len()], flood.first().map(|_| MACS[0]))];
            self.core.update_bridge(vrf, &BridgeChange { macs, flood: Some(flood), owners })?;
            self.core.update_routes(of, vrf, &[(PREFIXES[prefix].parse().unwrap(), paths)])?;
        }
        Ok(Done::default())
    }
}

/// Describes a nexthop by its content, because numbers of nexthops and of interfaces depend on history.
fn content(view: &View, tables: &model::Tables, id: NexthopId) -> String {
    match &*tables.nexthop(id).unwrap() {
        Nexthop::Ecmp(members) => {
            let mut members: Vec<_> = members.iter().map(|member| content(view, tables, *member)).collect();
            members.sort();
            format!("one of {members:?}")
        }
        Nexthop::Encap { vif, mac } => format!("encap {mac} to {}", view.vif_name(*vif)),
        other => other.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn objects_one_by_one_are_as_good_as_all_at_once(requests in requests()) {
        let mut bench = start(WORLD);
        let mut of = bench.core.source_of_routes("bgp", 20, 1000).unwrap();
        for Request { what, objects } in requests {
            let (before, keys) = (bench.routing(), bench.keys());
            if matches!(what, What::Learn) {
                bench.learn(of, &objects).unwrap();
                continue;
            }
            if matches!(what, What::Restart) {
                let Bench { core, dir, .. } = bench;
                drop(core);
                bench = start_in(dir, WORLD).unwrap_or_else(|e| panic!("{e}"));
                of = bench.core.source_of_routes("bgp", 20, 1000).unwrap();
                continue;
            }
            let objects: Vec<Object> = objects.into_iter().map(object).collect();
            let result = match what {
                What::Add => bench.core.add(objects),
                What::Remove => {
                    let keys: Vec<_> = objects.iter().map(Object::key).collect();
                    bench.core.remove(&keys)
                }
                What::Apply(network) => {
                    let world = WORLD.replace(NETWORKS[0], NETWORKS[network]);
                    let more: String = objects.iter().map(Object::to_concise_toml).collect();
                    bench.core.take_file(&format!("{world}{more}"), false)
                }
                What::Learn | What::Restart => Ok(Done::default()),
            };
            if result.is_err() {
                prop_assert_eq!((bench.routing(), bench.keys()), (before, keys), "refused, and changed");
            }
        }
        bench.core.begin_routes(of).unwrap();
        bench.core.end_routes(of).unwrap();
        let owners = OWNED.map(|addr| (addr, None)).into();
        let gone = BridgeChange { macs: MACS.map(|mac| (mac, None)).into(), flood: Some(vec![]), owners };
        for vrf in [1, 2] {
            bench.core.update_bridge(Vrf(vrf), &gone).unwrap();
        }
        let routing = bench.routing();
        let Bench { core, dir, .. } = bench;
        drop(core);
        let restarted = start_in(dir, WORLD).unwrap_or_else(|e| panic!("{e}"));
        prop_assert_eq!(restarted.routing(), routing, "compiled from scratch");
    }
}

#[test]
fn a_learned_route_counts_where_no_object_has_one() {
    let bench = start(WORLD);
    let of = bench.core.source_of_routes("bgp", 20, 3).unwrap();
    let via = |n| rib::PathSet::new([rib::Path::Via(Ipv4Addr::new(10, 1, 1, n).into())]);
    let send =
        |prefix: &str, paths| bench.core.update_routes(of, Vrf(1), &[(prefix.parse().unwrap(), paths)]);
    let to = |prefix: &str| {
        let tables = bench.executor.tables();
        let route = tables.routes().find(|(_, net, _)| net.to_string() == prefix);
        route.map(|(_, _, to)| content(&bench.core.view(), &tables, to))
    };
    let before = to("10.1.1.1/32");
    for prefix in ["10.1.1.1/32", "10.9.0.0/16"] {
        send(prefix, via(7)).unwrap();
    }
    assert_eq!(to("10.1.1.1/32"), before, "the guest is here");
    let learned = to("10.9.0.0/16").unwrap();
    bench.core.add(route()).unwrap();
    assert_ne!(to("10.9.0.0/16").as_ref(), Some(&learned));
    bench.core.remove(&[route()[0].key()]).unwrap();
    assert_eq!(to("10.9.0.0/16").as_ref(), Some(&learned), "it is back");
    // Too many, or a network that is not there: nothing is done.
    let more = ["10.10.0.0/16", "10.11.0.0/16"].map(|prefix| (prefix.parse().unwrap(), via(7)));
    assert!(matches!(bench.core.update_routes(of, Vrf(1), &more), Err(Error::Routes(_))));
    assert!(matches!(bench.core.update_routes(of, Vrf(9), &more), Err(Error::NotFound(_))));
    assert_eq!(to("10.10.0.0/16"), None);
    // The program ends; what it does not send again in time goes.
    bench.core.lose_routes(of, Duration::from_secs(1000)).unwrap();
    bench.core.refresh().unwrap();
    assert!(to("10.9.0.0/16").is_some());
    bench.core.begin_routes(of).unwrap();
    send("10.1.1.1/32", via(8)).unwrap();
    assert_eq!(bench.core.end_routes(of).unwrap(), 1);
    assert_eq!(to("10.9.0.0/16"), None);
    send("10.9.0.0/16", via(8)).unwrap();
    bench.core.lose_routes(of, Duration::ZERO).unwrap();
    bench.core.refresh().unwrap();
    assert_eq!((to("10.9.0.0/16"), bench.core.view().tables.learned.len()), (None, 0));
}

#[test]
fn the_learned_routes_of_a_network_go_with_it() {
    let bench = start(WORLD);
    let green = config::parse_objects("[[network]]\nname = \"green\"\nvrf = 3\n").unwrap();
    bench.core.add(green.clone()).unwrap();
    let of = bench.core.source_of_routes("bgp", 20, 3).unwrap();
    let paths = rib::PathSet::new([rib::Path::Discard]);
    for vrf in [3, 2] {
        bench.core.update_routes(of, Vrf(vrf), &[("10.9.0.0/16".parse().unwrap(), paths.clone())]).unwrap();
    }
    bench.core.remove(&[green[0].key()]).unwrap();
    let left: Vec<_> = bench.core.view().tables.learned.iter().map(|((vrf, _), ..)| vrf.0).collect();
    assert_eq!(left, [2]);
    bench.core.add(green).unwrap();
    bench.routing();
}
