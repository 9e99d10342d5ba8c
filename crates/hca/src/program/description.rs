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
    /// True if it does not answer; then the rest is unknown.
    pub is_stuck: bool,
    /// The process number in the daemon's namespace; 0 if it has none there. For a program in a virtual machine:
    /// the number there, as the program claims.
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
    /// The counters of the application.
    pub counters: Counters,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpDescription {
    /// The number of the queue pair.
    pub qpn: u32,
    /// The transport service.
    pub kind: QpType,
    /// The state of the queue pair.
    pub state: QpState,
    /// Why it is in the error state.
    pub error: Option<&'static str>,
    /// GID of its peer, if it is connected.
    pub peer: Option<Ipv6Addr>,
    /// Number of the peer's queue pair; 0 if it is not connected.
    pub peer_qpn: u32,
    /// How messages get to the peer: `shared`, `copy` or `roce`; `each` if every address handle decides, `none` if
    /// there is no peer.
    pub transport: &'static str,
    /// Why `transport` is so, for people.
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
    /// The key: `lkey` and `rkey` alike.
    pub key: u32,
    /// The first address in the application's memory.
    pub address: u64,
    /// The first address for users of the key (`iova`).
    pub iova: u64,
    /// Length, bytes.
    pub len: u64,
    /// The access flags, in words.
    pub access: String,
    /// Whether pages of it are in a file that peers may map.
    pub is_shared: bool,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqDescription {
    /// The handle of the completion queue.
    pub cq: u32,
    /// Number of completions for which it has room.
    pub entries: u32,
    /// How many queue pairs use it.
    pub users: u32,
    /// Completions that the application has not polled yet.
    pub waiting: u32,
    /// True if it had no room for a completion.
    pub overrun: bool,
}

impl ClientDescription {
    /// Describes an application that does not answer.
    pub(crate) fn stuck(who: &Who, id: u64) -> Self {
        let (pid, program) = (who.pid(), who.program().map(str::to_owned));
        Self { id, is_stuck: true, pid, program, ..Self::default() }
    }
}
