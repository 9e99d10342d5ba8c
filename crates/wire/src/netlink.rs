//! The little of rtnetlink that ioctls don't tell: that some link changed, and what a link is linked to.

use crate::device::Device;
use crate::sys;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, OwnedFd};

// Bytes of struct nlmsghdr and struct ifinfomsg (linux/netlink.h, linux/rtnetlink.h).
const HEADER: usize = 16;
const INFO: usize = 16;

// Attributes of a link (linux/if_link.h).
const IFLA_LINK: u16 = 5;
const IFLA_LINK_NETNSID: u16 = 37;

/// Room for an answer about one link: with all attributes it is a few KiB.
const ANSWER: usize = 64 << 10;

fn socket(groups: libc::c_int) -> io::Result<OwnedFd> {
    let fd = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    // SAFETY: zeros are a valid sockaddr_nl.
    let mut address: libc::sockaddr_nl = unsafe { zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = groups as u32;
    sys::bind(fd.as_fd(), &address)?;
    Ok(fd)
}

/// A socket that gets a message for every change of a link in this thread's network namespace.
pub(crate) fn link_events() -> io::Result<OwnedFd> {
    socket(libc::RTMGRP_LINK)
}

/// Takes all messages: that there were some is all that matters, also where the kernel had to drop others.
pub(crate) fn drain(links: &OwnedFd) {
    let mut message = [0u8; 64];
    loop {
        match recv(links, message.as_mut_slice(), RecvFlags::TRUNC) {
            Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The device that a device of this thread's network namespace is linked to, a veth to its other end, where
/// that is in the same namespace.
pub(crate) fn linked(device: &Device) -> io::Result<Option<Device>> {
    let netlink = socket(0)?;
    let mut request = [0u8; HEADER + INFO];
    request[..4].copy_from_slice(&((HEADER + INFO) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[HEADER + 4..HEADER + 8].copy_from_slice(&device.link()?.index.to_ne_bytes());
    send(&netlink, &request, SendFlags::empty())?;
    // The kernel has answered by the time that `send` returns.
    let mut answer = vec![0u8; ANSWER];
    let (len, _) = recv(&netlink, answer.as_mut_slice(), RecvFlags::empty())?;
    let attributes = answer.get(HEADER + INFO..len).unwrap_or_default();
    match (attribute(attributes, IFLA_LINK), attribute(attributes, IFLA_LINK_NETNSID)) {
        (Some(index), None) => device.by_index(index).map(Some),
        _ => Ok(None),
    }
}

/// The 32-bit attribute `kind` among `attributes`.
fn attribute(mut attributes: &[u8], kind: u16) -> Option<i32> {
    while let [l0, l1, k0, k1, rest @ ..] = attributes {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1])).checked_sub(4)?;
        if u16::from_ne_bytes([*k0, *k1]) == kind {
            return Some(i32::from_ne_bytes(rest.get(..len)?.try_into().ok()?));
        }
        attributes = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_padding() {
        let bytes = [5, 0, 3, 0, b'x', 0, 0, 0, 8, 0, 5, 0, 7, 0, 0, 0];
        assert_eq!(attribute(&bytes, IFLA_LINK), Some(7));
        assert_eq!(attribute(&bytes, IFLA_LINK_NETNSID), None);
        assert_eq!(attribute(&bytes[..14], IFLA_LINK), None);
        assert_eq!(attribute(&[0; 16], IFLA_LINK), None);
    }

    #[test]
    fn loopback_is_linked_to_nothing() {
        assert!(linked(&Device::new("lo").unwrap()).unwrap().is_none());
    }
}
