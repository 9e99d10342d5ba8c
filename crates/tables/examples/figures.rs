//! Sizes and times of the tables at scale: `cargo run --release -p tables --example figures`.
//!
//! Times are per operation on an otherwise idle core. Keys are drawn at random, so caches are cold, as on the slow
//! path.
#![allow(clippy::print_stdout)]

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use model::{
    Action, Change, Connection, Endpoint, FlowChange, FlowKey, FlowState, Learn, Lookup, Network, Nexthop,
    NexthopId, PortRange, Rule, RuleAction, RuleId, RuleQuery, VifId, Vrf,
};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::Instant;
use tables::{Account, FlowLimits, Shared};

/// A generator good enough to draw keys with (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// Returns the resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// Runs `operation` `times` times and prints how long one took.
fn time(what: &str, times: u64, mut operation: impl FnMut(u64)) {
    let start = Instant::now();
    (0..times).for_each(&mut operation);
    let ns = start.elapsed().as_nanos() as f64 / times as f64;
    println!("{what:58} {ns:12.0} ns");
}

fn shared() -> Shared {
    let shared = Shared::new(FlowLimits::default());
    let network = |vrf| Network { learning: true, mtu: 1450, ..Network::new(Vrf(vrf), "n") };
    let nexthops = (0..256).map(|id| Change::PutNexthop(NexthopId(id), Nexthop::Discard));
    let changes: Vec<_> = (1..3).map(|vrf| Change::PutNetwork(network(vrf))).chain(nexthops).collect();
    apply(&shared, &changes);
    shared
}

fn apply(shared: &Shared, changes: &[Change]) {
    if let Err(error) = shared.apply(changes) {
        panic!("{error}");
    }
}

/// Draws prefix lengths as in the Internet's tables (per cent, rounded; BGP reports of 2024-2025).
fn v4_len(random: &mut Random) -> u8 {
    match random.next() % 100 {
        0..58 => 24,
        58..69 => 22,
        69..79 => 23,
        79..84 => 21,
        84..89 => 20,
        89..92 => 19,
        92..94 => 18,
        94..96 => 17,
        96..98 => 16,
        _ => 8 + (random.next() % 8) as u8,
    }
}

fn routes(v6: bool) {
    let (shared, mut random) = (shared(), Random(1));
    let prefix = |random: &mut Random| -> IpNet {
        if v6 {
            // Allocations are dense: some thousand /32, most of them split into /48 and /40.
            let bits = 0x2001_u128 << 112
                | u128::from(random.next() % 4096) << 96
                | u128::from(random.next() % 65536) << 80;
            let len = [48, 48, 48, 44, 40, 36, 32][random.next() as usize % 7];
            IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::from_bits(bits), len).trunc())
        } else {
            let len = v4_len(random);
            IpNet::V4(
                Ipv4Net::new_assert(Ipv4Addr::from_bits(random.next() as u32 % 0xe000_0000), len).trunc(),
            )
        }
    };
    let put = |random: &mut Random| Change::PutRoute {
        vrf: Vrf(1),
        prefix: prefix(random),
        nexthop: NexthopId(random.next() as u32 % 256),
    };
    let changes: Vec<_> = (0..1_000_000).map(|_| put(&mut random)).collect();
    let before = resident();
    let start = Instant::now();
    apply(&shared, &changes);
    let family = if v6 { "IPv6" } else { "IPv4" };
    let (count, took) = (shared.snapshot().route_count(Vrf(1)), start.elapsed());
    let each = (resident() - before) as f64 / count as f64;
    println!("{family}: {count} routes in {took:.2?}, {each:.0} bytes each");

    let snapshot = shared.snapshot();
    let view = snapshot.view(shared.flows(), 0);
    let addresses: Vec<IpAddr> = (0..1 << 16).map(|_| prefix(&mut random).addr()).collect();
    time("  look-up", 2_000_000, |n| {
        black_box(view.route(Vrf(1), addresses[n as usize % addresses.len()]));
    });
    drop(snapshot);
    time("  apply of 1 change", 20_000, |_| apply(&shared, &[put(&mut random)]));
    time("  apply of 100 changes", 1000, |_| {
        let batch: Vec<_> = (0..100).map(|_| put(&mut random)).collect();
        apply(&shared, &batch);
    });
}

/// Creates rules of security groups: each of 4096 guests has eight, with its address, one service and some
/// sources.
fn group_rule(id: u32, random: &mut Random) -> Rule {
    let guest = Ipv4Addr::from_bits(0x0a00_0000 + id / 8);
    let source = Ipv4Net::new_assert(Ipv4Addr::from_bits(random.next() as u32), 8 + id as u8 % 17).trunc();
    let port = [22, 80, 443, 8080, 5432, 6443, 9100, 53][id as usize % 8];
    rule(id, vec![source.into()], vec![IpNet::from(IpAddr::V4(guest))], PortRange { first: port, last: port })
}

/// Creates the rules that take most memory and time: any address, each with its own range of ports.
fn range_rule(id: u32, random: &mut Random) -> Rule {
    let (a, b) = (random.next() as u16, random.next() as u16);
    rule(id, vec![], vec![], PortRange { first: a.min(b), last: a.max(b).min(a.min(b) | 0x3ff) })
}

/// Creates rules that match a packet in one address each, but never in both: no summary excludes them.
fn crossed_rule(id: u32, random: &mut Random) -> Rule {
    let common = IpNet::from(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)));
    let other = IpNet::from(IpAddr::V4(Ipv4Addr::from_bits(random.next() as u32)));
    let (from, to) = if id.is_multiple_of(2) { (common, other) } else { (other, common) };
    rule(id, vec![from], vec![to], PortRange::ANY)
}

fn rule(id: u32, from: Vec<IpNet>, to: Vec<IpNet>, ports: PortRange) -> Rule {
    let action = RuleAction::End(Action::Drop);
    Rule {
        id: RuleId(id),
        vrf: Vrf(1),
        priority: 100,
        from,
        to,
        protocol: Some(6),
        ports: Some(ports),
        action,
    }
}

fn rules(what: &str, make: fn(u32, &mut Random) -> Rule, src: Option<u32>) {
    const COUNT: u32 = 32 * 1024;
    let (shared, mut random) = (shared(), Random(1));
    let changes: Vec<_> = (0..COUNT).map(|id| Change::PutRule(make(id, &mut random))).collect();
    let before = resident();
    let start = Instant::now();
    apply(&shared, &changes);
    let took = start.elapsed();
    let each = (resident() - before) as f64 / f64::from(COUNT);
    println!("{what}: {COUNT} rules in {took:.2?}, {each:.0} bytes each");
    let snapshot = shared.snapshot();
    let view = snapshot.view(shared.flows(), 0);
    let queries: Vec<_> = (0..1 << 14)
        .map(|_| RuleQuery {
            src: Ipv4Addr::from_bits(src.unwrap_or(random.next() as u32)).into(),
            dst: Ipv4Addr::from_bits(src.unwrap_or(0x0a00_0000 + random.next() as u32 % (COUNT / 8))).into(),
            protocol: 6,
            dst_port: Some([80, 443, 9, random.next() as u16][random.next() as usize % 4]),
        })
        .collect();
    time("  look-up", 200_000, |n| {
        black_box(view.rules(Vrf(1), &queries[n as usize % queries.len()]));
    });
    drop(snapshot);
    time("  apply of 1 changed rule", 2000, |_| {
        let id = random.next() as u32 % COUNT;
        let moved = Rule { priority: random.next() as u32, ..make(id, &mut random) };
        apply(&shared, &[Change::PutRule(moved)]);
    });
}

fn flows() {
    let (before, shared) = (resident(), shared());
    let flows = shared.flows();
    println!("connections: {} MiB touched when empty", (resident() - before) >> 20);
    let key = |n: u64| {
        let end = |addr: u64, port: u64| Endpoint {
            vrf: Vrf(1),
            addr: Ipv4Addr::from_bits(addr as u32).into(),
            port: port as u16,
        };
        FlowKey { src: end(0x0a00_0000 + (n >> 16), n), dst: end(0x0a01_0000 + n % 251, 443), protocol: 6 }
    };
    let connection = |n| Connection {
        original: key(n),
        state: FlowState::Established,
        seen: 0,
        tcp: Default::default(),
        binding: None,
    };
    let create = |n| FlowChange::Create { connection: connection(n), rule: None };
    let count = 1_000_000;
    time("  create", count, |n| {
        black_box(flows.apply(&create(n), Account::of_guest(VifId(1)), 0).is_ok());
    });
    let each = (resident() - before) as f64 / flows.len() as f64;
    println!("  {} connections of {count}, {each:.0} bytes each", flows.len());
    let mut random = Random(1);
    time("  look-up", 2_000_000, |_| {
        black_box(flows.get(&key(random.next() % count).reverse(), 1));
    });
    let found: Vec<_> = (0..1 << 16).filter_map(|_| flows.get(&key(random.next() % count), 1)).collect();
    time("  touch", 2_000_000, |n| {
        black_box(flows.touch(found[n as usize % found.len()].2, false, 1, 64, 1));
    });
    let start = Instant::now();
    flows.expire(2, count as usize);
    println!("  sweep of all in {:.2?}", start.elapsed());
    time("  create when full, evicting one without a reply", 200_000, |n| {
        let new = Connection { state: FlowState::New, ..connection(n + count) };
        black_box(
            flows
                .apply(&FlowChange::Create { connection: new, rule: None }, Account::of_guest(VifId(1)), 2)
                .is_ok(),
        );
    });
}

fn readers() {
    let shared = shared();
    let mut reader = shared.reader();
    time("pin", 10_000_000, |_| {
        black_box(reader.pin().epoch());
    });
    reader.offline();
    time("learn a MAC", 4000, |n| {
        let [.., a, b, c, d] = n.to_be_bytes();
        let learn = Learn {
            vrf: Vrf(1),
            mac: packet::Mac([2, 0, a, b, c, d]),
            at: model::BridgeTarget::Vtep { remote: Ipv4Addr::LOCALHOST.into(), vni: 1 },
        };
        shared.learn(&shared.snapshot(), &learn, 1);
    });
}
type Part = (&'static str, fn());

const PARTS: &[Part] = &[
    ("routes-v4", || routes(false)),
    ("routes-v6", || routes(true)),
    ("security-groups", || rules("security groups", group_rule, None)),
    ("port-ranges", || rules("port ranges", range_rule, None)),
    ("crossed", || rules("crossed addresses", crossed_rule, Some(0x0a00_0000))),
    ("connections", flows),
    ("readers", readers),
];

/// Runs the named part, or each part in its own process: memory that one part freed would hide what the next one
/// takes.
fn main() -> std::io::Result<()> {
    let wanted = std::env::args().nth(1);
    for (name, part) in PARTS {
        match &wanted {
            None => drop(Command::new(std::env::current_exe()?).arg(name).status()?),
            Some(wanted) if wanted == name => part(),
            Some(_) => {}
        }
    }
    Ok(())
}
