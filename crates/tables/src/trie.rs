//! A persistent trie over bit-string prefixes: the FIB, and the fields of the rule classifier.
//!
//! A tree bitmap (Eatherton, Varghese, Dittia 2004) of stride 6 with path compression: a node holds the prefixes
//! that end in its next six bits as a bitmap in heap order with a packed array of values, and up to 64
//! children likewise. Cloning a trie is one reference; changing a clone copies the nodes on the way (at most one
//! per six bits), once per batch, since a node that nobody else holds is changed in place.
//!
//! Memory for a FIB: about 120 bytes per populated node and 4 per prefix, up to 126 of which share a node. A million
//! IPv4 routes with the Internet's mix of lengths take 34 bytes each, random IPv6 ones of 32 to 48 bits 121 (see
//! `examples/figures.rs`).
use std::sync::Arc;

/// Bits a node resolves.
const STRIDE: u8 = 6;

/// A string of bits, the first one the most significant.
pub trait Bits: Copy + Eq {
    /// Their number.
    const LEN: u8;
    /// The [`STRIDE`] bits from `at` on, as a number; bits past the end are zero.
    fn window(self, at: u8) -> usize;
    /// The first `len` bits, the others zero.
    fn head(self, len: u8) -> Self;
    /// How many bits are common with `other` at the front.
    fn common(self, other: Self) -> u8;
}

macro_rules! bits {
    ($($t:ty)*) => {$(
        impl Bits for $t {
            const LEN: u8 = <$t>::BITS as u8;

            #[inline]
            fn window(self, at: u8) -> usize {
                ((self << at) >> (Self::LEN - STRIDE)) as usize
            }

            #[inline]
            fn head(self, len: u8) -> Self {
                if len == 0 { 0 } else { self & (<$t>::MAX << (Self::LEN - len)) }
            }

            #[inline]
            fn common(self, other: Self) -> u8 {
                (self ^ other).leading_zeros() as u8
            }
        }
    )*};
}
bits!(u16 u32 u128);

/// For each value of a window, the heap positions of the 1- to 6-bit prefixes that match it.
static MATCHING: [u128; 64] = {
    let mut out = [0; 64];
    let mut window = 0;
    while window < 64 {
        let mut len = 1;
        while len <= STRIDE {
            out[window] |= 1 << (1 << len | window >> (STRIDE - len));
            len += 1;
        }
        window += 1;
    }
    out
};

#[derive(Clone)]
struct Node<K, V> {
    /// The bits above this node, the others zero.
    base: K,
    /// Their number, a multiple of [`STRIDE`].
    depth: u8,
    /// Bit `w`: there is a child for window `w`.
    child_map: u64,
    /// Bit `1 << n | bits`: the `n`-bit prefix `bits` below `base` (1 to 6 bits) has a value.
    value_map: u128,
    children: Box<[Arc<Self>]>,
    values: Box<[V]>,
}

/// The depth of the node that holds prefixes of `len` bits (1 or more).
const fn depth_of(len: u8) -> u8 {
    (len - 1) / STRIDE * STRIDE
}

impl<K: Bits, V: Clone> Node<K, V> {
    fn new(base: K, depth: u8) -> Self {
        Self { base, depth, child_map: 0, value_map: 0, children: Box::new([]), values: Box::new([]) }
    }

    #[inline]
    fn covers(&self, key: K) -> bool {
        key.common(self.base) >= self.depth
    }

    fn child(&self, window: usize) -> Option<&Arc<Self>> {
        let rank = (self.child_map & ((1 << window) - 1)).count_ones() as usize;
        (self.child_map >> window & 1 == 1).then(|| &self.children[rank])
    }

    fn value_rank(&self, position: u32) -> usize {
        (self.value_map & ((1 << position) - 1)).count_ones() as usize
    }

    /// The heap position of the prefix of `len` bits of `key`, which this node holds.
    fn position(&self, key: K, len: u8) -> u32 {
        let n = len - self.depth;
        (1 << n | key.window(self.depth) >> (STRIDE - n)) as u32
    }
}

fn insert_at<T>(array: &mut Box<[T]>, at: usize, item: T) {
    let mut vec = std::mem::take(array).into_vec();
    vec.reserve_exact(1);
    vec.insert(at, item);
    *array = vec.into_boxed_slice();
}

fn remove_at<T>(array: &mut Box<[T]>, at: usize) -> T {
    let mut vec = std::mem::take(array).into_vec();
    let item = vec.remove(at);
    *array = vec.into_boxed_slice();
    item
}

/// A map from prefixes to values.
#[derive(Clone)]
pub struct Trie<K, V> {
    /// The value of the empty prefix.
    default: Option<V>,
    root: Option<Arc<Node<K, V>>>,
    len: usize,
}

impl<K, V> Default for Trie<K, V> {
    fn default() -> Self {
        Self { default: None, root: None, len: 0 }
    }
}

impl<K: Bits, V: Clone> Trie<K, V> {
    /// Prefixes it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of the longest prefix of `key`, and that prefix' length.
    #[inline]
    pub fn longest(&self, key: K) -> Option<(u8, &V)> {
        let mut best: Option<(&Node<K, V>, u32)> = None;
        let mut next = self.root.as_deref();
        while let Some(node) = next.filter(|n| n.covers(key)) {
            let window = key.window(node.depth);
            let hits = node.value_map & MATCHING[window];
            if hits != 0 {
                best = Some((node, hits.ilog2()));
            }
            next = node.child(window).map(|c| &**c);
        }
        match best {
            Some((node, position)) => {
                let len = node.depth + position.ilog2() as u8;
                Some((len, &node.values[node.value_rank(position)]))
            }
            None => self.default.as_ref().map(|v| (0, v)),
        }
    }

    /// Calls `each` for the value of every prefix of `key`, shortest first.
    pub fn matches<'a>(&'a self, key: K, mut each: impl FnMut(&'a V)) {
        self.default.iter().for_each(&mut each);
        let mut next = self.root.as_deref();
        while let Some(node) = next.filter(|n| n.covers(key)) {
            let window = key.window(node.depth);
            let mut hits = node.value_map & MATCHING[window];
            while hits != 0 {
                each(&node.values[node.value_rank(hits.trailing_zeros())]);
                hits &= hits - 1;
            }
            next = node.child(window).map(|c| &**c);
        }
    }

    /// The value of exactly this prefix.
    pub fn get(&self, key: K, len: u8) -> Option<&V> {
        if len == 0 {
            return self.default.as_ref();
        }
        let mut next = self.root.as_deref();
        while let Some(node) = next.filter(|n| n.depth <= depth_of(len) && n.covers(key)) {
            if node.depth == depth_of(len) {
                let position = node.position(key, len);
                return (node.value_map >> position & 1 == 1)
                    .then(|| &node.values[node.value_rank(position)]);
            }
            next = node.child(key.window(node.depth)).map(|c| &**c);
        }
        None
    }

    /// The value of exactly this prefix, to change; the way to it is copied where it is shared.
    pub fn get_mut(&mut self, key: K, len: u8) -> Option<&mut V> {
        self.get(key, len)?; // Copy nothing for nothing.
        if len == 0 {
            return self.default.as_mut();
        }
        let mut node = Arc::make_mut(self.root.as_mut()?);
        while node.depth != depth_of(len) {
            let rank = (node.child_map & ((1 << key.window(node.depth)) - 1)).count_ones() as usize;
            node = Arc::make_mut(&mut node.children[rank]);
        }
        let rank = node.value_rank(node.position(key, len));
        Some(&mut node.values[rank])
    }

    /// Sets the value of the first `len` bits of `key`; returns what it was.
    pub fn insert(&mut self, key: K, len: u8, value: V) -> Option<V> {
        debug_assert!(len <= K::LEN);
        let old = if len == 0 {
            self.default.replace(value)
        } else {
            let root =
                self.root.get_or_insert_with(|| Arc::new(Node::new(key.head(depth_of(len)), depth_of(len))));
            Self::insert_below(root, key, len, value)
        };
        self.len += usize::from(old.is_none());
        old
    }

    fn insert_below(slot: &mut Arc<Node<K, V>>, key: K, len: u8, value: V) -> Option<V> {
        let target = depth_of(len);
        let common = slot.base.common(key).min(slot.depth).min(target);
        if common < slot.depth {
            // The node lies off the way, or below the target: a node above it, at the last stride they share.
            let depth = common / STRIDE * STRIDE;
            let fork = Arc::new(Node::new(key.head(depth), depth));
            let old = std::mem::replace(slot, fork);
            let fork = Arc::make_mut(slot);
            fork.child_map = 1 << old.base.window(depth);
            fork.children = Box::new([old]);
        }
        let node = Arc::make_mut(slot);
        if node.depth == target {
            let position = node.position(key, len);
            let rank = node.value_rank(position);
            if node.value_map >> position & 1 == 1 {
                return Some(std::mem::replace(&mut node.values[rank], value));
            }
            node.value_map |= 1 << position;
            insert_at(&mut node.values, rank, value);
            return None;
        }
        let window = key.window(node.depth);
        let rank = (node.child_map & ((1 << window) - 1)).count_ones() as usize;
        if node.child_map >> window & 1 == 0 {
            node.child_map |= 1 << window;
            insert_at(&mut node.children, rank, Arc::new(Node::new(key.head(target), target)));
        }
        Self::insert_below(&mut node.children[rank], key, len, value)
    }

    /// Removes exactly this prefix; returns its value.
    pub fn remove(&mut self, key: K, len: u8) -> Option<V> {
        self.get(key, len)?;
        let value = if len == 0 {
            self.default.take()
        } else {
            let root = self.root.as_mut()?;
            let value = Self::remove_below(root, key, len);
            if root.child_map == 0 && root.value_map == 0 {
                self.root = None;
            }
            value
        };
        self.len -= usize::from(value.is_some());
        value
    }

    /// The prefix is there. Leaves the node in `slot` empty where it held nothing else.
    fn remove_below(slot: &mut Arc<Node<K, V>>, key: K, len: u8) -> Option<V> {
        let node = Arc::make_mut(slot);
        let value = if node.depth == depth_of(len) {
            let position = node.position(key, len);
            let rank = node.value_rank(position);
            node.value_map &= !(1 << position);
            Some(remove_at(&mut node.values, rank))
        } else {
            let window = key.window(node.depth);
            let rank = (node.child_map & ((1 << window) - 1)).count_ones() as usize;
            let value = Self::remove_below(&mut node.children[rank], key, len);
            let child = &node.children[rank];
            if child.child_map == 0 && child.value_map == 0 {
                node.child_map &= !(1 << window);
                remove_at(&mut node.children, rank);
            }
            value
        };
        if node.value_map == 0 && node.children.len() == 1 {
            let only = Arc::clone(&node.children[0]);
            *slot = only;
        }
        value
    }
}

#[cfg(test)]
mod tests;
