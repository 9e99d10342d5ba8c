//! The command line's grammar.

use crate::{complete, help};
use clap::{Args, Parser, Subcommand};
use clap_complete::{ArgValueCandidates, Shell};
use std::path::PathBuf;

/// Query and control the Viaduct daemon on this host.
///
/// Exit status: 0 done, 1 refused (the message says why, and what to do instead), 2 wrong usage, 3 no daemon. With
/// --json, errors are JSON too, on standard error: {"error": TEXT, "status": N}.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
pub struct Options {
    /// The daemon's run-dir
    #[arg(long, value_name = "DIR", global = true, default_value = api::RUN_DIR, env = "VIADUCT_RUN_DIR")]
    pub run_dir: PathBuf,
    /// Print JSON, for scripts: keys are stable, new ones may be added
    #[arg(long, global = true)]
    pub json: bool,
    /// The same as --json
    #[arg(short, long, value_enum, global = true, hide_possible_values = true, value_name = "json")]
    pub output: Option<Output>,
    #[command(subcommand)]
    pub command: Command,
}

impl Options {
    /// Whether output is JSON.
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
    /// Configure the host as FILE says: all of it, or nothing
    Apply {
        /// A host.toml; - is standard input
        file: PathBuf,
        /// Only show what would change, as `diff` does
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what `apply FILE` would change
    Diff { file: PathBuf },
    /// Report errors in FILE; needs no daemon
    Check { file: PathBuf },
    /// Look whether this machine has what the daemon needs; needs no daemon
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
    /// Wires: ways out of the host
    #[command(
        after_help = "Example: viaduct wire add up0 --driver af-packet --device eth1 --address 192.0.2.1/24"
    )]
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
    Bridge(NetworkNoun<BridgeArgs>),
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
    /// Security rules; KEY is the id in the list
    #[command(after_help = help::RULE_EXAMPLES)]
    #[command(aliases = ["rules"])]
    #[command(mut_subcommands(help::of("a rule")))]
    Rule(RuleNoun),
    /// Floating addresses; KEY is the inside address
    #[command(after_help = help::NAT_EXAMPLES, aliases = ["nats", "floating"])]
    #[command(mut_subcommands(help::of("a floating address")))]
    Nat(NetworkNoun<NatArgs>),
    /// Where networks flood to, besides their guests; KEY is the network
    #[command(after_help = help::FLOOD_EXAMPLES, aliases = ["floods"])]
    #[command(mut_subcommands(help::of("a network's flood list")))]
    Flood(Noun<FloodArgs>),
    /// What networks do with traffic that no rule matches; KEY is the network
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
        /// Only packets of this guest or wire, counted among the last packets that were dropped
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
        /// Text (see --help), hexadecimal digits, or a pcap or pcapng file
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
    /// Remove objects that the API added: all of those named, or none
    #[command(visible_alias = "delete", aliases = ["rm", "remove"])]
    Del(Keys),
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
        /// As soon as its VMM has stopped it or is gone, as at the end of a migration. The first line, `viaduct guest
        /// state`, comes at once, unless something is wrong
        #[arg(long)]
        when_stopped: bool,
    },
    /// Remember what another host exported, for the guest that moves here: all of it is right, or none is taken
    Import {
        /// The guest's name on this host
        #[arg(add = ArgValueCandidates::new(complete::guests))]
        name: String,
        /// What `guest export` wrote; - is standard input
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
}

/// The actions on one kind of object that belongs to a network.
#[derive(Args)]
pub struct NetworkNoun<A: Args> {
    /// The network; may be left out where there is only one
    #[arg(long, global = true, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
    #[command(subcommand)]
    pub action: Option<Action<A>>,
}

#[derive(Args)]
pub struct RuleNoun {
    /// The network; may be left out where there is only one
    #[arg(long, global = true, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
    #[command(subcommand)]
    pub action: Option<Action<RuleArgs>>,
}

#[derive(Args)]
pub struct GuestArgs {
    /// Its name: a new one among guests and wires
    pub name: String,
    /// Its network; may be left out where there is only one
    #[arg(long, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
    /// Who decides about its packets: vrouter (Viaduct, the default) or ovs (an Open vSwitch; then it is in no network)
    #[arg(long)]
    pub mode: Option<String>,
    /// vhost, tap, or rdma (a verbs device without a port)
    #[arg(long, default_value = "vhost")]
    pub kind: String,
    /// vhost: the socket, relative to the run-dir [default: NAME.sock]
    #[arg(long)]
    pub socket: Option<String>,
    /// tap: the device to create
    #[arg(long)]
    pub device: Option<String>,
    /// vhost: server (the VMM connects) or client
    #[arg(long)]
    pub role: Option<String>,
    /// Number of queue pairs
    #[arg(long)]
    pub queues: Option<u32>,
    /// The only MAC that it may use, but for those of --macs [default: any, and it is learned]
    #[arg(long)]
    pub mac: Option<String>,
    /// Another MAC that it may use; may be repeated
    #[arg(long, value_name = "MAC")]
    pub macs: Vec<String>,
    /// One of its addresses; may be repeated
    #[arg(long = "address", value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// MPLS label of packets for the guest
    #[arg(long)]
    pub label: Option<u32>,
    /// Rate limit of what it sends, Mbit/s
    #[arg(long, value_name = "MBPS")]
    pub rate: Option<u32>,
    /// Burst of the rate limit, kilobytes
    #[arg(long, value_name = "KB", requires = "rate")]
    pub burst: Option<u32>,
    /// What gets copies of its packets: a guest, or vxlan:ADDRESS:VNI
    #[arg(long, value_name = "MIRROR")]
    pub mirror: Option<String>,
    /// Do not run rules or track flows
    #[arg(long)]
    pub no_policy: bool,
    /// Another source prefix that it may use; may be repeated
    #[arg(long, value_name = "PREFIX")]
    pub allowed: Vec<String>,
    /// Let it send router advertisements and redirects
    #[arg(long)]
    pub router: bool,
    /// Let it send DHCP server messages
    #[arg(long)]
    pub dhcp_server: bool,
    /// While its VMM is not connected, the guest is on another host, or on its way
    #[arg(long)]
    pub standby: bool,
    /// The wire with whose link its own goes
    #[arg(long, value_name = "WIRE")]
    pub link_follows: Option<String>,
    /// vhost: owner of the socket, user or user:group
    #[arg(long)]
    pub owner: Option<String>,
    /// vhost: mode of the socket, octal
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<String>,
    /// Largest IP packet to it [default: the network's MTU]
    #[arg(long)]
    pub mtu: Option<u32>,
    /// Add a verbs device on its addresses, with this socket in RUN_DIR/rdma [default for kind rdma: the guest's name]
    #[arg(long, value_name = "NAME")]
    pub rdma: Option<String>,
    /// The user, or user:group, that may open the verbs device [default: the daemon's user]
    #[arg(long, value_name = "OWNER")]
    pub rdma_owner: Option<String>,
    /// Devices with the same trust, network and user may share memory directly
    #[arg(long, value_name = "NAME")]
    pub rdma_trust: Option<String>,
    /// Most queue pairs of the verbs device
    #[arg(long, value_name = "N")]
    pub rdma_qps: Option<u32>,
    /// Most memory regions of the verbs device
    #[arg(long, value_name = "N")]
    pub rdma_mrs: Option<u32>,
    /// Most memory registered with the verbs device, megabytes
    #[arg(long, value_name = "MB")]
    pub rdma_registered: Option<u32>,
    /// Most memory for the verbs device's queues, megabytes
    #[arg(long, value_name = "MB")]
    pub rdma_queues: Option<u32>,
    /// Most connections of programs to the verbs device
    #[arg(long, value_name = "N")]
    pub rdma_connections: Option<u32>,
    /// vhost: size of the window by which programs in the VM use the verbs device, megabytes
    #[arg(long, value_name = "MB")]
    pub window: Option<u32>,
}

#[derive(Args)]
pub struct WireArgs {
    /// Its name: a new one among guests and wires
    pub name: String,
    /// af-packet, af-xdp, tap or vhost
    #[arg(long)]
    pub driver: String,
    /// Network device, or socket (vhost)
    #[arg(long)]
    pub device: String,
    /// An underlay address with prefix length; may be repeated
    #[arg(long = "address", value_name = "ADDRESS/LEN")]
    pub addresses: Vec<String>,
    /// Next hop for remotes outside the wire's subnets; one per family
    #[arg(long)]
    pub gateway: Vec<String>,
    /// Largest IP packet; the device's MTU is at least that [default: 1500]
    #[arg(long)]
    pub mtu: Option<u32>,
    /// Who decides about its packets: vrouter (Viaduct, the default) or ovs (an Open vSwitch)
    #[arg(long)]
    pub mode: Option<String>,
}

#[derive(Args)]
pub struct NetworkArgs {
    /// Its name
    pub name: String,
    /// Its number on this host, 1 to 65535
    #[arg(long)]
    pub vrf: u32,
    /// A gateway address with prefix length; may be repeated
    #[arg(long = "gateway", value_name = "ADDRESS/LEN")]
    pub gateways: Vec<String>,
    /// VXLAN network identifier of its frames
    #[arg(long)]
    pub vni: Option<u32>,
    /// Don't learn MACs
    #[arg(long)]
    pub no_learning: bool,
    /// Attach it to this wire
    #[arg(long)]
    pub wire: Option<String>,
    /// Use this VLAN on the wire
    #[arg(long, requires = "wire")]
    pub vlan: Option<u32>,
    /// The host that bridges between the wire and VXLAN tunnels
    #[arg(long, requires = "wire", value_name = "HOST")]
    pub l2_gateway: Option<String>,
    /// MTU of its guests [default: what fits its wire, or the tunnels by the host's wires]
    #[arg(long)]
    pub mtu: Option<u32>,
    /// Don't accept TCP connections whose SYN was not seen
    #[arg(long)]
    pub no_tcp_midstream: bool,
    /// Accept TCP connections of which one direction takes another path
    #[arg(long)]
    pub tcp_asymmetric: bool,
    /// Lower the MSS in TCP SYNs to what fits the MTU of their path
    #[arg(long)]
    pub mss_clamp: bool,
}

#[derive(Args)]
pub struct NexthopArgs {
    pub name: String,
    #[arg(long, required = true, value_name = "TARGET", help = TO)]
    pub to: Vec<String>,
}

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
pub struct BridgeArgs {
    pub mac: String,
    /// guest:NAME or vxlan:REMOTE:VNI
    #[arg(long, value_name = "TARGET")]
    pub to: String,
}

#[derive(Args)]
pub struct MplsArgs {
    pub label: u32,
    /// guest:NAME or network:NAME
    #[arg(long, value_name = "TARGET")]
    pub to: String,
}

const TO: &str = "drop, guest:NAME, network:NAME, nexthop:NAME, via:ADDRESS, mpls-over-udp:REMOTE:LABEL, \
    mpls-over-gre:REMOTE:LABEL or vxlan:REMOTE:VNI[@MAC]; if it is repeated, flows are spread";

#[derive(Args)]
pub struct VxlanArgs {
    pub vni: u32,
    /// The network; may be left out where there is only one
    #[arg(long, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
}

#[derive(Args)]
pub struct NatArgs {
    /// The guest's own address
    pub inside: String,
    /// The address by which others know it
    #[arg(long, value_name = "ADDRESS")]
    pub outside: String,
    /// The network in which they do
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(complete::networks))]
    pub outside_network: String,
}

#[derive(Args)]
pub struct FloodArgs {
    #[arg(add = ArgValueCandidates::new(complete::networks))]
    pub network: String,
    /// vxlan:REMOTE:VNI; may be repeated
    #[arg(long, required = true, value_name = "TARGET")]
    pub to: Vec<String>,
}

#[derive(Args)]
pub struct DefaultArgs {
    #[arg(add = ArgValueCandidates::new(complete::networks))]
    pub network: String,
    /// allow, drop or reject
    #[arg(long)]
    pub action: String,
}

#[derive(Args)]
pub struct RuleArgs {
    /// Rules with lower priority are tried first
    #[arg(long)]
    pub priority: u32,
    /// Source: a prefix or a guest [default: any]
    #[arg(long, add = ArgValueCandidates::new(complete::guests))]
    pub from: Option<String>,
    /// Destination: a prefix or a guest [default: any]
    #[arg(long, add = ArgValueCandidates::new(complete::guests))]
    pub to: Option<String>,
    /// tcp, udp, sctp, icmp, icmp6 or a number [default: any]
    #[arg(long)]
    pub protocol: Option<String>,
    /// Destination port or range, for example 80 or 80-443 [default: any]
    #[arg(long)]
    pub ports: Option<String>,
    /// allow, drop, reject, mirror:GUEST, mirror:vxlan:ADDRESS:VNI or police:MBPS
    #[arg(long)]
    pub action: String,
}

#[derive(Args)]
pub struct OvsArgs {
    /// Only this guest or wire
    #[arg(long, global = true, value_name = "PORT", add = ArgValueCandidates::new(complete::vifs))]
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
pub struct RdmaArgs {
    /// Show only this device
    #[arg(long, value_name = "NAME", global = true)]
    pub device: Option<String>,
    #[command(subcommand)]
    pub action: Option<RdmaAction>,
}

#[derive(Subcommand)]
pub enum RdmaAction {
    /// List the devices (the default)
    List,
    /// Show one device with all its counters
    Show { name: String },
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
    #[arg(value_name = "NAME")]
    pub devices: Vec<String>,
    /// Keep running, and write changes once a second
    #[arg(long)]
    pub follow: bool,
}

#[derive(Args)]
pub struct CaptureArgs {
    /// Capture only at this guest or wire; any: at all
    #[arg(short = 'i', long, visible_alias = "interface", value_name = "VIF", add = ArgValueCandidates::new(complete::vifs))]
    pub guest: Option<String>,
    /// Capture only matching packets; the same as FILTER in one word
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
    /// Do not look up names: taken for tcpdump's sake, names are never looked up
    #[arg(short = 'n', action = clap::ArgAction::Count)]
    pub numeric: u8,
    /// Capture only packets that match these words: tcpdump's, see --help
    #[arg(value_name = "FILTER")]
    pub words: Vec<String>,
}

impl CaptureArgs {
    /// What the daemon is asked for.
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound() {
        super::Options::command().debug_assert();
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
