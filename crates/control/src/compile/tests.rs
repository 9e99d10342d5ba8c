//! Tests compilation: the tables that objects become, and that changes lead to the same tables as a fresh
//! start.

use super::*;
use crate::owner::{Objects, Owner};
use model::{Change, Tables};
use proptest::prelude::*;
use std::net::IpAddr;

const HOST: &str = r#"
[host]
name = "a"
tunnel_source = "192.0.2.1"
"#;

const BASE: &str = r#"
[[wire]]
name = "up0"
driver = "af-packet"
device = "va"
addresses = ["192.0.2.1/24"]
mtu = 9000
[[network]]
name = "blue"
vrf = 1
gateways = ["10.1.1.254/24"]
vni = 5001
[[network]]
name = "red"
vrf = 2
gateways = ["10.2.2.254/24"]
wire = "up0"
vlan = 7
"#;

fn guest(n: u8) -> String {
    format!(
        "[[guest]]\nname = \"vm{n}\"\nnetwork = \"blue\"\nkind = \"tap\"\ndevice = \"t{n}\"\n\
         mac = \"02:00:00:00:00:{n:02x}\"\naddresses = [\"10.1.1.{n}\"]\nlabel = {}\n",
        100 + u32::from(n)
    )
}

fn objects(text: &str) -> (config::Host, Objects) {
    let document = config::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut objects = Objects::default();
    document.objects.into_iter().for_each(|item| objects.put(Owner::File, item.object));
    (document.host, objects)
}

fn compiled(text: &str, ids: &mut Ids) -> Desired {
    let (host, objects) = objects(text);
    let ordered = objects.in_order_of(Kind::ALL);
    let index = Index::new(&host, ordered.iter().map(|owned| &owned.object));
    compile((&host, &index), &objects, &Desired::default(), &Links::default(), ids)
}

#[test]
fn everything_a_file_may_say_compiles_to_tables_that_hold_together() {
    let text = include_str!("../../../config/tests/valid.toml");
    let desired = compiled(text, &mut Ids::default());
    let mut tables = Tables::new();
    tables.apply(&Desired::default().changes_to(&desired)).unwrap();
    tables.apply(&desired.changes_to(&Desired::default())).unwrap();
}

#[test]
fn routes_labels_and_macs_follow_from_guests_and_gateways() {
    let desired = compiled(&format!("{HOST}{BASE}{}", guest(1)), &mut Ids::default());
    let nexthop = |prefix: &str| {
        let id = *desired.routes.get(&(Vrf(1), prefix.parse().unwrap())).unwrap();
        desired.nexthops.get(id).unwrap().into_owned()
    };
    let mac = "02:00:00:00:00:01".parse().unwrap();
    let vm1 = Nexthop::Encap { vif: VifId(1), mac };
    assert_eq!(nexthop("10.1.1.1/32"), vm1);
    assert_eq!(nexthop("10.1.1.254/32"), Nexthop::Receive);
    assert_eq!(nexthop("10.1.1.0/24"), Nexthop::Resolve { via: None });
    assert_eq!(*desired.nexthops.get(desired.mpls[&101]).unwrap(), vm1);
    assert_eq!(desired.vxlan[&5001], Vrf(1));
    assert_eq!(desired.macs[&(Vrf(1), mac)], BridgeTarget::Vif(VifId(1)));
    assert_eq!(desired.networks[&Vrf(1)].members, [VifId(1)]);
    let wire = desired.vifs[&VifId(0)].wire.clone().unwrap();
    assert_eq!(wire.networks, [(Some(7), Vrf(2))]);
}

#[test]
fn mtu_leaves_room_for_a_tunnel() {
    let mtu = |text: &str| {
        let desired = compiled(text, &mut Ids::default());
        let networks = desired.networks;
        (networks[&Vrf(1)].mtu, networks[&Vrf(2)].mtu)
    };
    assert_eq!(mtu(&format!("{HOST}{BASE}")), (8950, 9000), "the second lies on the wire itself");
    let v6 = HOST.replace("\"192.0.2.1\"", "[\"192.0.2.1\", \"2001:db8::1\"]");
    assert_eq!(mtu(&format!("{v6}{BASE}")).0, 8930);
    let unsaid = "[host]\nname = \"a\"\n";
    assert_eq!(mtu(&format!("{unsaid}{BASE}")).0, 8950, "tunnels start at the wire");
    let no_underlay = BASE.replace("addresses = [\"192.0.2.1/24\"]\n", "");
    assert_eq!(mtu(&format!("{unsaid}{no_underlay}")).0, 9000, "no tunnels, no headers");
    let own = BASE.replace("vni = 5001", "vni = 5001\nmtu = 1400");
    assert_eq!(mtu(&format!("{HOST}{own}")).0, 1400);
}

#[test]
fn a_guest_on_standby_counts_where_it_is() {
    let vm = guest(1).replace("kind = \"tap\"\ndevice = \"t1\"", "kind = \"vhost\"\nstandby = true");
    let elsewhere = r#"
[[route]]
network = "blue"
prefix = "10.1.1.1/32"
to = [{ tunnel = "mpls-over-udp", remote = "192.0.2.2", label = 101 }]
[[nat]]
network = "blue"
inside = "10.1.1.1"
outside = "10.2.2.7"
outside_network = "red"
"#;
    // In either order in the file.
    for text in [format!("{HOST}{BASE}{vm}{elsewhere}"), format!("{HOST}{BASE}{elsewhere}{vm}")] {
        let (host, objects) = objects(&text);
        let ordered = objects.in_order_of(Kind::ALL);
        let index = Index::new(&host, ordered.iter().map(|owned| &owned.object));
        let at = |away: &[&str]| {
            let away = away.iter().map(|name| (*name).to_owned()).collect();
            let links = Links { away, ..Links::default() };
            let desired =
                compile((&host, &index), &objects, &Desired::default(), &links, &mut Ids::default());
            let prefix = "10.1.1.1/32".parse().unwrap();
            let nexthop = *desired.routes.get(&(Vrf(1), prefix)).unwrap();
            let nexthop = desired.nexthops.get(nexthop).unwrap().into_owned();
            let key = Origins::of(&objects, &links.away).get("blue", prefix).unwrap().key();
            (desired, nexthop, key.kind)
        };
        let (here, nexthop, origin) = at(&[]);
        assert!(matches!((nexthop, origin), (Nexthop::Encap { .. }, config::Kind::Guest)));
        assert_eq!((here.macs.len(), here.mpls.len(), here.floating.len()), (1, 1, 1));
        let (away, nexthop, origin) = at(&["vm1"]);
        assert!(matches!((nexthop, origin), (Nexthop::Tunnel(_), config::Kind::Route)));
        assert_eq!((away.macs.len(), away.mpls.len(), away.floating.len()), (0, 0, 0));
        assert_eq!(away.networks[&Vrf(1)].members, []);
        let vif = away.vifs.values().find(|vif| &*vif.name == "vm1").unwrap();
        assert_eq!((vif.vrf, vif.addresses.is_empty()), (None, true), "it is in no network");
        let mut tables = Tables::new();
        tables.apply(&Desired::default().changes_to(&away)).unwrap();
        tables.apply(&away.changes_to(&here)).unwrap();
        tables.apply(&here.changes_to(&away)).unwrap();
    }
}

#[test]
fn an_own_route_beats_the_one_that_follows_from_a_gateway() {
    let route = "[[route]]\nnetwork = \"blue\"\nprefix = \"10.1.1.0/24\"\nto = \"drop\"\n";
    let desired = compiled(&format!("{HOST}{BASE}{route}"), &mut Ids::default());
    let id = *desired.routes.get(&(Vrf(1), "10.1.1.0/24".parse().unwrap())).unwrap();
    assert_eq!(*desired.nexthops.get(id).unwrap(), Nexthop::Discard);
}

#[test]
fn the_way_out_does_not_lead_to_metadata_of_the_host() {
    let network = |keys: &str| {
        let gateways = "gateways = [\"10.1.1.254/24\", \"fd00:1::ffff/64\"]";
        let network = format!("[[network]]\nname = \"blue\"\nvrf = 1\n{gateways}\n{keys}\n");
        compiled(&format!("{HOST}{network}"), &mut Ids::default())
    };
    let [v4, v6] = Services::METADATA.map(|addr| (Vrf(1), IpNet::from(addr)));
    let desired = network("snat = \"host\"");
    assert_eq!(*desired.nexthops.get(*desired.routes.get(&v6).unwrap()).unwrap(), Nexthop::Discard);
    assert!(!desired.networks[&Vrf(1)].gateways.contains(&v6.1));
    let desired = network("metadata = true");
    assert!([v4, v6].iter().all(|(vrf, net)| desired.networks[vrf].gateways.contains(net)));
    assert!(![v4, v6].iter().any(|route| desired.routes.contains_key(route)));
}

#[test]
fn wires_without_a_mac_of_their_own_get_one_that_differs_by_host() {
    let mac = |host: &str| {
        let text = format!("{}{BASE}", HOST.replace("\"a\"", &format!("\"{host}\"")));
        compiled(&text, &mut Ids::default()).vifs[&VifId(0)].mac.unwrap()
    };
    assert_eq!(mac("a"), mac("a"));
    assert_ne!(mac("a"), mac("b"));
    assert!(!mac("a").is_group());
}

#[test]
fn the_same_again_is_no_change() {
    let text = include_str!("../../../config/tests/valid.toml");
    let mut ids = Ids::default();
    let first = compiled(text, &mut ids);
    assert_eq!(first.changes_to(&compiled(text, &mut ids)), []);
}

#[test]
fn numbers_stay_when_others_go() {
    let mut ids = Ids::default();
    let before = compiled(&format!("{HOST}{BASE}{}{}", guest(1), guest(2)), &mut ids);
    let after = compiled(&format!("{HOST}{BASE}{}", guest(2)), &mut ids);
    let changes = before.changes_to(&after);
    assert!(changes.contains(&Change::DelVif(VifId(1))), "{changes:?}");
    assert!(!changes.iter().any(|c| matches!(c, Change::PutVif(_))), "{changes:?}");
}

#[test]
fn rules_go_before_others_come() {
    let rules = |from: u32| {
        let rule = |n| format!("[[rule]]\nnetwork = \"blue\"\npriority = {n}\naction = \"drop\"\n");
        format!("{HOST}{BASE}{}", (from..from + 3).map(rule).collect::<String>())
    };
    let mut ids = Ids::default();
    let (before, after) = (compiled(&rules(1), &mut ids), compiled(&rules(11), &mut ids));
    let changes = before.changes_to(&after);
    assert!(changes[..3].iter().all(|change| matches!(change, Change::DelRule { .. })), "{changes:?}");
    assert_eq!(changes.iter().filter(|change| matches!(change, Change::PutRule(_))).count(), 3);
}

/// Generates a file with some of many parts.
fn file() -> impl Strategy<Value = String> {
    let guests = proptest::collection::btree_set(1..5_u8, 0..4);
    let routes = proptest::collection::btree_map(0..6_u8, 0..6_usize, 0..5);
    let rules = proptest::collection::btree_set((0..3_u32, 0..4_usize), 0..4);
    (guests, routes, rules, any::<bool>(), 0..3_usize).prop_map(|(guests, routes, rules, nat, default)| {
        let mut text = format!("{HOST}{BASE}");
        guests.iter().for_each(|n| text += &guest(*n));
        let targets = [
            "\"drop\"".to_owned(),
            "{ network = \"red\" }".to_owned(),
            "{ tunnel = \"mpls-over-udp\", remote = \"192.0.2.2\", label = 100 }".to_owned(),
            "[{ tunnel = \"mpls-over-gre\", remote = \"192.0.2.2\", label = 100 }, \
              { tunnel = \"mpls-over-gre\", remote = \"192.0.2.3\", label = 100 }]"
                .to_owned(),
            guests.first().map_or("\"drop\"".to_owned(), |n| format!("{{ guest = \"vm{n}\" }}")),
            "{ tunnel = \"vxlan\", remote = \"192.0.2.2\", vni = 5001 }".to_owned(),
        ];
        for (n, to) in routes {
            let to = &targets[to];
            text += &format!("[[route]]\nnetwork = \"blue\"\nprefix = \"10.{}.0.0/16\"\nto = {to}\n", 10 + n);
        }
        let to = guests.first().map_or("\"any\"".to_owned(), |n| format!("{{ guest = \"vm{n}\" }}"));
        let mirror = guests.last().map_or("reject".to_owned(), |n| format!("mirror:vm{n}"));
        for (priority, action) in rules {
            let action = ["allow", "drop", "police:10", &mirror][action];
            text += &format!(
                "[[rule]]\nnetwork = \"blue\"\npriority = {priority}\nto = {to}\naction = \"{action}\"\n"
            );
        }
        if nat {
            text += "[[nat]]\nnetwork = \"blue\"\ninside = \"10.1.1.1\"\noutside = \"10.2.2.9\"\noutside_network = \"red\"\n";
        }
        let default_action = ["", "drop", "reject"][default];
        if default > 0 {
            text += &format!("[[default]]\nnetwork = \"blue\"\naction = \"{default_action}\"\n");
        }
        text
    })
}

proptest! {
    /// Changes from one file to the next leave the tables as if they had been filled from nothing.
    #[test]
    fn changes_lead_to_what_a_start_from_nothing_gives(files in proptest::collection::vec(file(), 1..4)) {
        let (mut ids, mut current, mut tables) = (Ids::default(), Desired::default(), Tables::new());
        for text in files {
            let next = compiled(&text, &mut ids);
            tables.apply(&current.changes_to(&next)).unwrap();
            current = next;
            let mut fresh = Tables::new();
            fresh.apply(&Desired::default().changes_to(&current)).unwrap();
            prop_assert_eq!(format!("{tables:?}"), format!("{fresh:?}"));
        }
    }
}

#[test]
fn tunnel_packets_are_taken_from_whom_the_file_names() {
    let remote = |n: u8| format!("{{ tunnel = \"vxlan\", remote = \"192.0.2.{n}\", vni = 7 }}");
    let text = format!(
        "{HOST}tunnel_peers = [\"198.51.100.0/24\"]\nudp6_zero_checksum = true\ntunnel_df = false\n{BASE}\
         [[route]]\nnetwork = \"blue\"\nprefix = \"10.9.0.0/16\"\nto = [{}, {}]\n\
         [[mac]]\nnetwork = \"blue\"\nmac = \"02:00:00:00:00:33\"\nto = {}\n\
         [[flood]]\nnetwork = \"blue\"\nto = [{}]\n\
         [[nexthop]]\nname = \"spare\"\nto = {}\n",
        remote(2),
        remote(3),
        remote(4),
        remote(5),
        remote(6),
    );
    let desired = compiled(&text, &mut Ids::default());
    assert_eq!(desired.host.tunnel_peers, ["198.51.100.0/24".parse::<IpNet>().unwrap()]);
    assert!(desired.host.udp6_zero_checksum && desired.host.tunnel_fragments);
    let default = compiled(&format!("{HOST}{BASE}"), &mut Ids::default());
    assert!(!default.host.tunnel_fragments);
    let mut tables = Tables::new();
    tables.apply(&Desired::default().changes_to(&desired)).unwrap();
    let known = |n: u8| model::Lookup::is_remote(&tables, IpAddr::from([192, 0, 2, n]));
    assert_eq!((0..=255).filter(|n| known(*n)).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
}

#[test]
fn each_vlan_of_a_guest_is_an_interface_of_its_network() {
    let vlans = "vlans = [{ tag = 10, network = \"red\", addresses = [\"10.2.2.1\"] }]\nmacs = [\"00:00:5e:00:01:05\"]\n";
    let text = format!("{HOST}{BASE}{}{vlans}rdma = \"d\"\nallowed = [\"10.7.0.0/16\"]\n", guest(1));
    let desired = compiled(&text, &mut Ids::default());
    let vif = |name: &str| desired.vifs.values().find(|vif| &*vif.name == name).unwrap();
    let (own, vlan) = (vif("vm1"), vif("vm1:10"));
    assert_eq!((&own.vlans[..], own.trunk), (&[(10, vlan.id)][..], None));
    assert_eq!((vlan.trunk, vlan.vrf, vlan.rdma), (Some((own.id, 10)), Some(Vrf(2)), None));
    assert_eq!((vlan.mac, &vlan.macs), (own.mac, &own.macs));
    assert_eq!(vlan.addresses, ["10.2.2.1".parse::<IpAddr>().unwrap()]);
    assert!(vlan.allowed.is_empty() && vif("vm1:rdma").vlans.is_empty());
    assert_eq!(desired.networks[&Vrf(1)].members, [own.id]);
    assert_eq!(desired.networks[&Vrf(2)].members, [vlan.id]);
    let route = *desired.routes.get(&(Vrf(2), "10.2.2.1/32".parse().unwrap())).unwrap();
    assert_eq!(
        *desired.nexthops.get(route).unwrap(),
        Nexthop::Encap { vif: vlan.id, mac: vlan.mac.unwrap() }
    );
    let mut tables = Tables::new();
    tables.apply(&Desired::default().changes_to(&desired)).unwrap();
    tables.apply(&desired.changes_to(&compiled(HOST, &mut Ids::default()))).unwrap();
}

#[test]
fn guests_have_the_roles_they_are_given_and_their_devices_too() {
    let text = format!("{HOST}{BASE}{}rdma = \"d\"\nrouter = true\n{}", guest(1), guest(2));
    let desired = compiled(&text, &mut Ids::default());
    let roles = |name: &str| desired.vifs.values().find(|vif| &*vif.name == name).unwrap().roles;
    let router = model::Roles { router: true, dhcp_server: false };
    assert_eq!([roles("vm1"), roles("vm1:rdma"), roles("vm2")], [router, router, model::Roles::default()]);
}
