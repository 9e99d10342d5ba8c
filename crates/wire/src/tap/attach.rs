//! Creating a tap and querying it: the requests that /dev/net/tun takes.

use super::TapPort;
use crate::device::{Device, address_of, name_of, request};
use crate::sys;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Bytes of the vnet header: with num_buffers, as vhost uses it.
const HEADER: libc::c_int = mem::vnet::VNET_HEADER as libc::c_int;

/// Gets a descriptor of the device's network namespace (linux/if_tun.h, since 5.2).
const TUNGETDEVNETNS: libc::Ioctl = libc::_IO(b'T' as u32, 227);

/// Sets whether the device has carrier (linux/if_tun.h, since 5.0).
const TUNSETCARRIER: libc::Ioctl = libc::_IOW::<libc::c_int>(b'T' as u32, 226);

/// Creates the device with all its queues, in this thread's network namespace, and sets it up.
pub(crate) fn create(port: &TapPort) -> io::Result<Vec<OwnedFd>> {
    let mut queues = Vec::new();
    for _ in 0..port.queues.max(1) {
        let queue = open()?;
        let first = queues.is_empty();
        attach(queue.as_fd(), &port.device, first, port.offload)?;
        if first {
            Device::new(&port.device)?.configure(port.mtu, port.mac)?;
        }
        queues.push(queue);
    }
    Ok(queues)
}

/// Opens a descriptor that is not attached to a device yet.
fn open() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(c"/dev/net/tun", flags, Mode::empty())?)
}

/// Attaches a queue to the device `name`; the `first` queue creates the device. With `offload`, senders may leave
/// checksums and segmentation to us.
fn attach(tap: BorrowedFd<'_>, name: &str, first: bool, offload: bool) -> io::Result<()> {
    let mut request = request(name)?;
    let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
    let exclusive = if first { libc::IFF_TUN_EXCL } else { 0 };
    request.ifr_ifru.ifru_flags = (kind | exclusive) as i16;
    let mut header = HEADER;
    let mut little_endian: libc::c_int = 1;
    // SAFETY: the first takes an ifreq without pointers, the others an integer.
    unsafe {
        sys::ioctl(tap, libc::TUNSETIFF, &mut request).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) if first => io::Error::other(format!(
                "there is a device {name} already: choose another name, unless it is a tap of which nobody has need \
                 (`ip tuntap` lists taps; then remove it, `ip link del {name}`, or end the process that has it)"
            )),
            _ => error,
        })?;
        sys::ioctl(tap, libc::TUNSETVNETHDRSZ, &mut header)?;
        sys::ioctl(tap, libc::TUNSETVNETLE, &mut little_endian)?;
    }
    set_offload(tap, offload)
}

/// Sets whether a queue's device may pass on frames with unfinished checksums and segmentation.
///
/// # Errors
/// If the device no longer exists.
pub fn set_offload(tap: BorrowedFd<'_>, offload: bool) -> io::Result<()> {
    let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let offloads = if offload { all } else { 0 };
    // SAFETY: takes its flags by value.
    sys::check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) })?;
    Ok(())
}

#[must_use]
pub fn exists(tap: BorrowedFd<'_>) -> bool {
    name(tap).is_ok()
}

/// Changes the device's link-layer address, wherever it is, and its MTU if it is in this thread's network namespace:
/// the kernel changes the MTU only there.
pub(crate) fn configure(tap: BorrowedFd<'_>, mtu: u16, mac: Option<[u8; 6]>) -> io::Result<()> {
    if let Some(mac) = mac {
        let mut request = request("unknown")?;
        request.ifr_ifru.ifru_hwaddr = address_of(mac);
        // SAFETY: takes an ifreq without pointers.
        unsafe { sys::ioctl(tap, libc::SIOCSIFHWADDR as libc::Ioctl, &mut request)? };
    }
    if !is_here(&namespace(tap)?)? {
        return Err(io::Error::other(format!(
            "it is in another network namespace: run `ip link set {} mtu {mtu}` there",
            name(tap)?
        )));
    }
    Device::new(&name(tap)?)?.set_mtu(mtu)
}

/// Returns whether this thread is in the network namespace.
pub(crate) fn is_here(namespace: &OwnedFd) -> io::Result<bool> {
    let here = std::fs::metadata("/proc/thread-self/ns/net")?;
    let there = rustix::fs::fstat(namespace)?;
    Ok((here.dev(), here.ino()) == (there.st_dev, there.st_ino))
}

pub(crate) fn set_carrier(tap: BorrowedFd<'_>, up: bool) -> io::Result<()> {
    let mut carrier = libc::c_int::from(up);
    // SAFETY: takes an integer.
    unsafe { sys::ioctl(tap, TUNSETCARRIER, &mut carrier) }.map(drop)
}

/// Returns the current name of the device; fails with `EBADFD` if it no longer exists.
pub(crate) fn name(tap: BorrowedFd<'_>) -> io::Result<String> {
    let mut request = request("unknown")?;
    // SAFETY: takes an ifreq, which it fills.
    unsafe { sys::ioctl(tap, libc::TUNGETIFF, &mut request)? };
    Ok(name_of(&request))
}

/// Returns the current network namespace of a queue's device.
///
/// # Errors
/// If the device no longer exists, or permission is missing (CAP_NET_ADMIN there).
pub fn namespace(tap: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: takes no argument; the descriptor returned is ours alone.
    unsafe {
        let fd = sys::check(libc::ioctl(tap.as_raw_fd(), TUNGETDEVNETNS))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
