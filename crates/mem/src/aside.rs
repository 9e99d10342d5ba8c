//! Bounds what the kernel does for one port within our system calls. A signal to an eventfd calls all that watch it, and
//! a write to a tap runs the container's network stack, so whoever is on a port's other side determines how long they
//! take.
//!
//! Workers make these calls through the port's [`Account`]. The cycle counter tells whether one took long; if too many
//! did, the CPU time of the next ones is measured, because a worker that was preempted is nobody's fault. If they are
//! really expensive, the port goes aside: for a while, one thread of low weight makes its calls, and those of all
//! other ports that are aside. It also goes between them, so that together they get a quarter of a CPU at most.
//!
//! The pages of a guest's memory are the same: its VMM determines how long whoever touches them waits in the kernel. For
//! these, an account counts the time of calls in which the thread waited, and a thread of its own touches the memory of
//! ports that are aside.

use crate::cycles;
use crate::signal::{prepare, signal, wake};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{getpid, getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Ticks of the cycle counter that a call may take (6 to 33 microseconds), besides one for each byte. Ticks are
/// nanoseconds or shorter, as far as this module cares.
const FREE: u64 = 1 << 15;
/// Ticks beyond that which a port may cause at once, before its calls are measured, and one in so many that it may
/// cause all the time.
const AT_ONCE: u64 = 1 << 22;
const ONE_IN: u64 = 128;
/// For how long calls are then measured, ticks (about a second), and the nanoseconds of CPU time that they may take
/// meanwhile beyond their nanoseconds of [`FREE`].
const WATCHED: u64 = 1 << 31;
const EXPENSIVE: u64 = 50_000_000;
/// For how long a port is aside after its last expensive call, the first time and the longest, ticks. A port that is
/// expensive again soon after stays for twice as long.
const ASIDE: (u64, u64) = (1 << 31, 1 << 37);
/// By how much the nice value of the thread is higher than that of workers: a tenth of their weight (sched(7)).
const NICER: i32 = 10;
/// The least for each nanosecond of the last expensive call, ticks.
const EXCESS: u64 = 32;
/// Pause after an expensive call before the next one, in units of its own length.
const PAUSE: u32 = 3;

/// The cost that an account counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Counts {
    /// CPU time.
    #[default]
    Work,
    /// All the time of a call in which the thread waited. A thread that merely lost its CPU did not.
    Waits,
}

impl Counts {
    /// Returns the time, nanoseconds, and how often the thread has waited.
    fn read(self) -> (u64, i64) {
        match self {
            Self::Work => (cpu_time(), 0),
            Self::Waits => (time(ClockId::Monotonic), waits()),
        }
    }

    /// Returns the nanoseconds by which the work since `before` exceeded what is free.
    fn excess(self, before: (u64, i64), bytes: usize) -> u64 {
        let now = self.read();
        if self == Self::Waits && now.1 == before.1 {
            return 0;
        }
        now.0.saturating_sub(before.0).saturating_sub(FREE + bytes as u64)
    }
}

/// The cost of calls for one port.
#[derive(Debug, Default)]
pub struct Account {
    counts: Counts,
    /// Ticks beyond what is free, at the moment `at`.
    owed: AtomicU64,
    at: AtomicU64,
    /// Until when calls are measured; zero if they are not. CPU time of these calls.
    watched: AtomicU64,
    spent: AtomicU64,
    /// Until when the port is aside; zero if it is not.
    aside: AtomicU64,
    /// For how long it was last put aside.
    rest: AtomicU64,
    /// Whether its last call aside was expensive, and when that was.
    is_expensive: AtomicBool,
    last: AtomicU64,
}

impl Account {
    /// Creates an account of waits for pages.
    #[must_use]
    pub fn of_pages() -> Self {
        Self { counts: Counts::Waits, ..Self::default() }
    }

    /// Measures calls for a while, because somebody waited.
    pub fn suspect(&self) {
        let now = cycles::now();
        let before = self.watched.swap(now + WATCHED, Relaxed);
        if before < now {
            self.spent.store(0, Relaxed);
        }
    }

    /// Returns whether calls are neither measured nor made aside.
    pub fn is_calm(&self) -> bool {
        self.watched.load(Relaxed) == 0 && !self.is_aside()
    }

    /// Makes a call that moves so many bytes, and counts what it costs.
    #[inline]
    pub fn call<T>(&self, bytes: usize, act: impl FnOnce() -> T) -> T {
        if self.watched.load(Relaxed) != 0 {
            return self.measure(bytes, act);
        }
        let start = cycles::now();
        let done = act();
        let now = cycles::now();
        let excess = now.saturating_sub(start).saturating_sub(FREE + bytes as u64);
        if excess > 0 {
            self.exceeded(now, excess);
        }
        done
    }

    #[cold]
    fn exceeded(&self, now: u64, excess: u64) {
        let since = now.saturating_sub(self.at.swap(now, Relaxed));
        let owed = self.owed.load(Relaxed).saturating_sub(since / ONE_IN).saturating_add(excess);
        self.owed.store(owed, Relaxed);
        if owed > AT_ONCE {
            self.owed.store(0, Relaxed);
            self.spent.store(0, Relaxed);
            self.watched.store(now + WATCHED, Relaxed);
        }
    }

    #[cold]
    fn measure<T>(&self, bytes: usize, act: impl FnOnce() -> T) -> T {
        let before = self.counts.read();
        let done = act();
        let excess = self.counts.excess(before, bytes);
        let spent = self.spent.fetch_add(excess, Relaxed) + excess;
        let now = cycles::now();
        if spent > EXPENSIVE {
            self.put_aside(now);
        } else if now > self.watched.load(Relaxed) {
            self.watched.store(0, Relaxed);
        }
        done
    }

    fn put_aside(&self, now: u64) {
        // Other workers may be in calls meanwhile.
        if self.aside.load(Relaxed) > now {
            return;
        }
        let before = self.rest.load(Relaxed);
        // `last` is from when it was aside before.
        let is_again = before > 0 && now.saturating_sub(self.last.load(Relaxed)) < ASIDE.1;
        let rest = if is_again { (2 * before).min(ASIDE.1) } else { ASIDE.0 };
        self.rest.store(rest, Relaxed);
        self.last.store(now, Relaxed);
        self.watched.store(0, Relaxed);
        self.aside.store(now + rest, Relaxed);
    }

    /// Returns whether the thread makes the port's calls. Once the port was cheap for long enough, that ends.
    #[inline]
    pub fn is_aside(&self) -> bool {
        let until = self.aside.load(Relaxed);
        until != 0 && (cycles::now() < until || self.returns(until))
    }

    /// Ends the time aside, and returns false.
    #[cold]
    fn returns(&self, until: u64) -> bool {
        if self.counts == Counts::Waits {
            // One wait is enough to know it again.
            self.suspect();
        }
        // The thread may have prolonged it.
        let _ = self.aside.compare_exchange(until, 0, Relaxed, Relaxed);
        false
    }

    /// Counts a call that the thread made.
    fn made(&self, excess: u64) {
        let now = cycles::now();
        self.is_expensive.store(excess > 0, Relaxed);
        self.last.store(now, Relaxed);
        if excess > 0 {
            // The thread may pause for long before it makes the next one.
            self.aside.store(now + self.rest.load(Relaxed).max(EXCESS * excess), Relaxed);
        }
    }
}

/// Returns the calling thread's CPU time, nanoseconds.
fn cpu_time() -> u64 {
    time(ClockId::ThreadCPUTime)
}

fn time(clock: ClockId) -> u64 {
    Duration::try_from(clock_gettime(clock)).map_or(0, |time| time.as_nanos() as u64)
}

/// Returns how often the calling thread has waited in the kernel: for a page, a lock, an event.
#[must_use]
pub fn waits() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage`, for which all zeros are valid, too.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}

/// A part of a port whose calls the thread can make.
pub trait Aside: Send + Sync {
    fn account(&self) -> &Account;

    /// Returns whether there is something to do.
    fn waits(&self) -> bool;

    /// Makes one call; returns the bytes that it moved.
    fn serve(&self) -> usize;
}

/// The thread's list.
struct Server {
    parts: Mutex<Vec<Weak<dyn Aside>>>,
    wake: OwnedFd,
}

/// One for calls, and one for memory: it may wait long.
static SERVERS: [OnceLock<Server>; 2] = [const { OnceLock::new() }; 2];

impl Counts {
    const fn server(self) -> &'static OnceLock<Server> {
        &SERVERS[self as usize]
    }

    /// Starts the thread, unless it runs already.
    fn start(self) -> io::Result<()> {
        let server = self.server();
        if server.get().is_none() {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            if server.set(Server { parts: Mutex::default(), wake }).is_ok() {
                let name = if self == Self::Work { "aside" } else { "aside-pages" };
                std::thread::Builder::new()
                    .name(name.to_owned())
                    .spawn(move || server.get().map(Server::run))?;
            }
        }
        Ok(())
    }
}

/// Starts the threads, unless they run already.
///
/// # Errors
/// If the process is out of threads or descriptors.
pub fn start_aside() -> io::Result<()> {
    Counts::Work.start()?;
    Counts::Waits.start()
}

/// Makes the thread serve a part of a port with this account whenever it waits.
///
/// # Errors
/// As [`start_aside`].
pub fn serve_aside(part: Weak<dyn Aside>, account: &Account) -> io::Result<()> {
    account.counts.start()?;
    if let Some(server) = account.counts.server().get() {
        let mut parts = server.parts();
        parts.retain(|part| part.strong_count() > 0);
        parts.push(part);
    }
    Ok(())
}

/// Wakes the thread for an account, after a part began to wait.
pub fn wake_aside(account: &Account) {
    if let Some(server) = account.counts.server().get() {
        wake(server.wake.as_fd());
    }
}

impl Server {
    fn parts(&self) -> std::sync::MutexGuard<'_, Vec<Weak<dyn Aside>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let nice = getpriority_process(Some(getpid())).unwrap_or(0);
        // For the calling thread only: in Linux each thread has its own, and whoever started this one may be nice already.
        let _ = setpriority_process(None, nice.saturating_add(NICER));
        let _ = prepare();
        let mut resumes = Instant::now();
        loop {
            let until = self.turn(&mut resumes);
            let pause = until.map(|until| until.saturating_duration_since(Instant::now()));
            let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
            let _ = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], pause.as_ref());
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    /// Does what can be done now. If there is more, returns the time for it.
    fn turn(&self, resumes: &mut Instant) -> Option<Instant> {
        let waits = |part: &Weak<dyn Aside>| part.upgrade().filter(|part| part.waits());
        let mut waiting: Vec<_> = self.parts().iter().filter_map(waits).collect();
        // Cheap ones come first, then who had to wait for longest.
        waiting.sort_by_key(|part| {
            let account = part.account();
            (account.is_expensive.load(Relaxed), account.last.load(Relaxed))
        });
        let is_any = !waiting.is_empty();
        for part in waiting {
            let account = part.account();
            if account.is_expensive.load(Relaxed) && Instant::now() < *resumes {
                return Some(*resumes);
            }
            let before = account.counts.read();
            let bytes = part.serve();
            let excess = account.counts.excess(before, bytes);
            account.made(excess);
            // A thread that waited used no CPU.
            if excess > 0 && account.counts == Counts::Work {
                *resumes = Instant::now() + PAUSE * Duration::from_nanos(excess);
            }
        }
        is_any.then(Instant::now)
    }
}

/// Somebody else's eventfd.
pub struct Bell {
    fd: OwnedFd,
    account: Arc<Account>,
    /// Whether the thread has to signal.
    waits: AtomicBool,
}

impl Bell {
    /// Takes an eventfd of a port with this account.
    ///
    /// # Errors
    /// As [`serve_aside`].
    pub fn new(fd: OwnedFd, account: Arc<Account>) -> io::Result<Arc<Self>> {
        let bell = Arc::new(Self { fd, account, waits: AtomicBool::new(false) });
        let part: Weak<Self> = Arc::downgrade(&bell);
        serve_aside(part, &bell.account)?;
        Ok(bell)
    }

    /// Signals, or has the thread signal.
    #[inline]
    pub fn ring(&self) {
        if self.account.is_aside() {
            return self.leave();
        }
        self.account.call(0, || signal(self.fd.as_fd()));
    }

    #[cold]
    fn leave(&self) {
        if !self.waits.swap(true, AcqRel) {
            wake_aside(&self.account);
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Aside for Bell {
    fn account(&self) -> &Account {
        &self.account
    }

    fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    fn serve(&self) -> usize {
        // Before the signal, so that the next one is not lost.
        self.waits.swap(false, AcqRel);
        signal(self.fd.as_fd());
        0
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::event::epoll;

    /// Burns so much CPU time.
    fn burn(time: Duration) {
        let before = cpu_time();
        while Duration::from_nanos(cpu_time() - before) < time {}
    }

    #[test]
    fn expensive_calls_put_a_port_aside_and_others_do_not() {
        let account = Account::default();
        (0..20_000).for_each(|_| account.call(0, || ()));
        assert!(!account.is_aside());
        // A worker that did not run during a call is no sign of an expensive call.
        (0..10).for_each(|_| account.call(0, || std::thread::sleep(Duration::from_millis(5))));
        assert!(!account.is_aside());
        // Long writes may take longer.
        (0..10).for_each(|_| account.call(20_000_000, || burn(Duration::from_millis(5))));
        assert!(!account.is_aside());
        (0..20).for_each(|_| account.call(0, || burn(Duration::from_millis(5))));
        assert!(account.is_aside());
        // It comes back, and the second time stays for longer.
        assert_eq!(account.rest.load(Relaxed), ASIDE.0);
        account.aside.store(1, Relaxed);
        assert!(!account.is_aside() && account.aside.load(Relaxed) == 0);
        (0..20).for_each(|_| account.call(0, || burn(Duration::from_millis(5))));
        assert!(account.is_aside());
        assert_eq!(account.rest.load(Relaxed), 2 * ASIDE.0);
        // Each expensive call prolongs it.
        let until = account.aside.load(Relaxed);
        account.made(0);
        assert_eq!(account.aside.load(Relaxed), until);
        account.made(1);
        assert!(account.aside.load(Relaxed) > until);
    }

    #[test]
    fn waits_put_an_account_of_pages_aside_and_work_does_not() {
        let account = Account::of_pages();
        account.suspect();
        assert!(!account.is_calm() && !account.is_aside());
        (0..20).for_each(|_| account.call(0, || burn(Duration::from_millis(5))));
        assert!(!account.is_aside());
        (0..20).for_each(|_| account.call(0, || std::thread::sleep(Duration::from_millis(5))));
        assert!(account.is_aside());
        // When it comes back, its calls are measured.
        account.aside.store(1, Relaxed);
        assert!(!account.is_aside() && !account.is_calm());
        (0..2).for_each(|_| account.call(0, || std::thread::sleep(Duration::from_millis(30))));
        assert!(account.is_aside());
        assert_eq!(account.rest.load(Relaxed), 2 * ASIDE.0);
    }

    #[test]
    fn a_signal_to_many_watchers_costs_the_caller_little() {
        let account = Arc::new(Account::default());
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let bell = Bell::new(fd, account.clone()).unwrap();
        let copies: Vec<_> = (0..300).map(|_| bell.fd.try_clone().unwrap()).collect();
        let watchers: Vec<_> = (0..300)
            .map(|_| {
                let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
                let data = epoll::EventData::new_u64(0);
                copies.iter().for_each(|fd| epoll::add(&epoll, fd, data, epoll::EventFlags::IN).unwrap());
                epoll
            })
            .collect();
        let before = cpu_time();
        let mut rung = 0;
        while !account.is_aside() {
            bell.ring();
            rung += 1;
        }
        assert!(rung < 100, "{rung} signals");
        let at = cpu_time();
        (0..100).for_each(|_| {
            bell.ring();
            std::thread::sleep(Duration::from_millis(1));
        });
        let (before, after) = (at - before, cpu_time() - at);
        assert!(after < before, "{before} ns for {rung} signals, then {after} ns for 100");
        // Nothing is lost.
        let _ = rustix::io::read(&bell.fd, &mut [0; 8]);
        bell.ring();
        let since = Instant::now();
        while rustix::io::read(&bell.fd, &mut [0; 8]).is_err() {
            assert!(since.elapsed() < Duration::from_secs(10), "no signal came");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(watchers);
    }
}
