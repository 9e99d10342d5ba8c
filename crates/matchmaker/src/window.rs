//! Memory of pairs in virtual machines: pieces of a window, which the machines of a trust have in common, and which its
//! containers can map. Whoever may write the window's file can keep those waiting who touch it, so that only the window's
//! own thread does.

use sockring::{BYTES, Direction, Link, Side};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A piece of work of a window's thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// The window in which a program can have memory. Of a program of a virtual machine its agent has proved that.
pub trait Window: Send + Sync {
    /// Identifies the window.
    fn id(&self) -> [u8; 16];
    /// Returns the same window for a program of a container. `None`: the program can't have it.
    fn lend(&self, guest: &str, user: u32, pid: i32) -> Option<Arc<dyn Window>>;
    /// Returns the window's file, and where the memory begins there, for a program of this kernel.
    fn file(&self) -> (BorrowedFd<'_>, u64);
    /// Has the window's thread do something. Without a thread it is dropped.
    fn later(&self, job: Job);
    /// Notes that the program gets memory in which others write. Returns whether it may. For the window's thread.
    fn share(&self) -> bool;
    /// Notes that nobody hears of the program any more, though it may go on to use memory. For the window's thread.
    fn lose(&self);
    /// Takes memory that counts as the program's, of zeros. For the window's thread.
    fn take(&self, bytes: usize) -> Option<Box<dyn Piece>>;
}

/// Memory in a window. When it is dropped, nobody gets it before those programs have ended that may use it.
pub trait Piece: Send + Sync {
    /// Returns where it is in the daemon, as long as there is this.
    fn base(&self) -> Option<NonNull<u8>>;
    /// Returns where it is in the device that the machine has.
    fn offset(&self) -> u64;
    /// Notes that nobody uses it any more: when it is dropped, others may get it.
    fn free(&self);
}

/// The state of a pair's memory when it was last looked at.
#[derive(Default)]
struct Seen {
    rings: [AtomicBool; 2],
    bytes: [AtomicU64; 2],
    is_asked: AtomicBool,
}

struct Shared {
    piece: Box<dyn Piece>,
    /// The end that looks at the memory.
    side: Side,
    seen: Seen,
}

impl Shared {
    fn link(&self) -> Option<Link> {
        let base = self.piece.base()?;
        // SAFETY: the piece has as many bytes, which stay mapped as long as it.
        Some(unsafe { Link::new(base.as_ptr(), self.side) })
    }

    fn look(&self) {
        self.seen.is_asked.store(false, Ordering::Release);
        let Some(link) = self.link() else { return };
        for (at, dir) in [link.tx(), link.rx()].into_iter().enumerate() {
            self.seen.rings[at].store(dir.is_ring(), Ordering::Relaxed);
            self.seen.bytes[at].store(dir.positions().0, Ordering::Relaxed);
        }
    }
}

/// The memory of a pair. Its owner never waits for the window.
pub struct InWindow {
    shared: Option<Arc<Shared>>,
    window: Arc<dyn Window>,
    offset: u64,
}

impl InWindow {
    /// Takes memory for programs, the first of which has the window. For a thread that may wait for it.
    pub fn new(windows: &[Arc<dyn Window>], side: Side) -> Option<Self> {
        let first = windows.first()?;
        let piece = windows.iter().all(|window| window.share()).then(|| first.take(BYTES))??;
        let offset = piece.offset();
        let shared = Some(Arc::new(Shared { piece, side, seen: Seen::default() }));
        Some(Self { shared, window: first.clone(), offset })
    }

    /// Returns where it is in the daemon, as long as there is this.
    pub fn base(&self) -> Option<NonNull<u8>> {
        self.shared.as_ref()?.piece.base()
    }

    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns what was seen last, and has the window's thread look again.
    pub fn directions(&self) -> [(bool, u64); 2] {
        let Some(shared) = &self.shared else { return [(false, 0); 2] };
        let seen = &shared.seen;
        if !seen.is_asked.swap(true, Ordering::AcqRel) {
            let shared = shared.clone();
            self.window.later(Box::new(move || shared.look()));
        }
        [0, 1].map(|at| (seen.rings[at].load(Ordering::Relaxed), seen.bytes[at].load(Ordering::Relaxed)))
    }

    /// Asks both ends to return to TCP, and then calls `told`.
    pub fn want_tcp(&self, told: impl FnOnce() + Send + 'static) {
        let Some(shared) = self.shared.clone() else { return };
        self.window.later(Box::new(move || {
            if let Some(link) = shared.link() {
                [link.tx(), link.rx()].iter().for_each(|dir| dir.want_tcp(Direction::RETURNS));
            }
            drop(shared);
            told();
        }));
    }

    /// Notes that nobody uses it any more.
    pub fn free(&self) {
        self.shared.iter().for_each(|shared| shared.piece.free());
    }
}

impl Drop for InWindow {
    fn drop(&mut self) {
        // Emptying it takes its time.
        let shared = self.shared.take();
        self.window.later(Box::new(move || drop(shared)));
    }
}
