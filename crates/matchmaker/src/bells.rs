//! Bells: event descriptors of which whoever wakes another one takes, so that nobody waits for the other and nothing is
//! used up ([`sockring::Message::Bell`]).

use crate::carriage::Desk;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// More than anybody takes from a bell, and few enough that there is room for more.
const TAKES: u64 = 1 << 62;
/// The position that is the descriptor's own.
const HERE: u64 = u64::MAX;

/// Makes a bell.
///
/// # Errors
/// No descriptor is left.
pub fn bell() -> rustix::io::Result<OwnedFd> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE)?;
    rustix::io::write(&bell, &TAKES.to_ne_bytes())?;
    Ok(bell)
}

/// Wakes who waits for a bell. It does not wait, whatever the other side does to the descriptor.
pub fn ring(bell: &OwnedFd) {
    _ = preadv2(bell, &mut [IoSliceMut::new(&mut [0; 8])], HERE, ReadWriteFlags::NOWAIT);
}

/// A bell by which a program tells that it has something to carry.
pub struct Heard {
    bell: OwnedFd,
    pub desk: Arc<Desk>,
}

impl Heard {
    pub fn new(desk: &Arc<Desk>) -> rustix::io::Result<Self> {
        let bell = bell()?;
        desk.listen(bell.as_fd())?;
        Ok(Self { bell, desk: desk.clone() })
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        // The program has it too, so that it would stay.
        self.desk.forget(self.bell.as_fd());
    }
}
