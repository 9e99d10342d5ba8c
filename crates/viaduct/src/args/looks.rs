//! Commands for things that are not configured: flows of Open vSwitch, verbs, captures, connections.

use crate::complete;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use std::path::PathBuf;

#[derive(Args)]
pub struct OvsArgs {
    /// Only this guest or wire
    #[arg(long, global = true, value_name = "PORT", add = ArgValueCandidates::new(complete::ovs_ports))]
    pub port: Option<String>,
    #[command(subcommand)]
    pub action: Option<OvsAction>,
}

#[derive(Clone, Copy, Subcommand)]
pub enum OvsAction {
    /// Guests and wires, and whether an Open vSwitch has them open (the default)
    #[command(visible_alias = "ls", alias = "list")]
    Ports,
    /// Flows, as Viaduct carries them out
    Flows,
    /// Flows that were left to Open vSwitch, by reason
    Refused,
    /// Drivers that are connected
    Sessions,
}

#[derive(Args)]
pub struct RunArgs {
    /// The guest in whose container the program runs [default: VIADUCT_SOCKETS, or the only socket in RUN_DIR/sockets]
    #[arg(long, value_name = "GUEST")]
    pub guest: Option<String>,
    /// Move only connections with one of these ports, at either end
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    pub only_ports: Vec<u16>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<std::ffi::OsString>,
}

#[derive(Args)]
pub struct SocketsArgs {
    /// Only this guest's connections
    #[arg(long, value_name = "GUEST", add = ArgValueCandidates::new(complete::guests))]
    pub guest: Option<String>,
    /// Show the guests with sockets, not the connections
    #[arg(long)]
    pub guests: bool,
}

#[derive(Args)]
pub struct BgpArgs {
    #[command(subcommand)]
    pub action: Option<BgpAction>,
}

#[derive(Subcommand)]
pub enum BgpAction {
    /// List the peers, with the state of their sessions (the default)
    Peers,
    /// List the routes that peers sent for the networks of this host
    Routes {
        /// Only this network
        #[arg(long, add = ArgValueCandidates::new(complete::networks))]
        network: Option<String>,
    },
    /// Show all paths to a prefix, and why each is used or not
    Explain {
        /// Only this network
        #[arg(long, add = ArgValueCandidates::new(complete::networks))]
        network: Option<String>,
        /// A prefix or an address
        prefix: String,
    },
    /// List the MAC addresses of bridged networks, of this host and of others, and where their floods go
    Evpn {
        /// Only this network
        #[arg(long, add = ArgValueCandidates::new(complete::networks))]
        network: Option<String>,
    },
    /// List what this host announces, and what it can't
    Announced {
        /// Only this network
        #[arg(long, add = ArgValueCandidates::new(complete::networks))]
        network: Option<String>,
    },
    /// Have peers avoid this host wherever there is another path, before maintenance
    Drain {
        /// Announce all as before
        #[arg(long)]
        undo: bool,
    },
}

#[derive(Args)]
pub struct RdmaArgs {
    /// Show only this device
    #[arg(long, value_name = "NAME", global = true, add = ArgValueCandidates::new(complete::rdma_devices))]
    pub device: Option<String>,
    #[command(subcommand)]
    pub action: Option<RdmaAction>,
}

#[derive(Subcommand)]
pub enum RdmaAction {
    /// List the devices (the default)
    List,
    /// Show one device with all its counters
    Show {
        #[arg(add = ArgValueCandidates::new(complete::rdma_devices))]
        name: String,
    },
    /// Queue pairs: state, peer and transport
    Qp,
    /// Memory regions
    Mr,
    /// Completion queues
    Cq,
    /// Identifiers of the connection manager
    Cm,
    /// Processes that may still have access to memory of others, by rdma_trust
    Holders,
    /// Windows of VMs: size, who has them attached, and which programs use how much
    Windows,
    /// Write a tree like the kernel's /sys/class/infiniband into DIR, for containers to mount; run again to update it
    #[command(arg(clap::Arg::new("device").long("device").value_name("NAME").hide(true)))]
    Tree(TreeArgs),
}

#[derive(Args)]
pub struct TreeArgs {
    /// Write class/infiniband, class/infiniband_verbs and class/infiniband_mad here; other files in these are removed
    pub dir: PathBuf,
    /// Devices, in the order of VIADUCT_RDMA [default: all]
    #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::rdma_devices))]
    pub devices: Vec<String>,
    /// Keep running, and write changes once a second
    #[arg(long)]
    pub follow: bool,
}

#[derive(Args)]
pub struct CaptureArgs {
    /// Capture only at this guest or wire; any: at all of them
    #[arg(short = 'i', long, visible_alias = "interface", value_name = "VIF", add = ArgValueCandidates::new(complete::vifs))]
    pub guest: Option<String>,
    /// Capture only matching packets: FILTER as one argument
    #[arg(long = "filter", value_name = "FILTER", default_value = "", conflicts_with = "words")]
    pub filter: String,
    /// Write pcapng to FILE; - is standard output
    #[arg(short, long = "write", value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Keep the first BYTES of each packet; 0 keeps all
    #[arg(short, long, value_name = "BYTES", default_value_t = 0)]
    pub snap_length: u32,
    /// Stop after N packets
    #[arg(short, long, value_name = "N")]
    pub count: Option<u64>,
    /// Do nothing: names are never looked up. For command lines written for tcpdump
    #[arg(short = 'n', action = clap::ArgAction::Count)]
    pub numeric: u8,
    /// Capture only packets that match this expression of tcpdump's words, see --help
    #[arg(value_name = "FILTER")]
    pub words: Vec<String>,
}

impl CaptureArgs {
    /// Makes the request to the daemon.
    pub fn request(&self) -> api::v1::CaptureRequest {
        let interface = self.guest.clone().filter(|name| name != "any");
        let filter = if self.words.is_empty() { self.filter.clone() } else { self.words.join(" ") };
        api::v1::CaptureRequest { interface, filter, snap_length: self.snap_length }
    }
}

#[derive(Args)]
pub struct FlowArgs {
    /// Only matching connections, for example "10.1.1.1 & tcp & port 80"
    #[arg(long = "match", value_name = "MATCH", default_value = "", global = true)]
    pub matching: String,
    #[command(subcommand)]
    pub action: Option<FlowAction>,
}

#[derive(Subcommand)]
pub enum FlowAction {
    /// List connections (the default)
    List,
    /// Remove connections from the table
    Flush,
    /// New connections and packets per second, measured over one second
    Rate,
}
