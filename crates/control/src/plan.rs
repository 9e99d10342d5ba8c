//! What changes from one set of objects to another, for people.

use crate::owner::Objects;
use config::Object;

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectChange {
    /// `add`, `remove` or `change`.
    pub(crate) what: &'static str,
    /// The object, in words.
    pub(crate) object: String,
    /// The keys that change.
    pub(crate) details: Vec<String>,
}

/// The changes from `old` to `new`, by key.
pub(crate) fn describe(old: &Objects, new: &Objects) -> Vec<ObjectChange> {
    let mut changes = Vec::new();
    for (key, was) in old.iter() {
        let (what, details) = match new.get(key) {
            None => ("remove", Vec::new()),
            Some(is) if is.object == was.object && is.owner == was.owner => continue,
            Some(is) => ("change", details(&was.object, &is.object)),
        };
        changes.push(ObjectChange { what, object: key.to_string(), details });
    }
    for (key, _) in new.iter().filter(|(key, _)| old.get(key).is_none()) {
        changes.push(ObjectChange { what: "add", object: key.to_string(), details: Vec::new() });
    }
    changes
}

fn details(old: &Object, new: &Object) -> Vec<String> {
    let table = |object: &Object| toml::Table::try_from(object).unwrap_or_default();
    let (old, new) = (table(old), table(new));
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let text = |value: Option<&toml::Value>| value.map_or("(none)".to_owned(), ToString::to_string);
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| format!("{key}: {} -> {}", text(old.get(key)), text(new.get(key))))
        .collect()
}
