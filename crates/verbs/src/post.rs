//! Posting work requests.

use crate::abi::*;
use crate::errno::{Outcome, code};
use crate::memory_window::ask_to_bind;
use crate::post_ex::Sending;
use crate::publish::hand_over;
use crate::queue_pair::Qp;
use crate::send_queue::{SendQueue, has_place, is_inline, is_offered};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use uverbs::{Segment, WorkQueue, WorkRequest};

const _: () = assert!(size_of::<Segment>() == size_of::<ibv_sge>());

/// Returns a list of segments, if it is no longer than the limit.
///
/// # Safety
/// The list must be as long as `count` says.
unsafe fn segments<'a>(list: *const ibv_sge, count: c_int, limit: u32) -> Outcome<&'a [Segment]> {
    let count = u32::try_from(count).ok().filter(|count| *count <= limit).ok_or(libc::EINVAL)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise; the layout is the same.
    Ok(unsafe { std::slice::from_raw_parts(list.cast(), count as usize) })
}

/// Copies the fields of the union `wr.wr` into the request: opcode and queue pair type determine which ones are valid.
///
/// # Safety
/// The address handle of a datagram must be one of ours, or null.
unsafe fn aimed(qp: &Qp, wr: &ibv_send_wr, request: &mut WorkRequest) -> Outcome<()> {
    // SAFETY: all of the union's variants are numbers, and a pointer that the caller promised.
    unsafe {
        if qp.qp_type == IBV_QPT_UD {
            request.ah = wr.wr.ud.ah.as_ref().ok_or(libc::EINVAL)?.handle;
            (request.remote_qpn, request.remote_qkey) = (wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey);
            return Ok(());
        }
        match wr.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                (request.address, request.rkey) = (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey);
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = wr.wr.atomic;
                (request.address, request.rkey) = (atomic.remote_addr, atomic.rkey);
                (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
            }
            IBV_WR_BIND_MW => {
                let BindMw { mw, rkey, bind_info } = &wr.bind_mw;
                // Windows of type 1 are bound by a verb of their own.
                mw.as_ref().filter(|mw| mw.type_ == IBV_MW_TYPE_2).ok_or(libc::EINVAL)?;
                ask_to_bind(request, *mw, *rkey, bind_info)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Hands a request to the device that has no message and concerns no peer.
pub(crate) fn hand_over_local(qp: &Qp, send: &mut SendQueue, request: &mut WorkRequest) -> Outcome<()> {
    fill_local(qp, send, request)?;
    hand_over(qp, send);
    Ok(())
}

fn fill_local(qp: &Qp, send: &mut SendQueue, request: &mut WorkRequest) -> Outcome<()> {
    send.number(request)?;
    // SAFETY: there is no message.
    let is_filled = is_offered(qp.qp_type, request.opcode.into()) && unsafe { send.fill(request, &[], &[]) };
    if is_filled { Ok(()) } else { Err(libc::EINVAL) }
}

/// Executes a request at once, if possible, or fills a slot.
///
/// # Safety
/// The request must be as its man page specifies.
unsafe fn post(qp: &Qp, Sending { queue: send, parts, .. }: &mut Sending, wr: &ibv_send_wr) -> Outcome<()> {
    if !is_offered(qp.qp_type, wr.opcode) {
        return Err(libc::EINVAL);
    }
    let is_local = matches!(wr.opcode, IBV_WR_BIND_MW | IBV_WR_LOCAL_INV);
    let count = if is_local { 0 } else { wr.num_sge };
    // SAFETY: the caller's promise.
    let list = unsafe { segments(wr.sg_list, count, qp.capacity.max_send_sge) }?;
    let mut request = WorkRequest {
        id: wr.wr_id,
        immediate: wr.imm_data,
        opcode: wr.opcode as u8,
        flags: (wr.send_flags & SEND_FLAGS) as u8,
        ..WorkRequest::default()
    };
    // SAFETY: the caller's promise.
    unsafe { aimed(qp, wr, &mut request) }?;
    if is_local {
        return fill_local(qp, send, &mut request);
    }
    send.number(&mut request)?;
    if !has_place(&request, list) {
        return Err(libc::EINVAL);
    }
    parts.clear();
    let list = if is_inline(&request) {
        let len = list.iter().map(|part| u64::from(part.len)).sum::<u64>();
        if len > qp.capacity.max_inline_data.into() {
            return Err(libc::EINVAL);
        }
        request.inline_len = len as u32;
        parts.extend(list.iter().map(|part| (part.address as *const u8, part.len as usize)));
        &[]
    } else {
        request.segments = list.len() as u16;
        list
    };
    // SAFETY: the program promises that they may be read, and that registered memory exists.
    if unsafe { send.put(qp, &request, list, parts) } { Ok(()) } else { Err(libc::EINVAL) }
}

/// Is true if sends may be posted in the queue pair's state. In some states they wait or are flushed; the device
/// decides.
pub(crate) fn may_send(qp: &Qp) -> bool {
    qp.state.load(Ordering::Acquire) > IBV_QPS_RTR
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a queue pair of ours.
    let qp = unsafe { Qp::of(qp) };
    let mut send = qp.send.lock();
    let mut outcome = if may_send(qp) { Ok(()) } else { Err(libc::EINVAL) };
    while outcome.is_ok() && !wr.is_null() {
        // SAFETY: a list of the program's.
        unsafe {
            outcome = post(qp, &mut send, &*wr);
            if outcome.is_ok() {
                wr = (*wr).next;
            }
        }
    }
    hand_over(qp, &mut send.queue);
    if outcome.is_err() {
        // SAFETY: room for a pointer.
        unsafe { bad.write(wr) };
    }
    code(outcome)
}

/// Posts as many receives as possible.
///
/// # Safety
/// The requests must be as their man page specifies, with room for a pointer.
pub(crate) unsafe fn receive(
    queue: &mut WorkQueue,
    limit: u32,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> Outcome<()> {
    let mut outcome = Ok(());
    while outcome.is_ok() && !wr.is_null() {
        // SAFETY: the caller's promise.
        unsafe {
            outcome = segments((*wr).sg_list, (*wr).num_sge, limit).and_then(|list| {
                let (id, segments) = ((*wr).wr_id, list.len() as u16);
                let is_filled = queue.fill(&WorkRequest { id, segments, ..WorkRequest::default() }, list);
                if is_filled { Ok(()) } else { Err(libc::ENOMEM) }
            });
            if outcome.is_ok() {
                wr = (*wr).next;
            }
        }
    }
    if outcome.is_err() {
        // SAFETY: the caller's promise.
        unsafe { bad.write(wr) };
    }
    queue.publish();
    // The next post then need not wait for the cache line of a slot that another CPU read long ago.
    queue.prefetch();
    outcome
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue pair of ours.
    let qp = unsafe { Qp::of(qp) };
    let queue = qp.receive.as_ref().filter(|_| qp.state.load(Ordering::Acquire) != IBV_QPS_RESET);
    let Some(queue) = queue else {
        // SAFETY: room for a pointer.
        unsafe { bad.write(wr) };
        return code(Err(libc::EINVAL));
    };
    let mut queue = queue.lock();
    // SAFETY: the program's requests, and room for a pointer.
    let outcome = unsafe { receive(&mut queue, qp.capacity.max_recv_sge, wr, bad) };
    if queue.is_awaited() {
        qp.context().link.ring(qp.doorbell);
    }
    code(outcome)
}
