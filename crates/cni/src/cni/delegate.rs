//! Calls of the plug-in that allocates addresses (1.1.0, section 4).

use super::{Config, Error, MAX_INPUT, variable};
use crate::error::Context;
use serde::Deserialize;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A plug-in that allocates addresses.
pub(super) struct Delegate<'a> {
    name: &'a str,
    program: PathBuf,
    text: &'a [u8],
}

/// The output of a plug-in that fails.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure {
    code: u32,
    msg: String,
    details: String,
}

impl<'a> Delegate<'a> {
    /// Finds the plug-in of this name in `CNI_PATH`.
    pub(super) fn find(name: &'a str, config: &'a Config) -> Result<Self, Error> {
        if name.contains('/') || name == ".." || name == "." {
            return Err(Error::Config(format!("ipam: {name:?} can't be the name of a plug-in")));
        }
        let path = variable("CNI_PATH")?;
        let mut programs = std::env::split_paths(&path).map(|directory| directory.join(name));
        let program = programs.find(|program| program.is_file());
        let missing = || Error::Config(format!("ipam: there is no plug-in {name:?} in CNI_PATH ({path})"));
        Ok(Self { name, program: program.ok_or_else(missing)?, text: &config.text })
    }

    /// Has the plug-in carry out a command. `of` is the container and the interface, if the command is about
    /// one. Returns the plug-in's output.
    pub(super) fn call(&self, command: &str, of: Option<(&str, &str)>) -> Result<Vec<u8>, Error> {
        let mut child = Command::new(&self.program);
        child.env("CNI_COMMAND", command);
        if let Some((container, ifname)) = of {
            child.env("CNI_CONTAINERID", container).env("CNI_IFNAME", ifname);
        }
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.context(|| format!("starting {}", self.program.display()))?;
        let printed = self.talk(&mut child);
        // Does not wait for a plug-in that prints more than is read.
        let _ = printed.is_err().then(|| child.kill());
        let status = child.wait().context(|| format!("waiting for {}", self.name))?;
        let printed = printed?;
        if status.success() {
            return Ok(printed);
        }
        let failure: Failure = serde_json::from_slice(&printed).unwrap_or_default();
        let message = [failure.msg, failure.details].into_iter().filter(|text| !text.is_empty());
        let message = message.collect::<Vec<_>>().join(": ");
        Err(Error::Delegate {
            plugin: self.name.to_owned(),
            code: if failure.code == 0 { 100 } else { failure.code },
            message: if message.is_empty() { status.to_string() } else { message },
        })
    }

    fn talk(&self, child: &mut Child) -> Result<Vec<u8>, Error> {
        if let Some(mut input) = child.stdin.take() {
            let text = self.text.to_vec();
            // The plug-in may print before it reads, and end without reading.
            std::thread::spawn(move || input.write_all(&text));
        }
        let mut printed = Vec::new();
        if let Some(output) = child.stdout.take() {
            let read = output.take(MAX_INPUT + 1).read_to_end(&mut printed);
            read.context(|| format!("reading from {}", self.name))?;
        }
        if printed.len() as u64 > MAX_INPUT {
            let what = std::io::Error::other("it prints too much");
            return Err(Error::Io(format!("reading from {}", self.name), what));
        }
        Ok(printed)
    }
}
