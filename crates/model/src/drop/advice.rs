//! Advice about drops. docs/debug.md shows the same table; a test compares them.

use super::DropReason;

impl DropReason {
    /// Returns what an operator can do about the drops, in a sentence or two.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::EthernetTruncated
            | Self::ArpMalformed
            | Self::IpTruncated
            | Self::IpHeader
            | Self::IpLength
            | Self::IpChecksum
            | Self::IpSource
            | Self::Ipv6Extension
            | Self::FragmentMalformed
            | Self::L4Malformed
            | Self::HeaderTooLong
            | Self::OffloadMalformed => {
                "A broken or hostile sender: look at its packets with `viaduct capture dropped`."
            }
            Self::TooManyTags => "Have the sender use at most two VLAN tags.",
            Self::TunnelMalformed | Self::LabelStack | Self::TunnelPayload | Self::Ecn => {
                "The other host, or a router on the way, sends broken packets: `viaduct dropstats --log 20` shows \
                 them."
            }
            Self::MacSpoofed => {
                "Bridging or nested VMs behind the guest: list their MACs in `macs`, or leave `mac` out so that MACs \
                 are learned."
            }
            Self::AddressSpoofed => {
                "The guest uses an address that is not in `addresses` or `allowed`: add it, if it is the guest's."
            }
            Self::NeighbourSpoofed => {
                "By ARP or ND the guest claims an address that is not its own, or a link-local address that another has, \
                 or that is made of another's MAC: correct the guest, or its `addresses`."
            }
            Self::RouterGuard => "If the guest is a router, `router = true`.",
            Self::DhcpGuard => "If the guest is a DHCP server, `dhcp_server = true`.",
            Self::Snap => "Have the guest use Ethernet II.",
            Self::RdmaOwned => {
                "A guest with `rdma` uses UDP 4791 by its port, too: have the program use the verbs device."
            }
            Self::VerbsOnly => {
                "Give the guest a port (kind `vhost` or `tap`), if it is to have more than verbs and ping."
            }
            Self::ReservedMulticast => "Nothing: STP or LLDP of a switch, which ends at a bridge.",
            Self::SamePort => {
                "Nothing, unless there is much of it: then a bridge behind the guest sends back what it gets."
            }
            Self::NoMember => {
                "Nothing: nobody else is connected. The first guest of a network has its first packets (IPv6 discovery) counted \
                 here."
            }
            Self::VlanUnexpected => {
                "A tagged frame to a gateway, or from a guest to the wire of its network: attach a network for that \
                 VLAN."
            }
            Self::UnderlayTunnel => {
                "A guest of a network attached to a wire runs a tunnel of its own to or from an underlay address: use \
                 other addresses for it."
            }
            Self::NoNetwork | Self::NexthopInvalid => {
                "The configuration changed a moment ago; if it goes on, compare `viaduct vif` and `viaduct nh` with \
                 what you expect."
            }
            Self::NoRoute | Self::DiscardRoute => {
                "`viaduct rt show ADDRESS --network NAME`: the route is missing, or leads to `\"drop\"`."
            }
            Self::RouteLoop => "`viaduct rt`: networks route to each other; remove one of both routes.",
            Self::NotRoutable => "Nothing: link-local or multicast packets that would need a router.",
            Self::NoUnderlay => {
                "No wire's subnet or `gateway` reaches the remote, or no `tunnel_source` has its family: add one."
            }
            Self::TtlExpired => {
                "A traceroute; if not, `viaduct explain` shows between which networks packets go round."
            }
            Self::Mtu | Self::NotFragmented => {
                "The sender's MTU is larger than what fits the receiver or tunnel: lower it in the guest. The sender \
                 was told, except if a bridged packet lacks Don't Fragment."
            }
            Self::GatewayNoService => "Gateways answer ARP, ND and ping only: use a service of a guest.",
            Self::NotForUs => "Nothing: other traffic on the wire; `af-xdp` leaves it to the kernel.",
            Self::OuterFragment => {
                "The underlay carries less than the other host believes: lower the `mtu` of its wire. Or set \
                 `tunnel_df = false` in `[host]` here, which has fragments reassembled."
            }
            Self::ReassemblyTimeout => "The underlay loses packets, as any that is overloaded.",
            Self::ReassemblyFull => {
                "The underlay carries less than most tunnel packets have: raise its MTU, or lower that of the guests."
            }
            Self::ReassemblyFailed => {
                "Rare ones are fragments of different packets with one identification; otherwise they are forged."
            }
            Self::UnknownRemote => {
                "No route, MAC or flood names the host that sends: add one, or add the host to `tunnel_peers`."
            }
            Self::UnknownLabel => "Compare the other host's label with `viaduct mpls`.",
            Self::UnknownVni => {
                "Compare the other host's network identifier with `viaduct vxlan` and `viaduct wire`."
            }
            Self::HoldFull => {
                "As `no_neighbour`: many packets for hosts that do not answer. With a card, many new flows."
            }
            Self::NoNeighbour => {
                "The guest or host is gone: `viaduct neigh` shows who is asked for. On the underlay, check `gateway`, \
                 VLAN, cable."
            }
            Self::RuleDrop | Self::RuleReject | Self::DefaultDrop => {
                "`viaduct explain` names the rule; the rules of both networks apply. A fragment that arrives before \
                 the first one gets the default."
            }
            Self::TcpReset => {
                "Forged or late resets; if replies take another path, `tcp_asymmetric = true` in the network."
            }
            Self::TcpMidstream => {
                "Connections from before the machine restarted, or of another path: `tcp_midstream = true` in the \
                 network takes them."
            }
            Self::Policed => "Raise the rule's `police`, or its burst: `police:MBPS:BURST_KB`.",
            Self::RateLimited => "Raise `rate`; if only large sends fail, its `burst_kb` is below 192.",
            Self::Shaped | Self::Codel => {
                "As it should be if more is sent to the guest than its `shape.in`: senders that do TCP slow down. Raise \
                 it otherwise."
            }
            Self::RoceNat => "Use verbs in networks without `[[nat]]`.",
            Self::SnatPorts => {
                "Have the guest's programs use more source ports, or fewer connections to one destination (with \
                 `endpoint-independent`, fewer source ports at a time); `snat_ports` above 64 helps only where source \
                 ports are spread."
            }
            Self::SnatProtocol => {
                "Give the guest a floating address (`[[nat]]`): it has all ports, and all protocols."
            }
            Self::SnatUnknown => {
                "Scans from outside, and packets of connections that ended; a `[[forward]]` leads a port to a guest."
            }
            Self::FlowQuota | Self::FlowTableFull => {
                "A scan, or too many connections: FLOWS in `viaduct status` says whose."
            }
            Self::ReplyLimited => {
                "Somebody sends many packets that are refused: `viaduct dropstats` names their reasons."
            }
            Self::RxFull => {
                "Packets come faster than the workers take them: LOAD in `viaduct top`, `workers` in `[host]`."
            }
            Self::TxFull => {
                "The receiver does not drain its ring: its CPU is the limit; for a wire, the link or the queue of its \
                 device (`tc -s qdisc`). A few packets while a VM starts are no fault: its firmware takes few or none."
            }
            Self::TxTooLong => {
                "Buffers or MTU of the receiver are too small; for a wire, its device's MTU is below `mtu`; of Open \
                 vSwitch (`up0:ovs`), `mtu_request` of its port is too small."
            }
            Self::TxDown => "VM off, or tap not up in its namespace: `viaduct status`.",
            Self::TxBusy => "The host's CPUs are overcommitted: give workers CPUs of their own.",
            Self::SegmentFailed => {
                "A malformed large send: look at the sender with `viaduct capture dropped`."
            }
            Self::PuntBudget => "More goes to the host than the card's budget allows: docs/card.md.",
            Self::SegmentTooSmall | Self::TurnBudget => {
                "The guest sends bursts that no ordinary driver sends: docs/forwarding.md, section Work."
            }
            Self::FloodLimited => {
                "A loop, a scan, or a MAC that nobody learned: docs/forwarding.md, section Floods."
            }
            Self::NotL2Gateway => {
                "Normal on hosts that `l2_gateway` does not name; if no host bridges, compare the key with `[host] \
                 name`."
            }
            Self::OuterChecksumMissing => {
                "Have the other host send UDP checksums over IPv6 (Linux: `noudp6zerocsumtx`), or set \
                 `udp6_zero_checksum = true` in `[host]`."
            }
            Self::OuterChecksumWrong => {
                "The other host, or a device on the way, breaks packets: try without its checksum offload."
            }
            Self::TunnelRefused => {
                "Have the other host's Open vSwitch set no critical Geneve options (tunnel metadata) for this port."
            }
            Self::OvsDrop => {
                "`viaduct ovs flows` shows the flow; `ovs-appctl ofproto/trace` says why OVS made it."
            }
            Self::RoutedOutside => {
                "Give the guest a floating address (`[[nat]]`); or, if routers outside know the way to its network, set \
                 `routed_outside = true` in the network of the wire."
            }
            Self::ServiceFull => {
                "The guest asks more than 500 times a second, or has 8 questions and answers waiting: look at them with \
                 `viaduct capture --guest NAME dropped`."
            }
            Self::OvsAbsent => {
                "Start Open vSwitch, and give it a port with `port=NAME` in its `dpdk-devargs`: `viaduct ovs ports`."
            }
        }
    }

    /// Returns the table of all reasons, as docs/debug.md shows it.
    #[must_use]
    pub fn table() -> String {
        let row = |reason: &Self| format!("| `{reason}` | {} | {} |\n", reason.help(), reason.advice());
        let rows: String = Self::ALL.iter().map(row).collect();
        format!("| reason | meaning | what to do |\n|---|---|---|\n{rows}")
    }
}
