//! Requests that end sharing. They wait until nobody uses what was shared, or the user's process has ended; what a
//! dead user left unfinished is completed.
//!
//! The thread does not block: it continues with other work, and handles the request later.

use crate::base::ids::{CqId, Key, MwId, Qpn, SrqId};
use crate::base::refusal::Answer;
use crate::client::Client;
use crate::context::sharing::{ClosedSession, InboundSession, Invalidation, is_of};
use crate::inbox::message::Message;
use crate::memory::keys::KeyUsers;
use crate::qp::Qp;
use crate::transfer::unshare::{AGAIN, SOON};
use crate::window::Pages;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uverbs::qp::mask;
use uverbs::{DirectSession, Point, QpState, Request, SocketError, Unfinished, point, unfinished};

/// How often a thread that ends checks peers that take long.
const LONGEST: Duration = Duration::from_millis(100);

/// How long a thread that ends waits for peers that write to its application's memory. One that takes longer is
/// stopped, perhaps for ever.
const WRITERS: Duration = Duration::from_secs(5);

/// A request that waits for the end of sharing.
#[derive(Debug)]
pub(crate) enum Deferred {
    /// The request is handled once nobody uses the objects that it changes.
    Request(Request, Vec<OwnedFd>),
    /// The request was handled. It is answered once nobody uses the key that it invalidated. Until then nobody gets
    /// the pages of its region, even if a program gives them back.
    Reply(Answer, Invalidation, Vec<Arc<Pages>>),
}

/// How a user of a closed session ended.
enum Outcome {
    /// It stopped, or left nothing to complete.
    Done,
    /// It died in the middle of a message.
    Died(Unfinished),
}

impl Client {
    /// Returns the users of the key that a request invalidates.
    fn users(&self, request: &Request) -> Option<KeyUsers> {
        match *request {
            Request::DeregMr { mr } | Request::ReregMr { mr, .. } => {
                self.context.regions.get(Key(mr)).map(KeyUsers::new)
            }
            Request::DeallocMw { mw } => self.context.regions.window_part(MwId(mw)).map(KeyUsers::new),
            _ => None,
        }
    }

    /// Returns the pages of windows of the region that a request removes or changes.
    fn pages(&self, request: &Request) -> Vec<Arc<Pages>> {
        match *request {
            Request::DeregMr { mr } | Request::ReregMr { mr, .. } => {
                self.context.regions.window_pages(Key(mr))
            }
            _ => Vec::new(),
        }
    }

    /// Starts a request. It may have to wait for users of what it changes.
    pub(crate) fn begin_request(&mut self, request: Request, files: Vec<OwnedFd>) -> Result<(), SocketError> {
        self.deferred = Some(if let Some(users) = self.users(&request) {
            let pages = self.pages(&request);
            let reply = self.handle(request, files);
            if reply.is_err() {
                return self.reply(reply);
            }
            point(Point::RegionRemoved);
            let invalidation = self.context.invalidate_for(users);
            self.await_peers(invalidation);
            Deferred::Reply(reply, invalidation, pages)
        } else {
            self.unshare_for(&request);
            Deferred::Request(request, files)
        });
        let end = Instant::now() + SOON;
        self.continue_request()?;
        while self.deferred.is_some() && Instant::now() < end {
            std::thread::yield_now();
            self.continue_request()?;
        }
        Ok(())
    }

    /// Continues the waiting request, if it need not wait any longer.
    pub(crate) fn continue_request(&mut self) -> Result<(), SocketError> {
        self.check_closed_sessions();
        match self.deferred.take() {
            None => Ok(()),
            Some(deferred) if self.must_wait(&deferred) => {
                self.deferred = Some(deferred);
                Ok(())
            }
            Some(Deferred::Reply(reply, _, pages)) => {
                drop(pages);
                self.reply(reply)
            }
            Some(Deferred::Request(request, files)) => {
                let reply = self.handle(request, files);
                self.reply(reply)
            }
        }
    }

    /// Is true if the thread must soon check users of shared memory again.
    pub(crate) fn is_unsharing(&self) -> bool {
        self.deferred.is_some() || !self.context.closed_sessions.is_empty()
    }

    /// Ends the sharing that a request will change.
    fn unshare_for(&mut self, request: &Request) {
        let changes = |mask, state| {
            mask & mask::ACCESS_FLAGS != 0
                || mask & mask::STATE != 0
                    && [QpState::Reset, QpState::Error].into_iter().any(|to| to as u32 == state)
        };
        let qpn = match *request {
            Request::ModifyQp { qpn, mask, ref attributes } if changes(mask, attributes.qp_state) => qpn,
            Request::DestroyQp { qpn } => qpn,
            Request::ResizeCq { cq, .. } => return self.unshare_cq(CqId(cq)),
            Request::ResizeSrq { srq, .. } => return self.unshare_srq(SrqId(srq)),
            _ => return,
        };
        if let Some(qp) = self.qps.get_mut(&Qpn(qpn)) {
            qp.endpoint.unshare(&mut self.context);
        }
    }

    fn must_wait(&mut self, deferred: &Deferred) -> bool {
        let closed = &self.context.closed_sessions;
        match *deferred {
            Deferred::Request(Request::ModifyQp { qpn, .. } | Request::DestroyQp { qpn }, _) => {
                self.context.is_still_used(Qpn(qpn))
            }
            Deferred::Request(Request::ResizeCq { cq, .. }, _) => closed.iter().any(|it| it.cq == CqId(cq)),
            Deferred::Request(Request::ResizeSrq { srq, .. }, _) => closed
                .iter()
                .any(|it| self.qps.get(&it.qpn).is_some_and(|qp| qp.endpoint.receive.takes_from(SrqId(srq)))),
            Deferred::Request(..) => false,
            Deferred::Reply(_, invalidation, _) => self.has_peers_at_work(invalidation),
        }
    }

    /// Is true if a peer may still use a key that was invalidated.
    pub(crate) fn has_peers_at_work(&self, invalidation: Invalidation) -> bool {
        let is_user = |qp: &Qp| invalidation.users.include(qp.endpoint.qpn, qp.endpoint.pd);
        let is_at_work = |qp: &Qp| {
            qp.endpoint.sharing.inbound.as_ref().is_some_and(|inbound| inbound.may_use(invalidation))
        };
        let here = match invalidation.users {
            KeyUsers::Of(qpn) => self.qps.get(&qpn).is_some_and(is_at_work),
            KeyUsers::Domain(_) => self.qps.values().any(|qp| is_user(qp) && is_at_work(qp)),
        };
        let leaves = |it: &ClosedSession| it.may_write() && self.qps.get(&it.qpn).is_some_and(is_user);
        here || self.context.closed_sessions.iter().any(leaves)
    }

    /// Records the current turns of all peers that may have seen an invalidated key.
    pub(crate) fn await_peers(&mut self, invalidation: Invalidation) {
        let note = |qp: &mut Qp| {
            qp.endpoint
                .sharing
                .inbound
                .iter_mut()
                .for_each(|it| it.seen.note(it.session.turn(), invalidation.number));
        };
        match invalidation.users {
            KeyUsers::Of(qpn) => self.qps.get_mut(&qpn).into_iter().for_each(note),
            KeyUsers::Domain(pd) => self.qps.values_mut().filter(|qp| qp.endpoint.pd == pd).for_each(note),
        }
    }

    /// Ends the sharing with peers that closed it: their processes may have ended.
    pub(crate) fn unshare_gone(&mut self) {
        for qp in self.qps.values_mut() {
            if qp.endpoint.sharing.inbound.as_ref().is_some_and(|inbound| inbound.session.is_closed()) {
                qp.endpoint.unshare(&mut self.context);
            }
        }
    }

    /// Checks the users of closed sessions.
    fn check_closed_sessions(&mut self) {
        let mut at = 0;
        while at < self.context.closed_sessions.len() {
            match self.outcome(&self.context.closed_sessions[at]) {
                Some(ended) => {
                    let closed = self.context.closed_sessions.swap_remove(at);
                    self.end(&closed, &ended);
                }
                None => at += 1,
            }
        }
    }

    /// Returns how the user of a closed session ended. `None` if it has not ended, or if it is not known yet what a
    /// dead user left unfinished.
    fn outcome(&self, closed: &ClosedSession) -> Option<Outcome> {
        // Check this first: a user that is gone changes nothing any more.
        let is_gone = closed.is_gone();
        if !closed.is_at_work() {
            return Some(Outcome::Done);
        }
        if !is_gone {
            return None;
        }
        let Some(cq) = self.context.cqs.get(&closed.cq) else { return Some(Outcome::Done) };
        unfinished(&closed.session, &cq.sink, |place| self.is_tried(closed.cq, place)).map(Outcome::Died)
    }

    /// Is true if a living user of a session tries to get a place in a completion queue, or has it.
    fn is_tried(&self, cq: CqId, place: u32) -> bool {
        let by = |qp: &Qp| {
            let here = |it: &InboundSession| is_of(it.session.place(), place) && !it.is_gone();
            let there = |session: &DirectSession| is_of(session.own_place(), place);
            qp.endpoint.receive.cq == cq && qp.endpoint.sharing.inbound.as_ref().is_some_and(here)
                || qp.endpoint.send.cq == cq && qp.endpoint.sharing.outbound.as_ref().is_some_and(there)
        };
        self.qps.values().any(by) || self.context.closed_sessions.iter().any(|closed| closed.tries(cq, place))
    }

    fn end(&mut self, closed: &ClosedSession, ended: &Outcome) {
        let Some(qp) = self.qps.get_mut(&closed.qpn) else { return };
        let (messages, bytes) = closed.session.counted();
        let more = (messages.wrapping_sub(closed.counted.0), bytes.wrapping_sub(closed.counted.1));
        qp.endpoint.sharing.traffic.add(closed.process.is_some(), more);
        if closed.is_gone() {
            if let Outcome::Died(unfinished) = *ended {
                qp.endpoint.finish_for_dead_peer(&closed.session, unfinished, &mut self.context);
            }
            // The user may have died before it notified the channel.
            self.context.cqs.get(&closed.cq).iter().for_each(|cq| cq.sink.disarm());
            self.context.tell_channel(closed.cq);
        }
        self.wake(closed.qpn);
    }

    /// Ends all sharing when the thread ends. If the application is gone, nobody uses the sessions on its behalf, and
    /// peers are told so.
    pub(crate) fn say_goodbye(&mut self) {
        let is_gone = self.is_hung_up();
        let sessions = self.qps.values().filter_map(|qp| qp.endpoint.sharing.outbound.as_ref());
        let closed = self.context.closed_sessions.iter().filter(|closed| closed.process.is_none());
        sessions.chain(closed.map(|closed| &closed.session)).filter(|_| is_gone).for_each(DirectSession::end);
        self.qps.values().for_each(|qp| qp.endpoint.sharing.close_sessions());
        self.qps
            .values()
            .filter_map(|qp| qp.endpoint.sharing_peer())
            .for_each(|peer| _ = peer.send(Message::PeerGone));
    }

    /// Waits for peers that are still at work in the application's memory, if that is in a window: they must be
    /// gone before the next program gets it. If one stays too long, nobody gets the memory.
    pub(crate) fn await_writers(&self) {
        let may_write = |qp: &Qp| {
            let inbound = qp.endpoint.sharing.inbound.as_ref();
            inbound.is_some_and(|inbound| inbound.session.turn().is_some() && !inbound.is_gone())
        };
        let are_there = || {
            self.qps.values().any(may_write)
                || self.context.closed_sessions.iter().any(ClosedSession::may_write)
        };
        let (mut pause, end) = (AGAIN, Instant::now() + WRITERS);
        // If the device closes, nobody gets the memory anyway.
        while self.context.source.is_of_windows() && !self.context.adapter.is_leaving() && are_there() {
            if Instant::now() >= end {
                tracing::warn!(
                    who = ?self.who,
                    "verbs: a peer is still at work in pages of a window that this application had; nobody gets them \
                     before it has ended"
                );
                self.leave_memory();
                return self.context.source.leave_to_peers();
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LONGEST);
        }
    }

    /// Leaves the application's memory as it is, so that nobody else gets it.
    pub(crate) fn leave_memory(&self) {
        self.context.leave();
        if let Some(Deferred::Reply(_, _, pages)) = &self.deferred {
            pages.iter().for_each(|pages| pages.leave());
        }
    }

    /// Is true if the application has closed its connection, false if the device closed it.
    fn is_hung_up(&self) -> bool {
        // A stream from a virtual machine may only tell that nothing comes any more.
        let ends = if self.who.is_remote() { PollFlags::RDHUP } else { PollFlags::empty() };
        let mut connection = [PollFd::from_borrowed_fd(self.connection(), ends)];
        !self.context.adapter.is_leaving()
            && poll(&mut connection, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
            && connection[0].revents().intersects(ends | PollFlags::HUP | PollFlags::ERR)
    }
}
