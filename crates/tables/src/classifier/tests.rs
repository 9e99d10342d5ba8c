//! The classifier, compared with a walk over all rules.

use super::*;
use ipnet::IpNet;
use model::{MeterId, PortRange, RuleAction, VifId, Vrf};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = (0..4u8, 0..4u8).prop_map(|(net, host)| IpAddr::V4(Ipv4Addr::new(10, 0, net, host)));
    let v6 = (0..4u16).prop_map(|host| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host)));
    prop_oneof![3 => v4, 1 => v6]
}

fn prefix() -> impl Strategy<Value = IpNet> {
    let len = prop_oneof![Just(u8::MAX), Just(24), Just(8), Just(0), 0..=128u8];
    (address(), len).prop_map(|(addr, len)| {
        let most = if addr.is_ipv4() { 32 } else { 128 };
        IpNet::new(addr, len.min(most)).unwrap()
    })
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), Just(22), Just(80), Just(443), Just(u16::MAX), any::<u16>()]
}

fn rule(ids: u32) -> impl Strategy<Value = Rule> {
    let action = prop_oneof![
        3 => prop_oneof![Just(Action::Allow), Just(Action::Drop), Just(Action::Reject)].prop_map(RuleAction::End),
        1 => (0..9u16).prop_map(|vif| RuleAction::Modify(Modifier::Mirror(VifId(vif)))),
        1 => (0..9u32).prop_map(|id| RuleAction::Modify(Modifier::Police(MeterId(id)))),
    ];
    let ports = (port(), port()).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) });
    (
        (0..ids, 0..20u32),
        prop::collection::vec(prefix(), 0..3),
        prop::collection::vec(prefix(), 0..3),
        prop::option::of(prop_oneof![Just(6), Just(17), Just(1)]),
        prop::option::of(ports),
        action,
    )
        .prop_map(|((id, priority), from, to, protocol, ports, action)| Rule {
            id: RuleId(id),
            vrf: Vrf(1),
            priority,
            from,
            to,
            protocol,
            ports,
            action,
        })
}

fn query() -> impl Strategy<Value = RuleQuery> {
    let protocol = prop_oneof![Just(6), Just(17), Just(1)];
    (address(), address(), protocol, prop::option::of(port()))
        .prop_map(|(src, dst, protocol, dst_port)| RuleQuery { src, dst, protocol, dst_port })
}

type Answer = (Option<(RuleId, Action)>, Vec<(RuleId, Modifier)>);

fn walk<'a>(rules: impl Iterator<Item = &'a Arc<Rule>>, query: &RuleQuery) -> Answer {
    let mut modifiers = Vec::new();
    for rule in rules.filter(|rule| rule.matches(query)) {
        match rule.action {
            RuleAction::End(action) => return (Some((rule.id, action)), modifiers),
            RuleAction::Modify(modifier) if modifiers.len() < 4 => modifiers.push((rule.id, modifier)),
            RuleAction::Modify(_) => {}
        }
    }
    (None, modifiers)
}

fn classify(classifier: &Classifier, query: &RuleQuery) -> Answer {
    let mut modifiers = Vec::new();
    let terminal = classifier.classify(query, |id, modifier| {
        modifiers.push((id, modifier));
        modifiers.len() < 4
    });
    (terminal, modifiers)
}

#[derive(Default)]
struct Both {
    fast: Classifier,
    /// Rules by key.
    naive: BTreeMap<u64, Arc<Rule>>,
}

impl Both {
    fn insert(&mut self, rule: Rule) {
        let rule = Arc::new(rule);
        self.naive.retain(|_, r| r.id != rule.id);
        self.naive.insert(key(&rule), Arc::clone(&rule));
        self.fast.insert(rule);
    }

    fn remove(&mut self, id: RuleId) {
        let before = self.naive.len();
        self.naive.retain(|_, r| r.id != id);
        assert_eq!(self.fast.remove(id).is_some(), self.naive.len() < before);
    }

    fn check(&self, queries: &[RuleQuery]) {
        assert_eq!(self.fast.len(), self.naive.len());
        assert!(self.fast.iter().eq(self.naive.values()));
        for query in queries {
            assert_eq!(classify(&self.fast, query), walk(self.naive.values(), query), "{query:?}");
        }
        let sizes: Vec<_> =
            (0..self.fast.order.len()).map(|at| self.fast.chunk_at(at).unwrap().len()).collect();
        assert_eq!(sizes.iter().sum::<usize>(), self.naive.len());
        assert!(sizes.is_sorted_by(|a, b| a + b > MERGE), "neighbours too small to be two: {sizes:?}");
    }
}

proptest! {
    #[test]
    fn agrees_with_a_walk(
        rules in prop::collection::vec(rule(60), 0..80),
        removed in prop::collection::vec(0..60u32, 0..30),
        queries in prop::collection::vec(query(), 30),
    ) {
        let mut both = Both::default();
        rules.into_iter().for_each(|rule| both.insert(rule));
        let before = both.fast.clone();
        let expected: Vec<_> = queries.iter().map(|query| classify(&both.fast, query)).collect();
        both.check(&queries);
        removed.into_iter().for_each(|id| both.remove(RuleId(id)));
        both.check(&queries);
        let still: Vec<_> = queries.iter().map(|query| classify(&before, query)).collect();
        prop_assert_eq!(still, expected, "a clone doesn't change");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    /// Enough rules to split and merge chunks: added in order and at random, then removed.
    #[test]
    fn chunks_that_split_and_merge_agree_with_a_scan(
        first in prop::collection::vec(rule(4000), 1500),
        second in prop::collection::vec(rule(4000), 1500),
        kept in 0..200u32,
        queries in prop::collection::vec(query(), 20),
    ) {
        let mut both = Both::default();
        for (n, rule) in (0..).zip(first) {
            both.insert(Rule { id: RuleId(n), priority: n, ..rule });
        }
        both.check(&queries);
        second.into_iter().for_each(|rule| both.insert(rule));
        both.check(&queries);
        (kept..4000).rev().for_each(|id| both.remove(RuleId(id)));
        both.check(&queries);
    }
}

#[test]
fn chunks_suffice_for_all_rules_in_any_order() {
    let mut classifier = Classifier::default();
    let rule = |n: u32, priority| Rule {
        id: RuleId(n),
        vrf: Vrf(1),
        priority,
        from: vec![],
        to: vec![],
        protocol: None,
        ports: None,
        action: RuleAction::End(Action::Allow),
    };
    // Priorities in bit-reversed order split every chunk again and again; then rules move.
    let count = MAX_RULES as u32;
    for n in 0..count {
        classifier.insert(Arc::new(rule(n, n.reverse_bits())));
    }
    assert!(classifier.order.len() <= CHUNKS);
    for n in (0..count).step_by(4) {
        classifier.insert(Arc::new(rule(n, n)));
    }
    assert!(classifier.order.len() <= CHUNKS);
    assert_eq!(classifier.len(), MAX_RULES);
    let any = RuleQuery {
        src: Ipv4Addr::LOCALHOST.into(),
        dst: Ipv4Addr::LOCALHOST.into(),
        protocol: 6,
        dst_port: None,
    };
    assert_eq!(classify(&classifier, &any), (Some((RuleId(0), Action::Allow)), vec![]));
}
