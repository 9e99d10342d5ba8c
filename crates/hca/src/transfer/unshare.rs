//! Ends the sharing between a queue pair and its peer. A peer that still uses what was shared gets a moment to finish.
//! If a peer died in the middle of a message, the device completes what it left unfinished.

use crate::context::Context;
use crate::context::endpoint::Endpoint;
use crate::context::receive_queue::Receives;
use crate::context::sharing::ClosedBond;
use std::time::{Duration, Instant};
use uverbs::completion::FORGOTTEN;
use uverbs::{Bond, Completion, Left, Point, point};

/// How long the device waits for a bond's user without sleeping: a message takes less.
pub(crate) const SOON: Duration = Duration::from_micros(50);
/// How often the device checks a user that takes longer: it is stopped, or copies much. Nothing notifies the device
/// when it is done.
pub(crate) const AGAIN: Duration = Duration::from_millis(1);

impl Endpoint {
    /// Closes the bonds. A bond that is still in use after a moment goes to [`Context::closed_bonds`].
    pub fn unshare(&mut self, context: &mut Context) {
        self.sharing.close_bonds();
        point(Point::Closed);
        let end = Instant::now() + SOON;
        let outbound = self.sharing.outbound.take().map(|bond| (bond, None, self.send.cq));
        let inbound = self.sharing.inbound.take().map(|it| (it.bond, Some(it.process), self.receive.cq));
        for (bond, process, cq) in outbound.into_iter().chain(inbound) {
            while bond.turn().is_some() && !bond.is_gone() && Instant::now() < end {
                std::thread::yield_now();
            }
            let closed = ClosedBond { counted: bond.counted(), bond, qpn: self.qpn, cq, process };
            self.sharing.traffic.add(closed.process.is_some(), closed.counted);
            if closed.is_at_work() || closed.is_gone() {
                context.closed_bonds.push(closed);
            }
        }
    }

    /// Completes what a bond's user left unfinished when it died: the receive that it took, and the place in the
    /// completion queue that it had.
    pub fn finish_for_dead_peer(&mut self, bond: &Bond, left: Left, context: &mut Context) {
        let is_taken = |number| match &self.receive.receives {
            Receives::Private(source, _) => source.was_taken_last(number),
            Receives::Shared(srq) => {
                context.srqs.get(srq).is_some_and(|srq| srq.source.was_claimed(number, self.receive.taker))
            }
        };
        let held = bond.held().filter(|(number, _)| is_taken(*number)).map(|(_, id)| id);
        point(Point::LeftFound);
        match left {
            Left::Hole(at) => {
                let nothing = Completion { status: FORGOTTEN, ..Completion::default() };
                let instead = held.map_or(nothing, |id| self.flushed_receive(id));
                let Some(cq) = context.cqs.get(&self.receive.cq) else { return };
                let tells = cq.sink.fill(at, &instead, true);
                point(Point::HoleFilled);
                if tells {
                    context.tell_channel(self.receive.cq);
                }
            }
            Left::Nothing => held.into_iter().for_each(|id| self.flush_receive(id, context)),
            Left::Completed => {}
        }
    }
}
