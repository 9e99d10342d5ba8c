//! The connection to the device: control messages, doorbells, and whether it is alive.

use crate::control::Control;
use crate::errno::Outcome;
use crate::feed::Feed;
use crate::lost;
use crate::moved_pages::{self, Lender, Source, StandIns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendFlags, send};
use std::ffi::c_int;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use uverbs::{
    CopyReport, DeviceInfo, Dial, Doorbells, Endpoint, Given, JoinError, Joined, Lent, Memory, PAGE, Part,
    Refusal, Reply, Request, Rung, Windows,
};

/// A device whose daemon has accepted this program.
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
    /// The lenders of the pages that this device gives us from its windows.
    lenders: Vec<Arc<Lender>>,
    /// Pages that stand for memory of regions that can't move.
    stand_ins: Arc<StandIns>,
    /// Parts of windows that the device gave for its queues, with the windows' inodes.
    parts: Mutex<Vec<(u64, Part)>>,
}

/// Returns the address of a random token in this process, by which peers recognise the process.
fn token() -> u64 {
    static TOKEN: OnceLock<[u8; uverbs::TOKEN]> = OnceLock::new();
    let token = TOKEN.get_or_init(|| {
        let mut bytes = [0; uverbs::TOKEN];
        // Without a random token, peers copy in another way.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        bytes
    });
    token.as_ptr() as u64
}

impl Link {
    /// Connects to the device.
    ///
    /// # Errors
    /// The device's error if it refuses (standard error tells why), or the kernel's.
    pub fn open(device: &Endpoint) -> Outcome<Self> {
        let Joined { connection, windows, dial } = device.connect().map_err(|error| {
            tell(device, &why(device, &error));
            error.errno()
        })?;
        let control = Control::new(connection);
        let is_remote = control.is_remote();
        // The device reads and writes registered memory through this descriptor.
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
        control.end_with(events.socket().try_clone().map_err(|_| libc::EMFILE)?);
        let mut known: Vec<_> = windows.inodes().chain(parts.iter().map(|(inode, _)| *inode)).collect();
        known.sort_unstable();
        known.dedup();
        lost::give_back(&control, &known);
        let gone: Vec<_> = info.suspects.iter().filter(|suspect| suspect.is_gone()).copied().collect();
        if !gone.is_empty() {
            // The answer does not matter: it is about other connections.
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
            stand_ins: Arc::default(),
            parts,
        })
    }

    pub const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Is true if the device is at the host of this virtual machine. The device then accesses only memory in its
    /// window.
    pub const fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Is true if the device gives pages of a window.
    pub const fn has_window(&self) -> bool {
        self.has_window
    }

    /// Returns the source of asynchronous events.
    pub const fn events(&self) -> &Feed<8> {
        &self.events
    }

    /// Returns a descriptor that hangs up when the device is gone.
    pub fn life(&self) -> BorrowedFd<'_> {
        self.events.socket().as_fd()
    }

    pub const fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Returns the lenders of the pages that this device gives us from its windows.
    pub fn lenders(&self) -> &[Arc<Lender>] {
        &self.lenders
    }

    pub const fn stand_ins(&self) -> &Arc<StandIns> {
        &self.stand_ins
    }

    /// Starts the thread that copies for regions whose memory can't move, unless it runs.
    ///
    /// # Errors
    /// The device's or the kernel's.
    pub fn serve_copies(&self) -> Outcome<()> {
        self.stand_ins.serve(|| {
            let (_, given) = self.ask_for(&Request::ServeCopies)?;
            let [report, jobs] = <[Given; 2]>::try_from(given).map_err(|_| libc::EPROTO)?;
            let report = CopyReport::new(self.map(report, CopyReport::BYTES)?);
            Ok((Feed::new(self.socket(jobs)?, None)?, report))
        })
    }

    /// Maps memory that came with an answer, which the device made for this program.
    ///
    /// # Errors
    /// `EIO` if the memory is not as agreed, or can't be mapped.
    pub fn map(&self, given: Given, len: usize) -> Outcome<Memory> {
        map(&self.windows, given, len, &mut self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Maps memory of a peer, in one part or more.
    ///
    /// # Errors
    /// The same as for [`Self::map`].
    pub fn map_of_peer(&self, given: Vec<Given>, len: usize) -> Outcome<Memory> {
        self.windows.map_all(given, len).map_err(|_| libc::EIO)
    }

    /// Returns the socket that came with an answer.
    ///
    /// # Errors
    /// If there is none, or the device is gone.
    pub fn socket(&self, given: Given) -> Outcome<OwnedFd> {
        self.dial.socket(given).map_err(|error| error.errno())
    }

    /// Sends a request whose answer brings no descriptors or window parts.
    ///
    /// # Errors
    /// The device's error; `EIO` if it is gone.
    pub fn ask(&self, request: &Request) -> Outcome<Reply> {
        self.ask_for(request).map(|(reply, _)| reply)
    }

    /// Sends a request whose answer brings descriptors or window parts.
    ///
    /// # Errors
    /// The same as for [`Self::ask`].
    pub fn ask_for(&self, request: &Request) -> Outcome<(Reply, Vec<Given>)> {
        self.ask_with(request, &[])
    }

    /// Sends a request together with descriptors or window parts; its answer may bring some, too.
    ///
    /// # Errors
    /// The same as for [`Self::ask`].
    pub fn ask_with(&self, request: &Request, along: &[Lent<'_>]) -> Outcome<(Reply, Vec<Given>)> {
        self.ask_quietly(request, along).map_err(|errno| self.noted(errno))
    }

    /// Sends a request like [`Self::ask_with`], and leaves the consequences of the device's end to [`Self::noted`].
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

    /// Returns an error. If the device's end was the reason for it, notes that the device is gone.
    pub fn noted(&self, errno: c_int) -> c_int {
        if self.control.has_failed() {
            self.set_dead();
        }
        errno
    }

    /// Requests new pages of a window, and returns one source or more, each with its length. After an error, the caller
    /// must call [`Self::noted`].
    ///
    /// # Errors
    /// The same as for [`Self::ask`].
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

    /// Removes an object. Succeeds if the device is gone, because its objects are gone with it.
    ///
    /// # Errors
    /// The device's error, if it refuses.
    pub fn take_away(&self, request: &Request) -> Outcome<()> {
        match self.ask(request) {
            Err(_) if self.is_dead() => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Tells the device that a queue has work.
    pub fn ring(&self, doorbell: u32) {
        if self.doorbells.ring(doorbell) == Rung::Asleep {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let bytes = 1_u64.to_ne_bytes();
        if self.is_remote {
            // If there is no room, the device has not yet read an earlier message, and that one wakes it.
            let _ = send(&self.wake, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        } else {
            let _ = rustix::io::write(&self.wake, &bytes);
        }
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Notes that the device is gone, and makes regions' pages private: the device's next instance may give the
    /// pages of its window to others.
    pub fn set_dead(&self) {
        if !self.dead.swap(true, Ordering::AcqRel) {
            self.stand_ins.clear();
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
        self.stand_ins.end();
        moved_pages::forget(&self.control, &self.lenders);
        if self.is_dead() {
            let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
            parts.drain(..).for_each(|(window, part)| lost::note(window, part));
        }
    }
}

/// Maps memory that a device made. If it is a part of a window, notes the part in `parts`.
fn map(windows: &Windows, given: Given, len: usize, parts: &mut Vec<(u64, Part)>) -> Outcome<Memory> {
    if let Given::Part(part) | Given::Window(_, part) = &given {
        parts.extend(windows.inode(&given).map(|inode| (inode, *part)));
    }
    windows.map(given, len).map_err(|_| libc::EIO)
}

/// The kernel's pages here must be as large as a window's.
const _: () = assert!(PAGE == 4096);

const fn errno(refusal: &Refusal) -> c_int {
    if refusal.errno > 0 { refusal.errno } else { libc::EINVAL }
}

/// The program can't open its own memory. A process that is not "dumpable" (`PR_SET_DUMPABLE`: after `setuid`, when
/// its file can't be read, or at its own request) does not own its files in `/proc`, unless it is root.
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

fn own_memory(device: &Endpoint) -> Outcome<OwnedFd> {
    let memory = rustix::fs::open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    memory.map_err(|error| {
        tell(device, &NoMemory(error));
        error.raw_os_error()
    })
}

/// Explains why a device can't be reached, and what may help.
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
        // The program may have closed standard error.
        let _ = writeln!(std::io::stderr(), "libibverbs: {device}: {refusal}");
    }
}

/// Reports once that a device has no room. Users do not expect a window to be full, and programs say no more than
/// the error; they may try again and again (UCX does), so it is reported only once.
fn tell_once(refusal: &Refusal) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        // The program may have closed standard error.
        let _ = writeln!(std::io::stderr(), "libibverbs: {refusal}");
    }
}

/// Returns the only thing that came with an answer.
///
/// # Errors
/// `EIO` if none came, or more than one.
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
