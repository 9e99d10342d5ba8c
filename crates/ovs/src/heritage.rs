//! Counts of removed flows that no driver has read, and the flows that take them over.
//!
//! OVS reads the counter of a flow, and removes or changes the flow a moment later. Packets that pass in between belong
//! to no flow of OVS any more. So the next flow of the port that might have matched them gets them: the changed flow
//! itself, or one that OVS makes for the same packets with another mask.

use crate::flows::agree;
use executor::Counters;
use model::VifId;
use model::ovs::{Flow, Match};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long counts of a removed flow may still come: workers pass them on within two seconds.
const LATE: Duration = Duration::from_secs(3);
/// How long counts wait for a flow.
const KEPT: Duration = Duration::from_secs(8);
/// Most removed flows whose counts wait.
const MOST: usize = 64;
/// Most counters of removed flows from which a flow still takes late counts.
const MOST_LATE: usize = 16;

pub fn add(a: Counters, b: Counters) -> Counters {
    Counters { packets: a.packets.wrapping_add(b.packets), bytes: a.bytes.wrapping_add(b.bytes) }
}

fn since(now: Counters, then: Counters) -> Counters {
    Counters { packets: now.packets.wrapping_sub(then.packets), bytes: now.bytes.wrapping_sub(then.bytes) }
}

/// The counter of a removed flow, and its value as far as it is in [`Share::extra`].
#[derive(Clone, Copy, Debug)]
struct Late {
    counter: u32,
    known: Counters,
    removed: Instant,
}

/// Counts that came from removed flows.
#[derive(Clone, Debug, Default)]
struct Share {
    extra: Counters,
    late: Vec<Late>,
}

impl Share {
    /// Adds what removed flows have counted since.
    fn refresh(&mut self, count: &impl Fn(u32) -> Counters) {
        for late in &mut self.late {
            let now = count(late.counter);
            self.extra = add(self.extra, since(now, late.known));
            late.known = now;
        }
    }

    fn unite(&mut self, other: Self) {
        self.extra = add(self.extra, other.extra);
        self.late.extend(other.late);
        let surplus = self.late.len().saturating_sub(MOST_LATE);
        self.late.drain(..surplus);
    }
}

#[derive(Debug)]
struct Departed {
    port: VifId,
    matching: Match,
    share: Share,
    removed: Instant,
}

#[derive(Debug, Default)]
pub struct Heritage {
    departed: VecDeque<Departed>,
    /// By the counter of the flow that has taken them over.
    heirs: HashMap<u32, Share>,
}

impl Heritage {
    /// Returns the counts that the flow with this counter has besides its own.
    pub fn of(&mut self, counter: u32, count: &impl Fn(u32) -> Counters) -> Counters {
        self.heirs.get_mut(&counter).map_or_else(Counters::default, |share| {
            share.refresh(count);
            share.extra
        })
    }

    /// Is true if no flow has counts besides its own.
    pub fn is_empty(&self) -> bool {
        self.heirs.is_empty()
    }

    /// Notes that a flow is removed, of which OVS has read `seen`, if the driver says it.
    pub fn leave(
        &mut self,
        flow: &Flow,
        seen: Option<Counters>,
        now: Instant,
        count: &impl Fn(u32) -> Counters,
    ) {
        let mut share = self.heirs.remove(&flow.counter).unwrap_or_default();
        let Some(seen) = seen.filter(|_| !flow.is_mark()) else { return };
        share.refresh(count);
        let known = count(flow.counter);
        share.extra = since(add(known, share.extra), seen);
        // A driver that says nonsense harms its own counts only; what seems to go backwards counts as nothing.
        if share.extra.packets > u64::MAX / 2 || share.extra.bytes > u64::MAX / 2 {
            share.extra = Counters::default();
        }
        share.unite(Share {
            extra: Counters::default(),
            late: vec![Late { counter: flow.counter, known, removed: now }],
        });
        self.departed.truncate(MOST - 1);
        self.departed.push_front(Departed { port: flow.port, matching: flow.matching, share, removed: now });
    }

    /// Gives a new flow the counts of removed flows whose packets it might match.
    pub fn come(&mut self, flow: &Flow) {
        if flow.is_mark() {
            return;
        }
        let is_heir = |gone: &Departed| gone.port == flow.port && agree(&gone.matching, &flow.matching);
        while let Some(at) = self.departed.iter().position(is_heir) {
            let Some(gone) = self.departed.remove(at) else { return };
            self.heirs.entry(flow.counter).or_default().unite(gone.share);
        }
    }

    /// Takes the last counts of flows that were removed before `settled`, up to which workers have passed on all
    /// counts, or long ago. Forgets counts that no flow takes over.
    pub fn settle(&mut self, settled: Option<Instant>, now: Instant, count: &impl Fn(u32) -> Counters) {
        let shares = self.heirs.values_mut().chain(self.departed.iter_mut().map(|gone| &mut gone.share));
        for share in shares.filter(|share| !share.late.is_empty()) {
            share.refresh(count);
            share.late.retain(|late| {
                settled.is_none_or(|settled| late.removed > settled)
                    && now.saturating_duration_since(late.removed) < LATE
            });
        }
        let counts = |share: &Share| share.extra != Counters::default() || !share.late.is_empty();
        let waits = |gone: &Departed| now.saturating_duration_since(gone.removed) < KEPT;
        self.departed.retain(|gone| waits(gone) && counts(&gone.share));
        self.heirs.retain(|_, share| counts(share));
    }
}
