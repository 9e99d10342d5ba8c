//! The devices that `libibverbs` finds, and a connection to each.

use crate::abi::{Context, DeviceAttr, Gid, Pd, VIADUCT, ViaductDevice};
use crate::address;
use crate::error::{self, Errno, made};
use crate::verbs;
use libc::{c_int, c_void};
use std::ffi::{CStr, OsStr};
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::cm::CmRequest;
use uverbs::{Connection, Dial, Endpoint, Given, Joined, Lent, Refusal, Reply, Request, VERSION};

/// No device has more GIDs than this.
const GIDS: c_int = 256;

#[derive(Debug)]
pub struct Device {
    /// The device's number, from 0, which events carry.
    pub tag: u32,
    pub context: *mut Context,
    /// Largest number of READs and atomics that a queue pair accepts at a time.
    pub max_responder_resources: u8,
    /// Largest number of READs and atomics that a queue pair has in progress.
    pub max_initiator_depth: u8,
    endpoint: Endpoint,
    connection: Mutex<Option<(Connection, Dial)>>,
    pd: Mutex<Option<usize>>,
}

// SAFETY: libibverbs permits using a context from any thread; everything else is behind locks or never changes.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Locks a mutex, even after a panic of its holder: no panic leaves anything half-changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static DEVICES: Mutex<Option<&'static [Device]>> = Mutex::new(None);

/// Returns all devices. They are opened once and never closed, because identifiers point to them.
pub fn all() -> &'static [Device] {
    let mut devices = lock(&DEVICES);
    if let Some(found) = *devices {
        return found;
    }
    let found = open_all();
    if found.is_empty() {
        return &[];
    }
    devices.insert(Box::leak(found.into_boxed_slice()))
}

fn open_all() -> Vec<Device> {
    let mut count = 0;
    // SAFETY: `count` may be written.
    let list = unsafe { verbs::ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return Vec::new();
    }
    let each = (0..usize::try_from(count).unwrap_or(0)).filter_map(|index| {
        // SAFETY: the list has that many devices.
        let device = unsafe { *list.add(index) };
        // SAFETY: it is in the list, which is not freed yet.
        unsafe { open(device) }
    });
    let mut devices: Vec<Device> = each.collect();
    for (tag, device) in (0..).zip(&mut devices) {
        device.tag = tag;
    }
    // SAFETY: the list from above; open devices stay.
    unsafe { verbs::ibv_free_device_list(list) };
    devices
}

/// Opens a device, if it is one of Viaduct's.
///
/// # Safety
/// The device must come from the list of `libibverbs`.
unsafe fn open(device: *mut crate::abi::Device) -> Option<Device> {
    // SAFETY: the device has a name that ends.
    let name = unsafe { CStr::from_ptr((&raw const (*device).name).cast()) };
    // Other implementations of `libibverbs` have nothing after a device.
    name.to_bytes().starts_with(VIADUCT.as_bytes()).then_some(())?;
    // SAFETY: one of our devices is part of a larger structure, with a terminated path.
    let path = unsafe { CStr::from_ptr((&raw const (*device.cast::<ViaductDevice>()).socket).cast()) };
    let endpoint = Endpoint::parse(OsStr::from_bytes(path.to_bytes()));
    // SAFETY: the caller's promise.
    let context = unsafe { verbs::ibv_open_device(device) };
    // SAFETY: it consists of numbers.
    let mut attr: DeviceAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the device is open unless the pointer is null, and `attr` may be written.
    if context.is_null() || unsafe { verbs::ibv_query_device(context, &raw mut attr) } != 0 {
        return None;
    }
    let limit = |value: c_int| u8::try_from(value).unwrap_or(u8::MAX - 1);
    Some(Device {
        tag: 0,
        context,
        max_responder_resources: limit(attr.max_qp_rd_atom),
        max_initiator_depth: limit(attr.max_qp_init_rd_atom),
        endpoint,
        connection: Mutex::new(None),
        pd: Mutex::new(None),
    })
}

pub fn with_address(ip: IpAddr) -> Option<&'static Device> {
    all().iter().find(|device| device.gids().any(|gid| address::of_gid(gid) == ip.to_canonical()))
}

/// Is true if an address means the guest itself. As a destination, the unspecified address does, too, as with Linux.
pub fn is_loopback(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || ip.is_unspecified()
}

/// Returns the device for a destination if the source does not matter. For loopback it is the first active one, as with
/// Linux.
pub fn towards(ip: IpAddr) -> Option<&'static Device> {
    if is_loopback(ip) {
        // A device that disappeared has no GIDs.
        return all().iter().find(|device| device.gids().next().is_some());
    }
    let is_v4 = ip.to_canonical().is_ipv4();
    let has_family = |device: &&Device| device.gids().any(|gid| address::of_gid(gid).is_ipv4() == is_v4);
    with_address(ip).or_else(|| all().iter().find(has_family))
}

impl Device {
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        let all = (0..GIDS).map_while(|index| {
            let mut gid = Gid::default();
            // SAFETY: the device is open, and `gid` may be written.
            let failed = unsafe { verbs::ibv_query_gid(self.context, verbs::PORT, index, &raw mut gid) };
            (failed == 0).then_some(gid)
        });
        all.filter(|gid| *gid != Gid::default())
    }

    /// Returns the index of an address among the device's GIDs.
    pub fn gid_index(&self, ip: IpAddr) -> Option<u8> {
        let wanted = address::gid(ip.to_canonical());
        let mut index = 0..GIDS;
        let found = index.find(|index| {
            let mut gid = Gid::default();
            // SAFETY: the device is open, and `gid` may be written.
            let failed = unsafe { verbs::ibv_query_gid(self.context, verbs::PORT, *index, &raw mut gid) };
            failed == 0 && gid == wanted
        });
        found.and_then(|index| u8::try_from(index).ok())
    }

    /// Returns the protection domain for programs that provide none.
    pub fn pd(&self) -> Result<*mut Pd, Errno> {
        let mut pd = lock(&self.pd);
        if let Some(address) = *pd {
            return Ok(address as *mut Pd);
        }
        // SAFETY: the device is open.
        let made = made(unsafe { verbs::ibv_alloc_pd(self.context) })?;
        *pd = Some(made as usize);
        Ok(made)
    }

    pub fn ask(&self, request: CmRequest) -> Result<Reply, Errno> {
        self.ask_with(request, None).map(|(reply, _)| reply)
    }

    /// Sends a request with a descriptor, if the device accepts descriptors. A device that does not may return its own
    /// socket.
    fn ask_with(
        &self,
        request: CmRequest,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Option<OwnedFd>), Errno> {
        let mut connection = lock(&self.connection);
        let (open, dial) = match &mut *connection {
            Some(open) => open,
            none => none.insert(self.connect()?),
        };
        let along = descriptor.map(Lent::from).filter(|_| matches!(open, Connection::Local(_)));
        let answer = exchange(open, request, along.as_slice());
        let dial = dial.clone();
        if answer.is_err() {
            *connection = None;
        }
        let (reply, given) = answer?;
        let reply = reply.map_err(|refusal| Errno(refusal.errno))?;
        let socket = given.into_iter().next().map(|given| dial.socket(given)).transpose();
        Ok((reply, socket.map_err(|error| Errno(error.errno()))?))
    }

    /// Sends a request whose answer has no content.
    pub fn order(&self, request: CmRequest) -> Result<(), Errno> {
        self.ask(request).map(drop)
    }

    /// Sends a request whose answer is a number.
    pub fn create(&self, request: CmRequest) -> Result<u32, Errno> {
        handle(&self.ask(request)?)
    }

    /// Creates a channel. Its events come to the other end of `socket` or, if a socket is returned, to that one.
    pub fn create_channel(&self, socket: BorrowedFd<'_>) -> Result<(u32, Option<OwnedFd>), Errno> {
        let (reply, own) = self.ask_with(CmRequest::CreateChannel { tag: self.tag }, Some(socket))?;
        Ok((handle(&reply)?, own))
    }

    fn connect(&self) -> Result<(Connection, Dial), Errno> {
        let Joined { mut connection, dial, .. } =
            self.endpoint.connect().map_err(|error| Errno(error.errno()))?;
        let (hello, _) = exchange(&mut connection, CmRequest::Hello { version: VERSION }, &[])?;
        hello.map_err(|refusal| Errno(refusal.errno))?;
        Ok((connection, dial))
    }
}

fn exchange(
    connection: &mut Connection,
    request: CmRequest,
    along: &[Lent<'_>],
) -> Result<(Result<Reply, Refusal>, Vec<Given>), Errno> {
    // After any error of the connection, the device is not available any more.
    let gone = |_| Errno(libc::ENODEV);
    connection.send(&Request::Cm(request), along).map_err(gone)?;
    connection.receive().map_err(gone)
}

const fn handle(reply: &Reply) -> Result<u32, Errno> {
    if let Reply::Handle(handle) = reply { Ok(*handle) } else { Err(Errno(libc::EPROTO)) }
}

/// Returns the open devices; a null pointer ends the list.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut Context {
    let devices = all();
    // SAFETY: `calloc` accepts any value.
    let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut Context>()) }.cast::<*mut Context>();
    if list.is_null() {
        error::set(Errno(libc::ENOMEM));
        return list;
    }
    for (index, device) in devices.iter().enumerate() {
        // SAFETY: it has room for all of them.
        unsafe { list.add(index).write(device.context) };
    }
    if !num_devices.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *num_devices = devices.len() as c_int };
    }
    list
}

/// Frees a list of devices.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut Context) {
    // SAFETY: the caller got it from `rdma_get_devices`, which allocates it so.
    unsafe { libc::free(list.cast::<c_void>()) };
}
