//! Sockets by their descriptors.

use super::socket::Socket;
use crate::device::lock;
use crate::error::Errno;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Closed sockets whose peers have not got everything, and the time until which they stay at most.
static ENDING: Mutex<Vec<(Arc<Socket>, Instant)>> = Mutex::new(Vec::new());
/// Longest time for which a closed socket stays for a slow peer, and for which a program's exit waits for the peer.
const LINGERING: Duration = Duration::from_secs(10);

static SOCKETS: RwLock<BTreeMap<RawFd, Arc<Socket>>> = RwLock::new(BTreeMap::new());

/// Adds a socket; returns its descriptor.
pub fn add(socket: Socket) -> RawFd {
    let number = socket.number();
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(socket));
    number
}

/// Returns the socket with a descriptor. It stays while it is used, even if it is closed meanwhile.
pub fn find(number: RawFd) -> Option<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

/// Returns the socket with a descriptor; `EBADF` if there is none.
pub fn get(number: RawFd) -> Result<Arc<Socket>, Errno> {
    find(number).ok_or(Errno(libc::EBADF))
}

/// Ends a socket. If the peer is slow, the socket stays a while, so that its data arrives.
pub fn close(number: RawFd) -> Result<(), Errno> {
    let removed = SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    let socket = removed.ok_or(Errno(libc::EBADF))?;
    sweep();
    if !socket.close() {
        lock(&ENDING).push((socket, Instant::now() + LINGERING));
    }
    Ok(())
}

/// Ends all sockets when the program exits, as if it had closed them, and gives peers time to receive their data.
pub fn end_all() {
    let mut sockets: Vec<_> =
        SOCKETS.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    sockets.extend(lock(&ENDING).iter().map(|(socket, _)| socket.clone()));
    let told = Instant::now();
    for until in [told, told + LINGERING] {
        let left = || until.saturating_duration_since(Instant::now());
        sockets.iter().for_each(|socket| _ = socket.has_ended(left()));
    }
}

/// Drops closed sockets whose peers have everything, or took too long.
pub fn sweep() {
    let mut ending = lock(&ENDING);
    let now = Instant::now();
    ending.retain(|(socket, until)| *until > now && !socket.has_ended(Duration::ZERO));
}
