//! Changes that wait in the queue: the result is that of one after the other, in some order, and the store has it.

use super::routes::{OTHERS, PREFIXES, TARGETS, WORLD};
use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::mpsc;
use tokio::sync::oneshot::Receiver;

/// A prefix of which the executor wants no route.
const GUILTY: &str = "10.66.0.0/16";

#[derive(Clone, Copy, Debug)]
enum What {
    Create,
    Put,
    Delete(bool),
}

/// Returns objects that clients change: routes, and those of the others that are rules.
fn object() -> impl Strategy<Value = Object> {
    let prefixes = [PREFIXES.as_slice(), &[GUILTY]].concat();
    let route = (any::<bool>(), prop::sample::select(prefixes), prop::sample::select(TARGETS.as_slice()));
    let route = route.prop_map(|(red, prefix, to)| {
        let network = if red { "red" } else { "blue" };
        format!("[[route]]\nnetwork = \"{network}\"\nprefix = \"{prefix}\"\nto = {to}\n")
    });
    let rules: Vec<_> = OTHERS.into_iter().filter(|text| text.starts_with("[[rule]]")).collect();
    let rule = prop::sample::select(rules).prop_map(str::to_owned);
    prop_oneof![3 => route, 2 => rule].prop_map(|text| config::parse_objects(&text).unwrap().remove(0))
}

fn transaction() -> impl Strategy<Value = Transaction> {
    let what =
        prop_oneof![2 => Just(What::Create), 2 => Just(What::Put), 3 => any::<bool>().prop_map(What::Delete)];
    // The executor sees no route that another change removes before it is in force. So nobody removes a guilty one.
    let is_guilty = |object: &Object| object.key().name == GUILTY;
    let operation = (what, object()).prop_map(move |(what, object)| match what {
        What::Delete(_) if is_guilty(&object) => Operation::Create(object),
        What::Create => Operation::Create(object),
        What::Put => Operation::Put(object),
        What::Delete(allow_missing) => Operation::Delete { key: object.key(), allow_missing },
    });
    let operations = proptest::collection::vec(operation, 1..4);
    let expected = prop_oneof![5 => Just(None), 1 => (0..9_u64).prop_map(Some)];
    let id = prop_oneof![4 => Just(""), 1 => Just("one"), 1 => Just("two")];
    (operations, expected, id, any::<bool>()).prop_map(|(operations, expected, id, take_over)| {
        let request_id = id.to_owned();
        Transaction { operations, expected, request_id, take_over, ..Transaction::default() }
    })
}

/// Returns a file with a guest, a network and a nexthop more, to which routes lead.
fn file() -> String {
    format!("{WORLD}{}", [0, 3, 4].map(|other| OTHERS[other]).concat())
}

fn started() -> Bench {
    let bench = start(&file());
    bench.executor.forbid(GUILTY.parse().unwrap());
    bench
}

/// Has changes wait before any of them is made.
fn wait(bench: &Bench, all: &[Transaction]) -> Vec<Receiver<Result<Done, Error>>> {
    all.iter().map(|asked| bench.core.queue.push(TESTER(), asked.clone()).unwrap().0).collect()
}

impl Bench {
    /// Returns what is in force, and which changes led to it.
    fn result(&self) -> (impl PartialEq + std::fmt::Debug + use<>, Vec<String>) {
        let changes = |revision: &Arc<crate::history::Revision>| {
            let changed: Vec<_> = revision.changed().map(|changed| format!("{changed:?}")).collect();
            format!("{} {changed:?}", revision.number)
        };
        let history = self.core.history().last().map(changes).collect();
        ((self.keys(), self.routing(), self.core.view().revision), history)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn changes_that_wait_are_made_as_if_one_after_the_other(all in proptest::collection::vec(transaction(), 1..12)) {
        let (bench, other) = (started(), started());
        let answers = wait(&bench, &all);
        while bench.core.serve_next() {}
        for (asked, answer) in all.into_iter().zip(answers) {
            let (answer, alone) = (answer.blocking_recv().unwrap(), other.core.transact(TESTER(), asked));
            prop_assert_eq!(format!("{answer:?}"), format!("{alone:?}"));
        }
        let result = bench.result();
        prop_assert_eq!(&result, &other.result());
        prop_assert_eq!(bench.restart(&file()).result(), result, "stored");
    }

    #[test]
    fn changes_of_many_clients_are_those_of_some_order(
        clients in proptest::collection::vec(proptest::collection::vec(transaction(), 1..12), 2..6)
    ) {
        let (bench, other) = (started(), started());
        let first = bench.core.view().revision;
        let (told, answered) = mpsc::channel();
        let (copy, copied) = (tempfile::tempdir().unwrap(), std::sync::OnceLock::new());
        let mut made: Vec<(u64, Transaction)> = Vec::new();
        std::thread::scope(|scope| {
            for client in &clients {
                let (told, core) = (told.clone(), &bench.core);
                scope.spawn(move || for asked in client {
                    // Who repeats a request, or waits for a revision, depends on the order.
                    let mut asked = Transaction { expected: None, request_id: String::new(), ..asked.clone() };
                    // Who removes and adds the same changes its place alone, which is not told.
                    let mut seen = HashSet::new();
                    asked.operations.retain(|operation| seen.insert(operation.key()));
                    if let Ok(done) = core.transact(TESTER(), asked.clone()) && !done.changes.is_empty() {
                        told.send((done.revision, asked)).unwrap();
                    }
                });
            }
            drop(told);
            for answer in answered {
                made.push(answer);
                // A daemon that was killed now would find what the files have.
                copied.get_or_init(|| {
                    for file in ["store.0", "store.1"] {
                        std::fs::copy(bench.dir.path().join(file), copy.path().join(file)).unwrap();
                    }
                    made[0].0
                });
            }
        });
        made.sort_by_key(|(revision, _)| *revision);
        let found = Store::open(copy.path()).unwrap();
        let mut states = vec![other.keys()];
        for (number, (revision, asked)) in (first + 1..).zip(made) {
            prop_assert_eq!(other.core.transact(TESTER(), asked).unwrap().revision, number);
            prop_assert_eq!(revision, number, "each has a revision of its own");
            states.push(other.keys());
        }
        prop_assert_eq!(bench.result(), other.result());
        if let Some(acknowledged) = copied.get() {
            prop_assert!(found.revision() >= *acknowledged);
            let stored = found.load().unwrap().objects;
            let keys: Vec<_> = stored.listed().map(|listed| listed.key().to_string()).collect();
            prop_assert_eq!(&keys, &states[(found.revision() - first) as usize]);
        }
    }
}

fn route_to(n: usize) -> Transaction {
    let text = format!(
        "[[route]]\nnetwork = \"blue\"\nprefix = \"10.8.{}.{}/32\"\nto = \"drop\"\n",
        n / 256,
        n % 256
    );
    let operations = config::parse_objects(&text).unwrap().into_iter().map(Operation::Create).collect();
    Transaction { operations, ..Transaction::default() }
}

#[test]
fn changes_that_wait_are_put_in_force_at_once() {
    let bench = started();
    let before = (bench.executor.applied(), bench.core.view().revision);
    let answers = wait(&bench, &(0..100).map(route_to).collect::<Vec<_>>());
    assert!(!bench.core.serve_next());
    let revisions: Vec<_> =
        answers.into_iter().map(|one| one.blocking_recv().unwrap().unwrap().revision).collect();
    assert_eq!(revisions, (before.1 + 1..=before.1 + 100).collect::<Vec<_>>());
    assert_eq!(bench.executor.applied(), before.0 + 1);
}

#[test]
fn the_queue_is_bounded() {
    let bench = started();
    let (_first, serves) = bench.core.queue.push(TESTER(), route_to(0)).unwrap();
    let more: Vec<_> = (1..1024).map(|n| bench.core.queue.push(TESTER(), route_to(n)).unwrap()).collect();
    assert!(serves && more.iter().all(|(_, serves)| !serves), "one thread is enough");
    assert!(matches!(bench.core.queue.push(TESTER(), route_to(1024)), Err(Error::Busy(1024))));
    while bench.core.serve_next() {}
    assert!(bench.has_route("10.8.3.255") && !bench.has_route("10.8.4.0"));
    bench.core.transact(TESTER(), route_to(1024)).unwrap();
}

#[test]
fn a_daemon_that_hands_over_makes_none_of_those_that_wait() {
    let bench = started();
    let answers = wait(&bench, &[route_to(0), route_to(1)]);
    bench.core.hand_over().unwrap();
    while bench.core.serve_next() {}
    for answer in answers {
        assert!(answer.blocking_recv().unwrap().unwrap_err().to_string().contains("taking over"));
    }
    bench.core.stay();
    bench.core.transact(TESTER(), route_to(0)).unwrap();
}
