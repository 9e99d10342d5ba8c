//! Asynchronous events.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Outcome, or_minus_one};
use crate::lock::acknowledge;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use uverbs::AsyncEvent;

#[derive(PartialEq, Eq)]
pub enum About {
    Cq,
    Qp,
    Srq,
    Port,
}

const fn about(kind: u32) -> About {
    match kind {
        event::CQ_ERR => About::Cq,
        event::QP_FATAL
        | event::QP_REQ_ERR
        | event::QP_ACCESS_ERR
        | event::COMM_EST
        | event::SQ_DRAINED
        | event::PATH_MIG
        | event::PATH_MIG_ERR
        | event::QP_LAST_WQE_REACHED => About::Qp,
        event::SRQ_ERR | event::SRQ_LIMIT_REACHED => About::Srq,
        _ => About::Port,
    }
}

/// Drops the undelivered events of an object that was destroyed.
pub fn forget(context: &Context, what: &About, handle: u32) {
    context.link.events().forget(|bytes| {
        let event = AsyncEvent::from_bytes(bytes);
        event.handle == handle && about(event.kind) == *what
    });
}

fn tell(told: &AtomicU32) {
    told.fetch_add(1, Ordering::AcqRel);
}

/// Returns the object of an event, and counts the event as delivered to it. `None` if the object was destroyed
/// meanwhile.
fn element(context: &Context, event: AsyncEvent) -> Option<Element> {
    let objects = context.objects();
    Some(match about(event.kind) {
        About::Cq => {
            let cq = objects.cqs.get(event.handle)?;
            tell(&cq.told_async);
            Element { cq: cq.c() }
        }
        About::Qp => {
            let qp = objects.qps.get(event.handle)?;
            tell(&qp.told);
            Element { qp: qp.c() }
        }
        About::Srq => {
            let srq = objects.srqs.get(event.handle)?;
            tell(&srq.told);
            Element { srq: srq.c() }
        }
        About::Port => Element { port_num: event.handle as c_int },
    })
}

fn next(context: &Context) -> Outcome<ibv_async_event> {
    loop {
        let Some(bytes) = context.link.events().next(context.link.life())? else {
            context.link.set_dead();
            if context.told_of_death.swap(true, Ordering::AcqRel) {
                return Err(libc::EIO);
            }
            return Ok(ibv_async_event { element: Element { port_num: 0 }, event_type: event::DEVICE_FATAL });
        };
        let event = AsyncEvent::from_bytes(bytes);
        if let Some(element) = element(context, event) {
            return Ok(ibv_async_event { element, event_type: event.kind });
        }
    }
}

/// Returns the next event. When the device is gone, one event reports that, and later calls fail with `EIO`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, to: *mut ibv_async_event) -> c_int {
    // SAFETY: a context of ours, and room for an event.
    or_minus_one(unsafe { next(Context::of(context)).map(|event| to.write(event)) }.map(|()| 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event that we delivered; its object can't be destroyed before it is acknowledged.
    unsafe {
        match about((*event).event_type) {
            About::Cq => {
                let cq = (*event).element.cq;
                let completed = &raw mut (*cq).async_events_completed;
                acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, completed, 1);
            }
            About::Qp => {
                let qp = (*event).element.qp;
                let completed = &raw mut (*qp).events_completed;
                acknowledge(&raw mut (*qp).mutex, &raw mut (*qp).cond, completed, 1);
            }
            About::Srq => {
                let srq = (*event).element.srq;
                let completed = &raw mut (*srq).events_completed;
                acknowledge(&raw mut (*srq).mutex, &raw mut (*srq).cond, completed, 1);
            }
            About::Port => {}
        }
    }
}
