//! Huge pages for tables that are accessed at random: with small ones, most accesses would miss the TLB first.
#![allow(unsafe_code)]

use rustix::mm::{Advice, madvise};

/// Size of a huge page, bytes.
const HUGE: usize = 2 << 20;

/// Asks for huge pages under those parts of `words` that fill some. What is in it stays; where there are none to be had,
/// nothing happens.
pub(crate) fn advise(words: &mut [u64]) {
    let start = words.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(HUGE);
    let len = size_of_val(words).saturating_sub(skipped) / HUGE * HUGE;
    if len > 0 {
        // SAFETY: the range lies in `words`, and the advice does not change what its memory holds.
        let advised = unsafe { madvise(start.add(skipped).cast(), len, Advice::LinuxHugepage) };
        if let Err(error) = advised {
            tracing::debug!(%error, "no huge pages for the flow cache");
        }
    }
}
