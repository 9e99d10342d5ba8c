//! Owners of their own, and resyncs: what an owner does not send anew goes, and nobody else's.

use super::*;
use crate::clients::Peer;
use crate::core::Part;
use crate::owner::Owner;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn file() -> String {
    FILE.replace("name = \"a\"", "name = \"a\"\nowners = [\"cni\", \"agent:1000\"]")
}

fn named(name: &str) -> Owner {
    Owner::from_name(name).unwrap()
}

fn drop_route(n: u8) -> Object {
    let text = format!("[[route]]\nnetwork = \"blue\"\nprefix = \"10.9.{n}.0/24\"\nto = \"drop\"\n");
    config::parse_objects(&text).unwrap().remove(0)
}

/// Makes a transaction of an owner that puts routes.
fn put(owner: &str, routes: &[u8], resync: Option<Part>) -> Transaction {
    let operations = routes.iter().map(|n| Operation::Put(drop_route(*n))).collect();
    Transaction { owner: named(owner), operations, resync, ..Transaction::default() }
}

impl Bench {
    fn of(&self, owner: &str) -> Vec<String> {
        let view = self.core.view();
        let of = view.objects.listed().filter(|listed| listed.owner().name() == owner);
        of.map(|listed| listed.key().name).collect()
    }

    fn make(&self, asked: Transaction) -> Result<Done, Error> {
        self.core.transact(TESTER(), asked)
    }
}

#[test]
fn an_owner_that_sends_its_objects_anew_loses_the_others() {
    let bench = start(&file());
    bench.make(put("cni", &[1, 2, 3], None)).unwrap();
    bench.make(put("agent", &[4], None)).unwrap();
    bench.core.add(vec![drop_route(5)]).unwrap();
    let bench = bench.restart(&file());
    assert_eq!(bench.of("cni"), ["10.9.1.0/24", "10.9.2.0/24", "10.9.3.0/24"], "stored with its owner");
    let number = bench.core.begin_resync(TESTER(), named("cni"), None).unwrap();
    bench.make(put("cni", &[2], Some(Part::More(number)))).unwrap();
    assert_eq!(bench.of("cni").len(), 3, "nothing goes before the end");
    let done = bench.make(put("cni", &[7], Some(Part::Last(number)))).unwrap();
    assert_eq!(done.changes.len(), 3, "{:?}", done.changes);
    assert_eq!(bench.of("cni"), ["10.9.2.0/24", "10.9.7.0/24"]);
    assert_eq!((bench.of("agent").len(), bench.of("api").len(), bench.of("file").len()), (1, 1, 2));
    assert!(matches!(bench.make(put("cni", &[8], Some(Part::More(number)))), Err(Error::NotFound(_))));
}

#[test]
fn a_resync_in_one_request_is_all_or_nothing_and_can_be_tried() {
    let bench = start(&file());
    bench.make(put("cni", &[1, 2], None)).unwrap();
    let tried = Transaction { dry_run: true, ..put("cni", &[2, 3], Some(Part::Whole)) };
    assert_eq!(bench.make(tried).unwrap().changes.len(), 2);
    bench.core.add(vec![drop_route(4)]).unwrap();
    let mut refused = put("cni", &[3], Some(Part::Whole));
    refused.operations.push(Operation::Delete { key: drop_route(4).key(), allow_missing: false });
    assert!(bench.make(refused).is_err(), "that is the API's");
    assert_eq!(bench.of("cni").len(), 2);
    bench.make(put("cni", &[2, 3], Some(Part::Whole))).unwrap();
    assert_eq!(bench.of("cni"), ["10.9.2.0/24", "10.9.3.0/24"]);
}

#[test]
fn a_resync_that_does_not_end_is_ended_and_an_earlier_one_is_void() {
    let bench = start(&file());
    bench.make(put("cni", &[1, 2], None)).unwrap();
    let first = bench.core.begin_resync(TESTER(), named("cni"), None).unwrap();
    let second = bench.core.begin_resync(TESTER(), named("cni"), Some(Duration::ZERO)).unwrap();
    assert!(bench.make(put("cni", &[1], Some(Part::Last(first)))).is_err());
    bench.make(put("cni", &[2], Some(Part::More(second)))).unwrap();
    bench.core.refresh().unwrap();
    assert_eq!(bench.of("cni"), ["10.9.2.0/24"]);
    // One that a new daemon does not know removes nothing.
    let number = bench.core.begin_resync(TESTER(), named("cni"), None).unwrap();
    let bench = bench.restart(&file());
    bench.core.begin_resync(TESTER(), named("cni"), None).unwrap();
    assert!(bench.make(put("cni", &[], Some(Part::Last(number)))).is_err());
    assert_eq!(bench.of("cni"), ["10.9.2.0/24"]);
}

#[test]
fn a_rule_that_the_owner_patches_meanwhile_stays_under_its_new_key() {
    let rule = |action: &str| {
        let text = format!("[[rule]]\nnetwork = \"blue\"\npriority = 5\naction = \"{action}\"\n");
        config::parse_objects(&text).unwrap().remove(0)
    };
    let of_cni = |operation: Operation, resync: Option<Part>| Transaction {
        operations: vec![operation],
        ..put("cni", &[], resync)
    };
    let patch = |key: Key| {
        let (table, fields) = ("priority = 6".parse().unwrap(), vec!["priority".to_owned()]);
        of_cni(Operation::Patch { key, table, fields }, None)
    };
    for is_sent in [true, false] {
        let bench = start(&file());
        let other = rule("allow");
        bench.make(of_cni(Operation::Put(rule("drop")), None)).unwrap();
        bench.make(of_cni(Operation::Put(other.clone()), None)).unwrap();
        let number = bench.core.begin_resync(TESTER(), named("cni"), None).unwrap();
        if is_sent {
            bench.make(of_cni(Operation::Put(rule("drop")), Some(Part::More(number)))).unwrap();
        }
        bench.make(patch(rule("drop").key())).unwrap();
        bench.make(put("cni", &[], Some(Part::Last(number)))).unwrap();
        let [left] = &bench.of("cni")[..] else { panic!("{:?}", bench.of("cni")) };
        assert!(left.contains('6') && *left != other.key().name, "{left}");
    }
}

#[test]
fn owners_are_those_of_the_file_and_act_for_themselves() {
    let bench = start(&file());
    let by = |uid| Author { peer: Peer { uid: Some(uid), pid: None }, request: "test" };
    let denied = |by, asked| match bench.core.transact(by, asked) {
        Err(Error::Denied(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(denied(by(0), put("nobody", &[1], None)).contains("add it to `owners`"));
    assert!(denied(by(1000), put("cni", &[1], None)).contains("user 1000 may not"));
    assert!(denied(by(0), put("file", &[1], None)).contains("viaduct apply"));
    assert!(denied(by(0), put("api", &[1], Some(Part::Whole))).contains("with a name"));
    assert!(bench.core.begin_resync(by(0), Owner::Api, None).is_err());
    assert!(bench.core.begin_resync(by(1001), named("agent"), None).is_err());
    bench.core.transact(by(1000), put("agent", &[1], None)).unwrap();
    let route = |to: &str| {
        let text = format!("[[route]]\nnetwork = \"blue\"\nprefix = \"10.9.1.0/24\"\nto = {to}\n");
        vec![Operation::Put(config::parse_objects(&text).unwrap().remove(0))]
    };
    let other = Transaction { operations: route("{ guest = \"vm1\" }"), ..put("cni", &[], None) };
    let said = bench.make(other.clone()).unwrap_err().to_string();
    assert!(said.contains("belongs to agent"), "{said}");
    bench.make(Transaction { take_over: true, ..other }).unwrap();
    assert_eq!((bench.of("cni").len(), bench.of("agent").len()), (1, 0));
    let key = drop_route(1).key();
    assert!(bench.core.remove(&[key]).is_err(), "the API is one more owner");
    // The objects stay if the file does not name the owner any more, also in the middle of a resync.
    bench.core.begin_resync(TESTER(), named("cni"), Some(Duration::ZERO)).unwrap();
    bench.core.take_file(FILE, false).unwrap();
    bench.core.refresh().unwrap();
    assert!(bench.make(put("cni", &[2], None)).is_err());
    assert_eq!(bench.of("cni").len(), 1);
}

/// Something that an owner does.
#[derive(Clone, Debug)]
enum Act {
    Begin,
    Send(u8),
    Put(u8),
    Delete(u8),
    End(Option<u8>),
    Whole(BTreeSet<u8>),
}

fn act() -> impl Strategy<Value = (bool, Act)> {
    let act = prop_oneof![
        Just(Act::Begin),
        (0..6_u8).prop_map(Act::Send),
        (0..6_u8).prop_map(Act::Put),
        (0..6_u8).prop_map(Act::Delete),
        prop::option::of(0..6_u8).prop_map(Act::End),
        prop::collection::btree_set(0..6_u8, 0..3).prop_map(Act::Whole),
    ];
    (any::<bool>(), act)
}

/// The owner of each route, and the routes that each owner sent in its resync.
#[derive(Default)]
struct Model {
    routes: BTreeMap<u8, &'static str>,
    sent: BTreeMap<&'static str, BTreeSet<u8>>,
}

impl Model {
    /// Puts routes, unless another owner has one.
    fn put(&mut self, owner: &'static str, routes: &[u8]) -> bool {
        let is_free = routes.iter().all(|n| self.routes.get(n).is_none_or(|has| *has == owner));
        self.routes.extend(routes.iter().filter(|_| is_free).map(|n| (*n, owner)));
        is_free
    }

    fn sweep(&mut self, owner: &str, sent: &BTreeSet<u8>) {
        self.routes.retain(|n, has| *has != owner || sent.contains(n));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn owners_have_what_they_sent(acts in proptest::collection::vec(act(), 1..24)) {
        let bench = start(&file());
        let (mut model, mut numbers) = (Model::default(), BTreeMap::new());
        for (is_cni, act) in acts {
            let owner = if is_cni { "cni" } else { "agent" };
            let number = numbers.get(owner).copied().unwrap_or(1);
            // An equal route of another owner would be no change: owners have routes to different guests.
            let puts = |routes: &[u8], part| {
                let to = if is_cni { "\"drop\"" } else { "{ guest = \"vm1\" }" };
                let mut asked = put(owner, &[], part);
                asked.operations = routes.iter().map(|n| {
                    let text = format!("[[route]]\nnetwork = \"blue\"\nprefix = \"10.9.{n}.0/24\"\nto = {to}\n");
                    Operation::Put(config::parse_objects(&text).unwrap().remove(0))
                }).collect();
                bench.make(asked).is_ok()
            };
            match act {
                Act::Begin => {
                    numbers.insert(owner, bench.core.begin_resync(TESTER(), named(owner), None).unwrap());
                    model.sent.insert(owner, BTreeSet::new());
                }
                Act::Put(n) => {
                    let expected = model.put(owner, &[n]);
                    prop_assert_eq!(puts(&[n], None), expected);
                    if let Some(sent) = model.sent.get_mut(owner).filter(|_| expected) {
                        sent.insert(n);
                    }
                }
                Act::Send(n) => {
                    let expected = model.sent.contains_key(owner) && model.put(owner, &[n]);
                    prop_assert_eq!(puts(&[n], Some(Part::More(number))), expected);
                    if expected {
                        model.sent.get_mut(owner).unwrap().insert(n);
                    }
                }
                Act::Delete(n) => {
                    let delete = Operation::Delete { key: drop_route(n).key(), allow_missing: false };
                    let asked = Transaction { operations: vec![delete], ..put(owner, &[], None) };
                    let is_own = model.routes.get(&n) == Some(&owner);
                    prop_assert_eq!(bench.make(asked).is_ok(), is_own);
                    if is_own {
                        model.routes.remove(&n);
                        if let Some(sent) = model.sent.get_mut(owner) {
                            sent.remove(&n);
                        }
                    }
                }
                Act::End(n) => {
                    let routes: Vec<_> = n.into_iter().collect();
                    let expected = model.sent.contains_key(owner) && model.put(owner, &routes);
                    prop_assert_eq!(puts(&routes, Some(Part::Last(number))), expected);
                    if expected {
                        let mut sent = model.sent.remove(owner).unwrap();
                        sent.extend(routes);
                        model.sweep(owner, &sent);
                    }
                }
                Act::Whole(routes) => {
                    let listed: Vec<_> = routes.iter().copied().collect();
                    let expected = model.put(owner, &listed);
                    prop_assert_eq!(puts(&listed, Some(Part::Whole)), expected);
                    if expected {
                        model.sent.remove(owner);
                        model.sweep(owner, &routes);
                    }
                }
            }
            for owner in ["cni", "agent"] {
                let has = model.routes.iter().filter(|(_, has)| **has == owner);
                let has: Vec<_> = has.map(|(n, _)| format!("10.9.{n}.0/24")).collect();
                prop_assert_eq!(bench.of(owner), has);
            }
        }
    }
}
