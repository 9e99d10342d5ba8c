//! The location of a ring: from the VMM's addresses to checked pointers.

use mem::{Regions, Segment};

/// The three areas of a ring, as addresses of the VMM (SET_VRING_ADDR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Descriptor table, or packed descriptor ring.
    pub(crate) desc: u64,
    /// Driver area: the available ring, or the driver's event suppression.
    pub(crate) driver: u64,
    /// Device area: the used ring, or the device's event suppression.
    pub(crate) device: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LayoutError {
    /// The size of a split ring is a power of two up to 32768 (2.7), that of a packed ring any number up to 32768
    /// (2.8.10.1).
    #[error("ring size {0} is not allowed")]
    Size(u32),
    /// An area is not wholly in one region of guest memory.
    #[error("ring at {0:#x} is outside guest memory")]
    Outside(u64),
    /// An area is not aligned as section 2.7 or 2.8.10.1 requires.
    #[error("ring at {0:#x} is misaligned")]
    Misaligned(u64),
}

/// A ring's areas: mapped, aligned and long enough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(super) size: u16,
    pub(super) desc: *mut u8,
    pub(super) driver: *mut u8,
    pub(super) device: *mut u8,
}

// SAFETY: only addresses; whoever uses them holds the ring's lease.
unsafe impl Send for Layout {}

impl Layout {
    /// Returns the parts that the device writes: the device area, and the descriptors of a packed ring.
    pub(crate) fn written(&self, packed: bool, event_idx: bool) -> [Segment; 2] {
        let n = u32::from(self.size);
        let event = if event_idx { 2 } else { 0 };
        let (device, descriptors) = if packed { (4, 16 * n) } else { (4 + 8 * n + event, 0) };
        // SAFETY: `resolve` checked these lengths; who uses them holds the ring's lease, under which they are mapped.
        unsafe { [Segment::new(self.device, device), Segment::new(self.desc, descriptors)] }
    }

    /// Checks `size` and finds the areas of a ring in `regions`.
    pub(crate) fn resolve(
        regions: &Regions,
        at: &Addresses,
        size: u32,
        packed: bool,
        event_idx: bool,
    ) -> Result<Self, LayoutError> {
        let valid = (1..=32768).contains(&size) && (packed || size.is_power_of_two());
        if !valid {
            return Err(LayoutError::Size(size));
        }
        let find = |addr: u64, len: u64, align: u64| {
            let ptr = regions.user(addr, len).ok_or(LayoutError::Outside(addr))?;
            let aligned = (ptr.addr() as u64).is_multiple_of(align);
            if aligned { Ok(ptr) } else { Err(LayoutError::Misaligned(addr)) }
        };
        let n = u64::from(size);
        let event = if event_idx { 2 } else { 0 };
        let (driver, device) = if packed {
            (find(at.driver, 4, 4)?, find(at.device, 4, 4)?)
        } else {
            (find(at.driver, 4 + 2 * n + event, 2)?, find(at.device, 4 + 8 * n + event, 4)?)
        };
        Ok(Self { size: size as u16, desc: find(at.desc, 16 * n, 16)?, driver, device })
    }
}
