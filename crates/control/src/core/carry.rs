//! What this daemon leaves to the next one, and what it takes over of the one before. Connections lie in memory that
//! outlives the process; beside them is a snapshot of what is needed to understand them.

mod early;

use super::counts::Counts;
use super::directory::{Directory, Translation};
use super::inherited::Inherited;
use super::view::View;
use crate::compile::Desired;
use carryover::{Former, Opened, Own};
pub(super) use early::Early;
use early::Entered;
use executor::{BadRecord, Executor, FlowInfo, LearnedMac, RECORD};
use model::{BridgeTarget, GATEWAY_MAC, Learn, Seconds, VifId, Vrf};
use packet::Mac;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Version of the snapshot.
pub const FORMAT: u32 = 1;
/// Connections that are entered at a time.
const BATCH: usize = 4096;

/// What is written beside the connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Snapshot {
    directory: Directory,
    counts: Counts,
    macs: Vec<KnownMac>,
    /// When it was written, on the machine's monotonic clock, seconds.
    written: Seconds,
}

/// A learned MAC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct KnownMac {
    network: u16,
    mac: [u8; 6],
    at: Place,
    idle: Seconds,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Place {
    Vif(u16),
    Vtep { remote: IpAddr, vni: u32 },
}

impl KnownMac {
    fn of(learned: LearnedMac) -> Option<Self> {
        let at = match learned.target {
            BridgeTarget::Vif(vif) => Place::Vif(vif.0),
            BridgeTarget::Vtep { remote, vni } => Place::Vtep { remote, vni },
            BridgeTarget::Nexthop(_) => return None,
        };
        Some(Self { network: learned.vrf.0, mac: learned.mac.0, at, idle: learned.idle })
    }

    /// By the numbers of now.
    fn translated(&self, way: &Translation) -> Option<Learn> {
        let at = match self.at {
            Place::Vif(vif) => BridgeTarget::Vif(way.vif(VifId(vif))?),
            Place::Vtep { remote, vni } => BridgeTarget::Vtep { remote, vni },
        };
        let mac =
            Some(Mac(self.mac)).filter(|mac| !mac.is_group() && !mac.is_zero() && *mac != GATEWAY_MAC)?;
        Some(Learn { vrf: way.network(Vrf(self.network))?, mac, at })
    }
}

fn clock() -> Seconds {
    clock_gettime(ClockId::Monotonic).tv_sec as Seconds
}

/// The daemon's own.
pub(super) struct Carry {
    own: Own,
    snapshot: Mutex<Snapshot>,
}

impl Carry {
    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the names of tables that are about to be in force, or that alone are from now on.
    pub(super) fn name(&self, directory: Directory) {
        let mut snapshot = self.lock();
        if snapshot.directory != directory {
            snapshot.directory = directory;
            self.write(&snapshot);
        }
    }

    /// Writes what changed by itself: what was counted, and which MACs were learned.
    pub(super) fn keep(&self, view: &View) {
        let (counts, macs) = (Counts::of(view), view.executor.learned().into_iter().filter_map(KnownMac::of));
        let macs = macs.collect();
        let mut snapshot = self.lock();
        // Names are written before tables have them, and numbers must be those of the names.
        if snapshot.directory == Directory::of(&view.tables) {
            (snapshot.counts, snapshot.macs, snapshot.written) = (counts, macs, clock());
            self.write(&snapshot);
        }
    }

    /// The executor goes on counting where the last one ended.
    pub(super) fn resume(&self, view: &View) {
        let past = self.lock().counts.past(view);
        view.executor.enter_counts(past);
    }

    fn write(&self, snapshot: &Snapshot) {
        let written = serde_json::to_vec(snapshot).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|bytes| self.own.write(&bytes)) {
            tracing::error!(%error, "what the next daemon needs to know can't be written");
        }
    }

    /// Takes over what the daemon before left, for tables in force through which no packet went yet, and leaves all of
    /// it to the next one once [`Self::succeed`] is called.
    pub(super) fn begin(
        (opened, early): (Opened, Early),
        tables: &Desired,
        executor: &dyn Executor,
        inherited: &mut Inherited,
    ) -> Self {
        let Opened { own, former, refused } = opened;
        let now = Directory::of(tables);
        let mut snapshot = Snapshot { directory: now, written: clock(), ..Snapshot::default() };
        let dropped =
            |why: &dyn Display| tracing::warn!("what the previous daemon left is not taken over: {why}");
        refused.iter().for_each(|why| dropped(why));
        if let Some(former) = &former {
            match Snapshot::of(former) {
                Ok(before) => {
                    let records = |each: Each<'_>| former.records(each);
                    before.take_over(records, early, &mut snapshot, executor);
                }
                Err(why) => dropped(&why),
            }
        }
        snapshot.counts.vifs.iter().for_each(|(id, counted)| inherited.resume(VifId(*id), counted));
        let carry = Self { own, snapshot: Mutex::new(snapshot) };
        carry.write(&carry.lock());
        carry
    }

    /// What the daemon before left is no longer needed.
    pub(super) fn succeed(&self) {
        if let Err(error) = self.own.succeed() {
            tracing::error!(%error, "the next daemon will not know the connections");
        }
    }
}

/// What is called for each record, with its number.
type Each<'a> = &'a mut dyn FnMut(usize, &[u64; RECORD]);

impl Snapshot {
    fn of(former: &Former) -> Result<Self, String> {
        let bytes = former.snapshot().map_err(|e| e.to_string())?;
        Self::read(&bytes.ok_or("its list of guests and networks is missing")?)
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes)
            .map_err(|e| format!("its list of guests and networks can't be read: {e}"))
    }

    /// Enters into the executor what is known still, and says what by `now`.
    fn take_over(
        self,
        records: impl FnOnce(Each<'_>) -> io::Result<()>,
        early: Early,
        now: &mut Self,
        executor: &dyn Executor,
    ) {
        let way = Translation::new(&self.directory, &now.directory);
        take_connections(records, early.known_by(&self.directory, executor), &way, executor);
        let ago = now.written.saturating_sub(self.written);
        let known = self
            .macs
            .iter()
            .filter_map(|known| Some((known.translated(&way)?, known.idle.saturating_add(ago))));
        let entered = executor.enter_learned(&known.collect::<Vec<_>>());
        tracing::info!(macs = entered, "taken over from the previous daemon");
        now.macs = executor.learned().into_iter().filter_map(KnownMac::of).collect();
        let mut counts = self.counts.understood();
        let vifs = std::mem::take(&mut counts.vifs).into_iter();
        counts.vifs = vifs.filter_map(|(id, counted)| Some((way.vif(VifId(id))?.0, counted))).collect();
        now.counts = counts;
    }
}

/// Enters connections, but for those that are here early: these are brought up to date. What is left out is logged, by
/// the reason.
fn take_connections(
    records: impl FnOnce(Each<'_>) -> io::Result<()>,
    mut early: Entered,
    way: &Translation,
    executor: &dyn Executor,
) {
    let (mut batch, mut entered, mut left_out) = (Vec::new(), 0, BTreeMap::<_, usize>::new());
    let mut enter = |batch: &mut Vec<FlowInfo>, left_out: &mut BTreeMap<_, usize>| {
        let done = executor.enter_flows(batch);
        entered += done;
        *left_out.entry("timed out, or beyond a share").or_default() += batch.len() - done;
        batch.clear();
    };
    let mut caught_up = 0;
    let read = records(&mut |number, record| {
        let known = match early.catch_up(number, record, executor) {
            Ok(true) => {
                caught_up += 1;
                return;
            }
            Ok(false) => executor.remembered(record),
            Err(BadRecord) => Err(BadRecord),
        };
        let why = match known {
            Ok(None) => return,
            Ok(Some(flow)) => match translated(&flow, way) {
                Some(flow) => {
                    batch.push(flow);
                    // One that moved to another record goes from where it was before it is entered again.
                    if batch.len() >= BATCH && early.is_done() {
                        enter(&mut batch, &mut left_out);
                    }
                    return;
                }
                None => "of guests or networks that are not the same any more",
            },
            Err(BadRecord) => "not written to the end, or damaged",
        };
        *left_out.entry(why).or_default() += 1;
    });
    early.end(executor);
    enter(&mut batch, &mut left_out);
    if let Err(error) = read {
        tracing::warn!(%error, "connections of the previous daemon can't be read");
    }
    let (connections, early) = (entered + caught_up, caught_up);
    tracing::info!(connections, early, "taken over from the previous daemon");
    for (why, connections) in left_out.into_iter().filter(|(_, n)| *n > 0) {
        tracing::info!(connections, "not taken over: {why}");
    }
}

/// A connection by the numbers of now, if its ends are still who they were.
fn translated(flow: &FlowInfo, way: &Translation) -> Option<FlowInfo> {
    let (vif, from_wire) = flow.charged;
    let mut flow = FlowInfo { charged: (way.vif(vif)?, from_wire), rule: None, ..flow.clone() };
    for end in [&mut flow.key.src, &mut flow.key.dst] {
        if !way.is_same_host(end.vrf, end.addr) {
            return None;
        }
        end.vrf = way.network(end.vrf)?;
    }
    Some(flow)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
