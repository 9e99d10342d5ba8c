//! Pages of the program's memory that move, in place, when a region is registered, to where others can map them: the
//! device, and peers that share memory with the program. Then nobody needs a system call to access them.
//!
//! In a virtual machine this is how the device gets at a program's memory at all: each page of a region moves to a
//! window, also those that the region shares with other data. For memory that can't move, other pages of the window
//! stand ([`stand_in`]). Elsewhere it happens only if the program's user requests
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
mod stand_in;

use crate::control::Control;
use crate::errno::Outcome;
use crate::link::Link;
use crate::lock::{Guard, Lock};
use crate::mapping::Mapping;
pub use lender::{Lender, join, secret};
use place::Place;
pub use place::Source;
pub use stand_in::{StandIn, StandIns};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use uverbs::{Extent, Uuid};

const PAGE: usize = uverbs::PAGE as usize;

/// Number of window pages that are requested at once for edge pages: those that hold other data besides a region.
const BATCH: usize = 16;
/// Largest number of edge pages that stay in a window after their regions have ended.
const IDLE: usize = 1024;

/// A place, and the number of regions that use each of its pages.
struct Moved {
    place: Place,
    users: Vec<u32>,
    /// Whether the pages stay in the place while no region uses them.
    stays: bool,
    /// The connection whose region used the pages last.
    last: Weak<Control>,
}

/// Some pages of a place: the place's number, and the range of bytes in it.
type Piece = (u64, Range<usize>);

struct Use {
    link: Arc<Control>,
    pieces: Vec<Piece>,
}

/// All moved pages of the program.
struct Table {
    places: BTreeMap<u64, Moved>,
    uses: BTreeMap<u64, Use>,
    /// Single pages of windows, to which nothing has moved: the source, and the byte in it.
    spare: Vec<(Arc<Source>, usize)>,
    lenders: Vec<Weak<Lender>>,
    /// Zero until a secret is drawn.
    secret: Uuid,
    /// The number given last to a place or a use.
    count: u64,
}

static TABLE: Lock<Table> = Lock::new(Table::new());

fn table() -> Guard<'static, Table> {
    TABLE.lock()
}

/// A region's use of moved pages. After a page's last use has ended, it becomes private to the program again.
#[derive(Debug)]
pub struct MovedPages {
    number: u64,
    extents: Vec<Extent>,
    file: Option<Arc<OwnedFd>>,
}

/// The pages of a region.
#[derive(Debug)]
pub enum RegionPages {
    AsTheyAre,
    Moved(MovedPages),
    /// Others stand for them.
    StandIn(StandIn),
}

enum Failure {
    /// The device, the kernel or the memory has an error.
    Errno(i32),
    /// These pages can't move.
    Obstacle,
}

impl From<i32> for Failure {
    fn from(errno: i32) -> Self {
        Self::Errno(errno)
    }
}

impl MovedPages {
    /// Moves the pages of this memory, if the device needs that, or if the user wants it and it is possible. Where the
    /// device needs it and they can't move, other pages stand for them.
    ///
    /// # Errors
    /// If the device needs it, and there is no memory for it.
    pub fn of(link: &Link, address: usize, len: usize) -> Outcome<RegionPages> {
        if len == 0 || !link.is_remote() && !is_wanted() {
            return Ok(RegionPages::AsTheyAre);
        }
        fork::prepare_for_it();
        let inner = within(address, len);
        let all = if link.is_remote() { around(address, len) } else { inner.clone() };
        let Some(all) = all else {
            return if link.is_remote() { Err(libc::EFAULT) } else { Ok(RegionPages::AsTheyAre) };
        };
        let moved = table().take(link, all, inner.unwrap_or_default());
        match moved {
            Ok(Some(moved)) => Ok(RegionPages::Moved(moved)),
            // `noted` locks the table, so the table must be unlocked here.
            Err(Failure::Errno(errno)) if link.is_remote() => Err(link.noted(errno)),
            // A device outside the virtual machine can't reach pages that did not move.
            Err(Failure::Obstacle) if link.is_remote() => {
                link.serve_copies()?;
                StandIn::new(link, address, len).map(RegionPages::StandIn)
            }
            Ok(None) | Err(_) => Ok(RegionPages::AsTheyAre),
        }
    }

    /// Returns the extents to register with a region.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Returns the file to send along with the registration.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_deref()
    }
}

impl Drop for MovedPages {
    fn drop(&mut self) {
        table().drop_use(self.number);
    }
}

/// Ends the uses of this connection, which is about to end, or whose device is gone. Pages that no other connection of
/// the program uses become private.
pub fn forget(link: &Arc<Control>, lenders: &[Arc<Lender>]) {
    let mut table = table();
    let is_its = |(number, it): (&u64, &Use)| Arc::ptr_eq(&it.link, link).then_some(*number);
    let numbers: Vec<_> = table.uses.iter().filter_map(is_its).collect();
    numbers.into_iter().for_each(|number| table.drop_use(number));
    // Pages of lenders that no other connection of the program has go back now, whoever used them last.
    let only: Vec<_> = lenders.iter().filter(|lender| lender.has_only(link)).cloned().collect();
    table.drop_idle(|moved| {
        moved.last.as_ptr() == Arc::as_ptr(link) || moved.place.source().0.is_lent_by(&only)
    });
    table.spare.retain(|(source, _)| !source.is_lent_by(&only));
    lenders.iter().for_each(|lender| lender.leave(link));
}

/// Is true if the program's user requests that regions move even if the device does not need it.
fn is_wanted() -> bool {
    static IS_WANTED: OnceLock<bool> = OnceLock::new();
    let is_wanted = || std::env::var_os("VIADUCT_RDMA_SHARE").is_some_and(|value| value == "1");
    *IS_WANTED.get_or_init(is_wanted)
}

/// Returns the range of all pages that this memory touches.
fn around(address: usize, len: usize) -> Option<Range<usize>> {
    Some(address / PAGE * PAGE..address.checked_add(len)?.checked_next_multiple_of(PAGE)?)
}

/// Returns the range of the pages that lie within this memory.
fn within(address: usize, len: usize) -> Option<Range<usize>> {
    let pages = address.checked_next_multiple_of(PAGE)?..address.checked_add(len)? / PAGE * PAGE;
    (!pages.is_empty()).then_some(pages)
}

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

    /// Uses the pages at the addresses `all`, and moves those that have not moved yet. `inner` are those that hold no
    /// other data. Returns `None` if the pages are left as they are.
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
            return Err(Failure::Obstacle);
        }
        self.start_use(link, found, &inner).map(Some)
    }

    /// Splits these addresses into parts that have moved and parts that are private.
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

    /// Moves the parts that are still private, and counts the use.
    fn start_use(
        &mut self,
        link: &Link,
        found: Vec<Found>,
        inner: &Range<usize>,
    ) -> Result<MovedPages, Failure> {
        for part in &found {
            if let Found::Private(range) = part {
                movable::check(range.start, range.len()).map_err(|_| Failure::Obstacle)?;
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

    /// Moves private pages. Edge pages, those outside `inner`, move one by one.
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

    /// Counts a user of these pages, and returns them.
    fn used(&mut self, piece: Piece) -> Piece {
        if let Some(moved) = self.places.get_mut(&piece.0) {
            moved.users[piece.1.start / PAGE..piece.1.end / PAGE].iter_mut().for_each(|users| *users += 1);
        }
        piece
    }

    fn drop_use(&mut self, number: u64) {
        // The use is gone already if its connection has ended.
        if let Some(gone) = self.uses.remove(&number) {
            self.give_back(gone.pieces);
        }
    }

    /// Ends a use of these pages. Pages without a user become private, and places without a user are given back.
    fn give_back(&mut self, pieces: Vec<Piece>) {
        for (number, bytes) in pieces {
            let Some(moved) = self.places.get_mut(&number) else { continue };
            let pages = bytes.start / PAGE..bytes.end / PAGE;
            moved.users[pages.clone()].iter_mut().for_each(|users| *users -= 1);
            if moved.stays {
                continue;
            }
            for unused in runs(&moved.users, pages) {
                // Pages for which there is no room elsewhere stay, and keep their place.
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

    /// Makes those pages private that stay without a user and fulfil a condition.
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

/// Returns the ranges of bytes of these pages that nobody uses.
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
