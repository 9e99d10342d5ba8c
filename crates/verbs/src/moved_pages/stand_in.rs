//! Pages of a window that stand for memory of the program which can't move there.
//!
//! What is sent from such memory is copied to these pages when it is posted. All else, what others send to the memory or
//! read from it, is copied by a thread of the program, the copier, when the device asks for it: the device delivers a
//! message only after the copier has stored it. So the program has everything in its own memory, as with any region.

use super::around;
use super::place::{Alias, Place};
use crate::errno::Outcome;
use crate::feed::Feed;
use crate::link::Link;
use crate::mapping::may_use;
use rustix::net::{Shutdown, shutdown};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uverbs::{CopyJob, CopyReport, CopyWork, Extent, Segment, start_thread};

/// Most bytes that the kernel copies at a time.
const AT_ONCE: usize = 1 << 30;

/// The pages that stand for the memory of a region.
#[derive(Debug)]
pub struct StandIn {
    pieces: Vec<(Place, Alias)>,
}

/// Bytes of the program's memory, and the bytes that stand for them.
struct Pair {
    own: usize,
    there: *mut u8,
    len: usize,
}

impl StandIn {
    /// Gets pages of a window for all pages of this memory.
    pub fn new(link: &Link, address: usize, len: usize) -> Outcome<Self> {
        let all = around(address, len).ok_or(libc::EFAULT)?;
        let (mut at, mut pieces) = (all.start, Vec::new());
        for (source, len) in link.sources(all.len()).map_err(|errno| link.noted(errno))? {
            let place = Place::new(at, len, Arc::new(source), 0);
            let alias = place.alias().ok_or(libc::ENOMEM)?;
            pieces.push((place, alias));
            at += len;
        }
        Ok(Self { pieces })
    }

    /// Returns the extents to register with the region.
    pub fn extents(&self) -> Vec<Extent> {
        self.pieces.iter().map(|(place, _)| place.extent(&(0..place.len))).collect()
    }

    /// Returns all pairs of this memory, as far as pages stand for it.
    fn pairs(&self, address: usize, len: usize) -> impl Iterator<Item = Pair> {
        let end = address.saturating_add(len);
        self.pieces.iter().filter_map(move |(place, alias)| {
            let (from, to) = (address.max(place.address), end.min(place.address + place.len));
            let there = alias.start.wrapping_add(from.wrapping_sub(place.address));
            (from < to).then(|| Pair { own: from, there, len: to - from })
        })
    }

    /// Copies from the program's memory, which is about to be sent.
    ///
    /// # Safety
    /// The memory must be readable.
    unsafe fn take_up(&self, address: usize, len: usize) {
        for Pair { own, there, len } in self.pairs(address, len) {
            // SAFETY: the caller's promise; the pages are ours.
            unsafe { std::ptr::copy(own as *const u8, there, len) };
        }
    }

    /// Does a job of the copier. Returns the word before an atomic operation; `None` if there is no such memory.
    fn work(&self, address: usize, work: CopyWork) -> Option<u64> {
        match work {
            CopyWork::Fetch(len) => self.copy(address, usize::try_from(len).ok()?, false),
            CopyWork::Store(len) => self.copy(address, usize::try_from(len).ok()?, true),
            CopyWork::FetchAdd(add) => self.word(address).map(|word| word.fetch_add(add, Ordering::SeqCst)),
            CopyWork::CompareSwap { compare, swap } => self.word(address).map(|word| {
                let order = Ordering::SeqCst;
                word.compare_exchange(compare, swap, order, order).unwrap_or_else(|before| before)
            }),
        }
    }

    /// Copies to or from the program's memory. It may have been unmapped, which only the kernel can find out.
    fn copy(&self, address: usize, len: usize, stores: bool) -> Option<u64> {
        let mut copied = 0;
        for Pair { own, there, len } in self.pairs(address, len) {
            for at in (0..len).step_by(AT_ONCE) {
                let part = AT_ONCE.min(len - at);
                copy_own(own + at, there.wrapping_add(at), part, stores)?;
            }
            copied += len;
        }
        (copied == len).then_some(0)
    }

    /// Returns a word of the program's memory, which others may change meanwhile.
    fn word(&self, address: usize) -> Option<&AtomicU64> {
        let len = size_of::<AtomicU64>();
        let covered: usize = self.pairs(address, len).map(|pair| pair.len).sum();
        let is_there = covered == len && address.is_multiple_of(len) && may_use(address, len, true);
        // SAFETY: aligned memory of the program, which has registered it and must keep it.
        is_there.then(|| unsafe { AtomicU64::from_ptr(address as *mut u64) })
    }
}

/// Copies to or from memory of this process; `None` if it is not there.
fn copy_own(own: usize, there: *mut u8, len: usize, stores: bool) -> Option<()> {
    let local = libc::iovec { iov_base: there.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: own as *mut _, iov_len: len };
    // SAFETY: the kernel checks the program's memory; the pages that stand for it are ours.
    let done = unsafe {
        let copies = if stores { libc::process_vm_writev } else { libc::process_vm_readv };
        copies(libc::getpid(), &local, 1, &remote, 1, 0)
    };
    if done == len.cast_signed() {
        return Some(());
    }
    let why = std::io::Error::last_os_error().raw_os_error();
    if done >= 0 || !matches!(why, Some(libc::EPERM | libc::ENOSYS)) || !may_use(own, len, stores) {
        return None;
    }
    // A sandbox may forbid these calls.
    // SAFETY: the program has the memory, and must keep it while it is registered.
    unsafe {
        if stores {
            std::ptr::copy(there, own as *mut u8, len);
        } else {
            std::ptr::copy(own as *const u8, there, len);
        }
    }
    Some(())
}

/// The stand-ins of a connection's regions, by key, and the copier.
#[derive(Debug, Default)]
pub struct StandIns {
    are_any: AtomicBool,
    regions: Mutex<HashMap<u32, Arc<StandIn>>>,
    copier: Mutex<Option<Copier>>,
}

/// The thread that copies.
#[derive(Debug)]
struct Copier {
    thread: libc::pthread_t,
    /// The end of the jobs' socket; the thread ends when that is shut down.
    jobs: OwnedFd,
    /// A child of a fork has no such thread.
    process: libc::pid_t,
}

impl StandIns {
    fn regions(&self) -> MutexGuard<'_, HashMap<u32, Arc<StandIn>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: u32) -> Option<Arc<StandIn>> {
        self.regions().get(&key).cloned()
    }

    pub fn insert(&self, key: u32, region: StandIn) {
        self.regions().insert(key, Arc::new(region));
        self.are_any.store(true, Ordering::Release);
    }

    pub fn remove(&self, key: u32) {
        // The pages are given back without the lock.
        let removed = self.regions().remove(&key);
        drop(removed);
    }

    /// Has a region another key.
    pub fn rename(&self, key: u32, new: u32) {
        let mut regions = self.regions();
        let renamed = regions.remove(&key);
        regions.extend(renamed.map(|region| (new, region)));
    }

    /// Gives all pages back.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.regions());
        drop(all);
    }

    /// Copies what is about to be sent from memory that can't move.
    ///
    /// # Safety
    /// The segments must name readable memory.
    #[inline]
    pub unsafe fn take_up(&self, list: &[Segment]) {
        if self.are_any.load(Ordering::Acquire) {
            for part in list {
                if let Some(region) = self.get(part.lkey) {
                    // SAFETY: the caller's promise.
                    unsafe { region.take_up(part.address as usize, part.len as usize) };
                }
            }
        }
    }

    /// Starts the copier, which gets jobs by this feed, unless it runs.
    pub fn serve(
        self: &Arc<Self>,
        prepare: impl FnOnce() -> Outcome<(Feed<{ CopyJob::BYTES }>, CopyReport)>,
    ) -> Outcome<()> {
        let mut copier = self.copier.lock().unwrap_or_else(PoisonError::into_inner);
        if copier.is_some() {
            return Ok(());
        }
        let (feed, report) = prepare()?;
        let jobs = feed.socket().try_clone().map_err(|_| libc::EMFILE)?;
        let own = self.clone();
        let thread = start_thread(c"verbs-copier", move || own.run(&feed, &report))?;
        // SAFETY: it only returns a number.
        *copier = Some(Copier { thread, jobs, process: unsafe { libc::getpid() } });
        Ok(())
    }

    fn run(&self, feed: &Feed<{ CopyJob::BYTES }>, report: &CopyReport) {
        loop {
            let job = match feed.next(feed.socket().as_fd()) {
                Err(libc::EINTR | libc::EAGAIN) => continue,
                Ok(Some(job)) => CopyJob::from_bytes(&job),
                Ok(None) | Err(_) => None,
            };
            let Some(CopyJob { number, key, address, work }) = job else { return };
            let done = self.get(key).and_then(|region| region.work(address as usize, work));
            report.put(number, done);
        }
    }

    /// Ends the copier, and gives all pages back.
    pub fn end(&self) {
        let copier = self.copier.lock().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: it only returns a number.
        if let Some(copier) = copier.filter(|copier| copier.process == unsafe { libc::getpid() }) {
            let _ = shutdown(&copier.jobs, Shutdown::Both);
            // SAFETY: it runs, or has ended by itself, and nobody else joins it.
            unsafe { libc::pthread_join(copier.thread, std::ptr::null_mut()) };
        }
        self.clear();
    }
}

// SAFETY: the pages are used by raw pointers and by the kernel alone.
unsafe impl Send for StandIn {}
// SAFETY: as above.
unsafe impl Sync for StandIn {}
