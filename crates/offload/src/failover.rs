//! What happens when the card fails: the engine takes over its ports.

use crate::carrier::{Carrier, Fault};
use crate::carry::{Carry, Outgoing};
use crate::ports::Taken;
use mem::Offload;
use model::VifId;

/// Clocks that a failed card is given to let go of what is inside.
const LAST_CLOCKS: u32 = 4096;

impl<C: Carry> Carrier<C> {
    /// Gives up the card. What is inside and does not come out is lost; what waited for it goes to the engine, and
    /// after that the ports do, for good.
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
        for packet in queued {
            let vif = VifId(packet.port);
            if packet.direct.is_some() {
                // A mark or a release is for nobody any more.
                if !packet.bytes.is_empty() {
                    self.deliver(Outgoing { port: packet.port, punt: None, bytes: packet.bytes });
                }
                continue;
            }
            if let Some(line) = self.lines.get_mut(&vif) {
                let cells = self.stats.vif(vif);
                cells.into_iter().for_each(|cells| cells.punted.packet(packet.bytes.len()));
                self.stats.punted.packet(packet.bytes.len());
                let taken = Taken { bytes: packet.bytes, offload: Offload::default() };
                line.hand(taken, self.driver.commands().card().buffers());
            }
        }
        if !self.settle_engine() {
            tracing::warn!("the engine does not keep up; packets it has not seen yet may come late");
        }
        self.send_past_card();
        for (vif, line) in &mut self.lines {
            for queue in &line.rx {
                // It was added.
                let _ = rustix::event::epoll::delete(&self.epoll, queue.event_fd());
            }
            let _ = rustix::event::epoll::delete(&self.epoll, line.downlink.event_fd());
            self.engine.receive(*vif, std::mem::take(&mut line.rx));
        }
    }

    /// Has the engine send by the ports themselves; what it has sent goes before.
    fn send_past_card(&mut self) {
        self.send_what_is_left();
        for (vif, line) in &self.lines {
            self.engine.send(*vif, line.tx.clone());
        }
        self.send_what_is_left();
    }

    /// Sends what the engine sent, without the card.
    fn send_what_is_left(&mut self) {
        self.take_sent(usize::MAX);
        for packet in self.queued.iter_mut().flat_map(std::mem::take).collect::<Vec<_>>() {
            self.deliver(Outgoing { port: packet.port, punt: None, bytes: packet.bytes });
        }
    }
}
