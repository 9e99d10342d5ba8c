//! Services of networks for their guests: addresses, by DHCP and DHCPv6, and router advertisements.
//!
//! Owns: reading what guests ask, and the answers. Nothing here does I/O: a question is a frame, and so is the answer.
//! Each guest is answered from its own entry of the [`Plan`] alone, so nothing that it asks changes what others get.
//!
//! Must not know: tables, the control plane, how frames come and go.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod counts;
mod dhcp;
mod dhcpv6;
mod frame;
mod plan;
mod refused;
mod router;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use counts::{Counts, Key};
pub use plan::{Binding, DhcpOptions, Network, Plan, Route};
pub use refused::Refused;

use frame::Datagram;
use packet::{Headers, L4, Mac, proto};
use std::collections::BTreeMap;
use std::net::IpAddr;
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
    /// The MACs of guests that had none, by the numbers of their interfaces.
    learnt: BTreeMap<u16, Mac>,
}

impl Services {
    /// Serves by this plan from now on.
    pub fn follow(&self, plan: Plan) {
        let mut state = self.lock();
        let before = state.plan.clone();
        let same = |number: &u16| {
            let guest = |plan: &Plan| plan.bindings.get(number).map(|its| its.guest.clone());
            guest(&before) == guest(&plan) && plan.bindings.get(number).is_some_and(|its| its.learns)
        };
        state.learnt.retain(|number, _| same(number));
        state.counts.keep(&plan);
        state.plan = Arc::new(plan);
    }

    /// Returns the answer to a guest's frame, if there is one. `guest`: the number of its interface.
    pub fn answer(&self, guest: u16, frame: &[u8]) -> Option<Vec<u8>> {
        let (plan, learnt) = {
            let state = self.lock();
            (state.plan.clone(), state.learnt.get(&guest).copied())
        };
        let binding = plan.bindings.get(&guest)?;
        let known =
            learnt.filter(|_| binding.learns).map(|mac| Binding { mac: Some(mac), ..binding.clone() });
        let answer = answer(&plan, known.as_ref().unwrap_or(binding), frame);
        let mut state = self.lock();
        if let (Ok(Some(_)), true, Some(mac)) = (&answer, binding.learns, teaches(frame)) {
            state.learnt.entry(guest).or_insert(mac);
        }
        state.counts.count(&binding.network.name, answer.as_ref().map(Option::is_some));
        answer.ok().flatten()
    }

    /// Returns the MACs of guests that had none when they were first answered by DHCP, by the guests' names.
    pub fn learnt(&self) -> Vec<(String, Mac)> {
        let state = self.lock();
        let named =
            |(number, mac): (&u16, &Mac)| Some((state.plan.bindings.get(number)?.guest.clone(), *mac));
        state.learnt.iter().filter_map(named).collect()
    }

    /// Forgets the MAC of such a guest.
    pub fn forget(&self, guest: &str) {
        let mut state = self.lock();
        let plan = state.plan.clone();
        state.learnt.retain(|number, _| plan.bindings.get(number).is_none_or(|its| its.guest != guest));
    }

    /// Notes that an answer could not be sent: too much waits to be sent, or the guest is gone.
    pub fn lost(&self, guest: u16) {
        let mut state = self.lock();
        if let Some(binding) = state.plan.clone().bindings.get(&guest) {
            state.counts.count(&binding.network.name, Err(&Refused::Lost));
        }
    }

    /// Returns the advertisements that are due between two times, seconds after any begin: each with the number of
    /// an interface. They are spread over 200 seconds.
    pub fn due(&self, (after, now): (u64, u64)) -> Vec<(u16, Vec<u8>)> {
        if after == now {
            return Vec::new();
        }
        let plan = self.lock().plan.clone();
        let rounds = |guest: u16, time: u64| (time + u64::from(guest)) / router::PERIOD;
        let bindings = plan.bindings.iter().filter(|(_, binding)| binding.network.ra);
        let due = bindings.filter(|(guest, _)| rounds(**guest, now) > rounds(**guest, after));
        due.filter_map(|(guest, its)| Some((*guest, router::advertisement(&plan, its, None).ok()?))).collect()
    }

    /// Returns the counts of questions and answers.
    pub fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the MAC that an answered question by DHCP shows to be its guest's.
fn teaches(frame: &[u8]) -> Option<Mac> {
    let headers = Headers::ethernet(frame, 0, frame.len()).ok()?;
    let is_dhcp = matches!(headers.l4, L4::Udp { dst: dhcp::SERVER | dhcpv6::SERVER, .. });
    headers.eth.as_ref().filter(|_| is_dhcp).map(|eth| eth.src)
}

fn answer(plan: &Plan, guest: &Binding, frame: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
    let headers = Headers::ethernet(frame, 0, frame.len()).map_err(|_| Refused::Malformed)?;
    let (ip, eth) =
        (headers.ip().ok_or(Refused::Malformed)?, headers.eth.as_ref().ok_or(Refused::Malformed)?);
    match (headers.l4, ip.src) {
        (L4::Icmp { kind: proto::ND_ROUTER_SOLICITATION, .. }, IpAddr::V6(src)) => {
            let to = (!src.is_unspecified()).then_some((eth.src, src));
            router::advertisement(plan, guest, to).map(Some)
        }
        (L4::Udp { dst: dhcp::SERVER, .. }, IpAddr::V4(_)) => {
            dhcp::answer(plan, guest, &Datagram::read(frame, &headers)?)
        }
        (L4::Udp { dst: dhcpv6::SERVER, .. }, IpAddr::V6(_)) => {
            dhcpv6::answer(plan, guest, &Datagram::read(frame, &headers)?)
        }
        _ => Err(Refused::Malformed),
    }
}
