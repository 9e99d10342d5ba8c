//! Tables queried directly: the route and rule look-ups for a new flow's decision.

use super::worker::PACKETS;
use crate::common::host::{addr, net, tables};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use model::generate::Rng;
use model::{Action, Change, NexthopId, PortRange, Rule, RuleAction, RuleId, RuleQuery, Vrf};
use packet::proto;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tables::{FlowLimits, Shared};

const ROUTES: usize = 10_000;
const RULES: u32 = 1_000;

/// Tables and the queries to make.
pub struct Asked<Q> {
    pub shared: Shared,
    pub questions: Vec<Q>,
}

impl<Q> Asked<Q> {
    fn new(changes: &[Change], question: impl FnMut() -> Q) -> Self {
        let shared = Shared::new(FlowLimits { connections: 1024, ..FlowLimits::default() });
        shared.apply(&tables()).expect("the tables");
        shared.apply(changes).expect("the tables");
        Self { shared, questions: std::iter::repeat_with(question).take(PACKETS).collect() }
    }
}

/// Returns tables with prefixes of all usual lengths, and addresses to route.
pub fn routes(v6: bool) -> Asked<IpAddr> {
    let mut random = Rng::new(1);
    let prefixes: Vec<_> = (0..ROUTES).map(|_| prefix(&mut random, v6)).collect();
    let route = |&prefix| Change::PutRoute { vrf: Vrf(1), prefix, nexthop: NexthopId(1) };
    let changes: Vec<_> = prefixes.iter().map(route).collect();
    Asked::new(&changes, || random.one(&prefixes).addr())
}

fn prefix(random: &mut Rng, v6: bool) -> IpNet {
    if v6 {
        let bits = 0x2001_u128 << 112 | u128::from(random.next_u64() >> 32) << 80;
        Ipv6Net::new_assert(Ipv6Addr::from_bits(bits), random.one(&[32, 40, 44, 48])).trunc().into()
    } else {
        let bits = 0x1400_0000 | random.next_u64() as u32 >> 4;
        Ipv4Net::new_assert(Ipv4Addr::from_bits(bits), random.one(&[16, 20, 22, 24, 24, 24])).trunc().into()
    }
}

/// Returns tables with rules as security groups make them (eight for each guest, with its address and one
/// service each), and packets to classify.
pub fn rules() -> Asked<RuleQuery> {
    const SERVICES: [u16; 8] = [22, 80, 443, 8080, 5432, 6443, 9100, 53];
    let guest = |number: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a01_0100 + number));
    let rule = |id: u32| {
        let port = SERVICES[id as usize % SERVICES.len()];
        Change::PutRule(Rule {
            id: RuleId(id),
            vrf: Vrf(1),
            priority: 100,
            from: vec![net("10.1.0.0/16")],
            to: vec![guest(id / 8).into()],
            protocol: Some(proto::TCP),
            ports: Some(PortRange { first: port, last: port }),
            action: RuleAction::End(Action::Allow),
        })
    };
    let changes: Vec<_> = (0..RULES).map(rule).collect();
    let mut random = Rng::new(1);
    Asked::new(&changes, || RuleQuery {
        src: addr("10.1.0.5"),
        dst: guest(random.below(RULES as usize / 8) as u32),
        protocol: proto::TCP,
        dst_port: Some(random.one(&SERVICES)),
    })
}
