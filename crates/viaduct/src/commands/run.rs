//! run: starts a program whose connections within this host go by memory in common.

use crate::args::RunArgs;
use crate::client::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the library.
const LIBRARY: &str = "libviaduct-sockets.so.1";
/// The variable that names the socket; `off` turns all off.
const SOCKET: &str = "VIADUCT_SOCKETS";
/// The variable with ports.
const PORTS: &str = "VIADUCT_SOCKETS_PORTS";

pub fn run(args: &RunArgs, run_dir: &Path) -> Result<(), Failure> {
    let [name, arguments @ ..] = &args.program[..] else { return Ok(()) };
    let mut program = Command::new(name);
    program.args(arguments);
    if args.guest.is_some() || std::env::var_os(SOCKET).is_none_or(|value| value != "off") {
        program.env("LD_PRELOAD", preload()?).env(SOCKET, socket(args, run_dir)?);
        if !args.only_ports.is_empty() {
            let ports: Vec<String> = args.only_ports.iter().map(ToString::to_string).collect();
            program.env(PORTS, ports.join(","));
        }
    }
    // The program takes the place of this one.
    let error = program.exec();
    Err(Failure::Refused(format!("{}: {error}", Path::new(name).display())))
}

/// Returns what the loader is to load first: the library, then what was named before.
fn preload() -> Result<OsString, Failure> {
    let mut all = library()?.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    Ok(all)
}

/// Finds the library beside this program, as `make install` and packages put it there, or in a build's directory.
fn library() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places = ["../lib/viaduct", "verbs", "../lib", "."].map(|place| dir.join(place).join(LIBRARY));
    let found = places.iter().find(|place| place.exists()).and_then(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Failure::Refused(format!("{LIBRARY} is missing; it was looked for at {}", looked.join(", ")))
    })
}

/// Returns the guest's socket.
fn socket(args: &RunArgs, run_dir: &Path) -> Result<PathBuf, Failure> {
    let dir = run_dir.join("sockets");
    if let Some(guest) = &args.guest {
        return Ok(dir.join(guest));
    }
    if let Some(named) = std::env::var_os(SOCKET) {
        return Ok(named.into());
    }
    let all = std::fs::read_dir(&dir)
        .map(|all| all.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<_>>());
    match all.as_deref() {
        Ok([only]) => Ok(only.clone()),
        Ok([]) | Err(_) => Err(Failure::Refused(format!(
            "there is no socket in {}; give the guest `sockets = true`, and the container that directory",
            dir.display()
        ))),
        Ok(_) => Err(Failure::Usage(format!(
            "there are several sockets in {}; say which guest's container this is (--guest)",
            dir.display()
        ))),
    }
}
