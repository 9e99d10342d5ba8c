//! Measures a million routes, in their order or (with any argument) scattered: time a route in batches of 500, and bytes
//! a route.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use ipnet::IpNet;
use model::{NexthopId, Vrf};
use rib::{Nexthops, Path, PathSet, Rib};
use std::net::Ipv4Addr;
use std::time::Instant;

struct Numbers(Vec<PathSet>);

impl Nexthops for Numbers {
    fn take(&mut self, paths: &PathSet) -> NexthopId {
        NexthopId(self.0.iter().position(|known| known == paths).unwrap() as u32)
    }

    fn put_back(&mut self, _: NexthopId) {}
}

fn resident_kb() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn main() {
    const COUNT: u32 = 1_000_000;
    let via = |n: u8| PathSet::new([Path::Via(Ipv4Addr::new(192, 0, 2, n).into())]).unwrap();
    let paths: Vec<_> = (0..100).map(via).collect();
    let step = if std::env::args().len() > 1 { 0x9e37_79b1_u32 } else { 1 };
    {
        let (mut rib, mut numbers, before) = (Rib::default(), Numbers(paths.clone()), resident_kb());
        let of = rib.source("bgp", 20, 2_000_000).unwrap();
        let start = Instant::now();
        for first in (0..COUNT).step_by(500) {
            let view = rib.clone();
            let route = |n: u32| {
                let prefix = IpNet::new(Ipv4Addr::from_bits(n.wrapping_mul(step)).into(), 32).unwrap();
                (prefix, Some(&paths[n as usize % paths.len()]))
            };
            rib.update(
                of,
                Vrf(1),
                (first..first + 500).map(route).collect::<Vec<_>>().into_iter(),
                &mut numbers,
            )
            .unwrap();
            assert_eq!(view.changes_to(&rib).count(), 500);
        }
        let each = start.elapsed().as_nanos() / u128::from(COUNT);
        println!("{} bytes, {each} ns a route", (resident_kb() - before) * 1024 / COUNT as usize);
    }
}
