//! Ends the sharing between a queue pair and its peer. A peer that still uses what was shared gets a moment to finish.
//! If a peer died in the middle of a message, the device completes what it left unfinished.

use crate::context::Context;
use crate::context::endpoint::Endpoint;
use crate::context::receive_queue::Receives;
use crate::context::sharing::ClosedSession;
use std::time::{Duration, Instant};
use uverbs::completion::FORGOTTEN;
use uverbs::{Completion, DirectSession, Point, Unfinished, point};

/// How long the device waits for a session's user without sleeping: a message takes less.
pub(crate) const SOON: Duration = Duration::from_micros(50);
/// How often the device checks a user that takes longer: it is stopped, or copies much. Nothing notifies the device
/// when it is done.
pub(crate) const AGAIN: Duration = Duration::from_millis(1);

impl Endpoint {
    /// Closes the sessions. A session that is still in use after a moment goes to [`Context::closed_sessions`].
    pub fn unshare(&mut self, context: &mut Context) {
        self.sharing.close_sessions();
        point(Point::Closed);
        let end = Instant::now() + SOON;
        let outbound = self.sharing.outbound.take().map(|session| (session, None, self.send.cq));
        let inbound = self.sharing.inbound.take().map(|it| (it.session, Some(it.process), self.receive.cq));
        for (session, process, cq) in outbound.into_iter().chain(inbound) {
            while session.turn().is_some() && !session.is_gone() && Instant::now() < end {
                std::thread::yield_now();
            }
            let closed = ClosedSession { counted: session.counted(), session, qpn: self.qpn, cq, process };
            self.sharing.traffic.add(closed.process.is_some(), closed.counted);
            if closed.is_at_work() || closed.is_gone() {
                context.closed_sessions.push(closed);
            }
        }
    }

    /// Completes what a session's user left unfinished when it died: the receive that it took, and the place in the
    /// completion queue that it had.
    pub fn finish_for_dead_peer(
        &mut self,
        session: &DirectSession,
        unfinished: Unfinished,
        context: &mut Context,
    ) {
        let is_taken = |number| match &self.receive.receives {
            Receives::Private(source, _) => source.was_taken_last(number),
            Receives::Shared(srq) => {
                context.srqs.get(srq).is_some_and(|srq| srq.source.was_claimed(number, self.receive.taker))
            }
        };
        let held = session.held().filter(|(number, _)| is_taken(*number)).map(|(_, id)| id);
        point(Point::UnfinishedFound);
        match unfinished {
            Unfinished::Hole(at) => {
                let nothing = Completion { status: FORGOTTEN, ..Completion::default() };
                let instead = held.map_or(nothing, |id| self.flushed_receive(id));
                let Some(cq) = context.cqs.get(&self.receive.cq) else { return };
                let tells = cq.sink.fill(at, &instead, true);
                point(Point::HoleFilled);
                if tells {
                    context.tell_channel(self.receive.cq);
                }
            }
            Unfinished::Nothing => held.into_iter().for_each(|id| self.flush_receive(id, context)),
            Unfinished::Completed => {}
        }
    }
}
