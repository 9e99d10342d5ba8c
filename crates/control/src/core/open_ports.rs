//! Opens and closes ports around a change. Nothing closes before the change is made.

use super::Error;
use super::ahead::Needed;
use super::opening::{Late, Opening, Unopened};
use super::seen::Seen;
use crate::compile::WireLink;
use crate::ports::{PortSpec, Ports};
use config::Index;
use mem::{Opened, Port};
use model::VifId;
use packet::Mac;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pauses between attempts to open a port: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// How long the closing of a port waits for those who look at it.
const PATIENCE: Duration = Duration::from_secs(1);

/// A port that shall be open.
pub(super) struct Slot {
    pub(super) spec: PortSpec,
    pub(super) state: SlotState,
}

pub(super) enum SlotState {
    Open {
        port: Arc<dyn Port>,
        /// The state that was last logged.
        seen: Seen,
    },
    Fault(Fault),
}

/// The reason why a port is not open, and the time of the next attempt.
pub(super) struct Fault {
    pub(super) reason: String,
    /// As in [`Unopened`].
    pub(super) is_of_place: bool,
    pub(super) due: Instant,
    pause: Duration,
    /// The last attempt, if it has not ended. No new one starts until then.
    late: Option<Late>,
}

impl Fault {
    fn new(Unopened { reason, is_of_place, late }: Unopened, now: Instant) -> Self {
        Self { reason, is_of_place, due: now + PAUSES[0], pause: PAUSES[0], late }
    }

    /// Notes that a new attempt failed, or has not ended yet.
    pub(super) fn again(&mut self, why: Unopened, now: Instant) {
        self.pause = if why.late.is_some() { PAUSES[0] } else { (self.pause * 2).min(PAUSES[1]) };
        (self.reason, self.is_of_place, self.late) = (why.reason, why.is_of_place, why.late);
        self.due = now + self.pause;
    }
}

impl Slot {
    fn open(spec: PortSpec, port: Arc<dyn Port>) -> Self {
        Self { spec, state: SlotState::Open { port, seen: Seen::default() } }
    }

    fn fault(spec: PortSpec, why: Unopened) -> Self {
        Self { spec, state: SlotState::Fault(Fault::new(why, Instant::now())) }
    }

    /// Takes the attempt that has not ended yet.
    pub(super) fn take_late(&mut self) -> Option<Late> {
        match &mut self.state {
            SlotState::Fault(fault) => fault.late.take(),
            SlotState::Open { .. } => None,
        }
    }

    fn is_late(&self) -> bool {
        matches!(&self.state, SlotState::Fault(Fault { late: Some(_), .. }))
    }

    /// Returns the specification if the port has a fault and is due. With `devices`, all network devices are
    /// due.
    pub(super) fn due(&self, now: Instant, devices: bool) -> Option<PortSpec> {
        match &self.state {
            SlotState::Fault(fault) if fault.due <= now || (devices && self.spec.device.is_netdev()) => {
                Some(self.spec.clone())
            }
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn make_due(&mut self) {
        if let SlotState::Fault(fault) = &mut self.state {
            fault.due = Instant::now();
        }
    }

    /// Takes the port that was opened now, or the reason why it still can't be.
    pub(super) fn tried(&mut self, ports: &dyn Ports, opened: Result<Opened, Unopened>, vif: Option<VifId>) {
        let SlotState::Fault(fault) = &mut self.state else { return };
        let (interface, device) = (&self.spec.name, &self.spec.device);
        match (opened, vif) {
            (Ok(opened), Some(vif)) => {
                tracing::info!(interface, %device, "port opened");
                self.state = SlotState::Open { port: opened.port.clone(), seen: Seen::default() };
                ports.attach(vif, opened);
            }
            (Ok(_), None) => {}
            (Err(why), _) => {
                if why.reason != fault.reason {
                    tracing::error!(interface, %device, "the port still can't be opened: {}", why.reason);
                }
                fault.again(why, Instant::now());
            }
        }
    }

    /// Returns the object of a port that has a fault, and the reason.
    pub(super) fn fault_of_port(&self, index: &Index) -> Option<(String, String)> {
        match &self.state {
            SlotState::Fault(fault) => {
                let reason = format!("its port can't be opened, and is tried again: {}", fault.reason);
                Some((super::of_port(&self.spec, index), reason))
            }
            SlotState::Open { .. } => None,
        }
    }

    pub(super) const fn port(&self) -> Option<&Arc<dyn Port>> {
        match &self.state {
            SlotState::Open { port, .. } => Some(port),
            SlotState::Fault(_) => None,
        }
    }

    pub(super) fn link(&self) -> WireLink {
        link_of(&self.spec, self.port())
    }
}

/// Returns the link of a port. Only wires on network devices have an address of ours; the link of a TAP or
/// VMM is that of its other end.
fn link_of(spec: &PortSpec, port: Option<&Arc<dyn Port>>) -> WireLink {
    let Some(port) = port else { return WireLink { mac: None, is_down: true } };
    if !spec.device.is_netdev() {
        return WireLink { mac: None, is_down: !port.is_up() };
    }
    let status = port.status();
    WireLink { mac: status.mac.map(Mac), is_down: !status.up }
}

/// The ports of the host, by the name of their interface.
pub(super) type Slots = BTreeMap<String, Slot>;

type VifOf<'a> = &'a dyn Fn(&str) -> Option<VifId>;

/// The treatment of ports that can't be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFailure {
    Refuse,
    /// The port alone has a fault, and is tried again.
    Retry,
    /// Ports that have a fault are not tried.
    Leave,
}

/// Ports that were opened, or could not be, and are not attached yet, by their names.
pub(super) type Fresh = BTreeMap<String, (PortSpec, Result<Opened, Unopened>)>;

/// The effect of a change on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Keep,
    Update,
    Open,
    /// Opens it after an old port has closed, since both use the same device or socket.
    OpenLater,
}

/// Finds what a change does to each port that it wants.
struct Plan<'a> {
    slots: &'a Slots,
    /// Places of open ports that close.
    closing: BTreeSet<(&'static str, std::path::PathBuf)>,
}

impl<'a> Plan<'a> {
    fn new(slots: &'a Slots, wanted: &BTreeMap<String, PortSpec>) -> Self {
        let closes = |slot: &&Slot| {
            let stays = wanted.get(&slot.spec.name).is_some_and(|new| slot.spec.is_same_port(new));
            slot.port().is_some() && !stays
        };
        let closing = slots.values().filter(closes).filter_map(|slot| slot.spec.device.place()).collect();
        Self { slots, closing }
    }

    fn same(&self, spec: &PortSpec) -> Option<&'a Slot> {
        self.slots.get(&spec.name).filter(|slot| slot.spec.is_same_port(spec))
    }

    fn was_fault(&self, spec: &PortSpec) -> bool {
        self.same(spec).is_some_and(|slot| slot.port().is_none())
    }

    fn step(&self, spec: &PortSpec, on_failure: OnFailure) -> Step {
        match self.same(spec) {
            Some(slot) if slot.spec == *spec && (slot.is_late() || slot.port().is_some()) => Step::Keep,
            Some(slot) if slot.spec == *spec && on_failure == OnFailure::Leave => Step::Keep,
            Some(slot) if slot.port().is_some() => Step::Update,
            _ if spec.device.place().is_some_and(|place| self.closing.contains(&place)) => Step::OpenLater,
            _ => Step::Open,
        }
    }
}

/// Returns the ports that a change opens before it closes any.
pub(super) fn needed(slots: &Slots, wanted: &BTreeMap<String, PortSpec>) -> Vec<Needed> {
    let plan = Plan::new(slots, wanted);
    let is_opened = |spec: &&PortSpec| plan.step(spec, OnFailure::Refuse) == Step::Open;
    let opened = wanted.values().filter(is_opened);
    opened.map(|spec| Needed { spec: spec.clone(), was_fault: plan.was_fault(spec) }).collect()
}

/// Returns a port whose tap is in a container, and one of another name that would take the tap out of it.
pub(super) fn unplugged<'a>(
    slots: &'a Slots,
    wanted: &'a BTreeMap<String, PortSpec>,
) -> Option<(&'a PortSpec, &'a PortSpec)> {
    let stays = |slot: &Slot| wanted.get(&slot.spec.name).is_some_and(|new| slot.spec.is_same_port(new));
    let closing = slots.values().filter(|slot| !stays(slot));
    let taps = closing.filter_map(|slot| Some((slot.spec.device.tap()?, slot)));
    let is_plugged = |slot: &Slot| slot.port().is_some_and(|port| port.status().elsewhere == Some(true));
    let taps: BTreeMap<_, _> = taps.filter(|(_, slot)| is_plugged(slot)).collect();
    let taker = |new: &'a PortSpec| {
        let slot = taps.get(new.device.tap()?).filter(|slot| slot.spec.name != new.name)?;
        Some((&slot.spec, new))
    };
    wanted.values().find_map(taker)
}

/// A transition from one set of ports to the next. New ports are open but not attached, and old ones are as
/// they were.
pub(super) struct Switch<'a> {
    ports: &'a Arc<dyn Ports>,
    slots: &'a mut Slots,
    /// Ports that were opened, or could not be, and are not attached yet.
    fresh: Vec<(PortSpec, Result<Opened, Unopened>)>,
    /// Ports that can open only after an old port has closed, since both use the same device or socket.
    waiting: Vec<PortSpec>,
    /// Ports that stay open with a new specification.
    updated: Vec<PortSpec>,
    /// Names of ports that are no longer wanted.
    gone: Vec<String>,
}

impl<'a> Switch<'a> {
    /// Opens wanted ports that aren't open, except where an old port is in the way. Those in `opened` were opened
    /// before.
    pub(super) fn open(
        ports: &'a Arc<dyn Ports>,
        slots: &'a mut Slots,
        wanted: BTreeMap<String, PortSpec>,
        (on_failure, mut opened): (OnFailure, Fresh),
    ) -> Result<Self, Error> {
        let gone = slots.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        let plan = Plan::new(slots, &wanted);
        let (mut fresh, mut waiting, mut updated) = (Vec::new(), Vec::new(), Vec::new());
        let mut opening = Opening::new(ports.clone());
        for spec in wanted.values() {
            let step = plan.step(spec, on_failure);
            let may_fail = on_failure != OnFailure::Refuse || step != Step::Update && plan.was_fault(spec);
            let checked = || ports.check(spec).map_err(|e| Unopened::from(chain(&*e)));
            let result = match step {
                Step::Keep => continue,
                Step::Update | Step::OpenLater => checked().map(|()| None),
                Step::Open => match opened.remove(&spec.name).filter(|(of, _)| of == spec) {
                    Some((_, opened)) => opened.map(Some),
                    None if on_failure == OnFailure::Retry => opening.open(spec).map(Some),
                    None => ports.open(spec).map(Some).map_err(|e| Unopened::from(chain(&*e))),
                },
            };
            match result {
                Ok(Some(opened)) => fresh.push((spec.clone(), Ok(opened))),
                Ok(None) if step == Step::OpenLater => waiting.push(spec.clone()),
                Ok(None) => updated.push(spec.clone()),
                Err(_) if step == Step::Update && may_fail => updated.push(spec.clone()),
                Err(why) if may_fail => fresh.push((spec.clone(), Err(why))),
                Err(why) => return Err(Error::Port { name: spec.name.clone(), reason: why.reason }),
            }
        }
        Ok(Self { ports, slots, fresh, waiting, updated, gone })
    }

    /// Returns the links of ports as they will be after the change.
    pub(super) fn links(&self) -> HashMap<String, WireLink> {
        let old = self.slots.iter().map(|(name, slot)| (name.clone(), slot.link()));
        let fresh = self.fresh.iter().map(|(spec, opened)| {
            let port = opened.as_ref().ok().map(|opened| &opened.port);
            (spec.name.clone(), link_of(spec, port))
        });
        old.chain(fresh).collect()
    }

    /// Is true if the port of an interface is connected and stays open.
    pub(super) fn is_up(&self, interface: &str) -> bool {
        let mut new = self.fresh.iter().map(|(spec, _)| spec).chain(&self.waiting);
        let port = self.slots.get(interface).and_then(Slot::port);
        port.is_some_and(|port| port.is_up()) && new.all(|spec| spec.name != interface)
    }

    /// Returns open ports that will be closed and opened again.
    pub(super) fn remade(&self) -> impl Iterator<Item = &PortSpec> {
        let new = self.fresh.iter().map(|(spec, _)| spec).chain(&self.waiting);
        new.filter(|spec| self.slots.get(&spec.name).is_some_and(|slot| slot.port().is_some()))
    }

    /// Gives the new ports to the executor and closes those that are gone. `old` and `new` are the
    /// numberings.
    pub(super) fn finish(mut self, old: VifOf<'_>, new: VifOf<'_>) {
        for (spec, opened) in std::mem::take(&mut self.fresh) {
            self.close(&spec.name, old);
            self.put(spec, opened, new);
        }
        for name in std::mem::take(&mut self.gone) {
            self.close(&name, old);
            tracing::info!(interface = name, "port closed");
        }
        let waiting = std::mem::take(&mut self.waiting);
        waiting.iter().for_each(|spec| self.close(&spec.name, old));
        let mut opening = Opening::new(self.ports.clone());
        for spec in waiting {
            let opened = opening.open(&spec);
            self.put(spec, opened, new);
        }
        for spec in std::mem::take(&mut self.updated) {
            self.update(spec);
        }
    }

    /// Puts a port that was opened, or not, into its place.
    fn put(&mut self, spec: PortSpec, opened: Result<Opened, Unopened>, vif: VifOf<'_>) {
        let (name, device) = (spec.name.clone(), &spec.device);
        let slot = match opened {
            Ok(opened) => {
                tracing::info!(interface = name, %device, "port opened");
                let port = opened.port.clone();
                if let Some(vif) = vif(&name) {
                    self.ports.attach(vif, opened);
                }
                Slot::open(spec, port)
            }
            Err(why) => {
                let reason = &why.reason;
                tracing::error!(interface = name, %device, "the port can't be opened, and will be tried again: {reason}");
                Slot::fault(spec, why)
            }
        };
        self.slots.insert(name, slot);
    }

    fn update(&mut self, spec: PortSpec) {
        let Some(slot) = self.slots.get_mut(&spec.name) else { return };
        self.ports.update(&spec);
        if let Some(port) = slot.port()
            && let Err(e) = port.configure(spec.mtu, spec.device.mac().map(|mac| mac.0))
        {
            tracing::warn!(interface = spec.name, "its device is not changed: {e}");
        }
        slot.spec = spec;
    }

    fn close(&mut self, name: &str, vif: VifOf<'_>) {
        let Some(slot) = self.slots.remove(name) else { return };
        let SlotState::Open { port, .. } = slot.state else { return };
        if let Some(vif) = vif(name) {
            self.ports.detach(vif);
        }
        let_go(port);
    }
}

/// Drops the last reference to a port here, so that its device or socket is free when this returns. Whoever asks for a
/// status holds one meanwhile.
fn let_go(port: Arc<dyn Port>) {
    let start = Instant::now();
    while Arc::strong_count(&port) > 1 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Joins an error's message and those of its causes.
pub(super) fn chain(e: &(dyn std::error::Error + 'static)) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem::PortStatus;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Closes(Arc<AtomicBool>);

    impl Port for Closes {
        fn status(&self) -> PortStatus {
            PortStatus::default()
        }
    }

    impl Drop for Closes {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_port_is_closed_at_once_though_somebody_looks_at_it() {
        let closed = Arc::new(AtomicBool::new(false));
        let port: Arc<dyn Port> = Arc::new(Closes(closed.clone()));
        let looked_at = port.clone();
        let looks = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(looked_at);
        });
        let_go(port);
        assert!(closed.load(Ordering::Relaxed));
        looks.join().unwrap();
    }

    #[test]
    fn attempts_become_rarer() {
        let start = Instant::now();
        let no = || Unopened::from("no".to_owned());
        let mut fault = Fault::new(no(), start);
        let pauses: Vec<u64> = (0..8)
            .map(|_| {
                fault.again(no(), start);
                (fault.due - start).as_secs()
            })
            .collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
