//! The connection to the device: control messages, doorbells, and whether it is alive.

use crate::errno::Outcome;
use crate::feed::Feed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::ffi::c_int;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use uverbs::{
    Connection, DeviceInfo, Doorbells, Given, Lent, Memory, Point, Refusal, Reply, Request, Rung,
    SocketError, point,
};

/// A device that was greeted.
#[derive(Debug)]
pub struct Link {
    control: Mutex<Connection>,
    doorbells: Doorbells,
    wake: OwnedFd,
    events: Feed<8>,
    info: DeviceInfo,
    dead: AtomicBool,
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

/// Opens a connection without sending anything.
///
/// # Errors
/// What the kernel says.
pub fn dial(path: &Path) -> Outcome<OwnedFd> {
    let name = SocketAddrUnix::new(path).map_err(rustix::io::Errno::raw_os_error)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(rustix::io::Errno::raw_os_error)?;
    connect(&socket, &name).map_err(rustix::io::Errno::raw_os_error)?;
    Ok(socket)
}

impl Link {
    /// Connects to the device behind this socket.
    ///
    /// # Errors
    /// The device's error if it refuses (it is reported on standard error), or the kernel's.
    pub fn open(path: &Path) -> Outcome<Self> {
        let mut control = Connection::new(dial(path)?);
        // The device uses it to read and write registered memory.
        let memory = rustix::fs::open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let memory = memory.map_err(|error| {
            tell(path, &NoMemory(error));
            error.raw_os_error()
        })?;
        let (reply, given) = exchange(
            &mut control,
            &Request::Hello { version: uverbs::VERSION, token: token() },
            &[Lent::from(memory.as_fd())],
        )
        .map_err(|_| libc::EIO)?;
        let Reply::Device(info) = reply.map_err(|refusal| {
            tell(path, &refusal);
            if refusal.errno > 0 { refusal.errno } else { libc::EINVAL }
        })?
        else {
            return Err(libc::EPROTO);
        };
        let [doorbells, wake, events] = <[Given; 3]>::try_from(given).map_err(|_| libc::EPROTO)?;
        let (wake, events) = (socket(wake)?, socket(events)?);
        let doorbells = map(doorbells, Doorbells::bytes(info.doorbells))?;
        let doorbells = Doorbells::new(doorbells, info.doorbells);
        let events = Feed::new(events, None)?;
        let dead = AtomicBool::new(false);
        Ok(Self { control: Mutex::new(control), doorbells, wake, events, info, dead })
    }

    /// The device's properties.
    pub const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Where asynchronous events come.
    pub const fn events(&self) -> &Feed<8> {
        &self.events
    }

    /// A descriptor that hangs up when the device is gone.
    pub fn life(&self) -> BorrowedFd<'_> {
        self.events.socket().as_fd()
    }

    /// Number of the descriptor for control messages.
    pub fn control(&self) -> c_int {
        use std::os::fd::AsRawFd;
        self.lock().as_fd().as_raw_fd()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request whose answer has nothing along.
    ///
    /// # Errors
    /// The device's error; `EIO` if it is gone.
    pub fn ask(&self, request: &Request) -> Outcome<Reply> {
        self.ask_for(request).map(|(reply, _)| reply)
    }

    /// Makes a request whose answer has more along.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_for(&self, request: &Request) -> Outcome<(Reply, Vec<Given>)> {
        self.ask_with(request, &[])
    }

    /// Makes a request with more along, whose answer may have some.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_with(&self, request: &Request, along: &[Lent<'_>]) -> Outcome<(Reply, Vec<Given>)> {
        if self.is_dead() {
            return Err(libc::EIO);
        }
        match exchange(&mut self.lock(), request, along) {
            Ok((Ok(reply), given)) => Ok((reply, given)),
            Ok((Err(refusal), _)) => Err(if refusal.errno > 0 { refusal.errno } else { libc::EINVAL }),
            Err(_) => {
                self.set_dead();
                Err(libc::EIO)
            }
        }
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
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Whether the device is known to be gone.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Says that it is.
    pub fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Checks whether the device is gone.
    pub fn look(&self) {
        let mut events = [PollFd::new(self.events.socket(), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut events, Some(&now)).is_ok() && events[0].revents().intersects(PollFlags::HUP) {
            self.set_dead();
        }
    }
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

/// Reports once why there is no device.
fn tell(path: &Path, refusal: &impl std::fmt::Display) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        // The program may have closed it.
        let _ = writeln!(std::io::stderr(), "libibverbs: {}: {refusal}", path.display());
    }
}

type Answer = (Result<Reply, Refusal>, Vec<Given>);

fn exchange(control: &mut Connection, request: &Request, along: &[Lent<'_>]) -> Result<Answer, SocketError> {
    control.send(request, along)?;
    point(Point::Asked);
    control.receive()
}

/// Maps memory of the device.
///
/// # Errors
/// `EIO` if it is not as agreed, or can't be mapped.
pub fn map(given: Given, len: usize) -> Outcome<Memory> {
    match given {
        Given::Descriptor(file) => Memory::open(file, len),
        Given::Window(..) | Given::Part(_) | Given::Stream(_) => return Err(libc::EIO),
    }
    .map_err(|_| libc::EIO)
}

/// A socket of the device.
///
/// # Errors
/// `EIO` if it is not as agreed.
pub fn socket(given: Given) -> Outcome<OwnedFd> {
    given.descriptor().ok_or(libc::EIO)
}

/// The only thing along with an answer.
///
/// # Errors
/// `EIO` if there is any other number of them.
pub fn only(given: Vec<Given>) -> Outcome<Given> {
    <[Given; 1]>::try_from(given).map(|[only]| only).map_err(|_| libc::EIO)
}
