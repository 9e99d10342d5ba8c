mod descriptors;
mod lists;

use super::*;
use crate::core::tests::fake::{FakeExecutor, FakePorts, Log};
use crate::core::tests::{FILE as HOST, VERBS, config_file};
use crate::store::Store;
use api::v1::viaduct_client::ViaductClient;
use api::v1::{self, Kind, RdmaTable, TableName};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

const RULE: &str = r#"
[[rule]]
network = "blue"
priority = 7
protocol = "udp"
action = "drop"
"#;

async fn client(run_dir: &Path) -> ViaductClient<Channel> {
    client_of(api::socket(run_dir)).await
}

async fn client_of(socket: PathBuf) -> ViaductClient<Channel> {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    ViaductClient::new(Endpoint::from_static("http://x").connect_with_connector(connector).await.unwrap())
}

fn file() -> String {
    [HOST, RULE].concat()
}

/// Serves the host in a run-dir while `test` runs.
async fn with_server<F: Future<Output = ()>>(test: impl FnOnce(tempfile::TempDir) -> F) {
    with_server_of(FakeExecutor::default(), test).await;
}

/// Serves the host with this executor while `test` runs.
async fn with_server_of<F: Future<Output = ()>>(
    executor: FakeExecutor,
    test: impl FnOnce(tempfile::TempDir) -> F,
) {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run_dir = RunDir::take(dir.path()).unwrap();
    let api = std::os::unix::net::UnixListener::bind(api::socket(dir.path())).unwrap().into();
    let readers = std::os::unix::net::UnixListener::bind(api::readers_socket(dir.path())).unwrap();
    let readers = Some(readers.into());
    let metrics = Some((std::net::TcpListener::bind("127.0.0.1:0").unwrap(), Process::open().unwrap()));
    let sandbox = Sandbox { report: sandbox::Report { landlock: 6, ..Default::default() }, helper: Some(7) };
    let ports = Arc::new(FakePorts::new(Log::default()));
    let core = Core::start(
        &config::parse(&file()).unwrap(),
        config_file(state.path(), &file()),
        dir.path().to_owned(),
        Store::open(state.path()).unwrap(),
        Arc::new(executor),
        ports,
        None,
    );
    let core = Arc::new(core.unwrap_or_else(|e| panic!("{e}")));
    let ((ready, is_ready), (stop, stopped)) = (oneshot::channel(), oneshot::channel::<()>());
    let server = tokio::spawn(async move {
        let told = || ready.send(()).unwrap();
        let stopped = async { stopped.await.unwrap_or_default() };
        let _run_dir = run_dir;
        serve(core, Listeners { api, readers, metrics, missing: Missing::default() }, sandbox, told, stopped)
            .await
    });
    is_ready.await.unwrap();
    test(dir).await;
    stop.send(()).unwrap();
    server.await.unwrap().unwrap();
}

#[test]
fn a_run_dir_where_the_daemon_may_not_write_is_told_with_the_way_out() {
    let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let said = super::in_run_dir(std::path::Path::new("/run/viaduct"), Err::<(), _>(denied))
        .unwrap_err()
        .to_string();
    assert!(
        said.starts_with("run-dir /run/viaduct: ") && said.contains("as root, or give it a --run-dir"),
        "{said}"
    );
}

#[test]
fn a_file_in_the_place_of_the_run_dir_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let said = RunDir::take(file.path()).err().unwrap().to_string();
    assert!(said.contains("is no directory: remove what is there"), "{said}");
}

#[tokio::test]
async fn one_daemon_to_a_run_dir() {
    with_server(|dir| async move {
        let refused = RunDir::take(dir.path()).err().unwrap().to_string();
        assert!(refused.contains(&dir.path().display().to_string()), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn objects_come_and_go() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let target = v1::Target { drop: Some(true), ..v1::Target::default() };
        let route = v1::Route { network: "blue".into(), prefix: "10.9.0.0/16".into(), to: vec![target] };
        let object = v1::Object { object: Some(v1::object::Object::Route(route.clone())) };
        let add = v1::AddRequest { objects: vec![object] };
        assert_eq!(client.add(add.clone()).await.unwrap().into_inner().changes.len(), 1);
        assert_eq!(client.add(add).await.unwrap().into_inner().changes.len(), 0);

        let request = v1::ObjectsRequest { kind: Kind::Route.into(), network: None, users: false };
        let objects = client.objects(request).await.unwrap().into_inner().objects;
        assert_eq!((objects.len(), objects[0].owner.as_str()), (1, "api"));

        let request = v1::TableRequest { table: TableName::Route.into(), network: Some("blue".into()) };
        let routes = client.table(request).await.unwrap().into_inner().routes;
        let entry = routes.iter().find(|entry| entry.prefix == "10.9.0.0/16").unwrap();
        assert_eq!((entry.text.as_str(), entry.owner.as_str()), ("discard", "api"));

        let key = |name: &str| v1::Key {
            kind: Kind::Route.into(),
            network: Some("blue".into()),
            name: name.into(),
        };
        let remove = |key| v1::RemoveRequest { keys: vec![key] };
        let missing = client.remove(remove(key("10.8.0.0/16"))).await.unwrap_err();
        assert_eq!(missing.code(), tonic::Code::NotFound);
        assert_eq!(client.remove(remove(key("10.9.0.0/16"))).await.unwrap().into_inner().changes.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn readers_see_and_change_nothing() {
    with_server(|dir| async move {
        let mut client = client_of(api::readers_socket(dir.path())).await;
        assert!(client.status(v1::StatusRequest {}).await.is_ok());
        let all = v1::ObjectsRequest { kind: Kind::Unspecified.into(), network: None, users: false };
        let before = client.objects(all.clone()).await.unwrap().into_inner().objects;
        assert!(!before.is_empty());
        let apply = |dry_run| v1::ApplyRequest { toml: HOST.to_owned(), dry_run, ..Default::default() };
        let route =
            v1::Route { network: "blue".into(), prefix: "10.9.0.0/16".into(), ..v1::Route::default() };
        let object = v1::Object { object: Some(v1::object::Object::Route(route)) };
        let key = v1::Key { kind: Kind::Guest.into(), network: None, name: "vm1".into() };
        let verbs = |table: RdmaTable| v1::RdmaRequest { table: table.into(), device: None };
        let refused = [
            client.apply(apply(false)).await.unwrap_err(),
            client.apply(apply(true)).await.unwrap_err(),
            client.add(v1::AddRequest { objects: vec![object] }).await.unwrap_err(),
            client.remove(v1::RemoveRequest { keys: vec![key] }).await.unwrap_err(),
            client.flush_flows(v1::FlushFlowsRequest::default()).await.unwrap_err(),
            client.capture(v1::CaptureRequest::default()).await.unwrap_err(),
            client.rdma(verbs(RdmaTable::Mr)).await.unwrap_err(),
        ];
        assert!(client.rdma(verbs(RdmaTable::Qp)).await.is_ok());
        assert!(refused.iter().all(|status| status.code() == tonic::Code::PermissionDenied), "{refused:?}");
        assert!(refused[0].message().contains("apply needs") && refused[1].message().contains("diff needs"));
        assert_eq!(client.objects(all.clone()).await.unwrap().into_inner().objects, before);
        // They see how long a guest's user data and a secret are.
        let guest = v1::Guest {
            name: "told".into(),
            network: "blue".into(),
            kind: "vhost".into(),
            user_data: Some("p4sswd".into()),
            ..v1::Guest::default()
        };
        let network = v1::Network {
            name: "asked".into(),
            vrf: 77,
            gateways: vec!["10.77.0.1/24".into()],
            metadata: Some(true),
            metadata_proxy: Some("192.0.2.9:8775".into()),
            metadata_secret: Some("p4sswd".into()),
            ..Default::default()
        };
        let objects = [v1::object::Object::Network(network), v1::object::Object::Guest(guest)];
        let objects = objects.map(|object| v1::Object { object: Some(object) }).to_vec();
        let mut owner = client_of(api::socket(dir.path())).await;
        let mut watched = client.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
        owner.add(v1::AddRequest { objects }).await.unwrap();
        let all = || all.clone();
        let said = [
            format!("{:?}", client.objects(all()).await.unwrap().into_inner()),
            format!(
                "{:?}",
                client.stream_objects(all()).await.unwrap().into_inner().message().await.unwrap()
            ),
            client.export(v1::ExportRequest {}).await.unwrap().into_inner().toml,
            format!("{:?}", watched.message().await.unwrap()),
        ];
        assert!(said.iter().all(|text| text.contains("(6 bytes)") && !text.contains("p4sswd")), "{said:?}");
        assert!(owner.export(v1::ExportRequest {}).await.unwrap().into_inner().toml.contains("p4sswd"));
    })
    .await;
}

/// A refusal that repeats long input is cut, because it travels in a header.
#[tokio::test]
async fn long_nonsense_is_refused_in_short() {
    with_server(|dir| async move {
        let mut client = client_of(api::readers_socket(dir.path())).await;
        let long = "x".repeat(900_000);
        let text = Some(v1::explain_request::Packet::Text(long.clone()));
        let frame = Some(v1::explain_request::Packet::Frame(vec![0; 900_000]));
        let explain = |interface: &str, packet| v1::ExplainRequest { interface: interface.into(), packet };
        let table = v1::TableRequest { table: TableName::Route.into(), network: Some(long.clone()) };
        let refused = [
            client.explain(explain("vm1", text)).await.unwrap_err(),
            client.explain(explain("vm1", frame)).await.unwrap_err(),
            client.explain(explain(&long, None)).await.unwrap_err(),
            client.table(table).await.unwrap_err(),
            client.flows(v1::FlowsRequest { r#match: long }).await.unwrap_err(),
        ];
        for status in refused {
            let is_plain = matches!(status.code(), tonic::Code::InvalidArgument | tonic::Code::NotFound);
            assert!(
                is_plain && status.message().len() <= 8192,
                "{:?} {}",
                status.code(),
                status.message().len()
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_file_of_nonsense_is_refused_with_reasons() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let toml = file().replace("vrf = 1", "vfr = 1");
        let refused =
            client.apply(v1::ApplyRequest { toml, dry_run: false, ..Default::default() }).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains("did you mean `vrf`?"), "{refused}");
        let same = client
            .apply(v1::ApplyRequest { toml: file(), dry_run: true, ..Default::default() })
            .await
            .unwrap();
        assert_eq!(same.into_inner().changes, []);
    })
    .await;
}

#[tokio::test]
async fn a_thousand_mistakes_still_make_an_answer() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let route = "[[route]]\nnetwork = \"nowhere\"\nprefix = \"10.9.0.0/16\"\nto = \"drop\"\n";
        let toml = file() + &route.repeat(1000);
        let refused =
            client.apply(v1::ApplyRequest { toml, dry_run: false, ..Default::default() }).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains("nowhere") && refused.message().contains(" more; "), "{refused}");
        let problems = refused.get_details_bad_request().unwrap().field_violations;
        assert!(problems.len() > 1 && problems[0].field.contains("10.9.0.0/16"), "{problems:?}");
        assert!(refused.message().len() + refused.details().len() * 4 / 3 < 8000, "clients take no more");
    })
    .await;
}

#[tokio::test]
async fn a_refusal_tells_programs_which_operation() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let network = |name: &str, vrf| {
            let network = v1::Network { name: name.to_owned(), vrf, ..Default::default() };
            let object = v1::Object { object: Some(v1::object::Object::Network(network)) };
            v1::Operation { operation: Some(v1::operation::Operation::Put(object)) }
        };
        let delete = |name: &str| {
            let key = v1::Key { kind: Kind::Network.into(), network: None, name: name.to_owned() };
            v1::Operation {
                operation: Some(v1::operation::Operation::Delete(v1::Delete {
                    key: Some(key),
                    allow_missing: false,
                })),
            }
        };
        let cases = [
            (vec![network("red", 2), v1::Operation::default()], "INVALID", Some("1")),
            (vec![network("red", 2), network("green", 0)], "INVALID", Some("1")),
            (vec![network("red", 2), delete("nowhere")], "NOT_FOUND", Some("1")),
            // Together with the file's network.
            (vec![network("green", 3), network("red", 1)], "INVALID", Some("1")),
        ];
        for (operations, reason, operation) in cases {
            let request = v1::TransactRequest { operations, ..Default::default() };
            let refused = client.transact(request.clone()).await.unwrap_err();
            let about = refused.get_details_error_info().unwrap();
            assert_eq!((&*about.domain, &*about.reason), ("viaduct", reason), "{request:?} {refused:?}");
            assert_eq!(
                about.metadata.get("operation").map(String::as_str),
                operation,
                "{request:?} {refused:?}"
            );
        }
        let request = v1::TransactRequest { expected_revision: Some(9), ..Default::default() };
        let about = client.transact(request).await.unwrap_err().get_details_error_info().unwrap();
        assert_eq!((&*about.reason, &*about.metadata["expected"]), ("OTHER_REVISION", "9"));
    })
    .await;
}

#[tokio::test]
async fn rules_are_named_by_their_ids() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let request = v1::TableRequest { table: TableName::Rule.into(), network: None };
        let rules = client.table(request).await.unwrap().into_inner().rules;
        assert_eq!((rules[0].priority, rules[0].action.as_str()), (7, "drop"));
        let key =
            v1::Key { kind: Kind::Rule.into(), network: Some("blue".into()), name: rules[0].id.to_string() };
        let refused = client.remove(v1::RemoveRequest { keys: vec![key] }).await.unwrap_err();
        assert!(refused.message().contains("7 drop udp"), "found by its id, but the file's: {refused}");
    })
    .await;
}

#[tokio::test]
async fn packets_in_words_are_explained() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let mut explain = async |text: &str| {
            let packet = Some(v1::explain_request::Packet::Text(text.to_owned()));
            client.explain(v1::ExplainRequest { interface: "vm1".into(), packet }).await
        };
        let pinged = explain("10.1.1.1 > 10.1.1.254").await.unwrap().into_inner();
        assert_eq!(pinged.verdict, "reply", "{pinged:?}");
        assert!(
            pinged.packet.starts_with("eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 "),
            "{}",
            pinged.packet
        );
        let spoofed = explain("10.1.1.9 > 10.1.1.254 / tcp 1 > 80 syn").await.unwrap().into_inner();
        assert_eq!(spoofed.decision[0], "drop address_spoofed");
        assert_eq!((&*spoofed.verdict, spoofed.reason.as_deref()), ("drop", Some("address_spoofed")));
        assert!(spoofed.egress.is_empty());
        let [egress] = &pinged.egress[..] else { panic!("{pinged:?}") };
        assert_eq!((&*egress.interface, egress.up, pinged.reason), ("vm1", true, None));
        assert!(spoofed.steps.iter().any(|step| step.table == "vif" && step.key == "vm1"));
        assert_eq!(explain("nonsense").await.unwrap_err().code(), tonic::Code::InvalidArgument);
    })
    .await;
}

#[tokio::test]
async fn verbs_devices_are_listed() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let objects = config::parse_objects(VERBS).unwrap().iter().map(crate::service::message).collect();
        client.add(v1::AddRequest { objects }).await.unwrap();
        let request = |table: RdmaTable, device: Option<&str>| v1::RdmaRequest {
            table: table.into(),
            device: device.map(str::to_owned),
        };
        let devices = client.rdma(request(RdmaTable::Device, None)).await.unwrap().into_inner().devices;
        let names: Vec<_> = devices.iter().map(|d| (&*d.name, &*d.guest, &*d.network, d.clients)).collect();
        // Both from the configuration and from the device itself.
        assert_eq!(names, [("vm3.0", "vm3", "blue", 2), ("hpc1", "hpc1", "blue", 0)]);
        assert_eq!(devices[0].gids, ["::ffff:10.1.1.3", "::ffff:10.1.1.3", "fe80::ff:fe00:3"]);
        assert_eq!(devices[0].limits.unwrap().qps, Some(9));
        assert_eq!(devices[0].socket, dir.path().join("rdma/vm3.0").display().to_string());
        let one = client.rdma(request(RdmaTable::Device, Some("hpc1"))).await.unwrap().into_inner();
        assert_eq!(one.devices, devices[1..]);
        // Only objects of devices that exist.
        let qps = client.rdma(request(RdmaTable::Qp, None)).await.unwrap().into_inner().qps;
        let found: Vec<_> = qps.iter().map(|qp| (&*qp.device, &*qp.guest, qp.qpn)).collect();
        assert_eq!(found, [("vm3.0", "vm3", 17)]);
        let none = client.rdma(request(RdmaTable::Qp, Some("hpc1"))).await.unwrap().into_inner().qps;
        assert_eq!(none, []);
        let refused = client.rdma(request(RdmaTable::Cq, Some("vm1"))).await.unwrap_err();
        assert!(refused.message().contains("there is no verbs device \"vm1\""), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn what_an_open_vswitch_programs_is_listed() {
    const PORTS: &str = "[[guest]]\nname = \"ovs1\"\nkind = \"vhost\"\nmode = \"ovs\"\n\
                         [[guest]]\nname = \"ovs2\"\nkind = \"vhost\"\nmode = \"ovs\"\n";
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let objects = config::parse_objects(PORTS).unwrap().iter().map(crate::service::message).collect();
        client.add(v1::AddRequest { objects }).await.unwrap();
        let request = |port: Option<&str>| v1::OvsRequest { port: port.map(str::to_owned) };
        let all = client.ovs(request(None)).await.unwrap().into_inner();
        let ports: Vec<_> = all.ports.iter().map(|p| (&*p.name, p.session, p.flows, p.refused)).collect();
        assert_eq!(ports, [("ovs1", Some(1), 2, 3), ("ovs2", None, 1, 0)]);
        // The card has entries for one flow of ovs1, and can have none for ovs2.
        let card: Vec<_> = all.ports.iter().map(|p| (p.on_card, p.stays.get("match").copied())).collect();
        assert_eq!(card, [(Some(1), None), (Some(0), Some(1))]);
        let refused: Vec<_> = all.refused.iter().map(|r| (&*r.port, &*r.reason, r.count)).collect();
        assert_eq!(refused, [("ovs1", "tunnel", 3)]);
        assert_eq!((all.sessions[0].pid, &*all.sessions[0].dpdk), (77, "DPDK 22.11.11"));
        let one = client.ovs(request(Some("ovs2"))).await.unwrap().into_inner();
        assert_eq!((one.ports.len(), one.refused.len()), (1, 0));
        let none = client.ovs(request(Some("vm1"))).await.unwrap_err();
        assert!(none.message().contains("there is no guest or wire \"vm1\" with mode"), "{none}");

        let mut explain = async |interface: &str| {
            let packet =
                Some(v1::explain_request::Packet::Text("10.1.1.1 > 10.1.1.2 / udp 1 > 53".to_owned()));
            let request = v1::ExplainRequest { interface: interface.to_owned(), packet };
            client.explain(request).await.unwrap().into_inner()
        };
        let taken = explain("ovs1").await;
        assert_eq!((&*taken.verdict, taken.reason), ("forward", None));
        assert_eq!(taken.decision, ["the Open vSwitch that has ovs1 open gets the packet and decides"]);
        let lost = explain("ovs2").await;
        assert_eq!((&*lost.verdict, lost.reason.as_deref()), ("drop", Some("ovs_absent")));
        let [drop, later, help] = &lost.decision[..] else { panic!("{lost:?}") };
        assert_eq!(drop, "drop ovs_absent");
        assert_eq!(later, "once an Open vSwitch has ovs2 open: it gets the packet and decides");
        assert!(help.starts_with("ovs_absent: "), "{help}");
        let sent = explain("ovs2:ovs").await.decision;
        assert_eq!(sent[0], "forward to ovs2");
        assert_eq!(sent[1], "at present nothing comes in here: no Open vSwitch has ovs2 open");

        let mut flows = Vec::new();
        let request = v1::OvsFlowsRequest { port: None };
        let mut stream = client.ovs_flows(request).await.unwrap().into_inner();
        while let Some(flow) = stream.message().await.unwrap() {
            let place = (flow.card_entries, flow.stays.unwrap_or_default());
            assert_eq!(
                place,
                if flow.id == 3 { (None, "match".to_owned()) } else { (Some(flow.id - 1), String::new()) }
            );
            flows.push((flow.id, flow.port, flow.r#match, flow.actions, flow.packets, flow.stale));
        }
        let flow = |id, port: &str, stale| {
            (id, port.to_owned(), "all".to_owned(), "output ovs2".to_owned(), id, stale)
        };
        assert_eq!(flows, [flow(1, "ovs1", None), flow(2, "ovs1", None), flow(3, "ovs2", Some(9))]);
        let request = v1::OvsFlowsRequest { port: Some("ovs2".to_owned()) };
        let mut stream = client.ovs_flows(request).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap().map(|flow| flow.id), Some(3));
        assert!(stream.message().await.unwrap().is_none());
    })
    .await;
}

/// Runs `test` with a control socket that takes few clients and disconnects silent ones soon.
async fn with_few<F: Future<Output = ()>>(test: impl FnOnce(tempfile::TempDir) -> F) {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let listener = UnixListener::bind(api::socket(dir.path())).unwrap();
    let core = Core::start(
        &config::parse(&file()).unwrap(),
        config_file(state.path(), &file()),
        dir.path().to_owned(),
        Store::open(state.path()).unwrap(),
        Arc::new(FakeExecutor::default()),
        Arc::new(FakePorts::new(Log::default())),
        None,
    );
    let core = Arc::new(core.unwrap_or_else(|e| panic!("{e}")));
    let bounds = Bounds { connections: 4, silence: Duration::from_millis(200) };
    let server = tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(ViaductServer::new(Service {
                core,
                sandbox: Sandbox::default(),
                missing: Missing::default(),
                answers: Answers::default(),
            }))
            .serve_with_incoming(Clients::new(listener, bounds)),
    );
    test(dir).await;
    server.abort();
}

#[tokio::test]
async fn clients_that_say_nothing_are_left() {
    with_few(|dir| async move {
        let socket = api::socket(dir.path());
        let connect = || std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let silent: Vec<_> = (0..10).map(|_| connect()).collect();
        let mut spoken = client(dir.path()).await;
        assert!(spoken.status(v1::StatusRequest {}).await.is_ok());
        // A client that sent something may be silent for as long as it likes.
        for stream in silent {
            stream.set_nonblocking(true).unwrap();
            let mut stream = tokio::net::UnixStream::from_std(stream).unwrap();
            let mut rest = Vec::new();
            // At most the server's first frame comes, then the connection ends.
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
        }
        assert!(spoken.status(v1::StatusRequest {}).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn guests_whose_packets_are_not_checked_are_named() {
    with_server(|dir| async move {
        let mut client = client(dir.path()).await;
        let status = client.status(v1::StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(status.warnings, []);
        let unchecked = "[[guest]]\nname = \"c1\"\nnetwork = \"blue\"\nkind = \"tap\"\ndevice = \"c1\"\n";
        let request =
            v1::ApplyRequest { toml: format!("{}{unchecked}", file()), dry_run: false, ..Default::default() };
        let applied = client.apply(request).await.unwrap().into_inner();
        let [warning] = &applied.warnings[..] else { panic!("one: {:?}", applied.warnings) };
        assert_eq!(warning.object, "guest \"c1\"");
        assert!(warning.message.contains("`mac` and `addresses`"), "{}", warning.message);
        let status = client.status(v1::StatusRequest {}).await.unwrap().into_inner();
        let (differs, others) = status.warnings.split_last().unwrap();
        assert_eq!(others, applied.warnings);
        assert!(differs.object.ends_with("host.toml") && differs.message.contains("in: guest \"c1\";"));
    })
    .await;
}

/// Both the reply to a removal and the status say which workers may still do what was removed.
#[tokio::test]
async fn workers_that_do_not_follow_are_named() {
    with_server_of(FakeExecutor::with_stalled(1), |dir| async move {
        let mut client = client(dir.path()).await;
        let status = client.status(v1::StatusRequest {}).await.unwrap().into_inner();
        let [warning] = &status.warnings[..] else { panic!("one: {:?}", status.warnings) };
        assert_eq!(warning.object, "worker 1");
        let request = v1::ApplyRequest { toml: HOST.to_owned(), dry_run: false, ..Default::default() };
        let applied = client.apply(request).await.unwrap().into_inner();
        assert_eq!(applied.changes.len(), 1, "the rule goes");
        assert_eq!(applied.warnings, status.warnings);
        let request = v1::ApplyRequest { toml: file(), dry_run: true, ..Default::default() };
        assert_eq!(client.apply(request).await.unwrap().into_inner().warnings, []);
    })
    .await;
}

/// Returns as many routes as there are numbers.
fn routes(numbers: std::ops::Range<u32>) -> Vec<v1::Object> {
    let route = |n: u32| {
        let target = v1::Target { drop: Some(true), ..v1::Target::default() };
        let prefix = format!("{}/32", std::net::Ipv4Addr::from_bits(0x0b00_0000 + n));
        let route = v1::Route { network: "blue".into(), prefix, to: vec![target] };
        v1::Object { object: Some(v1::object::Object::Route(route)) }
    };
    numbers.map(route).collect()
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let core = Core::start(
        &config::parse(&file()).unwrap(),
        config_file(state.path(), &file()),
        dir.path().to_owned(),
        Store::open(state.path()).unwrap(),
        Arc::new(FakeExecutor::default()),
        Arc::new(FakePorts::new(Log::default())),
        None,
    );
    let core = Arc::new(core.unwrap_or_else(|e| panic!("{e}")));
    let answers = Answers::new(200_000);
    let service = Service { core, sandbox: Sandbox::default(), missing: Missing::default(), answers };
    service.add(tonic::Request::new(v1::AddRequest { objects: routes(0..100) })).await.unwrap();
    let all = || tonic::Request::new(v1::ObjectsRequest { kind: Kind::Route.into(), ..Default::default() });
    let unread = service.objects(all()).await.unwrap();
    let export = || service.export(tonic::Request::new(v1::ExportRequest {}));
    let table = v1::TableRequest { table: TableName::Route.into(), network: None };
    let refused = [
        service.objects(all()).await.err().unwrap(),
        service.table(tonic::Request::new(table.clone())).await.err().unwrap(),
    ];
    assert!(refused.iter().all(|status| status.code() == tonic::Code::ResourceExhausted), "{refused:?}");
    assert!(export().await.is_ok(), "a short one");
    drop(unread);
    assert!(service.table(tonic::Request::new(table)).await.is_ok());
}
