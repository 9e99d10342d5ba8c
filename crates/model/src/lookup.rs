//! How `decide` reads the tables: a trait, so that it runs on the naive, the fast and the traced ones.

use crate::{
    Action, BridgeEntry, Connection, DropReason, FlowKey, FragmentKey, Host, Modifier, NeighbourScope,
    Network, Nexthop, NexthopId, RouteEntry, RuleId, Seconds, Transport, Vif, VifId, Vrf, ovs,
};
use arrayvec::ArrayVec;
use packet::{Mac, TunnelKind};
use std::net::IpAddr;

/// What rules match on: inside addresses, and the destination port if the packet has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleQuery {
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Destination port of TCP, UDP and SCTP.
    pub dst_port: Option<u16>,
}

/// The result of one network's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMatch {
    /// The terminal action.
    pub action: Action,
    /// The rule it comes from; `None`: the network's default.
    pub rule: Option<RuleId>,
    /// Modifiers of matching rules before the terminal one, by priority. Those beyond the capacity are ignored.
    pub modifiers: ArrayVec<(RuleId, Modifier), 4>,
}

/// Read access to all tables.
pub trait Lookup {
    /// The host.
    fn host(&self) -> &Host;
    /// An interface.
    fn vif(&self, id: VifId) -> Option<&Vif>;
    /// The wires, in the order of their ids.
    fn wires(&self) -> &[VifId];
    /// A network.
    fn network(&self, vrf: Vrf) -> Option<&Network>;
    /// The guest that has this address in this network.
    fn guest_by_address(&self, vrf: Vrf, addr: IpAddr) -> Option<VifId>;
    /// Where frames to this MAC go: as configured ([`crate::Change::PutMac`]), else to the guest that has the MAC,
    /// else as learned.
    fn bridge(&self, vrf: Vrf, mac: Mac) -> Option<BridgeEntry>;
    /// The longest prefix that matches.
    fn route(&self, vrf: Vrf, addr: IpAddr) -> Option<RouteEntry>;
    /// A nexthop.
    fn nexthop(&self, id: NexthopId) -> Option<&Nexthop>;
    /// The port for what comes from a remote by this encapsulation with this network identifier
    /// ([`crate::VifKind::Tunnel`]).
    fn tunnel_port(&self, kind: TunnelKind, remote: IpAddr, id: u32) -> Option<VifId>;
    /// Whether a tunnel's port has this remote.
    fn is_port_remote(&self, addr: IpAddr) -> bool;
    /// Whether a tunnel nexthop has this remote: what comes from there may be for any network.
    fn is_remote(&self, addr: IpAddr) -> bool;
    /// What an MPLS label stands for.
    fn mpls(&self, label: u32) -> Option<NexthopId>;
    /// The network of a VXLAN network identifier.
    fn vxlan(&self, vni: u32) -> Option<Vrf>;
    /// A resolved neighbour's MAC.
    fn neighbour(&self, scope: NeighbourScope, addr: IpAddr) -> Option<Mac>;
    /// Whether an unknown neighbour was asked and did not answer.
    fn is_unreachable(&self, scope: NeighbourScope, addr: IpAddr) -> bool;
    /// The path MTU to a tunnel's remote that routers of the underlay reported: bytes of the outer IP packet.
    fn path_mtu(&self, remote: IpAddr) -> Option<u16>;
    /// The floating address of an inside one, as seen in `outside`.
    fn floating_of(&self, inside_vrf: Vrf, inside: IpAddr, outside_vrf: Vrf) -> Option<IpAddr>;
    /// The inside address of a floating one.
    fn inside_of(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<(Vrf, IpAddr)>;
    /// The result of a network's rules, or its default if none matches.
    fn rules(&self, vrf: Vrf, query: &RuleQuery) -> RuleMatch;
    /// The connection of which this key is a direction, unless it timed out before `now`. The flag tells whether the
    /// key is the reply direction.
    fn connection(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool)>;
    /// Whether the packet may be flooded in a network: executors limit what the floods of one sender cost.
    ///
    /// # Errors
    /// The reason to drop the packet.
    fn may_flood(&self, _: Vrf) -> Result<(), DropReason> {
        Ok(())
    }
    /// Protocol and ports of the datagram to which a later fragment belongs, unless its first fragment is too old.
    fn fragment(&self, key: &FragmentKey, now: Seconds) -> Option<Transport>;
    /// The flow of this port that matches a packet with these fields; of several, the one with the lowest number.
    fn ovs_flow(&self, port: VifId, key: &ovs::Key) -> Option<&ovs::Flow>;
    /// The flow that decides about all packets with these fields, whatever they have in the bits `free`; `None` also if
    /// that is too much work to find out.
    fn ovs_flow_of_all(&self, _: VifId, _key: &ovs::Key, _free: &ovs::Key) -> Option<&ovs::Flow> {
        None
    }
}
