//! Output: JSON for scripts, aligned tables for people. Both come from the same rows.

use crate::client::Failure;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};

/// A column: its title and the key of its values.
pub type Column = (&'static str, &'static str);

/// Prints a text at once. The error tells whether the reader has left.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

pub fn print_json(value: &Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Prints rows as JSON, or as a table of some of their keys.
pub fn print_rows(rows: Vec<Value>, columns: &[Column], json: bool) -> Result<(), Failure> {
    if json { print_json(&Value::Array(rows)) } else { print(&table(&rows, columns)) }
}

/// Prints one row with all of its keys.
pub fn print_row(row: &Value, json: bool) -> Result<(), Failure> {
    if json { print_json(row) } else { print(&sheet(row)) }
}

pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Object(map) => {
            let set = map.iter().filter(|(_, value)| !value.is_null());
            set.map(|(key, value)| format!("{key} {}", cell(value))).collect::<Vec<_>>().join(" ")
        }
    }
}

/// Formats rows as a table. Numbers are aligned to the right, also those marked with `~`.
pub fn table(rows: &[Value], columns: &[Column]) -> String {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|(_, key)| cell(&row[*key])).collect()).collect();
    let width = |i: usize| {
        let widest = cells.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        widest.max(columns[i].0.len())
    };
    let is_marked = |value: &Value| value.as_str().is_some_and(|text| text.starts_with('~'));
    let is_number = |i: usize| {
        rows.iter().map(|row| &row[columns[i].1]).any(|value| value.is_number() || is_marked(value))
    };
    let right: Vec<bool> = (0..columns.len()).map(is_number).collect();
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |row: &dyn Fn(usize) -> String| {
        let mut line = String::new();
        for (i, &width) in widths.iter().enumerate() {
            let text = row(i);
            let _ =
                if right[i] { write!(line, "{text:>width$}  ") } else { write!(line, "{text:<width$}  ") };
        }
        line.trim_end().to_owned() + "\n"
    };
    let mut out = bold(line(&|i| columns[i].0.to_owned()));
    for row in &cells {
        out += &line(&|i| row[i].clone());
    }
    out
}

/// Formats a row as a sheet, with a key per line.
fn sheet(row: &Value) -> String {
    let Some(map) = row.as_object() else { return cell(row) + "\n" };
    let width = map.keys().map(String::len).max().unwrap_or(0);
    let mut out = String::new();
    for (key, value) in map {
        let _ = writeln!(out, "{key:<width$}  {}", cell(value));
    }
    out
}

/// Is true if standard output is a terminal and `NO_COLOR` is not set.
fn coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn styled(text: String, code: &str) -> String {
    if !coloured() {
        return text;
    }
    let (body, end) = text.strip_suffix('\n').map_or((text.as_str(), ""), |body| (body, "\n"));
    format!("\x1b[{code}m{body}\x1b[0m{end}")
}

/// Makes text bold on a terminal.
pub fn bold(text: String) -> String {
    styled(text, "1")
}

pub fn green(text: String) -> String {
    styled(text, "32")
}

pub fn red(text: String) -> String {
    styled(text, "31")
}

pub fn yellow(text: String) -> String {
    styled(text, "33")
}

/// Formats a number of bits or packets per second with a unit.
pub fn scaled(value: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match UNITS.iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{:.2}{name}", value / unit),
        None => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_are_aligned() {
        let rows =
            [json!({"name": "a", "n": 5, "list": ["x", "y"]}), json!({"name": "bcd", "n": 1000, "list": []})];
        let text = table(&rows, &[("NAME", "name"), ("N", "n"), ("LIST", "list")]);
        assert_eq!(text, "NAME     N  LIST\na        5  x, y\nbcd   1000  -\n");
    }

    #[test]
    fn rates_have_units() {
        assert_eq!([scaled(999.0), scaled(1500.0), scaled(2.5e9)], ["999", "1.50k", "2.50G"]);
    }
}
