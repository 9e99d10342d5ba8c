//! Flows that are left to OVS, although it was told that they are carried out here; and flows of sessions that ended.

use super::{Session, State, gone, warn_of};
use crate::flows::{Held, Owner, sends_to, without};
use crate::kinds::qos;
use crate::protocol::Answer;
use crate::refused::Refused;
use model::VifId;
use model::ovs::{Action, Change, Flow};
use std::time::Instant;

impl State {
    /// Leaves the flows that send to a port to OVS. The sessions that made them still have them, with their
    /// counters.
    pub(super) fn leave_to_ovs(&mut self, vif: VifId, now: Instant) {
        let sends = |held: &Held| held.flow.port != vif && sends_to(&held.flow, vif);
        let stale = self.flows.find(|held| sends(held) && matches!(held.owner, Owner::Stale(_)));
        self.remove(&stale, now);
        let cut = self.flows.find(|held| sends(held) && !held.cut);
        let changes: Vec<_> = cut.iter().filter_map(|flow| self.flows.removal(*flow)).collect();
        self.apply_all(&changes);
        for flow in cut {
            self.flows.cut(flow);
            self.note(flow, &Refused::ForeignPort);
        }
    }

    /// Sets the device of a port. If that differs from the one before, the port of OVS has a different guest
    /// or wire now, and what an earlier session sent there would reach the wrong one.
    pub(super) fn set_device(&mut self, name: &str, device: String, now: Instant) {
        if device.is_empty() {
            return;
        }
        let mut changed = Vec::new();
        for (other, entry) in &mut self.ports {
            let same = *other == name;
            let differs = if same { entry.device != device } else { entry.device == device };
            if differs && !entry.device.is_empty() && (same || entry.session.is_none()) {
                changed.extend(entry.vif);
                entry.device.clear();
            }
            if same {
                entry.device.clone_from(&device);
            }
        }
        let concerns = |flow: &Flow| changed.iter().any(|vif| flow.port == *vif || sends_to(flow, *vif));
        let old = self.flows.find(|held| matches!(held.owner, Owner::Stale(_)) && concerns(&held.flow));
        self.remove(&old, now);
    }

    /// Sets what OVS does to packets of a port. It does that only to packets that it forwards itself.
    pub(super) fn set_qos(&mut self, id: u64, number: u32, qos: u32, now: Instant) -> Answer {
        let Some(name) = self.name(id, number).cloned() else { return gone() };
        let Some(entry) = self.ports.get_mut(&name).filter(|entry| entry.qos != qos) else {
            return Answer::default();
        };
        if qos & !entry.qos & qos::UNKNOWN != 0 {
            let text =
                "the driver can't read Open vSwitch's database: policing and QoS of its ports have no effect";
            warn_of(&mut self.warned, id, text, now);
        }
        entry.qos = qos;
        let Some(vif) = entry.vif else { return Answer::default() };
        let changes = self.changes_of(vif);
        self.apply_all(&changes);
        for change in changes {
            if let Change::Remove { id, .. } = change {
                self.note(id.0, &Refused::Qos);
            }
        }
        Answer::default()
    }

    /// Notes that the session has no more ports: at the next look, those flows of earlier sessions go of whose
    /// ports it has some and not all.
    pub(super) fn settle(&mut self, id: u64, now: Instant) -> Answer {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.settled = Some(now);
        }
        Answer::default()
    }

    /// Is true if OVS forwards the packets of a flow, although it was accepted. `cut`: for good.
    pub(crate) fn is_left_to_ovs(&self, flow: &Flow, cut: bool) -> bool {
        let has = |vif: VifId, what: u32| {
            self.ports.values().any(|entry| entry.qos & what != 0 && entry.vif == Some(vif))
        };
        let shaped = |action: &Action| matches!(action, Action::Output(to) if has(*to, qos::OUT));
        cut || !flow.is_mark() && (has(flow.port, qos::IN) || flow.actions.iter().any(shaped))
    }

    /// Counts a flow as refused that was accepted before.
    pub(super) fn note(&mut self, flow: u64, refused: &Refused) {
        let Some(port) = self.flows.get(flow).map(|held| held.flow.port) else { return };
        let name = self.ports.iter().find(|(_, entry)| entry.vif == Some(port)).map(|(name, _)| name.clone());
        self.refuse(name, refused);
    }

    /// Brings the tables up to date about the flows from a port and to it.
    pub(super) fn changes_of(&self, vif: VifId) -> Vec<Change> {
        let down = self.down();
        let change = |held: &Held| match self.is_left_to_ovs(&held.flow, held.cut) {
            true => Change::Remove { port: held.flow.port, id: held.flow.id },
            false => Change::Add(without(&held.flow, &down)),
        };
        let concerned = |held: &&Held| held.flow.port == vif || sends_to(&held.flow, vif);
        self.flows.iter().filter(concerned).map(change).collect()
    }

    pub(super) fn apply_all(&self, changes: &[Change]) {
        if !changes.is_empty()
            && let Err(e) = self.tables.apply(changes, true)
        {
            tracing::error!("flows of Open vSwitch do not follow its ports: {e}");
        }
    }

    pub(super) fn sweep(&mut self, now: Instant) {
        let mut swept = Vec::new();
        for entry in self.ports.values_mut().filter(|entry| entry.sweep.is_some_and(|at| at <= now)) {
            entry.sweep = None;
            swept.extend(entry.vif);
        }
        let settled = |session: &mut Session| match session.settled {
            Some(at) if at <= now => session.settled.take(),
            _ => None,
        };
        let mut partly = Vec::new();
        for (id, session) in &mut self.sessions {
            partly.extend(settled(session).map(|_| *id));
        }
        if !self.flows.has_stale() {
            return;
        }
        let has = |session: u64, vif: VifId| {
            self.ports.values().any(|entry| entry.vif == Some(vif) && entry.session == Some(session))
        };
        let is_partly = |flow: &Flow, session: u64| {
            let outputs = flow.actions.iter().filter_map(|action| match action {
                Action::Output(to) => Some(*to),
                _ => None,
            });
            let mut all = std::iter::once(flow.port).chain(outputs).map(|vif| has(session, vif));
            let first = all.next();
            all.any(|has| Some(has) != first)
        };
        let limit = self.times.stale;
        let is_old = |held: &Held| match held.owner {
            Owner::Session(_) => false,
            Owner::Stale(since) => {
                swept.contains(&held.flow.port)
                    || now.saturating_duration_since(since) >= limit
                    || partly.iter().any(|session| is_partly(&held.flow, *session))
            }
        };
        let old = self.flows.find(is_old);
        if !old.is_empty() {
            tracing::info!("{} flows of an Open vSwitch that ended are removed", old.len());
            self.remove(&old, now);
        }
    }
}
