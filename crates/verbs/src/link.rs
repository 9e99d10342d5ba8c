//! The connection to the device: control messages, doorbells, and whether it is alive.

use crate::control::Control;
use crate::errno::Outcome;
use crate::feed::Feed;
use crate::lost;
use crate::moved_pages::{self, Lender, Source};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendFlags, send};
use std::ffi::c_int;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use uverbs::{
    DeviceInfo, Dial, Doorbells, Endpoint, Given, JoinError, Joined, Lent, Memory, PAGE, Part, Refusal,
    Reply, Request, Rung, Windows,
};

/// A device that was greeted.
#[derive(Debug)]
pub struct Link {
    control: Arc<Control>,
    windows: Windows,
    dial: Dial,
    doorbells: Doorbells,
    wake: OwnedFd,
    events: Feed<8>,
    info: DeviceInfo,
    dead: AtomicBool,
    is_remote: bool,
    has_window: bool,
    /// Who lends it pages of its windows.
    lenders: Vec<Arc<Lender>>,
    /// What it gave of windows for its queues, with their inodes.
    parts: Mutex<Vec<(u64, Part)>>,
}

/// The address in this process by which peers recognise it.
fn token() -> u64 {
    static TOKEN: OnceLock<[u8; uverbs::TOKEN]> = OnceLock::new();
    let token = TOKEN.get_or_init(|| {
        let mut bytes = [0; uverbs::TOKEN];
        // Without it, peers use the other way to copy.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        bytes
    });
    token.as_ptr() as u64
}

impl Link {
    /// Connects to the device.
    ///
    /// # Errors
    /// The device's error if it refuses (it is reported on standard error), or the kernel's.
    pub fn open(device: &Endpoint) -> Outcome<Self> {
        let Joined { connection, windows, dial } = device.connect().map_err(|error| {
            tell(device, &why(device, &error));
            error.errno()
        })?;
        let control = Control::new(connection);
        let is_remote = control.is_remote();
        // The device uses it to read and write registered memory.
        let memory = if is_remote { None } else { Some(own_memory(device)?) };
        let along: Vec<_> = memory.iter().map(|memory| Lent::from(memory.as_fd())).collect();
        let program = moved_pages::secret();
        let hello = Request::Hello { version: uverbs::VERSION, token: token(), program };
        let (reply, given) = control.exchange(&hello, &along).map_err(|_| libc::EIO)?;
        let Reply::Device(info) = reply.map_err(|refusal| {
            tell(device, &refusal);
            errno(&refusal)
        })?
        else {
            return Err(libc::EPROTO);
        };
        let [doorbells, wake, events] = <[Given; 3]>::try_from(given).map_err(|_| libc::EPROTO)?;
        let has_window = !matches!(doorbells, Given::Descriptor(_));
        let mut parts = Vec::new();
        let doorbells = map(&windows, doorbells, Doorbells::bytes(info.doorbells), &mut parts)?;
        let doorbells = Doorbells::new(doorbells, info.doorbells);
        let socket = |given| dial.socket(given).map_err(|error: JoinError| error.errno());
        let (wake, events) = (socket(wake)?, Feed::new(socket(events)?, None)?);
        let mut known: Vec<_> = windows.inodes().chain(parts.iter().map(|(inode, _)| *inode)).collect();
        known.sort_unstable();
        known.dedup();
        lost::give_back(&control, &known);
        let gone: Vec<_> = info.suspects.iter().filter(|suspect| suspect.is_gone()).copied().collect();
        if !gone.is_empty() {
            // Whatever the device says: it is about others.
            let _ = control.exchange(&Request::Ended { gone }, &[]);
        }
        let (control, dead, parts) = (Arc::new(control), AtomicBool::new(false), Mutex::new(parts));
        let lenders = moved_pages::join(info.program, &known, &control);
        Ok(Self {
            control,
            windows,
            dial,
            doorbells,
            wake,
            events,
            info,
            dead,
            is_remote,
            has_window,
            lenders,
            parts,
        })
    }

    /// The device's properties.
    pub const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether the device is at the host of this virtual machine. It then has no access to the program's memory but to
    /// what is in its window.
    pub const fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Whether the device gives pages of a window.
    pub const fn has_window(&self) -> bool {
        self.has_window
    }

    /// Where asynchronous events come.
    pub const fn events(&self) -> &Feed<8> {
        &self.events
    }

    /// A descriptor that hangs up when the device is gone.
    pub fn life(&self) -> BorrowedFd<'_> {
        self.events.socket().as_fd()
    }

    /// The connection for control messages.
    pub const fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Who lends it pages of its windows.
    pub fn lenders(&self) -> &[Arc<Lender>] {
        &self.lenders
    }

    /// Maps memory that came with an answer, which the device made for this program.
    ///
    /// # Errors
    /// `EIO` if it is not as agreed, or can't be mapped.
    pub fn map(&self, given: Given, len: usize) -> Outcome<Memory> {
        map(&self.windows, given, len, &mut self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Maps memory of a peer, in one part or more.
    ///
    /// # Errors
    /// As of [`Self::map`].
    pub fn map_of_peer(&self, given: Vec<Given>, len: usize) -> Outcome<Memory> {
        self.windows.map_all(given, len).map_err(|_| libc::EIO)
    }

    /// The socket that came with an answer.
    ///
    /// # Errors
    /// If there is none, or the device is gone.
    pub fn socket(&self, given: Given) -> Outcome<OwnedFd> {
        self.dial.socket(given).map_err(|error| error.errno())
    }

    /// Makes a request whose answer has nothing along.
    ///
    /// # Errors
    /// The device's error; `EIO` if it is gone.
    pub fn ask(&self, request: &Request) -> Outcome<Reply> {
        self.ask_for(request).map(|(reply, _)| reply)
    }

    /// Makes a request whose answer has something along.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_for(&self, request: &Request) -> Outcome<(Reply, Vec<Given>)> {
        self.ask_with(request, &[])
    }

    /// Makes a request with something along, whose answer may have that, too.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_with(&self, request: &Request, along: &[Lent<'_>]) -> Outcome<(Reply, Vec<Given>)> {
        self.ask_quietly(request, along).map_err(|errno| self.noted(errno))
    }

    /// The same, leaving the consequences of the device's end to [`Self::noted`].
    fn ask_quietly(&self, request: &Request, along: &[Lent<'_>]) -> Outcome<(Reply, Vec<Given>)> {
        if self.is_dead() {
            return Err(libc::EIO);
        }
        match self.control.exchange(request, along) {
            Ok((Ok(reply), given)) => Ok((reply, given)),
            Ok((Err(refusal), _)) => {
                if self.is_remote && refusal.errno == libc::ENOMEM {
                    tell_once(&refusal);
                }
                Err(errno(&refusal))
            }
            Err(_) => Err(libc::EIO),
        }
    }

    /// An error, of which the end of the device may be the reason.
    pub fn noted(&self, errno: c_int) -> c_int {
        if self.control.has_failed() {
            self.set_dead();
        }
        errno
    }

    /// New pages of a window, in one part or more, each with its length. If that fails, [`Self::noted`] must be called.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn sources(&self, len: usize) -> Outcome<Vec<(Source, usize)>> {
        let (_, given) = self.ask_quietly(&Request::AllocPages { len: len as u64 }, &[])?;
        let source = |given| {
            let (file, base, part) = self.windows.find(given).map_err(|_| libc::EIO)?;
            let len = usize::try_from(part.len).map_err(|_| libc::EIO)?;
            Ok((Source::window(file, base, part, &self.lenders)?, len))
        };
        let sources = given.into_iter().map(source).collect::<Outcome<Vec<_>>>()?;
        if sources.iter().map(|(_, len)| len).sum::<usize>() == len { Ok(sources) } else { Err(libc::EIO) }
    }

    /// Removes an object. Those of a dead device are gone with it.
    ///
    /// # Errors
    /// Where the device refuses.
    pub fn take_away(&self, request: &Request) -> Outcome<()> {
        match self.ask(request) {
            Err(_) if self.is_dead() => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Announces that a queue has work.
    pub fn ring(&self, doorbell: u32) {
        if self.doorbells.ring(doorbell) == Rung::Asleep {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let bytes = 1_u64.to_ne_bytes();
        if self.is_remote {
            // If there is no room, the device has yet to read what wakes it.
            let _ = send(&self.wake, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        } else {
            let _ = rustix::io::write(&self.wake, &bytes);
        }
    }

    /// Whether the device is known to be gone.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Says that it is. Its next instance may give the pages that regions moved to its window to others.
    pub fn set_dead(&self) {
        if !self.dead.swap(true, Ordering::AcqRel) {
            moved_pages::forget(&self.control, &self.lenders);
        }
    }

    /// Checks whether the device is gone.
    pub fn look(&self) {
        let mut events = [PollFd::new(self.events.socket(), PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A virtual machine's streams have an error when it has moved to another host.
        let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        if poll(&mut events, Some(&now)).is_ok() && events[0].revents().intersects(gone) {
            self.set_dead();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        moved_pages::forget(&self.control, &self.lenders);
        if self.is_dead() {
            let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
            parts.drain(..).for_each(|(window, part)| lost::note(window, part));
        }
    }
}

/// Maps memory that a device made, and notes what it is of a window.
fn map(windows: &Windows, given: Given, len: usize, parts: &mut Vec<(u64, Part)>) -> Outcome<Memory> {
    if let Given::Part(part) | Given::Window(_, part) = &given {
        parts.extend(windows.inode(&given).map(|inode| (inode, *part)));
    }
    windows.map(given, len).map_err(|_| libc::EIO)
}

/// Bytes of a page, as the kernel has them here, must be those of a window's.
const _: () = assert!(PAGE == 4096);

const fn errno(refusal: &Refusal) -> c_int {
    if refusal.errno > 0 { refusal.errno } else { libc::EINVAL }
}

/// The program can't have a descriptor of its own memory. A process that is not "dumpable" (`PR_SET_DUMPABLE`: after
/// `setuid`, when its file can't be read, or by its own wish) does not own its files in `/proc`, unless it is root.
struct NoMemory(rustix::io::Errno);

impl std::fmt::Display for NoMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: it reads a flag of the process.
        let hint = match unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } {
            1 => "",
            _ => "; the program is not dumpable (PR_SET_DUMPABLE in prctl(2))",
        };
        write!(f, "/proc/self/mem can't be opened: {}{hint}", self.0)
    }
}

/// A descriptor of the program's memory.
fn own_memory(device: &Endpoint) -> Outcome<OwnedFd> {
    let memory = rustix::fs::open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    memory.map_err(|error| {
        tell(device, &NoMemory(error));
        error.raw_os_error()
    })
}

/// Why a device can't be reached, and what may help.
fn why(device: &Endpoint, error: &JoinError) -> String {
    match device {
        Endpoint::Socket(_) if error.errno() == libc::ECONNREFUSED => {
            format!("{error}: is viaductd running?")
        }
        _ => error.to_string(),
    }
}

/// Reports once why there is no device.
fn tell(device: &Endpoint, refusal: &impl std::fmt::Display) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        // The program may have closed it.
        let _ = writeln!(std::io::stderr(), "libibverbs: {device}: {refusal}");
    }
}

/// Reports once what a device has no room for: of a window, which others do not expect to be full. Programs may try
/// again and again (UCX does), and say no more than the error.
fn tell_once(refusal: &Refusal) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        // The program may have closed it.
        let _ = writeln!(std::io::stderr(), "libibverbs: {refusal}");
    }
}

/// The only thing that came with an answer.
///
/// # Errors
/// `EIO` if there is any other number of them.
pub fn only(given: Vec<Given>) -> Outcome<Given> {
    <[Given; 1]>::try_from(given).map(|[only]| only).map_err(|_| libc::EIO)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_nobody_serves_is_told_with_what_helps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c1");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let said = |path| {
            let device = Endpoint::Socket(path);
            why(&device, &device.connect().err().unwrap())
        };
        assert!(said(path).ends_with(": is viaductd running?"));
        assert!(!said(dir.path().join("c2")).contains("viaductd"));
    }
}
