//! Budgets of packets to the host.

use super::{Memory, Outcome};
use std::collections::HashMap;

/// Binary logarithm of the number of clocks in a window.
const WINDOW: u32 = 18;

/// Counts the packets that each port sent to the host in the current window, as in `rtl/pipe/punt_budget.sv`.
#[derive(Debug, Default)]
pub struct Windows {
    sent: HashMap<u16, (u64, u32)>,
}

impl Windows {
    /// Applies the port's budget. `outcome` is the packet's fate by its headers and the tables, in this clock; `wire`
    /// says whether the pipe is one for wires or for guests.
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
