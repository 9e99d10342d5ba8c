//! Values by network and prefix. There may be a million, most of IPv4: each family has a map of its own, so that a
//! prefix takes no more room than its family needs.

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt::{Debug, Formatter};

/// A map from prefixes, each of a network `N`. A clone is cheap, and a comparison of two costs only as much as their
/// difference.
#[derive(Clone)]
pub(crate) struct Prefixes<N, V> {
    v4: OrdMap<(N, Ipv4Net), V>,
    v6: OrdMap<(N, Ipv6Net), V>,
}

/// A difference between two maps, at one prefix. At least one of the values is there.
pub(crate) struct Difference<'a, N, V> {
    pub(crate) place: (N, IpNet),
    pub(crate) old: Option<&'a V>,
    pub(crate) new: Option<&'a V>,
}

impl<N, V> Default for Prefixes<N, V> {
    fn default() -> Self {
        Self { v4: OrdMap::new(), v6: OrdMap::new() }
    }
}

impl<N: Ord + Copy + Debug, V: Debug> Debug for Prefixes<N, V> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<N: Ord + Copy, V: PartialEq> PartialEq for Prefixes<N, V> {
    fn eq(&self, other: &Self) -> bool {
        self.changes_to(other).next().is_none()
    }
}

impl<N: Ord + Copy, V> Prefixes<N, V> {
    pub(crate) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Is true if both are one map, unchanged. If it is false, they may still be equal.
    pub(crate) fn ptr_eq(&self, other: &Self) -> bool {
        self.v4.ptr_eq(&other.v4) && self.v6.ptr_eq(&other.v6)
    }

    pub(crate) fn get(&self, &(network, prefix): &(N, IpNet)) -> Option<&V> {
        match prefix {
            IpNet::V4(prefix) => self.v4.get(&(network, prefix)),
            IpNet::V6(prefix) => self.v6.get(&(network, prefix)),
        }
    }

    pub(crate) fn contains_key(&self, place: &(N, IpNet)) -> bool {
        self.get(place).is_some()
    }

    /// Returns all values, by network, IPv4 before IPv6.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ((N, IpNet), &V)> {
        let mut v4 = self.v4.iter().map(|((network, prefix), value)| ((*network, IpNet::V4(*prefix)), value));
        let v6 = self.v6.iter().map(|((network, prefix), value)| ((*network, IpNet::V6(*prefix)), value));
        let (mut v6, mut next) = (v6.peekable(), v4.next());
        std::iter::from_fn(move || {
            let is_later = |((before, _), _): &((N, IpNet), &V)| next.is_none_or(|((of, _), _)| *before < of);
            v6.next_if(is_later).or_else(|| std::mem::replace(&mut next, v4.next()))
        })
    }

    /// Returns what differs in `new`, IPv4 first.
    pub(crate) fn changes_to<'a>(&'a self, new: &'a Self) -> impl Iterator<Item = Difference<'a, N, V>>
    where
        V: PartialEq,
    {
        let v4 = self.v4.diff(&new.v4).map(|item| difference(item, IpNet::V4));
        v4.chain(self.v6.diff(&new.v6).map(|item| difference(item, IpNet::V6)))
    }
}

impl<N: Ord + Copy, V: Clone> Prefixes<N, V> {
    pub(crate) fn insert(&mut self, (network, prefix): (N, IpNet), value: V) -> Option<V> {
        match prefix {
            IpNet::V4(prefix) => self.v4.insert((network, prefix), value),
            IpNet::V6(prefix) => self.v6.insert((network, prefix), value),
        }
    }

    pub(crate) fn remove(&mut self, &(network, prefix): &(N, IpNet)) -> Option<V> {
        match prefix {
            IpNet::V4(prefix) => self.v4.remove(&(network, prefix)),
            IpNet::V6(prefix) => self.v6.remove(&(network, prefix)),
        }
    }

    /// Returns the same in half the memory, if it was filled in order.
    pub(crate) fn packed(&self) -> Self {
        Self { v4: packed(&self.v4), v6: packed(&self.v6) }
    }
}

/// Copies a map. A node that is full is split in halves; so every other entry makes nodes that are half full, and those
/// between them fill these up.
fn packed<K: Ord + Clone, V: Clone>(map: &OrdMap<K, V>) -> OrdMap<K, V> {
    let half = |odd: usize| map.iter().skip(odd).step_by(2).map(|(key, value)| (key.clone(), value.clone()));
    let mut packed: OrdMap<K, V> = half(0).collect();
    half(1).for_each(|(key, value)| drop(packed.insert(key, value)));
    packed
}

fn difference<'a, N: Copy, P: Copy, V>(
    item: DiffItem<'a, 'a, (N, P), V>,
    net: impl Fn(P) -> IpNet,
) -> Difference<'a, N, V> {
    let ((network, prefix), old, new) = match item {
        DiffItem::Add(place, new) => (*place, None, Some(new)),
        DiffItem::Update { old: (_, old), new: (place, new) } => (*place, Some(old), Some(new)),
        DiffItem::Remove(place, old) => (*place, Some(old), None),
    };
    Difference { place: (network, net(prefix)), old, new }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn nets() -> impl Strategy<Value = BTreeMap<(u8, IpNet), u8>> {
        let v4 = (any::<[u8; 4]>(), 0..=32_u8).prop_map(|(addr, len)| IpNet::new(addr.into(), len).unwrap());
        let v6 =
            (any::<[u8; 16]>(), 0..=128_u8).prop_map(|(addr, len)| IpNet::new(addr.into(), len).unwrap());
        let net = prop_oneof![v4, v6].prop_map(|net| net.trunc());
        proptest::collection::btree_map((0..4_u8, net), 0..3_u8, 0..200)
    }

    fn filled(of: &BTreeMap<(u8, IpNet), u8>) -> Prefixes<u8, u8> {
        let mut all = Prefixes::default();
        for (place, value) in of {
            all.insert(*place, *value);
        }
        all
    }

    proptest! {
        #[test]
        fn it_is_a_map_in_order(one in nets(), two in nets()) {
            let (mut first, second) = (filled(&one), filled(&two));
            prop_assert!(first.iter().map(|(place, value)| (place, *value)).eq(one.clone()));
            prop_assert_eq!(first.len(), one.len());
            prop_assert_eq!(&first.packed(), &first);
            prop_assert_eq!(first == second, one == two);
            let copied = |of: Difference<'_, u8, u8>| (of.place, of.old.copied(), of.new.copied());
            let changes: Vec<_> = first.changes_to(&second).map(copied).collect();
            for (place, old, new) in changes {
                prop_assert_eq!(first.get(&place).copied(), old);
                match new {
                    Some(new) => prop_assert_eq!(first.insert(place, new), old),
                    None => prop_assert_eq!(first.remove(&place), old),
                }
            }
            prop_assert_eq!(first, second);
        }
    }
}
