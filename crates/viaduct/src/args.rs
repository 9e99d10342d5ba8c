//! The command line's grammar.

mod by_hand;
#[allow(clippy::all, clippy::pedantic, reason = "the code is generated")]
#[rustfmt::skip]
#[path = "args/generated/objects.rs"]
mod generated;
mod looks;
mod nouns;
mod objects;

pub use by_hand::targets;
pub use generated::*;
pub use looks::*;
pub use nouns::*;
pub use objects::*;

use crate::{complete, help};
use clap::{Parser, Subcommand};
use clap_complete::{ArgValueCandidates, Shell};
use std::path::PathBuf;

/// The place of the options of all commands in help texts: behind a command's own.
const GENERAL: usize = 900;

/// Query and control the Viaduct daemon on this host.
///
/// Exit status: 0 done, 1 refused (the message says why, and what to do instead), 2 wrong usage, 3 no daemon. With
/// --json, errors are JSON too, on standard error: {"error": TEXT, "status": N}.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
pub struct Options {
    /// Print JSON, for scripts: keys are stable, new ones may be added
    #[arg(long, global = true, display_order = GENERAL)]
    pub json: bool,
    /// The same as --json
    #[arg(
        short,
        long,
        value_enum,
        global = true,
        hide_possible_values = true,
        value_name = "json",
        display_order = GENERAL + 1
    )]
    pub output: Option<Output>,
    /// The daemon's run-dir [env: VIADUCT_RUN_DIR]
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        default_value_os_t = default_run_dir(),
        display_order = GENERAL + 2
    )]
    pub run_dir: PathBuf,
    /// Change objects as this owner, which `[host] owners` names, instead of as the API [env: VIADUCT_OWNER]
    #[arg(
        long = "as",
        value_name = "OWNER",
        global = true,
        default_value_t = default_owner(),
        hide_default_value = true,
        display_order = GENERAL + 3
    )]
    pub acts_as: String,
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the run-dir unless the command line names one. Clap's own `env` would have usage errors call the option
/// required wherever the variable is set.
pub fn default_run_dir() -> PathBuf {
    let named = std::env::var_os("VIADUCT_RUN_DIR").filter(|name| !name.is_empty());
    named.map_or_else(|| api::RUN_DIR.into(), PathBuf::from)
}

fn default_owner() -> String {
    std::env::var("VIADUCT_OWNER").unwrap_or_default()
}

impl Options {
    pub const fn is_json(&self) -> bool {
        self.json || self.output.is_some()
    }
}

/// Forms of output.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Output {
    /// JSON.
    Json,
}

#[derive(Subcommand)]
pub enum Command {
    /// Configure the host as FILE says: all of it, or nothing. With --as: that owner's objects alone
    Apply {
        /// A host.toml; - is standard input
        file: PathBuf,
        /// Only show what would change, as `diff` does
        #[arg(long)]
        dry_run: bool,
        /// Undo the change after so many seconds, unless `viaduct confirm` comes before
        #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
        confirm: u32,
    },
    /// Edit FILE, and configure the host as it says then; the file changes only if the daemon takes it
    #[command(after_help = "The editor is $VISUAL, $EDITOR or vi. Example: viaduct edit --confirm 60")]
    Edit {
        /// The daemon's file
        #[arg(default_value = "/etc/viaduct/host.toml")]
        file: PathBuf,
        /// Undo the change after so many seconds, unless `viaduct confirm` comes before; FILE keeps it
        #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
        confirm: u32,
    },
    /// Keep what `--confirm` would undo
    Confirm,
    /// Show the last 100 changes: when, by whom, and what
    Log {
        /// Also show objects and fields
        #[arg(short, long)]
        verbose: bool,
        /// Go on and show changes as they are made
        #[arg(short, long)]
        follow: bool,
    },
    /// Return to an earlier revision of the configuration
    #[command(after_help = "`viaduct log` lists the revisions. Example: viaduct rollback 41")]
    Rollback {
        /// The revision to return to [default: the one before the last change]
        revision: Option<u64>,
    },
    /// Show what `apply FILE` would change
    Diff { file: PathBuf },
    /// Report errors in FILE; needs no daemon
    Check { file: PathBuf },
    /// Check whether this machine has what the daemon needs; needs no daemon
    #[command(after_help = help::DOCTOR)]
    Doctor {
        /// The daemon's file [default: /etc/viaduct/host.toml]
        file: Option<PathBuf>,
    },
    /// Print the configuration in force as a file that `apply` takes
    Export,
    /// Show the state of the host on one screen
    Status,
    /// Show the state of the host, live: rates of interfaces, load of workers, drops (? lists the keys)
    Top,
    /// Interfaces: guests and wires, with state and counters
    #[command(after_help = help::GUEST_EXAMPLES)]
    #[command(aliases = ["vifs", "interface", "interfaces"])]
    #[command(mut_subcommands(help::of("an interface")))]
    Vif(Noun<GuestArgs>),
    /// Guests: virtual machines' and containers' interfaces
    #[command(after_help = help::GUEST_EXAMPLES)]
    #[command(aliases = ["guests"])]
    #[command(mut_subcommands(help::of("a guest")))]
    Guest(GuestNoun),
    /// Print what cloud-init needs for an image of virtual machines that use verbs; needs no daemon
    #[command(after_help = "Example: viaduct guest-image > user-data")]
    GuestImage,
    /// Wires: ways out of the host
    #[command(after_help = "Examples:
  viaduct wire add up0 --driver af-packet --device eth1 --address 192.0.2.1/24
  viaduct wire add vx77 --driver vxlan --remote 192.0.2.2 --vni 77 --mode ovs")]
    #[command(aliases = ["wires"])]
    #[command(mut_subcommands(help::of("a wire")))]
    Wire(Noun<WireArgs>),
    /// Tenant networks
    #[command(after_help = "Example: viaduct network add blue --vrf 1 --gateway 10.1.1.254/24 --vni 5001")]
    #[command(aliases = ["networks"])]
    #[command(mut_subcommands(help::of("a network")))]
    Network(Noun<NetworkArgs>),
    /// Nexthops in use, by number, with what refers to them
    #[command(
        after_help = "Example: viaduct nh add spine --to mpls-over-udp:192.0.2.2:100 --to mpls-over-udp:192.0.2.3:100"
    )]
    #[command(mut_subcommands(help::of("a nexthop")))]
    Nh(Noun<NexthopArgs>),
    /// Nexthops with a name, which routes can share
    #[command(after_help = help::NEXTHOP_EXAMPLES, aliases = ["nexthops"])]
    #[command(mut_subcommands(help::of("a nexthop")))]
    Nexthop(Noun<NexthopArgs>),
    /// Routes
    #[command(after_help = help::RT_EXAMPLES)]
    #[command(visible_alias = "route", aliases = ["routes"])]
    #[command(mut_subcommands(help::of("a route")))]
    Rt(NetworkNoun<RouteArgs>),
    /// MAC tables, with static and learned entries
    #[command(
        after_help = "Example: viaduct bridge add --network blue 02:00:00:00:00:03 --to vxlan:192.0.2.2:5001"
    )]
    #[command(aliases = ["mac", "macs"])]
    #[command(mut_subcommands(help::of("a MAC")))]
    Bridge(NetworkNoun<MacArgs>),
    /// MPLS labels of arriving packets
    #[command(after_help = "Example: viaduct mpls add 200 --to network:blue")]
    #[command(aliases = ["label", "labels"])]
    #[command(mut_subcommands(help::of("a label")))]
    Mpls(Noun<MplsArgs>),
    /// VXLAN network identifiers of arriving packets
    #[command(after_help = "Example: viaduct vxlan add 5003 --network blue")]
    #[command(aliases = ["vni", "vnis"])]
    #[command(mut_subcommands(help::of("a VNI")))]
    Vxlan(Noun<VxlanArgs>),
    /// Leases: addresses of pools that guests without `addresses` have; KEY is the guest
    #[command(after_help = help::LEASE_EXAMPLES, aliases = ["leases"])]
    #[command(mut_subcommands(help::of("a lease")))]
    Lease(Noun<LeaseArgs>),
    /// Security rules; KEY is the id in the list
    #[command(after_help = help::RULE_EXAMPLES)]
    #[command(aliases = ["rules"])]
    #[command(mut_subcommands(help::of("a rule")))]
    Rule(RuleNoun),
    /// Floating addresses, and the ports that guests have of shared ones; KEY is the inside address
    #[command(after_help = help::NAT_EXAMPLES, aliases = ["nats", "floating"])]
    #[command(mut_subcommands(help::of("a floating address")))]
    Nat(NetworkNoun<NatArgs>),
    /// Ports of the host or of shared addresses that lead to guests; KEY is as in "tcp 203.0.113.5 8080"
    #[command(after_help = help::FORWARD_EXAMPLES, aliases = ["forwards"])]
    #[command(mut_subcommands(help::of("a forwarded port")))]
    Forward(NetworkNoun<ForwardArgs>),
    /// Destinations of floods, besides the guests of a network; KEY is the network
    #[command(after_help = help::FLOOD_EXAMPLES, aliases = ["floods"])]
    #[command(mut_subcommands(help::of("a network's flood list")))]
    Flood(Noun<FloodArgs>),
    /// Actions of networks for traffic that no rule matches; KEY is the network
    #[command(after_help = "Example: viaduct default add blue --action drop", aliases = ["defaults"])]
    #[command(mut_subcommands(help::of("a network's default")))]
    Default(Noun<DefaultArgs>),
    /// Neighbours by ARP and neighbour discovery, on wires and in networks; KEY is the address
    #[command(visible_alias = "neighbour", aliases = ["neighbours", "neighbor", "neighbors", "arp"])]
    #[command(mut_subcommands(help::of("a neighbour")))]
    Neigh {
        /// The network
        #[arg(long, global = true, add = ArgValueCandidates::new(complete::networks))]
        network: Option<String>,
        #[command(subcommand)]
        action: Option<Look>,
    },
    /// Verbs devices of guests, and the objects of their clients
    #[command(after_help = help::RDMA_EXAMPLES)]
    Rdma(RdmaArgs),
    /// Run a program whose TCP connections within this host go by memory in common; needs no daemon
    ///
    /// The program, and those that it starts, load libviaduct-sockets.so.1 (LD_PRELOAD). What it can't help stays with
    /// TCP. VIADUCT_SOCKETS=off turns it off. See docs/sockets.md.
    #[command(after_help = help::RUN_EXAMPLES)]
    Run(RunArgs),
    /// Connections that programs have moved to memory in common (`viaduct run`)
    #[command(after_help = "Example: viaduct sockets --guest c1")]
    Sockets(SocketsArgs),
    /// BGP: peers, the routes that they sent, and which of them are used
    #[command(after_help = help::BGP_EXAMPLES)]
    Bgp(BgpArgs),
    /// Guests and wires that an Open vSwitch programs, with what it made there
    #[command(after_help = help::OVS_EXAMPLES)]
    Ovs(OvsArgs),
    /// Connections
    #[command(after_long_help = help::FLOW_FILTERS)]
    #[command(aliases = ["flows"])]
    Flow(FlowArgs),
    /// Packets, drops and cycles by worker
    Stats {
        /// Only this worker
        #[arg(long)]
        worker: Option<u32>,
    },
    /// Drops by reason
    Dropstats {
        /// Also show the last N dropped packets
        #[arg(long, value_name = "N", default_value_t = 0)]
        log: u32,
        /// Count only packets of this guest or wire, among the last packets that were dropped
        #[arg(short = 'i', long, value_name = "VIF", add = ArgValueCandidates::new(complete::vifs))]
        interface: Option<String>,
        /// Only this reason; may be repeated
        #[arg(long = "reason", value_name = "REASON", add = ArgValueCandidates::new(complete::reasons))]
        reasons: Vec<String>,
        /// List all reasons, with what they mean and what to do about them
        #[arg(long)]
        explain: bool,
    },
    /// Show what would happen to a packet: every table it touches, and the decision
    #[command(
        after_help = help::EXPLAIN,
        after_long_help = [help::EXPLAIN, help::PACKETS, help::EXPLAIN_JSON].join("\n\n")
    )]
    Explain {
        /// The interface by which the packet arrives
        #[arg(long = "in", value_name = "VIF", add = ArgValueCandidates::new(complete::vifs))]
        interface: String,
        /// Exit with 4 if a packet would be dropped, with 5 if it would wait for a neighbour
        #[arg(long)]
        exit_code: bool,
        /// Text (see --help), hexadecimal digits, or a pcap or pcapng file (without what left by its interface)
        #[arg(required = true)]
        packet: Vec<String>,
    },
    /// Capture packets that arrive, leave and are dropped
    #[command(after_help = help::CAPTURE, after_long_help = [help::CAPTURE, help::FILTERS].join("\n\n"))]
    Capture(CaptureArgs),
    /// Print a shell's completion script
    Completion { shell: Shell },
    /// Write manual pages into DIR
    #[command(hide = true)]
    Man { dir: PathBuf },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound() {
        super::Options::command().debug_assert();
    }

    #[test]
    fn options_of_all_commands_come_last() {
        for path in [&["viaduct", "guest", "add", "-h"][..], &["viaduct", "capture", "-h"]] {
            let help = super::Options::command().try_get_matches_from(path).unwrap_err().to_string();
            let options = help.lines().filter(|line| line.trim_start().starts_with('-'));
            let names: Vec<_> =
                options.filter_map(|line| line.split("--").nth(1)?.split(' ').next()).collect();
            assert_eq!(names[names.len() - 5..], ["json", "output", "run-dir", "as", "help"], "{names:?}");
        }
    }

    #[test]
    fn actions_say_on_what_they_act() {
        let mut root = super::Options::command();
        root.build();
        let text = |path: [&str; 2]| {
            let noun = root.find_subcommand(path[0])?;
            Some(noun.find_subcommand(path[1])?.get_about()?.to_string())
        };
        for (path, expected) in [
            (["guest", "add"], "Add a guest"),
            (["vif", "show"], "Show an interface in full"),
            (["rule", "add"], "Add a rule"),
            (["neigh", "show"], "Show a neighbour in full"),
        ] {
            assert_eq!(text(path).as_deref(), Some(expected), "{path:?}");
        }
        let tree = root.find_subcommand("rdma").and_then(|rdma| rdma.find_subcommand("tree"));
        let device = tree.and_then(|tree| tree.get_arguments().find(|arg| arg.get_id() == "device"));
        assert!(device.is_some_and(clap::Arg::is_hide_set));
    }
}
