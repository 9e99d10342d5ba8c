//! The queue pairs of an application whose send queues are looked at all the time, while somebody listens to it: such a
//! queue needs no doorbell, which would be one more cache line on its way from CPU to CPU.

use super::make_ready;
use crate::base::ids::{ById, Qpn};
use crate::qp::Qp;
use std::collections::VecDeque;

/// Most of an application's.
const MOST: usize = 4;

/// The first queue pairs that rang their doorbells since somebody listens.
#[derive(Debug, Default)]
pub(super) struct PolledQps(Vec<Qpn>);

impl PolledQps {
    /// Adds one that rang its doorbell, if there is room.
    pub fn add(&mut self, qp: &mut Qp) {
        if self.0.len() < MOST && !self.0.contains(&qp.endpoint.qpn) {
            qp.endpoint.send.set_polled(true);
            self.0.push(qp.endpoint.qpn);
        }
    }

    /// Makes those ready that have requests. Returns whether there are any.
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

    /// Nobody listens any more: they must ring their doorbells. Makes those ready that have requests.
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
