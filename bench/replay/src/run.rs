//! A run: advances the rings' indexes for a while, and counts what the device used.

use crate::guest::Guest;
use crate::ring::Indexes;
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// Descriptors offered or taken at once, as drivers do. Indexes that change with every packet would cost the
/// device a cache miss each.
const BATCH: u16 = 32;
/// A device that did nothing for this long has drained.
const QUIET: Duration = Duration::from_millis(2);
/// How long a device may take to take up its ports.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Pair {
    sender: Guest,
    receiver: Guest,
    size: u16,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    sent: u64,
    received: u64,
}

impl Pair {
    /// Pairs two guests. `size` is the size of frames, FCS included.
    pub fn new(sender: Guest, receiver: Guest, size: u16) -> Self {
        Self { sender, receiver, size }
    }

    /// Makes traffic for this many seconds; returns the counts as a line of JSON.
    pub fn run(&mut self, seconds: f64, real_time: bool) -> Result<String> {
        set_priority(real_time)?;
        let (start, ticks) = (Instant::now(), ticks());
        let done = self.turn(Duration::from_secs_f64(seconds));
        let hz = (self::ticks() - ticks) as f64 / start.elapsed().as_secs_f64();
        set_priority(false)?;
        let (counts, after, elapsed, busy) = done?;
        let in_order = |guest: &Guest, ring: &crate::ring::Ring| -> Result<bool> {
            ring.is_in_order(&guest.memory, ring.indexes(&guest.memory)?.used())
        };
        ensure!(in_order(&self.sender, &self.sender.transmit)?, "the device gives packets back out of order");
        ensure!(in_order(&self.receiver, &self.receiver.receive)?, "the device fills buffers out of order");

        let bytes = counts.received * u64::from(self.size - 4);
        Ok(format!(
            concat!(
                r#"{{"event": "done", "seconds": {:.6}, "busy": {:.4}, "hz": {:.0}, "forwards": [], "#,
                r#""streams": [{{"tx": 0, "rx": 1, "sent": {}, "refused": 0}}], "#,
                r#""ports": [{{"packets": 0, "bytes": 0, "unexpected": 0, "drained": 0}}, "#,
                r#"{{"packets": {}, "bytes": {}, "unexpected": 0, "drained": {}}}]}}"#
            ),
            elapsed.as_secs_f64(),
            busy,
            hz,
            after.sent,
            counts.received,
            bytes,
            after.received - counts.received,
        ))
    }

    /// Runs both guests. Returns the counts at the end of the time and after the device drained, the time,
    /// and the share of turns that did something.
    fn turn(&self, time: Duration) -> Result<(Counts, Counts, Duration, f64)> {
        self.announce()?;
        let mut sender =
            Turner::new(self.sender.transmit.indexes(&self.sender.memory)?, self.sender.transmit.size);
        let mut receiver =
            Turner::new(self.receiver.receive.indexes(&self.receiver.memory)?, self.receiver.receive.size);
        let (mut turns, mut busy) = (0u64, 0u64);
        if receiver.offer_all() {
            self.receiver.kick_receive()?;
        }
        if sender.offer_all() {
            self.sender.kick_transmit()?;
        }

        let start = Instant::now();
        while turns % 64 != 0 || start.elapsed() < time {
            let received = receiver.turn(|| self.receiver.kick_receive())?;
            let sent = sender.turn(|| self.sender.kick_transmit())?;
            turns += 1;
            busy += u64::from(received | sent);
            std::hint::spin_loop();
        }
        let elapsed = start.elapsed();
        let counts = Counts { sent: sender.total(), received: receiver.total() };

        let mut last = (Instant::now(), counts.sent, counts.received);
        while last.0.elapsed() < QUIET {
            receiver.turn(|| self.receiver.kick_receive())?;
            if (sender.total(), receiver.total()) != (last.1, last.2) {
                last = (Instant::now(), sender.total(), receiver.total());
            }
        }
        let after = Counts { sent: last.1, received: last.2 };
        Ok((counts, after, elapsed, busy as f64 / turns as f64))
    }

    /// Makes the receiver's address known, for devices that learn.
    fn announce(&self) -> Result<()> {
        let indexes = self.receiver.transmit.indexes(&self.receiver.memory)?;
        let next = indexes.available().wrapping_add(1);
        if indexes.offer(next) {
            self.receiver.kick_transmit()?;
        }
        let start = Instant::now();
        while indexes.used() != next {
            ensure!(start.elapsed() < PATIENCE, "the device takes nothing from the receiver");
            std::thread::sleep(Duration::from_millis(1)); // devices may have to take up the port on this core
        }
        Ok(())
    }
}

/// Offers again what the device has used.
struct Turner<'a> {
    indexes: Indexes<'a>,
    size: u16,
    start: u16,
    wraps: u64,
    last: u16,
}

impl<'a> Turner<'a> {
    fn new(indexes: Indexes<'a>, size: u16) -> Self {
        let start = indexes.used();
        Self { indexes, size, start, wraps: 0, last: start }
    }

    /// Offers the whole ring. Returns whether the device wants to be told.
    fn offer_all(&self) -> bool {
        self.indexes.offer(self.start.wrapping_add(self.size))
    }

    /// Offers the used descriptors again, if there are enough. Returns whether it did.
    fn turn(&mut self, kick: impl Fn() -> Result<()>) -> Result<bool> {
        let used = self.indexes.used();
        let new = used.wrapping_sub(self.last);
        if new < BATCH {
            return Ok(false);
        }
        self.wraps += u64::from(new);
        self.last = used;
        if self.indexes.offer(used.wrapping_add(self.size)) {
            kick()?;
        }
        Ok(true)
    }

    /// Returns how many descriptors were used since the start.
    fn total(&self) -> u64 {
        self.wraps + u64::from(self.indexes.used().wrapping_sub(self.last))
    }
}

/// Returns the time stamp counter, in whose ticks devices count their work.
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets every process use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Sets or ends real-time priority, which keeps other processes off the core while there is traffic.
fn set_priority(real_time: bool) -> Result<()> {
    let parameters = libc::sched_param { sched_priority: if real_time { 10 } else { 0 } };
    let policy = if real_time { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    // SAFETY: `parameters` lives through the call, and 0 is this thread.
    let status = unsafe { libc::sched_setscheduler(0, policy, &parameters) };
    ensure!(status == 0, "sched_setscheduler: {}", std::io::Error::last_os_error());
    Ok(())
}
