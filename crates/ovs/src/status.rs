//! The status of sessions, ports and flows, for people.

use executor::{Counters, OvsPlace};
use model::ovs::Flow;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct Status {
    pub sessions: Vec<SessionStatus>,
    /// The ports that drivers can open, by name.
    pub ports: Vec<PortStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    pub id: u64,
    /// Process ID, 0 if the process has none in the daemon's namespace.
    pub pid: i32,
    pub uid: u32,
    /// Version of DPDK, in words.
    pub dpdk: String,
    /// Time since it connected.
    pub age: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// Name of the guest or wire.
    pub name: String,
    pub session: Option<u64>,
    /// Largest IP packet that OVS takes, bytes.
    pub mtu: u32,
    pub flows: usize,
    /// Number of those flows that an earlier session made, and no session since.
    pub stale: usize,
    /// Messages in its ring that were not packets.
    pub malformed: u64,
    /// Names of what OVS does to packets of this port, but only to those that it forwards itself.
    pub qos: Vec<&'static str>,
    pub refused: Vec<RefusedCount>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCount {
    pub reason: &'static str,
    pub count: u64,
    /// The last refusal in words.
    pub last: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    Live,
    /// Nobody, for this time.
    Stale(Duration),
}

#[derive(Clone, Debug)]
pub struct FlowStatus {
    /// The flow as in the executor.
    pub flow: Arc<Flow>,
    pub state: FlowState,
    /// Place where its packets are forwarded; `None` without a card.
    pub place: Option<OvsPlace>,
    /// Counted since the flow was made.
    pub counters: Counters,
}
