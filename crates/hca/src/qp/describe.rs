//! Describes an application's objects.

use crate::base::ids::{CqId, Key};
use crate::context::Context;
use crate::context::cq::Cq;
use crate::context::endpoint::Endpoint;
use crate::memory::regions::access_names;
use crate::net::path::{Path, Way};
use crate::program::description::{ClientDescription, CqDescription, MrDescription, QpDescription};
use crate::program::who::Who;
use crate::qp::{Qp, Transport};
use uverbs::{QpType, Region};

/// Returns how messages get to a queue pair's peer, and why this way.
fn transport(endpoint: &Endpoint) -> (&'static str, &'static str) {
    match &endpoint.peer.path {
        _ if endpoint.sharing.is_direct() => ("shared", "both trust each other"),
        Some(Path { way: Way::Local(_), .. }) => ("copy", "the peer is on this host"),
        Some(Path { way: Way::Wire | Way::Group, .. }) => {
            ("roce", "the peer is elsewhere, or what is sent is watched")
        }
        None if endpoint.kind == QpType::Ud => ("each", "each address handle has its way"),
        None => ("none", "not connected"),
    }
}

impl QpDescription {
    pub(crate) fn of(qp: &Qp) -> Self {
        let endpoint = &qp.endpoint;
        let (transport, reason) = transport(endpoint);
        let counts = match &qp.transport {
            Transport::Connected(connected) => connected.counts(),
            _ => rdma::Counts::default(),
        };
        Self {
            qpn: endpoint.qpn.0,
            kind: endpoint.kind,
            state: endpoint.state,
            error: endpoint.reason,
            peer: endpoint.peer.path.as_ref().map(|path| path.header.destination),
            peer_qpn: endpoint.attributes.dest_qp_num,
            transport,
            reason,
            sq_psn: endpoint.attributes.sq_psn,
            rq_psn: endpoint.attributes.rq_psn,
            path_mtu: if endpoint.attributes.path_mtu > 0 { 128 << endpoint.attributes.path_mtu } else { 0 },
            retries: counts.packet_seq_err + counts.local_ack_timeout_err + counts.rnr_nak_retry_err,
            direct: endpoint
                .sharing
                .outbound
                .as_ref()
                .map(uverbs::DirectSession::counted)
                .unwrap_or_default(),
        }
    }
}

impl MrDescription {
    pub(crate) fn of(key: Key, region: &Region) -> Self {
        let Region { address, iova, len, access, file, kind, .. } = *region;
        Self { key: key.0, address, iova, len, access: access_names(access, kind), is_shared: file != 0 }
    }
}

impl CqDescription {
    pub(crate) fn of(handle: CqId, cq: &Cq, qps: &[(CqId, CqId)]) -> Self {
        let users = qps.iter().filter(|(send, receive)| *send == handle || *receive == handle).count();
        Self {
            cq: handle.0,
            entries: cq.entries,
            users: users as u32,
            waiting: cq.sink.waiting(),
            overrun: cq.overrun,
        }
    }
}

impl ClientDescription {
    pub(crate) fn of<'a>(who: &Who, qps: impl Iterator<Item = &'a Qp> + Clone, context: &Context) -> Self {
        let uses: Vec<_> = qps.clone().map(|qp| (qp.endpoint.send.cq, qp.endpoint.receive.cq)).collect();
        let mut counters = context.counters;
        for qp in qps.clone() {
            qp.count_into(&mut counters);
        }
        Self {
            id: context.inbox.id(),
            is_stuck: false,
            pid: who.pid(),
            program: who.program().map(str::to_owned),
            qps: qps.map(QpDescription::of).collect(),
            mrs: context.regions.iter().map(|(key, region)| MrDescription::of(key, region)).collect(),
            cqs: context.cqs.iter().map(|(handle, cq)| CqDescription::of(*handle, cq, &uses)).collect(),
            registered: context.regions.registered,
            counters,
        }
    }
}
