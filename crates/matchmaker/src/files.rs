//! Files of memory for many connections of the same two programs of this kernel.

use crate::closing::Who;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use sockring::{Doors, Link, SLOTS, Side, file_bytes};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Files without connections that are kept for the next ones of the same programs, of each program that
/// has their first side.
const IDLE: usize = 4;
/// Slots of the first file of two programs, of the second, and of all others: memory is charged before it is used.
const SIZES: [usize; 3] = [15, 63, SLOTS];

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

/// A file, mapped here with all of its slots.
pub struct Mapped {
    at: NonNull<u8>,
    slots: usize,
}

// SAFETY: the memory has only atomics that are used.
unsafe impl Send for Mapped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn doors(&self) -> Doors {
        // SAFETY: the mapping is as long as this, and `link` asks for its slots.
        unsafe { Doors::new(self.at.as_ptr()) }
    }

    /// Returns a connection of the file, from its first side.
    pub fn link(&self, slot: u8) -> Option<Link> {
        (usize::from(slot) <= self.slots).then(|| self.doors().link(slot, Side::First)).flatten()
    }

    /// Returns whether a connection has large rings, whose memory the file then has.
    fn has_grown(&self, slot: u8) -> bool {
        self.link(slot).is_some_and(|link| link.tx().has_grown() || link.rx().has_grown())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no link is left.
        _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), file_bytes(self.slots)) };
    }
}

/// The file of two programs.
struct File {
    /// The programs of both sides.
    programs: [u64; 2],
    /// Their users, each of whom is charged with all slots.
    users: [Who; 2],
    mapped: Arc<Mapped>,
    used: Vec<bool>,
    /// How many have a connection.
    count: usize,
    /// Whether a program has left or forked, or a connection with large rings has ended. Its slot is not used again, and
    /// the file goes with its last connection. To free the memory by a hole would be quicker, but the daemon would wait
    /// for whoever writes to the file meanwhile, which a program can do for ever.
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
    /// Those that may get more connections.
    of: BTreeMap<[u64; 2], Vec<u64>>,
    last: u64,
    /// Slots with which users are no longer charged.
    freed: Vec<(Who, usize)>,
}

impl Files {
    /// Returns whether two programs have a file in this order of sides.
    pub fn has(&self, programs: [u64; 2]) -> bool {
        self.of.contains_key(&programs)
    }

    /// Takes a slot for a connection of two programs, the first of which has the first side. `charge` says whether both
    /// users can be charged with as many slots as a new file has. `None`: there is no room for a new file.
    pub fn take(
        &mut self,
        programs: [u64; 2],
        users: [&Who; 2],
        charge: impl FnOnce(usize) -> bool,
    ) -> rustix::io::Result<Option<Slot>> {
        let known = self.of.get(&programs).map(Vec::as_slice).unwrap_or_default();
        let roomy =
            known.iter().find(|number| self.all.get(number).is_some_and(|file| file.used.contains(&false)));
        let (number, new) = match roomy {
            Some(number) => (*number, None),
            None => {
                let slots = SIZES[known.len().min(SIZES.len() - 1)];
                let (at, descriptor) = memory(file_bytes(slots))?;
                let mapped = Arc::new(Mapped { at, slots });
                if !charge(slots) {
                    return Ok(None);
                }
                self.last += 1;
                let users = users.map(Who::clone);
                let file =
                    File { programs, users, mapped, used: vec![false; slots], count: 0, is_spent: false };
                self.all.insert(self.last, file);
                self.of.entry(programs).or_default().push(self.last);
                (self.last, Some(descriptor))
            }
        };
        let file = self.all.get_mut(&number).ok_or(Errno::NOENT)?;
        let free = file.used.iter().position(|used| !used).ok_or(Errno::NOENT)?;
        (file.used[free], file.count) = (true, file.count + 1);
        let (slot, mapped) = (free as u8 + 1, file.mapped.clone());
        mapped.link(slot).iter().for_each(Link::renew);
        Ok(Some(Slot { file: number, slot, mapped, new }))
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

    fn forget(&mut self, number: u64) {
        let Some(file) = self.all.remove(&number) else { return };
        if let Some(its) = self.of.get_mut(&file.programs) {
            its.retain(|its| *its != number);
            if its.is_empty() {
                self.of.remove(&file.programs);
            }
        }
        self.freed.extend(file.users.map(|user| (user, file.used.len())));
    }

    /// Puts no more connections into the files of a program. Returns them, with both programs.
    pub fn close(&mut self, program: u64) -> Vec<(u64, [u64; 2])> {
        let is_its = |programs: &[u64; 2]| programs.contains(&program);
        let closed: Vec<(u64, [u64; 2])> = self
            .of
            .iter()
            .filter(|(programs, _)| is_its(programs))
            .flat_map(|(programs, files)| files.iter().map(|file| (*file, *programs)))
            .collect();
        self.of.retain(|programs, _| !is_its(programs));
        for (number, _) in &closed {
            match self.all.get_mut(number) {
                Some(file) if file.count > 0 => file.is_spent = true,
                _ => self.forget(*number),
            }
        }
        closed
    }

    /// Takes the slots with which users are no longer charged.
    pub fn take_freed(&mut self) -> Vec<(Who, usize)> {
        std::mem::take(&mut self.freed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_and_given_back() {
        let mut files = Files::default();
        let user: Who = ("a".to_owned(), 0);
        let mut charged = 0;
        let mut take = |files: &mut Files, programs| {
            let charge = |slots| {
                charged += slots;
                true
            };
            files.take(programs, [&user; 2], charge).unwrap().unwrap()
        };
        let all: Vec<Slot> = (0..80).map(|_| take(&mut files, [1, 2])).collect();
        let new = all.iter().filter(|slot| slot.new.is_some()).map(|slot| slot.mapped.slots);
        assert_eq!(new.collect::<Vec<_>>(), SIZES);
        assert!(files.has([1, 2]) && !files.has([2, 1]));
        let link = all[7].mapped.link(all[7].slot).unwrap();
        assert!(!link.tx().has_grown() && all[7].mapped.link(0).is_none());
        assert!(all[7].mapped.link(16).is_none(), "there is no more memory");
        assert_eq!(files.give_back(all[7].file, all[7].slot), None);
        assert_eq!(take(&mut files, [1, 2]).slot, all[7].slot);
        // A program keeps some files without connections.
        let others: Vec<Slot> = (3..10).map(|other| take(&mut files, [1, other])).collect();
        let told = others.iter().filter_map(|slot| files.give_back(slot.file, slot.slot)).count();
        assert_eq!(told, others.len() - IDLE);
        // A file of a program that has left goes with its last connection, and only then is nobody charged with it.
        files.take_freed();
        assert_eq!(files.close(2), [(1, [1, 2]), (2, [1, 2]), (3, [1, 2])]);
        assert!(!files.has([1, 2]) && files.take_freed().is_empty());
        for slot in &all[15..78] {
            assert_eq!(files.give_back(slot.file, slot.slot), (slot.slot == 63).then_some([1, 2]));
        }
        assert_eq!(files.take_freed(), [(user.clone(), 63), (user.clone(), 63)]);
        assert!(files.take([1, 2], [&user; 2], |_| false).unwrap().is_none(), "nobody pays for it");
        assert_eq!(charged, SIZES.iter().sum::<usize>() + 7 * SIZES[0]);
    }
}
