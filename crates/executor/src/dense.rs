//! Small values by number, for numbers that are dense.

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use std::sync::Arc;

/// Values that are kept together, and copied together when one of them changes.
const CHUNK: usize = 64;

/// A chunk. Two are the same if they are at the same place in memory, as long as neither was changed.
#[derive(Clone, Debug)]
struct Chunk<T>(Arc<[T; CHUNK]>);

impl<T> PartialEq for Chunk<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Values by number; those that were never set are the default. A clone is cheap, and a comparison of two costs only as
/// much as their difference.
#[derive(Clone, Debug)]
pub struct Dense<T> {
    /// By the number of the first value.
    chunks: OrdMap<u32, Chunk<T>>,
}

impl<T> Default for Dense<T> {
    fn default() -> Self {
        Self { chunks: OrdMap::new() }
    }
}

const fn place(number: u32) -> (u32, usize) {
    let at = number as usize % CHUNK;
    (number - at as u32, at)
}

impl<T: Copy + Default + PartialEq> Dense<T> {
    /// Returns a value.
    #[must_use]
    pub fn get(&self, number: u32) -> T {
        let (first, at) = place(number);
        self.chunks.get(&first).map_or_else(T::default, |chunk| chunk.0[at])
    }

    /// Sets a value.
    pub fn set(&mut self, number: u32, value: T) {
        let (first, at) = place(number);
        let is_empty = match self.chunks.get_mut(&first) {
            Some(chunk) => {
                let values = Arc::make_mut(&mut chunk.0);
                values[at] = value;
                value == T::default() && values.iter().all(|value| *value == T::default())
            }
            None if value == T::default() => return,
            None => {
                let mut values = [T::default(); CHUNK];
                values[at] = value;
                self.chunks.insert(first, Chunk(Arc::new(values)));
                return;
            }
        };
        if is_empty {
            self.chunks.remove(&first);
        }
    }

    /// Returns the values that are not the default.
    pub fn iter<'a>(&'a self) -> impl Iterator<Item = (u32, T)> + use<'a, T> {
        let values = |(first, chunk): (&u32, &'a Chunk<T>)| {
            let first = *first;
            chunk.0.iter().enumerate().map(move |(at, value)| (first + at as u32, *value))
        };
        self.chunks.iter().flat_map(values).filter(|(_, value)| *value != T::default())
    }

    /// Returns the numbers in chunks that differ in `to`, with the value before and the one there, which may be equal.
    pub fn changes_to<'a>(&'a self, to: &'a Self) -> impl Iterator<Item = (u32, T, T)> + 'a {
        let side = |chunk: Option<&Chunk<T>>, at: usize| chunk.map_or_else(T::default, |chunk| chunk.0[at]);
        self.chunks.diff(&to.chunks).flat_map(move |item| {
            let (first, old, new) = match item {
                DiffItem::Add(first, new) => (*first, None, Some(new)),
                DiffItem::Update { old: (_, old), new: (first, new) } => (*first, Some(old), Some(new)),
                DiffItem::Remove(first, old) => (*first, Some(old), None),
            };
            (0..CHUNK).map(move |at| (first + at as u32, side(old, at), side(new, at)))
        })
    }
}
