//! `host.toml`: its schema, its checks and its error messages.
//!
//! Owns: the configuration of a host as typed [`Object`]s; the parser from TOML, which keeps the line of every key; and
//! `check`, all rules between objects. It reports all problems of a file, not only the first; each message says where
//! the problem is, what is wrong and what would be right.
//!
//! Must not know: the daemon's tables, ports and storage.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod bgp;
mod check;
mod host;
mod machine;
mod object;
mod problem;
mod reader;
mod tree;
mod value;

pub use bgp::{
    BGP_PORT, Bfd, Bgp, BgpFamily, BgpPeer, Labels, MOST_LISTEN, Password, RouteName, router_id, router_mac,
};
pub use check::{
    CommonWindow, CommonWindows, HasRoute, Index, check, check_beside_routes, check_routes_and_rules,
    unguarded, warnings,
};
pub use host::{Executor, Host, SOCKET_DIRS};
pub use machine::{
    check_machine, check_owners, check_readers, check_ways_out, check_wires, cpus, device_mtu,
    forwarding_problem,
};
pub use object::{
    AddressRange, Default, DefaultAction, DhcpOptions, DhcpRoute, Endpoint, Flood, Forward, ForwardTo, Guest,
    GuestKind, GuestVlan, Item, Key, Kind, Lease, MacEntry, Midstream, Mode, Mpls, Nat, Network, Nexthop,
    Object, Place, Ports, Protocol, Rate, RdmaLimits, Role, Route, Rule, RuleAction, Secret, Shape,
    ShapeRate, Snat, Target, Tunnel, TunnelKind, Vxlan, Way, Wire, WireTunnel, is_label,
};
pub use packet::PortBlock;
pub use problem::{Problem, Problems};
pub use reader::did_you_mean;

use reader::Reader;
use std::cell::RefCell;
use tree::Table;

/// Most bytes of a file.
pub const MOST_BYTES: u64 = 256 << 20;

/// A whole file.
#[derive(Clone, Debug, std::default::Default)]
pub struct Document {
    /// The `[host]` table.
    pub host: Host,
    /// The lines of `[host]`.
    pub host_place: Place,
    /// All objects, by kind and in the file's order.
    pub objects: Vec<Item>,
}

/// Reads and checks a whole file.
///
/// # Errors
/// All problems of the file.
pub fn parse(text: &str) -> Result<Document, Problems> {
    let mut parts = Parts::read(text);
    parts.require_host();
    let (host, host_place) = parts.host();
    let document = Document { host, host_place, objects: parts.objects };
    let mut problems = parts.problems;
    let index = Index::new(&document.host, document.objects.iter().map(|item| &item.object));
    if let Some(bgp) = &document.host.bgp
        && router_id(bgp, index.tunnel_sources()).is_none()
    {
        let message = "`router_id` is missing; it is needed where tunnels have no IPv4 source: router_id = \"192.0.2.1\"";
        problems.push(Problem::new(None, "[bgp]", message));
    }
    if document.host.executor != Executor::Cpu && index.wires().iter().any(|wire| wire.shared) {
        let message = "a card takes all packets of its wires: with a `shared` wire, use executor = \"cpu\"";
        problems.push(Problem::new(None, "[host]", message));
    }
    problems.extend(check::check_beside(&parts.unread, &index, &document.objects));
    if problems.is_empty() { Ok(document) } else { Err(Problems::new(problems)) }
}

/// Reads a whole file without the checks between its objects ([`fn@check`]): they may refer to objects that the
/// file lacks.
///
/// # Errors
/// All problems of single objects.
pub fn read(text: &str) -> Result<Document, Problems> {
    let mut parts = Parts::read(text);
    parts.require_host();
    if !parts.problems.is_empty() {
        return Err(Problems::new(parts.problems));
    }
    let (host, host_place) = parts.host();
    Ok(Document { host, host_place, objects: parts.objects })
}

/// Reads objects alone, in the form in which the store keeps them. Makes no checks between objects.
///
/// # Errors
/// All problems of the text.
pub fn parse_objects(text: &str) -> Result<Vec<Object>, Problems> {
    let mut parts = Parts::read(text);
    for (is_there, table) in [(parts.host.is_some(), "[host]"), (parts.bgp.is_some(), "[bgp]")] {
        if is_there {
            parts.problems.push(Problem::new(None, table, "belongs to the host's file; change it there"));
        }
    }
    if !parts.problems.is_empty() {
        return Err(Problems::new(parts.problems));
    }
    Ok(parts.objects.into_iter().map(|item| item.object).collect())
}

/// Reads one object from its fields, in the form of a message of the API. Makes no checks between objects.
///
/// # Errors
/// All problems of the object.
pub fn object(kind: Kind, fields: toml::Table) -> Result<Object, Problems> {
    let (table, problems) = (Table::of_fields(fields), RefCell::default());
    let read = Object::read(kind, Reader::new(&problems, &table, kind.name()));
    let problems = problems.into_inner();
    match read {
        Some(item) if problems.is_empty() => Ok(item.object),
        _ => Err(Problems::new(problems)),
    }
}

/// The readable parts of a text.
struct Parts {
    host: Option<(Host, Place)>,
    bgp: Option<Bgp>,
    objects: Vec<Item>,
    /// Names of objects that could not be read.
    unread: Vec<String>,
    /// Whether the text is TOML. If it is not, objects that seem to be missing may be in it, but unreadable.
    is_toml: bool,
    problems: Vec<Problem>,
}

impl Parts {
    fn read(text: &str) -> Self {
        let (root, problems) = Table::of_text(text);
        let is_toml = problems.is_empty();
        let problems = RefCell::new(problems);
        let mut reader = Reader::new(&problems, &root, "");
        let host = reader.table("host").map(Host::read);
        let bgp = reader.table("bgp").and_then(Bgp::read);
        let (mut objects, mut unread) = (Vec::new(), Vec::new());
        for kind in Kind::ALL {
            for table in reader.tables(kind.name()) {
                let name = table.name().map(str::to_owned);
                match Object::read(kind, table) {
                    Some(item) => objects.push(item),
                    None => unread.extend(name),
                }
            }
        }
        reader.finish();
        Self { host, bgp, objects, unread, is_toml, problems: problems.into_inner() }
    }

    /// Returns what describes the host as a whole.
    fn host(&mut self) -> (Host, Place) {
        let (host, place) = self.host.take().unwrap_or_default();
        (Host { bgp: self.bgp.take(), ..host }, place)
    }

    fn require_host(&mut self) {
        if self.host.is_none() && self.is_toml {
            let message = "missing; it names the host: [host] name = \"a\"";
            self.problems.push(Problem::new(None, "[host]", message));
        }
    }
}
