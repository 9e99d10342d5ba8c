//! What people are shown of a device.

use crate::counters::Counters;
use std::net::Ipv6Addr;
use uverbs::{QpState, QpType};

/// An application that uses a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientDescription {
    /// What it is known by.
    pub(crate) id: u64,
    /// It does not answer: the rest is not known.
    pub is_stuck: bool,
    /// Its process, in our process namespace; 0 where it is in none of ours.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Queue pairs.
    pub qps: Vec<QpDescription>,
    /// Memory regions.
    pub mrs: Vec<MrDescription>,
    /// Completion queues.
    pub cqs: Vec<CqDescription>,
    /// Bytes of its memory regions.
    pub registered: u64,
    /// What happened.
    pub counters: Counters,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpDescription {
    /// Its number.
    pub qpn: u32,
    /// What it offers.
    pub kind: QpType,
    /// Its state.
    pub state: QpState,
    /// Why it is in the error state.
    pub error: Option<&'static str>,
    /// GID of its peer, where it is connected.
    pub peer: Option<Ipv6Addr>,
    /// Number of the peer's queue pair.
    pub peer_qpn: u32,
    /// How messages get there: `shared`, `copy`, `roce`; and why so.
    pub transport: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Number of the first packet sent.
    pub sq_psn: u32,
    /// Number of the first packet received.
    pub rq_psn: u32,
    /// Bytes in a packet at most.
    pub path_mtu: u32,
    /// Times that something was sent again.
    pub retries: u64,
    /// Messages that the application brought to its peer itself, and their bytes.
    pub direct: (u64, u64),
}

/// A memory region, or a window that is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrDescription {
    /// Its key.
    pub key: u32,
    /// Where it lies.
    pub address: u64,
    /// Where it begins for those who use the key.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// What may be done with it, in words.
    pub access: String,
    /// Pages of it are in a file that others map.
    pub is_shared: bool,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqDescription {
    /// Its handle.
    pub cq: u32,
    /// Completions it has room for.
    pub entries: u32,
    /// Queue pairs that complete to it.
    pub users: u32,
    /// Completions that wait.
    pub waiting: u32,
    /// It overran.
    pub overrun: bool,
}

impl ClientDescription {
    /// The description of an application that does not answer.
    pub(crate) fn stuck(pid: i32, uid: u32, id: u64) -> Self {
        Self { id, is_stuck: true, pid, uid, ..Self::default() }
    }
}
