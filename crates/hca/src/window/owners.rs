//! The owners of a window's pages: programs that have the device, and programs that lost their device or its
//! daemon, and may still use their pages.
//!
//! Nobody else gets orphaned pages before their program has given them back, or has ended. The end of a program is
//! known if
//! - the program, or the VMM of its virtual machine, was a process of this host that has ended;
//! - its machine was started anew since;
//! - another program of its machine says so.
//!
//! After that, peers that were given access to its pages may still write there: peers of a daemon before this one
//! learn of its end only when they look. So they must have ended as well, or have given back all their pages: a
//! program closes its contexts before it does that.

use crate::base::random;
use crate::window::host_process::{End, HostProcess};
use crate::window::notes::{PROGRAMS, ProgramNote, UNKNOWN};
use crate::window::ranges::Ranges;
use std::collections::BTreeMap;
use uverbs::{Part, Suspect, Uuid, WindowKind};

/// Most programs that a program is asked about.
const SUSPECTS: usize = 64;

#[derive(Debug)]
struct Program {
    note: ProgramNote,
    /// True if it has the device.
    is_here: bool,
    /// True if it had no pages of this window when its daemon ended, or is lost: then pages that it gives back do not
    /// show that it stopped.
    is_bare: bool,
    has_ended: bool,
    end: End,
    /// The pages that it may still use.
    orphaned: Ranges,
    /// Those of the orphaned pages that it has given back.
    returned: Ranges,
    /// Bytes that were taken out, and are not free yet.
    going: u64,
    /// When it was first given access to pages of others ([`Owners::now`]); 0: never.
    shares_since: u64,
    /// Others get its pages once those programs have stopped that were given access to pages of others by this
    /// time; 0: at once.
    awaits: u64,
}

impl Program {
    fn is_over(&mut self) -> bool {
        self.has_ended |= !self.is_here && self.end.is_over();
        self.has_ended
    }

    /// Takes out the pages that it has given back, or all its orphaned ones.
    fn take(&mut self, is_all: bool) -> Ranges {
        let mut taken = std::mem::take(&mut self.returned);
        if is_all {
            std::mem::take(&mut self.orphaned).into_iter().for_each(|(start, len)| taken.add(start, len));
        }
        self.going += taken.bytes();
        taken
    }

    /// Is true if it has nothing, and never gets anything any more.
    const fn is_gone(&self) -> bool {
        let has_any = self.orphaned.bytes() + self.returned.bytes() + self.going > 0;
        !self.is_here && !has_any && (!self.is_bare || self.has_ended)
    }

    /// Is true if it may write to pages of others.
    fn is_at_work(&mut self) -> bool {
        let may_be = self.shares_since > 0 && (self.is_here || self.is_bare || self.orphaned.bytes() > 0);
        may_be && !self.is_over()
    }
}

/// The program that gives pages back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Giver<'a> {
    pub guest: &'a str,
    pub secret: Uuid,
}

/// The owners of the pages of one window.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    all: BTreeMap<u16, Program>,
    /// Counts up with each program, and each time one is given access.
    now: u64,
}

impl Owners {
    fn insert(&mut self, number: u16, note: ProgramNote, end: End) -> &mut Program {
        self.now += 1;
        let (is_here, is_bare, has_ended) = Default::default();
        let (orphaned, returned, going, awaits) = Default::default();
        let shares_since = if note.shares { self.now } else { 0 };
        let program = Program {
            note,
            is_here,
            is_bare,
            has_ended,
            end,
            orphaned,
            returned,
            going,
            shares_since,
            awaits,
        };
        self.all.remove(&number);
        self.all.entry(number).or_insert(program)
    }

    /// Adds a program of a daemon before this one, which `has_pages` of the window or not. Returns false if nothing
    /// needs to be known of it.
    pub fn add_former(&mut self, number: u16, note: ProgramNote, end: End, has_pages: bool) -> bool {
        let shares = note.shares;
        let program = self.insert(number, note, end);
        program.is_bare = !has_pages;
        let is_needed = has_pages || shares && !program.is_over();
        if !is_needed {
            self.all.remove(&number);
        }
        is_needed
    }

    /// Adds a program that has the device now. Returns its number; `None`: there are too many. A guest has at most
    /// as many numbers as are then left for others, as it is for pages.
    pub fn enlist(&mut self, note: ProgramNote) -> Option<u16> {
        let its = self.all.values().filter(|program| program.note.guest == note.guest).count();
        if its + 1 > usize::from(PROGRAMS).saturating_sub(self.all.len()) {
            return None;
        }
        // While a daemon is replaced, both give out numbers.
        let first = (random::number() % u32::from(PROGRAMS)) as u16;
        let number = (first..PROGRAMS).chain(0..first).find(|number| !self.all.contains_key(number))?;
        let end = End::of(note.process.pid);
        self.insert(number, note, end).is_here = true;
        Some(number)
    }

    /// Returns the note of a program for the record.
    pub fn note(&self, number: u16) -> Option<&ProgramNote> {
        self.all.get(&number).map(|program| &program.note)
    }

    /// Records that a program is given access to pages of others. Returns whether that is to be noted.
    pub fn share(&mut self, number: u16) -> bool {
        self.now += 1;
        let Some(program) = self.all.get_mut(&number).filter(|program| !program.note.shares) else {
            return false;
        };
        (program.note.shares, program.shares_since) = (true, self.now);
        true
    }

    /// Sets the process that is the VMM of a guest. Returns the programs whose notes change.
    pub fn set_vmm(&mut self, guest: &str, process: HostProcess) -> Vec<u16> {
        let is_its =
            |(_, it): &(&u16, &mut Program)| it.is_here && it.note.is_remote && it.note.guest == guest;
        let of = |(number, program): (&u16, &mut Program)| {
            (program.note.process, program.end) = (process, End::of(process.pid));
            *number
        };
        self.all.iter_mut().filter(is_its).map(of).collect()
    }

    /// Corrects programs that have the device though the VMM of their machine has ended: the VMM must be a
    /// different process, so the end of that process means nothing. Returns the programs whose notes change.
    pub fn disprove(&mut self) -> Vec<u16> {
        let is_wrong =
            |(_, it): &(&u16, &mut Program)| it.is_here && it.note.is_remote && matches!(it.end, End::Ended);
        for program in self.all.values_mut().filter(|it| it.is_here && it.note.is_remote) {
            program.end.is_over();
        }
        let of = |(number, program): (&u16, &mut Program)| {
            (program.note.process, program.end) = (HostProcess::default(), End::Unknown);
            *number
        };
        self.all.iter_mut().filter(is_wrong).map(of).collect()
    }

    /// Adds orphaned pages of a program.
    pub fn leave(&mut self, number: u16, start: u64, len: u64) {
        let number = if self.all.contains_key(&number) { number } else { UNKNOWN };
        if !self.all.contains_key(&number) {
            self.insert(number, ProgramNote::default(), End::Unknown);
        }
        self.all.get_mut(&number).into_iter().for_each(|program| program.orphaned.add(start, len));
    }

    /// Records that a program has ended while peers were at work in its pages.
    pub fn end_at_work(&mut self, number: u16) {
        if let Some(program) = self.all.get_mut(&number) {
            (program.awaits, program.has_ended) = (self.now, true);
        }
    }

    /// Makes a program's orphaned pages wait for those that were given access by now.
    pub fn await_peers(&mut self, number: u16) {
        self.all.get_mut(&number).into_iter().for_each(|program| program.awaits = self.now);
    }

    /// Records that nobody hears of a program any more, which may go on using pages of others. Until it ends, it counts
    /// as at work.
    pub fn lose(&mut self, number: u16) {
        self.all.get_mut(&number).into_iter().for_each(|program| program.is_bare = true);
    }

    /// Makes all orphaned pages wait for peers, because peers of a daemon before this one may be at work in them.
    pub fn await_all_peers(&mut self) {
        self.all.values_mut().for_each(|program| program.awaits = self.now);
    }

    /// Records that a program does not have the device any more. Returns true if nothing is known of it from then
    /// on.
    pub fn strike(&mut self, number: u16) -> bool {
        let Some(program) = self.all.get_mut(&number) else { return false };
        program.is_here = false;
        let is_gone = program.is_gone();
        if is_gone {
            self.all.remove(&number);
        }
        is_gone
    }

    /// Takes back an orphaned part from the program that has it. Returns false if it is not the giver's own.
    pub fn give_back(&mut self, giver: Giver<'_>, part: Part) -> bool {
        let may = |number: u16, note: &ProgramNote| {
            let is_proved = giver.secret != Uuid::default() && note.secret == giver.secret;
            number == UNKNOWN || is_proved || note.secret == Uuid::default() && note.guest == giver.guest
        };
        let its = self.all.iter_mut().filter(|(number, program)| may(**number, &program.note));
        for (_, program) in its {
            if program.orphaned.remove(part.offset, part.len) {
                program.returned.add(part.offset, part.len);
                return true;
            }
        }
        false
    }

    /// Ends the programs of earlier boots of a guest's machine, which was started anew with this boot. `unknown`:
    /// pages of unknown programs belonged to them, too.
    pub fn end_boots(&mut self, guest: &str, boot: Uuid, unknown: bool) {
        for (number, program) in &mut self.all {
            let ProgramNote { is_remote, guest: its, boot: of, .. } = &program.note;
            program.has_ended |= *is_remote && its == guest && *of != boot && !program.is_here;
            if unknown && *number == UNKNOWN {
                std::mem::take(&mut program.orphaned)
                    .into_iter()
                    .for_each(|(at, len)| program.returned.add(at, len));
            }
        }
    }

    /// Returns programs of this guest whose end a program of the same machine could tell, with their process
    /// numbers there.
    pub fn suspects(&self, window: WindowKind, by: &ProgramNote) -> Vec<Suspect> {
        let are_near = |it: &ProgramNote| {
            it.is_remote
                && by.is_remote
                && it.guest == by.guest
                && (it.boot, it.pid_namespace) == (by.boot, by.pid_namespace)
        };
        let is_known = by.boot != Uuid::default() && by.pid_namespace != 0;
        let suspects =
            self.all.iter().filter(|(_, it)| is_known && !it.is_here && !it.has_ended && are_near(&it.note));
        let suspect = |(number, it): (&u16, &Program)| Suspect {
            window,
            number: u32::from(*number),
            pid: it.note.pid,
            started: it.note.started,
        };
        suspects
            .map(suspect)
            .filter(|suspect| suspect.pid > 0 && suspect.started > 0)
            .take(SUSPECTS)
            .collect()
    }

    /// Records that these programs have ended, as this program says. Returns whether that is news of any.
    pub fn end_suspects(&mut self, window: WindowKind, by: &ProgramNote, gone: &[Suspect]) -> bool {
        if gone.is_empty() {
            return false;
        }
        let mut suspects = self.suspects(window, by);
        suspects.retain(|suspect| gone.contains(suspect));
        for suspect in &suspects {
            let number = suspect.number as u16;
            self.all.get_mut(&number).into_iter().for_each(|program| program.has_ended = true);
        }
        !suspects.is_empty()
    }

    /// Takes out the pages that others may have now, with the number of the program that orphaned them.
    pub fn take_free(&mut self) -> Vec<(u16, Ranges)> {
        let has_orphaned = |it: &Program| it.orphaned.bytes() + it.returned.bytes() > 0;
        if !self.all.values().any(has_orphaned) {
            return Vec::new();
        }
        let first = self.first_at_work();
        let mut free = Vec::new();
        for (number, program) in &mut self.all {
            // A program does not wait for itself.
            let others = first.iter().find(|(_, peer)| peer != number);
            let is_over = program.is_over();
            let waits = others.is_some_and(|(since, _)| *since <= program.awaits);
            let may_go = if has_orphaned(program) { !waits } else { program.is_bare && is_over };
            if may_go {
                free.push((*number, program.take(is_over)));
            }
        }
        free.retain(|(number, taken)| {
            taken.bytes() > 0 || self.all.get(number).is_some_and(Program::is_gone)
        });
        free
    }

    /// Returns the two that were first given access, of those that may write to pages of others: since when, and
    /// their numbers.
    fn first_at_work(&mut self) -> Vec<(u64, u16)> {
        let since =
            |(number, it): (&u16, &mut Program)| it.is_at_work().then_some((it.shares_since, *number));
        let mut all: Vec<_> = self.all.iter_mut().filter_map(since).collect();
        all.sort_unstable();
        all.truncate(2);
        all
    }

    /// Takes out all orphaned pages.
    pub fn take_orphaned(&mut self) -> Vec<(u16, Ranges)> {
        self.all.iter_mut().map(|(number, program)| (*number, program.take(true))).collect()
    }

    /// Records that pages that were taken out are free. Returns true if nothing is known of the program from then
    /// on.
    pub fn put(&mut self, number: u16, bytes: u64) -> bool {
        let Some(program) = self.all.get_mut(&number) else { return false };
        program.going -= bytes;
        let is_gone = program.is_gone();
        if is_gone {
            self.all.remove(&number);
        }
        is_gone
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the bytes that programs of a guest, or all, may still have.
    pub fn orphaned_bytes(&self, guest: Option<&str>) -> u64 {
        let its = self.all.values().filter(|it| guest.is_none_or(|guest| it.note.guest == guest));
        its.map(|it| it.orphaned.bytes() + it.returned.bytes()).sum()
    }
}
