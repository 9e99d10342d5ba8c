//! Conformance vectors: tables, packets in, packets out. They can test any executor.
//!
//! A file begins with tables, one line each ([`Setup`]); cases follow. A case starts with `case NAME`. It may have
//! more tables, which change those of the file for this case only; then come packets, each with its expectations:
//!
//! ```text
//! case a unicast frame to a guest of the same network
//! in vm1 eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 / udp 1 > 2
//!   out vm2 eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 / udp 1 > 2
//!   effect flow new
//! ```
//!
//! | line | |
//! |---|---|
//! | `in PORT [gso N] PACKET` | a packet comes in, in the language of [`crate::text`]; `gso`: with segments of N bytes |
//! | `out PORT PACKET` | a packet goes out: a delivery, an answer or a copy |
//! | `drop REASON`, `hold ADDR on NAME`, `consumed` | the verdict, if it isn't to deliver |
//! | `effect WORDS` | what else happens |
//! | `unreachable NAME ADDR` | a neighbour (of a wire or network) that was asked for does not answer |
//! | `wait SECONDS` | time passes |
//! | a table's line | the tables change |

mod ovs;
mod setup;

pub use setup::Setup;

use crate::{
    Change, Decision, DropReason, Effects, FlowChange, Lookup, NeighbourScope, PacketView, Verdict, VifId,
    rewrite, text,
};
use std::net::IpAddr;

/// A case of a vector file.
#[derive(Clone, Debug)]
pub struct Case {
    /// The statement that the case shows.
    pub name: String,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The tables, for their names.
    pub setup: Setup,
}

impl Case {
    /// Returns the flows of Open vSwitch, which are there from the beginning on.
    #[must_use]
    pub fn flows(&self) -> Vec<crate::ovs::Change> {
        self.setup.ovs.changes()
    }
}

/// A step of a case.
#[derive(Clone, Debug)]
pub enum Step {
    /// Change the tables.
    Apply(Vec<Change>),
    /// Take as known what these effects say.
    Learn(Box<Effects>),
    /// A neighbour was asked and does not answer.
    GiveUp(NeighbourScope, IpAddr),
    /// Time passes, seconds.
    Wait(u32),
    /// A packet comes in.
    Packet(Packet),
}

/// A packet and its expectations.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Line in the file, from 1.
    pub line: usize,
    /// The interface by which the packet comes in.
    pub ingress: VifId,
    /// The frame.
    pub frame: Vec<u8>,
    /// TCP payload bytes per segment, if the frame is a large send.
    pub gso_size: Option<u16>,
    /// All that is expected.
    pub expected: Vec<Expected>,
}

/// One expectation of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A frame that leaves by this port.
    Out(VifId, Vec<u8>),
    /// A drop, with or without an answer.
    Drop(DropReason),
    /// Any other verdict or effect, in words.
    Words(String),
}

/// An error in a vector file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct VectorError {
    /// The line, from 1.
    pub line: usize,
    /// The error.
    pub what: String,
}

/// Returns the cases of a vector file.
///
/// # Errors
/// [`VectorError`].
pub fn load(file: &str) -> Result<Vec<Case>, VectorError> {
    let mut common = Setup::default();
    let mut cases: Vec<Case> = Vec::new();
    for (index, line) in file.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let done = match (word, cases.last_mut()) {
            ("case", _) => {
                cases.push(Case { name: rest.into(), steps: Vec::new(), setup: common.clone() });
                Ok(())
            }
            (_, None) => common.line(line),
            (_, Some(case)) => case.line(index + 1, word, rest, line),
        };
        done.map_err(|what| VectorError { line: index + 1, what })?;
    }
    Ok(cases)
}

impl Case {
    fn line(&mut self, number: usize, word: &str, rest: &str, line: &str) -> Result<(), String> {
        match word {
            "in" => {
                self.steps.extend(self.setup.take_steps());
                let packet = self.packet(number, rest)?;
                self.steps.push(Step::Packet(packet));
            }
            "unreachable" => {
                let (scope, addr) = self.setup.neighbour_key(rest)?;
                self.steps.extend(self.setup.take_steps());
                self.steps.push(Step::GiveUp(scope, addr));
            }
            "wait" => self.steps.push(Step::Wait(rest.parse().map_err(|_| "seconds expected")?)),
            "out" | "drop" | "hold" | "reassemble" | "serve" | "consumed" | "effect" => {
                let expected = self.expected(word, rest, line)?;
                let Some(Step::Packet(packet)) = self.steps.last_mut() else {
                    return Err("nothing came in yet".into());
                };
                packet.expected.push(expected);
            }
            _ => self.setup.line(line)?,
        }
        Ok(())
    }

    fn packet(&mut self, line: usize, rest: &str) -> Result<Packet, String> {
        let (port, rest) = rest.split_once(' ').ok_or("packet expected")?;
        let (gso_size, rest) = match rest.strip_prefix("gso ").and_then(|rest| rest.split_once(' ')) {
            Some((size, rest)) => (Some(size.parse().map_err(|_| "segment size expected")?), rest),
            None => (None, rest),
        };
        let frame = text::parse(rest).map_err(|error| error.to_string())?;
        Ok(Packet { line, ingress: self.setup.vif_id(port), frame, gso_size, expected: Vec::new() })
    }

    fn expected(&mut self, word: &str, rest: &str, line: &str) -> Result<Expected, String> {
        Ok(match word {
            "out" => {
                let (port, rest) = rest.split_once(' ').ok_or("packet expected")?;
                let frame = text::parse(rest).map_err(|error| error.to_string())?;
                Expected::Out(self.setup.vif_id(port), frame)
            }
            "drop" => {
                let reason = DropReason::ALL.iter().find(|reason| reason.name() == rest);
                Expected::Drop(*reason.ok_or_else(|| format!("no such drop reason: {rest}"))?)
            }
            _ => Expected::Words(line.into()),
        })
    }

    /// Returns the effects of a decision, in the words of a vector file.
    #[must_use]
    pub fn observed<T: Lookup>(
        &self,
        tables: &T,
        decision: &Decision,
        packet: &PacketView<'_>,
    ) -> Vec<Expected> {
        let sent = rewrite::emit(tables, decision, packet).into_iter();
        let mut all: Vec<_> = sent.map(|(port, frame)| Expected::Out(port, frame)).collect();
        match &decision.verdict {
            Verdict::Drop(reason) => all.push(Expected::Drop(*reason)),
            Verdict::Reply(reply) => all.extend(reply.dropped.map(Expected::Drop)),
            Verdict::Hold { scope, addr } => {
                all.push(Expected::Words(format!("hold {addr} on {}", self.scope(*scope))));
            }
            Verdict::Reassemble => all.push(Expected::Words("reassemble".into())),
            Verdict::Serve { service, .. } => all.push(Expected::Words(format!("serve {service}"))),
            Verdict::Consumed => all.push(Expected::Words("consumed".into())),
            Verdict::Forward(_) | Verdict::Flood(_) | Verdict::Outputs(_) => {}
        }
        let effects = self.effects(&decision.effects).into_iter();
        all.extend(effects.map(|words| Expected::Words(format!("effect {words}"))));
        all
    }

    /// Returns the line for this expectation.
    #[must_use]
    pub fn words(&self, expected: &Expected) -> String {
        match expected {
            Expected::Out(port, frame) => format!("out {} {}", self.setup.vif_name(*port), text::show(frame)),
            Expected::Drop(reason) => format!("drop {reason}"),
            Expected::Words(words) => words.clone(),
        }
    }

    fn scope(&self, scope: NeighbourScope) -> &str {
        match scope {
            NeighbourScope::Wire(id) => self.setup.vif_name(id),
            NeighbourScope::Network(vrf) => self.setup.network_name(vrf),
        }
    }

    /// Returns the effects in words, except copies, which are packets out, and counters.
    fn effects(&self, effects: &Effects) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(learn) = &effects.learn {
            let at = self.setup.target_words(learn.vrf, &learn.at);
            all.push(format!("learn {} in {} at {at}", learn.mac, self.setup.network_name(learn.vrf)));
        }
        if let Some(found) = &effects.neighbour {
            all.push(format!("neighbour {} on {} at {}", found.addr, self.scope(found.scope), found.mac));
        }
        if let Some(path) = &effects.path {
            all.push(format!("path {} mtu {}", path.remote, path.mtu));
        }
        match &effects.flow {
            Some(FlowChange::Create { connection, .. }) => {
                all.push(format!("flow create {}", connection.state))
            }
            Some(FlowChange::Update { connection, reply }) => {
                let direction = if *reply { "reply" } else { "original" };
                all.push(format!("flow {direction} {}", connection.state));
            }
            None => {}
        }
        if let Some((key, transport)) = &effects.fragment {
            let (src, dst) = transport.ports.unwrap_or_default();
            all.push(format!("fragment {} ports {src} {dst}", key.id));
        }
        all.extend(effects.meters.iter().map(|(meter, reason)| format!("meter {meter} {reason}")));
        all.extend(effects.rules.iter().map(|rule| format!("rule {rule}")));
        if let Some((scope, addr)) = &effects.solicit {
            all.push(format!("solicit {addr} on {}", self.scope(*scope)));
        }
        all
    }
}
