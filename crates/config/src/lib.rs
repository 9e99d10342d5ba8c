//! `host.toml`: its schema, its checks and its error messages.
//!
//! Owns: what may be written about a host, as typed [`Object`]s; the reading of TOML into them with the line of
//! every key; and [`check`], every rule that holds between them. A file's problems are all found, not only the
//! first; each says where it is, what is wrong and what would be right.
//!
//! Must not know: the daemon's tables, ports and storage.
#![deny(unsafe_code)]

mod check;
mod host;
mod object;
mod problem;
mod reader;
mod value;

pub use check::check;
pub use host::{Executor, Host};
pub use object::{
    Default, DefaultAction, Driver, Endpoint, Flood, Guest, GuestKind, Item, Key, Kind, MacEntry, Mpls, Nat,
    Network, Nexthop, Object, Place, Ports, Protocol, Rate, Role, Route, Rule, RuleAction, Target, Tunnel,
    TunnelKind, Vxlan, Wire,
};
pub use problem::{Problem, Problems};

use reader::{Reader, Source};

/// A whole file.
#[derive(Clone, Debug)]
pub struct Document {
    /// Its `[host]`.
    pub host: Host,
    /// Everything else, by kind and in the file's order.
    pub objects: Vec<Item>,
}

/// Reads and checks a whole file.
///
/// # Errors
/// All of its problems.
pub fn parse(text: &str) -> Result<Document, Problems> {
    let (host, objects, mut problems) = read(text);
    if host.is_none() {
        problems.push(Problem::new(None, "[host]", "missing; it names the host: [host] name = \"a\""));
    }
    let host = host.unwrap_or_default();
    problems.extend(check(&host, &objects));
    if problems.is_empty() { Ok(Document { host, objects }) } else { Err(Problems::new(problems)) }
}

/// Reads objects alone, as they are sent to the API or kept in the store; what holds between objects is not checked.
///
/// # Errors
/// All problems of the text.
pub fn parse_objects(text: &str) -> Result<Vec<Object>, Problems> {
    let (host, objects, mut problems) = read(text);
    if host.is_some() {
        problems.push(Problem::new(None, "[host]", "belongs to the host's file; change it there"));
    }
    if problems.is_empty() {
        Ok(objects.into_iter().map(|item| item.object).collect())
    } else {
        Err(Problems::new(problems))
    }
}

fn read(text: &str) -> (Option<Host>, Vec<Item>, Vec<Problem>) {
    let (source, root) = Source::parse(text);
    let mut reader = Reader::root(&source, root.get_ref());
    let host = reader.table("host").map(Host::read);
    let mut objects = Vec::new();
    for kind in Kind::ALL {
        for table in reader.tables(kind.name()) {
            objects.extend(Object::read(kind, table));
        }
    }
    reader.finish();
    (host, objects, source.into_problems())
}
