//! Tests changes as a whole: owners, ports that can't be opened, executors that refuse, restarts.

mod counts;
pub(crate) mod fake;
mod files;
mod left;
mod plugged;
mod queue;
mod resync;
mod routes;
mod transact;

use super::*;
use fake::{FakeExecutor, FakePorts, Log};
use model::Lookup;
use packet::Mac;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const FILE: &str = r#"
[host]
name = "a"
[[network]]
name = "blue"
vrf = 1
gateways = ["10.1.1.254/24"]
[[guest]]
name = "vm1"
network = "blue"
kind = "tap"
device = "t1"
mac = "02:00:00:00:00:01"
addresses = ["10.1.1.1"]
"#;

const VM2: &str = r#"
[[guest]]
name = "vm2"
network = "blue"
kind = "tap"
device = "t2"
mac = "02:00:00:00:00:02"
addresses = ["10.1.1.2"]
"#;

const ROUTE: &str = "[[route]]\nnetwork = \"blue\"\nprefix = \"10.9.0.0/16\"\nto = \"drop\"\n";

/// Checks that tables are those that result from all objects.
pub(super) fn is_as_compiled_whole(
    desired: &Desired,
    (host, index): (&Host, &Index),
    objects: &Objects,
    links: &Links,
    ids: &Ids,
) {
    let whole = compile((host, index), objects, desired, links, &mut ids.clone());
    assert!(*desired == whole, "{desired:#?}\nis not\n{whole:#?}");
}

struct Bench {
    core: Core,
    executor: Arc<FakeExecutor>,
    log: Log,
    dir: TempDir,
}

/// Writes a daemon's file into a directory.
pub(crate) fn config_file(dir: &Path, text: &str) -> ConfigFile {
    let file = dir.join("host.toml");
    std::fs::write(&file, text).unwrap();
    let folder = dir.to_owned();
    let included = move |patterns: &[String]| config::open_included(&folder, patterns);
    ConfigFile::new(&file.clone(), move || std::fs::File::open(&file), included)
}

fn start_in(dir: TempDir, text: &str) -> Result<Bench, Error> {
    start_with(dir, text, FakePorts::new(Log::default()))
}

fn start_with(dir: TempDir, text: &str, ports: FakePorts) -> Result<Bench, Error> {
    let (executor, log) = (Arc::new(FakeExecutor::default()), ports.log());
    let config = config_file(dir.path(), text);
    let (store, run_dir) = (Store::open(dir.path())?, Path::new("/run/x").into());
    let core =
        Core::start(&config::parse(text)?, config, run_dir, store, executor.clone(), Arc::new(ports), None)?;
    Ok(Bench { core, executor, log, dir })
}

fn start(text: &str) -> Bench {
    start_in(tempfile::tempdir().unwrap(), text).unwrap_or_else(|e| panic!("{e}"))
}

fn route() -> Vec<Object> {
    config::parse_objects(ROUTE).unwrap()
}

const TESTER: fn() -> Author = || Author::daemon("test");

impl Core {
    fn take_file(&self, text: &str, dry_run: bool) -> Result<Done, Error> {
        self.apply(TESTER(), &text.to_owned().into(), dry_run, None)
    }

    /// Makes a change as those of clients are made.
    fn transact(&self, by: Author, asked: Transaction) -> Result<Done, Error> {
        if !asked.can_be_joined() {
            return self.transact_alone(by, asked);
        }
        let (answer, is_first) = self.queue.push(by, asked)?;
        while is_first && self.serve_next() {}
        answer.blocking_recv().unwrap()
    }

    fn operate(&self, operations: Vec<Operation>) -> Result<Done, Error> {
        self.transact(TESTER(), Transaction { operations, ..Transaction::default() })
    }

    fn add(&self, objects: Vec<Object>) -> Result<Done, Error> {
        self.operate(objects.into_iter().map(Operation::Create).collect())
    }

    fn remove(&self, keys: &[Key]) -> Result<Done, Error> {
        let delete = |key: &Key| Operation::Delete { key: key.clone(), allow_missing: false };
        self.operate(keys.iter().map(delete).collect())
    }
}

impl Bench {
    fn apply(&self, text: &str, dry_run: bool) -> Vec<ObjectChange> {
        self.core.take_file(text, dry_run).unwrap_or_else(|e| panic!("{e}")).changes
    }

    /// Overwrites the file with which the daemon was started.
    fn write(&self, text: &str) {
        std::fs::write(self.dir.path().join("host.toml"), text).unwrap();
    }

    /// Starts a new daemon in this one's place, with this file.
    fn restart(self, text: &str) -> Bench {
        let Self { core, dir, .. } = self;
        drop(core);
        start_in(dir, text).unwrap_or_else(|e| panic!("{e}"))
    }

    fn difference(&self) -> Option<String> {
        self.core.config().difference(&self.core.view())
    }

    fn has_route(&self, addr: &str) -> bool {
        self.executor.tables().route(model::Vrf(1), addr.parse().unwrap()).is_some()
    }

    fn keys(&self) -> Vec<String> {
        self.core.view().objects.listed().map(|listed| listed.key().to_string()).collect()
    }
}

#[test]
fn a_file_applied_twice_changes_nothing() {
    let bench = start(FILE);
    let more = format!("{FILE}{VM2}");
    assert_eq!(bench.apply(&more, true).len(), 1, "a dry run tells");
    assert_eq!(bench.apply(&more, false).len(), 1);
    assert_eq!(bench.apply(&more, true), []);
    assert_eq!(bench.apply(&more, false), []);
    assert_eq!(bench.log.take(), ["open vm1", "attach vm1", "open vm2", "attach vm2"]);
}

#[test]
fn changes_tell_which_keys() {
    let bench = start(FILE);
    let changes = bench.apply(&FILE.replace("t1", "t9"), false);
    assert_eq!(changes[0].what, "change");
    assert_eq!(changes[0].details, ["device: \"t1\" -> \"t9\""]);
    assert_eq!(bench.log.take(), ["open vm1", "attach vm1", "open vm1", "detach vm1", "attach vm1"]);
}

#[test]
fn another_mtu_does_not_close_a_port() {
    let bench = start(FILE);
    bench.core.take_file(&FILE.replace("vrf = 1", "vrf = 1\nmtu = 1400"), false).unwrap();
    assert_eq!(
        bench.log.take(),
        ["open vm1", "attach vm1", "update vm1", "configure vm1 1400 02:00:00:00:00:01"]
    );
    let id = bench.core.view().ids.vif("vm1").unwrap();
    assert_eq!(bench.executor.tables().vif(id).unwrap().mtu, 1400);
}

#[test]
fn what_an_open_port_cannot_have_is_refused_and_changes_nothing() {
    let bench = start(FILE);
    bench.log.refuse("t1");
    let error = bench.core.take_file(&FILE.replace("vrf = 1", "vrf = 1\nmtu = 1400"), false).unwrap_err();
    assert_eq!(error.to_string(), "interface \"vm1\" can't be opened: no such luck");
    assert_eq!(bench.log.take(), ["open vm1", "attach vm1"]);
}

/// A guest with a port and a verbs device, and one with a verbs device alone.
pub(crate) const VERBS: &str = r#"
[[guest]]
name = "vm3"
network = "blue"
kind = "tap"
device = "t3"
mac = "02:00:00:00:00:03"
addresses = ["10.1.1.3"]
rdma = "vm3.0"
rdma_limits = { qps = 9 }
[[guest]]
name = "hpc1"
network = "blue"
kind = "rdma"
mac = "02:00:00:00:00:04"
addresses = ["10.1.1.4"]
"#;

#[test]
fn a_verbs_device_is_an_interface_of_its_own() {
    let bench = start(&format!("{FILE}{VERBS}"));
    let opened = ["open hpc1", "open vm1", "open vm3", "open vm3:rdma"];
    assert_eq!(bench.log.take()[..4], opened);
    let (view, tables) = (bench.core.view(), bench.executor.tables());
    let vif = |name: &str| tables.vif(view.ids.vif(name).unwrap()).unwrap().clone();
    let (port, device) = (vif("vm3"), vif("vm3:rdma"));
    assert_eq!((port.kind, port.verbs()), (model::VifKind::Tap, Some(device.id)));
    assert_eq!((device.kind, device.rdma), (model::VifKind::Rdma, Some(port.id)));
    assert_eq!((device.mac, &device.addresses, device.vrf), (port.mac, &port.addresses, port.vrf));
    assert_eq!((vif("hpc1").kind, vif("hpc1").rdma), (model::VifKind::Rdma, None));
    let members = &tables.network(model::Vrf(1)).unwrap().members;
    assert!(members.contains(&port.id) && !members.contains(&device.id));
    assert_eq!(tables.guest_by_address(model::Vrf(1), "10.1.1.3".parse().unwrap()), Some(port.id));
}

#[test]
fn a_verbs_device_stays_open_while_its_guest_is_the_same() {
    let bench = start(&format!("{FILE}{VERBS}"));
    let after = |change: &dyn Fn(&str) -> String| {
        let before = bench.log.take().len();
        bench.core.take_file(&format!("{FILE}{}", change(VERBS)), false).unwrap();
        bench.log.take()[before..].to_vec()
    };
    assert_eq!(after(&|text| text.replace("qps = 9", "qps = 8")), ["update vm3:rdma"]);
    assert_eq!(after(&|text| text.replace("10.1.1.3", "10.1.1.33")), ["update vm3:rdma"]);
    let reopened = ["detach hpc1", "open hpc1", "attach hpc1", "update vm3:rdma"];
    assert_eq!(after(&|text| text.replace("00:04", "00:05")), reopened);
    let limits = "rdma = \"vm3.0\"\nrdma_limits = { qps = 9 }\n";
    let without = |text: &str| text.replace("00:04", "00:05").replace(limits, "");
    assert_eq!(after(&without), ["detach vm3:rdma"]);
    assert!(bench.core.view().ids.vif("vm3:rdma").is_none());
}

#[test]
fn a_verbs_device_of_another_guest_waits_for_its_socket() {
    let bench = start(&format!("{FILE}{VERBS}"));
    let before = bench.log.take().len();
    let renamed = VERBS.replace("name = \"vm3\"", "name = \"vm9\"").replace("t3", "t9");
    bench.core.take_file(&format!("{FILE}{renamed}"), false).unwrap();
    let expected =
        ["open vm9", "attach vm9", "detach vm3", "detach vm3:rdma", "open vm9:rdma", "attach vm9:rdma"];
    assert_eq!(bench.log.take()[before..], expected);
    // And the other way round: nothing closes for a change that fails.
    let before = bench.log.take().len();
    let refused = VERBS.replace("\"t3\"", "\"refused\"").replace("vm3", "vm5").replace("vm5.0", "vm3.0");
    assert!(bench.core.take_file(&format!("{FILE}{refused}"), false).is_err());
    assert_eq!(bench.log.take()[before..], [""; 0]);
}

#[test]
fn a_port_that_cannot_be_opened_undoes_all() {
    let bench = start(&format!("{FILE}{VERBS}"));
    let before = bench.log.take().len();
    // One port gets a new device, one needs a place that is taken until an old port closes, one goes, and one
    // can't be opened.
    let changed = FILE.replace("t1", "t9").replace("mac", "queues = 2\nmac");
    let bad = format!("{changed}{}", VM2.replace("t2", "refused"));
    let said = bench.core.take_file(&bad, false).unwrap_err().to_string();
    assert!(said.contains("vm2") && said.contains("no such luck"), "{said}");
    assert_eq!(bench.log.take()[before..], ["open vm1"], "nothing was closed");
    assert_eq!(bench.keys().len(), 4);
    assert_eq!(bench.apply(&format!("{FILE}{VERBS}"), false), []);
}

#[test]
fn a_port_in_the_place_of_another_is_opened_when_that_is_closed() {
    let bench = start(FILE);
    let before = bench.log.take().len();
    let done = bench.core.take_file(&FILE.replace("mac", "queues = 2\nmac"), true).unwrap();
    let (object, note) = &done.notes[0];
    assert!(object == "guest \"vm1\"" && note.starts_with("recreates tap t1: "), "{done:?}");
    let two = bench.core.take_file(&FILE.replace("mac", "queues = 2\nmac"), false).unwrap();
    assert_eq!(two.notes, done.notes);
    assert_eq!(bench.log.take()[before..], ["detach vm1", "open vm1", "attach vm1"]);
    let wire = |device| format!("{FILE}[[wire]]\nname = \"w\"\ndriver = \"tap\"\ndevice = \"{device}\"\n");
    bench.core.take_file(&wire("w1"), false).unwrap();
    let done = bench.core.take_file(&wire("w2"), false).unwrap();
    assert!(done.notes[0].0 == "wire \"w\"" && done.notes[0].1.starts_with("recreates tap w2: "), "{done:?}");
    // Two ports swap their devices.
    let both = format!("{FILE}{VM2}");
    bench.apply(&both, false);
    let before = bench.log.take().len();
    bench.apply(&both.replace("t1", "t3").replace("t2", "t1").replace("t3", "t2"), false);
    let swapped = ["detach vm1", "detach vm2", "open vm1", "attach vm1", "open vm2", "attach vm2"];
    assert_eq!(bench.log.take()[before..], swapped);
}

#[test]
fn a_taps_mac_is_changed_in_place() {
    let bench = start(FILE);
    let done = bench.core.take_file(&FILE.replace("00:01", "00:07"), false).unwrap();
    assert_eq!((done.changes.len(), done.notes), (1, vec![]));
    let after = ["open vm1", "attach vm1", "update vm1", "configure vm1 1500 02:00:00:00:00:07"];
    assert_eq!(bench.log.take(), after);
}

#[test]
fn a_port_that_cannot_be_opened_at_the_start_is_a_fault_and_is_tried_again() {
    let ports = FakePorts::new(Log::default());
    let log = ports.log();
    log.refuse("t1");
    let file = format!("{FILE}{VM2}");
    let bench = start_with(tempfile::tempdir().unwrap(), &file, ports).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(log.take(), ["open vm2", "attach vm2"], "the others are open");
    let fault = || bench.core.view().port("vm1").fault;
    assert_eq!(fault().unwrap(), "can't be opened: no such luck");
    let slots = || bench.core.lock().slots["vm1"].due(Instant::now() + Duration::from_secs(3600), false);
    assert!(slots().is_some());
    // The port with a fault prevents no changes of other objects, and a change of its own guest tries it.
    let route = format!("{file}{ROUTE}");
    let done = bench.core.take_file(&route, false).unwrap();
    assert!(done.notes[0].1.contains("tried again: no such luck"), "{:?}", done.notes);
    assert!(bench.core.take_file(&route.replacen("mac", "queues = 2\nmac", 1), false).is_err());
    bench.core.retry(false).unwrap();
    assert!(fault().is_some(), "not due yet");
    log.refuse("nothing");
    bench.core.lock().slots.get_mut("vm1").unwrap().make_due();
    bench.core.retry(false).unwrap();
    assert_eq!(
        (fault(), log.take()[2..].to_vec()),
        (None, vec!["open vm1".to_owned(), "attach vm1".to_owned()])
    );
    assert!(bench.core.view().port("vm1").up && slots().is_none());
}

#[test]
fn what_somebody_did_to_a_socket_stops_no_takeover() {
    for (device, why) in [("refused", Some("no such luck")), ("gone", None)] {
        let bench = start(&FILE.replace("t1", device));
        let frozen = BTreeMap::from([("vm1".to_owned(), mem::Frozen::default())]);
        let refused = bench.core.adopt(frozen).map_err(|e| e.to_string());
        assert!(refused.as_ref().err().is_some() == why.is_some(), "{refused:?}");
        assert!(why.is_none_or(|why| refused.unwrap_err().contains(why)));
    }
}

#[test]
fn a_port_that_hangs_keeps_no_other_waiting() {
    let ports = FakePorts::new(Log::default());
    let log = ports.log();
    log.hang("t1");
    let file = format!("{FILE}{VM2}");
    let bench = start_with(tempfile::tempdir().unwrap(), &file, ports).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(log.take(), ["open vm2", "attach vm2"], "the others are open");
    let fault = || bench.core.view().port("vm1").fault;
    assert!(fault().unwrap().contains("something does not answer"), "{:?}", fault());
    let again = || {
        bench.core.lock().slots.get_mut("vm1").unwrap().make_due();
        bench.core.retry(false).unwrap();
    };
    // Only one attempt runs at a time, and changes of other objects go on.
    again();
    bench.apply(&format!("{file}{ROUTE}"), false);
    assert_eq!((fault().is_some(), log.take().len()), (true, 2));
    log.hang("nothing");
    while fault().is_some() {
        again();
    }
    assert_eq!(log.take()[2..], ["open vm1", "attach vm1"]);
    // A port that is no longer wanted by then is not opened.
    let Bench { core, dir, .. } = bench;
    drop(core);
    let ports = FakePorts::new(Log::default());
    let log = ports.log();
    log.hang("t3");
    let late = file.replace("vm2", "vm3").replace("t2", "t3");
    let bench = start_with(dir, &late, ports).unwrap_or_else(|e| panic!("{e}"));
    assert!(bench.core.view().port("vm3").fault.is_some());
    bench.apply(FILE, false);
    log.hang("nothing");
    bench.core.retry(true).unwrap();
    assert!(bench.core.lock().slots.keys().eq(["vm1"]));
}

#[test]
fn a_wire_that_appears_is_opened_and_known_by_its_address() {
    let text = format!("{FILE}[[wire]]\nname = \"up0\"\ndriver = \"af-packet\"\ndevice = \"e0\"\n");
    let ports = FakePorts::new(Log::default());
    ports.log().refuse("e0");
    let bench = start_with(tempfile::tempdir().unwrap(), &text, ports).unwrap_or_else(|e| panic!("{e}"));
    let mac = || bench.core.view().tables.vifs[&bench.core.view().ids.vif("up0").unwrap()].mac.unwrap();
    let made_up = mac();
    bench.log.refuse("nothing");
    bench.core.retry(true).unwrap();
    assert!(bench.core.view().port("up0").up);
    assert_eq!((mac(), mac() == made_up), (Mac([2, 0, 0, 0, 9, 1]), false));
}

#[test]
fn the_tables_follow_the_links_of_wires() {
    let text = format!("{FILE}[[wire]]\nname = \"up0\"\ndriver = \"af-packet\"\ndevice = \"e0\"\n");
    let bench = start(&text);
    let is_down = |bench: &Bench| {
        let id = bench.core.view().ids.vif("up0").unwrap();
        bench.executor.tables().vif(id).unwrap().wire.clone().unwrap().is_down
    };
    for down in [true, false] {
        bench.log.set_down(down);
        bench.core.retry(true).unwrap();
        assert_eq!(is_down(&bench), down);
        bench.core.retry(true).unwrap();
    }
    assert_eq!(bench.executor.applied(), 3, "one for each change");
    bench.log.set_down(true);
    bench.core.add(config::parse_objects(VM2).unwrap()).unwrap();
    assert!(is_down(&bench), "any change takes it along");
    let ports = FakePorts::new(Log::default());
    ports.log().refuse("e0");
    let bench = start_with(tempfile::tempdir().unwrap(), &text, ports).unwrap_or_else(|e| panic!("{e}"));
    assert!(is_down(&bench), "one that can't be opened");
}

#[test]
fn a_guest_does_not_inherit_counters() {
    let bench = start(&format!("{FILE}{VM2}"));
    let id = bench.core.view().ids.vif("vm2").unwrap();
    bench.executor.count(5);
    assert_eq!(bench.core.view().vif_counters(id).received.packets, 5);
    bench.apply(FILE, false);
    bench.executor.count(8);
    bench.apply(&format!("{FILE}{}", VM2.replace("vm2", "vm3")), false);
    let view = bench.core.view();
    assert_eq!(view.ids.vif("vm3"), Some(id), "it has the number of the one before");
    assert_eq!((view.vif_counters(id).received.packets, view.drops_at(id)[0]), (0, 0));
    bench.executor.count(10);
    assert_eq!((view.vif_counters(id).received.packets, view.drops_at(id)[0]), (2, 2));
}

#[test]
fn an_executor_that_refuses_undoes_all() {
    let bench = start(FILE);
    bench.executor.refuse(true);
    let said = bench.core.take_file(&format!("{FILE}{VM2}"), false).unwrap_err().to_string();
    assert!(said.contains("at most"), "{said}");
    bench.executor.refuse(false);
    assert_eq!(bench.keys().len(), 2);
    let back = start_in(bench.dir, FILE).err().map(|e| e.to_string());
    assert!(back.is_some_and(|said| said.contains("in use")), "the first still has the store");
}

#[test]
fn a_wires_new_address_is_followed() {
    let text = format!(
        "{FILE}[[wire]]\nname = \"up0\"\ndriver = \"af-packet\"\ndevice = \"e0\"\naddresses = [\"192.0.2.1/24\"]\n"
    );
    let bench = start(&text);
    let mac = |bench: &Bench| {
        let id = bench.core.view().ids.vif("up0").unwrap();
        bench.executor.tables().vif(id).unwrap().mac.unwrap()
    };
    assert_eq!(mac(&bench), Mac([2, 0, 0, 0, 9, 1]));
    bench.log.set_mac([2, 0, 0, 0, 9, 2]);
    bench.core.refresh().unwrap();
    assert_eq!(mac(&bench), Mac([2, 0, 0, 0, 9, 2]));
    assert_eq!(bench.executor.applied(), 2);
    bench.core.refresh().unwrap();
    assert_eq!(bench.executor.applied(), 2, "nothing moved");
}

/// Starts a daemon whose file can be read only once.
fn start_to_read_once() -> (TempDir, Core) {
    let (dir, file) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(file.path(), FILE).unwrap();
    // All descriptors have one position: who reads again finds nothing.
    let once = std::fs::File::open(file.path()).unwrap();
    let config = ConfigFile::new(file.path(), move || once.try_clone(), |_| Ok(Vec::new()));
    let (store, run_dir) = (Store::open(dir.path()).unwrap(), Path::new("/run/x").into());
    let ports = Arc::new(FakePorts::new(Log::default()));
    let parsed = config::parse(FILE).unwrap();
    let executor = Arc::<FakeExecutor>::default();
    (dir, Core::start(&parsed, config, run_dir, store, executor, ports, None).unwrap())
}

#[test]
fn a_file_that_is_applied_is_not_read_again() {
    let (_dir, core) = start_to_read_once();
    let difference = || core.config().difference(&core.view());
    core.take_file(FILE, false).unwrap();
    assert_eq!(difference(), None);
    core.add(route()).unwrap();
    core.remove(&[route()[0].key()]).unwrap();
    assert_eq!(difference(), None);
    core.take_file(&FILE.replace("t1", "t9"), false).unwrap();
    assert!(difference().unwrap().contains("guest \"vm1\""));
}

#[test]
fn an_applied_file_has_objects_of_others_too() {
    let bench = start(FILE);
    let vm2 = config::parse_objects(VM2).unwrap();
    bench.core.add(vm2.clone()).unwrap();
    let own = format!("{FILE}{VM2}");
    bench.write(&own);
    bench.apply(&own, false);
    assert_eq!(bench.difference(), None);
    bench.core.remove(&[vm2[0].key()]).unwrap();
    assert!(bench.difference().unwrap().contains("guest \"vm2\""));
}

#[test]
fn a_file_that_stays_is_read_once_whatever_changes() {
    let (_dir, core) = start_to_read_once();
    let difference = || core.config().difference(&core.view());
    assert_eq!(difference(), None);
    core.add(route()).unwrap();
    assert_eq!(difference(), None);
    let keys =
        [config::parse_objects(VM2).unwrap()[0].key(), core.view().objects.listed().next().unwrap().key()];
    core.take_file(&format!("{FILE}{VM2}"), false).unwrap();
    let said = difference().unwrap();
    assert!(said.contains(&keys[0].to_string()) && !said.contains(&keys[1].to_string()), "{said}");
    core.take_file(&FILE.replace("t1", "t9"), false).unwrap();
    assert!(difference().unwrap().contains("guest \"vm1\""));
}

#[test]
fn a_port_that_hangs_holds_up_its_own_change_alone() {
    let bench = start(FILE);
    bench.log.hang("t2");
    std::thread::scope(|scope| {
        let hangs = scope.spawn(|| bench.core.add(config::parse_objects(VM2).unwrap()));
        let is_claimed = |name: &str| !bench.core.claims.is_free(name);
        while !is_claimed("name vm2") {
            std::thread::yield_now();
        }
        let other = format!(
            "{}{ROUTE}",
            VM2.replace("vm2", "vm8").replace("t2", "t8").replace(":02\"", ":08\"").replace(".2\"", ".8\"")
        );
        assert_eq!(bench.core.add(config::parse_objects(&other).unwrap()).unwrap().changes.len(), 2);
        assert!(bench.core.view().port("vm8").up);
        // The same once more: it waits for the first.
        let again = scope.spawn(|| bench.core.add(config::parse_objects(VM2).unwrap()));
        bench.log.hang("");
        let done = [hangs.join().unwrap().unwrap(), again.join().unwrap().unwrap()];
        assert_eq!(done.iter().map(|done| done.changes.len()).sum::<usize>(), 1, "{done:?}");
    });
    assert_eq!(bench.log.take().iter().filter(|line| *line == "open vm2").count(), 1);
}

#[test]
fn a_tap_in_a_container_stays_there_when_its_guest_would_be_renamed() {
    let bench = start(FILE);
    let renamed = FILE.replace("vm1", "vm9");
    bench.log.set_elsewhere(&["t1"]);
    let said = bench.core.take_file(&renamed, false).unwrap_err().to_string();
    assert!(said.contains("tap t1") && said.contains("keep its name"), "{said}");
    assert_eq!(
        (bench.log.take().len(), bench.keys()),
        (2, vec!["network \"blue\"".to_owned(), "guest \"vm1\"".to_owned()])
    );
    bench.apply(&FILE.replace("t1", "t9"), false);
    bench.log.set_elsewhere(&[]);
    bench.apply(&renamed, false);
}
