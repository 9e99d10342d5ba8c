//! Completion channels: where programs sleep until a completion arrives.

use crate::abi::*;
use crate::completion::Cq;
use crate::context::Context;
use crate::errno::{Outcome, code, or_minus_one, pointer};
use crate::feed::Feed;
use crate::link::only;
use crate::lock::acknowledge;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use uverbs::{Reply, Request};

#[repr(C)]
pub struct Channel {
    c: ibv_comp_channel,
    handle: u32,
    events: Feed<4>,
}

impl Channel {
    /// Returns the channel behind a pointer of the C interface.
    ///
    /// # Safety
    /// The channel must be one of ours, and not destroyed yet.
    pub unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Self {
        // SAFETY: the caller's promise; the C part comes first.
        unsafe { &*channel.cast() }
    }

    /// Drops the events of a completion queue that was destroyed.
    pub fn forget(&self, cq: u32) {
        self.events.forget(|event| u32::from_ne_bytes(event) == cq);
    }

    pub const fn handle(&self) -> u32 {
        self.handle
    }
}

unsafe fn create(context: *mut ibv_context) -> Outcome<*mut ibv_comp_channel> {
    // SAFETY: a context of ours.
    let link = &unsafe { Context::of(context) }.link;
    let (Reply::Handle(handle), given) = link.ask_for(&Request::CreateChannel)? else {
        return Err(libc::EIO);
    };
    let events = Feed::new(link.socket(only(given)?)?, Some(link.life()))?;
    let c = ibv_comp_channel { context, fd: events.number(), refcnt: 0 };
    Ok(Box::into_raw(Box::new(Channel { c, handle, events })).cast())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: a context of ours.
    pointer(unsafe { create(context) })
}

unsafe fn destroy(channel: *mut ibv_comp_channel) -> Outcome<()> {
    // SAFETY: a channel of ours, which the program gives back.
    unsafe {
        let context = Context::of((*channel).context);
        {
            let _objects = context.objects();
            if (*channel).refcnt > 0 {
                return Err(libc::EBUSY);
            }
        }
        context.link.take_away(&Request::DestroyChannel { channel: Channel::of(channel).handle })?;
        drop(Box::from_raw(channel.cast::<Channel>()));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a channel of ours.
    code(unsafe { destroy(channel) })
}

/// Waits for the next event.
///
/// When the device is gone, each completion queue of the channel gets one more event, so that it is polled and reports
/// what was flushed.
unsafe fn next(channel: *mut ibv_comp_channel) -> Outcome<*mut ibv_cq> {
    // SAFETY: a channel of ours.
    let (ours, context) = unsafe { (Channel::of(channel), Context::of((*channel).context)) };
    loop {
        let event = ours.events.next(context.link.life())?;
        let objects = context.objects();
        let tell = |cq: &Cq| {
            cq.told.fetch_add(1, Ordering::AcqRel);
            cq.c()
        };
        let Some(handle) = event else {
            context.link.set_dead();
            // SAFETY: completion queues in the table are alive.
            let mut waiting = objects.cqs.all().filter(|cq| unsafe { (*cq.c()).channel } == channel);
            let untold = waiting.find(|cq| !cq.told_of_death.swap(true, Ordering::AcqRel));
            return untold.map(tell).ok_or(libc::EIO);
        };
        // A queue that was destroyed meanwhile has no events.
        if let Some(cq) = objects.cqs.get(u32::from_ne_bytes(handle)) {
            return Ok(tell(cq));
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel of ours, and room for two pointers.
    or_minus_one(unsafe {
        next(channel).map(|found| {
            cq.write(found);
            cq_context.write((*found).cq_context);
            0
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
    // SAFETY: a completion queue of ours, which can't be destroyed before its events are acknowledged.
    unsafe {
        acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).comp_events_completed, events);
    }
}
