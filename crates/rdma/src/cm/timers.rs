//! Missing answers: messages are sent again, and finally given up. They are given up at once if the network reports
//! that they can't arrive.

use super::endpoint::{Retried, State};
use super::receive::TIMEOUT;
use super::{EventKind, Manager, RESPONSE_TIMEOUT, RETRIES, duration, status};
use packet::roce::cm::Message;
use std::net::IpAddr;
use std::time::Duration;

/// Bytes at the head of a message that identify its conversation: up to its sender's name for it.
pub const QUOTED: usize = 28;

impl Manager {
    /// Checks the clock: `now` is the time since a fixed moment. Returns the time by which it must be called again.
    pub fn poll(&mut self, now: Duration) -> Option<Duration> {
        let pending = self.serve_pending(now);
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                return pending.into_iter().chain([at]).min();
            }
            self.expired(now, id);
        }
        pending
    }

    fn expired(&mut self, now: Duration, id: u32) {
        let retried = self.endpoints.get(&id).and_then(|endpoint| endpoint.retried);
        self.stop_timer(id);
        match retried {
            Some(Retried { left, .. }) if left > 0 => {
                self.send_again(id);
                self.start_retries(id, now + duration(RESPONSE_TIMEOUT), left - 1, false);
            }
            _ => self.gave_up(now, id),
        }
    }

    fn gave_up(&mut self, now: Duration, id: u32) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        match endpoint.state {
            State::ReqSent | State::RepSent => {
                self.give_up(id, TIMEOUT);
                self.unreachable(id, status::TIMED_OUT);
            }
            State::SidrReqSent => self.unreachable(id, status::TIMED_OUT),
            State::DreqSent => self.disconnected(now, id, status::TIMED_OUT),
            State::TimeWait => {
                self.set_state(id, State::Closed);
                self.tell(id, EventKind::TimewaitExit, |_| ());
            }
            _ => {}
        }
    }

    /// Handles the network's report that it can't deliver a message of ours, whose head it quotes. Ends an unanswered
    /// request for a connection or a queue pair; a conversation that has an answer goes on.
    pub fn undelivered(&mut self, from: IpAddr, to: IpAddr, head: &[u8; QUOTED]) {
        let mut transaction = [0; 8];
        transaction.copy_from_slice(&head[8..16]);
        let [.., a, b, c, d] = *head;
        let Some(id) = self.by_name.get(&u32::from_be_bytes([a, b, c, d])).copied() else { return };
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let waits = matches!(endpoint.state, State::ReqSent | State::SidrReqSent)
            && endpoint.is_between(to.to_canonical(), from.to_canonical())
            && endpoint.transaction == u64::from_be_bytes(transaction);
        if waits {
            self.unreachable(id, status::UNREACHABLE);
        }
    }

    fn unreachable(&mut self, id: u32, status: i32) {
        self.set_state(id, State::Closed);
        self.tell(id, EventKind::Unreachable, |event| event.status = status);
    }

    /// Sends a message of an endpoint's conversation until it is answered.
    pub(super) fn send_until_answered(&mut self, now: Duration, id: u32, message: &Message) {
        self.send_once(id, message);
        self.start_retries(id, now + duration(RESPONSE_TIMEOUT), RETRIES, false);
    }

    /// Waits longer for an answer, but only once for each time the message was sent.
    pub(super) fn be_patient(&mut self, now: Duration, id: u32, service_timeout: u8) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let Some(Retried { left, asked_to_wait: false, .. }) = endpoint.retried else { return };
        let at = now + duration(service_timeout) + duration(RESPONSE_TIMEOUT);
        self.start_retries(id, at, left, true);
    }

    fn start_retries(&mut self, id: u32, at: Duration, left: u8, asked_to_wait: bool) {
        self.stop_timer(id);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.retried = Some(Retried { at, left, asked_to_wait });
            self.timers.insert((at, id));
        }
    }

    /// Waits without sending anything again.
    pub(super) fn start_timer(&mut self, id: u32, at: Duration) {
        self.start_retries(id, at, 0, true);
    }

    pub(super) fn stop_timer(&mut self, id: u32) {
        if let Some(retried) = self.endpoints.get_mut(&id).and_then(|endpoint| endpoint.retried.take()) {
            self.timers.remove(&(retried.at, id));
        }
    }
}
