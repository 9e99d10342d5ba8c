//! The arguments of `viaduct KIND add`, made of the schema: structures for clap, and the messages that come of them.

use super::schema::{Key, Schema};
use prost_types::field_descriptor_proto::Type;
use std::fmt::Write;

const HEAD: &str = "\
// This file is generated from crates/api/proto/viaduct.proto by `cargo run -p api --example generate`.
use super::by_hand;
use crate::client::Failure;
use crate::complete;
use api::v1;
use clap_complete::ArgValueCandidates;
";

/// Returns the code of all messages that have arguments.
pub fn arguments(schema: &Schema) -> String {
    let mut text = HEAD.to_owned();
    for message in schema.messages() {
        let keys = schema.keys(message);
        if keys.iter().any(|key| has_argument(key)) {
            structure(&mut text, message, &keys);
        }
    }
    text
}

fn has_argument(key: &Key) -> bool {
    ["cli", "position", "code"].iter().any(|tag| key.tag(tag).is_some())
}

fn structure(text: &mut String, message: &str, keys: &[&Key]) {
    let _ = write!(text, "\n#[derive(clap::Args)]\npub struct {message}Args {{\n");
    keys.iter().filter(|key| has_argument(key)).for_each(|key| argument(text, key));
    let _ = write!(
        text,
        "}}\n\nimpl {message}Args {{\n    /// Makes the object, without fields that have no argument.\n    \
         pub fn message(self) -> Result<v1::{message}, Failure> {{\n        Ok(v1::{message} {{\n"
    );
    for key in keys {
        let _ = writeln!(text, "            {}: {},", identifier(key.name()), value(key));
    }
    *text += "        })\n    }\n}\n";
}

/// Writes the field of an argument.
fn argument(text: &mut String, key: &Key) {
    let name = name(key);
    if let Some(kind) = code(key) {
        let _ = writeln!(text, "    #[command(flatten)]\n    pub {name}: {kind},");
        return;
    }
    let position = key.tag("position");
    let help = position.or(key.tag("cli")).filter(|help| !help.is_empty());
    let help = help.map_or_else(String::new, |help| format!("    /// {help}\n"));
    let more = key.tag("arg").unwrap_or_default();
    let long = if position.is_some() || more.starts_with("long") { "" } else { "long" };
    let both: Vec<_> = [long, more].into_iter().filter(|part| !part.is_empty()).collect();
    let attribute = match &*both.join(", ") {
        "" => String::new(),
        both => format!("    #[arg({both})]\n"),
    };
    let _ = writeln!(text, "{help}{attribute}    pub {name}: {},", kind(key));
}

/// Returns the type of an argument.
fn kind(key: &Key) -> String {
    let plain = match key.field.r#type() {
        Type::Bool => return "bool".to_owned(),
        Type::Uint32 => "u32",
        _ => "String",
    };
    match key {
        key if key.is_repeated() => format!("Vec<{plain}>"),
        key if key.is_required() && !may_be_guessed(key) => plain.to_owned(),
        _ => format!("Option<{plain}>"),
    }
}

/// Returns the structure of the arguments of a key that is not one.
fn code(key: &Key) -> Option<String> {
    let of_message = || key.message().filter(|message| *message != "Target" && has_argument(key));
    let by_hand = key.tag("code").map(|kind| format!("by_hand::{kind}"));
    by_hand.or_else(|| of_message().map(|message| format!("{message}Args")))
}

/// Returns the expression of a field.
fn value(key: &Key) -> String {
    let this = format!("self.{}", name(key));
    if !has_argument(key) {
        return "Default::default()".to_owned();
    }
    match key.message() {
        _ if key.tag("code").is_some() => format!("{this}.message()?"),
        Some("Target") if key.is_repeated() => format!("by_hand::targets(&{this})?"),
        Some("Target") => format!("Some(by_hand::target(&{this})?)"),
        Some(message) => {
            format!("Some({this}.message()?).filter(|given| *given != v1::{message}::default())")
        }
        None if key.is_bool() => format!("{this}.then_some({})", !is_inverse(key)),
        None if may_be_guessed(key) => format!("{this}.unwrap_or_default()"),
        None => this,
    }
}

/// Returns whether the daemon chooses a required key that is not given: the network, if there is only one.
fn may_be_guessed(key: &Key) -> bool {
    key.is_required() && key.name() == "network"
}

/// Returns whether the option turns off what is on by default.
fn is_inverse(key: &Key) -> bool {
    key.is_bool() && key.tag("default") == Some("true")
}

fn name(key: &Key) -> String {
    if is_inverse(key) { format!("no_{}", key.name()) } else { identifier(key.name()) }
}

/// Returns a name as Rust writes it.
fn identifier(name: &str) -> String {
    if ["in", "as"].contains(&name) { format!("r#{name}") } else { name.to_owned() }
}
