//! Nexthops by number. There may be a million tunnels that differ in their label alone, to few remotes: the rest of a
//! tunnel is there once, under a number of its own, and a nexthop is that number and the label.

use crate::dense::Dense;
use imbl::OrdMap;
use model::{Nexthop, NexthopId, Tunnel};
use std::borrow::Cow;
use std::fmt::{Debug, Formatter};

/// Tunnels without their labels, each with a number and the number of its users. A clone is cheap.
#[derive(Clone, Debug, Default)]
pub struct Tunnels {
    numbers: OrdMap<Tunnel, u32>,
    tunnels: OrdMap<u32, (Tunnel, u32)>,
    next: u32,
}

impl Tunnels {
    /// Returns the number of a tunnel, whatever its label.
    #[must_use]
    pub fn number(&self, of: &Tunnel) -> Option<u32> {
        self.numbers.get(&unlabelled(of)).copied()
    }

    /// Counts one more user of a tunnel, and returns its number.
    pub fn take(&mut self, of: &Tunnel) -> u32 {
        let tunnel = unlabelled(of);
        if let Some(number) = self.numbers.get(&tunnel) {
            self.tunnels.get_mut(number).into_iter().for_each(|(_, users)| *users += 1);
            return *number;
        }
        // Numbers in use are few, so one is found at once, also after four billion.
        while self.tunnels.contains_key(&self.next) || self.next >= OTHER {
            self.next = if self.next >= OTHER { 0 } else { self.next + 1 };
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(tunnel, number);
        self.tunnels.insert(number, (tunnel, 1));
        number
    }

    /// Counts one user of a tunnel less.
    pub fn put_back(&mut self, number: u32) {
        let Some((tunnel, users)) = self.tunnels.get_mut(&number) else { return };
        *users -= 1;
        if *users == 0 {
            self.numbers.remove(tunnel);
            self.tunnels.remove(&number);
        }
    }

    fn get(&self, number: u32, label: u32) -> Option<Tunnel> {
        self.tunnels.get(&number).map(|(tunnel, _)| Tunnel { id: label, ..*tunnel })
    }
}

const fn unlabelled(tunnel: &Tunnel) -> Tunnel {
    Tunnel { id: 0, ..*tunnel }
}

/// The nexthop is no tunnel, and so is kept elsewhere.
const OTHER: u32 = u32::MAX - 1;

/// The number of a tunnel, or one of these two, and the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    tunnel: u32,
    label: u32,
}

impl Default for Slot {
    fn default() -> Self {
        Self { tunnel: u32::MAX, label: 0 }
    }
}

/// Nexthops by number. A clone is cheap, and a comparison of two costs only as much as their difference.
#[derive(Clone, Default)]
pub struct Nexthops {
    slots: Dense<Slot>,
    tunnels: Tunnels,
    others: OrdMap<NexthopId, Nexthop>,
    len: usize,
}

impl Debug for Nexthops {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl PartialEq for Nexthops {
    fn eq(&self, other: &Self) -> bool {
        self.changes_to(other).next().is_none()
    }
}

impl Nexthops {
    /// Returns how many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether there is one with this number.
    #[must_use]
    pub fn contains(&self, id: NexthopId) -> bool {
        self.slots.get(id.0) != Slot::default()
    }

    /// Returns a nexthop.
    #[must_use]
    pub fn get(&self, id: NexthopId) -> Option<Cow<'_, Nexthop>> {
        self.at(id, self.slots.get(id.0))
    }

    fn at(&self, id: NexthopId, Slot { tunnel, label }: Slot) -> Option<Cow<'_, Nexthop>> {
        match tunnel {
            OTHER => self.others.get(&id).map(Cow::Borrowed),
            number => self.tunnels.get(number, label).map(|tunnel| Cow::Owned(Nexthop::Tunnel(tunnel))),
        }
    }

    /// Puts a nexthop in the place of the one with its number, which it returns.
    pub fn insert(&mut self, id: NexthopId, nexthop: Nexthop) -> Option<Nexthop> {
        let slot = match &nexthop {
            Nexthop::Tunnel(tunnel) => Slot { tunnel: self.tunnels.take(tunnel), label: tunnel.id },
            _ => Slot { tunnel: OTHER, label: 0 },
        };
        let old = self.release(id);
        if !matches!(nexthop, Nexthop::Tunnel(_)) {
            self.others.insert(id, nexthop);
        }
        self.slots.set(id.0, slot);
        self.len += 1;
        old
    }

    /// Removes a nexthop, and returns it.
    pub fn remove(&mut self, id: NexthopId) -> Option<Nexthop> {
        let old = self.release(id)?;
        self.slots.set(id.0, Slot::default());
        Some(old)
    }

    /// Gives back what belongs to a nexthop beside its slot.
    fn release(&mut self, id: NexthopId) -> Option<Nexthop> {
        let slot = self.slots.get(id.0);
        let old = self.at(id, slot)?.into_owned();
        match slot.tunnel {
            OTHER => drop(self.others.remove(&id)),
            number => self.tunnels.put_back(number),
        }
        self.len -= 1;
        Some(old)
    }

    /// Returns all nexthops, by number.
    pub fn iter(&self) -> impl Iterator<Item = (NexthopId, Cow<'_, Nexthop>)> {
        self.slots.iter().filter_map(|(number, slot)| {
            let id = NexthopId(number);
            Some((id, self.at(id, slot)?))
        })
    }

    /// Returns the nexthops that are no tunnels.
    pub fn others(&self) -> impl Iterator<Item = (NexthopId, &Nexthop)> {
        self.others.iter().map(|(id, nexthop)| (*id, nexthop))
    }

    /// Returns the tunnels, each once for all labels, and without one.
    pub fn tunnels(&self) -> impl Iterator<Item = &Tunnel> {
        self.tunnels.numbers.keys()
    }

    /// Returns whether both have the same tunnels, but for their labels.
    #[must_use]
    pub fn has_tunnels_of(&self, other: &Self) -> bool {
        self.tunnels.numbers.ptr_eq(&other.tunnels.numbers)
            || self.tunnels.numbers.keys().eq(other.tunnels.numbers.keys())
    }

    /// Returns the numbers whose nexthop differs in `to`, with the one before and the one there.
    #[allow(
        clippy::type_complexity,
        reason = "it is no longer than a struct that would be taken apart at once"
    )]
    pub fn changes_to<'a>(
        &'a self,
        to: &'a Self,
    ) -> impl Iterator<Item = (NexthopId, Option<Cow<'a, Nexthop>>, Option<Cow<'a, Nexthop>>)> {
        let are_numbered_alike = self.tunnels.numbers.ptr_eq(&to.tunnels.numbers);
        self.slots.changes_to(&to.slots).filter_map(move |(number, old, new)| {
            if are_numbered_alike && old == new && old.tunnel != OTHER {
                return None;
            }
            let id = NexthopId(number);
            let (old, new) = (self.at(id, old), to.at(id, new));
            (old != new).then_some((id, old, new))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{TunnelKind, VifId, Vrf};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn nexthop() -> impl Strategy<Value = Nexthop> {
        let kind = prop_oneof![Just(TunnelKind::MplsUdp), Just(TunnelKind::Vxlan)];
        let tunnel = (kind, 0..3_u8, 0..3_u32, proptest::option::of(Just(Default::default())));
        let tunnel = tunnel.prop_map(|(kind, host, id, mac)| {
            Nexthop::Tunnel(Tunnel { kind, remote: [192, 0, 2, host].into(), id, mac })
        });
        let other = prop_oneof![
            Just(Nexthop::Discard),
            (0..2_u16).prop_map(|vrf| Nexthop::VrfTranslate { vrf: Vrf(vrf) }),
            (0..2_u16).prop_map(|vif| Nexthop::Encap { vif: VifId(vif), mac: Default::default() }),
            proptest::collection::vec((0..3_u32).prop_map(NexthopId), 2..4).prop_map(Nexthop::Ecmp),
        ];
        prop_oneof![3 => tunnel, 1 => other]
    }

    proptest! {
        #[test]
        fn it_is_a_map(
            steps in proptest::collection::vec((0..200_u32, proptest::option::of(nexthop())), 1..80),
            cut in 0..80_usize,
        ) {
            let (mut all, mut model) = (Nexthops::default(), BTreeMap::new());
            let mut before = (all.clone(), model.clone());
            for (at, (id, new)) in steps.into_iter().enumerate() {
                if at == cut {
                    before = (all.clone(), model.clone());
                }
                let id = NexthopId(id);
                match new {
                    Some(new) => prop_assert_eq!(all.insert(id, new.clone()), model.insert(id, new)),
                    None => prop_assert_eq!(all.remove(id), model.remove(&id)),
                }
                let found = all.get(id);
                prop_assert_eq!(found.as_deref(), model.get(&id));
            }
            prop_assert!(all.iter().map(|(id, nexthop)| (id, nexthop.into_owned())).eq(model.clone()));
            prop_assert_eq!((all.len(), all.is_empty()), (model.len(), model.is_empty()));
            // A table that was made in another way is equal, though its tunnels have other numbers.
            let mut anew = Nexthops::default();
            for (id, nexthop) in model.iter().rev() {
                anew.insert(*id, nexthop.clone());
            }
            prop_assert_eq!(&anew, &all);
            let remotes: BTreeSet<_> = model.values().filter_map(Nexthop::remote).collect();
            prop_assert_eq!(all.tunnels().map(|tunnel| tunnel.remote).collect::<BTreeSet<_>>(), remotes);
            prop_assert!(all.has_tunnels_of(&anew));
            let (old, mut changed) = before;
            for (id, was, is) in old.changes_to(&all) {
                prop_assert_eq!((was.as_deref(), is.as_deref()), (changed.get(&id), model.get(&id)));
                match is {
                    Some(is) => drop(changed.insert(id, is.into_owned())),
                    None => drop(changed.remove(&id)),
                }
            }
            prop_assert_eq!(changed, model);
        }
    }
}
