//! The active side: it requests a connection.

use super::endpoint::{End, Endpoint, State};
use super::header::{self, IpHeader};
use super::{
    Client, ConnectionDetails, EventKind, Manager, Parameters, RESPONSE_TIMEOUT, RETRIES, Refused, Transport,
    gid,
};
use packet::roce::cm::{Mad, Message, Rep, Req};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Packet rate over Ethernet, as Linux encodes it: 10 Gbit/s.
const RATE: u8 = 3;
pub(super) const HOP_LIMIT: u8 = 64;

impl Manager {
    /// Requests a connection or, for datagrams, the peer's queue pair (`rdma_connect`). The result is an event:
    /// `ConnectResponse`, `Rejected` or `Unreachable`; for datagrams `Established` or `Unreachable`.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] if the route is not resolved; [`Refused::PrivateData`];
    /// [`Refused::Parameter`] for a multicast group.
    pub fn connect(
        &mut self,
        now: Duration,
        client: Client,
        id: u32,
        parameters: &Parameters,
    ) -> Result<(), Refused> {
        let endpoint = self.owned(client, id)?;
        if endpoint.state != State::RouteResolved {
            return Err(Refused::State);
        }
        let (Some(local), Some(peer)) = (endpoint.local, endpoint.peer) else { return Err(Refused::State) };
        let (source, destination) = endpoint.addresses().ok_or(Refused::State)?;
        let header = IpHeader { source_port: local.port(), source: local.ip(), destination: peer.ip() };
        if destination.is_multicast() {
            return Err(Refused::Parameter);
        }
        if endpoint.transport == Transport::Datagram {
            return self.ask_for_queue_pair(now, id, &header, &parameters.private);
        }
        let private = requested(&header, &parameters.private)?;
        let transaction = (self.random.0)();
        let config = self.config;
        let endpoint = self.endpoints.get_mut(&id).ok_or(Refused::NoSuchId)?;
        endpoint.transaction = transaction;
        endpoint.ours = End {
            queue_pair: parameters.queue_pair,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
        };
        endpoint.retries = parameters.retries & 7;
        endpoint.rnr_retries = parameters.rnr_retries & 7;
        endpoint.timeout = endpoint.ack_timeout.unwrap_or(config.ack_timeout);
        let service = endpoint.space.service(peer.port());
        let req =
            request(endpoint, config.guid, service, [source, destination].map(gid), parameters, private);
        self.set_state(id, State::ReqSent);
        self.send_until_answered(now, id, &Message::Req(req));
        Ok(())
    }

    /// Tells the peer that the queue pair is ready, after `ConnectResponse` (`rdma_establish`; `librdmacm` does it
    /// itself if it has the queue pair).
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`].
    pub fn establish(&mut self, client: Client, id: u32) -> Result<(), Refused> {
        let endpoint = self.owned(client, id)?;
        if endpoint.state != State::RepReceived {
            return Err(Refused::State);
        }
        let rtu = Message::Rtu { ids: endpoint.ids(), private: [0; 224] };
        self.set_state(id, State::Established);
        self.send_once(id, &rtu);
        Ok(())
    }

    /// Handles a reply to one of our requests.
    pub(super) fn rep(&mut self, from: IpAddr, to: IpAddr, mad: &Mad, rep: &Rep) {
        let Some(id) = self.by_name.get(&rep.ids.remote).copied() else {
            return self.refuse(from, to, mad, 1, rep.ids.local, super::receive::INVALID_ID);
        };
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let is_answer = endpoint.is_between(from, to) && endpoint.transaction == mad.transaction;
        if !is_answer || endpoint.listener.is_some() {
            return;
        }
        match endpoint.state {
            State::ReqSent => self.replied(id, rep),
            // The reply is repeated: the peer did not get the RTU, or none was sent yet.
            State::Established if endpoint.peer_name == rep.ids.local => self.send_again(id),
            State::RepReceived if endpoint.peer_name == rep.ids.local => self.ask_for_patience(id, 1),
            _ => {}
        }
    }

    fn replied(&mut self, id: u32, rep: &Rep) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        endpoint.peer_name = rep.ids.local;
        endpoint.peer_psn = rep.psn;
        endpoint.theirs = End {
            queue_pair: rep.queue_pair,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
        };
        // The peer may offer less than was requested.
        endpoint.ours.initiator_depth = endpoint.ours.initiator_depth.min(rep.responder_resources);
        endpoint.ours.responder_resources = endpoint.ours.responder_resources.min(rep.initiator_depth);
        endpoint.rnr_retries = rep.rnr_retries;
        let retries = endpoint.retries;
        if let Some(key) = endpoint.queue_pair_key() {
            self.by_queue_pair.insert(key, id);
        }
        self.stop_timer(id);
        self.set_state(id, State::RepReceived);
        self.tell(id, EventKind::ConnectResponse, |event| {
            event.connection = Some(ConnectionDetails {
                queue_pair: rep.queue_pair,
                shared_receives: rep.shared_receives,
                responder_resources: rep.initiator_depth,
                initiator_depth: rep.responder_resources,
                flow_control: rep.flow_control,
                retries,
                rnr_retries: rep.rnr_retries,
            });
            event.private = rep.private.to_vec();
        });
    }
}

/// Returns the request for an endpoint's connection. Over RoCE it has no LIDs, and the default partition.
fn request(
    endpoint: &Endpoint,
    guid: u64,
    service: u64,
    gids: [Ipv6Addr; 2],
    parameters: &Parameters,
    private: [u8; 92],
) -> Req {
    Req {
        local: endpoint.name,
        service,
        guid,
        queue_key: 0,
        queue_pair: parameters.queue_pair,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        remote_timeout: RESPONSE_TIMEOUT,
        transport: endpoint.transport.code(),
        flow_control: parameters.flow_control,
        psn: endpoint.psn,
        local_timeout: RESPONSE_TIMEOUT,
        retries: endpoint.retries,
        partition: 0xffff,
        mtu: endpoint.mtu as u8,
        rdc: false,
        rnr_retries: endpoint.rnr_retries,
        cm_retries: RETRIES,
        shared_receives: parameters.shared_receives,
        lids: [0xffff; 2],
        gids,
        flow_label: 0,
        rate: RATE,
        traffic_class: endpoint.type_of_service,
        hop_limit: HOP_LIMIT,
        service_level: 0,
        subnet_local: false,
        ack_timeout: endpoint.timeout,
        private,
    }
}

/// Returns the private data of a request: the header, then the program's data.
pub(super) fn requested<const N: usize>(header: &IpHeader, private: &[u8]) -> Result<[u8; N], Refused> {
    let mut bytes = [0; N];
    let (first, rest) = bytes.split_at_mut(header::LEN);
    first.copy_from_slice(&header.to_bytes());
    rest.get_mut(..private.len()).ok_or(Refused::PrivateData)?.copy_from_slice(private);
    Ok(bytes)
}

pub(super) fn padded<const N: usize>(private: &[u8]) -> Result<[u8; N], Refused> {
    let mut bytes = [0; N];
    bytes.get_mut(..private.len()).ok_or(Refused::PrivateData)?.copy_from_slice(private);
    Ok(bytes)
}
