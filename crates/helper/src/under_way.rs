//! The paths on which requests are at work. The owner of a file system (FUSE, NFS) determines how long an
//! access to a path takes, and each access occupies a thread. So paths that do not answer may occupy a few
//! threads of the helper, never all of them.

use crate::request::Refusal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most requests for one path: one that waits, and one that removes the file.
const AT_A_PATH: usize = 2;
const IN_A_DIRECTORY: usize = 32;
/// Most requests for all paths outside the run-dir: half of the requests that the helper handles at a time.
const OUTSIDE: usize = 128;

/// A set of paths with a limit of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Path(PathBuf),
    Directory(PathBuf),
    Outside,
}

impl Part {
    const fn most(&self) -> usize {
        match self {
            Self::Path(_) => AT_A_PATH,
            Self::Directory(_) => IN_A_DIRECTORY,
            Self::Outside => OUTSIDE,
        }
    }
}

/// Requests in progress, by part.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<BTreeMap<Part, usize>>);

impl UnderWay {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Part, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request for a path, until the returned value is dropped.
    ///
    /// # Errors
    /// If the limit of requests is reached there.
    pub(crate) fn begin(&self, path: &Path, is_in_run_dir: bool) -> Result<Work<'_>, Refusal> {
        let directory = path.parent().unwrap_or(path).to_owned();
        let mut parts = vec![Part::Path(path.to_owned()), Part::Directory(directory)];
        if !is_in_run_dir {
            parts.push(Part::Outside);
        }
        let mut counts = self.lock();
        if parts.iter().any(|part| counts.get(part).is_some_and(|count| *count >= part.most())) {
            let path = path.display();
            let text = format!("{path}: requests from before wait there: its file system may not answer");
            return Err(Refusal { is_of_place: true, ..Refusal::new(text) });
        }
        for part in &parts {
            *counts.entry(part.clone()).or_default() += 1;
        }
        drop(counts);
        Ok(Work { of: self, parts })
    }
}

/// A request that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    of: &'a UnderWay,
    parts: Vec<Part>,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let mut counts = self.of.lock();
        for part in &self.parts {
            if let Some(count) = counts.get_mut(part) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(part);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Starts work on these paths until one is refused. Returns the work that was not.
    fn begun<'a>(
        under_way: &'a UnderWay,
        paths: impl Iterator<Item = String>,
        is_in_run_dir: bool,
    ) -> Vec<Work<'a>> {
        paths.map_while(|path| under_way.begin(Path::new(&path), is_in_run_dir).ok()).collect()
    }

    #[test]
    fn a_path_a_directory_and_all_that_is_outside_have_their_limits() {
        let under_way = UnderWay::default();
        let one = begun(&under_way, std::iter::repeat("/a/vm".to_owned()), false);
        assert_eq!(one.len(), AT_A_PATH);
        let others = begun(&under_way, (0..).map(|number| format!("/a/{number}")), false);
        assert_eq!(one.len() + others.len(), IN_A_DIRECTORY);
        let elsewhere = begun(&under_way, (0..).map(|number| format!("/{number}/vm")), false);
        assert_eq!(one.len() + others.len() + elsewhere.len(), OUTSIDE);
        // The run-dir still works.
        let inside = begun(&under_way, (0..).map(|number| format!("/run/viaduct/{number}")), true);
        assert_eq!(inside.len(), IN_A_DIRECTORY);
        drop((one, others, elsewhere, inside));
        assert!(under_way.lock().is_empty());
    }
}
