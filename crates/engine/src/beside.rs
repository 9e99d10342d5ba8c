//! The interface for an executor that stands before the engine and leaves to it what it can't do itself.

use crate::engine::Engine;
use crate::mutex::lock;
use executor::Counters;
use mem::{RxQueue, TxQueue};
use model::{FlowKey, Seconds, VifId};
use std::sync::Arc;
use tables::{Deps, View};

impl Engine {
    pub fn view<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        let snapshot = self.common.shared.snapshot();
        look(&snapshot.view(self.common.shared.flows(), self.now()))
    }

    /// Returns the seconds since the machine started: the `now` of decisions.
    #[must_use]
    pub fn now(&self) -> Seconds {
        self.common.clock.now().seconds
    }

    /// Counts packets of a connection that the engine did not see, in the direction of `key`. If there were `any`,
    /// also records the time, so that the connection does not time out. From then on, TCP's sequence numbers count as
    /// unknown. Without `counters`, the packets are not counted, and the connection's counters are marked as
    /// incomplete. False if the connection no longer exists.
    pub fn carried(&self, key: &FlowKey, any: bool, counters: Option<Counters>) -> bool {
        let (flows, now) = (self.common.shared.flows(), self.now());
        let Some((_, reply, flow)) = flows.get(key, now) else { return false };
        flows.loosen(flow);
        if counters.is_none() {
            flows.miscount(flow);
        }
        let counters = counters.unwrap_or_default();
        !any || flows.touch(flow, reply, counters.packets, counters.bytes, now)
    }

    /// Records that a decision that depends on `deps` sent packets that the engine did not see.
    pub fn used(&self, deps: &Deps) {
        self.common.shared.used(deps, self.now());
    }

    #[must_use]
    pub fn is_capturing(&self) -> bool {
        !lock(&self.common.taps).is_empty()
    }

    /// Receives from more queues of an attached interface; false if it is not attached.
    pub fn receive(&self, vif: VifId, queues: Vec<Box<dyn RxQueue>>) -> bool {
        let mut control = self.control();
        if !self.is_attached(vif) {
            return false;
        }
        self.share_out(&mut control, vif, queues);
        true
    }

    /// Sends to an attached interface through these queues; in force when this returns. False if the
    /// interface is not attached.
    pub fn send(&self, vif: VifId, queues: Vec<Arc<dyn TxQueue>>) -> bool {
        let mut control = self.control();
        let attached = self.is_attached(vif);
        if attached {
            self.send_by(&mut control, vif, queues.into());
        }
        attached
    }
}
