//! Moving flows onto the card: nothing of a flow overtakes, and nothing else waits.
//!
//! The driver writes the flows, and from then on the card holds their packets. A mark through each pipe comes out
//! after all their packets to the host. Once the engine has finished what it had been given by then, the flows are
//! released at the card's outputs. Until all are released, packets that come out for the host wait here: they may
//! belong to such a flow, whose earlier packets leave by another output.

use crate::carry::{Carry, Outgoing};
use crate::passage::Passage;
use crate::ports::Ports;
use card::driver::Driver;
use card::frame::Key;
use card::hold::{Hold, RING};
use card::registers::PuntMeta;
use model::VifId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long the engine may take to finish the frames that it was given.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Beats that the ports of moving flows may send until the flows are released. The rest of a ring is for packets that
/// are already in the pipe.
const ROOM: usize = RING / 2;

/// Flows that move onto the card together.
pub struct Batch {
    hold: Hold,
    keys: Vec<Key>,
    stage: Stage,
    /// Packets for the host that came out while the flows were being released.
    behind: Vec<Outgoing>,
}

enum Stage {
    /// The card still has this many marks.
    Marked(usize),
    /// The engine must finish this many frames of each port. It has had since the given time.
    Engine(BTreeMap<VifId, u64>, Instant),
    /// The card still has releases.
    Released,
}

pub enum Due {
    Nothing,
    /// To call [`Batch::release`], once everything that the engine sent is on its way to the card.
    Release,
    /// To call [`Batch::end`], once all released packets have been delivered.
    End,
}

/// Returns whether a packet of the host's queue is a mark.
pub const fn is_mark(packet: &Outgoing) -> bool {
    matches!(packet.punt, Some(PuntMeta { reason: 0, .. })) && packet.bytes.is_empty()
}

impl Batch {
    /// Starts to move flows that were written to the card and come in by these ports: sends a mark through each pipe.
    pub fn new(hold: Hold, keys: Vec<Key>, ports: BTreeSet<VifId>, passage: &mut Passage) -> Self {
        let inputs = passage.inputs();
        for input in 0..inputs {
            let egress = (input % (inputs / 2)) as u8;
            passage.tell(input, PuntMeta { egress, ..PuntMeta::default() });
        }
        passage.limit(ports, ROOM);
        Self { hold, keys, stage: Stage::Marked(inputs), behind: Vec::new() }
    }

    /// Returns whether marks or releases are still under way in the card.
    pub fn is_marking(&self) -> bool {
        matches!(self.stage, Stage::Marked(_) | Stage::Released)
    }

    /// Notes that a mark came out.
    pub fn marked(&mut self, ports: &Ports) {
        if let Stage::Marked(left) = &mut self.stage {
            *left -= 1;
            if *left == 0 {
                self.stage = Stage::Engine(ports.handed(), Instant::now());
            }
        }
    }

    /// Keeps a packet for the host if the flows are being released; otherwise returns it.
    pub fn hold_back(&mut self, packet: Outgoing) -> Option<Outgoing> {
        if !matches!(self.stage, Stage::Released) {
            return Some(packet);
        }
        self.behind.push(packet);
        None
    }

    pub fn due<C: Carry>(&self, ports: &Ports, driver: &mut Driver<C>) -> Due {
        match &self.stage {
            Stage::Marked(_) => Due::Nothing,
            Stage::Engine(handed, since) => {
                let done = handed.iter().all(|(vif, number)| ports.is_done(*vif, *number));
                if !done && since.elapsed() < PATIENCE {
                    std::thread::yield_now();
                    return Due::Nothing;
                }
                if !done {
                    tracing::warn!(
                        "the engine does not keep up; packets that it still has may arrive out of order"
                    );
                }
                Due::Release
            }
            Stage::Released if driver.is_released(self.hold) => Due::End,
            Stage::Released => Due::Nothing,
        }
    }

    /// Tells each input to release the flows' packets at each output.
    pub fn release(&mut self, passage: &mut Passage) {
        for input in 0..passage.inputs() {
            for output in 0..passage.inputs() {
                passage.tell(input, self.hold.release(output as u8));
            }
        }
        self.stage = Stage::Released;
    }

    /// Ends the move: from here on, the card forwards the flows. Returns the packets that were held back, too.
    pub fn end(self, passage: &mut Passage) -> (Hold, Vec<Key>, Vec<Outgoing>) {
        passage.free();
        (self.hold, self.keys, self.behind)
    }
}
