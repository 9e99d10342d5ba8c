//! A persistent trie over bit-string prefixes: the FIB, and the fields of the rule classifier.
//!
//! The upper part is a tree bitmap (Eatherton, Varghese, Dittia 2004) of stride 6 with path compression: a node holds
//! the prefixes that end in its next six bits as a bitmap in heap order with a packed array of values, and up to 64
//! children likewise. The lower part, where at most [`SPLIT`] prefixes are left, is a sorted array ([`leaf`]). Cloning
//! a trie copies one reference. Changing a clone copies the nodes on the path and one leaf, once per batch, since what
//! nobody else holds is changed in place.
//!
//! Most of a FIB's memory is in its leaves' arrays: 6 bytes a route in a full IPv4 table, 8 in an IPv6 one (see
//! `examples/figures.rs`).
mod leaf;

use leaf::{Leaf, ROOM, Tail, insert_at, remove_at};
use std::sync::Arc;

/// Number of bits that a node resolves.
const STRIDE: u8 = 6;
/// A leaf with more prefixes becomes a node.
const SPLIT: usize = if cfg!(test) { 6 } else { 512 };
/// A node with at most this many prefixes, those below it included, becomes a leaf.
const MERGE: usize = SPLIT / 4;

/// A string of bits, the first one the most significant.
pub trait Bits: Copy + Eq {
    /// Number of bits.
    const LEN: u8;
    /// Returns the [`STRIDE`] bits from `at` on as a number; bits past the end are zero.
    fn window(self, at: u8) -> usize;
    /// Returns the first `len` bits, the others zero.
    fn head(self, len: u8) -> Self;
    /// Returns how many leading bits are common with `other`.
    fn common(self, other: Self) -> u8;
    /// Returns the bits from `at` on.
    fn tail(self, at: u8) -> Tail;
    /// Returns the first `at` bits, followed by a tail of no more bits than are left.
    fn join(self, at: u8, tail: Tail) -> Self;
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

            #[inline]
            fn tail(self, at: u8) -> Tail {
                Tail::from(self.checked_shl(at.into()).unwrap_or(0)) << (Tail::BITS - <$t>::BITS)
            }

            fn join(self, at: u8, tail: Tail) -> Self {
                let tail = (tail >> (Tail::BITS - <$t>::BITS)) as $t;
                self.head(at) | tail.checked_shr(at.into()).unwrap_or(0)
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
    /// Number of these bits, a multiple of [`STRIDE`].
    depth: u8,
    /// Number of prefixes here and below.
    len: usize,
    /// Bit `w`: there is a child for window `w`.
    child_map: u64,
    /// Bit `1 << n | bits`: the `n`-bit prefix `bits` below `base` (1 to 6 bits) has a value.
    value_map: u128,
    children: Box<[Child<K, V>]>,
    values: Box<[V]>,
}

/// The subtree below a window of a node, or the whole trie.
enum Child<K, V> {
    Node(Arc<Node<K, V>>),
    /// A leaf. The bits of its prefixes start after the window.
    Leaf(Arc<Leaf<V>>),
}

impl<K, V> Clone for Child<K, V> {
    fn clone(&self) -> Self {
        match self {
            Self::Node(node) => Self::Node(node.clone()),
            Self::Leaf(leaf) => Self::Leaf(leaf.clone()),
        }
    }
}

/// A prefix and its value.
type Entry<K, V> = (K, u8, V);

/// Returns the depth of the node that holds prefixes of `len` bits (1 or more).
const fn depth_of(len: u8) -> u8 {
    (len - 1) / STRIDE * STRIDE
}

impl<K: Bits, V: Clone> Node<K, V> {
    fn new(base: K, depth: u8) -> Self {
        let (children, values) = (Box::new([]), Box::new([]));
        Self { base: base.head(depth), depth, len: 0, child_map: 0, value_map: 0, children, values }
    }

    #[inline]
    fn covers(&self, key: K) -> bool {
        key.common(self.base) >= self.depth
    }

    /// Returns the bit at which its children begin.
    #[inline]
    fn end(&self) -> u8 {
        self.depth + STRIDE
    }

    /// Returns how many children come before this window's, and whether this window has one.
    #[inline]
    fn rank(&self, window: usize) -> (usize, bool) {
        ((self.child_map & ((1 << window) - 1)).count_ones() as usize, self.child_map >> window & 1 == 1)
    }

    #[inline]
    fn child(&self, key: K) -> Option<&Child<K, V>> {
        let (rank, there) = self.rank(key.window(self.depth));
        there.then(|| &self.children[rank])
    }

    fn value_rank(&self, position: u32) -> usize {
        (self.value_map & ((1 << position) - 1)).count_ones() as usize
    }

    /// Returns the heap position in this node of the prefix that is the first `len` bits of `key`.
    fn position(&self, key: K, len: u8) -> u32 {
        let n = len - self.depth;
        (1 << n | key.window(self.depth) >> (STRIDE - n)) as u32
    }

    /// Returns the heap position of a prefix in this node, the index of its value, and whether it has a
    /// value.
    fn place(&self, key: K, len: u8) -> (u32, usize, bool) {
        let position = self.position(key, len);
        (position, self.value_rank(position), self.value_map >> position & 1 == 1)
    }

    /// Sets the value of a prefix that the node covers.
    fn insert(&mut self, key: K, len: u8, value: V) -> Option<V> {
        let old = if self.depth == depth_of(len) {
            match self.place(key, len) {
                (_, rank, true) => Some(std::mem::replace(&mut self.values[rank], value)),
                (position, rank, false) => {
                    self.value_map |= 1 << position;
                    insert_at(&mut self.values, rank, value);
                    None
                }
            }
        } else {
            let window = key.window(self.depth);
            match self.rank(window) {
                (rank, true) => self.children[rank].insert(self.depth + STRIDE, key, len, value),
                (rank, false) => {
                    let child = Child::build(self.end(), vec![(key, len, value)]);
                    self.child_map |= 1 << window;
                    insert_at(&mut self.children, rank, child);
                    None
                }
            }
        };
        self.len += usize::from(old.is_none());
        old
    }

    /// Removes a prefix, which must exist.
    fn remove(&mut self, key: K, len: u8) -> Option<V> {
        self.len -= 1;
        if self.depth == depth_of(len) {
            let (position, rank, _) = self.place(key, len);
            self.value_map &= !(1 << position);
            return Some(remove_at(&mut self.values, rank));
        }
        let (end, window) = (self.end(), key.window(self.depth));
        let (rank, _) = self.rank(window);
        let value = self.children[rank].remove(end, key, len);
        if self.children[rank].len() == 0 {
            self.child_map &= !(1 << window);
            remove_at(&mut self.children, rank);
        }
        value
    }

    /// Appends all prefixes with their values.
    fn entries(&self, out: &mut Vec<Entry<K, V>>) {
        let mut positions = self.value_map;
        for value in &self.values {
            let position = positions.trailing_zeros();
            positions &= positions - 1;
            let n = position.ilog2();
            let bits = Tail::from(position - (1 << n)) << (Tail::BITS - n);
            out.push((self.base.join(self.depth, bits), self.depth + n as u8, value.clone()));
        }
        let mut windows = self.child_map;
        for child in &self.children {
            let window = Tail::from(windows.trailing_zeros()) << (Tail::BITS - u32::from(STRIDE));
            windows &= windows - 1;
            child.entries(self.end(), self.base.join(self.depth, window), out);
        }
    }
}

impl<K: Bits, V: Clone> Child<K, V> {
    /// Builds from prefixes that have their first `at` bits in common, and are longer.
    fn build(at: u8, entries: Vec<Entry<K, V>>) -> Self {
        let longest = entries.iter().map(|(_, len, _)| len - at).max().unwrap_or(1);
        if entries.len() <= SPLIT && longest <= ROOM {
            let mut leaf = Leaf::new(longest);
            for (key, len, value) in entries {
                leaf.insert(key.tail(at), len - at, value);
            }
            return Self::Leaf(Arc::new(leaf));
        }
        // The new node is at the last stride that all of them share.
        let (first, ..) = entries[0];
        let shared = entries.iter().map(|(key, len, _)| key.common(first).min(depth_of(*len))).min();
        let depth = shared.unwrap_or(at) / STRIDE * STRIDE;
        let mut node = Node::new(first, depth);
        let mut below: [Vec<Entry<K, V>>; 1 << STRIDE] = std::array::from_fn(|_| Vec::new());
        for (key, len, value) in entries {
            if depth_of(len) == depth {
                node.insert(key, len, value);
            } else {
                below[key.window(depth)].push((key, len, value));
            }
        }
        let mut children = Vec::new();
        for (window, entries) in below.into_iter().enumerate().filter(|(_, entries)| !entries.is_empty()) {
            node.len += entries.len();
            node.child_map |= 1 << window;
            children.push(Self::build(depth + STRIDE, entries));
        }
        node.children = children.into();
        Self::Node(Arc::new(node))
    }

    fn len(&self) -> usize {
        match self {
            Self::Node(node) => node.len,
            Self::Leaf(leaf) => leaf.len(),
        }
    }

    /// Appends all prefixes with their values. They begin with the first `at` bits of `base`.
    fn entries(&self, at: u8, base: K, out: &mut Vec<Entry<K, V>>) {
        match self {
            Self::Node(node) => node.entries(out),
            Self::Leaf(leaf) => {
                out.extend(leaf.iter().map(|(bits, n, value)| (base.join(at, bits), at + n, value.clone())));
            }
        }
    }

    fn insert(&mut self, at: u8, key: K, len: u8, value: V) -> Option<V> {
        match self {
            Self::Leaf(leaf) if len - at <= ROOM => {
                let leaf = Arc::make_mut(leaf);
                let old = leaf.insert(key.tail(at), len - at, value);
                if leaf.len() > SPLIT {
                    self.rebuild(at, key, None);
                }
                old
            }
            Self::Leaf(_) => {
                self.rebuild(at, key, Some((key, len, value)));
                None
            }
            Self::Node(node) => {
                let shared = node.base.common(key).min(node.depth).min(depth_of(len));
                if shared < node.depth {
                    // The node is off the path, or below the prefix: a new node above it, at the last stride they
                    // share.
                    let mut fork = Node::new(key, shared / STRIDE * STRIDE);
                    (fork.len, fork.child_map) = (node.len, 1 << node.base.window(fork.depth));
                    fork.children = Box::new([Self::Node(node.clone())]);
                    *node = Arc::new(fork);
                }
                Arc::make_mut(node).insert(key, len, value)
            }
        }
    }

    /// Rebuilds leaves and nodes from all entries and one more.
    fn rebuild(&mut self, at: u8, base: K, more: Option<Entry<K, V>>) {
        let mut entries = Vec::with_capacity(self.len() + 1);
        self.entries(at, base, &mut entries);
        entries.extend(more);
        *self = Self::build(at, entries);
    }

    /// Removes a prefix, which must exist.
    fn remove(&mut self, at: u8, key: K, len: u8) -> Option<V> {
        let node = match self {
            Self::Leaf(leaf) => return Arc::make_mut(leaf).remove(key.tail(at), len - at),
            Self::Node(node) => Arc::make_mut(node),
        };
        let value = node.remove(key, len);
        if node.len <= MERGE {
            self.rebuild(at, key, None);
        } else if let ([Self::Node(only)], []) = (&*node.children, &*node.values) {
            *self = Self::Node(only.clone());
        }
        value
    }
}

/// A map from prefixes to values.
#[derive(Clone)]
pub struct Trie<K, V> {
    /// The value of the empty prefix.
    default: Option<V>,
    root: Option<Child<K, V>>,
}

impl<K, V> Default for Trie<K, V> {
    fn default() -> Self {
        Self { default: None, root: None }
    }
}

impl<K: Bits, V: Clone> Trie<K, V> {
    pub fn len(&self) -> usize {
        usize::from(self.default.is_some()) + self.root.as_ref().map_or(0, Child::len)
    }

    pub fn is_empty(&self) -> bool {
        self.default.is_none() && self.root.is_none()
    }

    /// Returns the value of the longest prefix of `key`, and the length of this prefix.
    #[inline]
    pub fn longest(&self, key: K) -> Option<(u8, &V)> {
        let mut best: Option<(&Node<K, V>, u32)> = None;
        let (mut next, mut at) = (self.root.as_ref(), 0);
        while let Some(child) = next {
            match child {
                Child::Node(node) if node.covers(key) => {
                    let hits = node.value_map & MATCHING[key.window(node.depth)];
                    if hits != 0 {
                        best = Some((node, hits.ilog2()));
                    }
                    (next, at) = (node.child(key), node.end());
                }
                Child::Node(_) => break,
                Child::Leaf(leaf) => {
                    if let Some((n, value)) = leaf.longest(key.tail(at)) {
                        return Some((at + n, value));
                    }
                    break;
                }
            }
        }
        match best {
            Some((node, position)) => {
                let len = node.depth + position.ilog2() as u8;
                Some((len, &node.values[node.value_rank(position)]))
            }
            None => self.default.as_ref().map(|v| (0, v)),
        }
    }

    /// Calls `each` for the value of every prefix of `key`.
    pub fn matches<'a>(&'a self, key: K, mut each: impl FnMut(&'a V)) {
        self.default.iter().for_each(&mut each);
        let (mut next, mut at) = (self.root.as_ref(), 0);
        while let Some(child) = next {
            match child {
                Child::Node(node) if node.covers(key) => {
                    let mut hits = node.value_map & MATCHING[key.window(node.depth)];
                    while hits != 0 {
                        each(&node.values[node.value_rank(hits.trailing_zeros())]);
                        hits &= hits - 1;
                    }
                    (next, at) = (node.child(key), node.end());
                }
                Child::Node(_) => return,
                Child::Leaf(leaf) => return leaf.matches(key.tail(at), each),
            }
        }
    }

    /// Returns the value of exactly this prefix.
    pub fn get(&self, key: K, len: u8) -> Option<&V> {
        if len == 0 {
            return self.default.as_ref();
        }
        let (mut next, mut at) = (self.root.as_ref(), 0);
        while let Some(child) = next {
            match child {
                Child::Leaf(leaf) => return leaf.get(key.tail(at), len - at),
                Child::Node(node) if node.depth > depth_of(len) || !node.covers(key) => return None,
                Child::Node(node) if node.depth == depth_of(len) => {
                    let (_, rank, there) = node.place(key, len);
                    return there.then(|| &node.values[rank]);
                }
                Child::Node(node) => (next, at) = (node.child(key), node.end()),
            }
        }
        None
    }

    /// Returns the value of exactly this prefix, to change it. The path to it is copied if it is shared.
    pub fn get_mut(&mut self, key: K, len: u8) -> Option<&mut V> {
        self.get(key, len)?; // Copies nothing if it does not exist.
        if len == 0 {
            return self.default.as_mut();
        }
        let (mut next, mut at) = (self.root.as_mut()?, 0);
        loop {
            match next {
                Child::Leaf(leaf) => return Arc::make_mut(leaf).get_mut(key.tail(at), len - at),
                Child::Node(node) => {
                    let node = Arc::make_mut(node);
                    if node.depth == depth_of(len) {
                        let (_, rank, _) = node.place(key, len);
                        return Some(&mut node.values[rank]);
                    }
                    let (rank, _) = node.rank(key.window(node.depth));
                    at = node.end();
                    next = &mut node.children[rank];
                }
            }
        }
    }

    /// Sets the value of the first `len` bits of `key`; returns the previous one.
    pub fn insert(&mut self, key: K, len: u8, value: V) -> Option<V> {
        debug_assert!(len <= K::LEN);
        if len == 0 {
            return self.default.replace(value);
        }
        match &mut self.root {
            Some(root) => root.insert(0, key.head(len), len, value),
            None => {
                self.root = Some(Child::build(0, vec![(key.head(len), len, value)]));
                None
            }
        }
    }

    /// Removes exactly this prefix; returns its value.
    pub fn remove(&mut self, key: K, len: u8) -> Option<V> {
        self.get(key, len)?;
        if len == 0 {
            return self.default.take();
        }
        let root = self.root.as_mut()?;
        let value = root.remove(0, key, len);
        if root.len() == 0 {
            self.root = None;
        }
        value
    }
}

#[cfg(test)]
mod tests;
