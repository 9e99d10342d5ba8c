//! Notices when a device disappears, comes back or changes, on a thread that otherwise sleeps.

use crate::device::{Device, Link};
use crate::netlink;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Calls back after every change of a device, until dropped.
pub(crate) struct Watch {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Calls `changed` with the device's state, or with `None` while there is no device, on a thread of its own: once
    /// at the start, so that nothing is missed between opening and watching, and after each change of any link.
    pub(crate) fn start(
        device: Arc<Device>,
        mut changed: impl FnMut(Option<Link>) + Send + 'static,
    ) -> io::Result<Self> {
        let name = format!("wire-{}", device.name());
        Self::links(name, move || changed(device.link().ok()))
    }

    /// Calls `changed` on a thread with this name, once at the start and after each change of any link.
    fn links(name: String, mut changed: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let links = netlink::link_events()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            loop {
                netlink::drain(&links);
                changed();
                let mut fds = [PollFd::new(&links, PollFlags::IN), PollFd::new(&stopped, PollFlags::IN)];
                // An interruption only causes another check.
                let _ = poll(&mut fds, None);
                if !fds[1].revents().is_empty() {
                    return;
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Calls back after every change of any network device, until dropped.
pub struct Links {
    _watch: Watch,
}

impl Links {
    /// Calls `changed` on a thread of its own, once at the start and after each change of a device of the caller's
    /// network namespace.
    ///
    /// # Errors
    /// If the process has no more descriptors or threads.
    pub fn watch(changed: impl FnMut() + Send + 'static) -> io::Result<Self> {
        Ok(Self { _watch: Watch::links("links".to_owned(), changed)? })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // An eventfd takes a write of 1 unless its counter is full: either way it polls readable.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread reported its panic where it happened.
            let _ = thread.join();
        }
    }
}
