//! Free ranges of pages, and which of them to take.

use std::collections::{BTreeMap, BTreeSet};

/// Most pieces of what is taken at once.
const PIECES: usize = 64;

/// Ranges of bytes, none of which touches another. All operations are fast however many ranges there are: each
/// program of a window decides how many there are, and all programs wait for each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// Their lengths, by their starts.
    lens: BTreeMap<u64, u64>,
    /// Length and start of each.
    by_len: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl Ranges {
    fn put(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.lens.insert(start, len);
            self.by_len.insert((len, start));
            self.bytes += len;
        }
    }

    /// Takes out a whole range. Returns its length, zero if there is none.
    fn pick(&mut self, start: u64) -> u64 {
        let len = self.lens.remove(&start).unwrap_or(0);
        self.by_len.remove(&(len, start));
        self.bytes -= len;
        len
    }

    /// Adds a range, of which nothing is there yet.
    pub fn add(&mut self, mut start: u64, mut len: u64) {
        len += self.pick(start + len);
        if let Some((before, its)) = self.lens.range(..start).next_back()
            && *before + *its == start
        {
            start = *before;
            len += self.pick(start);
        }
        self.put(start, len);
    }

    /// Takes a range, if all of it is there.
    pub fn remove(&mut self, start: u64, len: u64) -> bool {
        let Some((first, whole)) = self.lens.range(..=start).next_back().map(|(first, len)| (*first, *len))
        else {
            return false;
        };
        let fits = start.checked_add(len).is_some_and(|end| end <= first + whole);
        if !fits || len == 0 {
            return false;
        }
        self.pick(first);
        self.put(first, start - first);
        self.put(start + len, first + whole - (start + len));
        true
    }

    /// Takes this length of the shortest range that has it.
    pub fn take_one(&mut self, len: u64) -> Option<u64> {
        let (_, start) = *self.by_len.range((len, 0)..).next()?;
        self.remove(start, len).then_some(start)
    }

    /// Takes as few ranges as possible that have this length together. Takes nothing if there are none, or too many are
    /// needed.
    pub fn take(&mut self, len: u64) -> Option<Vec<(u64, u64)>> {
        if let Some(start) = self.take_one(len) {
            return Some(vec![(start, len)]);
        }
        let (mut taken, mut left) = (Vec::new(), len);
        for (its, start) in self.by_len.iter().rev().take(PIECES) {
            let piece = left.min(*its);
            taken.push((*start, piece));
            left -= piece;
            if left == 0 {
                taken.iter().for_each(|(start, piece)| _ = self.remove(*start, *piece));
                return Some(taken);
            }
        }
        None
    }

    /// Returns the bytes of all ranges.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl IntoIterator for Ranges {
    type Item = (u64, u64);
    type IntoIter = std::collections::btree_map::IntoIter<u64, u64>;

    fn into_iter(self) -> Self::IntoIter {
        self.lens.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However ranges are taken and given back, none overlaps another, and all of them are there in the end.
    #[test]
    fn nothing_is_taken_twice_and_nothing_is_lost() {
        const ALL: u64 = 1000;
        bolero::check!().with_type::<Vec<(bool, u16, u8)>>().for_each(|steps| {
            let mut free = Ranges::default();
            free.add(0, ALL);
            let whole = free.clone();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (takes, which, len) in steps {
                let (which, len) = (u64::from(*which), 1 + u64::from(*len));
                if *takes {
                    let before = free.bytes();
                    let got = if which % 2 == 0 {
                        free.take(len)
                    } else {
                        free.take_one(len).map(|start| vec![(start, len)])
                    };
                    match got {
                        Some(pieces) => {
                            assert_eq!(pieces.iter().map(|(_, len)| len).sum::<u64>(), len);
                            taken.extend(pieces);
                        }
                        None => assert_eq!(free.bytes(), before),
                    }
                } else if !taken.is_empty() {
                    let (start, len) = taken.swap_remove(which as usize % taken.len());
                    assert!(!free.remove(start, len), "it is not free");
                    free.add(start, len);
                }
                let mut places: Vec<_> = taken.clone();
                places.extend(free.lens.iter().map(|(start, len)| (*start, *len)));
                places.sort_unstable();
                assert_eq!(free.bytes(), free.lens.values().sum::<u64>());
                assert!(
                    free.lens.iter().map(|(start, len)| (*len, *start)).all(|it| free.by_len.contains(&it))
                );
                assert_eq!(free.lens.len(), free.by_len.len());
                let mut end = 0;
                for (start, len) in places {
                    assert!(start == end && len > 0);
                    end += len;
                }
                assert_eq!(end, ALL);
            }
            taken.into_iter().for_each(|(start, len)| free.add(start, len));
            assert_eq!(free, whole);
        });
    }

    #[test]
    fn only_what_is_there_is_removed() {
        let mut free = Ranges::default();
        free.add(10, 10);
        for (start, len) in [(9, 1), (9, 2), (20, 1), (10, 11), (15, u64::MAX), (12, 0)] {
            assert!(!free.remove(start, len), "{start} {len}");
        }
        assert!(free.remove(12, 3) && !free.remove(12, 1));
        assert_eq!((free.bytes(), free.into_iter().collect()), (7, vec![(10, 2), (15, 5)]));
    }

    #[test]
    fn pieces_are_few() {
        let mut free = Ranges::default();
        (0..100).for_each(|at| free.add(at * 10, 1));
        free.add(2000, 5);
        assert_eq!(free.take(PIECES as u64 + 5), None);
        let pieces = free.take(7);
        assert_eq!(pieces.map(|pieces| (pieces[0], pieces.len())), Some(((2000, 5), 3)));
        // The shortest one that is long enough: long ones stay for those who need them.
        free.add(2000, 5);
        assert_eq!((free.take_one(1), free.take_one(2)), (Some(0), Some(2000)));
    }
}
