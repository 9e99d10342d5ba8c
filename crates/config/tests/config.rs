//! Contents that a file may have, and messages about those that it may not have.

use config::{Included, Kind, Object, Target, Texts, parse, parse_all, parse_objects};

const VALID: &str = include_str!("valid.toml");

#[test]
fn every_kind_of_object_reads() {
    let document = parse(VALID).unwrap_or_else(|e| panic!("{e}"));
    for kind in Kind::ALL {
        assert!(document.objects.iter().any(|i| i.object.kind() == kind), "no {kind} in valid.toml");
    }
    assert_eq!(document.host.workers, [1]);
    assert_eq!(document.host.socket_dirs, ["/run/openvswitch", "/data/vms/**"]);
}

#[test]
fn targets_in_words_are_read_again() {
    let targets = r#""drop" { guest = "vm1" } { network = "a.b-c_d" } { nexthop = "spine" } { via = "fd00::1" }
        { tunnel = "mpls-over-udp", remote = "192.0.2.2", label = 100 }
        { tunnel = "mpls-over-gre", remote = "fd00::2", label = 16 }
        { tunnel = "vxlan", remote = "192.0.2.2", vni = 7, mac = "02:00:00:00:00:01" }"#;
    let mut words = Vec::new();
    for target in targets.replace("} {", "}\n{").replace("\" {", "\"\n{").lines().map(str::trim) {
        let text = format!("[[route]]\nnetwork = \"blue\"\nprefix = \"10.0.0.0/8\"\nto = {target}\n");
        let Object::Route(route) = parse_objects(&text).unwrap().remove(0) else { panic!("{text}") };
        words.push(route.to[0].in_words());
        assert_eq!(Target::from_words(&words[words.len() - 1]).as_ref(), Some(&route.to[0]));
    }
    assert_eq!(words.len(), 8);
    for wrong in
        ["", "drop ", "guest", "via blue", "vxlan 192.0.2.2", "vxlan 192.0.2.2 7 8", "teapot 192.0.2.2 7"]
    {
        assert_eq!(Target::from_words(wrong), None, "{wrong}");
    }
    assert_eq!(Target::from_words(&format!("{} 1", words[7])), None);
}

#[test]
fn owners_have_plain_names_and_users() {
    let owners = |list: &str| parse(&format!("[host]\nname = \"a\"\nowners = {list}"));
    let found = owners("[\"cni\", \"agent:1000\"]").unwrap().host.owners;
    let may: Vec<_> = found.iter().map(|o| [0, 1000].map(|uid| o.may_be_used_by(uid))).collect();
    assert_eq!(may, [[true, false], [true, true]]);
    for (wrong, why) in [
        ("[\"api\"]", "always there"),
        ("[\"file:7\"]", "always there"),
        ("[\"bgp\"]", "always there"),
        ("[\"CNI\"]", "lowercase"),
        ("[\"\"]", "lowercase"),
        ("[\"agent:root\"]", "a number"),
        ("[\"cni\", \"cni:7\"]", "listed twice"),
    ] {
        let said = owners(wrong).unwrap_err().to_string();
        assert!(said.contains(why), "{wrong}: {said}");
    }
}

#[test]
fn sockets_are_where_vmms_have_them_unless_the_file_says_where() {
    let dirs = |line: &str| parse(&format!("[host]\nname = \"a\"\n{line}")).unwrap().host.socket_dirs;
    assert_eq!(dirs(""), ["/var/lib/libvirt/qemu/**", "/var/lib/vhost_sockets", "/run/openvswitch"]);
    assert_eq!(dirs("socket_dirs = [\"/**\"]"), ["/**"]);
    assert!(dirs("socket_dirs = []").is_empty());
}

#[test]
fn memory_of_vms_has_limits() {
    let host = |line: &str| parse(&format!("[host]\nname = \"a\"\n{line}"));
    let found = host("guest_memory_mb = 2048\nguests_memory_mb = 4294967295").unwrap().host;
    assert_eq!((found.guest_memory_mb, found.guests_memory_mb), (Some(2048), Some(u32::MAX)));
    assert_eq!(host("").unwrap().host.guest_memory_mb, None);
    assert!(host("guest_memory_mb = 0").is_err());
}

#[test]
fn a_long_as_and_a_long_l3vni_need_written_targets() {
    let file = |l3vni: u32, targets: &str| {
        format!(
            "[host]\nname = \"a\"\n[bgp]\nas = 4200000000\nrouter_id = \"192.0.2.1\"\n[[bgp.peer]]\naddress = \"192.0.2.9\"\n\
             [[network]]\nname = \"blue\"\nvrf = 1\nvni = 7\nevpn = true\nl3vni = {l3vni}\n{targets}"
        )
    };
    let targets = "l3_import = [\"64512:1\"]\nl3_export = [\"64512:1\"]\n";
    assert!(parse(&file(65535, "")).is_ok() && parse(&file(65536, targets)).is_ok());
    let problems = parse(&file(65536, "l3_import = [\"64512:1\"]\n")).unwrap_err().to_string();
    assert!(problems.contains("AS and `l3vni` do not fit into one route target; write"), "{problems}");
}

#[test]
fn objects_written_out_read_back() {
    for item in parse(VALID).unwrap().objects {
        let text = item.object.to_toml();
        let back = parse_objects(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(back, [item.object]);
    }
}

#[test]
fn a_host_written_out_for_people_reads_back() {
    let document = parse(VALID).unwrap();
    let objects = document.objects.iter().map(|item| item.object.to_concise_toml());
    let text = document.host.to_toml() + &objects.collect::<String>();
    let back = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(back.host, document.host);
    let of = |document: &config::Document| {
        document.objects.iter().map(|item| item.object.clone()).collect::<Vec<_>>()
    };
    assert_eq!(of(&back), of(&document));
    assert!(!text.contains("tcp_midstream = true"), "a default is written out:\n{text}");
    assert!(!text.contains("drop = true"), "a form that no page names is written:\n{text}");
}

#[test]
fn remotes_are_watched_as_often_as_the_file_says() {
    for (given, interval, written) in [
        ("true", Some(10), "tunnel_bfd = 10\n"),
        ("500", Some(500), "tunnel_bfd = 500\n"),
        ("false", None, ""),
    ] {
        let host = parse(&format!("[host]\nname = \"a\"\ntunnel_bfd = {given}\n")).unwrap().host;
        assert_eq!(
            (host.tunnel_bfd, host.to_toml()),
            (interval, format!("[host]\nname = \"a\"\n{written}\n"))
        );
    }
}

#[test]
fn objects_say_whom_they_refer_to() {
    let of = |key: &str| {
        let document = parse(VALID).unwrap();
        let item = document.objects.into_iter().find(|item| item.object.key().to_string() == key);
        let keys = item.unwrap_or_else(|| panic!("{key}")).object.refers_to();
        keys.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(of("network \"public\""), ["wire \"up0\""]);
    assert_eq!(of("guest \"vm1\""), ["network \"blue\"", "network \"public\"", "guest \"mon0\""]);
    assert_eq!(of("route \"10.8.0.0/16\" of network \"blue\""), ["nexthop \"spine\"", "network \"blue\""]);
    assert_eq!(of("nat \"10.1.1.1\" of network \"blue\""), ["network \"blue\"", "network \"public\""]);
}

#[test]
fn lines_are_those_of_the_keys() {
    let document = parse(VALID).unwrap();
    let line_of = |text: &str| VALID.lines().position(|l| l == text).map(|i| i + 1);
    let guest = document.objects.iter().find(|i| i.object.key().name == "vm1").unwrap();
    assert_eq!(guest.place.line("label"), line_of("label = 100"));
}

/// Returns the messages about the valid file with one text replaced.
fn complaint(from: &str, to: &str) -> String {
    let text = VALID.replacen(from, to, 1);
    assert_ne!(text, VALID, "{from} is not in valid.toml");
    parse(&text).expect_err(to).to_string()
}

#[cfg(not(feature = "card-sim"))]
#[test]
fn a_build_without_the_simulated_card_says_so() {
    let said = complaint("executor = \"cpu\"", "executor = \"card-sim\"");
    assert!(said.contains("[host]: executor: this build has no card-sim; use \"cpu\""), "{said}");
}

/// A text in the valid file, its replacement, and a part of the message about that.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "learning = true",
        "lerning = true",
        "network \"blue\": unknown key `lerning`; did you mean `learning`?",
    ),
    ("dscp = \"ef\"", "dscp = 64", "guest \"mon0\": dscp: \"64\" is no DSCP; use 0 to 63"),
    ("dscp = \"ef\"", "dscp = \"af14\"", "guest \"mon0\": dscp: \"af14\" is no DSCP"),
    ("learning = true", "x = true", "network \"blue\": unknown key `x`; there are: name, vrf, "),
    (
        "executor = \"cpu\"",
        "executor = \"card:0000:3b:00.0\"",
        "[host]: executor: cards carry no packets yet, so not card:0000:3b:00.0; use \"cpu\"",
    ),
    (
        "driver = \"af-packet\"",
        "driver = \"dpdk\"",
        "\"dpdk\" is none of af-packet, af-xdp, tap, vhost, vxlan, geneve",
    ),
    (
        "gateway = \"192.0.2.254\"",
        "gateway = \"192.0.3.254\"",
        "gateway 192.0.3.254 is in none of the wire's subnets",
    ),
    (
        "socket = \"vm1.sock\"",
        "socket = \"a\\n<0>b.sock\"",
        "guest \"vm1\": `socket` has control characters in it",
    ),
    ("socket = \"vm1.sock\"", "socket = \"../vm1.sock\"", "\"../vm1.sock\" leads upwards"),
    ("socket = \"vm1.sock\"", "socket = \"viaduct.sock\"", "is the daemon's own in the run-dir"),
    ("socket = \"vm1.sock\"", "socket = \".//rdma/c1\"", "is the daemon's own in the run-dir"),
    ("gateway = \"192.0.2.254\"", "gateway = \"192.0.2.1\"", "192.0.2.1 is the wire's own address"),
    ("device = \"tapmon0\"", "device = \"a\\n<0>b\"", "`device` takes the name of a network device"),
    ("mtu = 9000", "mtu = 90000", "wire \"up0\": mtu: 90000 is out of range; use 576 to 9216"),
    ("vrf = 2", "vrf = 0", "network \"public\": vrf: 0 is out of range; use 1 to 65535"),
    ("vrf = 2", "vrf = 65536", "vrf: 65536 is out of range; use 1 to 65535"),
    ("vrf = 2", "vrf = 1", "network \"public\": vrf 1 is already taken by network \"blue\" (line 27)"),
    ("vlan = 7", "vlan = 4095", "vlan: 4095 is out of range; use 1 to 4094"),
    ("as = 64512\nrouter_id", "as = 0\nrouter_id", "[bgp]: as: 0 is out of range; use 1 to 4294967294"),
    ("router_id = \"192.0.2.1\"", "router_id = \"fd00::1\"", "a router id has the form of an IPv4 address"),
    (
        "labels = \"100000-199999\"",
        "labels = \"1-20\"",
        "\"1-20\" is no range of labels (16 to 1048575), as in",
    ),
    (
        "labels = \"100000-199999\"",
        "labels = \"100-101\"",
        "network \"public\": its label would be 100 + 2, beyond `labels` of [bgp], 100-101",
    ),
    (
        "labels = \"100000-199999\"",
        "labels = \"100-199\"",
        "guest \"vm1\": label 100 is one of networks (`labels` of [bgp], 100-199); take another",
    ),
    ("labels = \"100000-199999\"", "labels = \"110-299\"", "mpls \"200\": label 200 is one of networks"),
    (
        "families = [\"vpnv4\", \"vpnv6\", \"evpn\", \"rtc\", \"ipv4-unicast\", \"ipv6-unicast\"]",
        "families = [\"rtc\"]",
        "`families` needs one besides \"rtc\"",
    ),
    ("listen = [\"192.0.2.1\"]\n", "", "the peer 192.0.2.254 is `passive`, so `listen` must say where"),
    ("[[bgp.peer]]", "[[bgp.pear]]", "[bgp]: unknown key `pear`; did you mean `peer`?"),
    (
        "template = \"reflector\"",
        "template = \"reflektor\"",
        "[[bgp.peer]]: there is no [[bgp.template]] \"reflektor\"; did you mean \"reflector\"?",
    ),
    ("name = \"reflector\"\nas", "as", "[[bgp.template]]: `name` is missing"),
    ("families = [\"vpnv4\", \"rtc\"]", "families = [\"rtc\"]", "[[bgp.peer]]: `families` needs one besides"),
    ("name = \"reflector\"", "address = \"192.0.2.1\"\nname = \"reflector\"", "unknown key `address`"),
    (
        "graceful_restart = 120",
        "graceful_restart = 4096",
        "graceful_restart: 4096 is out of range; use 0 to 4095",
    ),
    ("metadata_tenant = \"green\"", "metadata_tenant = \"a b\"", "`metadata_tenant` is ASCII without spaces"),
    (
        "metadata_proxy = \"192.0.2.9:8775\"\n",
        "",
        "`metadata_secret` is only for the service in `metadata_proxy`",
    ),
    ("metadata = true\nmetadata_proxy", "metadata_proxy", "`metadata_proxy` needs `metadata = true`"),
    ("192.0.2.9:8775", "192.0.2.9", "\"192.0.2.9\" is not an address with port"),
    ("192.0.2.9:8775", "192.0.2.9:0", "192.0.2.9:0 is no service"),
    (
        "dhcp_relay = [\"192.0.2.67\"]",
        "dhcp_relay = [\"192.0.2.67\"]\ndhcp = true",
        "`dhcp_relay` and `dhcp = true` exclude each other",
    ),
    ("[\"192.0.2.67\"]", "[\"203.0.113.1\"]", "203.0.113.1 is the network's own gateway"),
    ("[\"192.0.2.67\"]", "[\"fe80::1\"]", "fe80::1 is on one link only"),
    ("[\"192.0.2.67\"]", "[\"2001:db8::67\"]", "the server 2001:db8::67 needs an IPv6 address in `gateways`"),
    ("bfd = true", "bfd = \"fast\"", "bfd: expected true, false or \"multihop\", found"),
    (
        "rd = \"192.0.2.1:1\"",
        "rd = \"192.0.2.1:65536\"",
        "\"192.0.2.1:65536\" has not the form AS:NUMBER or IPV4",
    ),
    ("export = [\"64512:100\"]", "export = [\"65536:65536\"]", "has not the form AS:NUMBER or IPV4:NUMBER"),
    ("vni = 5001\n", "", "network \"blue\": `evpn` needs a `vni`"),
    ("evpn = true\n", "", "network \"blue\": `l3vni` needs `evpn = true`"),
    ("l3vni = 6001\n", "", "network \"blue\": `l3_import` needs an `l3vni`"),
    ("l3vni = 6001\n", "l3vni = 5001\n", "network \"blue\": vni 5001 is there twice"),
    (
        "vni = 77",
        "vni = 6001",
        "packets with this vni, from whatever host, are those of network \"blue\"; take",
    ),
    ("[[vxlan]]\nvni = 5003", "[[vxlan]]\nvni = 6001", "vni 6001 is already taken by network \"blue\""),
    (
        "vni = 77",
        "vni = 5001",
        "wire \"vx77\": packets with this vni, from whatever host, are those of network \"blue\"; take",
    ),
    (
        "remote = \"192.0.2.77\"",
        "remote = \"192.0.2.1\"",
        "192.0.2.1 is this host; a tunnel leads to another",
    ),
    (
        "remote = \"192.0.2.77\"",
        "remote = \"2001:db8::2\"",
        "a tunnel to 2001:db8::2 needs an IPv6 `tunnel_source`",
    ),
    (
        "mtu = 8950",
        "mtu = 8951",
        "packets of 8951 bytes with 50 bytes of tunnel headers fit no other wire; use mtu = 8950",
    ),
    ("wire = \"up0\"\n", "", "`vlan` needs the `wire` it is on"),
    ("wire = \"up0\"", "wire = \"up1\"", "there is no wire \"up1\"; did you mean \"up0\"?"),
    (
        "network = \"blue\"\nkind = \"vhost\"",
        "network = \"bleu\"\nkind = \"vhost\"",
        "guest \"vm1\": there is no network \"bleu\"; did you mean \"blue\"?",
    ),
    ("label = 100\nrate", "label = 15\nrate", "label: 15 is out of range; use 16 to 1048575"),
    ("vni = 5001\nlearning", "vni = 16777216\nlearning", "vni: 16777216 is out of range; use 1 to 16777215"),
    ("mac = \"02:00:00:00:00:01\"", "mac = \"03:00:00:00:00:01\"", "can't be one host's MAC"),
    ("mac = \"02:00:00:00:00:01\"", "mac = \"00:00:5e:00:01:00\"", "the gateways' MAC"),
    ("{ tag = 10,", "{ tag = 4095,", "guest \"vm1\": vlans: tag: 4095 is out of range; use 1 to 4094"),
    ("{ tag = 10,", "{ tag = 10, network = \"x\" }, { tag = 10,", "guest \"vm1\": tag 10 is there twice"),
    ("{ tag = 10, network = \"public\"", "{ tag = 10, network = \"blue\"", "network \"blue\" is there twice"),
    (
        "{ tag = 10, network = \"public\"",
        "{ tag = 10, network = \"publik\"",
        "guest \"vm1\": there is no network \"publik\"; did you mean \"public\"?",
    ),
    (
        "[\"203.0.113.9\"]",
        "[\"203.0.113.1\"]",
        "address 203.0.113.1 of network \"public\" is already taken by network \"public\"",
    ),
    ("macs = [\"00:00:5e:00:01:05\"", "macs = [\"00:00:5e:00:01:00\"", "the gateways' MAC"),
    ("macs = [\"00:00:5e:00:01:05\"", "macs = [\"01:00:5e:00:01:05\"", "can't be one host's MAC"),
    (
        "macs = [\"00:00:5e:00:01:05\"",
        "macs = [\"02:00:00:00:00:05\"",
        "02:00:00:00:00:05 of network \"blue\" is already taken by guest \"hpc1\"",
    ),
    (
        "mac = \"02:00:00:00:00:01\"\n",
        "",
        "`mac` is missing; a guest with addresses, a label or a verbs device needs one",
    ),
    (
        "\"10.1.1.1\", \"fd00",
        "\"10.1.1.254\", \"fd00",
        "address 10.1.1.254 of network \"blue\" is already taken by network \"blue\"",
    ),
    (
        "\"10.1.1.1\", \"fd00",
        "\"169.254.169.254\", \"fd00",
        "address 169.254.169.254 of network \"blue\" is already taken by network \"blue\"",
    ),
    ("203.0.113.1/24", "224.0.0.1/24", "224.0.0.1 can't be a host's address"),
    ("203.0.113.1/24", "255.255.255.255/32", "255.255.255.255 can't be a host's address"),
    (
        "vni = 5001\n",
        "vni = 5001\nmtu = 1279\n",
        "network \"blue\": mtu 1279 is below 1280, which IPv6 needs; gateway fd00:1::ffff/64 is IPv6",
    ),
    ("mtu = 9000", "mtu = 1329", "network \"blue\": mtu 1279 is below 1280"),
    (
        "mtu = 1500\nrdma",
        "mtu = 1279\nrdma",
        "guest \"vm1\": mtu 1279 is below 1280, which IPv6 needs; fd00:1::1",
    ),
    (
        "addresses = [\"192.0.2.1/24\"]\ngateway = \"192.0.2.254\"\nmtu = 9000",
        "addresses = [\"192.0.2.1/24\", \"2001:db8::1/64\"]\ngateway = \"192.0.2.254\"\nmtu = 1279",
        "wire \"up0\": mtu 1279 is below 1280, which IPv6 needs; 2001:db8::1/64 is IPv6",
    ),
    ("mirror = \"mon0\"", "mirror = \"vm1\"", "a guest can't mirror itself"),
    (
        "mirror = \"mon0\"",
        "mirror = \"hpc1\"",
        "guest \"hpc1\" has only a verbs device, which takes no copies",
    ),
    ("mirror = \"mon0\"", "mirror = \"vxlan:192.0.2.9\"", "name a guest, or another host as in"),
    ("mirror = \"mon0\"", "mirror = \"erspan:192.0.2.9:7\"", "name a guest, or another host as in"),
    ("mirror = \"mon0\"", "mirror = \"vxlan:192.0.2.9:0\"", "0 is no VXLAN network identifier"),
    ("mirror = \"mon0\"", "mirror = \"vxlan:2001:db8:9::1:7\"", "needs an IPv6 `tunnel_source`"),
    ("mirror = \"mon0\"", "mirror = \"vxlan:192.0.2.1:7\"", "192.0.2.1 is this host"),
    ("mirror = \"mon0\"", "mirror = \"vxlan:192.0.2.9:+7\"", "name a guest, or another host as in"),
    ("mirror = \"mon0\"", "mirror = \"vxlan:192.0.2.9:000000077\"", "name a guest, or another host as in"),
    ("mirror = \"mon0\"", "mirror = \"vxlan:224.0.0.1:7\"", "224.0.0.1 can't be a host's address"),
    ("mirror = \"mon0\"", "mirror = \"mon1\"", "there is no guest \"mon1\"; did you mean \"mon0\"?"),
    ("allowed = [\"10.7.0.0/16\"]", "allowed = [\"10.7.0.1/16\"]", "did you mean \"10.7.0.0/16\"?"),
    ("kind = \"vhost\"", "kind = \"rdma\"", "`socket` is of a port, and a guest of kind \"rdma\" has none"),
    (
        "rdma = \"vm1.0\"",
        "rdma = \"../vm1\"",
        "guest \"vm1\": \"../vm1\" can't be a name; use 1 to 64 letters",
    ),
    ("rdma = \"vm1.0\"", "rdma = \"\"", "guest \"vm1\": \"\" can't be a name"),
    ("rdma = \"vm1.0\"", "rdma = \"hpc1\"", "verbs device \"hpc1\" is already taken by guest \"vm1\""),
    (
        "rdma = \"vm1.0\"\n",
        "",
        "`rdma_owner` is of a verbs device, which the guest lacks; add rdma = \"vm1\"",
    ),
    ("rdma = \"vm1.0\"\n", "", "`rdma_trust` is of a verbs device"),
    ("rdma = \"vm1.0\"\n", "", "`rdma_limits` is of a verbs device"),
    ("rdma_owner = \"1000:1000\"", "rdma_owner = \"1000:\"", "`rdma_owner` is \"user\" or \"user:group\""),
    ("rdma_trust = \"job7\"", "rdma_trust = \"job 7\"", "\"job 7\" can't be a name"),
    ("{ qps = 64,", "{ qps = 5000000000,", "qps 5000000000 is out of range; use 1 to 262144"),
    ("{ qps = 64,", "{ qps = 0,", "guest \"vm1\": rdma_limits: qps 0 is out of range; use 1 to 262144"),
    (
        "{ qps = 64,",
        "{ connections = 5000, qps = 64,",
        "rdma_limits: connections 5000 is out of range; use 1 to 4096",
    ),
    ("{ qps = 64,", "{ queues_mb = 0, qps = 64,", "rdma_limits: queues_mb 0 is out of range; use 1 to 65536"),
    ("{ qps = 64,", "{ qp = 64,", "guest \"vm1\": rdma_limits: unknown key `qp`; did you mean `qps`?"),
    (
        "{ qps = 64, registered_mb = 8192 }",
        "64",
        "expected { qps = N, mrs = N, registered_mb = N, queues_mb = N, connections = N }, found 64",
    ),
    ("rdma = \"vm1.0\"\n", "", "`window_mb` is of a verbs device"),
    (
        "window_mb = 1024",
        "window_mb = 0",
        "window_mb 0 is no size of a window; use a multiple of 2 from 16 to 1048576",
    ),
    (
        "window_mb = 1024",
        "window_mb = 1024\nwindow_migrates = true",
        "guest \"vm1\": `window_migrates` and `rdma_trust` exclude each other",
    ),
    (
        "window_mb = 1024",
        "window_mb = 65002\nwindow_migrates = true",
        "a window that migrates has 65000 MB at most",
    ),
    ("window_mb = 1024", "window_migrates = true", "`window_migrates` is of a window, which the guest lacks"),
    ("window_mb = 1024", "window_mb = 1025", "window_mb 1025 is no size of a window"),
    ("window_mb = 1024", "window_mb = 1048578", "window_mb 1048578 is no size of a window"),
    (
        "kind = \"rdma\"",
        "kind = \"rdma\"\nwindow_mb = 64",
        "guest \"hpc1\": `window_mb` is for kind = \"vhost\"",
    ),
    ("rdma = \"vm1.0\"", "rdma = \"vm\"", "\"vm\" is the directory of windows"),
    ("rdma = \"vm1.0\"", "rdma = \"trust-a\"", "\"trust-a\" can't be the name of a device with a window"),
    ("rdma = \"vm1.0\"", "rdma = \"a.vsock_1\"", "\"a.vsock_1\" can't be the name of a device with a window"),
    (
        "network = \"blue\"\nkind = \"rdma\"",
        "network = \"public\"\nkind = \"rdma\"\nrdma_trust = \"job7\"",
        "guest \"hpc1\": the guests of trust \"job7\" have a window in common, and guest \"vm1\" is in network \"blue\"",
    ),
    ("kind = \"rdma\"", "kind = \"rdma\"\nqueues = 4", "guest \"hpc1\": `queues` is of a port"),
    ("kind = \"rdma\"", "kind = \"rdma\"\nrouter = true", "guest \"hpc1\": `router` is of a port"),
    ("kind = \"rdma\"", "kind = \"rdma\"\ndhcp_server = true", "`dhcp_server` is of a port"),
    ("dhcp_server = true", "dhcp_servers = true", "did you mean `dhcp_server`?"),
    ("dhcp_server = true", "standby = true", "guest \"vm1\": `standby` and `rdma` exclude each other"),
    (
        "kind = \"rdma\"",
        "kind = \"rdma\"\nstandby = true",
        "guest \"hpc1\": `standby` is for kind = \"vhost\"",
    ),
    ("link_follows = \"up0\"", "link_follows = \"up9\"", "there is no wire \"up9\""),
    (
        "tunnel_peers = [\"198.51.100.0/24\"",
        "tunnel_peers = [\"198.51.100.7\"",
        "one host is \"198.51.100.7/32\"",
    ),
    ("udp6_zero_checksum = true", "udp6_zero_checksum = 1", "udp6_zero_checksum: expected true or false"),
    ("tunnel_df = false", "tunnel_df = \"no\"", "tunnel_df: expected true or false"),
    ("tunnel_bfd = 100", "tunnel_bfd = 9", "tunnel_bfd: 9 is out of range; use 10 to 10000"),
    (
        "tunnel_bfd = 100",
        "tunnel_bfd = \"fast\"",
        "tunnel_bfd: expected true, false or a time in milliseconds",
    ),
    ("\"/data/vms/**\"", "\"vms\"", "\"vms\" is no absolute path of a directory"),
    ("\"/data/vms/**\"", "\"/data/../etc\"", "is no absolute path of a directory"),
    ("mac = \"02:00:00:00:00:05\"\n", "", "guest \"hpc1\": `mac` is missing"),
    ("addresses = [\"10.1.1.5\"]\n", "", "guest \"hpc1\": `addresses` is missing; they are the GIDs"),
    ("device = \"tapmon0\"\n", "", "guest \"mon0\": `device` is missing"),
    (
        "kind = \"tap\"\ndevice = \"tapmon0\"",
        "kind = \"host\"\ndevice = \"tapmon0\"",
        "guest \"mon0\": `addresses` is missing: those of the host in the network",
    ),
    ("protocol = \"tcp\"\nport", "protocol = \"icmp\"\nport", "`protocol` is tcp or udp"),
    ("port = 8080", "port = 0", "port: 0 is out of range; use 1 to 65535"),
    ("{ guest = \"vm1\", port = 80 }", "{ guest = \"vm9\", port = 80 }", "there is no guest \"vm9\""),
    (
        "{ guest = \"vm1\", port = 80 }",
        "{ guest = \"mon0\", port = 80 }",
        "has no address of the family of 198.51.100.7",
    ),
    ("snat = \"host\"", "", "add snat = \"host\" or addresses to it"),
    (
        "snat = \"host\"",
        "snat = \"203.0.113.6\"",
        "198.51.100.7 is not in `snat` of network \"blue\"; add it there",
    ),
    (
        "snat = [\"203.0.113.5\"]",
        "snat = [\"203.0.113.1\"]",
        "address 203.0.113.1 of network \"public\" is already taken by network \"public\"",
    ),
    (
        "snat = [\"203.0.113.5\"]",
        "snat = [\"203.0.113.9\"]",
        "203.0.113.9 of network \"public\" is already taken",
    ),
    (
        "snat = [\"203.0.113.5\"]",
        "snat = [\"203.0.113.255\"]",
        "203.0.113.255 is the first or the last of its subnet",
    ),
    ("snat = [\"203.0.113.5\"]", "snat = [\"203.0.113.5\", \"203.0.113.5\"]", "is there twice"),
    ("snat = [\"203.0.113.5\"]", "snat = [\"203.0.113.5\", \"host\"]", "`snat = \"host\"` stands alone"),
    ("snat = [\"203.0.113.5\"]", "snat = [\"203.0.114.5\"]", "203.0.114.5 is in no network outside"),
    (
        "vrf = 3\ngateways = [\"10.3.1.254/24\", \"fd00:3::ffff/64\"]",
        "vrf = 3\ngateways = [\"fd00:3::ffff/64\"]",
        "no address in `gateways` has the family of 203.0.113.5",
    ),
    (
        "[\"203.0.113.5\"]\nsnat_ports = 1024",
        "[\"203.0.113.5\", \"198.18.0.5\"]\n[[network]]\nname = \"more\"\nvrf = 77\nwire = \"up0\"\nvlan = 77\n\
         gateways = [\"198.18.0.1/24\"]",
        "198.18.0.5 is of network \"more\", and others of its family are of network \"public\"",
    ),
    ("snat = [\"203.0.113.5\"]\n", "", "`snat_ports` needs addresses in `snat`, whose ports they are"),
    ("snat_ports = 1024", "snat_ports = 8", "snat_ports: 8 is out of range; use 16 to 32768"),
    (
        "snat = [\"203.0.113.5\"]\nsnat_ports = 1024\n",
        "",
        "`snat_mapping` needs addresses in `snat`, whose ports it is about",
    ),
    (
        "snat_mapping = \"endpoint-independent\"",
        "snat_mapping = \"full-cone\"",
        "snat_mapping: \"full-cone\" is none of address-and-port-dependent, endpoint-independent",
    ),
    ("import_unicast = \"default\"", "import_unicast = \"some\"", "\"some\" is none of default, all"),
    ("import_unicast = \"default\"", "import_unicast = \"all\"\nbgp = false", "without `bgp = false`"),
    (
        "snat_mapping = \"endpoint-independent\"",
        "snat_mapping = \"endpoint-independent\"\nimport_unicast = \"all\"",
        "`import_unicast` needs a `wire`, on which the routers are",
    ),
    ("name = \"web-in\"", "name = \"7\"", "`name` begins with a letter"),
    (
        "priority = 200\n",
        "priority = 200\nname = \"web-in\"\n",
        "rule name \"web-in\" of network \"blue\" is already taken",
    ),
    ("action = \"police:100\"", "action = \"deny-in\"", "\"deny-in\" is no action"),
    (
        "snat = \"host\"",
        "default = \"deny-in\"",
        "default of network \"blue\" is already taken by network \"blue\"",
    ),
    (
        "snat = \"host\"",
        "snat = \"hots\"",
        "network \"blue\": snat: expected \"host\" or an address, found \"hots\"",
    ),
    ("snat = \"host\"", "snat = [\"host\", \"host\"]", "`snat = \"host\"` stands alone"),
    ("snat = \"host\"", "snat = \"host\"\nwire = \"up0\"", "the network leaves by its `wire`"),
    ("prefix = \"10.1.1.3/32\"", "prefix = \"10.1.1.3\"", "one host is \"10.1.1.3/32\""),
    ("prefix = \"10.1.1.3/32\"", "prefix = \"10.1.1.1/32\"", "is an address of guest \"vm1\""),
    ("to = \"drop\"", "to = \"dorp\"", "is no target"),
    ("to = \"drop\"", "to = [\"drop\", { guest = \"vm1\" }]", "\"drop\" stands alone"),
    ("to = \"drop\"", "to = { drop = true, weight = 2 }", "\"drop\" stands alone, without `weight`"),
    ("to = { nexthop = \"spine\" }", "to = { nexthop = \"spine\", weight = 2 }", "without `weight`"),
    ("weight = 3", "weight = 0", "0 is out of range; use 1 to 64"),
    ("weight = 3", "weight = 64", "weights of 65 in all; flows are shared among 64 at most"),
    (
        "remote = \"192.0.2.3\", label = 101, weight = 3 },",
        "remote = \"192.0.2.3\", label = 101, weight = 3 },\n{ tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 100 },",
        "the same target is listed twice; give it a `weight`",
    ),
    ("to = \"drop\"", "to = { network = \"blue\" }", "can't lead to its own network"),
    (
        "remote = \"192.0.2.2\", label = 100",
        "remote = \"fd00::2\", label = 100",
        "needs an IPv6 `tunnel_source`",
    ),
    (
        "remote = \"192.0.2.2\", label = 100",
        "remote = \"192.0.2.2\", vni = 100",
        "mpls-over-udp has no `vni`; it needs `label`",
    ),
    ("remote = \"192.0.2.2\", label = 100", "remote = \"192.0.2.1\", label = 100", "192.0.2.1 is this host"),
    ("tunnel_source = \"192.0.2.1\"", "tunnel_source = \"192.0.2.9\"", "is no wire's address"),
    (
        "tunnel_source = \"192.0.2.1\"",
        "tunnel_source = [\"192.0.2.1\", \"192.0.2.3\"]",
        "one address per family",
    ),
    ("via = \"203.0.113.254\"", "via = \"203.0.114.254\"", "router 203.0.114.254 is in none of the subnets"),
    ("outside = \"203.0.113.7\"", "outside = \"203.0.114.7\"", "is in no prefix of network \"public\""),
    ("outside = \"203.0.113.7\"", "outside = \"2001:db8::7\"", "of different families"),
    ("protocol = \"tcp\"\nports", "protocol = \"icmp\"\nports", "`ports` needs protocol tcp, udp or sctp"),
    ("ports = \"80-443\"", "ports = \"443-80\"", "the first is the greater"),
    (
        "to = { guest = \"vm1\" }\nprotocol",
        "to = { guest = \"mon0\" }\nprotocol",
        "guest \"mon0\" has no addresses to match",
    ),
    ("action = \"police:100\"", "action = \"police:fast\"", "the rate is in Mbit/s"),
    ("action = \"police:100\"", "action = \"police:100:big\"", "the burst is in kilobytes"),
    ("action = \"police:100\"", "action = \"police:100:63\"", "a burst below 64 kB"),
    ("action = \"reject\"", "action = \"deny\"", "\"deny\" is none of allow, drop, reject"),
    ("metrics = \"127.0.0.1:9101\"", "metrics = \"9101\"", "is not an address with port"),
    ("name = \"vm1\"", "name = \"../vm1\"", "can't be a name"),
    (
        "[[flood]]\nnetwork = \"blue\"",
        "[[flood]]\nnetwork = \"public\"",
        "name the host that bridges between them (`l2_gateway`)",
    ),
    (
        "vni = 5001\nlearning",
        "l2_gateway = \"a\"\nlearning",
        "`l2_gateway` needs the `wire` that it bridges to",
    ),
    (
        "learning = true",
        "tcp_midstream = \"backwards\"",
        "expected true, false or \"reverse\", found \"backwards\"",
    ),
    ("[[flood]]", "[[floods]]", "unknown key `floods`; did you mean `flood`?"),
    ("[host]", "[hots]", "[host]: missing"),
];

#[test]
fn each_mistake_is_named() {
    let line = |text: &str| VALID.lines().position(|l| l.starts_with(text)).unwrap() + 1;
    for (from, to, expected) in MISTAKES {
        let said = complaint(from, to);
        assert!(said.contains(expected), "{to}\nsaid:     {said}\nexpected: {expected}");
    }
    let said = complaint("label = 100\nrate", "label = 15\nrate");
    assert!(said.contains(&format!("line {}: guest \"vm1\": label: 15", line("label = 100"))), "{said}");
}

#[test]
fn a_verbs_device_has_a_name_and_limits() {
    let document = parse(VALID).unwrap();
    let guest = |name: &str| {
        let found = document.objects.iter().find_map(|item| match &item.object {
            config::Object::Guest(guest) if guest.name == name => Some(*guest.clone()),
            _ => None,
        });
        found.unwrap()
    };
    let verbs = |name: &str| guest(name).verbs.map(|verbs| (verbs.name, verbs.limits));
    let with = |name: &str, qps, registered_mb| {
        let limits = config::RdmaLimits { qps, registered_mb, ..Default::default() };
        Some((name.to_owned(), limits))
    };
    assert_eq!(verbs("vm1"), with("vm1.0", 64, 8192));
    assert_eq!(verbs("hpc1"), with("hpc1", 4096, 1_048_576));
    assert_eq!(verbs("mon0"), None);
}

#[test]
fn the_windows_of_a_trust_have_one_owner_and_the_size_of_the_largest() {
    let guest = |n: u32, keys: &str| {
        format!(
            "[[guest]]\nname = \"hpcvm{n}\"\nnetwork = \"blue\"\nkind = \"vhost\"\nmac = \"02:00:00:00:01:0{n}\"\n\
             addresses = [\"10.1.1.{}\"]\nrdma = \"vm{n}\"\nrdma_trust = \"job8\"\nowner = \"qemu\"\n{keys}\n",
            100 + n
        )
    };
    let text = [VALID, &guest(1, "window_mb = 64"), &guest(2, "window_mb = 128"), &guest(3, "")].concat();
    let document = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let index = config::Index::new(&document.host, document.objects.iter().map(|item| &item.object));
    let of = |trust: &str| index.common_windows().get(trust).map(|of| (of.mb, of.owner.clone()));
    assert_eq!(of("job8"), Some((128, Some("qemu".to_owned()))));
    assert_eq!(of("job9"), None);
    let said =
        parse(&text.replacen("owner = \"qemu\"\nwindow_mb = 128", "owner = \"root\"\nwindow_mb = 128", 1));
    let said = said.unwrap_err().to_string();
    assert!(said.contains("give them the `owner` and `socket_mode` of guest \"hpcvm1\""), "{said}");
}

#[test]
fn a_guest_whose_window_migrates_may_be_on_standby() {
    let guest = "[[guest]]\nname = \"hpcvm1\"\nnetwork = \"blue\"\nkind = \"vhost\"\nmac = \"02:00:00:00:01:01\"\n\
                 addresses = [\"10.1.1.101\"]\nrdma = \"vm1\"\nwindow_mb = 64\nstandby = true\n";
    let said = parse(&[VALID, guest].concat()).unwrap_err().to_string();
    assert!(said.contains("`window_mb` and `window_migrates` if programs may lose their device"), "{said}");
    parse(&[VALID, guest, "window_migrates = true\n"].concat()).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn all_mistakes_are_found_at_once() {
    let text = VALID.replacen("vrf = 2", "vrf = 1", 1).replacen("queues = 2", "queues = 0", 1).replacen(
        "action = \"reject\"",
        "action = \"deny\"",
        1,
    );
    let problems = parse(&text).unwrap_err();
    assert_eq!(problems.iter().count(), 3, "{problems}");
    let lines: Vec<_> = problems.iter().map(|p| p.line).collect();
    assert!(lines.is_sorted());
}

#[test]
fn what_follows_from_a_mistake_is_not_told() {
    let problems = parse(&VALID.replacen("vrf = 1", "vfr = 1", 1)).unwrap_err().to_string();
    assert!(problems.contains("unknown key `vfr`; did you mean `vrf`?"), "{problems}");
    assert!(!problems.contains("there is no network"), "{problems}");
    let problems = parse(&VALID.replacen("mac = \"02:", "mac = \"0g:", 1)).unwrap_err().to_string();
    assert!(problems.contains("is not a MAC address"), "{problems}");
    assert!(!problems.contains("missing"), "{problems}");
}

#[test]
fn the_loopback_device_is_no_wire() {
    let text = "[host]\nname = \"a\"\n[[wire]]\nname = \"w\"\ndriver = \"af-packet\"\ndevice = \"lo\"\n";
    assert!(parse(text).unwrap_err().to_string().contains("loopback"));
}

#[test]
fn what_an_object_has_twice_is_told() {
    let text = "[host]\nname = \"a\"\n[[network]]\nname = \"blue\"\nvrf = 1\n[[guest]]\nname = \"c1\"\n\
                network = \"blue\"\nkind = \"tap\"\ndevice = \"c1\"\nmac = \"02:00:00:00:00:01\"\n\
                addresses = [\"10.1.1.1\", \"10.1.1.1\"]\n";
    let problems = parse(text).unwrap_err().to_string();
    assert!(problems.contains("address 10.1.1.1 of network \"blue\" is there twice"), "{problems}");
}

#[test]
fn syntax_errors_have_lines() {
    let said = parse("[host]\nname = \"a\"\n\n[[guest]\n").unwrap_err().to_string();
    assert!(said.starts_with("line 4: "), "{said}");
    // The parser reads 0 from the broken line.
    let said = parse(&VALID.replacen("vrf = ", "vrf = = ", 1)).unwrap_err().to_string();
    assert!(said.contains("extra `=`") && !said.contains("vrf"), "{said}");
}

#[test]
fn any_text_is_read_without_panic() {
    bolero::check!().with_type::<(String, u16, u16)>().for_each(|(noise, at, drop)| {
        let _ = parse(noise);
        // Near-valid files get further than noise: cut a piece out of the valid one and put the noise there.
        let start = VALID.floor_char_boundary(usize::from(*at) % VALID.len());
        let end = VALID.floor_char_boundary((start + usize::from(*drop) % 64).min(VALID.len()));
        let near = format!("{}{noise}{}", &VALID[..start], &VALID[end..]);
        let _ = parse(&near);
        let included = vec![Included { name: "a.toml".to_owned(), text: near }];
        let _ = parse_all(&Texts { main: VALID.to_owned(), included: Some(included) });
    });
}

#[test]
fn what_is_no_text_is_one_problem() {
    let zeros = "\0".repeat(1 << 20);
    let said = parse(&format!("[host]\nname = \"a\"\n{zeros}")).unwrap_err();
    assert_eq!(said.iter().count(), 1);
    assert!(said.to_string().contains("line 3: the control character 0x00"), "{said}");
    let long = "#".repeat(usize::try_from(config::MOST_BYTES).unwrap() + 1);
    let said = parse(&long).unwrap_err();
    assert!(said.to_string().contains("longer than 256 MB") && said.iter().count() == 1, "{said}");
}

#[test]
fn a_file_with_more_interfaces_than_a_host_can_have_is_wrong() {
    let guest = |n: usize| {
        let mac = format!("02:00:00:00:{:02x}:{:02x}", n >> 8, n & 255);
        format!(
            "[[guest]]\nname = \"g{n}\"\nnetwork = \"blue\"\nkind = \"tap\"\ndevice = \"t{n}\"\nmac = \"{mac}\"\n"
        )
    };
    let file = |count: usize| {
        let head = "[host]\nname = \"a\"\n[[network]]\nname = \"blue\"\nvrf = 1\n";
        format!("{head}{}", (0..count).map(guest).collect::<String>())
    };
    assert!(parse(&file(4096)).is_ok());
    let said = parse(&file(5120)).unwrap_err();
    assert!(said.iter().count() == 1 && said.to_string().contains("at most 4096 interfaces"), "{said}");
}
