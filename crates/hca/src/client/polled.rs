//! The queue pairs of an application whose send queues are polled, while a thread polls for it: such a queue needs
//! no doorbell, which would be one more cache line on its way from CPU to CPU.

use super::make_ready;
use crate::base::ids::{ById, Qpn};
use crate::qp::Qp;
use std::collections::VecDeque;

/// Most polled queue pairs of an application.
const MOST: usize = 4;

/// The first queue pairs that rang their doorbells since a thread polls for the application.
#[derive(Debug, Default)]
pub(super) struct PolledQps(Vec<Qpn>);

impl PolledQps {
    /// Adds a queue pair that rang its doorbell, if there is room.
    pub fn add(&mut self, qp: &mut Qp) {
        if self.0.len() < MOST && !self.0.contains(&qp.endpoint.qpn) {
            qp.endpoint.send.set_polled(true);
            self.0.push(qp.endpoint.qpn);
        }
    }

    /// Makes those queue pairs ready that have requests. Returns whether there are any.
    pub fn look(&mut self, qps: &mut ById<Qpn, Qp>, ready: &mut VecDeque<Qpn>) -> bool {
        let mut any = false;
        self.0.retain(|qpn| {
            let Some(qp) = qps.get_mut(qpn) else { return false };
            let Some(has_more) = qp.endpoint.send.has_more() else { return false };
            if has_more {
                make_ready(qp, ready);
                any = true;
            }
            true
        });
        any
    }

    /// Ends polling, so that the queue pairs must ring their doorbells again. Makes those ready that have requests,
    /// and returns whether there are any.
    pub fn end(&mut self, qps: &mut ById<Qpn, Qp>, ready: &mut VecDeque<Qpn>) -> bool {
        let mut any = self.look(qps, ready);
        for qpn in self.0.drain(..) {
            let Some(qp) = qps.get_mut(&qpn) else { continue };
            qp.endpoint.send.set_polled(false);
            // After that, since a request that came before it came without a doorbell.
            if qp.endpoint.send.waits() {
                make_ready(qp, ready);
                any = true;
            }
        }
        any
    }
}
