//! The routes that somebody wrote. There may be a million, so none has memory of its own for what others have as well:
//! its network, its owner and its targets. A route to one tunnel has its label beside it, since there may be a label for
//! each route.

use super::{Owned, Owner};
use crate::prefixes::Prefixes;
use config::{Key, Kind, Object, Route, Target, Tunnel};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use ipnet::IpNet;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

/// The part of a route that many routes have in common.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Common {
    pub(crate) owner: Owner,
    /// The targets. A tunnel that is the only one has no label here.
    pub(crate) to: Vec<Target>,
}

/// A route as it is kept, under its network and prefix.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) common: Arc<Common>,
    /// Place among others, and in the low bits the label: a million of these should be small.
    seq_and_label: u64,
}

/// Bits of a label, or of a VXLAN network identifier.
const LABEL: u32 = 24;

/// The targets of a route.
pub(crate) enum RouteTargets<'a> {
    Tunnel(Target),
    All(&'a [Target]),
}

impl Deref for RouteTargets<'_> {
    type Target = [Target];

    fn deref(&self) -> &[Target] {
        match self {
            Self::Tunnel(target) => std::slice::from_ref(target),
            Self::All(targets) => targets,
        }
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.seq() == other.seq() && self.is_like(other)
    }
}

impl Kept {
    /// Makes a route. Places beyond 2^40 are all the last one, so routes that come so late are listed by prefix.
    pub(crate) fn new(owner: Owner, mut to: Vec<Target>, seq: u64) -> Self {
        let label = match &mut to[..] {
            [Target::Tunnel(tunnel)] => std::mem::take(&mut tunnel.id),
            _ => 0,
        };
        let seq_and_label = seq.min(u64::MAX >> LABEL) << LABEL | u64::from(label);
        Self { common: Arc::new(Common { owner, to }), seq_and_label }
    }

    /// Returns the place among other routes.
    pub(crate) const fn seq(&self) -> u64 {
        self.seq_and_label >> LABEL
    }

    /// Returns the label of the only tunnel, or 0.
    pub(crate) const fn label(&self) -> u32 {
        (self.seq_and_label & ((1 << LABEL) - 1)) as u32
    }

    pub(crate) fn to(&self) -> RouteTargets<'_> {
        match self.common.to[..] {
            [Target::Tunnel(ref tunnel)] => {
                RouteTargets::Tunnel(Target::Tunnel(Tunnel { id: self.label(), ..tunnel.clone() }))
            }
            ref all => RouteTargets::All(all),
        }
    }

    /// Returns the same with an equal common part.
    pub(crate) fn with(self, common: Arc<Common>) -> Self {
        Self { common, ..self }
    }

    /// Is true if owner and targets are the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let is_same = Arc::ptr_eq(&self.common, &other.common) || self.common == other.common;
        is_same && self.label() == other.label()
    }
}

/// A route, with its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written<'a> {
    pub(crate) network: &'a Arc<str>,
    pub(crate) prefix: IpNet,
    pub(crate) kept: &'a Kept,
}

impl<'a> Written<'a> {
    pub(crate) fn to(self) -> RouteTargets<'a> {
        self.kept.to()
    }

    pub(crate) fn owner(self) -> &'a Owner {
        &self.kept.common.owner
    }

    pub(crate) fn key(self) -> Key {
        route_key(self.network, self.prefix)
    }

    pub(crate) fn object(self) -> Object {
        Route { network: self.network.as_ref().to_owned(), prefix: self.prefix, to: self.to().to_vec() }
            .into()
    }

    pub(crate) fn owned(self) -> Owned {
        Owned { owner: self.owner().clone(), seq: self.kept.seq(), object: self.object() }
    }
}

/// Returns the key of a route.
pub(crate) fn route_key(network: &str, prefix: IpNet) -> Key {
    Key { kind: Kind::Route, network: Some(network.to_owned()), name: prefix.to_string() }
}

/// Returns network and prefix of a route from its key; `None` if it is the key of something else.
pub(crate) fn place_of(key: &Key) -> Option<(&str, IpNet)> {
    let network = key.network.as_deref().filter(|_| key.kind == Kind::Route)?;
    Some((network, key.name.parse().ok()?))
}

/// The routes of a network, which are compared by place in memory: a difference is looked for in them.
#[derive(Clone, Debug, Default)]
struct OfNetwork(Prefixes<(), Kept>);

impl PartialEq for OfNetwork {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

/// A difference between two sets of routes, at one place. At least one of the two is there.
pub(super) struct RouteDifference<'a> {
    pub(super) network: &'a Arc<str>,
    pub(super) prefix: IpNet,
    pub(super) old: Option<&'a Kept>,
    pub(super) new: Option<&'a Kept>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    networks: OrdMap<Arc<str>, OfNetwork>,
    /// The parts that routes have in common, with the number of routes.
    commons: OrdMap<Arc<Common>, u32>,
    len: usize,
}

impl Routes {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, network: &str, prefix: IpNet) -> Option<Written<'_>> {
        let (network, of) = self.networks.get_key_value(network)?;
        Some(Written { network, prefix, kept: of.0.get(&((), prefix))? })
    }

    /// Puts a route in the place of another one, if there is one.
    pub(super) fn put(&mut self, network: &str, prefix: IpNet, kept: Kept) {
        let common = match self.commons.get_key_value_mut(&*kept.common) {
            Some((known, count)) => {
                *count += 1;
                known.clone()
            }
            None => {
                self.commons.insert(kept.common.clone(), 1);
                kept.common.clone()
            }
        };
        let kept = kept.with(common);
        let old = match self.networks.get_mut(network) {
            Some(of) => of.0.insert(((), prefix), kept),
            None => {
                let of = self.networks.entry(network.into()).or_default();
                of.0.insert(((), prefix), kept)
            }
        };
        match old {
            Some(old) => self.release(&old),
            None => self.len += 1,
        }
    }

    pub(super) fn remove(&mut self, network: &str, prefix: IpNet) -> bool {
        let Some(of) = self.networks.get_mut(network) else { return false };
        let Some(old) = of.0.remove(&((), prefix)) else { return false };
        if of.0.is_empty() {
            self.networks.remove(network);
        }
        self.len -= 1;
        self.release(&old);
        true
    }

    /// Counts one route less that has this in common with others.
    fn release(&mut self, gone: &Kept) {
        if let Some(count) = self.commons.get_mut(&*gone.common) {
            *count -= 1;
            if *count == 0 {
                self.commons.remove(&*gone.common);
            }
        }
    }

    /// Returns all routes, by network and prefix.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Written<'_>> {
        self.networks.iter().flat_map(|(network, of)| written(network, of))
    }

    /// Returns the routes of a network, by prefix.
    pub(crate) fn of_network(&self, network: &str) -> impl Iterator<Item = Written<'_>> {
        self.networks.get_key_value(network).into_iter().flat_map(|(network, of)| written(network, of))
    }

    /// Returns the names of networks that have routes.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &Arc<str>> {
        self.networks.keys()
    }

    /// Returns what routes have in common, with their number.
    pub(crate) fn commons(&self) -> impl Iterator<Item = (&Arc<Common>, u32)> {
        self.commons.iter().map(|(common, count)| (common, *count))
    }

    /// Returns what differs in `new`, by network and prefix.
    pub(super) fn changes_to<'a>(&'a self, new: &'a Self) -> impl Iterator<Item = RouteDifference<'a>> {
        static NOTHING: LazyLock<OfNetwork> = LazyLock::new(OfNetwork::default);
        let nothing: &'static OfNetwork = &NOTHING;
        self.networks.diff(&new.networks).flat_map(move |item| {
            let (network, old, new) = match item {
                DiffItem::Add(network, new) => (network, None, Some(new)),
                DiffItem::Update { old: (_, old), new: (network, new) } => (network, Some(old), Some(new)),
                DiffItem::Remove(network, old) => (network, Some(old), None),
            };
            let side = |of: Option<&'a OfNetwork>| of.unwrap_or(nothing);
            side(old).0.changes_to(&side(new).0).map(move |of| RouteDifference {
                network,
                prefix: of.place.1,
                old: of.old,
                new: of.new,
            })
        })
    }

    /// Takes half the memory, if the routes came in order.
    pub(super) fn pack(&mut self) {
        let networks = self.networks.iter();
        self.networks = networks.map(|(name, of)| (name.clone(), OfNetwork(of.0.packed()))).collect();
    }
}

fn written<'a>(network: &'a Arc<str>, of: &'a OfNetwork) -> impl Iterator<Item = Written<'a>> {
    of.0.iter().map(move |((_, prefix), kept)| Written { network, prefix, kept })
}
