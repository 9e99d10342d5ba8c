//! The states and attributes of queue pairs.

use crate::abi::*;
use crate::errno::{Outcome, code};
use crate::queue_pair::{Qp, cap};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use uverbs::qp::mask;
use uverbs::{QpInfo, QpState, Reply, Request};

fn described(info: &QpInfo) -> ibv_qp_attr {
    ibv_qp_attr { cap: cap(&info.capacity), ..(&info.attributes).into() }
}

fn modify(qp: &Qp, attr: &ibv_qp_attr, mask: u32) -> Outcome<()> {
    let state = (mask & mask::STATE != 0).then_some(attr.qp_state);
    if state.is_some_and(|number| QpState::from_number(number).is_none()) {
        return Err(libc::EINVAL);
    }
    let request = Request::ModifyQp { qpn: qp.number(), mask, attributes: attr.into() };
    if state == Some(IBV_QPS_RESET) {
        // Nobody may post while both sides reset the queue pair.
        let mut send = qp.send.lock();
        let receive = qp.receive.as_ref().map(|receive| receive.lock());
        qp.context().link.ask(&request)?;
        if let Some(mut receive) = receive {
            receive.reset();
        }
        // A thread that has a completion queue locked must not wait for the queue pair's queues.
        qp.forget_completions();
        send.queue.begin_anew(qp.qp_type, qp.context().link.info().is_trusting);
    } else {
        qp.context().link.ask(&request)?;
    }
    if let Some(state) = state {
        remember(qp, state);
    }
    Ok(())
}

fn remember(qp: &Qp, state: u32) {
    qp.state.store(state, Ordering::Release);
    // SAFETY: a field that programs read, but not while they modify.
    unsafe { (*qp.c()).state = state };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a queue pair of ours, and the program's attributes.
    code(unsafe { modify(Qp::of(qp), &*attr, mask as u32) })
}

/// Returns all attributes, whatever the mask says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a queue pair of ours, and room for its attributes.
    unsafe {
        let ours = Qp::of(qp);
        let info = match ours.context().link.ask(&Request::QueryQp { qpn: ours.number() }) {
            Ok(Reply::QpInfo(info)) => info,
            other => return code(Err(other.err().unwrap_or(libc::EIO))),
        };
        remember(ours, info.attributes.qp_state);
        attr.write(described(&info));
        init.write(ibv_qp_init_attr {
            qp_context: (*qp).qp_context,
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            srq: (*qp).srq,
            cap: cap(&info.capacity),
            qp_type: ours.qp_type,
            sq_sig_all: ours.sq_sig_all.into(),
        });
    }
    0
}
