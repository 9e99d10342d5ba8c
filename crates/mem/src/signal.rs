//! Signals an eventfd that somebody else also holds, without ever waiting for it.
//!
//! A `write` to an eventfd waits if its counter is full and O_NONBLOCK is clear. Both belong to the open file, so a
//! VMM that shares it can change them at any time. The kernel itself adds to an eventfd without waiting
//! (`eventfd_signal`). It does so on completion of an asynchronous read that names an eventfd (IOCB_FLAG_RESFD,
//! io_submit(2)), and a read of no bytes from /dev/null completes within the call. This costs one system call, as
//! `write` does, and about half a microsecond more.

use rustix::fs::{Mode, OFlags, open};
use std::cell::OnceCell;
use std::ffi::c_ulong;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// Most reads in progress. Each completes before the next begins; the kernel makes room for some more.
const EVENTS: c_ulong = 8;

/// Completions collected at a time.
const COLLECTED: usize = 64;

/// `IOCB_CMD_PREAD` (linux/aio_abi.h).
const PREAD: u16 = 0;
/// `IOCB_FLAG_RESFD`.
const RESFD: u32 = 1;

/// `struct iocb` (linux/aio_abi.h) of a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
struct IoEvent {
    words: [u64; 4],
}

const _: () =
    assert!(size_of::<Iocb>() == 64 && size_of::<IoEvent>() == 32 && cfg!(target_endian = "little"));

/// A thread's own context for asynchronous reads, so that threads share nothing.
struct Context {
    id: c_ulong,
    null: BorrowedFd<'static>,
}

/// The file that all contexts read.
static NULL: OnceLock<OwnedFd> = OnceLock::new();

fn null() -> io::Result<BorrowedFd<'static>> {
    let file = match NULL.get() {
        Some(file) => file,
        None => {
            let file = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            NULL.get_or_init(|| file)
        }
    };
    Ok(file.as_fd())
}

impl Context {
    fn new() -> io::Result<Self> {
        let null = null()?;
        let mut id: c_ulong = 0;
        // SAFETY: the kernel writes one number to `id`.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, EVENTS, &raw mut id) };
        if made < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { id, null }) }
    }

    /// Adds one to `fd`; returns whether the kernel accepted it.
    fn signal(&self, fd: BorrowedFd<'_>) -> bool {
        let read = Iocb {
            opcode: PREAD,
            file: self.null.as_raw_fd().cast_unsigned(),
            flags: RESFD,
            eventfd: fd.as_raw_fd().cast_unsigned(),
            ..Iocb::default()
        };
        self.submit(&read) || {
            // Completions that nobody collects would fill the context.
            self.collect();
            self.submit(&read)
        }
    }

    fn submit(&self, read: &Iocb) -> bool {
        let reads = [std::ptr::from_ref(read)];
        // SAFETY: the kernel reads one pointer and the request to which it points; a request for no bytes has no
        // buffer.
        unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1 as c_ulong, reads.as_ptr()) == 1 }
    }

    fn collect(&self) {
        let mut done = [const { MaybeUninit::<IoEvent>::uninit() }; COLLECTED];
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel writes at most COLLECTED completions. Since the minimum is 0, it does not wait.
        unsafe {
            let most = COLLECTED as c_ulong;
            libc::syscall(libc::SYS_io_getevents, self.id, 0 as c_ulong, most, done.as_mut_ptr(), none);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: no read is in progress, and nobody uses the number any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

thread_local! {
    static CONTEXT: OnceCell<Context> = const { OnceCell::new() };
}

fn with_context<T>(act: impl FnOnce(&Context) -> T) -> io::Result<T> {
    CONTEXT.with(|cell| {
        let context = match cell.get() {
            Some(context) => context,
            None => {
                let made = Context::new()?;
                cell.get_or_init(|| made)
            }
        };
        Ok(act(context))
    })
}

/// Prepares the calling thread for [`signal`], so that the first signal allocates nothing.
///
/// # Errors
/// If the kernel has no asynchronous I/O (ENOSYS), or its contexts are used up (EAGAIN: `sysctl fs.aio-max-nr`).
pub fn prepare() -> io::Result<()> {
    with_context(|_| ())
}

/// Adds one to the eventfd `fd`, whoever else holds it; never waits. False if `fd` is not an eventfd, or if
/// the thread has no context ([`prepare`]). A counter at its maximum stays there, and this still is a signal.
pub fn signal(fd: BorrowedFd<'_>) -> bool {
    with_context(|context| context.signal(fd)).unwrap_or(false)
}

/// Adds one to an eventfd that only this process has, with O_NONBLOCK. Unlike [`signal`], it needs neither a
/// descriptor nor memory, so that a process that has run out of them can still end its threads.
pub fn wake(own: BorrowedFd<'_>) {
    // A full counter has woken its reader already.
    let _ = rustix::io::write(own, &1_u64.to_ne_bytes());
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn count(fd: &OwnedFd) -> u64 {
        let mut value = [0; 8];
        rustix::io::read(fd, &mut value).unwrap();
        u64::from_ne_bytes(value)
    }

    #[test]
    fn each_signal_counts() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for _ in 0..1000 {
            assert!(signal(fd.as_fd()));
        }
        assert_eq!(count(&fd), 1000);
    }

    #[test]
    fn a_full_counter_of_a_blocking_eventfd_holds_nobody_up() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..1000 {
            assert!(signal(fd.as_fd()));
        }
        assert_eq!(count(&fd), u64::MAX);
    }

    #[test]
    fn what_is_no_eventfd_is_left_alone() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(!signal(writer.as_fd()));
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Err(rustix::io::Errno::AGAIN));
    }

    #[test]
    fn threads_have_contexts_of_their_own_and_leave_none() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..50 {
                scope.spawn(|| {
                    prepare().unwrap();
                    (0..10).for_each(|_| assert!(signal(fd.as_fd())));
                });
            }
        });
        assert_eq!(count(&fd), 500);
    }

    #[test]
    fn without_free_descriptors_own_eventfds_wake_and_more_threads_signal() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        prepare().unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
        assert_eq!(rustix::io::dup(&fd).unwrap_err(), rustix::io::Errno::MFILE);
        let signalled = std::thread::scope(|scope| scope.spawn(|| signal(fd.as_fd())).join()).unwrap();
        wake(fd.as_fd());
        setrlimit(Resource::Nofile, before).unwrap();
        assert!(signalled);
        assert_eq!(count(&fd), 2);
    }
}
