//! Tests that routes, which are kept apart from other objects, are objects like these.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PREFIXES: [&str; 6] = ["0.0.0.0/0", "9.0.0.0/8", "10.0.0.0/8", "10.0.0.0/9", "::/0", "fd00::/16"];
const NETWORKS: [&str; 3] = ["blue", "green", "red"];
const TARGETS: [&str; 3] =
    ["\"drop\"", "{ network = \"out\" }", "{ tunnel = \"vxlan\", remote = \"192.0.2.2\", vni = 7 }"];

#[derive(Clone, Debug)]
enum Step {
    Put { network: usize, prefix: usize, target: usize, file: bool },
    Remove { network: usize, prefix: usize },
    Network(usize, u16),
    Pack,
}

fn route(network: usize, prefix: usize, target: usize) -> Object {
    let (network, prefix, to) = (NETWORKS[network], PREFIXES[prefix], TARGETS[target]);
    let text = format!("[[route]]\nnetwork = \"{network}\"\nprefix = \"{prefix}\"\nto = {to}\n");
    config::parse_objects(&text).unwrap().remove(0)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = (0..NETWORKS.len(), 0..PREFIXES.len());
    let put = (place.clone(), 0..TARGETS.len(), any::<bool>());
    let put = put.prop_map(|((network, prefix), target, file)| Step::Put { network, prefix, target, file });
    let remove = place.prop_map(|(network, prefix)| Step::Remove { network, prefix });
    let other = (0..NETWORKS.len(), 1..3_u16).prop_map(|(network, vrf)| Step::Network(network, vrf));
    proptest::collection::vec(prop_oneof![4 => put, 3 => remove, 1 => other, 1 => Just(Step::Pack)], 1..40)
}

impl Objects {
    /// Checks that these are the objects of a model, by key.
    fn are(&self, model: &BTreeMap<Key, Owned>) {
        assert_eq!(self.len(), model.len());
        for (key, owned) in model {
            let found = self.get(key).unwrap();
            assert_eq!((&*found.owned(), found.key()), (owned, key.clone()));
            assert_eq!(self.namesake(&owned.object).map(Listed::seq), Some(owned.seq));
            assert!(found.is(&owned.object));
        }
        let mut in_order: Vec<_> =
            model.iter().map(|(key, owned)| (key.kind, owned.seq, key.clone())).collect();
        in_order.sort();
        let keys = in_order.into_iter().map(|(.., key)| key);
        assert!(self.in_order().into_iter().map(Listed::key).eq(keys));
        let mut commons = BTreeMap::new();
        self.routes().iter().for_each(|route| *commons.entry(route.kept.common.clone()).or_default() += 1);
        assert!(self.routes().commons().map(|(common, count)| (common.clone(), count)).eq(commons));
    }

    /// Does what a difference says.
    fn follow(&mut self, difference: &Difference) {
        match difference {
            Difference::Route { network, prefix, new: Some(new), .. } => {
                self.restore_route(network, *prefix, new.clone());
            }
            Difference::Other { new: Some(new), .. } => {
                self.restore(new.seq, new.owner.clone(), new.object.clone());
            }
            gone => assert!(self.remove(&gone.changed().key())),
        }
    }
}

proptest! {
    #[test]
    fn routes_are_objects(all in proptest::collection::vec(steps(), 1..4)) {
        let (mut objects, mut model, mut next) = (Objects::default(), BTreeMap::new(), 0);
        for steps in all {
            let mut before = objects.clone();
            for step in steps {
                let (owner, object) = match step {
                    Step::Put { network, prefix, target, file } => {
                        (if file { Owner::File } else { Owner::Api }, route(network, prefix, target))
                    }
                    Step::Network(network, vrf) => {
                        let text = format!("[[network]]\nname = \"{}\"\nvrf = {vrf}\n", NETWORKS[network]);
                        (Owner::Api, config::parse_objects(&text).unwrap().remove(0))
                    }
                    Step::Remove { network, prefix } => {
                        let key = route(network, prefix, 0).key();
                        prop_assert_eq!(objects.remove(&key), model.remove(&key).is_some());
                        continue;
                    }
                    Step::Pack => {
                        objects.pack();
                        continue;
                    }
                };
                objects.put(owner.clone(), object.clone());
                let seq = model.get(&object.key()).map_or(next, |owned: &Owned| owned.seq);
                next = next.max(seq + 1);
                model.insert(object.key(), Owned { owner, seq, object });
                objects.are(&model);
            }
            objects.are(&model);
            let differences = before.differences_to(&objects);
            prop_assert!(differences.iter().all(|of| of.changed().last_seq().is_some()));
            differences.iter().for_each(|difference| before.follow(difference));
            before.are(&model);
            prop_assert!(before.differences_to(&objects).is_empty());
        }
    }
}
