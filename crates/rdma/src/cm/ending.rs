//! The end of connections.

use super::endpoint::State;
use super::receive::{CONSUMER, TIMEOUT};
use super::{Client, EventKind, Manager, Refused, TIME_WAIT, duration};
use packet::roce::cm::{Ids, Mad, Message, Rej};
use std::net::IpAddr;
use std::time::Duration;

impl Manager {
    /// Ends a connection (`rdma_disconnect`). The results are the events `Disconnected` and later `TimewaitExit`. Does
    /// nothing if the peer ended it first.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] if there is no connection.
    pub fn disconnect(&mut self, now: Duration, client: Client, id: u32) -> Result<(), Refused> {
        let endpoint = self.owned(client, id)?;
        match endpoint.state {
            State::Established | State::RepSent | State::RepReceived => self.send_dreq(now, id),
            State::DreqSent | State::TimeWait => {}
            State::Closed if endpoint.theirs.queue_pair != 0 => {}
            _ => return Err(Refused::State),
        }
        Ok(())
    }

    pub(super) fn send_dreq(&mut self, now: Duration, id: u32) {
        let transaction = (self.random.0)();
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        endpoint.transaction = transaction;
        let queue_pair = endpoint.theirs.queue_pair;
        let dreq = Message::Dreq { ids: endpoint.ids(), queue_pair, private: [0; 220] };
        self.stop_timer(id);
        self.set_state(id, State::DreqSent);
        self.send_until_answered(now, id, &dreq);
    }

    /// Tells the peer that the owner of an endpoint is gone.
    pub(super) fn part(&mut self, now: Duration, id: u32) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        match endpoint.state {
            State::Established => self.send_dreq(now, id),
            State::ReqSent => self.give_up(id, TIMEOUT),
            State::ReqReceived | State::RepReceived | State::RepSent => self.give_up(id, CONSUMER),
            State::SidrReqReceived => {
                let _ = self.answer_not(id, &[]);
            }
            _ => {}
        }
    }

    pub(super) fn give_up(&mut self, id: u32, reason: u16) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let which = match endpoint.state {
            State::ReqReceived => 0,
            State::RepReceived => 1,
            _ => 2,
        };
        let ids = endpoint.ids();
        let rej = Rej { ids, which, reason, info_len: 0, info: [0; 72], private: [0; 148] };
        self.send_once(id, &Message::Rej(rej));
    }

    /// Handles the peer's request to end a connection. A peer that asks again learns that the connection has ended.
    pub(super) fn dreq(
        &mut self,
        now: Duration,
        from: IpAddr,
        to: IpAddr,
        mad: &Mad,
        (ids, queue_pair): (Ids, u32),
    ) {
        let drep = Message::Drep { ids: Ids { local: ids.remote, remote: ids.local }, private: [0; 224] };
        let answer = Mad { transaction: mad.transaction, message: drep };
        let known = self.by_name.get(&ids.remote).and_then(|id| Some((*id, self.endpoints.get(id)?)));
        let Some((id, endpoint)) = known else { return self.send_mad(to, from, &answer) };
        let is_its = endpoint.is_between(from, to)
            && endpoint.peer_name == ids.local
            && endpoint.ours.queue_pair == queue_pair;
        if !is_its {
            return;
        }
        match endpoint.state {
            State::Established | State::RepSent | State::RepReceived | State::DreqSent => {
                self.send_mad(to, from, &answer);
                self.disconnected(now, id, 0);
            }
            State::TimeWait => self.send_mad(to, from, &answer),
            _ => {}
        }
    }

    /// Handles the peer's confirmation that a connection has ended.
    pub(super) fn drep(&mut self, now: Duration, id: u32, transaction: u64) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        if endpoint.state == State::DreqSent && endpoint.transaction == transaction {
            self.disconnected(now, id, 0);
        }
    }

    pub(super) fn disconnected(&mut self, now: Duration, id: u32, status: i32) {
        self.set_state(id, State::TimeWait);
        self.start_timer(id, now + duration(TIME_WAIT));
        self.tell(id, EventKind::Disconnected, |event| event.status = status);
    }

    /// Handles the peer's refusal.
    pub(super) fn rej(&mut self, now: Duration, from: IpAddr, to: IpAddr, mad: &Mad, rej: &Rej) {
        // A peer that never got an answer does not know our name.
        let id = match rej.ids.remote {
            0 => self.by_peer.get(&(from, rej.ids.local, false)),
            name => self.by_name.get(&name),
        };
        let Some(id) = id.copied() else { return };
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let names_match = match endpoint.state {
            State::ReqSent => true,
            _ => endpoint.peer_name == rej.ids.local || rej.ids.local == 0,
        };
        if !endpoint.is_between(from, to) || endpoint.transaction != mad.transaction || !names_match {
            return;
        }
        match endpoint.state {
            State::ReqSent | State::ReqReceived | State::RepReceived | State::RepSent => {
                self.set_state(id, State::Closed);
                self.tell(id, EventKind::Rejected, |event| {
                    event.status = rej.reason.into();
                    event.private = rej.private.to_vec();
                });
            }
            // The peer never got our RTU.
            State::Established if endpoint.listener.is_none() => self.disconnected(now, id, 0),
            _ => {}
        }
    }
}
