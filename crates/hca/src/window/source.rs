//! Memory that the device shares with programs: its sources, the handle with which the device shares it further,
//! and what a program gets so that it can map it.

use crate::base::budget::DeviceBudget;
use crate::base::refusal::no_memory;
use crate::window::notes::ProgramNote;
use crate::window::owners::Giver;
use crate::window::program_pages::ProgramPages;
use crate::window::queue_memory::{empty, guarded_memory};
use crate::window::{Account, Mapping, NoPages, Pages, Window};
use mem::FaultWord;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs::{Given, Memory, MemoryError, Part, Refusal, Suspect, WindowKind};

/// The windows of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceWindows {
    /// The window of its guest, if that is a virtual machine.
    pub own: Option<Arc<Window>>,
    /// The window of its trust.
    pub common: Option<Arc<Window>>,
}

/// The memory that a program can map.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// True if it runs on this kernel, and so can map any file. Programs in virtual machines can only map their
    /// windows.
    pub is_local: bool,
    pub windows: DeviceWindows,
}

impl PartialEq for DeviceWindows {
    /// Is true if they are the same objects.
    fn eq(&self, other: &Self) -> bool {
        let same = |(a, b): (&Option<Arc<Window>>, &Option<Arc<Window>>)| {
            a.as_ref().map(Arc::as_ptr) == b.as_ref().map(Arc::as_ptr)
        };
        same((&self.own, &other.own)) && same((&self.common, &other.common))
    }
}

impl Reach {
    fn has(&self, window: &Arc<Window>) -> bool {
        self.windows.own.iter().chain(&self.windows.common).any(|own| Arc::ptr_eq(own, window))
    }

    /// Makes what the program gets to map pages. `None` if it can't map them, or no descriptor is left.
    pub fn pages(&self, pages: &Arc<Pages>, part: Part) -> Option<Given> {
        let window = pages.window();
        // Pages of a machine's own window never leave it.
        if !self.has(window) {
            return None;
        }
        if self.is_local {
            return Some(Given::Window(window.file().try_clone_to_owned().ok()?, part));
        }
        Some(Given::Part(part))
    }
}

/// The file or pages of memory that the device shares, from which it can be shared further.
#[derive(Debug)]
pub(crate) enum MemoryBacking {
    File(OwnedFd),
    Pages(Arc<Pages>),
}

impl MemoryBacking {
    /// Makes what a program gets to map the memory. `None` if it can't map it, or no descriptor is left.
    pub fn give(&self, to: &Reach) -> Option<Given> {
        match self {
            Self::File(file) if to.is_local => file.try_clone().ok().map(Given::Descriptor),
            Self::File(_) => None,
            Self::Pages(pages) => to.pages(pages, pages.part()),
        }
    }

    /// Makes what the program gets that asked for the memory.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn give_owner(&self, owner: &Reach) -> Result<Given, Refusal> {
        self.give(owner).ok_or_else(|| no_memory("the daemon has no descriptor left"))
    }

    /// Maps it once more.
    pub fn open(&self, len: usize, fault: &Arc<FaultWord>) -> Result<Memory, MemoryError> {
        match self {
            Self::File(file) => Memory::open(file, len)?.guarded(fault),
            Self::Pages(pages) => pages.first(len).ok_or(MemoryError::NoPart),
        }
    }

    /// Frees what nobody needs any more. Pages of a window free themselves.
    pub fn empty(&self) {
        if let Self::File(file) = self {
            empty(file);
        }
    }
}

/// A program's share of a window.
#[derive(Clone, Debug)]
struct Share {
    window: Arc<Window>,
    mapping: Arc<Mapping>,
    account: Arc<Account>,
}

impl Share {
    fn is_faulty(&self) -> bool {
        self.mapping.fault.get().is_some()
    }

    fn take(&self, bytes: u64, may_split: bool) -> Result<Vec<Arc<Pages>>, Refusal> {
        self.window.take(bytes, may_split, &self.mapping, &self.account).map_err(no_memory)
    }
}

/// The source of memory for a program.
#[derive(Debug)]
pub(crate) struct MemorySource {
    pub reach: Reach,
    /// Windows from which it may have pages, the preferred one first.
    shares: Vec<Share>,
    /// Set when memory that the program shares with the device was truncated.
    pub fault: Arc<FaultWord>,
    /// The pages that the program has for its regions.
    program: Arc<ProgramPages>,
    /// The identity of the program.
    note: ProgramNote,
}

/// Why a program has no memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSource {
    #[error("{0}")]
    Memory(#[from] MemoryError),
    #[error("{0}")]
    Pages(#[from] NoPages),
}

impl MemorySource {
    /// Opens accounts in the windows of a program. `name`: as a program in a virtual machine calls itself. A
    /// program that runs on this kernel gets pages of the common window, if there is one, so that its peers in
    /// virtual machines can map them, too; otherwise it gets files of its own.
    ///
    /// # Errors
    /// A window can't be mapped, or has too many programs.
    pub fn new(
        reach: Reach,
        note: ProgramNote,
        name: Option<&str>,
        program: Arc<ProgramPages>,
    ) -> Result<Self, NoSource> {
        let own = reach.windows.own.iter().filter(|_| !reach.is_local);
        let mut shares = Vec::new();
        for window in reach.windows.common.iter().chain(own) {
            let account = window.account(note.clone(), name.map(str::to_owned))?;
            shares.push(Share { window: window.clone(), mapping: window.mapping()?, account });
        }
        Ok(Self { reach, shares, fault: Arc::default(), program, note })
    }

    /// Is true if memory that the program uses went away.
    pub fn is_faulty(&self) -> bool {
        self.fault.get().is_some() || self.shares.iter().any(Share::is_faulty)
    }

    /// Restores windows whose memory went away, for others: this program ends.
    pub fn mend(&self) {
        self.shares.iter().filter(|share| share.is_faulty()).for_each(|share| _ = share.window.mapping());
    }

    /// Is true if the memory is of windows, where somebody else gets it next.
    pub const fn is_of_windows(&self) -> bool {
        !self.shares.is_empty()
    }

    /// Is true if peers of the same trust could map the memory.
    pub fn is_common(&self) -> bool {
        self.reach.is_local || self.reach.windows.common.is_some()
    }

    /// Takes memory of this many bytes.
    ///
    /// # Errors
    /// Nothing is left.
    pub fn memory(&self, name: &str, bytes: usize) -> Result<(Memory, MemoryBacking), Refusal> {
        let mut refused = no_memory("the guest has no window");
        for share in &self.shares {
            match share.take(bytes as u64, false) {
                Ok(pages) => {
                    let pages = pages.into_iter().next().ok_or_else(|| no_memory("no pages"))?;
                    let memory = pages.first(bytes).ok_or_else(|| no_memory("no pages"))?;
                    // Whoever had the pages may have written there since, and queues begin with zeros.
                    memory.clear();
                    return Ok((memory, MemoryBacking::Pages(pages)));
                }
                Err(refusal) => refused = refusal,
            }
        }
        if !self.reach.is_local {
            return Err(refused);
        }
        let (memory, file) = guarded_memory(name, bytes, &self.fault)?;
        Ok((memory, MemoryBacking::File(file)))
    }

    /// Takes memory of the common window; `None` if there is none.
    pub fn common(&self, bytes: usize) -> Option<(Memory, MemoryBacking)> {
        let common = self.reach.windows.common.as_ref()?;
        let share = self.shares.iter().find(|share| Arc::ptr_eq(&share.window, common))?;
        let pages = share.take(bytes as u64, false).ok()?.into_iter().next()?;
        let memory = pages.first(bytes)?;
        memory.clear();
        Some((memory, MemoryBacking::Pages(pages)))
    }

    /// Takes memory that a program with this reach can map, too. `None` if there is none.
    pub fn memory_for(&self, other: &Reach, name: &str, bytes: usize) -> Option<(Memory, MemoryBacking)> {
        if self.reach.is_local && other.is_local {
            let (memory, file) = guarded_memory(name, bytes, &self.fault).ok()?;
            return Some((memory, MemoryBacking::File(file)));
        }
        let made = self.memory(name, bytes).ok()?;
        made.1.give(other).is_some().then_some(made)
    }

    /// Pages for what the program itself wants to share. `None`: it has no window.
    pub fn pages(&self, bytes: u64) -> Option<Result<Vec<Arc<Pages>>, Refusal>> {
        let mut answer = None;
        for share in &self.shares {
            let taken = share.take(bytes, true);
            let is_done = taken.is_ok();
            answer = Some(taken);
            if is_done {
                break;
            }
        }
        answer
    }

    /// Gives the program these pages, for regions of any of its connections.
    ///
    /// # Errors
    /// It has too many pieces.
    pub fn keep(&self, pages: &[Arc<Pages>]) -> Result<(), Refusal> {
        self.program.add(pages).map_err(no_memory)
    }

    /// Returns the window of that kind, if the program may have pages of it.
    fn window(&self, kind: WindowKind) -> Option<&Arc<Window>> {
        self.shares.iter().map(|share| &share.window).find(|window| window.kind() == kind)
    }

    /// Finds the pages that contain this part, and that the program got on any of its connections.
    pub fn find(&self, part: Part) -> Option<Arc<Pages>> {
        self.program.find(self.window(part.window)?, part)
    }

    /// Takes back pages that the program got on any of its connections, or had from an earlier device or daemon.
    /// Returns false if there are no such pages.
    pub fn give_back(&self, part: Part) -> bool {
        let Some(window) = self.window(part.window) else { return false };
        let giver = Giver { guest: &self.note.guest, secret: self.note.secret };
        self.program.remove(window, part) || window.give_back_orphaned(giver, part)
    }

    /// Returns programs of its machine about whose end the program is asked.
    pub fn suspects(&self) -> Vec<Suspect> {
        self.shares.iter().flat_map(|share| share.window.suspects(&self.note)).collect()
    }

    /// Handles the program's report that these programs have ended.
    pub fn end_suspects(&self, gone: &[Suspect]) {
        self.shares.iter().for_each(|share| share.window.end_suspects(&self.note, gone));
    }

    /// Notes that the program is about to get access to memory of others.
    pub fn share(&self) {
        self.shares.iter().for_each(|share| share.account.share());
    }

    /// Returns the number by which the program's connections know that they have the same pages.
    pub fn program(&self) -> u64 {
        self.program.number()
    }

    /// Orphans pages of windows that the device does not have any more, since the program may go on using them.
    pub fn leave_old(&self, windows: &DeviceWindows) {
        let is_there = |share: &Share| {
            windows.own.iter().chain(&windows.common).any(|window| Arc::ptr_eq(window, &share.window))
        };
        for share in self.shares.iter().filter(|share| !is_there(share)) {
            share.account.leave();
            self.program.leave();
        }
    }

    /// Orphans the pages of a program that has ended, since peers go on using them.
    pub fn leave_to_peers(&self) {
        self.shares.iter().for_each(|share| share.account.leave_to_peers());
    }

    /// Orphans the program's pages: the device closes, and the program may go on using them.
    pub fn leave(&self) {
        self.shares.iter().for_each(|share| share.account.leave());
        self.program.leave();
    }
}

/// Bytes of the daemon that a program's lists of pages take.
#[derive(Debug)]
pub(crate) struct ListBytes(u64, Arc<DeviceBudget>);

impl ListBytes {
    /// Takes the bytes from the device's budget; `None` if it has no more.
    pub fn take(bytes: u64, budget: &Arc<DeviceBudget>) -> Option<Self> {
        budget.take_bytes(bytes).ok()?;
        Some(Self(bytes, budget.clone()))
    }
}

impl Drop for ListBytes {
    fn drop(&mut self) {
        self.1.give_back_bytes(self.0);
    }
}
