//! Atomics of what is shared: the processor's, or a model's, which tries every interleaving that the memory model
//! allows.

#[cfg(loom)]
pub(crate) use crate::model::{AtomicU32, AtomicU64, reads, writes};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Tells the model that what this number guards is read.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn reads(_: &AtomicU32) {}

/// Tells the model that what this number guards is written.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn writes(_: &AtomicU32) {}

/// What was stored before is seen by all others before what is loaded after is read: a fence of sequential
/// consistency, whose instruction on x86 (`mfence`) takes several times as long as this one. Both sides have one
/// between their store and their load, where each must see the other's store if the other does not see its own: who
/// arms a completion channel and who completes, who announces work and who wants it announced.
#[inline]
pub(crate) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: no memory is changed, and the flags may be.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(all(not(loom), any(not(target_arch = "x86_64"), miri)))]
    std::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// The same, right after an exchange: on x86 that one is a fence already, and the compiler alone has to be kept from
/// moving what comes after it.
#[inline]
pub(crate) fn fence_after_exchange() {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    fence();
}
