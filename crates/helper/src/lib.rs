//! The helper: a small process that keeps the daemon's privileges, and does a few things with them when the
//! daemon asks.
//!
//! The daemon touches guests' memory and reads input from guests, programs and peers, so one of them may take
//! it over. An attacker who has the daemon gets only what can be asked here: a tap that does not exist yet,
//! or that the last daemon had; sockets on a network device; a unix socket where no stranger can put one, or
//! a connection to a VMM's, both in directories that the helper was told at its start; files of memory for
//! virtual machines; sockets to BGP peers, DHCP servers and metadata services that the daemon's file names, and to
//! resolvers that it or the host names; and that file. The helper never sees guests' memory, and only
//! the daemon speaks to it.
//!
//! Owns: the requests ([`Request`]), their checks, the process, and the daemon's end ([`Helper`]). `wire` and
//! `sockets` do the work: a daemon without a sandbox calls the same functions itself.
//!
//! Must not know: the configuration, guests, packets.
#![deny(unsafe_code)]

mod bar;
mod check;
mod client;
mod confine;
mod directories;
mod files;
mod machines;
mod outside;
mod request;
mod serve;
mod taps;
mod under_way;
mod users;

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::path::Path;

pub use bar::open_bar;
pub use client::{Helper, HelperError};
pub use directories::{Directories, WINDOWS};
pub use machines::{PORT, listen_to_machines};
pub use outside::{Named, Servers, dhcp_server, peer, resolver, stream};
pub use request::{Answer, Refusal, Reply, Request};
pub use sandbox::lookup;
pub use serve::{OpenIncluded, Server, serve};

/// Opens a configuration file for reading. Does not wait for a writer of a named pipe.
///
/// # Errors
/// The kernel's.
pub fn config_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// First argument of the helper process.
pub const ARGUMENT: &str = "--helper";
