//! A split virtqueue (VIRTIO 1.3, 2.7) in which descriptor `i` is always at place `i` of the available ring.

use crate::memory::Memory;
use anyhow::Result;
use std::sync::atomic::{AtomicU16, Ordering::*};
use vm_memory::Bytes;

const WRITE: u16 = 2; // VIRTQ_DESC_F_WRITE
const NO_INTERRUPT: u16 = 1; // VIRTQ_AVAIL_F_NO_INTERRUPT
const NO_NOTIFY: u16 = 1; // VIRTQ_USED_F_NO_NOTIFY
const DESCRIPTOR: usize = 16;
const USED: usize = 8;

/// The parts of a ring, as offsets in its guest's memory.
#[derive(Clone, Copy)]
pub struct Ring {
    pub size: u16,
    pub descriptors: usize,
    pub available: usize,
    pub used: usize,
    buffers: usize,
    stride: usize,
}

impl Ring {
    /// Returns the bytes of memory that a ring with buffers of that size takes.
    pub fn bytes(size: u16, stride: usize) -> usize {
        usize::from(size) * (DESCRIPTOR + 2 + USED + stride) + 4 * 4096
    }

    /// Makes a ring whose descriptors have `length` bytes each, and are all in their places.
    pub fn new(
        memory: &mut Memory,
        size: u16,
        stride: usize,
        length: u32,
        device_writes: bool,
    ) -> Result<Self> {
        let count = usize::from(size);
        let ring = Self {
            size,
            descriptors: memory.take(count * DESCRIPTOR, 4096)?,
            available: memory.take(4 + count * 2 + 2, 4096)?,
            used: memory.take(4 + count * USED + 2, 4096)?,
            buffers: memory.take(count * stride, 4096)?,
            stride,
        };
        let descriptors = memory.slice(ring.descriptors, count * DESCRIPTOR)?;
        let available = memory.slice(ring.available, 4 + count * 2)?;
        available.write_obj(NO_INTERRUPT, 0)?;
        for number in 0..size {
            let at = usize::from(number) * DESCRIPTOR;
            descriptors.write_obj(ring.buffer(number) as u64, at)?;
            descriptors.write_obj(length, at + 8)?;
            descriptors.write_obj(if device_writes { WRITE } else { 0 }, at + 12)?;
            available.write_obj(number, 4 + usize::from(number) * 2)?;
        }
        Ok(ring)
    }

    /// Returns the offset of a descriptor's buffer.
    pub fn buffer(&self, number: u16) -> usize {
        self.buffers + usize::from(number) * self.stride
    }

    pub fn indexes<'a>(&self, memory: &'a Memory) -> Result<Indexes<'a>> {
        Ok(Indexes {
            available: memory.index(self.available + 2)?,
            used_flags: memory.index(self.used)?,
            used: memory.index(self.used + 2)?,
        })
    }

    /// Is true if the device has given descriptors back in the order in which it got them. If not, one may be
    /// offered twice, and the counts are worthless.
    pub fn is_in_order(&self, memory: &Memory, used: u16) -> Result<bool> {
        let elements = memory.slice(self.used, 4 + usize::from(self.size) * USED)?;
        for place in 0..self.size.min(used) {
            let id: u32 = elements.read_obj(4 + usize::from(place) * USED)?;
            if id != u32::from(place) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The words by which driver and device follow each other.
#[derive(Clone, Copy)]
pub struct Indexes<'a> {
    available: &'a AtomicU16,
    used_flags: &'a AtomicU16,
    used: &'a AtomicU16,
}

impl Indexes<'_> {
    /// Returns how many descriptors the device has used so far, modulo 2^16.
    pub fn used(&self) -> u16 {
        self.used.load(Acquire)
    }

    /// Returns how many descriptors were offered so far, modulo 2^16.
    pub fn available(&self) -> u16 {
        self.available.load(Relaxed)
    }

    /// Offers descriptors up to this one. Returns whether the device wants to be told.
    pub fn offer(&self, index: u16) -> bool {
        self.available.store(index, SeqCst);
        self.used_flags.load(SeqCst) & NO_NOTIFY == 0
    }
}
