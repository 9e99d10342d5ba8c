//! Sockets by their descriptors.

use super::socket::Socket;
use crate::error::Errno;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

static SOCKETS: RwLock<BTreeMap<RawFd, Arc<Socket>>> = RwLock::new(BTreeMap::new());

/// Puts a socket in; returns its descriptor.
pub fn add(socket: Socket) -> RawFd {
    let number = socket.number();
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(socket));
    number
}

/// The socket with a descriptor. It stays while it is used, even if it is closed meanwhile.
pub fn find(number: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

/// The same; `EBADF` if there is none.
pub fn get(number: RawFd) -> Result<Arc<Socket>, Errno> {
    find(number).ok_or(Errno(libc::EBADF))
}

/// Takes a socket out.
pub fn remove(number: RawFd) -> Result<Arc<Socket>, Errno> {
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&number).ok_or(Errno(libc::EBADF))
}
