// This file is generated from crates/api/proto/viaduct.proto by `cargo run -p api --example generate`.
use super::by_hand;
use crate::client::Failure;
use crate::complete;
use api::v1;
use clap_complete::ArgValueCandidates;

#[derive(clap::Args)]
pub struct DefaultArgs {
    #[command(flatten)]
    pub network: by_hand::OfNetwork,
    /// allow, drop, reject, or deny-in (refuse connections to the network's guests)
    #[arg(long)]
    pub action: String,
}

impl DefaultArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Default, Failure> {
        Ok(v1::Default {
            network: self.network.message()?,
            action: self.action,
        })
    }
}

#[derive(clap::Args)]
pub struct FloodArgs {
    #[command(flatten)]
    pub network: by_hand::OfNetwork,
    /// vxlan:REMOTE:VNI; may be repeated
    #[arg(long, required = true, value_name = "TARGET")]
    pub to: Vec<String>,
}

impl FloodArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Flood, Failure> {
        Ok(v1::Flood {
            network: self.network.message()?,
            to: by_hand::targets(&self.to)?,
        })
    }
}

#[derive(clap::Args)]
pub struct GuestArgs {
    /// Name of the guest; no other guest or wire has it
    pub name: String,
    /// Network of the guest; may be left out if there is only one
    #[arg(long, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
    /// Who decides about its packets: vrouter (Viaduct, the default) or ovs (an Open vSwitch; then it is in no network)
    #[arg(long, add = ArgValueCandidates::new(complete::modes))]
    pub mode: Option<String>,
    /// vhost, tap, rdma (a verbs device without a port) or host (an interface of the host itself)
    #[arg(long, default_value = "vhost", add = ArgValueCandidates::new(complete::guest_kinds))]
    pub kind: String,
    /// vhost: the socket, relative to the run-dir [default: NAME.sock]
    #[arg(long)]
    pub socket: Option<String>,
    /// tap, host: the device to create
    #[arg(long)]
    pub device: Option<String>,
    /// vhost: server (the VMM connects) or client
    #[arg(long)]
    pub role: Option<String>,
    /// Number of queue pairs
    #[arg(long)]
    pub queues: Option<u32>,
    /// The only MAC that it may use, besides those of --macs [default: any; Viaduct learns it]
    #[arg(long)]
    pub mac: Option<String>,
    /// Another MAC that it may use; may be repeated
    #[arg(long, value_name = "MAC")]
    pub macs: Vec<String>,
    /// One of its addresses; may be repeated
    #[arg(long = "address", value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// MPLS label by which other hosts reach the guest
    #[arg(long)]
    pub label: Option<u32>,
    #[command(flatten)]
    pub rate: by_hand::Rate,
    #[command(flatten)]
    pub shape: by_hand::Shape,
    /// DSCP with which its IP packets leave: 0 to 63, or a name, as in ef, cs1, af41
    #[arg(long)]
    pub dscp: Option<String>,
    /// Mirror its packets to a guest, or to vxlan:ADDRESS:VNI
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
    /// Treat the guest as absent while its VMM is not connected: it is on another host, or on its way
    #[arg(long)]
    pub standby: bool,
    /// The wire whose link its own link follows, down and up
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
    #[command(flatten)]
    pub rdma_limits: RdmaLimitsArgs,
    /// vhost: size of the window by which programs in the VM use the verbs device, megabytes
    #[arg(long = "window", alias = "window-mb", value_name = "MB")]
    pub window_mb: Option<u32>,
    /// vhost: let the VM migrate although it has a window; its programs then lose their verbs device
    #[arg(long)]
    pub window_migrates: bool,
    /// Host name that DHCP gives it, if that is not NAME
    #[arg(long)]
    pub hostname: Option<String>,
    #[command(flatten)]
    pub user_data: by_hand::UserData,
    /// Public key by which users may log in; may be repeated
    #[arg(long = "ssh-key", value_name = "KEY")]
    pub ssh_keys: Vec<String>,
    /// Let programs move their TCP connections to rings in shared memory (see `viaduct run`)
    #[arg(long)]
    pub sockets: bool,
}

impl GuestArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Guest, Failure> {
        Ok(v1::Guest {
            name: self.name,
            network: self.network.unwrap_or_default(),
            mode: self.mode,
            kind: self.kind,
            socket: self.socket,
            device: self.device,
            role: self.role,
            queues: self.queues,
            mac: self.mac,
            macs: self.macs,
            addresses: self.addresses,
            vlans: Default::default(),
            label: self.label,
            rate: self.rate.message()?,
            shape: self.shape.message()?,
            dscp: self.dscp,
            mirror: self.mirror,
            policy: self.no_policy.then_some(false),
            allowed: self.allowed,
            router: self.router.then_some(true),
            dhcp_server: self.dhcp_server.then_some(true),
            standby: self.standby.then_some(true),
            link_follows: self.link_follows,
            owner: self.owner,
            socket_mode: self.socket_mode,
            mtu: self.mtu,
            rdma: self.rdma,
            rdma_owner: self.rdma_owner,
            rdma_trust: self.rdma_trust,
            rdma_limits: Some(self.rdma_limits.message()?).filter(|given| *given != v1::RdmaLimits::default()),
            window_mb: self.window_mb,
            window_migrates: self.window_migrates.then_some(true),
            hostname: self.hostname,
            user_data: self.user_data.message()?,
            ssh_keys: self.ssh_keys,
            sockets: self.sockets.then_some(true),
        })
    }
}

#[derive(clap::Args)]
pub struct LeaseArgs {
    /// The guest, which has no addresses of its own
    #[arg(add = ArgValueCandidates::new(complete::guests))]
    pub guest: String,
    /// The network; may be left out if there is only one
    #[arg(long, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
    /// The guest's MAC, if its own entry has none
    #[arg(long)]
    pub mac: Option<String>,
    /// An address; one of each family
    #[arg(long = "address", value_name = "ADDRESS")]
    pub addresses: Vec<String>,
}

impl LeaseArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Lease, Failure> {
        Ok(v1::Lease {
            guest: self.guest,
            network: self.network.unwrap_or_default(),
            mac: self.mac,
            addresses: self.addresses,
            foreign: Default::default(),
        })
    }
}

#[derive(clap::Args)]
pub struct MacArgs {
    pub mac: String,
    /// guest:NAME or vxlan:REMOTE:VNI
    #[arg(long, value_name = "TARGET")]
    pub to: String,
}

impl MacArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Mac, Failure> {
        Ok(v1::Mac {
            network: Default::default(),
            mac: self.mac,
            to: Some(by_hand::target(&self.to)?),
        })
    }
}

#[derive(clap::Args)]
pub struct MplsArgs {
    pub label: u32,
    /// guest:NAME or network:NAME
    #[arg(long, value_name = "TARGET")]
    pub to: String,
}

impl MplsArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Mpls, Failure> {
        Ok(v1::Mpls {
            label: self.label,
            to: Some(by_hand::target(&self.to)?),
        })
    }
}

#[derive(clap::Args)]
pub struct NatArgs {
    /// The guest's own address
    pub inside: String,
    /// The floating address, by which others reach it
    #[arg(long, value_name = "ADDRESS")]
    pub outside: String,
    /// The network of the floating address
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(complete::networks))]
    pub outside_network: String,
}

impl NatArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Nat, Failure> {
        Ok(v1::Nat {
            network: Default::default(),
            inside: self.inside,
            outside: self.outside,
            outside_network: self.outside_network,
        })
    }
}

#[derive(clap::Args)]
pub struct NetworkArgs {
    /// Name of the network
    pub name: String,
    /// Number of the VRF on this host, 1 to 65535
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
    /// MTU of its guests [default: the largest that fits its wire, or tunnels over the host's wires]
    #[arg(long)]
    pub mtu: Option<u32>,
    #[command(flatten)]
    pub tcp_midstream: by_hand::TcpMidstream,
    /// Accept TCP connections of which one direction takes another path
    #[arg(long)]
    pub tcp_asymmetric: bool,
    /// Lower the MSS in TCP SYNs to what fits the MTU of their path
    #[arg(long)]
    pub mss_clamp: bool,
    /// Let packets of other networks leave by the wire without address translation
    #[arg(long, requires = "wire")]
    pub routed_outside: bool,
    /// Give guests their addresses by DHCP
    #[arg(long)]
    pub dhcp: bool,
    /// Announce the gateway to guests as an IPv6 router
    #[arg(long)]
    pub ra: bool,
    /// Resolve names at the gateway's address
    #[arg(long)]
    pub dns: bool,
    /// Give guests their metadata at 169.254.169.254 and fd00:ec2::254
    #[arg(long)]
    pub metadata: bool,
    /// A service outside that has the guests' metadata
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metadata_proxy: Option<String>,
    /// The tenant that this service is told (default: the network's name)
    #[arg(long, value_name = "TENANT")]
    pub metadata_tenant: Option<String>,
    /// A DHCP server outside, to which guests' messages are relayed; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub dhcp_relay: Vec<String>,
    /// The domain of the guests' names
    #[arg(long)]
    pub domain: Option<String>,
    /// Addresses for guests without, as in 10.1.1.100-10.1.1.199; may be repeated
    #[arg(long, value_name = "RANGE")]
    pub pool: Vec<String>,
    /// A server that resolves names; may be repeated
    #[arg(long = "resolver", value_name = "ADDRESS")]
    pub resolvers: Vec<String>,
    /// Don't exchange its routes by BGP
    #[arg(long)]
    pub no_bgp: bool,
    /// The route distinguisher [default: router id and VRF]
    #[arg(long, value_name = "RD")]
    pub rd: Option<String>,
    /// A route target of routes to take; may be repeated [default: AS and VNI, or VRF]
    #[arg(long, value_name = "TARGET")]
    pub import: Vec<String>,
    /// A route target to announce its routes under; may be repeated [default: AS and VNI, or VRF]
    #[arg(long, value_name = "TARGET")]
    pub export: Vec<String>,
    /// Plain IPv4 and IPv6 routes of BGP peers to take: default (default routes) or all
    #[arg(long, value_name = "WHICH", requires = "wire")]
    pub import_unicast: Option<String>,
    /// Exchange MAC addresses and floods by BGP as well
    #[arg(long, requires = "vni")]
    pub evpn: bool,
    /// VXLAN network identifier of packets that other hosts route to it
    #[arg(long, value_name = "VNI", requires = "evpn")]
    pub l3vni: Option<u32>,
    /// A route target of routes to take besides --import; may be repeated [default: AS and --l3vni]
    #[arg(long, value_name = "TARGET", requires = "l3vni")]
    pub l3_import: Vec<String>,
    /// A route target to announce routes under besides --export; may be repeated [default: AS and --l3vni]
    #[arg(long, value_name = "TARGET", requires = "l3vni")]
    pub l3_export: Vec<String>,
    /// Let packets leave behind this address of a wire's network; may be repeated. "host": by the host's own stack, behind its addresses
    #[arg(long, value_name = "ADDRESS")]
    pub snat: Vec<String>,
    /// Ports that a guest has of such an address, for each protocol [default: 512]
    #[arg(long, value_name = "NUMBER", requires = "snat")]
    pub snat_ports: Option<u32>,
    /// For which destinations a guest's port has the same one there: address-and-port-dependent, or endpoint-independent (for all) [default: address-and-port-dependent]
    #[arg(long, value_name = "MAPPING", requires = "snat")]
    pub snat_mapping: Option<String>,
    /// Action for traffic that no rule matches: allow, drop, reject, or deny-in (refuse connections to the network's guests) [default: allow]
    #[arg(long, value_name = "ACTION")]
    pub default: Option<String>,
}

impl NetworkArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Network, Failure> {
        Ok(v1::Network {
            name: self.name,
            vrf: self.vrf,
            gateways: self.gateways,
            vni: self.vni,
            learning: self.no_learning.then_some(false),
            wire: self.wire,
            vlan: self.vlan,
            l2_gateway: self.l2_gateway,
            mtu: self.mtu,
            tcp_midstream: self.tcp_midstream.message()?,
            tcp_asymmetric: self.tcp_asymmetric.then_some(true),
            mss_clamp: self.mss_clamp.then_some(true),
            routed_outside: self.routed_outside.then_some(true),
            dhcp: self.dhcp.then_some(true),
            ra: self.ra.then_some(true),
            dns: self.dns.then_some(true),
            metadata: self.metadata.then_some(true),
            metadata_proxy: self.metadata_proxy,
            metadata_secret: Default::default(),
            metadata_tenant: self.metadata_tenant,
            dhcp_relay: self.dhcp_relay,
            domain: self.domain,
            pool: self.pool,
            resolvers: self.resolvers,
            dhcp_options: Default::default(),
            bgp: self.no_bgp.then_some(false),
            rd: self.rd,
            import: self.import,
            export: self.export,
            import_unicast: self.import_unicast,
            evpn: self.evpn.then_some(true),
            l3vni: self.l3vni,
            l3_import: self.l3_import,
            l3_export: self.l3_export,
            snat: self.snat,
            snat_ports: self.snat_ports,
            snat_mapping: self.snat_mapping,
            default: self.default,
        })
    }
}

#[derive(clap::Args)]
pub struct NexthopArgs {
    pub name: String,
    #[arg(long, required = true, value_name = "TARGET", help = by_hand::TO)]
    pub to: Vec<String>,
}

impl NexthopArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Nexthop, Failure> {
        Ok(v1::Nexthop {
            name: self.name,
            to: by_hand::targets(&self.to)?,
        })
    }
}

#[derive(clap::Args)]
pub struct RdmaLimitsArgs {
    /// Most queue pairs of the verbs device
    #[arg(long = "rdma-qps", value_name = "N")]
    pub qps: Option<u32>,
    /// Most memory regions of the verbs device
    #[arg(long = "rdma-mrs", value_name = "N")]
    pub mrs: Option<u32>,
    /// Most memory registered with the verbs device, megabytes
    #[arg(long = "rdma-registered", value_name = "MB")]
    pub registered_mb: Option<u32>,
    /// Most memory for the verbs device's queues, megabytes
    #[arg(long = "rdma-queues", value_name = "MB")]
    pub queues_mb: Option<u32>,
    /// Most connections of programs to the verbs device
    #[arg(long = "rdma-connections", value_name = "N")]
    pub connections: Option<u32>,
}

impl RdmaLimitsArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::RdmaLimits, Failure> {
        Ok(v1::RdmaLimits {
            qps: self.qps,
            mrs: self.mrs,
            registered_mb: self.registered_mb,
            queues_mb: self.queues_mb,
            connections: self.connections,
        })
    }
}

#[derive(clap::Args)]
pub struct RuleArgs {
    /// Name in the network, by which `set`, `show` and `del` find it
    #[arg(long)]
    pub name: Option<String>,
    /// Rules with lower priority are tried first
    #[arg(long)]
    pub priority: u32,
    #[command(flatten)]
    pub from: by_hand::RuleFrom,
    #[command(flatten)]
    pub to: by_hand::RuleTo,
    /// tcp, udp, sctp, icmp, icmp6 or a number [default: any]
    #[arg(long)]
    pub protocol: Option<String>,
    /// Destination port or range, for example 80 or 80-443 [default: any]
    #[arg(long)]
    pub ports: Option<String>,
    /// allow, drop, reject, mirror:GUEST, mirror:vxlan:ADDRESS:VNI, police:MBPS or police:MBPS:BURST_KB
    #[arg(long)]
    pub action: String,
}

impl RuleArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Rule, Failure> {
        Ok(v1::Rule {
            network: Default::default(),
            name: self.name,
            priority: self.priority,
            from: self.from.message()?,
            to: self.to.message()?,
            protocol: self.protocol,
            ports: self.ports,
            action: self.action,
        })
    }
}

#[derive(clap::Args)]
pub struct VxlanArgs {
    pub vni: u32,
    /// The network; may be left out if there is only one
    #[arg(long, add = ArgValueCandidates::new(complete::networks))]
    pub network: Option<String>,
}

impl VxlanArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Vxlan, Failure> {
        Ok(v1::Vxlan {
            vni: self.vni,
            network: self.network.unwrap_or_default(),
        })
    }
}

#[derive(clap::Args)]
pub struct WireArgs {
    /// Name of the wire; no other guest or wire has it
    pub name: String,
    /// af-packet, af-xdp, tap or vhost; vxlan or geneve: a tunnel, as a port of Open vSwitch
    #[arg(long, add = ArgValueCandidates::new(complete::drivers))]
    pub driver: String,
    /// Network device, or socket (vhost)
    #[arg(long)]
    pub device: Option<String>,
    /// vxlan, geneve: the other host
    #[arg(long, value_name = "ADDRESS")]
    pub remote: Option<String>,
    /// vxlan, geneve: the network identifier
    #[arg(long)]
    pub vni: Option<u32>,
    /// An underlay address with prefix length; may be repeated
    #[arg(long = "address", value_name = "ADDRESS/LEN")]
    pub addresses: Vec<String>,
    /// Next hop for remotes outside the wire's subnets; one per family
    #[arg(long)]
    pub gateway: Vec<String>,
    /// Largest IP packet; the device's MTU is at least that [default: 1500; a tunnel's 50 less, 70 over IPv6]
    #[arg(long)]
    pub mtu: Option<u32>,
    /// Who decides about its packets: vrouter (Viaduct, the default) or ovs (an Open vSwitch)
    #[arg(long, add = ArgValueCandidates::new(complete::modes))]
    pub mode: Option<String>,
    /// af-packet: leave addresses, ARP, routes and TCP to the kernel, and take tunnel packets alone
    #[arg(long)]
    pub shared: bool,
}

impl WireArgs {
    /// Makes the object, without fields that have no argument.
    pub fn message(self) -> Result<v1::Wire, Failure> {
        Ok(v1::Wire {
            name: self.name,
            driver: self.driver,
            device: self.device,
            remote: self.remote,
            vni: self.vni,
            addresses: self.addresses,
            gateway: self.gateway,
            mtu: self.mtu,
            mode: self.mode,
            shared: self.shared.then_some(true),
        })
    }
}
