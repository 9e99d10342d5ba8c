//! What an executor needs that stands in front of the engine and leaves it what it can't do itself.

use crate::engine::Engine;
use crate::message::Message;
use crate::mutex::lock;
use executor::Counters;
use mem::{RxQueue, TxQueue};
use model::{FlowKey, Seconds, VifId};
use std::sync::Arc;
use tables::{Deps, View};

impl Engine {
    /// Lets `look` read the live tables.
    pub fn view<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        let snapshot = self.common.shared.snapshot();
        look(&snapshot.view(self.common.shared.flows(), self.now()))
    }

    /// Seconds since it started: the `now` of decisions.
    #[must_use]
    pub fn now(&self) -> Seconds {
        self.common.clock.now().seconds
    }

    /// Counts packets of a connection that it did not see, in the direction of `key`, and notes the time if there
    /// were `any`, so that the connection does not time out. From then on, TCP's sequence numbers are known not to be
    /// known. Without `counters` they are not counted, and the connection's counters are known to lack packets from
    /// then on. False where it is gone.
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

    /// Packets that it did not see were sent by a decision that depends on `deps`.
    pub fn used(&self, deps: &Deps) {
        self.common.shared.used(deps, self.now());
    }

    /// Whether packets are captured.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        !lock(&self.common.taps).is_empty()
    }

    /// Receives by more queues of an attached interface; false where it is not attached.
    pub fn receive(&self, vif: VifId, queues: Vec<Box<dyn RxQueue>>) -> bool {
        let mut control = self.control();
        if !self.is_attached(vif) {
            return false;
        }
        self.share_out(&mut control, vif, queues);
        true
    }

    /// Sends by other queues of an attached interface, from when this returns; false where it is not attached.
    pub fn send(&self, vif: VifId, queues: Vec<Arc<dyn TxQueue>>) -> bool {
        let _control = self.control();
        let attached = self.is_attached(vif);
        if attached {
            let queues: Arc<[_]> = queues.into();
            self.tell_all(|| Message::Send { vif, queues: queues.clone() });
        }
        attached
    }
}
