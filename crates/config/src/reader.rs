//! Reading of tables key by key: the reader remembers lines, collects problems, and reports keys that nobody
//! asked for.

use crate::Problem;
use crate::object::Place;
use crate::tree::{Node, Placed, Table};
use crate::value::Value;
use std::borrow::Cow;
use std::cell::RefCell;

/// One table being read.
pub(crate) struct Reader<'a> {
    problems: &'a RefCell<Vec<Problem>>,
    table: &'a Table<'a>,
    line: Option<usize>,
    /// The name of the table in messages.
    at: Cow<'static, str>,
    /// Whether names are made at all.
    is_named: bool,
    asked: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    /// Returns a reader of a table that messages call `at`. `problems` collects the table's problems.
    pub(crate) fn new(problems: &'a RefCell<Vec<Problem>>, table: &'a Table<'a>, at: &'static str) -> Self {
        Self { problems, table, line: None, at: at.into(), is_named: true, asked: Vec::new() }
    }

    /// Reads the table without names for messages, and only if it has a problem once more with them: in a large file,
    /// names take longer than the rest.
    pub(crate) fn named_if_wrong<T>(self, read: impl Fn(Self) -> T) -> T {
        let before = self.problems();
        let done = read(Self { at: Cow::default(), is_named: false, asked: Vec::new(), ..self });
        if self.problems() == before {
            return done;
        }
        self.problems.borrow_mut().truncate(before);
        read(self)
    }

    /// Returns the table's `name`, whether or not the rest of it can be read.
    pub(crate) fn name(&self) -> Option<&'a str> {
        self.table.get("name").and_then(|value| value.of.as_str())
    }

    /// Gives the table a name for messages.
    pub(crate) fn call(&mut self, at: impl FnOnce() -> String) {
        if self.is_named {
            self.at = at().into();
        }
    }

    /// Records a problem with the table, or with one of its keys.
    pub(crate) fn problem(&self, key: Option<&str>, message: impl Into<String>) {
        let line = key.and_then(|key| self.key_line(key)).or(self.line);
        self.record(line, &self.at, message);
    }

    fn record(&self, line: Option<usize>, at: &str, message: impl Into<String>) {
        self.problems.borrow_mut().push(Problem::new(line, at, message));
    }

    /// Returns the number of problems found so far.
    pub(crate) fn problems(&self) -> usize {
        self.problems.borrow().len()
    }

    /// Returns whether the key is there, whatever its value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    fn key_line(&self, key: &str) -> Option<usize> {
        self.table.entry(key).and_then(|(key, _)| key.line)
    }

    fn value(&mut self, key: &'static str) -> Option<&'a Placed<Node<'a>>> {
        self.asked.push(key);
        self.table.get(key)
    }

    fn read<T: Value>(&self, key: &'static str, value: &'a Placed<Node<'a>>) -> Option<T> {
        let at = match (self.is_named, self.at.is_empty()) {
            (true, false) => Cow::from(format!("{}: {key}", self.at)),
            _ => key.into(),
        };
        let result = match (&value.of, T::TABLE) {
            (Node::Table(table), Some(read)) => return read(self.nested(at, value.line, table)),
            (other, _) => T::read(other),
        };
        result.map_err(|message| self.record(value.line, &at, message)).ok()
    }

    /// Returns the value of an optional key. A bad value is a problem and counts as absent.
    pub(crate) fn get<T: Value>(&mut self, key: &'static str) -> Option<T> {
        self.value(key).and_then(|value| self.read(key, value))
    }

    /// Returns the value of a required key. Its absence is a problem.
    pub(crate) fn require<T: Value>(&mut self, key: &'static str) -> Option<T> {
        let Some(value) = self.value(key) else {
            self.problem(None, format!("`{key}` is missing"));
            return None;
        };
        self.read(key, value)
    }

    /// Returns the values of an array; none if the key is absent.
    pub(crate) fn list<T: Value>(&mut self, key: &'static str) -> Vec<T> {
        self.given(key).unwrap_or_default()
    }

    /// Returns the values of an array, if the key is there.
    pub(crate) fn given<T: Value>(&mut self, key: &'static str) -> Option<Vec<T>> {
        let Node::Array(array) = &self.value(key)?.of else {
            self.problem(Some(key), format!("`{key}` must be an array: {key} = [ ... ]"));
            return Some(Vec::new());
        };
        Some(array.iter().filter_map(|v| self.read(key, v)).collect())
    }

    /// Returns the values of an array, or a value that stands alone.
    pub(crate) fn one_or_many<T: Value>(&mut self, key: &'static str) -> Vec<T> {
        match self.table.get(key).map(|value| &value.of) {
            Some(Node::Array(_)) | None => self.list(key),
            Some(_) => self.get(key).into_iter().collect(),
        }
    }

    /// Returns a sub-table.
    pub(crate) fn table(&mut self, key: &'static str) -> Option<Reader<'a>> {
        let value = self.value(key)?;
        let Node::Table(table) = &value.of else {
            self.problem(Some(key), format!("`{key}` must be a table: [{key}]"));
            return None;
        };
        let at = if self.is_named { format!("[{key}]").into() } else { Cow::default() };
        Some(self.nested(at, value.line, table))
    }

    /// Returns the tables of an array of tables.
    pub(crate) fn tables(&mut self, key: &'static str) -> Vec<Reader<'a>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let (entries, is_array) = match &value.of {
            Node::Array(array) => (&array[..], true),
            _ => (std::slice::from_ref(value), false),
        };
        let mut readers = Vec::new();
        for entry in entries {
            match &entry.of {
                Node::Table(table) if is_array => {
                    readers.push(self.nested(key.into(), entry.line, table));
                }
                _ => self.problem(Some(key), format!("there may be several `{key}`: write [[{key}]]")),
            }
        }
        readers
    }

    fn nested(&self, at: Cow<'static, str>, line: Option<usize>, table: &'a Table<'a>) -> Reader<'a> {
        Reader { table, line, at, asked: Vec::new(), ..*self }
    }

    /// Reports the keys that nobody asked for. Returns the lines of the table.
    pub(crate) fn finish(self) -> Place {
        let mut place = Place { file: None, line: self.line, keys: Vec::new() };
        for key in self.table.keys() {
            let name: &str = &key.of;
            if let Some(known) = self.asked.iter().find(|asked| **asked == name) {
                place.keys.extend(key.line.map(|line| (*known, line)));
                continue;
            }
            let message = match nearest(name, self.asked.iter().copied(), 0.4) {
                Some(known) => format!("unknown key `{name}`; did you mean `{known}`?"),
                None => format!("unknown key `{name}`; there are: {}", self.asked.join(", ")),
            };
            self.record(key.line, &self.at, message);
        }
        place
    }
}

/// Returns a suggestion to append to a message about a wrong name; empty if no known name is similar.
#[must_use]
pub fn did_you_mean<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> String {
    let near = nearest(name, known, 0.5);
    near.map(|other| format!("; did you mean \"{other}\"?")).unwrap_or_default()
}

/// Returns the known name that is most like a wrong one, if their likeness (0 to 1) is above `least`.
fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>, least: f64) -> Option<&'n str> {
    // Swapped letters count as one mistake. Among equally near names, the one with a common beginning wins.
    let likeness = |other: &str| {
        (strsim::normalized_damerau_levenshtein(name, other), strsim::jaro_winkler(name, other))
    };
    known
        .map(|other| (likeness(other), other))
        .max_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))
        .filter(|((distance, _), _)| *distance >= least)
        .map(|(_, other)| other)
}
