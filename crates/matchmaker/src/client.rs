//! A program that offers connections.

use crate::agent::Frame;
use crate::bells::Heard;
use crate::closing::Who;
use crate::offer::{Key, Offered, Waiting, option};
use crate::pairs::Party;
use crate::receive::receive;
use crate::window::Window;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use seqpacket::Connection;
use sockets::Untrusted;
use sockring::Message;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use uverbs::{SocketError, Stream};

/// Programs on the host. A guest has at most half of what others leave.
pub const PROGRAMS: usize = 8192;
/// Offers without another end, ends of pairs, and slots of files instead of those there, on the host. A guest has at most
/// half of what others leave. Each pair without a file takes a mapping of the daemon, of which it has 65,530
/// (`vm.max_map_count`).
pub const CONNECTIONS: usize = 32_768;

/// Shares of each user of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Programs at a time.
    pub programs: usize,
    /// Offers without another end, pairs, and slots of files instead of those there, at a time.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { programs: 1024, connections: 16_384 }
    }
}

/// How a program's messages come.
pub enum Line {
    /// It is on this kernel.
    Here(Connection),
    /// It is in a virtual machine, whose agent passes them on.
    Agent {
        stream: Stream,
        window: Arc<dyn Window>,
        /// Whether the agent has told of the program's end.
        has_ended: bool,
    },
}

/// A message of a program.
pub struct Said {
    pub message: Option<Message>,
    pub offered: Option<Offered>,
    /// Descriptors that came along, to be closed.
    pub descriptors: Vec<OwnedFd>,
}

pub struct Client {
    pub socket: Arc<Untrusted>,
    pub line: Line,
    pub guest: String,
    pub user: u32,
    pub pid: i32,
    /// Offers that wait for the other end, by the program's names.
    pub offers: BTreeMap<u64, Key>,
    /// Requests that it may make until the next turn of the clock.
    pub credit: u32,
    /// The window that it has for pairs with programs of virtual machines, if it is on this kernel.
    pub lent: Option<Lent>,
    /// Whether its connections can have memory in a file for many ([`sockring::Doors`]).
    pub has_doors: bool,
    /// Whether its connections can have memory that goes to another host ([`Message::Carried`]).
    pub may_carry: bool,
    /// The bell by which it tells what carries its connections.
    pub heard: Option<Arc<Heard>>,
}

/// A window that a program of this kernel can map.
pub struct Lent {
    pub window: Arc<dyn Window>,
    /// The process, until whose end the program may use what it has mapped.
    pub process: OwnedFd,
}

/// Returns half of what others leave of a number.
pub const fn half_of(all: usize, others: usize) -> usize {
    all.saturating_sub(others) / 2
}

/// Bytes of messages that a program may leave unread and get descriptors: those in flight count against the daemon's
/// user.
const UNREAD: u32 = 64 << 10;

impl Client {
    /// Takes the next message without waiting.
    ///
    /// # Errors
    /// The kernel's: `EAGAIN` if there is none.
    pub fn hear(&mut self) -> Result<Said, Errno> {
        match &mut self.line {
            Line::Here(_) => {
                let (message, descriptors) = receive(&*self.socket)?;
                let offered = descriptors.first().and_then(Offered::read);
                Ok(Said { message, offered, descriptors })
            }
            Line::Agent { stream, has_ended, .. } => {
                let bytes = stream.receive_now().map_err(|_: SocketError| Errno::CONNRESET)?;
                let (message, offered) = match Frame::read(&bytes.ok_or(Errno::AGAIN)?) {
                    Some(Frame::Said(message, offered)) => (Some(message), offered),
                    Some(Frame::End) => {
                        *has_ended = true;
                        (None, None)
                    }
                    None => (None, None),
                };
                Ok(Said { message, offered, descriptors: Vec::new() })
            }
        }
    }

    /// Returns the user whose program it is.
    pub fn who(&self) -> Who {
        (self.guest.clone(), self.user)
    }

    /// Sends a message. Returns whether it could be sent.
    pub fn tell(&mut self, message: Message, descriptors: &[BorrowedFd<'_>]) -> bool {
        match &mut self.line {
            Line::Here(connection) => connection.send_bytes(&message.bytes(), descriptors).is_ok(),
            Line::Agent { stream, .. } => stream.send(&message.bytes()).is_ok(),
        }
    }

    /// Returns what the thread waits for.
    pub fn wanted(&self) -> PollFlags {
        match &self.line {
            Line::Agent { stream, .. } if stream.has_unsent() => PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// Returns the window that its memory is of.
    pub const fn window(&self) -> Option<&Arc<dyn Window>> {
        match &self.line {
            Line::Here(_) => None,
            Line::Agent { window, .. } => Some(window),
        }
    }

    /// Lends a program of this kernel the window of a virtual machine. `None`: it can't have it.
    pub fn borrow(&mut self, of: &Arc<dyn Window>) -> Option<Arc<dyn Window>> {
        if let Some(lent) = self.lent.as_ref().filter(|lent| lent.window.id() == of.id()) {
            return Some(lent.window.clone());
        }
        let process = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        let window = of.lend(&self.guest, self.user, self.pid)?;
        self.lent = Some(Lent { window: window.clone(), process });
        Some(window)
    }

    /// Returns whether the program has no memory of pairs any more once this ends.
    pub const fn ends_in_order(&self) -> bool {
        !matches!(&self.line, Line::Agent { has_ended: false, .. })
    }

    /// Returns whether the program reads its messages, so that it may get one more descriptor.
    pub fn reads(&self) -> bool {
        // An agent gets no descriptors from us.
        if matches!(&self.line, Line::Agent { .. }) {
            return true;
        }
        // The sandbox allows to ask for `SK_MEMINFO_*`, unlike `SIOCOUTQ`.
        const SO_MEMINFO: i32 = 55;
        const WMEM_ALLOC: usize = 2;
        option::<[u32; 9]>(&*self.socket, libc::SOL_SOCKET, SO_MEMINFO)
            .is_some_and(|memory| memory[WMEM_ALLOC] < UNREAD)
    }

    /// Returns an end of a pair that this program offered.
    pub fn party(&self, end: Waiting) -> Party {
        let programs = vec![(end.program, end.token)];
        Party { guest: self.guest.clone(), user: self.user, pid: self.pid, programs }
    }
}
