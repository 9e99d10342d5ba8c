//! The contents of a record of the store.

use crate::owner::{Kept, Owner};
use config::Target;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Key of the object, in words.
    pub(super) key: String,
    /// The object after the change; `None`: it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) object: Option<Stored>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) seq: u64,
    pub(super) owner: String,
    pub(super) toml: String,
    /// The number by which people name a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) number: Option<u32>,
}

/// A route, whose form needs no more room than its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RouteEntry(String, IpNet, Option<RouteStored>);

/// Place among other routes, owner, and the targets in words, as in `3*guest vm1`, with their weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RouteStored(u64, String, String);

impl RouteEntry {
    /// Returns the entry of a route that is there, or is gone.
    pub(super) fn new(network: &str, prefix: IpNet, kept: Option<&Kept>) -> Self {
        let stored = |kept: &Kept| {
            let to = kept.to();
            let to = to.chunk_by(PartialEq::eq).map(|same| match same.len() {
                1 => same[0].in_words(),
                weight => format!("{weight}*{}", same[0].in_words()),
            });
            RouteStored(kept.seq(), kept.common.owner.name().to_owned(), to.collect::<Vec<_>>().join(", "))
        };
        Self(network.to_owned(), prefix, kept.map(stored))
    }

    pub(super) fn place(&self) -> (String, IpNet) {
        (self.0.clone(), self.1)
    }

    /// Reads the route, if it is there.
    ///
    /// # Errors
    /// The record that has this entry alone: this version can't read it.
    pub(super) fn kept(self) -> Result<Option<Kept>, String> {
        let Some(RouteStored(seq, owner, to)) = &self.2 else { return Ok(None) };
        let to: Option<Vec<Vec<Target>>> = to.split(", ").map(places).collect();
        match Owner::from_name(owner).zip(to.map(|to| to.concat())) {
            Some((owner, to)) => Ok(Some(Kept::new(owner, to, *seq))),
            None => Err(Record { routes: vec![self], ..Record::default() }.text()),
        }
    }
}

/// Reads a target, as often as its weight says.
fn places(words: &str) -> Option<Vec<Target>> {
    let (weight, words) = words.split_once('*').unwrap_or(("1", words));
    let weight = weight.parse().ok().filter(|weight| (1..=64).contains(weight))?;
    Some(vec![Target::from_words(words)?; weight])
}

/// Returns the record of one entry.
pub(super) fn one(entry: Entry) -> String {
    Record { changed: vec![entry], ..Record::default() }.text()
}

/// When a change was made, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    /// Seconds since 1970.
    pub(super) time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<u32>,
    pub(super) request: String,
}

/// A change of which a snapshot has the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Undo {
    pub(super) revision: u64,
    pub(super) made: Made,
    /// The objects before it.
    pub(super) before: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) routes: Vec<RouteEntry>,
}

/// A change, which is stored as a whole or not at all.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) changed: Vec<Entry>,
    /// Routes, which up to 0.2.0 were among the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) routes: Vec<RouteEntry>,
    /// The digest of the daemon's file, if its objects were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) taken: Option<String>,
    /// The number of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) made: Option<Made>,
    /// The same, if the change has routes: a daemon that can't read them must not take the rest for the whole change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) made_with_routes: Option<Made>,
    /// A change that was made before the snapshot, so that it can be undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) undo: Option<Undo>,
    /// The same, if it has routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) undone: Option<Undo>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub(super) unknown: BTreeMap<String, serde_json::Value>,
}

impl Record {
    /// Is true if the record removes objects and does nothing else.
    pub(super) fn only_removes(&self) -> bool {
        let changes = !(self.changed.is_empty() && self.routes.is_empty());
        let is_gone = |route: &RouteEntry| route.2.is_none();
        let removes =
            self.changed.iter().all(|entry| entry.object.is_none()) && self.routes.iter().all(is_gone);
        changes && removes && self.taken.is_none() && self.unknown.is_empty()
    }

    /// Is true if the record only tries whether the disk works.
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.routes.is_empty() && self.taken.is_none() && self.unknown.is_empty()
    }

    pub(super) fn text(&self) -> String {
        // Strings, numbers and values parsed from JSON always are JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}
