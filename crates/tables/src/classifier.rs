//! The rule classifier: which of up to 32 K prioritised wildcard rules match a packet, without walking them.
//!
//! Aggregated bit vectors (Baboescu, Varghese 2001), made persistent. Rules lie in *chunks* of up to 512 slots. Chunks
//! are ordered by priority; slots within a chunk are not. Each field (source, destination, port, protocol) maps a
//! value to the rules that accept it: a trie maps prefixes to sets of slots, and the rules that accept a value are the
//! union of the sets along its path. A set knows in which chunks it has members. So a look-up first intersects these
//! summaries and then, chunk by chunk in the order of priority, one cache line per set. It ends with the first chunk
//! in which a terminal rule matches.
//!
//! Sets hold only what a rule states, nothing implied, so memory grows with the rules' own prefixes: at most 64 bytes
//! and a share of a trie for each (a range of ports is at most 30 prefixes). A change of a rule touches its chunk and
//! the sets of its own prefixes. A full chunk is split, and neighbouring chunks with few rules are merged, like a
//! B-tree's leaves. Similar rules (say, those of one guest) work best at neighbouring priorities.

mod chunk;
mod field;
mod lines;

use chunk::Chunk;
use field::{Accepting, Fields};
use imbl::OrdMap;
use lines::{CHUNK, CHUNKS, Line, Slot};
use model::{Action, Modifier, Rule, RuleId, RuleQuery};
use std::sync::Arc;

/// Number of rules for which a classifier always has room.
pub(crate) const MAX_RULES: usize = 32 * 1024;

/// Neighbouring chunks with at most this many rules together are merged. Since every two neighbours exceed it,
/// [`MAX_RULES`] rules need at most 171 chunks.
const MERGE: usize = 384;
const _: () = assert!(2 * (MAX_RULES / MERGE + 1) <= CHUNKS);

/// The classifier of one network. A clone is cheap and shares everything that is unchanged.
#[derive(Clone, Default)]
pub(crate) struct Classifier {
    chunks: Arc<Vec<Option<Arc<Chunk>>>>,
    /// The chunks in use by ascending priority: for each, the lowest key of its rules, and its index.
    order: Arc<Vec<(u64, u8)>>,
    places: OrdMap<RuleId, Slot>,
    fields: Fields,
}

/// Returns the position of a rule in the order: by priority, then by id.
fn key(rule: &Rule) -> u64 {
    u64::from(rule.priority) << 32 | u64::from(rule.id.0)
}

impl Classifier {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn get(&self, id: RuleId) -> Option<&Arc<Rule>> {
        let slot = self.places.get(&id)?;
        self.chunk(slot.chunk)?.rule(slot.bit)
    }

    /// Returns all rules in the order of priority.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.order.iter().filter_map(|&(_, chunk)| self.chunk(chunk)).flat_map(|c| c.rules())
    }

    /// Calls `modifier` for the matching rules before the terminal one, by priority, until it returns false. Returns
    /// the terminal action and its rule.
    pub fn classify(
        &self,
        query: &RuleQuery,
        mut modifier: impl FnMut(RuleId, Modifier) -> bool,
    ) -> Option<(RuleId, Action)> {
        // Filled in place, because they are long.
        let mut fields = [Accepting::NONE; 4];
        self.fields.accepting(query, &mut fields);
        let mut present = fields[0].present();
        for field in &fields[1..] {
            present.iter_mut().zip(field.present()).for_each(|(to, from)| *to &= from);
        }
        let mut wants_modifiers = true;
        for &(_, index) in self.order.iter() {
            if present[usize::from(index / 64)] >> (index % 64) & 1 == 0 {
                continue;
            }
            let mut hits = fields[0].line(index);
            for field in &fields[1..] {
                if hits == Line::default() {
                    break;
                }
                hits.iter_mut().zip(field.line(index)).for_each(|(to, from)| *to &= from);
            }
            if hits == Line::default() {
                continue;
            }
            let Some(chunk) = self.chunk(index) else { continue };
            let terminal = chunk.first_terminal(&hits);
            if wants_modifiers {
                wants_modifiers = chunk.modifiers(&hits, terminal.map(|(key, ..)| key), &mut modifier);
            }
            if let Some((_, id, action)) = terminal {
                return Some((id, action));
            }
        }
        None
    }

    /// Adds a rule, or replaces the one with its id.
    pub fn insert(&mut self, rule: Arc<Rule>) {
        self.remove(rule.id);
        let mut at = self.position(key(&rule));
        if self.chunk_at(at).is_some_and(|c| c.len() == CHUNK) {
            self.split(at, key(&rule));
            at = self.position(key(&rule));
        }
        self.place(at, rule);
    }

    pub fn remove(&mut self, id: RuleId) -> Option<Arc<Rule>> {
        let slot = *self.places.get(&id)?;
        let rule = self.displace(slot)?;
        self.merge(slot.chunk);
        Some(rule)
    }

    fn chunk(&self, index: u8) -> Option<&Chunk> {
        self.chunks.get(usize::from(index))?.as_deref()
    }

    fn chunk_at(&self, at: usize) -> Option<&Chunk> {
        self.chunk(self.order.get(at)?.1)
    }

    /// Returns the position in the order of the chunk for `key`.
    fn position(&self, key: u64) -> usize {
        self.order.partition_point(|&(from, _)| from <= key).saturating_sub(1)
    }

    fn place(&mut self, at: usize, rule: Arc<Rule>) {
        if self.order.is_empty() {
            self.open(0, 0);
        }
        let index = self.order[at].1;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(chunks[usize::from(index)].get_or_insert_default());
        let slot = Slot { chunk: index, bit: chunk.insert(key(&rule), &rule) };
        self.fields.add(&rule, slot);
        self.places.insert(rule.id, slot);
    }

    fn displace(&mut self, slot: Slot) -> Option<Arc<Rule>> {
        let chunk = Arc::make_mut(&mut self.chunks)[usize::from(slot.chunk)].as_mut()?;
        let rule = Arc::make_mut(chunk).remove(slot.bit)?;
        self.fields.remove(&rule, slot);
        self.places.remove(&rule.id);
        Some(rule)
    }

    /// Opens a new chunk for keys from `from` on, at this position of the order.
    fn open(&mut self, at: usize, from: u64) {
        let chunks = Arc::make_mut(&mut self.chunks);
        let free = chunks.iter().position(Option::is_none).unwrap_or_else(|| {
            chunks.push(None);
            chunks.len() - 1
        });
        chunks[free] = Some(Arc::default());
        debug_assert!(free < CHUNKS);
        Arc::make_mut(&mut self.order).insert(at, (from, free as u8));
    }

    /// Makes room for `key` in a full chunk: half of the chunk's rules go to a new one after it. So rules
    /// that are added in their order fill chunks instead of leaving them half empty.
    fn split(&mut self, at: usize, key: u64) {
        let keys = self.chunk_at(at).map(Chunk::sorted).unwrap_or_default();
        let in_order = at + 1 == self.order.len() && keys.last().is_some_and(|&(last, _)| last < key);
        let keep = if in_order { keys.len() } else { keys.len() / 2 };
        let (from, index) = (keys.get(keep).map_or(key, |&(from, _)| from), self.order[at].1);
        self.open(at + 1, from);
        for &(_, bit) in &keys[keep..] {
            if let Some(rule) = self.displace(Slot { chunk: index, bit }) {
                self.place(at + 1, rule);
            }
        }
        if !in_order {
            let upper = self.order[at + 1].1;
            self.merge(upper);
            self.merge(index);
        }
    }

    /// Merges a chunk that has become small with a neighbour, if both fit into one.
    fn merge(&mut self, index: u8) {
        let len = |this: &Self, at: usize| this.chunk_at(at).map(Chunk::len);
        let Some(at) = self.order.iter().position(|&(_, i)| i == index) else { return };
        let mine = len(self, at).unwrap_or(0);
        let fits = |other: Option<usize>| other.is_some_and(|n| n + mine <= MERGE);
        // `into` keeps the lower bound, so it is always the earlier one.
        let (into, out) = if at > 0 && fits(len(self, at - 1)) {
            (at - 1, at)
        } else if fits(len(self, at + 1)) {
            (at, at + 1)
        } else {
            return;
        };
        let gone = self.order[out].1;
        for (_, bit) in self.chunk(gone).map(Chunk::sorted).unwrap_or_default() {
            if let Some(rule) = self.displace(Slot { chunk: gone, bit }) {
                self.place(into, rule);
            }
        }
        Arc::make_mut(&mut self.order).remove(out);
        Arc::make_mut(&mut self.chunks)[usize::from(gone)] = None;
    }
}

#[cfg(test)]
mod tests;
