//! Messages from the wire, and to it.

use super::endpoint::{Endpoint, State};
use super::{Manager, Outgoing, SERVICE_TIMEOUT};
use packet::roce::cm::{self, CmError, Ids, MAD_LEN, Mad, Message, Rej};
use std::net::IpAddr;
use std::time::Duration;

// Reasons of a REJ (IBTA 12.6.7.2).
pub(super) const NO_RESOURCES: u16 = 3;
pub(super) const TIMEOUT: u16 = 4;
pub(super) const INVALID_ID: u16 = 6;
pub(super) const INVALID_SERVICE: u16 = 8;
pub(super) const INVALID_TRANSPORT: u16 = 9;
pub(super) const STALE: u16 = 10;
pub(super) const INVALID_GID: u16 = 12;
pub(super) const INVALID_MTU: u16 = 26;
pub(super) const CONSUMER: u16 = 28;

/// Attribute of the request for an alternate path, and of its answer.
const LAP: u16 = 0x19;
const APR: u16 = 0x1a;
/// Status of an APR: alternate paths are not supported.
const LAP_UNSUPPORTED: u8 = 1;

impl Manager {
    /// Handles a datagram to queue pair 1 with its queue key, from another manager to an address of the guest. Returns
    /// false if it is not a manager's message.
    pub fn receive(&mut self, now: Duration, from: IpAddr, to: IpAddr, payload: &[u8]) -> bool {
        let (from, to) = (from.to_canonical(), to.to_canonical());
        let mad = match cm::parse(payload) {
            Ok(mad) => mad,
            Err(CmError::Message(LAP)) => {
                self.refuse_alternate_path(from, to, payload);
                return true;
            }
            Err(_) => return false,
        };
        if !self.wait_for_listener(now, from, to, &mad) {
            self.hear(now, from, to, &mad);
        }
        true
    }

    pub(super) fn hear(&mut self, now: Duration, from: IpAddr, to: IpAddr, mad: &Mad) {
        match &mad.message {
            Message::Req(req) => self.req(now, from, to, mad, req),
            Message::Rep(rep) => self.rep(from, to, mad, rep),
            Message::Rej(rej) => self.rej(now, from, to, mad, rej),
            Message::Rtu { ids, .. } => {
                if let Some(id) = self.conversation(from, to, *ids) {
                    self.rtu(id, mad.transaction);
                }
            }
            Message::Mra { ids, which, timeout, .. } => {
                self.mra(now, from, to, mad, (*ids, *which, *timeout));
            }
            Message::Dreq { ids, queue_pair, .. } => self.dreq(now, from, to, mad, (*ids, *queue_pair)),
            Message::Drep { ids, .. } => {
                if let Some(id) = self.conversation(from, to, *ids) {
                    self.drep(now, id, mad.transaction);
                }
            }
            Message::SidrReq { request, service, private, .. } => {
                self.sidr_req(from, to, mad, (*request, *service, private));
            }
            Message::SidrRep(rep) => self.sidr_rep(from, to, mad, rep),
        }
    }

    /// Returns the endpoint with these names, as the peer sends them.
    fn conversation(&self, from: IpAddr, to: IpAddr, ids: Ids) -> Option<u32> {
        let id = self.by_name.get(&ids.remote)?;
        let is_its = |endpoint: &&Endpoint| {
            endpoint.is_between(from, to) && endpoint.peer_name == ids.local && ids.local != 0
        };
        self.endpoints.get(id).filter(is_its).map(|_| *id)
    }

    /// Handles an MRA: the peer's answer will take longer.
    fn mra(
        &mut self,
        now: Duration,
        from: IpAddr,
        to: IpAddr,
        mad: &Mad,
        (ids, which, timeout): (Ids, u8, u8),
    ) {
        let Some(id) = self.by_name.get(&ids.remote).copied() else { return };
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let is_meant = match endpoint.state {
            State::ReqSent => which == 0,
            State::RepSent => which == 1 && endpoint.peer_name == ids.local,
            _ => false,
        };
        if is_meant && endpoint.is_between(from, to) && endpoint.transaction == mad.transaction {
            self.be_patient(now, id, timeout.min(SERVICE_TIMEOUT));
        }
    }

    pub(super) fn ask_for_patience(&mut self, id: u32, which: u8) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let Some((source, destination)) = endpoint.addresses() else { return };
        let mra = Message::Mra { ids: endpoint.ids(), which, timeout: SERVICE_TIMEOUT, private: [0; 222] };
        let mad = Mad { transaction: endpoint.transaction, message: mra };
        self.send_mad(source, destination, &mad);
    }

    /// Refuses a message that belongs to no conversation.
    pub(super) fn refuse(&mut self, from: IpAddr, to: IpAddr, mad: &Mad, which: u8, name: u32, reason: u16) {
        let ids = Ids { local: 0, remote: name };
        let rej = Rej { ids, which, reason, info_len: 0, info: [0; 72], private: [0; 148] };
        self.send_mad(to, from, &Mad { transaction: mad.transaction, message: Message::Rej(rej) });
    }

    /// Sends the last message again if it was a refusal.
    pub(super) fn refuse_again(&mut self, id: u32) {
        let sent = self.endpoints.get(&id).and_then(|endpoint| endpoint.sent.as_deref());
        if sent.is_some_and(|mad| matches!(cm::parse(mad), Ok(Mad { message: Message::Rej(_), .. }))) {
            self.send_again(id);
        }
    }

    /// Refuses a peer's request for an alternate path in an existing connection: these are not supported.
    fn refuse_alternate_path(&mut self, from: IpAddr, to: IpAddr, payload: &[u8]) {
        let Some((header, body)) = payload.split_first_chunk::<24>() else { return };
        let Some(names) = body.first_chunk::<8>() else { return };
        let [a, b, c, d, e, f, g, h] = *names;
        let ids = Ids { local: u32::from_be_bytes([a, b, c, d]), remote: u32::from_be_bytes([e, f, g, h]) };
        if self.conversation(from, to, ids).is_none() {
            return;
        }
        // The names are at the start, as in an RTU; the status is the tenth byte.
        let mut transaction = [0; 8];
        transaction.copy_from_slice(&header[8..16]);
        let ids = Ids { local: ids.remote, remote: ids.local };
        let like = Message::Rtu { ids, private: [0; 224] };
        let mut mad = cm::write(&Mad { transaction: u64::from_be_bytes(transaction), message: like });
        mad[16..18].copy_from_slice(&APR.to_be_bytes());
        mad[24 + 9] = LAP_UNSUPPORTED;
        self.datagrams.push_back(Outgoing { source: to, destination: from, mad });
    }

    /// Sends a message of an endpoint's conversation once. Keeps it, to send it again if the peer asks again.
    pub(super) fn send_once(&mut self, id: u32, message: &Message) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let mad = cm::write(&Mad { transaction: endpoint.transaction, message: *message });
        endpoint.sent = Some(Box::new(mad));
        self.send_again(id);
    }

    pub(super) fn send_again(&mut self, id: u32) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let Some((source, destination)) = endpoint.addresses() else { return };
        let Some(mad) = endpoint.sent.as_deref().copied() else { return };
        self.datagrams.push_back(Outgoing { source, destination, mad });
    }

    pub(super) fn send_mad(&mut self, source: IpAddr, destination: IpAddr, mad: &Mad) {
        let mad: [u8; MAD_LEN] = cm::write(mad);
        self.datagrams.push_back(Outgoing { source, destination, mad });
    }
}
