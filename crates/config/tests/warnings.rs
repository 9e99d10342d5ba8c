//! Configurations that are allowed and cause warnings.

use config::parse;

const VALID: &str = include_str!("valid.toml");

#[test]
fn addresses_that_are_hardly_meant_are_warned_of() {
    let warned = |gateways: &str, addresses: &str, wire: &str| {
        let text = format!(
            "[host]\nname = \"a\"\n[[network]]\nname = \"blue\"\nvrf = 1\ngateways = [{gateways}]\n\
             [[guest]]\nname = \"c1\"\nnetwork = \"blue\"\nkind = \"tap\"\ndevice = \"c1\"\n\
             mac = \"02:00:00:00:00:02\"\naddresses = [{addresses}]\n\
             [[wire]]\nname = \"up0\"\ndriver = \"af-packet\"\ndevice = \"eth1\"\naddresses = [{wire}]\n"
        );
        let told = config::warnings(&parse(&text).unwrap().objects);
        told.iter().map(|problem| (problem.line.unwrap(), problem.message.clone())).collect::<Vec<_>>()
    };
    let good = ["\"10.1.1.254/24\", \"fd00::fe/64\"", "\"10.1.1.1\", \"fd00::1\"", "\"192.0.2.1/24\""];
    let [gateways, addresses, wire] = good;
    assert_eq!(warned(gateways, addresses, wire), []);
    // Links between two, and hosts by themselves (RFC 3021).
    assert_eq!(warned("\"10.1.1.0/31\", \"10.2.1.7/32\"", "\"10.1.1.1\"", "\"192.0.2.0/31\""), []);
    assert_eq!(warned("\"fd00::1/64\"", "\"10.1.1.1\"", wire), [], "there are no subnets of IPv4");
    let reserved = "network or broadcast";
    for (gateways, addresses, wire, line, part) in [
        ("\"10.1.1.0/24\"", addresses, wire, 6, reserved),
        ("\"10.1.1.255/24\"", addresses, wire, 6, reserved),
        (gateways, "\"10.1.1.255\"", wire, 13, reserved),
        (gateways, "\"10.2.1.1\"", wire, 13, "none of the subnets of network \"blue\""),
        (gateways, addresses, "\"192.0.2.255/24\"", 18, reserved),
    ] {
        let told = warned(gateways, addresses, wire);
        assert_eq!((told.len(), told[0].0), (1, line), "{told:?}");
        assert!(told[0].1.contains(part), "{told:?}");
    }
}

#[test]
fn guests_that_have_the_same_ports_outside_are_warned_of() {
    let guest = |n: u8| {
        format!(
            "[[guest]]\nname = \"c{n}\"\nnetwork = \"blue\"\nkind = \"tap\"\ndevice = \"c{n}\"\n\
             mac = \"02:00:00:00:00:0{n}\"\naddresses = [\"10.1.1.{n}\"]\n"
        )
    };
    let warned = |ports: u16| {
        let text = format!(
            "[host]\nname = \"a\"\n[[wire]]\nname = \"up0\"\ndriver = \"af-packet\"\ndevice = \"eth1\"\n\
             [[network]]\nname = \"public\"\nvrf = 9\ngateways = [\"203.0.113.254/24\"]\nwire = \"up0\"\n\
             [[network]]\nname = \"blue\"\nvrf = 1\ngateways = [\"10.1.1.254/24\"]\nsnat = \"203.0.113.5\"\n\
             snat_ports = {ports}\n{}{}",
            guest(1),
            guest(2)
        );
        config::warnings(&parse(&text).unwrap().objects)
    };
    assert_eq!(warned(512), []);
    let [told] = &warned(32_768)[..] else { panic!("one warning") };
    let expected = "guests \"c1\" (10.1.1.1) and \"c2\" (10.1.1.2) have the same ports";
    assert!(told.line == Some(16) && told.message.starts_with(expected), "{told:?}");
}

#[test]
fn connections_picked_up_against_the_rules_are_warned_of() {
    let warnings = |midstream: &str| {
        let text = format!("[host]\nname = \"a\"\n[[network]]\nname = \"blue\"\nvrf = 1\n{midstream}");
        let objects = parse(&text).unwrap_or_else(|e| panic!("{e}")).objects;
        let told = objects.iter().filter_map(config::Item::warning);
        told.map(|problem| (problem.line.unwrap(), problem.message)).collect::<Vec<_>>()
    };
    assert_eq!(warnings(""), []);
    assert_eq!(warnings("tcp_midstream = false\n"), []);
    let [(4, said)] = &warnings("tcp_midstream = \"reverse\"\n")[..] else { panic!("a warning is missing") };
    assert!(said.contains("forges the address and port of a server"), "{said}");
    // Who wrote it may rely on what it did before.
    let [(6, said)] = &warnings("tcp_midstream = true\n")[..] else { panic!("a warning is missing") };
    assert!(said.contains("against the rules any more"), "{said}");
}

#[test]
fn services_that_do_less_than_they_seem_to_are_warned_of() {
    let warned = |gateway: &str, keys: &str| {
        let text = format!(
            "[host]\nname = \"a\"\n[[network]]\nname = \"blue\"\nvrf = 1\ngateways = [\"{gateway}\"]\n{keys}\n\
             [[guest]]\nname = \"c_1\"\nnetwork = \"blue\"\nkind = \"tap\"\ndevice = \"c1\"\n\
             mac = \"02:00:00:00:00:02\"\naddresses = [\"10.1.1.1\", \"fd00::1\"]\n"
        );
        let told = config::warnings(&parse(&text).unwrap_or_else(|e| panic!("{e}")).objects);
        told.into_iter().map(|problem| problem.message).collect::<Vec<_>>()
    };
    assert_eq!(warned("10.1.1.254/24", ""), [] as [&str; 0]);
    let [unnamed] = &warned("10.1.1.254/24", "dhcp = true")[..] else { panic!("of the name alone") };
    assert!(unnamed.contains("give it a `hostname`"), "{unnamed}");
    let long = "search = [\"a.example\"]".replace("a.", &"a-long-label-of-a-domain.".repeat(9));
    let names = long
        .replace("[", "[\"b.example\", ")
        .replace("]", &format!(", {}]", vec!["\"another.example\""; 30].join(",")));
    for (gateway, keys, part) in [
        ("fd00::fe/64", "dhcp = true".to_owned(), "add `ra = true`"),
        (
            "10.1.1.254/24",
            "dhcp = true\ndhcp_options = { routes = [{ to = \"10.8.0.0/16\", via = \"10.2.1.1\" }] }"
                .to_owned(),
            "10.2.1.1, by which a route leads, is in none",
        ),
        (
            "fd00::fe/64",
            format!(
                "ra = true\nresolvers = [{}]\ndhcp_options = {{ {names} }}",
                vec!["\"fd00::53\""; 32].join(",")
            ),
            "beyond 1280 are left out",
        ),
    ] {
        let told = warned(gateway, &keys);
        assert!(told.iter().any(|said| said.contains(part)), "{told:?}");
    }
}

#[test]
fn what_is_not_checked_of_a_guest_is_told() {
    let warnings = |text: &str| {
        let document = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        config::warnings(&document.objects)
    };
    let [mon0] = &warnings(VALID)[..] else { panic!("of mon0 alone: {:?}", warnings(VALID)) };
    let line = VALID.lines().position(|l| l == "name = \"mon0\"").map(|i| i + 1);
    assert_eq!((mon0.line, mon0.at.as_str()), (line, "guest \"mon0\""));
    assert!(mon0.message.ends_with("give it `mac` and `addresses`"), "{mon0}");
    let with = |keys: &str| {
        let device = "device = \"tapmon0\"\n";
        warnings(&VALID.replacen(device, &format!("{device}{keys}"), 1))
    };
    let [mon0] = &with("mac = \"02:00:00:00:00:09\"\n")[..] else { panic!("still of mon0") };
    assert!(mon0.message.ends_with("give it `addresses`"), "{mon0}");
    assert_eq!(with("mac = \"02:00:00:00:00:09\"\naddresses = [\"10.1.1.9\"]\n"), []);
}
