//! How much CPU time the threads of applications get, compared with the workers, which carry everybody's packets.
//!
//! All of these threads together weigh as much as one worker on each CPU. Each device with applications gets the same
//! share of that weight, and each thread of a device the same part of its share. The weight of a thread is its nice
//! value, which any user may raise in any container, without a cgroup; each step reduces it by a fifth (sched(7)).
//! Threads that run alone, or on idle CPUs, lose nothing. `SCHED_IDLE` would weigh too little: programs that poll
//! would starve the thread that does their work.

use rustix::process::{getpriority_process, setpriority_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The highest nice value: the lowest weight.
const NICEST: i32 = 19;

/// The devices of a host that have threads.
#[derive(Debug)]
pub(crate) struct HostThreads {
    /// How many devices have threads.
    devices: AtomicU32,
    /// The kernel's file that says how many threads of the machine want a CPU.
    load: Option<File>,
}

impl Default for HostThreads {
    fn default() -> Self {
        Self { devices: AtomicU32::new(0), load: File::open("/proc/loadavg").ok() }
    }
}

impl HostThreads {
    /// How many threads of the machine want a CPU now, the calling one included; `None` if the kernel does not say.
    fn wanting(&self) -> Option<usize> {
        let mut text = [0; 64];
        let len = self.load.as_ref()?.read_at(&mut text, 0).ok()?;
        wanting(std::str::from_utf8(&text[..len]).ok()?)
    }
}

/// As `/proc/loadavg` says it (proc(5)): three averages, then those that want a CPU, a slash, and all of them.
fn wanting(text: &str) -> Option<usize> {
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// The threads of a device's applications.
#[derive(Debug)]
pub(crate) struct DeviceThreads {
    count: AtomicU32,
    host: Arc<HostThreads>,
}

impl DeviceThreads {
    pub const fn new(host: Arc<HostThreads>) -> Self {
        Self { count: AtomicU32::new(0), host }
    }

    /// Whether more threads of the machine want a CPU than this process may use.
    pub fn are_crowded(&self, cpus: usize) -> bool {
        self.host.wanting().is_none_or(|wanting| wanting > cpus)
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
}

/// The nice value of a thread, for this number of threads of its device and this number of devices.
fn niceness(threads: u32, devices: u32, cpus: u32) -> i32 {
    let many = f64::from(threads) * f64::from(devices) / f64::from(cpus.max(1));
    (many.max(1.0).ln() / 1.25_f64.ln()) as i32
}

/// The nice value of a thread, which follows the number of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nice {
    cpus: u32,
    /// The daemon's own nice value.
    base: i32,
    seen: (u32, u32),
}

impl Nice {
    /// The nice value of the calling thread.
    pub fn of_thread() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        Self { cpus, base: getpriority_process(None).unwrap_or(0), seen: (0, 0) }
    }

    /// Adapts the nice value to the number of threads. Lowering it again requires RLIMIT_NICE or CAP_SYS_NICE; without
    /// them it stays.
    pub fn follow(&mut self, device: &DeviceThreads) {
        let threads = device.count.load(Ordering::Relaxed);
        let devices = device.host.devices.load(Ordering::Relaxed);
        if self.seen != (threads, devices) {
            self.seen = (threads, devices);
            let nice = (self.base + niceness(threads, devices, self.cpus)).min(NICEST.max(self.base));
            // Sets it only for the calling thread: in Linux each thread has its own.
            let _ = setpriority_process(None, nice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_many_want_a_cpu() {
        assert_eq!(wanting("6.08 6.97 7.92 3/166 9782\n"), Some(3));
        assert_eq!([wanting(""), wanting("0.00 0.01 0.05")], [None; 2]);
        assert!(HostThreads::default().wanting() >= Some(1), "this one does");
    }

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
