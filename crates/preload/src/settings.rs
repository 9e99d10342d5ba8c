//! Settings from the environment, read once: programs may empty it.

use crate::sys;
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Most ports that can be named.
const PORTS: usize = 32;

pub struct Settings {
    pub eager: bool,
    /// Connections are offered after their first call.
    pub soon: bool,
    pub flap: bool,
    /// Whether the daemon may carry connections to other hosts.
    pub carries: bool,
    /// Nanoseconds that a wait may spin.
    pub spin: u64,
    pub path: [u8; 108],
    ports: [u16; PORTS],
    port_count: usize,
}

static ON: AtomicBool = AtomicBool::new(false);
static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());
static mut READ: Settings = Settings {
    eager: false,
    soon: false,
    flap: false,
    carries: false,
    spin: 30_000,
    path: [0; 108],
    ports: [0; PORTS],
    port_count: 0,
};
static DEFAULT: Settings = Settings {
    eager: false,
    soon: false,
    flap: false,
    carries: false,
    spin: 30_000,
    path: [0; 108],
    ports: [0; PORTS],
    port_count: 0,
};

/// Returns whether the library does anything.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

pub fn get() -> &'static Settings {
    // SAFETY: it is set once, to a static.
    unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }.unwrap_or(&DEFAULT)
}

fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the constructor runs before the program changes its environment.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: as above; the value ends with a zero.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Reads the environment. To be called once, before there are threads.
pub fn read() {
    let Some(path) =
        variable(c"VIADUCT_SOCKETS").filter(|path| path.first() == Some(&b'/') && path.len() < 108)
    else {
        return;
    };
    let read = &raw mut READ;
    // SAFETY: only the constructor calls this, before there are threads.
    let settings = unsafe { &mut *read };
    settings.path[..path.len()].copy_from_slice(path);
    let modes = variable(c"VIADUCT_SOCKETS_MODE").unwrap_or_default();
    for mode in modes.split(|c| *c == b',') {
        settings.flap |= mode == b"flap";
        settings.soon |= mode == b"soon";
        settings.eager |= mode == b"eager" || mode == b"flap";
    }
    settings.eager &= !settings.soon;
    settings.carries = variable(c"VIADUCT_SOCKETS_HOSTS") == Some(b"on");
    if let Some(microseconds) = variable(c"VIADUCT_SOCKETS_SPIN").and_then(number) {
        settings.spin = microseconds.min(1000) * 1000;
    }
    let ports = variable(c"VIADUCT_SOCKETS_PORTS").unwrap_or_default();
    for port in ports.split(|c| *c == b',').filter_map(number).take(PORTS) {
        settings.ports[settings.port_count] = port as u16;
        settings.port_count += 1;
    }
    SETTINGS.store(settings, Ordering::Release);
    ON.store(true, Ordering::Release);
}

impl Settings {
    /// Returns whether a connection may be moved: one of its ports is among those that are named, if any are.
    pub fn allows(&self, fd: c_int) -> bool {
        self.port_count == 0
            || ports(fd).is_some_and(|both| both.iter().any(|port| self.ports().contains(port)))
    }

    fn ports(&self) -> &[u16] {
        &self.ports[..self.port_count]
    }
}

/// Returns the ports of both ends.
fn ports(fd: c_int) -> Option<[u16; 2]> {
    let of = |call| {
        let mut address = [0; 128];
        sys::address(call, fd, &mut address)?;
        Some(u16::from_be_bytes([address[2], address[3]]))
    };
    Some([of(libc::SYS_getsockname)?, of(libc::SYS_getpeername)?])
}
