//! The descriptions of a device for the control plane.

use crate::base::counters::Counters;
use crate::program::who::Who;
use std::net::Ipv6Addr;
use uverbs::{QpState, QpType};

/// An application that uses a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientDescription {
    /// Identifies it within the device.
    pub(crate) id: u64,
    /// It does not answer; then the rest is unknown.
    pub is_stuck: bool,
    /// Its process number in the daemon's namespace; 0 if it has none there. Of a program in a virtual machine: its
    /// number there, as it claims.
    pub pid: i32,
    /// The name of a program in a virtual machine, as it claims; `None`: it is not in one.
    pub program: Option<String>,
    /// Queue pairs.
    pub qps: Vec<QpDescription>,
    /// Memory regions.
    pub mrs: Vec<MrDescription>,
    /// Completion queues.
    pub cqs: Vec<CqDescription>,
    /// Bytes of its memory regions.
    pub registered: u64,
    /// Its counters.
    pub counters: Counters,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpDescription {
    /// Its number.
    pub qpn: u32,
    /// Its type.
    pub kind: QpType,
    /// Its state.
    pub state: QpState,
    /// Why it is in the error state.
    pub error: Option<&'static str>,
    /// GID of its peer, if it is connected.
    pub peer: Option<Ipv6Addr>,
    /// Number of the peer's queue pair.
    pub peer_qpn: u32,
    /// How messages get there (`shared`, `copy` or `roce`), and why this way.
    pub transport: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Number of the first packet sent.
    pub sq_psn: u32,
    /// Number of the first packet received.
    pub rq_psn: u32,
    /// Most bytes in a packet.
    pub path_mtu: u32,
    /// How often packets were retransmitted.
    pub retries: u64,
    /// Messages that the application copied to its peer itself, and their bytes.
    pub direct: (u64, u64),
}

/// A memory region, or a bound window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrDescription {
    /// Its key.
    pub key: u32,
    /// Its address in the application's memory.
    pub address: u64,
    /// Its first address for users of the key (`iova`).
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Its access flags, in words.
    pub access: String,
    /// Whether pages of it are in a file that peers may map.
    pub is_shared: bool,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqDescription {
    /// Its handle.
    pub cq: u32,
    /// Number of completions for which it has room.
    pub entries: u32,
    /// How many queue pairs use it.
    pub users: u32,
    /// Completions that the application has not polled yet.
    pub waiting: u32,
    /// It had no room for a completion.
    pub overrun: bool,
}

impl ClientDescription {
    /// The description of an application that does not answer.
    pub(crate) fn stuck(who: &Who, id: u64) -> Self {
        let (pid, program) = (who.pid(), who.program().map(str::to_owned));
        Self { id, is_stuck: true, pid, program, ..Self::default() }
    }
}
