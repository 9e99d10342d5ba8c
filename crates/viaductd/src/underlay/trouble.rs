//! Looks whether the kernel and other daemons leave wires alone.

use super::paths::Kernel;
use control::{Underlay, UnderlayWire};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use wire::Event;

/// Somebody else must have a wire's device for so long: the daemon that was replaced may not be gone yet.
const PATIENCE: Duration = Duration::from_secs(3);

/// Faults of wires.
#[derive(Default)]
pub(super) struct Trouble {
    wanted: Underlay,
    is_new: bool,
    addresses: Vec<(String, String)>,
    claims: BTreeMap<String, Claim>,
}

/// The claim of this daemon to the device of a wire.
#[derive(Default)]
struct Claim {
    /// The index of the device, and what others find.
    held: Option<(i32, OwnedFd)>,
    /// The time since which it is refused.
    refused: Option<Instant>,
}

impl Trouble {
    pub(super) fn want(&mut self, wanted: &Underlay) {
        self.wanted = Underlay { remotes: Default::default(), ..wanted.clone() };
        self.is_new = true;
        let wires = &self.wanted.wires;
        self.claims.retain(|device, _| wires.iter().any(|wire| wire.device == *device));
    }

    /// Looks at addresses if they may have changed, and at devices that another daemon has.
    pub(super) fn look(&mut self, kernel: &dyn Kernel, events: &[Event], has_host: bool) {
        if std::mem::take(&mut self.is_new) || events.contains(&Event::Other) {
            self.addresses =
                self.wanted.wires.iter().flat_map(|wire| self.addresses_of(kernel, wire)).collect();
        }
        for wire in self.wanted.wires.iter().filter(|_| has_host) {
            let Ok(index) = kernel.device(&wire.device) else { continue };
            let claim = self.claims.entry(wire.device.clone()).or_default();
            if claim.held.as_ref().is_some_and(|(held, _)| *held == index) {
                continue;
            }
            match wire::claim(index) {
                Ok(held) => *claim = Claim { held: Some((index, held)), refused: None },
                Err(_) => claim.refused = claim.refused.or_else(|| Some(Instant::now())),
            }
        }
    }

    fn addresses_of(&self, kernel: &dyn Kernel, wire: &UnderlayWire) -> Vec<(String, String)> {
        let lacking = |addr| {
            format!(
                "the kernel does not have {addr} (`tunnel_source` of [host]), and other hosts do not find it: add it to \
                 {}",
                wire.device
            )
        };
        let taken = |addr| {
            format!(
                "the kernel has {addr} too, and answers for it: `ip address del` it, or leave the device to the kernel \
                 (shared = true)"
            )
        };
        let is = |addr| kernel.has(addr).ok();
        let told: Vec<String> = if wire.shared {
            self.wanted.sources.iter().filter(|addr| is(**addr) == Some(false)).map(lacking).collect()
        } else {
            wire.addresses.iter().filter(|addr| is(**addr) == Some(true)).map(taken).collect()
        };
        told.into_iter().map(|what| (object(wire), what)).collect()
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = (String, String)> {
        let is_anothers = |claim: &Claim| claim.refused.is_some_and(|since| since.elapsed() >= PATIENCE);
        let others = self
            .wanted
            .wires
            .iter()
            .filter(move |wire| self.claims.get(&wire.device).is_some_and(is_anothers));
        let others = others.map(|wire| {
            let what = format!(
                "another daemon of Viaduct has {} as well, so that packets come twice: stop it, or give it another wire",
                wire.device
            );
            (object(wire), what)
        });
        self.addresses.iter().cloned().chain(others)
    }
}

/// Returns a wire as messages name it.
pub(super) fn object(wire: &UnderlayWire) -> String {
    format!("wire \"{}\"", wire.name)
}
