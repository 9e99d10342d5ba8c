//! The device's end of a send queue.
//!
//! It looks at the slot of the next request, and at nothing else that the library writes. It counts the requests that
//! were taken and given back itself, so a library that writes wrong numbers has no more requests under way than slots.

use crate::Memory;
use crate::point::{Point, point};
use crate::request::{Segment, WorkRequest};
use crate::slots::{Corrupt, SPARED, Shape, Slots};
use std::sync::Arc;

/// The taking end of a send queue.
#[derive(Debug)]
pub struct SendSource {
    slots: Slots,
    /// Number of the next request.
    next: u32,
    /// Number of the first request that was not given back.
    released: u32,
}

impl SendSource {
    /// Creates the end for a queue in this memory, from which nothing was taken.
    ///
    /// # Errors
    /// If the queue is not inside the memory, or its shape is invalid.
    pub fn new(memory: Arc<Memory>, shape: Shape) -> Result<Self, Corrupt> {
        Ok(Self { slots: Slots::new(memory, shape)?, next: 0, released: 0 })
    }

    /// Is true if there are requests that were not taken.
    #[must_use]
    #[inline]
    pub fn has_next(&self) -> bool {
        self.slots.is_published(self.next)
    }

    /// Takes the next request, if there is one, with the number of its slot. Appends its segments to `segments`,
    /// and the bytes of an inline message to `inline`.
    ///
    /// # Errors
    /// If the queue or the request is invalid.
    #[inline]
    pub fn take(
        &mut self,
        segments: &mut Vec<Segment>,
        inline: &mut Vec<u8>,
    ) -> Result<Option<(u32, WorkRequest)>, Corrupt> {
        if !self.has_next() {
            return Ok(None);
        }
        let number = self.next;
        if number.wrapping_sub(self.released) >= self.slots.shape.slots {
            return Err(Corrupt);
        }
        self.slots.is_read(number);
        let request = self.slots.read(number, segments, inline)?;
        self.next = number.wrapping_add(1);
        point(Point::Taken);
        Ok(Some((number, request)))
    }

    /// Lets the library reuse all slots before the one with this number.
    #[inline]
    pub fn release_before(&mut self, number: u32) {
        self.released = number;
        // Release: the slots were read before they are filled again.
        self.slots.header().set_head(number);
        point(Point::Released);
    }

    /// Lets the library reuse all slots whose requests were taken.
    #[inline]
    pub fn release_taken(&mut self) {
        self.release_before(self.next);
    }

    /// Sets whether the library need not ring the doorbell; the device must then check the queue soon. Requests
    /// that are posted at this moment may come without the doorbell.
    pub fn spare_doorbell(&mut self, spared: bool) {
        self.slots.header().say(if spared { SPARED } else { 0 });
    }

    /// Forgets the published requests, as the library does.
    pub fn reset(&mut self) {
        self.next = self.slots.header().reset();
        self.released = self.next;
    }
}
