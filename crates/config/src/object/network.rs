//! `[[network]]` and its parts: static MACs, floods, floating addresses, default action, labels and VNIs.

use super::metadata::{self, Secret};
use super::pool::{self, AddressRange};
use super::services::{self, DhcpOptions};
use super::{DefaultAction, Kind, Label, Mtu, Place, Target, VlanId, Vni, check_mac};
use super::{read_name, read_network};
use crate::bgp::RouteName;
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, Within, describe, display, display_all, display_some, names};
use ipnet::IpNet;
use packet::Mac;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};

/// A tenant network: one VRF with its bridge and route tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// The network's name.
    pub name: String,
    /// Number of its VRF.
    pub vrf: u16,
    /// Gateway addresses with their subnets, answered by Viaduct.
    pub gateways: Vec<IpNet>,
    /// VXLAN network identifier of frames that arrive for this network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// VXLAN network identifier of packets that other hosts route to this network, and not only bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l3vni: Option<u32>,
    /// Whether MACs are learned.
    pub learning: bool,
    /// The wire that the network is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<String>,
    /// The VLAN on that wire; `None`: untagged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The name of the host that bridges between that wire and VXLAN tunnels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_gateway: Option<String>,
    /// Largest IP packet, bytes. `None`: as much as fits the underlay with a tunnel's headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Which TCP connections are picked up although their SYN was not seen.
    pub tcp_midstream: Midstream,
    /// Whether the two directions of TCP connections may take different paths.
    pub tcp_asymmetric: bool,
    /// Whether the MSS of TCP SYNs is lowered to what fits the exit.
    pub mss_clamp: bool,
    /// Whether packets of other networks leave by the wire without address translation.
    pub routed_outside: bool,
    /// Whether guests get their addresses by DHCP.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dhcp: bool,
    /// DHCP servers outside, to which guests' messages are relayed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dhcp_relay: Vec<IpAddr>,
    /// Whether the gateway announces itself to guests as an IPv6 router.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ra: bool,
    /// Whether the gateway resolves names.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dns: bool,
    /// Whether guests get their metadata by HTTP at 169.254.169.254 and fd00:ec2::254.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub metadata: bool,
    /// A service outside that has the guests' metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_proxy: Option<SocketAddr>,
    /// The secret by which that service knows that a guest's name is right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_secret: Option<Secret>,
    /// The tenant that the service is told; `None`: the network's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_tenant: Option<String>,
    /// The domain of the guests' names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Servers that resolve names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resolvers: Vec<IpAddr>,
    /// Addresses for guests without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<AddressRange>,
    /// DHCP's settings besides addresses and names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhcp_options: Option<DhcpOptions>,
    /// Whether the host exchanges routes of the network by BGP.
    #[serde(skip_serializing_if = "is_true")]
    pub bgp: bool,
    /// The route distinguisher; `None`: it follows from router id and `vrf`.
    #[serde(serialize_with = "display_some", skip_serializing_if = "Option::is_none")]
    pub rd: Option<RouteName>,
    /// Route targets of routes that it takes. Empty: the one that follows from AS and network.
    #[serde(serialize_with = "display_all", skip_serializing_if = "Vec::is_empty")]
    pub import: Vec<RouteName>,
    /// Route targets under which its routes are announced. Empty: as for `import`.
    #[serde(serialize_with = "display_all", skip_serializing_if = "Vec::is_empty")]
    pub export: Vec<RouteName>,
    /// The plain routes of BGP peers that it takes; `None`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import_unicast: Option<ImportUnicast>,
    /// Whether the host exchanges MAC addresses and floods by BGP as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub evpn: bool,
    /// With `l3vni`: route targets of routes that it takes, besides `import`. Empty: the one that follows from AS and
    /// `l3vni`.
    #[serde(serialize_with = "display_all", skip_serializing_if = "Vec::is_empty")]
    pub l3_import: Vec<RouteName>,
    /// With `l3vni`: route targets under which its routes are announced, besides `export`. Empty: as for `l3_import`.
    #[serde(serialize_with = "display_all", skip_serializing_if = "Vec::is_empty")]
    pub l3_export: Vec<RouteName>,
    /// The action for traffic that no rule matches; `None`: that of its `[[default]]`, or allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<DefaultAction>,
    /// Behind whose addresses the guests' packets leave. Empty: none leave so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snat: Vec<Snat>,
    /// Ports that a guest has of such an address, for each protocol; `None`: [`Network::SNAT_PORTS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snat_ports: Option<u16>,
    /// For which destinations a guest's port has the same one there; `None`: [`SnatMapping::AddressAndPortDependent`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snat_mapping: Option<SnatMapping>,
}

/// Leaves a default out of the store: older daemons do not know the key.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_true(value: &bool) -> bool {
    *value
}

/// Behind which addresses the packets of a network's guests leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snat {
    /// `"host"`: those of the host, by the host's own stack.
    Host,
    /// An address of a network that is attached to a wire.
    Address(IpAddr),
}

impl Value for Snat {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::String(name) if name == "host" => Ok(Self::Host),
            Node::String(text) if let Ok(addr) = text.parse() => Ok(Self::Address(addr)),
            other => Err(format!("expected \"host\" or an address, found {}", describe(other))),
        }
    }
}

impl Serialize for Snat {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Host => serializer.serialize_str("host"),
            Self::Address(addr) => serializer.collect_str(addr),
        }
    }
}

/// The plain routes of BGP peers that a network takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportUnicast {
    /// Default routes.
    Default,
    /// All.
    All,
}

names!(ImportUnicast { Default = "default", All = "all" });

/// For which destinations a guest's port has the same port of a shared address (RFC 4787, 4.1).
#[derive(Clone, Copy, Debug, std::default::Default, PartialEq, Eq)]
pub enum SnatMapping {
    /// For one address and port.
    #[default]
    AddressAndPortDependent,
    /// For all.
    EndpointIndependent,
}

names!(SnatMapping {
    AddressAndPortDependent = "address-and-port-dependent",
    EndpointIndependent = "endpoint-independent",
});

/// The TCP connections that are picked up although their SYN was not seen.
#[derive(Clone, Copy, Debug, std::default::Default, PartialEq, Eq)]
pub enum Midstream {
    /// `false`: none.
    Never,
    /// `true`: those that the rules allow in the direction of the segment that is seen first.
    #[default]
    Ruled,
    /// `"reverse"`: also those that the rules allow in the opposite direction only.
    Reverse,
}

impl Value for Midstream {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::Boolean(false) => Ok(Self::Never),
            Node::Boolean(true) => Ok(Self::Ruled),
            Node::String(name) if name == "reverse" => Ok(Self::Reverse),
            other => Err(format!("expected true, false or \"reverse\", found {}", describe(other))),
        }
    }
}

impl Serialize for Midstream {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Never => serializer.serialize_bool(false),
            Self::Ruled => serializer.serialize_bool(true),
            Self::Reverse => serializer.serialize_str("reverse"),
        }
    }
}

impl Network {
    /// The ports that a guest has of a shared address, unless configured otherwise.
    pub const SNAT_PORTS: u16 = 512;
    /// Most addresses that the guests of a network share.
    const MAX_SHARED: usize = 64;

    /// Returns the addresses of other networks that its guests share.
    pub fn shared_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.snat.iter().filter_map(|snat| match snat {
            Snat::Host => None,
            Snat::Address(addr) => Some(*addr),
        })
    }

    /// Returns the ports that a guest has of a shared address.
    #[must_use]
    pub fn shared_ports(&self) -> u16 {
        self.snat_ports.unwrap_or(Self::SNAT_PORTS)
    }

    /// Returns whether packets leave by the host's own stack.
    #[must_use]
    pub fn leaves_by_host(&self) -> bool {
        self.snat.contains(&Snat::Host)
    }

    /// Returns a warning if the network picks up connections against its rules.
    #[must_use]
    pub fn warning(&self) -> Option<&'static str> {
        (self.tcp_midstream == Midstream::Reverse).then_some(
            "its rules do not keep out TCP segments from who forges the address and port of a server that a guest may \
             reach (`tcp_midstream = \"reverse\"`)",
        )
    }

    pub(super) fn key(&self) -> (Option<String>, String) {
        (None, self.name.clone())
    }

    fn check_snat(&self, r: &Reader<'_>) {
        if self.snat_ports.is_some() && self.shared_addresses().next().is_none() {
            r.problem(Some("snat_ports"), "`snat_ports` needs addresses in `snat`, whose ports they are");
        }
        if self.snat_mapping.is_some() && self.shared_addresses().next().is_none() {
            r.problem(
                Some("snat_mapping"),
                "`snat_mapping` needs addresses in `snat`, whose ports it is about",
            );
        }
        if self.snat.is_empty() {
            return;
        }
        let has = |v4: bool| self.gateways.iter().any(|gateway| gateway.addr().is_ipv4() == v4);
        if self.gateways.is_empty() {
            r.problem(
                Some("snat"),
                "`snat` needs an address in `gateways`, whose subnet leads back to the guests",
            );
        } else if let Some(addr) = self.shared_addresses().find(|addr| !has(addr.is_ipv4())) {
            r.problem(Some("snat"), format!("no address in `gateways` has the family of {addr}"));
        }
        if self.wire.is_some() {
            r.problem(
                Some("snat"),
                "the network leaves by its `wire`; leave `snat` out, or give guests another network",
            );
        }
        if self.leaves_by_host() && self.snat.len() > 1 {
            r.problem(Some("snat"), "`snat = \"host\"` stands alone");
        }
        if self.snat.len() > Self::MAX_SHARED {
            r.problem(Some("snat"), format!("there are more than {} addresses", Self::MAX_SHARED));
        }
        let mut tags: Vec<_> =
            self.shared_addresses().map(|addr| (packet::address_tag(addr), addr)).collect();
        tags.sort_unstable();
        tags.dedup();
        for pair in tags.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let message = format!(
                "{} and {} are alike to the table of connections; take another",
                pair[0].1, pair[1].1
            );
            r.problem(Some("snat"), message);
        }
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let name = read_name(&mut r, Kind::Network);
        let vrf = r.require("vrf").map(Within::<1, 0xffff>::short);
        let gateways = r.list("gateways");
        let (vni, l3vni) = (r.get("vni").map(Vni::wide), r.get("l3vni").map(Vni::wide));
        let learning = r.get("learning").unwrap_or(true);
        let wire: Option<String> = r.get("wire");
        let vlan = r.get("vlan").map(VlanId::short);
        let l2_gateway: Option<String> = r.get("l2_gateway");
        let mtu = r.get("mtu").map(Mtu::short);
        let tcp_midstream = r.get("tcp_midstream").unwrap_or_default();
        let tcp_asymmetric = r.get("tcp_asymmetric").unwrap_or(false);
        let mss_clamp = r.get("mss_clamp").unwrap_or(false);
        let routed_outside = r.get("routed_outside").unwrap_or(false);
        let (dhcp, ra) = (r.get("dhcp").unwrap_or(false), r.get("ra").unwrap_or(false));
        let (pool, dns) = (r.list("pool"), r.get("dns").unwrap_or(false));
        let (metadata, dhcp_relay) = (r.get("metadata").unwrap_or(false), r.list("dhcp_relay"));
        let (metadata_proxy, metadata_secret) = (r.get("metadata_proxy"), r.get("metadata_secret"));
        let metadata_tenant = r.get("metadata_tenant");
        let (domain, resolvers, dhcp_options) = (r.get("domain"), r.list("resolvers"), r.get("dhcp_options"));
        let (bgp, rd) = (r.get("bgp").unwrap_or(true), r.get("rd"));
        let (import, export) = (r.list("import"), r.list("export"));
        let import_unicast = r.get("import_unicast");
        if import_unicast.is_some() && (wire.is_none() || gateways.is_empty() || !bgp) {
            r.problem(
                Some("import_unicast"),
                "`import_unicast` needs a `wire`, on which the routers are, and `gateways` in their subnets, without \
                 `bgp = false`",
            );
        }
        let evpn = r.get("evpn").unwrap_or(false);
        if evpn && vni.is_none() {
            r.problem(Some("evpn"), "`evpn` needs a `vni`, by which the other hosts send to the network");
        }
        let (l3_import, l3_export): (Vec<_>, Vec<_>) = (r.list("l3_import"), r.list("l3_export"));
        if l3vni.is_some() && !evpn {
            r.problem(Some("l3vni"), "`l3vni` needs `evpn = true`, by which hosts tell each other of it");
        }
        for (key, targets) in [("l3_import", &l3_import), ("l3_export", &l3_export)] {
            if !targets.is_empty() && l3vni.is_none() {
                r.problem(
                    Some(key),
                    format!("`{key}` needs an `l3vni`; routes without it go by `import` and `export`"),
                );
            }
        }
        let (snat, default) = (r.one_or_many("snat"), r.get("default"));
        let snat_ports = r.get("snat_ports").map(Within::<16, 32_768>::short);
        let snat_mapping = r.get("snat_mapping");
        if vlan.is_some() && wire.is_none() {
            r.problem(Some("vlan"), "`vlan` needs the `wire` it is on");
        }
        if l2_gateway.is_some() && wire.is_none() {
            r.problem(Some("l2_gateway"), "`l2_gateway` needs the `wire` that it bridges to");
        }
        if routed_outside && wire.is_none() {
            r.problem(Some("routed_outside"), "`routed_outside` needs the `wire` that leads outside");
        }
        let read = || {
            Some(Self {
                name: name?,
                vrf: vrf?,
                gateways,
                vni,
                l3vni,
                learning,
                wire,
                vlan,
                l2_gateway,
                mtu,
                tcp_midstream,
                tcp_asymmetric,
                mss_clamp,
                routed_outside,
                dhcp,
                dhcp_relay,
                ra,
                dns,
                metadata,
                metadata_proxy,
                metadata_secret,
                metadata_tenant,
                domain,
                resolvers,
                pool,
                dhcp_options,
                bgp,
                rd,
                import,
                export,
                import_unicast,
                evpn,
                l3_import,
                l3_export,
                default,
                snat,
                snat_ports,
                snat_mapping,
            })
        };
        let network = read();
        network.iter().for_each(|network| {
            services::check(network, &r);
            metadata::check_network(network, &r);
            network.check_snat(&r);
            pool::check(network, &r);
        });
        (network, r.finish())
    }
}

/// A static bridge entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MacEntry {
    /// The network of the entry.
    pub network: String,
    /// The MAC.
    #[serde(serialize_with = "display")]
    pub mac: Mac,
    /// The target of frames to the MAC: a VXLAN tunnel or a guest.
    pub to: Target,
}

impl MacEntry {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (Some(self.network.clone()), self.mac.to_string())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let mac: Option<Mac> = r.require("mac");
        let network = read_network(&mut r, Kind::Mac, mac.as_ref().map(|m| m as _));
        if let Some(mac) = mac {
            check_mac(&r, "mac", mac);
        }
        let to: Option<Target> = r.require("to");
        if to.as_ref().is_some_and(|to| to.guest().is_none() && !to.is_vxlan()) {
            r.problem(Some("to"), "a MAC lies behind { tunnel = \"vxlan\", ... } or { guest = ... }");
        }
        let read = || Some(Self { network: network?, mac: mac?, to: to? });
        (read(), r.finish())
    }
}

/// More targets for broadcast, multicast and unknown unicast of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Flood {
    /// The network.
    pub network: String,
    /// VXLAN tunnels.
    pub to: Vec<Target>,
}

impl Flood {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (Some(self.network.clone()), String::new())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let network = read_network(&mut r, Kind::Flood, None);
        let to: Vec<Target> = r.one_or_many("to");
        if to.iter().any(|to| !to.is_vxlan()) {
            r.problem(Some("to"), "floods go to { tunnel = \"vxlan\", remote = ..., vni = ... } only");
        }
        let read = || Some(Self { network: network?, to });
        (read(), r.finish())
    }
}

/// A floating address: one-to-one NAT in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nat {
    /// Network of the inside address.
    pub network: String,
    /// The guest's address.
    pub inside: IpAddr,
    /// The floating address.
    pub outside: IpAddr,
    /// Network in which the floating address is reachable.
    pub outside_network: String,
}

impl Nat {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (Some(self.network.clone()), self.inside.to_string())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let inside: Option<IpAddr> = r.require("inside");
        let network = read_network(&mut r, Kind::Nat, inside.as_ref().map(|a| a as _));
        let outside: Option<IpAddr> = r.require("outside");
        let outside_network = r.require("outside_network");
        if let (Some(inside), Some(outside)) = (inside, outside)
            && inside.is_ipv4() != outside.is_ipv4()
        {
            r.problem(Some("outside"), format!("{inside} and {outside} are of different families"));
        }
        if network.is_some() && network == outside_network {
            r.problem(Some("outside_network"), "`outside_network` must be another network");
        }
        let read = || {
            Some(Self {
                network: network?,
                inside: inside?,
                outside: outside?,
                outside_network: outside_network?,
            })
        };
        (read(), r.finish())
    }
}

/// The action for a network's traffic that no rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Default {
    /// The network.
    pub network: String,
    /// The action.
    pub action: DefaultAction,
}

impl Default {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (Some(self.network.clone()), String::new())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let network = read_network(&mut r, Kind::Default, None);
        let action = r.require("action");
        let read = || Some(Self { network: network?, action: action? });
        (read(), r.finish())
    }
}

/// The target of an MPLS label. Guests' own labels are not among these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mpls {
    /// The label.
    pub label: u32,
    /// A guest, or a network in which the packet is routed.
    pub to: Target,
}

impl Mpls {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (None, self.label.to_string())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let label = r.require("label").map(Label::wide);
        if let Some(label) = label {
            r.call(|| format!("mpls \"{label}\""));
        }
        let to: Option<Target> = r.require("to");
        if to.as_ref().is_some_and(|to| to.guest().is_none() && to.network().is_none()) {
            r.problem(Some("to"), "a label stands for { guest = ... } or { network = ... }");
        }
        let read = || Some(Self { label: label?, to: to? });
        (read(), r.finish())
    }
}

/// The network of a VXLAN network identifier. Networks' own identifiers are not among these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vxlan {
    /// The identifier.
    pub vni: u32,
    /// The network.
    pub network: String,
}

impl Vxlan {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (None, self.vni.to_string())
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let vni = r.require("vni").map(Vni::wide);
        if let Some(vni) = vni {
            r.call(|| format!("vxlan \"{vni}\""));
        }
        let network = r.require("network");
        let read = || Some(Self { vni: vni?, network: network? });
        (read(), r.finish())
    }
}
