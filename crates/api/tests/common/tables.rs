//! The tables of docs/configuration.md, made of the schema.

use super::schema::{Key, Schema};
use std::io::{Error, Result};

/// Returns the page with its tables made anew. A line `<!-- keys: MESSAGE -->` stands before a table of a message's
/// keys, `<!-- own keys: MESSAGE -->` before one without the keys that it has from others; a table ends at an empty
/// line.
pub fn tables(page: &str, schema: &Schema) -> Result<String> {
    for (table, message) in schema.kinds() {
        if !page.contains(&format!("\n<!-- keys: {message} -->\n")) {
            return Err(Error::other(format!(
                "docs/configuration.md lacks <!-- keys: {message} --> for [[{table}]]"
            )));
        }
    }
    let mut text = String::new();
    let mut in_table = false;
    for line in page.lines() {
        in_table &= !line.is_empty();
        if in_table {
            continue;
        }
        text += line;
        text += "\n";
        let marker = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"));
        if let Some((what, message)) = marker.and_then(|marker| marker.split_once(": ")) {
            let own = schema.own_keys(message);
            let own =
                own.ok_or_else(|| Error::other(format!("no message {message} in the protocol files")))?;
            let keys: Vec<&Key> = match what {
                "keys" => schema.keys(message),
                _ => own.iter().filter(|key| !key.is_spread()).collect(),
            };
            text += "| key | default | |\n|---|---|---|\n";
            keys.iter().for_each(|key| text += &row(key));
            in_table = true;
        }
    }
    Ok(text)
}

fn row(key: &Key) -> String {
    let default = key.tag("default").unwrap_or(match key {
        key if key.is_required() => "required",
        key if key.is_bool() => "false",
        _ => "none",
    });
    let text = key.comment.text.replace('|', "\\|").replace("(configuration.md#", "(#");
    format!("| `{}` | {default} | {} |\n", key.name(), text.trim_end_matches('.'))
}
