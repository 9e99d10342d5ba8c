//! Reads lists from a file or standard input.

use crate::args::Keys;
use crate::client::Failure;
use std::path::Path;

/// Reads the lines of a file (`-`: of standard input): their first word, and the words behind it. Skips empty
/// lines and those that begin with `#`.
pub fn lines(file: &Path) -> Result<Vec<(String, Vec<String>)>, Failure> {
    let text = whole(file)?;
    let split = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        words.next().filter(|first| !first.starts_with('#')).map(|first| (first, words.collect()))
    };
    Ok(text.lines().filter_map(split).collect())
}

/// Reads a file (`-`: standard input).
pub fn whole(file: &Path) -> Result<String, Failure> {
    let text = match file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()),
        _ => std::fs::read_to_string(file),
    };
    text.map_err(|e| Failure::Refused(format!("{}: {e}", file.display())))
}

/// Returns the keys on the command line or in the file that it names.
pub fn keys(keys: Keys) -> Result<Vec<String>, Failure> {
    match &keys.file {
        None => Ok(keys.keys),
        Some(file) => Ok(lines(file)?.into_iter().map(|(key, _)| key).collect()),
    }
}
