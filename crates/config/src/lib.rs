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
mod include;
mod machine;
mod object;
mod pieces;
mod problem;
mod reader;
mod tree;
mod value;

pub use bgp::{
    BGP_PORT, Bfd, Bgp, BgpFamily, BgpPeer, BgpRange, Labels, MOST_LISTEN, Password, RouteName, router_id,
    router_mac,
};
pub use check::{
    CommonWindow, CommonWindows, HasRoute, Index, check, check_beside_routes, check_routes_and_rules,
    unguarded, warnings,
};
pub use host::{Executor, Host, OwnerName, SOCKET_DIRS, is_owner};
pub use include::{Included, MOST_FILES, Texts, folder_of, includes, open_included};
pub use machine::{
    check_machine, check_owners, check_readers, check_ways_out, check_wires, cpus, device_mtu,
    forwarding_problem,
};
pub use object::{
    AddressRange, Connection, Default, DefaultAction, DhcpOptions, DhcpRoute, Dscp, Endpoint, Flood, Forward,
    ForwardTo, Guest, GuestKind, GuestVlan, ImportUnicast, Item, Key, Kind, Lease, MacEntry, Midstream, Mode,
    Mpls, Nat, Network, Nexthop, Object, Place, Ports, Protocol, Rate, RdmaLimits, Role, Route, Rule,
    RuleAction, Secret, Shape, ShapeRate, Snat, SnatMapping, TapDevice, Target, Tunnel, TunnelKind, Verbs,
    VhostUser, Vxlan, Way, Window, Wire, WireTunnel, is_label,
};
pub use packet::PortBlock;
pub use problem::{Problem, Problems};
pub use reader::did_you_mean;

use pieces::Keys;
use reader::Reader;
use std::cell::RefCell;
use std::sync::Arc;
use std::thread::Builder;
use tree::Table;

/// Most bytes of a file, with those that it includes.
pub const MOST_BYTES: u64 = 256 << 20;

/// A whole file.
#[derive(Clone, Debug, std::default::Default)]
pub struct Document {
    /// The `[host]` table.
    pub host: Host,
    /// The lines of `[host]`.
    pub host_place: Place,
    /// All objects, by kind and in the order of the file and of those that it includes.
    pub objects: Vec<Item>,
}

/// Reads and checks a whole file that includes no others.
///
/// # Errors
/// All problems of the file.
pub fn parse(text: &str) -> Result<Document, Problems> {
    checked(Parts::of(text, None))
}

/// Reads and checks a whole file, with those that it includes.
///
/// # Errors
/// All problems of the files.
pub fn parse_all(texts: &Texts) -> Result<Document, Problems> {
    checked(Parts::of(&texts.main, texts.included.as_deref()))
}

fn checked(mut parts: Parts) -> Result<Document, Problems> {
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

/// Reads a whole file, with those that it includes, without the checks between its objects ([`fn@check`]): they may
/// refer to objects that the files lack.
///
/// # Errors
/// All problems of single objects.
pub fn read(texts: &Texts) -> Result<Document, Problems> {
    let mut parts = Parts::of(&texts.main, texts.included.as_deref());
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
    parts.refuse_hosts(
        "belongs to the host's file, which is applied without an owner (--as, VIADUCT_OWNER); here are objects alone",
    );
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
#[derive(Debug, std::default::Default)]
struct Parts {
    host: Option<(Host, Place)>,
    bgp: Option<Bgp>,
    /// Patterns of the files that it includes.
    include: Vec<String>,
    objects: Vec<Item>,
    /// Names of objects that could not be read.
    unread: Vec<String>,
    /// Whether the text is TOML. If it is not, objects that seem to be missing may be in it, but unreadable.
    is_toml: bool,
    problems: Vec<Problem>,
    keys: Keys,
}

impl Parts {
    /// Reads a text, with those that it includes.
    fn of(text: &str, included: Option<&[Included]>) -> Self {
        let mut parts = Self::read(text);
        if included.is_none() && !parts.include.is_empty() {
            let message =
                "names files that did not come with this text: apply it with a `viaduct` of this version";
            parts.problems.push(Problem::new(None, "include", message));
        }
        included.unwrap_or_default().iter().for_each(|file| parts.take(file));
        if included.is_some_and(|files| !files.is_empty()) {
            parts.objects.sort_by_key(|item| item.object.kind());
        }
        parts
    }

    /// Takes the objects of a file that this one includes.
    fn take(&mut self, Included { name, text }: &Included) {
        let name: Arc<str> = name.as_str().into();
        let mut file = Self::read(text);
        file.refuse_hosts("belongs to the file that includes this one; write it there");
        file.problems.iter_mut().for_each(|problem| problem.file = Some(name.clone()));
        file.objects.iter_mut().for_each(|item| item.place.file = Some(name.clone()));
        self.objects.extend(file.objects);
        self.unread.extend(file.unread);
        self.problems.extend(file.problems);
        self.is_toml &= file.is_toml;
    }

    /// Reports what only the host's own file has.
    fn refuse_hosts(&mut self, why: &str) {
        let host = self.host.as_ref().map(|(_, place)| (place.line("name"), "[host]"));
        let bgp = self.bgp.as_ref().map(|_| (None, "[bgp]"));
        let include = (!self.include.is_empty()).then_some((None, "include"));
        for (line, table) in host.into_iter().chain(bgp).chain(include) {
            self.problems.push(Problem::new(line, table, why));
        }
    }

    fn read(text: &str) -> Self {
        if let Some(problem) = tree::no_text(text) {
            return Self { problems: vec![problem], ..Self::default() };
        }
        Self::in_pieces(text, pieces::LEAST).unwrap_or_else(|| Self::of_piece(text, 0))
    }

    /// Reads a text in pieces of so many bytes at least. Returns `None` if there is a problem, or the whole may mean
    /// something else.
    fn in_pieces<'a>(text: &'a str, least: usize) -> Option<Self> {
        let mut before = 0;
        let placed = |piece: &'a str| {
            let placed = (piece, before);
            before += piece.bytes().filter(|byte| *byte == b'\n').count();
            placed
        };
        let pieces: Vec<_> = pieces::cut(text, least).map(placed).collect();
        let mut all = if pieces.len() < pieces::MANY {
            Self::of_pieces(&pieces)?
        } else {
            let (first, second) = pieces.split_at(pieces.len() / 2);
            std::thread::scope(|scope| {
                let second = Builder::new().spawn_scoped(scope, || Self::of_pieces(second)).ok()?;
                Self::of_pieces(first)?.and(second.join().ok()??)
            })?
        };
        all.objects.sort_by_key(|item| item.object.kind());
        Some(all)
    }

    /// Reads pieces that follow each other, each with the number of lines before it.
    fn of_pieces(pieces: &[(&str, usize)]) -> Option<Self> {
        let none = Self { is_toml: true, ..Self::default() };
        pieces.iter().try_fold(none, |all, (piece, before)| all.and(Self::of_piece(piece, *before)))
    }

    /// Adds the parts of the text behind.
    fn and(mut self, behind: Self) -> Option<Self> {
        self.keys.add(behind.keys)?;
        self.objects.extend(behind.objects);
        // Only one of the two has one of these.
        self.include.extend(behind.include);
        self.host = self.host.or(behind.host);
        self.bgp = self.bgp.or(behind.bgp);
        behind.problems.is_empty().then_some(self)
    }

    /// Reads a piece of a text that has `before` lines in front of it.
    fn of_piece(text: &str, before: usize) -> Self {
        let (root, keys, problems) = Table::of_text(text, before);
        let is_toml = problems.is_empty();
        let problems = RefCell::new(problems);
        let mut reader = Reader::new(&problems, &root, "");
        let include = reader.list::<String>("include");
        for pattern in &include {
            if let Err(why) = include::check_pattern(pattern) {
                reader.problem(Some("include"), format!("include: \"{pattern}\" {why}"));
            }
        }
        let host = reader.table("host").map(Host::read);
        let bgp = reader.table("bgp").and_then(Bgp::read);
        let (mut objects, mut unread) = (Vec::new(), Vec::new());
        for kind in Kind::ALL {
            for table in reader.tables(kind.name()) {
                let name = table.name();
                match Object::read(kind, table) {
                    Some(item) => objects.push(item),
                    None => unread.extend(name.map(str::to_owned)),
                }
            }
        }
        reader.finish();
        Self { host, bgp, include, objects, unread, is_toml, problems: problems.into_inner(), keys }
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
