//! The driver: keeps a card's tables equal to the model's, and its flows to the host's decisions.
//!
//! A change of the tables is applied key by key: the current value of each affected key is compared with the card's.
//! The order is safe at every moment: nexthops are written before anything refers to them; flows become invalid before
//! the tables change on which they depend; lines without references are reused only after a barrier.

mod decided;
mod flowtable;
mod held;
mod hops;
mod takeover;
mod touched;
mod usage;

use crate::budget::Budgets;
use crate::commands::Commands;
use crate::compile::{
    ALL_VRFS, Attachment, Attachments, Compiler, Hop, LabelEntry, MacEntry, VRFS, mac_bits, remote,
    remote_places,
};
use crate::cuckoo::Cuckoo;
use crate::frame::Key;
use crate::registers::{self, Bridge, Label, LabelKind, Port, Remote, Table, Vni};
use crate::route6::Routes6;
use crate::step::Step;
use crate::trie::Trie;
use crate::{Card, CardError, hold};
use flowtable::FlowTable;
pub use flowtable::Refused;
use hops::Hops;
use ipnet::IpNet;
use model::{Change, Lookup, NeighbourScope, VifId, Vrf};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use touched::{Configured, Touched};
use usage::Seen;
pub use usage::Usage;

/// Number of pages of 256 KiB for IPv4 routes: the lower half of the route memory, 2 GiB.
const PAGES: u32 = 8192;

/// The contents of the card's tables, except flows.
#[derive(Debug, Default)]
struct Image {
    ports: BTreeMap<VifId, (u16, Port)>,
    vrfs: BTreeMap<u16, registers::Vrf>,
    macs: BTreeMap<(Vrf, Mac), MacEntry>,
    routes: BTreeMap<(Vrf, IpNet), Hop>,
    labels: BTreeMap<u32, LabelEntry>,
    /// VNIs and their networks, by place.
    vnis: BTreeMap<u32, (u32, u16)>,
    /// Remotes by place.
    remotes: BTreeMap<u32, IpAddr>,
}

/// Drives a card, and knows the contents of its tables.
pub struct Driver<C> {
    commands: Commands<C>,
    attachments: Arc<Attachments>,
    configured: Configured,
    image: Image,
    hops: Hops,
    bridge: Cuckoo<Bridge>,
    trie: Trie,
    routes6: Routes6,
    flows: FlowTable,
    /// Hold groups without flows.
    groups: hold::Free,
    seen: Seen,
    /// Networks whose routes do not all fit. The host handles them until they are deleted.
    spilled: BTreeSet<u16>,
}

impl<C: Card> Driver<C> {
    /// Takes over a card. Clears its tables, unless it is declared blank ([`Commands::with_blank_memory`]); this takes
    /// some seconds, because the flow table is large. `secret` is that of the tables' hash and must be random.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn new(mut commands: Commands<C>, secret: [u64; 5]) -> Result<Self, CardError> {
        let identity = *commands.identity();
        commands.enable(false);
        takeover::clear(&mut commands)?;
        commands.set_secret(&secret);
        commands.set_budgets(Budgets::default());
        commands.write(Table::Nexthop, hops::HOST, &registers::Nexthop::default().encode())?;
        commands.enable(true);
        Ok(Self {
            commands,
            attachments: Arc::default(),
            configured: Configured::default(),
            image: Image::default(),
            hops: Hops::new(identity.nexthops),
            bridge: Cuckoo::new(identity.bridge_lines, secret),
            trie: Trie::new(PAGES),
            routes6: Routes6::new(identity.route6_lines, secret),
            flows: FlowTable::new(&identity, secret),
            seen: Seen::default(),
            groups: hold::Free::default(),
            spilled: BTreeSet::new(),
        })
    }

    /// Returns the card, for access to its registers.
    pub const fn commands(&mut self) -> &mut Commands<C> {
        &mut self.commands
    }

    /// Gives up the card, and leaves it as it is.
    #[must_use]
    pub fn into_commands(self) -> Commands<C> {
        self.commands
    }

    pub fn compiler<'a, T>(&'a self, tables: &'a T) -> Compiler<'a, T> {
        Compiler { tables, attachments: &self.attachments }
    }

    /// Iterates over the networks that the host handles because their routes do not fit.
    pub fn spilled(&self) -> impl Iterator<Item = Vrf> {
        self.spilled.iter().map(|vrf| Vrf(*vrf))
    }

    /// Applies a batch of changes to the card; `tables` must already have them. When this returns, no removed entry
    /// forwards packets any more.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn apply<T: Lookup>(&mut self, tables: &T, changes: &[Change]) -> Result<(), CardError> {
        let mut touched = Touched::default();
        for change in changes {
            self.configured.note(tables, change, &mut touched);
        }
        self.update(tables, touched)
    }

    /// Attaches an interface to the card, or detaches it.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn attach<T: Lookup>(
        &mut self,
        tables: &T,
        vif: VifId,
        at: Option<Attachment>,
    ) -> Result<(), CardError> {
        set(Arc::make_mut(&mut self.attachments), vif, at);
        let mut touched = Touched::default();
        self.configured.note_vif(vif, tables.vif(vif), &mut touched);
        self.update(tables, touched)
    }

    /// Updates the card after a MAC was learned, moved or forgotten.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn learned<T: Lookup>(&mut self, tables: &T, vrf: Vrf, mac: Mac) -> Result<(), CardError> {
        let touched = Touched { macs: [(vrf, mac)].into(), bump_far: true, ..Touched::default() };
        self.update(tables, touched)
    }

    /// Updates the card after a neighbour was found, moved or forgotten, or, in the underlay, the path MTU to a remote
    /// changed.
    ///
    /// # Errors
    /// If the card hangs.
    pub fn neighbour<T: Lookup>(&mut self, tables: &T, scope: NeighbourScope) -> Result<(), CardError> {
        let underlay = matches!(scope, NeighbourScope::Wire(_));
        self.update(tables, Touched { lines: underlay, bump_far: !underlay, ..Touched::default() })
    }

    fn update<T: Lookup>(&mut self, tables: &T, mut touched: Touched) -> Result<(), CardError> {
        touched.complete(&self.configured, &self.image);
        let attachments = self.attachments.clone();
        let compiler = Compiler { tables, attachments: &attachments };
        if touched.lines {
            for (number, line) in self.hops.rewritten(compiler) {
                self.change_nexthop(number, &line)?;
            }
        }
        self.bump(&touched)?;
        for vrf in &touched.vrfs {
            self.add_network(compiler, *vrf)?;
        }
        self.routes(compiler, &touched, true)?;
        self.macs(compiler, &touched)?;
        self.vrf_lines(compiler, &touched.vrfs)?;
        // Packets under way may not know a new prefix length: they must not miss a longer one that is removed.
        self.barrier()?;
        self.routes(compiler, &touched, false)?;
        self.vrf_lines(compiler, &touched.vrfs)?;
        self.labels(compiler, &touched)?;
        self.vnis(compiler, &touched)?;
        self.remotes(compiler, &touched)?;
        self.ports(compiler, &touched)?;
        if touched.lines {
            for (number, line) in self.hops.waiting() {
                self.change_nexthop(number, &line)?;
            }
        }
        self.barrier()?;
        for vrf in &touched.vrfs {
            self.drop_network(compiler, *vrf)?;
        }
        Ok(())
    }

    fn ports<T: Lookup>(&mut self, compiler: Compiler<'_, T>, touched: &Touched) -> Result<(), CardError> {
        let now: Vec<_> = touched.vifs.iter().map(|id| (*id, compiler.port(*id))).collect();
        for (id, port) in &now {
            if let Some((number, _)) = self.image.ports.get(id)
                && port.is_none_or(|(now, _)| now != *number)
            {
                self.commands.write(Table::Port, (*number).into(), &Port::default().encode())?;
                self.image.ports.remove(id);
            }
        }
        for (id, port) in now {
            let Some((number, line)) = port else { continue };
            if line.exact {
                // The port has a network of its own, with nothing but flows.
                let generation = self.flows.generation(line.vrf);
                let lengths6 = u128::MAX;
                let vrf = registers::Vrf { valid: true, generation, lengths6, ..Default::default() };
                self.vrf_line(line.vrf, vrf)?;
            }
            if self.image.ports.insert(id, (number, line)) != port {
                self.commands.write(Table::Port, number.into(), &line.encode())?;
            }
        }
        Ok(())
    }

    fn labels<T: Lookup>(&mut self, compiler: Compiler<'_, T>, touched: &Touched) -> Result<(), CardError> {
        for label in &touched.labels {
            let (old, new) = (self.image.labels.get(label).copied(), compiler.label(*label));
            if old == new {
                continue;
            }
            let line = match new {
                None => Label::default(),
                Some(LabelEntry { vrf, hop: None }) => {
                    Label { kind: LabelKind::Vrf as u8, vrf, ..Label::default() }
                }
                Some(LabelEntry { vrf, hop: Some(hop) }) => {
                    Label { kind: LabelKind::Nexthop as u8, vrf, nexthop: self.acquire(compiler, hop)? }
                }
            };
            self.commands.write(Table::Label, *label, &line.encode())?;
            self.release(old.and_then(|entry| entry.hop));
            set(&mut self.image.labels, *label, new);
        }
        Ok(())
    }

    /// Updates VNIs. Each has two places; if both are taken, the VNI is left to the host.
    fn vnis<T: Lookup>(&mut self, compiler: Compiler<'_, T>, touched: &Touched) -> Result<(), CardError> {
        for &vni in &touched.vnis {
            let places = [vni & 0xfff, 1 << 12 | (vni ^ vni >> 12) & 0xfff];
            let taken = |place: &u32| self.image.vnis.get(place).map(|(vni, _)| *vni);
            let known = places.into_iter().find(|place| taken(place) == Some(vni));
            let free = places.into_iter().find(|place| taken(place).is_none());
            let Some(place) = known.or(free) else { continue };
            let (old, new) = (self.image.vnis.get(&place).copied(), compiler.vni(vni).map(|vrf| (vni, vrf)));
            if old == new {
                continue;
            }
            let line = new.map_or_else(Vni::default, |(vni, vrf)| Vni { vni, vrf, valid: true });
            self.commands.write(Table::Vni, place, &line.encode())?;
            set(&mut self.image.vnis, place, new);
        }
        Ok(())
    }

    /// Updates remotes. Each has two places; if both are taken, packets of the remote are left to the host.
    fn remotes<T: Lookup>(&mut self, compiler: Compiler<'_, T>, touched: &Touched) -> Result<(), CardError> {
        for &addr in &touched.remotes {
            let places = remote_places(addr);
            let taken = |place: &u32| self.image.remotes.get(place).copied();
            let known = places.into_iter().find(|place| taken(place) == Some(addr));
            let free = places.into_iter().find(|place| taken(place).is_none());
            let (line, place) = match (known, compiler.tables.is_remote(addr)) {
                (Some(place), false) => (Remote::default(), Some(place)),
                (None, true) => (remote(addr), free),
                _ => continue,
            };
            let Some(place) = place else { continue };
            self.commands.write(Table::Remote, place, &line.encode())?;
            set(&mut self.image.remotes, place, line.valid.then_some(addr));
        }
        Ok(())
    }

    fn macs<T: Lookup>(&mut self, compiler: Compiler<'_, T>, touched: &Touched) -> Result<(), CardError> {
        for &(vrf, mac) in &touched.macs {
            let (old, new) = (self.image.macs.get(&(vrf, mac)).copied(), compiler.mac_entry(vrf, mac));
            if old == new {
                continue;
            }
            let blank = Bridge { mac: mac_bits(mac), vrf: vrf.0, valid: true, ..Bridge::default() };
            let mut kept = new;
            let steps = match new {
                None => self.bridge.remove(&crate::cuckoo::Entry::key(&blank)),
                Some(MacEntry { hop, fixed, at_tunnel, at }) => {
                    let nexthop = self.acquire(compiler, hop)?;
                    let entry = Bridge { fixed, nexthop, at_tunnel, at, ..blank };
                    self.bridge.insert(entry).unwrap_or_else(|_full| {
                        // A MAC without an entry is left to the host.
                        self.hops.release(hop);
                        kept = None;
                        Vec::new()
                    })
                }
            };
            self.run(&steps)?;
            self.release(old.map(|entry| entry.hop));
            set(&mut self.image.macs, (vrf, mac), kept);
        }
        Ok(())
    }

    /// Updates routes. Writes new ones from the longest prefix to the shortest, and removes old ones in the opposite
    /// order, so that each packet takes either the old or the new route. A removed network keeps its routes until its
    /// line is gone.
    fn routes<T: Lookup>(
        &mut self,
        compiler: Compiler<'_, T>,
        touched: &Touched,
        put: bool,
    ) -> Result<(), CardError> {
        let kept = touched.routes.iter().filter(|(vrf, _)| compiler.vrf(*vrf).is_some());
        let mut all: Vec<_> = kept
            .map(|(vrf, prefix)| {
                let new = compiler.route(*vrf, prefix, self.configured.route(*vrf, prefix));
                (*vrf, *prefix, new)
            })
            .collect();
        all.retain(|(.., new)| new.is_some() == put);
        all.sort_by_key(
            |(_, prefix, _)| {
                if put { u8::MAX - prefix.prefix_len() } else { prefix.prefix_len() }
            },
        );
        for (vrf, prefix, new) in all {
            let old = self.image.routes.get(&(vrf, prefix)).copied();
            if old == new || self.spilled.contains(&vrf.0) {
                continue;
            }
            let nexthop = new.map(|hop| self.acquire(compiler, hop)).transpose()?;
            let Some(steps) = self.route_steps(vrf.0, &prefix, nexthop) else {
                self.release(new);
                self.spill(vrf.0)?;
                continue;
            };
            self.run(&steps)?;
            self.release(old);
            set(&mut self.image.routes, (vrf, prefix), new);
        }
        Ok(())
    }

    /// Returns the steps that add or remove a route; `None` if there is no room.
    fn route_steps(&mut self, vrf: u16, prefix: &IpNet, nexthop: Option<u32>) -> Option<Vec<Step>> {
        let length = prefix.prefix_len();
        match (prefix, nexthop) {
            (IpNet::V4(v4), Some(nexthop)) => {
                self.trie.insert(vrf, v4.network().to_bits(), length, nexthop).ok()
            }
            (IpNet::V4(v4), None) => self.trie.remove(vrf, v4.network().to_bits(), length).ok(),
            (IpNet::V6(v6), Some(nexthop)) => {
                self.routes6.insert(vrf, v6.network().to_bits(), length, nexthop).ok()
            }
            (IpNet::V6(v6), None) => Some(self.routes6.remove(vrf, v6.network().to_bits(), length)),
        }
    }

    /// Leaves a network to the host at once: a packet that misses its route on the card would take a shorter one.
    fn spill(&mut self, vrf: u16) -> Result<(), CardError> {
        self.spilled.insert(vrf);
        self.vrf_line(vrf, registers::Vrf::default())
    }

    fn add_network<T: Lookup>(&mut self, compiler: Compiler<'_, T>, vrf: Vrf) -> Result<(), CardError> {
        if compiler.vrf(vrf).is_none() || self.spilled.contains(&vrf.0) {
            return Ok(());
        }
        match self.trie.add(vrf.0) {
            Ok((_, steps)) => self.run(&steps),
            Err(_) => self.spill(vrf.0),
        }
    }

    /// Reclaims the memory of a network whose line is now invalid.
    fn drop_network<T: Lookup>(&mut self, compiler: Compiler<'_, T>, vrf: Vrf) -> Result<(), CardError> {
        if compiler.vrf(vrf).is_some() || vrf.0 >= VRFS {
            return Ok(());
        }
        self.spilled.remove(&vrf.0);
        let first = (vrf, IpNet::default());
        let left: Vec<_> = self.image.routes.range(first..).take_while(|((of, _), _)| *of == vrf).collect();
        let left: Vec<_> = left.into_iter().map(|(key, hop)| (*key, *hop)).collect();
        for ((_, prefix), hop) in left {
            let steps = self.route_steps(vrf.0, &prefix, None).unwrap_or_default();
            self.run(&steps)?;
            self.release(Some(hop));
            self.image.routes.remove(&(vrf, prefix));
        }
        let steps = self.trie.take(vrf.0);
        self.run(&steps)
    }

    fn vrf_lines<T: Lookup>(
        &mut self,
        compiler: Compiler<'_, T>,
        vrfs: &BTreeSet<Vrf>,
    ) -> Result<(), CardError> {
        for &vrf in vrfs {
            let on_card = !self.spilled.contains(&vrf.0);
            let line = match compiler.learning(vrf).filter(|_| on_card) {
                Some(learning) => registers::Vrf {
                    valid: true,
                    learning,
                    generation: self.flows.generation(vrf.0),
                    root: self.trie.add(vrf.0).map_or(0, |(root, _)| root),
                    lengths6: self.routes6.lengths(vrf.0),
                },
                None => registers::Vrf::default(),
            };
            if vrf.0 < VRFS {
                self.vrf_line(vrf.0, line)?;
            }
        }
        Ok(())
    }

    fn vrf_line(&mut self, vrf: u16, line: registers::Vrf) -> Result<(), CardError> {
        if self.image.vrfs.get(&vrf).copied().unwrap_or_default() != line {
            self.commands.write(Table::Vrf, vrf.into(), &line.encode())?;
            self.image.vrfs.insert(vrf, line);
        }
        Ok(())
    }

    /// Invalidates the flows that depend on a change.
    fn bump(&mut self, touched: &Touched) -> Result<(), CardError> {
        let mut vrfs: BTreeSet<u16> = touched.bump.iter().map(|vrf| vrf.0).collect();
        if touched.bump_all {
            vrfs.extend(self.image.vrfs.keys());
        }
        if touched.bump_far || touched.bump_all || !vrfs.is_empty() {
            vrfs.extend(self.flows.take_far());
        }
        vrfs.retain(|vrf| *vrf < VRFS);
        if touched.bump_ports {
            vrfs.extend(self.image.vrfs.range(VRFS..ALL_VRFS).map(|(vrf, _)| *vrf));
        }
        for vrf in vrfs {
            let wrapped = self.flows.bump(vrf);
            for key in wrapped {
                self.remove_flow(&key)?;
            }
            if let Some(line) = self.image.vrfs.get(&vrf).copied().filter(|line| line.valid) {
                self.vrf_line(vrf, registers::Vrf { generation: self.flows.generation(vrf), ..line })?;
            }
        }
        Ok(())
    }

    /// Counts one more user of a nexthop. Returns its number; if there is no room, the host's number.
    fn acquire<T: Lookup>(&mut self, compiler: Compiler<'_, T>, hop: Hop) -> Result<u32, CardError> {
        if self.hops.is_tight() {
            self.barrier()?;
        }
        let (number, new) = self.hops.acquire(hop, || compiler.line(&hop));
        if let Some(line) = new {
            self.commands.write(Table::Nexthop, number, &line.encode())?;
        }
        Ok(number)
    }

    /// Changes the line of a nexthop that packets may be using. In HBM, a line is written in two halves. So a
    /// replacement on chip stands in for it, until packets that may have read one half of each version have left.
    fn change_nexthop(&mut self, number: u32, line: &registers::Nexthop) -> Result<(), CardError> {
        let line = line.encode();
        if number < self.commands.identity().nexthops_on_chip {
            return self.commands.write(Table::Nexthop, number, &line);
        }
        self.commands.write(Table::NexthopChange, number, &line)?;
        self.commands.write(Table::Nexthop, number, &line)?;
        self.barrier()?;
        self.commands.write(Table::NexthopChange, hops::HOST, &line)
    }

    /// Puts new nexthops into HBM from now on, as if there were no room left on chip.
    #[cfg(feature = "testing")]
    pub fn leave_chip(&mut self) {
        self.hops.skip_to(self.commands.identity().nexthops_on_chip);
    }

    fn release(&mut self, hop: Option<Hop>) {
        if let Some(hop) = hop {
            self.hops.release(hop);
        }
    }

    fn barrier(&mut self) -> Result<(), CardError> {
        self.commands.barrier()?;
        self.hops.reclaim();
        Ok(())
    }

    fn run(&mut self, steps: &[Step]) -> Result<(), CardError> {
        for step in steps {
            match step {
                Step::Write { table, address, data } => self.commands.post(*table, *address, data)?,
                Step::Stash { number, lines } => {
                    self.commands.post(Table::Stash, *number, lines.as_flattened())?;
                }
                Step::Barrier => self.barrier()?,
            }
        }
        self.commands.finish()
    }

    fn remove_flow(&mut self, key: &Key) -> Result<(), CardError> {
        let Some((hop, steps)) = self.flows.remove(key) else { return Ok(()) };
        self.run(&steps)?;
        self.release(hop);
        Ok(())
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
