//! Shared receive queues.

use crate::base::budget::{Kind, Reservation};
use crate::base::ids::PdId;
use crate::base::limits::{MAX_SEGMENTS, MAX_WORK};
use crate::base::refusal::{no_memory, refuse, within};
use crate::context::quota::Quota;
use crate::window::source::MemoryBacking;
use rustix::io::Errno;
use std::sync::Arc;
use uverbs::{DEVICE, Given, Memory, Refusal, Shape, SharedSource, WorkQueue};

#[derive(Debug)]
pub(crate) struct Srq {
    pub pd: PdId,
    pub source: SharedSource,
    /// The memory of the queue.
    pub backing: MemoryBacking,
    pub shape: Shape,
    /// Segments of a receive.
    pub max_sge: u32,
    /// When fewer receives than this wait, the application is told once. 0: it is not told.
    pub limit: u32,
    /// The queue's share of the device's limits.
    _reservation: Reservation,
}

impl Srq {
    pub fn create(pd: PdId, max_wr: u32, max_sge: u32, quota: &Quota) -> Result<Self, Refusal> {
        within("max_sge", max_sge, MAX_SEGMENTS)?;
        Ok(Self::with_limit(pd, max_wr, max_sge, quota, quota.limits.qps)?.0)
    }

    fn with_limit(
        pd: PdId,
        max_wr: u32,
        max_sge: u32,
        quota: &Quota,
        limit: u32,
    ) -> Result<(Self, Arc<Memory>), Refusal> {
        within("max_wr", max_wr, MAX_WORK)?;
        let shape = SharedSource::shape(max_wr, max_sge);
        let held = quota.take(Kind::SharedQueue, shape.end(), limit)?;
        let (memory, backing) = quota.memory("shared receive queue", shape.end())?;
        let memory = Arc::new(memory);
        let source = SharedSource::new(memory.clone(), shape, DEVICE).map_err(no_memory)?;
        Ok((Self { pd, source, backing, shape, max_sge, limit: 0, _reservation: held }, memory))
    }

    /// Resizes the queue while no peer takes from it. Returns its new memory for the application.
    pub fn resize(&mut self, max_wr: u32, limit: Option<u32>, quota: &Quota) -> Result<Given, Refusal> {
        let limit = limit.unwrap_or(self.limit);
        if limit > max_wr {
            return refuse(Errno::INVAL, "the limit is more than the queue would have room for");
        }
        // Both exist for a moment.
        let (mut new, memory) = Self::with_limit(self.pd, max_wr, self.max_sge, quota, u32::MAX)?;
        let theirs = quota.give(&new.backing)?;
        let mut queue = WorkQueue::new(memory, new.shape, max_wr).map_err(no_memory)?;
        match self.source.move_to(&mut queue) {
            Ok(true) => {}
            Ok(false) => {
                return refuse(Errno::INVAL, "more receives wait than the queue would have room for");
            }
            Err(error) => return refuse(Errno::INVAL, error.to_string()),
        }
        new.arm(limit);
        std::mem::replace(self, new).backing.empty();
        Ok(theirs)
    }

    /// Asks for one event when fewer receives wait than this, whoever takes them.
    pub fn arm(&mut self, limit: u32) {
        self.limit = limit;
        self.source.set_limit(limit);
    }
}
