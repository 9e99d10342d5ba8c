//! A network device by name, in the namespace in which the handle was made.

use crate::sys;
use rustix::net::{AddressFamily, SocketType};
use std::ffi::{CStr, c_char};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, OwnedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Link {
    /// Interface index. It changes if the device disappears and comes back.
    pub index: i32,
    pub mac: [u8; 6],
    /// MTU in bytes.
    pub mtu: u32,
    /// Up, with carrier.
    pub up: bool,
}

/// The name of a device, which need not exist, and a socket of its network namespace for requests.
pub(crate) struct Device {
    name: String,
    control: OwnedFd,
}

impl Device {
    /// Returns the device `name` of this thread's network namespace.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        request(name)?;
        Ok(Self { name: name.to_owned(), control: sys::socket(AddressFamily::UNIX, SocketType::DGRAM)? })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the device with this interface index, in the same namespace.
    pub(crate) fn by_index(&self, index: i32) -> io::Result<Self> {
        let request = self.ioctl_with(libc::SIOCGIFNAME, |request| request.ifr_ifru.ifru_ifindex = index)?;
        Ok(Self { name: name_of(&request), control: self.control.try_clone()? })
    }

    /// Sends a request to the driver; `words` starts with ethtool's command.
    ///
    /// # Safety
    /// The command's answer must fit `words`.
    pub(crate) unsafe fn ethtool(&self, words: &mut [u32]) -> io::Result<()> {
        let mut request = request(&self.name)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: takes an ifreq, which points to enough room, as the caller promises.
        unsafe { sys::ioctl(self.control.as_fd(), libc::SIOCETHTOOL as libc::Ioctl, &mut request)? };
        Ok(())
    }

    /// Returns the device's current state; fails with `ENODEV` if there is no such device.
    pub(crate) fn link(&self) -> io::Result<Link> {
        // SAFETY: the kernel fills the union's member that belongs to the request.
        let index = unsafe { self.ioctl(libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex };
        // SAFETY: as above.
        let flags = unsafe { self.ioctl(libc::SIOCGIFFLAGS)?.ifr_ifru.ifru_flags };
        // SAFETY: as above.
        let mtu = unsafe { self.ioctl(libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu };
        // SAFETY: as above.
        let hardware = unsafe { self.ioctl(libc::SIOCGIFHWADDR)?.ifr_ifru.ifru_hwaddr };
        let up = is_up(flags.into());
        Ok(Link { index, mac: mac_of(&hardware), mtu: mtu.unsigned_abs(), up })
    }

    /// Sets the MTU and, if given, the link-layer address, then sets the device up.
    pub(crate) fn configure(&self, mtu: u16, mac: Option<[u8; 6]>) -> io::Result<()> {
        self.set_mtu(mtu)?;
        if let Some(mac) = mac {
            self.ioctl_with(libc::SIOCSIFHWADDR, |request| request.ifr_ifru.ifru_hwaddr = address_of(mac))?;
        }
        // SAFETY: the kernel fills the union's member that belongs to the request.
        let flags = unsafe { self.ioctl(libc::SIOCGIFFLAGS)?.ifr_ifru.ifru_flags };
        self.ioctl_with(libc::SIOCSIFFLAGS, |request| {
            request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as i16
        })?;
        Ok(())
    }

    pub(crate) fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        self.ioctl_with(libc::SIOCSIFMTU, |request| request.ifr_ifru.ifru_mtu = mtu.into()).map(drop)
    }

    fn ioctl(&self, number: libc::c_ulong) -> io::Result<libc::ifreq> {
        self.ioctl_with(number, |_| {})
    }

    fn ioctl_with(
        &self,
        number: libc::c_ulong,
        fill: impl FnOnce(&mut libc::ifreq),
    ) -> io::Result<libc::ifreq> {
        let mut request = request(&self.name)?;
        fill(&mut request);
        // SAFETY: all requests made here take an ifreq without pointers.
        unsafe { sys::ioctl(self.control.as_fd(), number as libc::Ioctl, &mut request)? };
        Ok(request)
    }
}

/// Returns whether a device with these flags is up and has carrier.
pub(crate) fn is_up(flags: libc::c_int) -> bool {
    let running = libc::IFF_UP | libc::IFF_RUNNING;
    flags & running == running
}

/// Makes an interface request for the device `name`.
pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: zeros are a valid ifreq.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.bytes().any(|b| b == 0 || b == b'/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a network device"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    Ok(request)
}

/// Converts an Ethernet address to the form of interface requests.
pub(crate) fn address_of(mac: [u8; 6]) -> libc::sockaddr {
    let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
    for (to, from) in address.sa_data.iter_mut().zip(mac) {
        *to = from as c_char;
    }
    address
}

/// Returns the first six bytes of a link-layer address.
fn mac_of(address: &libc::sockaddr) -> [u8; 6] {
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    mac
}

/// Returns the device name in an interface request.
pub(crate) fn name_of(request: &libc::ifreq) -> String {
    let bytes = request.ifr_name.map(|byte| byte as u8);
    CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_name_is_short_and_has_no_slash() {
        for bad in ["", "a/b", "a\0b", "a234567890123456"] {
            assert!(Device::new(bad).is_err(), "{bad}");
        }
        assert_eq!(name_of(&request("a23456789012345").unwrap()), "a23456789012345");
    }

    #[test]
    fn the_loopback_device_has_a_link_and_a_missing_one_none() {
        let link = Device::new("lo").unwrap().link().unwrap();
        assert_eq!((link.index, link.mac), (1, [0; 6]));
        let missing = Device::new("no-such-device").unwrap().link().unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
    }
}
