//! What happens when the card fails: the engine takes over its ports.

use crate::carrier::{Carrier, Fault};
use crate::carry::Carry;
use crate::ports::Taken;
use mem::Offload;
use model::VifId;

/// Clocks that a failed card is given to let go of what is inside.
const LAST_CLOCKS: u32 = 4096;

impl<C: Carry> Carrier<C> {
    /// Gives up the card. What is inside and does not come out is lost; what waited for it goes to the engine, and after
    /// that the ports do, for good.
    pub fn fail(&mut self, fault: &Fault) {
        if self.failed {
            return;
        }
        self.failed = true;
        for packet in self.batch.take().into_iter().flat_map(|batch| batch.behind) {
            self.deliver(packet);
        }
        for _ in 0..LAST_CLOCKS {
            self.card().tick();
            self.collect();
        }
        self.stats.lost.add(self.inside);
        tracing::error!(lost = self.inside, "{fault}; packets are forwarded without the card from now on");
        self.stats.fail(fault.to_string());
        self.inside = 0;
        self.candidates.clear();
        let queued = self.queued.iter_mut().flat_map(std::mem::take).collect::<Vec<_>>();
        for packet in queued.into_iter().filter(|packet| packet.direct.is_none()) {
            let vif = VifId(packet.port);
            if let Some(line) = self.lines.get_mut(&vif) {
                let cells = self.stats.vif(vif);
                cells.into_iter().for_each(|cells| cells.punted.packet(packet.bytes.len()));
                self.stats.punted.packet(packet.bytes.len());
                line.hand(Taken { bytes: packet.bytes, offload: Offload::default() });
            }
        }
        if !self.settle_engine() {
            tracing::warn!("the engine does not keep up; packets it has not seen yet may come late");
        }
        for (vif, line) in &mut self.lines {
            for queue in &line.rx {
                // It was added.
                let _ = rustix::event::epoll::delete(&self.epoll, queue.event_fd());
            }
            self.engine.receive(*vif, std::mem::take(&mut line.rx));
        }
    }
}
