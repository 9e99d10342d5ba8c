//! The bytes of a message: copied between our memory and the peer's, long ones in pieces.

use super::{Direct, Part, Place};
use crate::far::Far;
use std::os::fd::AsRawFd;
use uverbs::{Point, WorkRequest, point};

/// Bytes of a WRITE or READ that are copied at a time; before each piece, the permission is checked again.
pub const PIECE: usize = 1 << 20;

/// From this many bytes on, a copy between processes is faster than one through `/proc/PID/mem`.
const AT_ONCE_FROM: usize = 2048;

/// Moves the first `len` bytes of some parts to another list.
fn cut(from: &mut Vec<Part>, mut len: usize, to: &mut Vec<Part>) {
    to.clear();
    let whole = from.iter().take_while(|part| len.checked_sub(part.iov_len).map(|left| len = left).is_some());
    let whole = whole.count();
    to.extend(from.drain(..whole));
    if let Some(part) = from.first_mut().filter(|_| len > 0) {
        to.push(Part { iov_len: len, ..*part });
        // SAFETY: within the part, which is longer.
        part.iov_base = unsafe { part.iov_base.byte_add(len) };
        part.iov_len -= len;
    }
}

impl Direct {
    /// Executes a long message except for its last piece, and returns that piece. A process that withdraws its memory
    /// waits for one piece at most.
    ///
    /// # Safety
    /// The parts must be readable; for a READ, writable.
    #[cold]
    pub(super) unsafe fn do_pieces(
        &mut self,
        request: &WorkRequest,
        len: usize,
    ) -> Option<(WorkRequest, usize)> {
        let mut rest = std::mem::take(&mut self.parts);
        let (mut piece, mut left) = (*request, len);
        while left > PIECE {
            cut(&mut rest, PIECE, &mut self.parts);
            if !self.session.enter() {
                return None;
            }
            // SAFETY: the caller's promise.
            let done = unsafe { self.do_it(&piece, PIECE) };
            point(Point::PieceCopied);
            self.session.leave();
            done?;
            piece.address = piece.address.wrapping_add(PIECE as u64);
            left -= PIECE;
        }
        self.parts = rest;
        Some((piece, left))
    }

    /// Copies between our parts and the peer's places.
    ///
    /// # Safety
    /// The parts must be readable or, when reading from the peer, writable.
    pub(super) unsafe fn copy(&mut self, writes: bool) -> Option<()> {
        let is_far = |place: &Place| place.window.is_none();
        let len: usize = self.places.iter().filter(|place| is_far(place)).map(|place| place.len).sum();
        if let Far::There { process: Some(process), .. } = &self.memory
            && len >= AT_ONCE_FROM
            && self.places.iter().all(is_far)
        {
            let pid = process.number()?;
            // SAFETY: the caller's promise.
            return unsafe { self.copy_at_once(pid, len, writes) };
        }
        let (mut part, mut used) = (0, 0);
        for place in &self.places {
            self.vector.clear();
            let mut left = place.len;
            while left > 0 {
                let Part { iov_base, iov_len } = *self.parts.get(part)?;
                let now = left.min(iov_len - used);
                // SAFETY: within the part.
                let iov_base = unsafe { iov_base.byte_add(used) };
                self.vector.push(Part { iov_base, iov_len: now });
                (left, used) = (left - now, used + now);
                if used == iov_len {
                    (part, used) = (part + 1, 0);
                }
            }
            // SAFETY: the caller's promise.
            let is_copied = unsafe {
                match place.window {
                    Some(window) => self.copy_there(window, place.address, writes),
                    None => self.copy_far(place, writes),
                }
            };
            if !is_copied {
                return None;
            }
            point(Point::PartCopied);
        }
        Some(())
    }

    /// Copies between the vector and a mapped place.
    ///
    /// # Safety
    /// The same as for [`Self::copy`].
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

    /// Copies between the vector and a place with a system call.
    ///
    /// # Safety
    /// The same as for [`Self::copy`].
    unsafe fn copy_far(&self, place: &Place, writes: bool) -> bool {
        let Far::There { memory, .. } = &self.memory else { return place.len == 0 };
        let (fd, parts, at) = (memory.as_raw_fd(), &self.vector[..], place.address as i64);
        let (list, count) = (parts.as_ptr(), parts.len() as i32);
        // SAFETY: the caller's promise; what it does at the other end was granted.
        let copied = unsafe {
            match *parts {
                // A call without a list is faster.
                [part] if writes => libc::pwrite(fd, part.iov_base, part.iov_len, at),
                [part] => libc::pread(fd, part.iov_base, part.iov_len, at),
                _ if writes => libc::pwritev(fd, list, count, at),
                _ => libc::preadv(fd, list, count, at),
            }
        };
        place.len == 0 || copied == place.len as isize
    }

    /// Copies like [`Self::copy`], all parts and places in one system call.
    ///
    /// # Safety
    /// The same as for [`Self::copy`].
    unsafe fn copy_at_once(&mut self, pid: libc::pid_t, len: usize, writes: bool) -> Option<()> {
        self.vector.clear();
        let places =
            self.places.iter().map(|place| Part { iov_base: place.address as *mut _, iov_len: place.len });
        self.vector.extend(places);
        let (ours, theirs) = (&self.parts, &self.vector);
        let [own, others] = [ours, theirs].map(|list| (list.as_ptr(), list.len() as libc::c_ulong));
        // SAFETY: the caller's promise; what it does at the other end was granted.
        let copied = unsafe {
            if writes {
                libc::process_vm_writev(pid, own.0, own.1, others.0, others.1, 0)
            } else {
                libc::process_vm_readv(pid, own.0, own.1, others.0, others.1, 0)
            }
        };
        point(Point::PartCopied);
        (copied == len as isize).then_some(())
    }
}
