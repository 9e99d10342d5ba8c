//! The names behind the numbers in the tables, and what identifies each interface, in the form that the next
//! daemon reads.

use crate::compile::Desired;
use ipnet::IpNet;
use model::{Vif, VifId, VifKind, Vrf};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Networks and interfaces of some tables. During a change it has both the old and the new ones. That is
/// unambiguous: a number that comes free is given to a new interface only in a later change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Directory {
    networks: BTreeSet<(u16, String)>,
    vifs: BTreeSet<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Entry {
    id: u16,
    name: String,
    /// Number of its network; `None` for a wire.
    network: Option<u16>,
    /// Identifies the interface besides name and network: the MAC, or its addresses if it has no MAC. Empty
    /// for a wire.
    identity: String,
    addresses: Vec<IpAddr>,
    allowed: Vec<IpNet>,
}

impl Entry {
    fn of(vif: &Vif) -> Self {
        let identity = match (vif.kind, vif.mac) {
            (VifKind::Wire | VifKind::Tunnel(_), _) => String::new(),
            (_, Some(mac)) => mac.to_string(),
            (_, None) => vif.addresses.iter().map(|addr| format!("{addr} ")).collect(),
        };
        Self {
            id: vif.id.0,
            name: vif.name.to_string(),
            network: vif.vrf.map(|vrf| vrf.0),
            identity,
            addresses: vif.addresses.clone(),
            allowed: vif.allowed.clone(),
        }
    }
}

impl Directory {
    pub(crate) fn of(tables: &Desired) -> Self {
        let networks = tables.networks.values().map(|network| (network.vrf.0, network.name.to_string()));
        let is_here = |vif: &&Vif| !matches!(vif.kind, VifKind::Mirror(_));
        Self {
            networks: networks.collect(),
            vifs: tables.vifs.values().filter(is_here).map(Entry::of).collect(),
        }
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        self.networks.extend(other.networks);
        self.vifs.extend(other.vifs);
        self
    }

    /// Returns the name of a network, unless two networks have the number.
    fn network(&self, number: u16) -> Option<&str> {
        let mut named = self.networks.range((number, String::new())..).take_while(|(n, _)| *n == number);
        named.next().filter(|_| named.next().is_none()).map(|(_, name)| &**name)
    }

    /// Returns the identity of an interface, independent of its number: name, network, and MAC or addresses.
    fn who(&self, entry: &Entry) -> Option<Who> {
        let network = match entry.network {
            Some(number) => self.network(number)?,
            None => "",
        };
        Some(format!("{} {network} {}", entry.name, entry.identity).into())
    }

    fn all(&self) -> impl Iterator<Item = (Who, &Entry)> {
        self.vifs.iter().filter_map(|entry| Some((self.who(entry)?, entry)))
    }
}

type Who = Arc<str>;

/// The interfaces to which addresses belong.
#[derive(Default)]
struct Owners {
    hosts: HashMap<(Vrf, IpAddr), BTreeSet<Who>>,
    nets: Vec<(Vrf, IpNet, Who)>,
}

impl Owners {
    fn of(directory: &Directory) -> Self {
        let mut owners = Self::default();
        for (who, entry) in directory.all() {
            let Some(vrf) = entry.network.map(Vrf) else { continue };
            for addr in &entry.addresses {
                owners.hosts.entry((vrf, *addr)).or_default().insert(who.clone());
            }
            owners.nets.extend(entry.allowed.iter().map(|net| (vrf, *net, who.clone())));
        }
        owners
    }

    fn at(&self, vrf: Vrf, addr: IpAddr) -> BTreeSet<Who> {
        match self.hosts.get(&(vrf, addr)) {
            Some(owners) => owners.clone(),
            None => {
                let within = self.nets.iter().filter(|(of, net, _)| *of == vrf && net.contains(&addr));
                within.map(|(.., who)| who.clone()).collect()
            }
        }
    }
}

/// A translation from the previous daemon's numbers to this one's.
pub(crate) struct Translation {
    networks: HashMap<Vrf, Vrf>,
    vifs: HashMap<VifId, VifId>,
    before: Owners,
    now: Owners,
    /// Networks, by their present number, with guests that may have any address and were not there before.
    open: BTreeSet<Vrf>,
}

impl Translation {
    pub(crate) fn new(before: &Directory, now: &Directory) -> Self {
        let named: HashMap<_, _> =
            now.networks.iter().map(|(number, name)| (&**name, Vrf(*number))).collect();
        let networks = before.networks.iter().filter_map(|(number, _)| {
            let same = named.get(before.network(*number)?)?;
            Some((Vrf(*number), *same))
        });
        let here: HashMap<_, _> = now.all().map(|(who, entry)| (who, VifId(entry.id))).collect();
        let vifs = before.all().filter_map(|(who, entry)| Some((VifId(entry.id), *here.get(&who)?)));
        let known: BTreeSet<_> = before.all().map(|(who, _)| who).collect();
        let is_open = |entry: &Entry| entry.addresses.is_empty();
        let open = now.all().filter(|(who, entry)| is_open(entry) && !known.contains(who));
        Self {
            networks: networks.collect(),
            vifs: vifs.collect(),
            before: Owners::of(before),
            now: Owners::of(now),
            open: open.filter_map(|(_, entry)| entry.network.map(Vrf)).collect(),
        }
    }

    pub(crate) fn network(&self, was: Vrf) -> Option<Vrf> {
        self.networks.get(&was).copied()
    }

    /// Returns the present number of an interface, if it still exists and is the same.
    pub(crate) fn vif(&self, was: VifId) -> Option<VifId> {
        self.vifs.get(&was).copied()
    }

    /// Is true if each present owner of an address also had it before. If the address has no known owner now,
    /// it must have had none before, and no new guest may use any address.
    pub(crate) fn is_same_host(&self, was: Vrf, addr: IpAddr) -> bool {
        let Some(vrf) = self.network(was) else { return false };
        let (before, now) = (self.before.at(was, addr), self.now.at(vrf, addr));
        if now.is_empty() { before.is_empty() && !self.open.contains(&vrf) } else { now.is_subset(&before) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
