//! Describes for people what changes from one set of objects to the next.

use crate::clients::Peer;
use crate::history::Author;
use crate::owner::Changed;
use config::{Object, Secret};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectChange {
    /// `add`, `remove` or `change`.
    pub(crate) what: &'static str,
    /// The object in words.
    pub(crate) object: String,
    pub(crate) details: Vec<String>,
}

/// Changes of a request that are logged one by one.
const LOGGED: usize = 20;

/// Logs the changes that somebody made.
pub(crate) fn log(by: Author, changes: &[ObjectChange]) {
    let Author { peer: Peer { uid, pid }, request } = by;
    for ObjectChange { what, object, .. } in changes.iter().take(LOGGED) {
        tracing::info!(uid, pid, request, "{what} {object}");
    }
    if let Some(more) = changes.len().checked_sub(LOGGED).filter(|more| *more > 0) {
        tracing::info!(uid, pid, request, "and {more} more changes");
    }
}

/// Describes changes for people. It leaves out objects that only changed their place among others.
pub(crate) fn describe(changed: &[Changed<'_>]) -> Vec<ObjectChange> {
    let describe = |changed: &Changed<'_>| {
        let (what, details) = match (changed.old, changed.new) {
            (Some(was), Some(is)) if is.object == was.object && is.owner == was.owner => return None,
            (Some(was), Some(is)) => ("change", details(&was.object, &is.object)),
            (_, None) => ("remove", Vec::new()),
            (None, Some(_)) => ("add", Vec::new()),
        };
        Some(ObjectChange { what, object: changed.key.to_string(), details })
    };
    changed.iter().filter_map(describe).collect()
}

/// Keys whose values may be secrets.
const SECRETS: [&str; 2] = ["user_data", "metadata_secret"];

fn details(old: &Object, new: &Object) -> Vec<String> {
    let table = |object: &Object| toml::Table::try_from(object).unwrap_or_default();
    let (old, new) = (table(old), table(new));
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let text = |value: Option<&toml::Value>| value.map_or("(none)".to_owned(), ToString::to_string);
    let shown = |key: &str, value: Option<&toml::Value>| match value.and_then(toml::Value::as_str) {
        Some(data) if SECRETS.contains(&key) => Secret::hidden(data),
        _ => text(value),
    };
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| format!("{key}: {} -> {}", shown(key, old.get(key)), shown(key, new.get(key))))
        .collect()
}
