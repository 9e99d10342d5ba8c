//! A checked piece of packet memory, and the only ways to move bytes in and out of it.

use std::ptr;

/// `len` bytes at `ptr` that are known to stay mapped for the current burst.
///
/// A different party (a guest, the kernel) may write the bytes at any time, so they are only copied, never
/// borrowed. Making a segment is `unsafe`; using one is not.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    ptr: *mut u8,
    len: u32,
}

// SAFETY: a segment is an address; the promise of `new` holds for every thread.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: ptr::dangling_mut(), len: 0 };

    /// Creates a segment over `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must stay mapped readable and writable until the burst that uses the segment has ended.
    #[must_use]
    pub const unsafe fn new(ptr: *mut u8, len: u32) -> Self {
        Self { ptr, len }
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte (for prefetch and for system calls that take addresses).
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Loads the `N` bytes at `offset`, if there are that many.
    #[must_use]
    #[inline(always)]
    pub fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let fits = offset <= self.len() && N <= self.len() - offset;
        // SAFETY: the range is inside the segment, which is mapped (`Segment::new`); bytes need no alignment.
        fits.then(|| unsafe { self.ptr.add(offset).cast::<[u8; N]>().read_unaligned() })
    }

    /// Stores `bytes` at `offset`. False, with nothing stored, if they do not fit.
    #[must_use]
    #[inline(always)]
    pub fn store(&self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset <= self.len() && bytes.len() <= self.len() - offset;
        if fits {
            // SAFETY: the range is inside the segment, which is mapped (`Segment::new`); borrowed bytes do not overlap
            // packet memory.
            unsafe { copy_bytes(bytes.as_ptr(), self.ptr.add(offset), bytes.len()) };
        }
        fits
    }

    /// Returns the part of this segment from `offset`, at most `len` bytes; empty if `offset` is past the
    /// end.
    #[must_use]
    #[inline(always)]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len());
        let len = len.min(self.len() - offset);
        // SAFETY: offset is inside the segment or one past its end.
        Self { ptr: unsafe { self.ptr.add(offset) }, len: len as u32 }
    }
}

/// Prefetches the cache line at `ptr` for writing, without the need to own it later. Any address is allowed.
#[inline]
pub fn prefetch_write(ptr: *const u8) {
    // SAFETY: a prefetch never faults, and CPUs without this one treat it as a no-op.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) ptr, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = ptr;
}

/// Prefetches the cache line at `ptr` for reading. Any address is allowed.
#[inline]
pub fn prefetch(ptr: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, and SSE is part of x86_64.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(ptr.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = ptr;
}

/// Copies `len` bytes. Heads of packets and small packets, which are the majority, are copied by moves of fixed sizes
/// that meet or overlap in the middle: a call and its dispatch cost more than the moves.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy_bytes(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise; `len` is at least the size of the type and at most twice that.
    unsafe {
        match len {
            32..=64 => copy_ends::<[u64; 4]>(src, dst, len),
            65..=128 => copy_ends::<[u64; 8]>(src, dst, len),
            129..=256 => copy_ends::<[u64; 16]>(src, dst, len),
            16..=31 => copy_ends::<[u64; 2]>(src, dst, len),
            8..=15 => copy_ends::<u64>(src, dst, len),
            _ => ptr::copy_nonoverlapping(src, dst, len),
        }
    }
}

/// Copies the first and the last `T` of `len` bytes.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`]; `len` must be at least the size of `T`.
#[inline(always)]
unsafe fn copy_ends<T>(src: *const u8, dst: *mut u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: both are within the `len` bytes; unaligned accesses need no alignment.
    unsafe {
        let (head, tail) = (src.cast::<T>().read_unaligned(), src.add(last).cast::<T>().read_unaligned());
        dst.cast::<T>().write_unaligned(head);
        dst.add(last).cast::<T>().write_unaligned(tail);
    }
}

/// Copies bytes from `offset` of the packet in `src` into `out`; returns how many there were.
#[inline]
pub fn gather(src: &[Segment], mut offset: usize, out: &mut [u8]) -> usize {
    let mut done = 0;
    for s in src {
        if done == out.len() {
            break;
        }
        if offset >= s.len() {
            offset -= s.len();
            continue;
        }
        let part = s.slice(offset, out.len() - done);
        offset = 0;
        // SAFETY: `part` is mapped (Segment::new); `out` has room for part.len() bytes past `done`; a local
        // buffer does not overlap packet memory.
        unsafe { copy_bytes(part.ptr, out.as_mut_ptr().add(done), part.len()) };
        done += part.len();
    }
    done
}

/// Copies `bytes` to `offset` of the packet memory `dst`; returns how many fit.
#[inline]
pub fn scatter(bytes: &[u8], dst: &[Segment], mut offset: usize) -> usize {
    let mut done = 0;
    for d in dst {
        if done == bytes.len() {
            break;
        }
        if offset >= d.len() {
            offset -= d.len();
            continue;
        }
        let part = d.slice(offset, bytes.len() - done);
        offset = 0;
        // SAFETY: as in `gather`, in the opposite direction.
        unsafe { copy_bytes(bytes.as_ptr().add(done), part.ptr, part.len()) };
        done += part.len();
    }
    done
}

/// Copies `len` bytes from `src_offset` of `src` to `dst_offset` of `dst`, segment by segment. Returns how many were
/// copied (fewer only if either side ends). If the memory overlaps (a guest may post one buffer twice), the copied
/// bytes may be wrong, but the copy never leaves the segments.
pub fn copy(
    src: &[Segment],
    mut src_offset: usize,
    dst: &[Segment],
    mut dst_offset: usize,
    len: usize,
) -> usize {
    let (mut si, mut di, mut done) = (0, 0, 0);
    while done < len && si < src.len() && di < dst.len() {
        if src_offset >= src[si].len() {
            src_offset -= src[si].len();
            si += 1;
            continue;
        }
        if dst_offset >= dst[di].len() {
            dst_offset -= dst[di].len();
            di += 1;
            continue;
        }
        let n = (src[si].len() - src_offset).min(dst[di].len() - dst_offset).min(len - done);
        // SAFETY: both ranges lie inside mapped segments; `ptr::copy` allows them to overlap.
        unsafe { ptr::copy(src[si].ptr.add(src_offset), dst[di].ptr.add(dst_offset), n) };
        (src_offset, dst_offset, done) = (src_offset + n, dst_offset + n, done + n);
    }
    done
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Bytes between segments, which must not be touched.
    const GAP: usize = 8;

    /// Memory that holds segments of the given lengths.
    struct Packet {
        bytes: Vec<u8>,
        segments: Vec<Segment>,
        /// The index of each byte of the packet.
        places: Vec<usize>,
    }

    impl Packet {
        /// Creates memory in which each byte differs from its neighbours.
        fn new(lens: &[usize], seed: u8) -> Self {
            let total = GAP + lens.iter().map(|len| len + GAP).sum::<usize>();
            let mut bytes: Vec<u8> = (0..total).map(|i| (i as u8).wrapping_mul(7) ^ seed).collect();
            let (mut segments, mut places, mut at) = (Vec::new(), Vec::new(), GAP);
            let base = bytes.as_mut_ptr();
            for &len in lens {
                // SAFETY: inside `bytes`, which live as long.
                segments.push(unsafe { Segment::new(base.add(at), len as u32) });
                places.extend(at..at + len);
                at += len + GAP;
            }
            Self { bytes, segments, places }
        }

        fn read(&self) -> Vec<u8> {
            self.places.iter().map(|at| self.bytes[*at]).collect()
        }

        /// Returns the memory as it would be with `new` at `offset` of the packet.
        fn with(&self, offset: usize, new: &[u8]) -> Vec<u8> {
            let mut bytes = self.bytes.clone();
            let places = self.places.iter().skip(offset);
            places.zip(new).for_each(|(at, byte)| bytes[*at] = *byte);
            bytes
        }
    }

    const SHAPES: &[&[usize]] = match cfg!(miri) {
        true => &[&[], &[0, 5, 0, 64, 0], &[31, 33, 129]],
        false => &[&[], &[0], &[300], &[1, 2, 3], &[0, 5, 0, 64, 0], &[31, 33, 129]],
    };
    const OFFSETS: &[usize] = if cfg!(miri) { &[0, 5, 32] } else { &[0, 1, 5, 6, 31, 32, 64, 301] };

    #[test]
    fn bytes_come_from_anywhere_in_a_packet() {
        for &shape in SHAPES {
            let packet = Packet::new(shape, 1);
            for &offset in OFFSETS {
                for len in [0, 1, 3, 64, 200] {
                    let mut out = vec![0xee; len];
                    let all = packet.read();
                    let there = all.get(offset..).unwrap_or_default();
                    let count = gather(&packet.segments, offset, &mut out);
                    assert_eq!(count, len.min(there.len()), "{shape:?} {offset} {len}");
                    assert_eq!(out[..count], there[..count]);
                    assert!(out[count..].iter().all(|b| *b == 0xee));
                }
            }
        }
    }

    #[test]
    fn bytes_go_to_anywhere_in_a_packet() {
        for &shape in SHAPES {
            for &offset in OFFSETS {
                for len in [0, 1, 3, 64, 200] {
                    let packet = Packet::new(shape, 1);
                    let new: Vec<u8> = (0..len).map(|i| 200 ^ i as u8).collect();
                    let expected = packet.with(offset, &new);
                    let count = scatter(&new, &packet.segments, offset);
                    assert_eq!(count, len.min(packet.places.len().saturating_sub(offset)));
                    assert_eq!(packet.bytes, expected, "{shape:?} {offset} {len}");
                }
            }
        }
    }

    #[test]
    fn packets_are_copied_whatever_their_shapes() {
        for &from in SHAPES {
            for &to in SHAPES {
                for &src_offset in OFFSETS {
                    for dst_offset in [0, 2, 6, 33] {
                        let (src, dst) = (Packet::new(from, 1), Packet::new(to, 0x55));
                        let len = 70;
                        let all = src.read();
                        let there = all.get(src_offset..).unwrap_or_default();
                        let there = &there[..len.min(there.len())];
                        let expected = dst.with(dst_offset, there);
                        let count = copy(&src.segments, src_offset, &dst.segments, dst_offset, len);
                        assert_eq!(count, there.len().min(dst.places.len().saturating_sub(dst_offset)));
                        assert_eq!(dst.bytes, expected, "{from:?}+{src_offset} {to:?}+{dst_offset}");
                        assert_eq!(src.bytes, Packet::new(from, 1).bytes);
                    }
                }
            }
        }
    }

    #[test]
    fn overlapping_memory_is_copied_within_its_bounds() {
        let packet = Packet::new(&[100], 3);
        let all = packet.read();
        let expected = packet.with(10, &all[..90]);
        assert_eq!(copy(&packet.segments, 0, &packet.segments, 10, 100), 90);
        assert_eq!(packet.bytes, expected);
    }

    #[test]
    fn every_length_is_stored_whole() {
        for len in (0..300).step_by(if cfg!(miri) { 37 } else { 1 }) {
            let packet = Packet::new(&[300], 1);
            let new: Vec<u8> = (0..len).map(|i| 200 ^ i as u8).collect();
            let expected = packet.with(300 - len, &new);
            assert!(packet.segments[0].store(300 - len, &new));
            assert_eq!(packet.bytes, expected, "{len}");
            assert!(!packet.segments[0].store(301 - len, &new) || len == 0);
            assert!(!packet.segments[0].store(301, &new) && packet.bytes == expected);
        }
    }

    #[test]
    fn what_is_loaded_lies_in_the_segment() {
        let packet = Packet::new(&[10], 1);
        let (segment, all) = (packet.segments[0], packet.read());
        assert_eq!((segment.len(), segment.is_empty()), (10, false));
        assert_eq!(segment.load::<4>(6).unwrap(), all[6..]);
        assert_eq!(segment.load::<0>(10), Some([]));
        assert_eq!((segment.load::<4>(7), segment.load::<0>(11), segment.load::<11>(0)), (None, None, None));
        assert_eq!(segment.load::<1>(usize::MAX), None);
        assert!(Packet::new(&[0], 1).segments[0].is_empty());
    }

    #[test]
    fn a_slice_is_part_of_its_segment() {
        let packet = Packet::new(&[10], 1);
        let segment = packet.segments[0];
        for (offset, len, there) in [(0, 10, 10), (3, 4, 4), (3, 100, 7), (10, 1, 0), (11, 1, 0)] {
            let slice = segment.slice(offset, len);
            assert_eq!(slice.len(), there, "{offset} {len}");
            assert_eq!(slice.as_ptr().addr(), segment.as_ptr().addr() + offset.min(10));
        }
    }
}
