//! Turns descriptors into segments: the part that both forms of ring share.

use super::work::Work;
use mem::{DirtyLog, Regions, Resolver, Segment, gather, prefetch_write};
use std::sync::Arc;

/// Most descriptors, and most segments, of one chain. Drivers use about twenty.
pub(crate) const MAX_CHAIN: usize = 256;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Bytes of a descriptor, in a ring or a table.
const DESC_LEN: usize = 16;

const LINE: usize = 64;

/// How the device accesses a ring's buffers: each ring of a network device has one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The device reads them: packets from the driver.
    Read,
    /// The device writes them: room for packets to the driver.
    Write,
}

/// A chain the device can't use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A descriptor, read once. In packed rings the last two fields are swapped, and `next` is the buffer id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Desc {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

impl Desc {
    /// Decodes the two words of a descriptor in the layout of a split ring.
    pub(crate) fn split(addr: u64, rest: u64) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    /// Decodes the two words of a descriptor in the layout of a packed ring.
    pub(crate) fn packed(addr: u64, rest: u64) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 48) as u16, next: (rest >> 32) as u16 }
    }

    /// Returns whether the chain goes on with one more descriptor.
    pub(crate) fn has_next(&self) -> bool {
        self.flags & NEXT != 0
    }
}

/// How descriptors in a table are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// By `next`, from the first (split).
    Chained,
    /// One after the other (packed).
    Sequence,
}

/// A ring's view of its guest's memory.
pub(crate) struct Memory {
    resolver: Resolver,
    /// Whether INDIRECT_DESC was negotiated.
    indirect: bool,
    /// An indirect table is first copied here as a whole, then read.
    table: Box<[u8; MAX_CHAIN * DESC_LEN]>,
    table_parts: Vec<Segment>,
    pub(crate) work: Work,
    /// The log in which pages that we write are marked, while the VMM wants that.
    log: Option<DirtyLog>,
}

impl Memory {
    /// Creates a view of `regions`; `None` if there are none.
    ///
    /// # Safety
    /// Segments made by the view must not be used after it is dropped.
    pub(crate) unsafe fn new(regions: Arc<Regions>, indirect: bool, log: Option<DirtyLog>) -> Option<Self> {
        // SAFETY: the caller's promise.
        let resolver = unsafe { Resolver::new(regions) }?;
        let table = Box::new([0; MAX_CHAIN * DESC_LEN]);
        let table_parts = Vec::with_capacity(MAX_CHAIN);
        Some(Self { resolver, indirect, table, table_parts, work: Work::new(), log })
    }

    pub(crate) fn logs(&self) -> bool {
        self.log.is_some()
    }

    /// Marks `parts` as written. Costs one comparison if the VMM does not want to know.
    #[inline(always)]
    pub(crate) fn written(&self, parts: &[Segment]) {
        if let Some(log) = &self.log {
            self.mark(log, parts);
        }
    }

    #[cold]
    #[inline(never)]
    fn mark(&self, log: &DirtyLog, parts: &[Segment]) {
        parts.iter().for_each(|part| log.mark(self.resolver.regions(), part));
    }

    /// Returns the buffer of `desc`, if it is the only one in its chain and lies in the region of the last
    /// hit.
    #[inline(always)]
    pub(crate) fn single(&self, desc: &Desc, access: Access) -> Option<Segment> {
        let expected = if access == Access::Write { WRITE } else { 0 };
        let plain = desc.flags & (NEXT | WRITE | INDIRECT) == expected && desc.len > 0;
        if plain { self.resolver.hit(desc.addr, desc.len) } else { None }
    }

    /// Prefetches the start of a buffer for writing, if `desc` is one.
    #[inline(always)]
    pub(crate) fn prefetch(&self, desc: &Desc) {
        if let Some(buffer) = self.resolver.hit(desc.addr, desc.len) {
            prefetch_write(buffer.as_ptr());
            prefetch_write(buffer.as_ptr().wrapping_add(LINE));
        }
    }

    /// Appends the buffers of `desc` to the chain whose segments start at `out[first]`.
    #[inline]
    pub(crate) fn append(
        &mut self,
        desc: &Desc,
        links: Links,
        access: Access,
        first: usize,
        out: &mut Vec<Segment>,
    ) -> Result<(), Malformed> {
        if desc.flags & INDIRECT == 0 {
            return self.buffer(desc, access, first, out);
        }
        if !self.indirect || desc.flags & NEXT != 0 {
            return Err(Malformed);
        }
        self.table(desc, links, access, first, out)
    }

    #[inline]
    fn buffer(
        &mut self,
        desc: &Desc,
        access: Access,
        first: usize,
        out: &mut Vec<Segment>,
    ) -> Result<(), Malformed> {
        self.work.spend(1);
        let (writable, before) = (desc.flags & WRITE != 0, out.len());
        let room = MAX_CHAIN - (before - first);
        if writable != (access == Access::Write) || desc.len == 0 || room == 0 {
            return Err(Malformed);
        }
        let resolved = self.resolver.resolve(desc.addr, desc.len, room, out);
        // A buffer that crosses regions counts as several.
        self.work.spend((out.len() - before).saturating_sub(1));
        resolved.map_err(|_| Malformed)
    }

    /// Copies an indirect table (2.7.5.3, 2.8.7), then appends its buffers. Tables can't be nested.
    fn table(
        &mut self,
        desc: &Desc,
        links: Links,
        access: Access,
        first: usize,
        out: &mut Vec<Segment>,
    ) -> Result<(), Malformed> {
        let len = desc.len as usize;
        if len == 0 || !len.is_multiple_of(DESC_LEN) || len > self.table.len() {
            return Err(Malformed);
        }
        self.table_parts.clear();
        let resolved = self.resolver.resolve(desc.addr, desc.len, MAX_CHAIN, &mut self.table_parts);
        self.work.spend(self.table_parts.len().max(1));
        resolved.map_err(|_| Malformed)?;
        gather(&self.table_parts, 0, &mut self.table[..len]);
        let count = len / DESC_LEN;
        let mut index = 0;
        // Counting the steps limits a table whose links form a circle.
        for _ in 0..count {
            let mut entry = self.entry(index, links);
            if entry.flags & INDIRECT != 0 {
                return Err(Malformed);
            }
            // DPDK's driver marks the header in a packed table as writable in its transmit ring too (22.11,
            // vring_desc_init_indirect_packed). Reading it does no harm.
            if links == Links::Sequence && access == Access::Read {
                entry.flags &= !WRITE;
            }
            self.buffer(&entry, access, first, out)?;
            index = match links {
                Links::Chained if !entry.has_next() => return Ok(()),
                Links::Chained => usize::from(entry.next),
                Links::Sequence => index + 1,
            };
            if links == Links::Chained && index >= count {
                return Err(Malformed);
            }
        }
        if links == Links::Chained { Err(Malformed) } else { Ok(()) }
    }

    fn entry(&self, index: usize, links: Links) -> Desc {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.table[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (addr, rest) = (word(index * DESC_LEN), word(index * DESC_LEN + 8));
        match links {
            Links::Chained => Desc::split(addr, rest),
            Links::Sequence => Desc::packed(addr, rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mock::{GPA, Ram, USER};
    use super::*;
    use mem::{Region, RegionSpec};

    const LEN: usize = 4096;

    /// Creates a guest's memory: `LEN` bytes, followed by regions of 16 bytes each.
    fn memory(bytes: &mut [u128], indirect: bool) -> (Ram, Memory) {
        let ram = Ram::at(bytes.as_mut_ptr().cast(), LEN);
        let mut regions = Regions::clone(&ram.regions());
        for i in 0..300u64 {
            let gpa = GPA + LEN as u64 + 16 * i;
            let spec = RegionSpec { gpa, len: 16, user: USER + LEN as u64 + 16 * i, offset: 0 };
            // SAFETY: the bytes outlive the test's use of them.
            regions.insert(unsafe { Region::from_raw(&spec, ram.at_offset(0)) }.unwrap()).unwrap();
        }
        // SAFETY: as above.
        (ram, unsafe { Memory::new(Arc::new(regions), indirect, None) }.unwrap())
    }

    #[test]
    fn a_single_buffer_is_plain_and_of_the_right_kind() {
        let mut bytes = [0; LEN / 16];
        let (ram, memory) = memory(&mut bytes, true);
        for flags in 0..8 {
            for (access, wanted) in [(Access::Read, 0), (Access::Write, WRITE)] {
                let at = |addr, len| memory.single(&Desc { addr, len, flags, next: 0 }, access);
                let there = at(GPA + 8, 20).map(|s| (ram.offset(s.as_ptr()), s.len()));
                assert_eq!(there, (flags == wanted).then_some((8, 20)), "{flags} {access:?}");
                assert!(at(GPA + 8, 0).is_none(), "nothing is no buffer");
                let end = GPA + LEN as u64;
                assert!(at(end - 1, 2).is_none() && at(GPA - 1, 2).is_none() && at(end, 1).is_none());
                // Other flags do not matter here.
                let other = Desc { addr: GPA, len: 1, flags: flags | 1 << 7 | 1 << 15, next: 9 };
                assert_eq!(memory.single(&other, access).is_some(), flags == wanted);
            }
        }
    }

    /// Appends a descriptor to `before` segments of other chains. Returns the number of segments then, or `None`.
    fn append(memory: &mut Memory, desc: (u64, u32, u16), before: usize) -> Option<usize> {
        let (addr, len, flags) = desc;
        // SAFETY: not used.
        let mut out = vec![unsafe { Segment::new(std::ptr::dangling_mut(), 1) }; before];
        let desc = Desc { addr, len, flags, next: 0 };
        memory.append(&desc, Links::Chained, Access::Read, before.min(1), &mut out).ok().map(|()| out.len())
    }

    #[test]
    fn a_table_is_negotiated_and_ends_its_chain() {
        let mut bytes = [0; LEN / 16];
        for indirect in [false, true] {
            let (ram, mut memory) = memory(&mut bytes, indirect);
            ram.write(0, &GPA.to_le_bytes());
            ram.write(8, &5u32.to_le_bytes());
            assert_eq!(append(&mut memory, (GPA, 16, INDIRECT), 0), indirect.then_some(1));
            assert_eq!(append(&mut memory, (GPA, 16, INDIRECT | NEXT), 0), None);
            assert_eq!(append(&mut memory, (GPA, 16, NEXT), 0), Some(1), "a buffer");
        }
    }

    #[test]
    fn a_packed_table_may_mark_as_writable_what_is_read() {
        let mut bytes = [0; LEN / 16];
        let (ram, mut memory) = memory(&mut bytes, true);
        let table = Desc { addr: GPA, len: 16, flags: INDIRECT, next: 0 };
        ram.write(0, &GPA.to_le_bytes());
        ram.write(8, &5u32.to_le_bytes());
        for (access, flags, good) in [
            (Access::Read, 0, true),
            (Access::Read, WRITE, true),
            (Access::Write, 0, false),
            (Access::Write, WRITE, true),
            (Access::Write, WRITE | NEXT, true),
            (Access::Read, INDIRECT, false),
        ] {
            ram.write(14, &flags.to_le_bytes());
            let appended = memory.append(&table, Links::Sequence, access, 0, &mut Vec::new());
            assert_eq!(appended.is_ok(), good, "{access:?} {flags}");
        }
        // A table of a split ring may not have this flag.
        ram.write(12, &WRITE.to_le_bytes());
        assert!(memory.append(&table, Links::Chained, Access::Read, 0, &mut Vec::new()).is_err());
    }

    #[test]
    fn a_table_has_so_many_entries() {
        let mut bytes = [0; LEN / 16];
        let (ram, mut memory) = memory(&mut bytes, true);
        for i in 0..MAX_CHAIN as u16 {
            let (at, more) = (16 * u64::from(i), usize::from(i) + 1 < MAX_CHAIN);
            ram.write(at, &GPA.to_le_bytes());
            ram.write(at + 8, &5u32.to_le_bytes());
            ram.write(at + 12, [u16::from(more), i + 1].map(u16::to_le_bytes).as_flattened());
        }
        assert_eq!(append(&mut memory, (GPA, LEN as u32, INDIRECT), 0), Some(MAX_CHAIN));
        assert_eq!(append(&mut memory, (GPA, LEN as u32 + 16, INDIRECT), 0), None);
    }

    #[test]
    fn a_chain_has_so_many_segments_whosever_come_before() {
        let mut bytes = [0; LEN / 16];
        let (_, mut memory) = memory(&mut bytes, true);
        let crossing = |parts: u32| (GPA + LEN as u64, 16 * parts, 0);
        // One of the earlier segments belongs to a different chain.
        assert_eq!(append(&mut memory, crossing(256), 1), Some(257));
        assert_eq!(append(&mut memory, crossing(257), 1), None);
        assert_eq!(append(&mut memory, crossing(56), 201), Some(257));
        assert_eq!(append(&mut memory, crossing(57), 201), None);
        assert_eq!(append(&mut memory, crossing(1), 257), None);
    }

    #[test]
    fn what_is_looked_at_is_paid_for() {
        let mut bytes = [0; LEN / 16];
        let (ram, mut memory) = memory(&mut bytes, true);
        // A table of three entries, the last of which is invalid. In its regions' memory, the first covers all three.
        for i in 0..3u16 {
            ram.write(16 * u64::from(i), &GPA.to_le_bytes());
            ram.write(16 * u64::from(i) + 8, &5u32.to_le_bytes());
            ram.write(
                16 * u64::from(i) + 12,
                [if i == 2 { INDIRECT } else { NEXT }, i + 1].map(u16::to_le_bytes).as_flattened(),
            );
        }
        let crossing = GPA + LEN as u64;
        for (desc, cost) in [
            ((GPA, 10, 0), 1),
            ((GPA, 0, 0), 1),
            ((GPA, 10, WRITE), 1),
            ((GPA - 1, 10, 0), 1),
            ((crossing, 16 * 100, 0), 100),
            ((crossing, 16 * 1000, 0), 256),
            ((GPA, 48, INDIRECT), 3),
            ((crossing, 48, INDIRECT), 6),
            ((0, 16, INDIRECT), 1),
        ] {
            memory.work.grant_poll();
            append(&mut memory, desc, 0);
            let left =
                std::iter::from_fn(|| (!memory.work.is_used_up()).then(|| memory.work.spend(1))).count();
            assert_eq!(2048 - left, cost, "{desc:?}");
        }
    }
}
