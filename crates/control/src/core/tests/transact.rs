//! Transactions, confirmed changes, the way back.

use super::*;

fn vm2() -> Object {
    config::parse_objects(VM2).unwrap().remove(0)
}

fn patch(object: &Object, table: &str, fields: &[&str]) -> Operation {
    let fields = fields.iter().map(|field| (*field).to_owned()).collect();
    Operation::Patch { key: object.key(), table: table.parse().unwrap(), fields }
}

fn asked(operations: Vec<Operation>) -> Transaction {
    Transaction { operations, ..Transaction::default() }
}

#[test]
fn a_patch_changes_a_guest_and_keeps_its_port() {
    let bench = start(FILE);
    bench.core.add(vec![vm2()]).unwrap();
    let before = bench.log.take().len();
    let table = "mtu = 1400\naddresses = [\"10.1.1.7\"]\nmac = \"02:00:00:00:00:07\"";
    let done = bench.core.operate(vec![patch(&vm2(), table, &["mtu", "addresses", "mac"])]).unwrap();
    assert_eq!(done.changes[0].details.len(), 3, "{:?}", done.changes);
    let log = &bench.log.take()[before..];
    assert!(!log.iter().any(|line| line.contains("open") || line.contains("detach")), "{log:?}");
    let tables = bench.executor.tables();
    assert!(tables.guest_by_address(model::Vrf(1), "10.1.1.7".parse().unwrap()).is_some());
    assert!(tables.guest_by_address(model::Vrf(1), "10.1.1.2".parse().unwrap()).is_none());
    // A field without value gets its default; a wrong one changes nothing.
    bench.core.operate(vec![patch(&vm2(), "", &["mtu"])]).unwrap();
    let before = bench.core.view().revision;
    let said = bench.core.operate(vec![patch(&vm2(), "mtu = 7", &["mtu"])]).unwrap_err().to_string();
    assert!(said.contains("mtu"), "{said}");
    assert_eq!(bench.core.view().revision, before);
}

#[test]
fn a_transaction_is_done_as_a_whole_or_not_at_all() {
    let bench = start(FILE);
    let vm1 = config::parse(FILE).unwrap().objects.pop().unwrap().object;
    let delete = |object: &Object, allow_missing| Operation::Delete { key: object.key(), allow_missing };
    let said = bench.core.operate(vec![Operation::Put(vm2()), delete(&vm1, false)]).unwrap_err().to_string();
    assert!(said.contains("comes from the host's file"), "{said}");
    assert_eq!(bench.keys().len(), 2, "nothing was added");
    let all = vec![Operation::Put(vm2()), delete(&vm1, false)];
    bench.core.transact(TESTER(), Transaction { take_over: true, ..asked(all.clone()) }).unwrap();
    assert_eq!(bench.keys().len(), 2);
    assert!(bench.core.operate(vec![delete(&vm1, false)]).is_err());
    assert_eq!(bench.core.operate(vec![delete(&vm1, true)]).unwrap().changes, []);
    let tried = Transaction { dry_run: true, ..asked(vec![delete(&vm2(), false)]) };
    assert_eq!(bench.core.transact(TESTER(), tried).unwrap().changes.len(), 1);
    assert_eq!(bench.keys().len(), 2);
}

#[test]
fn a_request_is_carried_out_once_and_only_at_its_revision() {
    let bench = start(FILE);
    let number = bench.core.view().revision;
    let first = Transaction {
        request_id: "one".into(),
        expected: Some(number),
        ..asked(vec![Operation::Put(vm2())])
    };
    let done = bench.core.transact(TESTER(), first.clone()).unwrap();
    // The same again has the same answer, though the host is at another revision.
    assert_eq!(bench.core.transact(TESTER(), first.clone()).unwrap().changes, done.changes);
    assert_eq!(bench.core.view().revision, number + 1);
    let other = Transaction { request_id: "two".into(), ..first };
    assert!(matches!(
        bench.core.transact(TESTER(), other),
        Err(Error::Revision { expected, present }) if expected == number && present == number + 1
    ));
    assert_eq!(bench.restart(FILE).core.view().revision, number + 1, "numbers go on");
}

#[test]
fn a_rollback_leads_to_any_state_also_after_a_restart() {
    let bench = start(FILE);
    let start = bench.core.view().revision;
    bench.core.add(vec![vm2()]).unwrap();
    bench.core.take_file(&FILE.replace("00:01", "00:09"), false).unwrap();
    bench.core.rollback(TESTER(), None).unwrap();
    assert_eq!(bench.keys().len(), 3);
    assert_eq!(bench.core.view().revision, start + 3, "a way back is a change");
    bench.core.rollback(TESTER(), Some(start)).unwrap();
    assert_eq!(bench.keys().len(), 2);
    assert!(bench.core.rollback(TESTER(), Some(start + 9)).is_err());
    assert_eq!(bench.core.history().last().count(), 5, "with that of the start");
    let bench = bench.restart(FILE);
    assert_eq!(bench.core.history().last().count(), 5);
    bench.core.rollback(TESTER(), Some(start + 1)).unwrap();
    assert_eq!(bench.keys().len(), 3);
}

#[test]
fn a_rule_keeps_its_number_over_a_restart() {
    let bench = start(FILE);
    let rule = |port| {
        format!(
            "[[rule]]\nnetwork = \"blue\"\npriority = 5\nprotocol = \"tcp\"\nports = \"{port}\"\naction = \"drop\"\n"
        )
    };
    let rules: Vec<_> = [80, 81, 82].map(|port| config::parse_objects(&rule(port)).unwrap().remove(0)).into();
    let number = |bench: &Bench, object: &Object| bench.core.view().ids.number(&object.key());
    bench.core.add(rules.clone()).unwrap();
    bench.core.remove(&[rules[0].key()]).unwrap();
    let before = [1, 2].map(|rule| number(&bench, &rules[rule]).unwrap());
    let bench = bench.restart(FILE);
    assert_eq!([1, 2].map(|rule| number(&bench, &rules[rule]).unwrap()), before);
    bench.core.add(vec![rules[0].clone()]).unwrap();
    assert!(!before.contains(&number(&bench, &rules[0]).unwrap()));
}

#[test]
fn a_change_that_nobody_confirms_is_undone_and_others_stay() {
    let bench = start(FILE);
    let moment = Some(Duration::ZERO);
    let soon = Transaction { confirm: moment, ..asked(vec![Operation::Put(vm2())]) };
    bench.core.transact(TESTER(), soon.clone()).unwrap();
    bench.core.add(route()).unwrap();
    let waits = bench.core.apply(TESTER(), &FILE.to_owned().into(), false, moment).unwrap_err().to_string();
    assert!(waits.contains("viaduct confirm"), "{waits}");
    bench.core.refresh().unwrap();
    assert!(bench.core.unconfirmed().is_none());
    assert!(!bench.keys().iter().any(|key| key.contains("vm2")), "{:?}", bench.keys());
    assert!(bench.has_route("10.9.0.1"), "another's change stays");
    // In time.
    let later = Transaction { confirm: Some(Duration::from_secs(1000)), ..soon };
    bench.core.transact(TESTER(), later.clone()).unwrap();
    assert_eq!(bench.core.confirm().unwrap(), bench.core.view().revision);
    assert!(bench.core.confirm().is_err());
    bench.core.refresh().unwrap();
    assert!(bench.keys().iter().any(|key| key.contains("vm2")));
    // A daemon that ends does not leave it behind.
    bench.core.rollback(TESTER(), None).unwrap();
    bench.core.transact(TESTER(), later).unwrap();
    bench.core.leave();
    assert!(!bench.restart(FILE).keys().iter().any(|key| key.contains("vm2")));
}

#[test]
fn what_depends_on_an_unconfirmed_change_goes_with_it() {
    let bench = start(FILE);
    let red = config::parse_objects("[[network]]\nname = \"red\"\nvrf = 2\n").unwrap();
    let guest = config::parse_objects(&VM2.replace("blue", "red")).unwrap();
    let create = red.into_iter().map(Operation::Create).collect();
    bench.core.transact(TESTER(), Transaction { confirm: Some(Duration::ZERO), ..asked(create) }).unwrap();
    bench.core.add(guest).unwrap();
    bench.core.refresh().unwrap();
    assert_eq!(bench.keys().len(), 2, "{:?}", bench.keys());
}

#[test]
fn a_change_is_undone_though_a_port_does_not_open_again() {
    let bench = start(FILE);
    bench.core.add(vec![vm2()]).unwrap();
    let delete = vec![Operation::Delete { key: vm2().key(), allow_missing: false }];
    let soon = Transaction { confirm: Some(Duration::ZERO), ..asked(delete) };
    bench.core.transact(TESTER(), soon).unwrap();
    bench.log.refuse("t2");
    bench.core.refresh().unwrap();
    assert!(bench.keys().iter().any(|key| key.contains("vm2")));
    assert!(bench.core.view().port("vm2").fault.is_some_and(|fault| fault.contains("no such luck")));
}
