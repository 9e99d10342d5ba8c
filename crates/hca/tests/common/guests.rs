//! Virtual machines, as the daemon sees them: files as windows, and streams to a local socket.

use super::{App, Host, spec};
use hca::{Device, Window};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use uverbs::window::DATA;
use uverbs::{
    Backing, Connection, Endpoint, Extent, Given, Memory, Part, Refusal, Reply, Request, Segment, Stream,
    Uuid, WindowKind,
};

/// Bytes of a window's data.
pub const DATA_LEN: u64 = 16 << 20;

/// A window, and its file.
#[derive(Clone)]
pub struct TestWindow {
    pub file: Arc<OwnedFd>,
    pub window: Arc<Window>,
}

impl TestWindow {
    pub fn new(kind: WindowKind, number: u8) -> Self {
        let file = memfd_create("window", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, DATA + DATA_LEN).unwrap();
        Self::of(file, kind, number)
    }

    /// Returns the window of a file that exists already.
    pub fn of(file: OwnedFd, kind: WindowKind, number: u8) -> Self {
        let (uuid, ours) = (Uuid([number; 16]), file.try_clone().unwrap());
        let window = Window::open(ours, kind, uuid, &format!("vm{number}")).unwrap();
        Self { file: Arc::new(file), window }
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// A virtual machine with its device.
pub struct Guest {
    pub device: Device,
    pub own: TestWindow,
    pub endpoint: Endpoint,
}

impl Host {
    pub fn streams(&self, number: u8) -> PathBuf {
        self.dir.path().join(format!("vm{number}.vsock_4791"))
    }

    /// Starts a virtual machine, with the window of its trust if there is one.
    pub fn guest(&self, number: u8, common: Option<&TestWindow>) -> Guest {
        self.guest_with(number, TestWindow::new(WindowKind::Own, number), common)
    }

    pub fn guest_with(&self, number: u8, own: TestWindow, common: Option<&TestWindow>) -> Guest {
        let device = self.device_of(number, spec(number, 1)).0;
        device.set_windows(Some(own.window.clone()), common.map(|it| it.window.clone())).unwrap();
        let socket = self.streams(number);
        let _ = std::fs::remove_file(&socket);
        device.listen_streams(listener(&socket)).unwrap();
        let common = common.map(TestWindow::path);
        let endpoint = Endpoint::Files { own: own.path(), common, socket };
        Guest { device, own, endpoint }
    }
}

pub fn listener(path: &std::path::Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 1024).unwrap();
    socket
}

/// Connects a stream to a machine's device; it has said nothing yet.
pub fn dial(path: &std::path::Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

pub fn stranger(path: &std::path::Path) -> Connection {
    Connection::Stream(Stream::new(dial(path)))
}

/// Memory of a program in a window, registered.
pub struct Buffer {
    pub memory: Memory,
    pub extents: Vec<Extent>,
    /// The buffer's address in the program.
    pub address: u64,
    pub key: u32,
}

impl Buffer {
    /// Returns the segment of a piece of the buffer.
    pub fn segment(&self, offset: usize, len: usize) -> Segment {
        Segment { address: self.address + offset as u64, len: len as u32, lkey: self.key }
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(self.memory.write(offset, bytes));
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.read(offset, &mut bytes));
        bytes
    }
}

impl App {
    /// Pages of a window.
    pub fn pages(&mut self, len: u64) -> Result<Vec<Given>, Refusal> {
        let (reply, given) = self.send_all(&Request::AllocPages { len })?;
        assert_eq!(reply, Reply::Done);
        Ok(given)
    }

    /// Registers pages that the program says to have at an address.
    pub fn register_at(
        &mut self,
        (address, length): (u64, u64),
        extents: &[Extent],
        access: u32,
    ) -> Result<u32, Refusal> {
        let pages = extents.to_vec();
        let asked = Request::RegMr { pd: self.pd, address, length, iova: address, access, pages };
        match self.ask(&asked)?.0 {
            Reply::Mr { lkey, .. } => Ok(lkey),
            other => panic!("{other:?}"),
        }
    }

    /// Registers a buffer in a window, of parts with these lengths.
    pub fn buffer_of(&mut self, lens: &[u64], access: u32) -> Buffer {
        let given: Vec<Given> = lens.iter().flat_map(|len| self.pages(*len).unwrap()).collect();
        let parts: Vec<_> = given.iter().map(part_of).collect();
        let len: u64 = parts.iter().map(|part| part.len).sum();
        let memory = self.windows.map_all(given, len as usize).unwrap();
        // The daemon looks whether programs of this kernel have something there.
        let is_remote = matches!(self.connection, Connection::Stream(_));
        let address = if is_remote { 0x7000_0000_0000 } else { memory.address() };
        let mut next = address;
        let extent = |part: &Part| {
            next += part.len;
            Extent { address: next - part.len, len: part.len, backing: Backing::Window(*part) }
        };
        let extents: Vec<_> = parts.iter().map(extent).collect();
        let key = self.register_at((address, len), &extents, access).unwrap();
        Buffer { memory, extents, address, key }
    }

    pub fn buffer(&mut self, len: u64, access: u32) -> Buffer {
        self.buffer_of(&[len], access)
    }
}

pub fn part_of(given: &Given) -> Part {
    match given {
        Given::Part(part) | Given::Window(_, part) => *part,
        other => panic!("{other:?}"),
    }
}
