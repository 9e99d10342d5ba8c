//! Sends requests of any kind and content, one after the other, to one host. Each is done as a whole or
//! refused and not done, and the store always equals what is in force.

use super::*;
use crate::core::tests::fake::{FakeExecutor, FakePorts, Log};
use crate::core::tests::{FILE, VERBS, config_file};
use crate::matching::Matching;
use crate::matching::tests::flow;
use crate::packet_text;
use crate::store::Store;
use model::{Network, VifId};
use prost::Message;
use serde::de::DeserializeOwned;
use std::path::Path;
use tokio::runtime::Runtime;

/// Keys and values of objects: correct ones, and nearly correct ones.
const LINES: [&str; 70] = [
    "name = \"vm1\"",
    "name = \"vm2\"",
    "name = \"blue\"",
    "name = \"red\"",
    "name = \"up0\"",
    "name = \"a/../b\"",
    "network = \"blue\"",
    "network = \"red\"",
    "outside_network = \"red\"",
    "vrf = 1",
    "vrf = 2",
    "vrf = 65536",
    "vni = 5001",
    "vni = 16777216",
    "kind = \"tap\"",
    "kind = \"vhost\"",
    "kind = \"rdma\"",
    "driver = \"af-packet\"",
    "driver = \"tap\"",
    "device = \"t1\"",
    "device = \"t2\"",
    "device = \"refused\"",
    "socket = \"vm1.sock\"",
    "socket = \"/../x\"",
    "role = \"client\"",
    "queues = 3",
    "queues = 0",
    "mac = \"02:00:00:00:00:01\"",
    "mac = \"02:00:00:00:00:02\"",
    "mac = \"ff:ff:ff:ff:ff:ff\"",
    "addresses = [\"10.1.1.2\"]",
    "addresses = [\"10.1.1.1\", \"fd00:1::1\"]",
    "addresses = [\"192.0.2.1/24\"]",
    "gateways = [\"10.1.1.254/24\"]",
    "gateways = [\"0.0.0.0/0\", \"::/128\"]",
    "gateway = [\"192.0.2.254\"]",
    "allowed = [\"10.7.0.0/16\"]",
    "macs = [\"00:00:5e:00:01:05\"]",
    "vlans = [{ tag = 4095, network = \"red\", addresses = [\"10.2.2.1\"], allowed = [] }]",
    "prefix = \"10.9.0.0/16\"",
    "prefix = \"0.0.0.0/0\"",
    "prefix = \"10.9.0.1/16\"",
    "inside = \"10.1.1.1\"",
    "outside = \"203.0.113.7\"",
    "to = [{ drop = true }]",
    "to = [{ guest = \"vm1\" }]",
    "to = [{ network = \"blue\" }, { nexthop = \"red\" }]",
    "to = [{ tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 100 }]",
    "to = [{ tunnel = \"vxlan\", remote = \"192.0.2.2\", vni = 5001, mac = \"02:00:00:00:00:03\" }]",
    "to = { guest = \"vm1\" }",
    "to = { cidr = \"10.1.1.0/24\" }",
    "from = { guest = \"vm1\", cidr = \"10.1.1.0/24\" }",
    "label = 100",
    "label = 1048576",
    "rate = { mbps = 0, burst_kb = 4294967295 }",
    "shape = { in = { mbps = 100000 }, out = { mbps = 1, guaranteed_mbps = 1 } }",
    "dscp = \"af41\"",
    "dscp = \"64\"",
    "mirror = \"vm1\"",
    "policy = false",
    "rdma = \"vm1.0\"",
    "rdma_limits = { qps = 0, mrs = 4294967295 }",
    "mtu = 67",
    "wire = \"up0\"",
    "driver = \"vxlan\"\nmode = \"ovs\"\nremote = \"192.0.2.9\"\nvni = 5001",
    "driver = \"geneve\"\nmode = \"ovs\"\nremote = \"::9\"\nvni = 9",
    "vlan = 4095",
    "priority = 7",
    "protocol = \"256\"",
    "ports = \"80-79\"",
];

const ACTIONS: [&str; 5] = ["drop", "allow", "police:4294967296", "mirror:vm1", ""];
const KINDS: usize = 14;

/// Makes a message from the keys that `picks` names, if they make one.
fn filled<T: DeserializeOwned>(picks: &[u8]) -> Option<T> {
    let mut keys = toml::Table::new();
    for pick in picks {
        keys.extend(LINES[usize::from(*pick) % LINES.len()].parse::<toml::Table>().ok()?);
    }
    let action = ACTIONS[picks.len() % ACTIONS.len()];
    keys.insert("action".to_owned(), action.into());
    for must in [
        "name",
        "network",
        "guest",
        "kind",
        "driver",
        "device",
        "prefix",
        "mac",
        "inside",
        "outside",
        "outside_network",
    ] {
        keys.entry(must).or_insert_with(|| "".into());
    }
    for must in ["vrf", "vni", "label", "priority"] {
        keys.entry(must).or_insert(1.into());
    }
    for must in ["addresses", "gateways", "gateway", "allowed", "macs", "vlans"] {
        keys.entry(must).or_insert_with(|| toml::Value::Array(Vec::new()));
    }
    keys.try_into().ok()
}

fn object(kind: u8, picks: &[u8]) -> v1::Object {
    use v1::object::Object as O;
    let object = match usize::from(kind) % (KINDS + 1) {
        0 => filled(picks).map(O::Wire),
        1 => filled(picks).map(O::Network),
        2 => filled(picks).map(O::Guest),
        3 => filled(picks).map(O::Nexthop),
        4 => filled(picks).map(O::Route),
        5 => filled(picks).map(O::Mac),
        6 => filled(picks).map(O::Flood),
        7 => filled(picks).map(O::Nat),
        8 => filled(picks).map(O::Rule),
        9 => filled(picks).map(O::Default),
        10 => filled(picks).map(O::Mpls),
        11 => filled(picks).map(O::Vxlan),
        12 => filled(picks).map(O::Forward),
        13 => filled(picks).map(O::Lease),
        _ => None,
    };
    v1::Object { object }
}

/// The content of a turn: a request by number, its bytes, or the data from which to pick its parts.
type Turn = (u8, bool, Vec<Vec<u8>>);

struct Target {
    service: Service,
    executor: Arc<FakeExecutor>,
    runtime: Runtime,
    state: tempfile::TempDir,
}

/// Makes a directory, in memory if possible, since every change is written.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn start(state: &Path, executor: &Arc<FakeExecutor>) -> Arc<Core> {
    let text = format!("{FILE}{VERBS}");
    let (file, config) = (config::parse(&text).unwrap(), config_file(state, &text));
    let ports = Arc::new(FakePorts::new(Log::default()));
    let store = Store::open(state).unwrap();
    let core = Core::start(&file, config, "/run/x".into(), store, executor.clone(), ports, None);
    Arc::new(core.unwrap_or_else(|e| panic!("{e}")))
}

impl Target {
    fn new() -> Self {
        let (state, executor) = (directory(), Arc::new(FakeExecutor::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let service = Service {
            core: start(state.path(), &executor),
            sandbox: Sandbox::default(),
            missing: Default::default(),
            answers: Default::default(),
        };
        Self { service, executor, runtime, state }
    }

    /// Returns the objects, and the tables made of them.
    fn in_force(&self) -> (String, String) {
        (objects(&self.service.core), format!("{:?}", self.executor.tables()))
    }

    /// Sends one request that does not change anything; it is answered or refused. Captures have no end;
    /// their expressions are tried below.
    fn ask(&self, number: u8, bytes: &[u8]) {
        macro_rules! asked {
            ($($method:ident: $request:ty),*) => {{
                let mut methods = [$(stringify!($method)),*].into_iter().cycle();
                let chosen = methods.nth(usize::from(number)).unwrap_or_default();
                $(if chosen == stringify!($method) && let Ok(request) = <$request>::decode(bytes) {
                    let _ = self.runtime.block_on(self.service.$method(Request::new(request)));
                })*
            }};
        }
        asked!(
            objects: v1::ObjectsRequest, table: v1::TableRequest, status: v1::StatusRequest, stats: v1::StatsRequest,
            drop_stats: v1::DropStatsRequest, rdma: v1::RdmaRequest, flows: v1::FlowsRequest,
            flush_flows: v1::FlushFlowsRequest, explain: v1::ExplainRequest,
            history: v1::HistoryRequest
        );
    }

    /// Sends one request that may change something; returns whether it was done.
    fn change(&self, number: u8, from_bytes: bool, content: &[Vec<u8>]) -> bool {
        let first = content.first().map_or(&[][..], Vec::as_slice);
        let run = &self.runtime;
        match number % 5 {
            0 => {
                let picked =
                    || content.iter().map(|c| object(*c.first().unwrap_or(&0), c.get(1..).unwrap_or(&[])));
                let request = match v1::AddRequest::decode(first) {
                    Ok(request) if from_bytes => request,
                    _ => v1::AddRequest { objects: picked().collect() },
                };
                run.block_on(self.service.add(Request::new(request))).is_ok()
            }
            1 => {
                let key = |c: &Vec<u8>| self.key_of(c.first().copied().unwrap_or_default());
                let request = match v1::RemoveRequest::decode(first) {
                    Ok(request) if from_bytes => request,
                    _ => v1::RemoveRequest { keys: content.iter().filter_map(key).collect() },
                };
                run.block_on(self.service.remove(Request::new(request))).is_ok()
            }
            2 => {
                let request = match v1::TransactRequest::decode(first) {
                    Ok(request) if from_bytes => request,
                    _ => self.transaction(content),
                };
                let dry_run = request.dry_run;
                run.block_on(self.service.transact(Request::new(request))).is_ok() && !dry_run
            }
            3 => {
                let revision = content.first().map(|c| c.len() as u64 % 8);
                run.block_on(self.service.rollback(Request::new(v1::RollbackRequest { revision }))).is_ok()
            }
            _ => {
                let dry_run = content.len() % 4 == 3;
                let toml =
                    if from_bytes { String::from_utf8_lossy(first).into_owned() } else { file_of(first) };
                let done = run.block_on(self.service.apply(Request::new(v1::ApplyRequest {
                    toml,
                    dry_run,
                    ..Default::default()
                })));
                done.is_ok() && !dry_run
            }
        }
    }

    /// Makes steps of each kind, on existing objects and on others.
    fn transaction(&self, content: &[Vec<u8>]) -> v1::TransactRequest {
        use v1::operation::Operation as O;
        let step = |c: &Vec<u8>| {
            let (pick, rest) = (c.first().copied().unwrap_or_default(), c.get(1..).unwrap_or(&[]));
            let object = object(pick / 4, rest);
            let key = self.key_of(pick / 4);
            let operation = match pick % 4 {
                0 => O::Create(object),
                1 => O::Put(object),
                2 => {
                    let fields = rest.iter().map(|line| LINES[usize::from(*line) % LINES.len()]);
                    let fields =
                        fields.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
                    O::Patch(v1::Patch { key, object: Some(object), fields })
                }
                _ => O::Delete(v1::Delete { key, allow_missing: pick % 8 == 3 }),
            };
            v1::Operation { operation: Some(operation) }
        };
        let operations = content.iter().map(step).collect();
        v1::TransactRequest { operations, take_over: content.len() % 2 == 1, ..Default::default() }
    }

    /// Picks the key of an existing object.
    fn key_of(&self, pick: u8) -> Option<v1::Key> {
        let view = self.service.view();
        let key = view.objects.listed().map(crate::owner::Listed::key).nth(usize::from(pick) % 8)?;
        let kind = v1::Kind::from_str_name(&format!("KIND_{}", key.kind.name().to_uppercase()))?;
        Some(v1::Key { kind: kind.into(), network: key.network, name: key.name })
    }
}

fn objects(core: &Core) -> String {
    let view = core.view();
    let objects = view.objects.in_order();
    objects.iter().map(|of| format!("{} {:?}\n", of.owner().name(), of.owned().object)).collect()
}

/// Describes the networks with the names of their members, because numbers depend on history.
fn networks(core: &Core) -> String {
    let view = core.view();
    let line = |network: &Network| {
        let mut members: Vec<_> = network.members.iter().map(|vif| view.vif_name(*vif)).collect();
        members.sort();
        let wire = network.wire.map(|wire| (view.vif_name(wire.vif), wire.vlan));
        let numberless = Network { members: Vec::new(), flood: Vec::new(), wire: None, ..network.clone() };
        format!("{numberless:?} {members:?} {wire:?} {} tunnels\n", network.flood.len())
    };
    view.tables.networks.values().map(line).collect()
}

/// Makes the host's file with some of its lines left out or replaced.
fn file_of(picks: &[u8]) -> String {
    let mut lines: Vec<&str> = FILE.lines().chain(VERBS.lines()).collect();
    for pick in picks.chunks_exact(2) {
        let at = usize::from(pick[0]) % lines.len();
        match usize::from(pick[1]) % (LINES.len() + 1) {
            0 => drop(lines.remove(at)),
            line => lines.insert(at, LINES[line - 1]),
        }
    }
    lines.join("\n")
}

/// A refused request changes nothing; a daemon that starts now finds what was done.
#[test]
fn any_requests_are_done_or_refused() {
    bolero::check!().with_type::<Vec<Turn>>().for_each(|turns| {
        let target = Target::new();
        for (number, from_bytes, content) in turns {
            // The executor has limits, too.
            target.executor.refuse(number % 8 == 7);
            let before = target.in_force();
            if *number < 128 {
                let done = target.change(number / 8, *from_bytes, content);
                assert!(done || target.in_force() == before, "refused, and yet something changed");
            } else {
                content.iter().for_each(|bytes| target.ask(*number, bytes));
                assert_eq!(target.in_force(), before);
            }
        }
        let Target { service, state, executor, .. } = target;
        let kept = (objects(&service.core), networks(&service.core));
        drop(service);
        executor.refuse(false);
        let fresh = start(state.path(), &Arc::default());
        assert_eq!((objects(&fresh), networks(&fresh)), kept, "what is stored is what was in force");
    });
}

/// Words of both languages, and what may stand between them.
const WORDS: [&str; 47] = [
    "10.1.1.1",
    "10.1.1.254",
    "fd00:1::1",
    "0.0.0.0/0",
    "10.1.0.0/16",
    "::",
    "02:00:00:00:00:01",
    ">",
    "/",
    "&",
    " ",
    "",
    "eth",
    "vlan",
    "arp",
    "ip4",
    "ip6",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "mpls",
    "vxlan",
    "gre",
    "roce",
    "nd",
    "hex",
    "echo",
    "request",
    "reply",
    "syn",
    "ack",
    "seq",
    "ttl",
    "frag",
    "id",
    "proto",
    "port",
    "network",
    "host",
    "blue",
    "dropped",
    "established",
    "0",
    "80",
    "65536",
    "-1",
];

/// Makes a text of any kind, or of words of the languages.
fn text_of((words, bytes): &(bool, Vec<u8>)) -> String {
    if !words {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let word = |byte: &u8| WORDS[usize::from(*byte) % WORDS.len()];
    bytes.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A text is a packet that can be explained, or is refused.
#[test]
fn any_text_is_a_packet_or_refused() {
    let state = directory();
    let core = start(state.path(), &Arc::new(FakeExecutor::default()));
    // Nothing in it changes.
    let view = std::panic::AssertUnwindSafe(core.view());
    bolero::check!().with_type::<(bool, Vec<u8>)>().for_each(|input| {
        let view = &*view;
        for ingress in [VifId(0), VifId(1), VifId(u16::MAX)] {
            if let Ok(frame) = packet_text::frame(view, ingress, &text_of(input)) {
                let explained = view.executor.explain(ingress, &frame, None);
                assert!(!explained.decision.verdict.to_string().is_empty());
                // The text shown for a packet is never empty.
                let shown = model::text::show(&frame);
                assert!(!shown.is_empty(), "{frame:x?}");
            }
        }
    });
}

/// A text selects connections and packets, or is refused.
#[test]
fn any_text_is_an_expression_or_refused() {
    let flow = flow();
    bolero::check!().with_type::<(bool, Vec<u8>)>().for_each(|input| {
        let text = text_of(input);
        if let Ok(matching) = Matching::parse(&text) {
            let matched = matching.flow(&flow, [None; 2], |_| "blue".to_owned());
            // Every term restricts: what matches with one more term matches without it.
            if let Ok(more) = Matching::parse(&format!("{text} & 10.1.1.1")) {
                assert!(matched || !more.flow(&flow, [None; 2], |_| "blue".to_owned()));
            }
            let _ = matching.capture(None, 96);
        }
    });
}
