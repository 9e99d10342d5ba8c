//! Routes of programs, such as a BGP speaker: for each network and prefix the paths that each *source* has. The best
//! are used. They are no objects of the configuration, and nobody stores them: who sends them sends them again.
//!
//! The rib keeps the nexthops of paths, not the paths: who gives them keeps each once.
//!
//! A clone is cheap, and a comparison of two costs only as much as their difference.

#![deny(unsafe_code)]

mod candidates;
mod paths;

pub use paths::{MAX_PATHS, Nexthops, Path, PathSet};

use candidates::{Candidate, Candidates};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use ipnet::{IpNet, Ipv4Net};
use model::{NexthopId, Vrf};
use std::ops::Bound;
use std::sync::Arc;

/// The network and prefix of a route.
pub type Place = (Vrf, IpNet);

/// Most sources.
const MAX_SOURCES: usize = 64;

/// The number of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(u8);

/// The reason why nothing of a request was done.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There are too many sources.
    #[error("there are {MAX_SOURCES} sources of routes already")]
    Sources,
    /// A source may not have so many routes.
    #[error(
        "source \"{source_name}\" may have {limit} routes, and would have {wanted}; raise its limit, or filter what it sends"
    )]
    Full {
        /// The source.
        source_name: Arc<str>,
        /// Most routes that it may have.
        limit: usize,
        /// Routes that it would have.
        wanted: usize,
    },
}

/// A party that has routes.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The source's name.
    pub name: Arc<str>,
    /// The rank of its routes: the lower one counts, and of two that are alike that of the source which is here longer.
    pub preference: u8,
    /// Most routes that it may have.
    pub limit: usize,
    /// The routes that it has.
    pub routes: usize,
    /// Counts its sessions. Routes of earlier ones are stale.
    session: u16,
    /// The session at whose end the stale ones were swept last.
    swept: u16,
}

/// All routes of all sources.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rib {
    routes: OrdMap<Place, Candidates>,
    sources: Vec<Source>,
}

impl Rib {
    /// Adds a source, or finds the one of that name and changes its limit.
    ///
    /// # Errors
    /// [`Error::Sources`].
    pub fn source(&mut self, name: &str, preference: u8, limit: usize) -> Result<SourceId, Error> {
        if let Some(at) = self.sources.iter().position(|source| *source.name == *name) {
            self.sources[at].limit = limit;
            return Ok(SourceId(at as u8));
        }
        if self.sources.len() == MAX_SOURCES {
            return Err(Error::Sources);
        }
        self.sources.push(Source { name: name.into(), preference, limit, routes: 0, session: 0, swept: 0 });
        Ok(SourceId((self.sources.len() - 1) as u8))
    }

    /// Returns the sources, in the order in which they came.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Returns the number of prefixes that have a route.
    #[must_use]
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Returns whether there are no routes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Returns the nexthop of each route of each source.
    pub fn nexthops(&self) -> impl Iterator<Item = NexthopId> {
        self.routes.values().flat_map(|known| known.iter().map(|candidate| candidate.nexthop))
    }

    /// Begins a session of a source: what it had is stale until it is sent again.
    pub fn begin(&mut self, source: SourceId) {
        let source = &mut self.sources[usize::from(source.0)];
        // A number comes again only after a sweep.
        if source.session.wrapping_sub(source.swept) < u16::MAX {
            source.session = source.session.wrapping_add(1);
        }
    }

    /// Notes that nothing of a source is stale any more.
    pub fn swept(&mut self, source: SourceId) {
        let source = &mut self.sources[usize::from(source.0)];
        source.swept = source.session;
    }

    /// Replaces (or withdraws, where there are none) the paths that a source has for prefixes of a network.
    ///
    /// # Errors
    /// [`Error::Full`]
    pub fn update<'a>(
        &mut self,
        of: SourceId,
        vrf: Vrf,
        routes: impl ExactSizeIterator<Item = (IpNet, Option<&'a PathSet>)>,
        nexthops: &mut dyn Nexthops,
    ) -> Result<(), Error> {
        let source = &self.sources[usize::from(of.0)];
        let (limit, wanted) = (source.limit, source.routes + routes.len());
        // Withdrawals, and routes that it has already, take no room, but who is so near to the limit may send one by one.
        if wanted > limit && routes.len() > 1 {
            return Err(Error::Full { source_name: source.name.clone(), limit, wanted });
        }
        for (prefix, paths) in routes {
            match paths {
                Some(paths) => self.put(of, (vrf, prefix.trunc()), paths, nexthops)?,
                None => self.withdraw(of, (vrf, prefix.trunc()), nexthops),
            }
        }
        Ok(())
    }

    fn put(
        &mut self,
        of: SourceId,
        place: Place,
        paths: &PathSet,
        nexthops: &mut dyn Nexthops,
    ) -> Result<(), Error> {
        let source = &self.sources[usize::from(of.0)];
        let (known, session) = (self.routes.get(&place), source.session);
        let old = known.and_then(|known| known.of(of));
        if old.is_none() && source.routes >= source.limit {
            let (limit, wanted) = (source.limit, source.routes + 1);
            return Err(Error::Full { source_name: source.name.clone(), limit, wanted });
        }
        let new = Candidate { nexthop: nexthops.take(paths), session, source: of };
        if let Some(old) = old {
            nexthops.put_back(old.nexthop);
        } else {
            self.sources[usize::from(of.0)].routes += 1;
        }
        if old == Some(new) {
            return Ok(());
        }
        let ranks = |candidate: &Candidate| self.sources[usize::from(candidate.source.0)].preference;
        let candidates = match known {
            Some(known) => known.with(new, ranks),
            None => Candidates::One(new),
        };
        self.routes.insert(place, candidates);
        Ok(())
    }

    fn withdraw(&mut self, of: SourceId, place: Place, nexthops: &mut dyn Nexthops) {
        let Some(known) = self.routes.get(&place) else { return };
        let Some(old) = known.of(of) else { return };
        match known.without(of) {
            Some(others) => drop(self.routes.insert(place, others)),
            None => drop(self.routes.remove(&place)),
        }
        self.sources[usize::from(of.0)].routes -= 1;
        nexthops.put_back(old.nexthop);
    }

    /// Returns stale routes of a source, the first behind a place.
    #[must_use]
    pub fn stale(&self, of: SourceId, after: Option<Place>, most: usize) -> Vec<Place> {
        let session = self.sources[usize::from(of.0)].session;
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.routes.range((first, Bound::Unbounded));
        let is_stale =
            |known: &Candidates| known.of(of).is_some_and(|candidate| candidate.session != session);
        all.filter(|(_, known)| is_stale(known)).map(|(place, _)| *place).take(most).collect()
    }

    /// Withdraws those of the routes at these places that are still stale, and returns how many.
    pub fn sweep(&mut self, of: SourceId, places: &[Place], nexthops: &mut dyn Nexthops) -> usize {
        let source = &self.sources[usize::from(of.0)];
        let (session, before) = (source.session, source.routes);
        for place in places {
            let candidate = self.routes.get(place).and_then(|known| known.of(of));
            if candidate.is_some_and(|candidate| candidate.session != session) {
                self.withdraw(of, *place, nexthops);
            }
        }
        before - self.sources[usize::from(of.0)].routes
    }

    /// Returns whether a network has routes.
    #[must_use]
    pub fn has_network(&self, vrf: Vrf) -> bool {
        self.routes.range(first_of(vrf)..).next().is_some_and(|((of, _), _)| *of == vrf)
    }

    /// Removes the routes of networks that are not kept.
    pub fn retain(&mut self, is_kept: impl Fn(Vrf) -> bool, nexthops: &mut dyn Nexthops) {
        let mut next = Some(Vrf(0));
        while let Some(from) = next {
            let Some(vrf) = self.routes.range(first_of(from)..).next().map(|((vrf, _), _)| *vrf) else {
                return;
            };
            if !is_kept(vrf) {
                let all = self.routes.range(first_of(vrf)..).take_while(|((of, _), _)| *of == vrf);
                let all: Vec<_> =
                    all.flat_map(|(place, known)| known.iter().map(|one| (*place, one.source))).collect();
                all.into_iter().for_each(|(place, source)| self.withdraw(source, place, nexthops));
            }
            next = vrf.0.checked_add(1).map(Vrf);
        }
    }

    /// Returns the best route at a place: its nexthop, and whose it is.
    #[must_use]
    pub fn best(&self, place: &Place) -> Option<(NexthopId, &Source)> {
        self.routes.get(place).map(|known| self.best_of(known))
    }

    fn best_of(&self, known: &Candidates) -> (NexthopId, &Source) {
        let best = known.best();
        (best.nexthop, &self.sources[usize::from(best.source.0)])
    }

    /// Returns the routes of a source, by place.
    pub fn of(&self, source: SourceId) -> impl Iterator<Item = (Place, NexthopId)> {
        self.routes.iter().filter_map(move |(place, known)| known.of(source).map(|one| (*place, one.nexthop)))
    }

    /// Returns the best routes, by place.
    pub fn iter(&self) -> impl Iterator<Item = (Place, NexthopId, &Source)> {
        self.routes.iter().map(|(place, known)| {
            let (nexthop, source) = self.best_of(known);
            (*place, nexthop, source)
        })
    }

    /// Returns the places whose best nexthop differs in `to`, with that one.
    pub fn changes_to<'a>(&'a self, to: &'a Self) -> impl Iterator<Item = (Place, Option<NexthopId>)> + 'a {
        self.routes.diff(&to.routes).filter_map(|item| {
            let (place, old, new) = match item {
                DiffItem::Add(place, new) => (place, None, Some(new)),
                DiffItem::Update { old: (place, old), new: (_, new) } => (place, Some(old), Some(new)),
                DiffItem::Remove(place, old) => (place, Some(old), None),
            };
            let [old, new] = [old, new].map(|known| known.map(|known| known.best().nexthop));
            (old != new).then_some((*place, new))
        })
    }
}

/// Returns the first place of a network.
fn first_of(vrf: Vrf) -> Place {
    (vrf, IpNet::V4(Ipv4Net::default()))
}
