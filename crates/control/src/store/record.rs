//! The contents of a record of the store.

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
}

/// A change, which is stored as a whole or not at all.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) changed: Vec<Entry>,
    /// The digest of the daemon's file, if its objects were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) taken: Option<String>,
    /// The number of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) made: Option<Made>,
    /// A change that was made before the snapshot, so that it can be undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) undo: Option<Undo>,
    /// Fields of a newer version.
    #[serde(flatten)]
    pub(super) unknown: BTreeMap<String, serde_json::Value>,
}

impl Record {
    /// Is true if the record removes objects and does nothing else.
    pub(super) fn only_removes(&self) -> bool {
        let removes = !self.changed.is_empty() && self.changed.iter().all(|entry| entry.object.is_none());
        removes && self.taken.is_none() && self.unknown.is_empty()
    }

    /// Is true if the record only tries whether the disk works.
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.taken.is_none() && self.unknown.is_empty()
    }

    pub(super) fn text(&self) -> String {
        // Strings, numbers and values parsed from JSON always are JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}
