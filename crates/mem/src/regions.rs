//! Guest memory: translates guest-physical addresses into ours.

use crate::guard::Guarded;
use crate::quota::{Charge, OverQuota, Quota};
use crate::{FaultWord, Segment};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Most memory slots of a guest, the number that QEMU offers with KVM.
pub const MAX_REGIONS: usize = 509;

/// `f_type` of the file systems whose files are memory (linux/magic.h). A memfd is on one of them.
const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// A disk file could block a worker for a disk's latency; a device could do anything.
    #[error("memory is neither a memfd nor a file on tmpfs or hugetlbfs")]
    NotMemory,
    /// The file ends before the region: every access after its end would fault.
    #[error("memory file of {size} bytes is shorter than the region's end at {end}")]
    TooShort {
        /// Size of the file in bytes.
        size: u64,
        /// File offset of the region's end.
        end: u64,
    },
    /// An empty region, or one that ends past 2^64.
    #[error("empty region, or one past the end of the address space")]
    Range,
    /// The region shares guest-physical or VMM addresses with a different one.
    #[error("region at guest address {0:#x} overlaps another")]
    Overlap(u64),
    /// There are more than [`MAX_REGIONS`].
    #[error("more than {MAX_REGIONS} memory regions")]
    TooMany,
    /// It would be more memory than guests may have.
    #[error(transparent)]
    Quota(#[from] OverQuota),
    /// A system call failed.
    #[error("mapping guest memory: {0}")]
    Os(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for RegionError {
    fn from(e: rustix::io::Errno) -> Self {
        Self::Os(e.into())
    }
}

/// One `mmap` of a guest's memory file.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    guarded: Option<Guarded>,
    _charge: Charge,
}

// SAFETY: an address range, whose content is only copied, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guarded = None;
        // SAFETY: exactly what `Region::map` mapped; nobody uses segments of it any more (Segment::new).
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The location of a region: in the guest, in the VMM, in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// First guest-physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u64,
    /// First address in the VMM's address space (vhost-user refers to rings by such addresses).
    pub user: u64,
    /// Offset in the file at which the region starts, in bytes.
    pub offset: u64,
}

/// A region's addresses: guest-physical, and ours.
#[derive(Clone, Copy, Debug)]
struct Place {
    gpa: u64,
    len: u64,
    host: *mut u8,
}

// SAFETY: only addresses; see `Mapping`.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// Returns the `len` bytes at `gpa`, which must be in this region, if all of them are.
    #[inline(always)]
    fn whole(&self, gpa: u64, len: u32) -> Option<Segment> {
        let offset = gpa.wrapping_sub(self.gpa);
        let fits = offset < self.len && u64::from(len) <= self.len - offset;
        // SAFETY: as in `part`.
        fits.then(|| unsafe { Segment::new(self.host.add(offset as usize), len) })
    }

    /// Returns the bytes from `gpa` that are in this region, at most `len`.
    #[inline(always)]
    fn part(&self, gpa: u64, len: u32) -> Option<Segment> {
        let offset = gpa.wrapping_sub(self.gpa);
        let room = self.len.checked_sub(offset).filter(|room| *room > 0)?;
        // SAFETY: inside the region, which stays mapped while it is used (`Region::map`, `from_raw`). The promise of
        // `Resolver::new` is that its users keep it for the burst.
        Some(unsafe { Segment::new(self.host.add(offset as usize), room.min(u64::from(len)) as u32) })
    }
}

/// A run of guest memory mapped here.
#[derive(Clone, Debug)]
pub struct Region {
    place: Place,
    user: u64,
    shrinkable: bool,
    /// `None` for memory that the caller of `from_raw` keeps.
    _mapping: Option<Arc<Mapping>>,
}

impl Region {
    /// Maps `spec` of `file`, shared and guarded: if the file is truncated, `fault` is raised. It counts in
    /// `quota` as long as it is mapped.
    ///
    /// # Errors
    /// If the file is not a memory file, is too short, too much, or can't be mapped.
    pub fn map(
        spec: &RegionSpec,
        file: impl AsFd,
        fault: &Arc<FaultWord>,
        quota: &Arc<Quota>,
    ) -> Result<Self, RegionError> {
        let end = spec.offset.checked_add(spec.len).ok_or(RegionError::Range)?;
        // Only files that are memory have seals. Asking a file system for anything else (FUSE, NFS) may take forever;
        // this asks only the kernel.
        let seals = fcntl_get_seals(&file).map_err(|_| RegionError::NotMemory)?;
        let (stat, fs) = (fstat(&file)?, fstatfs(&file)?);
        if ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&fs.f_type) {
            return Err(RegionError::NotMemory);
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size < end {
            return Err(RegionError::TooShort { size, end });
        }
        // A mapping starts and ends at page boundaries; the file system's block is its page, huge or not.
        let page = u64::try_from(fs.f_bsize).unwrap_or(0).max(4096);
        let start = spec.offset - spec.offset % page;
        let len = usize::try_from((end - start).checked_next_multiple_of(page).ok_or(RegionError::Range)?)
            .map_err(|_| RegionError::Range)?;
        let charge = quota.take(len as u64)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                start,
            )
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(RegionError::Range)?;
        // The handler maps over this address.
        base.as_ptr().expose_provenance();
        let mut mapping = Mapping { base, len, guarded: None, _charge: charge };
        // SAFETY: the whole of that mapping, which `Mapping` unguards before it unmaps it.
        mapping.guarded = Some(unsafe { Guarded::new(base.as_ptr(), len, fault) }?);
        // Guest RAM must not be in our core dumps. SAFETY: advice about our own mapping that does not change its
        // contents.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontDump) };
        // SAFETY: the mapping holds `spec.len` bytes from there, for as long as the region.
        let region = unsafe { Self::from_raw(spec, base.as_ptr().add((spec.offset - start) as usize)) }?;
        // Even if the file is sealed, a huge page may be punched out of the middle and then be unavailable.
        let stays = seals.contains(SealFlags::SHRINK) && fs.f_type == TMPFS_MAGIC;
        Ok(Self { shrinkable: !stays, _mapping: Some(Arc::new(mapping)), ..region })
    }

    /// Creates a region over memory that is already mapped; `spec.offset` is ignored.
    ///
    /// # Errors
    /// [`RegionError::Range`].
    ///
    /// # Safety
    /// The `spec.len` bytes at `host` must stay mapped readable and writable as long as the region, its clones
    /// and segments of it are used.
    pub unsafe fn from_raw(spec: &RegionSpec, host: *mut u8) -> Result<Self, RegionError> {
        let &RegionSpec { gpa, len, user, .. } = spec;
        if len == 0 || gpa.checked_add(len).is_none() || user.checked_add(len).is_none() {
            return Err(RegionError::Range);
        }
        Ok(Self { place: Place { gpa, len, host }, user, shrinkable: false, _mapping: None })
    }

    /// Returns our address of the byte at `offset`, if there is one.
    pub(crate) fn byte(&self, offset: u64) -> Option<*mut u8> {
        // SAFETY: inside the region.
        (offset < self.place.len).then(|| unsafe { self.place.host.add(offset as usize) })
    }

    /// Returns whether the guest's side can still remove memory: the file is not sealed against shrinking, or
    /// has huge pages.
    #[must_use]
    pub fn shrinkable(&self) -> bool {
        self.shrinkable
    }
}

/// A guest's memory: regions in order of guest-physical address.
#[derive(Clone, Debug, Default)]
pub struct Regions(Vec<Region>);

impl Regions {
    pub fn insert(&mut self, region: Region) -> Result<(), RegionError> {
        let apart = |a: u64, a_len: u64, b: u64, b_len: u64| a + a_len <= b || b + b_len <= a;
        if !self.0.iter().all(|r| {
            let (len, other) = (r.place.len, region.place.len);
            apart(r.place.gpa, len, region.place.gpa, other) && apart(r.user, len, region.user, other)
        }) {
            return Err(RegionError::Overlap(region.place.gpa));
        }
        if self.0.len() == MAX_REGIONS {
            return Err(RegionError::TooMany);
        }
        let at = self.0.partition_point(|r| r.place.gpa < region.place.gpa);
        self.0.insert(at, region);
        Ok(())
    }

    /// Removes the region with these bounds; false if there is none.
    pub fn remove(&mut self, spec: &RegionSpec) -> bool {
        let before = self.0.len();
        self.0.retain(|r| (r.place.gpa, r.place.len, r.user) != (spec.gpa, spec.len, spec.user));
        self.0.len() != before
    }

    /// Returns our address for the `len` bytes at address `user` of the VMM, if they are in one region.
    #[must_use]
    pub fn user(&self, user: u64, len: u64) -> Option<*mut u8> {
        let region = self.0.iter().find(|r| user.wrapping_sub(r.user) < r.place.len)?;
        let offset = user - region.user;
        // SAFETY: `offset` is inside the region.
        (len <= region.place.len - offset).then(|| unsafe { region.place.host.add(offset as usize) })
    }

    /// Returns the guest-physical address of the byte that we have at `host`, if it is in the guest's memory.
    #[must_use]
    pub fn gpa(&self, host: *const u8) -> Option<u64> {
        let offset = |place: &Place| (host.addr() as u64).wrapping_sub(place.host.addr() as u64);
        let place = self.0.iter().map(|region| region.place).find(|place| offset(place) < place.len)?;
        Some(place.gpa + offset(&place))
    }

    fn find(&self, gpa: u64) -> Option<&Region> {
        let after = self.0.partition_point(|r| r.place.gpa <= gpa);
        self.0[..after].last().filter(|r| gpa - r.place.gpa < r.place.len)
    }
}

/// A guest-physical range is not, or not wholly, memory of the guest, or spans more regions than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address outside guest memory, or a buffer in too many regions")]
pub struct Unmapped;

/// A ring's look-up in its guest's memory. It tries the region of the last hit first.
#[derive(Debug)]
pub struct Resolver {
    regions: Arc<Regions>,
    last: Place,
}

impl Resolver {
    /// Creates a look-up in `regions`; `None` if there is no memory.
    ///
    /// # Safety
    /// Resolved segments must not be used after the resolver is dropped.
    #[must_use]
    pub unsafe fn new(regions: Arc<Regions>) -> Option<Self> {
        let last = regions.0.first()?.place;
        Some(Self { regions, last })
    }

    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Returns the `len` bytes at guest-physical `gpa`, if they are in the region of the last hit.
    #[inline(always)]
    #[must_use]
    pub fn hit(&self, gpa: u64, len: u32) -> Option<Segment> {
        self.last.whole(gpa, len)
    }

    /// Appends the `len` bytes at guest-physical `gpa` to `out`: as one segment, or as several where regions meet, but
    /// at most `most`.
    ///
    /// # Errors
    /// [`Unmapped`]; `out` may hold a part of the range.
    #[inline]
    pub fn resolve(
        &mut self,
        gpa: u64,
        len: u32,
        most: usize,
        out: &mut Vec<Segment>,
    ) -> Result<(), Unmapped> {
        match self.hit(gpa, len) {
            Some(whole) if most > 0 => {
                out.push(whole);
                Ok(())
            }
            _ => self.resolve_slowly(gpa, len, most, out),
        }
    }

    #[cold]
    fn resolve_slowly(
        &mut self,
        mut gpa: u64,
        mut len: u32,
        mut most: usize,
        out: &mut Vec<Segment>,
    ) -> Result<(), Unmapped> {
        while len > 0 {
            most = most.checked_sub(1).ok_or(Unmapped)?;
            let place = self.regions.find(gpa).ok_or(Unmapped)?.place;
            let part = place.part(gpa, len).ok_or(Unmapped)?;
            self.last = place;
            out.push(part);
            gpa += part.len() as u64;
            len -= part.len() as u32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPA: u64 = 0x8000_0000;

    /// Creates regions over `bytes`; each item of `list` is guest address, offset and length.
    fn regions(bytes: &mut [u8], list: &[(u64, usize, usize)]) -> Regions {
        let (host, mut regions) = (bytes.as_mut_ptr(), Regions::default());
        for &(gpa, offset, len) in list {
            assert!(offset + len <= bytes.len());
            let spec =
                RegionSpec { gpa, len: len as u64, user: gpa & 0xffff_ffff | 0x1000_0000_0000, offset: 0 };
            // SAFETY: inside `bytes`, which outlive the test's use.
            regions.insert(unsafe { Region::from_raw(&spec, host.add(offset)) }.unwrap()).unwrap();
        }
        regions
    }

    fn resolve(regions: &Regions, gpa: u64, len: u32) -> Result<Vec<Segment>, Unmapped> {
        // SAFETY: the segments are not used after the memory is freed.
        let mut resolver = unsafe { Resolver::new(Arc::new(regions.clone())) }.unwrap();
        let mut out = Vec::new();
        resolver.resolve(gpa, len, usize::MAX, &mut out).map(|()| out)
    }

    #[test]
    fn a_buffer_lies_where_its_regions_lie() {
        let mut bytes: Vec<u8> = (0..200).collect();
        // The second region comes first in our memory, and there is a gap before the third.
        let list = [(GPA, 100, 50), (GPA + 50, 0, 50), (GPA + 200, 150, 50)];
        // Memory starts at 0 in most guests.
        assert_eq!(
            resolve(&regions(&mut bytes, &[(0, 0, 50), (50, 50, 50)]), 0, 100).map(|parts| parts.len()),
            Ok(2)
        );
        let regions = regions(&mut bytes, &list);
        for (gpa, len) in [(0, 50), (10, 5), (50, 50), (49, 2), (0, 100), (200, 50)] {
            let segments = resolve(&regions, GPA + gpa, len).unwrap();
            let mut out = vec![0; len as usize];
            assert_eq!(crate::gather(&segments, 0, &mut out), out.len());
            let at = |gpa: u64| if gpa < 50 { gpa + 100 } else { gpa - 50 };
            let expected: Vec<u8> = (gpa..gpa + u64::from(len)).map(|g| at(g) as u8).collect();
            assert_eq!(out, expected, "{len} bytes at {gpa}");
        }
    }

    #[test]
    fn a_hit_is_whole_and_not_empty() {
        let mut bytes = [0; 100];
        // SAFETY: the segments are not used after the memory is freed.
        let resolver =
            unsafe { Resolver::new(Arc::new(regions(&mut bytes, &[(GPA, 0, 50), (GPA + 50, 50, 50)]))) };
        let resolver = resolver.unwrap();
        let hit = |gpa, len| resolver.hit(gpa, len).map(|s| s.len());
        assert_eq!((hit(GPA, 50), hit(GPA + 49, 1)), (Some(50), Some(1)));
        assert_eq!(
            (hit(GPA, 51), hit(GPA + 50, 1), hit(GPA + 50, 0), hit(GPA - 1, 1)),
            (None, None, None, None)
        );
    }

    #[test]
    fn a_buffer_has_as_many_parts_as_it_may() {
        let mut bytes = [0; 100];
        let regions = Arc::new(regions(&mut bytes, &[(GPA, 0, 10), (GPA + 10, 10, 10), (GPA + 20, 20, 10)]));
        let resolve = |len, most| {
            // SAFETY: the segments are not used after the memory is freed.
            let mut resolver = unsafe { Resolver::new(regions.clone()) }.unwrap();
            let mut out = Vec::new();
            let resolved = resolver.resolve(GPA, len, most, &mut out);
            (resolved.is_ok(), out.len())
        };
        assert_eq!((resolve(30, 3), resolve(30, 2), resolve(20, 2)), ((true, 3), (false, 2), (true, 2)));
        assert_eq!((resolve(10, 1), resolve(10, 0)), ((true, 1), (false, 0)));
    }

    #[test]
    fn nothing_outside_is_found() {
        let mut bytes = [0; 100];
        let regions = regions(&mut bytes, &[(GPA, 0, 50), (u64::MAX - 50, 50, 50)]);
        for (gpa, len) in [
            (GPA - 1, 1),
            (GPA + 50, 1),
            (GPA + 49, 2),
            (GPA, u32::MAX),
            (u64::MAX - 1, 2),
            (u64::MAX, 2),
            (0, 1),
        ] {
            assert_eq!(resolve(&regions, gpa, len).err(), Some(Unmapped), "{len} bytes at {gpa:#x}");
        }
        assert!(resolve(&regions, u64::MAX - 2, 1).is_ok());
    }

    #[test]
    fn rings_are_found_by_the_addresses_of_the_vmm() {
        let mut bytes = [0; 100];
        let host = bytes.as_mut_ptr();
        let regions = regions(&mut bytes, &[(GPA, 0, 50), (GPA + 50, 50, 50)]);
        let user = GPA | 0x1000_0000_0000;
        assert_eq!(regions.user(user + 10, 40).map(|p| p.addr()), Some(host.addr() + 10));
        assert_eq!(regions.user(user + 10, 41), None, "not across regions");
        assert_eq!(regions.user(user - 1, 1), None);
        assert_eq!(regions.user(user + 100, 0), None);
        assert_eq!(regions.user(user, u64::MAX), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it touches no memory, and takes minutes")]
    fn regions_do_not_overlap_and_are_bounded() {
        let mut bytes = [0; 8];
        let host = bytes.as_mut_ptr();
        let region = |gpa, len, user| {
            // SAFETY: never accessed.
            unsafe { Region::from_raw(&RegionSpec { gpa, len, user, offset: 0 }, host) }
        };
        let mut regions = Regions::default();
        regions.insert(region(100, 50, 1000).unwrap()).unwrap();
        for (gpa, len, user) in [(149, 1, 0), (51, 50, 0), (0, 1000, 5000), (0, 1, 1049)] {
            let refused = regions.insert(region(gpa, len, user).unwrap());
            assert!(matches!(refused, Err(RegionError::Overlap(_))), "{gpa} {len} {user}");
        }
        for (gpa, len, user) in [(0, 0, 0), (u64::MAX, 1, 0), (0, 1, u64::MAX)] {
            assert!(matches!(region(gpa, len, user), Err(RegionError::Range)));
        }
        for i in 1..MAX_REGIONS as u64 {
            regions.insert(region(1000 * i, 8, 10_000 * i).unwrap()).unwrap();
        }
        let one_more = regions.insert(region(10, 8, 10).unwrap());
        assert!(matches!(one_more, Err(RegionError::TooMany)));
        let spec = RegionSpec { gpa: 100, len: 50, user: 1000, offset: 0 };
        assert!(!regions.remove(&RegionSpec { len: 49, ..spec }));
        assert!(regions.remove(&spec) && !regions.remove(&spec));
    }

    #[cfg(not(miri))]
    mod mapped {
        use super::*;
        use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
        use std::fs::File;
        use std::os::unix::fs::FileExt;

        fn memfd(len: u64) -> File {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = File::from(memfd_create("test", flags).unwrap());
            file.set_len(len).unwrap();
            file
        }

        fn map(file: &File, offset: u64, len: u64) -> Result<Region, RegionError> {
            Region::map(
                &RegionSpec { gpa: GPA, len, user: 0, offset },
                file,
                &Arc::default(),
                &Arc::default(),
            )
        }

        #[test]
        fn memory_is_mapped_at_any_offset() {
            let file = memfd(0x5000);
            file.write_all_at(b"here", 0x1234).unwrap();
            let mut regions = Regions::default();
            regions.insert(map(&file, 0x1200, 0x3e00).unwrap()).unwrap();
            let segments = resolve(&regions, GPA + 0x34, 4).unwrap();
            let mut out = [0; 4];
            crate::gather(&segments, 0, &mut out);
            assert_eq!(&out, b"here");
            crate::scatter(b"back", &segments, 0);
            file.read_exact_at(&mut out, 0x1234).unwrap();
            assert_eq!(&out, b"back");
        }

        #[test]
        fn a_region_that_goes_is_unmapped() {
            let file = File::from(memfd_create("unmapped-later", MemfdFlags::CLOEXEC).unwrap());
            file.set_len(0x4000).unwrap();
            let maps = || {
                let all = std::fs::read_to_string("/proc/self/maps").unwrap();
                let ours = all.lines().filter(|line| line.contains("unmapped-later"));
                ours.map(|line| {
                    let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
                    u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
                })
                .collect::<Vec<_>>()
            };
            let region = map(&file, 0x1200, 0x1000).unwrap();
            let regions = region.clone();
            drop(region);
            assert_eq!(maps(), [0x2000], "whole pages");
            drop(regions);
            assert_eq!(maps(), []);
        }

        #[test]
        fn only_memory_is_mapped() {
            let file = memfd(0x2000);
            assert!(matches!(map(&file, 0x1000, 0x1001), Err(RegionError::TooShort { .. })));
            assert!(matches!(map(&file, u64::MAX, 2), Err(RegionError::Range)));
            let device = File::options().read(true).write(true).open("/dev/zero").unwrap();
            assert!(matches!(map(&device, 0, 0x1000), Err(RegionError::NotMemory)));
            let program = File::open("/proc/self/exe").unwrap();
            assert!(matches!(map(&program, 0, 0x1000), Err(RegionError::NotMemory | RegionError::Os(_))));
        }

        #[test]
        fn sealed_memory_can_not_shrink() {
            let file = memfd(0x1000);
            assert!(map(&file, 0, 0x1000).unwrap().shrinkable());
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            assert!(!map(&file, 0, 0x1000).unwrap().shrinkable());
        }

        #[test]
        fn huge_pages_can_be_taken_away_whatever_the_seals() {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
            // Some kernels lack this feature.
            let Ok(file) = memfd_create("test", flags).map(File::from) else { return };
            let page = rustix::fs::fstatfs(&file).unwrap().f_bsize as u64;
            file.set_len(page).unwrap();
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
            assert!(map(&file, 0, page).unwrap().shrinkable());
        }
    }
}
