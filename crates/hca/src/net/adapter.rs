//! A guest's device, as seen by its own threads and those of other devices.

use crate::base::budget::{DeviceBudget, HostBudget};
use crate::base::clock::monotonic;
use crate::base::counters::Counters;
use crate::base::ids::Qpn;
use crate::base::random;
use crate::base::shaper::Shaper;
use crate::base::spec::DeviceSpec;
use crate::base::threads::{DeviceThreads, HostThreads};
use crate::inbox::Inbox;
use crate::inbox::message::Message;
use crate::memory::atomics::Turns;
use crate::memory::registered::Registered;
use crate::net::groups::Groups;
use crate::net::wire_errors::WireErrors;
use crate::program::grants::MemoryGrants;
use crate::window::Window;
use crate::window::source::DeviceWindows;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// The queue pair of connection managers (IBTA 12.1: the general service interface).
pub(crate) const MANAGER_QPN: Qpn = Qpn(1);
/// The queue pair of the daemon itself, for lines to other daemons.
pub(crate) const SERVICE_QPN: Qpn = Qpn(2);
/// Queue pair numbers below this are special (0, 1, 2) or not used.
const FIRST_QPN: u32 = 16;

/// A guest's device, as its own threads and those of other devices see it.
#[derive(Debug)]
pub(crate) struct Adapter {
    spec: RwLock<DeviceSpec>,
    /// The inbox of the thread that owns a queue pair, by its number.
    qps: RwLock<HashMap<Qpn, Arc<Inbox<Message>>>>,
    /// Multicast groups and the queue pairs attached to them.
    pub groups: Groups,
    pub errors: WireErrors,
    /// Memory that applications have registered.
    pub registered: Arc<Registered>,
    /// Counters of applications that have ended.
    ended_counters: Mutex<Counters>,
    /// The device is being closed.
    closing: AtomicBool,
    /// True if the guest's machine stands still, or its memory is being copied: no program in it uses the device.
    halted: AtomicBool,
    /// True if the machine may migrate, with the contents of its window.
    migrates: AtomicBool,
    /// The process of the guest's VMM, or 0.
    vmm: AtomicI32,
    /// The share of its limits that its applications have taken.
    pub budget: Arc<DeviceBudget>,
    pub threads: DeviceThreads,
    /// The order of its atomic operations.
    pub turn: Turns,
    /// Processes that were given memory of its applications.
    pub grants: MemoryGrants,
    /// The number of its port, once it has one.
    port: OnceLock<u16>,
    shaper: Shaper,
    windows: RwLock<DeviceWindows>,
    /// The user who may open its socket, besides root.
    user: OnceLock<u32>,
}

impl Adapter {
    pub fn new(spec: DeviceSpec, host_budget: &Arc<HostBudget>, threads: &Arc<HostThreads>) -> Self {
        let shaper = Shaper::default();
        shaper.set(spec.rate);
        let budget = Arc::new(DeviceBudget::new(host_budget.clone(), spec.limits.queues));
        Self {
            spec: RwLock::new(spec),
            qps: RwLock::default(),
            groups: Groups::default(),
            errors: WireErrors::default(),
            registered: Arc::new(Registered::new(budget.clone())),
            ended_counters: Mutex::default(),
            closing: AtomicBool::new(false),
            halted: AtomicBool::new(false),
            migrates: AtomicBool::new(false),
            vmm: AtomicI32::new(0),
            budget,
            threads: DeviceThreads::new(threads.clone()),
            turn: Turns::default(),
            grants: MemoryGrants::default(),
            port: OnceLock::new(),
            shaper,
            windows: RwLock::default(),
            user: OnceLock::new(),
        }
    }

    /// Sets the user who may open its socket.
    pub fn set_user(&self, user: u32) {
        let _ = self.user.set(user);
    }

    /// Returns whether a user of its guest may use it.
    pub fn is_for(&self, user: u32) -> bool {
        user == 0 || self.user.get() == Some(&user)
    }

    pub fn spec(&self) -> RwLockReadGuard<'_, DeviceSpec> {
        self.spec.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_spec(&self, spec: DeviceSpec) {
        self.shaper.set(spec.rate);
        self.budget.set_queues(spec.limits.queues);
        *self.spec.write().unwrap_or_else(PoisonError::into_inner) = spec;
    }

    pub fn windows(&self) -> DeviceWindows {
        self.windows.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the window of the device's trust, while it has one.
    pub fn common_window(&self) -> Option<Arc<Window>> {
        self.windows().common.filter(|_| self.spec().trust.is_some())
    }

    /// Replaces the windows, and returns the old ones.
    pub fn set_windows(&self, windows: DeviceWindows) -> DeviceWindows {
        std::mem::replace(&mut self.windows.write().unwrap_or_else(PoisonError::into_inner), windows)
    }

    fn qps(&self) -> RwLockWriteGuard<'_, HashMap<Qpn, Arc<Inbox<Message>>>> {
        self.qps.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the inbox of the connection manager's queue pair.
    pub fn set_manager(&self, owner: &Arc<Inbox<Message>>) {
        self.qps().insert(MANAGER_QPN, owner.clone());
    }

    /// Sets the inbox of the daemon's own queue pair.
    pub fn set_service(&self, owner: &Arc<Inbox<Message>>) {
        self.qps().insert(SERVICE_QPN, owner.clone());
    }

    /// Adds a queue pair within the limit, and returns its number. Numbers are random, so that none is used again soon.
    pub fn add_qp(&self, owner: &Arc<Inbox<Message>>) -> Option<Qpn> {
        let limit = self.spec().limits.qps as usize;
        let mut qps = self.qps();
        // One of them belongs to the connection manager.
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

    pub fn set_halted(&self, halted: bool) {
        self.halted.store(halted, Ordering::Release);
    }

    pub fn set_migrates(&self) {
        self.migrates.store(true, Ordering::Relaxed);
    }

    pub fn migrates(&self) -> bool {
        self.migrates.load(Ordering::Relaxed)
    }

    pub fn set_vmm(&self, vmm: i32) {
        self.vmm.store(vmm, Ordering::Release);
    }

    pub fn vmm(&self) -> i32 {
        self.vmm.load(Ordering::Acquire)
    }

    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }

    /// Is true while applications lose the device, but may go on using its memory.
    pub fn is_leaving(&self) -> bool {
        self.is_closing() || self.is_halted()
    }

    pub fn set_port(&self, port: u16) {
        // A device keeps its port for life.
        let _ = self.port.set(port);
    }

    pub fn port(&self) -> Option<u16> {
        self.port.get().copied()
    }

    /// Is true if a rate limits what leaves.
    pub fn has_rate(&self) -> bool {
        self.shaper.is_set()
    }

    /// Returns how many frames of `frame` bytes may leave now, at most `most`.
    pub fn room(&self, now: Duration, frame: u64, most: usize) -> usize {
        self.shaper.room(now, frame, most)
    }

    /// Returns how long it takes until a frame of `frame` bytes may leave.
    pub fn wait(&self, now: Duration, frame: u64) -> Duration {
        self.shaper.wait(now, frame)
    }

    /// Counts a frame that left against the rate.
    pub fn spend(&self, bytes: u64) {
        self.shaper.spend(monotonic, bytes);
    }

    pub fn keep_counters(&self, counters: &Counters) {
        *self.ended_counters.lock().unwrap_or_else(PoisonError::into_inner) += counters;
    }

    /// Returns the counters of applications that have ended, and of the device itself.
    pub fn counters(&self) -> Counters {
        let mut counters = *self.ended_counters.lock().unwrap_or_else(PoisonError::into_inner);
        self.errors.count_into(&mut counters);
        counters
    }

    pub fn remove_qp(&self, qpn: Qpn) {
        self.qps().remove(&qpn);
        self.groups.remove(qpn);
    }

    /// Returns the inbox of the thread that has this queue pair.
    pub fn owner(&self, qpn: Qpn) -> Option<Arc<Inbox<Message>>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&qpn).cloned()
    }
}
