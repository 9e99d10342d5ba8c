//! Solicitations of a neighbour: one for which packets wait, or one that has been silent for long.

use crate::{BridgeTarget, Forward, GATEWAY_MAC, Lookup, NeighbourScope, Network, PacketView, VifId, decide};
use arrayvec::ArrayVec;
use packet::{Mac, WriteError, neighbour};
use std::net::{IpAddr, Ipv4Addr};

/// Most questions for one neighbour: to the guests and tunnels of its network, and to its wire.
const MAX_QUESTIONS: usize = 2;
/// Length of the longest solicitation, bytes: Ethernet, IPv6, and the solicitation with its option.
const MAX_LEN: usize = 86;

/// An ARP request or neighbour solicitation, and its receivers.
#[derive(Clone, Debug)]
pub struct Solicitation {
    /// The frame.
    pub frame: ArrayVec<u8, MAX_LEN>,
    /// The deliveries of the frame.
    pub to: Vec<Forward>,
}

/// The neighbour to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The neighbour's wire or network.
    pub scope: NeighbourScope,
    /// The neighbour's address.
    pub addr: IpAddr,
    /// The neighbour's last known MAC: only that host is asked, whether it is still there (RFC 4861, 7.3.3).
    /// `None`: all are asked.
    pub at: Option<Mac>,
}

/// Returns the questions for a neighbour: by the neighbour's wire, or from the gateway to the neighbour's MAC
/// or to all members of its network (for that the gateway needs no address). There is one for each MAC that
/// the gateway has. Returns nothing if nobody can ask (no address of that family) or be asked.
#[must_use]
pub fn solicit<T: Lookup>(tables: &T, asked: &Question) -> ArrayVec<Solicitation, MAX_QUESTIONS> {
    let questions = match asked.scope {
        NeighbourScope::Wire(id) => [on_wire(tables, id, asked), None],
        NeighbourScope::Network(vrf) => {
            let Some(network) = tables.network(vrf) else { return ArrayVec::new() };
            [among_members(tables, network, asked), on_attached(tables, network, asked)]
        }
    };
    questions.into_iter().flatten().collect()
}

/// Returns a question from this host to a host of the underlay.
fn on_wire<T: Lookup>(tables: &T, id: VifId, asked: &Question) -> Option<Solicitation> {
    let (vif, target) = (tables.vif(id)?, asked.addr);
    let subnets = || {
        let addresses = &vif.wire.as_ref().map_or(&[][..], |wire| &wire.addresses);
        addresses.iter().filter(|subnet| subnet.addr().is_ipv4() == target.is_ipv4())
    };
    let sender = subnets().find(|subnet| subnet.contains(&target)).or_else(|| subnets().next())?;
    let frame = question(vif.mac?, sender.addr(), target, asked.at)?;
    Some(Solicitation { frame, to: vec![Forward::unchanged(id)] })
}

/// Returns a question from a gateway to guests, and through tunnels.
fn among_members<T: Lookup>(tables: &T, network: &Network, asked: &Question) -> Option<Solicitation> {
    let frame = from_gateway(network, GATEWAY_MAC, asked)?;
    let view = PacketView::parse(&frame, frame.len() as u32, None).ok()?;
    let (to, _) = decide::bridge_own(tables, network, decide::Origin::Gateway, &view);
    (!to.is_empty()).then_some(Solicitation { frame, to })
}

/// Returns a question from a gateway to the wire to which its network is attached. `None` if the neighbour is
/// known to be elsewhere.
fn on_attached<T: Lookup>(tables: &T, network: &Network, asked: &Question) -> Option<Solicitation> {
    let (mac, forward) = attached(tables, network)?;
    let entry = asked.at.and_then(|at| tables.bridge(network.vrf, at));
    let elsewhere = entry.is_some_and(|entry| entry.target != BridgeTarget::Vif(forward.port));
    let frame = from_gateway(network, mac, asked)?;
    (!elsewhere).then_some(Solicitation { frame, to: vec![forward] })
}

/// Returns the gateway's MAC on the wire to which a network is attached, and the exit there.
pub(crate) fn attached<T: Lookup>(tables: &T, network: &Network) -> Option<(Mac, Forward)> {
    let attached = network.wire?;
    let mac = tables.vif(attached.vif)?.mac?;
    Some((mac, Forward { push_vlan: attached.vlan, ..Forward::unchanged(attached.vif) }))
}

fn from_gateway(network: &Network, mac: Mac, asked: &Question) -> Option<ArrayVec<u8, MAX_LEN>> {
    let sender = network.gateway_for(asked.addr).unwrap_or_else(|| nobody(mac, asked.addr));
    question(mac, sender, asked.addr, asked.at)
}

/// Returns the sender's address for a gateway that has a MAC but no address. In ARP this is the address of a
/// probe (RFC 5227, 2.1.1), whose answer goes only to the MAC. In ND the answer to a probe would go to all,
/// so this is the link-local address (RFC 4291, 2.5.6).
fn nobody(mac: Mac, target: IpAddr) -> IpAddr {
    match target {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => mac.link_local().into(),
    }
}

fn question(mac: Mac, sender: IpAddr, target: IpAddr, at: Option<Mac>) -> Option<ArrayVec<u8, MAX_LEN>> {
    let mut frame = ArrayVec::from([0; MAX_LEN]);
    let out = &mut frame[..];
    let len = match (sender, target, at) {
        (IpAddr::V4(sender), IpAddr::V4(target), None) => neighbour::arp_request(out, mac, sender, target),
        (IpAddr::V4(sender), IpAddr::V4(target), Some(at)) => {
            neighbour::arp_probe(out, at, mac, sender, target)
        }
        (IpAddr::V6(sender), IpAddr::V6(target), None) => {
            neighbour::neighbour_solicitation(out, mac, sender, target)
        }
        (IpAddr::V6(sender), IpAddr::V6(target), Some(at)) => {
            neighbour::neighbour_probe(out, at, mac, sender, target)
        }
        _ => Err(WriteError::Mismatch),
    };
    frame.truncate(len.ok()?);
    Some(frame)
}
