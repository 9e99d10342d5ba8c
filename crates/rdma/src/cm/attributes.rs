//! The attributes for a connection's queue pair (`rdma_init_qp_attr`).

use super::active::HOP_LIMIT;
use super::endpoint::{Endpoint, State};
use super::{Client, Manager, Refused, Transport, UDP_QUEUE_KEY, gid};
use crate::Mtu;
use std::net::Ipv6Addr;

/// Time for which a peer waits that finds no receive: the code of 0.64 ms. Linux uses 655 ms (code 0), which helps
/// nobody.
const RNR_TIMER: u8 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the standard's names
pub enum Target {
    Init,
    ReadyToReceive,
    ReadyToSend,
}

/// The attributes that `ibv_modify_qp` sets in a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// To INIT, for a connection.
    Init {
        writes: bool,
        /// Whether the peer may read and execute atomics.
        reads: bool,
    },
    /// To INIT, for datagrams.
    InitDatagram {
        /// Key that a packet must have.
        queue_key: u32,
    },
    /// To RTR.
    ReadyToReceive {
        /// The peer's GID.
        destination: Ipv6Addr,
        /// Index of the source among the guest's GIDs.
        source_index: u32,
        traffic_class: u8,
        hop_limit: u8,
        /// Longest payload of a packet.
        mtu: Mtu,
        queue_pair: u32,
        /// PSN of the first packet received.
        psn: u32,
        /// For reliable connections: largest number of READs and atomics that the peer may have under way; code of
        /// the RNR timer.
        reliable: Option<(u8, u8)>,
    },
    /// To RTS.
    ReadyToSend {
        /// PSN of the first packet sent.
        psn: u32,
        /// Set for reliable connections.
        reliable: Option<Retrying>,
    },
}

/// Attributes with which a reliable connection handles loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retrying {
    /// Exponent of the timeout.
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    /// Largest number of READs and atomics under way.
    pub reads: u8,
}

impl Manager {
    /// Returns the attributes for an identifier's queue pair.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] if they are not known yet.
    pub fn transition(&mut self, client: Client, id: u32, target: Target) -> Result<Transition, Refused> {
        self.owned(client, id)?;
        let endpoint = self.endpoints.get(&id).ok_or(Refused::NoSuchId)?;
        if endpoint.transport == Transport::Datagram {
            let is_init = target == Target::Init;
            return if is_init {
                Ok(Transition::InitDatagram { queue_key: UDP_QUEUE_KEY })
            } else {
                Err(Refused::State)
            };
        }
        let is_connected = endpoint.state.is_connection();
        match target {
            Target::Init => Ok(Transition::Init {
                writes: is_connected,
                reads: is_connected && endpoint.ours.responder_resources > 0,
            }),
            _ if !is_connected => Err(Refused::State),
            Target::ReadyToReceive => self.ready_to_receive(endpoint),
            Target::ReadyToSend => Ok(ready_to_send(endpoint)),
        }
    }

    fn ready_to_receive(&self, endpoint: &Endpoint) -> Result<Transition, Refused> {
        let (local, peer) = endpoint.addresses().ok_or(Refused::State)?;
        let source =
            self.gids.iter().position(|own| *own == gid(local)).ok_or(Refused::AddressNotAvailable)?;
        let reliable = endpoint.transport == Transport::Reliable;
        Ok(Transition::ReadyToReceive {
            destination: gid(peer),
            source_index: source as u32,
            traffic_class: endpoint.type_of_service,
            hop_limit: HOP_LIMIT,
            mtu: endpoint.mtu,
            queue_pair: endpoint.theirs.queue_pair,
            psn: endpoint.psn,
            reliable: reliable.then_some((endpoint.ours.responder_resources, RNR_TIMER)),
        })
    }
}

fn ready_to_send(endpoint: &Endpoint) -> Transition {
    debug_assert!(endpoint.state != State::Idle);
    let reliable = endpoint.transport == Transport::Reliable;
    let retrying = Retrying {
        timeout: endpoint.timeout,
        retries: endpoint.retries,
        rnr_retries: endpoint.rnr_retries,
        reads: endpoint.ours.initiator_depth,
    };
    Transition::ReadyToSend { psn: endpoint.peer_psn, reliable: reliable.then_some(retrying) }
}
