//! The memory of an application.
//!
//! An application passes a descriptor of its own `/proc/self/mem`. The descriptor reaches exactly what the application
//! itself can reach, whichever process gets its number later.

use rdma::Fault;
use rustix::fs::{FileType, OFlags};
use rustix::io::{IoSlice, pread, pwrite, pwritev};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The descriptor does not refer to a process's memory.
#[derive(Debug, thiserror::Error)]
#[error(
    "the descriptor does not refer to the application's own memory (/proc/self/mem, for reading and writing)"
)]
pub(crate) struct NotMemory;

/// Identifies an address space: device and inode of a file of `/proc`.
pub(crate) type Identity = (u64, u64);

#[derive(Debug)]
pub(crate) struct AddressSpace {
    /// `None`: the daemon can't reach it, because the program is in a virtual machine.
    memory: Option<OwnedFd>,
    identity: Identity,
}

impl AddressSpace {
    /// Accepts only a descriptor of a process's memory: the daemon may be able to write to other files that the
    /// application can't.
    pub fn new(descriptor: OwnedFd) -> Result<Self, NotMemory> {
        if !Self::is_memory(&descriptor).unwrap_or(false) {
            return Err(NotMemory);
        }
        let stat = rustix::fs::fstat(&descriptor).map_err(|_| NotMemory)?;
        Ok(Self { memory: Some(descriptor), identity: (stat.st_dev, stat.st_ino) })
    }

    /// Stands for the memory of a program that the daemon reaches only through its window.
    pub fn none() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { memory: None, identity: (u64::MAX, NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    /// Is true if the daemon can't reach it.
    pub const fn is_none(&self) -> bool {
        self.memory.is_none()
    }

    /// Returns what is equal for all descriptors of the same memory. While one is open, the file system does not
    /// reuse the file's number.
    pub const fn identity(&self) -> Identity {
        self.identity
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
        // The memory of a process, or of one of its threads, perhaps in another mount of `/proc` than the daemon's.
        let is_mem = name.to_bytes().rsplit(|byte| *byte == b'/').next() == Some(b"mem");
        let parent = name.to_bytes().rsplit(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let of_process = !parent.is_empty() && parent.iter().all(u8::is_ascii_digit);
        Ok(on_proc && is_file && for_both && is_mem && of_process)
    }

    /// Duplicates the descriptor, for a peer that shares memory; `None` if there is none.
    pub fn share(&self) -> Option<OwnedFd> {
        self.memory.as_ref()?.try_clone().ok()
    }

    /// Copies from the application.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        let Some(memory) = &self.memory else { return Err(Fault::Protection) };
        let mut done = 0;
        while done < out.len() {
            let len = pread(memory, &mut out[done..], address.wrapping_add(done as u64)).unwrap_or(0);
            if len == 0 {
                return Err(Fault::Protection);
            }
            done += len;
        }
        Ok(())
    }

    /// Copies to the application.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let Some(memory) = &self.memory else { return Err(Fault::Protection) };
        let mut done = 0;
        while done < bytes.len() {
            let len = pwrite(memory, &bytes[done..], address.wrapping_add(done as u64)).unwrap_or(0);
            if len == 0 {
                return Err(Fault::Protection);
            }
            done += len;
        }
        Ok(())
    }

    /// Copies to the application, with the last byte after all others: applications poll for it.
    pub fn write_tail_last(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let (Some((tail, body)), Some(memory)) = (bytes.split_last(), &self.memory) else {
            return self.write(address, bytes);
        };
        let parts = [IoSlice::new(body), IoSlice::new(std::slice::from_ref(tail))];
        if pwritev(memory, &parts, address).is_ok_and(|len| len == bytes.len()) {
            return Ok(());
        }
        self.write(address, bytes)
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
    fn what_is_out_of_reach_is_a_fault() {
        let (one, other) = (AddressSpace::none(), AddressSpace::none());
        assert!(one.is_none() && one.share().is_none() && one.identity() != other.identity());
        let mut bytes = [1_u8; 8];
        let address = bytes.as_ptr() as u64;
        assert_eq!(one.read(address, &mut bytes), Err(Fault::Protection));
        assert_eq!(one.write_tail_last(address, &[2; 8]), Err(Fault::Protection));
        assert_eq!(bytes, [1; 8]);
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
}
