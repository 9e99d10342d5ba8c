//! Shadow of a table with two choices (cuckoo hashing), and the writes that change the card's.
//!
//! An entry is in one of two buckets, one in each way; the card reads both at once. If both are full, others are moved
//! to their other bucket, by the few writes that a breadth-first search finds. A move writes the new place, waits for
//! the look-ups under way, and only then clears the old place, so that each entry is found at every moment. An entry
//! that finds no place goes to the stash, if the table has one, until there is a place; leaving the stash is a move,
//! too.
use crate::hash::{Words, choices};
use crate::registers::Table;
use crate::step::{Line, Step, together};
use std::collections::HashSet;
use thiserror::Error;

/// Most buckets that a search for room examines.
const SEARCH: usize = 1024;

/// An entry of a table with two choices.
pub trait Entry: Copy + PartialEq {
    /// The table of the card that holds such entries.
    const TABLE: Table;
    /// Entries per bucket: 1 or 2.
    const SLOTS: usize;
    /// Lines per bucket: 1 or 2.
    const LINES: usize;

    /// Returns the addresses of the first lines of both ways, in a table of 2^`bits` buckets per way.
    fn ways(bits: u32) -> [u32; 2];

    /// Returns the key, which is hashed, and identifies the entry.
    fn key(&self) -> Words;

    /// Returns whether the entry fills all slots of a bucket.
    fn whole(&self) -> bool {
        Self::SLOTS == 1
    }

    /// Encodes the lines of a bucket. An entry that fills the bucket is in slot 0. If both lines of such an entry are
    /// written, `version` must differ from that of the bucket's former content.
    fn encode(bucket: [Option<&Self>; 2], version: u8) -> [Line; 2];
}

/// A search found no room, and the stash has none. Nothing was changed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the card's {} table has no room for this entry: leave it to the host, or make the table larger", table.name())]
pub struct Full {
    pub table: Table,
}

/// A bucket: way and number.
type Place = (usize, u32);
/// Number of an entry, plus 1; 0 stands for none, so that an empty table consists of zeros and takes no memory.
type Id = u32;
type Slots = [Id; 2];

/// The shadow of a table.
pub struct Cuckoo<E> {
    bits: u32,
    ways: [u32; 2],
    secret: Words,
    slots: [Vec<Slots>; 2],
    versions: [Vec<u8>; 2],
    entries: Vec<Option<E>>,
    free: Vec<Id>,
    /// Entries that found no place in a bucket, by their position in the stash.
    stash: Vec<Option<E>>,
}

/// A bucket that a search has reached.
struct Reached {
    place: Place,
    /// Whether the entry that would be put there fills it.
    whole: bool,
    /// The entry that would be put there, and the number of the earlier reached bucket that it is in; `None` stands for
    /// the new entry.
    from: Option<(usize, Id)>,
}

/// Moves of entries which make room in the bucket `room`, in this order.
struct Displacement {
    room: Place,
    moves: Vec<(Id, Place, Place)>,
}

impl<E: Entry> Cuckoo<E> {
    /// Makes an empty table of 2^`bits` buckets in each way.
    #[must_use]
    pub fn new(bits: u32, secret: Words) -> Self {
        let buckets = 1 << bits;
        Self {
            bits,
            ways: E::ways(bits),
            secret,
            slots: [vec![[0; 2]; buckets], vec![[0; 2]; buckets]],
            versions: [vec![0; buckets], vec![0; buckets]],
            entries: Vec::new(),
            free: Vec::new(),
            stash: Vec::new(),
        }
    }

    /// Adds a stash for `count` entries.
    #[must_use]
    pub fn with_stash(self, count: u32) -> Self {
        Self { stash: vec![None; count as usize], ..self }
    }

    /// Returns the number of entries, including those in the stash.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len() + self.stashed()
    }

    /// Returns the number of entries in the stash.
    #[must_use]
    pub fn stashed(&self) -> usize {
        self.stash.iter().flatten().count()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over all entries, including those in the stash.
    pub fn iter(&self) -> impl Iterator<Item = &E> {
        self.entries.iter().chain(&self.stash).flatten()
    }

    #[must_use]
    pub fn find(&self, key: &Words) -> Option<&E> {
        let stashed = || self.stash.get(self.number(key)?)?.as_ref();
        self.locate(key).and_then(|(_, id)| self.entry(id)).or_else(stashed)
    }

    /// Adds an entry, or replaces the one with the same key.
    ///
    /// # Errors
    /// If there is no room.
    pub fn insert(&mut self, entry: E) -> Result<Vec<Step>, Full> {
        if let Some(number) = self.number(&entry.key()) {
            return Ok(self.stash(number, Some(entry)));
        }
        self.settle(entry).or_else(|full| {
            let number = self.stash.iter().position(Option::is_none).ok_or(full)?;
            Ok(self.stash(number, Some(entry)))
        })
    }

    /// Removes the entry with this key, if there is one. Entries may then move from the stash to a bucket.
    pub fn remove(&mut self, key: &Words) -> Vec<Step> {
        if let Some(number) = self.number(key) {
            return self.stash(number, None);
        }
        let Some((place, id)) = self.locate(key) else { return Vec::new() };
        let (before, mut steps) = (self.lines(place), Vec::new());
        self.take(id, place);
        self.write(place, before, &mut steps);
        self.entries[id as usize - 1] = None;
        self.free.push(id);
        let homes: Vec<_> = (0..self.stash.len()).filter_map(|number| self.come_home(number)).collect();
        if homes.is_empty() { steps } else { together(std::iter::once(steps).chain(homes)) }
    }

    // ---- Looking

    /// Returns the position in the stash of the entry with this key.
    fn number(&self, key: &Words) -> Option<usize> {
        self.stash.iter().position(|entry| entry.is_some_and(|entry| entry.key() == *key))
    }

    fn entry(&self, id: Id) -> Option<&E> {
        self.entries.get((id as usize).checked_sub(1)?)?.as_ref()
    }

    fn slots(&self, (way, bucket): Place) -> Slots {
        self.slots[way][bucket as usize]
    }

    fn occupants(&self, place: Place) -> impl Iterator<Item = Id> {
        self.slots(place).into_iter().filter(|&id| id != 0)
    }

    fn places(&self, key: &Words) -> [Place; 2] {
        let [a, b] = choices(key, &self.secret).map(|choice| choice & ((1 << self.bits) - 1));
        [(0, a), (1, b)]
    }

    /// Returns the other bucket of an entry that is in this one.
    fn other(&self, id: Id, (way, _): Place) -> Option<Place> {
        self.entry(id).map(|entry| self.places(&entry.key())[1 - way])
    }

    fn whole(&self, id: Id) -> bool {
        self.entry(id).is_some_and(E::whole)
    }

    fn locate(&self, key: &Words) -> Option<(Place, Id)> {
        let hit = |place| {
            let mut ids = self.occupants(place);
            ids.find(|&id| self.entry(id).is_some_and(|entry| entry.key() == *key)).map(|id| (place, id))
        };
        self.places(key).into_iter().find_map(hit)
    }

    fn fits(&self, place: Place, whole: bool) -> bool {
        match self.slots(place) {
            [0, 0] => true,
            [id, 0] => !whole && !self.whole(id),
            [0, _] => !whole,
            _ => false,
        }
    }

    /// Returns the lines of a bucket, as the card's memory has them.
    fn lines(&self, place: Place) -> [Line; 2] {
        let bucket = self.slots(place).map(|id| self.entry(id));
        E::encode(bucket, self.versions[place.0][place.1 as usize])
    }

    /// Searches the shortest path to room in one of these buckets, avoiding the bucket `closed`.
    fn search(&self, places: &[Place], whole: bool, closed: Option<Place>) -> Option<Displacement> {
        let mut seen: HashSet<Place> = places.iter().copied().chain(closed).collect();
        let mut reached: Vec<_> = places.iter().map(|&place| Reached { place, whole, from: None }).collect();
        let mut next = 0;
        while next < reached.len() {
            let Reached { place, whole, .. } = reached[next];
            if self.fits(place, whole) {
                return Some(path(&reached, next));
            }
            let alone = self.occupants(place).count() == 1;
            for id in self.occupants(place).filter(|_| alone || !whole) {
                let other = self.other(id, place);
                if let Some(other) = other.filter(|&other| reached.len() < SEARCH && seen.insert(other)) {
                    reached.push(Reached { place: other, whole: self.whole(id), from: Some((next, id)) });
                }
            }
            next += 1;
        }
        None
    }

    // ---- Changing

    /// Puts an entry into a bucket, or replaces the one with the same key.
    fn settle(&mut self, entry: E) -> Result<Vec<Step>, Full> {
        let (key, whole, mut steps) = (entry.key(), entry.whole(), Vec::new());
        if let Some((place, id)) = self.locate(&key) {
            if self.entry(id) != Some(&entry) {
                let before = self.lines(place);
                self.entries[id as usize - 1] = Some(entry);
                self.write(place, before, &mut steps);
            }
            return Ok(steps);
        }
        let mut touched = Vec::new();
        let Some((place, before)) = self.make_room(self.places(&key), whole, &mut steps, &mut touched) else {
            for ((way, bucket), slots, version) in touched.into_iter().rev() {
                self.slots[way][bucket as usize] = slots;
                self.versions[way][bucket as usize] = version;
            }
            return Err(Full { table: E::TABLE });
        };
        let id = self.keep(entry);
        self.give(id, place);
        self.write(place, before, &mut steps);
        Ok(steps)
    }

    /// Sets a position of the stash, if it differs.
    fn stash(&mut self, number: usize, entry: Option<E>) -> Vec<Step> {
        if std::mem::replace(&mut self.stash[number], entry) == entry {
            return Vec::new();
        }
        vec![Step::Stash { number: number as u32, lines: E::encode([entry.as_ref(), None], 0) }]
    }

    /// Moves an entry from the stash into a bucket, if one has room now.
    fn come_home(&mut self, number: usize) -> Option<Vec<Step>> {
        let mut steps = self.settle(self.stash[number]?).ok()?;
        steps.push(Step::Barrier);
        steps.extend(self.stash(number, None));
        Some(steps)
    }

    fn keep(&mut self, entry: E) -> Id {
        if let Some(id) = self.free.pop() {
            self.entries[id as usize - 1] = Some(entry);
            return id;
        }
        self.entries.push(Some(entry));
        self.entries.len() as Id
    }

    fn give(&mut self, id: Id, (way, bucket): Place) {
        let slots = &mut self.slots[way][bucket as usize];
        slots[usize::from(slots[0] != 0)] = id;
    }

    fn take(&mut self, id: Id, (way, bucket): Place) {
        let slots = &mut self.slots[way][bucket as usize];
        *slots = slots.map(|slot| if slot == id { 0 } else { slot });
    }

    /// Writes the lines of a bucket that differ from `before`.
    fn write(&mut self, place: Place, before: [Line; 2], steps: &mut Vec<Step>) {
        let (way, bucket) = place;
        let both = self.lines(place).iter().zip(before).all(|(now, before)| *now != before);
        if both && self.occupants(place).any(|id| self.whole(id)) {
            let version = &mut self.versions[way][bucket as usize];
            *version = version.wrapping_add(1);
        }
        let first = self.ways[way] + bucket * E::LINES as u32;
        let lines = self.lines(place).into_iter().zip(before).zip(first..).take(E::LINES);
        steps.extend(
            lines.filter(|((data, before), _)| data != before).map(|((data, _), address)| Step::Write {
                table: E::TABLE,
                address,
                data,
            }),
        );
    }

    /// Moves entries until one of the buckets has room. Returns that bucket, and its lines in the card's memory. Adds
    /// the former states of changed buckets to `touched`.
    fn make_room(
        &mut self,
        places: [Place; 2],
        whole: bool,
        steps: &mut Vec<Step>,
        touched: &mut Vec<(Place, Slots, u8)>,
    ) -> Option<(Place, [Line; 2])> {
        if let Some(path) = self.search(&places, whole, None) {
            return Some(self.follow(&path, steps, touched));
        }
        if !whole || E::SLOTS == 1 {
            return None;
        }
        // Two entries must leave one bucket. First one of them leaves; then the other is alone in the bucket.
        let (place, mut path) = places.into_iter().find_map(|place| {
            self.occupants(place).find_map(|id| {
                let mut path = self.search(&[self.other(id, place)?], self.whole(id), Some(place))?;
                path.moves.push((id, place, path.room));
                Some((place, path))
            })
        })?;
        path.room = place;
        let (_, before) = self.follow(&path, steps, touched);
        self.write(place, before, steps);
        let path = self.search(&[place], whole, None)?;
        Some(self.follow(&path, steps, touched))
    }

    fn follow(
        &mut self,
        path: &Displacement,
        steps: &mut Vec<Step>,
        touched: &mut Vec<(Place, Slots, u8)>,
    ) -> (Place, [Line; 2]) {
        // A moved entry is still in the card's memory of the bucket that it left, into which the next entry goes.
        let mut left = None;
        for &(id, from, to) in &path.moves {
            let version = |(way, bucket): Place| self.versions[way][bucket as usize];
            touched.extend([from, to].map(|place| (place, self.slots(place), version(place))));
            let before = left.unwrap_or_else(|| self.lines(to));
            self.give(id, to);
            self.write(to, before, steps);
            steps.push(Step::Barrier);
            left = Some(self.lines(from));
            self.take(id, from);
        }
        (path.room, left.unwrap_or_else(|| self.lines(path.room)))
    }
}

/// Returns the moves that make room in the first bucket on the path to `last`.
fn path(reached: &[Reached], mut last: usize) -> Displacement {
    let mut moves = Vec::new();
    while let Some((from, id)) = reached[last].from {
        moves.push((id, reached[from].place, reached[last].place));
        last = from;
    }
    Displacement { room: reached[last].place, moves }
}

#[cfg(test)]
mod tests;
