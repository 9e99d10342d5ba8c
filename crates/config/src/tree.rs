//! A configuration as a tree of values. It is read from a text in TOML, with the line of each value, or from
//! a message of the API.

use crate::Problem;
use crate::pieces::Keys;
use std::borrow::Cow;
use std::ops::Range;
use toml::Value;
use toml::de::{DeTable, DeValue};

/// A value.
pub(crate) enum Node<'a> {
    String(Cow<'a, str>),
    Integer(i128),
    Boolean(bool),
    /// A value of a type that no key takes, as the text writes it.
    Other(String),
    Array(Vec<Placed<Node<'a>>>),
    Table(Table<'a>),
}

/// A key or value, and its line if it comes from a text.
pub(crate) struct Placed<T> {
    pub(crate) line: Option<usize>,
    pub(crate) of: T,
}

/// Keys and values.
#[derive(Default)]
pub(crate) struct Table<'a>(Vec<(Placed<Cow<'a, str>>, Placed<Node<'a>>)>);

impl<'a> Table<'a> {
    /// Parses a text, or a piece of one that has `before` lines in front of it. Syntax errors are problems, and then
    /// nothing is read: after a broken line the parser may see a value that the text does not say.
    pub(crate) fn of_text(text: &'a str, before: usize) -> (Self, Keys, Vec<Problem>) {
        let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        let lines = Lines { before, starts: std::iter::once(0).chain(starts).collect() };
        let (root, errors) = DeTable::parse_recoverable(text);
        let problem = |e: toml::de::Error| {
            let line = e.span().and_then(|span| lines.at(&span));
            Problem::new(line, "", e.message().trim())
        };
        let root = if errors.is_empty() { root.into_inner() } else { DeTable::default() };
        // The place of an array of entries is its first header, in which the key is.
        let keys = root
            .iter()
            .map(|(key, value)| (key.get_ref().to_string(), value.span().start < key.span().start));
        let keys = Keys(keys.collect());
        (lines.table(root), keys, errors.into_iter().map(problem).collect())
    }

    /// Returns the table of fields that come from no text.
    pub(crate) fn of_fields(fields: toml::Table) -> Table<'static> {
        let unplaced = |(key, value): (String, Value)| {
            (Placed { line: None, of: key.into() }, Placed { line: None, of: Node::of_value(value) })
        };
        Table(fields.into_iter().map(unplaced).collect())
    }

    /// Returns the value of a key, with the key.
    pub(crate) fn entry(&self, key: &str) -> Option<&(Placed<Cow<'a, str>>, Placed<Node<'a>>)> {
        self.0.iter().find(|(name, _)| name.of == key)
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Placed<Node<'a>>> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Returns the keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Placed<Cow<'a, str>>> {
        self.0.iter().map(|(key, _)| key)
    }
}

impl Node<'_> {
    /// Returns the text of a string.
    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    fn of_value(value: Value) -> Node<'static> {
        match value {
            Value::String(text) => Node::String(text.into()),
            Value::Integer(number) => Node::Integer(number.into()),
            Value::Boolean(flag) => Node::Boolean(flag),
            Value::Float(number) => Node::Other(number.to_string()),
            Value::Datetime(time) => Node::Other(time.to_string()),
            Value::Array(values) => {
                let unplaced = |value| Placed { line: None, of: Self::of_value(value) };
                Node::Array(values.into_iter().map(unplaced).collect())
            }
            Value::Table(fields) => Node::Table(Table::of_fields(fields)),
        }
    }
}

/// Finds what no file of a host has, before the parser reports each of its bytes, which takes minutes for a large file.
pub(crate) fn no_text(text: &str) -> Option<Problem> {
    if text.len() as u64 > crate::MOST_BYTES {
        return Some(Problem::new(None, "", format!("it is longer than {} MB", crate::MOST_BYTES >> 20)));
    }
    let is_foreign = |byte: &u8| byte.is_ascii_control() && !b"\t\n\r".contains(byte);
    let at = text.bytes().position(|byte| is_foreign(&byte))?;
    let line = 1 + text[..at].bytes().filter(|byte| *byte == b'\n').count();
    let byte = text.as_bytes()[at];
    Some(Problem::new(Some(line), "", format!("the control character 0x{byte:02x}: this is no text")))
}

/// The lines of a text that so many are before.
struct Lines {
    before: usize,
    /// Offsets at which they start.
    starts: Vec<usize>,
}

impl Lines {
    /// Returns the line, from 1, on which a span starts.
    fn at(&self, span: &Range<usize>) -> Option<usize> {
        Some(self.before + self.starts.partition_point(|start| *start <= span.start))
    }

    fn table<'a>(&self, table: DeTable<'a>) -> Table<'a> {
        let placed = |(key, value): (toml::Spanned<Cow<'a, str>>, toml::Spanned<DeValue<'a>>)| {
            let key = Placed { line: self.at(&key.span()), of: key.into_inner() };
            (key, self.placed(value))
        };
        Table(table.into_iter().map(placed).collect())
    }

    fn placed<'a>(&self, value: toml::Spanned<DeValue<'a>>) -> Placed<Node<'a>> {
        let line = self.at(&value.span());
        let of = match value.into_inner() {
            DeValue::String(text) => Node::String(text),
            DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| Node::Other(number.as_str().to_owned()), Node::Integer),
            DeValue::Boolean(flag) => Node::Boolean(flag),
            DeValue::Float(number) => Node::Other(number.as_str().to_owned()),
            DeValue::Datetime(time) => Node::Other(time.to_string()),
            DeValue::Array(values) => Node::Array(values.into_iter().map(|one| self.placed(one)).collect()),
            DeValue::Table(table) => Node::Table(self.table(table)),
        };
        Placed { line, of }
    }
}
