//! The socket files that the helper created, by number.

use sockets::ListeningFile;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most files. A daemon has a few for each guest.
const MOST: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Files(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    files: BTreeMap<u64, (PathBuf, Arc<dyn ListeningFile>)>,
}

impl Files {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the file at a path. Returns its number, or `None` if there are too many files.
    pub(crate) fn keep(&self, path: &Path, file: Arc<dyn ListeningFile>) -> Option<u64> {
        let mut state = self.lock();
        if state.files.len() >= MOST {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.files.insert(number, (path.to_owned(), file));
        Some(number)
    }

    pub(crate) fn get(&self, number: u64) -> Option<(PathBuf, Arc<dyn ListeningFile>)> {
        self.lock().files.get(&number).cloned()
    }

    /// Forgets a file. The file is removed once nobody uses it any more.
    pub(crate) fn forget(&self, number: u64) {
        // Drops the file while the table is not locked: the owner of a file system (FUSE) determines how long
        // this takes.
        let file = self.lock().files.remove(&number);
        drop(file);
    }
}
