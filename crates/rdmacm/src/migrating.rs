//! Moves identifiers to new channels.

use crate::abi::{CmId, EventChannel};
use crate::channel::Channel;
use crate::error::{Errno, returned};
use crate::events;
use crate::id::{self, Id};
use libc::c_int;
use std::ptr;
use uverbs::cm::CmRequest;

/// Moves an identifier and its events to another channel. Without a channel, the identifier becomes synchronous.
pub fn migrate(id: &Id, channel: *mut EventChannel) -> Result<(), Errno> {
    let (was_sync, becomes_sync) = (id.state(|state| state.sync), channel.is_null());
    if was_sync && becomes_sync {
        return Err(Errno(libc::EINVAL));
    }
    let to = if becomes_sync { Channel::create()? } else { channel };
    let moved = move_to(id, to);
    if moved.is_err() && becomes_sync {
        // SAFETY: it was just made.
        unsafe { Channel::destroy(to) };
    }
    let from = moved?;
    if was_sync {
        let event = id.visible(|public| std::mem::replace(&mut public.event, ptr::null_mut()));
        // SAFETY: it is one that was reported and not acknowledged, or null.
        unsafe { events::acknowledge(event) };
        // SAFETY: the channel was its own.
        unsafe { Channel::destroy(from) };
    }
    id.state(|state| state.sync = becomes_sync);
    id.wait_for_acknowledgements();
    Ok(())
}

/// Moves an identifier and its events; returns the channel that it had.
fn move_to(id: &Id, channel: *mut EventChannel) -> Result<*mut EventChannel, Errno> {
    // SAFETY: the caller's promise, or it was just made.
    let to = unsafe { Channel::of(channel) }?;
    for binding in id.state(|state| state.bindings.clone()) {
        let channel = to.at(binding.device)?;
        binding.device.order(CmRequest::MigrateId { id: binding.handle, channel })?;
    }
    let from = id.channel()?;
    id::registered(|_| {
        let bindings = id.all_bindings();
        let its = |tag, id| bindings.iter().any(|binding| binding.key() == (tag, id));
        let events = from.take_chosen(|event| {
            its(event.tag, event.id) || event.listener.is_some_and(|id| its(event.tag, id))
        });
        to.put_back(events);
        Ok(id.visible(|public| std::mem::replace(&mut public.channel, channel)))
    })
}

/// Moves an identifier to another channel.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
    // SAFETY: the caller's promise.
    returned(unsafe { Id::of(id) }.and_then(|id| migrate(id, channel)))
}
