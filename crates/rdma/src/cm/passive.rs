//! The passive side: it receives requests for connections.

use super::active::padded;
use super::endpoint::{End, Endpoint, State};
use super::header::{self, IpHeader};
use super::receive::{
    CONSUMER, INVALID_GID, INVALID_MTU, INVALID_SERVICE, INVALID_TRANSPORT, NO_RESOURCES, STALE,
};
use super::{
    Client, ConnectionDetails, EventKind, Manager, Parameters, RESPONSE_TIMEOUT, Refused, Transport, gid,
};
use crate::Mtu;
use packet::roce::cm::{Mad, Message, Rej, Rep, Req};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

impl Manager {
    /// Handles a request for a connection.
    pub(super) fn req(&mut self, now: Duration, from: IpAddr, to: IpAddr, mad: &Mad, req: &Req) {
        if let Some(id) = self.by_peer.get(&(from, req.local, false)).copied()
            && self
                .endpoints
                .get(&id)
                .is_some_and(|e| e.is_between(from, to) && e.transaction == mad.transaction)
        {
            return self.asked_again(id);
        }
        if self.is_stale(now, from, to, req) {
            return self.refuse(from, to, mad, 0, req.local, STALE);
        }
        match self.acceptable(from, to, req) {
            Ok((listener, mtu, header)) => {
                self.requested_of(listener, (from, header), mad.transaction, mtu, req);
            }
            Err(reason) => self.refuse(from, to, mad, 0, req.local, reason),
        }
    }

    fn asked_again(&mut self, id: u32) {
        match self.endpoints.get(&id).map(|endpoint| endpoint.state) {
            Some(State::ReqReceived) => self.ask_for_patience(id, 0),
            Some(State::RepSent) => self.send_again(id),
            Some(State::Closed) => self.refuse_again(id),
            _ => {}
        }
    }

    /// Is true if the peer starts anew with a queue pair or a name of an existing connection. That connection is
    /// then over, and ended with a DREQ if it was established.
    fn is_stale(&mut self, now: Duration, from: IpAddr, to: IpAddr, req: &Req) -> bool {
        let by_name = self.by_peer.get(&(from, req.local, false));
        let by_queue_pair = self.by_queue_pair.get(&(from, req.queue_pair)).filter(|_| req.queue_pair != 0);
        let Some(id) = by_name.or(by_queue_pair).copied() else { return false };
        let Some(endpoint) = self.endpoints.get(&id) else { return false };
        if !endpoint.is_between(from, to) || !endpoint.state.is_connection() {
            return false;
        }
        if endpoint.state == State::Established {
            self.send_dreq(now, id);
        }
        true
    }

    /// Returns the listener for a request that can be served, or the reason of the refusal.
    fn acceptable(&self, from: IpAddr, to: IpAddr, req: &Req) -> Result<(u32, Mtu, IpHeader), u16> {
        let asked = IpHeader::asked(&req.private, from, to);
        let listener = self.listener(req.service, asked, false).ok_or(INVALID_SERVICE)?;
        let header = IpHeader::parse(&req.private).map_err(|_| CONSUMER)?;
        if !header.fits(from, to) {
            return Err(CONSUMER);
        }
        if req.gids != [gid(from), gid(to)] {
            return Err(INVALID_GID);
        }
        let mtu = Mtu::from_code(req.mtu).filter(|mtu| *mtu <= self.config.mtu).ok_or(INVALID_MTU)?;
        let endpoint = self.endpoints.get(&listener).ok_or(INVALID_SERVICE)?;
        if req.transport != endpoint.transport.code() {
            return Err(INVALID_TRANSPORT);
        }
        if !self.has_room(endpoint) {
            return Err(NO_RESOURCES);
        }
        Ok((listener, mtu, header))
    }

    /// Is true if a listener accepts one more request.
    pub(super) fn has_room(&self, listener: &Endpoint) -> bool {
        listener.requests < listener.backlog
            && self.requests < self.config.limits.requests
            && self.endpoints.len() < self.config.limits.ids
    }

    /// Creates an endpoint for a request to a listener.
    pub(super) fn child(
        &mut self,
        listener: u32,
        (from, header): (IpAddr, IpHeader),
        peer_name: u32,
    ) -> Option<u32> {
        let parent = self.endpoints.get_mut(&listener)?;
        parent.requests += 1;
        let mut child = Endpoint::new(parent.channel, parent.space, parent.transport, self.config.mtu);
        child.local = parent.local.map(|local| SocketAddr::new(header.destination, local.port()));
        child.type_of_service = parent.type_of_service;
        child.ack_timeout = parent.ack_timeout;
        child.peer = Some(SocketAddr::new(header.source, header.source_port));
        child.own = (header.source.is_loopback() || header.destination.is_loopback()).then_some(from);
        child.peer_name = peer_name;
        child.listener = Some(listener);
        child.state =
            if child.transport == Transport::Datagram { State::SidrReqReceived } else { State::ReqReceived };
        let key = child.peer_key();
        let id = self.add(child);
        self.requests += 1;
        key.map(|key| self.by_peer.insert(key, id));
        Some(id)
    }

    fn requested_of(
        &mut self,
        listener: u32,
        asked: (IpAddr, IpHeader),
        transaction: u64,
        mtu: Mtu,
        req: &Req,
    ) {
        let Some(id) = self.child(listener, asked, req.local) else { return };
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        endpoint.transaction = transaction;
        endpoint.mtu = mtu;
        endpoint.peer_psn = req.psn;
        endpoint.theirs = End {
            queue_pair: req.queue_pair,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
        };
        endpoint.ours.responder_resources = req.initiator_depth.min(self.config.max_reads);
        endpoint.ours.initiator_depth = req.responder_resources.min(self.config.max_reads);
        endpoint.retries = req.retries;
        endpoint.rnr_retries = req.rnr_retries;
        endpoint.timeout = endpoint.ack_timeout.unwrap_or(req.ack_timeout);
        if let Some(key) = endpoint.queue_pair_key() {
            self.by_queue_pair.insert(key, id);
        }
        let route = self.route(id);
        self.tell(id, EventKind::ConnectRequest, |event| {
            event.listener = Some(listener);
            event.route = route;
            event.connection = Some(ConnectionDetails {
                queue_pair: req.queue_pair,
                shared_receives: req.shared_receives,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                flow_control: req.flow_control,
                retries: req.retries,
                rnr_retries: req.rnr_retries,
            });
            event.private = req.private[header::LEN..].to_vec();
        });
    }

    /// Accepts a request (`rdma_accept`); the queue pair must be ready. The result is the event `Established` when the
    /// peer is ready too, or `Unreachable` or `Rejected`. For datagrams, the answer completes the conversation.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] if the identifier is not a waiting request; [`Refused::PrivateData`].
    pub fn accept(
        &mut self,
        now: Duration,
        client: Client,
        id: u32,
        parameters: &Parameters,
    ) -> Result<(), Refused> {
        let guid = self.config.guid;
        let endpoint = self.owned(client, id)?;
        match endpoint.state {
            State::ReqReceived => {}
            State::SidrReqReceived => return self.answer_with(id, parameters),
            _ => return Err(Refused::State),
        }
        let private = padded(&parameters.private)?;
        endpoint.ours = End {
            queue_pair: parameters.queue_pair,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
        };
        let rep = Rep {
            ids: endpoint.ids(),
            queue_key: 0,
            queue_pair: parameters.queue_pair,
            psn: endpoint.psn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            ack_delay: RESPONSE_TIMEOUT - 5,
            failover: 1,
            flow_control: parameters.flow_control,
            rnr_retries: parameters.rnr_retries & 7,
            shared_receives: parameters.shared_receives,
            guid,
            private,
        };
        self.set_state(id, State::RepSent);
        self.send_until_answered(now, id, &Message::Rep(rep));
        Ok(())
    }

    /// Rejects a request or a reply (`rdma_reject`). `reason` goes to the peer; 0 stands for 28, the program's reason.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] if there is neither; [`Refused::PrivateData`].
    pub fn reject(&mut self, client: Client, id: u32, reason: u16, private: &[u8]) -> Result<(), Refused> {
        let endpoint = self.owned(client, id)?;
        let which = match endpoint.state {
            State::ReqReceived => 0,
            State::RepReceived => 1,
            State::SidrReqReceived => return self.answer_not(id, private),
            _ => return Err(Refused::State),
        };
        let reason = if reason == 0 { CONSUMER } else { reason };
        let private = padded(private)?;
        let ids = endpoint.ids();
        let rej = Rej { ids, which, reason, info_len: 0, info: [0; 72], private };
        self.send_once(id, &Message::Rej(rej));
        self.set_state(id, State::Closed);
        Ok(())
    }

    /// Handles an RTU: the peer is ready.
    pub(super) fn rtu(&mut self, id: u32, transaction: u64) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        if endpoint.state == State::RepSent && endpoint.transaction == transaction {
            self.established(id);
        }
    }

    /// Notes that a packet of the connection arrived (`rdma_notify`, or the device saw it itself): the peer is
    /// ready, and its RTU is late.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], [`Refused::State`].
    pub fn notify(&mut self, client: Client, id: u32) -> Result<(), Refused> {
        match self.owned(client, id)?.state {
            State::RepSent => self.established(id),
            State::Established => {}
            _ => return Err(Refused::State),
        }
        Ok(())
    }

    fn established(&mut self, id: u32) {
        self.stop_timer(id);
        self.set_state(id, State::Established);
        self.tell(id, EventKind::Established, |_| ());
    }
}
