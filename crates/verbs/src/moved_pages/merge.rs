//! Writes by other threads that came to moved pages after these were copied, and before the copy replaced them.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Repeats in `now` the writes to `old` since `before` was copied from it, except where `now` was written to since.
///
/// # Safety
/// Each must have `len` bytes, a multiple of 8, aligned; nobody else uses `before`; others use the words and bytes
/// of `old` and `now` as a program's threads do.
pub unsafe fn merge(old: *const u8, before: *const u8, now: *mut u8, len: usize) {
    for at in (0..len).step_by(WORD) {
        // SAFETY: the caller's promise.
        let (old, before, now) = unsafe {
            let word = |of: *const u8| of.add(at).cast::<AtomicU64>();
            (&*word(old), &*word(before), &*word(now))
        };
        let (written, was) = (old.load(Ordering::Relaxed), before.load(Ordering::Relaxed));
        if written == was {
            continue;
        }
        // The whole word is replaced at once: the program may have written it at once.
        if now.compare_exchange(was, written, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            let (written, was) = (written.to_ne_bytes(), was.to_ne_bytes());
            for byte in (0..WORD).filter(|byte| written[*byte] != was[*byte]) {
                // SAFETY: within the word.
                let now = unsafe { &*std::ptr::from_ref(now).cast::<AtomicU8>().add(byte) };
                let _ = now.compare_exchange(was[byte], written[byte], Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_writes_are_repeated_unless_something_newer_is_there() {
        let mut words = [[1_u64, 2, 3, 0x0101, 7]; 3];
        let [old, before, now] = &mut words;
        (old[1], old[3], now[2], now[3], old[4], now[4]) = (20, 0x0105, 30, 0x0901, 8, 9);
        let len = size_of_val(before);
        // SAFETY: arrays of that length.
        unsafe { merge(old.as_ptr().cast(), before.as_ptr().cast(), now.as_mut_ptr().cast(), len) };
        assert_eq!(*now, [1, 20, 30, 0x0905, 9]);
    }
}
