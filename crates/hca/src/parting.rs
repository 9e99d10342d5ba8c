//! The end of what is shared: who is at work with it still is waited for, until it is done, or its process is gone.
//! What one left undone that died in the middle is done for it.
//!
//! No thread waits here: requests that need the end of it are done once it is there.

use crate::client::Client;
use crate::control::Answer;
use crate::holders::Process;
use crate::objects::Objects;
use crate::qp::{Own, Qp, Receives};
use crate::questions::Question;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uverbs::completion::FORGOTTEN;
use uverbs::qp::mask;
use uverbs::{Bond, Completion, Hold, Kind, Left, Point, QpState, Region, Request, SocketError, left, point};

/// How long one who is at work is waited for at once: a message takes less.
const SOON: Duration = Duration::from_micros(50);
/// How often one is looked at who is at work for longer: it is stopped, or copies much. Nobody tells that it is done.
pub(crate) const AGAIN: Duration = Duration::from_millis(1);

/// Whose peers may use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// That of the queue pair with this number.
    Of(u32),
    /// Those of all queue pairs of this protection domain.
    Domain(u32),
}

impl Users {
    pub const fn new(region: &Region) -> Self {
        match region.kind {
            Kind::WindowOf(qpn) => Self::Of(qpn),
            Kind::Region | Kind::Window => Self::Domain(region.pd),
        }
    }

    fn are_of(self, own: &Own) -> bool {
        match self {
            Self::Of(qpn) => own.qpn == qpn,
            Self::Domain(pd) => own.pd == pd,
        }
    }
}

/// A key was taken away: who waits for its users keeps this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenAway {
    users: Users,
    /// The later, the higher.
    number: u64,
}

/// The turn that a peer was at work in when a key was taken away, and the number of the first such key: whatever is
/// taken away later, who waits for an earlier turn waits no longer.
#[derive(Debug, Default)]
struct Seen(Option<(u32, u64)>);

impl Seen {
    fn note(&mut self, turn: Option<u32>, number: u64) {
        if self.0.map(|(seen, _)| seen) != turn {
            self.0 = turn.map(|turn| (turn, number));
        }
    }

    /// Whether the peer is in the turn still that it was in when the key with this number was taken away.
    fn is_in(&self, turn: Option<u32>, number: u64) -> bool {
        self.0.is_some_and(|(seen, first)| turn == Some(seen) && first <= number)
    }
}

/// What a peer works with here.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub bond: Bond,
    process: Arc<Process>,
    seen: Seen,
}

impl Inbound {
    pub const fn new(bond: Bond, process: Arc<Process>) -> Self {
        Self { bond, process, seen: Seen(None) }
    }

    fn is_gone(&self) -> bool {
        self.bond.is_gone() || !self.process.is_there()
    }

    /// Whether the peer is at work with what it saw before a key was taken away.
    fn may_use(&self, taken: TakenAway) -> bool {
        self.seen.is_in(self.bond.turn(), taken.number) && !self.is_gone()
    }
}

/// What was shared, and somebody may be at work with still.
#[derive(Debug)]
pub(crate) struct Leaving {
    bond: Bond,
    qpn: u32,
    /// Where who works with it completes.
    cq: u32,
    /// The peer's process; `None`: it is our application.
    process: Option<Arc<Process>>,
    /// What was counted before.
    counted: (u64, u64),
}

impl Leaving {
    fn is_gone(&self) -> bool {
        self.process.as_ref().is_some_and(|process| self.bond.is_gone() || !process.is_there())
    }

    fn is_at_work(&self) -> bool {
        self.bond.turn().is_some()
    }

    /// Whether the memory of our application may be written to still.
    fn may_write(&self) -> bool {
        self.process.is_some() && self.is_at_work() && !self.is_gone()
    }

    /// Whether it tries to get this place of a completion queue, or has it.
    fn tries(&self, cq: u32, place: u32) -> bool {
        let own = if self.process.is_some() { self.bond.place() } else { self.bond.own_place() };
        self.cq == cq && is_of(own, place) && !self.is_gone()
    }
}

/// Whether what one noted is of this place.
fn is_of(noted: Option<Hold>, place: u32) -> bool {
    matches!(noted, Some(Hold::Tries(at) | Hold::Has(at)) if at == place)
}

/// How somebody left.
enum Ended {
    /// It is done, or nothing of it is to be made good.
    Done,
    /// It died at work.
    Died(Left),
}

/// A request that waits for the end of what is shared.
#[derive(Debug)]
pub(crate) enum Deferred {
    /// It is begun once nobody is at work with it.
    Request(Request, Vec<OwnedFd>),
    /// It is answered once nobody is at work with what it took away.
    Reply(Answer, TakenAway),
}

impl Own {
    /// Whether its receives are those of this shared queue.
    pub fn takes_from(&self, srq: u32) -> bool {
        matches!(self.receives, Receives::Shared(used) if used == srq)
    }

    /// Ends what is shared. Who is at work with it for long is among those who leave ([`Objects::leaving`]).
    pub fn part(&mut self, objects: &mut Objects) {
        self.close_bonds();
        point(Point::Closed);
        let end = Instant::now() + SOON;
        let outbound = self.outbound.take().map(|bond| (bond, None, self.send_cq));
        let inbound = self.inbound.take().map(|it| (it.bond, Some(it.process), self.recv_cq));
        for (bond, process, cq) in outbound.into_iter().chain(inbound) {
            while bond.turn().is_some() && !bond.is_gone() && Instant::now() < end {
                std::thread::yield_now();
            }
            let leaving = Leaving { counted: bond.counted(), bond, qpn: self.qpn, cq, process };
            self.brought.add(leaving.process.is_some(), leaving.counted);
            if leaving.is_at_work() || leaving.is_gone() {
                objects.leaving.push(leaving);
            }
        }
    }

    /// Ends what is shared, for who sees it.
    pub fn close_bonds(&self) {
        self.outbound.iter().chain(self.inbound.iter().map(|it| &it.bond)).for_each(Bond::close);
    }

    /// Does what one left undone that died at work here: completes the receive that it took, and fills the place in
    /// the completion queue that it had.
    fn make_good(&mut self, bond: &Bond, left: Left, objects: &mut Objects) {
        let is_taken = |number| match &self.receives {
            Receives::Own(source) => source.was_taken_last(number),
            Receives::Shared(srq) => {
                objects.srqs.get(srq).is_some_and(|srq| srq.source.was_claimed(number, self.taker))
            }
        };
        let held = bond.held().filter(|(number, _)| is_taken(*number)).map(|(_, id)| id);
        point(Point::LeftFound);
        match left {
            Left::Hole(at) => {
                let nothing = Completion { status: FORGOTTEN, ..Completion::default() };
                let instead = held.map_or(nothing, |id| self.flushed_receive(id));
                let Some(cq) = objects.cqs.get(&self.recv_cq) else { return };
                let tells = cq.sink.fill(at, &instead, true);
                point(Point::HoleFilled);
                if tells {
                    objects.tell_channel(self.recv_cq);
                }
            }
            Left::Nothing => held.into_iter().for_each(|id| self.flush_receive(id, objects)),
            Left::Completed => {}
        }
    }
}

impl Objects {
    /// Whether somebody is at work with what a queue pair shared.
    pub fn is_shared_still(&self, qpn: u32) -> bool {
        self.leaving.iter().any(|leaving| leaving.qpn == qpn)
    }

    /// A key is taken away from these.
    pub const fn take_away(&mut self, users: Users) -> TakenAway {
        self.keys_taken += 1;
        TakenAway { users, number: self.keys_taken }
    }

    /// Who may use the key that a request takes away.
    fn users(&self, request: &Request) -> Option<Users> {
        match *request {
            Request::DeregMr { mr } | Request::ReregMr { mr, .. } => self.regions.get(mr).map(Users::new),
            Request::DeallocMw { mw } => self.regions.window_part(mw).map(Users::new),
            _ => None,
        }
    }
}

impl Client {
    /// Begins a request.
    pub(crate) fn take_up(&mut self, request: Request, files: Vec<OwnedFd>) -> Result<(), SocketError> {
        self.deferred = Some(if let Some(users) = self.objects.users(&request) {
            let reply = self.handle(request, files);
            if reply.is_err() {
                return self.reply(reply);
            }
            point(Point::RegionRemoved);
            let taken = self.objects.take_away(users);
            self.await_peers(taken);
            Deferred::Reply(reply, taken)
        } else {
            self.part_for(&request);
            Deferred::Request(request, files)
        });
        let end = Instant::now() + SOON;
        self.go_on()?;
        while self.deferred.is_some() && Instant::now() < end {
            std::thread::yield_now();
            self.go_on()?;
        }
        Ok(())
    }

    /// Goes on with what waits for the end of what is shared.
    pub(crate) fn go_on(&mut self) -> Result<(), SocketError> {
        self.part_ways();
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
    pub(crate) fn is_parting(&self) -> bool {
        self.deferred.is_some() || !self.objects.leaving.is_empty()
    }

    /// Ends what is shared, where a request is about to change that.
    fn part_for(&mut self, request: &Request) {
        let changes = |mask, state| {
            mask & mask::ACCESS_FLAGS != 0
                || mask & mask::STATE != 0
                    && [QpState::Reset, QpState::Error].into_iter().any(|to| to as u32 == state)
        };
        let qpn = match *request {
            Request::ModifyQp { qpn, mask, ref attributes } if changes(mask, attributes.qp_state) => qpn,
            Request::DestroyQp { qpn } => qpn,
            Request::ResizeCq { cq, .. } => return self.part_from_cq(cq),
            Request::ResizeSrq { srq, .. } => return self.part_from_srq(srq),
            _ => return,
        };
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.own.part(&mut self.objects);
        }
    }

    fn must_wait(&mut self, deferred: &Deferred) -> bool {
        let leaving = &self.objects.leaving;
        match *deferred {
            Deferred::Request(Request::ModifyQp { qpn, .. } | Request::DestroyQp { qpn }, _) => {
                self.objects.is_shared_still(qpn)
            }
            Deferred::Request(Request::ResizeCq { cq, .. }, _) => leaving.iter().any(|it| it.cq == cq),
            Deferred::Request(Request::ResizeSrq { srq, .. }, _) => {
                leaving.iter().any(|it| self.qps.get(&it.qpn).is_some_and(|qp| qp.own.takes_from(srq)))
            }
            Deferred::Request(..) => false,
            Deferred::Reply(_, taken) => self.has_peers_at_work(taken),
        }
    }

    /// Whether somebody is at work with a key that was taken away.
    pub(crate) fn has_peers_at_work(&self, taken: TakenAway) -> bool {
        let is_user = |qp: &Qp| taken.users.are_of(&qp.own);
        let is_at_work = |qp: &Qp| qp.own.inbound.as_ref().is_some_and(|inbound| inbound.may_use(taken));
        let here = match taken.users {
            Users::Of(qpn) => self.qps.get(&qpn).is_some_and(is_at_work),
            Users::Domain(_) => self.qps.values().any(|qp| is_user(qp) && is_at_work(qp)),
        };
        let leaves = |it: &Leaving| it.may_write() && self.qps.get(&it.qpn).is_some_and(is_user);
        here || self.objects.leaving.iter().any(leaves)
    }

    /// After a key was taken away: notes who is at work, and may have seen it.
    pub(crate) fn await_peers(&mut self, taken: TakenAway) {
        let note = |qp: &mut Qp| {
            qp.own.inbound.iter_mut().for_each(|it| it.seen.note(it.bond.turn(), taken.number));
        };
        match taken.users {
            Users::Of(qpn) => self.qps.get_mut(&qpn).into_iter().for_each(note),
            Users::Domain(pd) => self.qps.values_mut().filter(|qp| qp.own.pd == pd).for_each(note),
        }
    }

    /// Ends what was shared with peers that ended it: they may be gone.
    pub(crate) fn part_from_gone(&mut self) {
        for qp in self.qps.values_mut() {
            if qp.own.inbound.as_ref().is_some_and(|inbound| inbound.bond.is_closed()) {
                qp.own.part(&mut self.objects);
            }
        }
    }

    /// Looks at those who leave.
    fn part_ways(&mut self) {
        let mut at = 0;
        while at < self.objects.leaving.len() {
            match self.how_ended(&self.objects.leaving[at]) {
                Some(ended) => {
                    let leaving = self.objects.leaving.swap_remove(at);
                    self.end(&leaving, &ended);
                }
                None => at += 1,
            }
        }
    }

    /// How it left; `None`: it did not, or what it left behind is not known yet.
    fn how_ended(&self, leaving: &Leaving) -> Option<Ended> {
        // In this order: one that is gone does nothing any more.
        let is_gone = leaving.is_gone();
        if !leaving.is_at_work() {
            return Some(Ended::Done);
        }
        if !is_gone {
            return None;
        }
        let Some(cq) = self.objects.cqs.get(&leaving.cq) else { return Some(Ended::Done) };
        left(&leaving.bond, &cq.sink, |place| self.is_tried(leaving.cq, place)).map(Ended::Died)
    }

    /// Whether somebody alive tries to get a place of a completion queue, or has it.
    fn is_tried(&self, cq: u32, place: u32) -> bool {
        let by = |qp: &Qp| {
            let here = |it: &Inbound| is_of(it.bond.place(), place) && !it.is_gone();
            let there = |bond: &Bond| is_of(bond.own_place(), place);
            qp.own.recv_cq == cq && qp.own.inbound.as_ref().is_some_and(here)
                || qp.own.send_cq == cq && qp.own.outbound.as_ref().is_some_and(there)
        };
        self.qps.values().any(by) || self.objects.leaving.iter().any(|leaving| leaving.tries(cq, place))
    }

    fn end(&mut self, leaving: &Leaving, ended: &Ended) {
        let Some(qp) = self.qps.get_mut(&leaving.qpn) else { return };
        let (messages, bytes) = leaving.bond.counted();
        let more = (messages.wrapping_sub(leaving.counted.0), bytes.wrapping_sub(leaving.counted.1));
        qp.own.brought.add(leaving.process.is_some(), more);
        if leaving.is_gone() {
            if let Ended::Died(left) = *ended {
                qp.own.make_good(&leaving.bond, left, &mut self.objects);
            }
            // It may have died before it told.
            self.objects.cqs.get(&leaving.cq).iter().for_each(|cq| cq.sink.disarm());
            self.objects.tell_channel(leaving.cq);
        }
        self.wake(leaving.qpn);
    }

    /// Ends all that is shared, and lets peers know where the application is gone: nobody is at work for it any more.
    pub(crate) fn say_goodbye(&mut self) {
        let is_gone = self.is_hung_up();
        let own = self.qps.values().filter_map(|qp| qp.own.outbound.as_ref());
        let leaving = self.objects.leaving.iter().filter(|leaving| leaving.process.is_none());
        own.chain(leaving.map(|leaving| &leaving.bond)).filter(|_| is_gone).for_each(Bond::end);
        self.qps.values().for_each(|qp| qp.own.close_bonds());
        self.qps.values().filter_map(|qp| qp.own.partner()).for_each(|peer| _ = peer.ask(Question::PeerGone));
    }

    /// Whether nobody has the other end of the connection. Ours is the end where the device closes.
    fn is_hung_up(&self) -> bool {
        let mut connection = [PollFd::from_borrowed_fd(self.connection(), PollFlags::empty())];
        !self.objects.adapter.is_closing()
            && poll(&mut connection, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
            && connection[0].revents().contains(PollFlags::HUP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_turn_waits_for_no_later_one() {
        let mut seen = Seen::default();
        seen.note(Some(5), 1);
        assert!(seen.is_in(Some(5), 1) && !seen.is_in(None, 1) && !seen.is_in(Some(6), 1));
        // It is in that turn still, and then in the next one.
        seen.note(Some(5), 2);
        assert!(seen.is_in(Some(5), 1) && seen.is_in(Some(5), 2));
        seen.note(Some(6), 3);
        assert!(!seen.is_in(Some(6), 1) && !seen.is_in(Some(6), 2) && seen.is_in(Some(6), 3));
        seen.note(None, 4);
        assert!(!seen.is_in(Some(6), 4));
    }
}
