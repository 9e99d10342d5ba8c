//! Changes as a whole: owners, ports that can't be opened, executors that refuse, restarts.

pub(crate) mod fake;
mod routes;

use super::*;
use fake::{FakeExecutor, FakePorts, Log};
use model::Lookup;
use std::path::Path;
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

struct Bench {
    core: Core,
    executor: Arc<FakeExecutor>,
    log: Log,
    dir: TempDir,
}

fn start_in(dir: TempDir, text: &str) -> Result<Bench, Error> {
    let (executor, log) = (Arc::new(FakeExecutor::default()), Log::default());
    let ports = Box::new(FakePorts::new(log.clone()));
    let store = Store::open(dir.path())?;
    let core = Core::start(config::parse(text)?, Path::new("/run/x").into(), store, executor.clone(), ports)?;
    Ok(Bench { core, executor, log, dir })
}

fn start(text: &str) -> Bench {
    start_in(tempfile::tempdir().unwrap(), text).unwrap_or_else(|e| panic!("{e}"))
}

fn route() -> Vec<Object> {
    config::parse_objects(ROUTE).unwrap()
}

impl Bench {
    fn has_route(&self, addr: &str) -> bool {
        self.executor.tables().route(model::Vrf(1), addr.parse().unwrap()).is_some()
    }

    fn keys(&self) -> Vec<String> {
        self.core.view().objects.iter().map(|(key, _)| key.to_string()).collect()
    }
}

#[test]
fn a_file_applied_twice_changes_nothing() {
    let bench = start(FILE);
    let more = format!("{FILE}{VM2}");
    assert_eq!(bench.core.apply(&more, true).unwrap().len(), 1, "a dry run tells");
    assert_eq!(bench.core.apply(&more, false).unwrap().len(), 1);
    assert_eq!(bench.core.apply(&more, true).unwrap(), []);
    assert_eq!(bench.core.apply(&more, false).unwrap(), []);
    assert_eq!(bench.log.take(), ["open vm1", "attach vm1", "open vm2", "attach vm2"]);
}

#[test]
fn changes_tell_which_keys() {
    let bench = start(FILE);
    let changes = bench.core.apply(&FILE.replace("t1", "t9"), false).unwrap();
    assert_eq!(changes[0].what, "change");
    assert_eq!(changes[0].details, ["device: \"t1\" -> \"t9\""]);
    assert_eq!(bench.log.take(), ["open vm1", "attach vm1", "detach vm1", "open vm1", "attach vm1"]);
}

#[test]
fn another_mtu_does_not_close_a_port() {
    let bench = start(FILE);
    bench.core.apply(&FILE.replace("vrf = 1", "vrf = 1\nmtu = 1400"), false).unwrap();
    assert_eq!(bench.log.take(), ["open vm1", "attach vm1", "update vm1"]);
    let id = bench.core.view().ids.vif("vm1").unwrap();
    assert_eq!(bench.executor.tables().vif(id).unwrap().mtu, 1400);
}

/// A guest with a port and a verbs device, and one with the latter alone.
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
        bench.core.apply(&format!("{FILE}{}", change(VERBS)), false).unwrap();
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
    bench.core.apply(&format!("{FILE}{renamed}"), false).unwrap();
    let expected =
        ["detach vm3:rdma", "open vm9", "open vm9:rdma", "attach vm9", "attach vm9:rdma", "detach vm3"];
    assert_eq!(bench.log.take()[before..], expected);
    // And the other way round: had it failed, the first would be open again.
    let before = bench.log.take().len();
    let refused = VERBS.replace("\"t3\"", "\"refused\"").replace("vm3", "vm5").replace("vm5.0", "vm3.0");
    assert!(bench.core.apply(&format!("{FILE}{refused}"), false).is_err());
    assert_eq!(bench.log.take()[before..], ["detach vm9:rdma", "open vm9:rdma", "attach vm9:rdma"]);
}

#[test]
fn a_port_that_cannot_be_opened_undoes_all() {
    let bench = start(FILE);
    let bad = format!("{}{}", FILE.replace("t1", "t9"), VM2.replace("t2", "refused"));
    let said = bench.core.apply(&bad, false).unwrap_err().to_string();
    assert!(said.contains("vm2") && said.contains("no such luck"), "{said}");
    assert_eq!(
        bench.log.take()[2..],
        ["detach vm1", "open vm1", "open vm1", "attach vm1"],
        "as it was before"
    );
    assert_eq!(bench.keys().len(), 2);
    assert_eq!(bench.core.apply(FILE, false).unwrap(), []);
}

#[test]
fn an_executor_that_refuses_undoes_all() {
    let bench = start(FILE);
    bench.executor.refuse(true);
    let said = bench.core.apply(&format!("{FILE}{VM2}"), false).unwrap_err().to_string();
    assert!(said.contains("at most"), "{said}");
    bench.executor.refuse(false);
    assert_eq!(bench.keys().len(), 2);
    let back = start_in(bench.dir, FILE).err().map(|e| e.to_string());
    assert!(back.is_some_and(|said| said.contains("in use")), "the first still has the store");
}

#[test]
fn apply_replaces_only_what_came_from_files() {
    let bench = start(FILE);
    bench.core.add(Owner::Api, route()).unwrap();
    assert!(bench.has_route("10.9.1.1"));
    bench.core.apply(FILE, false).unwrap();
    assert!(bench.has_route("10.9.1.1"));
    bench.core.remove(Owner::Api, &[route()[0].key()]).unwrap();
    assert!(!bench.has_route("10.9.1.1"));
}

#[test]
fn owners_keep_what_is_theirs() {
    let bench = start(&format!("{FILE}{ROUTE}"));
    let key = route()[0].key();
    let said = bench.core.remove(Owner::Api, std::slice::from_ref(&key)).unwrap_err().to_string();
    assert!(said.contains("comes from the host's file"), "{said}");
    bench.core.apply(FILE, false).unwrap();
    bench.core.add(Owner::Api, route()).unwrap();
    assert_eq!(bench.core.add(Owner::Api, route()).unwrap(), [], "the same again");
    assert_eq!(bench.core.apply(&format!("{FILE}{ROUTE}"), false).unwrap(), [], "the same, by a file");
    let differs = ROUTE.replace("\"drop\"", "{ guest = \"vm1\" }");
    let said = bench.core.apply(&format!("{FILE}{differs}"), false).unwrap_err().to_string();
    assert!(said.contains("belongs to api"), "{said}");
    let other = config::parse_objects(&ROUTE.replace("\"drop\"", "{ guest = \"vm1\" }")).unwrap();
    let said = bench.core.add(Owner::Api, other).unwrap_err().to_string();
    assert!(said.contains("is there already"), "{said}");
    assert!(bench.core.remove(Owner::Bgp, &[key]).unwrap_err().to_string().contains("belongs to api"));
}

#[test]
fn a_route_that_follows_from_another_object_says_from_which() {
    let bench = start(FILE);
    let remove = |name: &str| {
        let key = Key { kind: Kind::Route, network: Some("blue".into()), name: name.into() };
        bench.core.remove(Owner::Api, &[key]).unwrap_err().to_string()
    };
    assert!(remove("10.1.1.1/32").contains("is that of guest \"vm1\""));
    assert!(remove("10.1.1.254/32").contains("is that of network \"blue\""));
    assert!(remove("10.8.0.0/16").contains("there is no route"));
}

#[test]
fn what_others_need_cannot_be_removed() {
    let bench = start("[host]\nname = \"a\"\n");
    let objects = config::parse_objects(&FILE.replace("[host]\nname = \"a\"", "")).unwrap();
    let network = objects[0].key();
    bench.core.add(Owner::Api, objects).unwrap();
    let said = bench.core.remove(Owner::Api, &[network]).unwrap_err().to_string();
    assert!(said.contains("guest \"vm1\"") && said.contains("there is no network \"blue\""), "{said}");
}

#[test]
fn mistakes_in_a_file_have_their_lines() {
    let bench = start(FILE);
    let bad = format!("{FILE}{}", ROUTE.replace("blue", "bleu"));
    let line = bad.lines().position(|l| l.contains("bleu")).unwrap() + 1;
    let said = bench.core.apply(&bad, false).unwrap_err().to_string();
    assert!(said.contains(&format!("line {line}: ")) && said.contains("did you mean \"blue\""), "{said}");
}

#[test]
fn the_store_wins_over_the_file_at_start() {
    let Bench { core, dir, .. } = start(FILE);
    core.add(Owner::Api, route()).unwrap();
    drop(core);
    let bench = start_in(dir, &format!("{FILE}{VM2}")).unwrap_or_else(|e| panic!("{e}"));
    assert!(bench.has_route("10.9.1.1"));
    assert!(!bench.keys().iter().any(|key| key.contains("vm2")), "the file only seeds an empty store");
    assert_eq!(bench.core.apply(&format!("{FILE}{VM2}"), true).unwrap().len(), 1);
}

#[test]
fn another_hosts_file_is_refused() {
    let bench = start(FILE);
    let said =
        bench.core.apply(&FILE.replace("name = \"a\"", "name = \"b\""), false).unwrap_err().to_string();
    assert!(said.contains("host \"b\""), "{said}");
    let pinned = FILE.replace("name = \"a\"", "name = \"a\"\nworkers = [3]");
    assert!(bench.core.apply(&pinned, false).unwrap_err().to_string().contains("restart"));
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
