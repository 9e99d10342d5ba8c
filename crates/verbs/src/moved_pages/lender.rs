//! Lenders of window pages to the program: a device, or several devices that have the window in common. The pages come
//! through any of the program's connections, so a page may have regions of all these connections, which may end in any
//! order.

use super::{Table, table};
use crate::control::Control;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use uverbs::{Part, Request, Uuid};

/// The program's connections that have the same pages of a window.
#[derive(Debug)]
pub struct Lender {
    /// The daemon's number for the program; 0 if the program has only one connection.
    program: u64,
    /// The window's inode.
    pub(super) window: u64,
    open: Mutex<Vec<Arc<Control>>>,
}

impl Lender {
    fn open(&self) -> MutexGuard<'_, Vec<Arc<Control>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is true if the lender has no connection but this one.
    pub(super) fn has_only(&self, link: &Arc<Control>) -> bool {
        self.open().iter().all(|other| Arc::ptr_eq(other, link))
    }

    /// Removes a connection that ends.
    pub(super) fn leave(&self, link: &Arc<Control>) {
        self.open().retain(|other| !Arc::ptr_eq(other, link));
    }

    /// Gives a part of the window back. Returns false if no connection works any more.
    pub(super) fn give_back(&self, part: Part) -> bool {
        let open = self.open().clone();
        open.iter().any(|link| link.exchange(&Request::FreePages { part }, &[]).is_ok())
    }
}

/// Returns a secret that the program tells only to devices, which thereby recognise the program's connections.
pub fn secret() -> Uuid {
    // A child of a fork counts as a different program.
    super::fork::prepare_for_it();
    let mut table = table();
    if table.secret == Uuid::default() {
        // Without a secret, each connection has its own pages.
        let _ = rustix::rand::getrandom(&mut table.secret.0, rustix::rand::GetRandomFlags::empty());
    }
    table.secret
}

/// Adds a new connection of the program, which the daemon knows by this number, to the lenders of these windows.
/// Returns the lenders.
pub fn join(program: u64, windows: &[u64], link: &Arc<Control>) -> Vec<Arc<Lender>> {
    let mut table = table();
    windows.iter().map(|window| table.join(program, *window, link)).collect()
}

impl Table {
    fn join(&mut self, program: u64, window: u64, link: &Arc<Control>) -> Arc<Lender> {
        self.lenders.retain(|lender| lender.strong_count() > 0);
        let is_it =
            |lender: &Arc<Lender>| program != 0 && (lender.program, lender.window) == (program, window);
        let known = self.lenders.iter().filter_map(Weak::upgrade).find(is_it);
        let lender = known.unwrap_or_else(|| Arc::new(Lender { program, window, open: Mutex::default() }));
        if lender.open().is_empty() {
            self.lenders.push(Arc::downgrade(&lender));
        }
        lender.open().push(link.clone());
        lender
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_another_secret() {
        let ours = secret();
        assert!(ours == secret() && ours != Uuid::default());
        // SAFETY: the child compares numbers, and ends; the parent waits for it.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(if [ours, Uuid::default()].contains(&secret()) { 8 } else { 7 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            libc::WEXITSTATUS(status)
        };
        assert_eq!((status, secret()), (7, ours));
    }
}
