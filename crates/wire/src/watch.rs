//! Notices that a device went, came back or changed, on a thread that sleeps otherwise.

use crate::device::{Device, Link};
use crate::sys;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Calls back after every change of the device, until dropped.
pub(crate) struct Watch {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Calls `changed` with the device's state, None while there is none, on a thread of its own: once at
    /// first, so that nothing is missed between opening and watching, and after each change of any link.
    pub(crate) fn start(
        device: Arc<Device>,
        mut changed: impl FnMut(Option<Link>) + Send + 'static,
    ) -> io::Result<Self> {
        let links = link_events()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = stop.clone();
        let thread =
            std::thread::Builder::new().name(format!("wire-{}", device.name())).spawn(move || {
                loop {
                    drain(&links);
                    changed(device.link().ok());
                    let mut fds = [PollFd::new(&links, PollFlags::IN), PollFd::new(&stopped, PollFlags::IN)];
                    // An interruption only means looking once more.
                    let _ = poll(&mut fds, None);
                    if !fds[1].revents().is_empty() {
                        return;
                    }
                }
            })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // An eventfd takes a write of 1 unless its counter is full: either way it polls readable.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// A netlink socket that gets a message for every change of a link in this thread's network namespace.
fn link_events() -> io::Result<OwnedFd> {
    let fd = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    // SAFETY: zeros are a valid sockaddr_nl.
    let mut address: libc::sockaddr_nl = unsafe { zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = libc::RTMGRP_LINK as u32;
    sys::bind(fd.as_fd(), &address)?;
    Ok(fd)
}

/// Takes all messages: that there were some is all that matters, also where the kernel had to drop others.
fn drain(links: &OwnedFd) {
    let mut message = [0u8; 64];
    loop {
        match rustix::net::recv(links, message.as_mut_slice(), rustix::net::RecvFlags::TRUNC) {
            Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
