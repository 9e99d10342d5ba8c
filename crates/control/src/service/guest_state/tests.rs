//! Tests that exported state can be imported, and that other state is refused.

mod leases;

use super::*;
use crate::core::tests::fake::{FakeExecutor, FakePorts, Log};
use crate::core::tests::{FILE, VERBS, config_file};
use crate::matching::tests::flow;
use crate::store::Store;
use executor::Executor;

/// Starts a host with guest vm1, 10.1.1.1.
fn host() -> (Core, Arc<FakeExecutor>, tempfile::TempDir) {
    start(&format!("{FILE}{VERBS}"))
}

fn start(text: &str) -> (Core, Arc<FakeExecutor>, tempfile::TempDir) {
    start_in(tempfile::tempdir().unwrap(), text)
}

/// Starts a host whose store is in `dir`.
fn start_in(dir: tempfile::TempDir, text: &str) -> (Core, Arc<FakeExecutor>, tempfile::TempDir) {
    let executor = Arc::new(FakeExecutor::default());
    let ports = Arc::new(FakePorts::new(Log::default()));
    let (file, config) = (config::parse(text).unwrap(), config_file(dir.path(), text));
    let store = Store::open(dir.path()).unwrap();
    let core = Core::start(&file, config, "/run/x".into(), store, executor.clone(), ports, None).unwrap();
    (core, executor, dir)
}

/// Makes connections of vm1, and one of others.
fn flows(vif: VifId) -> Vec<FlowInfo> {
    let edge = Some(Edge { end: 7, ack: Some(9) });
    let tcp =
        Tcp { edges: [edge, None], windows: [9, 0], scales: [7, UNSCALED], reopen: Some(3), liberal: true };
    let opened = FlowInfo { tcp, charged: (vif, false), approximate: true, ..flow() };
    let key = FlowKey { protocol: proto::UDP, ..flow().key.reverse() };
    let answered = FlowInfo { key, charged: (vif, true), age: 9, idle: 8, ..flow() };
    let mut others = flow();
    others.key.src.addr = "10.1.1.3".parse().unwrap();
    vec![opened, answered, others]
}

fn import(core: &Core, parts: Vec<GuestState>) -> Result<v1::ImportGuestReply, Status> {
    let mut import = Import::new(core.view());
    parts.into_iter().try_for_each(|part| import.take(part))?;
    Ok(import.finish(core, Author::daemon("test"))?.1)
}

fn listed(executor: &FakeExecutor) -> Vec<FlowInfo> {
    let mut all = Vec::new();
    executor.flows(&mut |flow| {
        all.push(flow);
        true
    });
    all
}

/// Exports vm1 from a host.
fn exported() -> Vec<GuestState> {
    let (core, executor, _dir) = host();
    executor.enter_flows(&flows(core.view().ids.vif("vm1").unwrap()));
    export(&core, "vm1").unwrap()
}

#[test]
fn a_guests_connections_go_to_another_host() {
    let (core, executor, _dir) = host();
    let done = import(&core, exported()).unwrap();
    assert_eq!((done.connections, done.left_out), (2, vec![]));
    assert_eq!(listed(&executor), flows(core.view().ids.vif("vm1").unwrap())[..2]);
    assert!(export(&core, "vm9").unwrap_err().message().contains("no guest \"vm9\""));
}

#[test]
fn what_is_on_no_network_of_this_host_is_left_out() {
    let (core, executor, _dir) = host();
    let mut parts = exported();
    parts[1].connections[0].destination_network = "red".to_owned();
    let done = import(&core, parts).unwrap();
    assert_eq!((done.connections, done.left_out[0].count, listed(&executor).len()), (1, 1, 1));
}

#[test]
fn an_entry_that_is_wrong_costs_all() {
    type Spoil = fn(&mut Vec<GuestState>);
    let spoiled: [(&str, Spoil); 14] = [
        ("version 2; this daemon reads 1", |parts| parts[0].version = 2),
        ("no guest \"vm9\"", |parts| parts[0].guest = "vm9".to_owned()),
        ("there is no guest's state in it", Vec::clear),
        ("connection 2: 10.1.1.2 is not the guest's", |parts| parts[1].connections[1].opened = true),
        ("\"x\" is no address", |parts| parts[1].connections[0].source = "x".to_owned()),
        ("224.0.0.1 is no address of a connection", |parts| {
            parts[1].connections[0].destination = "224.0.0.1".to_owned();
        }),
        ("of different families", |parts| parts[1].connections[0].destination = "fd00::1".to_owned()),
        ("65536 is no port", |parts| parts[1].connections[0].source_port = 65536),
        ("256 is no protocol", |parts| parts[1].connections[0].protocol = 256),
        ("\"open\" is no state", |parts| parts[1].connections[0].state = "open".to_owned()),
        ("16 is no set of", |parts| parts[1].connections[0].seen = 16),
        ("each connection of TCP", |parts| parts[1].connections[0].tcp = None),
        ("16 is no shift", |parts| {
            let tcp = parts[1].connections[0].tcp.as_mut().unwrap();
            tcp.opener.as_mut().unwrap().scale = 16;
        }),
        ("MAC 1: 02:00:00:00:00:02 is not the guest's", |parts| {
            parts[0].macs.push(GuestMac { network: "blue".to_owned(), mac: "02:00:00:00:00:02".to_owned() });
        }),
    ];
    for (why, spoil) in spoiled {
        let (core, executor, _dir) = host();
        let mut parts = exported();
        spoil(&mut parts);
        let refused = import(&core, parts).unwrap_err();
        assert!(refused.message().contains(why), "{why}: {}", refused.message());
        assert!(listed(&executor).is_empty(), "{why}");
    }
}

#[test]
fn a_guest_whose_verbs_device_is_in_use_stays() {
    let (core, ..) = host();
    let refused = export(&core, "vm3").unwrap_err();
    assert!(refused.message().contains("programs use the verbs device of guest \"vm3\""), "{refused}");
}

/// Every imported connection has an end that is the guest's and can go on from here; what is refused leaves
/// nothing.
#[test]
fn any_state_is_imported_or_refused() {
    let valid = exported();
    let (core, executor, _dir) = host();
    let subject = Subject::of(&core.view(), guest_of(&core.view(), "vm1").unwrap()).unwrap();
    let target = std::panic::AssertUnwindSafe((core, executor, subject));
    bolero::check!().with_type::<(Vec<u8>, Vec<(u8, u32)>)>().for_each(|(bytes, picks)| {
        let (core, executor, subject) = &*target;
        let parts = api::state_file::read(&mut &bytes[..]).unwrap_or_else(|_| {
            let mut parts = valid.clone();
            picks.iter().for_each(|(field, value)| change(&mut parts, *field, *value));
            parts
        });
        executor.forget();
        match import(core, parts) {
            Ok(done) => {
                let flows = listed(executor);
                assert_eq!(done.connections, flows.len() as u64);
                assert!(flows.iter().all(|flow| subject.has(&flow.key.src) || subject.has(&flow.key.dst)));
                let again: usize =
                    export(core, "vm1").unwrap().iter().map(|part| part.connections.len()).sum();
                assert_eq!(again, flows.len());
            }
            Err(refused) => assert!(!refused.message().is_empty() && listed(executor).is_empty()),
        }
    });
}

fn change(parts: &mut [GuestState], field: u8, value: u32) {
    let texts =
        ["blue", "red", "10.1.1.1", "10.1.1.2", "fd00::1", "::", "established", "new", "02:00:00:00:00:01"];
    let text = texts[value as usize % texts.len()].to_owned();
    let connections = parts[1].connections.len();
    let of = &mut parts[1].connections[usize::from(field / 32) % connections];
    match field % 32 {
        0 => of.network = text,
        1 => of.destination_network = text,
        2 => of.source = text,
        3 => of.destination = text,
        4 => of.state = text,
        5 => of.source_port = value,
        6 => of.destination_port = value,
        7 => of.protocol = value,
        8 => of.seen = value,
        9 => of.tcp = None,
        10 => of.opened = value % 2 == 1,
        11 => (of.age, of.idle) = (value, value.rotate_left(16)),
        12 => of.bytes = u64::from(value) << 32,
        13 => of.tcp.get_or_insert_default().opener.get_or_insert_default().scale = value,
        14 => of.tcp.get_or_insert_default().answerer.get_or_insert_default().window = value,
        15 => of.tcp.get_or_insert_default().answerer = None,
        16 => of.tcp.get_or_insert_default().opener.get_or_insert_default().end = None,
        17 => parts[0].version = value,
        18 => parts[0].guest = text,
        19 => parts[0].macs.push(GuestMac { network: "blue".to_owned(), mac: text }),
        21 => {
            let lease = GuestLease { network: "blue".to_owned(), mac: None, addresses: vec![text] };
            parts[0].lease = Some(lease);
        }
        20 => parts[0].macs.push(GuestMac { network: text, mac: "02:00:00:00:00:01".to_owned() }),
        _ => {}
    }
}
