//! The slow path: calls `decide`, executes the decision, and memoises it if it lasts.

use super::case::{Case, decide};
use super::memo::is_lasting;
use super::{Core, Ingress};
use crate::actions::{Copy, MOST_COPIES, Policy};
use crate::cache::{Entry, OvsFlow, Owner};
use crate::counters::there;
use crate::key::Layout;
use crate::lanes::{check_offload, mtu_len};
use crate::notice::{Dropped, note};
use crate::pinned::Tables;
use crate::rewrite::{HEADROOM, edit_any, kept, place};
use crate::sums::complete;
use crate::template::{Rewrite, Template};
use mem::{Burst, Csum, Offload, RxPacket};
use model::{Crossings, DropReason, Forward, Nat, Verdict, VifId, VifKind, ovs};
use packet::proto;
use tables::{Account, Deps, FlowRef, Snapshot};

/// Returns the account of a packet's connection: that of the guest that sent it; for a packet from a wire or
/// an Open vSwitch, that of the guest that receives it, or of the wire if there is not exactly one such
/// guest. For a guest with two interfaces, it is the account of the port.
fn charged(snapshot: &Snapshot, case: &Case) -> Account {
    let guest = |id| {
        let vif = snapshot.vif(id).filter(|vif| !matches!(vif.kind, VifKind::Wire | VifKind::Ovs))?;
        Some(vif.rdma.filter(|_| vif.is_second()).unwrap_or(vif.id))
    };
    if let Some(sender) = guest(case.ingress) {
        return Account::of_guest(sender);
    }
    let verdict = &case.decision.verdict;
    let receiver = match (verdict.deliveries(), verdict.outputs()) {
        ([only], _) => guest(only.port),
        (_, [only]) => guest(only.port),
        _ => None,
    };
    Account::from_wire(receiver.unwrap_or(case.ingress))
}

/// Returns whether decisions of this kind are memoised, if nothing else forbids it.
pub(super) fn is_memoised(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Forward(forward) => forward.cut.is_none(),
        Verdict::Outputs(outputs) => outputs.len() <= MOST_COPIES,
        Verdict::Drop(reason) => *reason == DropReason::OvsDrop,
        _ => false,
    }
}

/// Returns the owner of an entry, and the parts that its action keeps: dependencies, and the counter of a
/// flow of Open vSwitch if the entry has no room for it beside a connection.
fn owner(case: &Case, connection: Option<(FlowRef, bool)>, epoch: u64) -> (Owner, Deps, Option<u32>) {
    let counter = case.decision.effects.ovs_counter;
    match (connection, case.ovs_flow) {
        (None, None) => (Owner::Nobody, case.deps, None),
        (None, Some(cell)) => (Owner::Ovs(OvsFlow::new(cell, counter, epoch)), case.deps, None),
        (Some((flow, reply)), cell) => {
            let deps = cell.map_or(case.deps, |cell| case.deps.and(cell));
            (Owner::Connection(flow, reply), deps, counter)
        }
    }
}

/// Returns whether a checksum is to be finished whose position only the sender's request tells. Packets from
/// guests don't qualify: they must stay as they were when they were decided.
fn is_to_complete(case: &Case, from: Ingress) -> bool {
    from.port.is_some() && matches!(case.offload.csum, Csum::Partial { .. }) && case.headers.ip().is_none()
}

fn copies(verdict: &Verdict) -> Box<[Copy]> {
    let outputs = verdict.outputs();
    let copy = |output| {
        let template = Template::of_output(output);
        let fields = Rewrite::of_output(output, &template).fields.cloned();
        Copy { template, fields }
    };
    outputs.iter().filter(|_| outputs.len() > 1).map(copy).collect()
}

impl Core {
    /// Decides a packet of a burst and executes the decision.
    #[cold]
    pub(super) fn slow(&mut self, tables: Tables<'_>, burst: &Burst, lane: usize, from: Ingress) {
        // Another worker may take the port that a decision found for a guest; then there is a different one.
        const TRIES: usize = 4;
        let packet = burst.packets()[lane];
        for _ in 0..TRIES {
            match self.slow_once(tables, burst, lane, from) {
                Err(DropReason::SnatPorts) => {}
                Err(reason) => return self.drop(lane, &packet, from.vif, reason),
                Ok(()) => return,
            }
        }
        self.drop(lane, &packet, from.vif, DropReason::SnatPorts);
    }

    /// Decides a packet once.
    ///
    /// # Errors
    /// The reason for which the packet is still to be dropped.
    fn slow_once(
        &mut self,
        tables: Tables<'_>,
        burst: &Burst,
        lane: usize,
        from: Ingress,
    ) -> Result<(), DropReason> {
        let packet = burst.packets()[lane];
        let (head, len) = (self.lanes.head(lane), packet.len as usize);
        let floods = |vrf| self.may_flood(tables, from.vif, vrf);
        let view = tables.view(self.now.seconds).flooding(&floods);
        // The fast parse accepts no tunnel packet with a wrong checksum.
        let checked = self.lanes.fast.get(lane).is_some_and(|fast| fast.at.tunnelled);
        let case = match decide(&view, head, len, from.vif, packet.offload, checked) {
            Ok(case) if is_to_complete(&case, from) => {
                self.slow_whole(tables, burst, lane, from);
                return Ok(());
            }
            Ok(case) => case,
            Err(DropReason::HeaderTooLong) if head.len() < len => {
                self.slow_whole(tables, burst, lane, from);
                return Ok(());
            }
            Err(reason) => {
                self.drop(lane, &packet, from.vif, reason);
                return Ok(());
            }
        };
        let effects = &case.decision.effects;
        let alone =
            effects.mirror_in.is_empty() && effects.mirror_out.is_empty() && effects.solicit.is_none();
        match &case.decision.verdict {
            Verdict::Forward(forward) if alone => {
                let template = Template::new(forward);
                let rewrite = Rewrite::of(forward, &template);
                return self.try_forward_lane(tables, lane, &packet, from, &case, rewrite);
            }
            Verdict::Outputs(outputs) if alone && outputs.len() == 1 => {
                self.output_lane(tables, lane, &packet, from, &case, &outputs[0]);
            }
            Verdict::Drop(reason) if alone => {
                let done = self.effects(tables, &case, len);
                if let (Ok(flow), DropReason::OvsDrop) = (done, reason) {
                    self.remember_elsewhere(tables, lane, &packet, from, &case, flow);
                }
                self.drop(lane, &packet, from.vif, done.err().unwrap_or(*reason));
            }
            verdict => {
                if alone && matches!(verdict, Verdict::Outputs(_)) {
                    self.remember_elsewhere(tables, lane, &packet, from, &case, None);
                }
                self.flush(burst);
                let original =
                    self.linear.take(burst.segments(&packet), self.lanes.head(lane), packet.len as usize);
                self.conclude(tables, &original, &case);
                self.linear.original = original;
            }
        }
        Ok(())
    }

    /// Decides a packet that is needed whole, because its headers are longer than the snapshot or its
    /// checksum [`is_to_complete`], and executes the decision.
    fn slow_whole(&mut self, tables: Tables<'_>, burst: &Burst, lane: usize, from: Ingress) {
        self.flush(burst);
        let packet = burst.packets()[lane];
        let mut original =
            self.linear.take(burst.segments(&packet), self.lanes.head(lane), packet.len as usize);
        self.whole(tables, &mut original, from, packet.offload);
        self.linear.original = original;
    }

    /// Decides a packet in our own buffer and executes the decision.
    pub(super) fn whole(&mut self, tables: Tables<'_>, original: &mut [u8], from: Ingress, offload: Offload) {
        let floods = |vrf| self.may_flood(tables, from.vif, vrf);
        let view = tables.view(self.now.seconds).flooding(&floods);
        match decide(&view, original, original.len(), from.vif, offload, false) {
            Ok(case) => {
                if is_to_complete(&case, from) {
                    complete(original, &offload);
                }
                self.conclude(tables, original, &case);
            }
            Err(reason) => self.drop_whole(original, from.vif, reason),
        }
    }

    /// Sends a lane to the output of a flow of Open vSwitch.
    #[cold]
    #[inline(never)]
    fn output_lane(
        &mut self,
        tables: Tables<'_>,
        lane: usize,
        packet: &RxPacket,
        from: Ingress,
        case: &Case,
        output: &ovs::Output,
    ) {
        let template = Template::of_output(output);
        self.forward_lane(tables, lane, packet, from, case, Rewrite::of_output(output, &template));
    }

    /// Memoises that a flow of Open vSwitch drops the packets, or sends them to several ports.
    #[cold]
    #[inline(never)]
    fn remember_elsewhere(
        &mut self,
        tables: Tables<'_>,
        lane: usize,
        packet: &RxPacket,
        from: Ingress,
        case: &Case,
        flow: Option<(FlowRef, bool)>,
    ) {
        let outputs = case.decision.verdict.outputs().iter();
        // Only the bytes that a copy adds count: packets are policed by the longest of their copies.
        let longest = outputs.clone().max_by_key(|output| output.grown());
        let unchanged = || Template::new(&Forward::unchanged(from.vif));
        let template = longest.map_or_else(unchanged, Template::of_output);
        let entropy = outputs.map(ovs::Output::entropy).find(|entropy| *entropy != 0).unwrap_or(0);
        let nat = Nat::default();
        let rewrite = Rewrite { template: &template, fields: None, nat, entropy, cut: None };
        let crossings = case.decision.effects.crossings.as_deref();
        let tunnelled = crossings.is_some_and(|crossings| crossings.came.is_some());
        self.remember(tables, lane, packet, from, case, rewrite, flow, tunnelled);
    }

    /// Rewrites a lane as decided, queues it, and memoises the decision; or drops it.
    #[inline(always)]
    fn forward_lane(
        &mut self,
        tables: Tables<'_>,
        lane: usize,
        packet: &RxPacket,
        from: Ingress,
        case: &Case,
        rewrite: Rewrite<'_>,
    ) {
        if let Err(reason) = self.try_forward_lane(tables, lane, packet, from, case, rewrite) {
            self.drop(lane, packet, from.vif, reason);
        }
    }

    #[inline(always)]
    fn try_forward_lane(
        &mut self,
        tables: Tables<'_>,
        lane: usize,
        packet: &RxPacket,
        from: Ingress,
        case: &Case,
        rewrite: Rewrite<'_>,
    ) -> Result<(), DropReason> {
        let Rewrite { template, entropy, cut, .. } = rewrite;
        let len = packet.len as usize;
        let (inner, end) = kept(self.lanes.head(lane), &case.headers, len, template.strip, template.keeps_ip)
            .ok_or(DropReason::TunnelMalformed)?;
        let tunnelled = template.strip > case.headers.l3_at;
        let layout = Layout::of(&inner, tunnelled);
        let unfinished = check_offload(&packet.offload, layout.as_ref())?;
        let flow = self.effects(tables, case, len)?;
        self.remember(tables, lane, packet, from, case, rewrite, flow, tunnelled);

        let head = &mut self.lanes.heads[lane].0;
        let head_len = usize::from(self.lanes.head_len[lane]);
        let frame = &mut head[HEADROOM..HEADROOM + head_len];
        edit_any(frame, &inner, end, &rewrite, unfinished.partial).map_err(|_| DropReason::HeaderTooLong)?;
        let layout = layout.unwrap_or_default();
        let placed = place(head, head_len, end, template, entropy).ok_or(DropReason::TxTooLong)?;
        self.lanes.out[lane].set(placed, unfinished, template.tunnel, &layout);
        if let Some(cut) = cut {
            self.lanes.out[lane].cut(cut, unfinished, &layout, template);
        }
        self.enqueue(template.port, lane, packet, from.vif);
        Ok(())
    }

    /// Executes the effects of a decision besides forwarding. Returns the packet's connection, and whether
    /// the packet is a reply.
    pub(super) fn effects(
        &mut self,
        tables: Tables<'_>,
        case: &Case,
        len: usize,
    ) -> Result<Option<(FlowRef, bool)>, DropReason> {
        let effects = &case.decision.effects;
        let mut meters = effects.meters.iter();
        let over = meters.find(|(meter, _)| !self.meters.conforms(*meter, self.now.ns, case.metered));
        if let Some((_, reason)) = over {
            return Err(*reason);
        }
        let now = self.now.seconds;
        if let Some(learn) = &effects.learn {
            tables.shared.learn(tables.snapshot, learn, now);
        }
        if let Some(found) = &effects.neighbour {
            tables.shared.neighbour(tables.snapshot, found, case.ingress, now);
        }
        if let Some(path) = &effects.path {
            tables.shared.path(path, now);
        }
        if let Some((key, transport)) = effects.fragment {
            tables.shared.flows().fragments().insert(key, transport, now);
        }
        self.cells.tables(&effects.rules, effects.nexthop, 1, len as u64);
        let crossings = effects.crossings.as_deref();
        crossings.into_iter().for_each(|crossings| self.cells.cross(crossings, 1, len as u64));
        if let Some(counter) = effects.ovs_counter {
            self.cells.ovs.add(counter, 1, there(Crossings::grown(crossings), 1, len as u64));
        }
        let Some(change) = &effects.flow else { return Ok(None) };
        let flow = tables.shared.flows().apply(change, charged(tables.snapshot, case), now)?;
        let reply = matches!(change, model::FlowChange::Update { reply: true, .. });
        Ok(flow.map(|flow| {
            tables.shared.flows().touch(flow, reply, 1, len as u64, now);
            (flow, reply)
        }))
    }

    /// Memoises a decision, if it holds for later packets too.
    #[allow(clippy::too_many_arguments)] // all of them go into the entry
    fn remember(
        &mut self,
        tables: Tables<'_>,
        lane: usize,
        packet: &RxPacket,
        from: Ingress,
        case: &Case,
        rewrite: Rewrite<'_>,
        flow: Option<(FlowRef, bool)>,
        tunnelled: bool,
    ) {
        let Some(&fast) = self.lanes.fast.get(lane) else { return };
        let effects = &case.decision.effects;
        let connected = flow.is_some() == effects.flow.is_some();
        let lasting = connected && is_lasting(&case.decision) && case.deps.cacheable();
        if !lasting || tunnelled != fast.at.tunnelled {
            return;
        }
        let (Some(key), Some(beside)) = (self.key_of(lane, packet, from), rewrite.beside()) else { return };
        let (owner, deps, ovs_counter) = owner(case, flow, self.epoch);
        let policy = Policy {
            template: rewrite.template.clone(),
            deps,
            follows: flow.is_some() && fast.at.protocol == proto::TCP,
            learn: effects.learn,
            meters: effects.meters.clone(),
            rules: effects.rules.clone(),
            nexthop: effects.nexthop,
            crossings: effects.crossings.clone(),
            marks: matches!(owner, Owner::Ovs(OvsFlow { counter: Some(_), .. }))
                && matches!(case.decision.verdict, Verdict::Forward(_)),
            ovs_counter,
            fields: rewrite.fields.map(|fields| fields.clone().into()),
            drops: case.decision.verdict.reason(),
            copies: copies(&case.decision.verdict),
        };
        let (max_len, tick) = (mtu_len(&fast, packet), self.now.tick);
        let entropy = beside & Entry::ENTROPY;
        let entry = Entry { max_len, tick, entropy, owner, ..Entry::default() };
        self.memoise(tables, &key, policy, entry);
    }

    pub(super) fn drop_whole(&mut self, original: &[u8], ingress: VifId, reason: DropReason) {
        let dropped = Dropped { vif: ingress, outbound: false, reason, len: original.len(), bytes: original };
        if let Some(cells) = self.cells.vif(ingress) {
            cells.receive_drops.add(1);
        }
        note(&self.cells, &self.log, &mut self.log_budget, &self.taps, self.now, dropped);
    }
}
