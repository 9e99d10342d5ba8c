//! Shared receive queues, as seen by their takers: the device, and libraries of peers that share memory.
//!
//! A taker first reads a receive, then claims it; if another taker was faster, it starts again. So no taker waits for
//! another, and a taker that dies in the middle has at most one receive. Its last one is known: the claiming exchange
//! also stores the claimer, and whoever claims the next receive first writes that down.

use crate::Memory;
use crate::point::{Point, point};
use crate::sync::{AtomicU64, Ordering};
use crate::work::{Corrupt, Segment, Shape, WorkQueue, WorkSource};
use std::sync::Arc;

/// Number of attempts to find a receive that nobody else takes at the same time. They all fail if a program writes
/// there all the time.
const ATTEMPTS: u32 = 1 << 10;

/// The device's number as a taker. Nobody asks for its last receive, since it does not die alone.
pub const DEVICE: u32 = 0;
/// Number of possible takers: the device, and libraries.
pub const TAKERS: u32 = 1024;
/// Bytes before the queue with one record for each taker. It holds the taker's last receive, if another taker took one
/// after it: a number and a valid bit.
const RECORDS: usize = TAKERS as usize * size_of::<AtomicU64>();
const IS_ONE: u64 = 1 << 32;

/// The taking end of a shared receive queue. A slot belongs to the library again once its receive is claimed.
#[derive(Debug)]
pub struct SharedSource {
    source: WorkSource,
    memory: Arc<Memory>,
    /// Offset of the records in the memory.
    records: usize,
    taker: u32,
    /// The tail when it was last read.
    tail: u32,
}

impl SharedSource {
    /// Returns the shape of a queue with room for at least twice as many receives, of at most `segments` segments each.
    #[must_use]
    pub fn shape(receives: u32, segments: u32) -> Shape {
        Shape::of_receives(RECORDS as u32, receives, segments)
    }

    /// Creates the end of one taker: [`DEVICE`], or another number below [`TAKERS`] that no other taker has.
    ///
    /// # Errors
    /// If the queue is not inside the memory, its shape is invalid, or there is no such taker.
    pub fn new(memory: Arc<Memory>, shape: Shape, taker: u32) -> Result<Self, Corrupt> {
        let records =
            (shape.offset as usize).checked_sub(RECORDS).filter(|_| taker < TAKERS).ok_or(Corrupt)?;
        Ok(Self { source: WorkSource::new(memory.clone(), shape)?, memory, records, taker, tail: 0 })
    }

    fn record(&self, taker: u32) -> &AtomicU64 {
        let at = self.records + (taker % TAKERS) as usize * size_of::<AtomicU64>();
        // SAFETY: it is before the queue in the memory, which `self` keeps mapped; it is an atomic.
        unsafe { self.memory.at::<AtomicU64>(at).as_ref() }
    }

    /// Records the taker of the last receive, according to the current header.
    #[cold]
    fn write_down(&self, header: u64) {
        let last = u64::from((header as u32).wrapping_sub(1)) | IS_ONE;
        let record = self.record((header >> 32) as u32);
        let head = &self.source.header().head;
        // Each late taker that writes down an older state interferes only once.
        for _ in 0..ATTEMPTS {
            let known = record.load(Ordering::Acquire);
            // The order matters: the record was read before another receive was taken.
            if known == last || head.load(Ordering::Acquire) != header {
                return;
            }
            let _ = record.compare_exchange(known, last, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Is true, for the device, if the receive with this number is the last one that a dead taker took.
    #[must_use]
    pub fn was_claimed(&self, number: u32, taker: u32) -> bool {
        let header = self.source.header().head.load(Ordering::Acquire);
        header == u64::from(taker) << 32 | u64::from(number.wrapping_add(1))
            || self.record(taker).load(Ordering::Acquire) == u64::from(number) | IS_ONE
    }

    /// Returns the number of the oldest receive, if there is one, for [`Self::claim`]. Others may take it meanwhile.
    fn oldest(&mut self) -> Result<Option<u32>, Corrupt> {
        let (header, slots) = (self.source.header(), self.source.slots());
        for _ in 0..ATTEMPTS {
            let head = header.head(Ordering::Acquire);
            let known = self.tail.wrapping_sub(head);
            if known > 0 && known <= slots {
                return Ok(Some(head));
            }
            self.tail = header.tail.load(Ordering::Acquire);
            if self.tail == head {
                return Ok(None);
            }
            // Between the two reads, others may have taken some, and more may have been posted.
            if self.tail.wrapping_sub(head) > slots && header.head(Ordering::Acquire) == head {
                return Err(Corrupt);
            }
        }
        Ok(None)
    }

    /// Reads the next receive, if there is one. Returns the number with which it is claimed, and its identifier;
    /// appends its list to `segments`.
    ///
    /// # Errors
    /// If the queue or the receive is invalid.
    pub fn peek(&mut self, segments: &mut Vec<Segment>) -> Result<Option<(u32, u64)>, Corrupt> {
        let begin = segments.len();
        for _ in 0..ATTEMPTS {
            let Some(number) = self.oldest()? else { return Ok(None) };
            match self.source.read(number, segments) {
                Ok(request) => return Ok(Some((number, request.id))),
                Err(Corrupt) if self.source.header().head(Ordering::Acquire) == number => {
                    return Err(Corrupt);
                }
                // Another taker has the receive by now, and we read it while the slot was being written.
                Err(Corrupt) => segments.truncate(begin),
            }
        }
        Ok(None)
    }

    /// Claims the receive with this number. Returns false if another taker was faster: then the data read from it is
    /// invalid.
    #[must_use]
    pub fn claim(&self, number: u32) -> bool {
        self.source.prefetch_after(number);
        let head = &self.source.header().head;
        let before = head.load(Ordering::Acquire);
        if before as u32 != number {
            return false;
        }
        let last = (before >> 32) as u32;
        if last != self.taker && last != DEVICE {
            self.write_down(before);
        }
        let next = u64::from(self.taker) << 32 | u64::from(number.wrapping_add(1));
        point(Point::ClaimNoted);
        // Release: the receive was read before its slot is filled again. Acquire: whoever takes the next one sees all
        // that was done before this one was given away.
        let is_claimed = head.compare_exchange(before, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_claimed {
            point(Point::Claimed);
        }
        is_claimed
    }

    /// Takes the next receive, if there is one. Returns its identifier; appends its list to `segments`.
    ///
    /// # Errors
    /// The same as for [`Self::peek`].
    pub fn take(&mut self, segments: &mut Vec<Segment>) -> Result<Option<u64>, Corrupt> {
        let begin = segments.len();
        for _ in 0..ATTEMPTS {
            let Some((number, id)) = self.peek(segments)? else { return Ok(None) };
            if self.claim(number) {
                return Ok(Some(id));
            }
            segments.truncate(begin);
        }
        Ok(None)
    }

    /// Counts the receives that can be taken.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        let header = self.source.header();
        let head = header.head(Ordering::Acquire);
        header.tail.load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Moves waiting receives to an empty queue, for the device. Returns false if that has no room for them. Nobody may
    /// post or take meanwhile.
    ///
    /// # Errors
    /// The same as for [`Self::peek`].
    pub fn move_to(&mut self, other: &mut WorkQueue) -> Result<bool, Corrupt> {
        let Some(first) = self.oldest()? else { return Ok(true) };
        let mut segments = Vec::new();
        for index in 0..self.waiting().min(self.source.slots()) {
            segments.clear();
            let request = self.source.read(first.wrapping_add(index), &mut segments)?;
            if !other.fill(&request, &segments) {
                return Ok(false);
            }
        }
        other.publish();
        Ok(true)
    }

    /// Makes takers report, for the device, when fewer receives than this are left; 0 for never.
    pub fn set_limit(&self, limit: u32) {
        self.source.header().limit.store(limit, Ordering::Relaxed);
    }

    /// Is true if the device must be told that few receives are left.
    #[must_use]
    pub fn is_low(&self) -> bool {
        let limit = self.source.header().limit.load(Ordering::Relaxed);
        limit > 0 && self.waiting() < limit
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::WorkRequest;
    use std::collections::BTreeSet;

    const SLOTS: u32 = 8;

    fn ends(takers: usize) -> (WorkQueue, Vec<SharedSource>) {
        let shape = SharedSource::shape(SLOTS, 2);
        let (memory, _) = Memory::create("test", shape.end()).unwrap();
        let memory = Arc::new(memory);
        let queue = WorkQueue::new(memory.clone(), shape, SLOTS).unwrap();
        (
            queue,
            (0..takers)
                .map(|taker| SharedSource::new(memory.clone(), shape, taker as u32).unwrap())
                .collect(),
        )
    }

    fn fill(queue: &mut WorkQueue, id: u64) -> bool {
        let list = [1, 2].map(|part| Segment { address: id * part, len: id as u32, lkey: 3 });
        let is_filled = queue.fill(&WorkRequest { id, segments: 2, ..WorkRequest::default() }, &list);
        queue.publish();
        is_filled
    }

    #[test]
    fn each_is_taken_once_and_whole() {
        const COUNT: u64 = 20_000;
        let (mut queue, takers) = ends(3);
        let taken = std::thread::scope(|scope| {
            let takers: Vec<_> = takers
                .into_iter()
                .map(|mut taker| {
                    scope.spawn(move || {
                        let (mut found, mut list) = (Vec::new(), Vec::new());
                        loop {
                            list.clear();
                            let Some(id) = taker.take(&mut list).unwrap() else {
                                std::thread::yield_now();
                                continue;
                            };
                            if id >= COUNT {
                                return found;
                            }
                            assert_eq!(
                                [list[0].address, list[1].address, list[0].len.into()],
                                [id, 2 * id, id]
                            );
                            found.push(id);
                        }
                    })
                })
                .collect();
            // After the last one, each taker takes one more, at which it ends.
            for id in 0..COUNT + 3 {
                while !fill(&mut queue, id) {
                    std::thread::yield_now();
                }
            }
            takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(taken.len() as u64, COUNT);
        assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), (0..COUNT).collect());
    }

    #[test]
    fn what_another_took_is_not_claimed() {
        let (mut queue, mut takers) = ends(2);
        assert!(fill(&mut queue, 1) && fill(&mut queue, 2));
        let mut list = Vec::new();
        let (number, _) = takers[0].peek(&mut list).unwrap().unwrap();
        assert_eq!(takers[1].take(&mut list), Ok(Some(1)));
        assert!(!takers[0].claim(number));
        assert_eq!((takers[0].take(&mut list), takers[1].take(&mut list)), (Ok(Some(2)), Ok(None)));
    }

    #[test]
    fn another_queue_continues_this_one() {
        let (mut queue, mut takers) = ends(1);
        (0..6).for_each(|id| assert!(fill(&mut queue, id)));
        assert_eq!(takers[0].take(&mut Vec::new()), Ok(Some(0)));
        let mut made = |room| {
            let shape = SharedSource::shape(room, 2);
            let (memory, _) = Memory::create("test", shape.end()).unwrap();
            let memory = Arc::new(memory);
            let mut to = WorkQueue::new(memory.clone(), shape, room).unwrap();
            let is_moved = takers[0].move_to(&mut to).unwrap();
            let ours = WorkQueue::new(memory.clone(), shape, room).unwrap().continued();
            (is_moved, ours, SharedSource::new(memory, shape, DEVICE).unwrap())
        };
        assert!(!made(4).0);
        let (is_moved, mut queue, mut taker) = made(5);
        assert!(is_moved && !fill(&mut queue, 9));
        let mut list = Vec::new();
        assert_eq!((taker.take(&mut list), list[1].address), (Ok(Some(1)), 2));
        assert!(fill(&mut queue, 6));
        let left: Vec<_> = std::iter::from_fn(|| taker.take(&mut Vec::new()).unwrap()).collect();
        assert_eq!(left, [2, 3, 4, 5, 6]);
    }

    #[test]
    fn few_are_told_of() {
        let (mut queue, mut takers) = ends(1);
        (0..4).for_each(|id| assert!(fill(&mut queue, id)));
        takers[0].set_limit(3);
        let mut low = Vec::new();
        while takers[0].take(&mut Vec::new()).unwrap().is_some() {
            low.push(takers[0].is_low());
        }
        assert_eq!(low, [false, true, true, true]);
        takers[0].set_limit(0);
        assert!(!takers[0].is_low());
    }

    /// A program may write anything into the queue.
    #[test]
    fn nothing_hangs() {
        bolero::check!().with_type::<Vec<(bool, u32)>>().for_each(|writes| {
            let (mut queue, mut takers) = ends(1);
            for (to_head, value) in writes {
                let header = takers[0].source.header();
                if *to_head {
                    let any = u64::from(*value) | u64::from(value.rotate_left(7)) << 32;
                    header.head.store(any, Ordering::Relaxed);
                } else {
                    header.tail.store(*value, Ordering::Relaxed);
                }
                let _ = fill(&mut queue, 1);
                let mut list = Vec::new();
                let _ = takers[0].take(&mut list);
                assert!(list.len() <= 2);
            }
        });
    }
}
