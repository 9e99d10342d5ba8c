//! Shared receive queues.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Outcome, code, pointer};
use crate::events::{About, forget};
use crate::link::{Link, only};
use crate::lock::{Lock, wait_for_acknowledgements};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uverbs::{Given, Reply, Request, Shape, WorkQueue};

#[repr(C)]
pub struct Srq {
    c: UnsafeCell<ibv_srq>,
    queue: Lock<WorkQueue>,
    max_wr: AtomicU32,
    max_sge: u32,
    /// Number of asynchronous events delivered to the program.
    pub(crate) told: AtomicU32,
}

// SAFETY: the C part belongs to the program as well, and its events are counted under its mutex; the rest has a lock.
unsafe impl Sync for Srq {}
// SAFETY: as above.
unsafe impl Send for Srq {}

impl Srq {
    /// Returns the queue behind a pointer of the C interface.
    ///
    /// # Safety
    /// The queue must be one of ours, and not destroyed yet.
    pub unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: the caller's promise; the C part comes first.
        unsafe { &*srq.cast() }
    }

    /// Returns the pointer that programs use.
    pub fn c(&self) -> *mut ibv_srq {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    fn context(&self) -> &Context {
        // SAFETY: its context, which outlives it.
        unsafe { Context::of((*self.c()).context) }
    }

    fn handle(&self) -> u32 {
        // SAFETY: the C part lives as long as this, and nobody writes the handle after it was made.
        unsafe { (*self.c()).handle }
    }
}

/// Creates a shared receive queue.
///
/// # Safety
/// `pd` must be one of our domains.
unsafe fn create(pd: *mut ibv_pd, attr: &mut ibv_srq_init_attr) -> Outcome<*mut ibv_srq> {
    // SAFETY: the caller's promise.
    let (context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: the domain's context.
    let ours = unsafe { Context::of(context) };
    let request = Request::CreateSrq { pd: pd_handle, max_wr: attr.attr.max_wr, max_sge: attr.attr.max_sge };
    let (Reply::Srq { srq, queue, max_wr, max_sge }, given) = ours.link.ask_for(&request)? else {
        return Err(libc::EIO);
    };
    let queue = self::queue(&ours.link, queue, max_wr, given)?;
    (attr.attr.max_wr, attr.attr.max_sge) = (max_wr, max_sge);
    let c = ibv_srq {
        context,
        srq_context: attr.srq_context,
        pd,
        handle: srq,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let (c, queue, told) = (UnsafeCell::new(c), Lock::new(queue), AtomicU32::new(0));
    let made = Box::into_raw(Box::new(Srq { c, queue, max_wr: max_wr.into(), max_sge, told }));
    ours.objects().srqs.insert(srq, made);
    Ok(made.cast())
}

fn queue(link: &Link, shape: Shape, max_wr: u32, given: Vec<Given>) -> Outcome<WorkQueue> {
    let memory = Arc::new(link.map(only(given)?, shape.end())?);
    WorkQueue::new(memory, shape, max_wr).map(WorkQueue::continued).map_err(|_| libc::EIO)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: a domain of ours, and the program's attributes.
    pointer(unsafe { create(pd, &mut *attr) })
}

pub unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the program's attributes, which start like those of `ibv_create_srq`.
    unsafe {
        let (has, kind) = ((*attr).comp_mask, (*attr).srq_type);
        let is_basic = has & IBV_SRQ_INIT_ATTR_TYPE == 0 || kind == IBV_SRQT_BASIC;
        if !is_basic || has & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 {
            return pointer(Err(libc::EOPNOTSUPP));
        }
        if has & IBV_SRQ_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            return pointer(Err(libc::EINVAL));
        }
        ibv_create_srq((*attr).pd, attr.cast())
    }
}

fn modify(srq: &Srq, attr: &ibv_srq_attr, mask: c_int) -> Outcome<()> {
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return Err(libc::EINVAL);
    }
    let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
    if mask & IBV_SRQ_MAX_WR != 0 {
        return resize(srq, attr.max_wr, limit);
    }
    let Some(limit) = limit else { return Ok(()) };
    if limit > srq.max_wr.load(Ordering::Acquire) {
        return Err(libc::EINVAL);
    }
    let request = Request::ArmSrq { srq: srq.handle(), limit };
    srq.context().link.ask(&request).map(|_| ())
}

/// Gives the queue room for this many receives. `EINVAL` if more receives wait, or if it would be fewer than the limit.
fn resize(srq: &Srq, max_wr: u32, limit: Option<u32>) -> Outcome<()> {
    if max_wr == 0 {
        return Err(libc::EINVAL);
    }
    // Nobody may post receives while the device moves them.
    let mut held = srq.queue.lock();
    let request = Request::ResizeSrq { srq: srq.handle(), max_wr, limit };
    let link = &srq.context().link;
    let (Reply::Srq { queue, max_wr, .. }, given) = link.ask_for(&request)? else {
        return Err(libc::EIO);
    };
    *held = self::queue(link, queue, max_wr, given)?;
    srq.max_wr.store(max_wr, Ordering::Release);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: a queue of ours, and the program's attributes.
    code(unsafe { modify(Srq::of(srq), &*attr, mask) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a queue of ours.
    let srq = unsafe { Srq::of(srq) };
    match srq.context().link.ask(&Request::QuerySrq { srq: srq.handle() }) {
        Ok(Reply::SrqLimit(srq_limit)) => {
            let (max_wr, max_sge) = (srq.max_wr.load(Ordering::Acquire), srq.max_sge);
            // SAFETY: room for the attributes.
            unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
            0
        }
        other => code(Err(other.err().unwrap_or(libc::EIO))),
    }
}

unsafe fn destroy(srq: *mut ibv_srq) -> Outcome<()> {
    // SAFETY: a queue of ours, which the program gives up.
    unsafe {
        let ours = Srq::of(srq);
        let context = ours.context();
        context.link.take_away(&Request::DestroySrq { srq: ours.handle() })?;
        context.objects().srqs.remove(ours.handle(), ours);
        forget(context, &About::Srq, ours.handle());
        let told = ours.told.load(Ordering::Acquire);
        let completed = &raw const (*srq).events_completed;
        wait_for_acknowledgements(&raw mut (*srq).mutex, &raw mut (*srq).cond, completed, told);
        drop(Box::from_raw(srq.cast::<Srq>()));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: a queue of ours.
    code(unsafe { destroy(srq) })
}

pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue of ours; the program's requests, and room for a pointer.
    unsafe {
        let srq = Srq::of(srq);
        // The queue has no doorbell: the device checks it when a message arrives.
        code(crate::post::receive(&mut srq.queue.lock(), srq.max_sge, wr, bad))
    }
}
