//! Reading of TOML tables key by key: remembers lines, collects problems, and reports keys nobody asked for.

use crate::Problem;
use crate::object::Place;
use crate::value::Value;
use std::cell::RefCell;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The text, and what is wrong with it.
pub(crate) struct Source<'a> {
    text: &'a str,
    /// Offsets at which lines start.
    lines: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
}

impl<'a> Source<'a> {
    /// Parses the text; syntax errors are problems, and what could be read is returned.
    pub(crate) fn parse(text: &'a str) -> (Self, Spanned<DeTable<'a>>) {
        let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        let source =
            Self { text, lines: std::iter::once(0).chain(starts).collect(), problems: RefCell::default() };
        let (root, errors) = DeTable::parse_recoverable(text);
        for e in errors {
            let line = e.span().map(|span| source.line(&span));
            source.problem(line, "", e.message().trim());
        }
        (source, root)
    }

    pub(crate) fn line(&self, span: &Range<usize>) -> usize {
        self.lines.partition_point(|start| *start <= span.start.min(self.text.len()))
    }

    pub(crate) fn problem(&self, line: Option<usize>, at: &str, message: impl Into<String>) {
        self.problems.borrow_mut().push(Problem::new(line, at, message));
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }
}

/// One table being read.
pub(crate) struct Reader<'a> {
    source: &'a Source<'a>,
    table: &'a DeTable<'a>,
    line: Option<usize>,
    /// What messages call the table.
    at: String,
    asked: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    pub(crate) fn root(source: &'a Source<'a>, table: &'a DeTable<'a>) -> Self {
        Self { source, table, line: None, at: String::new(), asked: Vec::new() }
    }

    /// The table's `name`, whether or not the rest of it can be read.
    pub(crate) fn name(&self) -> Option<&'a str> {
        self.table.get("name").and_then(|value| value.get_ref().as_str())
    }

    /// Gives the table a name for messages.
    pub(crate) fn call(&mut self, at: String) {
        self.at = at;
    }

    /// Records a problem with the table, or with one of its keys.
    pub(crate) fn problem(&self, key: Option<&str>, message: impl Into<String>) {
        let line = key.and_then(|key| self.key_line(key)).or(self.line);
        self.source.problem(line, &self.at, message);
    }

    /// Problems found so far.
    pub(crate) fn problems(&self) -> usize {
        self.source.problems.borrow().len()
    }

    fn key_line(&self, key: &str) -> Option<usize> {
        self.table.get_key_value(key).map(|(k, _)| self.source.line(&k.span()))
    }

    fn value(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.push(key);
        self.table.get(key)
    }

    fn read<T: Value>(&self, key: &'static str, value: &'a Spanned<DeValue<'a>>) -> Option<T> {
        let at = if self.at.is_empty() { key.to_owned() } else { format!("{}: {key}", self.at) };
        let line = self.source.line(&value.span());
        let nested = |table| Reader {
            source: self.source,
            table,
            line: Some(line),
            at: at.clone(),
            asked: Vec::new(),
        };
        let result = match (value.get_ref(), T::TABLE) {
            (DeValue::Table(table), Some(read)) => return read(nested(table)),
            (other, _) => T::read(other),
        };
        result.map_err(|message| self.source.problem(Some(line), &at, message)).ok()
    }

    /// The value of an optional key; a bad one is a problem and reads as absent.
    pub(crate) fn get<T: Value>(&mut self, key: &'static str) -> Option<T> {
        self.value(key).and_then(|value| self.read(key, value))
    }

    /// The value of a key that must be there.
    pub(crate) fn require<T: Value>(&mut self, key: &'static str) -> Option<T> {
        let Some(value) = self.value(key) else {
            self.problem(None, format!("`{key}` is missing"));
            return None;
        };
        self.read(key, value)
    }

    /// The values of an array; none if the key is absent.
    pub(crate) fn list<T: Value>(&mut self, key: &'static str) -> Vec<T> {
        self.given(key).unwrap_or_default()
    }

    /// The values of an array, if the key is there.
    pub(crate) fn given<T: Value>(&mut self, key: &'static str) -> Option<Vec<T>> {
        let Some(array) = self.value(key)?.get_ref().as_array() else {
            self.problem(Some(key), format!("`{key}` must be an array: {key} = [ ... ]"));
            return Some(Vec::new());
        };
        Some(array.iter().filter_map(|v| self.read(key, v)).collect())
    }

    /// The values of an array, or a value that stands alone.
    pub(crate) fn one_or_many<T: Value>(&mut self, key: &'static str) -> Vec<T> {
        match self.table.get(key).map(Spanned::get_ref) {
            Some(DeValue::Array(_)) | None => self.list(key),
            Some(_) => self.get(key).into_iter().collect(),
        }
    }

    /// A sub-table.
    pub(crate) fn table(&mut self, key: &'static str) -> Option<Reader<'a>> {
        let value = self.value(key)?;
        let Some(table) = value.get_ref().as_table() else {
            self.problem(Some(key), format!("`{key}` must be a table: [{key}]"));
            return None;
        };
        Some(self.nested(format!("[{key}]"), value, table))
    }

    /// The tables of an array of tables.
    pub(crate) fn tables(&mut self, key: &'static str) -> Vec<Reader<'a>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let entries = value.get_ref().as_array().map(|a| a.iter().collect()).unwrap_or(vec![value]);
        let mut readers = Vec::new();
        for entry in entries {
            match entry.get_ref().as_table() {
                Some(table) if value.get_ref().is_array() => {
                    readers.push(self.nested(key.to_owned(), entry, table));
                }
                _ => self.problem(Some(key), format!("there may be several `{key}`: write [[{key}]]")),
            }
        }
        readers
    }

    fn nested(&self, at: String, value: &Spanned<DeValue<'a>>, table: &'a DeTable<'a>) -> Reader<'a> {
        let line = self.source.line(&value.span());
        Reader { source: self.source, table, line: Some(line), at, asked: Vec::new() }
    }

    /// Reports the keys that nobody asked for, and says where the table is.
    pub(crate) fn finish(self) -> Place {
        let mut place = Place { line: self.line, keys: Vec::new() };
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            let line = self.source.line(&key.span());
            place.keys.push((name.to_owned(), line));
            if self.asked.contains(&name) {
                continue;
            }
            let message = match nearest(name, self.asked.iter().copied(), 0.0) {
                Some(known) => format!("unknown key `{name}`; did you mean `{known}`?"),
                None => format!("unknown key `{name}`"),
            };
            self.source.problem(Some(line), &self.at, message);
        }
        place
    }
}

/// The known name that a wrong one is most like, if their likeness (0 to 1) is above `least`.
pub(crate) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>, least: f64) -> Option<&'n str> {
    // Swapped letters count as one mistake; where that decides nothing, a common beginning does.
    let likeness = |other: &str| {
        (strsim::normalized_damerau_levenshtein(name, other), strsim::jaro_winkler(name, other))
    };
    known
        .map(|other| (likeness(other), other))
        .max_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))
        .filter(|((distance, _), _)| *distance >= least)
        .map(|(_, other)| other)
}
