//! Describes for people what changes from one set of objects to the next.

use crate::clients::Peer;
use crate::history::Author;
use crate::owner::Changed;
use config::{Host, Object, Password, Secret};
use std::collections::BTreeMap;

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
    let describe = |changed: &&Changed<'_>| {
        let (what, details) = match (changed.is_new(), changed.new_owner()) {
            (true, _) => ("add", Vec::new()),
            (_, None) => ("remove", Vec::new()),
            _ => match changed.objects() {
                [Some(was), Some(is)] => ("change", details(&was, &is)),
                _ => ("change", Vec::new()),
            },
        };
        ObjectChange { what, object: changed.key().to_string(), details }
    };
    changed.iter().filter(|changed| !changed.only_moved()).map(|changed| describe(&changed)).collect()
}

/// Keys whose values may be secrets.
const SECRETS: [&str; 2] = ["user_data", "metadata_secret"];

/// Describes changes of `[host]` and `[bgp]` for people.
pub(crate) fn describe_host(old: &Host, new: &Host) -> Vec<ObjectChange> {
    // Most changes are of objects alone.
    if old == new {
        return Vec::new();
    }
    let table = |host: &Host| toml::Table::try_from(host).unwrap_or_default();
    let bgp = differences(&bgp_table(old), &bgp_table(new)).into_iter().chain(changed_passwords(old, new));
    let tables = [("[host]", differences(&table(old), &table(new))), ("[bgp]", bgp.collect())];
    let change = |(table, details): (&str, Vec<String>)| {
        (!details.is_empty()).then(|| ObjectChange { what: "change", object: table.to_owned(), details })
    };
    tables.into_iter().filter_map(change).collect()
}

/// Returns `[bgp]` with a key for each peer and range.
fn bgp_table(host: &Host) -> toml::Table {
    let mut table = host.bgp.as_ref().and_then(|bgp| toml::Table::try_from(bgp).ok()).unwrap_or_default();
    for (kind, name) in [("peer", "address"), ("range", "prefix")] {
        if let Some(toml::Value::Array(entries)) = table.remove(kind) {
            let name = |entry: &toml::Value| entry.get(name).and_then(toml::Value::as_str).map(str::to_owned);
            let key = |entry: &toml::Value| format!("{kind} {}", name(entry).unwrap_or_default());
            table.extend(entries.into_iter().map(|entry| (key(&entry), entry)));
        }
    }
    table
}

/// Says which peers and ranges that stay have another password; nobody is shown one.
fn changed_passwords(old: &Host, new: &Host) -> Vec<String> {
    let old = passwords(old);
    let changed =
        passwords(new).into_iter().filter(|(name, new)| old.get(name).is_some_and(|old| old != new));
    changed.map(|(name, _)| format!("password of {name}: changed")).collect()
}

fn passwords(host: &Host) -> BTreeMap<String, Option<&Password>> {
    let peers = host.bgp.iter().flat_map(|bgp| &bgp.peers);
    let peers = peers.map(|peer| (format!("peer {}", peer.address), peer.password.as_ref()));
    let ranges = host.bgp.iter().flat_map(|bgp| &bgp.ranges);
    peers
        .chain(ranges.map(|range| (format!("range {}", range.prefix), range.peer.password.as_ref())))
        .collect()
}

fn details(old: &Object, new: &Object) -> Vec<String> {
    let table = |object: &Object| toml::Table::try_from(object).unwrap_or_default();
    differences(&table(old), &table(new))
}

fn differences(old: &toml::Table, new: &toml::Table) -> Vec<String> {
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
