//! Processes of this host, recorded so that a later daemon recognises them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::OwnedFd;

/// Nanoseconds of the unit in which the kernel says when a process started (`USER_HZ`).
const TICK: u64 = 10_000_000;

/// A process of this host at some time, since the kernel reuses process numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostProcess {
    /// The process number; 0: it is not known.
    pub pid: i32,
    /// Nanoseconds since the machine started.
    pub at: u64,
}

impl HostProcess {
    /// Returns the process that has this number now.
    pub fn now(pid: i32) -> Self {
        let now = clock_gettime(ClockId::Boottime);
        Self { pid: pid.max(0), at: now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned() }
    }

    /// Is true if the process with this number started later, which only `/proc` tells.
    pub fn is_another(self) -> bool {
        let started = uverbs::started(&self.pid.to_string());
        started.is_some_and(|ticks| ticks.saturating_mul(TICK) > self.at)
    }

    /// Is true if it has ended, false if nobody knows.
    pub fn has_ended(self) -> bool {
        End::of(self.pid).is_over() || self.is_another()
    }
}

/// How the daemon learns that a process has ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It does not.
    Unknown,
    /// This descriptor is readable then.
    Descriptor(OwnedFd),
    Ended,
}

impl End {
    /// Opens the end of the process that has this number now.
    pub fn of(pid: i32) -> Self {
        match Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(descriptor)) => Self::Descriptor(descriptor),
            // Nobody has the number, or a thread.
            Some(Err(Errno::SRCH | Errno::INVAL | Errno::NOENT)) => Self::Ended,
            _ => Self::Unknown,
        }
    }

    /// Is true if it has ended, false if nobody knows.
    pub fn is_over(&mut self) -> bool {
        let is_over = match self {
            Self::Unknown => false,
            Self::Ended => true,
            Self::Descriptor(end) => {
                let mut wanted = [PollFd::new(end, PollFlags::IN)];
                poll(&mut wanted, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
        };
        if is_over {
            *self = Self::Ended;
        }
        is_over
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_end_of_a_process_is_known_by_its_number_and_time() {
        let before = HostProcess::now(0);
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = HostProcess::now(child.id().cast_signed());
        assert!(!process.is_another());
        assert!(HostProcess { at: before.at.saturating_sub(10 * TICK), ..process }.is_another());
        let mut end = End::of(process.pid);
        assert!(!end.is_over());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(end.is_over() && End::of(process.pid).is_over() && !End::of(0).is_over());
        assert!(!process.is_another(), "nobody has the number");
    }
}
