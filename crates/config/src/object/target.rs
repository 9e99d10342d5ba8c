//! Targets: the `to` of routes, MACs, floods, labels and nexthops.

use super::{Key, Kind, Label, Vni};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, Within, display_some, host_address, names, text};
use packet::Mac;
use serde::Serialize;
use std::net::IpAddr;

/// Encapsulations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TunnelKind {
    /// MPLS over UDP (RFC 7510), port 6635.
    MplsOverUdp,
    /// MPLS over GRE (RFC 4023).
    MplsOverGre,
    /// VXLAN (RFC 7348), port 4789.
    Vxlan,
}

names!(TunnelKind { MplsOverUdp = "mpls-over-udp", MplsOverGre = "mpls-over-gre", Vxlan = "vxlan" });

/// A tunnel to another host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnel {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// The other host.
    pub remote: IpAddr,
    /// MPLS label, or VXLAN network identifier.
    pub id: u32,
    /// Inner destination MAC of packets routed into VXLAN; `None`: the gateways' MAC.
    pub mac: Option<Mac>,
}

impl Tunnel {
    /// Returns the bytes of headers that the tunnel puts before an IP packet: outer IP, the tunnel's own, and
    /// the inner Ethernet header if there is one.
    #[must_use]
    pub const fn overhead(&self) -> usize {
        let v6 = self.remote.is_ipv6();
        match self.kind {
            TunnelKind::MplsOverUdp => packet::TunnelKind::MplsUdp.overhead(v6),
            TunnelKind::MplsOverGre => packet::TunnelKind::MplsGre.overhead(v6),
            TunnelKind::Vxlan => packet::TunnelKind::Vxlan.overhead(v6) + packet::proto::ETHERNET_LEN,
        }
    }

    /// Returns the tunnel to a mirror on another host, `vxlan:REMOTE:VNI`, with an IPv6 address in brackets
    /// or without. Returns `None` if the mirror is a guest: guests' names have no colon.
    ///
    /// # Errors
    /// The problem, in words.
    #[must_use]
    pub fn of_mirror(mirror: &str) -> Option<Result<Self, String>> {
        let (scheme, rest) = mirror.split_once(':')?;
        let parts = rest.rsplit_once(':').filter(|_| scheme == "vxlan");
        let tunnel = parts.and_then(|(remote, id)| {
            let bare = remote.strip_prefix('[').and_then(|inside| inside.strip_suffix(']'));
            let digits = id.len() <= 8 && id.bytes().all(|byte| byte.is_ascii_digit());
            let id = id.parse().ok().filter(|_| digits)?;
            Some(Self {
                kind: TunnelKind::Vxlan,
                remote: bare.unwrap_or(remote).parse().ok()?,
                id,
                mac: None,
            })
        });
        Some(match tunnel {
            Some(tunnel) if !(1..1 << 24).contains(&tunnel.id) => {
                Err(format!("{} is no VXLAN network identifier; 1 to 16777215 are", tunnel.id))
            }
            Some(tunnel) => host_address(tunnel.remote).map(|_| tunnel),
            None => Err(format!(
                "\"{mirror}\" is no mirror; name a guest, or another host as in \"vxlan:192.0.2.9:77\""
            )),
        })
    }
}

/// The destination of packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Nowhere.
    Drop,
    /// A guest of the same network.
    Guest(String),
    /// Another network, where the look-up starts again.
    Network(String),
    /// A `[[nexthop]]`.
    Nexthop(String),
    /// A router on the wire to which the network is attached.
    Via(IpAddr),
    /// Another host.
    Tunnel(Tunnel),
}

/// All keys of the table form.
#[derive(Default, Serialize)]
struct Form<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    guest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nexthop: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel: Option<TunnelKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vni: Option<u32>,
    #[serde(serialize_with = "display_some", skip_serializing_if = "Option::is_none")]
    mac: Option<Mac>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<usize>,
}

/// A target with the number of its places.
struct Weighted<'a>(&'a Target, usize);

impl Serialize for Weighted<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = Form { weight: Some(self.1).filter(|weight| *weight > 1), ..Form::default() };
        match self.0 {
            Target::Drop => return serializer.serialize_str("drop"),
            Target::Guest(name) => form.guest = Some(name),
            Target::Network(name) => form.network = Some(name),
            Target::Nexthop(name) => form.nexthop = Some(name),
            Target::Via(addr) => form.via = Some(*addr),
            Target::Tunnel(tunnel) => {
                form.tunnel = Some(tunnel.kind);
                form.remote = Some(tunnel.remote);
                form.mac = tunnel.mac;
                match tunnel.kind {
                    TunnelKind::Vxlan => form.vni = Some(tunnel.id),
                    TunnelKind::MplsOverUdp | TunnelKind::MplsOverGre => form.label = Some(tunnel.id),
                }
            }
        }
        form.serialize(serializer)
    }
}

impl Serialize for Target {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Weighted(self, 1).serialize(serializer)
    }
}

/// Serializes places: a target that has several once, with their number as its weight.
pub(super) fn weighted<S: serde::Serializer>(places: &[Target], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(places.chunk_by(PartialEq::eq).map(|same| Weighted(&same[0], same.len())))
}

/// A target in a list, and the number of its places: its weight.
pub(super) struct Places(pub(super) Target, pub(super) usize);

/// Most places of all members of a group.
pub(super) const MAX_PLACES: usize = 64;

impl Value for Places {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let target = read_table(&mut r);
        let weight = r.get("weight").map_or(1, Within::<1, { MAX_PLACES as u32 }>::wide);
        r.finish();
        Some(Self(target?, weight as usize))
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Target::read(value).map(|target| Self(target, 1))
    }
}

const FORMS: &str = "\"drop\", { guest = \"...\" }, { network = \"...\" }, { nexthop = \"...\" }, { via = \"...\" } \
     or { tunnel = \"...\", remote = \"...\", label or vni = N }";

impl Value for Target {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let target = read_table(&mut r);
        r.finish();
        target
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        match text(value) {
            Ok("drop") => Ok(Self::Drop),
            _ => Err(format!("{} is no target; use {FORMS}", crate::value::describe(value))),
        }
    }
}

fn read_table(r: &mut Reader<'_>) -> Option<Target> {
    let mut targets: Vec<Target> = Vec::new();
    targets.extend(r.get("guest").map(Target::Guest));
    targets.extend(r.get("network").map(Target::Network));
    targets.extend(r.get("nexthop").map(Target::Nexthop));
    targets.extend(r.get("via").map(Target::Via));
    targets.extend(r.get("drop").filter(|drop| *drop).map(|_| Target::Drop));
    let kind: Option<TunnelKind> = r.get("tunnel");
    let (label, vni, mac) = (r.get("label").map(Label::wide), r.get("vni").map(Vni::wide), r.get("mac"));
    let tunnel_key = |r: &mut Reader<'_>| r.get::<IpAddr>("remote");
    match kind {
        Some(kind) => {
            let remote = r.require("remote");
            let id = read_id(r, kind, label, vni);
            if mac.is_some() && kind != TunnelKind::Vxlan {
                r.problem(Some("mac"), format!("`mac` is for vxlan; {kind} carries no MAC"));
            }
            targets.push(Target::Tunnel(Tunnel { kind, remote: remote?, id: id?, mac }));
        }
        // A wrong tunnel is a problem by itself; its keys are known.
        None if r.has("tunnel") => {
            let _ = tunnel_key(r);
            return None;
        }
        None if tunnel_key(r).is_some() || label.is_some() || vni.is_some() || mac.is_some() => {
            r.problem(None, "`tunnel` is missing: mpls-over-udp, mpls-over-gre or vxlan");
            return None;
        }
        None => {}
    }
    if targets.len() > 1 {
        r.problem(None, format!("more than one target in one table; use {FORMS}, and a list for several"));
    } else if targets.is_empty() {
        r.problem(None, format!("no target; use {FORMS}"));
    }
    targets.pop()
}

fn read_id(r: &Reader<'_>, kind: TunnelKind, label: Option<u32>, vni: Option<u32>) -> Option<u32> {
    let (id, wanted, other, other_key) = match kind {
        TunnelKind::Vxlan => (vni, "vni", label, "label"),
        TunnelKind::MplsOverUdp | TunnelKind::MplsOverGre => (label, "label", vni, "vni"),
    };
    if other.is_some() {
        r.problem(Some(other_key), format!("{kind} has no `{other_key}`; it needs `{wanted}`"));
    }
    if !r.has(wanted) {
        r.problem(None, format!("`{wanted}` is missing; {kind} needs it"));
    }
    id
}

impl Target {
    /// Returns the target in words, in the form in which the store keeps it.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self {
            Self::Drop => "drop".to_owned(),
            Self::Guest(name) => format!("guest {name}"),
            Self::Network(name) => format!("network {name}"),
            Self::Nexthop(name) => format!("nexthop {name}"),
            Self::Via(addr) => format!("via {addr}"),
            Self::Tunnel(Tunnel { kind, remote, id, mac: None }) => format!("{kind} {remote} {id}"),
            Self::Tunnel(Tunnel { kind, remote, id, mac: Some(mac) }) => {
                format!("{kind} {remote} {id} {mac}")
            }
        }
    }

    /// Reads a target in words; `None` if there is none of this form.
    #[must_use]
    pub fn from_words(words: &str) -> Option<Self> {
        let mut words = words.split(' ');
        let (what, of) = (words.next()?, words.next());
        let target = match (what, of) {
            ("drop", None) => Self::Drop,
            ("guest", Some(name)) => Self::Guest(name.to_owned()),
            ("network", Some(name)) => Self::Network(name.to_owned()),
            ("nexthop", Some(name)) => Self::Nexthop(name.to_owned()),
            ("via", Some(addr)) => Self::Via(addr.parse().ok()?),
            (kind, Some(remote)) => {
                let (kind, remote) = (kind.parse().ok()?, remote.parse().ok()?);
                let id = words.next()?.parse().ok()?;
                let mac = words.next().map(str::parse).transpose().ok()?;
                Self::Tunnel(Tunnel { kind, remote, id, mac })
            }
            (_, None) => return None,
        };
        words.next().is_none().then_some(target)
    }

    /// Returns the key of the object that the target names, if it names one.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        let (kind, name) = match self {
            Self::Guest(name) => (Kind::Guest, name),
            Self::Network(name) => (Kind::Network, name),
            Self::Nexthop(name) => (Kind::Nexthop, name),
            Self::Drop | Self::Via(_) | Self::Tunnel(_) => return None,
        };
        Some(Key { kind, network: None, name: name.clone() })
    }

    /// Returns the guest, if the target is one.
    #[must_use]
    pub fn guest(&self) -> Option<&str> {
        if let Self::Guest(name) = self { Some(name) } else { None }
    }

    /// Returns the network, if the target is one.
    #[must_use]
    pub fn network(&self) -> Option<&str> {
        if let Self::Network(name) = self { Some(name) } else { None }
    }

    /// Returns the tunnel, if the target is one.
    pub const fn tunnel(&self) -> Option<&Tunnel> {
        if let Self::Tunnel(tunnel) = self { Some(tunnel) } else { None }
    }

    /// Returns whether the target is a VXLAN tunnel.
    #[must_use]
    pub fn is_vxlan(&self) -> bool {
        matches!(self, Self::Tunnel(tunnel) if tunnel.kind == TunnelKind::Vxlan)
    }
}
