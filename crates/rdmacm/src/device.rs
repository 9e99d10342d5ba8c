//! The devices that `libibverbs` finds, and a connection to each.

use crate::abi::{Context, DeviceAttr, Gid, Pd, VIADUCT, ViaductDevice};
use crate::address;
use crate::error::{self, Errno, checked, made};
use crate::id;
use crate::verbs;
use libc::{c_int, c_void};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::ffi::{CStr, OsStr};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::cm::CmRequest;
use uverbs::{Connection, Dial, Endpoint, Given, Joined, Lent, Refusal, Reply, Request, Stream, VERSION};

/// No device has more GIDs than this.
const GIDS: c_int = 256;

#[derive(Debug)]
pub struct Device {
    /// The device's number, from 0, which events carry. A device that is opened anew gets another one.
    pub tag: u32,
    pub context: *mut Context,
    /// Largest number of READs and atomics that a queue pair accepts at a time.
    pub max_responder_resources: u8,
    /// Largest number of READs and atomics that a queue pair has in progress.
    pub max_initiator_depth: u8,
    endpoint: Endpoint,
    /// The addresses that the device had when it was opened.
    addresses: Vec<IpAddr>,
    /// The connection to the device's connection manager; `None` once it has ended.
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

/// The devices that were opened. They are never closed, because programs and identifiers point to them and to their
/// contexts.
#[derive(Debug)]
struct Known {
    open: Vec<&'static Device>,
    /// Devices that ended, with their daemon or their guest, and that were not opened anew yet.
    lost: Vec<&'static Device>,
    next: u32,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { open: Vec::new(), lost: Vec::new(), next: 0 });

/// Returns the devices that are there. Opens those that are there again, or for the first time.
pub fn all() -> Vec<&'static Device> {
    let mut known = lock(&KNOWN);
    let is_back = |lost: &&Device| lost.endpoint.connect().is_ok();
    if known.open.is_empty() || known.lost.iter().any(is_back) {
        known.open_others();
    }
    known.open.clone()
}

/// Returns the open device that has a number.
pub fn with_tag(tag: u32) -> Option<&'static Device> {
    lock(&KNOWN).open.iter().find(|device| device.tag == tag).copied()
}

/// Is true if there is a device, or there was one that may come back.
pub fn any() -> bool {
    !all().is_empty() || any_is_lost()
}

/// Is true if a device has ended and is not back.
pub fn any_is_lost() -> bool {
    !lock(&KNOWN).lost.is_empty()
}

/// Is true if this is an address of a device that has ended and is not back.
pub fn had_address(ip: IpAddr) -> bool {
    lock(&KNOWN).lost.iter().any(|device| device.addresses.contains(&ip.to_canonical()))
}

impl Known {
    /// Opens the devices that are not open.
    fn open_others(&mut self) {
        let mut count = 0;
        // SAFETY: `count` may be written.
        let list = unsafe { verbs::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return;
        }
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has that many devices.
            let device = unsafe { *list.add(index) };
            // SAFETY: it is in the list, which is not freed yet.
            let Some(endpoint) = (unsafe { endpoint(device) }) else { continue };
            if self.open.iter().any(|open| open.endpoint == endpoint) {
                continue;
            }
            // SAFETY: as above.
            if let Some(opened) = unsafe { open(device, endpoint, self.next) } {
                self.next += 1;
                self.lost.retain(|lost| lost.endpoint != opened.endpoint);
                self.open.push(Box::leak(Box::new(opened)));
            }
        }
        // SAFETY: the list from above; open devices stay.
        unsafe { verbs::ibv_free_device_list(list) };
    }
}

/// Returns the place of a device, if it is one of Viaduct's.
///
/// # Safety
/// The device must come from the list of `libibverbs`.
unsafe fn endpoint(device: *mut crate::abi::Device) -> Option<Endpoint> {
    // SAFETY: the device has a name that ends.
    let name = unsafe { CStr::from_ptr((&raw const (*device).name).cast()) };
    // Other implementations of `libibverbs` have nothing after a device.
    name.to_bytes().starts_with(VIADUCT.as_bytes()).then_some(())?;
    // SAFETY: one of our devices is part of a larger structure, with a terminated path.
    let path = unsafe { CStr::from_ptr((&raw const (*device.cast::<ViaductDevice>()).socket).cast()) };
    Some(Endpoint::parse(OsStr::from_bytes(path.to_bytes())))
}

/// Opens a device of Viaduct, and connects to its connection manager.
///
/// # Safety
/// The device must come from the list of `libibverbs`.
unsafe fn open(device: *mut crate::abi::Device, endpoint: Endpoint, tag: u32) -> Option<Device> {
    // SAFETY: the caller's promise.
    let context = made(unsafe { verbs::ibv_open_device(device) }).ok()?;
    let opened = connect(&endpoint).ok().and_then(|connection| {
        // SAFETY: it consists of numbers.
        let mut attr: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and `attr` may be written.
        checked(unsafe { verbs::ibv_query_device(context, &raw mut attr) }).ok()?;
        // A daemon that ended in between has no GIDs: the connection would be to the next one.
        let addresses: Vec<_> = gids(context).map(address::of_gid).collect();
        addresses.first()?;
        let limit = |value: c_int| u8::try_from(value).unwrap_or(u8::MAX - 1);
        Some(Device {
            tag,
            context,
            max_responder_resources: limit(attr.max_qp_rd_atom),
            max_initiator_depth: limit(attr.max_qp_init_rd_atom),
            endpoint,
            addresses,
            connection: Mutex::new(Some(connection)),
            pd: Mutex::new(None),
        })
    });
    if opened.is_none() {
        // SAFETY: it was just opened, and nobody has it.
        unsafe { verbs::ibv_close_device(context) };
    }
    opened
}

/// Connects to a device's connection manager.
fn connect(endpoint: &Endpoint) -> Result<(Connection, Dial), Errno> {
    let Joined { mut connection, dial, .. } = endpoint.connect().map_err(|error| Errno(error.errno()))?;
    let (hello, _) = exchange(&mut connection, CmRequest::Hello { version: VERSION }, &[])?;
    hello.map_err(|refusal| Errno(refusal.errno))?;
    Ok((connection, dial))
}

fn gids(context: *mut Context) -> impl Iterator<Item = Gid> {
    let all = (0..GIDS).map_while(move |index| {
        let mut gid = Gid::default();
        // SAFETY: the device is open, and `gid` may be written.
        let failed = unsafe { verbs::ibv_query_gid(context, verbs::PORT, index, &raw mut gid) };
        (failed == 0).then_some(gid)
    });
    all.filter(|gid| *gid != Gid::default())
}

pub fn with_address(ip: IpAddr) -> Option<&'static Device> {
    all().into_iter().find(|device| device.has_address(ip))
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
        return all().into_iter().find(|device| device.gids().next().is_some());
    }
    let is_v4 = ip.to_canonical().is_ipv4();
    let has_family = |device: &&Device| device.gids().any(|gid| address::of_gid(gid).is_ipv4() == is_v4);
    with_address(ip).or_else(|| all().into_iter().find(has_family))
}

impl Device {
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        gids(self.context)
    }

    pub fn has_address(&self, ip: IpAddr) -> bool {
        self.gids().any(|gid| address::of_gid(gid) == ip.to_canonical())
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

    /// Is true if the connection has ended: nothing of the device is there any more.
    pub fn is_lost(&self) -> bool {
        lock(&self.connection).is_none()
    }

    /// Notes that the device is gone, with all that was created there.
    pub fn lose(&'static self) {
        drop(lock(&self.connection).take());
        let is_first = {
            let mut known = lock(&KNOWN);
            let at = known.open.iter().position(|open| open.tag == self.tag);
            let lost = at.map(|at| known.open.remove(at));
            known.lost.extend(lost);
            lost.is_some()
        };
        if is_first {
            id::lose(self);
        }
    }

    pub fn ask(&'static self, request: CmRequest) -> Result<Reply, Errno> {
        self.ask_with(request, None).map(|(reply, _)| reply)
    }

    /// Sends a request with a descriptor, if the device accepts descriptors. A device that does not may return its own
    /// socket.
    fn ask_with(
        &'static self,
        request: CmRequest,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Option<OwnedFd>), Errno> {
        let mut connection = lock(&self.connection);
        let Some((open, dial)) = &mut *connection else { return Err(Errno(libc::ENODEV)) };
        let along = descriptor.map(Lent::from).filter(|_| matches!(open, Connection::Local(_)));
        let answer = exchange(open, request, along.as_slice());
        let dial = dial.clone();
        drop(connection);
        let (reply, given) = answer.inspect_err(|_| self.lose())?;
        let reply = reply.map_err(|refusal| Errno(refusal.errno))?;
        let socket = given.into_iter().next().map(|given| dial.socket(given)).transpose();
        Ok((reply, socket.map_err(|error| Errno(error.errno()))?))
    }

    /// Sends a request whose answer has no content.
    pub fn order(&'static self, request: CmRequest) -> Result<(), Errno> {
        self.ask(request).map(drop)
    }

    /// Sends a request whose answer is a number.
    pub fn create(&'static self, request: CmRequest) -> Result<u32, Errno> {
        handle(&self.ask(request)?)
    }

    /// Creates a channel; returns it with the socket of its events, which ends with the device.
    pub fn create_channel(&'static self) -> Result<(u32, Connection), Errno> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let (reply, own) = self.ask_with(CmRequest::CreateChannel { tag: self.tag }, Some(theirs.as_fd()))?;
        let socket = match own {
            Some(own) => Connection::Stream(Stream::new(own)),
            None => Connection::new(ours),
        };
        Ok((handle(&reply)?, socket))
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
