//! The tables as threads share them: one writer at a time, readers without locks.

use crate::cells::{Cell, Cells, Deps, FlowCell, Touched, Uses};
use crate::draft::Draft;
use crate::flow::{FlowLimits, Flows};
use crate::learned::{Learned, MAC_AGE};
use crate::neighbours::{Key, Told};
use crate::rcu::{Rcu, Reader, Writer};
use crate::resolver::{Advanced, Resolver, STALE, UNUSED, Waiting};
use crate::snapshot::Snapshot;
use arrayvec::ArrayVec;
use executor::{LearnedMac, NeighbourInfo};
use model::{
    ApplyError, Change, Learn, NeighbourFound, NeighbourScope, PathMtu, Question, Seconds, Vif, VifId, ovs,
};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// How long [`Shared::apply`] waits for readers.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of replaced versions left to the housekeeping; beyond it, a thread that learns something helps to free them.
const BACKLOG: usize = 64;
/// Most neighbours queued for the current writer. Those beyond it are asked again.
const LATE: usize = 64;
/// How often a thread checks at most whether more neighbours are queued: others may add them as fast as it
/// enters them.
const ROUNDS: usize = 4;

/// All tables, to share in an [`std::sync::Arc`].
pub struct Shared {
    rcu: Rcu<Snapshot>,
    /// Held during the whole of an `apply`, so that learning can go on while a large batch is prepared.
    applying: Mutex<()>,
    cells: Cells,
    uses: Uses,
    resolver: Mutex<Resolver>,
    /// Neighbours for which packets wait, found while a different thread was writing.
    late: Mutex<ArrayVec<Told, LATE>>,
    flows: Flows,
}

/// The result of [`Shared::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The epoch of the first snapshot with the changes.
    pub epoch: u64,
    /// Whether every reader has left older snapshots. If not, some thread has been in one burst for a second: its next
    /// burst will follow the changes, the current one may not.
    pub settled: bool,
}

impl Shared {
    #[must_use]
    pub fn new(limits: FlowLimits) -> Self {
        Self::with_flows(Flows::new(limits))
    }

    /// Creates empty tables with these connections.
    #[must_use]
    pub fn with_flows(flows: Flows) -> Self {
        Self {
            rcu: Rcu::new(Snapshot::empty()),
            applying: Mutex::default(),
            cells: Cells::new(),
            uses: Uses::new(),
            resolver: Mutex::default(),
            late: Mutex::default(),
            flows,
        }
    }

    /// Creates a reader for one thread, offline.
    #[must_use]
    pub fn reader(&self) -> Reader<Snapshot> {
        self.rcu.reader()
    }

    /// Returns the current snapshot, for threads that are not packet workers.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.rcu.write().current().clone()
    }

    #[must_use]
    pub const fn flows(&self) -> &Flows {
        &self.flows
    }

    /// Returns whether a decision that depends on `deps` and was made (or last found to hold) at epoch
    /// `stamp` still holds. If so, it may be stamped with the epoch of the caller's pinned snapshot, if that
    /// is higher.
    #[must_use]
    #[inline]
    pub fn still_valid(&self, deps: &Deps, stamp: u64) -> bool {
        self.cells.unchanged(deps, stamp)
    }

    /// Returns whether a decision that depends on a flow of Open vSwitch still holds as far as that flow is
    /// concerned, as [`Self::still_valid`] does.
    #[must_use]
    pub fn flow_holds(&self, flow: FlowCell, stamp: u64) -> bool {
        self.cells.is_unchanged(flow.cell(), stamp)
    }

    /// Records that a memoised decision which depends on `deps` sent packets: its neighbours are in use. Call it about
    /// once a second.
    pub fn used(&self, deps: &Deps, now: Seconds) {
        self.uses.note(deps, now);
    }

    /// Applies a batch as a whole: one snapshot has all of it, earlier ones nothing. Returns once no online
    /// reader uses an older snapshot (or after a second, see [`Applied`]), so that nothing that was removed
    /// still forwards packets. A thread that has a snapshot pinned must not call this.
    ///
    /// # Errors
    /// [`ApplyError`]; nothing was applied.
    pub fn apply(&self, changes: &[Change]) -> Result<Applied, ApplyError> {
        let applying = lock(&self.applying);
        let base = self.rcu.write().current().config.as_ref().clone();
        let Draft { config, mut touched, removed, .. } = Draft::new(base).apply(changes)?;
        let writer = self.rcu.write();
        let Snapshot { mut learned, mut ovs, .. } = writer.current().clone();
        if removed {
            learned.retain(&config, |cell| touched.add(cell));
        }
        ovs.retain(|port| config.vif(port).is_some_and(Vif::takes_flows), &mut touched);
        let epoch = writer.next_epoch();
        self.cells.bump(&touched, epoch);
        writer.publish(Snapshot { epoch, config: config.into(), learned, ovs });
        drop(applying);
        self.enter_late();
        let settled = self.rcu.wait(epoch, PATIENCE);
        if removed {
            self.forget_flows();
        }
        self.rcu.write().reclaim();
        Ok(Applied { epoch, settled })
    }

    /// Changes flows of Open vSwitch. Like [`Self::apply`], it returns once no online reader uses a snapshot
    /// with a flow that was removed. Ports that an Open vSwitch does not program get no flows.
    pub fn apply_ovs(&self, changes: &[ovs::Change]) -> Applied {
        let (epoch, removed) = self.publish_ovs(changes);
        let settled = !removed || self.rcu.wait(epoch, PATIENCE);
        self.rcu.write().reclaim();
        Applied { epoch, settled }
    }

    /// Does the same without waiting for readers, unless they hold so many old snapshots that these take much
    /// memory.
    pub fn apply_ovs_soon(&self, changes: &[ovs::Change]) -> Applied {
        let (epoch, _) = self.publish_ovs(changes);
        let settled = self.rcu.write().reclaim() < BACKLOG || self.rcu.wait(epoch, PATIENCE);
        Applied { epoch, settled }
    }

    /// Publishes changed flows. Returns the epoch, and whether a flow was removed.
    fn publish_ovs(&self, changes: &[ovs::Change]) -> (u64, bool) {
        let writer = self.rcu.write();
        let Snapshot { config, learned, mut ovs, .. } = writer.current().clone();
        let mut touched = Touched::none();
        let takes_flows = |port| config.vif(port).is_some_and(Vif::takes_flows);
        let removed = ovs.apply(changes, takes_flows, &mut touched);
        let epoch = writer.next_epoch();
        self.cells.bump(&touched, epoch);
        writer.publish(Snapshot { epoch, config, learned, ovs });
        self.enter_late();
        (epoch, removed)
    }

    /// Forgets the connections of networks that no longer exist.
    fn forget_flows(&self) {
        let now = self.snapshot();
        let gone = |vrf| now.network(vrf).is_none();
        self.flows.remove_if(|key| gone(key.src.vrf) || gone(key.dst.vrf));
    }

    /// Publishes a snapshot with new learned state, then enters the neighbours that were queued meanwhile.
    /// `change` returns the cells of its changes.
    fn relearn(
        &self,
        writer: Writer<'_, Snapshot>,
        change: impl FnOnce(&Snapshot, &mut Learned) -> Vec<Cell>,
    ) {
        self.publish_learned(writer, change);
        self.enter_late();
    }

    fn publish_learned(
        &self,
        writer: Writer<'_, Snapshot>,
        change: impl FnOnce(&Snapshot, &mut Learned) -> Vec<Cell>,
    ) {
        let current = writer.current();
        let mut learned = current.learned.clone();
        let touched = change(current, &mut learned);
        if touched.is_empty() {
            return;
        }
        let epoch = writer.next_epoch();
        touched.into_iter().for_each(|cell| self.cells.bump_one(cell, epoch));
        let next = Snapshot { epoch, learned, ..current.clone() };
        let backlog = writer.waiting();
        writer.publish(next);
        if backlog >= BACKLOG
            && let Some(writer) = self.rcu.try_write()
        {
            writer.reclaim();
        }
    }

    /// Learns a source MAC that a worker saw. Costs one look-up if `snapshot` knows it; otherwise publishes a
    /// new snapshot, without waiting for anybody. If a different thread is writing, the MAC is not learned
    /// now; the next packet may bring it again.
    pub fn learn(&self, snapshot: &Snapshot, learn: &Learn, now: Seconds) {
        if snapshot.learned.confirms_mac(learn, now) {
            return;
        }
        let Some(writer) = self.rcu.try_write() else { return };
        self.relearn(writer, |current, learned| {
            let changed = learned.learn(&current.config, learn, now);
            changed.then(|| Cell::bridge(learn.vrf, learn.mac)).into_iter().collect()
        });
    }

    /// Does the same as [`Self::learn`], for packets that came at some time within the last `age` seconds. A
    /// MAC that moved within that time stays where it is: these packets may be older than its move.
    pub fn learn_late(&self, snapshot: &Snapshot, learn: &Learn, age: Seconds, now: Seconds) {
        if !snapshot.learned.moved_within(learn, age, now) {
            self.learn(snapshot, learn, now);
        }
    }

    /// Learns MACs that were learned elsewhere, and were seen so many seconds ago. Returns how many are now
    /// at the given locations.
    pub fn learn_all(&self, macs: &[(Learn, Seconds)], now: Seconds) -> usize {
        let young = || macs.iter().filter(|(_, idle)| *idle < MAC_AGE);
        self.relearn(self.rcu.write(), |current, learned| {
            let changed =
                young().filter(|(learn, idle)| learned.learn_late(&current.config, learn, *idle, now));
            changed.map(|(learn, _)| Cell::bridge(learn.vrf, learn.mac)).collect()
        });
        let learned = self.snapshot().learned;
        young().filter(|(learn, _)| learned.is_at(learn)).count()
    }

    pub fn found_neighbours(&self) -> Vec<(NeighbourFound, VifId)> {
        self.snapshot().learned.neighbours.found().collect()
    }

    /// Enters neighbours that a different process found, each with the interface that announced it.
    pub fn enter_neighbours(&self, found: &[(NeighbourFound, VifId)], now: Seconds) {
        self.relearn(self.rcu.write(), |current, learned| {
            let told = |&(found, by): &(NeighbourFound, VifId)| Told { found, by, is_awaited: false, now };
            found.iter().flat_map(|one| learned.neighbours.enter(&current.config, &told(one))).collect()
        });
    }

    /// Records a path MTU to a remote that a worker received. If a different thread is writing, it is not
    /// recorded; the next packet that is too big causes another error.
    pub fn path(&self, found: &PathMtu, now: Seconds) {
        let Some(writer) = self.rcu.try_write() else { return };
        self.relearn(writer, |_, learned| learned.enter_path(found, now).into_iter().collect());
    }

    /// Enters a neighbour's MAC that a worker saw in a packet that came in on `by`. Costs one look-up if
    /// there is nothing to write; otherwise publishes a new snapshot, without waiting for anybody. If a
    /// different thread is writing, neighbours for which packets wait are left to the next writer; others are
    /// not recorded, and may announce themselves again.
    pub fn neighbour(&self, snapshot: &Snapshot, found: &NeighbourFound, by: VifId, now: Seconds) {
        let confirmed = snapshot.learned.neighbours.confirms(found, now);
        if confirmed.is_some_and(|idle| idle < STALE) {
            return; // Nobody asks for it.
        }
        let key = (found.scope, found.addr);
        let is_awaited = try_lock(&self.resolver).is_some_and(|resolver| resolver.is_asked(&key));
        let told = Told { found: *found, by, is_awaited, now };
        if confirmed.is_none() && snapshot.learned.neighbours.would_enter(&snapshot.config, &told) {
            self.enter(told);
        }
        // If a different thread holds the resolver, the neighbour is asked again in vain, at most three
        // times.
        if let Some(mut resolver) = try_lock(&self.resolver) {
            resolver.found(&key);
        }
    }

    /// Enters a neighbour, or leaves that to the current writer.
    fn enter(&self, told: Told) {
        if let Some(writer) = self.rcu.try_write() {
            self.relearn(writer, |current, learned| learned.neighbours.enter(&current.config, &told));
        } else if told.is_awaited {
            if let Some(mut late) = try_lock(&self.late) {
                let _ = late.try_push(told);
            }
            // The current writer may have checked the queue before this neighbour was added.
            self.enter_late();
        }
    }

    /// Enters the neighbours that others queued while there was a different writer. Must be called after each
    /// write.
    fn enter_late(&self) {
        for _ in 0..ROUNDS {
            if try_lock(&self.late).is_none_or(|late| late.is_empty()) {
                return;
            }
            let Some(writer) = self.rcu.try_write() else { return };
            let Some(late) = try_lock(&self.late).map(|mut late| std::mem::take(&mut *late)) else { return };
            self.publish_learned(writer, |current, learned| {
                let entered = late.iter().map(|told| learned.neighbours.enter(&current.config, told));
                entered.flatten().collect()
            });
        }
    }

    /// Records that a packet that came in on `asker` waits for a neighbour ([`model::Verdict::Hold`]).
    /// Returns whether it may, and whether a solicitation must be sent at once. Later solicitations come from
    /// [`Self::pending_solicitations`].
    pub fn wait_for(&self, scope: NeighbourScope, addr: IpAddr, asker: VifId, now: Seconds) -> Waiting {
        lock(&self.resolver).wait((scope, addr), asker, now)
    }

    /// Returns whether a neighbour was asked recently and did not answer. Not for workers, because it may
    /// block.
    #[must_use]
    pub fn is_unreachable(&self, scope: NeighbourScope, addr: IpAddr) -> bool {
        lock(&self.resolver).has_failed(&(scope, addr))
    }

    /// Returns the neighbours to solicit now. The housekeeper calls this about once a second. The result
    /// contains neighbours that did not answer within a second, three times at most, and known ones in use
    /// that have not been seen for a minute; only the latter are asked alone. Known ones are forgotten if
    /// they don't answer either, or if nobody uses or sees them for ten minutes.
    pub fn pending_solicitations(&self, now: Seconds) -> Vec<Question> {
        let neighbours = self.snapshot().learned.neighbours;
        let (mut stale, mut forget) = (Vec::new(), Vec::new());
        for (key, known) in neighbours.iter().filter(|(_, known)| known.idle(now) >= STALE) {
            let used = known.used().max(self.uses.last(key.0, key.1));
            if used >= known.seen() + STALE {
                stale.push(*key);
            } else if known.idle(now) >= UNUSED {
                forget.push(*key);
            }
        }
        let silent: Vec<_> = self.snapshot().learned.silent.keys().copied().collect();
        let Advanced { solicit, forget: gone, failed } = lock(&self.resolver).advance(&stale, &silent, now);
        forget.extend(gone);
        if !forget.is_empty() || !failed.is_empty() || !silent.is_empty() {
            self.relearn(self.rcu.write(), |current, learned| {
                let forgotten = forget.iter().filter_map(|key| learned.neighbours.forget(key));
                let mut cells: Vec<_> = forgotten.collect();
                cells.extend(learned.follow_silence(&current.config, &failed, now));
                cells
            });
        }
        let question = |((scope, addr), alone): (Key, bool)| {
            let known = neighbours.get(&(scope, addr)).map(|known| known.value);
            // A neighbour that was forgotten meanwhile is asked for when a packet needs it.
            let at = if alone { Some(known?) } else { None };
            Some(Question { scope, addr, at })
        };
        solicit.into_iter().filter_map(question).collect()
    }

    /// Forgets MACs that have not been seen for 300 s and path MTUs older than 600 s, and frees old
    /// snapshots. The housekeeper calls this about once a second.
    pub fn age(&self, now: Seconds) {
        let snapshot = self.snapshot();
        let macs = snapshot.learned.macs.iter();
        let old: Vec<_> = macs.filter(|(_, known)| known.idle(now) >= MAC_AGE).map(|(key, _)| *key).collect();
        let has_paths = snapshot.paths().next().is_some();
        drop(snapshot);
        if has_paths {
            self.relearn(self.rcu.write(), |_, learned| learned.forget_old_paths(now));
        }
        if !old.is_empty() {
            self.relearn(self.rcu.write(), |_, learned| {
                let still_old = |learned: &Learned, key| {
                    learned.macs.get(key).is_some_and(|known| known.idle(now) >= MAC_AGE)
                };
                old.iter()
                    .filter_map(|key| still_old(learned, key).then(|| learned.forget_mac(key)).flatten())
                    .collect()
            });
        }
        self.enter_late();
        self.rcu.write().reclaim();
    }

    #[must_use]
    pub fn learned(&self, now: Seconds) -> Vec<LearnedMac> {
        let snapshot = self.snapshot();
        let macs = snapshot.learned.macs.iter();
        macs.map(|(&(vrf, mac), known)| LearnedMac { vrf, mac, target: known.value, idle: known.idle(now) })
            .collect()
    }

    /// Returns the neighbours, including those being asked. Only the executor knows the packets held for
    /// them.
    #[must_use]
    pub fn neighbours(&self) -> Vec<NeighbourInfo> {
        let known = self.snapshot().learned.neighbours;
        let info = |(scope, addr), mac| NeighbourInfo { scope, addr, mac, held: 0 };
        let resolver = lock(&self.resolver);
        let asked = resolver.asked().filter(|key| known.get(key).is_none()).map(|key| info(*key, None));
        known.iter().map(|(key, n)| info(*key, Some(n.value))).chain(asked).collect()
    }
}

/// Locks a mutex. A panic leaves no state guarded here half-changed, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex if it is free. For workers, which never wait.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use model::{Vif, VifKind};
    use packet::Mac;

    const WIRE: VifId = VifId(1);
    const SCOPE: NeighbourScope = NeighbourScope::Wire(WIRE);

    fn shared() -> Shared {
        let wire = Vif { wire: Some(Default::default()), ..Vif::new(WIRE, "up0", VifKind::Wire) };
        let shared = Shared::new(FlowLimits { connections: 64, ..FlowLimits::default() });
        shared.apply(&[Change::PutVif(wire)]).unwrap();
        shared
    }

    fn found(last: u8) -> NeighbourFound {
        NeighbourFound {
            scope: SCOPE,
            addr: IpAddr::from([192, 0, 2, last]),
            mac: Mac([2, 0, 0, 0, 0, last]),
        }
    }

    fn known(shared: &Shared) -> usize {
        shared.neighbours().iter().filter(|neighbour| neighbour.mac.is_some()).count()
    }

    /// A worker that does not run delays nobody, but snapshots do not pile up without end either.
    #[test]
    fn few_changes_of_flows_wait_for_no_worker() {
        let shared = shared();
        let mut reader = shared.reader();
        let pinned = reader.pin();
        let remove = [ovs::Change::Remove { port: WIRE, id: ovs::FlowId(1) }];
        let settled: Vec<_> = (0..BACKLOG).map(|_| shared.apply_ovs_soon(&remove).settled).collect();
        assert_eq!(settled.iter().position(|settled| !settled), Some(BACKLOG - 1));
        assert!(shared.snapshot().epoch > pinned.epoch());
    }

    #[test]
    fn a_worker_leaves_its_neighbours_to_whoever_writes() {
        let shared = shared();
        let snapshot = shared.snapshot();
        assert_eq!(shared.wait_for(SCOPE, found(2).addr, WIRE, 1), Waiting::Solicit);
        let writer = shared.rcu.write();
        shared.neighbour(&snapshot, &found(1), WIRE, 1);
        shared.neighbour(&snapshot, &found(2), WIRE, 1);
        drop(writer);
        assert_eq!(known(&shared), 0);
        // A different thread writes: neighbours for which packets wait are still entered. The others may
        // announce themselves again.
        shared.neighbour(&snapshot, &found(3), WIRE, 1);
        assert_eq!(known(&shared), 2);
        assert!(shared.neighbours().iter().any(|neighbour| neighbour.addr == found(2).addr));
        shared.neighbour(&snapshot, &found(1), WIRE, 1);
        assert_eq!(known(&shared), 3);
    }

    #[test]
    fn no_worker_waits_for_those_who_ask_for_neighbours() {
        let shared = shared();
        assert_eq!(shared.wait_for(SCOPE, found(2).addr, WIRE, 1), Waiting::Solicit);
        let asking = lock(&shared.resolver);
        shared.neighbour(&shared.snapshot(), &found(2), WIRE, 1);
        drop(asking);
        assert_eq!(known(&shared), 1);
    }

    #[test]
    fn those_left_are_bounded_and_entered_by_the_housekeeping() {
        let shared = shared();
        let snapshot = shared.snapshot();
        for n in 0..100 {
            assert_eq!(shared.wait_for(SCOPE, found(n).addr, WIRE, 1), Waiting::Solicit);
        }
        let writer = shared.rcu.write();
        (0..100).for_each(|n| shared.neighbour(&snapshot, &found(n), WIRE, 1));
        drop(writer);
        shared.age(1);
        assert_eq!(known(&shared), LATE);
    }
}
