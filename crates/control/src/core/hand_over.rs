//! Hands the host over to a new daemon, and takes it over from an old one.

use super::carry::{Carry, Early};
use super::open_ports::{Slot, SlotState};
use super::{Core, Error, State, View};
use carryover::Opened;
use mem::{Frozen, Port};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// A port that a new daemon can open from descriptors.
#[derive(Debug)]
pub struct SharedPort {
    pub name: String,
    /// The device, as [`crate::Device`] displays it.
    pub device: String,
    pub descriptors: Vec<OwnedFd>,
}

/// The data that the old daemon leaves, part of which this one has already entered.
pub struct Foreseen((Opened, Early));

impl Core {
    /// Refuses changes until [`Self::stay`], because a new daemon now reads the store. Returns the ports with
    /// the descriptors from which the new daemon opens them.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn hand_over(&self) -> Result<Vec<SharedPort>, Error> {
        self.undo_unconfirmed(&mut self.lock(), true);
        self.is_leaving.store(true, Ordering::SeqCst);
        // Taking the lock waits for a change that had begun.
        let state = self.lock();
        let share = |slot: &Slot| {
            let (name, device) = (slot.spec.name.clone(), slot.spec.device.to_string());
            Some(match slot.port()?.share() {
                Ok(descriptors) => Ok(SharedPort { name, device, descriptors }),
                Err(e) => Err(Error::Port { name, reason: e.to_string() }),
            })
        };
        let shared = state.slots.values().filter_map(share).collect::<Result<_, _>>();
        shared.inspect_err(|_| self.stay())
    }

    /// Lists verbs devices that programs have open, with the number of programs. They can't be handed over.
    pub fn verbs_in_use(&self) -> Vec<(String, usize)> {
        let devices = self.ports.rdma().into_iter();
        devices
            .map(|device| (device.name, device.clients.len()))
            .filter(|(_, clients)| *clients > 0)
            .collect()
    }

    /// Has ports' threads that are not needed for packets rest until [`Self::thaw`], and waits for that, for a bounded
    /// time.
    pub fn rest(&self) {
        let ports = self.open_ports();
        ports.iter().for_each(|(_, port)| port.rest());
        ports.iter().for_each(|(_, port)| port.await_rest());
    }

    /// Stops all ports until [`Self::thaw`]. Returns the state of those that have one.
    ///
    /// # Errors
    /// The first port that does not stop. Others may have stopped; [`Self::thaw`] restarts them.
    pub fn freeze(&self) -> Result<Vec<(String, Frozen)>, Error> {
        let freeze = |(name, port): (String, Arc<dyn Port>)| match port.freeze() {
            Ok(frozen) => frozen.map(|frozen| Ok((name, frozen))),
            Err(e) => Some(Err(Error::Port { name, reason: e.to_string() })),
        };
        let ports = self.open_ports();
        ports.iter().for_each(|(_, port)| port.begin_freeze());
        ports.into_iter().filter_map(freeze).collect()
    }

    /// Restarts all ports after [`Self::freeze`] or [`Self::adopt`].
    pub fn thaw(&self) {
        self.open_ports().iter().for_each(|(_, port)| port.thaw());
    }

    /// Accepts changes again, because the host stays with this daemon.
    pub fn stay(&self) {
        self.is_leaving.store(false, Ordering::SeqCst);
    }

    /// Sets all ports up with the state of the old daemon's stopped ports. They serve VMMs from
    /// [`Self::thaw`] on.
    ///
    /// # Errors
    /// The first port that can't be set up, also because it is not open. Ports that fail because of the
    /// directory of a VM's socket are excepted, or whoever writes there could keep the host's daemon from
    /// being replaced.
    pub fn adopt(&self, mut frozen: BTreeMap<String, Frozen>) -> Result<(), Error> {
        for (name, port) in self.open_ports() {
            if let Some(frozen) = frozen.remove(&name) {
                port.adopt(frozen)
                    .map_err(|e| Error::Port { name, reason: format!("it can't be taken over: {e}") })?;
            }
        }
        let state = self.lock();
        for name in frozen.keys() {
            let Some(slot) = state.slots.get(name) else {
                tracing::warn!(interface = name, "it ends: it is no longer configured");
                continue;
            };
            let reason = match &slot.state {
                SlotState::Fault(fault) if fault.is_of_place => {
                    let why = &fault.reason;
                    tracing::warn!(
                        interface = name,
                        "its VMM has to connect again: it can't be opened: {why}"
                    );
                    continue;
                }
                SlotState::Fault(fault) => {
                    format!("its VMM is connected, and the port can't be opened: {}", fault.reason)
                }
                SlotState::Open { .. } => {
                    "its port was opened too late to be taken over: try again".to_owned()
                }
            };
            return Err(Error::Port { name: name.clone(), reason });
        }
        Ok(())
    }

    /// Enters the connections that the old daemon has left so far, while it still works.
    pub fn foresee(&self, left: Opened) -> Foreseen {
        let early =
            left.former.as_ref().map(|former| Early::enter(former, &self.lock().desired, &*self.executor));
        Foreseen((left, early.unwrap_or_default()))
    }

    /// Takes over the rest of what the old daemon left. It must have stopped writing.
    pub fn take_over(&self, Foreseen(left): Foreseen) {
        let mut state = self.lock();
        let state = &mut *state;
        let to = (&mut state.inherited, &state.plugged);
        let carry = Carry::begin(left, &state.desired, &*self.executor, to);
        self.publish(View::new(state, self.executor.clone(), self.started));
        self.departed.add(carry.resume(&self.view()));
        let _ = self.carry.set(carry);
    }

    /// Gives up what the old daemon left, once it has handed over everything and can't go on.
    pub fn succeed(&self) {
        self.carry.get().into_iter().for_each(Carry::succeed);
    }

    /// Takes the store of the old daemon, which is gone, and opens ports that it had and did not hand over.
    ///
    /// # Errors
    /// As for [`Self::refresh`].
    pub fn settle(&self) -> Result<(), Error> {
        self.store.take();
        self.retry(true)
    }

    fn open_ports(&self) -> Vec<(String, Arc<dyn Port>)> {
        let state = self.lock();
        let open = |(name, slot): (&String, &Slot)| Some((name.clone(), slot.port()?.clone()));
        state.slots.iter().filter_map(open).collect()
    }

    /// Is true if a new daemon is taking over. It will follow changes that nobody requested; this one need
    /// not.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    /// Locks the state for a change. Who comes first has it first.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a new daemon is taking over.
    pub(super) fn lock_to_change(&self) -> Result<MutexGuard<'_, State>, Error> {
        let turn = self.turn.blocking_lock();
        let state = self.lock();
        drop(turn);
        match self.is_leaving() {
            false => Ok(state),
            true => Err(taken_over()),
        }
    }
}

pub(super) fn taken_over() -> Error {
    let text = "another daemon is taking over from this one, which changes nothing any more; try again";
    Error::Conflict(text.to_owned())
}
