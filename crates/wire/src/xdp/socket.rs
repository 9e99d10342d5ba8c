//! Opening AF_XDP sockets: frame memory, the four rings, binding to a device's queue.

use super::ring::{Consumer, Producer};
use super::rx::PARTS;
use crate::buffers::Memory;
use crate::sys::{self, get, set};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketType};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a frame in the shared memory: a page, which every driver supports.
pub(crate) const CHUNK: usize = 4096;

/// Bytes at the start of a received frame that the kernel reserves (XDP_PACKET_HEADROOM).
const KEPT: usize = 256;

/// Bytes that a received packet may have to fit one frame.
pub(crate) const FITS: usize = CHUNK - KEPT;

/// Number of frames for receiving, and of entries in the fill and receive rings.
pub(super) const RX_FRAMES: u32 = 2048;

/// Number of frames for sending, and of entries in the transmit and completion rings.
pub(super) const TX_FRAMES: u32 = 1024;

const FRAMES: usize = (RX_FRAMES + TX_FRAMES) as usize * CHUNK;

/// Bytes of socket buffer: enough for all frames to send, as the kernel accounts them if it copies them.
const BUFFER: libc::c_int = TX_FRAMES as libc::c_int * 4 * CHUNK as libc::c_int;

/// A socket and the memory to which its rings refer. The socket is closed before the memory is unmapped.
pub(crate) struct Xsk {
    pub socket: OwnedFd,
    pub frames: Memory,
    /// The file that `frames` maps.
    pub file: OwnedFd,
}

/// The rings for receiving, and their socket.
pub(crate) struct RxRings {
    pub xsk: Arc<Xsk>,
    pub fill: Producer<u64>,
    pub rx: Consumer<libc::xdp_desc>,
}

/// The rings for sending, and their socket.
pub(crate) struct TxRings {
    pub xsk: Arc<Xsk>,
    pub completion: Consumer<u64>,
    pub tx: Producer<libc::xdp_desc>,
    /// Offsets of the frames that are not in flight. The vector never grows beyond its capacity.
    pub free: Vec<u64>,
    /// Bytes of the longest packet.
    pub longest: usize,
}

/// A socket that is not bound yet, and the memory for its frames, which is registered with the kernel. The memory is a
/// file, so that a different process can register it: the process that does is charged for locked memory, unless it may
/// lock any amount (CAP_IPC_LOCK).
#[derive(Debug)]
pub struct XdpSocket {
    pub socket: OwnedFd,
    /// The file with the memory of the frames.
    pub frames: OwnedFd,
}

impl XdpSocket {
    pub(crate) fn new() -> io::Result<Self> {
        let socket = sys::socket(AddressFamily::XDP, SocketType::RAW)?;
        let fd = socket.as_fd();
        let frames = memfd_create("viaduct-frames", MemfdFlags::CLOEXEC)?;
        ftruncate(&frames, FRAMES as u64)?;
        let mapping = Memory::shared(frames.as_fd(), 0, FRAMES)?;
        let area = mapping.segment(0, FRAMES);
        // SAFETY: zeros are a valid xdp_umem_reg.
        let mut memory: libc::xdp_umem_reg = unsafe { zeroed() };
        memory.addr = area.as_ptr() as u64;
        memory.len = area.len() as u64;
        memory.chunk_size = CHUNK as u32;
        // The kernel holds the pages from here on, whoever maps them.
        set(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &memory)?;
        set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &BUFFER)
            .or_else(|_| set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &BUFFER))?;
        Ok(Self { socket, frames })
    }

    fn map(self) -> io::Result<Arc<Xsk>> {
        let Self { socket, frames: file } = self;
        Ok(Arc::new(Xsk { frames: Memory::shared(file.as_fd(), 0, FRAMES)?, socket, file }))
    }
}

/// Binds a socket to queue `queue` of the interface `index`, and gives the kernel all frames for receiving. With
/// `several`, packets may take several frames (since 6.6).
pub(crate) fn open(xdp: XdpSocket, index: i32, queue: u32, several: bool) -> io::Result<(RxRings, TxRings)> {
    size_rings(&xdp.socket)?;
    let frames = (RX_FRAMES..RX_FRAMES + TX_FRAMES).map(|frame| u64::from(frame) * CHUNK as u64).collect();
    let (mut rx, tx) = map(xdp.map()?, several, frames)?;
    for frame in 0..RX_FRAMES {
        rx.fill.push(u64::from(frame) * CHUNK as u64);
    }
    rx.fill.publish();
    bind(&rx.xsk.socket, index, queue, several)?;
    Ok((rx, tx))
}

/// Makes the rings of a socket, with their sizes.
pub(super) fn size_rings(socket: &OwnedFd) -> io::Result<()> {
    for (ring, size) in [
        (libc::XDP_UMEM_FILL_RING, RX_FRAMES),
        (libc::XDP_UMEM_COMPLETION_RING, TX_FRAMES),
        (libc::XDP_RX_RING, RX_FRAMES),
        (libc::XDP_TX_RING, TX_FRAMES),
    ] {
        set(socket.as_fd(), libc::SOL_XDP, ring, &(size as libc::c_int))?;
    }
    Ok(())
}

/// Maps the rings of a bound socket in the state in which a different process left them, which no longer uses them.
/// `free` has the numbers of the frames for sending that were not in flight. If `known` is the same socket, its mapping
/// of the frames is used. The kernel allows all this since 6.4.
pub(crate) fn resume(
    xdp: XdpSocket,
    several: bool,
    free: &[u32],
    known: Option<Arc<Xsk>>,
) -> io::Result<(RxRings, TxRings)> {
    if fstat(&xdp.frames)?.st_size != FRAMES as i64 {
        return Err(sys::invalid("it has other frames than this version uses"));
    }
    let mut seen = [false; TX_FRAMES as usize];
    let mut frames = Vec::with_capacity(TX_FRAMES as usize);
    for &frame in free {
        match seen.get_mut(frame.wrapping_sub(RX_FRAMES) as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(sys::invalid("a frame is not for sending, or free twice")),
        }
        frames.push(u64::from(frame) * CHUNK as u64);
    }
    let xsk = match known {
        Some(known) if known.is(&xdp)? => known,
        _ => xdp.map()?,
    };
    map(xsk, several, frames)
}

/// Maps the rings as they are. A packet takes one frame or, with `several`, possibly more.
fn map(xsk: Arc<Xsk>, several: bool, free: Vec<u64>) -> io::Result<(RxRings, TxRings)> {
    let fd = xsk.socket.as_fd();
    let offsets: libc::xdp_mmap_offsets = get(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
    let fill = Producer::map(fd, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, RX_FRAMES)?;
    let completion = Consumer::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, TX_FRAMES)?;
    let rx = Consumer::map(fd, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, RX_FRAMES)?;
    let tx = Producer::map(fd, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, TX_FRAMES)?;
    // One frame less than the kernel's limit, because the kernel may need one for itself.
    let longest = if several { CHUNK * (PARTS - 1) } else { CHUNK };
    Ok((RxRings { xsk: xsk.clone(), fill, rx }, TxRings { xsk, completion, tx, free, longest }))
}

/// Binds without copies if the driver supports that, otherwise with copies.
fn bind(socket: &OwnedFd, index: i32, queue: u32, several: bool) -> io::Result<()> {
    // SAFETY: zeros are a valid sockaddr_xdp.
    let mut address: libc::sockaddr_xdp = unsafe { zeroed() };
    address.sxdp_family = libc::AF_XDP as u16;
    address.sxdp_flags = libc::XDP_USE_NEED_WAKEUP | if several { libc::XDP_USE_SG } else { 0 };
    address.sxdp_ifindex = index as u32;
    address.sxdp_queue_id = queue;
    sys::bind(socket.as_fd(), &address)
}

impl TxRings {
    /// Takes back the frames of packets that were sent.
    pub(crate) fn reclaim(&mut self) {
        let Self { completion, free, .. } = self;
        let done = completion.available();
        if done > 0 {
            free.extend((0..done).map(|i| completion.peek(i) & !(CHUNK as u64 - 1)));
            completion.advance(done);
        }
    }
}

impl Xsk {
    /// Returns whether the descriptors in `other` are those of this socket and its frames.
    fn is(&self, other: &XdpSocket) -> io::Result<bool> {
        let file = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        Ok(file(&self.socket)? == file(&other.socket)? && file(&self.file)? == file(&other.frames)?)
    }

    /// Returns how many arriving frames were dropped since the socket was opened.
    pub(crate) fn drops(&self) -> u64 {
        get::<libc::xdp_statistics>(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS)
            .map_or(0, |statistics| statistics.rx_dropped + statistics.rx_ring_full)
    }

    /// Returns whether the driver works on our frames without copies.
    pub(crate) fn zero_copy(&self) -> bool {
        get::<libc::xdp_options>(self.socket.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS)
            .is_ok_and(|options| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }
}
