//! The engine's shapers: they follow the interfaces' [`Shape`]s and the ports.

use crate::counters::MAX_VIFS;
use crate::engine::{Control, Engine};
use crate::message::Message;
use crate::shape::{BYTES, FRAMES, Inlet, Outlet, Shaper, Waker};
use executor::Shaping;
use mem::{TxQueue, backlog};
use model::{Change, Shape, VifId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The queues by which workers send to an interface.
type Queues = Arc<[Arc<dyn TxQueue>]>;

/// The shapers of all interfaces that have some, and what is needed to begin or end them.
#[derive(Default)]
pub(crate) struct Shapers {
    all: BTreeMap<VifId, (Shape, Arc<Shaper>)>,
    /// The queues of all attached interfaces.
    attached: BTreeMap<VifId, Queues>,
}

impl Shapers {
    pub fn shaping(&self, vif: VifId) -> Shaping {
        self.all.get(&vif).map(|(_, shaper)| shaper.shaping()).unwrap_or_default()
    }

    /// Returns the shaper of what an interface sends.
    pub fn outward(&self, vif: VifId) -> Option<Arc<Shaper>> {
        self.all.get(&vif).filter(|(shape, _)| shape.outward.is_some()).map(|(_, shaper)| shaper.clone())
    }

    fn inward(&self, vif: VifId) -> Option<Arc<Shaper>> {
        self.all.get(&vif).filter(|(shape, _)| shape.inward.is_some()).map(|(_, shaper)| shaper.clone())
    }
}

impl Engine {
    /// Sends to an interface through these queues of a port, shaped if its packets are to wait.
    pub(crate) fn send_by(&self, control: &mut Control, vif: VifId, queues: Queues) {
        let before = control.shapers.attached.insert(vif, queues);
        self.begin_or_end(control, vif);
        if before.is_some() && control.shapers.inward(vif).is_some() {
            self.end(vif);
        }
    }

    /// Forgets the queues of an interface, after all workers have. What waits for it is sent.
    pub(crate) fn forget_queues(&self, control: &mut Control, vif: VifId) {
        let attached = control.shapers.attached.remove(&vif);
        if attached.is_some() && control.shapers.inward(vif).is_some() {
            self.end(vif);
        }
    }

    /// Follows changes of interfaces.
    pub(crate) fn shape(&self, control: &mut Control, changes: &[Change]) {
        for change in changes {
            match change {
                // A guest's VLANs share the port of its own interface.
                Change::PutVif(vif) if vif.trunk.is_none() => self.reshape(control, vif.id, vif.shape),
                Change::DelVif(id) => self.reshape(control, *id, Shape::default()),
                _ => {}
            }
        }
    }

    fn reshape(&self, control: &mut Control, vif: VifId, shape: Shape) {
        let before = control.shapers.all.get(&vif).map_or_else(Shape::default, |(shape, _)| *shape);
        if before == shape || usize::from(vif.0) >= MAX_VIFS {
            return;
        }
        let shaper = match control.shapers.all.remove(&vif) {
            Some((_, shaper)) => shaper,
            None => Arc::default(),
        };
        shaper.set(shape);
        if shape != Shape::default() {
            control.shapers.all.insert(vif, (shape, shaper));
        }
        if before.outward.is_some() != shape.outward.is_some() {
            let shaper = control.shapers.outward(vif);
            self.tell_all(|| Message::Shape(vif, shaper.clone()));
        }
        if before.inward.is_some() != shape.inward.is_some() && control.shapers.attached.contains_key(&vif) {
            self.begin_or_end(control, vif);
            if before.inward.is_some() {
                self.end(vif);
            }
        }
    }

    /// Has the workers send to an attached interface by its own queues, or have its packets wait before them.
    fn begin_or_end(&self, control: &Control, vif: VifId) {
        let Some(queues) = control.shapers.attached.get(&vif) else { return };
        let shaped = control.shapers.inward(vif).zip(queues.first());
        let queues = match shaped {
            None => queues.clone(),
            Some((shaper, first)) => {
                let (filler, taker) = backlog(FRAMES, BYTES);
                let worker = self.worker_of(vif);
                let waker = Waker::new(self.common.workers[worker].mailbox.clone());
                let outlet = Outlet::new(vif, taker, waker.clone(), queues.clone(), shaper);
                self.tell_one(worker, Message::Outlet(Box::new(outlet)));
                let inlet = Inlet::new(filler, waker, self.common.clock, first.clone());
                Arc::from([Arc::new(inlet) as Arc<dyn TxQueue>])
            }
        };
        self.tell_all(|| Message::Send { vif, queues: queues.clone() });
    }

    /// Sends what still waits for an interface, and ends its queue.
    fn end(&self, vif: VifId) {
        self.tell_one(self.worker_of(vif), Message::EndOutlet(vif));
    }

    /// Sends all that waits for interfaces.
    pub(crate) fn flush_shapers(&self, control: &Control) {
        if control.shapers.all.values().any(|(shape, _)| shape.inward.is_some()) {
            self.tell_all(|| Message::Flush);
        }
    }

    /// Returns the number of the worker that takes out what waits for an interface.
    fn worker_of(&self, vif: VifId) -> usize {
        usize::from(vif.0) % self.common.workers.len()
    }
}
