//! Identifiers: the part that C sees, and ours.

use crate::abi::{
    CmId, EventChannel, Gid, IBV_QPT_RC, IBV_QPT_UD, PathRecord, QpInitAttr, RDMA_PS_IB, RDMA_PS_IPOIB,
    RDMA_PS_TCP, RDMA_PS_UDP,
};
use crate::address;
use crate::channel::Channel;
use crate::device::{self, Device, lock};
use crate::error::{Errno, returned};
use crate::events;
use crate::multicast::Joined;
use crate::returning;
use crate::verbs;
use libc::{c_int, c_void, sockaddr};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use uverbs::QpType;
use uverbs::cm::{CmOption, CmRequest};

/// An identifier of a device that represents one of ours.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    pub device: &'static Device,
    pub handle: u32,
}

impl Binding {
    /// Returns the key with which events name the identifier.
    pub const fn key(&self) -> (u32, u32) {
        (self.device.tag, self.handle)
    }
}

/// An identifier. C sees its first member.
#[repr(C)]
#[derive(Debug)]
pub struct Id {
    public: UnsafeCell<CmId>,
    state: Mutex<IdState>,
    acknowledged: Condvar,
}

/// State that C does not see.
#[derive(Debug, Default)]
pub struct IdState {
    /// Whether calls wait for their result. The channel then belongs to the identifier.
    pub sync: bool,
    /// Empty while the identifier has no address; several if it is bound to all addresses.
    pub bindings: Vec<Binding>,
    /// Former bindings, whose devices are gone.
    lost: Vec<Binding>,
    /// The address to which the program bound the identifier, and the backlog with which it listens there.
    pub bound: Option<SocketAddr>,
    pub backlog: Option<u32>,
    /// Whether the identifier belongs to a socket.
    pub is_socket: bool,
    /// The protection domain that the identifier got from its device.
    device_pd: usize,
    /// Options to set once there is a binding.
    pub options: Vec<CmOption>,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    /// Private data of a connection, from `rdma_create_ep`.
    pub connect: Vec<u8>,
    /// Attributes for the queue pairs of a listener's requests, from `rdma_create_ep`.
    pub qp_init_attr: Option<QpInitAttr>,
    /// Whether the queue pair could not be made ready. Further events of the connection do not matter then.
    pub has_failed: bool,
    /// `ibv_mtu` of the path.
    pub mtu: u8,
    /// Groups that the identifier has joined or is about to join, and the number of joins so far.
    pub groups: Vec<Joined>,
    pub joins: u32,
    reported: u32,
    acknowledged: u32,
}

impl IdState {
    /// Is true if the program does not learn that a device is gone: the identifier does not depend on one. It is bound
    /// to all addresses, or to an address of a socket, and listens again.
    fn outlives(&self) -> bool {
        self.bound.is_some_and(|bound| self.is_socket || device::is_loopback(bound.ip()))
    }
}

/// Identifiers, by the keys in events.
static IDS: Mutex<BTreeMap<(u32, u32), usize>> = Mutex::new(BTreeMap::new());

/// Runs `with` while no identifier is created or destroyed.
pub fn registered<T>(with: impl FnOnce(&BTreeMap<(u32, u32), usize>) -> T) -> T {
    with(&lock(&IDS))
}

/// Takes a device that is gone away from its identifiers, and tells them. Those that listen will listen again.
pub fn lose(device: &'static Device) {
    registered(|ids| {
        for at in ids.range((device.tag, 0)..=(device.tag, u32::MAX)).map(|(_, at)| *at as *const Id) {
            // SAFETY: registered identifiers are not destroyed.
            let id = unsafe { &*at };
            let lost = id.state(|state| {
                let at = state.bindings.iter().position(|binding| binding.device.tag == device.tag)?;
                let binding = state.bindings.remove(at);
                state.lost.push(binding);
                Some(if state.outlives() { None } else { Some(events::removal(binding)) })
            });
            let Some(event) = lost else { continue };
            if let Ok(channel) = id.channel() {
                channel.lose(device, event);
            }
            if id.state(|state| state.backlog.is_some()) {
                returning::add(id);
            }
        }
    });
}

impl Id {
    /// Creates an identifier; without a channel, it is synchronous and has its own.
    pub fn create(
        channel: *mut EventChannel,
        context: *mut c_void,
        ps: u32,
        qp_type: u32,
    ) -> Result<*mut Self, Errno> {
        if !matches!(ps, RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IB) {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let sync = channel.is_null();
        let channel = if sync { Channel::create()? } else { channel };
        // SAFETY: it consists of numbers and pointers, for which zeroes are valid.
        let mut public: CmId = unsafe { std::mem::zeroed() };
        (public.channel, public.context, public.ps, public.qp_type) = (channel, context, ps, qp_type);
        let state = IdState { sync, ..IdState::default() };
        Ok(Box::into_raw(Box::new(Self {
            public: UnsafeCell::new(public),
            state: Mutex::new(state),
            acknowledged: Condvar::new(),
        })))
    }

    /// Returns the identifier behind C's pointer.
    ///
    /// # Safety
    /// `create` must have made the identifier, and it must not be destroyed while the result is used.
    pub unsafe fn of<'a>(id: *mut CmId) -> Result<&'a Self, Errno> {
        // SAFETY: what C has is the first member.
        unsafe { id.cast::<Self>().as_ref() }.ok_or(Errno(libc::EINVAL))
    }

    /// Returns the structure that C sees. It belongs to the program, which may change it.
    pub const fn public(&self) -> *mut CmId {
        self.public.get()
    }

    /// Reads or changes the structure that C sees.
    pub fn visible<T>(&self, with: impl FnOnce(&mut CmId) -> T) -> T {
        // SAFETY: it lives as long as `self`. As in C, a program does not use one identifier from several threads,
        // except for events; those that change it are reported one after the other.
        with(unsafe { &mut *self.public.get() })
    }

    /// Reads or changes the state that C does not see.
    pub fn state<T>(&self, with: impl FnOnce(&mut IdState) -> T) -> T {
        with(&mut lock(&self.state))
    }

    pub fn channel(&self) -> Result<Arc<Channel>, Errno> {
        // SAFETY: a channel is not destroyed before its identifiers. Other threads may read which one it is: it changes
        // only while no identifier is registered.
        unsafe { Channel::of((&raw const (*self.public()).channel).read()) }
    }

    /// Is true if the identifier's queue pair is for datagrams.
    pub fn is_datagram(&self) -> bool {
        self.visible(|public| public.qp_type == IBV_QPT_UD)
    }

    /// Returns the first binding.
    ///
    /// # Errors
    /// `EINVAL` if there is none, `ENODEV` if its device is gone.
    pub fn binding(&self) -> Result<Binding, Errno> {
        self.state(|state| {
            let none = Errno(if state.lost.is_empty() { libc::EINVAL } else { libc::ENODEV });
            state.bindings.first().copied().ok_or(none)
        })
    }

    /// Returns all bindings, also those whose devices are gone.
    pub fn all_bindings(&self) -> Vec<Binding> {
        self.state(|state| [&state.bindings[..], &state.lost[..]].concat())
    }

    /// Sends a request about the first binding to its device.
    pub fn order(&self, request: impl FnOnce(u32) -> CmRequest) -> Result<(), Errno> {
        let binding = self.binding()?;
        binding.device.order(request(binding.handle))
    }

    /// Creates an identifier at a device, which then represents this one.
    pub fn attach(&self, device: &'static Device) -> Result<Binding, Errno> {
        let (port_space, qp_type) = self.visible(|public| (public.ps, public.qp_type));
        let qp_type = match qp_type {
            2 => QpType::Rc,
            3 => QpType::Uc,
            IBV_QPT_UD => QpType::Ud,
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        let channel = self.channel()?.at(device)?;
        let handle = device.create(CmRequest::CreateId { channel, port_space, qp_type })?;
        let binding = Binding { device, handle };
        for option in self.state(|state| state.options.clone()) {
            let set = device.order(CmRequest::SetOption { id: handle, option });
            if set.is_err() {
                let _ = device.order(CmRequest::DestroyId { id: handle });
                set?;
            }
        }
        self.adopt(binding);
        Ok(binding)
    }

    /// Adds a device's identifier to those that represent this one.
    pub fn adopt(&self, binding: Binding) {
        lock(&IDS).insert(binding.key(), ptr::from_ref(self) as usize);
        self.state(|state| state.bindings.push(binding));
        // A device that was lost before this did not find the identifier.
        if binding.device.is_lost() {
            lose(binding.device);
        }
    }

    /// Destroys all bindings except one.
    pub fn detach_but(&self, kept: Option<Binding>) {
        self.detach(|binding| kept.is_none_or(|kept| kept.key() != binding.key()));
    }

    /// Destroys the bindings that `is_gone` selects.
    pub fn detach(&self, is_gone: impl Fn(&Binding) -> bool) {
        let gone: Vec<Binding> = self.state(|state| {
            let bindings = [&mut state.bindings, &mut state.lost];
            bindings.into_iter().flat_map(|all| all.extract_if(.., |binding| is_gone(binding))).collect()
        });
        for binding in &gone {
            let _ = binding.device.order(CmRequest::DestroyId { id: binding.handle });
        }
        if !gone.is_empty() {
            self.forget(&gone);
        }
    }

    /// Drops events of former bindings, and refuses their requests.
    fn forget(&self, gone: &[Binding]) {
        let mut ids = lock(&IDS);
        for binding in gone {
            ids.remove(&binding.key());
        }
        let Ok(channel) = self.channel() else { return };
        let is_gone = |tag, id| gone.iter().any(|binding| binding.key() == (tag, id));
        let events = channel.take_chosen(|event| {
            is_gone(event.tag, event.id)
                || event.listener.is_some_and(|listener| is_gone(event.tag, listener))
        });
        drop(ids);
        events.iter().for_each(events::refuse);
    }

    /// Enters the device, and its protection domain if there is none yet, into the structure that C sees.
    pub fn use_device(&self, device: &'static Device) -> Result<(), Errno> {
        let pd = device.pd()?;
        let earlier = self.state(|state| std::mem::replace(&mut state.device_pd, pd as usize));
        self.visible(|public| {
            public.verbs = device.context;
            public.port_num = verbs::PORT;
            public.route.addr.pkey = verbs::PKEY.to_be();
            if public.pd.is_null() || public.pd as usize == earlier {
                public.pd = pd;
            }
        });
        Ok(())
    }

    pub fn set_addresses(&self, local: Option<SocketAddr>, peer: Option<SocketAddr>) {
        self.visible(|public| {
            let addr = &mut public.route.addr;
            if let Some(local) = local {
                (addr.src_addr, addr.sgid) = (address::write(local), gid_or_none(local));
            }
            if let Some(peer) = peer {
                (addr.dst_addr, addr.dgid) = (address::write(peer), gid_or_none(peer));
            }
        });
    }

    /// Sets both GIDs to this address: the connection is with the guest itself.
    pub fn set_own(&self, own: std::net::IpAddr) {
        let gid = address::gid(own);
        self.visible(|public| (public.route.addr.sgid, public.route.addr.dgid) = (gid, gid));
    }

    /// Adds the path to the structure that C sees.
    pub fn set_path(&self) -> Result<(), Errno> {
        // SAFETY: `free` frees it with the identifier.
        let path = unsafe { libc::calloc(1, size_of::<PathRecord>()) }.cast::<PathRecord>();
        if path.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        let mtu = self.state(|state| state.mtu);
        let old = self.visible(|public| {
            let record = PathRecord {
                dgid: public.route.addr.dgid,
                sgid: public.route.addr.sgid,
                hop_limit: 64,
                reversible: 1,
                numb_path: 1,
                pkey: verbs::PKEY.to_be(),
                mtu_selector: 2,
                mtu,
                rate_selector: 2,
                rate: 3,
                packet_life_time_selector: 2,
                packet_life_time: 16,
                ..PathRecord::default()
            };
            // SAFETY: it was just allocated.
            unsafe { path.write(record) };
            public.route.num_paths = 1;
            std::mem::replace(&mut public.route.path_rec, path)
        });
        // SAFETY: it came from `calloc` here, or is null.
        unsafe { libc::free(old.cast()) };
        Ok(())
    }

    /// Counts an event that is reported to the program.
    pub fn report(&self) {
        self.state(|state| state.reported = state.reported.wrapping_add(1));
    }

    /// Counts an event that the program has acknowledged.
    pub fn acknowledge(&self) {
        self.state(|state| {
            state.acknowledged = state.acknowledged.wrapping_add(1);
            // Notifies while the state is locked: a waiting thread may destroy the identifier at once.
            self.acknowledged.notify_all();
        });
    }

    /// Waits until the program has acknowledged all events of the identifier.
    pub fn wait_for_acknowledgements(&self) {
        let mut state = lock(&self.state);
        while state.acknowledged != state.reported {
            state = self.acknowledged.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends an identifier.
    ///
    /// # Safety
    /// `create` must have made the identifier, and nobody may use it any more.
    pub unsafe fn destroy(id: *mut Self) {
        // SAFETY: the caller's promise.
        let this = unsafe { &*id };
        this.state(|state| (state.bound, state.backlog) = (None, None));
        this.detach_but(None);
        if returning::remove(this) {
            this.detach_but(None);
        }
        let event = this.visible(|public| std::mem::replace(&mut public.event, ptr::null_mut()));
        // SAFETY: it is one that was reported and not acknowledged, or null.
        unsafe { events::acknowledge(event) };
        this.wait_for_acknowledgements();
        let (channel, path) = this.visible(|public| (public.channel, public.route.path_rec));
        if this.state(|state| state.sync) {
            // SAFETY: the channel was its own.
            unsafe { Channel::destroy(channel) };
        }
        // SAFETY: it came from `calloc`, or is null.
        unsafe { libc::free(path.cast()) };
        // SAFETY: `create` made it with `Box`; nobody uses it any more.
        drop(unsafe { Box::from_raw(id) });
    }
}

fn gid_or_none(at: SocketAddr) -> Gid {
    if at.ip().is_unspecified() { Gid::default() } else { address::gid(at.ip()) }
}

/// Creates an identifier.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut EventChannel,
    id: *mut *mut CmId,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    let qp_type = if matches!(ps, RDMA_PS_UDP | RDMA_PS_IPOIB) { IBV_QPT_UD } else { IBV_QPT_RC };
    returned(Id::create(channel, context, ps, qp_type).map(|made| {
        // SAFETY: the caller's promise.
        unsafe { id.write(made.cast()) };
    }))
}

/// Destroys an identifier.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut CmId) -> c_int {
    if id.is_null() {
        return returned(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller's promise.
    unsafe { Id::destroy(id.cast()) };
    0
}

/// Returns the port of an address, in network byte order.
///
/// # Safety
/// C's rules: see the crate.
unsafe fn port(address: *const sockaddr) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { address::read(address) }.map_or(0, |address| address.port().to_be())
}

/// Returns an identifier's own port, in network byte order.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { port((&raw const (*id).route.addr.src_addr).cast()) }
}

/// Returns the peer's port, in network byte order.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { port((&raw const (*id).route.addr.dst_addr).cast()) }
}
