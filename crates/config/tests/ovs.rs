//! Ports that an Open vSwitch programs (`mode = "ovs"`), and the keys that they may have.

use config::{parse, parse_objects};

#[test]
fn a_port_of_an_open_vswitch_is_in_no_network() {
    let text = |keys: &str| {
        format!("[host]\nname = \"a\"\n[[guest]]\nname = \"v\"\nkind = \"vhost\"\nmode = \"ovs\"\n{keys}")
    };
    let wire = "[[wire]]\nname = \"w\"\nmode = \"ovs\"\ndriver = \"af-packet\"\ndevice = \"e\"";
    let keys = "queues = 2\nrate = { mbps = 10 }\nlink_follows = \"w\"\n";
    let document = parse(&text(&[keys, wire].concat())).unwrap();
    let objects: Vec<_> = document.objects.iter().map(|item| item.object.clone()).collect();
    assert!(document.objects.iter().all(|item| item.warning().is_none()));
    assert_eq!(objects[1].refers_to().iter().map(ToString::to_string).collect::<Vec<_>>(), ["wire \"w\""]);
    let written: String = objects.iter().map(config::Object::to_concise_toml).collect();
    assert!(written.contains("mode = \"ovs\"") && !written.contains("network"), "{written}");
    assert_eq!(parse_objects(&written).unwrap(), objects);
    let index = config::Index::new(&document.host, objects.iter());
    assert_eq!(index.guest_mtu(&index.guests()["v"]), 1500);
}

#[test]
fn what_has_no_meaning_at_a_port_of_an_open_vswitch_is_refused() {
    let host = "[host]\nname = \"a\"\n[[network]]\nname = \"blue\"\nvrf = 1\ngateways = [\"10.1.1.254/24\"]\n\
                [[guest]]\nname = \"v\"\nkind = \"vhost\"\nmode = \"ovs\"\n";
    let without = |key: &str| format!("`{key}` has no meaning with mode = \"ovs\"");
    let tunnel =
        |keys| format!("[[wire]]\nname = \"w\"\ndriver = \"vxlan\"\nremote = \"192.0.2.2\"\nvni = 7\n{keys}");
    let tap = |keys: &str| format!("[[wire]]\nname = \"w\"\ndriver = \"tap\"\ndevice = \"t\"\n{keys}");
    let lan = "[[network]]\nname = \"lan\"\nvrf = 2\nwire = \"w\"";
    let cases = [
        ("network = \"blue\"", "with mode = \"ovs\", a guest is in no network; add policy = true".to_owned()),
        ("mac = \"02:00:00:00:00:01\"", without("mac")),
        ("mac = \"02:00:00:00:00:01\"\naddresses = [\"10.1.1.1\"]", without("addresses")),
        ("allowed = [\"10.1.1.0/28\"]", without("allowed")),
        ("label = 100", without("label")),
        ("mirror = \"vxlan:192.0.2.9:7\"", without("mirror")),
        ("router = true", without("router")),
        ("dhcp_server = true", without("dhcp_server")),
        ("standby = true", without("standby")),
        ("rdma = \"v\"", "`rdma` is of a verbs device, which takes its addresses from a network".to_owned()),
        ("vlans = [{ tag = 7, network = \"blue\" }]", without("vlans")),
        ("policy = true", "with mode = \"ovs\", `policy` needs a `network`, whose rules".to_owned()),
        ("policy = true\nnetwork = \"blu\"", "\"blu\"".to_owned()),
        ("policy = true\nnetwork = \"blue\"\nmac = \"02:00:00:00:00:01\"", without("mac")),
        ("mode2 = 1", "mode2".to_owned()),
        (&tap("mode = \"ovs\"\naddresses = [\"192.0.2.1/24\"]"), without("addresses")),
        (&tap("mode = \"linux\""), "\"linux\" is none of vrouter, ovs".to_owned()),
        (
            &[&tap("mode = \"ovs\"\n"), lan].concat(),
            "network \"lan\": an Open vSwitch decides about wire \"w\"".to_owned(),
        ),
        (&tunnel("mode = \"ovs\""), "needs an IPv4 `tunnel_source`".to_owned()),
        (&tunnel(""), "a tunnel is a wire only for Open vSwitch (mode = \"ovs\")".to_owned()),
        (&tunnel("mode = \"ovs\"\ndevice = \"e\""), "a tunnel has no `device`".to_owned()),
        (&tunnel("mode = \"ovs\"").replace("vxlan", "vxlna"), "driver: \"vxlna\" is none of".to_owned()),
        (&tap("vni = 7"), "`vni` is for the drivers \"vxlan\" and \"geneve\"".to_owned()),
        (
            "[[route]]\nnetwork = \"blue\"\nprefix = \"10.9.0.0/16\"\nto = { guest = \"v\" }",
            "an Open vSwitch decides about guest \"v\"".to_owned(),
        ),
        (
            "[[mac]]\nnetwork = \"blue\"\nmac = \"02:00:00:00:00:03\"\nto = { guest = \"v\" }",
            "an Open vSwitch decides about guest \"v\"".to_owned(),
        ),
        (
            "[[rule]]\nnetwork = \"blue\"\npriority = 1\nto = { guest = \"v\" }\naction = \"drop\"",
            "an Open vSwitch decides about guest \"v\"".to_owned(),
        ),
    ];
    for (keys, expected) in cases {
        let complaint = parse(&format!("{host}{keys}")).unwrap_err().to_string();
        assert!(complaint.contains(&expected), "{keys}: {complaint}");
    }
    // No message gives advice that leads to the next refusal: each key is refused once, and none is missing.
    let problems = |text: &str| parse(text).unwrap_err().to_string().lines().count();
    for keys in ["rdma = \"v\"", "rdma_trust = \"t\"", "window_mb = 64", "label = 100"] {
        assert_eq!(problems(&format!("{host}{keys}")), 1, "{keys}");
    }
    assert_eq!(problems(&format!("{host}rdma = \"v\"\nrdma_owner = \"1\"\nwindow_mb = 64")), 3);
    let rdma = host.replace("vhost", "rdma");
    assert!(parse(&rdma).unwrap_err().to_string().contains("guest of kind \"rdma\" has none"));
    assert_eq!(
        problems(&format!("[host]\nname = \"a\"\n{}", tunnel("mode = \"ovs\"").replace("vxlan", "vxlna"))),
        1
    );
    assert_eq!(problems(&rdma), 1);
}
