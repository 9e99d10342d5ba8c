//! Budgets of packets to the host.

use super::{Memory, Outcome};
use std::collections::HashMap;

/// Clocks of a window, binary logarithm.
const WINDOW: u32 = 18;

/// What ports sent to the host, and in which window: as in `rtl/pipe/punt_budget.sv`.
#[derive(Debug, Default)]
pub struct Windows {
    sent: HashMap<u16, (u64, u32)>,
}

impl Windows {
    /// The fate of a packet that came in by this port, in a pipe for wires or for guests, and got this outcome in this
    /// clock from its headers and the tables.
    pub fn limit(&mut self, memory: &Memory, port: u16, wire: bool, clock: u64, outcome: Outcome) -> Outcome {
        let Outcome::Punt(_) = outcome else { return outcome };
        let (window, budget) = (clock >> WINDOW, memory.budget(wire));
        let (last, count) = self.sent.entry(port).or_default();
        if *last != window {
            (*last, *count) = (window, 0);
        }
        if budget != 0 && *count >= budget {
            return Outcome::Drop(memory.budget_reason());
        }
        *count += 1;
        outcome
    }
}
