//! The device of a guest, as its own threads and those of other devices see it.

use crate::atomics::Turn;
use crate::budget::{Account, Stock};
use crate::clock::monotonic;
use crate::counters::Counters;
use crate::crew::{Crew, Crews};
use crate::groups::Groups;
use crate::holders::Holders;
use crate::ids::Qpn;
use crate::inbox::Inbox;
use crate::question::Question;
use crate::random;
use crate::registered::Registered;
use crate::shaper::Shaper;
use crate::spec::DeviceSpec;
use crate::wire_errors::WireErrors;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// The queue pair of connection managers (IBTA 12.1: the general service interface).
pub(crate) const MANAGER_QPN: Qpn = Qpn(1);
/// Queue pair numbers below are special (0, 1) or left alone.
const FIRST_QPN: u32 = 16;

/// A guest's device, as others see it.
#[derive(Debug)]
pub(crate) struct Adapter {
    spec: RwLock<DeviceSpec>,
    /// Who has which queue pair.
    qps: RwLock<HashMap<Qpn, Arc<Inbox<Question>>>>,
    /// Who is attached to which multicast group.
    pub groups: Groups,
    pub errors: WireErrors,
    /// Memory that applications have registered.
    pub registered: Arc<Registered>,
    /// What applications counted that are gone.
    kept: Mutex<Counters>,
    /// The device is being closed.
    closing: AtomicBool,
    /// What its applications have together.
    pub account: Arc<Account>,
    /// How many threads its applications have.
    pub crew: Crew,
    /// Of atomic operations.
    pub turn: Turn,
    /// Processes that got memory of its applications.
    pub holders: Holders,
    /// The number of its port, once it has one.
    port: OnceLock<u16>,
    shaper: Shaper,
}

impl Adapter {
    pub fn new(spec: DeviceSpec, stock: &Arc<Stock>, crews: &Arc<Crews>) -> Self {
        let shaper = Shaper::default();
        shaper.set(spec.rate);
        let account = Arc::new(Account::new(stock.clone(), spec.limits.queues));
        Self {
            spec: RwLock::new(spec),
            qps: RwLock::default(),
            groups: Groups::default(),
            errors: WireErrors::default(),
            registered: Arc::new(Registered::new(account.clone())),
            kept: Mutex::default(),
            closing: AtomicBool::new(false),
            account,
            crew: Crew::new(crews.clone()),
            turn: Turn::default(),
            holders: Holders::default(),
            port: OnceLock::new(),
            shaper,
        }
    }

    pub fn spec(&self) -> RwLockReadGuard<'_, DeviceSpec> {
        self.spec.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_spec(&self, spec: DeviceSpec) {
        self.shaper.set(spec.rate);
        self.account.set_queues(spec.limits.queues);
        *self.spec.write().unwrap_or_else(PoisonError::into_inner) = spec;
    }

    fn qps(&self) -> RwLockWriteGuard<'_, HashMap<Qpn, Arc<Inbox<Question>>>> {
        self.qps.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who has the queue pair of the connection manager.
    pub fn set_manager(&self, owner: &Arc<Inbox<Question>>) {
        self.qps().insert(MANAGER_QPN, owner.clone());
    }

    /// A number for a new queue pair, where there may be one more. Numbers are not used again soon: they are random.
    pub fn add_qp(&self, owner: &Arc<Inbox<Question>>) -> Option<Qpn> {
        let limit = self.spec().limits.qps as usize;
        let mut qps = self.qps();
        // One is the connection manager's.
        if qps.len() > limit {
            return None;
        }
        loop {
            let qpn = Qpn(random::number() >> 8);
            if (FIRST_QPN..0xff_ffff).contains(&qpn.0) && !qps.contains_key(&qpn) {
                qps.insert(qpn, owner.clone());
                return Some(qpn);
            }
        }
    }

    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub fn set_port(&self, port: u16) {
        // A device has one port as long as it is there.
        let _ = self.port.set(port);
    }

    pub fn port(&self) -> Option<u16> {
        self.port.get().copied()
    }

    /// How many frames of so many bytes may leave now, at most `most`.
    pub fn room(&self, now: Duration, frame: u64, most: usize) -> usize {
        self.shaper.room(now, frame, most)
    }

    /// How long until a frame of so many bytes may leave.
    pub fn wait(&self, now: Duration, frame: u64) -> Duration {
        self.shaper.wait(now, frame)
    }

    /// A frame left.
    pub fn spend(&self, bytes: u64) {
        self.shaper.spend(monotonic, bytes);
    }

    pub fn keep_counters(&self, counters: &Counters) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) += counters;
    }

    /// What applications counted that are gone, and what the device itself did.
    pub fn counters(&self) -> Counters {
        let mut counters = *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.errors.count_into(&mut counters);
        counters
    }

    pub fn remove_qp(&self, qpn: Qpn) {
        self.qps().remove(&qpn);
        self.groups.remove(qpn);
    }

    /// Who has this queue pair.
    pub fn owner(&self, qpn: Qpn) -> Option<Arc<Inbox<Question>>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&qpn).cloned()
    }
}
