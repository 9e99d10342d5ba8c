//! Copies between this process's memory and the peer's.

use super::{Direct, Part, Place};
use crate::far::Far;
use std::os::fd::AsRawFd;

/// From this length on, in bytes, `process_vm_writev` is faster than a write to the file of the peer's memory.
const AT_ONCE_FROM: usize = 2048;

impl Direct {
    /// Copies the whole message, from our parts to the peer's places if it `writes`, else the other way. Returns `None`
    /// if something could not be copied.
    ///
    /// # Safety
    /// The parts must be readable if it writes, else writable.
    pub(super) unsafe fn copy(&mut self, writes: bool) -> Option<()> {
        let is_far = |place: &Place| place.window.is_none();
        let len: usize = self.places.iter().filter(|place| is_far(place)).map(|place| place.len).sum();
        if let Far::There { process: Some(pid), .. } = self.memory
            && len >= AT_ONCE_FROM
            && self.places.iter().all(is_far)
        {
            // SAFETY: the caller's promise about the parts.
            return unsafe { self.copy_at_once(pid, len, writes) };
        }
        let (mut part, mut used) = (0, 0);
        for place in &self.places {
            self.vector.clear();
            let mut left = place.len;
            while left > 0 {
                let Part { iov_base, iov_len } = *self.parts.get(part)?;
                let now = left.min(iov_len - used);
                // SAFETY: `used` is at most the part's length.
                let iov_base = unsafe { iov_base.byte_add(used) };
                self.vector.push(Part { iov_base, iov_len: now });
                (left, used) = (left - now, used + now);
                if used == iov_len {
                    (part, used) = (part + 1, 0);
                }
            }
            // SAFETY: the caller's promise: `vector` consists of pieces of the parts.
            let is_copied = unsafe {
                match place.window {
                    Some(window) => self.copy_there(window, place.address, writes),
                    None => self.copy_far(place, writes),
                }
            };
            if !is_copied {
                return None;
            }
        }
        Some(())
    }

    /// Copies between the vector and mapped memory of the peer.
    ///
    /// # Safety
    /// The vector must be readable if it writes, else writable.
    unsafe fn copy_there(&self, window: usize, mut address: u64, writes: bool) -> bool {
        let Some(pages) = self.windows.pages(window) else { return false };
        self.vector.iter().all(|part| {
            let at = address;
            address += part.iov_len as u64;
            // SAFETY: the caller's promise.
            unsafe {
                if writes {
                    pages.write_from(at, part.iov_base.cast(), part.iov_len)
                } else {
                    pages.read_to(at, part.iov_base.cast(), part.iov_len)
                }
            }
        })
    }

    /// Copies between the vector and a place of the peer by a system call.
    ///
    /// # Safety
    /// The vector must be readable if it writes, else writable.
    unsafe fn copy_far(&self, place: &Place, writes: bool) -> bool {
        let Far::There { memory, .. } = &self.memory else { return place.len == 0 };
        let (fd, parts, at) = (memory.as_raw_fd(), &self.vector[..], place.address as i64);
        let (list, count) = (parts.as_ptr(), parts.len() as i32);
        // SAFETY: the caller's promise for our end. The peer's process gave us access to its memory.
        let copied = unsafe {
            match *parts {
                // The calls for a single part are faster.
                [part] if writes => libc::pwrite(fd, part.iov_base, part.iov_len, at),
                [part] => libc::pread(fd, part.iov_base, part.iov_len, at),
                _ if writes => libc::pwritev(fd, list, count, at),
                _ => libc::preadv(fd, list, count, at),
            }
        };
        place.len == 0 || copied == place.len as isize
    }

    /// Copies all parts and places in one system call.
    ///
    /// # Safety
    /// The parts must be readable if it writes, else writable.
    unsafe fn copy_at_once(&mut self, pid: libc::pid_t, len: usize, writes: bool) -> Option<()> {
        self.vector.clear();
        let places =
            self.places.iter().map(|place| Part { iov_base: place.address as *mut _, iov_len: place.len });
        self.vector.extend(places);
        let (ours, theirs) = (&self.parts, &self.vector);
        let [own, others] = [ours, theirs].map(|list| (list.as_ptr(), list.len() as libc::c_ulong));
        // SAFETY: the caller's promise for our end. The peer's process gave us access to its memory.
        let copied = unsafe {
            if writes {
                libc::process_vm_writev(pid, own.0, own.1, others.0, others.1, 0)
            } else {
                libc::process_vm_readv(pid, own.0, own.1, others.0, others.1, 0)
            }
        };
        (copied == len as isize).then_some(())
    }
}
