//! Opens and closes ports around a change.

use super::Error;
use super::seen::Seen;
use crate::ports::{Device, PortSpec, Ports};
use mem::{Opened, Port};
use model::VifId;
use packet::Mac;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An open port.
pub(super) struct Open {
    pub(super) spec: PortSpec,
    pub(super) port: Arc<dyn Port>,
    /// What was logged of its state.
    pub(super) seen: Seen,
}

impl Open {
    /// The link-layer address that we share with the network device. That of a TAP is its other end's.
    pub(super) fn mac(&self) -> Option<Mac> {
        if self.is_device() { self.port.status().mac.map(Mac) } else { None }
    }

    /// Whether it is a network device of the host's.
    pub(super) const fn is_device(&self) -> bool {
        matches!(self.spec.device, Device::AfPacket { .. } | Device::AfXdp { .. })
    }
}

type VifOf<'a> = &'a dyn Fn(&str) -> Option<VifId>;

/// Ports on their way from one set to another: the new ones are open but not attached, the old ones that stay or go
/// still are, and those that change are closed.
pub(super) struct Switch<'a> {
    ports: &'a dyn Ports,
    open: &'a mut BTreeMap<String, Open>,
    wanted: BTreeMap<String, PortSpec>,
    fresh: Vec<(String, Opened)>,
    /// The specifications of those that stay.
    kept: Vec<PortSpec>,
    /// Those closed because they change, to be opened again should the change fail.
    closed: Vec<(PortSpec, Option<VifId>)>,
    gone: Vec<(String, Option<VifId>)>,
}

impl<'a> Switch<'a> {
    /// Opens what is wanted and isn't there. If one can't be opened all is as before.
    pub(super) fn open(
        ports: &'a dyn Ports,
        open: &'a mut BTreeMap<String, Open>,
        wanted: BTreeMap<String, PortSpec>,
        vif: VifOf<'_>,
    ) -> Result<Self, Error> {
        let gone = open.keys().filter(|name| !wanted.contains_key(*name));
        let gone = gone.map(|name| (name.clone(), vif(name))).collect();
        let mut switch =
            Self { ports, open, wanted, fresh: Vec::new(), kept: Vec::new(), closed: Vec::new(), gone };
        match switch.open_wanted(vif) {
            Ok(()) => Ok(switch),
            Err(e) => {
                switch.undo();
                Err(e)
            }
        }
    }

    fn open_wanted(&mut self, vif: VifOf<'_>) -> Result<(), Error> {
        for (name, old) in std::mem::take(&mut self.gone) {
            if self.is_in_the_way(&name) {
                self.close(&name, old);
            } else {
                self.gone.push((name, old));
            }
        }
        for (name, spec) in self.wanted.clone() {
            match self.open.get(&name) {
                Some(there) if there.spec.is_same_port(&spec) => {
                    self.kept.push(spec);
                    continue;
                }
                Some(_) => self.close(&name, vif(&name)),
                None => {}
            }
            let opened =
                self.ports.open(&spec).map_err(|e| Error::Port { name: name.clone(), reason: chain(&*e) })?;
            self.open.insert(name.clone(), Open { spec, port: opened.port.clone(), seen: Seen::default() });
            self.fresh.push((name, opened));
        }
        Ok(())
    }

    /// Whether a port that goes has the socket of a verbs device that comes: the guest has another name, or kind.
    fn is_in_the_way(&self, gone: &str) -> bool {
        let Some(Device::Verbs(gone)) = self.open.get(gone).map(|open| &open.spec.device) else {
            return false;
        };
        let wanted =
            |spec: &PortSpec| matches!(&spec.device, Device::Verbs(new) if new.socket == gone.socket);
        self.wanted.values().any(wanted)
    }

    fn close(&mut self, name: &str, vif: Option<VifId>) {
        if let Some(vif) = vif {
            self.ports.detach(vif);
        }
        if let Some(open) = self.open.remove(name) {
            self.closed.push((open.spec, vif));
        }
    }

    /// The ports as they will be, and those that will go.
    pub(super) fn ports(&self) -> &BTreeMap<String, Open> {
        self.open
    }

    /// Back to how it was. A port that can't be opened again stays closed, which is logged.
    pub(super) fn undo(mut self) {
        for (name, opened) in self.fresh.drain(..) {
            self.open.remove(&name);
            drop(opened);
        }
        for (spec, vif) in self.closed.drain(..) {
            match self.ports.open(&spec) {
                Ok(opened) => {
                    let open = Open { spec: spec.clone(), port: opened.port.clone(), seen: Seen::default() };
                    self.open.insert(spec.name.clone(), open);
                    if let Some(vif) = vif {
                        self.ports.attach(vif, opened);
                    }
                }
                Err(e) => tracing::error!(interface = spec.name, "can't be opened again: {}", chain(&*e)),
            }
        }
    }

    /// Gives the new ports to the executor and closes those that are gone. `vif` is the new numbering.
    pub(super) fn finish(self, vif: VifOf<'_>) {
        for (name, opened) in self.fresh {
            if let Some(open) = self.open.get(&name) {
                tracing::info!(interface = name, device = %open.spec.device, "port opened");
            }
            if let Some(vif) = vif(&name) {
                self.ports.attach(vif, opened);
            }
        }
        for spec in self.kept {
            if let Some(open) = self.open.get_mut(&spec.name)
                && open.spec != spec
            {
                self.ports.update(&spec);
                open.spec = spec;
            }
        }
        for (name, old) in self.gone {
            if let Some(old) = old {
                self.ports.detach(old);
            }
            self.open.remove(&name);
            tracing::info!(interface = name, "port closed");
        }
    }
}

/// An error with its causes.
fn chain(e: &(dyn std::error::Error + 'static)) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
