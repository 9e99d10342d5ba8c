//! Files of memory for many connections of the same two programs of this kernel, and the doorbells of programs.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use sockring::{Doors, FILE, Link, SLOTS, Side};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Files without connections that are kept for the next ones of the same programs, of each program that
/// has their first side.
const IDLE: usize = 4;

/// Makes a doorbell.
pub fn doorbell() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Makes a sealed file of memory. Returns where it is mapped here, and its descriptor.
pub fn memory(bytes: usize) -> rustix::io::Result<(NonNull<u8>, OwnedFd)> {
    let file = rustix::fs::memfd_create("viaduct-sockets", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, at an address of the kernel's choice. All of it is mapped, though only headers are used:
    // that takes no memory.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0) }?;
    Ok((NonNull::new(at.cast()).ok_or(Errno::NOMEM)?, file))
}

/// A file, mapped here.
pub struct Mapped(NonNull<u8>);

// SAFETY: the memory has only atomics that are used.
unsafe impl Send for Mapped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn doors(&self) -> Doors {
        // SAFETY: the mapping is as long as this.
        unsafe { Doors::new(self.0.as_ptr()) }
    }

    /// Returns a connection of the file, from its first side.
    pub fn link(&self, slot: u8) -> Option<Link> {
        self.doors().link(slot, Side::First)
    }

    /// Returns whether a connection has large rings, whose memory the file then has.
    fn has_grown(&self, slot: u8) -> bool {
        self.link(slot).is_some_and(|link| link.tx().has_grown() || link.rx().has_grown())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no link is left.
        _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), FILE) };
    }
}

/// The file of two programs.
struct File {
    /// The programs of both sides.
    programs: [u64; 2],
    mapped: Arc<Mapped>,
    used: [bool; SLOTS],
    /// How many have a connection.
    count: usize,
    /// Whether a connection with large rings has ended. Its slot is not used again, and the file goes with its last
    /// connection. To free the memory by a hole would be quicker, but the daemon would wait for whoever writes to the file
    /// meanwhile, which a program can do for ever.
    is_spent: bool,
}

/// A place for a connection.
pub struct Slot {
    pub file: u64,
    pub slot: u8,
    pub mapped: Arc<Mapped>,
    /// The file's descriptor, if it is new to its programs.
    pub new: Option<OwnedFd>,
}

/// All files, by their numbers.
#[derive(Default)]
pub struct Files {
    all: HashMap<u64, File>,
    of: BTreeMap<[u64; 2], Vec<u64>>,
    last: u64,
}

impl Files {
    /// Returns whether two programs have a file in this order of sides.
    pub fn has(&self, programs: [u64; 2]) -> bool {
        self.of.contains_key(&programs)
    }

    /// Takes a slot for a connection of two programs, the first of which has the first side.
    pub fn take(&mut self, programs: [u64; 2]) -> rustix::io::Result<Slot> {
        let known = self.of.get(&programs).into_iter().flatten();
        let roomy =
            known.copied().find(|number| self.all.get(number).is_some_and(|file| file.used.contains(&false)));
        let (number, new) = match roomy {
            Some(number) => (number, None),
            None => {
                let (at, descriptor) = memory(FILE)?;
                self.last += 1;
                let mapped = Arc::new(Mapped(at));
                self.all.insert(
                    self.last,
                    File { programs, mapped, used: [false; SLOTS], count: 0, is_spent: false },
                );
                self.of.entry(programs).or_default().push(self.last);
                (self.last, Some(descriptor))
            }
        };
        let file = self.all.get_mut(&number).ok_or(Errno::NOENT)?;
        let free = file.used.iter().position(|used| !used).ok_or(Errno::NOENT)?;
        (file.used[free], file.count) = (true, file.count + 1);
        let (slot, mapped) = (free as u8 + 1, file.mapped.clone());
        mapped.link(slot).iter().for_each(Link::renew);
        Ok(Slot { file: number, slot, mapped, new })
    }

    /// Gives a slot back. Returns the programs that are to hear that its file gets no more connections.
    pub fn give_back(&mut self, number: u64, slot: u8) -> Option<[u64; 2]> {
        let file = self.all.get_mut(&number)?;
        let has_grown = file.mapped.has_grown(slot);
        (file.used[usize::from(slot) - 1], file.count) = (has_grown, file.count - 1);
        file.is_spent |= has_grown;
        let (programs, is_spent, is_idle) = (file.programs, file.is_spent, file.count == 0);
        let has_too_many = |program: u64| {
            let its = self.of.range([program, 0]..=[program, u64::MAX]).flat_map(|(_, files)| files);
            its.filter(|number| self.all.get(number).is_some_and(|file| file.count == 0)).count() > IDLE
        };
        if !is_idle || !(is_spent || has_too_many(programs[0])) {
            return None;
        }
        self.forget(number);
        Some(programs)
    }

    fn forget(&mut self, number: u64) -> Option<[u64; 2]> {
        let programs = self.all.remove(&number)?.programs;
        if let Some(its) = self.of.get_mut(&programs) {
            its.retain(|its| *its != number);
            if its.is_empty() {
                self.of.remove(&programs);
            }
        }
        Some(programs)
    }

    /// Forgets the files of a program that has ended. Returns them, with the other programs.
    pub fn end(&mut self, program: u64) -> Vec<(u64, u64)> {
        let its: Vec<u64> = self
            .of
            .iter()
            .filter(|(programs, _)| programs.contains(&program))
            .flat_map(|(_, files)| files.clone())
            .collect();
        let other = |[a, b]: [u64; 2]| if a == program { b } else { a };
        its.into_iter().filter_map(|number| Some((number, other(self.forget(number)?)))).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_and_given_back() {
        let mut files = Files::default();
        let all: Vec<Slot> = (0..=SLOTS).map(|_| files.take([1, 2]).unwrap()).collect();
        assert_eq!(all.iter().filter(|slot| slot.new.is_some()).count(), 2);
        assert!(files.has([1, 2]) && !files.has([2, 1]));
        let link = all[7].mapped.link(all[7].slot).unwrap();
        assert!(!link.tx().has_grown() && all[7].mapped.link(0).is_none());
        assert_eq!(files.give_back(all[7].file, all[7].slot), None);
        assert_eq!(files.take([1, 2]).map(|slot| slot.slot), Ok(all[7].slot));
        // A program keeps some files without connections.
        let others: Vec<Slot> = (3..10).map(|other| files.take([1, other]).unwrap()).collect();
        let told = others.iter().filter_map(|slot| files.give_back(slot.file, slot.slot)).count();
        assert_eq!(told, others.len() - IDLE);
        let mut ended = files.end(2);
        ended.sort_unstable();
        assert_eq!(ended, [(1, 1), (2, 1)]);
        assert_eq!(files.give_back(1, 1), None);
    }
}
