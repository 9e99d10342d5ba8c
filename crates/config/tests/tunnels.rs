//! Tunnels that are wires: which of them may be beside each other, and beside networks.

use config::parse;

#[test]
fn tunnels_that_are_wires_are_told_apart() {
    let with = |driver: &str, remote: &str, vni: u32| {
        let valid = include_str!("valid.toml");
        let own = "[[wire]]\nname = \"other\"\nmode = \"ovs\"";
        parse(&format!("{valid}\n{own}\ndriver = \"{driver}\"\nremote = \"{remote}\"\nvni = {vni}"))
    };
    for (driver, remote, vni) in [
        ("vxlan", "192.0.2.77", 78),
        ("vxlan", "192.0.2.78", 77),
        ("geneve", "192.0.2.77", 77),
        ("geneve", "192.0.2.77", 5001),
    ] {
        assert!(with(driver, remote, vni).is_ok(), "{driver} {remote} {vni}");
    }
    let said = with("vxlan", "192.0.2.77", 77).unwrap_err().to_string();
    assert!(
        said.contains("vxlan tunnel to 192.0.2.77 with vni 77 is already taken by wire \"vx77\""),
        "{said}"
    );
}
