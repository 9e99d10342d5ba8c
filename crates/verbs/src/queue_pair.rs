//! Creating and destroying queue pairs.

use crate::abi::*;
use crate::completion::Cq;
use crate::context::Context;
use crate::errno::{Outcome, code, pointer};
use crate::events::{About, forget};
use crate::link::only;
use crate::lock::{Lock, wait_for_acknowledgements};
use crate::post_ex::{Sending, operations};
use crate::send_queue::{OFFERED, SendQueue};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uverbs::{Capacity, CreateQp, MessageRing, QpType, Reply, Request, WorkQueue, WorkRequest};

/// A queue pair. Every one has the fields of the extended interface.
#[repr(C)]
pub struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    /// `ibv_qp_type`.
    pub(crate) qp_type: u32,
    /// `ibv_qp_state`, as far as known: the device may have entered the error state.
    pub(crate) state: AtomicU32,
    pub(crate) capacity: Capacity,
    pub(crate) sq_sig_all: bool,
    pub(crate) send: Lock<Sending>,
    /// Number of sends whose completions were polled, including earlier ones without a completion.
    retired: Arc<AtomicU32>,
    /// `None` if the queue pair uses an SRQ.
    pub(crate) receive: Option<Lock<WorkQueue>>,
    /// A ring in which peers that share memory store messages.
    pub(crate) message_ring: Option<MessageRing>,
    pub(crate) doorbell: u32,
    is_extended: bool,
    /// Number of asynchronous events delivered to the program.
    pub(crate) told: AtomicU32,
}

// SAFETY: the C part belongs to the program as well, and its events are counted under its mutex; the rest has locks.
unsafe impl Sync for Qp {}
// SAFETY: as above.
unsafe impl Send for Qp {}

impl Qp {
    /// Returns the queue pair behind a pointer of the C interface.
    ///
    /// # Safety
    /// The queue pair must be one of ours, and not destroyed yet.
    pub unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: the caller's promise; the C part comes first.
        unsafe { &*qp.cast() }
    }

    /// Returns the pointer that programs use.
    pub fn c(&self) -> *mut ibv_qp {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the C part lives as long as this, and nobody writes the number after it was made.
        unsafe { (*self.c()).qp_num }
    }

    /// Returns the device's handle of the protection domain.
    pub(crate) fn pd(&self) -> u32 {
        // SAFETY: as above; the domain can't be deallocated while a queue pair uses it.
        unsafe { (*(*self.c()).pd).handle }
    }

    /// Returns the device's handle of the completion queue for sends.
    pub(crate) fn send_cq(&self) -> u32 {
        // SAFETY: as above; neither can the completion queue be destroyed.
        unsafe { (*(*self.c()).send_cq).handle }
    }

    /// Frees the room of this send, whose completion was polled, and that of earlier ones.
    #[inline]
    pub(crate) fn retire(&self, number: u32) {
        self.retired.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Drops the queue pair's completions that nobody took.
    pub(crate) fn forget_completions(&self) {
        // SAFETY: they never change, and the queues exist while they are used.
        let queues = unsafe { [(*self.c()).send_cq, (*self.c()).recv_cq].map(|cq| Cq::of(cq)) };
        queues.into_iter().for_each(|cq| cq.state.lock().forget(self.number()));
    }

    pub(crate) fn context(&self) -> &Context {
        // SAFETY: its context, which outlives it.
        unsafe { Context::of((*self.c()).context) }
    }

    /// Calls `each` for every request that a device left undone when it went, and whose completion belongs to `cq`,
    /// with the opcode of that completion.
    ///
    /// Skips queues that another thread has locked; the next call flushes them.
    pub(crate) fn flush(&self, cq: &Cq, mut each: impl FnMut(&Self, &WorkRequest, u8)) {
        // SAFETY: the C part lives as long as this, and nobody writes these pointers after it was made.
        let (of_sends, of_receives) = unsafe { ((*self.c()).send_cq, (*self.c()).recv_cq) };
        if of_sends == cq.c()
            && let Some(mut send) = self.send.try_lock()
        {
            // The device may have ended after it completed a request and before it returned the slot.
            let retired = self.retired.load(Ordering::Acquire);
            let is_left = |request: &WorkRequest| request.number.wrapping_sub(retired).cast_signed() >= 0;
            send.queue.queue.abandon(|request| {
                if is_left(request) {
                    each(self, request, 0);
                }
            });
        }
        if of_receives == cq.c()
            && let Some(mut receive) = self.receive.as_ref().and_then(Lock::try_lock)
        {
            receive.abandon(|request| each(self, request, IBV_WC_RECV as u8));
        }
    }
}

const fn qp_type(number: u32) -> Option<QpType> {
    Some(match number {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        _ => return None,
    })
}

pub(crate) const fn capacity(of: &ibv_qp_cap) -> Capacity {
    Capacity {
        max_send_wr: of.max_send_wr,
        max_recv_wr: of.max_recv_wr,
        max_send_sge: of.max_send_sge,
        max_recv_sge: of.max_recv_sge,
        max_inline_data: of.max_inline_data,
    }
}

pub(crate) const fn cap(of: &Capacity) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: of.max_send_wr,
        max_recv_wr: of.max_recv_wr,
        max_send_sge: of.max_send_sge,
        max_recv_sge: of.max_recv_sge,
        max_inline_data: of.max_inline_data,
    }
}

/// Returns the device's request to create a queue pair with these attributes.
///
/// # Safety
/// Pointers in the attributes must be to our objects, or null.
unsafe fn wish(pd: *mut ibv_pd, attr: &ibv_qp_init_attr) -> Outcome<CreateQp> {
    if attr.send_cq.is_null() || attr.recv_cq.is_null() || pd.is_null() {
        return Err(libc::EINVAL);
    }
    let qp_type = qp_type(attr.qp_type).ok_or(libc::EOPNOTSUPP)?;
    let mut capacity = capacity(&attr.cap);
    // SAFETY: the caller's promise.
    let srq = unsafe { attr.srq.as_ref() }.map(|srq| srq.handle);
    if srq.is_some() {
        (capacity.max_recv_wr, capacity.max_recv_sge) = (0, 0);
    }
    // SAFETY: the caller's promise.
    let (pd, send_cq, recv_cq) = unsafe { ((*pd).handle, (*attr.send_cq).handle, (*attr.recv_cq).handle) };
    Ok(CreateQp { pd, qp_type, send_cq, recv_cq, srq, capacity, sq_sig_all: attr.sq_sig_all != 0 })
}

/// Creates a queue pair.
///
/// # Safety
/// The same as for [`wish`].
unsafe fn create(pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr, is_extended: bool) -> Outcome<*mut ibv_qp> {
    // SAFETY: the caller's promise.
    let (request, context) = unsafe { (wish(pd, attr)?, (*pd).context) };
    // SAFETY: the domain's context.
    let ours = unsafe { Context::of(context) };
    let sq_sig_all = request.sq_sig_all;
    let (Reply::Qp { qpn, capacity, send, receive, message_ring, memory, doorbell }, given) =
        ours.link.ask_for(&Request::CreateQp(request))?
    else {
        return Err(libc::EIO);
    };
    if doorbell >= ours.link.info().doorbells {
        return Err(libc::EIO);
    }
    let memory = Arc::new(ours.link.map(only(given)?, usize::try_from(memory).map_err(|_| libc::EIO)?)?);
    let queue = |shape, limit| WorkQueue::new(memory.clone(), shape, limit).map_err(|_| libc::EIO);
    let receive = receive.map(|shape| queue(shape, capacity.max_recv_wr)).transpose()?;
    let message_ring =
        message_ring.map(|at| MessageRing::new(memory.clone(), at).map_err(|_| libc::EIO)).transpose()?;
    attr.cap = cap(&capacity);
    let base = ibv_qp {
        context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: qpn,
        qp_num: qpn,
        state: IBV_QPS_RESET,
        qp_type: attr.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let retired = Arc::new(AtomicU32::new(0));
    // The limit is the number of slots here: `SendQueue` counts the sends that may be posted.
    let send = (queue(send, send.slots)?, retired.clone());
    let send = SendQueue::new(
        send,
        &capacity,
        attr.qp_type,
        ours.link.info().is_trusting,
        ours.link.stand_ins().clone(),
    );
    let made = Box::into_raw(Box::new(Qp {
        c: UnsafeCell::new(operations(base)),
        qp_type: attr.qp_type,
        state: AtomicU32::new(IBV_QPS_RESET),
        capacity,
        sq_sig_all,
        send: Lock::new(Sending::new(send, &capacity, attr.qp_type)),
        retired,
        receive: receive.map(Lock::new),
        message_ring,
        doorbell,
        is_extended,
        told: AtomicU32::new(0),
    }));
    ours.objects().qps.insert(qpn, made);
    Ok(made.cast())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the program's attributes, with objects of ours.
    pointer(unsafe { create(pd, &mut *attr, false) })
}

pub unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the program's attributes.
    let (all, attr) = (attr, unsafe { &*attr });
    let has = |field| attr.comp_mask & field != 0;
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if !has(IBV_QP_INIT_ATTR_PD) {
        return pointer(Err(libc::EINVAL));
    }
    let is_extended = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    let offered = OFFERED.iter().find(|(of, _)| *of == attr.qp_type).map_or(0, |(_, flags)| *flags);
    if has(!known)
        || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0
        || is_extended && attr.send_ops_flags & !offered != 0
    {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: the program's attributes, with objects of ours; they start like those of `ibv_create_qp`, and are
    // written field by field.
    pointer(unsafe { create(attr.pd, &mut *all.cast(), is_extended) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a queue pair of ours.
    let ours = unsafe { Qp::of(qp) };
    if ours.is_extended { ours.c.get() } else { std::ptr::null_mut() }
}

unsafe fn destroy(qp: *mut ibv_qp) -> Outcome<()> {
    // SAFETY: a queue pair of ours, which the program gives up.
    unsafe {
        let ours = Qp::of(qp);
        let context = ours.context();
        context.link.take_away(&Request::DestroyQp { qpn: (*qp).qp_num })?;
        // The order matters: completion queues look queue pairs up in the table.
        context.objects().qps.remove((*qp).qp_num, ours);
        ours.forget_completions();
        forget(context, &About::Qp, (*qp).qp_num);
        let told = ours.told.load(Ordering::Acquire);
        let completed = &raw const (*qp).events_completed;
        wait_for_acknowledgements(&raw mut (*qp).mutex, &raw mut (*qp).cond, completed, told);
        drop(Box::from_raw(qp.cast::<Qp>()));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a queue pair of ours.
    code(unsafe { destroy(qp) })
}

/// Returns 0: the bytes of a message may arrive in any order, because the kernel and the processor make peers' copies.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _opcode: u32, _flags: u32) -> c_int {
    0
}
