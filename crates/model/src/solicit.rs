//! Questions for a neighbour: that packets wait for, or that was silent for long.

use crate::{Forward, GATEWAY_MAC, Lookup, NeighbourScope, PacketView, decide};
use arrayvec::ArrayVec;
use packet::{Mac, WriteError, neighbour};
use std::net::{IpAddr, Ipv4Addr};

/// Length of the longest: Ethernet, IPv6, and the solicitation with its option.
const MAX_LEN: usize = 86;

/// An ARP request or neighbour solicitation, and where it is sent.
#[derive(Clone, Debug)]
pub struct Solicitation {
    /// The frame.
    pub frame: ArrayVec<u8, MAX_LEN>,
    /// Each delivery of it.
    pub to: Vec<Forward>,
}

/// Who is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Where it is sought.
    pub scope: NeighbourScope,
    /// Its address.
    pub addr: IpAddr,
    /// Where it was: it alone is asked whether it still is (RFC 4861, 7.3.3). `None`: all are asked.
    pub at: Option<Mac>,
}

/// The question for a neighbour: out of its wire, or from the gateway to its MAC or all members of its network, in which
/// it needs no address. `None` where nobody can ask (no address of that family) or be asked.
#[must_use]
pub fn solicit<T: Lookup>(tables: &T, asked: &Question) -> Option<Solicitation> {
    let target = asked.addr;
    match asked.scope {
        NeighbourScope::Wire(id) => {
            let vif = tables.vif(id)?;
            let subnets = || {
                let addresses = &vif.wire.as_ref().map_or(&[][..], |wire| &wire.addresses);
                addresses.iter().filter(|subnet| subnet.addr().is_ipv4() == target.is_ipv4())
            };
            let sender = subnets().find(|subnet| subnet.contains(&target)).or_else(|| subnets().next())?;
            let frame = question(vif.mac?, sender.addr(), target, asked.at)?;
            Some(Solicitation { frame, to: vec![Forward::unchanged(id)] })
        }
        NeighbourScope::Network(vrf) => {
            let network = tables.network(vrf)?;
            let sender = network.gateway_for(target).unwrap_or_else(|| nobody(target));
            let frame = question(GATEWAY_MAC, sender, target, asked.at)?;
            let view = PacketView::parse(&frame, frame.len() as u32, None).ok()?;
            let (to, _) = decide::bridge_own(tables, network, decide::Origin::Gateway, &view);
            (!to.is_empty()).then_some(Solicitation { frame, to })
        }
    }
}

/// The address of one who has the gateway's MAC and no address: a probe's in ARP (RFC 5227, 2.1.1), whose answer goes to
/// the MAC alone; in ND, where a probe would be answered to all, the link-local one (RFC 4291, 2.5.6).
fn nobody(target: IpAddr) -> IpAddr {
    match target {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => GATEWAY_MAC.link_local().into(),
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
