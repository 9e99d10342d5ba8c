//! Carries out the requests of a driver's turn. Flows that the driver makes and destroys one after the other
//! become one version of the tables, because each version costs copies of what it shares with the one before.

use crate::encoding;
use crate::flows::{Owner, Plan, without};
use crate::protocol::{Answer, Create, Request};
use crate::refused::Refused;
use crate::state::{Reply, State, counts_of};
use executor::Counters;
use model::VifId;
use model::ovs::{Change, Flow, FlowId};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Instant;

struct Turn {
    /// The answers, which are sent once the tables have all changes.
    replies: Vec<Reply>,
    /// Changes that the tables do not have yet, in order.
    changes: Vec<Change>,
    /// Whether removed flows must no longer affect packets when the driver gets the answer. That is so for
    /// marks, which OVS then gives to other flows. A driver does not wait until other flows are gone, and
    /// workers may take milliseconds to follow if something else uses their CPU.
    waits: bool,
    down: Vec<VifId>,
}

impl State {
    /// Carries out a driver's requests, in order.
    pub fn handle_all<'a>(
        &mut self,
        id: u64,
        requests: impl IntoIterator<Item = Request<'a>>,
        now: Instant,
    ) -> Vec<Reply> {
        let requests = requests.into_iter();
        let replies = Vec::with_capacity(requests.size_hint().1.unwrap_or_default());
        let mut turn = Turn { replies, changes: Vec::new(), waits: false, down: self.down() };
        for request in requests {
            let reply = match request {
                Request::FlowCreate(create) if self.has_said_hello(id) => {
                    self.create(&mut turn, id, &create, now).into()
                }
                Request::FlowDestroy { flow, seen } if self.has_said_hello(id) => {
                    self.destroy(&mut turn, id, flow, seen, now).into()
                }
                other => {
                    self.commit(&mut turn, now);
                    let reply = self.handle_other(id, other, now);
                    turn.down = self.down();
                    reply
                }
            };
            turn.replies.push(reply);
        }
        self.commit(&mut turn, now);
        turn.replies
    }

    fn create(&mut self, turn: &mut Turn, id: u64, create: &Create<'_>, now: Instant) -> Answer {
        match self.plan(turn, id, create, now) {
            Ok((flow, seen)) => {
                let (ahead, counter) = (self.flows.ahead(self.user(id)), flow.counter);
                Answer { flow: flow.id.0, counter, ahead, seen, ..Answer::default() }
            }
            Err(refused) => {
                let name = self.name(id, create.port).cloned();
                self.refuse(name, &refused)
            }
        }
    }

    /// Enters a flow, and notes the changes for the tables. Returns the present value of its counter.
    fn plan(
        &mut self,
        turn: &mut Turn,
        id: u64,
        create: &Create<'_>,
        now: Instant,
    ) -> Result<(Arc<Flow>, Counters), Refused> {
        let port = self.vif(id, create.port).ok_or(Refused::NoPort)?;
        let (matching, actions) = encoding::decode(create, |number| self.vif(id, number))?;
        let flow = Flow { id: FlowId(0), counter: 0, port, matching, actions };
        if self.is_left_to_ovs(&flow, false) {
            return Err(Refused::Qos);
        }
        let user = self.user(id);
        match self.flows.plan(port, (flow.matching, flow.actions), user, now)? {
            Plan::Adopt(flow) => {
                let flow = self.flows.adopt(flow, id, user).cloned().ok_or(Refused::Exists)?;
                let (_, seen) = self.begin_to_count(flow.counter);
                Ok((flow, seen))
            }
            Plan::Add(new, old) => {
                if let Some(old) = old {
                    self.remove_in(turn, old, None, now);
                }
                let flow = new.flow.clone();
                turn.changes.push(Change::Add(without(&flow, &turn.down)));
                self.heritage.come(&flow);
                let (seen, _) = self.begin_to_count(flow.counter);
                self.flows.insert(new, (id, user), seen);
                Ok((flow, seen))
            }
        }
    }

    fn destroy(
        &mut self,
        turn: &mut Turn,
        id: u64,
        flow: u64,
        seen: Option<Counters>,
        now: Instant,
    ) -> Answer {
        // A flow that does not exist any more counts as destroyed.
        if self.flows.get(flow).is_some_and(|held| held.owner == Owner::Session(id)) {
            self.remove_in(turn, flow, seen, now);
        }
        Answer::default()
    }

    fn remove_in(&mut self, turn: &mut Turn, flow: u64, seen: Option<Counters>, now: Instant) {
        let Some(flow) = self.flows.remove(flow, now) else { return };
        self.heritage.leave(&flow, seen, now, &counts_of(&*self.tables));
        turn.waits |= flow.is_mark();
        turn.changes.push(Change::Remove { port: flow.port, id: flow.id });
    }

    /// Applies the noted changes to the tables.
    fn commit(&mut self, turn: &mut Turn, now: Instant) {
        let changes = std::mem::take(&mut turn.changes);
        let waits = std::mem::take(&mut turn.waits);
        if changes.is_empty() || self.tables.apply(&changes, waits).is_ok() {
            return;
        }
        // One by one, so that a refused change takes no other along.
        for change in changes {
            let Err(reason) = self.tables.apply(std::slice::from_ref(&change), waits) else { continue };
            let Change::Add(flow) = change else {
                tracing::error!("a flow of Open vSwitch is not removed: {reason}");
                continue;
            };
            self.forget(flow.id.0, now);
            let name = self.ports.iter().find(|(_, port)| port.vif == Some(flow.port));
            let answer = self.refuse(name.map(|(name, _)| name.clone()), &Refused::Executor(reason));
            if let Some(reply) = turn.replies.iter_mut().find(|reply| reply.answer.flow == flow.id.0) {
                reply.answer = answer;
            }
        }
    }

    /// Makes the answer to a request for a flow of this port that is left to OVS.
    pub(crate) fn refuse(&mut self, port: Option<String>, refused: &Refused) -> Answer {
        let text = refused.to_string();
        if let Some(name) = port {
            let (count, last) = self.refused.entry((name, refused.name())).or_default();
            *count += 1;
            last.clone_from(&text);
        }
        Answer { reason: refused.number(), ..Answer::refuse(Errno::NOTSUP, text) }
    }
}
