//! `[[guest]]`: a virtual machine's or container's interface.

use super::connection::{Connection, GuestKind, Keys, VhostUser, Window, not_without_port};
use super::dscp::Dscp;
use super::metadata::{self, Secret};
use super::mode::{self, Mode};
use super::rdma::{self, Verbs};
use super::services;
use super::shape::{self, Shape};
use super::vlan::{self, GuestVlan};
use super::{Kind, Label, Mtu, Place, check_mac, read_name};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Prefix, Value, describe, display_all, display_some};
use ipnet::IpNet;
use packet::Mac;
use serde::Serialize;
use std::net::IpAddr;

/// A policer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rate {
    /// Megabits per second.
    pub mbps: u32,
    /// Burst, kilobytes. `None`: half a second at that rate, at least 192.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_kb: Option<u32>,
}

/// The least burst, kilobytes, and the reason.
pub(super) const LEAST_BURST_KB: u32 = 64;
pub(super) const BURST_TOO_SMALL: &str = "a burst below 64 kB stops large sends for good; use 192 or more";

impl Value for Rate {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let mbps = r.require("mbps");
        let burst_kb = r.get("burst_kb");
        if mbps == Some(0) {
            r.problem(Some("mbps"), "a rate of 0 lets nothing pass; remove the guest, or use a rule");
        }
        if burst_kb.is_some_and(|kb: u32| kb < LEAST_BURST_KB) {
            r.problem(Some("burst_kb"), BURST_TOO_SMALL);
        }
        r.finish();
        Some(Self { mbps: mbps?, burst_kb })
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Err(format!("expected {{ mbps = N, burst_kb = N }}, found {}", describe(value)))
    }
}

/// A guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Guest {
    /// The guest's name.
    pub name: String,
    /// The switch that decides about the guest's packets.
    #[serde(skip_serializing_if = "Mode::is_default")]
    pub mode: Mode,
    /// The guest's network; empty for a guest that an Open vSwitch programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// The way in which the guest is connected.
    #[serde(flatten)]
    pub connection: Connection,
    /// The guest's MAC, the only source that it may use besides `macs`. `None`: any, learned.
    #[serde(serialize_with = "display_some", skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// More source MACs, which other guests may have as well.
    #[serde(serialize_with = "display_all")]
    pub macs: Vec<Mac>,
    /// The guest's addresses.
    pub addresses: Vec<IpAddr>,
    /// The guest's VLANs. Untagged frames belong to the guest's own network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<GuestVlan>,
    /// MPLS label of packets that arrive for the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<u32>,
    /// Policer of the guest's packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Rates over which the guest's packets wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// The DSCP with which IP packets of the guest leave; `None`: their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Dscp>,
    /// The guest, or the other host ([`super::Tunnel::of_mirror`]), that gets a copy of both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Whether rules run and flows are tracked.
    pub policy: bool,
    /// More source prefixes that the guest may use besides its addresses.
    pub allowed: Vec<IpNet>,
    /// Whether the guest may send router advertisements and redirects.
    pub router: bool,
    /// Whether the guest may send messages that DHCP clients accept from servers.
    pub dhcp_server: bool,
    /// The wire whose link the guest's link follows. For a VM, the link goes down by disconnecting the VMM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_follows: Option<String>,
    /// Largest IP packet, bytes. `None`: the network's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// The verbs device. Always set if the guest has nothing else ([`Connection::Rdma`]).
    #[serde(flatten)]
    pub verbs: Option<Verbs>,
    /// Trust of the verbs device, and of sockets: those of one network, user and trust may share memory directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma_trust: Option<String>,
    /// The guest's own name; `None`: as the guest's name here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The guest's user data, if its network gives guests metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<Secret>,
    /// Public keys by which users of the guest may log in, as metadata.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Whether programs of the guest may move their TCP connections within this host to memory in common
    /// (`viaduct run`). tap: by the socket in `sockets/` of the run-dir that has the guest's name; vhost: by the
    /// agent in the virtual machine, in the window of its trust.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sockets: bool,
}

/// Most source MACs of a guest besides its own.
const MAX_MACS: usize = 64;
impl Guest {
    /// Returns the kind that files name.
    #[must_use]
    pub const fn kind(&self) -> GuestKind {
        self.connection.kind()
    }

    /// Returns the connection of a virtual machine.
    #[must_use]
    pub const fn vhost(&self) -> Option<&VhostUser> {
        if let Connection::Vhost(vhost) = &self.connection { Some(vhost) } else { None }
    }

    /// Returns whether the guest counts as absent while its VMM is not connected.
    #[must_use]
    pub fn is_standby(&self) -> bool {
        self.vhost().is_some_and(|vhost| vhost.standby)
    }

    /// Returns the window of the guest's verbs device.
    #[must_use]
    pub fn window(&self) -> Option<&Window> {
        self.vhost()?.window.as_ref()
    }

    /// Returns a warning: what the guest may do to its neighbours because keys are missing, and which keys.
    /// `None` if the guest's packets are checked.
    #[must_use]
    pub fn warning(&self) -> Option<&'static str> {
        match (self.mac, self.addresses.is_empty()) {
            _ if self.mode == Mode::Ovs => None,
            (None, _) => Some(
                "what it sends is not checked: it may use others' MACs and addresses, and pose as a router or DHCP server; \
                 give it `mac` and `addresses`",
            ),
            (Some(_), true) => Some(
                "only the MAC of what it sends is checked: it may use others' addresses, and pose as a router or DHCP \
                 server; give it `addresses`",
            ),
            (Some(_), false) if self.vlans.iter().any(|vlan| vlan.addresses.is_empty()) => Some(
                "only the MAC of what it sends in some of its VLANs is checked: it may use others' addresses there, and \
                 pose as a router or DHCP server; give each of them `addresses`",
            ),
            (Some(_), false) => None,
        }
    }

    /// Returns the guest's addresses, those in its VLANs too.
    pub fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let vlans = self.vlans.iter().flat_map(|vlan| &vlan.addresses);
        self.addresses.iter().chain(vlans).copied()
    }

    pub(super) fn key(&self) -> (Option<String>, String) {
        (None, self.name.clone())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let name = read_name(&mut r, Kind::Guest);
        let mode = r.get("mode").unwrap_or_default();
        let network = match mode {
            Mode::Vrouter => r.require("network"),
            Mode::Ovs => r.get("network").or_else(|| Some(String::new())),
        };
        let kind = r.require("kind");
        let keys = Keys::read(&mut r);
        let verbs = rdma::Keys::read(&mut r);
        let (called, of) = (name.as_deref().unwrap_or_default(), kind.unwrap_or(GuestKind::Vhost));
        let guest = Self {
            name: called.to_owned(),
            mode,
            network: network.clone().unwrap_or_default(),
            mac: r.get("mac"),
            macs: r.list("macs"),
            addresses: r.list("addresses"),
            vlans: r.list("vlans"),
            label: r.get("label").map(Label::wide),
            rate: r.get("rate"),
            shape: r.get("shape"),
            dscp: r.get("dscp"),
            mirror: r.get("mirror"),
            policy: r.get("policy").unwrap_or(mode == Mode::Vrouter),
            allowed: r.list::<Prefix>("allowed").into_iter().map(|p| p.0).collect(),
            router: r.get("router").unwrap_or_default(),
            dhcp_server: r.get("dhcp_server").unwrap_or_default(),
            link_follows: r.get("link_follows"),
            mtu: r.get("mtu").map(Mtu::short),
            rdma_trust: r.get("rdma_trust"),
            hostname: r.get("hostname"),
            user_data: r.get("user_data"),
            ssh_keys: r.list("ssh_keys"),
            sockets: r.get("sockets").unwrap_or_default(),
            verbs: verbs.device(called, of),
            connection: keys.connection(called, of),
        };
        metadata::check(&guest, &r);
        verbs.check(&guest, &keys, &r);
        shape::check(&guest, &r);
        vlan::check(&guest, &r);
        mode::check_guest(&guest, &keys, &verbs, &r);
        if let Some(kind) = kind {
            keys.check(&r, kind);
            guest.check_kind(&r, kind);
        }
        guest.check(&r);
        let read = || {
            name.and(network).and(kind)?;
            Some(guest)
        };
        (read(), r.finish())
    }

    fn check_kind(&self, r: &Reader<'_>, kind: GuestKind) {
        match kind {
            GuestKind::Vhost | GuestKind::Tap => {}
            GuestKind::Host => self.check_host(r),
            GuestKind::Rdma => not_without_port(
                r,
                &[
                    ("macs", !self.macs.is_empty()),
                    ("vlans", !self.vlans.is_empty()),
                    ("router", self.router),
                    ("dhcp_server", self.dhcp_server),
                    ("link_follows", self.link_follows.is_some()),
                ],
            ),
        }
    }

    fn check_host(&self, r: &Reader<'_>) {
        if self.addresses.is_empty() && !r.has("addresses") {
            r.problem(None, "`addresses` is missing: those of the host in the network");
        }
        let of_others = [("vlans", !self.vlans.is_empty()), ("mode", self.mode == Mode::Ovs)];
        for (key, _) in of_others.iter().filter(|(_, used)| *used) {
            r.problem(Some(key), format!("`{key}` is not for kind = \"host\"; use kind = \"tap\""));
        }
    }

    fn check_macs(&self, r: &Reader<'_>) {
        if self.mac.is_none() && !r.has("mac") && !self.macs.is_empty() {
            r.problem(
                Some("macs"),
                "`macs` are more than `mac`, which is missing; a guest without it may use any",
            );
        }
        if self.macs.len() > MAX_MACS {
            r.problem(Some("macs"), format!("{} MACs; use {MAX_MACS} at most", self.macs.len()));
        }
        for mac in &self.macs {
            check_mac(r, "macs", *mac);
        }
    }

    fn check(&self, r: &Reader<'_>) {
        self.check_macs(r);
        if let Some(mac) = self.mac {
            check_mac(r, "mac", mac);
        } else if self.mode == Mode::Vrouter
            && !r.has("mac")
            && (self.all_addresses().next().is_some() || self.label.is_some() || self.verbs.is_some())
        {
            r.problem(None, "`mac` is missing; a guest with addresses, a label or a verbs device needs one");
        }
        if self.hostname.as_ref().is_some_and(|name| !services::is_label(name)) {
            r.problem(Some("hostname"), "`hostname` is letters, digits and hyphens, 63 at most");
        }
    }
}

/// Checks the owner of a socket.
pub(super) fn check_owner(r: &Reader<'_>, key: &str, owner: Option<&str>) {
    let wrong = |owner: &str| owner.split(':').count() > 2 || owner.split(':').any(str::is_empty);
    if owner.is_some_and(wrong) {
        r.problem(Some(key), format!("`{key}` is \"user\" or \"user:group\""));
    }
}
