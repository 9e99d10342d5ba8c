//! What a record of the store says.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A changed object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Its key in words.
    pub(super) key: String,
    /// What it is now; `None`: removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) object: Option<Stored>,
}

/// An object as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) seq: u64,
    pub(super) owner: String,
    pub(super) toml: String,
}

/// A change: all of it, or nothing.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) changed: Vec<Entry>,
    /// The digest of the daemon's file, whose objects were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) taken: Option<String>,
    /// What a newer version says besides.
    #[serde(flatten)]
    pub(super) unknown: BTreeMap<String, serde_json::Value>,
}

impl Record {
    /// Its line.
    pub(super) fn text(&self) -> String {
        // Strings, numbers and what was JSON always are JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}
