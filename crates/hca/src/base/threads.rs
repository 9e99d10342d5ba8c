//! How much CPU time the threads of applications get, compared with the workers, which carry everybody's packets.
//!
//! All of these threads together weigh as much as one worker on each CPU. Each device with applications gets the same
//! share of that weight, and each thread of a device the same part of its share. The weight of a thread is its nice
//! value, which any user may raise in any container, without a cgroup; each step reduces it by a fifth (sched(7)).
//! Threads that run alone, or on idle CPUs, lose nothing. `SCHED_IDLE` would weigh too little: programs that poll
//! would starve the thread that does their work.

use rustix::process::{getpriority_process, setpriority_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The highest nice value: the lowest weight.
const NICEST: i32 = 19;

#[derive(Debug)]
pub(crate) struct HostThreads {
    /// How many devices have at least one thread.
    devices: AtomicU32,
    cpus: u32,
}

impl Default for HostThreads {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        Self { devices: AtomicU32::new(0), cpus }
    }
}

#[derive(Debug)]
pub(crate) struct DeviceThreads {
    count: AtomicU32,
    host: Arc<HostThreads>,
}

impl DeviceThreads {
    pub const fn new(host: Arc<HostThreads>) -> Self {
        Self { count: AtomicU32::new(0), host }
    }

    /// Counts one more thread, until [`Self::leave`].
    pub fn join(&self) {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.host.devices.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn leave(&self) {
        if self.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.host.devices.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns by how much the nice value of each thread is to be higher than that of the daemon.
    pub fn niceness(&self) -> i32 {
        let devices = self.host.devices.load(Ordering::Relaxed);
        niceness(self.count.load(Ordering::Relaxed), devices, self.host.cpus)
    }
}

/// Returns the nice value of a thread, for this number of threads of its device and this number of devices.
fn niceness(threads: u32, devices: u32, cpus: u32) -> i32 {
    let many = f64::from(threads) * f64::from(devices) / f64::from(cpus.max(1));
    (many.max(1.0).ln() / 1.25_f64.ln()) as i32
}

/// The nice value of a thread, which follows the number of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nice {
    /// The daemon's own nice value.
    base: i32,
    seen: (u32, u32),
}

impl Nice {
    /// Starts from the nice value of the calling thread.
    pub fn of_thread() -> Self {
        Self { base: getpriority_process(None).unwrap_or(0), seen: (0, 0) }
    }

    /// Adapts the nice value to the number of threads, and returns whether that has changed. Lowering it again requires
    /// RLIMIT_NICE or CAP_SYS_NICE; without them it stays.
    pub fn follow(&mut self, device: &DeviceThreads) -> bool {
        let seen = (device.count.load(Ordering::Relaxed), device.host.devices.load(Ordering::Relaxed));
        let has_changed = std::mem::replace(&mut self.seen, seen) != seen;
        if has_changed {
            let nice = (self.base + device.niceness()).min(NICEST.max(self.base));
            // Sets it only for the calling thread: in Linux each thread has its own.
            let _ = setpriority_process(None, nice);
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_together_weigh_as_much_as_the_cpus() {
        assert_eq!([(1, 1, 1), (2, 1, 2), (1, 4, 4)].map(|(t, d, c)| niceness(t, d, c)), [0; 3]);
        for (threads, devices, cpus) in [(2, 1, 1), (50, 1, 1), (16, 4, 1), (256, 1, 4), (256, 16, 64)] {
            let weight = 1.25_f64.powi(-niceness(threads, devices, cpus));
            let all = weight * f64::from(threads * devices);
            assert!((0.99..=1.26).contains(&(all / f64::from(cpus))), "{threads} {devices} {cpus}: {all}");
        }
    }
}
