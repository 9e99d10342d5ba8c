//! Shared memory of a model: its words are loom's atomics, and threads may die before any access.
//!
//! A word of the memory holds the number of its atomic, so that all mappings of the memory share the atomic. Only with
//! `cfg(loom)`.

use loom::cell::UnsafeCell;
use loom::sync::atomic as model;
use loom::sync::atomic::Ordering;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

struct Word {
    value: model::AtomicU64,
    /// Stands for the memory that the word guards.
    guarded: UnsafeCell<()>,
}

thread_local! {
    /// The words of the current execution, all of whose threads run on one thread of the system.
    static WORDS: RefCell<Vec<Rc<Word>>> = const { RefCell::new(Vec::new()) };
}

loom::thread_local! {
    /// Number of accesses before the thread dies.
    static LEFT: Cell<Option<u32>> = Cell::new(None);
}

/// The panic of a thread that must die.
struct Died;

/// Returns a number for a new word of memory.
pub(crate) fn new_word() -> u32 {
    WORDS.with_borrow_mut(|words| {
        words.push(Rc::new(Word { value: model::AtomicU64::new(0), guarded: UnsafeCell::new(()) }));
        words.len() as u32
    })
}

/// Runs every interleaving of a test within `preemptions`.
pub(crate) fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        WORDS.take();
        test();
        WORDS.take();
    });
}

/// Does work, and ends it after this many accesses. Returns whether it was completed.
pub(crate) fn mortal(accesses: u32, work: impl FnOnce()) -> bool {
    LEFT.with(|left| left.set(Some(accesses)));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    LEFT.with(|left| left.set(None));
    match outcome {
        Ok(()) => true,
        Err(end) if end.is::<Died>() => false,
        Err(failure) => resume_unwind(failure),
    }
}

fn access(word: &std::cell::UnsafeCell<u32>) -> Rc<Word> {
    LEFT.with(|left| match left.get() {
        Some(0) => resume_unwind(Box::new(Died)),
        Some(more) => left.set(Some(more - 1)),
        None => {}
    });
    // SAFETY: it is written before there are threads.
    let number = unsafe { word.get().read_volatile() };
    WORDS.with_borrow(|words| words[number as usize - 1].clone())
}

pub(crate) fn reads(number: &AtomicU32) {
    access(&number.0).guarded.with(|_| ());
}

pub(crate) fn writes(number: &AtomicU32) {
    access(&number.0).guarded.with_mut(|_| ());
}

macro_rules! atomic {
    ($name:ident, $type:ty, $($rest:ident)?) => {
        #[repr(C)]
        #[allow(dead_code)]
        pub(crate) struct $name(std::cell::UnsafeCell<u32>, $(std::cell::UnsafeCell<$rest>)?);

        // SAFETY: its number is written before there are threads.
        unsafe impl Sync for $name {}

        #[allow(dead_code)]
        impl $name {
            /// Creates a word outside memory, which nobody uses.
            pub fn new(_: $type) -> Self {
                Self(std::cell::UnsafeCell::new(0), $(std::cell::UnsafeCell::new(0 as $rest))?)
            }

            pub fn load(&self, order: Ordering) -> $type {
                access(&self.0).value.load(order) as $type
            }

            pub fn store(&self, value: $type, order: Ordering) {
                access(&self.0).value.store(value.into(), order);
            }

            pub fn swap(&self, value: $type, order: Ordering) -> $type {
                access(&self.0).value.swap(value.into(), order) as $type
            }

            pub fn fetch_max(&self, value: $type, order: Ordering) -> $type {
                access(&self.0).value.fetch_max(value.into(), order) as $type
            }

            pub fn fetch_or(&self, value: $type, order: Ordering) -> $type {
                access(&self.0).value.fetch_or(value.into(), order) as $type
            }

            pub fn compare_exchange(
                &self,
                current: $type,
                new: $type,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$type, $type> {
                let exchanged =
                    access(&self.0).value.compare_exchange(current.into(), new.into(), success, failure);
                exchanged.map(|old| old as $type).map_err(|old| old as $type)
            }

            pub fn compare_exchange_weak(
                &self,
                current: $type,
                new: $type,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$type, $type> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, u32,);
atomic!(AtomicU64, u64, u32);
