//! `[[wire]]`: a way out of the host.

use super::mode::{self, Mode};
use super::{Kind, MIN_IPV6_MTU, Mtu, Place, Vni, check_socket, read_name};
use crate::reader::Reader;
use crate::value::names;
use ipnet::IpNet;
use packet::{TunnelKind, proto};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::net::IpAddr;

/// The kind of a wire's driver, as files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Packet socket on a network device.
    AfPacket,
    /// AF_XDP socket on a network device.
    AfXdp,
    /// A TAP device that Viaduct creates.
    Tap,
    /// A vhost-user socket, as between two switches.
    Vhost,
    /// No device: a VXLAN tunnel over the other wires.
    Vxlan,
    /// No device: a Geneve tunnel over the other wires.
    Geneve,
}

names!(Driver {
    AfPacket = "af-packet",
    AfXdp = "af-xdp",
    Tap = "tap",
    Vhost = "vhost",
    Vxlan = "vxlan",
    Geneve = "geneve",
});

impl Driver {
    /// Returns the encapsulation, if the wire is a tunnel.
    const fn encapsulation(self) -> Option<TunnelKind> {
        match self {
            Self::Vxlan => Some(TunnelKind::Vxlan),
            Self::Geneve => Some(TunnelKind::Geneve),
            Self::AfPacket | Self::AfXdp | Self::Tap | Self::Vhost => None,
        }
    }
}

/// A tunnel that is a wire of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireTunnel {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// The other host.
    pub remote: IpAddr,
    /// Network identifier.
    pub vni: u32,
}

impl WireTunnel {
    /// Returns the bytes of headers that the tunnel puts before an IP packet.
    #[must_use]
    pub const fn overhead(&self) -> usize {
        self.kind.overhead(self.remote.is_ipv6()) + proto::ETHERNET_LEN
    }
}

/// The device or tunnel that a wire uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A packet socket on this network device.
    AfPacket(String),
    /// An AF_XDP socket on this network device.
    AfXdp(String),
    /// A TAP device of this name, which Viaduct creates.
    Tap(String),
    /// A vhost-user socket at this path, as between two switches.
    Vhost(String),
    /// No device: a VXLAN tunnel over the other wires, to this host.
    Vxlan {
        /// The host.
        remote: IpAddr,
        /// Network identifier.
        vni: u32,
    },
    /// No device: a Geneve tunnel over the other wires, to this host.
    Geneve {
        /// The host.
        remote: IpAddr,
        /// Network identifier.
        vni: u32,
    },
}

impl Way {
    /// Returns the driver that files name.
    pub(crate) const fn driver(&self) -> Driver {
        match self {
            Self::AfPacket(_) => Driver::AfPacket,
            Self::AfXdp(_) => Driver::AfXdp,
            Self::Tap(_) => Driver::Tap,
            Self::Vhost(_) => Driver::Vhost,
            Self::Vxlan { .. } => Driver::Vxlan,
            Self::Geneve { .. } => Driver::Geneve,
        }
    }
}

/// Writes the keys of a file.
impl Serialize for Way {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_struct("Way", 3)?;
        keys.serialize_field("driver", &self.driver())?;
        match self {
            Self::AfPacket(device) | Self::AfXdp(device) | Self::Tap(device) | Self::Vhost(device) => {
                keys.serialize_field("device", device)?;
            }
            Self::Vxlan { remote, vni } | Self::Geneve { remote, vni } => {
                keys.serialize_field("remote", &remote.to_string())?;
                keys.serialize_field("vni", vni)?;
            }
        }
        keys.end()
    }
}

/// A way out of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// The wire's name.
    pub name: String,
    /// The switch that decides about packets which come by the wire.
    #[serde(skip_serializing_if = "Mode::is_default")]
    pub mode: Mode,
    /// The device or tunnel that the wire uses.
    #[serde(flatten)]
    pub way: Way,
    /// Underlay addresses with their subnets; Viaduct answers ARP, ND and pings for them.
    pub addresses: Vec<IpNet>,
    /// Next hops for remotes off the subnets, at most one per family.
    pub gateway: Vec<IpAddr>,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Whether addresses, ARP, routes and TCP stay the kernel's; Viaduct takes tunnel packets alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

impl Wire {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (None, self.name.clone())
    }

    /// Returns the network device, if the wire is one of the kernel's.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match &self.way {
            Way::AfPacket(device) | Way::AfXdp(device) => Some(device),
            _ => None,
        }
    }

    /// Returns a warning if the MTU of the wire's device is below the wire's.
    #[must_use]
    pub fn device_too_small(&self, device_mtu: u16) -> Option<String> {
        let device = self.device().filter(|_| device_mtu < self.mtu)?;
        Some(format!(
            "its device takes packets of {device_mtu} bytes, and `mtu` is {}: longer packets are dropped as \
             tx_too_long; run `ip link set {device} mtu {}`, or use mtu = {device_mtu}",
            self.mtu, self.mtu
        ))
    }

    /// Returns the tunnel, if the wire is one.
    #[must_use]
    pub const fn tunnel(&self) -> Option<WireTunnel> {
        match self.way {
            Way::Vxlan { remote, vni } => Some(WireTunnel { kind: TunnelKind::Vxlan, remote, vni }),
            Way::Geneve { remote, vni } => Some(WireTunnel { kind: TunnelKind::Geneve, remote, vni }),
            _ => None,
        }
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let name = read_name(&mut r, Kind::Wire);
        let mode = r.get("mode").unwrap_or_default();
        let driver = r.require("driver");
        let tunnels = driver.is_some_and(|driver: Driver| driver.encapsulation().is_some());
        // With a wrong driver, `tunnels` and `has_device` are both false: then no message says what the
        // driver needs.
        let has_device = driver.is_some_and(|driver| driver.encapsulation().is_none());
        let device = if has_device { r.require("device") } else { r.get("device").or(Some(String::new())) };
        let remote = if tunnels { r.require("remote") } else { r.get("remote") };
        let vni = if tunnels { r.require("vni") } else { r.get("vni") }.map(Vni::wide);
        let addresses: Vec<IpNet> = r.list("addresses");
        let gateway: Vec<IpAddr> = r.one_or_many("gateway");
        let overhead = driver.zip(remote).and_then(|(driver, remote): (Driver, IpAddr)| {
            let kind = driver.encapsulation()?;
            Some(WireTunnel { kind, remote, vni: 0 }.overhead() as u16)
        });
        let mtu = r.get("mtu").map_or(1500 - overhead.unwrap_or(0), Mtu::short);
        if mtu < MIN_IPV6_MTU
            && let Some(net) = addresses.iter().find(|net| net.addr().is_ipv6())
        {
            r.problem(
                Some("mtu"),
                format!("mtu {mtu} is below {MIN_IPV6_MTU}, which IPv6 needs; {net} is IPv6"),
            );
        }
        for (key, used) in [("remote", remote.is_some()), ("vni", vni.is_some())] {
            if used && has_device {
                r.problem(Some(key), format!("`{key}` is for the drivers \"vxlan\" and \"geneve\""));
            }
        }
        if tunnels && device.as_deref() != Some("") {
            r.problem(
                Some("device"),
                "a tunnel has no `device`: its packets leave by the wire that leads to `remote`",
            );
        }
        match (driver, device.as_deref()) {
            (Some(Driver::Vhost), Some(path)) => check_socket(&r, "device", path),
            (Some(_), Some("")) if has_device => r.problem(Some("device"), "`device` is empty"),
            (Some(Driver::AfPacket | Driver::AfXdp), Some("lo")) => {
                r.problem(Some("device"), "the loopback device leads to no other host; name a NIC");
            }
            _ => {}
        }
        check_gateways(&r, &addresses, &gateway);
        let shared = r.get("shared").unwrap_or_default();
        let way = || match driver? {
            Driver::AfPacket => device.map(Way::AfPacket),
            Driver::AfXdp => device.map(Way::AfXdp),
            Driver::Tap => device.map(Way::Tap),
            Driver::Vhost => device.map(Way::Vhost),
            Driver::Vxlan => Some(Way::Vxlan { remote: remote?, vni: vni? }),
            Driver::Geneve => Some(Way::Geneve { remote: remote?, vni: vni? }),
        };
        let read = || Some(Self { name: name?, mode, way: way()?, addresses, gateway, mtu, shared });
        let wire = read();
        wire.iter().for_each(|wire| mode::check_wire(wire, &r));
        wire.iter().filter(|wire| wire.shared).for_each(|wire| check_shared(wire, &r));
        (wire, r.finish())
    }
}

/// Checks that a wire which the kernel keeps has nothing of which the kernel decides.
fn check_shared(wire: &Wire, r: &Reader<'_>) {
    if !matches!(wire.way, Way::AfPacket(_)) {
        r.problem(
            Some("shared"),
            "the kernel keeps network devices: a `shared` wire has driver = \"af-packet\"",
        );
    }
    if wire.mode != Mode::default() {
        r.problem(
            Some("shared"),
            "an Open vSwitch takes all packets of its wire, so that it can't be `shared`",
        );
    }
    for (key, used) in [("addresses", !wire.addresses.is_empty()), ("gateway", !wire.gateway.is_empty())] {
        if used {
            let message = format!(
                "a `shared` wire has the kernel's addresses and routes; leave `{key}` out, and name the address for \
                 tunnels in `tunnel_source` of [host]"
            );
            r.problem(Some(key), message);
        }
    }
}

fn check_gateways(r: &Reader<'_>, addresses: &[IpNet], gateway: &[IpAddr]) {
    for addr in gateway {
        if !addresses.iter().any(|net| net.contains(addr)) {
            r.problem(
                Some("gateway"),
                format!("gateway {addr} is in none of the wire's subnets (`addresses`)"),
            );
        }
        if addresses.iter().any(|net| net.addr() == *addr) {
            r.problem(
                Some("gateway"),
                format!("gateway {addr} is the wire's own address; name the router there"),
            );
        }
        if gateway.iter().filter(|other| other.is_ipv4() == addr.is_ipv4()).count() > 1 {
            r.problem(Some("gateway"), "`gateway` takes one address per family");
        }
    }
}
