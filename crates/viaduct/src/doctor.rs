//! The checks of `viaduct doctor`: whether this machine has what the daemon needs for a file, and what to do
//! if it does not.
//!
//! A check reads files below a root, which tests replace, and asks the kernel if there is no file.

mod cpus;
mod guests;
mod kernel;
mod libvirt;
mod memory;
mod others;
mod privileges;
mod ways_out;
mod windows;
mod wires;

use config::{Document, Guest, GuestKind, Index, Network, Object, Way, Wire};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Good,
    /// It works, but slower, less safely, or only for some.
    Warning,
    Broken,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The object of the check.
    pub check: &'static str,
    pub level: Level,
    /// The observation.
    pub message: String,
    /// The remedy, if the level is not good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    fn good(check: &'static str, message: impl Into<String>) -> Self {
        Self { check, level: Level::Good, message: message.into(), advice: None }
    }

    fn warning(check: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Warning, message: message.into(), advice: Some(advice.into()) }
    }

    fn broken(check: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Broken, ..Self::warning(check, message, advice) }
    }

    /// Lowers a broken finding to a warning if nobody needs what is missing.
    fn unless(self, is_needed: bool) -> Self {
        if is_needed { self } else { Self { level: self.level.min(Level::Warning), ..self } }
    }
}

/// The machine, as its files describe it.
pub struct Machine {
    /// `/`, except in tests.
    pub root: PathBuf,
}

impl Machine {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the text of a file, without space around it; `None` if the file can't be read.
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Reads a list of CPUs from a file; empty if there is no such file.
    fn cpus(&self, path: &str) -> Vec<u16> {
        self.text(path).and_then(|list| config::cpus(&list)).unwrap_or_default()
    }
}

/// The input of the checks.
pub struct Subject<'a> {
    pub machine: &'a Machine,
    /// The configuration; a host with nothing if there is no file.
    pub document: &'a Document,
    pub run_dir: &'a Path,
}

impl Subject<'_> {
    fn guests(&self, kind: GuestKind) -> impl Iterator<Item = &Guest> {
        let guests = self.document.objects.iter().filter_map(|item| match &item.object {
            Object::Guest(guest) => Some(&**guest),
            _ => None,
        });
        guests.filter(move |guest| guest.kind() == kind)
    }

    fn networks(&self) -> impl Iterator<Item = &Network> {
        self.document.objects.iter().filter_map(|item| match &item.object {
            Object::Network(network) => Some(&**network),
            _ => None,
        })
    }

    fn wires(&self) -> impl Iterator<Item = &Wire> {
        self.document.objects.iter().filter_map(|item| match &item.object {
            Object::Wire(wire) => Some(&**wire),
            _ => None,
        })
    }

    /// Returns the wires that are network devices of the kernel.
    fn nics(&self) -> impl Iterator<Item = (&Wire, &str)> {
        self.wires().filter_map(|wire| Some((wire, wire.device()?)))
    }

    fn has_xdp(&self) -> bool {
        self.wires().any(|wire| matches!(wire.way, Way::AfXdp(_)))
    }

    fn has_taps(&self) -> bool {
        self.guests(GuestKind::Tap).chain(self.guests(GuestKind::Host)).next().is_some()
            || self.wires().any(|wire| matches!(wire.way, Way::Tap(_)))
    }

    fn index(&self) -> Index {
        Index::new(&self.document.host, self.document.objects.iter().map(|item| &item.object))
    }
}

pub fn examine(subject: &Subject<'_>) -> Vec<Finding> {
    let checks: [fn(&Subject<'_>) -> Vec<Finding>; 9] = [
        privileges::check,
        kernel::check,
        cpus::check,
        memory::check,
        windows::check,
        guests::check,
        wires::check,
        libvirt::check,
        ways_out::check,
    ];
    checks.iter().flat_map(|check| check(subject)).collect()
}

#[cfg(test)]
mod tests;
