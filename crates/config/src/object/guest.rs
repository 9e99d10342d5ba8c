//! `[[guest]]`: a virtual machine's or container's interface.

use super::dscp::Dscp;
use super::metadata::{self, Secret};
use super::mode::{self, Mode};
use super::rdma::{self, RdmaLimits};
use super::services;
use super::shape::{self, Shape};
use super::vlan::{self, GuestVlan};
use super::{Kind, Label, Mtu, Place, check_mac, check_socket, read_name};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Prefix, Value, Within, describe, display_all, display_some, names};
use ipnet::IpNet;
use packet::Mac;
use serde::Serialize;
use std::net::IpAddr;

/// The way in which a guest is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind {
    /// vhost-user.
    Vhost,
    /// A TAP device that Viaduct creates.
    Tap,
    /// Verbs only.
    Rdma,
    /// The host itself, by a TAP device that Viaduct creates and gives the guest's addresses.
    Host,
}

names!(GuestKind { Vhost = "vhost", Tap = "tap", Rdma = "rdma", Host = "host" });

/// The side that listens on a vhost-user socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Viaduct.
    #[default]
    Server,
    /// The VMM.
    Client,
}

names!(Role { Server = "server", Client = "client" });

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
    pub kind: GuestKind,
    /// vhost: the socket, relative to the run-dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// tap, host: the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// vhost: the side that listens.
    pub role: Role,
    /// Queue pairs.
    pub queues: u16,
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
    /// vhost: while the guest's VMM is not connected, the guest is on another host, or on its way: this host
    /// treats its addresses, MAC and label as if the guest were not in the file.
    pub standby: bool,
    /// The wire whose link the guest's link follows. For a VM, the link goes down by disconnecting the VMM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_follows: Option<String>,
    /// vhost: owner of the socket, `user` or `user:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// vhost: mode of the socket, octal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<String>,
    /// Largest IP packet, bytes. `None`: the network's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// The verbs device: the name of the socket in `rdma/` of the run-dir. Always set if `kind` is
    /// [`GuestKind::Rdma`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// The user who may open the verbs device, `user` or `user:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma_owner: Option<String>,
    /// Trust of the verbs device: devices of one network, user and trust may share memory directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma_trust: Option<String>,
    /// Limits of all clients of the verbs device together. Set whenever `rdma` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma_limits: Option<RdmaLimits>,
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
    /// vhost: size of the window in megabytes (of 2^20 bytes). The window is the file by which programs in
    /// the virtual machine share memory with the verbs device. `None`: these programs can't use the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_mb: Option<u32>,
    /// vhost: whether the virtual machine may migrate although it has a window. Its programs then lose their
    /// device.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub window_migrates: bool,
}

/// Most source MACs of a guest besides its own.
const MAX_MACS: usize = 64;
/// Most queue pairs of a guest.
const MAX_QUEUES: u32 = 64;

impl Guest {
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
        let mut guest = Self {
            name: name.clone().unwrap_or_default(),
            mode,
            network: network.clone().unwrap_or_default(),
            kind: kind.unwrap_or(GuestKind::Vhost),
            socket: r.get("socket"),
            device: r.get("device"),
            role: r.get("role").unwrap_or_default(),
            queues: r.get("queues").map_or(1, Within::<1, MAX_QUEUES>::short),
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
            standby: r.get("standby").unwrap_or_default(),
            link_follows: r.get("link_follows"),
            owner: r.get("owner"),
            socket_mode: r.get("socket_mode"),
            mtu: r.get("mtu").map(Mtu::short),
            rdma: r.get("rdma"),
            rdma_owner: r.get("rdma_owner"),
            rdma_trust: r.get("rdma_trust"),
            rdma_limits: r.get("rdma_limits"),
            hostname: r.get("hostname"),
            user_data: r.get("user_data"),
            ssh_keys: r.list("ssh_keys"),
            sockets: r.get("sockets").unwrap_or_default(),
            window_mb: r.get("window_mb"),
            window_migrates: r.get("window_migrates").unwrap_or_default(),
        };
        if kind == Some(GuestKind::Vhost) && guest.socket.is_none() {
            guest.socket = name.as_ref().map(|name| format!("{name}.sock"));
        }
        if kind == Some(GuestKind::Rdma) && guest.rdma.is_none() {
            guest.rdma.clone_from(&name);
        }
        guest.check_standby(&r);
        metadata::check(&guest, &r);
        rdma::check(&guest, &r);
        shape::check(&guest, &r);
        vlan::check(&guest, &r);
        mode::check_guest(&guest, &r);
        if guest.rdma.is_some() {
            guest.rdma_limits.get_or_insert_default();
        }
        if let Some(kind) = kind {
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
        let vhost_only = [("owner", self.owner.is_some()), ("socket_mode", self.socket_mode.is_some())];
        match kind {
            GuestKind::Vhost => {
                if self.device.is_some() {
                    r.problem(Some("device"), "`device` is for kind = \"tap\"; a vhost guest has a `socket`");
                }
            }
            GuestKind::Tap | GuestKind::Host => {
                if self.device.is_none() {
                    r.problem(None, "`device` is missing: the name of the TAP device to create");
                }
                if self.socket.is_some() {
                    r.problem(Some("socket"), "`socket` is for kind = \"vhost\"; this guest has a `device`");
                }
                for (key, _) in vhost_only.iter().filter(|(_, used)| *used) {
                    r.problem(Some(key), format!("`{key}` is for kind = \"vhost\""));
                }
                if kind == GuestKind::Host {
                    self.check_host(r);
                }
            }
            GuestKind::Rdma => {
                // Defaults are written out with every object, so they do no harm.
                let port_only = [
                    ("socket", self.socket.is_some()),
                    ("device", self.device.is_some()),
                    ("role", self.role != Role::Server),
                    ("queues", self.queues != 1),
                    ("owner", self.owner.is_some()),
                    ("socket_mode", self.socket_mode.is_some()),
                    ("macs", !self.macs.is_empty()),
                    ("vlans", !self.vlans.is_empty()),
                    ("router", self.router),
                    ("dhcp_server", self.dhcp_server),
                    ("link_follows", self.link_follows.is_some()),
                ];
                for (key, _) in port_only.iter().filter(|(_, used)| *used) {
                    let message = format!("`{key}` is of a port, and a guest of kind \"rdma\" has none");
                    r.problem(Some(key), message);
                }
            }
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

    fn check_standby(&self, r: &Reader<'_>) {
        if self.standby && self.kind != GuestKind::Vhost {
            r.problem(Some("standby"), "`standby` is for kind = \"vhost\": other guests do not migrate");
        } else if self.standby && self.rdma.is_some() && !self.window_migrates {
            r.problem(
                Some("standby"),
                "`standby` and `rdma` exclude each other, because verbs devices do not migrate; add \
                 `window_mb` and `window_migrates` if programs may lose their device when their VM migrates",
            );
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
            && (self.all_addresses().next().is_some() || self.label.is_some() || self.rdma.is_some())
        {
            r.problem(None, "`mac` is missing; a guest with addresses, a label or a verbs device needs one");
        }
        let unfit = |c: char| c == '/' || c.is_whitespace() || c.is_control();
        if self.device.as_ref().is_some_and(|d| d.is_empty() || d.len() > 15 || d.contains(unfit)) {
            r.problem(Some("device"), "`device` takes the name of a network device, 1 to 15 characters");
        }
        self.socket.iter().for_each(|socket| check_socket(r, "socket", socket));
        let is_mode = |mode: &String| u32::from_str_radix(mode, 8).is_ok_and(|mode| mode <= 0o777);
        if self.socket_mode.as_ref().is_some_and(|mode| !is_mode(mode)) {
            r.problem(Some("socket_mode"), "`socket_mode` is octal, as in \"0660\"");
        }
        check_owner(r, "owner", self.owner.as_deref());
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
