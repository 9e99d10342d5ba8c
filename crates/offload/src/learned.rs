//! The entries that the engine learned from packets, as far as the card knows them.

use card::driver::Driver;
use card::{Card, CardError};
use engine::Engine;
use executor::Executor;
use model::{BridgeTarget, NeighbourScope, VifId, Vrf};
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

#[derive(Default)]
pub struct Learned {
    /// Epoch of the engine's tables at which these entries were read.
    epoch: u64,
    macs: HashMap<(Vrf, Mac), BridgeTarget>,
    neighbours: HashMap<(NeighbourScope, IpAddr), Mac>,
    paths: BTreeMap<IpAddr, u16>,
}

impl Learned {
    /// Tells the card the entries that changed.
    ///
    /// # Errors
    /// If the card can't be used.
    pub fn follow<C: Card>(&mut self, engine: &Engine, driver: &mut Driver<C>) -> Result<(), CardError> {
        let epoch = engine.view(|view| view.snapshot().epoch());
        if epoch == self.epoch {
            return Ok(());
        }
        let macs = engine.learned().into_iter().map(|mac| ((mac.vrf, mac.mac), mac.target)).collect();
        for (vrf, mac) in differences(&self.macs, &macs) {
            engine.view(|view| driver.learned(view, vrf, mac))?;
        }
        self.macs = macs;
        let known = engine.neighbours().into_iter();
        let known = known.filter_map(|known| Some(((known.scope, known.addr), known.mac?))).collect();
        let scopes: BTreeSet<_> =
            differences(&self.neighbours, &known).into_iter().map(|(scope, _)| scope).collect();
        for scope in scopes {
            engine.view(|view| driver.neighbour(view, scope))?;
        }
        self.neighbours = known;
        let paths: BTreeMap<_, _> = engine.view(|view| view.snapshot().paths().collect());
        if paths != self.paths {
            let underlay = NeighbourScope::Wire(VifId(0)); // any
            engine.view(|view| driver.neighbour(view, underlay))?;
            self.paths = paths;
        }
        self.epoch = epoch;
        Ok(())
    }
}

/// Returns the keys whose values differ, including those that only one map has.
fn differences<K: Copy + Eq + std::hash::Hash, V: PartialEq>(
    before: &HashMap<K, V>,
    now: &HashMap<K, V>,
) -> Vec<K> {
    let changed = now.iter().filter(|(key, value)| before.get(key) != Some(value)).map(|(key, _)| *key);
    changed.chain(before.keys().filter(|key| !now.contains_key(key)).copied()).collect()
}
