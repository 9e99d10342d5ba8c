//! Completion queues, and the channels on which applications wait for completions.

use crate::base::budget::{Kind, Reservation};
use crate::base::clock::monotonic_nanoseconds;
use crate::base::limits::MAX_COMPLETIONS;
use crate::base::refusal::{refuse, within};
use crate::context::quota::Quota;
use crate::streams::events::Notifier;
use crate::window::source::{MemoryBacking, Reach};
use rustix::io::Errno;
use uverbs::{Completion, CompletionSink, Given, Overrun, Refusal, completion};

/// Fewest completions that a new queue has room for. How many were taken is in the program's cache: the device looks
/// there only when it has filled all places that it knows to be free. A program that resizes a queue gets what it asks
/// for: some count on small ones (rdma-core's tests do).
const FEWEST: u32 = 16;

#[derive(Debug)]
pub(crate) struct Cq {
    pub sink: CompletionSink,
    pub entries: u32,
    pub channel: Option<u32>,
    /// True if completions have timestamps. Without, a clock need not be read, which takes longer than all else
    /// that a completion needs.
    timestamps: bool,
    /// The memory that it shares with the application.
    pub backing: MemoryBacking,
    /// True if it overran; then it accepts no more completions.
    pub overrun: bool,
    /// True if peers may add completions, too.
    is_shared: bool,
    /// The queue's share of the device's limits.
    held: Reservation,
}

/// How many completions a queue has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries(u32);

impl Entries {
    /// Rounds up the number that an application requests, within the limit.
    pub fn new(asked: u32) -> Result<Self, Refusal> {
        within("entries of a completion queue", asked, MAX_COMPLETIONS)?;
        if asked == 0 {
            return refuse(Errno::INVAL, "a completion queue needs at least one entry");
        }
        Ok(Self(asked.next_power_of_two()))
    }

    /// Rounds up the number for a new queue, to at least [`FEWEST`].
    pub fn of_new(asked: u32) -> Result<Self, Refusal> {
        Self::new(asked).map(|Self(entries)| Self(entries.max(FEWEST)))
    }
}

impl Cq {
    pub fn create(
        entries: Entries,
        channel: Option<u32>,
        timestamps: bool,
        quota: &Quota,
    ) -> Result<Self, Refusal> {
        Ok(Self { timestamps, ..Self::with_limit(entries, channel, quota, quota.limits.cqs())? })
    }

    fn with_limit(
        Entries(entries): Entries,
        channel: Option<u32>,
        quota: &Quota,
        limit: u32,
    ) -> Result<Self, Refusal> {
        let bytes = completion::bytes(entries);
        let held = quota.take(Kind::CompletionQueue, bytes, limit)?;
        let (memory, backing) = quota.memory("completion queue", bytes)?;
        let sink = CompletionSink::new(memory, entries);
        Ok(Self {
            sink,
            entries,
            channel,
            timestamps: false,
            backing,
            overrun: false,
            is_shared: false,
            held,
        })
    }

    /// Shares the queue's memory with a program with this reach, which may add completions from now on.
    pub fn share(&mut self, reach: &Reach) -> Option<Given> {
        self.is_shared = true;
        self.backing.give(reach)
    }

    /// Adds a completion. Returns whether the channel must be notified.
    pub fn push(&mut self, mut completion: Completion, solicited: bool) -> Result<bool, Overrun> {
        if self.timestamps {
            completion.timestamp = monotonic_nanoseconds();
        }
        if self.is_shared {
            self.sink.push(&completion, solicited)
        } else {
            self.sink.push_alone(&completion, solicited, self.channel.is_some())
        }
    }

    /// Resizes the queue. Returns its new memory for the application.
    pub fn resize(&mut self, entries: Entries, quota: &Quota) -> Result<Given, Refusal> {
        // Both exist for a moment.
        let new = Self::with_limit(entries, self.channel, quota, u32::MAX)?;
        let theirs = quota.give(&new.backing)?;
        if !self.sink.move_to(&new.sink) {
            return refuse(Errno::INVAL, "more completions wait than the queue would have room for");
        }
        let Self { sink, entries, backing, held, .. } = new;
        (self.sink, self.entries, self.held) = (sink, entries, held);
        std::mem::replace(&mut self.backing, backing).empty();
        Ok(theirs)
    }
}

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub notifier: Notifier,
    /// The channel's share of the device's limits.
    _reservation: Reservation,
}

impl Channel {
    /// Creates a channel, with the device's end of its socket.
    pub fn create(notifier: Notifier, quota: &Quota) -> Result<Self, Refusal> {
        let held = quota.take(Kind::Channel, 0, quota.limits.cqs())?;
        Ok(Self { notifier, _reservation: held })
    }
}
