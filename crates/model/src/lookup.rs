//! How `decide` reads the tables: through a trait, so that it runs on the naive, the fast and the traced
//! ones.

use crate::{
    Action, BridgeEntry, Connection, DropReason, Endpoint, FlowKey, FragmentKey, Host, KernelPath, Modifier,
    NeighbourScope, Network, Nexthop, NexthopId, OutsidePort, RouteEntry, RuleId, Seconds, Transport, Vif,
    VifId, Vrf, ovs,
};
use arrayvec::ArrayVec;
use packet::{Mac, TunnelKind};
use std::borrow::Cow;
use std::net::IpAddr;

/// The fields that rules match on: inside addresses, and the destination port if the packet has one.
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
    /// The rule that decided; `None`: the network's default.
    pub rule: Option<RuleId>,
    /// Modifiers of matching rules before the terminal one, by priority. Those beyond the capacity are ignored.
    pub modifiers: ArrayVec<(RuleId, Modifier), 4>,
}

/// Read access to all tables.
pub trait Lookup {
    /// Returns the host.
    fn host(&self) -> &Host;
    /// Returns an interface.
    fn vif(&self, id: VifId) -> Option<&Vif>;
    /// Returns the wires, in the order of their ids.
    fn wires(&self) -> &[VifId];
    /// Returns the kernel's paths to a tunnel's remote ([`crate::Change::PutPaths`]).
    fn kernel_paths(&self, remote: IpAddr) -> &[KernelPath];
    /// Returns whether a tunnel's remote is known to be out of reach ([`crate::Change::SetDown`]).
    fn is_down(&self, remote: IpAddr) -> bool;
    /// Returns whether the path to a tunnel's remote by this wire and next hop is known to be broken
    /// ([`crate::Change::SetPathDown`]).
    fn is_path_down(&self, remote: IpAddr, wire: VifId, hop: IpAddr) -> bool;
    /// Returns a network.
    fn network(&self, vrf: Vrf) -> Option<&Network>;
    /// Returns the guest that has this address in this network.
    fn guest_by_address(&self, vrf: Vrf, addr: IpAddr) -> Option<VifId>;
    /// Returns the MAC of the address's owner on another host, if it is known ([`crate::Change::PutOwner`]).
    fn owner(&self, vrf: Vrf, addr: IpAddr) -> Option<Mac>;
    /// Returns the target of frames to this MAC: as configured ([`crate::Change::PutMac`]), else the guest
    /// that has the MAC, else the learned target.
    fn bridge(&self, vrf: Vrf, mac: Mac) -> Option<BridgeEntry>;
    /// Returns the route with the longest prefix that contains an address.
    fn route(&self, vrf: Vrf, addr: IpAddr) -> Option<RouteEntry>;
    /// Returns a nexthop. Tables may keep tunnels in another form, and make them when they are looked up.
    fn nexthop(&self, id: NexthopId) -> Option<Cow<'_, Nexthop>>;
    /// Returns the port of a tunnel ([`crate::VifKind::Tunnel`]): packets from this remote with this
    /// encapsulation and network identifier come in there.
    fn tunnel_port(&self, kind: TunnelKind, remote: IpAddr, id: u32) -> Option<VifId>;
    /// Returns whether a tunnel's port has this remote.
    fn is_port_remote(&self, addr: IpAddr) -> bool;
    /// Returns whether a tunnel nexthop has this remote. Packets from there may be for any network.
    fn is_remote(&self, addr: IpAddr) -> bool;
    /// Returns the nexthop for which an MPLS label stands.
    fn mpls(&self, label: u32) -> Option<NexthopId>;
    /// Returns the network of a VXLAN network identifier.
    fn vxlan(&self, vni: u32) -> Option<Vrf>;
    /// Returns a resolved neighbour's MAC.
    fn neighbour(&self, scope: NeighbourScope, addr: IpAddr) -> Option<Mac>;
    /// Returns whether an unknown neighbour was asked and did not answer.
    fn is_unreachable(&self, scope: NeighbourScope, addr: IpAddr) -> bool;
    /// Returns whether a neighbour of a wire was asked in vain and has not answered since.
    fn is_silent(&self, scope: NeighbourScope, addr: IpAddr) -> bool;
    /// Returns whether there is such a neighbour.
    fn any_is_silent(&self) -> bool;
    /// Returns the path MTU to a tunnel's remote that routers of the underlay reported: bytes of the outer IP
    /// packet.
    fn path_mtu(&self, remote: IpAddr) -> Option<u16>;
    /// Returns the floating address of an inside one, as seen in the network `outside_vrf`.
    fn floating_of(&self, inside_vrf: Vrf, inside: IpAddr, outside_vrf: Vrf) -> Option<IpAddr>;
    /// Returns the inside address of a floating one.
    fn inside_of(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<(Vrf, IpAddr)>;
    /// Returns the network whose guests share this address of another network.
    fn shared_by(&self, outside_vrf: Vrf, outside: IpAddr) -> Option<Vrf>;
    /// Returns the connection that packets from outside find by this key ([`Connection::outside_key`]), unless it timed
    /// out before `now`.
    fn bound(&self, key: &FlowKey, now: Seconds) -> Option<Connection>;
    /// Returns the port that a guest's end has for all destinations: the lowest one that `is_usable`. The end has a
    /// port while the tables remember a connection with it, even one that timed out.
    fn mapping(
        &self,
        inside: &Endpoint,
        protocol: u8,
        is_usable: &dyn Fn(OutsidePort) -> bool,
    ) -> Option<OutsidePort>;
    /// Returns whether an end in the network `vrf` has this address and port for all destinations.
    fn is_mapped(&self, vrf: Vrf, outside: (IpAddr, u16), protocol: u8) -> bool;
    /// Returns the result of a network's rules, or its default if none matches.
    fn rules(&self, vrf: Vrf, query: &RuleQuery) -> RuleMatch;
    /// Returns the connection of which this key is a direction, unless it timed out before `now`. The flag
    /// says whether the key is the reply direction.
    fn connection(&self, key: &FlowKey, now: Seconds) -> Option<(Connection, bool)>;
    /// Checks that the packet may be flooded in a network: executors limit the cost of one sender's floods.
    ///
    /// # Errors
    /// The reason to drop the packet.
    fn may_flood(&self, _: Vrf) -> Result<(), DropReason> {
        Ok(())
    }
    /// Returns the protocol and ports of the datagram to which a later fragment belongs, unless its first
    /// fragment is too old.
    fn fragment(&self, key: &FragmentKey, now: Seconds) -> Option<Transport>;
    /// Returns the flow of this port that matches a packet with these fields. If several match, returns the
    /// one with the lowest number.
    fn ovs_flow(&self, port: VifId, key: &ovs::Key) -> Option<&ovs::Flow>;
    /// Returns the flow that decides about all packets with these fields, whatever they have in the bits
    /// `free`. Returns `None` also if that is too much work to find out.
    fn ovs_flow_of_all(&self, _: VifId, _key: &ovs::Key, _free: &ovs::Key) -> Option<&ovs::Flow> {
        None
    }
}
