//! Memory of applications: their regions, and how it is reached.
//!
//! An application hands over a descriptor of its own `/proc/self/mem`: it reaches what the application itself can, and nothing
//! else, whoever gets its process number later.

use crate::random;
use rdma::{Access, Fault};
use rustix::fs::{FileType, OFlags};
use rustix::io::{IoSlice, pread, pwrite, pwritev};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use uverbs::qp::access;

/// Not what an application was asked for.
#[derive(Debug, thiserror::Error)]
#[error("the descriptor is not of the application's own memory (/proc/self/mem, for reading and writing)")]
pub(crate) struct NotMemory;

/// An application's memory.
#[derive(Debug)]
pub(crate) struct AddressSpace(OwnedFd);

impl AddressSpace {
    /// Takes it only where it is what it must be: writing to other files may mean more to us than to the application.
    pub fn new(descriptor: OwnedFd) -> Result<Self, NotMemory> {
        if Self::is_memory(&descriptor).unwrap_or(false) { Ok(Self(descriptor)) } else { Err(NotMemory) }
    }

    fn is_memory(descriptor: &OwnedFd) -> rustix::io::Result<bool> {
        /// `PROC_SUPER_MAGIC`.
        const PROC: i64 = 0x9fa0;
        let on_proc = rustix::fs::fstatfs(descriptor)?.f_type == PROC;
        let mode = rustix::fs::fstat(descriptor)?.st_mode;
        let is_file = FileType::from_raw_mode(mode) == FileType::RegularFile;
        let for_both = rustix::fs::fcntl_getfl(descriptor)?.contains(OFlags::RDWR);
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let name = rustix::fs::readlink(link, Vec::new())?;
        // Of a process, or of one of its threads; it may be that of another mount than ours.
        let is_mem = name.to_bytes().rsplit(|byte| *byte == b'/').next() == Some(b"mem");
        let parent = name.to_bytes().rsplit(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let of_process = !parent.is_empty() && parent.iter().all(u8::is_ascii_digit);
        Ok(on_proc && is_file && for_both && is_mem && of_process)
    }

    /// Copies from the application.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < out.len() {
            let len = pread(&self.0, &mut out[done..], address.wrapping_add(done as u64)).unwrap_or(0);
            if len == 0 {
                return Err(Fault::Protection);
            }
            done += len;
        }
        Ok(())
    }

    /// Copies to the application.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < bytes.len() {
            let len = pwrite(&self.0, &bytes[done..], address.wrapping_add(done as u64)).unwrap_or(0);
            if len == 0 {
                return Err(Fault::Protection);
            }
            done += len;
        }
        Ok(())
    }

    /// Copies to the application, the last byte after all others: applications wait for it.
    pub fn write_tail_last(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let Some((tail, body)) = bytes.split_last() else { return Ok(()) };
        let parts = [IoSlice::new(body), IoSlice::new(std::slice::from_ref(tail))];
        if pwritev(&self.0, &parts, address).is_ok_and(|len| len == bytes.len()) {
            return Ok(());
        }
        self.write(address, bytes)
    }
}

/// A part of an application's memory that it, or its peers, may use by a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub pd: u32,
    /// Where it lies.
    pub address: u64,
    pub len: u64,
    /// What it is called by those who use the key.
    pub iova: u64,
    /// `ibv_access_flags`.
    pub access: u32,
    /// It can be used: a peer did not end that.
    pub is_valid: bool,
}

impl Region {
    /// Where the bytes lie that someone of this protection domain wants.
    pub fn find(&self, pd: u32, address: u64, len: u64, needs: u32) -> Result<u64, Fault> {
        let offset = address.checked_sub(self.iova).ok_or(Fault::Protection)?;
        let fits = len <= self.len && offset <= self.len - len;
        if self.is_valid && self.pd == pd && fits && self.access & needs == needs {
            Ok(self.address.wrapping_add(offset))
        } else {
            Err(Fault::Protection)
        }
    }
}

/// The right that a peer needs.
pub(crate) const fn right(access: Access) -> u32 {
    match access {
        Access::Write => access::REMOTE_WRITE,
        Access::Read => access::REMOTE_READ,
        Access::Atomic => access::REMOTE_ATOMIC,
    }
}

/// The regions of an application, by key. Keys are random in all their bits: a guess hits none of `n` regions but once in
/// 2^32 / `n` times.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: HashMap<u32, Region>,
    /// Bytes of all.
    pub registered: u64,
}

impl Regions {
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn get(&self, key: u32) -> Option<&Region> {
        self.by_key.get(&key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        self.by_key.iter().map(|(key, region)| (*key, region))
    }

    pub fn insert(&mut self, region: Region) -> u32 {
        loop {
            let key = random::number();
            if key > 0xffff && !self.by_key.contains_key(&key) {
                self.registered += region.len;
                self.by_key.insert(key, region);
                return key;
            }
        }
    }

    /// Undoes a removal.
    pub fn put_back(&mut self, key: u32, region: Region) {
        self.registered += region.len;
        self.by_key.insert(key, region);
    }

    pub fn remove(&mut self, key: u32) -> Option<Region> {
        let region = self.by_key.remove(&key)?;
        self.registered -= region.len;
        Some(region)
    }

    pub fn is_used(&self, pd: u32) -> bool {
        self.by_key.values().any(|region| region.pd == pd)
    }

    /// A peer makes a key invalid.
    pub fn invalidate(&mut self, key: u32, pd: u32) -> Result<(), Fault> {
        let remote = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        match self.by_key.get_mut(&key) {
            Some(region) if region.pd == pd && region.is_valid && region.access & remote != 0 => {
                region.is_valid = false;
                Ok(())
            }
            _ => Err(Fault::Protection),
        }
    }

    /// Where the bytes lie that someone wants by a key.
    pub fn find(&self, key: u32, pd: u32, address: u64, len: u64, needs: u32) -> Result<u64, Fault> {
        self.by_key.get(&key).ok_or(Fault::Protection)?.find(pd, address, len, needs)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn own(path: &str, writable: bool) -> OwnedFd {
        std::fs::OpenOptions::new().read(true).write(writable).open(path).unwrap().into()
    }

    #[test]
    fn only_memory_of_processes_is_taken() {
        assert!(AddressSpace::new(own("/proc/self/mem", true)).is_ok());
        assert!(AddressSpace::new(own("/proc/thread-self/mem", true)).is_ok());
        assert!(AddressSpace::new(own("/proc/self/mem", false)).is_err());
        assert!(AddressSpace::new(own("/proc/self/oom_score_adj", true)).is_err());
        assert!(AddressSpace::new(own("/dev/null", true)).is_err());
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("1")).unwrap();
        let file = dir.path().join("1/mem");
        std::fs::write(&file, "").unwrap();
        assert!(AddressSpace::new(own(file.to_str().unwrap(), true)).is_err());
    }

    #[test]
    fn what_is_not_there_is_a_fault() {
        let space = AddressSpace::new(own("/proc/self/mem", true)).unwrap();
        let mut bytes = [1_u8, 2, 3, 4];
        let address = bytes.as_mut_ptr() as u64;
        let mut out = [0; 4];
        space.read(address, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4]);
        space.write_tail_last(address, &[5, 6, 7, 8]).unwrap();
        space.read(address, &mut out).unwrap();
        assert_eq!(out, [5, 6, 7, 8]);
        assert_eq!(space.read(8, &mut out), Err(Fault::Protection));
        assert_eq!(space.write(u64::MAX - 2, &out), Err(Fault::Protection));
        assert_eq!(space.write_tail_last(8, &out), Err(Fault::Protection));
    }

    #[test]
    fn regions_end_where_they_end() {
        let region =
            Region { pd: 1, address: 1000, len: 100, iova: u64::MAX - 99, access: 3, is_valid: true };
        assert_eq!(region.find(1, u64::MAX - 99, 100, 2), Ok(1000));
        assert_eq!(region.find(1, u64::MAX, 1, 2), Ok(1099));
        for (pd, address, len, needs) in [
            (2, u64::MAX, 1, 2),
            (1, u64::MAX, 2, 2),
            (1, u64::MAX - 100, 1, 2),
            (1, u64::MAX, u64::MAX, 2),
            (1, u64::MAX, 1, 4),
        ] {
            assert_eq!(region.find(pd, address, len, needs), Err(Fault::Protection));
        }
    }
}
