//! Tests of counts by nexthop and by tunnel.

use super::routes::WORLD;
use super::*;
use crate::core::counts::Counts;
use executor::{Counters, Past};
use model::{Nexthop, TunnelKind};

const ROUTES: &str = r#"
[[route]]
network = "blue"
prefix = "10.8.0.0/16"
to = { tunnel = "mpls-over-udp", remote = "192.0.2.7", label = 100 }
[[route]]
network = "blue"
prefix = "10.9.0.0/16"
to = { tunnel = "mpls-over-udp", remote = "192.0.2.7", label = 101 }
[[route]]
network = "blue"
prefix = "10.10.0.0/16"
to = { tunnel = "vxlan", remote = "192.0.2.7", vni = 7, mac = "02:00:00:00:00:09" }
[[route]]
network = "blue"
prefix = "10.11.0.0/16"
to = { network = "red" }
"#;

/// Has each nexthop count as many packets as its number says, and some more.
fn count_all(bench: &Bench) -> u64 {
    let view = bench.core.view();
    let all = view.tables.nexthops.iter().filter(|(_, nexthop)| !matches!(**nexthop, Nexthop::Ecmp(_)));
    let counted = |id: u32| Counters { packets: u64::from(id) + 10, bytes: 100 };
    let nexthops: Vec<_> = all.map(|(id, _)| (id, counted(id.0))).collect();
    let packets = nexthops.iter().map(|(_, counted)| counted.packets).sum();
    bench.executor.enter_counts(Past { nexthops, ..Past::default() });
    packets
}

fn by_tunnel(bench: &Bench) -> Vec<(TunnelKind, u64)> {
    let all = bench.core.tunnel_packets(&bench.core.view());
    all.into_iter()
        .filter(|((_, remote), _)| *remote == std::net::Ipv4Addr::new(192, 0, 2, 7))
        .map(|((kind, _), packets)| (kind, packets))
        .collect()
}

#[test]
fn counts_of_nexthops_survive_under_their_contents() {
    let bench = start(WORLD);
    let routes = config::parse_objects(ROUTES).unwrap();
    bench.core.add(routes).unwrap();
    let packets = count_all(&bench);
    let view = bench.core.view();
    let counts = Counts::of(&view, &bench.core.departed);
    let past = counts.past(&view);
    assert_eq!(past.nexthops.iter().map(|(_, counted)| counted.packets).sum::<u64>(), packets);
    for (id, counted) in past.nexthops {
        assert_eq!(counted, bench.executor.nexthop_counters(id), "nexthop {id} has its own");
    }
}

#[test]
fn what_a_tunnel_counted_outlives_its_labels() {
    let bench = start(WORLD);
    let routes = config::parse_objects(ROUTES).unwrap();
    bench.core.add(routes.clone()).unwrap();
    count_all(&bench);
    let before = by_tunnel(&bench);
    assert!(before.iter().all(|(_, packets)| *packets > 0) && before.len() == 2, "{before:?}");
    let counts = Counts::of(&bench.core.view(), &bench.core.departed);
    bench.core.remove(&[routes[0].key()]).unwrap();
    assert_eq!(by_tunnel(&bench), before);
    // The next daemon begins with that.
    let view = bench.core.view();
    let departed = Counts::of(&view, &bench.core.departed).departed(&view).collect::<Vec<_>>();
    assert_eq!(departed.len(), 1, "{departed:?}");
    // It does not matter whether the label goes before or between both.
    assert_eq!(counts.departed(&view).collect::<Vec<_>>(), departed);
    // With its last label the tunnel goes, and what it counted.
    bench.core.remove(&[routes[1].key()]).unwrap();
    assert_eq!(by_tunnel(&bench), before[1..]);
    bench.core.add(routes[..1].to_vec()).unwrap();
    assert_eq!(by_tunnel(&bench)[0].1, 0);
}
