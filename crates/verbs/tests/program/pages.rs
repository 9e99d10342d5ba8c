//! Memory of a program, in whole pages, and how it is mapped.

use super::two::*;
use super::*;

pub const PAGE: usize = 4096;

pub struct Pages {
    pub start: *mut u8,
    pub len: usize,
}

impl Pages {
    pub fn new(pages: usize) -> Self {
        Self::at(null_mut(), pages, 0)
    }

    pub fn at(start: *mut u8, pages: usize, flags: i32) -> Self {
        let (len, flags) = (pages * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory; where a place is said, that of pages that the test has and does not borrow.
        let start = unsafe { libc::mmap(start.cast(), len, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start.cast(), len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it is mapped, for reading and writing, until it is unmapped, which ends its use.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    pub fn register(&self, pd: *mut ibv_pd, from: usize, len: usize) -> *mut ibv_mr {
        // SAFETY: the domain is the test's, and the part lies within the memory.
        let mr = unsafe { memory::ibv_reg_mr(pd, self.start.add(from).cast(), len, 15) };
        assert!(!mr.is_null());
        mr
    }

    pub fn sge(&self, mr: *mut ibv_mr, from: usize, len: usize) -> ibv_sge {
        // SAFETY: the region is registered.
        ibv_sge { addr: self.start as u64 + from as u64, length: len as u32, lkey: unsafe { (*mr).lkey } }
    }

    /// Returns permissions and inode of each mapping of this memory.
    pub fn maps(&self) -> Vec<(String, u64)> {
        let (start, end) = (self.start as usize, self.start as usize + self.len);
        let of = |(from, to, permissions, inode)| (from < end && to > start).then_some((permissions, inode));
        maps().into_iter().filter_map(of).collect()
    }

    /// Returns the inode of the file that contains all of the memory.
    pub fn file(&self) -> Option<u64> {
        match &self.maps()[..] {
            [(permissions, inode)] if permissions == "rw-s" => Some(*inode),
            _ => None,
        }
    }

    pub fn unmap(&self) {
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { libc::munmap(self.start.cast(), self.len) }, 0);
    }
}

pub fn maps() -> Vec<(usize, usize, String, u64)> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let (start, end) = words[0].split_once('-').unwrap();
        (number(start), number(end), words[1].to_owned(), words[4].parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// Counts the mappings of a file that write through to it.
pub fn mapped(file: u64) -> usize {
    maps().into_iter().filter(|(.., permissions, inode)| *inode == file && permissions.ends_with('s')).count()
}

pub fn deregister(mr: *mut ibv_mr) {
    // SAFETY: it is registered, and its key used no more.
    assert_eq!(unsafe { memory::ibv_dereg_mr(mr) }, 0);
}

/// Executes a request with one segment on memory of b's, and waits for it.
pub fn perform(two: &Two, opcode: u32, part: ibv_sge, (address, rkey): (u64, u32)) -> u32 {
    let mut list = [part];
    let mut wr = send(1, &mut list);
    (wr.opcode, wr.wr.rdma) = (opcode, Rdma { remote_addr: address, rkey });
    assert_eq!(post_send(two.a.qp, &mut wr).0, 0);
    two.a.sent().status
}
