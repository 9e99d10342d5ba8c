//! Services of networks for their guests: addresses, by DHCP and DHCPv6, router advertisements, and names, by DNS.
//!
//! Owns: reading what guests ask, and the answers. Nothing here does I/O: a question is a frame, and so is the answer.
//! Each guest is answered from the [`Plan`] alone, so nothing that it asks changes what others get; what is for
//! resolvers outside is an [`Inquiry`], and their answers are kept by network.
//!
//! Must not know: tables, the control plane, how frames come and go.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod counts;
mod dhcp;
mod dhcpv6;
mod dns;
mod frame;
mod plan;
mod refused;
mod router;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use counts::{Counts, Key};
pub use dns::Inquiry;
pub use plan::{Binding, DhcpOptions, Network, Plan, Route};
pub use refused::Refused;

use frame::{Back, Datagram};
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
    cache: dns::Cache,
    /// The inquiries of guests, by the guests' names.
    inquirers: BTreeMap<String, Inquirer>,
}

/// The inquiries of a guest.
#[derive(Debug, Default)]
struct Inquirer {
    /// Inquiries under way.
    waiting: u16,
    /// The second of the last one, and how many there were in it.
    second: u64,
    asked: u16,
}

/// Most inquiries of a guest under way, and in a second.
const MOST_INQUIRIES: u16 = 32;
const INQUIRIES_PER_SECOND: u16 = 100;

/// The result of a question.
#[derive(Debug)]
pub enum Answer {
    /// It is answered by this frame.
    Frame(Vec<u8>),
    /// Somebody outside is to be asked; then [`Services::resolved`] has the frame.
    Inquiry(Box<Inquiry>),
}

impl Inquirer {
    fn may_ask(&mut self, now: u64) -> bool {
        if self.second != now {
            (self.second, self.asked) = (now, 0);
        }
        let may = self.waiting < MOST_INQUIRIES && self.asked < INQUIRIES_PER_SECOND;
        if may {
            (self.waiting, self.asked) = (self.waiting + 1, self.asked + 1);
        }
        may
    }
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
        state.inquirers.retain(|_, its| its.waiting > 0);
        if resolvers(&before) != resolvers(&plan) {
            state.cache.clear();
        }
        state.counts.keep(&plan);
        state.plan = Arc::new(plan);
    }

    /// Returns the answer to a guest's frame, if there is one. `guest`: the number of its interface; `now`: seconds
    /// after any begin.
    pub fn answer(&self, guest: u16, frame: &[u8], now: u64) -> Option<Answer> {
        let (plan, learnt) = {
            let state = self.lock();
            (state.plan.clone(), state.learnt.get(&guest).copied())
        };
        let binding = plan.bindings.get(&guest)?;
        let known =
            learnt.filter(|_| binding.learns).map(|mac| Binding { mac: Some(mac), ..binding.clone() });
        let answer = match answer(&plan, known.as_ref().unwrap_or(binding), frame) {
            Ok(Outcome::Inquire(inquiry)) => {
                return self.inquire(binding, Inquiry { number: guest, ..inquiry }, now);
            }
            Ok(Outcome::Answer(frame)) => Ok(Some(frame)),
            Ok(Outcome::Nothing) => Ok(None),
            Err(refused) => Err(refused),
        };
        let mut state = self.lock();
        if let (Ok(Some(_)), true, Some(mac)) = (&answer, binding.learns, teaches(frame)) {
            state.learnt.entry(guest).or_insert(mac);
        }
        state.counts.count(&binding.network.name, answer.as_ref().map(Option::is_some));
        answer.ok().flatten().map(Answer::Frame)
    }

    /// Returns the answer to an inquiry, if it is known, or has it made.
    fn inquire(&self, guest: &Binding, inquiry: Inquiry, now: u64) -> Option<Answer> {
        let mut state = self.lock();
        let kept = state.cache.get(&inquiry, now).and_then(|kept| inquiry.passed_on(&kept));
        if let Some(kept) = kept {
            let frame = inquiry.back.frame(&kept);
            state.counts.count(&guest.network.name, frame.as_ref().map(|_| true));
            return frame.ok().map(Answer::Frame);
        }
        if !state.inquirers.entry(guest.guest.clone()).or_default().may_ask(now) {
            state.counts.count(&guest.network.name, Err(&Refused::TooMany));
            return None;
        }
        Some(Answer::Inquiry(Box::new(inquiry)))
    }

    /// Ends an inquiry with the answer of a resolver, or without, and returns the number of the guest's interface and
    /// the frame for it, if the guest is still there.
    pub fn resolved(&self, inquiry: &Inquiry, response: Option<&[u8]>, now: u64) -> Option<(u16, Vec<u8>)> {
        let mut state = self.lock();
        if let Some(its) = state.inquirers.get_mut(&inquiry.guest) {
            its.waiting = its.waiting.saturating_sub(1);
        }
        let is_its = |its: &&Binding| its.guest == inquiry.guest && its.network.name == inquiry.network;
        state.plan.bindings.get(&inquiry.number).filter(is_its)?;
        if let Some(response) = response {
            state.cache.put(inquiry, response, now);
        }
        let passed_on = response.and_then(|response| inquiry.passed_on(response));
        let outcome = passed_on.as_ref().map(|_| true).ok_or(Refused::NoResolver);
        state.counts.count(&inquiry.network, outcome.as_ref().copied());
        let frame = inquiry.back.frame(&passed_on.unwrap_or_else(|| inquiry.failed()));
        Some((inquiry.number, frame.ok()?))
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

/// Returns the resolvers of each network.
fn resolvers(plan: &Plan) -> BTreeMap<&str, &[IpAddr]> {
    let networks = plan.bindings.values().map(|binding| &binding.network);
    networks.map(|network| (network.name.as_str(), &network.resolvers[..])).collect()
}

/// The result of a question, before others are asked.
enum Outcome {
    /// It has no answer.
    Nothing,
    Answer(Vec<u8>),
    Inquire(Inquiry),
}

impl From<Option<Vec<u8>>> for Outcome {
    fn from(answer: Option<Vec<u8>>) -> Self {
        answer.map_or(Self::Nothing, Self::Answer)
    }
}

fn answer(plan: &Plan, guest: &Binding, frame: &[u8]) -> Result<Outcome, Refused> {
    let headers = Headers::ethernet(frame, 0, frame.len()).map_err(|_| Refused::Malformed)?;
    let (ip, eth) =
        (headers.ip().ok_or(Refused::Malformed)?, headers.eth.as_ref().ok_or(Refused::Malformed)?);
    match (headers.l4, ip.src) {
        (L4::Icmp { kind: proto::ND_ROUTER_SOLICITATION, .. }, IpAddr::V6(src)) => {
            let to = (!src.is_unspecified()).then_some((eth.src, src));
            router::advertisement(plan, guest, to).map(Outcome::Answer)
        }
        (L4::Udp { dst: dhcp::SERVER, .. }, IpAddr::V4(_)) => {
            dhcp::answer(plan, guest, &Datagram::read(frame, &headers)?).map(Outcome::from)
        }
        (L4::Udp { dst: dhcpv6::SERVER, .. }, IpAddr::V6(_)) => {
            dhcpv6::answer(plan, guest, &Datagram::read(frame, &headers)?).map(Outcome::from)
        }
        (L4::Udp { dst: dns::SERVER, .. }, _) if guest.network.dns => {
            let back = Back::of(&headers)?;
            match dns::answer(plan, guest, back, Datagram::read(frame, &headers)?.payload)? {
                dns::Outcome::Answer(message) => back.frame(&message).map(Outcome::Answer),
                dns::Outcome::Inquire(inquiry) => Ok(Outcome::Inquire(inquiry)),
            }
        }
        _ => Err(Refused::Malformed),
    }
}
