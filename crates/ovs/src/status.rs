//! What there is to see.

use executor::{Counters, OvsPlace};
use model::ovs::Flow;
use std::sync::Arc;
use std::time::Duration;

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Drivers that are connected.
    pub sessions: Vec<SessionStatus>,
    /// The ports that drivers can open, by name.
    pub ports: Vec<PortStatus>,
}

/// A driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// Its number.
    pub id: u64,
    /// Its process, 0 if that has no number here.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its DPDK, in words.
    pub dpdk: String,
    /// How long it is connected.
    pub age: Duration,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// Name of the guest or wire.
    pub name: String,
    /// Which session has it.
    pub session: Option<u64>,
    /// Largest IP packet that OVS takes, bytes.
    pub mtu: u32,
    /// Its flows.
    pub flows: usize,
    /// Those of them that an earlier session made, and no session since.
    pub stale: usize,
    /// Messages in its ring that were not packets.
    pub malformed: u64,
    /// Flows that were refused, by reason.
    pub refused: Vec<RefusedCount>,
}

/// Refusals with one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCount {
    /// The reason's name.
    pub reason: &'static str,
    /// How often.
    pub count: u64,
    /// The last one in words.
    pub last: String,
}

/// Whose a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// A session's.
    Live,
    /// Nobody's, for so long.
    Stale(Duration),
}

/// A flow.
#[derive(Clone, Debug)]
pub struct FlowStatus {
    /// As the executor has it.
    pub flow: Arc<Flow>,
    /// Whose it is.
    pub state: FlowState,
    /// Where its packets are forwarded; `None` without a card.
    pub place: Option<OvsPlace>,
    /// What it counted since it was made.
    pub counters: Counters,
}
