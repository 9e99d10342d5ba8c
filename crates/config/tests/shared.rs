//! Wires that the kernel keeps.

use config::{Object, parse};

const HOST: &str = "[host]\nname = \"a\"\ntunnel_source = \"192.0.2.1\"\n";
const WIRE: &str = "[[wire]]\nname = \"up0\"\ndriver = \"af-packet\"\ndevice = \"eth0\"\nshared = true\n";
const ROUTE: &str =
    "[[network]]\nname = \"blue\"\nvrf = 1\n[[route]]\nnetwork = \"blue\"\nprefix = \"10.1.1.0/24\"\n";

#[test]
fn the_source_of_tunnels_is_no_address_of_the_wire() {
    let to = |remote: &str| {
        format!("{ROUTE}to = {{ tunnel = \"mpls-over-udp\", remote = \"{remote}\", label = 100 }}\n")
    };
    let document = parse(&format!("{HOST}{WIRE}{}", to("198.51.100.2"))).unwrap();
    let wire = document.objects.iter().find_map(|item| match &item.object {
        Object::Wire(wire) => Some(wire),
        _ => None,
    });
    assert!(wire.unwrap().shared);
    let said = parse(&format!("{HOST}{WIRE}{}", to("192.0.2.1"))).unwrap_err().to_string();
    assert!(said.contains("192.0.2.1 is this host"), "{said}");
    let said = parse(&format!("{HOST}{WIRE}{}", to("2001:db8::2"))).unwrap_err().to_string();
    assert!(said.contains("needs an IPv6 `tunnel_source`"), "{said}");
    let said =
        parse(&format!("{HOST}{}{}", WIRE.replace("shared = true", ""), to("198.51.100.2"))).unwrap_err();
    assert!(said.to_string().contains("is no wire's address"), "{said}");
    let said = parse(&format!("[host]\nname = \"a\"\n{WIRE}")).unwrap_err().to_string();
    assert!(said.contains("a `shared` wire needs `tunnel_source`"), "{said}");
}

#[test]
fn what_the_kernel_decides_is_refused() {
    let said = |wire: &str, more: &str| parse(&format!("{HOST}{wire}{more}")).unwrap_err().to_string();
    for driver in ["af-xdp", "tap"] {
        let said = said(&WIRE.replace("af-packet", driver), "");
        assert!(said.contains("driver = \"af-packet\""), "{said}");
    }
    let addresses = said(WIRE, "addresses = [\"192.0.2.1/24\"]\ngateway = \"192.0.2.254\"\n");
    for key in ["leave `addresses` out", "leave `gateway` out"] {
        assert!(addresses.contains(key), "{addresses}");
    }
    let ovs = said(WIRE, "mode = \"ovs\"\n");
    assert!(ovs.contains("an Open vSwitch takes all packets"), "{ovs}");
    let attached = said(WIRE, "[[network]]\nname = \"lan\"\nvrf = 7\nwire = \"up0\"\n");
    assert!(attached.contains("takes tunnel packets alone"), "{attached}");
}
