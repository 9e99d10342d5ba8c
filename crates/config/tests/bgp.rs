//! `[bgp]`: peers, templates and ranges; networks that are told apart.

use config::parse;

/// Returns what is wrong with a host that speaks BGP, if this is added to its file.
fn complaint(more: &str) -> String {
    let text = format!("[host]\nname = \"a\"\n[bgp]\nas = 64512\nrouter_id = \"192.0.2.1\"\n{more}");
    parse(&text).err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn peers_of_a_range_have_what_a_peer_has() {
    let text = "[host]\nname = \"a\"\n[bgp]\nas = 64512\nrouter_id = \"192.0.2.1\"\nlisten = [\"192.0.2.1\"]\n\
        [[bgp.template]]\nname = \"near\"\nport = 1179\npassive = false\nttl_security = 1\npassword = \"x\"\n\
        [[bgp.range]]\nprefix = \"198.51.100.0/24\"\ntemplate = \"near\"\nmax_peers = 7\n\
        [[bgp.range]]\nprefix = \"203.0.113.0/24\"\nas = 64513\n";
    let host = parse(text).unwrap().host;
    let bgp = host.bgp.as_ref().unwrap();
    let at = |address: &str| bgp.peer_at(address.parse().unwrap());
    assert_eq!(bgp.ranges[0].max_peers, 7);
    let its = at("198.51.100.1").unwrap();
    assert_eq!((its.asn, its.ttl_security, its.passive), (64512, Some(1), true));
    assert!(its.password.is_some());
    assert_eq!(at("203.0.113.65").map(|its| (its.asn, its.ttl_security)), Some((64513, None)));
    assert_eq!(at("198.51.101.1"), None);
    // For people, it has the keys of a file, and no password.
    let shown = host.to_toml();
    assert!(
        shown.contains("[[bgp.range]]\nprefix = \"198.51.100.0/24\"\nmax_peers = 7\nas = 64512"),
        "{shown}"
    );
    let kept = parse(&shown).unwrap().host.bgp.unwrap().ranges;
    assert_eq!(kept[1], bgp.ranges[1]);
}

#[test]
fn peers_and_ranges_that_can_not_be() {
    let range = |keys: &str| format!("[[bgp.range]]\nprefix = \"198.51.100.0/24\"\n{keys}\n");
    let listening = |more: &str| format!("listen = [\"192.0.2.1\"]\n{more}");
    let peer = |keys: &str| format!("[[bgp.peer]]\naddress = \"198.51.100.9\"\n{keys}\n");
    for (file, expected) in [
        (String::new(), "without a [[bgp.peer]] or [[bgp.range]] there is nobody to speak to"),
        (range(""), "peers of 198.51.100.0/24 call this host, so `listen` must say where they connect"),
        (listening(&range("port = 1179")), "[[bgp.range]]: unknown key `port`"),
        (listening(&range("bfd = true")), "[[bgp.range]]: unknown key `bfd`"),
        (listening(&range("max_peers = 1001")), "max_peers: 1001 is out of range; use 1 to 1000"),
        (listening(&range("ttl_security = 255")), "ttl_security: 255 is out of range; use 1 to 254"),
        (listening(&range("template = \"x\"")), "there is no [[bgp.template]] \"x\""),
        (listening(&format!("{}{}", range(""), range(""))), "the range 198.51.100.0/24 is there twice"),
        (
            listening(&format!("{}{}", peer(""), range("password = \"x\""))),
            "the peer 198.51.100.9 needs a `password` of its own",
        ),
        (
            listening(&format!("[[bgp.range]]\nprefix = \"198.51.0.0/16\"\npassword = \"x\"\n{}", range(""))),
            "the range 198.51.100.0/24 needs a `password` of its own: without one, that of the range 198.51.0.0/16",
        ),
        (
            listening(&format!("[[bgp.template]]\nname = \"x\"\nbfd = true\n{}", range("template = \"x\""))),
            "a range has no `bfd`: use a template without it",
        ),
        (
            format!("{0}{0}{1}", "[[bgp.template]]\nname = \"x\"\n", peer("")),
            "the template \"x\" is there twice",
        ),
        (listening("[[bgp.range]]\nmax_peers = 1"), "[[bgp.range]]: `prefix` is missing"),
    ] {
        let said = complaint(&file);
        assert!(said.contains(expected), "{file}\n{said}");
    }
    assert_eq!(
        complaint(&listening(&format!("{}{}", peer("password = \"y\""), range("password = \"x\"")))),
        ""
    );
}

#[test]
fn a_peer_has_what_it_does_not_write_from_its_template() {
    let multihop = "bfd = \"multihop\"\n";
    let text = include_str!("valid.toml").replace(multihop, &format!("{multihop}password = \"a secret\"\n"));
    let bgp = config::parse(&text).unwrap().host.bgp.unwrap();
    let of = |address: &str| bgp.peers.iter().find(|peer| peer.address.to_string() == address).unwrap();
    let its = of("192.0.2.253");
    assert_eq!((its.asn, its.port, its.graceful_restart, its.max_prefixes), (64512, 1179, 90, 2000));
    assert_eq!(its.families, [config::BgpFamily::Vpnv4, config::BgpFamily::Rtc]);
    assert_eq!(its.bfd, config::Bfd::Multihop);
    assert!(its.password.is_some() && of("192.0.2.254").password.is_none());
}

#[test]
fn networks_are_told_apart_by_bgp() {
    let said = |more: &str| {
        let text = format!(
            "[host]\nname = \"a\"\n[bgp]\nas = 64512\nrouter_id = \"192.0.2.1\"\n[[bgp.peer]]\naddress = \"192.0.2.9\"\n\
             [[network]]\nname = \"red\"\nvrf = 1\nvni = 2\n[[network]]\nname = \"blue\"\nvrf = 2\n{more}"
        );
        parse(&text).err().map(|problems| problems.to_string()).unwrap_or_default()
    };
    let taken = said("");
    assert!(
        taken.contains("the default route target 64512:2 is already taken by network \"red\""),
        "{taken}"
    );
    assert_eq!(said("import = [\"64512:2\"]\nexport = [\"64512:2\"]\n"), "", "somebody wants that");
    assert_eq!(said("bgp = false\n"), "");
    let taken = said("import = [\"64512:7\"]\nexport = [\"64512:7\"]\nrd = \"192.0.2.1:1\"\n");
    assert!(taken.contains("route distinguisher 192.0.2.1:1 is already taken"), "{taken}");
}
