//! Orphaned pages of a window: those that programs of an earlier device, or of a daemon before this one, may still
//! use. This file decides who gets them, and when.

use super::{Mapping, State, Window, WindowError, lock};
use crate::window::host_process::HostProcess;
use crate::window::notes::{ProgramNote, UNKNOWN, WindowNotes};
use crate::window::owners::Giver;
use crate::window::page_bitmap::{PageBitmap, filled, written};
use crate::window::ranges::Ranges;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use uverbs::window::FIRST;
use uverbs::{Part, Suspect, Uuid, WindowHeader, WindowKind};

/// The offset in the window's page 0 at which the boot of the guest's machine is noted.
const BOOT: usize = WindowHeader::BYTES;

/// Pages: their start, their end, and the number of the program that has them.
type Owned = (u64, u64, u16);

/// Finds the free pages of a window that was just mapped, and who has the others. The window of a guest says itself
/// what is taken, since it may have come from another host; for the window of a trust, only the notes tell.
pub(super) fn state(
    file: &OwnedFd,
    len: u64,
    is_huge: bool,
    mapping: &Mapping,
    notes: Option<&WindowNotes>,
) -> Result<State, WindowError> {
    let read = |notes: &WindowNotes| Ok::<_, rustix::io::Errno>((notes.programs()?, notes.owners()?));
    let known = notes.filter(|notes| !notes.is_new()).map(read).transpose()?;
    let is_complete = known.is_some() && mapping.bitmap.is_none();
    let (mut programs, noted) = known.unwrap_or_default();
    let taken = match mapping.bitmap.as_ref().and_then(PageBitmap::snapshot) {
        Some(taken) => taken.of(&[(FIRST, len - FIRST)]),
        None if is_complete => noted.iter().map(|(start, end, _)| (*start, *end)).collect(),
        None if is_huge => written(&mapping.memory, len),
        None => filled(file, len)?,
    };
    let mut state = State::default();
    state.free.add(FIRST, len - FIRST);
    let mut owned = attribute(&taken, &noted);
    owned.iter_mut().filter(|(.., number)| !programs.contains_key(number)).for_each(|it| it.2 = UNKNOWN);
    owned.retain(|(start, end, _)| state.free.remove(*start, end - start));
    if let Some(notes) = notes.filter(|_| owned != noted) {
        notes.note_all(&owned)?;
    }
    let have_some: BTreeSet<_> = owned.iter().map(|(.., number)| *number).collect();
    for (number, note) in std::mem::take(&mut programs) {
        let Some(notes) = notes else { break };
        let end = notes.end(note.process);
        if !state.owners.add_former(number, note, end, have_some.contains(&number)) {
            notes.enlist(number, None)?;
        }
    }
    owned.iter().for_each(|(start, end, number)| state.owners.leave(*number, *start, end - start));
    state.owners.await_all_peers();
    Ok(state)
}

/// Finds who has these pages. Both lists are in order.
fn attribute(taken: &[(u64, u64)], owners: &[Owned]) -> Vec<Owned> {
    let mut found: Vec<Owned> = Vec::new();
    for (start, end) in taken {
        let mut at = *start;
        while at < *end {
            let next = owners.get(owners.partition_point(|(_, last, _)| *last <= at));
            let (until, number) = match next {
                Some((from, last, number)) if *from <= at => (*last, *number),
                Some((from, ..)) => (*from, UNKNOWN),
                None => (*end, UNKNOWN),
            };
            found.push((at, until.min(*end), number));
            at = until;
        }
    }
    found
}

impl Window {
    /// Frees orphaned pages of programs that have ended.
    pub(crate) fn sweep(&self) {
        let free = {
            let mut state = lock(&self.state);
            for number in state.owners.disprove() {
                let _ = self.note_program(&state.owners, number);
            }
            state.owners.take_free()
        };
        self.free(free);
    }

    /// Zeroes pages that were taken out of the orphaned ones, and makes them free.
    fn free(&self, taken: Vec<(u16, Ranges)>) {
        for (number, ranges) in taken {
            let bytes = ranges.bytes();
            for (start, len) in ranges {
                let free = self.not_given_since(&mut lock(&self.state), start, len, Some(number));
                for (start, end) in free {
                    self.clear(start, end - start);
                    self.put_back(&mut lock(&self.state), start, end - start);
                }
            }
            let mut state = lock(&self.state);
            if state.owners.put(number, bytes) {
                let _ = self.note_program(&state.owners, number);
            }
        }
    }

    /// Returns those of these pages that no other daemon has given to somebody, as starts and ends. This daemon
    /// takes the pages for this program's or nobody's; but while a daemon is replaced, both give out pages. Pages
    /// that the other daemon gave become orphaned.
    pub(super) fn not_given_since(
        &self,
        state: &mut State,
        start: u64,
        len: u64,
        owner: Option<u16>,
    ) -> Vec<(u64, u64)> {
        let Some(notes) = &self.notes else { return vec![(start, start + len)] };
        // If the notes can't be read, the pages stay as they are until the next daemon.
        let Ok(noted) = notes.owners_of(start, len) else { return Vec::new() };
        let mut pages = Ranges::default();
        pages.add(start, len);
        for (start, end, _) in noted.into_iter().filter(|(.., number)| Some(*number) != owner) {
            pages.remove(start, end - start);
            let _ = notes.note(start, end - start, Some(UNKNOWN));
            state.owners.leave(UNKNOWN, start, end - start);
        }
        pages.into_iter().map(|(start, len)| (start, start + len)).collect()
    }

    /// Frees the pages of programs of earlier boots: the guest's machine was started anew, so they are gone.
    pub(crate) fn free_earlier_boots(&self, guest: &str, boot: Uuid) {
        // Nobody else has a window of its own.
        lock(&self.state).owners.end_boots(guest, boot, self.kind == WindowKind::Own);
        self.sweep();
    }

    /// Notes that the machine of a guest is in this boot: programs of others have ended.
    pub(crate) fn end_boots(&self, guest: &str, boot: Uuid) {
        lock(&self.state).owners.end_boots(guest, boot, false);
    }

    /// Notes the process that is the VMM of a guest's machine.
    pub(crate) fn set_vmm(&self, guest: &str, process: HostProcess) {
        let mut state = lock(&self.state);
        for number in state.owners.set_vmm(guest, process) {
            let _ = self.note_program(&state.owners, number);
        }
    }

    /// Returns the programs about whose end this program may be asked.
    pub(crate) fn suspects(&self, by: &ProgramNote) -> Vec<Suspect> {
        lock(&self.state).owners.suspects(self.kind, by)
    }

    /// Handles a program's report that these programs have ended.
    pub(crate) fn end_suspects(&self, by: &ProgramNote, gone: &[Suspect]) {
        if lock(&self.state).owners.end_suspects(self.kind, by, gone) {
            self.sweep();
        }
    }

    /// Gives back orphaned pages of a program. Returns false if they are not its own.
    pub(crate) fn give_back_orphaned(&self, giver: Giver<'_>, part: Part) -> bool {
        let is_orphaned = part.end().is_some() && lock(&self.state).owners.give_back(giver, part);
        if is_orphaned {
            self.sweep();
        }
        is_orphaned
    }

    /// Takes over the notes of which pages are taken when the guest's machine goes on, perhaps after it came from
    /// another host. Nobody gets pages that its programs have according to the daemon there until they are given
    /// back; all others are free. Pages that a program got from this daemon stay as they are.
    pub fn see_arrival(&self) {
        let mapping = lock(&self.mapping).clone();
        let free: Vec<_> = {
            let mut state = lock(&self.state);
            let Some(noted) = mapping.bitmap.as_ref().and_then(PageBitmap::snapshot) else { return };
            for (number, ranges) in state.owners.take_orphaned() {
                let bytes = ranges.bytes();
                for (start, len) in ranges {
                    state.free.add(start, len);
                    let _ = self.note_pages(start, len, None);
                }
                if state.owners.put(number, bytes) {
                    let _ = self.note_program(&state.owners, number);
                }
            }
            let unused: Vec<_> = state.free.clone().into_iter().collect();
            for (start, end) in noted.of(&unused) {
                state.free.remove(start, end - start);
                state.owners.leave(UNKNOWN, start, end - start);
                let _ = self.note_pages(start, end - start, Some(UNKNOWN));
            }
            state.free.clone().into_iter().collect()
        };
        // A VMM that copies memory touches each page.
        if !self.is_huge {
            free.into_iter().for_each(|(start, len)| self.clear(start, len));
        }
    }

    /// Notes the boot of the guest's machine. Returns whether another boot was noted before. The note is in the
    /// window, for the next daemon. A program that changes it makes others of its machine lose their pages, which
    /// it could do in the window itself.
    pub(crate) fn is_new_boot(&self, boot: Uuid) -> bool {
        let mapping = lock(&self.mapping).clone();
        let mut noted = Uuid::default();
        let is_known = mapping.memory.read(BOOT, &mut noted.0) && noted != Uuid::default();
        let _ = mapping.memory.write(BOOT, &boot.0);
        is_known && noted != boot
    }
}

#[cfg(test)]
#[path = "orphaned_tests.rs"]
mod tests;
