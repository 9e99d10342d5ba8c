//! Routes that a daemon holds by BGP, on their way to the daemon that takes over.

use super::learned::{Bridges, Routes};
use control::{BridgeChange, Core};
use ipnet::IpNet;
use model::{Tunnel, TunnelKind, Vrf};
use packet::Mac;
use rib::{PathSet, SourceId};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A route, a MAC address, or where the floods of a network go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    vrf: u16,
    /// The prefix of a route.
    prefix: Option<String>,
    /// A MAC address. Without prefix and address: floods.
    mac: Option<[u8; 6]>,
    /// An IP address of that MAC address. Then there is no tunnel, and a prefix that earlier versions can't read.
    #[serde(default)]
    address: Option<IpAddr>,
    /// The tunnels or routers by which it is reached, each as often as its weight.
    to: Vec<HeldTunnel>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HeldTunnel {
    kind: String,
    remote: IpAddr,
    id: u32,
    mac: Option<[u8; 6]>,
}

const KINDS: [(&str, TunnelKind); 3] =
    [("mpls-udp", TunnelKind::MplsUdp), ("mpls-gre", TunnelKind::MplsGre), ("vxlan", TunnelKind::Vxlan)];

/// The kind of a path without a tunnel.
const VIA: &str = "via";

impl HeldTunnel {
    fn of(tunnel: &Tunnel) -> Option<Self> {
        let (kind, _) = KINDS.iter().find(|(_, kind)| *kind == tunnel.kind)?;
        let mac = tunnel.mac.map(|mac| mac.0);
        Some(Self { kind: (*kind).to_owned(), remote: tunnel.remote, id: tunnel.id, mac })
    }

    /// Returns the form of a router of the network itself, which earlier versions leave out.
    fn via(router: IpAddr) -> Self {
        Self { kind: VIA.to_owned(), remote: router, id: 0, mac: None }
    }

    fn path(&self) -> Option<rib::Path> {
        if self.kind == VIA {
            Some(rib::Path::Via(self.remote))
        } else {
            self.tunnel().map(rib::Path::Tunnel)
        }
    }

    fn tunnel(&self) -> Option<Tunnel> {
        let (_, kind) = KINDS.iter().find(|(name, _)| *name == self.kind)?;
        Some(Tunnel { kind: *kind, remote: self.remote, id: self.id, mac: self.mac.map(Mac) })
    }
}

/// Returns all that is held of a source.
pub(super) fn held(core: &Core, source: SourceId) -> Vec<Held> {
    let routes = core.routes_of(source).into_iter().map(|(vrf, prefix, paths)| {
        let tunnels = paths.paths().iter().filter_map(|path| match path {
            rib::Path::Tunnel(tunnel) => HeldTunnel::of(tunnel),
            rib::Path::Via(router) => Some(HeldTunnel::via(*router)),
            rib::Path::Discard => None,
        });
        Held { vrf: vrf.0, prefix: Some(prefix.to_string()), mac: None, address: None, to: tunnels.collect() }
    });
    let bridges = core.learned_bridges().into_iter().flat_map(|(vrf, change)| {
        let of = |mac: Option<Mac>, tunnels: &[Tunnel]| Held {
            vrf: vrf.0,
            prefix: None,
            mac: mac.map(|mac| mac.0),
            address: None,
            to: tunnels.iter().filter_map(HeldTunnel::of).collect(),
        };
        let macs = change.macs.iter().map(|(mac, to)| of(Some(*mac), to.as_slice()));
        let floods = change.flood.iter().flat_map(|flood| flood.chunks(rib::MAX_PATHS));
        let owners = change.owners.iter().map(|(address, mac)| {
            let prefix = Some("address".to_owned());
            Held { prefix, address: Some(*address), ..of(*mac, &[]) }
        });
        macs.chain(floods.map(|part| of(None, part))).chain(owners).collect::<Vec<_>>()
    });
    routes.chain(bridges).collect()
}

/// Sorts what another daemon held by networks. Leaves out what it can't read.
pub(super) fn sorted(held: Vec<Held>) -> (Routes, Bridges) {
    let (mut routes, mut bridges) = (Routes::new(), Bridges::new());
    for Held { vrf, prefix, mac, address, to } in held {
        let tunnels: Vec<Tunnel> = to.iter().filter_map(HeldTunnel::tunnel).collect();
        let bridge = |bridges: &mut Bridges, put: &dyn Fn(&mut BridgeChange)| {
            put(bridges.entry(Vrf(vrf)).or_default());
        };
        if let Some(address) = address {
            bridge(&mut bridges, &|change| change.owners.push((address, mac.map(Mac))));
            continue;
        }
        match (prefix.map(|prefix| prefix.parse::<IpNet>()), mac) {
            (Some(Ok(prefix)), _) => {
                let paths = PathSet::new(to.iter().filter_map(HeldTunnel::path));
                routes.entry(Vrf(vrf)).or_default().extend(paths.map(|paths| (prefix, Some(paths))));
            }
            (Some(Err(_)), _) => {}
            (None, Some(mac)) => {
                bridge(&mut bridges, &|change| change.macs.push((Mac(mac), tunnels.first().copied())));
            }
            (None, None) => bridge(&mut bridges, &|change| {
                change.flood.get_or_insert_default().extend(&tunnels);
            }),
        }
    }
    (routes, bridges)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_read_back() {
        let tunnel = |(_, kind): (&str, TunnelKind)| Tunnel {
            kind,
            remote: "192.0.2.1".parse().unwrap(),
            id: 7,
            mac: Some(Mac([2; 6])),
        };
        let tunnels = KINDS.map(tunnel);
        let to: Vec<_> = tunnels.iter().filter_map(HeldTunnel::of).collect();
        let router: IpAddr = "203.0.113.1".parse().unwrap();
        let way_out = Held {
            vrf: 4,
            prefix: Some("0.0.0.0/0".to_owned()),
            mac: None,
            address: None,
            to: [vec![HeldTunnel::via(router); 2], to[..1].to_vec()].concat(),
        };
        let of = |prefix: Option<&str>, mac| Held {
            vrf: 3,
            prefix: prefix.map(str::to_owned),
            mac,
            address: None,
            to: to.clone(),
        };
        let address = "10.0.0.7".parse().unwrap();
        let owner = Held { address: Some(address), to: Vec::new(), ..of(Some("address"), Some([2; 6])) };
        let (route, broken) = (of(Some("10.0.0.0/8"), None), of(Some("x"), None));
        let held = vec![way_out, route, broken, of(None, Some([2; 6])), of(None, None), owner];
        let text = serde_json::to_string(&held).unwrap();
        let (routes, bridges) = sorted(serde_json::from_str(&text).unwrap());
        let paths = PathSet::new(tunnels.map(rib::Path::Tunnel));
        assert_eq!(routes[&Vrf(3)], [("10.0.0.0/8".parse().unwrap(), paths)]);
        let via = rib::Path::Via(router);
        let paths = PathSet::new([via, via, rib::Path::Tunnel(tunnels[0])]);
        assert_eq!(routes[&Vrf(4)], [("0.0.0.0/0".parse().unwrap(), paths)]);
        let change = &bridges[&Vrf(3)];
        assert_eq!(change.macs, [(Mac([2; 6]), Some(tunnels[0]))]);
        assert_eq!(change.flood, Some(tunnels.to_vec()));
        assert_eq!(change.owners, [(address, Some(Mac([2; 6])))]);
    }
}
