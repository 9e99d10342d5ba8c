//! Tells other daemons that a device is taken.

use crate::sys;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind};
use std::io;
use std::os::fd::OwnedFd;

/// Claims the device with this index, until the descriptor is closed. Nothing keeps others from using the device: they only
/// find that they can't claim it. In each network namespace the claims are others.
///
/// # Errors
/// `EADDRINUSE` if another process has claimed it.
pub fn claim(index: i32) -> io::Result<OwnedFd> {
    let socket = sys::socket(AddressFamily::UNIX, SocketType::DGRAM)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(format!("viaduct-wire-{index}").as_bytes())?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_claimed_once() {
        let index = i32::MAX - std::process::id() as i32;
        let held = claim(index).unwrap();
        assert_eq!(claim(index).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        drop(held);
        claim(index).unwrap();
    }
}
