//! bpf(2): maps, programs and links, as descriptors that release their objects when closed.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::from_mut;

// Commands and kinds of linux/bpf.h.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const PROG_HAS_FRAGS: u32 = 1 << 5;

/// Bytes of the verifier's log that are kept.
const LOG: usize = 64 << 10;

/// The place in the kernel where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Mode {
    /// In the driver, before the kernel makes a packet of the frame.
    Native = 1 << 2,
    /// After the kernel has made a packet of the frame, with any driver.
    Generic = 1 << 1,
}

/// Why a program was not loaded.
#[derive(Debug)]
pub(crate) enum LoadError {
    System(io::Error),
    /// The verifier refused the program and wrote this log.
    Refused(String),
}

/// Makes a system call whose result is not a descriptor.
///
/// # Safety
/// `T` is the leading part of the command's `union bpf_attr`; the pointers in it are valid.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<RawFd> {
    // SAFETY: by the caller's promise; the kernel treats everything after the given size as zero.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Makes a system call that returns a new descriptor.
///
/// # Safety
/// As for [`bpf`], and `command` must return a descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: by the caller's promise; the descriptor is ours alone.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attributes)?)) }
}

/// Creates a map from queue numbers below `queues` to AF_XDP sockets.
pub(crate) fn create_xskmap(queues: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    }
    let mut attributes =
        Attributes { map_type: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues };
    // SAFETY: these are the command's attributes; they hold no pointer.
    unsafe { bpf_fd(MAP_CREATE, &mut attributes) }
}

/// Puts a socket into the map. The kernel removes it when the socket is closed.
pub(crate) fn set_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map: RawFd,
        padding: u32,
        key: *const u32,
        value: *const RawFd,
        flags: u64,
    }
    let value = socket.as_raw_fd();
    let mut attributes =
        Attributes { map: map.as_raw_fd(), padding: 0, key: &queue, value: &value, flags: 0 };
    // SAFETY: these are the command's attributes; key and value have the map's sizes.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Loads an XDP program. With `frags`, it accepts frames in several buffers (since 5.18).
pub(crate) fn load_program(code: &[u64], frags: bool) -> Result<OwnedFd, LoadError> {
    let error = match try_load(code, frags, None) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    // Once more, to learn the reason.
    let mut log = vec![0; LOG];
    let _ = try_load(code, frags, Some(&mut log));
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
    if log.is_empty() {
        Err(LoadError::System(error))
    } else {
        Err(LoadError::Refused(log.trim_end().to_owned()))
    }
}

fn try_load(code: &[u64], frags: bool, log: Option<&mut [u8]>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program_type: u32,
        instructions: u32,
        code: *const u64,
        license: *const libc::c_char,
        log_level: u32,
        log_size: u32,
        log: *mut u8,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
    }
    let (log_level, log_size, log) =
        log.map_or((0, 0, std::ptr::null_mut()), |log| (1, log.len() as u32, log.as_mut_ptr()));
    let mut attributes = Attributes {
        program_type: PROG_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr(),
        license: c"Apache-2.0".as_ptr(),
        log_level,
        log_size,
        log,
        kernel_version: 0,
        flags: if frags { PROG_HAS_FRAGS } else { 0 },
        name: *b"viaduct_wire\0\0\0\0",
        interface: 0,
        attach_type: ATTACH_XDP,
    };
    // SAFETY: these are the command's attributes; code and log have the lengths given.
    unsafe { bpf_fd(PROG_LOAD, &mut attributes) }
}

/// A program attached to a device. Dropping it detaches the program.
#[derive(Debug)]
pub(crate) struct Link {
    pub fd: OwnedFd,
    pub mode: Mode,
}

impl Link {
    /// Attaches natively if the driver supports that, otherwise generically.
    pub(crate) fn attach(program: BorrowedFd<'_>, interface: i32) -> io::Result<Self> {
        let native = Self::attach_in(Mode::Native, program, interface);
        native.or_else(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EPERM | libc::ENODEV) => Err(error),
            _ => Self::attach_in(Mode::Generic, program, interface),
        })
    }

    fn attach_in(mode: Mode, program: BorrowedFd<'_>, interface: i32) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            program: RawFd,
            interface: i32,
            attach_type: u32,
            flags: u32,
        }
        let mut attributes = Attributes {
            program: program.as_raw_fd(),
            interface,
            attach_type: ATTACH_XDP,
            flags: mode as u32,
        };
        // SAFETY: these are the command's attributes; they hold no pointer.
        let fd = unsafe { bpf_fd(LINK_CREATE, &mut attributes)? };
        Ok(Self { fd, mode })
    }
}

pub(crate) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link: RawFd,
        program: RawFd,
        flags: u32,
        expected: u32,
    }
    let (link, program) = (link.as_raw_fd(), program.as_raw_fd());
    let mut attributes = Attributes { link, program, flags: 0, expected: 0 };
    // SAFETY: these are the command's attributes; they hold no pointer.
    unsafe { bpf(LINK_UPDATE, &mut attributes) }.map(drop)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs a program on a frame in the kernel; returns its verdict.
    pub(crate) fn verdict(program: BorrowedFd<'_>, frame: &[u8]) -> u32 {
        const PROG_TEST_RUN: libc::c_int = 10;
        #[repr(C)]
        struct Attributes {
            program: RawFd,
            verdict: u32,
            input_len: u32,
            output_len: u32,
            input: *const u8,
            output: *mut u8,
            repeat: u32,
            duration: u32,
        }
        let mut attributes = Attributes {
            program: program.as_raw_fd(),
            verdict: 0,
            input_len: frame.len() as u32,
            output_len: 0,
            input: frame.as_ptr(),
            output: std::ptr::null_mut(),
            repeat: 0,
            duration: 0,
        };
        // SAFETY: these are the command's attributes; the input has the length given.
        unsafe { bpf(PROG_TEST_RUN, &mut attributes) }.expect("BPF_PROG_TEST_RUN: run as root");
        attributes.verdict
    }

    #[test]
    fn what_the_verifier_refuses_comes_with_its_log() {
        // Exits without setting R0.
        let error = load_program(&[0x95], false).unwrap_err();
        let LoadError::Refused(log) = error else { panic!("{error:?}: run as root") };
        assert!(log.contains("R0 !read_ok"), "{log}");
    }
}
