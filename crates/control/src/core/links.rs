//! Links of wires and guests: logs their changes, and lets guests follow wires.

use super::State;
use super::open_ports::{Slot, SlotState};
use super::seen::News;
use model::{Vif, VifId, VifKind};
use std::time::Instant;

impl State {
    /// Logs changes of the host's network devices: their link, and frames that the kernel lost.
    pub(super) fn log_devices(&mut self) {
        let now = Instant::now();
        for (interface, slot) in self.slots.iter_mut().filter(|(_, slot)| slot.spec.device.is_netdev()) {
            let device = &slot.spec.device;
            let SlotState::Open { port, seen } = &mut slot.state else { continue };
            let status = port.status();
            for news in seen.notice(&status, now) {
                match news {
                    News::Down => {
                        let why = status.fault.as_deref().unwrap_or("it is switched off, or has no carrier");
                        tracing::warn!(interface, %device, "the wire is down: {why}");
                    }
                    News::Up => tracing::info!(interface, %device, "the wire is up again"),
                    News::Lost(frames) => tracing::warn!(
                        interface, %device, frames,
                        "the kernel lost frames of the wire: its buffers were full"
                    ),
                }
            }
        }
    }

    pub(super) fn is_up(&self, interface: &str) -> bool {
        self.slots.get(interface).and_then(Slot::port).is_some_and(|port| port.is_up())
    }

    /// Sets the links of guests to those of the wires that they follow.
    pub(super) fn tell_guests(&self) {
        let is_down = |wire: &String| {
            let vif = self.ids.vif(wire).and_then(|id| self.desired.vifs.get(&id));
            vif.and_then(|vif| vif.wire.as_ref()).is_some_and(|wire| wire.is_down)
        };
        for (name, guest) in self.index.guests() {
            let Some(port) = self.slots.get(name).and_then(Slot::port) else { continue };
            if let Err(e) = port.set_link(!guest.link_follows.as_ref().is_some_and(is_down)) {
                tracing::warn!(interface = name, "its link does not follow the wire's: {e}");
            }
        }
    }

    /// Returns wires whose links differ from the tables, with their present links.
    pub(super) fn changed_links(&self) -> Vec<(VifId, Vif)> {
        let changed = self.slots.iter().filter_map(|(name, slot)| {
            let id = self.ids.vif(name)?;
            let vif = self.desired.vifs.get(&id).filter(|vif| vif.kind == VifKind::Wire)?;
            let link = slot.link();
            let mut now = vif.clone();
            now.mac = link.mac.or(now.mac);
            now.wire.as_mut()?.is_down = link.is_down;
            (now != *vif).then_some((id, now))
        });
        changed.collect()
    }
}
