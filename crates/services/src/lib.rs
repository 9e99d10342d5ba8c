//! Services of networks for their guests: addresses, by DHCP.
//!
//! Owns: reading what guests ask, and the answers. Nothing here does I/O: a question is a frame, and so is the answer.
//! Each guest is answered from its own entry of the [`Plan`] alone, so nothing that it asks changes what others get.
//!
//! Must not know: tables, the control plane, how frames come and go.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod counts;
mod datagram;
mod dhcp;
mod plan;
mod refused;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use counts::{Counts, Key};
pub use plan::{Binding, DhcpOptions, Network, Plan, Route};
pub use refused::Refused;

use datagram::Datagram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The services of all networks.
#[derive(Debug, Default)]
pub struct Services {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: Arc<Plan>,
    counts: Counts,
}

impl Services {
    /// Serves by this plan from now on.
    pub fn follow(&self, plan: Plan) {
        let mut state = self.lock();
        state.counts.keep(&plan);
        state.plan = Arc::new(plan);
    }

    /// Returns the answer to a guest's frame, if there is one. `guest`: the number of its interface.
    pub fn answer(&self, guest: u16, frame: &[u8]) -> Option<Vec<u8>> {
        let plan = self.lock().plan.clone();
        let binding = plan.bindings.get(&guest)?;
        let answer = Datagram::read(frame).and_then(|asked| match asked.to_port {
            dhcp::SERVER => dhcp::answer(&plan, binding, &asked),
            _ => Err(Refused::Malformed),
        });
        self.lock().counts.count(&binding.network.name, answer.as_ref().map(Option::is_some));
        answer.ok().flatten()
    }

    /// Notes that an answer could not be sent: too much waits to be sent, or the guest is gone.
    pub fn lost(&self, guest: u16) {
        let mut state = self.lock();
        if let Some(binding) = state.plan.clone().bindings.get(&guest) {
            state.counts.count(&binding.network.name, Err(&Refused::Lost));
        }
    }

    /// Returns the counts of questions and answers.
    pub fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
