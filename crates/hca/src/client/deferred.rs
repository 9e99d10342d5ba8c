//! The end of what is shared: who is at work with it still is waited for, until it is done, or its process is gone.
//! What one left undone that died in the middle is done for it.
//!
//! No thread waits here: requests that need the end of it are done once it is there.

use crate::client::Client;
use crate::ids::{CqId, Key, MwId, Qpn, SrqId};
use crate::keys::KeyUsers;
use crate::qp::Qp;
use crate::question::Question;
use crate::refusal::Answer;
use crate::sharing::{ClosedBond, InboundBond, Invalidation, is_of};
use crate::unshare::SOON;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::time::Instant;
use uverbs::qp::mask;
use uverbs::{Bond, Left, Point, QpState, Request, SocketError, left, point};

/// A request that waits for the end of what is shared.
#[derive(Debug)]
pub(crate) enum Deferred {
    /// It is begun once nobody is at work with it.
    Request(Request, Vec<OwnedFd>),
    /// It is answered once nobody is at work with what it took away.
    Reply(Answer, Invalidation),
}

/// How the use of a closed bond ended.
enum Outcome {
    /// It is done, or nothing of it is to be made good.
    Done,
    /// Its user died at work.
    Died(Left),
}

impl Client {
    /// Who may use the key that a request takes away.
    fn users(&self, request: &Request) -> Option<KeyUsers> {
        match *request {
            Request::DeregMr { mr } | Request::ReregMr { mr, .. } => {
                self.context.regions.get(Key(mr)).map(KeyUsers::new)
            }
            Request::DeallocMw { mw } => self.context.regions.window_part(MwId(mw)).map(KeyUsers::new),
            _ => None,
        }
    }

    /// Begins a request.
    pub(crate) fn begin_request(&mut self, request: Request, files: Vec<OwnedFd>) -> Result<(), SocketError> {
        self.deferred = Some(if let Some(users) = self.users(&request) {
            let reply = self.handle(request, files);
            if reply.is_err() {
                return self.reply(reply);
            }
            point(Point::RegionRemoved);
            let taken = self.context.invalidate_for(users);
            self.await_peers(taken);
            Deferred::Reply(reply, taken)
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

    /// Goes on with what waits for the end of what is shared.
    pub(crate) fn continue_request(&mut self) -> Result<(), SocketError> {
        self.watch_closed_bonds();
        match self.deferred.take() {
            None => Ok(()),
            Some(deferred) if self.must_wait(&deferred) => {
                self.deferred = Some(deferred);
                Ok(())
            }
            Some(Deferred::Reply(reply, _)) => self.reply(reply),
            Some(Deferred::Request(request, files)) => {
                let reply = self.handle(request, files);
                self.reply(reply)
            }
        }
    }

    /// Whether somebody is to be looked at again.
    pub(crate) fn is_unsharing(&self) -> bool {
        self.deferred.is_some() || !self.context.closed_bonds.is_empty()
    }

    /// Ends what is shared, where a request is about to change that.
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
        let closed = &self.context.closed_bonds;
        match *deferred {
            Deferred::Request(Request::ModifyQp { qpn, .. } | Request::DestroyQp { qpn }, _) => {
                self.context.is_still_used(Qpn(qpn))
            }
            Deferred::Request(Request::ResizeCq { cq, .. }, _) => closed.iter().any(|it| it.cq == CqId(cq)),
            Deferred::Request(Request::ResizeSrq { srq, .. }, _) => closed
                .iter()
                .any(|it| self.qps.get(&it.qpn).is_some_and(|qp| qp.endpoint.receive.takes_from(SrqId(srq)))),
            Deferred::Request(..) => false,
            Deferred::Reply(_, taken) => self.has_peers_at_work(taken),
        }
    }

    /// Whether somebody is at work with a key that was taken away.
    pub(crate) fn has_peers_at_work(&self, taken: Invalidation) -> bool {
        let is_user = |qp: &Qp| taken.users.include(qp.endpoint.qpn, qp.endpoint.pd);
        let is_at_work =
            |qp: &Qp| qp.endpoint.sharing.inbound.as_ref().is_some_and(|inbound| inbound.may_use(taken));
        let here = match taken.users {
            KeyUsers::Of(qpn) => self.qps.get(&qpn).is_some_and(is_at_work),
            KeyUsers::Domain(_) => self.qps.values().any(|qp| is_user(qp) && is_at_work(qp)),
        };
        let leaves = |it: &ClosedBond| it.may_write() && self.qps.get(&it.qpn).is_some_and(is_user);
        here || self.context.closed_bonds.iter().any(leaves)
    }

    /// After a key was taken away: notes who is at work, and may have seen it.
    pub(crate) fn await_peers(&mut self, taken: Invalidation) {
        let note = |qp: &mut Qp| {
            qp.endpoint.sharing.inbound.iter_mut().for_each(|it| it.seen.note(it.bond.turn(), taken.number));
        };
        match taken.users {
            KeyUsers::Of(qpn) => self.qps.get_mut(&qpn).into_iter().for_each(note),
            KeyUsers::Domain(pd) => self.qps.values_mut().filter(|qp| qp.endpoint.pd == pd).for_each(note),
        }
    }

    /// Ends what was shared with peers that ended it: they may be gone.
    pub(crate) fn unshare_gone(&mut self) {
        for qp in self.qps.values_mut() {
            if qp.endpoint.sharing.inbound.as_ref().is_some_and(|inbound| inbound.bond.is_closed()) {
                qp.endpoint.unshare(&mut self.context);
            }
        }
    }

    /// Looks at those who leave.
    fn watch_closed_bonds(&mut self) {
        let mut at = 0;
        while at < self.context.closed_bonds.len() {
            match self.outcome(&self.context.closed_bonds[at]) {
                Some(ended) => {
                    let closed = self.context.closed_bonds.swap_remove(at);
                    self.end(&closed, &ended);
                }
                None => at += 1,
            }
        }
    }

    /// How it left; `None`: it did not, or what it left behind is not known yet.
    fn outcome(&self, closed: &ClosedBond) -> Option<Outcome> {
        // In this order: one that is gone does nothing any more.
        let is_gone = closed.is_gone();
        if !closed.is_at_work() {
            return Some(Outcome::Done);
        }
        if !is_gone {
            return None;
        }
        let Some(cq) = self.context.cqs.get(&closed.cq) else { return Some(Outcome::Done) };
        left(&closed.bond, &cq.sink, |place| self.is_tried(closed.cq, place)).map(Outcome::Died)
    }

    /// Whether somebody alive tries to get a place of a completion queue, or has it.
    fn is_tried(&self, cq: CqId, place: u32) -> bool {
        let by = |qp: &Qp| {
            let here = |it: &InboundBond| is_of(it.bond.place(), place) && !it.is_gone();
            let there = |bond: &Bond| is_of(bond.own_place(), place);
            qp.endpoint.receive.cq == cq && qp.endpoint.sharing.inbound.as_ref().is_some_and(here)
                || qp.endpoint.send.cq == cq && qp.endpoint.sharing.outbound.as_ref().is_some_and(there)
        };
        self.qps.values().any(by) || self.context.closed_bonds.iter().any(|closed| closed.tries(cq, place))
    }

    fn end(&mut self, closed: &ClosedBond, ended: &Outcome) {
        let Some(qp) = self.qps.get_mut(&closed.qpn) else { return };
        let (messages, bytes) = closed.bond.counted();
        let more = (messages.wrapping_sub(closed.counted.0), bytes.wrapping_sub(closed.counted.1));
        qp.endpoint.sharing.traffic.add(closed.process.is_some(), more);
        if closed.is_gone() {
            if let Outcome::Died(left) = *ended {
                qp.endpoint.finish_for_dead_peer(&closed.bond, left, &mut self.context);
            }
            // It may have died before it told.
            self.context.cqs.get(&closed.cq).iter().for_each(|cq| cq.sink.disarm());
            self.context.tell_channel(closed.cq);
        }
        self.wake(closed.qpn);
    }

    /// Ends all that is shared, and lets peers know where the application is gone: nobody is at work for it any more.
    pub(crate) fn say_goodbye(&mut self) {
        let is_gone = self.is_hung_up();
        let bonds = self.qps.values().filter_map(|qp| qp.endpoint.sharing.outbound.as_ref());
        let closed = self.context.closed_bonds.iter().filter(|closed| closed.process.is_none());
        bonds.chain(closed.map(|closed| &closed.bond)).filter(|_| is_gone).for_each(Bond::end);
        self.qps.values().for_each(|qp| qp.endpoint.sharing.close_bonds());
        self.qps
            .values()
            .filter_map(|qp| qp.endpoint.sharing_peer())
            .for_each(|peer| _ = peer.ask(Question::PeerGone));
    }

    /// Whether nobody has the other end of the connection. Ours is the end where the device closes.
    fn is_hung_up(&self) -> bool {
        let mut connection = [PollFd::from_borrowed_fd(self.connection(), PollFlags::empty())];
        !self.context.adapter.is_closing()
            && poll(&mut connection, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
            && connection[0].revents().contains(PollFlags::HUP)
    }
}
