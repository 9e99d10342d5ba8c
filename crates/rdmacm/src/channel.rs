//! Event channels. A channel's descriptor is an epoll of others: the sockets to which devices write events, and one
//! that is readable if events were read from there but not delivered yet.

use crate::abi::{EventChannel, event as kind};
use crate::device::{self, Device, lock};
use crate::error::{self, Errno};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll};
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use uverbs::cm::{CmEvent, CmRequest};
use uverbs::{Connection, SocketError};

/// A channel. C sees its first member.
#[repr(C)]
#[derive(Debug)]
pub struct Channel {
    public: EventChannel,
    epoll: OwnedFd,
    waiting: Mutex<Waiting>,
    is_destroyed: AtomicBool,
}

/// The channel at a device.
#[derive(Debug)]
struct There {
    device: &'static Device,
    handle: u32,
    socket: Connection,
}

/// Events that were not delivered yet.
#[derive(Debug)]
struct Waiting {
    /// The devices of the channel's identifiers, from which events come.
    devices: Vec<There>,
    /// Events that were read from a socket.
    read: VecDeque<CmEvent>,
    /// Readable while `read` is not empty.
    is_read: OwnedFd,
}

#[derive(Debug)]
pub enum Taken {
    Event(CmEvent),
    Nothing,
    /// A device's events have ended.
    Ended(&'static Device),
}

impl Channel {
    /// Creates a channel, if there are devices.
    pub fn create() -> Result<*mut EventChannel, Errno> {
        if !device::any() {
            return Err(Errno(libc::ENODEV));
        }
        let is_read = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &is_read, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let waiting = Mutex::new(Waiting { devices: Vec::new(), read: VecDeque::new(), is_read });
        let public = EventChannel { fd: epoll.as_raw_fd() };
        Ok(Arc::into_raw(Arc::new(Self { public, epoll, waiting, is_destroyed: AtomicBool::new(false) }))
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
        let all: Vec<_> = {
            let waiting = lock(&channel.waiting);
            let _ = rustix::io::write(&waiting.is_read, &1_u64.to_ne_bytes());
            waiting.devices.iter().map(|there| (there.device, there.handle)).collect()
        };
        for (device, channel) in all {
            let _ = device.order(CmRequest::DestroyChannel { channel });
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

    /// Returns the channel's number at a device, and creates it there if it is not there yet.
    pub fn at(&self, device: &'static Device) -> Result<u32, Errno> {
        if let Some(handle) = lock(&self.waiting).at(device) {
            return Ok(handle);
        }
        let (handle, socket) = device.create_channel()?;
        let mut waiting = lock(&self.waiting);
        // Another thread may have been faster.
        if let Some(earlier) = waiting.at(device) {
            drop(waiting);
            let _ = device.order(CmRequest::DestroyChannel { channel: handle });
            return Ok(earlier);
        }
        epoll::add(&self.epoll, socket.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        waiting.devices.push(There { device, handle, socket });
        Ok(handle)
    }

    /// Forgets a device that is gone, with its events; the program gets `instead`.
    pub fn lose(&self, device: &Device, instead: Option<CmEvent>) {
        let mut waiting = lock(&self.waiting);
        waiting.devices.retain(|there| there.device.tag != device.tag);
        waiting.read.retain(|event| event.tag != device.tag || event.event == kind::DEVICE_REMOVAL);
        waiting.read.extend(instead);
        waiting.show();
    }

    pub fn take(&self) -> Result<Taken, Errno> {
        let mut waiting = lock(&self.waiting);
        match waiting.read.pop_front() {
            Some(event) => {
                waiting.show();
                Ok(Taken::Event(event))
            }
            None => waiting.receive(),
        }
    }

    /// Returns a device whose events have ended, if there is one.
    pub fn ended(&self) -> Option<&'static Device> {
        let mut waiting = lock(&self.waiting);
        let ended = waiting.receive_all();
        waiting.show();
        ended
    }

    /// Removes the waiting events that `chosen` selects, and returns them.
    pub fn take_chosen(&self, mut chosen: impl FnMut(&CmEvent) -> bool) -> Vec<CmEvent> {
        let mut waiting = lock(&self.waiting);
        waiting.receive_all();
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
    fn at(&self, device: &Device) -> Option<u32> {
        self.devices.iter().find(|there| there.device.tag == device.tag).map(|there| there.handle)
    }

    fn receive(&mut self) -> Result<Taken, Errno> {
        let mut ended = None;
        for (at, there) in self.devices.iter_mut().enumerate() {
            match there.socket.receive_now::<CmEvent>() {
                Ok(Some((event, _))) => {
                    // The next event is looked for there first.
                    self.devices.rotate_left(at);
                    return Ok(Taken::Event(event));
                }
                Ok(None) => {}
                Err(SocketError::Malformed(_)) => return Err(Errno(libc::EPROTO)),
                Err(_) => ended = Some(there.device),
            }
        }
        Ok(ended.map_or(Taken::Nothing, Taken::Ended))
    }

    /// Receives all events; returns a device whose events have ended, if there is one.
    fn receive_all(&mut self) -> Option<&'static Device> {
        loop {
            match self.receive() {
                Ok(Taken::Event(event)) => self.read.push_back(event),
                Ok(Taken::Ended(device)) => return Some(device),
                Ok(Taken::Nothing) | Err(_) => return None,
            }
        }
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
