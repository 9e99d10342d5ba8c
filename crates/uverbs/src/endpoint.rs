//! Endpoints of devices, for the libraries: how a library reaches a device, and the windows that both have.

pub mod agent;

use crate::connection::Connection;
use crate::opening::{Claim, Nonce, OpeningError, open_program, open_ticket};
use crate::part::{Given, PAGE, Part, WindowKind};
use crate::suspect::started;
use crate::window::{DATA, Uuid, WindowHeader};
use crate::{Memory, MemoryError};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use seqpacket::SocketError;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The directory of windows, in a virtual machine.
const DEVICES: &str = "/dev";
/// The start of the windows' names.
const DAX: &str = "dax";

/// Time for which a program obeys a device that tells it to try again, as a device does whose virtual machine has just
/// moved; and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// A way to reach a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The device is at a local socket of this path.
    Socket(PathBuf),
    /// The device is at the host of this virtual machine, which gives it this window: `/dev/daxN.M`.
    Window(PathBuf),
    /// The device is used as from a virtual machine, with files for its windows, and a local socket for
    /// `AF_VSOCK`. This is for processes that act like programs in virtual machines.
    Files {
        own: PathBuf,
        /// The window that the device has in common with others.
        common: Option<PathBuf>,
        socket: PathBuf,
    },
}

impl Endpoint {
    /// Parses a user's text: a socket's path, a window's path, or `WINDOW[+COMMON]@SOCKET`, with absolute paths.
    #[must_use]
    pub fn parse(text: &OsStr) -> Self {
        let Some(text) = text.to_str() else { return Self::Socket(text.into()) };
        if let Some((windows, socket)) =
            text.rsplit_once("@/").filter(|(windows, _)| windows.starts_with('/'))
        {
            let (own, common) = match windows.split_once("+/") {
                Some((own, common)) => (own, Some(Path::new("/").join(common))),
                None => (windows, None),
            };
            return Self::Files { own: own.into(), common, socket: Path::new("/").join(socket) };
        }
        let path = PathBuf::from(text);
        let name = path.file_name().map(|name| name.to_string_lossy());
        let is_device = path.starts_with(DEVICES) && name.is_some_and(|name| name.starts_with(DAX));
        if is_device { Self::Window(path) } else { Self::Socket(path) }
    }

    /// Returns the windows of this virtual machine that stand for devices, in the order of their numbers.
    #[must_use]
    pub fn windows() -> Vec<Self> {
        let is_own =
            |path: &PathBuf| Window::open(path, 0).is_ok_and(|window| window.header.kind == WindowKind::Own);
        dax().into_iter().filter(is_own).map(Self::Window).collect()
    }

    /// Connects to the device, and proves that the program may use it. Does not send the first request.
    ///
    /// # Errors
    /// The kernel's or the device's error.
    pub fn connect(&self) -> Result<Joined, JoinError> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.try_to_connect() {
                Err(error) if error.errno() == libc::EAGAIN && Instant::now() < end => {
                    std::thread::sleep(PAUSE)
                }
                joined => return joined,
            }
        }
    }

    fn try_to_connect(&self) -> Result<Joined, JoinError> {
        let (own, dial, find): (_, _, &dyn Fn(Uuid) -> Result<Window, JoinError>) = match self {
            Self::Socket(path) => {
                let connection = Connection::new(dial(path)?);
                return Ok(Joined { connection, windows: Windows::default(), dial: Dial::Never });
            }
            Self::Window(path) => {
                let own = Window::open(path, 0)?;
                let port = own.header.port;
                (own, Dial::Host(port), &find_common)
            }
            Self::Files { own, common, socket } => {
                let find = move |_| Window::open(common.as_ref().ok_or(JoinError::NoCommon)?, DATA);
                return Self::join(Window::open(own, DATA)?, Dial::Socket(socket.clone()), &find);
            }
        };
        Self::join(own, dial, find)
    }

    fn join(
        own: Window,
        dial: Dial,
        find: &dyn Fn(Uuid) -> Result<Window, JoinError>,
    ) -> Result<Joined, JoinError> {
        let read = |offset| own.read(offset);
        let (connection, common) =
            open_program(dial.stream()?, own.header.uuid, claim(own.is_virtio()), read)?;
        let is_it =
            |window: &Window, uuid| window.header.uuid == uuid && window.header.kind == WindowKind::Common;
        let common = match common {
            None => None,
            Some(uuid) => {
                Some(find(uuid).ok().filter(|window| is_it(window, uuid)).ok_or(JoinError::NoCommon)?)
            }
        };
        let windows = Windows { own: Some(own), common };
        Ok(Joined { connection, windows, dial })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) | Self::Window(path) => write!(f, "{}", path.display()),
            Self::Files { own, common, socket } => {
                write!(f, "{}", own.display())?;
                common.iter().try_for_each(|common| write!(f, "+{}", common.display()))?;
                write!(f, "@{}", socket.display())
            }
        }
    }
}

/// A reason why a program can't use a device.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("{0}")]
    Kernel(#[from] Errno),
    #[error("{0}")]
    Opening(#[from] OpeningError),
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The path does not lead to a window.
    #[error("it is no window of a device")]
    NoWindow,
    /// The second window, which the device has in common with others of its trust, is missing.
    #[error("the window that the device has in common with others is missing, or can't be opened")]
    NoCommon,
}

impl JoinError {
    /// Returns the error number for programs.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Kernel(errno) | Self::Opening(OpeningError::Socket(SocketError::Kernel(errno))) => {
                errno.raw_os_error()
            }
            Self::Opening(OpeningError::Refused(refusal)) if refusal.errno > 0 => refusal.errno,
            Self::NoCommon | Self::NoWindow => libc::ENODEV,
            _ => libc::EIO,
        }
    }
}

#[derive(Debug)]
pub struct Joined {
    pub connection: Connection,
    /// The windows with the memory that the device gives as parts.
    pub windows: Windows,
    /// The way to open streams for the tickets that the device gives.
    pub dial: Dial,
}

/// A way to open another stream.
#[derive(Clone, Debug)]
pub enum Dial {
    /// No stream is needed: the device gives descriptors.
    Never,
    /// Connects to the host, at this port.
    Host(u32),
    /// Connects to a local socket.
    Socket(PathBuf),
}

impl Dial {
    fn stream(&self) -> Result<OwnedFd, Errno> {
        match self {
            Self::Never => Err(Errno::OPNOTSUPP),
            Self::Host(port) => dial_host(*port),
            Self::Socket(path) => dial_local(path, SocketType::STREAM),
        }
    }

    /// Returns the socket that the device gives.
    ///
    /// # Errors
    /// If it gives none, or does not accept the ticket.
    pub fn socket(&self, given: Given) -> Result<OwnedFd, JoinError> {
        match given {
            Given::Descriptor(socket) => Ok(socket),
            Given::Stream(ticket) => Ok(open_ticket(self.stream()?, ticket)?),
            Given::Part(_) | Given::Window(..) => Err(JoinError::NoWindow),
        }
    }
}

/// Connects to a device at a local socket, without sending anything.
///
/// # Errors
/// The kernel's error.
pub fn dial(path: &Path) -> Result<OwnedFd, Errno> {
    dial_local(path, SocketType::SEQPACKET)
}

fn dial_local(path: &Path, kind: SocketType) -> Result<OwnedFd, Errno> {
    let name = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &name)?;
    Ok(socket)
}

/// Connects to a port of the host of this virtual machine (`vsock(7)`).
fn dial_host(port: u32) -> Result<OwnedFd, Errno> {
    dial_host_by(socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?, port)
}

fn dial_host_by(socket: OwnedFd, port: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: numbers, which may all be zero.
    let mut name: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    (name.svm_family, name.svm_port, name.svm_cid) =
        (libc::AF_VSOCK as libc::sa_family_t, port, libc::VMADDR_CID_HOST);
    let len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: an address of that length.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), len) } != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(socket)
}

/// Returns the claim that identifies this program.
fn claim(is_virtio: bool) -> Claim {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim_end().to_owned();
    let boot = read("/proc/sys/kernel/random/boot_id").replace('-', "").parse().unwrap_or_default();
    let (pid, uid) = (std::process::id() as i32, rustix::process::getuid().as_raw());
    let started = started("self").unwrap_or(0);
    let namespace = |path| rustix::fs::stat(path).map_or(0, |stat| stat.st_ino);
    // The time namespace determines how times are counted. The kernel's numbers of namespaces have 32 bits.
    let pid_namespace = namespace("/proc/self/ns/pid") | namespace("/proc/self/ns/time") << 32;
    Claim { pid, uid, program: read("/proc/self/comm"), boot, started, pid_namespace, is_virtio }
}

/// Returns the paths of all DAX devices, in the order of their numbers.
fn dax() -> Vec<PathBuf> {
    let number = |name: &str| {
        let (region, device) = name.strip_prefix(DAX)?.split_once('.')?;
        Some((region.parse::<u32>().ok()?, device.parse::<u32>().ok()?))
    };
    let entries = std::fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry.path())));
    let mut found: Vec<_> = numbered.collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

fn find_common(uuid: Uuid) -> Result<Window, JoinError> {
    let opened = dax().into_iter().filter_map(|path| Window::open(&path, 0).ok());
    let mut found = opened.filter(|window| window.header.uuid == uuid);
    found.next().ok_or(JoinError::NoCommon)
}

#[derive(Debug)]
pub struct Window {
    file: Arc<OwnedFd>,
    /// The offset of the window's data in the file.
    base: u64,
    header: WindowHeader,
}

impl Window {
    /// Opens the window whose data begins at `base` of a device or file.
    ///
    /// # Errors
    /// If there is no window, or it can't be opened.
    pub fn open(path: &Path, base: u64) -> Result<Self, JoinError> {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        // An access to a missing page would kill the program.
        let is_whole = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => u64::try_from(stat.st_size).is_ok_and(|size| size >= base + PAGE),
            FileType::CharacterDevice => true,
            _ => false,
        };
        if !is_whole {
            return Err(JoinError::NoWindow);
        }
        let mut bytes = [0; WindowHeader::BYTES];
        let header = read(&file, base, 0, &mut bytes).then(|| WindowHeader::from_bytes(&bytes)).flatten();
        let header = header.ok_or(JoinError::NoWindow)?;
        Ok(Self { file: Arc::new(file), base, header })
    }

    /// Is true if the window is a virtio device, according to its place among the machine's devices.
    fn is_virtio(&self) -> bool {
        let Ok(stat) = rustix::fs::fstat(&self.file) else { return false };
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let link = std::fs::canonicalize(format!("/sys/dev/char/{major}:{minor}"));
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && link.is_ok_and(|place| place.to_string_lossy().contains("/virtio"))
    }

    fn inode(&self) -> Option<u64> {
        Some(rustix::fs::fstat(&self.file).ok()?.st_ino)
    }

    /// Returns the challenge at an offset.
    fn read(&self, offset: u64) -> Option<Nonce> {
        let mut nonce = Nonce::default();
        let is_inside = offset.checked_add(nonce.len() as u64).is_some_and(|end| end <= self.header.len);
        (is_inside && read(&self.file, self.base, offset, &mut nonce)).then_some(nonce)
    }
}

/// Copies bytes of one page of a window.
fn read(file: &OwnedFd, base: u64, offset: u64, out: &mut [u8]) -> bool {
    let part = Part { window: WindowKind::Own, offset: offset / PAGE * PAGE, len: PAGE };
    Memory::open_part(file, base, part).is_ok_and(|page| page.read((offset % PAGE) as usize, out))
}

/// The windows that a program shares with a device.
#[derive(Debug, Default)]
pub struct Windows {
    own: Option<Window>,
    common: Option<Window>,
}

impl Windows {
    /// Returns the file of a part, and the offset of the window's data in it.
    ///
    /// # Errors
    /// If there is no such part.
    pub fn find(&self, given: Given) -> Result<(Arc<OwnedFd>, u64, Part), MemoryError> {
        match given {
            Given::Window(file, part) => Ok((Arc::new(file), DATA, part)),
            Given::Part(part) => {
                let is_inside = |window: &&Window| part.end().is_some_and(|end| end <= window.header.len);
                let window = self.of(part.window).filter(is_inside).ok_or(MemoryError::NoPart)?;
                Ok((window.file.clone(), window.base, part))
            }
            Given::Descriptor(_) | Given::Stream(_) => Err(MemoryError::NoPart),
        }
    }

    /// Returns the inode of a part's file or device, which identifies the window.
    #[must_use]
    pub fn inode(&self, given: &Given) -> Option<u64> {
        match given {
            Given::Window(file, _) => Some(rustix::fs::fstat(file).ok()?.st_ino),
            Given::Part(part) => self.of(part.window)?.inode(),
            Given::Descriptor(_) | Given::Stream(_) => None,
        }
    }

    /// Returns the inodes of all windows of a program in a virtual machine.
    pub fn inodes(&self) -> impl Iterator<Item = u64> {
        self.own.iter().chain(&self.common).filter_map(Window::inode)
    }

    const fn of(&self, kind: WindowKind) -> Option<&Window> {
        match kind {
            WindowKind::Own => self.own.as_ref(),
            WindowKind::Common => self.common.as_ref(),
        }
    }

    /// Maps the first `len` bytes of memory of the device.
    ///
    /// # Errors
    /// If the memory is not as agreed, or can't be mapped.
    pub fn map(&self, given: Given, len: usize) -> Result<Memory, MemoryError> {
        self.map_all(vec![given], len)
    }

    /// Maps the first `len` bytes of memory in several parts of one window, or in one file.
    ///
    /// # Errors
    /// The same as for [`Self::map`].
    pub fn map_all(&self, given: Vec<Given>, len: usize) -> Result<Memory, MemoryError> {
        if let [Given::Descriptor(file)] = &given[..] {
            return Memory::open(file, len);
        }
        let found = given.into_iter().map(|given| self.find(given)).collect::<Result<Vec<_>, _>>()?;
        let (file, base, first) = found.first().ok_or(MemoryError::NoPart)?;
        let parts: Vec<_> = found.iter().map(|(.., part)| *part).collect();
        let memory = Memory::open_parts(&**file, *base, &parts)?;
        let is_one = parts.iter().all(|part| part.window == first.window);
        if is_one && memory.len() >= len { Ok(memory) } else { Err(MemoryError::NoPart) }
    }
}

#[cfg(all(test, not(any(miri, loom))))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_written() {
        let files = |common: Option<&str>| Endpoint::Files {
            own: "/a/own".into(),
            common: common.map(PathBuf::from),
            socket: "/b@c/socket".into(),
        };
        let all = [
            ("/run/viaduct/rdma/c1", Endpoint::Socket("/run/viaduct/rdma/c1".into())),
            ("relative@x", Endpoint::Socket("relative@x".into())),
            ("/dev/dax0.0", Endpoint::Window("/dev/dax0.0".into())),
            ("/dev/shm/x", Endpoint::Socket("/dev/shm/x".into())),
        ];
        for (text, endpoint) in all {
            assert_eq!((Endpoint::parse(text.as_ref()), endpoint.to_string()), (endpoint, text.to_owned()));
        }
        for (text, endpoint) in
            [("/a/own@/b@c/socket", files(None)), ("/a/own+/a/x@/b@c/socket", files(Some("/a/x")))]
        {
            assert_eq!((Endpoint::parse(text.as_ref()), endpoint.to_string()), (endpoint, text.to_owned()));
        }
    }

    #[test]
    fn what_is_no_window_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("window");
        assert!(matches!(Window::open(&path, 0), Err(JoinError::Kernel(Errno::NOENT))));
        assert!(matches!(Window::open(Path::new("/dev/null"), 0), Err(JoinError::NoWindow)));
        std::fs::write(&path, [0; 4095]).unwrap();
        assert!(matches!(Window::open(&path, 0), Err(JoinError::NoWindow)));
        std::fs::write(&path, [0; 8192]).unwrap();
        assert!(matches!(Window::open(&path, 0), Err(JoinError::NoWindow)));
        let uuid = Uuid([3; 16]);
        let header = WindowHeader { kind: WindowKind::Own, uuid, len: 8192, port: 1, name: "web".into() };
        let mut bytes = vec![0; 3 * 4096];
        bytes[4096..4096 + WindowHeader::BYTES].copy_from_slice(&header.to_bytes());
        bytes[8192..8192 + 32].fill(9);
        std::fs::write(&path, bytes).unwrap();
        let window = Window::open(&path, 4096).unwrap();
        assert_eq!((&window.header, window.read(4096)), (&header, Some([9; 32])));
        assert!(window.read(8192).is_none() && window.read(u64::MAX).is_none());
        assert_ne!(claim(false), Claim { boot: Uuid::default(), ..claim(false) });
        let windows = Windows { own: Some(window), common: None };
        let part = |window, offset, len| Given::Part(Part { window, offset, len });
        assert!(windows.map(part(WindowKind::Own, 4096, 4096), 4096).is_ok());
        for (given, len) in [
            (part(WindowKind::Common, 4096, 4096), 1),
            (part(WindowKind::Own, 4096, 8192), 1),
            (part(WindowKind::Own, 4096, 4096), 4097),
            (Given::Stream(crate::Ticket(1)), 1),
        ] {
            assert!(windows.map(given, len).is_err());
        }
    }
}
