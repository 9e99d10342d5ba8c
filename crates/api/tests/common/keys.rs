//! The keys that `config` reads are those of the schema, and `config/tests/valid.toml` has all of them.

use super::generate::schema::{Key, Schema};
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// Keys by message.
type Keys = BTreeMap<String, BTreeSet<String>>;

/// A key like no other. The reader of a table that has it names all that it knows.
const UNKNOWN: &str = "0000000000000000";

/// Keys that are read to say that they come later.
const RESERVED: [(&str, &str); 1] = [("ShapeRate", "guaranteed_mbps")];

/// Keys that the valid file can't have: it includes no others, and is what `export` makes of it, which hides passwords.
const NOT_VALID: [(&str, &str); 2] = [("Common", "password"), ("File", "include")];

/// Returns the keys of the schema.
fn all(schema: &Schema) -> Keys {
    let tops: Vec<_> = tops(schema).into_iter().map(|(table, _, _)| table).collect();
    let keys = |message: &str| schema.keys(message).iter().map(|key| key.name().to_owned()).collect();
    let mut all: Keys = schema.messages().map(|message| (message.to_owned(), keys(message))).collect();
    all.entry("File".to_owned()).or_default().extend(tops);
    all.retain(|message, _| !is_part(schema, message));
    all
}

/// Returns the tables of a file: name, message, whether there may be several.
fn tops(schema: &Schema) -> Vec<(String, String, bool)> {
    let kinds = schema.kinds().into_iter().map(|(table, message)| (table, message, true));
    let tops = [("host", "Host", false), ("bgp", "Bgp", false)].into_iter().chain(kinds);
    tops.map(|(table, message, several)| (table.to_owned(), message.to_owned(), several)).collect()
}

/// Returns whether a message is no table, but keys that several have.
fn is_part(schema: &Schema, message: &str) -> bool {
    let others = schema.messages().filter_map(|other| schema.own_keys(other)).flatten();
    others.filter(|key| key.message() == Some(message)).any(Key::is_spread)
}

/// Collects the keys that the reader of a table knows. `file` makes a file of the table's content.
fn ask(schema: &Schema, message: &str, file: &dyn Fn(&str) -> String, known: &mut Keys) {
    let Err(problems) = config::parse(&file(&format!("{UNKNOWN} = 1"))) else {
        panic!("{message}: {UNKNOWN} is a key");
    };
    let told = format!("unknown key `{UNKNOWN}`; there are: ");
    let found: Vec<_> = problems.iter().filter_map(|problem| problem.message.strip_prefix(&told)).collect();
    assert_eq!(found.len(), 1, "{message}: {problems}");
    known.entry(message.to_owned()).or_default().extend(found[0].split(", ").map(str::to_owned));
    for key in schema.keys(message) {
        let Some(inner) = key.message() else { continue };
        let nested = |content: &str| match key.is_repeated() {
            true => file(&format!("{} = [{{ {content} }}]", key.name())),
            false => file(&format!("{} = {{ {content} }}", key.name())),
        };
        ask(schema, inner, &nested, known);
    }
}

#[test]
fn the_reader_knows_the_keys_of_the_schema_and_no_others() {
    let schema = Schema::read().unwrap();
    let mut known = Keys::new();
    ask(&schema, "File", &str::to_owned, &mut known);
    for (table, message, several) in tops(&schema) {
        let head = if several { format!("[[{table}]]") } else { format!("[{table}]") };
        ask(&schema, &message, &|content| format!("{head}\n{content}\n"), &mut known);
    }
    for (message, key) in RESERVED {
        assert!(known.get_mut(message).is_some_and(|keys| keys.remove(key)), "{message} has no {key}");
    }
    let wanted = all(&schema);
    assert!(known.keys().eq(wanted.keys()), "{:?} and {:?}", known.keys(), wanted.keys());
    for (message, keys) in wanted {
        assert_eq!(known[&message], keys, "{message}: left: crates/config, right: crates/api/proto");
    }
}

/// Collects the keys of a table of a file.
fn collect(schema: &Schema, message: &str, table: &Table, used: &mut Keys) {
    used.entry(message.to_owned()).or_default().extend(table.keys().cloned());
    for key in schema.own_keys(message).into_iter().flatten() {
        match (key.message(), table.get(key.name())) {
            (Some(part), _) if key.is_spread() => collect(schema, part, table, used),
            (Some(inner), Some(value)) => {
                tables(value).for_each(|table| collect(schema, inner, table, used));
            }
            _ => {}
        }
    }
}

/// Returns the tables of a value: itself, or those of an array.
fn tables(value: &Value) -> impl Iterator<Item = &Table> {
    let array = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    array.iter().filter_map(Value::as_table)
}

#[test]
fn the_valid_file_has_each_key() {
    let schema = Schema::read().unwrap();
    let file: Table = include_str!("../../../config/tests/valid.toml").parse().unwrap();
    let mut used = Keys::new();
    for (table, message, _) in tops(&schema) {
        tables(&file[&table]).for_each(|table| collect(&schema, &message, table, &mut used));
    }
    let keys = |message| schema.own_keys(message).into_iter().flatten().filter(|key| !key.is_spread());
    let missing: Vec<_> = schema
        .messages()
        .flat_map(|message| keys(message).map(move |key| (message, key.name())))
        .filter(|(message, key)| !used.get(*message).is_some_and(|keys| keys.contains(*key)))
        .collect();
    assert_eq!(missing, NOT_VALID, "left: keys that crates/config/tests/valid.toml lacks");
}
