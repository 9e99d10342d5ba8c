//! Memory regions: which ones an application may register, and how it changes them.

use crate::base::ids::{Key, PdId};
use crate::base::limits::Limits;
use crate::base::refusal::{found, no_memory, refuse};
use crate::context::pd::Pds;
use crate::memory::address_space::AddressSpace;
use crate::memory::regions::{PagesFile, Piece, RegionPages, Regions};
use crate::window::source::MemorySource;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use uverbs::qp::access;
use uverbs::{Backing, Extent, Kind, PAGE, Refusal, Region};

/// A change of a region: what is `None` stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub pd: Option<PdId>,
    /// Address and bytes.
    pub range: Option<(u64, u64)>,
    pub access: Option<u32>,
}

/// Pages of a region that others may map, and the file that was sent with them, if one was.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub extents: Vec<Extent>,
    pub file: Option<OwnedFd>,
    /// Whether the pages only stand for the region's own.
    pub stands_in: bool,
}

/// Most extents of a region.
const EXTENTS: usize = 512;

/// The memory and the protection domains against which regions are checked.
#[derive(Clone, Copy)]
pub(crate) struct Registrar<'a> {
    pub pds: &'a Pds,
    pub space: &'a AddressSpace,
    pub limits: Limits,
    pub source: &'a MemorySource,
}

impl Registrar<'_> {
    fn check(&self, region: &Region) -> Result<(), Refusal> {
        self.pds.check(PdId(region.pd))?;
        if region.access & !(access::ALL | access::OPTIONAL) != 0 {
            return refuse(Errno::OPNOTSUPP, format!("access flags {:#x} are not supported", region.access));
        }
        let writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        if region.access & writes != 0 && region.access & access::LOCAL_WRITE == 0 {
            return refuse(Errno::INVAL, "remote write access needs local write access");
        }
        let wraps = |start: u64| start.checked_add(region.len.max(1) - 1).is_none();
        if wraps(region.address) || wraps(region.iova) {
            return refuse(Errno::INVAL, "the memory region passes the end of the address space");
        }
        let last = region.address.wrapping_add(region.len.max(1) - 1);
        // Memory of a program in a virtual machine is checked with its pages.
        let is_known = region.len == 0 || region.is_implicit() || self.space.is_none();
        let there = |at| is_known || self.space.read(at, &mut [0]).is_ok();
        if !(there(region.address) && there(last)) {
            return refuse(Errno::FAULT, "there is no memory at the region's address");
        }
        Ok(())
    }

    /// Finds the pieces of windows for the extents of a region, which follow one another.
    fn pieces(&self, extents: &[Extent]) -> Result<Vec<Piece>, Refusal> {
        let wrong =
            || refuse(Errno::INVAL, "not pages of a window that the program has, one after the other");
        if extents.len() > EXTENTS {
            return refuse(Errno::NOMEM, format!("at most {EXTENTS} pieces of a memory region"));
        }
        let mut next = None;
        let mut pieces = Vec::with_capacity(extents.len());
        for Extent { address, len, backing } in extents {
            let &Backing::Window(part) = backing else { return wrong() };
            let follows = next.is_none_or(|next| next == *address) && address.is_multiple_of(PAGE);
            next = address.checked_add(*len).filter(|_| follows && part.len == *len);
            let (Some(_), Some(_)) = (next, part.end()) else { return wrong() };
            let Some(pages) = self.source.find(part) else { return wrong() };
            pieces.push(Piece { address: *address, part, pages });
        }
        Ok(pieces)
    }

    /// Maps the pages of a region that others may map.
    fn pages(
        &self,
        regions: &Regions,
        region: &Region,
        Wanted { extents, file, stands_in }: Wanted,
    ) -> Result<Option<RegionPages>, Refusal> {
        let pages = match (&extents[..], file) {
            ([], _) => None,
            (&[Extent { address, len, backing: Backing::File }], Some(file)) => {
                let mapped = regions.map(
                    PagesFile { file, address, len },
                    self.limits,
                    self.space,
                    &self.source.fault,
                );
                mapped.or_else(|error| refuse(Errno::INVAL, error.to_string()))?
            }
            ([Extent { backing: Backing::File, .. }], None) => {
                return refuse(Errno::BADF, "the file of the region's pages was not sent");
            }
            (extents, _) => {
                let pieces = self.pieces(extents)?;
                let pages = regions.over(pieces, self.space, stands_in);
                Some(pages.ok_or_else(|| no_memory("no room for so many pieces (`queues_mb`)"))?)
            }
        };
        let is_covered = pages.as_ref().is_some_and(|pages| {
            let (address, len) = pages.range();
            let offset = region.address.checked_sub(address);
            offset.is_some_and(|offset| region.len <= len && offset <= len - region.len)
        });
        if self.space.is_none() && region.len > 0 && !is_covered {
            return refuse(Errno::OPNOTSUPP, "not all of the memory region is in the window");
        }
        Ok(pages)
    }

    /// Registers a region. Returns its key.
    pub fn register(&self, regions: &mut Regions, region: Region, pages: Wanted) -> Result<Key, Refusal> {
        self.check(&region)?;
        let pages = self.pages(regions, &region, pages)?;
        let inserted = regions.insert(region, pages, self.limits);
        inserted.or_else(|full| refuse(Errno::NOMEM, full.to_string()))
    }

    /// Changes the region with this key. Returns its key. A region that moves gets another key, so that nobody uses
    /// the new memory with the old key.
    pub fn reregister(&self, regions: &mut Regions, mr: Key, change: Change) -> Result<Key, Refusal> {
        check_windows(regions, mr)?;
        let old = *found(regions.get(mr), "memory region")?;
        let (address, len) = change.range.unwrap_or((old.address, old.len));
        let new = Region {
            pd: change.pd.map_or(old.pd, |pd| pd.0),
            address,
            len,
            iova: if change.range.is_some() { address } else { old.iova },
            access: change.access.unwrap_or(old.access),
            file: 0,
            kind: Kind::Region,
        };
        self.check(&new)?;
        let moves = change.range.is_some();
        if moves && self.space.is_none() {
            return refuse(Errno::OPNOTSUPP, "a memory region of a virtual machine's program can't move");
        }
        let replaced = regions.replace(mr, new, !moves, self.limits);
        replaced.or_else(|full| refuse(Errno::NOMEM, full.to_string()))
    }
}

/// Removes the region with this key.
pub(crate) fn deregister(regions: &mut Regions, mr: Key) -> Result<(), Refusal> {
    check_windows(regions, mr)?;
    found(regions.remove(mr), "memory region").map(|_| ())
}

/// Refuses to change a region while windows are bound to it (`ibv_reg_mr(3)`).
fn check_windows(regions: &Regions, mr: Key) -> Result<(), Refusal> {
    if regions.has_windows(mr) {
        return refuse(Errno::BUSY, "memory windows are bound to the memory region");
    }
    Ok(())
}
