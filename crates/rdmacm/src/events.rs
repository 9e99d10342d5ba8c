//! Events: from the devices' messages to C.

use crate::abi::{
    AhAttr, CmEvent, ConnParam, EventChannel, GlobalRoute, Param, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES,
    UdParam, event as kind,
};
use crate::address;
use crate::channel::{Channel, Taken};
use crate::device::{self, Device};
use crate::error::{Errno, returned};
use crate::id::{self, Binding, Id};
use crate::{migrating, multicast, queue_pair, verbs};
use libc::{c_char, c_int, c_void};
use std::ptr;
use uverbs::cm::{CmConnection, CmEvent as Told, CmRequest, CmRoute};

/// Largest number of bytes of private data.
const PRIVATE: usize = 256;

/// An event. C sees its first member.
#[repr(C)]
struct Event {
    public: CmEvent,
    /// The identifier to which the event belongs; for a request, the listener.
    owner: *const Id,
    private: [u8; PRIVATE],
}

/// Refuses a request that no program sees.
pub fn refuse(event: &Told) {
    if event.event == kind::CONNECT_REQUEST
        && let Some(device) = device::with_tag(event.tag)
    {
        let _ = device.order(CmRequest::DestroyId { id: event.id });
    }
}

/// Waits for the next event of a channel.
pub fn next(channel: &Channel) -> Result<*mut CmEvent, Errno> {
    loop {
        // Until the event is counted, its identifier must not be destroyed.
        let (taken, owner) = id::registered(|ids| {
            let taken = channel.take()?;
            let key = match &taken {
                Taken::Event(event) => Some((event.tag, event.listener.unwrap_or(event.id))),
                _ => None,
            };
            let owner = key.and_then(|key| ids.get(&key)).map(|at| *at as *const Id);
            // SAFETY: registered identifiers are not destroyed.
            unsafe { owner.and_then(|owner| owner.as_ref()) }.inspect(|owner| owner.report());
            Ok::<_, Errno>((taken, owner))
        })?;
        match (taken, owner) {
            (Taken::Nothing, _) => {
                channel.stay_if_destroyed();
                channel.wait()?;
            }
            (Taken::Ended(device), _) => end(channel, device),
            (Taken::Event(event), None) => refuse(&event),
            (Taken::Event(event), Some(owner)) => {
                // SAFETY: an event of it was reported and is not acknowledged yet, so it is not destroyed meanwhile.
                let id = unsafe { &*owner };
                if let Some(event) = translated(id, &event) {
                    return Ok(event);
                }
                id.acknowledge();
            }
        }
    }
}

/// Handles the end of a device's events: the device is gone, unless the channel is.
fn end(channel: &Channel, device: &'static Device) {
    channel.stay_if_destroyed();
    device.lose();
    channel.lose(device, None);
}

/// Handles the end of devices, and takes no events.
pub fn settle(channel: &Channel) {
    while let Some(device) = channel.ended() {
        end(channel, device);
    }
}

/// Returns the event that an identifier's device is gone.
pub const fn removal(binding: Binding) -> Told {
    Told {
        tag: binding.device.tag,
        id: binding.handle,
        event: kind::DEVICE_REMOVAL,
        status: 0,
        listener: None,
        route: None,
        connection: None,
        datagram: None,
        group: None,
        private: Vec::new(),
    }
}

/// Translates an event for C. Returns `None` if C does not see it.
fn translated(owner: &Id, told: &Told) -> Option<*mut CmEvent> {
    let mut private = [0; PRIVATE];
    let len = told.private.len().min(PRIVATE - 1);
    private[..len].copy_from_slice(&told.private[..len]);
    let public = CmEvent {
        id: owner.public(),
        listen_id: ptr::null_mut(),
        event: told.event,
        status: told.status,
        param: Param { ud: no_datagram() },
    };
    let event = Box::into_raw(Box::new(Event { public, owner, private }));
    // SAFETY: it was just made.
    let (public, data) = unsafe { (&mut (*event).public, (&raw const (*event).private).cast::<c_void>()) };
    let data = if len == 0 { ptr::null() } else { data };
    if owner.is_datagram() {
        public.param = Param { ud: datagram(owner, told, data, len as u8) };
    } else {
        public.param = Param { conn: connection(told.connection.unwrap_or_default(), data, len as u8) };
    }
    if process(owner, told, public) {
        return Some(event.cast());
    }
    // SAFETY: it was just made, and C has not seen it.
    drop(unsafe { Box::from_raw(event) });
    None
}

/// Carries out the effects of an event. Returns false if C does not see it.
fn process(owner: &Id, told: &Told, public: &mut CmEvent) -> bool {
    match told.event {
        kind::ADDR_RESOLVED => {
            told.route.inspect(|route| set_route(owner, route));
        }
        kind::ROUTE_RESOLVED => {
            if let Err(Errno(number)) = owner.set_path() {
                public.status = -number;
            }
        }
        kind::CONNECT_REQUEST => return requested(owner, told, public).is_ok(),
        kind::CONNECT_RESPONSE if owner.visible(|public| !public.qp.is_null()) => {
            let ready = make_ready(owner);
            public.event = if ready.is_ok() { kind::ESTABLISHED } else { kind::CONNECT_ERROR };
            if let Err(Errno(number)) = ready {
                public.status = -number;
                owner.state(|state| state.has_failed = true);
            }
        }
        kind::MULTICAST_JOIN | kind::MULTICAST_ERROR => {
            let context = told.group.and_then(|group| multicast::joined(owner, &group, public));
            let Some(context) = context else { return false };
            public.param = Param { ud: datagram(owner, told, context, 0) };
        }
        kind::REJECTED | kind::DISCONNECTED => {
            if owner.state(|state| state.has_failed) {
                return false;
            }
            if told.event == kind::REJECTED {
                queue_pair::fail(owner);
            }
        }
        _ => {}
    }
    true
}

fn set_route(id: &Id, route: &CmRoute) {
    id.set_addresses(Some(route.local), Some(route.peer));
    route.own.inspect(|own| id.set_own(*own));
    id.state(|state| state.mtu = route.mtu as u8);
}

/// Makes the queue pair ready after the peer has accepted, and tells the peer.
fn make_ready(id: &Id) -> Result<(), Errno> {
    let ready = queue_pair::ready_to_receive(id, RDMA_MAX_RESP_RES)
        .and_then(|()| queue_pair::ready_to_send(id, RDMA_MAX_INIT_DEPTH))
        .and_then(|()| id.order(|id| CmRequest::Establish { id }));
    if ready.is_err() {
        queue_pair::fail(id);
    }
    ready
}

/// Creates an identifier for a request.
fn requested(listener: &Id, told: &Told, public: &mut CmEvent) -> Result<(), Errno> {
    let device = device::with_tag(told.tag).ok_or(Errno(libc::ENODEV))?;
    let binding = Binding { device, handle: told.id };
    // The listener may have listened at an earlier instance of the device.
    if listener.visible(|public| !public.verbs.is_null() && public.verbs != device.context) {
        listener.use_device(device)?;
    }
    let (channel, context, ps, qp_type) =
        listener.visible(|public| (public.channel, public.context, public.ps, public.qp_type));
    let made = Id::create(channel, context, ps, qp_type).inspect_err(|_| refuse(told))?;
    // SAFETY: it was just made.
    let id = unsafe { &*made };
    id.adopt(binding);
    let connection = told.connection.unwrap_or_default();
    id.state(|state| {
        state.responder_resources = connection.responder_resources;
        state.initiator_depth = connection.initiator_depth;
    });
    told.route.inspect(|route| set_route(id, route));
    let is_sync = listener.state(|state| state.sync);
    let ready = id
        .use_device(device)
        .and_then(|()| id.set_path())
        .and_then(|()| if is_sync { migrating::migrate(id, ptr::null_mut()) } else { Ok(()) });
    if ready.is_err() {
        // SAFETY: C has not seen it.
        unsafe { Id::destroy(made) };
        return ready;
    }
    (public.id, public.listen_id) = (id.public(), listener.public());
    Ok(())
}

const fn connection(told: CmConnection, private_data: *const c_void, private_data_len: u8) -> ConnParam {
    ConnParam {
        private_data,
        private_data_len,
        responder_resources: told.responder_resources,
        initiator_depth: told.initiator_depth,
        flow_control: told.flow_control as u8,
        retry_count: told.retry_count,
        rnr_retry_count: told.rnr_retry_count,
        srq: told.srq as u8,
        qp_num: told.qp_num,
    }
}

fn no_datagram() -> UdParam {
    UdParam { private_data: ptr::null(), private_data_len: 0, ah_attr: AhAttr::default(), qp_num: 0, qkey: 0 }
}

fn datagram(owner: &Id, told: &Told, private_data: *const c_void, private_data_len: u8) -> UdParam {
    let mut param = UdParam { private_data, private_data_len, ..no_datagram() };
    if let Some(datagram) = told.datagram {
        let addr = owner.visible(|public| public.route.addr);
        let dgid = told.group.map_or(addr.dgid, |group| group.gid.into());
        let local = address::of_gid(addr.sgid);
        let index = owner.binding().ok().and_then(|binding| binding.device.gid_index(local));
        let sgid_index = index.unwrap_or(0);
        let grh = GlobalRoute { dgid, sgid_index, hop_limit: 64, ..GlobalRoute::default() };
        param.ah_attr = AhAttr { grh, is_global: 1, port_num: verbs::PORT, ..AhAttr::default() };
        (param.qp_num, param.qkey) = (datagram.qp_num, datagram.qkey);
    }
    param
}

/// Waits for the result of a call, if the identifier is synchronous. The event stays in the identifier until the next
/// one.
pub fn complete(id: &Id) -> Result<(), Errno> {
    if !id.state(|state| state.sync) {
        return Ok(());
    }
    let old = id.visible(|public| std::mem::replace(&mut public.event, ptr::null_mut()));
    // SAFETY: it is one that was reported and not acknowledged, or null.
    unsafe { acknowledge(old) };
    let channel = id.channel()?;
    let event = next(&channel)?;
    id.visible(|public| public.event = event);
    // SAFETY: it was just reported.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        _ if kind == kind::DEVICE_REMOVAL => Err(Errno(libc::ENODEV)),
        0 => Ok(()),
        _ if kind == kind::REJECTED => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.abs())),
    }
}

/// Acknowledges an event, which the program no longer uses.
///
/// # Safety
/// The pointer must be null, or an event that was reported and not acknowledged.
pub unsafe fn acknowledge(event: *mut CmEvent) {
    if event.is_null() {
        return;
    }
    // SAFETY: C's pointer is to the first member of what `translated` made with `Box`.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    // SAFETY: an identifier is not destroyed before its events are acknowledged.
    unsafe { &*event.owner }.acknowledge();
}

/// Waits for the next event of a channel.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut CmEvent) -> c_int {
    if event.is_null() {
        return returned(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller's promise.
    let next = unsafe { Channel::of(channel) }
        .and_then(|channel| next(&channel).inspect_err(|_| channel.stay_if_destroyed()));
    returned(next.map(|got| {
        // SAFETY: the caller's promise.
        unsafe { event.write(got) };
    }))
}

/// Acknowledges an event.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
    if event.is_null() {
        return returned(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller's promise.
    unsafe { acknowledge(event) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    let name = match event {
        0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        1 => c"RDMA_CM_EVENT_ADDR_ERROR",
        2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
        7 => c"RDMA_CM_EVENT_UNREACHABLE",
        8 => c"RDMA_CM_EVENT_REJECTED",
        9 => c"RDMA_CM_EVENT_ESTABLISHED",
        10 => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
