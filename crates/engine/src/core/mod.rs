//! The packet path: a burst from snapshot to delivery.

mod case;
mod conclude;
mod ingress;
mod memo;
mod reassemble;
mod slow;

pub(crate) use self::ingress::Ingress;
use self::memo::{QUIET, settle};
use crate::actions::{Actions, Copy};
use crate::asked::Questions;
use crate::bfd::Bfd;
use crate::cache::{Cache, Entry, OvsFlow, Owner, Slot};
use crate::capture::{DropLog, LogBudget, Tap};
use crate::clock::Now;
use crate::contexts::{self, Context, UNKNOWN};
use crate::counters::WorkerCells;
use crate::cycles;
use crate::deliver::{Delivery, Ports};
use crate::frame::{CHUNK, Chunk, Unfinished};
use crate::hold::Hold;
use crate::key::{self, Fast, Key};
use crate::lanes::{Lanes, check_offload, metered_len, mtu_len};
use crate::linear::Linear;
use crate::meters::Meters;
use crate::notice::{Dropped, note, show, shown_len};
use crate::outer::{self, Outers};
use crate::pinned::Tables;
use crate::reassembly::Reassemblies;
use crate::replies::ReplyLimits;
use crate::storms::Storms;
use crate::turn::Turn;
use mem::{Burst, Offload, RxPacket};
use model::{DropReason, NeighbourScope, VifId};
use std::net::IpAddr;
use std::sync::Arc;

/// Nanoseconds after which all entries are idle, and the one-byte ticks in them wrap around.
const ALL_IDLE_NS: u64 = 300_000_000_000;

/// Limits on what a worker does for others.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub cache_entries: usize,
    /// ICMP errors and TCP resets per second to one address in a network.
    pub errors_per_second: u32,
    /// Copies of flooded packets, by all workers.
    pub storms: Arc<Storms>,
    /// Packets to services.
    pub questions: Questions,
    /// BFD of tunnels' remotes.
    pub bfd: Bfd,
}

/// The state of a worker, except its queues and its access to the tables.
pub(crate) struct Core {
    pub cells: Arc<WorkerCells>,
    pub log: Arc<DropLog>,
    pub log_budget: LogBudget,
    pub taps: Vec<Arc<Tap>>,
    pub meters: Arc<Meters>,
    pub ports: Ports,
    pub outers: Outers,
    pub cache: Cache,
    pub actions: Actions,
    pub lanes: Lanes,
    pub linear: Linear,
    pub hold: Hold,
    pub reassemblies: Reassemblies,
    pub replies: ReplyLimits,
    pub storms: Arc<Storms>,
    pub questions: Questions,
    pub bfd: Bfd,
    /// The budget left for the packets of this turn.
    pub turn: Turn,
    pub chunk: Box<Chunk>,
    pub now: Now,
    /// Epoch of the tables at the last burst.
    pub epoch: u64,
    /// Time of the last burst, nanoseconds.
    pub last_ns: u64,
    /// The neighbour that was last solicited without a waiting packet: scope, address, interface of the
    /// packet, second.
    pub asked: Option<(NeighbourScope, IpAddr, VifId, u32)>,
    /// While a flood is delivered: how many of its copies were for ports that are down.
    pub absent: Option<usize>,
    pub asked_ovs: bool,
    /// Which entries this burst created: one bit for each 64th of the hashes.
    pub memoised: u64,
}

impl Core {
    pub fn new(number: usize, cells: Arc<WorkerCells>, log: Arc<DropLog>, now: Now, limits: &Limits) -> Self {
        Self {
            cells,
            log,
            log_budget: LogBudget::new(),
            taps: Vec::new(),
            meters: Arc::default(),
            ports: Ports::new(number),
            outers: Outers::default(),
            cache: Cache::new(limits.cache_entries),
            actions: Actions::default(),
            lanes: Lanes::new(number),
            linear: Linear::new(),
            hold: Hold::default(),
            reassemblies: Reassemblies::default(),
            replies: ReplyLimits::new(limits.errors_per_second),
            storms: limits.storms.clone(),
            questions: limits.questions.clone(),
            bfd: limits.bfd.clone(),
            turn: Turn::NEW,
            chunk: Box::new([0; CHUNK]),
            now,
            epoch: 0,
            last_ns: now.ns,
            asked: None,
            absent: None,
            asked_ovs: false,
            memoised: 0,
        }
    }

    pub fn burst(&mut self, tables: Tables<'_>, burst: &Burst, from: Ingress) {
        let start = cycles::now();
        self.log_budget = LogBudget::new();
        self.turn = Turn::NEW;
        self.asked_ovs = false;
        self.follow(tables);
        let bytes = self.lanes.snapshot(burst);
        self.count_received(burst, from.vif, bytes);
        let snapped = cycles::now();
        let slow = if let Some(port) = from.port
            && burst.packets().iter().all(|packet| packet.offload == Offload::default())
        {
            self.pass(tables, burst, from, port)
        } else if from.looks.at_flows {
            self.by_flows(tables, burst, from)
        } else {
            match from.wire {
                true => self.keys::<true, false>(burst, from),
                false => self.keys::<false, false>(burst, from),
            }
            self.lookups::<false>(tables, burst, from)
        };
        let looked_up = cycles::now();
        self.flush(burst);
        let end = cycles::now();

        let cycles = &self.cells.cycles;
        cycles.receive.add(snapped - start);
        cycles.lookup.add((looked_up - snapped).saturating_sub(slow));
        cycles.slow_path.add(slow);
        cycles.deliver.add(end - looked_up);
    }

    fn count_received(&mut self, burst: &Burst, vif: VifId, bytes: u64) {
        let packets = burst.packets();
        self.cells.received.add(packets.len() as u64, bytes);
        self.cells.burst(packets.len());
        if let Some(cells) = self.cells.vif(vif) {
            cells.received.add(packets.len() as u64, bytes);
        }
        if !self.taps.is_empty() {
            let most = shown_len(&self.taps);
            for packet in packets {
                let len = most.min(packet.len as usize);
                let bytes = self.linear.load(burst.segments(packet), &[], len);
                show(&self.taps, self.now, vif, false, None, packet.len as usize, bytes);
            }
        }
    }

    /// Makes keys and looks up packets that meet flows of Open vSwitch. A separate function, so that it
    /// leaves the code for other packets unchanged.
    #[inline(never)]
    fn by_flows(&mut self, tables: Tables<'_>, burst: &Burst, from: Ingress) -> u64 {
        match from.wire {
            true => self.keys::<true, true>(burst, from),
            false => self.keys::<false, true>(burst, from),
        }
        self.lookups::<true>(tables, burst, from)
    }

    /// Parses every packet in the fast way, and computes its context and hash. Prefetches the place in the cache where
    /// its entry most likely is. Skips tunnel packets whose outer checksum is wrong. `FLOWS`: whether packets meet
    /// flows of Open vSwitch. Then other fields decide than elsewhere, and several packets of a burst often have the
    /// same key, so this function looks for such packets first.
    #[inline(always)]
    fn keys<const WIRE: bool, const FLOWS: bool>(&mut self, burst: &Burst, from: Ingress) {
        self.lanes.fast.clear();
        // The last key and its hash; the last context and its number.
        let (mut last, mut last_context) = ((Key::default(), 0), (contexts::NOBODY, UNKNOWN));
        for (lane, packet) in burst.packets().iter().enumerate() {
            let mut context = Context::of(from.vif);
            let (head, fast) = self.lanes.parts(lane);
            let len = packet.len as usize;
            let known = if WIRE { self.outers.enter(head, len, &mut context) } else { None };
            let parsed = match &known {
                Some(outer) => key::inner(head, outer, &mut context, fast),
                None => key::parse(head, len, WIRE, &mut context, fast),
            };
            if parsed.is_some() {
                if WIRE && known.is_none() && fast.at.tunnelled {
                    if fast.summed_at != 0 && !outer::sum_is_right(head, burst, packet, fast, &mut self.chunk)
                    {
                        continue;
                    }
                    self.outers.learn(head, &context);
                }
                if FLOWS {
                    context.look(from.looks, fast.ttl, || key::tcp_flags(head, fast));
                    if from.looks.coarse {
                        fast.key.make_coarse();
                    }
                    if !context.is::<WIRE>(&last_context.0) {
                        last_context = (context, self.cache.contexts.number::<WIRE>(&context));
                    }
                    fast.key.set_context(last_context.1);
                    if fast.key.is(&last.0) {
                        self.lanes.hash[lane] = last.1;
                        self.lanes.fast.mark_repeat(lane);
                        continue;
                    }
                } else {
                    fast.key.set_context(self.cache.contexts.number::<WIRE>(&context));
                }
                let hash = self.cache.hash(&fast.key);
                if FLOWS {
                    last = (fast.key, hash);
                }
                self.cache.prefetch(hash);
                self.lanes.hash[lane] = hash;
                self.lanes.fast.mark(lane);
            }
        }
        for lane in self.lanes.fast.firsts() {
            self.lanes.guess[lane] = self.cache.guess(self.lanes.hash[lane]);
        }
    }

    /// Queues packets for a port as they are, without a look-up: for packets that the fast parse accepts, no
    /// table says otherwise. Returns the cycles of the slow path, which takes the other packets.
    #[inline(never)] // so that the code of others' look-ups stays as it is
    fn pass(&mut self, tables: Tables<'_>, burst: &Burst, from: Ingress, port: VifId) -> u64 {
        let (mut hits, mut slow) = (0, 0);
        // The slow path must not memoise anything.
        self.lanes.fast.clear();
        for (lane, packet) in burst.packets().iter().enumerate() {
            let len = packet.len as usize;
            // Only whether the fast parse accepts the packet is of interest, so that the compiler drops most
            // of the work.
            let (mut context, mut fast) = (Context::of(from.vif), Fast::default());
            if key::parse(self.lanes.head(lane), len, false, &mut context, &mut fast).is_some() {
                self.lanes.leave(lane, len);
                self.enqueue(port, lane, packet, from.vif);
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

    /// Decides every packet, by the cache or on the slow path, and queues it for its port. Returns the cycles of the
    /// slow path.
    #[inline(always)]
    fn lookups<const FLOWS: bool>(&mut self, tables: Tables<'_>, burst: &Burst, from: Ingress) -> u64 {
        let (mut hits, mut slow) = (0, 0);
        // The entry of the last packet, if an entry forwarded it: that entry has not moved since.
        let mut last = None;
        self.memoised = 0;
        for (lane, packet) in burst.packets().iter().enumerate() {
            let slot = match last {
                Some(slot) if FLOWS && self.lanes.fast.repeats(lane) => Some(slot),
                _ => self.find(lane),
            };
            last = slot.filter(|slot| self.hit::<FLOWS>(tables, burst, packet, lane, from.vif, *slot));
            if last.is_some() || (self.memoised != 0 && self.lookup_again(tables, burst, packet, lane, from))
            {
                hits += 1;
            } else {
                let start = cycles::now();
                self.expect_new(tables, lane + 1, from.vif);
                self.slow(tables, burst, lane, from);
                slow += cycles::now() - start;
            }
        }
        self.cells.hits.add(hits);
        self.cells.misses.add(burst.len() as u64 - hits);
        slow
    }

    /// Finds the entry of a lane's packet, at its likely slot or through the index.
    #[inline(always)]
    fn find(&self, lane: usize) -> Option<Slot> {
        let (key, guess) = (&self.lanes.fast.get(lane)?.key, self.lanes.guess[lane]);
        if self.cache.is_at(guess, key) { Some(guess) } else { self.find_anew(lane) }
    }

    /// Finds the entry of a lane's packet through the index, because it is not at its likely slot.
    #[cold]
    fn find_anew(&self, lane: usize) -> Option<Slot> {
        self.cache.find(self.lanes.hash[lane], &self.lanes.fast.get(lane)?.key)
    }

    /// Looks a packet up and forwards it after an earlier packet of the burst created an entry, which may be this
    /// packet's.
    #[cold]
    fn lookup_again(
        &mut self,
        tables: Tables<'_>,
        burst: &Burst,
        packet: &RxPacket,
        lane: usize,
        from: Ingress,
    ) -> bool {
        let Some(fast) = self.lanes.fast.get(lane) else { return false };
        if fast.key.context() == UNKNOWN {
            let Some(context) = self.context(lane, packet, from) else { return false };
            let number = self.cache.contexts.number::<true>(&context);
            let (_, fast) = self.lanes.parts(lane);
            fast.key.set_context(number);
            self.lanes.hash[lane] = self.cache.hash(&fast.key);
        }
        let made = self.memoised & hash_bit(self.lanes.hash[lane]) != 0;
        let slot = if made { self.find(lane) } else { None };
        slot.is_some_and(|slot| self.hit_any::<true>(tables, burst, packet, lane, from.vif, slot))
    }

    /// Prefetches the parts of the connection table that the decision about this lane's packet will read,
    /// because new flows come in bursts.
    fn expect_new(&self, tables: Tables<'_>, lane: usize, ingress: VifId) {
        if let Some(fast) = self.lanes.fast.get(lane)
            && let Some(vrf) = tables.snapshot.vif(ingress).and_then(|vif| vif.vrf)
            && let Some(key) = fast.key.flow(vrf)
        {
            tables.shared.flows().prefetch(&key);
        }
    }

    /// Returns the context of a packet that the fast parse accepted.
    #[cold]
    pub fn context(&self, lane: usize, packet: &RxPacket, from: Ingress) -> Option<Context> {
        let mut context = Context::of(from.vif);
        let (head, len) = (self.lanes.head(lane), packet.len as usize);
        let mut fast = Fast::default();
        key::parse(head, len, from.wire, &mut context, &mut fast)?;
        context.look(from.looks, fast.ttl, || key::tcp_flags(head, &fast));
        Some(context)
    }

    /// Does what an entry says with a packet, which is usually to forward it. False if the packet needs the
    /// slow path. `FLOWS`: whether the entry may belong to a flow of Open vSwitch.
    #[inline(always)]
    fn hit<const FLOWS: bool>(
        &mut self,
        tables: Tables<'_>,
        burst: &Burst,
        packet: &RxPacket,
        lane: usize,
        ingress: VifId,
        slot: Slot,
    ) -> bool {
        if packet.offload == Offload::default() {
            self.apply::<FLOWS, false>(tables, burst, packet, lane, ingress, slot)
        } else {
            self.hit_any::<FLOWS>(tables, burst, packet, lane, ingress, slot)
        }
    }

    /// Does the same for packets that may have offloads. A separate function, so that the code for other
    /// packets contains no part of it.
    #[inline(never)]
    fn hit_any<const FLOWS: bool>(
        &mut self,
        tables: Tables<'_>,
        burst: &Burst,
        packet: &RxPacket,
        lane: usize,
        ingress: VifId,
        slot: Slot,
    ) -> bool {
        self.apply::<FLOWS, true>(tables, burst, packet, lane, ingress, slot)
    }

    /// Does what an entry says with a packet. `OFFLOADS`: whether the packet may have some.
    #[inline(always)]
    fn apply<const FLOWS: bool, const OFFLOADS: bool>(
        &mut self,
        tables: Tables<'_>,
        burst: &Burst,
        packet: &RxPacket,
        lane: usize,
        ingress: VifId,
        slot: Slot,
    ) -> bool {
        let mut entry = self.cache.found(slot);
        let current = entry.is_current(self.now.tick)
            & self.actions.get(entry.action()).holds(self.epoch)
            & (!FLOWS || entry.holds_at(self.epoch));
        if !current {
            if !self.renew(tables, slot, lane) {
                return false;
            }
            entry = self.cache.found(slot);
        }
        let fast = self.lanes.fast.at(lane);
        let mtu_len = if OFFLOADS { mtu_len(fast, packet) } else { fast.mtu_len };
        if mtu_len > entry.max_len() {
            return false;
        }
        let unfinished = match check_offload(&packet.offload, Some(&fast.at)) {
            _ if !OFFLOADS => Unfinished::default(),
            Ok(unfinished) => unfinished,
            Err(reason) => {
                self.drop(lane, packet, ingress, reason);
                return true;
            }
        };
        let action = self.actions.get(entry.action());
        if action.looks {
            if action.metered
                && let len = metered_len(self.lanes.fast.at(lane), packet, &action.template)
                && let Some(reason) = self.meters.over(action, self.now.ns, len)
            {
                self.drop(lane, packet, ingress, reason);
                return true;
            }
            if let Some(reason) = action.drops {
                entry.count(packet.len);
                self.drop(lane, packet, ingress, reason);
                return true;
            }
            // A segment outside the stream takes the slow path.
            if action.follows && !self.lanes.follow(lane, &entry, tables) {
                return false;
            }
            if action.copied {
                entry.count(packet.len);
                let (action, entropy) = (entry.action(), entry.entropy());
                self.copy_out(burst, lane, action, entropy, unfinished);
                return true;
            }
            if action.marks {
                self.lanes.mark(lane, entry.ovs_counter());
            }
        }
        entry.count(packet.len);

        let template = &action.template;
        let (len, fields) = (packet.len as usize, || action.fields());
        match self.lanes.rewrite(lane, lane, len, template, fields, entry.entropy(), unfinished) {
            Ok(()) => self.enqueue(template.port, lane, packet, ingress),
            Err(reason) => self.drop(lane, packet, ingress, reason),
        }
        true
    }

    /// Sends a packet to several ports. The copies but the first count against the turn's budget.
    fn copy_out(&mut self, burst: &Burst, lane: usize, action: u32, entropy: u32, unfinished: Unfinished) {
        let len = burst.packets()[lane].len as usize;
        let copies = self.actions.get(action).copies().len();
        if !self.lanes.has_room(copies) {
            self.flush(burst);
        }
        for (number, Copy { template, fields }) in self.actions.get(action).copies().iter().enumerate() {
            // The last one is the packet itself.
            let to = if number + 1 < copies { self.lanes.copy(lane) } else { Some(lane) };
            let rewritten = match to {
                Some(to) if number == 0 || self.turn.take(1, len) => {
                    let fields = || fields.as_ref();
                    self.lanes.rewrite(lane, to, len, template, fields, entropy, unfinished).map(|()| to)
                }
                _ => Err(DropReason::TurnBudget),
            };
            let sent = rewritten.and_then(|to| match self.ports.enqueue(template.port, to as u8) {
                true => Ok(()),
                false => Err(self.ports.absent(template.port)),
            });
            if let Err(reason) = sent {
                if let Some(cells) = self.cells.vif(template.port) {
                    cells.send_drops.add(1);
                }
                let bytes = self.lanes.head(lane);
                let dropped = Dropped { vif: template.port, outbound: true, reason, len, bytes };
                note(&self.cells, &self.log, &mut self.log_budget, &self.taps, self.now, dropped);
            }
        }
    }

    /// Queues a rewritten lane for its port.
    #[inline(always)]
    pub fn enqueue(&mut self, port: VifId, lane: usize, packet: &RxPacket, ingress: VifId) {
        if !self.ports.enqueue(port, lane as u8) {
            self.drop(lane, packet, ingress, self.ports.absent(port));
            if let Some(cells) = self.cells.vif(port) {
                cells.send_drops.add(1);
            }
        }
    }

    /// Brings an entry up to date with the tables, its connection and the clock. False if it does not hold (any more)
    /// and was removed, or if it does not apply to this lane's packet.
    #[cold]
    fn renew(&mut self, tables: Tables<'_>, slot: Slot, lane: usize) -> bool {
        let found = self.cache.found(slot);
        if self.actions.get(found.action()).follows && !self.lanes.follow(lane, &found, tables) {
            // Such a packet does not show that the connection lives: the entry stays as it is, for packets
            // that do.
            return false;
        }
        let mut entry = self.cache.get(slot);
        let idle = self.now.tick.wrapping_sub(entry.tick);
        let due = idle > 0 || entry.packets >= Entry::FULL;
        let holds = idle < QUIET
            && self.actions.revalidate(entry.action, tables, self.epoch)
            && self.renew_owner(tables, &mut entry.owner)
            && (!due || settle(&mut entry, &mut self.actions, &self.cells, tables, self.now.seconds));
        entry.tick = self.now.tick;
        self.cache.set(slot, &entry);
        if !holds {
            self.forget(tables, slot);
        }
        holds
    }

    /// Returns whether an entry's flow of Open vSwitch still exists, and stamps the entry; true if the entry
    /// has none.
    fn renew_owner(&self, tables: Tables<'_>, owner: &mut Owner) -> bool {
        let Owner::Ovs(flow) = owner else { return true };
        let holds = tables.shared.flow_holds(flow.cell, flow.since(self.epoch));
        *flow = OvsFlow::new(flow.cell, flow.counter, self.epoch);
        holds
    }

    pub fn flush(&mut self, burst: &Burst) {
        self.deliver_all(burst);
        self.lanes.delivered();
    }

    #[inline(always)]
    fn deliver_all(&mut self, burst: &Burst) {
        while let Some((port, order)) = self.ports.dequeue() {
            let lanes = &mut self.lanes;
            if !self.taps.is_empty() {
                let most = shown_len(&self.taps);
                for &lane in &order {
                    let frame = lanes.frame(usize::from(lane), burst);
                    let bytes = self.linear.gather(&frame, most);
                    show(&self.taps, self.now, port, true, None, frame.len(), bytes);
                }
            }
            let delivery = self.deliver_to(port, &order, burst);
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

    #[inline(always)]
    fn deliver_to(&mut self, port: VifId, order: &[u8], burst: &Burst) -> Delivery {
        let Self { lanes, ports, chunk, turn, now, .. } = self;
        if ports.is_ovs_side(port) {
            self.asked_ovs = true;
            return ports.deliver(port, order, now.ns, &mut |lane, room, accepts| {
                room.mark(lanes.mark_of(lane.into()));
                lanes.write(lane.into(), burst, room, accepts, chunk, turn)
            });
        }
        ports.deliver(port, order, now.ns, &mut |lane, room, accepts| {
            lanes.write(lane.into(), burst, room, accepts, chunk, turn)
        })
    }

    #[cold]
    pub fn drop(&mut self, lane: usize, packet: &RxPacket, ingress: VifId, reason: DropReason) {
        let (len, bytes) = (packet.len as usize, self.lanes.head(lane));
        let dropped = Dropped { vif: ingress, outbound: false, reason, len, bytes };
        if let Some(cells) = self.cells.vif(ingress) {
            cells.receive_drops.add(1);
        }
        note(&self.cells, &self.log, &mut self.log_budget, &self.taps, self.now, dropped);
    }

    /// Records the epoch of the tables for a burst. Empties the cache when its entries are so old that their
    /// age can no longer be told, and when the numbers of contexts run short.
    pub fn follow(&mut self, tables: Tables<'_>) {
        self.epoch = tables.snapshot.epoch();
        if self.now.ns.saturating_sub(self.last_ns) > ALL_IDLE_NS || self.cache.contexts.are_worn() {
            self.clear(tables);
            self.cache.contexts.renew();
        }
        self.last_ns = self.now.ns;
    }

    pub fn clear(&mut self, tables: Tables<'_>) {
        self.cache.walk(self.cache.lines()).for_each(|slot| self.forget(tables, slot));
        self.cache.contexts.clear();
    }

    /// Returns the key of a packet that the fast parse accepted, and assigns a number to its context if
    /// necessary.
    pub fn key_of(&mut self, lane: usize, packet: &RxPacket, from: Ingress) -> Option<Key> {
        let mut key = self.lanes.fast.get(lane)?.key;
        if key.context() == UNKNOWN {
            let context = self.context(lane, packet, from)?;
            key.set_context(self.cache.contexts.intern(&context));
        }
        Some(key)
    }
}

/// Returns the bit of a hash in [`Core::memoised`].
const fn hash_bit(hash: u64) -> u64 {
    1 << (hash >> 58)
}
