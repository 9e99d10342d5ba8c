//! Services of networks for their guests: addresses, by DHCP and DHCPv6, router advertisements, names, by DNS,
//! and metadata, by HTTP.
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
mod metadata;
mod plan;
mod refused;
mod relay;
mod router;
mod tcp;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use counts::{Counts, Key};
pub use dns::Inquiry;
pub use metadata::Proxied;
pub use plan::{Binding, DhcpOptions, MetadataProxy, Network, Plan, Route};
pub use refused::Refused;
pub use relay::Relayed;

use frame::{Back, Datagram};
use packet::{Headers, L4, Mac, proto};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tcp::{Connections, Question, Results, Talk};

/// The services of all networks.
#[derive(Debug, Default)]
pub struct Services {
    state: Mutex<State>,
    /// Locked before the state, never after it.
    connections: Mutex<Connections>,
    tokens: metadata::Tokens,
}

#[derive(Debug, Default)]
struct State {
    plan: Arc<Plan>,
    counts: Counts,
    /// The MACs of guests that had none, by the numbers of their interfaces.
    learnt: BTreeMap<u16, Mac>,
    cache: dns::Cache,
    /// The guests that wait for DHCP servers outside.
    waiting: relay::Waiting,
    /// The inquiries of guests, by the guests' names.
    inquirers: BTreeMap<String, Inquirer>,
}

/// The questions of a guest.
#[derive(Debug, Default)]
struct Inquirer {
    /// Inquiries under way.
    waiting: u16,
    /// A second, how many inquiries there were in it, and questions by TCP.
    second: u64,
    asked: u16,
    heard: u16,
    /// Messages of DHCP that were relayed in the second.
    relayed: u16,
}

/// Most inquiries of a guest under way, and in a second.
const MOST_INQUIRIES: u16 = 32;
const INQUIRIES_PER_SECOND: u16 = 100;
/// Most questions of a guest by TCP in a second: as many as it may have packets, one of which can have many.
const QUESTIONS_PER_SECOND: u16 = 500;
/// Most messages of a guest in a second that are relayed to DHCP servers outside.
const RELAYED_PER_SECOND: u16 = 10;

/// The result of a question.
#[derive(Debug)]
pub enum Answer {
    /// It is answered by this frame.
    Frame(Vec<u8>),
    /// Somebody outside is to be asked; then [`Services::resolved`] has the frame.
    Inquiry(Box<Inquiry>),
    /// DHCP servers outside are to get this; [`Services::returned`] takes what they answer.
    Relayed(Box<Relayed>),
    /// A metadata service outside is to be asked; then [`Services::proxied`] has the frames.
    Proxied(Box<Proxied>),
}

impl Inquirer {
    fn turn_to(&mut self, now: u64) {
        if self.second != now {
            (self.second, self.asked, self.heard, self.relayed) = (now, 0, 0, 0);
        }
    }

    fn is_heard(&mut self, now: u64) -> bool {
        self.turn_to(now);
        self.heard = self.heard.saturating_add(1);
        self.heard <= QUESTIONS_PER_SECOND
    }

    fn may_relay(&mut self, now: u64) -> bool {
        self.turn_to(now);
        self.relayed = self.relayed.saturating_add(1);
        self.relayed <= RELAYED_PER_SECOND
    }

    fn may_ask(&mut self, now: u64) -> bool {
        self.turn_to(now);
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
        let mut connections = self.connections();
        let mut state = self.lock();
        let before = state.plan.clone();
        // After any change of its settings a guest asks again: what began by the old ones may be another guest's. A
        // lease that learns the guest's MAC is no such change.
        let settings = |plan: &Plan, number| {
            Some(Binding { mac: None, learns: false, ..plan.bindings.get(&number)?.clone() })
        };
        connections.keep(|number| settings(&before, number) == settings(&plan, number));
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
        state.waiting.keep(&plan);
        state.plan = Arc::new(plan);
        connections.follow(&state.plan);
    }

    /// Returns the answers to a guest's frame. `guest`: the number of its interface; `now`: the time after any begin.
    pub fn answer(&self, guest: u16, frame: &[u8], now: Duration) -> Vec<Answer> {
        let (plan, learnt) = {
            let state = self.lock();
            (state.plan.clone(), state.learnt.get(&guest).copied())
        };
        let Some(binding) = plan.bindings.get(&guest) else { return Vec::new() };
        let known =
            learnt.filter(|_| binding.learns).map(|mac| Binding { mac: Some(mac), ..binding.clone() });
        let answer = match answer(&plan, known.as_ref().unwrap_or(binding), frame) {
            Ok(Outcome::Segment(headers)) => {
                let result = self.segment(guest, (frame, &headers), now);
                return result.unwrap_or_else(|refused| {
                    self.lock().counts.count(&binding.network.name, Err(&refused));
                    Vec::new()
                });
            }
            Ok(Outcome::Inquire(inquiry)) => {
                return match self.inquire(binding, Inquiry { number: guest, ..inquiry }, now) {
                    Inquired::Known(back, message) => {
                        back.frame(&message).map(Answer::Frame).into_iter().collect()
                    }
                    Inquired::Unknown(inquiry) => vec![Answer::Inquiry(inquiry)],
                    Inquired::Refused => Vec::new(),
                };
            }
            Ok(Outcome::Relay) => {
                let relayed = self.relay((guest, binding), frame, now.as_secs());
                return relayed.map(Answer::Relayed).into_iter().collect();
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
        answer.ok().flatten().map(Answer::Frame).into_iter().collect()
    }

    /// Returns a guest's message for DHCP servers outside, and has the guest wait for their answers.
    fn relay(&self, (number, guest): (u16, &Binding), frame: &[u8], now: u64) -> Option<Box<Relayed>> {
        let read = || {
            let headers = Headers::ethernet(frame, 0, frame.len()).map_err(|_| Refused::Malformed)?;
            relay::forward((number, guest), &Datagram::read(frame, &headers)?)
        };
        let read = read();
        let mut state = self.lock();
        let may = state.inquirers.entry(guest.guest.clone()).or_default().may_relay(now);
        match read.and_then(|relayed| if may { Ok(relayed) } else { Err(Refused::TooMany) }) {
            Ok(relayed) => {
                state.waiting.note(&relayed, now);
                state.counts.relayed(&guest.network.name);
                Some(Box::new(relayed))
            }
            Err(refused) => {
                state.counts.count(&guest.network.name, Err(&refused));
                None
            }
        }
    }

    /// Takes a datagram of a DHCP server outside, and returns the frame for the guest that waits for it, with the
    /// number of its interface.
    pub fn returned(&self, server: IpAddr, datagram: &[u8], now: Duration) -> Option<(u16, Vec<u8>)> {
        let mut state = self.lock();
        let plan = state.plan.clone();
        let returned = relay::back(&plan, &state.waiting, (server, datagram), now.as_secs())?;
        state.counts.count(&returned.network, returned.frame.as_ref().map(|_| true));
        Some((returned.number, returned.frame.ok()?))
    }

    /// Notes that a DHCP server outside can't be reached.
    pub fn unreached(&self, relayed: &Relayed) {
        self.lock().counts.count(&relayed.network, Err(&Refused::NoServer));
    }

    /// Takes a segment of a TCP connection.
    fn segment(
        &self,
        number: u16,
        (frame, headers): (&[u8], &Headers),
        now: Duration,
    ) -> Result<Vec<Answer>, Refused> {
        let mut connections = self.connections();
        // No other plan comes before the connection is there to follow it.
        let plan = self.lock().plan.clone();
        let Some(guest) = plan.bindings.get(&number) else { return Ok(Vec::new()) };
        let is_dns = headers.ports().1 == dns::SERVER;
        let talk = |back| -> Box<dyn Talk> {
            if is_dns {
                return Box::new(dns::Stream::default());
            }
            Box::new(metadata::Exchange::new(plan.clone(), number, back, self.tokens.clone()))
        };
        let mut results = Results::default();
        connections.take((number, guest), (frame, headers), now, talk, &mut results)?;
        let answers = self.settle(&plan, &mut connections, results, now);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Answers the questions that came by TCP, or says whom to ask; returns also what is to be sent, with the numbers
    /// of interfaces.
    fn settle(
        &self,
        plan: &Plan,
        connections: &mut Connections,
        mut results: Results,
        now: Duration,
    ) -> Vec<(u16, Answer)> {
        let mut all = Vec::new();
        while let Some(question) = results.questions.pop() {
            let number = question.from.0;
            let Some(guest) = plan.bindings.get(&number) else { continue };
            if question.back.ports().0 == metadata::SERVER {
                match self.proxy(guest, &question, now.as_secs()) {
                    Some(proxied) => all.push((number, Answer::Proxied(Box::new(proxied)))),
                    None => _ = connections.deliver(question.from, &[], now, &mut results),
                }
                continue;
            }
            let way = (question.back, Some(question.from.1));
            let is_heard =
                self.lock().inquirers.entry(guest.guest.clone()).or_default().is_heard(now.as_secs());
            let heard = if is_heard { Ok(&question.message) } else { Err(Refused::TooMany) };
            let message = match heard.and_then(|message| dns::answer(plan, guest, way, message)) {
                Ok(dns::Outcome::Answer(message)) => {
                    results.outcomes.push((number, Ok(())));
                    message
                }
                Ok(dns::Outcome::Inquire(inquiry)) => {
                    match self.inquire(guest, Inquiry { number, ..inquiry }, now) {
                        Inquired::Known(_, message) => message,
                        Inquired::Unknown(inquiry) => {
                            all.push((number, Answer::Inquiry(inquiry)));
                            continue;
                        }
                        Inquired::Refused => Vec::new(),
                    }
                }
                Err(refused) => {
                    results.outcomes.push((number, Err(refused)));
                    Vec::new()
                }
            };
            connections.deliver(question.from, &message, now, &mut results);
        }
        let mut state = self.lock();
        for (number, outcome) in &results.outcomes {
            if let Some(guest) = plan.bindings.get(number) {
                state.counts.count(&guest.network.name, outcome.as_ref().map(|()| true));
            }
        }
        all.extend(results.frames.into_iter().map(|(number, frame)| (number, Answer::Frame(frame))));
        all
    }

    /// Returns a guest's request for the metadata service outside, if the guest may ask.
    fn proxy(&self, guest: &Binding, question: &Question, now: u64) -> Option<Proxied> {
        let proxy = guest.network.metadata_proxy.as_ref()?;
        let mut state = self.lock();
        if !state.inquirers.entry(guest.guest.clone()).or_default().may_ask(now) {
            state.counts.count(&guest.network.name, Err(&Refused::TooMany));
            return None;
        }
        state.counts.relayed(&guest.network.name);
        Some(Proxied {
            server: proxy.server,
            request: question.message.clone(),
            from: question.from,
            guest: guest.guest.clone(),
            network: guest.network.name.clone(),
        })
    }

    /// Ends a request with the response of a metadata service outside, or without, and returns what follows for the
    /// guest, with the number of its interface.
    pub fn proxied(&self, asked: &Proxied, response: Option<&[u8]>, now: Duration) -> Vec<(u16, Answer)> {
        let mut connections = self.connections();
        let plan = {
            let mut state = self.lock();
            if let Some(its) = state.inquirers.get_mut(&asked.guest) {
                its.waiting = its.waiting.saturating_sub(1);
            }
            if response.is_none() {
                state.counts.count(&asked.network, Err(&Refused::NoServer));
            }
            state.plan.clone()
        };
        let mut results = Results::default();
        connections.deliver(asked.from, response.unwrap_or_default(), now, &mut results);
        self.settle(&plan, &mut connections, results, now)
    }

    /// Returns what is due on connections at a time, with the numbers of interfaces; see [`Services::waits`].
    pub fn tick(&self, now: Duration) -> Vec<(u16, Answer)> {
        let mut connections = self.connections();
        let plan = self.lock().plan.clone();
        let mut results = Results::default();
        connections.tick(now, &mut results);
        self.settle(&plan, &mut connections, results, now)
    }

    /// Returns whether there are connections, so that [`Services::tick`] is to be called every 50 ms.
    pub fn waits(&self) -> bool {
        !self.connections().is_empty()
    }

    /// Returns the answer to an inquiry, if it is known, or has it made.
    fn inquire(&self, guest: &Binding, inquiry: Inquiry, now: Duration) -> Inquired {
        let mut state = self.lock();
        let now = now.as_secs();
        let kept = state.cache.get(&inquiry, now).and_then(|kept| inquiry.passed_on(&kept));
        if let Some(kept) = kept {
            state.counts.count(&guest.network.name, Ok(true));
            return Inquired::Known(inquiry.back, kept);
        }
        if !state.inquirers.entry(guest.guest.clone()).or_default().may_ask(now) {
            state.counts.count(&guest.network.name, Err(&Refused::TooMany));
            return Inquired::Refused;
        }
        Inquired::Unknown(Box::new(inquiry))
    }

    /// Ends an inquiry with the answer of a resolver, or without, and returns what follows for the guest, if it is
    /// still there, with the number of its interface.
    pub fn resolved(&self, inquiry: &Inquiry, response: Option<&[u8]>, now: Duration) -> Vec<(u16, Answer)> {
        let mut connections = self.connections();
        let mut state = self.lock();
        if let Some(its) = state.inquirers.get_mut(&inquiry.guest) {
            its.waiting = its.waiting.saturating_sub(1);
        }
        let is_its = |its: &&Binding| its.guest == inquiry.guest && its.network.name == inquiry.network;
        if state.plan.bindings.get(&inquiry.number).filter(is_its).is_none() {
            return Vec::new();
        }
        if let Some(response) = response {
            state.cache.put(inquiry, response, now.as_secs());
        }
        let passed_on = response.and_then(|response| inquiry.passed_on(response));
        let outcome = passed_on.as_ref().map(|_| true).ok_or(Refused::NoResolver);
        state.counts.count(&inquiry.network, outcome.as_ref().copied());
        let message = passed_on.unwrap_or_else(|| inquiry.failed());
        let plan = state.plan.clone();
        drop(state);
        let Some(connection) = inquiry.connection else {
            let frame = inquiry.back.frame(&message);
            return frame.into_iter().map(|frame| (inquiry.number, Answer::Frame(frame))).collect();
        };
        let mut results = Results::default();
        connections.deliver((inquiry.number, connection), &message, now, &mut results);
        self.settle(&plan, &mut connections, results, now)
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

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The result of a question to others.
enum Inquired {
    /// It is known: this message goes back.
    Known(Back, Vec<u8>),
    Unknown(Box<Inquiry>),
    /// The guest asks too much.
    Refused,
}

/// The result of a question, before others are asked.
enum Outcome {
    /// It has no answer.
    Nothing,
    Answer(Vec<u8>),
    Inquire(Inquiry),
    /// It is for DHCP servers outside.
    Relay,
    /// It is a segment of TCP to a service.
    Segment(Box<Headers>),
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
        (L4::Udp { dst: dhcp::SERVER | dhcpv6::SERVER, .. }, src)
            if guest.network.relays(src.is_ipv4()).next().is_some() =>
        {
            Ok(Outcome::Relay)
        }
        (L4::Udp { dst: dhcp::SERVER | dhcpv6::SERVER, .. }, _) if !guest.network.dhcp => {
            Err(Refused::NotOurs)
        }
        (L4::Udp { dst: dhcp::SERVER, .. }, IpAddr::V4(_)) => {
            dhcp::answer(plan, guest, &Datagram::read(frame, &headers)?).map(Outcome::from)
        }
        (L4::Udp { dst: dhcpv6::SERVER, .. }, IpAddr::V6(_)) => {
            dhcpv6::answer(plan, guest, &Datagram::read(frame, &headers)?).map(Outcome::from)
        }
        (L4::Udp { dst: dns::SERVER, .. }, _) if guest.network.dns => {
            let back = Back::of(&headers)?;
            match dns::answer(plan, guest, (back, None), Datagram::read(frame, &headers)?.payload)? {
                dns::Outcome::Answer(message) => back.frame(&message).map(Outcome::Answer),
                dns::Outcome::Inquire(inquiry) => Ok(Outcome::Inquire(inquiry)),
            }
        }
        (L4::Tcp { dst: dns::SERVER, .. }, _) if guest.network.dns => Ok(Outcome::Segment(Box::new(headers))),
        (L4::Tcp { dst: metadata::SERVER, .. }, _)
            if guest.network.metadata && metadata::ADDRESSES.contains(&ip.dst) =>
        {
            Ok(Outcome::Segment(Box::new(headers)))
        }
        _ => Err(Refused::Malformed),
    }
}
