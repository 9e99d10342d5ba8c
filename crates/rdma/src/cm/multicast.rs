//! Multicast groups for datagrams. Over Ethernet no join request is necessary: a group's GID is its IP address.

use super::endpoint::State;
use super::{
    Client, DatagramDetails, EventKind, Group, Manager, Refused, Transport, UDP_QUEUE_KEY, gid, status,
};
use std::net::SocketAddr;

/// The destination queue pair of datagrams to a group (IBTA 10.5.1).
pub const QUEUE_PAIR: u32 = 0xff_ffff;

impl Manager {
    /// Joins a multicast group (`rdma_join_multicast`) from the identifier's bound address. `join` is the program's
    /// identifier of the join. The result is the event `MulticastJoin`, or `MulticastError` if the group has another
    /// version of IP.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] if the identifier has no address, or is not for datagrams;
    /// [`Refused::Parameter`] if the address is not a group's; [`Refused::TooMany`] if its events are not taken.
    pub fn join_multicast(
        &mut self,
        client: Client,
        id: u32,
        address: SocketAddr,
        join: u32,
    ) -> Result<(), Refused> {
        let endpoint = self.owned(client, id)?;
        endpoint.listens_for_more()?;
        let has_address =
            matches!(endpoint.state, State::Bound | State::AddressResolved | State::RouteResolved);
        let local =
            endpoint.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
        let Some(local) = local.filter(|_| has_address && endpoint.transport == Transport::Datagram) else {
            return Err(Refused::State);
        };
        let group = address.ip().to_canonical();
        if !group.is_multicast() {
            return Err(Refused::Parameter);
        }
        let reaches = group.is_ipv4() == local.is_ipv4();
        let kind = if reaches { EventKind::MulticastJoin } else { EventKind::MulticastError };
        self.tell(id, kind, |event| {
            event.status = if reaches { 0 } else { status::UNREACHABLE };
            event.datagram = Some(DatagramDetails { queue_pair: QUEUE_PAIR, queue_key: UDP_QUEUE_KEY });
            event.group = Some(Group { join, gid: gid(group) });
        });
        Ok(())
    }
}
