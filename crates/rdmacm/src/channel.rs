//! Event channels. A channel's descriptor is an epoll of others: the sockets to which devices write events, and one
//! that is readable if events were read from there but not delivered yet.

use crate::abi::EventChannel;
use crate::device::{self, Device, lock};
use crate::error::{self, Errno};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use uverbs::cm::{CmEvent, CmRequest};
use uverbs::{Connection, SocketError, Stream};

/// A channel. C sees its first member.
#[repr(C)]
#[derive(Debug)]
pub struct Channel {
    public: EventChannel,
    epoll: OwnedFd,
    /// The channel's number at each device, by the device's tag.
    handles: BTreeMap<u32, u32>,
    waiting: Mutex<Waiting>,
    is_destroyed: AtomicBool,
}

/// Events that were not delivered yet.
#[derive(Debug)]
struct Waiting {
    /// The sockets from which events come: one for all devices that accept a descriptor of it, and one for each other
    /// device.
    sockets: Vec<Connection>,
    /// Events that were read from a socket.
    read: VecDeque<CmEvent>,
    /// Readable while `read` is not empty.
    is_read: OwnedFd,
}

impl Channel {
    /// Creates a channel at all devices.
    pub fn create() -> Result<*mut EventChannel, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let is_read = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (mut handles, mut sockets) = (BTreeMap::new(), Vec::new());
        let (mut failed, mut is_used) = (Errno(libc::ENODEV), false);
        for device in device::all() {
            match device.create_channel(theirs.as_fd()) {
                Ok((handle, own)) => {
                    handles.insert(device.tag, handle);
                    is_used |= own.is_none();
                    sockets.extend(own.map(|own| Connection::Stream(Stream::new(own))));
                }
                Err(error) => failed = error,
            }
        }
        if handles.is_empty() {
            return Err(failed);
        }
        sockets.extend(is_used.then(|| Connection::new(ours)));
        for descriptor in sockets.iter().map(AsFd::as_fd).chain([is_read.as_fd()]) {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        let waiting = Mutex::new(Waiting { sockets, read: VecDeque::new(), is_read });
        let public = EventChannel { fd: epoll.as_raw_fd() };
        Ok(Arc::into_raw(Arc::new(Self {
            public,
            epoll,
            handles,
            waiting,
            is_destroyed: AtomicBool::new(false),
        }))
        .cast_mut()
        .cast())
    }

    /// Returns the channel behind C's pointer. It stays while it is used, even if it is destroyed meanwhile:
    /// programs do that while another thread waits for an event.
    ///
    /// # Safety
    /// `create` must have made the channel, and it must not be destroyed yet.
    pub unsafe fn of(channel: *mut EventChannel) -> Result<Arc<Self>, Errno> {
        if channel.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let channel = channel.cast::<Self>().cast_const();
        // SAFETY: what C has is the first member of what `create` made with `Arc`.
        unsafe {
            Arc::increment_strong_count(channel);
            Ok(Arc::from_raw(channel))
        }
    }

    /// Ends a channel.
    ///
    /// # Safety
    /// `create` must have made the channel, and nobody may use it any more.
    pub unsafe fn destroy(channel: *mut EventChannel) {
        if channel.is_null() {
            return;
        }
        // SAFETY: the caller's promise.
        let channel = unsafe { Arc::from_raw(channel.cast::<Self>().cast_const()) };
        channel.is_destroyed.store(true, Ordering::Release);
        for device in device::all() {
            if let Some(handle) = channel.handles.get(&device.tag) {
                let _ = device.order(CmRequest::DestroyChannel { channel: *handle });
            }
        }
    }

    /// Blocks forever if the program destroyed the channel. With Linux's library, a thread that waits for the
    /// events of such a channel keeps waiting, and programs rely on that when they end.
    pub fn stay_if_destroyed(&self) {
        while self.is_destroyed.load(Ordering::Acquire) {
            std::thread::park();
        }
    }

    /// Returns the descriptor that programs poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub fn at(&self, device: &Device) -> Result<u32, Errno> {
        self.handles.get(&device.tag).copied().ok_or(Errno(libc::ENODEV))
    }

    pub fn take(&self) -> Result<Option<CmEvent>, Errno> {
        let mut waiting = lock(&self.waiting);
        match waiting.read.pop_front() {
            Some(event) => {
                waiting.show();
                Ok(Some(event))
            }
            None => waiting.receive(),
        }
    }

    /// Removes the waiting events that `chosen` selects, and returns them.
    pub fn take_chosen(&self, mut chosen: impl FnMut(&CmEvent) -> bool) -> Vec<CmEvent> {
        let mut waiting = lock(&self.waiting);
        while let Ok(Some(event)) = waiting.receive() {
            waiting.read.push_back(event);
        }
        let (out, stay): (VecDeque<_>, _) = waiting.read.drain(..).partition(|event| chosen(event));
        waiting.read = stay;
        waiting.show();
        out.into()
    }

    /// Puts these events in front of the waiting ones.
    pub fn put_back(&self, events: Vec<CmEvent>) {
        let mut waiting = lock(&self.waiting);
        for event in events.into_iter().rev() {
            waiting.read.push_front(event);
        }
        waiting.show();
    }

    /// Waits until there may be an event.
    ///
    /// # Errors
    /// `EAGAIN` if the descriptor is non-blocking.
    pub fn wait(&self) -> Result<(), Errno> {
        if rustix::fs::fcntl_getfl(&self.epoll)?.contains(OFlags::NONBLOCK) {
            return Err(Errno(libc::EAGAIN));
        }
        let mut both = [PollFd::new(&self.epoll, PollFlags::IN)];
        // The wait is restarted after a signal, like a system call.
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut both, None))?;
        Ok(())
    }
}

impl Waiting {
    fn receive(&mut self) -> Result<Option<CmEvent>, Errno> {
        let mut at = 0;
        while let Some(socket) = self.sockets.get_mut(at) {
            match socket.receive_now::<CmEvent>() {
                Ok(Some((event, _))) => return Ok(Some(event)),
                Ok(None) => at += 1,
                Err(SocketError::Malformed(_)) => return Err(Errno(libc::EPROTO)),
                // Other sockets may still work. The last one stays: its descriptor is readable, and every call
                // gets this error.
                Err(_) if self.sockets.len() > 1 => drop(self.sockets.remove(at)),
                Err(_) => return Err(Errno(libc::ENODEV)),
            }
        }
        Ok(None)
    }

    /// Makes the channel's descriptor readable if events were read, and not readable otherwise.
    fn show(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.is_read, &mut count);
        if !self.read.is_empty() {
            let _ = rustix::io::write(&self.is_read, &1_u64.to_ne_bytes());
        }
    }
}

/// Creates a channel for events. Returns null with `errno` if there is no device.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    Channel::create().unwrap_or_else(|error| {
        error::set(error);
        std::ptr::null_mut()
    })
}

/// Destroys a channel.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: the caller's promise.
    unsafe { Channel::destroy(channel) };
}
