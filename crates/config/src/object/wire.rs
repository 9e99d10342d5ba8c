//! `[[wire]]`: a way out of the host.

use super::mode::{self, Mode};
use super::{Kind, MIN_IPV6_MTU, Place, check_mtu, read_name};
use crate::reader::Reader;
use crate::value::names;
use ipnet::IpNet;
use serde::Serialize;
use std::net::IpAddr;

/// How a wire's device is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Packet socket on a network device.
    AfPacket,
    /// AF_XDP socket on a network device.
    AfXdp,
    /// A TAP device that Viaduct creates.
    Tap,
    /// A vhost-user socket, as between two switches.
    Vhost,
    /// A DPDK device.
    Dpdk,
}

names!(Driver { AfPacket = "af-packet", AfXdp = "af-xdp", Tap = "tap", Vhost = "vhost", Dpdk = "dpdk" });

/// A way out of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wire {
    /// Its name.
    pub name: String,
    /// Who decides about packets that come by it.
    #[serde(skip_serializing_if = "Mode::is_default")]
    pub mode: Mode,
    /// How the device is driven.
    pub driver: Driver,
    /// Network device, socket path (vhost) or device arguments (dpdk).
    pub device: String,
    /// Underlay addresses with their subnets; Viaduct answers ARP, ND and pings for them.
    pub addresses: Vec<IpNet>,
    /// Next hops for remotes off the subnets, at most one per family.
    pub gateway: Vec<IpAddr>,
    /// Largest IP packet, bytes.
    pub mtu: u16,
}

impl Wire {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (None, self.name.clone())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let name = read_name(&mut r, Kind::Wire);
        let mode = r.get("mode").unwrap_or_default();
        let driver = r.require("driver");
        let device = r.require("device");
        let addresses: Vec<IpNet> = r.list("addresses");
        let gateway: Vec<IpAddr> = r.one_or_many("gateway");
        let mtu = r.get("mtu").unwrap_or(1500);
        check_mtu(&r, mtu);
        if mtu < MIN_IPV6_MTU
            && let Some(net) = addresses.iter().find(|net| net.addr().is_ipv6())
        {
            r.problem(
                Some("mtu"),
                format!("mtu {mtu} is below {MIN_IPV6_MTU}, which IPv6 needs; {net} is IPv6"),
            );
        }
        if driver == Some(Driver::Dpdk) {
            r.problem(Some("driver"), "driver \"dpdk\" is not built in; use \"af-xdp\" or \"af-packet\"");
        }
        if device.as_deref() == Some("") {
            r.problem(Some("device"), "`device` is empty");
        }
        for addr in &gateway {
            if !addresses.iter().any(|net| net.contains(addr)) {
                r.problem(
                    Some("gateway"),
                    format!("gateway {addr} is in none of the wire's subnets (`addresses`)"),
                );
            }
            if gateway.iter().filter(|other| other.is_ipv4() == addr.is_ipv4()).count() > 1 {
                r.problem(Some("gateway"), "`gateway` takes one address per family");
            }
        }
        let read =
            || Some(Self { name: name?, mode, driver: driver?, device: device?, addresses, gateway, mtu });
        let wire = read();
        wire.iter().for_each(|wire| mode::check_wire(wire, &r));
        (wire, r.finish())
    }
}
