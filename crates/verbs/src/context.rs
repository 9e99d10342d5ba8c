//! Open devices.

use crate::abi::*;
use crate::device::Device;
use crate::errno::{Outcome, pointer};
use crate::link::Link;
use crate::objects::Objects;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::Region;

/// An open device: the structure that programs see, and our fields.
#[repr(C)]
pub struct Context {
    c: UnsafeCell<verbs_context>,
    pub link: Link,
    objects: Mutex<Objects>,
    /// The memory regions, by key.
    regions: Mutex<HashMap<u32, Region>>,
    /// Held while the context's completion queues are settled; meanwhile none of them is destroyed.
    settling: Mutex<()>,
    pub told_of_death: AtomicBool,
}

impl Context {
    fn new(device: *mut ibv_device, link: Link) -> Self {
        let context = ibv_context {
            device,
            ops: operations(),
            cmd_fd: link.control().number(),
            async_fd: link.events().number(),
            num_comp_vectors: completion_vectors(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            // Marks the structure as a `verbs_context`.
            abi_compat: usize::MAX as *mut c_void,
        };
        let c = UnsafeCell::new(extended(context));
        let (objects, regions, settling) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { c, link, objects, regions, settling, told_of_death: AtomicBool::new(false) }
    }

    /// Returns the context behind a pointer of the C interface.
    ///
    /// # Safety
    /// The pointer must come from [`ibv_open_device`], and the context must not be closed yet.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: it is at that offset in a context of ours.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast() }
    }

    pub fn regions(&self) -> MutexGuard<'_, HashMap<u32, Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: nobody writes the number after it was made.
        u32::try_from(unsafe { (*self.c.get()).context.num_comp_vectors }).unwrap_or(0)
    }

    /// Locks the table of objects. Order of locks: a completion queue, then this table, then a work queue.
    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn settling(&self) -> MutexGuard<'_, ()> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies all messages that peers put into completion queues to their destination. Afterwards nothing is written
    /// to memory that was deregistered.
    pub fn settle(&self) {
        if self.link.info().is_trusting {
            let _none_is_destroyed = self.settling();
            let queues: Vec<_> = self.objects().cqs.all().map(NonNull::from).collect();
            // SAFETY: they exist as long as that is held.
            queues.iter().for_each(|queue| unsafe { queue.as_ref() }.settle());
        }
    }
}

/// Largest number of completion vectors: programs spread their completion queues and threads over them.
const MAX_VECTORS: usize = 8;

/// Returns the number of CPUs, limited to [`MAX_VECTORS`]. The vectors are all equivalent: events come through
/// completion channels, and there is no interrupt to assign to a CPU.
fn completion_vectors() -> c_int {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    cpus.min(MAX_VECTORS) as c_int
}

const fn operations() -> ibv_context_ops {
    ibv_context_ops {
        _compat_device: [None; 7],
        alloc_mw: Some(crate::memory_window::alloc_mw),
        bind_mw: Some(crate::memory_window::bind_mw),
        dealloc_mw: Some(crate::memory_window::dealloc_mw),
        _compat_create_cq: None,
        poll_cq: Some(crate::completion::poll_cq),
        req_notify_cq: Some(crate::completion::req_notify_cq),
        _compat_cq_event: [None; 7],
        post_srq_recv: Some(crate::shared_receive::post_srq_recv),
        _compat_create_qp: [None; 4],
        post_send: Some(crate::post::post_send),
        post_recv: Some(crate::post::post_recv),
        _compat_create_ah: [None; 5],
    }
}

const fn extended(context: ibv_context) -> verbs_context {
    verbs_context {
        query_port: Some(crate::query::query_port),
        advise_mr: Some(crate::advise::advise_mr),
        _absent_1: [None; 12],
        alloc_parent_domain: Some(crate::memory::alloc_parent_domain),
        dealloc_td: Some(crate::memory::dealloc_td),
        alloc_td: Some(crate::memory::alloc_td),
        _absent_2: [None; 7],
        query_rt_values: Some(crate::query::query_rt_values),
        create_cq_ex: Some(crate::completion_ex::create_cq_ex),
        priv_: std::ptr::null_mut(),
        query_device_ex: Some(crate::query::query_device_ex),
        _absent_3: [None; 5],
        create_qp_ex: Some(crate::queue_pair::create_qp_ex),
        get_srq_num: None,
        create_srq_ex: Some(crate::shared_receive::create_srq_ex),
        open_xrcd: None,
        close_xrcd: None,
        _placeholder: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

fn open(device: *mut ibv_device) -> Outcome<*mut ibv_context> {
    // SAFETY: a device of ours.
    let link = Link::open(unsafe { Device::of(device) }.endpoint())?;
    let context = Box::into_raw(Box::new(Context::new(device, link)));
    // SAFETY: it was just made; a place in it.
    Ok(unsafe { context.byte_add(offset_of!(verbs_context, context)).cast() })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(open(device))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: it was made by `open`, and the program no longer uses it.
    unsafe {
        let ours = context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>();
        drop(Box::from_raw(ours));
    }
    0
}
