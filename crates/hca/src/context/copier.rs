//! The device's side of a program's copier: memory of a program in a virtual machine that can't move to its window has
//! pages there that stand for it, and a thread of the program, the copier, copies between both when the device asks.
//!
//! The device waits for the copier, as it waits for a page of a program on this kernel: only the program's own thread
//! does that, so a program that stops its copier delays only itself.

use crate::base::ids::Key;
use crate::context::Context;
use crate::memory::regions::Place;
use crate::streams::events::Notifier;
use crate::window::source::MemoryBacking;
use rdma::{AtomicOperation, Fault};
use std::time::{Duration, Instant};
use uverbs::{CopyJob, CopyReport, CopyWork};

/// How long the thread waits before it sleeps, and how long it sleeps.
const SPIN: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_micros(50);
/// Most pieces of memory that were written and are not stored yet.
const PIECES: usize = 64;

/// Bytes that were written to pages that stand for a program's memory.
#[derive(Clone, Copy, Debug)]
struct Written {
    key: Key,
    address: u64,
    len: u64,
}

#[derive(Debug)]
pub(crate) struct Copier {
    jobs: Notifier,
    report: CopyReport,
    /// The number of the last job.
    number: u32,
    written: Vec<Written>,
    /// Keeps the pages of the report.
    _backing: MemoryBacking,
}

impl Copier {
    /// Creates the device's side, with the jobs' socket, and the memory of the report.
    pub const fn new(jobs: Notifier, report: CopyReport, backing: MemoryBacking) -> Self {
        Self { jobs, report, number: 0, written: Vec::new(), _backing: backing }
    }

    /// Has the copier do a job. Returns the word before an atomic operation.
    fn run(&mut self, place: Place, work: CopyWork, is_over: impl Fn() -> bool) -> Result<u64, Fault> {
        self.number = self.number.wrapping_add(1);
        let job = CopyJob { number: self.number, key: place.key.0, address: place.address, work };
        self.jobs.tell(&job.to_bytes());
        let began = Instant::now();
        loop {
            if let Some(done) = self.report.get(self.number) {
                return done.ok_or(Fault::Protection);
            }
            if began.elapsed() < SPIN {
                std::thread::yield_now();
                continue;
            }
            self.jobs.flush();
            if is_over() || self.jobs.is_closed() {
                return Err(Fault::Protection);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Context {
    /// Is true if the thread may have to wait when it works for the program: then no other thread does its work.
    pub const fn may_wait(&self) -> bool {
        !self.space.is_none() || self.copier.is_some()
    }

    /// Returns the copier if pages stand for the memory at a place.
    fn copier(&mut self, place: Place) -> Option<&mut Copier> {
        let Self { copier, regions, .. } = self;
        copier.as_mut().filter(|_| regions.stands_in(place.key))
    }

    /// Has the program's memory at a place copied to the pages that stand for it, if some do.
    pub fn fetch(&mut self, place: Place, len: u32) -> Result<(), Fault> {
        self.work(place, CopyWork::Fetch(len.into())).map_or(Ok(()), |done| done.map(drop))
    }

    /// Has the copier execute an atomic operation, if pages stand for the memory. Returns the word before.
    pub fn copier_exchange(&mut self, place: Place, by: AtomicOperation) -> Option<Result<u64, Fault>> {
        self.work(
            place,
            match by {
                AtomicOperation::FetchAdd(add) => CopyWork::FetchAdd(add),
                AtomicOperation::CompareSwap { compare, swap } => CopyWork::CompareSwap { compare, swap },
            },
        )
    }

    fn work(&mut self, place: Place, work: CopyWork) -> Option<Result<u64, Fault>> {
        let (adapter, source) = (self.adapter.clone(), self.source.clone());
        // If the window is truncated, the report is lost.
        let is_over = || adapter.is_leaving() || source.is_faulty();
        self.copier(place).map(|copier| copier.run(place, work, is_over))
    }

    /// Notes that bytes were written, so that [`Self::store`] stores them if they are in pages that stand for others.
    pub fn note_written(&mut self, place: Place, len: usize) {
        let Some(copier) = self.copier(place) else { return };
        let (len, end) = (len as u64, place.address);
        match copier.written.last_mut().filter(|last| last.key == place.key && last.address + last.len == end)
        {
            Some(last) => last.len += len,
            None => copier.written.push(Written { key: place.key, address: place.address, len }),
        }
        if copier.written.len() >= PIECES {
            let _ = self.store();
        }
    }

    /// Has all that was written to pages that stand for the program's memory copied there: a completion, or the end of
    /// a peer's message, must not come before it.
    pub fn store(&mut self) -> Result<(), Fault> {
        let Some(copier) = &mut self.copier else { return Ok(()) };
        if copier.written.is_empty() {
            return Ok(());
        }
        let mut stored = Ok(());
        for Written { key, address, len } in std::mem::take(&mut copier.written) {
            let done = self.work(Place { key, address }, CopyWork::Store(len));
            stored = stored.and(done.map_or(Ok(()), |done| done.map(drop)));
        }
        stored
    }
}
