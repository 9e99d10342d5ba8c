//! Pairs: connections both of whose ends have memory.

use crate::bells::Heard;
use crate::carriage::{Command, Desk};
use crate::closing::Who;
use crate::files::{self, Mapped};
use crate::offer::Key;
use crate::window::InWindow;
use sockring::{BYTES, Direction, Link, Side};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One end of a pair.
#[derive(Clone, Debug)]
pub struct Party {
    pub guest: String,
    pub user: u32,
    pub pid: i32,
    /// The programs that have this end, by the numbers of their connections to the daemon, with their names of it.
    pub programs: Vec<(u64, u64)>,
}

impl Party {
    /// Returns the user who has this end.
    pub fn who(&self) -> Who {
        (self.guest.clone(), self.user)
    }
}

/// A pair, for showing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairStatus {
    /// The connection, from the first end.
    pub key: Key,
    /// Guests of both ends.
    pub guests: [String; 2],
    /// Processes of both ends, as they were when the ends were matched.
    pub pids: [i32; 2],
    /// Whether each direction goes by its ring, the first end's first.
    pub rings: [bool; 2],
    /// Bytes that went by each ring.
    pub bytes: [u64; 2],
    /// Why it was told to return to TCP, if it was.
    pub returned: Option<&'static str>,
}

/// The memory of a pair.
pub enum Memory {
    /// A file of its own.
    File(Header),
    /// A piece of a window.
    Window(InWindow),
    /// A slot of a file for many: the number of the file, and of the slot.
    Slot(Arc<Mapped>, u64, u8),
    /// Memory of its own, whose contents go to another host.
    Carried(Arc<Header>, Carrier),
}

/// The place at which word is left for what carries a pair to another host.
pub struct Carrier {
    pub desk: Arc<Desk>,
    /// The program's bell. `None`: an agent passes its bells on.
    pub heard: Option<Arc<Heard>>,
}

/// A pair's own memory, mapped here, as one of its ends sees it.
pub struct Header {
    at: NonNull<u8>,
    side: Side,
    /// The piece of a window that it is; otherwise it is a file.
    window: Option<InWindow>,
    /// Whether both ends, on two hosts, know that both are with TCP and have all that went by rings.
    pub is_parted: AtomicBool,
}

// SAFETY: the memory has only atomics, and bytes that are copied by pointers.
unsafe impl Send for Header {}
// SAFETY: as for `Send`.
unsafe impl Sync for Header {}

impl Header {
    /// Makes the memory of a pair. Returns its file too.
    pub fn new(side: Side) -> rustix::io::Result<(Self, OwnedFd)> {
        let (at, file) = files::memory(BYTES)?;
        Ok((Self { at, side, window: None, is_parted: AtomicBool::new(false) }, file))
    }

    /// Makes a piece of a window such memory. Only threads that may wait for the window have links to it.
    pub fn in_window(side: Side, piece: InWindow) -> Option<Self> {
        Some(Self { at: piece.base()?, side, window: Some(piece), is_parted: AtomicBool::new(false) })
    }

    /// Notes that no program uses it any more.
    pub fn free(&self) {
        self.window.iter().for_each(InWindow::free);
    }

    /// Returns where it is in what its program gets.
    pub fn offset(&self) -> u64 {
        self.window.as_ref().map_or(0, InWindow::offset)
    }

    pub fn link(&self) -> Link {
        // SAFETY: the mapping is as long as this.
        unsafe { Link::new(self.at.as_ptr(), self.side) }
    }
}

fn directions(link: &Link) -> [(bool, u64); 2] {
    [link.tx(), link.rx()].map(|dir| (dir.is_ring(), dir.positions().0))
}

/// Asks both ends to return to TCP.
fn want_tcp(link: &Link) {
    [link.tx(), link.rx()].iter().for_each(|dir| dir.want_tcp(Direction::RETURNS));
}

impl hca::Cargo for Header {
    fn read(&self, from: u64, to: &mut [u8]) {
        self.link().copy_sent(from, to);
    }
}

impl Drop for Header {
    fn drop(&mut self) {
        if self.window.is_some() {
            return;
        }
        // SAFETY: it was mapped with this length, and no link is left.
        _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), BYTES) };
    }
}

pub struct Pair {
    pub key: Key,
    pub parties: [Party; 2],
    memory: Memory,
    /// Whether it is not known of all programs that they have let go of the memory.
    is_lost: bool,
    /// Bytes told to the tables.
    counted: [u64; 2],
    returned: Option<&'static str>,
}

impl Pair {
    pub const fn new(key: Key, parties: [Party; 2], memory: Memory) -> Self {
        Self { key, parties, memory, is_lost: false, counted: [0; 2], returned: None }
    }

    fn directions(&self) -> [(bool, u64); 2] {
        match &self.memory {
            Memory::Window(piece) => piece.directions(),
            Memory::File(header) => directions(&header.link()),
            Memory::Carried(header, _) => match &header.window {
                Some(piece) => piece.directions(),
                None => directions(&header.link()),
            },
            Memory::Slot(mapped, _, slot) => mapped.link(*slot).as_ref().map_or([(false, 0); 2], directions),
        }
    }

    pub fn status(&self) -> PairStatus {
        let directions = self.directions();
        let [a, b] = &self.parties;
        PairStatus {
            key: self.key,
            guests: [a.guest.clone(), b.guest.clone()],
            pids: [a.pid, b.pid],
            rings: directions.map(|(ring, _)| ring),
            bytes: directions.map(|(_, bytes)| bytes),
            returned: self.returned,
        }
    }

    /// Returns the bytes since the last time, if there are any.
    pub fn news(&mut self) -> Option<(u64, u64)> {
        let now = self.directions().map(|(_, bytes)| bytes);
        // The programs write these numbers.
        let [a, b] = [0, 1].map(|at| now[at].saturating_sub(self.counted[at]));
        self.counted = now;
        (a.max(b) > 0).then_some((a, b))
    }

    /// Returns the file and the slot of its memory, if it is in a file for many.
    pub const fn slot(&self) -> Option<(u64, u8)> {
        if let Memory::Slot(_, file, slot) = self.memory { Some((file, slot)) } else { None }
    }

    /// Returns whether both programs have its memory in a window, where others get it once nobody has the pair any more.
    pub const fn is_in_window(&self) -> bool {
        matches!(self.memory, Memory::Window(_))
    }

    /// Returns whether both ends were asked to return to TCP.
    pub const fn is_returned(&self) -> bool {
        self.returned.is_some()
    }

    /// Asks both ends to return to TCP, and has them told of it by `tell`. Returns whether they are to be told now, for
    /// the first time.
    pub fn return_to_tcp(&mut self, why: &'static str, tell: impl FnOnce() + Send + 'static) -> bool {
        let is_new = self.returned.replace(why).is_none();
        match &self.memory {
            Memory::File(header) => want_tcp(&header.link()),
            Memory::Slot(mapped, _, slot) => mapped.link(*slot).iter().for_each(want_tcp),
            Memory::Carried(header, carrier) => match &header.window {
                Some(piece) if is_new => {
                    let desk = carrier.desk.clone();
                    piece.want_tcp(move || {
                        desk.ring();
                        tell();
                    });
                    return false;
                }
                Some(_) => {}
                None => {
                    want_tcp(&header.link());
                    carrier.desk.ring();
                }
            },
            Memory::Window(piece) if is_new => {
                piece.want_tcp(tell);
                return false;
            }
            Memory::Window(_) => {}
        }
        is_new
    }

    /// Forgets what a program has: all, or the end of one name. Returns whether nobody has an end any more.
    pub fn forget(&mut self, program: u64, token: Option<u64>) -> bool {
        for party in &mut self.parties {
            party
                .programs
                .retain(|(number, its)| *number != program || token.is_some_and(|token| token != *its));
        }
        self.parties.iter().all(|party| party.programs.is_empty())
    }

    /// Notes that a program may go on using the memory, of which nobody hears any more.
    pub const fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Ends the pair, which nobody has any more.
    pub fn end(&self, number: u64) {
        if let Some(desk) = self.desk() {
            desk.tell(Command::Ended(number));
        }
        match &self.memory {
            Memory::Window(piece) if !self.is_lost => piece.free(),
            Memory::Carried(header, _) if !self.is_lost => header.free(),
            _ => {}
        }
    }

    /// Returns where the daemon carries it to another host, if it does.
    pub fn desk(&self) -> Option<&Arc<Desk>> {
        if let Memory::Carried(_, carrier) = &self.memory { Some(&carrier.desk) } else { None }
    }

    /// Returns whether it goes on without this daemon: it is of this host, or both ends know that both are with TCP.
    pub fn is_parted(&self) -> bool {
        !matches!(&self.memory, Memory::Carried(header, _) if !header.is_parted.load(Ordering::Acquire))
    }

    pub fn has(&self, program: u64) -> bool {
        self.parties.iter().any(|party| party.programs.iter().any(|(number, _)| *number == program))
    }
}

pub type Pairs = BTreeMap<u64, Pair>;
