//! Pages of the program's memory that move, in place, when a region is registered, to where others can map them: the
//! device, and peers that share memory with the program. Then nobody needs a system call to access them.
//!
//! In a virtual machine this is how the device gets at a program's memory at all: each page of a region moves to a
//! window, also those that the region shares with other data. Elsewhere it happens only if the program's user requests
//! it with `VIADUCT_RDMA_SHARE=1`, with whole pages of the region: to a window that the device has in common with
//! virtual machines, or to a sealed file.
//!
//! What other threads write meanwhile is not lost ([`protection`]). On the way back that is so for words that they
//! write once ([`merge`]); pages with other data, where they may do anything, therefore stay in the window until the
//! connection ends, or many are there. A child of a fork gets its own copy ([`fork`]).

mod fork;
mod lender;
mod merge;
mod movable;
mod place;
mod protection;

use crate::control::Control;
use crate::errno::Outcome;
use crate::link::Link;
use crate::lock::{Guard, Lock};
use crate::mapping::Mapping;
pub use lender::{Lender, join, secret};
use movable::Obstacle;
use place::Place;
pub use place::Source;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use uverbs::{Extent, Uuid};

/// Bytes of a page.
const PAGE: usize = uverbs::PAGE as usize;

/// Pages that are requested at once, for those that regions share with other data.
const BATCH: usize = 16;
/// Most such pages that stay in a window without a region.
const IDLE: usize = 1024;

/// A place, and how many regions use each of its pages.
struct Moved {
    place: Place,
    users: Vec<u32>,
    /// It stays where it is while nobody uses it.
    stays: bool,
    /// The connection whose region used it last.
    last: Weak<Control>,
}

/// Pages of a place: its number, and bytes there.
type Piece = (u64, Range<usize>);

/// The pages of a region.
struct Use {
    /// The connection of its device.
    link: Arc<Control>,
    pieces: Vec<Piece>,
}

/// All moved pages of the program.
struct Table {
    places: BTreeMap<u64, Moved>,
    uses: BTreeMap<u64, Use>,
    /// Single pages of windows, to which nothing has moved.
    spare: Vec<(Arc<Source>, usize)>,
    lenders: Vec<Weak<Lender>>,
    /// Zero: there is none yet.
    secret: Uuid,
    /// How many places and uses there were.
    count: u64,
}

static TABLE: Lock<Table> = Lock::new(Table::new());

fn table() -> Guard<'static, Table> {
    TABLE.lock()
}

/// A use of moved pages. After the last one they become private to the program again.
#[derive(Debug)]
pub struct MovedPages {
    number: u64,
    extents: Vec<Extent>,
    file: Option<Arc<OwnedFd>>,
}

/// Why pages did not move.
enum Failure {
    /// Something is wrong with the device, the kernel or the memory.
    Errno(i32),
    /// They can't.
    Obstacle(Obstacle),
}

impl From<i32> for Failure {
    fn from(errno: i32) -> Self {
        Self::Errno(errno)
    }
}

impl MovedPages {
    /// Moves the pages of this memory, if the device needs that, or it is wanted and possible.
    ///
    /// # Errors
    /// If the device needs it, and it is not possible.
    pub fn of(link: &Link, address: usize, len: usize) -> Outcome<Option<Self>> {
        if len == 0 || !link.is_remote() && !is_wanted() {
            return Ok(None);
        }
        fork::prepare_for_it();
        let inner = within(address, len);
        let all = if link.is_remote() { around(address, len) } else { inner.clone() };
        let Some(all) = all else { return if link.is_remote() { Err(libc::EFAULT) } else { Ok(None) } };
        let moved = table().take(link, all, inner.unwrap_or_default());
        match moved {
            Ok(moved) => Ok(moved),
            // If other threads could use the table meanwhile, this would wait for itself.
            Err(Failure::Errno(errno)) if link.is_remote() => Err(link.noted(errno)),
            // Here a device could get the pages by a read of them that it does not complete.
            Err(Failure::Obstacle(obstacle)) if link.is_remote() => Err(obstacle.tell(address)),
            Err(_) => Ok(None),
        }
    }

    /// What to register with a region.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The file that goes along.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_deref()
    }
}

impl Drop for MovedPages {
    fn drop(&mut self) {
        table().drop_use(self.number);
    }
}

/// Ends the uses of this connection, which is about to end, or whose device is gone. What no other connection of the
/// program uses becomes private.
pub fn forget(link: &Arc<Control>, lenders: &[Arc<Lender>]) {
    let mut table = table();
    let is_its = |(number, it): (&u64, &Use)| Arc::ptr_eq(&it.link, link).then_some(*number);
    let numbers: Vec<_> = table.uses.iter().filter_map(is_its).collect();
    numbers.into_iter().for_each(|number| table.drop_use(number));
    // What nobody else has of the program goes back with it, whoever used it last.
    let only: Vec<_> = lenders.iter().filter(|lender| lender.has_only(link)).cloned().collect();
    table.drop_idle(|moved| {
        moved.last.as_ptr() == Arc::as_ptr(link) || moved.place.source().0.is_lent_by(&only)
    });
    table.spare.retain(|(source, _)| !source.is_lent_by(&only));
    lenders.iter().for_each(|lender| lender.leave(link));
}

/// Whether the program's user requests that regions move even if the device does not need it.
fn is_wanted() -> bool {
    static IS_WANTED: OnceLock<bool> = OnceLock::new();
    let is_wanted = || std::env::var_os("VIADUCT_RDMA_SHARE").is_some_and(|value| value == "1");
    *IS_WANTED.get_or_init(is_wanted)
}

/// All pages of this memory.
fn around(address: usize, len: usize) -> Option<Range<usize>> {
    Some(address / PAGE * PAGE..address.checked_add(len)?.checked_next_multiple_of(PAGE)?)
}

/// The pages that are within this memory.
fn within(address: usize, len: usize) -> Option<Range<usize>> {
    let pages = address.checked_next_multiple_of(PAGE)?..address.checked_add(len)? / PAGE * PAGE;
    (!pages.is_empty()).then_some(pages)
}

/// A part of the memory of a region.
enum Found {
    Moved(Piece),
    Private(Range<usize>),
}

impl Table {
    const fn new() -> Self {
        Self {
            places: BTreeMap::new(),
            uses: BTreeMap::new(),
            spare: Vec::new(),
            lenders: Vec::new(),
            secret: Uuid([0; 16]),
            count: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Uses the pages at these addresses. Those that are not moved yet move. `None` if they are left as they are.
    /// `inner`: those without other data.
    fn take(
        &mut self,
        link: &Link,
        all: Range<usize>,
        inner: Range<usize>,
    ) -> Result<Option<MovedPages>, Failure> {
        let found = self.find(all.start, all.len())?;
        if !link.has_window() {
            // A region has one file, or none.
            let [one] = &found[..] else { return Ok(None) };
            let Found::Moved((number, _)) = one else { return self.start_use(link, found, &inner).map(Some) };
            let is_file = self.places.get(number).is_some_and(|it| it.place.file().is_some());
            return if is_file { self.start_use(link, found, &inner).map(Some) } else { Ok(None) };
        }
        let is_foreign = |found: &Found| {
            let Found::Moved((number, _)) = found else { return false };
            self.places.get(number).is_none_or(|it| !it.place.source().0.is_lent_by(link.lenders()))
        };
        if found.iter().any(is_foreign) {
            return Err(Failure::Obstacle(Obstacle::OtherDevice));
        }
        self.start_use(link, found, &inner).map(Some)
    }

    /// What is at these addresses.
    fn find(&self, start: usize, len: usize) -> Result<Vec<Found>, Failure> {
        let (mut found, mut at) = (Vec::new(), start);
        for mapping in Mapping::within(start, len) {
            let end = mapping.end.min(start + len);
            if mapping.start > at {
                return Err(Failure::Errno(libc::EFAULT));
            }
            while at < end {
                let piece =
                    self.places.iter().find_map(|(number, it)| Some((*number, it.place.at(at, &mapping)?)));
                let (next, until) = match piece {
                    Some((number, bytes)) => {
                        let until = end.min(at + bytes.len());
                        (Found::Moved((number, bytes.start..bytes.start + until - at)), until)
                    }
                    None => (Found::Private(at..end), end),
                };
                match (found.last_mut(), next) {
                    (Some(Found::Private(before)), Found::Private(_)) => before.end = until,
                    (_, next) => found.push(next),
                }
                at = until;
            }
        }
        if at < start + len { Err(Failure::Errno(libc::EFAULT)) } else { Ok(found) }
    }

    /// Moves what is private yet, and counts the use.
    fn start_use(
        &mut self,
        link: &Link,
        found: Vec<Found>,
        inner: &Range<usize>,
    ) -> Result<MovedPages, Failure> {
        for part in &found {
            if let Found::Private(range) = part {
                movable::check(range.start, range.len()).map_err(Failure::Obstacle)?;
            }
        }
        let mut pieces = Vec::new();
        for part in found {
            match part {
                Found::Moved(piece) => pieces.push(self.used(piece)),
                Found::Private(range) => {
                    if let Err(errno) = self.fill(link, range, inner, &mut pieces) {
                        self.give_back(pieces);
                        return Err(errno.into());
                    }
                }
            }
        }
        let extents =
            pieces.iter().filter_map(|(number, bytes)| Some(self.places.get(number)?.place.extent(bytes)));
        let extents = extents.collect();
        let file = pieces.first().and_then(|(number, _)| self.places.get(number)?.place.file().cloned());
        for (number, _) in &pieces {
            self.places.entry(*number).and_modify(|moved| moved.last = Arc::downgrade(link.control()));
        }
        let number = self.number();
        self.uses.insert(number, Use { link: link.control().clone(), pieces });
        Ok(MovedPages { number, extents, file })
    }

    /// Moves private pages: those with other data one by one.
    fn fill(
        &mut self,
        link: &Link,
        range: Range<usize>,
        inner: &Range<usize>,
        pieces: &mut Vec<Piece>,
    ) -> Outcome<()> {
        let clamp = |address: usize| address.clamp(range.start, range.end);
        let (from, to) = (clamp(inner.start), clamp(inner.end));
        for edge in (range.start..from).step_by(PAGE) {
            self.fill_edge(link, edge, pieces)?;
        }
        if from < to {
            let sources = if link.has_window() {
                link.sources(to - from)?
            } else {
                vec![(Source::file(to - from)?, to - from)]
            };
            let mut at = from;
            for (source, len) in sources {
                self.fill_place(Place::new(at, len, Arc::new(source), 0), false, pieces)?;
                at += len;
            }
        }
        for edge in (to..range.end).step_by(PAGE) {
            self.fill_edge(link, edge, pieces)?;
        }
        Ok(())
    }

    /// Moves a page with other data.
    fn fill_edge(&mut self, link: &Link, address: usize, pieces: &mut Vec<Piece>) -> Outcome<()> {
        let is_its = |(source, _): &(Arc<Source>, usize)| source.is_lent_by(link.lenders());
        if !self.spare.iter().any(is_its) {
            let sources = link.sources(BATCH * PAGE).or_else(|_| link.sources(PAGE))?;
            for (source, len) in sources {
                let source = Arc::new(source);
                self.spare.extend((0..len).step_by(PAGE).map(|from| (source.clone(), from)));
            }
        }
        let at = self.spare.iter().position(is_its).ok_or(libc::EIO)?;
        let (source, from) = self.spare.swap_remove(at);
        self.fill_place(Place::new(address, PAGE, source, from), true, pieces)
    }

    fn fill_place(&mut self, place: Place, stays: bool, pieces: &mut Vec<Piece>) -> Outcome<()> {
        place.fill()?;
        let (number, bytes) = (self.number(), 0..place.len);
        let (users, last) = (vec![0; place.len / PAGE], Weak::new());
        self.places.insert(number, Moved { users, place, stays, last });
        pieces.push(self.used((number, bytes)));
        Ok(())
    }

    /// Counts a user of these pages.
    fn used(&mut self, piece: Piece) -> Piece {
        if let Some(moved) = self.places.get_mut(&piece.0) {
            moved.users[piece.1.start / PAGE..piece.1.end / PAGE].iter_mut().for_each(|users| *users += 1);
        }
        piece
    }

    fn drop_use(&mut self, number: u64) {
        // It is gone already if its connection is.
        if let Some(gone) = self.uses.remove(&number) {
            self.give_back(gone.pieces);
        }
    }

    /// Makes pages private that nobody uses any more, and gives back places of which nothing is used.
    fn give_back(&mut self, pieces: Vec<Piece>) {
        for (number, bytes) in pieces {
            let Some(moved) = self.places.get_mut(&number) else { continue };
            let pages = bytes.start / PAGE..bytes.end / PAGE;
            moved.users[pages.clone()].iter_mut().for_each(|users| *users -= 1);
            if moved.stays {
                continue;
            }
            for unused in runs(&moved.users, pages) {
                // What can't be had elsewhere stays, and so does its place.
                moved.stays |= !moved.place.make_private(&unused, true);
            }
            if !moved.stays && moved.users.iter().all(|users| *users == 0) {
                self.places.remove(&number);
            }
        }
        if self.places.values().filter(|moved| moved.is_idle()).count() > IDLE {
            self.drop_idle(|_| true);
        }
    }

    /// Makes pages private that stay without a user: those of which this is true.
    fn drop_idle(&mut self, is_its: impl Fn(&Moved) -> bool) {
        let spare = &mut self.spare;
        self.places.retain(|_, moved| {
            let goes =
                moved.is_idle() && is_its(moved) && moved.place.make_private(&(0..moved.place.len), true);
            if goes && moved.place.len == PAGE {
                let (source, from) = moved.place.source();
                spare.push((source.clone(), from));
            }
            !goes
        });
    }
}

impl Moved {
    fn is_idle(&self) -> bool {
        self.stays && self.users.iter().all(|users| *users == 0)
    }
}

/// Runs of those of these pages that nobody uses, in bytes.
fn runs(users: &[u32], pages: Range<usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for page in pages.filter(|page| users[*page] == 0) {
        let bytes = page * PAGE..(page + 1) * PAGE;
        match runs.last_mut().filter(|last| last.end == bytes.start) {
            Some(last) => last.end = bytes.end,
            None => runs.push(bytes),
        }
    }
    runs
}
