//! Data that this daemon leaves to the next one, and takes over from the previous one. Connections lie in
//! memory that outlives the process; a snapshot beside them holds the names and counts needed to understand
//! them.

mod early;

use super::counts::{Counts, Departed, TunnelOf};
use super::directory::{Directory, Translation};
use super::inherited::Inherited;
use super::plugged::Plugged;
use super::view::View;
use crate::compile::Desired;
use carryover::{Former, Opened, Own};
pub(super) use early::Early;
use early::Entered;
use executor::{BadRecord, Counters, Executor, FlowInfo, LearnedMac, RECORD};
use model::{BridgeTarget, GATEWAY_MAC, Learn, Seconds, VifId, Vrf};
use packet::Mac;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

pub const FORMAT: u32 = 1;
/// Most connections entered at a time.
const BATCH: usize = 4096;
/// How many calls of [`Carry::keep`] make one look at taps.
const LOOK_EACH: u32 = 10;

/// The data written beside the connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Snapshot {
    directory: Directory,
    counts: Counts,
    macs: Vec<KnownMac>,
    /// Time of writing on the machine's monotonic clock, seconds.
    written: Seconds,
    /// Time when the counts were zero, seconds since the Unix epoch; `None` if an earlier version began them.
    #[serde(default)]
    since: Option<u64>,
    /// Guests whose tap somebody has put into another namespace.
    #[serde(default)]
    plugged: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct KnownMac {
    network: u16,
    mac: [u8; 6],
    at: Place,
    idle: Seconds,
}

/// The interface or tunnel endpoint behind which a MAC is.
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

    /// Translates it to this daemon's numbers.
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

/// Returns the present time in seconds since the Unix epoch.
pub(super) fn epoch_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) struct Carry {
    own: Own,
    snapshot: Mutex<Snapshot>,
    /// Counts the calls of [`Self::keep`].
    kept: AtomicU32,
}

impl Carry {
    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the names in the tables: before a change those of the old and new tables, afterwards those in
    /// force.
    pub(super) fn name(&self, directory: Directory) {
        let mut snapshot = self.lock();
        if snapshot.directory != directory {
            snapshot.directory = directory;
            self.write(&snapshot);
        }
    }

    /// Writes counts, learned MACs and the places of taps, which change without a request.
    pub(super) fn keep(&self, view: &View, departed: &Departed, at_end: bool) {
        // A look at a tap is a request to the helper.
        let looks = at_end || self.kept.fetch_add(1, Relaxed).is_multiple_of(LOOK_EACH);
        let plugged = looks.then(|| view.look_at_taps());
        let (counts, macs) =
            (Counts::of(view, departed), view.executor.learned().into_iter().filter_map(KnownMac::of));
        let macs = macs.collect();
        let mut snapshot = self.lock();
        // Names are written before the tables have them. Counts and MACs have numbers of the view, so write
        // them only if the snapshot's names are those of the view.
        if snapshot.directory == Directory::of(&view.tables) {
            (snapshot.counts, snapshot.macs, snapshot.written) = (counts, macs, clock());
            snapshot.plugged = plugged.unwrap_or(std::mem::take(&mut snapshot.plugged));
            self.write(&snapshot);
        }
    }

    /// Lets the executor go on counting from the counts of the previous daemon, and returns those of tunnels for labels
    /// that are gone.
    pub(super) fn resume(&self, view: &View) -> Vec<(TunnelOf, Counters)> {
        let snapshot = self.lock();
        view.executor.enter_counts(snapshot.counts.past(view));
        snapshot.counts.departed(view).collect()
    }

    /// Returns the time when the counts were zero, seconds since the Unix epoch, if it is known.
    pub(super) fn since(&self) -> Option<u64> {
        self.lock().since
    }

    fn write(&self, snapshot: &Snapshot) {
        let written = serde_json::to_vec(snapshot).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|bytes| self.own.write(&bytes)) {
            tracing::error!(%error, "what the next daemon needs to know can't be written");
        }
    }

    /// Takes over what the previous daemon left. The tables must be in force, and no packet may have gone
    /// through them yet. From the call of [`Self::succeed`] on, the data is left to the next daemon.
    pub(super) fn begin(
        (opened, early): (Opened, Early),
        tables: &Desired,
        executor: &dyn Executor,
        (inherited, plugged): (&mut Inherited, &Plugged),
    ) -> Self {
        let Opened { own, former, refused } = opened;
        let now = Directory::of(tables);
        let since = Some(epoch_seconds());
        let mut snapshot = Snapshot { directory: now, written: clock(), since, ..Snapshot::default() };
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
        plugged.resume(snapshot.plugged.clone());
        let carry = Self { own, snapshot: Mutex::new(snapshot), kept: AtomicU32::default() };
        carry.write(&carry.lock());
        carry
    }

    /// Gives up what the previous daemon left.
    pub(super) fn succeed(&self) {
        if let Err(error) = self.own.succeed() {
            tracing::error!(%error, "the next daemon will not know the connections");
        }
    }
}

/// A callback for each record, with the record's number.
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

    /// Enters into the executor what is still known, and writes the result to `now`.
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
        (now.counts, now.since, now.plugged) = (counts, self.since, self.plugged);
    }
}

/// Enters connections. It only brings up to date those that were entered early. It logs how many it leaves
/// out, by reason.
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
                    // A connection that moved to a new record has to be removed from its old one before it is
                    // entered again.
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

/// Translates a connection to this daemon's numbers, if its ends are still the same hosts.
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
