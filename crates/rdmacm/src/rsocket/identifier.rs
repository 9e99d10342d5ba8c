//! The connection manager's identifier of a socket. Its calls and events do not wait.

use super::wire::Hello;
use crate::abi::{ConnParam, RDMA_PS_TCP, event as kind};
use crate::address;
use crate::channel::Channel;
use crate::device::lock;
use crate::error::Errno;
use crate::events::{self, complete};
use crate::id::Id;
use crate::{connecting, endpoint, options, resolving};
use libc::{c_int, sockaddr_storage};
use rustix::fs::OFlags;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::{Arc, Mutex};
use uverbs::cm::CmOption;

/// A report of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The connection exists. Carries the peer's hello; `None` if the peer does not speak rsockets.
    Established(Option<Hello>),
    Disconnected,
    Other,
}

#[derive(Debug)]
pub struct Asked {
    /// The identifier with which the request is accepted.
    pub request: Arc<Identifier>,
    /// The peer's hello; `None` if the peer does not speak rsockets.
    pub said: Option<Hello>,
}

/// An identifier. Calls on it are made one at a time.
#[derive(Debug)]
pub struct Identifier {
    id: *mut Id,
    channel: Arc<Channel>,
    turn: Mutex<()>,
}

// SAFETY: identifiers may be used by any thread, one at a time; `turn` sees to it.
unsafe impl Send for Identifier {}
// SAFETY: as above.
unsafe impl Sync for Identifier {}

impl Identifier {
    pub fn new() -> Result<Arc<Self>, Errno> {
        let id = Id::create(ptr::null_mut(), ptr::null_mut(), RDMA_PS_TCP, crate::abi::IBV_QPT_RC)?;
        // SAFETY: it was just made.
        unsafe {
            (*id).state(|state| state.is_socket = true);
            Self::of(id)
        }
    }

    /// Wraps an identifier.
    ///
    /// # Safety
    /// Nobody else may have the identifier.
    unsafe fn of(id: *mut Id) -> Result<Arc<Self>, Errno> {
        // SAFETY: the caller's promise.
        let channel = unsafe { &*id }.channel()?;
        Ok(Arc::new(Self { id, channel, turn: Mutex::new(()) }))
    }

    /// Returns the identifier as the library's other modules use it.
    pub const fn id(&self) -> &Id {
        // SAFETY: it is destroyed by `drop`.
        unsafe { &*self.id }
    }

    /// Returns the descriptor of the identifier's events. Its number is that of the socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Returns the number of the socket.
    pub fn number(&self) -> RawFd {
        self.fd().as_raw_fd()
    }

    /// Makes the descriptor non-blocking: from now on, no call waits for events.
    fn wait_no_more(&self) -> Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(self.fd())? | OFlags::NONBLOCK;
        Ok(rustix::fs::fcntl_setfl(self.fd(), flags)?)
    }

    pub fn set(&self, option: CmOption) -> Result<(), Errno> {
        let _turn = lock(&self.turn);
        options::set(self.id(), option)
    }

    pub fn bind(&self, to: SocketAddr) -> Result<(), Errno> {
        let _turn = lock(&self.turn);
        resolving::bind(self.id(), to)
    }

    pub fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        let _turn = lock(&self.turn);
        self.wait_no_more()?;
        connecting::listen(self.id(), backlog)
    }

    /// Finds the device and the route to an address. The device answers at once.
    pub fn resolve(&self, to: SocketAddr) -> Result<(), Errno> {
        let _turn = lock(&self.turn);
        resolving::resolve(self.id(), None, to)?;
        resolving::route(self.id())?;
        self.wait_no_more()
    }

    /// Asks the peer for a connection. Returns its answer if that has already come.
    pub fn connect(&self, hello: Hello) -> Result<Option<Told>, Errno> {
        let private = hello.to_bytes();
        let _turn = lock(&self.turn);
        // SAFETY: the private data is readable.
        self.told(unsafe { connecting::connect(self.id(), Some(&parameters(&private))) })
    }

    /// Accepts a connection. Returns the peer's answer if that has already come.
    pub fn accept(&self, hello: Hello) -> Result<Option<Told>, Errno> {
        let private = hello.to_bytes();
        let _turn = lock(&self.turn);
        self.wait_no_more()?;
        // SAFETY: the private data is readable.
        self.told(unsafe { connecting::accept(self.id(), Some(&parameters(&private))) })
    }

    /// Takes the next event; returns `None` if there is none now.
    pub fn next(&self) -> Result<Option<Told>, Errno> {
        let _turn = lock(&self.turn);
        self.told(complete(self.id()))
    }

    /// Returns the event that completed a call; `None` if it has not come yet.
    fn told(&self, result: Result<(), Errno>) -> Result<Option<Told>, Errno> {
        match result {
            Err(Errno(libc::EAGAIN)) => Ok(None),
            // The device is gone.
            Err(Errno(libc::ENODEV)) => Ok(Some(Told::Disconnected)),
            Err(error) => Err(error),
            Ok(()) => Ok(Some(match self.event() {
                kind::ESTABLISHED => Told::Established(self.said()),
                kind::DISCONNECTED => Told::Disconnected,
                _ => Told::Other,
            })),
        }
    }

    /// Takes the next request of a listener; returns `None` if there is none now.
    pub fn request(&self) -> Result<Option<Asked>, Errno> {
        let _turn = lock(&self.turn);
        let id = match endpoint::request(self.id()) {
            Err(Errno(libc::EAGAIN)) => return Ok(None),
            id => id?,
        };
        // SAFETY: it was just made for the request.
        let request = unsafe { Self::of(id.cast()) }?;
        let said = request.said();
        Ok(Some(Asked { request, said }))
    }

    /// Notes which devices are gone. Afterwards the descriptor is readable only if there is an event.
    pub fn settle(&self) {
        let _turn = lock(&self.turn);
        events::settle(&self.channel);
    }

    fn event(&self) -> u32 {
        // SAFETY: it is acknowledged when the next one is taken.
        self.id().visible(|public| unsafe { public.event.as_ref() }.map_or(u32::MAX, |event| event.event))
    }

    /// Returns the hello in the private data of the last event.
    fn said(&self) -> Option<Hello> {
        // SAFETY: as above; events of connections have this part, with as much private data.
        self.id().visible(|public| unsafe {
            let connection = public.event.as_ref()?.param.conn;
            let len = usize::from(connection.private_data_len);
            let data = connection.private_data.cast::<u8>();
            (!data.is_null()).then(|| Hello::from_bytes(std::slice::from_raw_parts(data, len)))?
        })
    }

    /// Returns the socket's own address and the peer's.
    pub fn addresses(&self) -> (sockaddr_storage, sockaddr_storage) {
        let _turn = lock(&self.turn);
        self.id().visible(|public| (public.route.addr.src_addr, public.route.addr.dst_addr))
    }

    /// Returns the largest number of the stream's bytes in a packet.
    pub fn mtu(&self) -> c_int {
        let _turn = lock(&self.turn);
        self.id().state(|state| if state.mtu == 0 { 1024 } else { 128 << state.mtu.min(5) })
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { Id::destroy(self.id) };
    }
}

/// Returns parameters of a connection without READs, whose receiver may be late.
const fn parameters(private: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

pub fn unknown(family: c_int) -> sockaddr_storage {
    let mut none = address::nothing();
    none.ss_family = family as libc::sa_family_t;
    none
}
