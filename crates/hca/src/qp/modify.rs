//! State transitions of queue pairs.

use crate::base::limits::{MAX_READS, PARTITION, PORT};
use crate::base::refusal::refuse;
use crate::base::spec::DeviceSpec;
use crate::context::Context;
use crate::context::endpoint::Endpoint;
use crate::net::path::{Path, Way};
use crate::qp::transitions::transition;
use crate::qp::{Qp, Transport};
use packet::roce::RnrTimer;
use rdma::{Attributes, DatagramAttributes, DatagramPair, Mtu, QueuePair};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use uverbs::qp::{access, mask};
use uverbs::{QpAttributes, QpState, QpType, Refusal};

/// Changes attributes and state of a queue pair: all, or nothing.
pub(crate) fn modify(
    qp: &mut Qp,
    set: u32,
    asked: &QpAttributes,
    context: &mut Context,
) -> Result<(), Refusal> {
    let from = qp.endpoint.state;
    let to = new_state(&qp.endpoint, set, asked)?;
    check(set, asked, &context.adapter.spec())?;
    let path = new_path(set, asked, context)?;
    match to {
        QpState::Reset => {
            qp.reset(context);
            return Ok(());
        }
        QpState::Error => {
            qp.endpoint.reason = Some("the application asked for it");
            qp.enter_error(context);
            return Ok(());
        }
        _ => {}
    }
    let endpoint = &mut qp.endpoint;
    if set & mask::ACCESS_FLAGS != 0 && asked.qp_access_flags != endpoint.attributes.qp_access_flags {
        // A peer that shares memory knows the old flags.
        endpoint.unshare(context);
    }
    set_attributes(&mut endpoint.attributes, set, asked);
    endpoint.queue_key.store(endpoint.attributes.qkey, Ordering::Relaxed);
    endpoint.peer.path = path.or(endpoint.peer.path.take());
    endpoint.state = to;
    enter(qp, from, set, context);
    if set & mask::MIN_RNR_TIMER != 0
        && let Transport::Connected(connected) = &mut qp.transport
    {
        connected.set_rnr_timer(RnrTimer::new(asked.min_rnr_timer as u8));
    }
    if let Transport::Datagram(pair) = &mut qp.transport {
        pair.set_queue_key(qp.endpoint.attributes.qkey);
    }
    Ok(())
}

/// Returns the state that a program asks for, if these attributes may be set in the transition to it.
fn new_state(endpoint: &Endpoint, set: u32, asked: &QpAttributes) -> Result<QpState, Refusal> {
    let from = endpoint.state;
    if set & mask::CUR_STATE != 0 && asked.cur_qp_state != from as u32 {
        return refuse(
            Errno::INVAL,
            format!("the queue pair is in state {from:?}, not in the given current state"),
        );
    }
    let to = if set & mask::STATE == 0 { Some(from) } else { QpState::from_number(asked.qp_state) };
    let way = to.and_then(|to| Some((to, transition(endpoint.kind, from, to)?)));
    let Some((to, way)) = way else {
        return refuse(
            Errno::INVAL,
            format!("there is no transition from state {from:?} to {}", asked.qp_state),
        );
    };
    if !way.takes(set) {
        let text =
            format!("attributes {set:#x} on the way from {from:?} to {to:?}; needed are {:#x}", way.required);
        return refuse(Errno::INVAL, text);
    }
    Ok(to)
}

/// Finds the path to the peer that a program names, if it names one.
fn new_path(set: u32, asked: &QpAttributes, context: &Context) -> Result<Option<Path>, Refusal> {
    if set & mask::AV == 0 {
        return Ok(None);
    }
    let path = Path::to_peer(&asked.ah, &context.adapter, &context.fabric);
    path.map(Some).or_else(|e| refuse(Errno::INVAL, e.to_string()))
}

/// Acts on the transition from the state `from` to the state in which the queue pair now is.
fn enter(qp: &mut Qp, from: QpState, set: u32, context: &mut Context) {
    // A datagram is one packet, on every path.
    let longest = mtu(context.adapter.spec().active_mtu());
    let endpoint = &mut qp.endpoint;
    let is_new = endpoint.state != from;
    match endpoint.state {
        QpState::ReadyToReceive if is_new => qp.transport = begin(endpoint, longest),
        QpState::ReadyToSend if from == QpState::ReadyToReceive => ready_to_send(qp, longest),
        QpState::ReadyToSend if from == QpState::SendQueueError => qp.resume(context),
        QpState::SendQueueDrained if is_new => {
            endpoint.send.tells_drained = set & mask::EN_SQD_ASYNC_NOTIFY != 0
        }
        _ => {}
    }
}

/// Checks that the values are valid.
fn check(set: u32, asked: &QpAttributes, spec: &DeviceSpec) -> Result<(), Refusal> {
    let limits = [
        (mask::PKEY_INDEX, "pkey_index", asked.pkey_index, 0, 0),
        (mask::PORT, "port_num", asked.port_num, PORT, PORT),
        (mask::PATH_MTU, "path_mtu", asked.path_mtu, 1, spec.active_mtu()),
        (mask::TIMEOUT, "timeout", asked.timeout, 0, 31),
        (mask::RETRY_CNT, "retry_cnt", asked.retry_cnt, 0, 7),
        (mask::RNR_RETRY, "rnr_retry", asked.rnr_retry, 0, 7),
        (mask::MIN_RNR_TIMER, "min_rnr_timer", asked.min_rnr_timer, 0, 31),
        (mask::MAX_QP_RD_ATOMIC, "max_rd_atomic", asked.max_rd_atomic, 0, MAX_READS),
        (mask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", asked.max_dest_rd_atomic, 0, MAX_READS),
        (mask::DEST_QPN, "dest_qp_num", asked.dest_qp_num, 0, 0xff_ffff),
        (mask::ACCESS_FLAGS, "qp_access_flags", asked.qp_access_flags, 0, access::ALL),
    ];
    for (bit, name, value, least, most) in limits {
        if set & bit != 0 && !(least..=most).contains(&value) {
            return refuse(Errno::INVAL, format!("{name}: {value}; {least} to {most}"));
        }
    }
    Ok(())
}

/// Takes over those of the attributes that are set in the mask `set`.
fn set_attributes(current: &mut QpAttributes, set: u32, asked: &QpAttributes) {
    let mut each = |bit: u32, place: fn(&mut QpAttributes) -> &mut u32, value: u32| {
        if set & bit != 0 {
            *place(current) = value;
        }
    };
    each(mask::ACCESS_FLAGS, |a| &mut a.qp_access_flags, asked.qp_access_flags);
    each(mask::PKEY_INDEX, |a| &mut a.pkey_index, asked.pkey_index);
    each(mask::PORT, |a| &mut a.port_num, asked.port_num);
    each(mask::QKEY, |a| &mut a.qkey, asked.qkey);
    each(mask::PATH_MTU, |a| &mut a.path_mtu, asked.path_mtu);
    each(mask::TIMEOUT, |a| &mut a.timeout, asked.timeout);
    each(mask::RETRY_CNT, |a| &mut a.retry_cnt, asked.retry_cnt);
    each(mask::RNR_RETRY, |a| &mut a.rnr_retry, asked.rnr_retry);
    each(mask::RQ_PSN, |a| &mut a.rq_psn, asked.rq_psn & 0xff_ffff);
    each(mask::SQ_PSN, |a| &mut a.sq_psn, asked.sq_psn & 0xff_ffff);
    each(mask::MAX_QP_RD_ATOMIC, |a| &mut a.max_rd_atomic, asked.max_rd_atomic);
    each(mask::MAX_DEST_RD_ATOMIC, |a| &mut a.max_dest_rd_atomic, asked.max_dest_rd_atomic);
    each(mask::MIN_RNR_TIMER, |a| &mut a.min_rnr_timer, asked.min_rnr_timer);
    each(mask::DEST_QPN, |a| &mut a.dest_qp_num, asked.dest_qp_num);
    if set & mask::AV != 0 {
        current.ah = asked.ah;
    }
}

/// Makes the transport of a queue pair that is ready to receive.
fn begin(endpoint: &Endpoint, longest: Mtu) -> Transport {
    match endpoint.kind {
        QpType::Ud => Transport::Datagram(DatagramPair::new(datagram_attributes(endpoint, longest))),
        _ => Transport::Connected(Box::new(QueuePair::new(attributes(endpoint)))),
    }
}

fn ready_to_send(qp: &mut Qp, longest: Mtu) {
    match &mut qp.transport {
        Transport::Connected(connected) => connected.ready_to_send(attributes(&qp.endpoint)),
        Transport::Datagram(pair) => *pair = DatagramPair::new(datagram_attributes(&qp.endpoint, longest)),
        Transport::None => {}
    }
}

fn datagram_attributes(endpoint: &Endpoint, mtu: Mtu) -> DatagramAttributes {
    DatagramAttributes {
        mtu,
        partition: PARTITION,
        number: endpoint.qpn.0,
        queue_key: endpoint.attributes.qkey,
        send_psn: endpoint.attributes.sq_psn,
    }
}

fn attributes(endpoint: &Endpoint) -> Attributes {
    let set = &endpoint.attributes;
    let is_local = endpoint.peer.path.as_ref().is_some_and(|path| matches!(path.way, Way::Local(_)));
    Attributes {
        reliable: endpoint.kind == QpType::Rc,
        mtu: if is_local { Mtu::Bytes32768 } else { mtu(set.path_mtu) },
        partition: PARTITION,
        destination: set.dest_qp_num,
        send_psn: set.sq_psn,
        receive_psn: set.rq_psn,
        timeout: set.timeout as u8,
        retries: set.retry_cnt as u8,
        rnr_retries: set.rnr_retry as u8,
        rnr_timer: RnrTimer::new(set.min_rnr_timer as u8),
        reads: set.max_rd_atomic as u8,
        peer_reads: set.max_dest_rd_atomic as u8,
    }
}

fn mtu(code: u32) -> Mtu {
    u8::try_from(code).ok().and_then(Mtu::from_code).unwrap_or(Mtu::Bytes256)
}
