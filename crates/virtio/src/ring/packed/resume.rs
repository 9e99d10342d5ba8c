//! Finds the place at which a packed ring goes on.
//!
//! The journal tells it for a ring that ran in a process that died. Two others may have written into the ring
//! meanwhile:
//!
//! - The guest may have reset the device and filled the ring anew.
//! - The VMM may have returned a chain. QEMU does so while there is no device: it drops what the guest sends
//!   (`virtqueue_packed_drop_all`), at the only position that it knows, which is the one at which it last
//!   started the ring. If the driver has made a chain available there, QEMU marks it used and moves its
//!   position behind it. (It takes one chain until the next reset, as it loses count of those in use.) The
//!   descriptor that QEMU overwrote does not say any more how many slots the chain has, but the position that
//!   QEMU names to the next process does.
//!
//! A driver looks at used descriptors in the order of the ring. It comes to the one that the VMM wrote only
//! when all chains before it are used. So these are returned as well, and dropped like the VMM's, in one
//! batch that ends where the VMM is.

use super::super::journal::{Batch, Identity, Place};
use super::*;

impl Position {
    /// Returns how many slots a VMM passed if it went from here to `later`; `None` if it can't have done so.
    fn passed(self, later: Self, size: u16) -> Option<u16> {
        self.until(later, size).filter(|slots| *slots <= size)
    }

    /// Returns whether a VMM that went from here to `later` was at `at` before it came to `later`.
    fn leads_over(self, at: Self, later: Self, size: u16) -> bool {
        self.passed(at, size).is_some_and(|slots| Some(slots) < self.passed(later, size))
    }
}

impl Packed {
    /// Notes in the journal that this ring runs. If a VMM describes the ring to this process for the `first`
    /// time, and a device died with the ring, the ring goes on where that device was, because the VMM did not
    /// learn of its position. If the journal knows nothing of the ring, the VMM's position is right, but a
    /// different device may have left chains behind ([`Packed::return_passed`]). Returns whether used
    /// descriptors were written.
    pub(crate) fn begin(&mut self, ring: &Identity, first: bool) -> bool {
        if first {
            self.journal.learn(ring);
        }
        let told = self.next;
        let known = if first { self.journal.last(ring) } else { None };
        let is_new = first && known.is_none();
        let known = known.filter(|(batch, was)| self.goes_on(told, *was, batch));
        let Some((batch, was)) = known else {
            let behind = if first { 0 } else { self.journal.behind() };
            let returned = is_new && self.return_passed();
            self.begin_at(ring, Place { position: told, behind });
            return returned;
        };
        let (place, published) = self.finish(batch, was, told);
        // The journal keeps the former position of the VMM until all of this is done: if this process dies
        // meanwhile, it is done again.
        let before = Identity { base: was.encoded(), ..*ring };
        self.begin_at(&before, place);
        let returned = was != told && self.catch_up(&before, told);
        self.begin_at(ring, Place { position: self.used, behind: self.journal.behind() });
        published || returned
    }

    fn begin_at(&mut self, ring: &Identity, place: Place) {
        (self.next, self.used) = (place.position, place.position);
        self.journal.begin(ring, place);
    }

    /// Returns whether the journal belongs to the ring as it is now: a ring that the VMM started at `was`,
    /// and that is now at `told`, as the VMM says.
    fn goes_on(&self, told: Position, was: Position, batch: &Batch) -> bool {
        let at = if self.is_unfinished(batch, was, told) { batch.from } else { batch.to };
        was.passed(told, self.at.size).is_some() && !self.looks_reset(told, was, at)
    }

    /// Returns whether the last batch was announced and not shown.
    fn is_unfinished(&self, batch: &Batch, was: Position, told: Position) -> bool {
        let (from, to, size) = (batch.from.position, batch.to.position, self.at.size);
        // If the VMM returned a chain behind the batch, and that chain ends beyond the batch's beginning, a
        // lap later, then the batch was shown before; the driver may have filled that slot twice since.
        let slots = from
            .until(to, size)
            .zip(to.passed(told, size))
            .map_or(0, |(batch, chain)| u32::from(batch) + u32::from(chain));
        let is_older = slots > u32::from(size) && was.leads_over(to, told, size);
        from != to && !is_older && self.available_at(from)
    }

    /// Returns whether the driver may have reset the device since the journal was written: all descriptors
    /// are as a driver leaves them that cleared a ring and fills it, except that the VMM returned the chain
    /// before `told`, if there is one. Nobody else has used a descriptor then.
    ///
    /// A ring in use may look like that, too, if the driver has filled all slots anew except those of one
    /// chain (or of one batch, IN_ORDER), of which only the first slot was written: the others still look
    /// available. The journal says where the last such chain is ([`Packed::is_behind`]). If a ring that was
    /// reset also has such a chain in that place, the guest is taken for one that did not boot meanwhile.
    /// Linux has no such chains: it puts chains of several descriptors into tables.
    fn looks_reset(&self, told: Position, was: Position, at: Place) -> bool {
        let size = self.at.size;
        let Some(returned) = Position::FIRST.passed(told, size) else { return false };
        let is_filled = |slots: &u16| self.available_at(told.advance(*slots, size));
        let filled = (0..size).take_while(is_filled).count() as u16;
        // In its second lap, the driver fills the slots of the returned chain again.
        let (end, again) =
            (size.min(returned.saturating_add(filled)), filled.saturating_sub(size - returned));
        let is_new = (end..size).all(|index| self.flags_of(index) & (DESC_AVAIL | DESC_USED) == 0);
        let is_chain = (again..returned).all(|index| self.is_of_returned(index, returned));
        is_new && is_chain && !(was == told && self.is_behind(at, end))
    }

    /// Returns whether a slot of a ring's first lap looks as it does once a VMM has returned the chain before
    /// slot `end`: the first slot is used, and the others are as the driver filled them.
    fn is_of_returned(&self, index: u16, end: u16) -> bool {
        let position = Position { index, ..Position::FIRST };
        if position == Position::FIRST {
            return self.used_at(position);
        }
        self.available_at(position) && self.ends_chain(index) == (index + 1 == end)
    }

    /// Returns whether the descriptor in this slot is the last one of its chain.
    fn ends_chain(&self, index: u16) -> bool {
        self.flags_of(index) & DESC_NEXT == 0
    }

    /// Returns whether the last used chain may lie just before this place, in a ring that looks reset and
    /// whose slots before `end` are filled.
    fn is_behind(&self, at: Place, end: u16) -> bool {
        let Position { index, wrap } = at.position;
        if !(1..=self.at.size).contains(&at.behind) {
            return false;
        }
        let head = at.position.back(at.behind, self.at.size);
        if head.wrap == Position::FIRST.wrap {
            // The driver may have filled the slot again.
            return self.used_at(head) || self.available_at(Position { wrap: !head.wrap, ..head });
        }
        // The chain began in the lap before. Nobody has used the first slot in this one.
        let crosses = wrap == Position::FIRST.wrap && (1..=end).contains(&index);
        crosses && !self.used_at(Position::FIRST) && self.ends_chain(index - 1)
    }

    /// Makes sure that the last batch is in the ring. Returns where the batch ends, and whether used
    /// descriptors were missing.
    fn finish(&mut self, batch: Batch, was: Position, told: Position) -> (Place, bool) {
        let from = batch.from.position;
        if self.is_unfinished(&batch, was, told) {
            self.journal.recall(batch, self.at.size);
            self.write(from);
            return (batch.to, true);
        }
        // The VMM can only have returned the first chain of the batch if the batch was not shown.
        if from == batch.to.position || !was.leads_over(from, told, self.at.size) {
            return (batch.to, false);
        }
        self.journal.recall(batch, self.at.size);
        (batch.to, self.write_behind(from, told))
    }

    /// Writes the missing used descriptors of the batch from `from` on. The driver sees everything before
    /// `told` already. Returns whether any were missing.
    fn write_behind(&self, from: Position, told: Position) -> bool {
        let size = self.at.size;
        let Some(mut seen) = from.passed(told, size) else { return false };
        let (mut place, mut first) = (from, None);
        for done in self.journal.entries() {
            let end = place.advance(done.slots(), size);
            // An entry may stand for chains of which the VMM returned the first.
            let skipped = seen.min(done.slots());
            let missing = place.advance(skipped, size);
            if skipped < done.slots() && self.available_at(missing) {
                match first {
                    None => first = Some((missing, done)),
                    // The driver does not look here before the first one has changed.
                    Some(_) => self.write_used(missing, done),
                }
            }
            seen -= skipped;
            place = end;
        }
        first.into_iter().for_each(|(place, done)| self.write_used(place, done));
        first.is_some()
    }

    /// Goes to the VMM's position if the VMM returned a chain at this position or behind it. `before` is the
    /// ring as it was known before. Returns whether used descriptors were written for that.
    fn catch_up(&mut self, before: &Identity, told: Position) -> bool {
        let (size, was) = (self.at.size, Position::decoded(before.base));
        let Some(ahead) = self.used.passed(told, size).filter(|slots| *slots > 0) else { return false };
        // If the VMM was here, the driver may have filled the slot again.
        let was_here = was.leads_over(self.used, told, size) && !self.available_at(self.used);
        if was_here || self.used_at(self.used) {
            self.begin_at(before, Place { position: told, behind: 0 });
            return false;
        }
        let Some(chains) = self.complete_before_used(ahead) else {
            self.journal.clear();
            return false;
        };
        self.journal.widen_newest(ahead - chains);
        (self.next, self.in_flight) = (told, ahead);
        self.publish();
        true
    }

    /// Completes, as dropped, the chains before a used descriptor that is less than `ahead` slots away.
    /// Returns the number of their slots, or `None` if there is no such descriptor.
    fn complete_before_used(&mut self, ahead: u16) -> Option<u16> {
        let (mut place, mut slots) = (self.used, 0);
        while !self.used_at(place) {
            if !self.available_at(place) {
                return None;
            }
            let before = slots;
            // A chain may also be used from its middle on, if it began in a lap other than the VMM's.
            let last = loop {
                let desc = self.desc(place.index);
                (place, slots) = (place.advance(1, self.at.size), slots + 1);
                if slots == ahead {
                    return None;
                }
                if !desc.has_next() || self.used_at(place) {
                    break desc;
                }
            };
            self.complete(Chain { id: last.next, slots: slots - before, ok: false }, 0);
        }
        Some(slots)
    }

    fn used_at(&self, Position { index, wrap }: Position) -> bool {
        let lap = if wrap { DESC_AVAIL | DESC_USED } else { 0 };
        self.flags_of(index) & (DESC_AVAIL | DESC_USED) == lap
    }

    fn flags_of(&self, index: u16) -> u16 {
        self.flags(index).load(Ordering::Relaxed)
    }
}
