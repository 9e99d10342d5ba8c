//! Reads the usual route straight from its message. A table of its fields, which is then read and checked like one of a
//! file, costs five times as much.

use api::v1;
use config::{Route, Target, Tunnel, TunnelKind};
use ipnet::IpNet;
use std::net::IpAddr;

/// Returns a route with one target; `None` if that or anything else about it is unusual, or wrong: then the other way
/// says what.
pub(super) fn read(message: &v1::Route) -> Option<Route> {
    let [to] = &message.to[..] else { return None };
    let prefix: IpNet = message.prefix.parse().ok()?;
    let to = target(to)?;
    (prefix == prefix.trunc()).then(|| Route { network: message.network.clone(), prefix, to: vec![to] })
}

fn target(message: &v1::Target) -> Option<Target> {
    let v1::Target { drop, guest, network, nexthop, via, tunnel, remote, label, vni, mac, weight } = message;
    if remote.is_some() || tunnel.is_some() {
        let others = [guest, network, nexthop, via, mac];
        if drop.is_some() || weight.is_some() || others.iter().any(|other| other.is_some()) {
            return None;
        }
        let kind: TunnelKind = tunnel.as_ref()?.parse().ok()?;
        let id = match (kind, label, vni) {
            (TunnelKind::Vxlan, None, Some(vni @ 1..=0xff_ffff)) => *vni,
            (TunnelKind::MplsOverUdp | TunnelKind::MplsOverGre, Some(label @ 16..=0xf_ffff), None) => *label,
            _ => return None,
        };
        return Some(Target::Tunnel(Tunnel { kind, remote: host(remote.as_ref()?)?, id, mac: None }));
    }
    if label.is_some() || vni.is_some() || mac.is_some() || weight.is_some() {
        return None;
    }
    match (drop, guest, network, nexthop, via) {
        (Some(true), None, None, None, None) => Some(Target::Drop),
        (None, Some(name), None, None, None) => Some(Target::Guest(name.clone())),
        (None, None, Some(name), None, None) => Some(Target::Network(name.clone())),
        (None, None, None, Some(name), None) => Some(Target::Nexthop(name.clone())),
        (None, None, None, None, Some(addr)) => host(addr).map(Target::Via),
        _ => None,
    }
}

/// Returns an address, if it is surely one that a host may have.
fn host(text: &str) -> Option<IpAddr> {
    let addr = text.parse().ok()?;
    let is_usual = match addr {
        IpAddr::V4(v4) => matches!(v4.octets()[0], 1..=126 | 128..=223),
        IpAddr::V6(v6) => matches!(v6.segments()[0], 0x2000..=0x3fff | 0xfc00..=0xfdff),
    };
    is_usual.then_some(addr)
}

#[cfg(test)]
mod tests {
    use super::super::{object, slowly};
    use super::*;
    use proptest::prelude::*;

    fn one_of(texts: &'static [&str]) -> impl Strategy<Value = String> {
        proptest::sample::select(texts).prop_map(str::to_owned)
    }

    const ADDRESSES: &[&str] = &[
        "192.0.2.7",
        "fd00::7",
        "2001:db8::1",
        "0.0.0.0",
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "ff02::1",
        "fe80::1",
        "::ffff:192.0.2.1",
        "10.0.0.1/8",
        "x",
        "",
        "01.2.3.4",
        "240.0.0.1",
    ];

    fn target() -> impl Strategy<Value = v1::Target> {
        let name = || one_of(&["vm1", "", "a b"]);
        let number = |from: &'static [u32]| proptest::sample::select(from);
        let tunnel = one_of(&["mpls-over-udp", "mpls-over-gre", "vxlan", "gre", ""]);
        let tunnel = (
            tunnel,
            proptest::option::weighted(0.9, one_of(ADDRESSES)),
            proptest::option::of(number(&[0, 15, 16, 100, 0xf_ffff, 0x10_0000])),
            proptest::option::of(number(&[0, 1, 7, 0xff_ffff, 0x100_0000])),
            proptest::option::weighted(0.1, one_of(&["02:00:00:00:00:01", "x"])),
        );
        let tunnel = tunnel
            .prop_map(|(tunnel, remote, label, vni, mac)| v1::Target {
                tunnel: Some(tunnel),
                remote,
                label,
                vni,
                mac,
                ..v1::Target::default()
            })
            .boxed();
        let simple = prop_oneof![
            any::<bool>().prop_map(|drop| v1::Target { drop: Some(drop), ..v1::Target::default() }),
            name().prop_map(|name| v1::Target { guest: Some(name), ..v1::Target::default() }),
            name().prop_map(|name| v1::Target { network: Some(name), ..v1::Target::default() }),
            name().prop_map(|name| v1::Target { nexthop: Some(name), ..v1::Target::default() }),
            one_of(ADDRESSES).prop_map(|via| v1::Target { via: Some(via), ..v1::Target::default() }),
            Just(v1::Target::default()),
        ]
        .boxed();
        // With fields of another one.
        let both = (tunnel.clone(), simple.clone()).prop_map(|(tunnel, simple)| v1::Target {
            drop: simple.drop,
            guest: simple.guest,
            via: simple.via,
            ..tunnel
        });
        let weighted = (tunnel.clone(), 0..3_u32)
            .prop_map(|(tunnel, weight)| v1::Target { weight: Some(weight), ..tunnel });
        prop_oneof![4 => tunnel, 3 => simple, 1 => both, 1 => weighted]
    }

    proptest! {
        #[test]
        fn both_ways_agree(
            network in one_of(&["blue", "", "a b"]),
            prefix in one_of(&["10.0.0.0/8", "10.0.0.1/8", "10.0.0.1", "fd00::/16", "fd00::1/16", "::/0", "x", "", "1.2.3.4/33", "1.2.3.4/32"]),
            to in proptest::collection::vec(target(), 0..3),
        ) {
            let message = api::v1::object::Object::Route(v1::Route { network, prefix, to });
            let message = v1::Object { object: Some(message) };
            prop_assert_eq!(object(&message), slowly(&message));
        }
    }

    #[test]
    fn the_usual_route_is_read_straight() {
        let tunnel = v1::Target {
            tunnel: Some("mpls-over-udp".to_owned()),
            remote: Some("192.0.2.7".to_owned()),
            label: Some(100),
            ..v1::Target::default()
        };
        let (network, prefix) = ("blue".to_owned(), "10.0.0.1/32".to_owned());
        assert!(read(&v1::Route { network, prefix, to: vec![tunnel] }).is_some());
    }
}
