//! Files that a host's file includes, from below its own folder: `include = ["jobs/*.toml"]`.

use crate::MOST_BYTES;
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

/// Most files that a file may include.
pub const MOST_FILES: usize = 128;

/// The text of a file that another one includes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Included {
    /// The path below the folder of the other one, as in `jobs/a.toml`.
    pub name: String,
    /// The text of the file.
    pub text: String,
}

/// The text of a host's file, with those that it includes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// The text of the file itself.
    pub main: String,
    /// The others, by name; `None`: it must include none.
    pub included: Option<Vec<Included>>,
}

impl From<String> for Texts {
    fn from(main: String) -> Self {
        Self { main, included: None }
    }
}

impl Texts {
    /// Is true if these are the same texts. A file that includes none may have come alone.
    #[must_use]
    pub fn are(&self, others: &Self) -> bool {
        let [own, other] = [self, others].map(|texts| texts.included.as_deref().unwrap_or_default());
        self.main == others.main && own == other
    }

    /// Reads files that were opened, as far as they may be long.
    ///
    /// # Errors
    /// The kernel's; or a file is no text, or they are too long together.
    pub fn read(
        main: File,
        open: impl FnOnce(&[String]) -> io::Result<Vec<(String, File)>>,
    ) -> io::Result<Self> {
        let mut room = MOST_BYTES;
        let main = text(main, &mut room)?;
        let mut included = Vec::new();
        for (name, file) in open(&includes(&main))? {
            let text = text(file, &mut room).map_err(|e| at(&name, &e))?;
            included.push(Included { name, text });
        }
        Ok(Self { main, included: Some(included) })
    }

    /// Reads a host's file, and those that it includes.
    ///
    /// # Errors
    /// As for [`Self::read`] and [`open_included`].
    pub fn load(path: &Path) -> io::Result<Self> {
        let folder = folder_of(path);
        Self::read(File::open(path)?, |patterns| open_included(folder, patterns))
    }
}

/// Returns the folder of a file.
#[must_use]
pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn text(file: File, room: &mut u64) -> io::Result<String> {
    // The parser refuses a longer one.
    let text = io::read_to_string(file.take(MOST_BYTES + 1))?;
    *room = room.checked_sub(text.len() as u64).ok_or_else(|| {
        io::Error::other(format!("the files are longer than {} MB together", MOST_BYTES >> 20))
    })?;
    Ok(text)
}

fn at(name: &str, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{name}: {e}"))
}

/// Returns the patterns of files that a text includes; none if it can't be read.
#[must_use]
pub fn includes(text: &str) -> Vec<String> {
    // A text of a hundred thousand objects is not read twice for nothing.
    if text.contains("include") { crate::Parts::read(text).include } else { Vec::new() }
}

/// Checks a pattern: a path below the folder, with `*` in the file's name only.
pub(crate) fn check_pattern(pattern: &str) -> Result<(), &'static str> {
    let path = Path::new(pattern);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err("leads out of the file's folder: write a path below it, as in \"jobs/*.toml\"");
    }
    let (folder, name) = split(pattern);
    if folder.contains('*') {
        return Err("has a `*` in the name of a folder: name each folder, as in \"jobs/*.toml\"");
    }
    match name.strip_suffix(".toml") {
        Some(_) => Ok(()),
        None => Err("names no file that ends with .toml"),
    }
}

fn split(pattern: &str) -> (&str, &str) {
    pattern.rsplit_once('/').unwrap_or((".", pattern))
}

/// Opens the files below a folder that match patterns, by name. Links that lead out of the folder are not followed, and
/// files whose names begin with a dot are left out.
///
/// # Errors
/// A pattern is wrong, a file or folder that it names is missing, or there are too many files.
pub fn open_included(folder: &Path, patterns: &[String]) -> io::Result<Vec<(String, File)>> {
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = BTreeSet::new();
    for pattern in patterns {
        check_pattern(pattern).map_err(|why| io::Error::other(format!("include: \"{pattern}\" {why}")))?;
        find(&folder, pattern, &mut names).map_err(|e| at(&format!("include: \"{pattern}\""), &e))?;
        if names.len() > MOST_FILES {
            let text = format!("include: more than {MOST_FILES} files match; join some of them");
            return Err(io::Error::other(text));
        }
    }
    let open = |name: String| {
        let file =
            File::from(below(&folder, &name, OFlags::NONBLOCK | OFlags::NOCTTY).map_err(|e| at(&name, &e))?);
        match file.metadata()?.is_file() {
            true => Ok((name, file)),
            false => Err(at(&name, &io::Error::other("it is not a file"))),
        }
    };
    names.into_iter().map(open).collect()
}

/// Finds the files that match a pattern.
fn find(folder: &OwnedFd, pattern: &str, names: &mut BTreeSet<String>) -> io::Result<()> {
    let (within, name) = split(pattern);
    if !name.contains('*') {
        names.insert(pattern.to_owned());
        return Ok(());
    }
    for entry in Dir::new(below(folder, within, OFlags::DIRECTORY)?)? {
        let entry = entry?;
        let Ok(found) = entry.file_name().to_str() else { continue };
        if !found.starts_with('.') && matches(name, found) && names.len() <= MOST_FILES {
            names.insert(pattern.strip_suffix(name).unwrap_or_default().to_owned() + found);
        }
    }
    Ok(())
}

fn below(folder: &OwnedFd, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened =
        openat2(folder.as_fd(), path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), resolve);
    opened.map_err(|e| match e {
        rustix::io::Errno::XDEV => io::Error::other("it leads out of the file's folder"),
        e => e.into(),
    })
}

/// Returns whether a name matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, is) in [
            ("*.toml", "a.toml", true),
            ("*.toml", ".toml", true),
            ("*.toml", "a.toml~", false),
            ("a.toml", "a.toml", true),
            ("a.toml", "ab.toml", false),
            ("a*b*.toml", "a1b2.toml", true),
            ("a*b*.toml", "a1.toml", false),
            ("a*a.toml", "a.toml", false),
            ("*a*a*.toml", "aa.toml", true),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }
}
