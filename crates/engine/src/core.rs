//! The packet path: one burst from its snapshot to its delivery.

use crate::cache::{Cache, Hot, Removed, Slot, short_epoch};
use crate::capture::{DropLog, LogBudget, Seen, Tap};
use crate::clock::Now;
use crate::counters::WorkerCells;
use crate::cycles;
use crate::deliver::Ports;
use crate::frame::{CHUNK, Chunk, Unfinished};
use crate::hold::Hold;
use crate::key::{self, Context, Fast, Key, Layout};
use crate::lanes::{Lanes, Out, check_offload, mtu_len};
use crate::linear::Linear;
use crate::memo::{Memo, Tables};
use crate::meters::Meters;
use crate::replies::ReplyLimits;
use crate::rewrite::{HEADROOM, edit_fast, reframe};
use crate::template::{Template, Templates};
use mem::{Burst, RxPacket};
use model::{DropReason, VifId};
use std::sync::Arc;

/// The shortest timeout of a connection, seconds ([`model::FlowState::timeout`]).
const MIN_TIMEOUT: u16 = 10;

/// Where a burst came from.
#[derive(Debug)]
pub(crate) struct Ingress {
    /// Interface.
    pub vif: VifId,
    /// Whether tunnels may end there.
    pub wire: bool,
    /// The last context seen, and its number: most bursts have one.
    pub last: (Context, u32),
}

/// All a worker has, but its queues and its right to read the tables.
pub(crate) struct Core {
    pub cells: Arc<WorkerCells>,
    pub log: Arc<DropLog>,
    pub log_budget: LogBudget,
    pub taps: Vec<Arc<Tap>>,
    pub meters: Arc<Meters>,
    pub ports: Ports,
    pub cache: Cache<Memo>,
    pub templates: Templates,
    pub lanes: Lanes,
    pub linear: Linear,
    pub hold: Hold,
    pub replies: ReplyLimits,
    pub chunk: Box<Chunk>,
    pub now: Now,
    /// Epoch of the tables at the last burst.
    pub epoch: u64,
    /// Whether this burst made an entry.
    pub memoised_any: bool,
}

impl Core {
    /// For the worker `number`. `limits`: entries of its cache, and errors it may send per second and interface.
    pub fn new(
        number: usize,
        cells: Arc<WorkerCells>,
        log: Arc<DropLog>,
        now: Now,
        (cache_entries, errors_per_second): (usize, u32),
    ) -> Self {
        Self {
            cells,
            log,
            log_budget: LogBudget::new(),
            taps: Vec::new(),
            meters: Arc::default(),
            ports: Ports::new(number),
            cache: Cache::new(cache_entries),
            templates: Templates::default(),
            lanes: Lanes::new(),
            linear: Linear::new(),
            hold: Hold::default(),
            replies: ReplyLimits::new(errors_per_second),
            chunk: Box::new([0; CHUNK]),
            now,
            epoch: 0,
            memoised_any: false,
        }
    }

    /// Forwards a burst.
    pub fn burst(&mut self, tables: Tables<'_>, burst: &Burst, from: &mut Ingress) {
        let start = cycles::now();
        self.log_budget = LogBudget::new();
        self.follow_epoch(tables);
        self.lanes.snapshot(burst);
        self.count_received(burst, from.vif);
        let snapped = cycles::now();
        self.keys(burst, from);
        let slow = self.lookups(tables, burst, from);
        let looked_up = cycles::now();
        self.flush(burst);
        let end = cycles::now();

        let cycles = &self.cells.cycles;
        cycles.receive.add(snapped - start);
        cycles.lookup.add((looked_up - snapped).saturating_sub(slow));
        cycles.slow_path.add(slow);
        cycles.deliver.add(end - looked_up);
    }

    fn count_received(&mut self, burst: &Burst, vif: VifId) {
        let packets = burst.packets();
        let bytes = packets.iter().map(|p| u64::from(p.len)).sum();
        self.cells.received.add(packets.len() as u64, bytes);
        self.cells.burst(packets.len());
        if let Some(cells) = self.cells.vif(vif) {
            cells.received.add(packets.len() as u64, bytes);
        }
        if !self.taps.is_empty() {
            for packet in packets {
                let bytes = self.linear.load(burst.segments(packet), &[], packet.len as usize);
                show(&self.taps, self.now, vif, false, None, packet.len as usize, bytes);
            }
        }
    }

    /// Fast parse, context and hash of every packet; brings its entry near.
    #[inline]
    fn keys(&mut self, burst: &Burst, from: &mut Ingress) {
        for (lane, packet) in burst.packets().iter().enumerate() {
            let mut context = Context { ingress: from.vif, ..Context::default() };
            let fast = key::parse(self.lanes.head(lane), packet.len as usize, from.wire, &mut context);
            let mut number = 0;
            if let Some(fast) = &fast {
                if context != from.last.0 || from.last.1 == 0 {
                    from.last = (context, self.cache.context(&context).unwrap_or(0));
                }
                number = from.last.1;
                let hash = self.cache.hash(&fast.key.within(number));
                self.cache.prefetch(hash);
                self.lanes.hash[lane] = hash;
            }
            self.lanes.fast[lane] = fast;
            self.lanes.context[lane] = number;
        }
    }

    /// Decides every packet, by the cache or the slow path, and puts it in line for its port. Returns the cycles
    /// the slow path took.
    #[inline]
    fn lookups(&mut self, tables: Tables<'_>, burst: &Burst, from: &mut Ingress) -> u64 {
        let (mut hits, mut slow) = (0, 0);
        self.memoised_any = false;
        for (lane, packet) in burst.packets().iter().enumerate() {
            let hit = self.lookup(tables, packet, lane, from.vif)
                || (self.memoised_any && self.lookup_again(tables, packet, lane, from));
            if hit {
                hits += 1;
            } else {
                let start = cycles::now();
                self.slow(tables, burst, lane, from);
                slow += cycles::now() - start;
            }
        }
        self.cells.hits.add(hits);
        self.cells.misses.add(burst.len() as u64 - hits);
        slow
    }

    /// Forwards a packet by its entry; false where there is none that holds.
    #[inline(always)]
    fn lookup(&mut self, tables: Tables<'_>, packet: &RxPacket, lane: usize, ingress: VifId) -> bool {
        let Some(fast) = self.lanes.fast[lane] else { return false };
        let context = self.lanes.context[lane];
        if context == 0 {
            return false;
        }
        let key = fast.key.within(context);
        let Some(slot) = self.cache.find(self.lanes.hash[lane], &key) else { return false };
        self.hit(tables, packet, lane, ingress, &fast, slot)
    }

    /// The same after an earlier packet of the burst made an entry: it may have been this one's.
    fn lookup_again(&mut self, tables: Tables<'_>, packet: &RxPacket, lane: usize, from: &Ingress) -> bool {
        let mut context = Context { ingress: from.vif, ..Context::default() };
        let head = self.lanes.head(lane);
        let Some(fast) = key::parse(head, packet.len as usize, from.wire, &mut context) else { return false };
        let Some(number) = self.cache.context(&context) else { return false };
        self.lanes.context[lane] = number;
        self.lanes.hash[lane] = self.cache.hash(&fast.key.within(number));
        self.lookup(tables, packet, lane, from.vif)
    }

    #[inline(always)]
    fn hit(
        &mut self,
        tables: Tables<'_>,
        packet: &RxPacket,
        lane: usize,
        ingress: VifId,
        fast: &Fast,
        slot: Slot,
    ) -> bool {
        let mut hot = self.cache.hot(slot);
        let second = self.now.seconds as u16;
        let stale = hot.epoch != short_epoch(self.epoch);
        if (stale || hot.second != second || hot.packets >= Hot::FULL) && !self.renew(tables, slot, &mut hot)
        {
            return false;
        }
        if mtu_len(fast, packet) > hot.max_len {
            return false;
        }
        let Ok(unfinished) = check_offload(&packet.offload, Some(&fast.at)) else {
            self.drop(lane, packet, ingress, DropReason::OffloadMalformed);
            return true;
        };
        if hot.metered && !self.conforms(slot, lane, packet, ingress) {
            return true;
        }
        hot.packets += 1;
        hot.bytes += packet.len;
        self.cache.set_hot(slot, hot);

        let template = self.templates.get(hot.template);
        let entropy = if template.tunnel.is_some() { self.cache.entropy(hot) } else { 0 };
        let frame_len = packet.len as usize;
        let end = fast.end(frame_len, template);
        let head = &mut self.lanes.heads[lane].0;
        let head_len = usize::from(self.lanes.head_len[lane]);
        let edited = !template.edits_ip()
            || edit_fast(&mut head[HEADROOM..HEADROOM + head_len], &fast.at, template, unfinished.partial)
                .is_some();
        if !edited {
            self.drop(lane, packet, ingress, DropReason::L4Malformed);
            return true;
        }
        match place(head, head_len, end, template, entropy, &fast.at, unfinished) {
            Some(out) => {
                self.lanes.out[lane] = out;
                let port = template.port;
                self.enqueue(port, lane, packet, ingress);
            }
            None => self.drop(lane, packet, ingress, DropReason::TxTooLong),
        }
        true
    }

    /// Puts a rewritten lane in line for its port.
    #[inline(always)]
    pub fn enqueue(&mut self, port: VifId, lane: usize, packet: &RxPacket, ingress: VifId) {
        if !self.ports.enqueue(port, lane as u8) {
            self.drop(lane, packet, ingress, DropReason::TxDown);
            if let Some(cells) = self.cells.vif(port) {
                cells.send_drops.add(1);
            }
        }
    }

    /// Whether the meters of an entry let a packet pass; it is dropped if not.
    #[cold]
    fn conforms(&mut self, slot: Slot, lane: usize, packet: &RxPacket, ingress: VifId) -> bool {
        let over = self.cache.rest(slot).and_then(|memo| {
            memo.meters
                .iter()
                .find(|(meter, _)| !self.meters.conforms(*meter, self.now.ns, packet.len as usize))
                .map(|(_, reason)| *reason)
        });
        if let Some(reason) = over {
            self.drop(lane, packet, ingress, reason);
        }
        over.is_none()
    }

    /// Brings an entry up to date with the tables, its connection and the clock; false where it does not hold (any
    /// more), and is gone.
    #[cold]
    fn renew(&mut self, tables: Tables<'_>, slot: Slot, hot: &mut Hot) -> bool {
        let (stamp, second) = (short_epoch(self.epoch), self.now.seconds as u16);
        let due = hot.second != second || hot.packets >= Hot::FULL;
        let holds = match self.cache.rest(slot) {
            // No connection times out sooner; after longer, whether it did is for `decide` to find out.
            _ if second.wrapping_sub(hot.second) >= MIN_TIMEOUT => false,
            Some(memo) => {
                (hot.epoch == stamp || tables.shared.still_valid(&memo.deps, memo.stamp))
                    && (!due || memo.settle(tables, &self.cells, hot, self.now.seconds))
            }
            None => false,
        };
        if !holds {
            self.forget(tables, slot);
            return false;
        }
        if hot.epoch != stamp
            && let Some(memo) = self.cache.rest_mut(slot)
        {
            memo.stamp = self.epoch;
            hot.epoch = stamp;
        }
        hot.second = second;
        self.cache.set_hot(slot, *hot);
        true
    }

    /// Removes an entry that does not hold.
    fn forget(&mut self, tables: Tables<'_>, slot: Slot) {
        if let Some(removed) = self.cache.remove(slot) {
            self.retire(tables, removed);
        }
    }

    /// Counts what an entry that was given up had not counted yet.
    pub fn retire(&mut self, tables: Tables<'_>, removed: Removed<Memo>) {
        let Removed { mut hot, rest } = removed;
        rest.settle_late(tables, &self.cells, &mut hot, self.now.seconds);
        self.templates.give_back(hot.template);
    }

    /// Delivers every lane in line.
    pub fn flush(&mut self, burst: &Burst) {
        while let Some((port, order)) = self.ports.dequeue() {
            let lanes = &mut self.lanes;
            if !self.taps.is_empty() {
                for &lane in &order {
                    let frame = lanes.frame(usize::from(lane), burst);
                    let bytes = self.linear.gather(&frame);
                    show(&self.taps, self.now, port, true, None, frame.len(), bytes);
                }
            }
            let chunk = &mut self.chunk;
            let delivery = self.ports.deliver(port, &order, &mut |lane, room, accepts| {
                lanes.frame(usize::from(lane), burst).write(room, accepts, chunk)
            });
            self.cells.sent.add(delivery.sent.packets, delivery.sent.bytes);
            if let Some(cells) = self.cells.vif(port) {
                cells.sent.add(delivery.sent.packets, delivery.sent.bytes);
                cells.send_drops.add(delivery.drops.len() as u64);
            }
            for (lane, reason) in delivery.drops {
                let lane = usize::from(lane);
                let out = self.lanes.out[lane];
                let bytes = &self.lanes.heads[lane].0[usize::from(out.start)..usize::from(out.end)];
                let len = bytes.len() + out.rest_len as usize;
                note(
                    &self.cells,
                    &self.log,
                    &mut self.log_budget,
                    &self.taps,
                    self.now,
                    Dropped { vif: port, outbound: true, reason, len, bytes },
                );
            }
        }
    }

    /// Drops a packet on its way in.
    #[cold]
    pub fn drop(&mut self, lane: usize, packet: &RxPacket, ingress: VifId, reason: DropReason) {
        let (len, bytes) = (packet.len as usize, self.lanes.head(lane));
        let dropped = Dropped { vif: ingress, outbound: false, reason, len, bytes };
        if let Some(cells) = self.cells.vif(ingress) {
            cells.receive_drops.add(1);
        }
        note(&self.cells, &self.log, &mut self.log_budget, &self.taps, self.now, dropped);
    }

    /// Empties the cache when it can't tell epochs or contexts apart any more.
    pub fn follow_epoch(&mut self, tables: Tables<'_>) {
        let epoch = tables.snapshot.epoch();
        if epoch >> 24 != self.epoch >> 24 {
            self.clear(tables);
        }
        self.epoch = epoch;
    }

    /// Empties the cache.
    pub fn clear(&mut self, tables: Tables<'_>) {
        for slot in self.cache.walk(self.cache.lines()) {
            if let Some(removed) = self.cache.remove(slot) {
                self.retire(tables, removed);
            }
        }
        self.cache.forget_contexts();
    }

    /// The key of a packet within its context, made known if need be.
    pub fn key_of(&mut self, fast: &Fast, context: &Context, tables: Tables<'_>) -> Option<Key> {
        let number = match self.cache.intern(context) {
            Some(number) => number,
            None => {
                self.clear(tables);
                self.cache.intern(context)?
            }
        };
        Some(fast.key.within(number))
    }
}

/// Puts the new headers in front of a lane's edited head, and says what is to be delivered. `end` is where the packet
/// that goes on ends in the frame.
#[inline(always)]
pub(crate) fn place(
    head: &mut [u8],
    head_len: usize,
    end: usize,
    template: &Template,
    entropy: u32,
    at: &Layout,
    unfinished: Unfinished,
) -> Option<Out> {
    let len = end.checked_sub(usize::from(template.strip))?;
    let in_head = head_len.min(end);
    let start = reframe(&mut head[..HEADROOM + head_len], len, template, entropy)?;
    Some(Out {
        start: start as u16,
        end: (HEADROOM + in_head) as u16,
        rest_len: (end - in_head) as u32,
        unfinished,
        at: at.shifted(HEADROOM as isize - start as isize),
        tunnel: template.tunnel,
    })
}

/// A dropped packet, for whom it may concern.
pub(crate) struct Dropped<'a> {
    pub vif: VifId,
    pub outbound: bool,
    pub reason: DropReason,
    pub len: usize,
    pub bytes: &'a [u8],
}

/// Counts, logs and shows a drop.
pub(crate) fn note(
    cells: &WorkerCells,
    log: &DropLog,
    budget: &mut LogBudget,
    taps: &[Arc<Tap>],
    now: Now,
    dropped: Dropped<'_>,
) {
    let Dropped { vif, outbound, reason, len, bytes } = dropped;
    cells.drop(reason);
    if budget.take() {
        log.note(now.unix_ns, vif, reason, len, bytes);
    }
    show(taps, now, vif, outbound, Some(reason), len, bytes);
}

/// Shows a packet to all captures.
pub(crate) fn show(
    taps: &[Arc<Tap>],
    now: Now,
    vif: VifId,
    outbound: bool,
    dropped: Option<DropReason>,
    len: usize,
    bytes: &[u8],
) {
    for tap in taps {
        tap.show(&Seen { time_ns: now.unix_ns, vif, outbound, dropped, len, bytes });
    }
}
