//! The gRPC API of a Viaduct daemon: messages, client and server of `proto/viaduct.proto`.
//!
//! Owns: the protocol, its generated code (committed, so that building needs no protoc), and where the socket is.
//! Messages serialise with serde under their protobuf names, which is what `--json` prints; objects serialise as
//! tables of host.toml.
//!
//! Must not know: the daemon or the command line.
#![deny(unsafe_code)]

/// Generated from `proto/viaduct.proto` by `cargo run -p api --example generate`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
#[rustfmt::skip]
#[path = "generated/viaduct.v1.rs"]
pub mod v1;

pub mod hex;
pub mod state_file;

use std::path::{Path, PathBuf};

/// The control socket of the daemon that runs in `run_dir`.
#[must_use]
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("viaduct.sock")
}

/// The socket for those who may read what the daemon in `run_dir` has, and change nothing.
#[must_use]
pub fn readers_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("viaduct-read.sock")
}

/// Where the daemon runs unless told otherwise.
pub const RUN_DIR: &str = "/run/viaduct";
