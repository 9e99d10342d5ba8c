//! Memory regions: which ones an application may register, and how it changes them.

use crate::address_space::AddressSpace;
use crate::ids::{Key, PdId};
use crate::limits::Limits;
use crate::pd::Pds;
use crate::refusal::{found, refuse};
use crate::regions::Regions;
use mem::FaultWord;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs::qp::access;
use uverbs::{Kind, Refusal, Region};

/// A change of a region: what is `None` stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub pd: Option<PdId>,
    /// Address and bytes.
    pub range: Option<(u64, u64)>,
    pub access: Option<u32>,
}

/// Pages of a region in a file that others may map: their address and length, and the file if it was sent.
pub(crate) type Pages = Option<((u64, u64), Option<OwnedFd>)>;

/// The memory and the protection domains against which regions are checked.
#[derive(Clone, Copy)]
pub(crate) struct Registrar<'a> {
    pub pds: &'a Pds,
    pub space: &'a AddressSpace,
    pub limits: Limits,
    pub fault: &'a Arc<FaultWord>,
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
        let there = |at| region.len == 0 || region.is_implicit() || self.space.read(at, &mut [0]).is_ok();
        if !(there(region.address) && there(last)) {
            return refuse(Errno::FAULT, "there is no memory at the region's address");
        }
        Ok(())
    }

    /// Registers a region. Returns its key.
    pub fn register(&self, regions: &mut Regions, region: Region, pages: Pages) -> Result<Key, Refusal> {
        self.check(&region)?;
        let pages = match pages {
            Some((range, Some(file))) => {
                let mapped = regions.map(file, range, self.limits, (self.space, self.fault));
                mapped.or_else(|error| refuse(Errno::INVAL, error.to_string()))?
            }
            Some((_, None)) => return refuse(Errno::BADF, "the file of the region's pages was not sent"),
            None => None,
        };
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
        let replaced = regions.replace(mr, new, change.range.is_none(), self.limits);
        replaced.or_else(|full| refuse(Errno::NOMEM, full.to_string()))
    }
}

/// Removes the region with this key.
pub(crate) fn deregister(regions: &mut Regions, mr: Key) -> Result<(), Refusal> {
    check_windows(regions, mr)?;
    found(regions.remove(mr), "memory region").map(|_| ())
}

/// A region stays as it is while windows are bound to it (`ibv_reg_mr(3)`).
fn check_windows(regions: &Regions, mr: Key) -> Result<(), Refusal> {
    if regions.has_windows(mr) {
        return refuse(Errno::BUSY, "memory windows are bound to the memory region");
    }
    Ok(())
}
