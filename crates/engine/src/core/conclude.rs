//! Decisions with several destinations, or none yet: floods, mirrors, answers, packets that wait.

use super::case::{Case, decide};
use super::{Core, Ingress};
use crate::frame::{Cut, Frame, Rest, Unfinished};
use crate::hold::{Held, Holder, Neighbour, NoRoom, PATIENCE_NS};
use crate::key::Layout;
use crate::lanes::check_offload;
use crate::linear::{MAX_FRAME, MAX_HEAD};
use crate::notice::{Dropped, note, show, shown_len};
use crate::pinned::Tables;
use crate::rewrite::{HEADROOM, edit_any, kept, reframe};
use crate::storms::Flooder;
use crate::sums::complete;
use crate::template::{Rewrite, Template};
use crate::turn::Turn;
use mem::Offload;
use model::{
    DropReason, Flood, Forward, Lookup, NeighbourScope, PacketView, Question, Reply, Service, Verdict, VifId,
    VifKind, Vrf,
};
use packet::Headers;
use tables::Waiting;

/// A packet in our own buffer, to be sent to one or more ports.
struct Whole<'a> {
    bytes: &'a [u8],
    /// Headers of the packet that is forwarded, and where it ends.
    headers: Headers,
    end: usize,
    layout: Layout,
    unfinished: Unfinished,
}

impl Core {
    /// Executes the decision about a packet in `original`.
    pub(super) fn conclude(&mut self, tables: Tables<'_>, original: &[u8], case: &Case) {
        if let Err(reason) = self.conclude_or_drop(tables, original, case) {
            self.drop_whole(original, case.ingress, reason);
        }
    }

    fn conclude_or_drop(
        &mut self,
        tables: Tables<'_>,
        original: &[u8],
        case: &Case,
    ) -> Result<(), DropReason> {
        let decision = &case.decision;
        for forward in decision.verdict.deliveries() {
            Whole::new(case, original, forward)?;
        }
        if let Some(first) = decision.verdict.outputs().first() {
            Whole::stripped(case, original, first.strip, false)?;
        }
        self.effects(tables, case, original.len())?;
        for &mirror in &decision.effects.mirror_in {
            self.send_copy(tables, case, original, mirror, &Forward::unchanged(mirror));
        }
        if let Some((scope, addr)) = decision.effects.solicit {
            // Mirrored packets ask again and again for a neighbour that does not answer. The resolver has a lock, so
            // this worker uses it once a second.
            let asked = Some((scope, addr, case.ingress, self.now.seconds));
            if self.asked != asked
                && tables.shared.wait_for(scope, addr, case.ingress, self.now.seconds) == Waiting::Solicit
            {
                self.solicit(tables, &Question { scope, addr, at: None }, Some(case.ingress));
            }
            self.asked = asked;
        }
        match &decision.verdict {
            Verdict::Forward(forward) => {
                self.send(case, original, forward);
                self.send_mirrored(tables, case, original, forward);
            }
            Verdict::Flood(flood) => return self.flood(tables, case, original, flood),
            Verdict::Outputs(_) => self.send_outputs(case, original),
            Verdict::Reply(reply) => self.reply(tables, original, reply, case),
            Verdict::Hold { scope, addr } => return self.hold_back(tables, original, case, (*scope, *addr)),
            Verdict::Reassemble => self.reassemble(tables, original, case),
            Verdict::Serve { service, guest } => {
                let complete = |frame: &mut [u8]| complete(frame, &case.offload);
                let now = self.now.seconds;
                return match service {
                    Service::Bfd => self.bfd.put(*guest, &case.headers, original, complete, now),
                    _ => self.questions.put(*guest, (*guest, *service), original, complete, now),
                };
            }
            Verdict::Consumed => {}
            Verdict::Drop(reason) => return Err(*reason),
        }
        Ok(())
    }

    /// Delivers to all destinations, until the turn's budget is used up. For a member that is not connected,
    /// no drop is counted; if none is connected, the flood has no member.
    fn flood(
        &mut self,
        tables: Tables<'_>,
        case: &Case,
        original: &[u8],
        Flood { vrf, to }: &Flood,
    ) -> Result<(), DropReason> {
        self.storms.add(flooder(tables, case.ingress, *vrf), to.len(), self.now.seconds);
        self.absent = Some(0);
        let sent = to.iter().all(|forward| {
            let may = self.turn.take(1, original.len());
            if may {
                self.send(case, original, forward);
            }
            may
        });
        let absent = self.absent.take();
        if !sent {
            return Err(DropReason::TurnBudget);
        }
        if absent == Some(to.len()) {
            return Err(DropReason::NoMember);
        }
        if let Some(first) = to.first() {
            self.send_mirrored(tables, case, original, first);
        }
        Ok(())
    }

    /// Sends a packet to the outputs of a flow of Open vSwitch. All copies but the first count against the
    /// turn's budget.
    fn send_outputs(&mut self, case: &Case, original: &[u8]) {
        for (number, output) in case.decision.verdict.outputs().iter().enumerate() {
            let whole = match number == 0 || self.turn.take(1, original.len()) {
                true => Whole::stripped(case, original, output.strip, false),
                false => Err(DropReason::TurnBudget),
            };
            match whole {
                Ok(whole) => {
                    self.send_whole(&whole, Rewrite::of_output(output, &Template::of_output(output)))
                }
                Err(reason) => self.lost(output.port, reason, original.len(), original),
            }
        }
    }

    /// Sends mirrors a copy of what the receiver of `forward` gets, before encapsulation.
    fn send_mirrored(&mut self, tables: Tables<'_>, case: &Case, original: &[u8], forward: &Forward) {
        for &mirror in &case.decision.effects.mirror_out {
            self.send_copy(tables, case, original, mirror, forward);
        }
    }

    /// Sends a copy to a mirror, if the mirror can be reached and the turn's budget allows it.
    fn send_copy(&mut self, tables: Tables<'_>, case: &Case, original: &[u8], mirror: VifId, base: &Forward) {
        let view = tables.view(self.now.seconds);
        let Some(forward) = model::copy_to(&view, &case.headers, mirror, base) else { return };
        if self.turn.take(1, original.len()) {
            self.send(case, original, &forward);
        } else {
            self.lost(forward.port, DropReason::TurnBudget, original.len(), original);
        }
    }

    fn send(&mut self, case: &Case, original: &[u8], forward: &Forward) {
        match Whole::new(case, original, forward) {
            Ok(whole) => self.send_whole(&whole, Rewrite::of(forward, &Template::new(forward))),
            Err(reason) => self.lost(forward.port, reason, original.len(), original),
        }
    }

    fn send_whole(&mut self, whole: &Whole<'_>, rewrite: Rewrite<'_>) {
        let in_head = whole.end.min(MAX_HEAD);
        let mut head = std::mem::take(&mut self.linear.head);
        head.resize(HEADROOM + in_head, 0);
        head[HEADROOM..].copy_from_slice(&whole.bytes[..in_head]);
        self.send_from(whole, rewrite, &mut head);
        self.linear.head = head;
    }

    fn send_from(&mut self, whole: &Whole<'_>, rewrite: Rewrite<'_>, head: &mut [u8]) {
        let Rewrite { template, entropy, cut, .. } = rewrite;
        let partial = whole.unfinished.partial;
        let edited = edit_any(&mut head[HEADROOM..], &whole.headers, whole.end, &rewrite, partial).ok();
        let start = edited
            .and_then(|()| whole.end.checked_sub(usize::from(template.strip)))
            .and_then(|len| reframe(head, len, template, entropy));
        let Some(start) = start else {
            return self.lost(template.port, DropReason::HeaderTooLong, whole.bytes.len(), whole.bytes);
        };
        let rest_at = head.len() - HEADROOM;
        let mut unfinished = whole.unfinished;
        let cut = cut.and_then(|cut| Cut::new(cut, template.prefix().len(), &mut unfinished, &whole.layout));
        let mut frame = Frame {
            head: &mut head[start..],
            rest: Rest::Bytes(whole.bytes),
            rest_at,
            rest_len: whole.end - rest_at,
            unfinished,
            at: whole.layout.shifted(HEADROOM as isize - start as isize),
            tunnel: template.tunnel,
            cut,
        };
        self.deliver_one(template.port, &mut frame);
    }

    fn send_own(&mut self, frame: &[u8], forward: &Forward) {
        let (headers, layout, unfinished) = Default::default();
        let whole = Whole { bytes: frame, headers, end: frame.len(), layout, unfinished };
        self.send_whole(&whole, Rewrite::of(forward, &Template::new(forward)));
    }

    /// Delivers a single frame at once.
    fn deliver_one(&mut self, port: VifId, frame: &mut Frame<'_>) {
        if !self.taps.is_empty() {
            let bytes = self.linear.gather(frame, shown_len(&self.taps));
            show(&self.taps, self.now, port, true, None, frame.len(), bytes);
        }
        self.lanes.number = self.lanes.number.wrapping_add(frame.number(self.lanes.number));
        let (chunk, turn) = (&mut self.chunk, &mut self.turn);
        let delivery = self.ports.deliver(port, &[0], self.now.ns, &mut |_, room, accepts| {
            frame.write(room, accepts, chunk, turn)
        });
        self.cells.sent.add(delivery.sent.packets, delivery.sent.bytes);
        if let Some(cells) = self.cells.vif(port) {
            cells.sent.add(delivery.sent.packets, delivery.sent.bytes);
        }
        if let Some((_, reason)) = delivery.drops.first() {
            match &mut self.absent {
                Some(absent) if *reason == DropReason::TxDown => *absent += 1,
                _ => self.lost(port, *reason, frame.len(), frame.head),
            }
        }
    }

    /// Counts a packet that was sent, as it seemed, and then lost on its way into the port.
    #[cold]
    pub fn lost_again(&mut self, port: VifId, reason: DropReason, len: usize, bytes: &[u8]) {
        if let Some(cells) = self.cells.vif(port) {
            cells.sent.add(1_u64.wrapping_neg(), (len as u64).wrapping_neg());
        }
        self.lost(port, reason, len, bytes);
    }

    /// Counts a packet that a port did not accept.
    fn lost(&mut self, port: VifId, reason: DropReason, len: usize, bytes: &[u8]) {
        if let Some(cells) = self.cells.vif(port) {
            cells.send_drops.add(1);
        }
        let dropped = Dropped { vif: port, outbound: true, reason, len, bytes };
        note(&self.cells, &self.log, &mut self.log_budget, &self.taps, self.now, dropped);
    }

    /// Answers a packet, unless its sender gets too many answers.
    fn reply(&mut self, tables: Tables<'_>, original: &[u8], reply: &Reply, case: &Case) {
        let sender = match reply.asker {
            Some(asker) => flooder(tables, case.ingress, asker.vrf),
            None => Flooder::Guest(case.ingress),
        };
        let allowed = self.replies.allow(sender, reply.asker, &reply.kind, self.now.seconds);
        match (reply.dropped, allowed) {
            (Some(reason), _) => self.drop_whole(original, case.ingress, reason),
            (None, false) => self.drop_whole(original, case.ingress, DropReason::ReplyLimited),
            (None, true) => {}
        }
        if !allowed {
            return;
        }
        let packet = PacketView {
            bytes: original,
            len: original.len() as u32,
            gso_size: None,
            headers: case.headers.clone(),
            checked: true,
        };
        let mut answer = std::mem::take(&mut self.linear.reply);
        answer.resize(MAX_FRAME, 0);
        if let Ok(len) = model::rewrite::build_reply(reply, &packet, &mut answer) {
            self.cells.replies.add(1);
            self.send_own(&answer[..len], &Forward::unchanged(reply.forward.port));
        }
        let mirrors = &case.decision.effects.mirror_out;
        if !mirrors.is_empty()
            && let Ok(len) = model::rewrite::build_reply(&reply.bare(), &packet, &mut answer)
        {
            let view = tables.view(self.now.seconds);
            let copy = |id: &VifId| model::copy_to(&view, &case.headers, *id, &Forward::unchanged(*id));
            for forward in mirrors.iter().filter_map(copy) {
                if self.turn.take(1, len) {
                    self.send_own(&answer[..len], &forward);
                } else {
                    self.lost(forward.port, DropReason::TurnBudget, len, &answer[..len]);
                }
            }
        }
        self.linear.reply = answer;
    }

    /// Holds a packet until its neighbour is known. The solicitation is sent even if there is no room for the packet.
    fn hold_back(
        &mut self,
        tables: Tables<'_>,
        original: &[u8],
        case: &Case,
        neighbour: Neighbour,
    ) -> Result<(), DropReason> {
        if !self.ask(tables, case.ingress, neighbour)? {
            return self.give_up(tables, original, case.ingress, case.offload, neighbour);
        }
        self.keep(tables, original, case, neighbour)
    }

    fn keep(
        &mut self,
        tables: Tables<'_>,
        original: &[u8],
        case: &Case,
        neighbour: Neighbour,
    ) -> Result<(), DropReason> {
        let is_wire = tables.snapshot.vif(case.ingress).is_some_and(|vif| vif.kind == VifKind::Wire);
        let holder = Holder { ingress: case.ingress, scope: is_wire.then_some(neighbour.0) };
        let pushed = self.hold.push(neighbour, holder, case.offload, self.now.ns, original);
        match pushed.map_err(|NoRoom| DropReason::HoldFull)? {
            None => self.cells.hold(neighbour),
            Some(oldest) => {
                self.drop_whole(&oldest.frame, case.ingress, DropReason::HoldFull);
                self.hold.recycle(oldest);
            }
        }
        Ok(())
    }

    /// Asks for a neighbour, unless it is already being asked. False if it was asked and does not answer.
    fn ask(
        &mut self,
        tables: Tables<'_>,
        asker: VifId,
        (scope, addr): Neighbour,
    ) -> Result<bool, DropReason> {
        // A guest that may not flood can't have the network asked either. Without a question there is nothing to wait
        // for.
        if let NeighbourScope::Network(vrf) = scope {
            self.may_flood(tables, asker, vrf)?;
        }
        match tables.shared.wait_for(scope, addr, asker, self.now.seconds) {
            Waiting::Hold => Ok(true),
            Waiting::Failed => Ok(false),
            Waiting::Full => Err(DropReason::NoNeighbour),
            Waiting::Solicit => {
                self.solicit(tables, &Question { scope, addr, at: None }, Some(asker));
                Ok(true)
            }
        }
    }

    /// Decides a packet for a neighbour that does not answer. The sender is informed if a router would do so.
    fn give_up(
        &mut self,
        tables: Tables<'_>,
        original: &[u8],
        ingress: VifId,
        offload: Offload,
        neighbour: Neighbour,
    ) -> Result<(), DropReason> {
        let floods = |vrf| self.may_flood(tables, ingress, vrf);
        let unreachable = |scope, addr| (scope, addr) == neighbour;
        let view = tables.view(self.now.seconds).flooding(&floods).without(&unreachable);
        let case = decide(&view, original, original.len(), ingress, offload, false)?;
        match case.decision.verdict {
            // If a packet is flooded to several tunnels, this may be the neighbour of a different one.
            Verdict::Hold { scope, addr } if self.ask(tables, ingress, (scope, addr))? => {
                self.keep(tables, original, &case, (scope, addr))
            }
            Verdict::Hold { .. } => Err(DropReason::NoNeighbour),
            _ => self.conclude_or_drop(tables, original, &case),
        }
    }

    /// Checks whether a packet of this interface may be flooded in a network; the error is the drop reason.
    pub(super) fn may_flood(&self, tables: Tables<'_>, ingress: VifId, vrf: Vrf) -> Result<(), DropReason> {
        if self.turn.is_done() {
            return Err(DropReason::TurnBudget);
        }
        let may = self.storms.may_flood(flooder(tables, ingress, vrf), self.now.seconds);
        may.then_some(()).ok_or(DropReason::FloodLimited)
    }

    /// Decides the oldest held packets again, at most `most` and as far as the turn's budget allows. Those whose
    /// neighbour is known now are forwarded; those that waited long enough are given up. Returns how many it looked
    /// at.
    pub fn retry_held(&mut self, tables: Tables<'_>, most: usize) -> usize {
        self.turn = Turn::NEW;
        for looked_at in 0..most {
            if self.turn.is_done() {
                return looked_at;
            }
            let Some(held) = self.hold.pop() else { break };
            self.retry(tables, held);
        }
        most
    }

    fn retry(&mut self, tables: Tables<'_>, mut held: Held) {
        let (scope, addr) = held.neighbour;
        if tables.view(self.now.seconds).neighbour(scope, addr).is_some() {
            self.cells.release(held.neighbour);
            // A packet that waits for a neighbour did not come from an OVS side, so no port is needed that it
            // leaves by.
            let from = Ingress::new(held.holder.ingress);
            self.whole(tables, &mut held.frame, from, held.offload);
            self.hold.recycle(held);
        } else if self.now.ns.saturating_sub(held.since_ns) > PATIENCE_NS {
            self.cells.release(held.neighbour);
            let done = self.give_up(tables, &held.frame, held.holder.ingress, held.offload, held.neighbour);
            if let Err(reason) = done {
                self.drop_whole(&held.frame, held.holder.ingress, reason);
            }
            self.hold.recycle(held);
        } else {
            self.hold.put_back(held);
        }
    }

    /// Asks for a neighbour's MAC, because of a packet from `asker`, as far as the turn's budget allows.
    pub fn solicit(&mut self, tables: Tables<'_>, question: &Question, asker: Option<VifId>) {
        for asked in model::solicit(&tables.view(self.now.seconds), question) {
            if let (Some(asker), NeighbourScope::Network(vrf)) = (asker, question.scope) {
                self.storms.add(flooder(tables, asker, vrf), asked.to.len(), self.now.seconds);
            }
            self.send_all(&asked.frame, &asked.to);
        }
    }

    /// Sends one of our own frames to each of these, as far as the turn's budget allows. No drop is counted
    /// for interfaces that are not connected.
    pub fn send_all(&mut self, frame: &[u8], to: &[Forward]) {
        self.absent = Some(0);
        for forward in to {
            if !self.turn.take(1, frame.len()) {
                break;
            }
            self.send_own(frame, forward);
        }
        self.absent = None;
    }
}

/// Returns the party that is charged for copies of a packet from this interface in a network.
fn flooder(tables: Tables<'_>, ingress: VifId, vrf: Vrf) -> Flooder {
    let is_wire = tables.snapshot.vif(ingress).is_some_and(|vif| vif.kind == VifKind::Wire);
    if is_wire { Flooder::Wires(vrf) } else { Flooder::Guest(ingress) }
}

impl<'a> Whole<'a> {
    fn new(case: &Case, bytes: &'a [u8], forward: &Forward) -> Result<Self, DropReason> {
        Self::stripped(case, bytes, forward.strip, Template::new(forward).keeps_ip)
    }

    fn stripped(case: &Case, bytes: &'a [u8], strip: u16, keeps_ip: bool) -> Result<Self, DropReason> {
        let (headers, end) =
            kept(bytes, &case.headers, bytes.len(), strip, keeps_ip).ok_or(DropReason::TunnelMalformed)?;
        let layout = Layout::of(&headers, strip > case.headers.l3_at);
        let unfinished = check_offload(&case.offload, layout.as_ref())?;
        Ok(Self { bytes, headers, end, layout: layout.unwrap_or_default(), unfinished })
    }
}
