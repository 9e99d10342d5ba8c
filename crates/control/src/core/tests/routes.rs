//! Adding and removing routes one by one leaves the host as a fresh start with the remaining ones would.

use super::*;
use model::{Nexthop, NexthopId};
use proptest::prelude::*;

const WORLD: &str = r#"
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

const PREFIXES: [&str; 7] =
    ["0.0.0.0/0", "10.1.1.0/24", "10.1.0.0/16", "10.20.0.0/16", "10.20.0.9/32", "fd00::/64", "fd01::/48"];

const TARGETS: [&str; 8] = [
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

#[derive(Clone, Debug)]
struct Request {
    remove: bool,
    /// Network, prefix and target of each.
    routes: Vec<(bool, usize, usize)>,
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let route = (any::<bool>(), 0..PREFIXES.len(), 0..TARGETS.len());
    let routes = proptest::collection::vec(route, 1..4);
    let request = (any::<bool>(), routes).prop_map(|(remove, routes)| Request { remove, routes });
    proptest::collection::vec(request, 1..24)
}

fn object((red, prefix, target): (bool, usize, usize)) -> Object {
    let (network, prefix, to) = (if red { "red" } else { "blue" }, PREFIXES[prefix], TARGETS[target]);
    let text = format!("[[route]]\nnetwork = \"{network}\"\nprefix = \"{prefix}\"\nto = {to}\n");
    config::parse_objects(&text).unwrap().remove(0)
}

impl Bench {
    /// Returns routes and nexthops in force, with nexthops' contents in place of numbers.
    fn routing(&self) -> (Vec<String>, Vec<String>) {
        let (view, tables) = (self.core.view(), self.executor.tables());
        let routes = tables.routes().map(|(vrf, net, to)| format!("{vrf} {net} {}", content(&tables, to)));
        let mut nexthops: Vec<_> = view.tables.nexthops.keys().map(|id| content(&tables, *id)).collect();
        nexthops.sort();
        let shown = view.tables.routes.iter().map(|(&(vrf, net), &to)| (vrf, net, to));
        assert!(shown.eq(tables.routes()), "what is shown is in force");
        (routes.collect(), nexthops)
    }
}

/// Describes a nexthop by its content, because its number depends on history.
fn content(tables: &model::Tables, id: NexthopId) -> String {
    match tables.nexthop(id).unwrap() {
        Nexthop::Ecmp(members) => {
            let mut members: Vec<_> = members.iter().map(|member| content(tables, *member)).collect();
            members.sort();
            format!("one of {members:?}")
        }
        other => other.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn routes_one_by_one_are_as_good_as_all_at_once(requests in requests()) {
        let bench = start(WORLD);
        for Request { remove, routes } in requests {
            let (before, keys) = (bench.routing(), bench.keys());
            let objects: Vec<Object> = routes.into_iter().map(object).collect();
            let result = if remove {
                let keys: Vec<_> = objects.iter().map(Object::key).collect();
                bench.core.remove(&keys)
            } else {
                bench.core.add(objects)
            };
            if result.is_err() {
                prop_assert_eq!((bench.routing(), bench.keys()), (before, keys), "refused, and changed");
            }
        }
        let routing = bench.routing();
        let Bench { core, dir, .. } = bench;
        drop(core);
        let restarted = start_in(dir, WORLD).unwrap_or_else(|e| panic!("{e}"));
        prop_assert_eq!(restarted.routing(), routing, "compiled from scratch");
    }
}
