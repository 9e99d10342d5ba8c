//! The objects that make up a host, besides `[host]`.

mod connection;
mod dscp;
mod forward;
mod guest;
mod metadata;
pub(crate) mod mode;
mod network;
mod pool;
mod rdma;
mod refers;
mod route;
mod rule;
mod services;
mod shape;
mod target;
mod vlan;
mod wire;

pub use connection::{Connection, GuestKind, Role, TapDevice, VhostUser, Window};
pub use dscp::Dscp;
pub use forward::{Forward, ForwardTo};
pub use guest::{Guest, Rate};
pub use metadata::Secret;
pub use mode::Mode;
pub use network::{
    Default, Flood, ImportUnicast, MacEntry, Midstream, Mpls, Nat, Network, Snat, SnatMapping, Vxlan,
};
pub use pool::{AddressRange, Lease};
pub use rdma::{RdmaLimits, Verbs};
pub use route::{Nexthop, Route};
pub use rule::{DefaultAction, Endpoint, Ports, Protocol, Rule, RuleAction};
pub use services::is_label;
pub(crate) use services::told_by_router;
pub use services::{DhcpOptions, DhcpRoute};
pub use shape::{Shape, ShapeRate};
pub use target::{Target, Tunnel, TunnelKind};
pub use vlan::GuestVlan;
pub use wire::{Way, Wire, WireTunnel};

use crate::Problem;
use crate::reader::Reader;
use crate::value::{Within, names};
use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;

/// An object with its lines in the file.
#[derive(Clone, Debug)]
pub struct Item {
    /// The object.
    pub object: Object,
    /// The lines of the object.
    pub place: Place,
}

impl Item {
    /// Returns a warning about a setting that is allowed, but risky.
    #[must_use]
    pub fn warning(&self) -> Option<Problem> {
        let (key, message) = match (self.object.warning(), &self.object) {
            (Some(message), _) => ("name", message),
            (None, Object::Network(network))
                if network.tcp_midstream == Midstream::Ruled && self.place.has("tcp_midstream") =>
            {
                ("tcp_midstream", TRUE_IS_STRICTER)
            }
            _ => return None,
        };
        Some(self.problem(key, message))
    }

    /// Makes a problem of one of the object's keys.
    pub(crate) fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        let of = Problem::new(self.place.line(key), self.object.key().to_string(), message);
        Problem { file: self.place.file.clone(), ..of }
    }
}

impl From<Object> for Item {
    fn from(object: Object) -> Self {
        Self { object, place: Place::default() }
    }
}

/// The lines of an object and of its keys.
#[derive(Clone, Debug, std::default::Default)]
pub struct Place {
    /// The file, if it is one that the host's file includes.
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: Option<usize>,
    pub(crate) keys: Vec<(&'static str, usize)>,
}

/// The warning for who wrote `tcp_midstream = true` when it meant more.
const TRUE_IS_STRICTER: &str = "`tcp_midstream = true`, the default, picks up no connection against the rules any more; \
     leave it out, or write \"reverse\" for what it did up to 0.2.0";

impl Place {
    /// Returns whether the file has a key.
    fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|(name, _)| *name == key)
    }

    /// Returns the line of a key. If the key is absent, returns the line of the object.
    #[must_use]
    pub fn line(&self, key: &str) -> Option<usize> {
        self.keys.iter().find(|(name, _)| *name == key).map(|(_, line)| *line).or(self.line)
    }

    /// Says where a key is; nothing if that is not known.
    pub(crate) fn shown(&self, key: &str) -> String {
        match (&self.file, self.line(key)) {
            (Some(file), Some(line)) => format!(" ({file}, line {line})"),
            (None, Some(line)) => format!(" (line {line})"),
            (_, None) => String::new(),
        }
    }
}

/// The identity of an object. Its `Display` is the object's name in messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The object's kind.
    pub kind: Kind,
    /// The network that the object belongs to, if its name is unique only within a network.
    pub network: Option<String>,
    /// The object's name: a name, prefix, MAC, address, label, VNI, or a rule's text. Empty if a network has
    /// only one such object.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if !self.name.is_empty() {
            write!(f, " \"{}\"", self.name)?;
        }
        match &self.network {
            Some(network) => write!(f, " of network \"{network}\""),
            None => Ok(()),
        }
    }
}

macro_rules! objects {
    ($($variant:ident($type:ty, $held:ty) = $name:literal,)*) => {
        /// Kinds of objects.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)] // as their types
        pub enum Kind {
            $($variant,)*
        }

        names!(Kind { $($variant = $name),* });

        impl Kind {
            /// All kinds. Kinds to which others refer come first.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];
        }

        /// An object of any kind.
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs)] // as their types
        pub enum Object {
            $($variant($held),)*
        }

        impl Object {
            /// Returns the object's kind.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$variant(_) => Kind::$variant,)* }
            }

            /// Returns the object's key.
            #[must_use]
            pub fn key(&self) -> Key {
                let (network, name) = match self { $(Self::$variant(object) => object.key(),)* };
                Key { kind: self.kind(), network, name }
            }

            /// Returns a warning about a setting that is allowed, but risky.
            #[must_use]
            pub fn warning(&self) -> Option<&'static str> {
                match self {
                    Self::Guest(guest) => guest.warning(),
                    Self::Network(network) => network.warning(),
                    _ => None,
                }
            }

            pub(crate) fn read(kind: Kind, reader: Reader<'_>) -> Option<Item> {
                let (object, place) = reader.named_if_wrong(|reader| match kind {
                    $(Kind::$variant => {
                        let (object, place) = <$type>::read(reader);
                        (object.map(Self::from), place)
                    })*
                });
                Some(Item { object: object?, place })
            }
        }

        $(impl From<$type> for Object {
            fn from(object: $type) -> Self {
                Self::$variant(object.into())
            }
        })*
    };
}

objects! {
    Wire(Wire, Box<Wire>) = "wire",
    Network(Network, Box<Network>) = "network",
    Guest(Guest, Box<Guest>) = "guest",
    Lease(Lease, Lease) = "lease",
    Nexthop(Nexthop, Nexthop) = "nexthop",
    Route(Route, Route) = "route",
    Mac(MacEntry, MacEntry) = "mac",
    Flood(Flood, Flood) = "flood",
    Nat(Nat, Nat) = "nat",
    Forward(Forward, Forward) = "forward",
    Rule(Rule, Box<Rule>) = "rule",
    Default(Default, Default) = "default",
    Mpls(Mpls, Mpls) = "mpls",
    Vxlan(Vxlan, Vxlan) = "vxlan",
}

// Routes are objects, by the million.
const _: () = assert!(size_of::<Object>() <= 88);

impl Object {
    /// Returns the object as `[[kind]]` in TOML for people: one key to a line, the name first, tables inline,
    /// no defaults.
    #[must_use]
    pub fn to_concise_toml(&self) -> String {
        if let Self::Route(route) = self {
            let [before, behind] = route.around_prefix();
            return format!("{before}{}{behind}", route.prefix);
        }
        let mut body = toml::Table::try_from(self).unwrap_or_default();
        // Other kinds have no defaults.
        let has_defaults = matches!(self, Self::Wire(_) | Self::Network(_) | Self::Guest(_) | Self::Rule(_));
        for key in body.keys().filter(|_| has_defaults).cloned().collect::<Vec<_>>() {
            let value = body.remove(&key);
            if crate::object(self.kind(), body.clone()).ok().as_ref() != Some(self) {
                body.extend(value.map(|value| (key, value)));
            }
        }
        let mut lines: Vec<_> =
            body.iter().map(|(key, value)| (key != "name", key != "network", key, value)).collect();
        lines.sort_by_key(|(name, network, key, _)| (*name, *network, *key));
        let lines = lines.iter().map(|(.., key, value)| format!("{key} = {value}\n"));
        format!("[[{}]]\n{}", self.kind(), lines.collect::<String>())
    }

    /// Returns the object as `[[kind]]` in TOML, with defaults written out.
    ///
    /// # Panics
    /// Never: every object is a table of plain values.
    #[must_use]
    #[allow(clippy::expect_used)]
    pub fn to_toml(&self) -> String {
        let body = toml::Table::try_from(self).expect("objects are tables");
        let list = toml::Value::Array(vec![toml::Value::Table(body)]);
        let document = toml::Table::from_iter([(self.kind().name().to_owned(), list)]);
        toml::to_string(&document).expect("tables are TOML")
    }
}

/// Checks a name. File names, metrics and commands contain names, so they must be plain.
fn check_name(r: &Reader<'_>, name: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > 63 || name.starts_with(['.', '-']) || !name.chars().all(plain) {
        r.problem(
            Some("name"),
            format!("\"{name}\" can't be a name; use 1 to 63 letters, digits, '.', '_' or '-', not starting with '.' or '-'"),
        );
    }
}

/// Reads the name of an object, and uses it in messages.
fn read_name(r: &mut Reader<'_>, kind: Kind) -> Option<String> {
    let name: String = r.require("name")?;
    check_name(r, &name);
    r.call(|| format!("{kind} \"{name}\""));
    Some(name)
}

/// Reads the network that an object belongs to. Messages then name the object by the network and `name`.
fn read_network(r: &mut Reader<'_>, kind: Kind, name: Option<&dyn fmt::Display>) -> Option<String> {
    let network: String = r.require("network")?;
    r.call(|| {
        let name = name.map(ToString::to_string).unwrap_or_default();
        Key { kind, network: Some(network.clone()), name }.to_string()
    });
    Some(network)
}

/// An MTU.
type Mtu = Within<576, 9216>;

/// An MPLS label (below 16: reserved, RFC 7274).
type Label = Within<16, 0xf_ffff>;

/// A VXLAN network identifier.
type Vni = Within<1, 0xff_ffff>;

/// A VLAN identifier.
type VlanId = Within<1, 4094>;

/// The least MTU of a link with IPv6, bytes (RFC 8200, 5).
pub(crate) const MIN_IPV6_MTU: u16 = 1280;

/// The daemon's own files and directories in its run-dir.
const OWN_FILES: [&str; 14] = [
    "carryover.0",
    "carryover.1",
    "ovs.sock",
    "rdma",
    "replace.sock",
    "rings",
    "sockets",
    "taps-next.sock",
    "taps.lock",
    "taps.sock",
    "viaduct-read.sock",
    "viaduct.sock",
    "viaductd.lock",
    "windows",
];

/// Checks the path of a vhost-user socket, relative to the run-dir.
fn check_socket(r: &Reader<'_>, key: &str, path: &str) {
    if path.is_empty() {
        r.problem(Some(key), format!("`{key}` is empty"));
    }
    // The path goes to the log, where a line of its own would be believed.
    if path.contains(char::is_control) {
        r.problem(Some(key), format!("`{key}` has control characters in it"));
    }
    if path.split('/').any(|part| part == "..") {
        r.problem(Some(key), format!("\"{path}\" leads upwards; write a path without `..`"));
    }
    let first = Path::new(path).components().find(|part| *part != Component::CurDir);
    if let Some(Component::Normal(first)) = first
        && OWN_FILES.iter().any(|own| first == *own)
    {
        r.problem(Some(key), format!("\"{path}\" is the daemon's own in the run-dir; take another name"));
    }
}

/// Checks a guest's MAC.
fn check_mac(r: &Reader<'_>, key: &str, mac: packet::Mac) {
    if mac.is_group() || mac.is_zero() {
        r.problem(Some(key), format!("{mac} can't be one host's MAC; use one like 02:00:00:00:00:01"));
    }
}
