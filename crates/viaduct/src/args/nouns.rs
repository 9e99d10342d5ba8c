//! Kinds of objects, and the actions on them.

use super::generated::{GuestArgs, RuleArgs};
use crate::complete;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use std::path::PathBuf;

/// The actions on one kind of object.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Noun<A: Args> {
    #[command(subcommand)]
    pub action: Option<Action<A>>,
}

#[derive(Subcommand)]
pub enum Action<A: Args> {
    /// List all (the default)
    #[command(visible_alias = "ls")]
    List,
    /// Show one in full
    #[command(visible_alias = "get")]
    Show {
        #[arg(add = ArgValueCandidates::new(complete::keys))]
        key: String,
    },
    /// Add one
    #[command(alias = "create")]
    Add(Box<A>),
    /// Change fields of one, in place: a guest keeps its port
    #[command(aliases = ["change", "update"])]
    Set(Fields),
    /// Remove objects that the API, or who --as names, added: all of those named, or none
    #[command(visible_alias = "delete", aliases = ["rm", "remove"])]
    Del(Keys),
}

/// The fields to change.
#[derive(Args)]
#[command(after_help = crate::help::SET)]
pub struct Fields {
    #[arg(add = ArgValueCandidates::new(complete::keys))]
    pub key: String,
    /// A key of host.toml, and its new value
    #[arg(value_name = "FIELD=VALUE", required_unless_present = "unset")]
    pub fields: Vec<String>,
    /// Give this field its default; may be repeated
    #[arg(long, value_name = "FIELD")]
    pub unset: Vec<String>,
    /// Also change an object of another owner, for example one of the file; it is then the API's, or that of --as
    #[arg(long)]
    pub take_over: bool,
    /// Undo the change after so many seconds, unless `viaduct confirm` comes before
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    pub confirm: u32,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GuestNoun {
    #[command(subcommand)]
    pub action: Option<GuestAction>,
}

#[derive(Subcommand)]
pub enum GuestAction {
    #[command(flatten)]
    Object(Action<GuestArgs>),
    /// Write what is remembered of a guest's traffic (connections, learned MACs) to standard output, for another host
    Export {
        #[arg(add = ArgValueCandidates::new(complete::guests))]
        name: String,
        /// Wait until its VMM has stopped it or is gone, as at the end of a migration. The first line, `viaduct guest
        /// state`, is written at once, if the guest can be exported
        #[arg(long)]
        when_stopped: bool,
    },
    /// Take over what another host exported for a guest that moves here: all of it, or nothing if a part is wrong
    Import {
        /// The guest's name on this host
        #[arg(add = ArgValueCandidates::new(complete::guests))]
        name: String,
        /// A file that `guest export` wrote; - is standard input
        #[arg(default_value = "-")]
        file: PathBuf,
    },
}

/// The actions on what is not configured.
#[derive(Subcommand)]
pub enum Look {
    /// List all (the default)
    #[command(visible_alias = "ls")]
    List,
    /// Show one in full
    #[command(visible_alias = "get")]
    Show {
        #[arg(add = ArgValueCandidates::new(complete::keys))]
        key: String,
    },
}

/// The objects to act on.
#[derive(Args)]
pub struct Keys {
    #[arg(value_name = "KEY", required_unless_present = "file", add = ArgValueCandidates::new(complete::keys))]
    pub keys: Vec<String>,
    /// Read the keys from the first word of each line of FILE; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "keys")]
    pub file: Option<PathBuf>,
    /// Also remove objects of other owners, as those of the host's file
    #[arg(long)]
    pub take_over: bool,
}

/// The actions on one kind of object that belongs to a network.
#[derive(Args)]
pub struct NetworkNoun<A: Args> {
    /// The network; may be left out if there is only one
    #[arg(long, global = true, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
    #[command(subcommand)]
    pub action: Option<Action<A>>,
}

#[derive(Args)]
pub struct RuleNoun {
    /// The network; may be left out if there is only one
    #[arg(long, global = true, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
    #[command(subcommand)]
    pub action: Option<Action<RuleArgs>>,
}
