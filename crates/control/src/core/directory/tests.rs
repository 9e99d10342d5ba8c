use super::*;
use packet::Mac;
use std::slice::from_ref;

fn vif(id: u16, name: &str, vrf: u16, mac: Option<u8>, addresses: &[&str]) -> Vif {
    let mac = mac.map(|last| Mac([2, 0, 0, 0, 0, last]));
    let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
    Vif { vrf: Some(Vrf(vrf)), mac, addresses, ..Vif::new(VifId(id), name, VifKind::Tap) }
}

fn directory(networks: &[(u16, &str)], vifs: &[Vif]) -> Directory {
    Directory {
        networks: networks.iter().map(|(number, name)| (*number, (*name).to_owned())).collect(),
        vifs: vifs.iter().map(Entry::of).collect(),
    }
}

fn is_same(way: &Translation, vrf: u16, addr: &str) -> bool {
    way.is_same_host(Vrf(vrf), addr.parse().unwrap())
}

#[test]
fn numbers_change_and_names_stay() {
    let networks = [(1, "blue"), (2, "red")];
    let before = directory(
        &networks,
        &[vif(0, "one", 1, Some(1), &["10.0.0.1"]), vif(1, "two", 2, None, &["10.0.0.1"])],
    );
    let now = directory(
        &[(7, "red"), (1, "blue")],
        &[vif(5, "two", 7, None, &["10.0.0.1"]), vif(6, "one", 1, Some(1), &["10.0.0.1", "10.0.0.2"])],
    );
    let way = Translation::new(&before, &now);
    assert_eq!(
        (way.network(Vrf(2)), way.network(Vrf(1)), way.network(Vrf(7))),
        (Some(Vrf(7)), Some(Vrf(1)), None)
    );
    assert_eq!(
        (way.vif(VifId(0)), way.vif(VifId(1)), way.vif(VifId(5))),
        (Some(VifId(6)), Some(VifId(5)), None)
    );
    assert!(is_same(&way, 1, "10.0.0.1") && is_same(&way, 2, "10.0.0.1"));
    assert!(!is_same(&way, 1, "10.0.0.2"), "it was nobody's");
    assert!(is_same(&way, 1, "192.0.2.1"), "of a host elsewhere");
    assert!(!is_same(&way, 7, "10.0.0.1"), "no network had that number");
}

#[test]
fn who_is_another_has_nothing() {
    let networks = [(1, "blue")];
    let one = vif(0, "one", 1, Some(1), &["10.0.0.1"]);
    let before = directory(&networks, from_ref(&one));
    let way = |vifs: &[Vif]| Translation::new(&before, &directory(&networks, vifs));
    for (other, why) in [
        (vif(0, "other", 1, Some(1), &["10.0.0.1"]), "another name"),
        (vif(0, "one", 1, Some(2), &["10.0.0.1"]), "another MAC"),
        (vif(0, "one", 1, None, &["10.0.0.1"]), "no MAC any more"),
    ] {
        let way = way(&[other]);
        assert!(way.vif(VifId(0)).is_none() && !is_same(&way, 1, "10.0.0.1"), "{why}");
    }
    assert!(!is_same(&way(&[]), 1, "10.0.0.1"), "it is gone");
    let moved = way(&[vif(0, "one", 1, Some(1), &["10.0.0.9"])]);
    assert!(moved.vif(VifId(0)).is_some() && !is_same(&moved, 1, "10.0.0.1"), "it has another address");
    let open = way(&[one, vif(1, "new", 1, None, &[])]);
    assert!(is_same(&open, 1, "10.0.0.1") && !is_same(&open, 1, "192.0.2.1"), "which the new one may have");
}

#[test]
fn guests_that_forward_have_what_they_forward_for() {
    let networks = [(1, "blue")];
    let router = |name, mac| Vif {
        allowed: vec!["10.9.0.0/16".parse().unwrap()],
        ..vif(0, name, 1, Some(mac), &["10.0.0.1"])
    };
    let before = directory(&networks, &[router("router", 1)]);
    assert!(is_same(&Translation::new(&before, &before), 1, "10.9.1.1"));
    let other = directory(&networks, &[router("router", 2)]);
    assert!(!is_same(&Translation::new(&before, &other), 1, "10.9.1.1"));
}

#[test]
fn while_tables_change_both_are_known_and_a_number_of_two_networks_is_nobodys() {
    let (old, new) = (vif(0, "one", 1, Some(1), &["10.0.0.1"]), vif(0, "one", 1, Some(2), &["10.0.0.1"]));
    let networks = [(1, "blue")];
    let both = directory(&networks, from_ref(&old)).and(directory(&networks, from_ref(&new)));
    for now in [old.clone(), new] {
        let way = Translation::new(&both, &directory(&networks, &[now]));
        assert!(way.vif(VifId(0)).is_some() && is_same(&way, 1, "10.0.0.1"));
    }
    let both = directory(&networks, from_ref(&old)).and(directory(&[(1, "green")], &[]));
    let way = Translation::new(&both, &directory(&networks, &[old]));
    assert!(way.network(Vrf(1)).is_none() && !is_same(&way, 1, "10.0.0.1"));
}
