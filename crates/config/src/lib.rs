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
    let (document, mut problems) = read_document(text);
    problems.extend(check(&document.host, &document.objects));
    if problems.is_empty() { Ok(document) } else { Err(Problems::new(problems)) }
}

/// Reads a whole file, without [`check`]ing what holds between its objects: it may refer to ones that are not in it.
///
/// # Errors
/// All problems of its objects by themselves.
pub fn read(text: &str) -> Result<Document, Problems> {
    let (document, problems) = read_document(text);
    if problems.is_empty() { Ok(document) } else { Err(Problems::new(problems)) }
}

/// Reads objects alone, as they are sent to the API or kept in the store; what holds between objects is not checked.
///
/// # Errors
/// All problems of the text.
pub fn parse_objects(text: &str) -> Result<Vec<Object>, Problems> {
    let (host, objects, mut problems) = read_text(text);
    if host.is_some() {
        problems.push(Problem::new(None, "[host]", "belongs to the host's file; change it there"));
    }
    if problems.is_empty() {
        Ok(objects.into_iter().map(|item| item.object).collect())
    } else {
        Err(Problems::new(problems))
    }
}

fn read_document(text: &str) -> (Document, Vec<Problem>) {
    let (host, objects, mut problems) = read_text(text);
    if host.is_none() {
        problems.push(Problem::new(None, "[host]", "missing; it names the host: [host] name = \"a\""));
    }
    (Document { host: host.unwrap_or_default(), objects }, problems)
}

fn read_text(text: &str) -> (Option<Host>, Vec<Item>, Vec<Problem>) {
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
