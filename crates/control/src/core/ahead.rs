//! Opens the ports of a change before the change is made. That may take long, because others own the directories in
//! which the sockets are, and meanwhile there are other changes.

use super::open_ports::{Fresh, chain};
use super::opening::Unopened;
use super::{Core, Error};
use crate::ports::PortSpec;
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The names and places of ports that are being opened.
#[derive(Default)]
pub(super) struct Claims {
    taken: Mutex<BTreeSet<String>>,
    freed: Condvar,
}

fn claims_of(spec: &PortSpec) -> impl Iterator<Item = String> {
    let place = spec.device.place().map(|(kind, path)| format!("{kind} {}", path.display()));
    std::iter::once(format!("name {}", spec.name)).chain(place)
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims names and places, all or none.
    fn take<'a>(&self, specs: impl Iterator<Item = &'a PortSpec>) -> Option<Claimed<'_>> {
        let wanted: BTreeSet<_> = specs.flat_map(claims_of).collect();
        let mut taken = self.lock();
        taken.is_disjoint(&wanted).then(|| {
            taken.extend(wanted.iter().cloned());
            Claimed { of: self, what: wanted }
        })
    }

    /// Claims name and place of one port.
    pub(super) fn take_one(&self, spec: &PortSpec) -> Option<Claimed<'_>> {
        self.take(std::iter::once(spec))
    }

    #[cfg(test)]
    pub(super) fn is_free(&self, claim: &str) -> bool {
        !self.lock().contains(claim)
    }

    /// Waits until nobody has claimed any of these names and places.
    fn wait<'a>(&self, specs: impl Iterator<Item = &'a PortSpec>) {
        let wanted: BTreeSet<_> = specs.flat_map(claims_of).collect();
        let is_taken = |taken: &mut BTreeSet<String>| !taken.is_disjoint(&wanted);
        drop(self.freed.wait_while(self.lock(), is_taken).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Names and places that nobody else opens.
pub(super) struct Claimed<'a> {
    of: &'a Claims,
    what: BTreeSet<String>,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.of.lock().retain(|claim| !self.what.contains(claim));
        self.of.freed.notify_all();
    }
}

/// A port that a change needs.
pub(super) struct Needed {
    pub(super) spec: PortSpec,
    /// Whether it is the port of an interface that has a fault already.
    pub(super) was_fault: bool,
}

/// A step before the change, made without the lock on the state.
pub(super) enum Next<'a> {
    Open(Claimed<'a>, Vec<Needed>),
    /// Another change opens some of these.
    Wait(Vec<Needed>),
}

/// The ports that were opened for a change.
#[derive(Default)]
pub(super) struct Ahead<'a> {
    opened: Fresh,
    // Dropped after the ports.
    claimed: Vec<Claimed<'a>>,
}

impl<'a> Ahead<'a> {
    /// Returns what is to be done to open `needed`; `None` if there is nothing. The caller has locked the state.
    pub(super) fn next(&self, core: &'a Core, mut needed: Vec<Needed>) -> Option<Next<'a>> {
        needed
            .retain(|needed| self.opened.get(&needed.spec.name).is_none_or(|(spec, _)| *spec != needed.spec));
        if needed.is_empty() {
            return None;
        }
        Some(match core.claims.take(needed.iter().map(|needed| &needed.spec)) {
            Some(claimed) => Next::Open(claimed, needed),
            None => Next::Wait(needed),
        })
    }

    /// Does it. If it waits, it gives up what it has.
    ///
    /// # Errors
    /// A port can't be opened.
    pub(super) fn perform(&mut self, core: &'a Core, next: Next<'a>) -> Result<(), Error> {
        let (claimed, needed) = match next {
            Next::Open(claimed, needed) => (claimed, needed),
            Next::Wait(needed) => {
                *self = Self::default();
                core.claims.wait(needed.iter().map(|needed| &needed.spec));
                return Ok(());
            }
        };
        self.claimed.push(claimed);
        for Needed { spec, was_fault } in needed {
            let opened = core.ports.open(&spec).map_err(|e| Unopened::from(chain(&*e)));
            match opened {
                Err(why) if !was_fault => return Err(Error::Port { name: spec.name, reason: why.reason }),
                opened => drop(self.opened.insert(spec.name.clone(), (spec, opened))),
            }
        }
        Ok(())
    }

    pub(super) fn take(&mut self) -> Fresh {
        std::mem::take(&mut self.opened)
    }
}
