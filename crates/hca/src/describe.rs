//! What people are shown of a device.

use crate::objects::Counters;
use std::net::Ipv6Addr;
use uverbs::{QpState, QpType};

/// An application that uses a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientDescription {
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
    pub reason: Option<&'static str>,
    /// GID of its peer, where it is connected.
    pub peer: Option<Ipv6Addr>,
    /// Number of the peer's queue pair.
    pub peer_qpn: u32,
    /// How packets get there.
    pub way: Option<&'static str>,
    /// Number of the first packet sent.
    pub sq_psn: u32,
    /// Number of the first packet received.
    pub rq_psn: u32,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrDescription {
    /// Its key.
    pub key: u32,
    /// Bytes.
    pub len: u64,
    /// `ibv_access_flags`.
    pub access: u32,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqDescription {
    /// Its handle.
    pub cq: u32,
    /// Completions it has room for.
    pub entries: u32,
    /// Completions that wait.
    pub waiting: u32,
    /// It overran.
    pub overrun: bool,
}
