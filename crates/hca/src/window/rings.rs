//! Pages of a common window for sockets: programs of two machines move a connection to them. The service of sockets
//! says when both have let go of them.

use super::{Account, Pages, Window, lock};
use crate::window::notes::ProgramNote;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use uverbs::{Memory, Uuid};

/// The share of a program of a virtual machine in the window of its trust. Most calls may wait for whoever may write the
/// window's file, and are for the window's thread ([`Self::later`]).
#[derive(Debug)]
pub struct RingMemory {
    window: Arc<Window>,
    note: ProgramNote,
    name: String,
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
    pub(crate) fn new(window: Arc<Window>, note: ProgramNote, name: String) -> Self {
        Self { window, note, name, account: Mutex::default() }
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
            *account = self.window.account(self.note.clone(), Some(self.name.clone())).ok();
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
