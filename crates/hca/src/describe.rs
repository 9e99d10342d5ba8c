//! What people are shown of a device.

use crate::counters::Counters;
use crate::memory::access_names;
use crate::objects::{Cq, Objects};
use crate::path::{Path, Way};
use crate::qp::{Own, Qp, Transport};
use std::net::Ipv6Addr;
use uverbs::{QpState, QpType, Region};

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

/// How messages get to the peer of a queue pair, and why so.
fn transport(own: &Own) -> (&'static str, &'static str) {
    let shares = own.outbound.as_ref().is_some_and(|bond| !bond.is_closed());
    match &own.path {
        _ if shares => ("shared", "both trust each other"),
        Some(Path { way: Way::Local(_), .. }) => ("copy", "the peer is on this host"),
        Some(Path { way: Way::Wire | Way::Group, .. }) => {
            ("roce", "the peer is elsewhere, or what is sent is watched")
        }
        None if own.kind == QpType::Ud => ("each", "each address handle has its way"),
        None => ("none", "not connected"),
    }
}

impl QpDescription {
    pub(crate) fn of(qp: &Qp) -> Self {
        let own = &qp.own;
        let (transport, reason) = transport(own);
        let counts = match &qp.transport {
            Transport::Connected(connected) => connected.counts(),
            _ => rdma::Counts::default(),
        };
        Self {
            qpn: own.qpn,
            kind: own.kind,
            state: own.state,
            error: own.reason,
            peer: own.path.as_ref().map(|path| path.network.destination),
            peer_qpn: own.attributes.dest_qp_num,
            transport,
            reason,
            sq_psn: own.attributes.sq_psn,
            rq_psn: own.attributes.rq_psn,
            path_mtu: if own.attributes.path_mtu > 0 { 128 << own.attributes.path_mtu } else { 0 },
            retries: counts.packet_seq_err + counts.local_ack_timeout_err + counts.rnr_nak_retry_err,
            direct: own.outbound.as_ref().map(uverbs::Bond::counted).unwrap_or_default(),
        }
    }
}

impl MrDescription {
    pub(crate) fn of((key, region): (u32, &Region)) -> Self {
        let Region { address, iova, len, access, file, kind, .. } = *region;
        Self { key, address, iova, len, access: access_names(access, kind), is_shared: file != 0 }
    }
}

impl CqDescription {
    pub(crate) fn of(handle: u32, cq: &Cq, qps: &[(u32, u32)]) -> Self {
        let users = qps.iter().filter(|(send, receive)| *send == handle || *receive == handle).count();
        Self {
            cq: handle,
            entries: cq.entries,
            users: users as u32,
            waiting: cq.sink.waiting(),
            overrun: cq.overrun,
        }
    }
}

impl ClientDescription {
    /// Of one that does not answer.
    pub(crate) fn stuck(pid: i32, uid: u32, id: u64) -> Self {
        Self { id, is_stuck: true, pid, uid, ..Self::default() }
    }

    pub(crate) fn of<'a>(
        (pid, uid): (i32, u32),
        qps: impl Iterator<Item = &'a Qp> + Clone,
        objects: &Objects,
    ) -> Self {
        let uses: Vec<_> = qps.clone().map(|qp| (qp.own.send_cq, qp.own.recv_cq)).collect();
        let mut counters = objects.counters;
        for qp in qps.clone() {
            qp.count_into(&mut counters);
        }
        Self {
            id: objects.inbox.id(),
            is_stuck: false,
            pid,
            uid,
            qps: qps.map(QpDescription::of).collect(),
            mrs: objects.regions.iter().map(MrDescription::of).collect(),
            cqs: objects.cqs.iter().map(|(handle, cq)| CqDescription::of(*handle, cq, &uses)).collect(),
            registered: objects.regions.registered,
            counters,
        }
    }
}
