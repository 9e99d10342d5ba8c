//! Connections of a program with other hosts. Their memory is of the window, like that of other connections. Their bells
//! are the agent's, which passes them on.

use crate::program::Over;
use matchmaker::{bell, ring};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use sockring::BYTES;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use uverbs::AgentWindow;

/// Connections of a program with other hosts: each takes two descriptors.
const MOST: usize = 2048;

/// The window of a program, and its connections with other hosts.
pub struct Carried {
    pub window: AgentWindow,
    /// The program takes from it when it has something to carry.
    pub bell: OwnedFd,
    /// The set of that bell, which tells each time.
    set: OwnedFd,
    /// Bells of the program's connections by its names of them: for anything, and for room.
    bells: HashMap<u64, [OwnedFd; 2]>,
}

impl Carried {
    pub fn new(window: AgentWindow) -> Result<Self, Errno> {
        let (bell, set) = (bell()?, epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let edges = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&set, &bell, epoll::EventData::new_u64(0), edges)?;
        let carried = Self { window, bell, set, bells: HashMap::new() };
        carried.hear();
        Ok(carried)
    }

    /// Returns what becomes readable when the program has something to carry.
    pub fn heard(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Notes that what was told so far is heard.
    pub fn hear(&self) {
        _ = epoll::wait(&self.set, &mut [MaybeUninit::uninit()], Some(&Timespec::default()));
    }

    /// Returns where a connection's memory is in the window's file.
    pub fn place(&self, offset: u64) -> Result<u64, Over> {
        let end = offset.checked_add(BYTES as u64).ok_or(Over::Malformed)?;
        if end > self.window.len { Err(Over::Malformed) } else { Ok(self.window.base + offset) }
    }

    /// Makes bells for a connection. Returns the descriptors that its program gets: the window, the bell of this agent,
    /// and those.
    pub fn add(&mut self, token: u64) -> Result<Vec<BorrowedFd<'_>>, Errno> {
        if self.bells.len() >= MOST {
            return Err(Errno::MFILE);
        }
        let [wake, room] = &*self.bells.entry(token).insert_entry([bell()?, bell()?]).into_mut();
        Ok(vec![self.window.file.as_fd(), self.bell.as_fd(), wake.as_fd(), room.as_fd()])
    }

    pub fn forget(&mut self, token: u64) {
        self.bells.remove(&token);
    }

    /// Wakes the program, also a thread that waits for room if there `is_room`.
    pub fn ring(&self, token: u64, is_room: bool) {
        if let Some(bells) = self.bells.get(&token) {
            bells[..1 + usize::from(is_room)].iter().for_each(ring);
        }
    }
}
