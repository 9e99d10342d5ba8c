//! What programs of an earlier device, or of a daemon before this one, may still use of a window: who gets it, and
//! when.

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

/// Where the window's page 0 says when the guest's machine was started.
const BOOT: usize = WindowHeader::BYTES;

/// Pages: where they begin and end, and who has them.
type Owned = (u64, u64, u16);

/// What is free of a window that was just mapped, and who has the rest. A window of its own says itself what is taken,
/// since it may have come from another host; of what is common, only the notes tell.
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

/// Who has these pages. Both are in order.
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
    /// Frees what programs left that have ended.
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

    /// Zeroes pages that were taken out, which are free then.
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

    /// Those of these pages, which this daemon takes for this program's or nobody's, that no other daemon gave to
    /// somebody since: where they begin and end. While a daemon is replaced, both give out pages. What the other one
    /// gave is left.
    pub(super) fn not_given_since(
        &self,
        state: &mut State,
        start: u64,
        len: u64,
        owner: Option<u16>,
    ) -> Vec<(u64, u64)> {
        let Some(notes) = &self.notes else { return vec![(start, start + len)] };
        // Where that can't be read, it stays as it is until the next daemon.
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

    /// The guest's machine was started at this time, so that its programs of before are gone: what they left is free.
    pub(crate) fn free_earlier_boots(&self, guest: &str, boot: Uuid) {
        // Nobody else has a window of its own.
        lock(&self.state).owners.end_boots(guest, boot, self.kind == WindowKind::Own);
        self.sweep();
    }

    /// This process is the VMM of a guest's machine.
    pub(crate) fn set_vmm(&self, guest: &str, process: HostProcess) {
        let mut state = lock(&self.state);
        for number in state.owners.set_vmm(guest, process) {
            let _ = self.note_program(&state.owners, number);
        }
    }

    /// Programs about whose end a program may be asked.
    pub(crate) fn suspects(&self, by: &ProgramNote) -> Vec<Suspect> {
        lock(&self.state).owners.suspects(self.kind, by)
    }

    /// This program says that these have ended.
    pub(crate) fn end_suspects(&self, by: &ProgramNote, gone: &[Suspect]) {
        if lock(&self.state).owners.end_suspects(self.kind, by, gone) {
            self.sweep();
        }
    }

    /// Gives back pages that a program left. False if these are not its own.
    pub(crate) fn give_back_orphaned(&self, giver: Giver<'_>, part: Part) -> bool {
        let is_orphaned = part.end().is_some() && lock(&self.state).owners.give_back(giver, part);
        if is_orphaned {
            self.sweep();
        }
        is_orphaned
    }

    /// The guest's machine goes on, perhaps one that comes from another host, whose daemon noted which pages its
    /// programs have: nobody gets those until they are given back, and all others are free. What a program has of this
    /// daemon stays as it is.
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

    /// Notes when the guest's machine was started. Returns whether that is another time than the last one noted. The
    /// note is in the window, for the next daemon. A program that changes it makes others of its machine lose what
    /// they have, which it could do in the window itself.
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
