//! Arguments of `add` for kinds of objects whose arguments are more than the fields of the object. Those of the other
//! kinds are made of the protocol file.

use super::by_hand::TO;
use crate::complete;
use clap::Args;
use clap_complete::ArgValueCandidates;
use std::path::PathBuf;

#[derive(Args)]
pub struct RouteArgs {
    #[arg(required_unless_present = "file")]
    pub prefix: Option<String>,
    #[arg(long, required_unless_present = "file", value_name = "TARGET", help = TO)]
    pub to: Vec<String>,
    /// Add the routes of FILE, all or none; - is standard input. A line is PREFIX [TARGET ...]; a line without targets
    /// uses those of --to
    #[arg(short, long, value_name = "FILE", conflicts_with = "prefix")]
    pub file: Option<PathBuf>,
}

#[derive(Args)]
pub struct ForwardArgs {
    /// tcp or udp
    pub protocol: String,
    /// An address of the host, or one in the network's `snat`
    pub outside: String,
    /// The port of that address
    pub port: u32,
    /// The guest to which it leads
    #[arg(long, add = ArgValueCandidates::new(complete::guests))]
    pub guest: String,
    /// The guest's port [default: the same]
    #[arg(long, value_name = "PORT")]
    pub to_port: Option<u32>,
}
