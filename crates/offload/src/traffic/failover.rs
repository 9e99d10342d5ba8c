//! Failover: when the card fails, the engine takes over its ports.

use super::Traffic;
use crate::carry::{Carry, Outgoing};
use crate::line::Taken;
use engine::Engine;
use model::VifId;

/// Clocks that a failed card gets to release the packets inside.
const LAST_CLOCKS: u32 = 4096;

impl<C: Carry> Traffic<C> {
    /// Takes the packets that still come out of the card. Returns how many do not, and are lost.
    pub fn give_up(&mut self) -> u64 {
        self.end_moving();
        for _ in 0..LAST_CLOCKS {
            self.card().tick();
            self.collect();
        }
        self.candidates.clear();
        let lost = self.passage.write_off();
        self.stats.lost.add(lost);
        lost
    }

    /// Passes packets that waited for the card to the engine, and lets the engine send by the ports directly.
    /// Afterwards, nothing may be taken from the ports.
    pub fn hand_over(&mut self, engine: &Engine) {
        for packet in self.passage.take_back() {
            if packet.direct.is_none() {
                let vif = VifId(packet.port);
                if let Some(line) = self.ports.get_mut(vif) {
                    self.stats.count_punt(vif, packet.bytes.len());
                    line.hand(Taken::finished(packet.bytes), self.driver.commands().card().buffers());
                }
            } else if !packet.bytes.is_empty() {
                // An empty packet is a mark or a release, which nobody needs any more.
                self.deliver(Outgoing { port: packet.port, punt: None, bytes: packet.bytes });
            }
        }
        if !self.settle_engine() {
            tracing::warn!(
                "the engine does not keep up; packets that it has not seen yet may arrive out of order"
            );
        }
        self.send_what_is_left();
        for (vif, line) in self.ports.iter_mut() {
            engine.send(vif, line.tx.clone());
        }
        self.send_what_is_left();
    }

    /// Sends the frames that the engine sent, without the card.
    fn send_what_is_left(&mut self) {
        self.take_sent(usize::MAX);
        for packet in self.passage.take_back() {
            self.deliver(Outgoing { port: packet.port, punt: None, bytes: packet.bytes });
        }
    }
}
