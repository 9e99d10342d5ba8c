//! Atomics in shared memory: the processor's, or a model's, which tries every interleaving that the memory model
//! allows.

#[cfg(loom)]
pub(crate) use crate::model::{AtomicU32, AtomicU64, reads, writes};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Tells the model that the data which this number guards is read.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn reads(_: &AtomicU32) {}

/// Tells the model that the data which this number guards is written.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn writes(_: &AtomicU32) {}

/// Makes earlier stores visible to all others before later loads: a fence of sequential consistency, whose usual
/// instruction on x86 (`mfence`) takes several times as long as this one. It stands between store and load on both
/// sides, where at least one must see the other's store: between a library that arms a completion channel and whoever
/// completes, and between whoever announces work and whoever requests announcements.
#[inline]
pub fn fence() {
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

/// Fences like [`fence`], right after an exchange. On x86 the exchange is a fence already, and only the compiler must
/// be kept from moving later accesses before it.
#[inline]
pub(crate) fn fence_after_exchange() {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    fence();
}
