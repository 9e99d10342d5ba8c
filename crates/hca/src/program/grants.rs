//! Processes that were given memory of a device's applications, and may still have it.
//!
//! Neither closing a device nor withdrawing trust takes back what a process has mapped or opened: it has the memory
//! until it ends or releases it. The device can't see a release, so a process counts as a holder until one of both
//! processes ends.

use crate::base::budget::{DeviceBudget, Kind, Reservation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Most processes of a device that give or are given memory.
const PROCESSES: u32 = 1024;
/// Most grants of a device. All of them are recorded, so beyond this no memory is given.
const GRANTS: usize = 4096;

/// The memory that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GrantedMemory {
    /// Queues and tables of a queue pair.
    Queues,
    /// Queues, and regions in files.
    Regions,
    /// All of the process's memory.
    Everything,
}

impl GrantedMemory {
    /// Returns the name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::Regions => "regions",
            Self::Everything => "everything",
        }
    }
}

/// A process that may have memory of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderDescription {
    /// The process number, in the daemon's namespace.
    pub pid: i32,
    /// The guest to which it belongs.
    pub guest: String,
    /// The process number of the process whose memory it has.
    pub of: i32,
    /// The part of that memory.
    pub given: GrantedMemory,
    /// Whether both guests still trust each other.
    pub is_trusted: bool,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub pid: i32,
    pub guest: String,
    end: End,
    _reservation: Reservation,
}

/// How the device learns that the process has ended.
#[derive(Debug)]
enum End {
    /// It does not.
    Unknown,
    /// This descriptor is readable then.
    Descriptor(OwnedFd),
    /// This is gone with the connection of the process, which is in a virtual machine.
    Connection(Weak<()>),
}

impl Process {
    fn new(pid: i32, life: Option<Weak<()>>, guest: String, budget: &Arc<DeviceBudget>) -> Option<Self> {
        let held = budget.take(Kind::Process, 0, PROCESSES).ok()?;
        let descriptor = || pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok();
        let end = match life {
            Some(life) => End::Connection(life),
            None => descriptor().map_or(End::Unknown, End::Descriptor),
        };
        Some(Self { pid, guest, end, _reservation: held })
    }

    /// Is true if the process still exists, or if the daemon can't know.
    pub fn is_there(&self) -> bool {
        let end = match &self.end {
            End::Unknown => return true,
            End::Connection(life) => return life.strong_count() > 0,
            End::Descriptor(end) => end,
        };
        let mut wanted = [PollFd::new(end, PollFlags::IN)];
        poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

#[derive(Debug)]
struct MemoryGrant {
    to: Arc<Process>,
    of: Arc<Process>,
    given: GrantedMemory,
    /// The trust in which it was given.
    trust: String,
}

/// The memory that a device's applications gave, and the processes that gave it or were given it.
#[derive(Debug, Default)]
pub(crate) struct MemoryGrants {
    grants: Mutex<Vec<MemoryGrant>>,
    processes: Mutex<Vec<Weak<Process>>>,
}

impl MemoryGrants {
    /// Returns the process with this number. All its connections share it. The number of a process in a virtual
    /// machine is only its own claim, so there each connection has a process of its own, and `life` exists as long
    /// as the connection. `None` if there are too many.
    pub fn process(
        &self,
        pid: i32,
        life: Option<Weak<()>>,
        guest: &str,
        budget: &Arc<DeviceBudget>,
    ) -> Option<Arc<Process>> {
        let mut all = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|process| process.strong_count() > 0);
        // While the process exists, no other one has its number.
        let same = |process: &Arc<Process>| {
            process.pid == pid && matches!(process.end, End::Descriptor(_)) && process.is_there()
        };
        if life.is_none()
            && let Some(process) = all.iter().filter_map(Weak::upgrade).find(same)
        {
            return Some(process);
        }
        let process = Arc::new(Process::new(pid, life, guest.to_owned(), budget)?);
        all.push(Arc::downgrade(&process));
        Some(process)
    }

    /// Records that one process gets memory of another. Returns false if there is no room for the record: then the
    /// process must not get the memory.
    pub fn note(&self, to: &Arc<Process>, of: &Arc<Process>, given: GrantedMemory, trust: &str) -> bool {
        let mut all = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |grant: &&mut MemoryGrant| {
            Arc::ptr_eq(&grant.to, to) && Arc::ptr_eq(&grant.of, of) && grant.trust == trust
        };
        if let Some(grant) = all.iter_mut().find(same) {
            grant.given = grant.given.max(given);
            return true;
        }
        all.retain(|grant| grant.to.is_there() && grant.of.is_there());
        if all.len() >= GRANTS {
            return false;
        }
        all.push(MemoryGrant { to: to.clone(), of: of.clone(), given, trust: trust.to_owned() });
        true
    }

    /// Describes the processes that may still have memory. `trusts` tells whether a guest has a trust.
    pub fn describe(&self, trusts: impl Fn(&str, &str) -> bool) -> Vec<HolderDescription> {
        let mut all = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|grant| grant.to.is_there() && grant.of.is_there());
        let describe = |grant: &MemoryGrant| HolderDescription {
            pid: grant.to.pid,
            guest: grant.to.guest.clone(),
            of: grant.of.pid,
            given: grant.given,
            is_trusted: trusts(&grant.to.guest, &grant.trust),
        };
        all.iter().map(describe).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::base::budget::HostBudget;
    use std::process::{Command, Stdio};

    #[test]
    fn who_was_given_memory_has_it_until_it_ends() {
        let budget = Arc::new(DeviceBudget::new(Arc::new(HostBudget::new(100, 100)), 0));
        let grants = MemoryGrants::default();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let [pid, own] = [child.id(), std::process::id()].map(|pid| pid as i32);
        let process = |pid| grants.process(pid, None, "vm1", &budget).unwrap();
        let (to, of) = (process(pid), process(own));
        // It counts once, however often it connects.
        assert!(Arc::ptr_eq(&to, &process(pid)));
        assert!(
            grants.note(&to, &of, GrantedMemory::Queues, "job")
                && grants.note(&to, &of, GrantedMemory::Everything, "job")
        );
        assert!(grants.note(&to, &of, GrantedMemory::Regions, "job"));
        drop((to, of));
        let given = |trusted| grants.describe(|guest, trust| trusted && (guest, trust) == ("vm1", "job"));
        let wanted = |is_trusted| {
            vec![HolderDescription {
                pid,
                guest: "vm1".into(),
                of: own,
                given: GrantedMemory::Everything,
                is_trusted,
            }]
        };
        assert_eq!((given(true), given(false)), (wanted(true), wanted(false)));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(given(true), []);
        assert_eq!(budget.count(Kind::Process), 0);
    }
}
