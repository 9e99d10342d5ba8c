//! A peer's memory that is in no file: its process gives us access to all of it, or we do without.

use crate::link::{Link, only};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{OwnedFd, RawFd};
use uverbs::{Given, Reply, Request, TOKEN};

/// The first number of descriptors that come between the program's calls.
const APART: RawFd = 512;

/// Access to the peer's memory that is in no file.
pub enum Far {
    /// Nobody asked for access.
    Unknown,
    /// A message needs access.
    Wanted,
    /// The peer or the kernel refused.
    Refused,
    There {
        /// The peer's `/proc/self/mem`.
        memory: OwnedFd,
        /// The peer's process, if the kernel lets us copy from and to it directly.
        process: Option<Process>,
    },
}

/// A process, by its number. The kernel may give the number to another process once this one has ended.
pub struct Process {
    pid: libc::pid_t,
    /// Becomes readable when the process ends.
    end: OwnedFd,
}

impl Process {
    /// Returns the process's number, unless the process has ended.
    #[inline]
    pub fn number(&self) -> Option<libc::pid_t> {
        let mut wanted = [PollFd::new(&self.end, PollFlags::IN)];
        let is_there = poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0);
        is_there.then_some(self.pid)
    }
}

impl Far {
    #[cold]
    pub fn open(&mut self, link: &Link, qpn: u32) -> bool {
        *self = match link.ask_for(&Request::Memory { qpn }) {
            Ok((Reply::Memory { pid, token }, given)) => {
                let there =
                    |memory| Self::There { process: process(&memory, pid, token), memory: apart(memory) };
                only(given).ok().and_then(Given::descriptor).map_or(Self::Refused, there)
            }
            _ => Self::Refused,
        };
        matches!(self, Self::There { .. })
    }
}

/// Gives a descriptor a number that the program hardly uses.
///
/// Some programs close a number twice, as iperf3's server does. If a descriptor that comes with the sending of a
/// message got that number in between, the second call would close it.
pub fn apart(fd: OwnedFd) -> OwnedFd {
    // The program's limit may be lower.
    rustix::io::fcntl_dupfd_cloexec(&fd, APART).unwrap_or(fd)
}

/// Returns the peer's process, if it is the process whose memory we have: both have the same token at this address.
fn process(memory: &OwnedFd, pid: libc::pid_t, token: u64) -> Option<Process> {
    // Opened before the token is read: then the token comes from the process whose end is awaited.
    let end = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let (mut one, mut other) = ([0_u8; TOKEN], [0_u8; TOKEN]);
    let ours = libc::iovec { iov_base: other.as_mut_ptr().cast(), iov_len: TOKEN };
    let theirs = libc::iovec { iov_base: token as *mut _, iov_len: TOKEN };
    let read = rustix::io::pread(memory, &mut one, token).ok()?;
    // SAFETY: into `other`, which is as long as that.
    let copied = unsafe { libc::process_vm_readv(pid, &ours, 1, &theirs, 1, 0) };
    let same = read == TOKEN && copied == TOKEN as isize && one == other && one != [0; TOKEN];
    let process = Process { pid, end: apart(end) };
    (same && process.number().is_some()).then_some(process)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_descriptor_apart_is_the_same_with_a_high_number() {
        let (one, other) = rustix::pipe::pipe().unwrap();
        let (low, other) = (other.as_raw_fd(), apart(other));
        assert!(low < APART && other.as_raw_fd() >= APART);
        assert_eq!(rustix::io::write(&other, b"same").unwrap(), 4);
        drop(other);
        let mut read = [0; 8];
        assert_eq!(rustix::io::read(&one, &mut read).unwrap(), 4);
        assert_eq!(rustix::io::read(&one, &mut read).unwrap(), 0, "the low number is closed");
    }
}
