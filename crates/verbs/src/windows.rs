//! Windows on a peer's regions: pages of a region that are in a file, mapped when they are first used. A window stays
//! until the region or memory window whose key was used to request it is gone.

use crate::link::Link;
use uverbs::{Region, RegionTable, Reply, Request, SharedPages};

/// Largest number of windows; memory of further regions is accessed with system calls.
const MOST: usize = 256;

struct Window {
    key: u32,
    file: u64,
    /// `None` if the peer did not give the pages.
    pages: Option<SharedPages>,
}

impl Window {
    /// Is true if this is the answer to a request with this key for this file. A region and all memory windows bound
    /// to it have the same file, but a peer may refuse only one of their keys.
    fn serves(&self, key: u32, file: u64) -> bool {
        self.file == file && (self.pages.is_some() || self.key == key)
    }

    /// Is true if the region still exists.
    fn is_there(&self, regions: &RegionTable) -> bool {
        regions.get(self.key).is_some_and(|region| region.file == self.file)
    }
}

/// All windows on one peer's regions.
#[derive(Default)]
pub struct Windows {
    list: Vec<Window>,
    /// The index of the window used last.
    last: usize,
    /// Key and file of a region for which [`Self::find`] found no window.
    wanted: Option<(u32, u64)>,
}

impl Windows {
    /// Returns the index of the window that has all these bytes of a region. If the region has no window yet, notes
    /// that one must be requested.
    #[inline]
    pub fn find(&mut self, key: u32, region: &Region, address: u64, len: usize) -> Option<usize> {
        if region.file == 0 {
            return None;
        }
        let serves = |window: &Window| window.serves(key, region.file);
        if !self.list.get(self.last).is_some_and(serves) {
            match self.list.iter().position(serves) {
                Some(at) => self.last = at,
                None => {
                    self.wanted = (self.list.len() < MOST).then_some((key, region.file));
                    return None;
                }
            }
        }
        self.pages(self.last)?.covers(address, len).then_some(self.last)
    }

    /// Is true if a window must be requested.
    pub const fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    #[inline]
    pub fn pages(&self, window: usize) -> Option<&SharedPages> {
        self.list.get(window)?.pages.as_ref()
    }

    /// Requests the window that was noted, if there is one. Returns whether it is open.
    #[cold]
    pub fn open(&mut self, link: &Link, qpn: u32, regions: &RegionTable) -> bool {
        let Some((key, file)) = self.wanted.take() else { return false };
        self.list.retain(|window| window.is_there(regions));
        let pages = match link.ask_for(&Request::Pages { qpn, rkey: key }) {
            Ok((Reply::Pages { address, len, file }, given)) => {
                let memory = usize::try_from(len).ok().and_then(|len| link.map_of_peer(given, len).ok());
                memory.map(|memory| SharedPages::new(memory, address, file))
            }
            _ => None,
        };
        let pages = pages.filter(|pages| pages.file() == file);
        let is_open = pages.is_some();
        self.list.push(Window { key, file, pages });
        is_open
    }

    /// Closes windows of regions that are gone, and allows new requests for windows that were refused.
    pub fn close_old(&mut self, regions: &RegionTable) {
        self.list.retain(|window| window.pages.is_some() && window.is_there(regions));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs::Kind;

    #[test]
    fn a_key_that_is_refused_refuses_no_other_of_its_file() {
        let region = Region { pd: 1, address: 0, len: 8, iova: 0, access: 0, file: 7, kind: Kind::Region };
        let refused = Window { key: 1, file: 7, pages: None };
        let mut windows = Windows { list: vec![refused], ..Windows::default() };
        assert_eq!(windows.find(1, &region, 0, 8), None);
        assert!(!windows.is_wanted(), "it is not asked for again");
        assert_eq!(windows.find(2, &region, 0, 8), None);
        assert!(windows.is_wanted());
    }
}
