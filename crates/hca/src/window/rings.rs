//! Pages of a common window for sockets: programs of two machines, or of a machine and a container, move a connection
//! to them. The service of sockets says when both have let go of them.

use super::{Account, Pages, Window, lock};
use crate::window::notes::ProgramNote;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use uverbs::window::DATA;
use uverbs::{Memory, Uuid};

/// Whoever knows the users of the host's devices.
pub(crate) trait Users: Send + Sync + std::fmt::Debug {
    /// Describes a program of a container whose user can map a window by a verbs device of the container.
    fn note(&self, window: &Arc<Window>, guest: &str, user: u32, pid: i32) -> Option<ProgramNote>;
}

/// The share of a program in the window of its trust. Most calls may wait for whoever may write the window's file, and
/// are for the window's thread ([`Self::later`]).
#[derive(Debug)]
pub struct RingMemory {
    window: Arc<Window>,
    users: Weak<dyn Users>,
    note: ProgramNote,
    /// The name of a program in a virtual machine.
    name: Option<String>,
    account: Mutex<Option<Arc<Account>>>,
}

/// Pages that two programs have for a connection. When they are dropped, nobody gets them before these programs have
/// ended, unless they were freed.
#[derive(Debug)]
pub struct RingPages {
    pages: Arc<Pages>,
    memory: Memory,
    is_free: AtomicBool,
}

impl RingMemory {
    pub(crate) fn new(
        window: Arc<Window>,
        users: Weak<dyn Users>,
        note: ProgramNote,
        name: Option<String>,
    ) -> Self {
        Self { window, users, note, name, account: Mutex::default() }
    }

    /// Returns the share of a program of a container in the same window. `None`: its user can't map the window by a verbs
    /// device of the container.
    #[must_use]
    pub fn lend(&self, guest: &str, user: u32, pid: i32) -> Option<Self> {
        let note = self.users.upgrade()?.note(&self.window, guest, user, pid)?;
        Some(Self::new(self.window.clone(), self.users.clone(), note, None))
    }

    /// Returns the window's file, for a program of this kernel, and where its data begin there.
    #[must_use]
    pub fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.window.file(), DATA)
    }

    /// Identifies the window.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.window.uuid()
    }

    /// Has the window's thread do something. Without a thread it is dropped.
    pub fn later(&self, job: Box<dyn FnOnce() + Send>) {
        self.window.write_later(job);
    }

    fn account(&self) -> Option<Arc<Account>> {
        let mut account = lock(&self.account);
        if account.is_none() {
            *account = self.window.account(self.note.clone(), self.name.clone()).ok();
        }
        account.clone()
    }

    /// Notes that the program is given access to pages of others. Returns whether it may have it.
    #[must_use]
    pub fn share(&self) -> bool {
        self.account().inspect(|account| account.share()).is_some()
    }

    /// Notes that nobody hears of the program any more, though it may go on to use pages.
    pub fn lose(&self) {
        lock(&self.account).iter().for_each(|account| account.lose());
    }

    /// Takes pages of zeros, which count as the program's.
    #[must_use]
    pub fn take(&self, bytes: usize) -> Option<RingPages> {
        let (account, mapping) = (self.account()?, self.window.mapping().ok()?);
        let pages = self.window.take(bytes as u64, false, &mapping, &account).ok()?.pop()?;
        let memory = pages.first(bytes)?;
        memory.clear();
        Some(RingPages { pages, memory, is_free: AtomicBool::new(false) })
    }
}

impl RingPages {
    /// Returns where they are mapped in this process, as long as there is this.
    #[must_use]
    pub fn base(&self) -> Option<NonNull<u8>> {
        self.memory.part(0, self.memory.len())
    }

    /// Returns where they are in the data of the window.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.pages.part().offset
    }

    /// Notes that both programs have let go of them.
    pub fn free(&self) {
        self.is_free.store(true, Ordering::Relaxed);
    }
}

impl Drop for RingPages {
    fn drop(&mut self) {
        if !*self.is_free.get_mut() {
            self.pages.account.await_peers();
            self.pages.leave();
        }
    }
}

#[cfg(test)]
#[path = "rings_tests.rs"]
mod tests;
