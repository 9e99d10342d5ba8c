//! The way of frames for a guest whose VMM makes those wait who touch its memory ([`mem::Account::of_pages`]): workers
//! do not touch it, except while they find out whether that is so. A thread for all such guests copies their frames.

use crate::frames::Frames;
use crate::lease::Taken;
use crate::queue::{Queue, Shared};
use crate::rx::Direct as Source;
use crate::tx;
use mem::{Account, Aside, Burst, NoRoom, Offload, Room, Segment, serve_aside, wake_aside};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// Bytes that the thread takes from a ring at once. With the longest frame, they fit in [`Frames`].
const TAKEN: usize = 48 << 10;
/// The same while a worker finds out: it may wait for each page.
const TAKEN_BY_WORKER: usize = 2048;

/// Attempts to leave frames while others do.
const SPINS: u32 = 1000;

/// Frames from a guest's ring.
pub(crate) struct Inlet {
    shared: Arc<Shared>,
    index: usize,
    /// Whoever touches the ring holds this, perhaps for long.
    puller: Mutex<Puller>,
    /// Frames for the worker. Held to exchange them only.
    ready: Mutex<Frames>,
    /// Whether the thread is to look at the ring.
    is_asked: AtomicBool,
}

struct Puller {
    source: Source,
    burst: Burst,
    frames: Frames,
}

impl Inlet {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> io::Result<Arc<Self>> {
        let source = Source::new(shared.clone(), index);
        let puller = Mutex::new(Puller { source, burst: Burst::default(), frames: Frames::default() });
        let inlet = Arc::new(Self {
            shared,
            index,
            puller,
            ready: Mutex::default(),
            is_asked: AtomicBool::new(false),
        });
        let part: Weak<Self> = Arc::downgrade(&inlet);
        serve_aside(part, &inlet.shared.pages)?;
        Ok(inlet)
    }

    fn queue(&self) -> &Queue {
        &self.shared.queues[self.index]
    }

    /// Has the thread look at the ring.
    pub(crate) fn ask(&self) {
        if !self.is_asked.swap(true, AcqRel) {
            wake_aside(&self.shared.pages);
        }
    }

    /// Looks at the ring, and measures what that takes.
    pub(crate) fn look(&self) {
        self.shared.pages.call(TAKEN_BY_WORKER, || self.pull(TAKEN_BY_WORKER));
    }

    /// Requests events, and measures what that takes. Returns whether packets wait.
    pub(crate) fn arm(&self) -> bool {
        self.shared.pages.call(0, || self.want_kicks()).unwrap_or(true)
    }

    /// Exchanges frames that were taken for `old` ones. False if there are none now.
    pub(crate) fn exchange(&self, old: &mut Frames) -> bool {
        old.clear();
        let Some(mut ready) = attempt(&self.ready) else { return false };
        std::mem::swap(&mut *ready, old);
        !old.is_empty()
    }

    /// Returns whether frames wait for the worker, or may wait.
    pub(crate) fn holds(&self) -> bool {
        attempt(&self.ready).is_none_or(|ready| !ready.is_empty())
    }

    /// Frees memory, and returns true, if no frames are here and nobody touches the ring.
    pub(crate) fn leave(&self) -> bool {
        let (Some(mut puller), Some(mut ready)) = (attempt(&self.puller), attempt(&self.ready)) else {
            return false;
        };
        if !ready.is_empty() {
            return false;
        }
        (*ready, puller.frames, puller.burst) = Default::default();
        true
    }

    /// Takes frames from the ring; returns their bytes.
    fn pull(&self, most: usize) -> usize {
        let Some(mut puller) = attempt(&self.puller) else { return 0 };
        if !lock(&self.ready).is_empty() {
            return 0;
        }
        let Puller { source, burst, frames } = &mut *puller;
        if source.poll(burst, most) > 0 {
            frames.copy_from(burst);
        }
        source.release(burst);
        let bytes = frames.bytes();
        if bytes > 0 {
            std::mem::swap(&mut *lock(&self.ready), frames);
            frames.clear();
        }
        bytes
    }

    /// Requests events; returns whether packets wait already, if nobody else touches the ring.
    fn want_kicks(&self) -> Option<bool> {
        attempt(&self.puller).map(|puller| puller.source.want_kicks().0)
    }
}

impl Aside for Inlet {
    fn account(&self) -> &Account {
        &self.shared.pages
    }

    fn waits(&self) -> bool {
        self.is_asked.load(Relaxed)
    }

    fn serve(&self) -> usize {
        self.is_asked.swap(false, AcqRel);
        let bytes = self.pull(TAKEN);
        if bytes > 0 || self.holds() {
            // The worker takes them, and asks again.
            self.queue().wake();
        } else if self.queue().armed.load(Relaxed) && self.want_kicks() != Some(false) {
            self.is_asked.store(true, Relaxed);
        }
        bytes
    }
}

/// Frames to a guest's ring.
pub(crate) struct Outlet {
    shared: Arc<Shared>,
    index: usize,
    /// Whether frames go this way.
    is_used: AtomicBool,
    /// Frames that workers left. Held for a burst, and to exchange them.
    left: Mutex<Frames>,
    /// Whether there are some.
    has_left: AtomicBool,
    /// Frames that are written. Whoever touches the ring holds this, perhaps for long.
    written: Mutex<Frames>,
}

impl Outlet {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> io::Result<Arc<Self>> {
        let (is_used, left, has_left, written) = Default::default();
        let outlet = Arc::new(Self { shared, index, is_used, left, has_left, written });
        let part: Weak<Self> = Arc::downgrade(&outlet);
        serve_aside(part, &outlet.shared.pages)?;
        Ok(outlet)
    }

    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    pub(crate) fn begin(&self) {
        self.shared.pages.suspect();
        self.is_used.store(true, Relaxed);
    }

    /// Runs a burst as [`mem::TxQueue::burst`] does; `None` if the ring is to be used itself again.
    pub(crate) fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> Option<bool> {
        let pages = &self.shared.pages;
        let Some(mut left) = (0..SPINS).find_map(|_| attempt(&self.left)) else { return Some(false) };
        if left.is_empty() && pages.is_calm() && self.leave() {
            *left = Frames::default();
            return None;
        }
        match self.is_running() {
            true => fill(&mut Left { frames: &mut left, last: None }),
            false => fill(&mut tx::Down),
        }
        self.has_left.store(!left.is_empty(), Relaxed);
        drop(left);
        if pages.is_aside() || pages.call(TAKEN, || self.write()).is_none() {
            wake_aside(pages);
        }
        Some(true)
    }

    fn is_running(&self) -> bool {
        let lease = self.shared.queues[self.index].try_lease();
        // Whoever has it uses it.
        self.shared.healthy() && lease.map_or_else(|taken| taken == Taken::Busy, |held| held.enabled)
    }

    /// Has bursts use the ring again, unless somebody writes to it.
    fn leave(&self) -> bool {
        let Some(mut written) = attempt(&self.written) else { return false };
        *written = Frames::default();
        self.is_used.store(false, Relaxed);
        true
    }

    /// Writes what workers left; returns the bytes. `None` if somebody else is writing.
    fn write(&self) -> Option<usize> {
        let mut frames = attempt(&self.written)?;
        {
            let mut left = lock(&self.left);
            std::mem::swap(&mut *left, &mut *frames);
            self.has_left.store(false, Relaxed);
        }
        let bytes = frames.bytes();
        let (mut refused, mut is_run) = (0, false);
        if bytes > 0 {
            tx::burst(&self.shared, self.index, &mut |room| {
                is_run = true;
                // The ring may have been set up anew, for a driver that accepts less.
                let accepts = tx::accepts(&self.shared);
                frames.for_each(|segment, offload| {
                    let fits = tx::is_accepted(offload, accepts, room.tells_valid());
                    let sent = fits && room.put(&[], &[segment], 0, segment.len(), offload).is_ok();
                    refused += u64::from(!sent);
                });
            });
            if !is_run {
                refused = frames.count() as u64;
            }
        }
        frames.clear();
        self.shared.refused.fetch_add(refused, Relaxed);
        Some(bytes)
    }
}

impl Aside for Outlet {
    fn account(&self) -> &Account {
        &self.shared.pages
    }

    fn waits(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    fn serve(&self) -> usize {
        self.write().unwrap_or(0)
    }
}

/// Room in our own memory.
struct Left<'a> {
    frames: &'a mut Frames,
    last: Option<Segment>,
}

impl Room for Left<'_> {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[Segment], NoRoom> {
        self.last = Some(self.frames.add(len, offload).ok_or(NoRoom::Full)?);
        Ok(self.last.as_slice())
    }
}

/// Locks without waiting.
fn attempt<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
