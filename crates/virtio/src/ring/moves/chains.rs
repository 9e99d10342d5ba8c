//! The model's reader of chains: a simple one that follows the specification (VIRTIO 1.2, 2.7.5 and 2.8.6) and reads
//! plain bytes.

use super::*;

const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Offset and length of each buffer of a chain, in bytes; `None` if the chain is malformed.
pub(super) type Buffers = Option<Vec<(u64, usize)>>;

pub(super) struct Reader<'a> {
    /// The ring's memory.
    pub(super) bytes: &'a [u8],
    pub(super) packed: bool,
    pub(super) size: u16,
    pub(super) access: Access,
}

#[derive(Clone, Copy)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Reader<'_> {
    fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().unwrap()
    }

    fn descriptor(&self, at: usize) -> Descriptor {
        let (third, last) = (u16::from_le_bytes(self.read(at + 12)), u16::from_le_bytes(self.read(at + 14)));
        let (flags, next) = if self.packed { (last, third) } else { (third, last) };
        let (addr, len) = (u64::from_le_bytes(self.read(at)), u32::from_le_bytes(self.read(at + 8)));
        Descriptor { addr, len, flags, next }
    }

    fn in_ring(&self, index: u64) -> Descriptor {
        self.descriptor(DESC as usize + 16 * (index % u64::from(self.size)) as usize)
    }

    /// Returns the offset of `len` bytes at a guest address; `None` if they are outside the guest's memory.
    fn place(&self, addr: u64, len: u32) -> Option<usize> {
        let at = usize::try_from(addr.checked_sub(GPA)?).ok()?;
        (at < self.bytes.len() && len as usize <= self.bytes.len() - at).then_some(at)
    }

    fn buffer(&self, d: Descriptor) -> Option<(u64, usize)> {
        let fits = (d.flags & WRITE != 0) == (self.access == Access::Write) && d.len > 0;
        self.place(d.addr, d.len).filter(|_| fits).map(|at| (at as u64, d.len as usize))
    }

    fn table(&self, d: Descriptor) -> Buffers {
        let count = d.len / 16;
        if d.flags & NEXT != 0 || count == 0 || !d.len.is_multiple_of(16) {
            return None;
        }
        let at = self.place(d.addr, d.len)?;
        let (mut buffers, mut index) = (Vec::new(), 0);
        loop {
            let mut entry = self.descriptor(at + 16 * index);
            if entry.flags & INDIRECT != 0 || buffers.len() == count as usize {
                return None;
            }
            if self.packed && self.access == Access::Read {
                // The flag WRITE is ignored here; see `Memory::table`.
                entry.flags &= !WRITE;
            }
            buffers.push(self.buffer(entry)?);
            match self.packed {
                true if index + 1 == count as usize => return Some(buffers),
                true => index += 1,
                false if entry.flags & NEXT == 0 => return Some(buffers),
                false if u32::from(entry.next) >= count => return None,
                false => index = entry.next.into(),
            }
        }
    }

    fn append(&self, d: Descriptor, buffers: &mut Vec<(u64, usize)>) -> Option<()> {
        match d.flags & INDIRECT != 0 {
            true => buffers.extend(self.table(d)?),
            false => buffers.push(self.buffer(d)?),
        }
        Some(())
    }

    /// Returns the buffers of the chain at `head` of a split ring.
    pub(super) fn split(&self, head: u16) -> Buffers {
        let (mut buffers, mut index) = (Vec::new(), head);
        for _ in 0..self.size {
            let d = self.in_ring(index.into());
            self.append(d, &mut buffers)?;
            if d.flags & NEXT == 0 {
                return Some(buffers);
            }
            index = Some(d.next).filter(|next| *next < self.size)?;
        }
        None
    }

    /// Returns the buffers of the `slots` descriptors from `first` of a packed ring.
    pub(super) fn packed(&self, first: u64, slots: u64) -> Buffers {
        let mut buffers = Vec::new();
        (first..first + slots).try_for_each(|i| self.append(self.in_ring(i), &mut buffers))?;
        Some(buffers)
    }

    /// Returns the buffer of a chain that has a single one and no indirect table.
    pub(super) fn single(&self, index: u64) -> Option<(u64, usize)> {
        let d = self.in_ring(index);
        self.buffer(d).filter(|_| d.flags & (NEXT | INDIRECT) == 0)
    }
}
