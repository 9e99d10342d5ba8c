//! A queue of a port: its ring, the ring's lease, and its events.

use crate::announcement::Announcement;
use crate::features::Features;
use crate::lease::{Lease, Taken};
use crate::ring::{Fault, MAX_CHAIN, Memory, Ring, Virtqueue, dispatch};
use mem::{Account, Bell, FaultWord, Quota, Segment};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Most segments of a burst from a driver, or of a packet to it.
pub(crate) const SEGMENTS: usize = 2048;

pub(crate) struct Running {
    pub(crate) ring: Ring,
    pub(crate) memory: Memory,
    /// The parts of the ring that we write.
    pub(crate) areas: [Segment; 2],
    /// Segments of the chains in the current burst. Never grows beyond [`SEGMENTS`] and one chain.
    pub(crate) segments: Vec<Segment>,
    pub(crate) features: Features,
    /// Whether the VMM enabled the queue (SET_VRING_ENABLE).
    pub(crate) enabled: bool,
    /// Whether the driver can notify us at all.
    pub(crate) kicked: bool,
    pub(crate) call: Option<Arc<Bell>>,
    pub(crate) err: Option<Arc<Bell>>,
}

impl Running {
    /// Creates the state of a ring that was just resolved.
    pub(crate) fn new(ring: Ring, memory: Memory, areas: [Segment; 2], features: Features) -> Self {
        let segments = Vec::with_capacity(SEGMENTS + MAX_CHAIN);
        Self { ring, memory, areas, segments, features, enabled: false, kicked: false, call: None, err: None }
    }

    /// Returns whether there is room for the segments of one more chain.
    pub(crate) fn has_room(segments: &[Segment]) -> bool {
        segments.len() + MAX_CHAIN <= SEGMENTS
    }

    pub(crate) fn want_kicks(&mut self, want: bool) {
        dispatch!(&mut self.ring, ring => ring.want_kicks(want));
        self.memory.written(&self.areas);
    }

    /// Interrupts the driver.
    pub(crate) fn notify(&self) {
        if let Some(call) = &self.call {
            call.ring();
        }
    }
}

/// One queue: its ring comes and goes, but the queue stays.
pub(crate) struct Queue {
    lease: Lease,
    /// Only the holder of the lease may touch this.
    running: UnsafeCell<Option<Running>>,
    /// Number of chains refused. The holder of the lease writes it, anybody may read it.
    malformed: AtomicU64,
    /// Whether the worker wants events. Kept here for rings that start while the worker sleeps. Never set for a ring
    /// to the guest: its driver would send an event, which costs a system call or a VM exit, each time it adds
    /// buffers.
    pub(crate) armed: AtomicBool,
    /// Readable when there may be packets. It combines the current kick descriptor and `wake`, edge-triggered, so that
    /// nothing from the VMM is ever read.
    epoll: OwnedFd,
    /// Written by the control thread when a ring starts, so that the worker checks it.
    wake: OwnedFd,
}

// SAFETY: `running` is accessed only through `Held` and `Closed`, which exclude each other by the lease. Its content
// may move between threads: addresses, descriptors and plain data.
unsafe impl Sync for Queue {}
// SAFETY: as above.
unsafe impl Send for Queue {}

impl Queue {
    /// Creates a queue without a ring. `armed`: whether events are wanted before a worker asks for them.
    pub(crate) fn new(armed: bool) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let queue = Self {
            lease: Lease::new(),
            running: UnsafeCell::new(None),
            malformed: AtomicU64::new(0),
            armed: AtomicBool::new(armed),
            epoll,
            wake,
        };
        queue.watch(queue.wake.as_fd())?;
        Ok(queue)
    }

    /// Lets `fd` make [`Queue::event_fd`] readable, until it is closed or unwatched.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?)
    }

    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Consumes the events that made [`Queue::event_fd`] readable.
    pub(crate) fn drain_events(&self) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(&self.epoll, &mut events, Some(&now));
    }

    /// Makes [`Queue::event_fd`] readable.
    pub(crate) fn wake(&self) {
        mem::wake(self.wake.as_fd());
    }

    pub(crate) fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Attempts once to lease the ring.
    #[inline]
    pub(crate) fn try_lease(&self) -> Result<Held<'_>, Taken> {
        self.held(self.lease.try_take())
    }

    /// Attempts to lease the ring, for a bounded time.
    #[inline]
    pub(crate) fn lease(&self) -> Result<Held<'_>, Taken> {
        self.held(self.lease.take())
    }

    fn held(&self, taken: Taken) -> Result<Held<'_>, Taken> {
        match taken {
            // SAFETY: the lease is ours. It is open only while a ring runs (`Closed::drop`).
            Taken::Yes => Ok(unsafe { self.resume() }),
            other => Err(other),
        }
    }

    /// Returns the lease that a forgotten [`Held`] had.
    ///
    /// # Safety
    /// The caller must hold the lease, and no other [`Held`] for it.
    pub(crate) unsafe fn resume(&self) -> Held<'_> {
        Held { queue: self }
    }

    /// Stops the use of the ring; see [`Closed`].
    pub(crate) fn close(&self) -> Closed<'_> {
        self.lease.close();
        Closed { queue: self }
    }
}

/// The lease on a running ring.
pub(crate) struct Held<'a> {
    queue: &'a Queue,
}

impl Held<'_> {
    pub(crate) fn count_malformed(&self, chains: u64) {
        if chains > 0 {
            let before = self.queue.malformed.load(Ordering::Relaxed);
            self.queue.malformed.store(before + chains, Ordering::Relaxed);
        }
    }
}

impl Deref for Held<'_> {
    type Target = Running;

    fn deref(&self) -> &Running {
        // SAFETY: the lease is ours; only a control thread that closed it changes whether a ring runs.
        unsafe { (*self.queue.running.get()).as_ref().unwrap_unchecked() }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Running {
        // SAFETY: as above.
        unsafe { (*self.queue.running.get()).as_mut().unwrap_unchecked() }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.queue.lease.give();
    }
}

/// A queue closed by the control thread: nobody uses its ring or its guest's memory. Dropping it admits workers again
/// if a ring runs. Only one control thread may close a queue.
pub(crate) struct Closed<'a> {
    queue: &'a Queue,
}

impl Closed<'_> {
    /// Returns the place that holds the ring while it runs.
    pub(crate) fn running(&mut self) -> &mut Option<Running> {
        // SAFETY: closed, and the lease was returned: no worker is inside, and none gets in.
        unsafe { &mut *self.queue.running.get() }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let queue = self.queue;
        let armed = queue.armed.load(Ordering::Relaxed);
        let Some(running) = self.running() else { return };
        running.want_kicks(armed);
        queue.lease.open();
        // A worker that armed while we had the lease, or that has slept since before the ring started, must check it.
        queue.wake();
    }
}

/// State that the queues of a port, its control thread and its status share.
pub(crate) struct Shared {
    /// Rings by vhost index: even numbers to the guest, odd ones from it.
    pub(crate) queues: Vec<Queue>,
    /// The reason why the guest is disabled, if it is.
    pub(crate) fault: Arc<FaultWord>,
    /// The cost of interrupts.
    pub(crate) account: Arc<Account>,
    /// The time for which its memory made us wait.
    pub(crate) pages: Account,
    /// Frames for which there was no room when they were written aside.
    pub(crate) refused: AtomicU64,
    /// Counts what is mapped of the VMM.
    pub(crate) quota: Arc<Quota>,
    pub(crate) features: AtomicU64,
    /// MTU that the VMM announced; zero if none.
    pub(crate) mtu: AtomicU16,
    /// Number of queue pairs running and enabled.
    pub(crate) pairs: AtomicU16,
    /// A frame to send in the guest's name.
    pub(crate) announcement: Announcement,
    /// The files of the guest's memory, as device and inode number. The control thread writes them.
    pub(crate) files: Mutex<Vec<(u64, u64)>>,
}

impl Shared {
    /// Disables the guest, from a worker.
    #[cold]
    pub(crate) fn fail(&self, running: &Running, fault: Fault) {
        self.fault.raise(fault as u32);
        if let Some(err) = &running.err {
            err.ring();
        }
    }

    /// Returns whether the guest may be served.
    #[inline]
    pub(crate) fn healthy(&self) -> bool {
        self.fault.get().is_none()
    }
}
