//! Queue pairs of identifiers: creating them, and making them ready.

use crate::abi::{
    CmId, CompChannel, Cq, IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC,
    Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, SrqInitAttr,
    SrqInitAttrEx,
};
use crate::error::{Errno, checked, made, returned};
use crate::id::Id;
use crate::multicast;
use crate::verbs;
use libc::{c_int, c_void};
use std::ptr;
use uverbs::cm::{CmReply, CmRequest};
use uverbs::qp::mask;
use uverbs::{QpState, Reply};

/// Returns the attributes that change an identifier's queue pair to a state, and their mask.
fn attributes(id: &Id, state: u32) -> Result<(QpAttr, c_int), Errno> {
    let binding = id.binding()?;
    match binding.device.ask(CmRequest::InitQpAttr { id: binding.handle, state })? {
        Reply::Cm(CmReply::QpAttributes { mask, attributes }) => Ok(((&attributes).into(), mask as c_int)),
        _ => Err(Errno(libc::EPROTO)),
    }
}

fn modify(qp: *mut Qp, mut attr: QpAttr, mask: c_int) -> Result<(), Errno> {
    // SAFETY: it is an identifier's queue pair, which has not been destroyed, or was just made.
    checked(unsafe { verbs::ibv_modify_qp(qp, &raw mut attr, mask) })
}

fn queue_pair(id: &Id) -> Option<*mut Qp> {
    let qp = id.visible(|public| public.qp);
    (!qp.is_null()).then_some(qp)
}

/// Makes an identifier's queue pair receive, if it has one, with at most `responder_resources` READs of the peer at a
/// time.
pub fn ready_to_receive(id: &Id, responder_resources: u8) -> Result<(), Errno> {
    let Some(qp) = queue_pair(id) else { return Ok(()) };
    // INIT is set a second time, because the peer's access rights were not known before.
    let (init, init_mask) = attributes(id, QpState::Init as u32)?;
    modify(qp, init, init_mask)?;
    let (mut attr, attr_mask) = attributes(id, QpState::ReadyToReceive as u32)?;
    if responder_resources != RDMA_MAX_RESP_RES {
        attr.max_dest_rd_atomic = responder_resources;
    }
    modify(qp, attr, attr_mask)
}

/// Makes an identifier's queue pair send, if it has one, with at most `initiator_depth` READs at a time.
pub fn ready_to_send(id: &Id, initiator_depth: u8) -> Result<(), Errno> {
    let Some(qp) = queue_pair(id) else { return Ok(()) };
    let (mut attr, attr_mask) = attributes(id, QpState::ReadyToSend as u32)?;
    if initiator_depth != RDMA_MAX_INIT_DEPTH {
        attr.max_rd_atomic = initiator_depth;
    }
    modify(qp, attr, attr_mask)
}

/// Moves an identifier's queue pair to the error state, if it has one.
pub fn fail(id: &Id) {
    if let Some(qp) = queue_pair(id) {
        let attr = QpAttr { qp_state: QpState::Error as u32, ..QpAttr::default() };
        let _ = modify(qp, attr, mask::STATE as c_int);
    }
}

/// Makes a new queue pair accept receives; one for datagrams becomes ready.
fn initialize(id: &Id, qp: *mut Qp) -> Result<(), Errno> {
    let (init, init_mask) = attributes(id, QpState::Init as u32)?;
    modify(qp, init, init_mask)?;
    if !id.is_datagram() {
        return Ok(());
    }
    let to = |state: QpState| QpAttr { qp_state: state as u32, ..QpAttr::default() };
    modify(qp, to(QpState::ReadyToReceive), mask::STATE as c_int)?;
    modify(qp, to(QpState::ReadyToSend), (mask::STATE | mask::SQ_PSN) as c_int)
}

/// Creates a completion queue with its own channel.
fn completion_queue(id: &Id, entries: u32) -> Result<(*mut Cq, *mut CompChannel), Errno> {
    let (context, public) = id.visible(|public| (public.verbs, ptr::from_mut(public)));
    let entries = c_int::try_from(entries).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: the device is open.
    let channel = made(unsafe { verbs::ibv_create_comp_channel(context) })?;
    // SAFETY: the device is open, and the channel of it.
    let cq = made(unsafe { verbs::ibv_create_cq(context, entries, public.cast::<c_void>(), channel, 0) });
    if cq.is_err() {
        // SAFETY: it was just made.
        unsafe { verbs::ibv_destroy_comp_channel(channel) };
    }
    Ok((cq?, channel))
}

/// Creates the identifier's completion queues with these numbers of entries; 0 if it needs none.
fn create_completion_queues(id: &Id, send: u32, receive: u32) -> Result<(), Errno> {
    if receive > 0 {
        let (cq, channel) = completion_queue(id, receive)?;
        id.visible(|public| (public.recv_cq, public.recv_cq_channel) = (cq, channel));
    }
    if send > 0 {
        let (cq, channel) = completion_queue(id, send)?;
        id.visible(|public| (public.send_cq, public.send_cq_channel) = (cq, channel));
    }
    Ok(())
}

fn destroy_completion_queues(id: &Id) {
    let (cqs, channels) = id.visible(|public| {
        let cqs = [&mut public.recv_cq, &mut public.send_cq].map(|cq| std::mem::replace(cq, ptr::null_mut()));
        let channels = [&mut public.recv_cq_channel, &mut public.send_cq_channel];
        (cqs, channels.map(|channel| std::mem::replace(channel, ptr::null_mut())))
    });
    fn different<T>([first, second]: [*mut T; 2]) -> impl Iterator<Item = *mut T> {
        [Some(first), (first != second).then_some(second)].into_iter().flatten().filter(|one| !one.is_null())
    }
    for cq in different(cqs) {
        // SAFETY: it was made for this identifier.
        unsafe { verbs::ibv_destroy_cq(cq) };
    }
    for channel in different(channels) {
        // SAFETY: it was made for this identifier.
        unsafe { verbs::ibv_destroy_comp_channel(channel) };
    }
}

/// Creates an identifier's queue pair with `create`, from `attr` and from what the identifier has.
///
/// # Safety
/// `attr` must point to a writable C structure.
unsafe fn create(
    id: &Id,
    pd: *mut Pd,
    attr: *mut QpInitAttr,
    make: impl FnOnce() -> *mut Qp,
) -> Result<(), Errno> {
    let (verbs, qp, recv_cq, send_cq, srq) =
        id.visible(|public| (public.verbs, public.qp, public.recv_cq, public.send_cq, public.srq));
    let conflict = |own: *mut Cq, wanted: *mut Cq| !own.is_null() && !wanted.is_null() && own != wanted;
    // SAFETY: the caller's promise.
    let wanted = unsafe { *attr };
    // SAFETY: a protection domain of the program or of the device.
    let is_of_device = unsafe { pd.as_ref() }.is_some_and(|pd| pd.context == verbs);
    if !qp.is_null()
        || !is_of_device
        || conflict(recv_cq, wanted.recv_cq)
        || conflict(send_cq, wanted.send_cq)
    {
        return Err(Errno(libc::EINVAL));
    }
    let needed = |own: *mut Cq, wanted: *mut Cq, entries: u32| {
        if own.is_null() && wanted.is_null() { entries } else { 0 }
    };
    let send = needed(send_cq, wanted.send_cq, wanted.cap.max_send_wr);
    let receive = needed(recv_cq, wanted.recv_cq, wanted.cap.max_recv_wr);
    let finished = create_completion_queues(id, send, receive).and_then(|()| {
        let (recv_cq, send_cq) = id.visible(|public| (public.recv_cq, public.send_cq));
        let or = |wanted: *mut Cq, own: *mut Cq| if wanted.is_null() { own } else { wanted };
        // SAFETY: the caller's promise.
        unsafe {
            (*attr).send_cq = or(wanted.send_cq, send_cq);
            (*attr).recv_cq = or(wanted.recv_cq, recv_cq);
            if wanted.srq.is_null() {
                (*attr).srq = srq;
            }
        }
        finish(id, made(make())?)
    });
    if finished.is_err() {
        destroy_completion_queues(id);
    }
    finished
}

fn finish(id: &Id, qp: *mut Qp) -> Result<(), Errno> {
    let ready = initialize(id, qp);
    if ready.is_err() {
        // SAFETY: it was just made.
        unsafe { verbs::ibv_destroy_qp(qp) };
        return ready;
    }
    // SAFETY: it was just made, and has its protection domain.
    let pd = unsafe { (*qp).pd };
    id.visible(|public| (public.pd, public.qp) = (pd, qp));
    Ok(())
}

/// Creates an identifier's queue pair; if `pd` is null, in the identifier's domain.
///
/// # Safety
/// `attr` must point to a writable C structure.
pub unsafe fn create_plain(id: &Id, pd: *mut Pd, attr: *mut QpInitAttr) -> Result<(), Errno> {
    let pd = if pd.is_null() { id.visible(|public| public.pd) } else { pd };
    // SAFETY: the caller's promise; `create` has checked that there is a protection domain.
    unsafe { create(id, pd, attr, || verbs::ibv_create_qp(pd, attr)) }
}

/// Creates an identifier's queue pair with the extended call.
///
/// # Safety
/// `attr` must point to a writable C structure.
unsafe fn create_extended(id: &Id, attr: *mut QpInitAttrEx) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let asked = unsafe { *attr };
    let given = asked.comp_mask & IBV_QP_INIT_ATTR_PD != 0 && !asked.pd.is_null();
    let pd = if given { asked.pd } else { id.visible(|public| public.pd) };
    // SAFETY: the caller's promise.
    unsafe { ((*attr).comp_mask, (*attr).pd) = (asked.comp_mask | IBV_QP_INIT_ATTR_PD, pd) };
    let context = id.visible(|public| public.verbs);
    let plain = attr.cast::<QpInitAttr>();
    if asked.comp_mask & !IBV_QP_INIT_ATTR_PD == 0 {
        // SAFETY: the extended structure starts like the plain one.
        return unsafe { create_plain(id, pd, plain) };
    }
    if context.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: it is a context of libibverbs.
    let extended = unsafe { verbs::create_qp_ex(context) }.ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: as above; the call is the device's.
    unsafe { create(id, pd, plain, || extended(context, attr)) }
}

/// Creates an identifier's queue pair.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(id: *mut CmId, pd: *mut Pd, qp_init_attr: *mut QpInitAttr) -> c_int {
    if qp_init_attr.is_null() {
        return returned(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id).and_then(|id| create_plain(id, pd, qp_init_attr)) })
}

/// Creates an identifier's queue pair with extended attributes.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut CmId, qp_init_attr: *mut QpInitAttrEx) -> c_int {
    if qp_init_attr.is_null() {
        return returned(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id).and_then(|id| create_extended(id, qp_init_attr)) })
}

/// Destroys an identifier's queue pair.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut CmId) {
    // SAFETY: the caller's promise.
    let Ok(id) = (unsafe { Id::of(id) }) else { return };
    if let Some(qp) = queue_pair(id) {
        multicast::detach_all(id);
        // SAFETY: it is the identifier's.
        unsafe { verbs::ibv_destroy_qp(qp) };
        id.visible(|public| public.qp = ptr::null_mut());
    }
    destroy_completion_queues(id);
}

/// Creates an identifier's shared receive queue; if `pd` is null, in the identifier's domain.
///
/// # Safety
/// `attr` must be readable and writable.
unsafe fn create_srq(id: &Id, pd: *mut Pd, attr: *mut SrqInitAttr) -> Result<(), Errno> {
    let pd = if pd.is_null() { id.visible(|public| public.pd) } else { pd };
    if pd.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller's promise.
    let srq = made(unsafe { verbs::ibv_create_srq(pd, attr) })?;
    id.visible(|public| {
        public.srq = srq;
        if public.pd.is_null() {
            public.pd = pd;
        }
    });
    Ok(())
}

/// Creates an identifier's shared receive queue.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(id: *mut CmId, pd: *mut Pd, attr: *mut SrqInitAttr) -> c_int {
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id).and_then(|id| create_srq(id, pd, attr)) })
}

/// Creates an identifier's shared receive queue, of the basic type; others are not supported.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut CmId, attr: *mut SrqInitAttrEx) -> c_int {
    // SAFETY: the caller's promise.
    let Some(asked) = (unsafe { attr.as_ref() }) else { return returned(Err(Errno(libc::EINVAL))) };
    if asked.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return returned(Err(Errno(libc::EINVAL)));
    }
    if asked.srq_type != IBV_SRQT_BASIC {
        return returned(Err(Errno(libc::EOPNOTSUPP)));
    }
    let pd = if asked.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 { ptr::null_mut() } else { asked.pd };
    // SAFETY: the caller's promise; the extended structure starts like the plain one.
    returned(unsafe { Id::of(id).and_then(|id| create_srq(id, pd, attr.cast())) })
}

/// Destroys an identifier's shared receive queue.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut CmId) {
    // SAFETY: the caller's promise.
    let Ok(id) = (unsafe { Id::of(id) }) else { return };
    let srq = id.visible(|public| std::mem::replace(&mut public.srq, ptr::null_mut()));
    if !srq.is_null() {
        // SAFETY: it is the identifier's.
        unsafe { verbs::ibv_destroy_srq(srq) };
    }
    destroy_completion_queues(id);
}

/// Returns the attributes that change an identifier's queue pair to a state.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut CmId,
    qp_attr: *mut QpAttr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let attributes = unsafe { Id::of(id).and_then(|id| attributes(id, (*qp_attr).qp_state)) };
    returned(attributes.map(|(attr, mask)| {
        // SAFETY: the caller's promise.
        unsafe { (*qp_attr, *qp_attr_mask) = (attr, mask) };
    }))
}
