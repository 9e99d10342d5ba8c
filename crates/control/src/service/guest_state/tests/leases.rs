//! Leases that go along with their guests to another host.

use super::*;

const POOL: &str = r#"
[host]
name = "a"
[[network]]
name = "blue"
vrf = 1
gateways = ["10.1.1.254/24", "fd00:1::ffff/64"]
dhcp = true
pool = ["10.1.1.100-10.1.1.110", "fd00:1::1000/124"]
[[guest]]
name = "c1"
network = "blue"
kind = "tap"
device = "t1"
[[guest]]
name = "fixed"
network = "blue"
kind = "tap"
device = "t2"
mac = "02:00:00:00:00:07"
addresses = ["10.1.1.7"]
[[guest]]
name = "c3"
network = "blue"
kind = "tap"
device = "t3"
"#;

/// Starts a host with leases, of a configuration in which `from` is `to`.
fn leasing(from: &str, to: &str) -> (Core, Arc<FakeExecutor>, tempfile::TempDir) {
    assert!(POOL.contains(from));
    start(&POOL.replacen(from, to, 1))
}

fn lease(core: &Core, guest: &str) -> Lease {
    lease_of(&core.view(), guest).unwrap().clone()
}

fn state(addresses: &[&str], mac: Option<&str>) -> Vec<GuestState> {
    let addresses = addresses.iter().map(|addr| (*addr).to_owned()).collect();
    let lease = Some(GuestLease { network: "blue".to_owned(), mac: mac.map(str::to_owned), addresses });
    let first = GuestState { version: VERSION, guest: "c1".to_owned(), lease, ..GuestState::default() };
    vec![first]
}

/// Adds a connection that the guest opened from this address.
fn with_connection(mut parts: Vec<GuestState>, source: &str) -> Vec<GuestState> {
    let mut connection = exported()[1].connections[0].clone();
    connection.source = source.to_owned();
    parts[0].connections.push(connection);
    parts
}

const MAC: &str = "02:00:00:00:00:77";

#[test]
fn a_guest_keeps_its_addresses_on_a_host_with_another_pool() {
    let (from, ..) = leasing("10.1.1.100-10.1.1.110", "10.1.1.200-10.1.1.210");
    let leased = lease(&from, "c1").addresses;
    let mut parts = export(&from, "c1").unwrap();
    parts[0].lease.as_mut().unwrap().mac = Some(MAC.to_owned());
    let (to, executor, dir) = start(POOL);
    assert_ne!(lease(&to, "c1").addresses, leased);
    let done = import(&to, with_connection(parts, &leased[0].to_string())).unwrap();
    assert_eq!(done.addresses, leased.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!((done.connections, &done.left_out[..], listed(&executor).len()), (1, &[][..], 1));
    let now = lease(&to, "c1");
    assert_eq!((&now.addresses, now.foreign, now.mac), (&leased, true, Some(MAC.parse().unwrap())));
    // The tables know it, for anti-spoofing.
    let view = to.view();
    let vif = &view.tables.vifs[&view.ids.vif("c1").unwrap()];
    assert_eq!((&vif.addresses, vif.mac), (&leased, now.mac));
    // Other changes, and another daemon, leave it.
    to.apply(Author::daemon("test"), &config::Texts::from(POOL.to_owned()), false, None).unwrap();
    assert_eq!(lease(&to, "c1"), now);
    drop(to);
    let (again, ..) = start_in(dir, POOL);
    assert_eq!(lease(&again, "c1"), now);
    // Back at home it is nothing special.
    import(&from, export(&again, "c1").unwrap()).unwrap();
    assert_eq!((lease(&from, "c1").addresses, lease(&from, "c1").foreign), (leased, false));
}

#[test]
fn a_guest_has_an_address_of_the_pool_for_the_family_of_which_it_brings_none() {
    let (core, ..) = start(POOL);
    let own = lease(&core, "c1").addresses;
    import(&core, state(&["10.1.1.55"], None)).unwrap();
    assert_eq!(lease(&core, "c1").addresses, ["10.1.1.55".parse().unwrap(), own[1]]);
}

#[test]
fn what_the_guest_can_not_have_here_is_left_out_by_name_with_its_connections() {
    let (core, ..) = start(POOL);
    let other = lease(&core, "c3").addresses[0].to_string();
    let before = lease(&core, "c1");
    let refused = [
        ("10.1.1.7", "10.1.1.7 belongs to guest \"fixed\" here"),
        (&*other, &*format!("{other} belongs to lease \"c3\" here")),
        ("10.1.1.254", "10.1.1.254 belongs to network \"blue\" here"),
        ("10.1.1.255", "10.1.1.255 is no host's address in the subnets"),
        ("10.2.2.2", "10.2.2.2 is no host's address in the subnets"),
    ];
    for (addr, why) in refused {
        let parts =
            with_connection(with_connection(state(&[addr], None), addr), &before.addresses[0].to_string());
        let done = import(&core, parts).unwrap();
        let said: Vec<_> = done.left_out.iter().map(|left| (&*left.reason, left.count)).collect();
        assert!(said.iter().any(|(reason, _)| reason.contains(why)), "{why}: {said:?}");
        assert!(said.contains(&("by an address that the guest does not have here", 1)), "{said:?}");
        assert!(done.addresses.is_empty() && lease(&core, "c1") == before, "{addr}");
    }
    let (core, ..) = leasing(
        "device = \"t1\"",
        "device = \"t1\"\nmac = \"02:00:00:00:00:09\"\naddresses = [\"10.1.1.9\"]",
    );
    let done = import(&core, with_connection(state(&["10.1.1.9"], None), "10.1.1.9")).unwrap();
    assert_eq!((done.connections, done.left_out), (1, vec![]), "it is configured here");
    let done = import(&core, state(&["10.1.1.8"], None)).unwrap();
    assert!(done.left_out[0].reason.contains("the guest leases none here"), "{done:?}");
    let fixed = "[host]";
    let lease = "[[lease]]\nguest = \"c1\"\nnetwork = \"blue\"\naddresses = [\"10.1.1.101\"]\n[host]";
    let (core, ..) = leasing(fixed, lease);
    let done = import(&core, state(&["10.1.1.8"], None)).unwrap();
    assert!(done.left_out[0].reason.contains("fixed by the file"), "{done:?}");
}

#[test]
fn a_lease_that_is_wrong_costs_all() {
    let (core, executor, _dir) = start(POOL);
    let before = lease(&core, "c1");
    for (addresses, mac, why) in [
        (&["x"][..], None, "lease: \"x\" is no address"),
        (&["224.0.0.1"], None, "224.0.0.1 is no address of a connection"),
        (&[], None, "a lease has one address"),
        (&["10.1.1.8", "10.1.1.9"], None, "a lease has one address"),
        (&["10.1.1.8", "fd00:1::8", "fd00:1::9"], None, "a lease has one address"),
        (&["10.1.1.8"], Some("01:00:00:00:00:01"), "is no guest's MAC"),
        (&["10.1.1.8"], Some("me"), "\"me\" is no MAC"),
    ] {
        let refused = import(&core, with_connection(state(addresses, mac), "10.1.1.8")).unwrap_err();
        assert!(refused.message().contains(why), "{why}: {}", refused.message());
        assert!(listed(&executor).is_empty() && lease(&core, "c1") == before, "{why}");
    }
}

#[test]
fn a_lease_from_another_host_gives_way_to_the_configuration() {
    let (core, ..) = start(POOL);
    import(&core, state(&["10.1.1.55"], None)).unwrap();
    let text = POOL.replacen("10.1.1.7", "10.1.1.55", 1);
    core.apply(Author::daemon("test"), &config::Texts::from(text), false, None).unwrap();
    let now = lease(&core, "c1");
    assert!(!now.foreign && now.addresses[0] != "10.1.1.55".parse::<IpAddr>().unwrap(), "{now:?}");
}
