//! The gRPC API of a Viaduct daemon: messages, client and server of `proto/viaduct.proto`.
//!
//! Owns: the protocol, its generated code (committed, so that building needs no protoc), and the paths of the
//! sockets. Messages serialise with serde under their protobuf names, and `--json` prints them so; objects
//! serialise as tables of host.toml.
//!
//! Must not know: the daemon or the command line.
#![warn(missing_docs)]
#![deny(unsafe_code)]

/// Generated from `proto/viaduct.proto` by `cargo run -p api --example generate`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
#[rustfmt::skip]
#[path = "generated/viaduct.v1.rs"]
pub mod v1;

pub mod hex;
pub mod midstream;
pub mod state_file;

use std::path::{Path, PathBuf};

/// Returns the control socket of the daemon that runs in `run_dir`.
#[must_use]
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("viaduct.sock")
}

/// Returns the socket of the daemon in `run_dir` for clients that may read, and change nothing.
#[must_use]
pub fn readers_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("viaduct-read.sock")
}

/// The daemon's default run-dir.
pub const RUN_DIR: &str = "/run/viaduct";
