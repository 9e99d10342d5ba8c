//! Attributes of routes, each kept once for all routes that share it.

use super::imports::{Imports, Networks};
use crate::bandwidth::Bandwidth;
use crate::names::{Encapsulation, RouteTarget};
use crate::route::{Mobility, VrfId};
use packet::Mac;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The number of attributes in the store.
pub(crate) type AttributesId = u32;

/// Everything that a route says besides its name and label, as far as it matters here. The size is bounded by the
/// host's imports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attributes {
    pub(crate) next_hop: IpAddr,
    pub(crate) way: Way,
    pub(crate) router_mac: Option<Mac>,
    pub(crate) mobility: Mobility,
    pub(crate) bandwidth: Option<Bandwidth>,
    /// LOCAL_PREF.
    pub(crate) preference: u32,
    /// The length of the AS path.
    pub(crate) path: u16,
    /// The AS at its beginning.
    pub(crate) neighbour: u32,
    pub(crate) origin: u8,
    /// MULTI_EXIT_DISC: none counts as 0.
    pub(crate) med: u32,
    /// Whether it comes from a different AS.
    pub(crate) external: bool,
    /// The identifier of the speaker that brought it into the AS.
    pub(crate) originator: Ipv4Addr,
    /// The length of the cluster list.
    pub(crate) clusters: u16,
    /// The route's targets, sorted: all that the host imports, and some others.
    pub(crate) targets: Box<[RouteTarget]>,
}

impl Attributes {
    /// Returns the remote of the tunnel, if packets go by one.
    pub(crate) fn remote(&self) -> Option<IpAddr> {
        matches!(self.way, Way::Tunnel(_)).then_some(self.next_hop)
    }
}

/// How packets go to the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    Tunnel(Encapsulation),
    /// By the network's own link: plain routes.
    Link {
        /// Whether they are default routes, which more networks take than others.
        is_default: bool,
        /// The router that sent them: only networks on whose link it is take them.
        router: IpAddr,
    },
}

/// All attributes in use.
#[derive(Debug, Default)]
pub(crate) struct Store {
    ids: HashMap<Arc<Attributes>, AttributesId>,
    entries: Vec<Entry>,
    free: Vec<AttributesId>,
    /// The remotes of tunnels, with the number of entries that name each.
    remotes: BTreeMap<IpAddr, u32>,
}

#[derive(Debug)]
struct Entry {
    attributes: Arc<Attributes>,
    networks: Networks,
    /// 0: the entry is free.
    users: u32,
}

/// The networks of all attributes before a change of imports.
#[derive(Debug)]
pub(crate) struct Before(Vec<Networks>);

impl Before {
    pub(crate) fn networks(&self, id: AttributesId) -> (&[VrfId], &[VrfId]) {
        let networks = &self.0[id as usize];
        (&networks.routes, &networks.macs)
    }
}

impl Store {
    /// Finds or keeps attributes, and adds a user.
    pub(crate) fn hold(&mut self, attributes: Attributes, imports: &Imports) -> AttributesId {
        if let Some(id) = self.ids.get(&attributes) {
            let id = *id;
            self.add(id);
            return id;
        }
        let networks = imports.networks(&attributes);
        if let Some(remote) = attributes.remote() {
            *self.remotes.entry(remote).or_default() += 1;
        }
        let attributes = Arc::new(attributes);
        let entry = Entry { attributes: attributes.clone(), networks, users: 1 };
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as AttributesId
            }
        };
        self.ids.insert(attributes, id);
        id
    }

    /// Adds a user.
    pub(crate) fn add(&mut self, id: AttributesId) {
        self.entries[id as usize].users += 1;
    }

    /// Removes a user, and attributes without one.
    pub(crate) fn release(&mut self, id: AttributesId) {
        let entry = &mut self.entries[id as usize];
        entry.users -= 1;
        if entry.users == 0 {
            self.ids.remove(&entry.attributes);
            self.free.push(id);
            if let Some(remote) = entry.attributes.remote()
                && let Some(entries) = self.remotes.get_mut(&remote)
            {
                *entries -= 1;
                if *entries == 0 {
                    self.remotes.remove(&remote);
                }
            }
        }
    }

    /// Returns the remotes of tunnels, with the number of attributes that name each.
    pub(crate) const fn remotes(&self) -> &BTreeMap<IpAddr, u32> {
        &self.remotes
    }

    pub(crate) fn get(&self, id: AttributesId) -> &Attributes {
        &self.entries[id as usize].attributes
    }

    /// Returns the networks that import routes with these attributes: as routes, and as MAC addresses and floods.
    pub(crate) fn networks(&self, id: AttributesId) -> (&[VrfId], &[VrfId]) {
        let networks = &self.entries[id as usize].networks;
        (&networks.routes, &networks.macs)
    }

    /// Follows other imports. Returns what held before.
    pub(crate) fn follow(&mut self, imports: &Imports) -> Before {
        let changed =
            |entry: &mut Entry| std::mem::replace(&mut entry.networks, imports.networks(&entry.attributes));
        Before(self.entries.iter_mut().map(changed).collect())
    }
}
