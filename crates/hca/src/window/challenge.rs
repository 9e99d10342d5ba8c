//! Challenges, by which programs prove that they can read a window.
//!
//! Whoever may write the window's file can keep those waiting who touch its pages (a page that is being punched). So a
//! thread of the window writes challenges, and nobody else waits for that.

use super::{Window, lock};
use crate::base::random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use uverbs::{Nonce, PAGE};

/// A piece of work of a window's thread.
type Job = Box<dyn FnOnce() + Send>;

/// The jobs of a window's thread, which runs while there are any.
#[derive(Default)]
pub(super) struct Writer {
    jobs: Vec<Job>,
    is_running: bool,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({} jobs)", self.jobs.len())
    }
}

impl Window {
    /// Writes a challenge into the window, on another thread, and then calls `tell`. `None` if there are too many.
    pub(crate) fn challenge(self: &Arc<Self>, tell: impl FnOnce() + Send + 'static) -> Option<Challenge> {
        let slot = {
            let mut taken = lock(&self.challenges);
            let slot = taken.trailing_ones();
            *taken |= 1_u64.checked_shl(slot)?;
            slot
        };
        let mut nonce = [0; 32];
        for (place, part) in nonce.chunks_exact_mut(4).zip(std::iter::repeat_with(random::number)) {
            place.copy_from_slice(&part.to_ne_bytes());
        }
        let slot = Arc::new(Slot { window: self.clone(), number: slot, state: AtomicU8::new(PENDING) });
        let written = slot.clone();
        self.write_later(Box::new(move || {
            let state = if written.write(&nonce) { WRITTEN } else { FAILED };
            written.state.store(state, Ordering::Release);
            drop(written);
            tell();
        }));
        Some(Challenge { slot, nonce })
    }

    /// Gives the window's thread a job, and starts it if it does not run. Without a thread the job is dropped.
    pub(super) fn write_later(self: &Arc<Self>, job: Job) {
        let mut writer = lock(&self.writer);
        writer.jobs.push(job);
        if !std::mem::replace(&mut writer.is_running, true) {
            drop(writer);
            let window = self.clone();
            let run = move || while window.write_some() {};
            if std::thread::Builder::new().name("verbs-window".into()).spawn(run).is_err() {
                let jobs = {
                    let mut writer = lock(&self.writer);
                    writer.is_running = false;
                    std::mem::take(&mut writer.jobs)
                };
                drop(jobs);
            }
        }
    }

    /// Does the jobs that there are. False, and the thread ends, if there are none.
    fn write_some(&self) -> bool {
        let jobs = {
            let mut writer = lock(&self.writer);
            writer.is_running = !writer.jobs.is_empty();
            std::mem::take(&mut writer.jobs)
        };
        let is_any = !jobs.is_empty();
        jobs.into_iter().for_each(|job| job());
        is_any
    }
}

/// Whether a challenge is in the window.
const PENDING: u8 = 0;
const WRITTEN: u8 = 1;
const FAILED: u8 = 2;

/// A page for a challenge, which others get once this is dropped.
#[derive(Debug)]
struct Slot {
    window: Arc<Window>,
    number: u32,
    state: AtomicU8,
}

impl Slot {
    const fn offset(&self) -> u64 {
        (1 + self.number as u64) * PAGE
    }

    fn write(&self, bytes: &Nonce) -> bool {
        let mapping = self.window.mapping();
        mapping.is_ok_and(|mapping| mapping.memory.write(self.offset() as usize, bytes))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *lock(&self.window.challenges) &= !(1 << self.number);
    }
}

/// Random bytes in a window: a program that knows them can read it.
#[derive(Debug)]
pub(crate) struct Challenge {
    slot: Arc<Slot>,
    nonce: Nonce,
}

impl Challenge {
    /// Returns the offset of the bytes in the window.
    pub fn offset(&self) -> u64 {
        self.slot.offset()
    }

    /// Returns whether the bytes are in the window; `None`: not yet.
    pub fn is_written(&self) -> Option<bool> {
        match self.slot.state.load(Ordering::Acquire) {
            PENDING => None,
            state => Some(state == WRITTEN),
        }
    }

    /// Compares the bytes, in a time that does not depend on them.
    pub fn is_met_by(&self, nonce: &Nonce) -> bool {
        let differ = |sum: u8, (a, b): (&u8, &u8)| sum | std::hint::black_box(a ^ b);
        self.nonce.iter().zip(nonce).fold(0, differ) == 0
    }
}

impl Drop for Challenge {
    fn drop(&mut self) {
        let slot = self.slot.clone();
        self.slot.window.write_later(Box::new(move || _ = slot.write(&[0; 32])));
    }
}
