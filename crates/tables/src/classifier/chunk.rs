//! A run of rules with neighbouring priorities.

use super::lines::{CHUNK, Line};
use model::{Action, Modifier, Rule, RuleAction, RuleId};
use std::sync::Arc;

/// Up to [`CHUNK`] rules, in slots without an order.
#[derive(Clone)]
pub(super) struct Chunk {
    used: Line,
    /// Slots whose rule ends the walk.
    terminal: Line,
    /// Each slot's key: priority, then id.
    keys: [u64; CHUNK],
    rules: Vec<Option<Arc<Rule>>>,
}

impl Default for Chunk {
    fn default() -> Self {
        Self { used: [0; _], terminal: [0; _], keys: [0; _], rules: Vec::new() }
    }
}

/// Returns the slots whose bits are set in a line.
fn members(line: &Line) -> impl Iterator<Item = u16> {
    line.iter().zip((0u16..).step_by(64)).flat_map(|(&word, base)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros() as u16;
            (left != 0).then(|| {
                left &= left - 1;
                base + bit
            })
        })
    })
}

impl Chunk {
    pub fn len(&self) -> usize {
        self.used.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub fn rule(&self, bit: u16) -> Option<&Arc<Rule>> {
        self.rules.get(usize::from(bit))?.as_ref()
    }

    /// Returns the rules by ascending key.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.sorted().into_iter().filter_map(|(_, bit)| self.rule(bit))
    }

    /// Returns keys and slots, ascending.
    pub fn sorted(&self) -> Vec<(u64, u16)> {
        let mut out: Vec<_> = members(&self.used).map(|bit| (self.keys[usize::from(bit)], bit)).collect();
        out.sort_unstable();
        out
    }

    /// Puts a rule into a free slot, which must exist, and returns the slot.
    pub fn insert(&mut self, key: u64, rule: &Arc<Rule>) -> u16 {
        let word = self.used.iter().position(|&w| w != u64::MAX).unwrap_or(0);
        let bit = self.used[word].trailing_ones();
        let slot = word * 64 + bit as usize;
        self.used[word] |= 1 << bit;
        if matches!(rule.action, RuleAction::End(_)) {
            self.terminal[word] |= 1 << bit;
        }
        self.keys[slot] = key;
        if self.rules.len() <= slot {
            self.rules.resize(slot + 1, None);
        }
        self.rules[slot] = Some(Arc::clone(rule));
        slot as u16
    }

    pub fn remove(&mut self, slot: u16) -> Option<Arc<Rule>> {
        let (word, bit) = (usize::from(slot / 64), slot % 64);
        self.used[word] &= !(1 << bit);
        self.terminal[word] &= !(1 << bit);
        self.rules.get_mut(usize::from(slot))?.take()
    }

    /// Returns the first terminal rule among `hits`, with its key.
    pub fn first_terminal(&self, hits: &Line) -> Option<(u64, RuleId, Action)> {
        let mut terminal = *hits;
        terminal.iter_mut().zip(&self.terminal).for_each(|(to, from)| *to &= from);
        let (key, slot) = members(&terminal).map(|bit| (self.keys[usize::from(bit)], bit)).min()?;
        let rule = self.rule(slot)?;
        match rule.action {
            RuleAction::End(action) => Some((key, rule.id, action)),
            RuleAction::Modify(_) => None,
        }
    }

    /// Calls `each` for the modifiers among `hits` with keys below `before`, in ascending order, until it returns
    /// false. Returns whether it never did.
    pub fn modifiers(
        &self,
        hits: &Line,
        before: Option<u64>,
        each: &mut impl FnMut(RuleId, Modifier) -> bool,
    ) -> bool {
        let mut going_on = *hits;
        going_on.iter_mut().zip(&self.terminal).for_each(|(to, from)| *to &= !from);
        // Few modifiers apply to one packet, so each one is searched for in turn.
        let mut after = None;
        loop {
            let next = members(&going_on)
                .map(|bit| (self.keys[usize::from(bit)], bit))
                .filter(|&(key, _)| after.is_none_or(|a| key > a) && before.is_none_or(|b| key < b))
                .min();
            let Some((key, slot)) = next else { return true };
            after = Some(key);
            if let Some((id, RuleAction::Modify(modifier))) = self.rule(slot).map(|r| (r.id, r.action))
                && !each(id, modifier)
            {
                return false;
            }
        }
    }
}
