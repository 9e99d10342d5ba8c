//! The peers in `[bgp]`: those with an address, ranges of them, and templates.

use super::{AsNumber, BGP_PORT, BgpFamily};
use crate::object::TunnelKind;
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Prefix, Value, Within, describe};
use ipnet::IpNet;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// `[[bgp.peer]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BgpPeer {
    /// The peer's address.
    pub address: IpAddr,
    /// The peer's autonomous system.
    #[serde(rename = "as")]
    pub asn: u32,
    /// The families of routes that are exchanged.
    pub families: Vec<BgpFamily>,
    /// The encapsulation of routes with an MPLS label.
    pub encapsulation: TunnelKind,
    /// The port to which the host connects.
    pub port: u16,
    /// Whether only the peer opens the connection.
    pub passive: bool,
    /// Seconds for which both keep routes when the session ends; 0: not at all.
    pub graceful_restart: u16,
    /// Most routes that it may send.
    pub max_prefixes: u32,
    /// BFD watches the path to it, or not.
    #[serde(skip_serializing_if = "Bfd::is_off")]
    pub bfd: Bfd,
    /// Packets of the peer count only if at most so many hops lie behind them (RFC 5082); 1: it is on a link of the
    /// host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_security: Option<u8>,
    /// The password that segments of both are signed with (RFC 2385).
    #[serde(skip)]
    pub password: Option<Password>,
}

/// `[[bgp.range]]`: peers that call, without a table for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BgpRange {
    /// The addresses from which they may call.
    pub prefix: IpNet,
    /// Most peers at a time.
    pub max_peers: u16,
    /// Each of them, but for its address. The host calls none of them.
    #[serde(flatten, serialize_with = "without_address")]
    pub peer: BgpPeer,
}

fn without_address<S: Serializer>(peer: &BgpPeer, serializer: S) -> Result<S::Ok, S::Error> {
    let mut table = toml::Table::try_from(peer).map_err(serde::ser::Error::custom)?;
    for key in ["address", "port", "passive"] {
        table.remove(key);
    }
    table.serialize(serializer)
}

/// How BFD watches the path to a peer (RFC 5880).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bfd {
    /// `false`: it is not.
    #[default]
    Off,
    /// `true`: the peer is on a link of the host (RFC 5881).
    Link,
    /// `"multihop"`: it is behind routers (RFC 5883).
    Multihop,
}

impl Bfd {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
    const fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }
}

impl Value for Bfd {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        match value {
            Node::Boolean(false) => Ok(Self::Off),
            Node::Boolean(true) => Ok(Self::Link),
            Node::String(name) if name == "multihop" => Ok(Self::Multihop),
            other => Err(format!("expected true, false or \"multihop\", found {}", describe(other))),
        }
    }
}

impl Serialize for Bfd {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::Link => serializer.serialize_bool(true),
            Self::Multihop => serializer.serialize_str("multihop"),
        }
    }
}

/// A password, which is shown to nobody: 1 to 80 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    const MOST: usize = 80;

    /// Returns its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Value for Password {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        // Messages don't show it, whatever it is.
        let Node::String(text) = value else { return Err("a password is a string in quotes".to_owned()) };
        match text.len() {
            1..=Self::MOST => Ok(Self(text.to_string())),
            length => Err(format!("a password has 1 to {} bytes, this one {length}", Self::MOST)),
        }
    }
}

/// The keys that a peer and a template have in common, as far as they are written.
#[derive(Clone, Default)]
pub(super) struct Keys {
    asn: Option<u32>,
    families: Option<Vec<BgpFamily>>,
    encapsulation: Option<TunnelKind>,
    port: Option<u16>,
    passive: Option<bool>,
    graceful_restart: Option<u16>,
    max_prefixes: Option<u32>,
    bfd: Option<Bfd>,
    ttl_security: Option<u8>,
    password: Option<Password>,
}

impl Keys {
    fn read(r: &mut Reader<'_>) -> Self {
        Self {
            port: r.get("port").map(Within::<1, 0xffff>::short),
            passive: r.get("passive"),
            bfd: r.get("bfd"),
            ..Self::of_range(r)
        }
    }

    /// Reads those that a range has as well: its peers call, from addresses that nobody knows before.
    fn of_range(r: &mut Reader<'_>) -> Self {
        Self {
            asn: r.get("as").map(AsNumber::wide),
            families: r.given("families"),
            encapsulation: r.get("encapsulation"),
            graceful_restart: r.get("graceful_restart").map(Within::<0, 4095>::short),
            max_prefixes: r.get("max_prefixes").map(Within::<1, 10_000_000>::wide),
            ttl_security: r.get("ttl_security").map(|hops: Within<1, 254>| hops.short() as u8),
            password: r.get("password"),
            ..Self::default()
        }
    }

    /// Takes what is not written from the template that the table names.
    fn completed(self, r: &mut Reader<'_>, templates: &Templates) -> Self {
        let Some(name) = r.get::<String>("template") else { return self };
        if let Some(template) = templates.get(&name) {
            return self.or(template.clone());
        }
        let hint = crate::did_you_mean(&name, templates.keys().map(String::as_str));
        r.problem(Some("template"), format!("there is no [[bgp.template]] \"{name}\"{hint}"));
        self
    }

    fn or(self, template: Self) -> Self {
        Self {
            asn: self.asn.or(template.asn),
            families: self.families.or(template.families),
            encapsulation: self.encapsulation.or(template.encapsulation),
            port: self.port.or(template.port),
            passive: self.passive.or(template.passive),
            graceful_restart: self.graceful_restart.or(template.graceful_restart),
            max_prefixes: self.max_prefixes.or(template.max_prefixes),
            bfd: self.bfd.or(template.bfd),
            ttl_security: self.ttl_security.or(template.ttl_security),
            password: self.password.or(template.password),
        }
    }
}

pub(super) type Templates = BTreeMap<String, Keys>;

/// Reads the templates, by name.
pub(super) fn templates(r: &mut Reader<'_>) -> Templates {
    let mut all = BTreeMap::new();
    for mut table in r.tables("template") {
        table.call(|| "[[bgp.template]]".to_owned());
        let (name, keys) = (table.require::<String>("name"), Keys::read(&mut table));
        table.finish();
        let Some(name) = name else { continue };
        if all.contains_key(&name) {
            r.problem(Some("template"), format!("the template \"{name}\" is there twice"));
        }
        all.insert(name, keys);
    }
    all
}

impl BgpPeer {
    pub(super) fn read(mut r: Reader<'_>, own: Option<u32>, templates: &Templates) -> Option<Self> {
        r.call(|| "[[bgp.peer]]".to_owned());
        let address = r.require("address");
        let keys = Keys::read(&mut r).completed(&mut r, templates);
        Self::of(r, address, own, keys)
    }

    /// Makes a peer of its keys, whose table is read then.
    fn of(r: Reader<'_>, address: Option<IpAddr>, own: Option<u32>, keys: Keys) -> Option<Self> {
        let families = keys
            .families
            .unwrap_or_else(|| vec![BgpFamily::Vpnv4, BgpFamily::Vpnv6, BgpFamily::Evpn, BgpFamily::Rtc]);
        if families.iter().all(|family| *family == BgpFamily::Rtc) {
            r.problem(Some("families"), "`families` needs one besides \"rtc\", which has no routes");
        }
        let encapsulation = keys.encapsulation.unwrap_or(TunnelKind::MplsOverUdp);
        if encapsulation == TunnelKind::Vxlan && !families.contains(&BgpFamily::Evpn) {
            r.problem(Some("encapsulation"), "only EVPN routes go by VXLAN, and `families` lacks \"evpn\"");
        }
        r.finish();
        Some(Self {
            address: address?,
            asn: keys.asn.or(own)?,
            families,
            encapsulation,
            port: keys.port.unwrap_or(BGP_PORT),
            passive: keys.passive.unwrap_or(false),
            graceful_restart: keys.graceful_restart.unwrap_or(120),
            max_prefixes: keys.max_prefixes.unwrap_or(1_000_000),
            bfd: keys.bfd.unwrap_or_default(),
            ttl_security: keys.ttl_security,
            password: keys.password,
        })
    }
}

impl BgpRange {
    pub(super) fn read(mut r: Reader<'_>, own: Option<u32>, templates: &Templates) -> Option<Self> {
        r.call(|| "[[bgp.range]]".to_owned());
        let prefix = r.require::<Prefix>("prefix").map(|prefix| prefix.0);
        let max_peers = r.get("max_peers").map_or(16, Within::<1, 1000>::short);
        let keys = Keys::of_range(&mut r).completed(&mut r, templates);
        if keys.bfd.is_some_and(|bfd| bfd != Bfd::Off) {
            r.problem(Some("template"), "a range has no `bfd`: use a template without it");
        }
        let keys = Keys { bfd: None, port: None, passive: Some(true), ..keys };
        let peer = BgpPeer::of(r, prefix.map(|prefix| prefix.addr()), own, keys);
        Some(Self { prefix: prefix?, max_peers, peer: peer? })
    }
}
