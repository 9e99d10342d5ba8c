//! Problems of a configuration.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A problem of a configuration, at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, if it is one that the host's file includes.
    pub file: Option<Arc<str>>,
    /// Line in the file, from 1; `None` if the problem is at no line.
    pub line: Option<usize>,
    /// The object, as in `guest "vm1"`.
    pub at: String,
    /// The error and its remedy.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(line: Option<usize>, at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { file: None, line, at: at.into(), message: message.into() }
    }

    /// Returns the place of the problem, as `FILE:LINE`, where `file` is the host's.
    #[must_use]
    pub fn place_in(&self, file: &Path) -> String {
        let file = self.file.as_ref().map_or(file.to_owned(), |name| file.with_file_name(&**name));
        self.line.map_or_else(|| file.display().to_string(), |line| format!("{}:{line}", file.display()))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.at.is_empty() {
            write!(f, "{}: ", self.at)?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of a configuration, in the order of files and lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems(Vec<Problem>);

impl Problems {
    pub(crate) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.file.clone(), problem.line));
        Self(problems)
    }

    /// Returns the problems, one by one.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// Returns all problems as `FILE:LINE: ...`, a line each, as compilers write them.
    #[must_use]
    pub fn in_file(&self, file: &Path) -> String {
        let lines = self.0.iter().map(|problem| {
            let unplaced = Problem { file: None, line: None, ..problem.clone() };
            format!("{}: {unplaced}", problem.place_in(file))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl From<Vec<Problem>> for Problems {
    fn from(problems: Vec<Problem>) -> Self {
        Self::new(problems)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let end = if i + 1 < self.0.len() { "\n" } else { "" };
            write!(f, "{problem}{end}")?;
        }
        Ok(())
    }
}
