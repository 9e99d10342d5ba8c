//! A host with a card: the model's tables, the driver that keeps the card's tables the same, and `decide` for the
//! packets that the card leaves to the host.
#![allow(dead_code, reason = "each test uses its part")]

pub mod ovs;
pub mod pair;
pub mod talk;

use card::compile::Attachment;
use card::driver::Driver;
use card::expect::{Memory, Outcome, outcome};
use card::{Budgets, Card, Commands};
use model::generate::{self, Packet, Rng};
use model::{
    Change, Decision, Effects, Lookup, NeighbourScope, PacketView, Seconds, Tables, Vif, VifId, Vrf, decide,
};
use packet::Mac;
use std::collections::BTreeSet;

pub const SECRET: [u64; 5] = [0x0123_4567_89ab_cdef, 2, 3, 0xfedc_ba98_7654_3210, 5];

pub trait Known: Card {
    fn memory(&self) -> &Memory;
}

impl Known for Memory {
    fn memory(&self) -> &Memory {
        self
    }
}

/// Returns the card's port of an interface.
pub fn port_of(id: VifId) -> u16 {
    id.0 + 100
}

/// Returns the interface at a port.
pub fn vif_at(port: VifId) -> VifId {
    VifId(port.0 - 100)
}

/// Makes random tables, tamed or not.
pub fn tables(rng: &mut Rng, tame: bool) -> Vec<Change> {
    let changes = generate::tables(rng);
    if tame { talk::tame(rng, changes) } else { changes }
}

pub struct Host<C> {
    pub tables: Tables,
    pub driver: Driver<C>,
    pub changes: Vec<Change>,
    pub learned: BTreeSet<(Vrf, Mac)>,
    pub neighbours: Vec<NeighbourScope>,
    now: Seconds,
    /// Returns the place at which an interface is attached to the card, if it is.
    at: fn(&Vif) -> Option<Attachment>,
}

impl<C: Known> Host<C> {
    pub fn new(commands: Commands<C>, at: fn(&Vif) -> Option<Attachment>) -> Self {
        let mut driver = Driver::new(commands, SECRET).unwrap();
        driver.commands().set_budgets(Budgets::NONE);
        Self {
            tables: Tables::new(),
            driver,
            changes: Vec::new(),
            learned: BTreeSet::new(),
            neighbours: Vec::new(),
            now: 0,
            at,
        }
    }

    pub fn card(&mut self) -> &mut C {
        self.driver.commands().card()
    }

    /// Applies changes and attaches the interfaces that can be attached. Returns whether the tables accepted the
    /// changes.
    pub fn apply(&mut self, changes: &[Change]) -> bool {
        if self.tables.apply(changes).is_err() {
            return false;
        }
        for change in changes {
            if let Change::PutVif(vif) = change
                && let Some(at) = (self.at)(vif)
            {
                self.driver.attach(&self.tables, vif.id, Some(at)).unwrap();
            }
        }
        self.driver.apply(&self.tables, changes).unwrap();
        self.changes.extend_from_slice(changes);
        true
    }

    /// Applies changes of an Open vSwitch's flows as the carrier does. Returns how many entries left the card.
    pub fn apply_ovs(&mut self, changes: &[model::ovs::Change]) -> usize {
        self.tables.apply_ovs(changes);
        let keys = self.driver.of_changes(changes);
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "each once");
        self.driver.end(&keys).unwrap();
        keys.len()
    }

    /// Sets up random tables, with all neighbours known.
    pub fn set_up(&mut self, rng: &mut Rng, changes: &[Change]) {
        assert!(self.apply(changes));
        for packet in generate::warm_up(rng, &self.tables) {
            self.hosted(&packet);
        }
    }

    pub fn outcome(&mut self, packet: &Packet) -> Outcome {
        outcome(self.card().memory(), port_of(packet.ingress), &packet.frame, packet.frame.len())
    }

    /// Parses a packet, if it is well-formed. The card assumes that an outer UDP checksum is right if there is one.
    fn view<'a>(&self, packet: &'a Packet) -> Option<PacketView<'a>> {
        let mut view = PacketView::parse(&packet.frame, packet.frame.len() as u32, None).ok()?;
        view.checked = true;
        Some(view)
    }

    /// Returns the host's decision about a packet, if it is well-formed.
    pub fn decide(&self, packet: &Packet) -> Option<Decision> {
        let view = self.view(packet)?;
        Some(decide(&self.tables, &view, packet.ingress, self.now))
    }

    /// Handles a packet as the host does, and updates the card.
    pub fn hosted(&mut self, packet: &Packet) {
        let Some(view) = self.view(packet) else { return };
        let decision = decide(&self.tables, &view, packet.ingress, self.now);
        self.effects(&decision.effects, packet.frame.len());
        self.driver.decided(&self.tables, &view, packet.ingress, &decision).unwrap();
    }

    pub fn effects(&mut self, effects: &Effects, len: usize) {
        let _ = self.tables.commit(effects, len, u64::from(self.now) * 1_000_000_000);
        if let Some(learn) = effects.learn {
            self.learned.insert((learn.vrf, learn.mac));
            self.driver.learned(&self.tables, learn.vrf, learn.mac).unwrap();
        }
        if let Some(found) = effects.neighbour {
            self.neighbours.push(found.scope);
            self.driver.neighbour(&self.tables, found.scope).unwrap();
        }
        if effects.path.is_some() {
            self.underlay_changed();
        }
    }

    /// Updates the card after the underlay's path to a remote changed.
    fn underlay_changed(&mut self) {
        let any = NeighbourScope::Wire(VifId(0));
        self.driver.neighbour(&self.tables, any).unwrap();
    }

    /// Lets time pass, and tells the driver which connections are forgotten.
    pub fn wait(&mut self, seconds: Seconds) {
        self.now += seconds;
        let known: Vec<_> = self.tables.connections().map(|(connection, _)| connection.original).collect();
        self.tables.expire(self.now);
        self.underlay_changed();
        for key in known {
            if self.tables.connections().all(|(connection, _)| connection.original != key) {
                self.driver.forgotten(&key).unwrap();
            }
        }
        for (vrf, mac) in self.learned.clone() {
            if self.tables.bridge(vrf, mac).is_none() {
                self.driver.learned(&self.tables, vrf, mac).unwrap();
            }
        }
    }

    /// Makes a change to the current tables: an entry from different random tables, or a removal.
    pub fn change(&self, rng: &mut Rng) -> Change {
        let known = rng.one(&self.changes);
        match known {
            Change::PutRoute { vrf, prefix, .. } if rng.percent(40) => Change::DelRoute { vrf, prefix },
            Change::PutMac { vrf, mac, .. } if rng.percent(40) => Change::DelMac { vrf, mac },
            Change::PutMpls { label, .. } if rng.percent(40) => Change::DelMpls { label },
            Change::PutVxlan { vni, .. } if rng.percent(40) => Change::DelVxlan { vni },
            Change::PutFloating(f) if rng.percent(40) => {
                Change::DelFloating { outside_vrf: f.outside_vrf, outside: f.outside }
            }
            Change::SetDown { remote, .. } if rng.percent(40) => Change::SetDown { remote, is_down: false },
            Change::SetPathDown { remote, wire, hop, .. } if rng.percent(40) => {
                Change::SetPathDown { remote, wire, hop, is_down: false }
            }
            Change::SetWatched { remote, .. } if rng.percent(40) => {
                Change::SetWatched { remote, is_watched: false }
            }
            Change::PutRule(rule) if rng.percent(40) => Change::DelRule { vrf: rule.vrf, id: rule.id },
            _ => {
                let others = generate::tables(rng);
                rng.one(&others)
            }
        }
    }
}
