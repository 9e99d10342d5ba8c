//! Queries for the queue pair of a service for datagrams, and their answers (IBTA 12.11).

use super::active::{padded, requested};
use super::endpoint::{End, State};
use super::header::{self, IpHeader};
use super::{DatagramDetails, EventKind, Manager, Parameters, Refused, UDP_QUEUE_KEY};
use packet::roce::cm::{Mad, Message, SidrRep};
use std::net::IpAddr;
use std::time::Duration;

/// Status of an answer: success.
const SUCCESS: u8 = 0;
/// Status of an answer: nobody provides that service.
const UNSUPPORTED: u8 = 1;
/// Status of an answer: the service's program refuses.
const REJECTED: u8 = 2;
/// Status of an answer: the limit of requests is reached.
const NO_QUEUE_PAIR: u8 = 3;

impl Manager {
    pub(super) fn ask_for_queue_pair(
        &mut self,
        now: Duration,
        id: u32,
        header: &IpHeader,
        private: &[u8],
    ) -> Result<(), Refused> {
        let private = requested(header, private)?;
        let transaction = (self.random.0)();
        let endpoint = self.endpoints.get_mut(&id).ok_or(Refused::NoSuchId)?;
        let service = endpoint.space.service(endpoint.peer.map_or(0, |peer| peer.port()));
        endpoint.transaction = transaction;
        let request = endpoint.name;
        self.set_state(id, State::SidrReqSent);
        let asked = Message::SidrReq { request, partition: 0xffff, service, private };
        self.send_until_answered(now, id, &asked);
        Ok(())
    }

    /// Handles a query.
    pub(super) fn sidr_req(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        mad: &Mad,
        (request, service, private): (u32, u64, &[u8; 216]),
    ) {
        if let Some(id) = self.by_peer.get(&(from, request, true)).copied()
            && let Some(endpoint) = self.endpoints.get(&id)
            && endpoint.is_between(from, to)
            && endpoint.transaction == mad.transaction
        {
            if endpoint.state == State::SidrDone {
                self.send_again(id);
            }
            return;
        }
        let answer = self.serves(service, from, to, private);
        match answer {
            Ok((listener, header)) => {
                self.asked_for_queue_pair(listener, (from, header), mad.transaction, request, private);
            }
            Err(status) => {
                let rep = answer_of(request, service, status);
                self.send_mad(
                    to,
                    from,
                    &Mad { transaction: mad.transaction, message: Message::SidrRep(rep) },
                );
            }
        }
    }

    /// Returns the listener for a query, or the status of the refusal.
    fn serves(&self, service: u64, from: IpAddr, to: IpAddr, private: &[u8]) -> Result<(u32, IpHeader), u8> {
        let listener = self.listener(service, IpHeader::asked(private, from, to), true).ok_or(UNSUPPORTED)?;
        let header = IpHeader::parse(private).map_err(|_| REJECTED)?;
        if !header.fits(from, to) {
            return Err(REJECTED);
        }
        let endpoint = self.endpoints.get(&listener).ok_or(UNSUPPORTED)?;
        if self.has_room(endpoint) { Ok((listener, header)) } else { Err(NO_QUEUE_PAIR) }
    }

    fn asked_for_queue_pair(
        &mut self,
        listener: u32,
        asked: (IpAddr, IpHeader),
        transaction: u64,
        request: u32,
        private: &[u8; 216],
    ) {
        let Some(id) = self.child(listener, asked, request) else { return };
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.transaction = transaction;
        }
        let route = self.route(id);
        self.tell(id, EventKind::ConnectRequest, |event| {
            event.listener = Some(listener);
            event.route = route;
            event.private = private[header::LEN..].to_vec();
        });
    }

    /// Answers a query with a queue pair.
    pub(super) fn answer_with(&mut self, id: u32, parameters: &Parameters) -> Result<(), Refused> {
        let private = padded(&parameters.private)?;
        let endpoint = self.endpoints.get_mut(&id).ok_or(Refused::NoSuchId)?;
        endpoint.ours = End { queue_pair: parameters.queue_pair, ..End::default() };
        let service = endpoint.space.service(endpoint.local.map_or(0, |local| local.port()));
        let rep = SidrRep {
            queue_pair: parameters.queue_pair,
            queue_key: parameters.queue_key.unwrap_or(UDP_QUEUE_KEY),
            private,
            ..answer_of(endpoint.peer_name, service, SUCCESS)
        };
        self.set_state(id, State::SidrDone);
        self.send_once(id, &Message::SidrRep(rep));
        Ok(())
    }

    pub(super) fn answer_not(&mut self, id: u32, private: &[u8]) -> Result<(), Refused> {
        let private = padded(private)?;
        let endpoint = self.endpoints.get_mut(&id).ok_or(Refused::NoSuchId)?;
        let service = endpoint.space.service(endpoint.local.map_or(0, |local| local.port()));
        let rep = SidrRep { private, ..answer_of(endpoint.peer_name, service, REJECTED) };
        self.set_state(id, State::SidrDone);
        self.send_once(id, &Message::SidrRep(rep));
        Ok(())
    }

    /// Handles the answer to a query of ours.
    pub(super) fn sidr_rep(&mut self, from: IpAddr, to: IpAddr, mad: &Mad, rep: &SidrRep) {
        let Some(id) = self.by_name.get(&rep.request).copied() else { return };
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let is_answer = endpoint.is_between(from, to) && endpoint.transaction == mad.transaction;
        if !is_answer || endpoint.state != State::SidrReqSent {
            return;
        }
        self.stop_timer(id);
        let (state, kind) = match rep.status {
            SUCCESS => (State::SidrDone, EventKind::Established),
            _ => (State::Closed, EventKind::Unreachable),
        };
        self.set_state(id, state);
        self.tell(id, kind, |event| {
            event.status = rep.status.into();
            event.private = rep.private.to_vec();
            event.datagram = Some(DatagramDetails { queue_pair: rep.queue_pair, queue_key: rep.queue_key });
        });
    }
}

fn answer_of(request: u32, service: u64, status: u8) -> SidrRep {
    SidrRep {
        request,
        status,
        info_len: 0,
        queue_pair: 0,
        service,
        queue_key: 0,
        info: [0; 72],
        private: [0; 136],
    }
}
