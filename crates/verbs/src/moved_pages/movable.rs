//! Decides which pages can move: private, anonymous memory without a meaning to the kernel.

use crate::mapping::{Mapping, are_all, are_all_flagged, has_pinned_pages, has_policy};

/// A reason why pages can't move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The pages belong to a file, are shared with other processes, are not writable, or are a stack.
    NotPrivate,
    /// The pages are this thread's own stack, or its thread-local storage.
    OfThread,
    /// The pages would lose a property if they moved.
    Special,
    Pinned,
}

/// Flags (`VmFlags` of `proc_pid_smaps(5)`) of mappings that work as well elsewhere: readable and writable, now and
/// later, accounted or not. Advice about huge pages is lost. Mappings with other flags must not move, because these
/// would be lost, and matter: the mapping is locked, kept from children of a fork or emptied for them, or watched by
/// a `userfaultfd`.
const PLAIN: [&str; 10] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "sd", "hg", "nh"];

/// Bytes around a thread's pointer that may hold data to which the kernel writes as well (`rseq(2)`).
const OF_THREAD: usize = 4096;

/// Checks that all these pages may be mapped from elsewhere.
pub fn check(start: usize, len: usize) -> Result<(), Obstacle> {
    if overlaps_thread(start, len) {
        return Err(Obstacle::OfThread);
    }
    let mappings = Mapping::within(start, len);
    if !are_all(start, len, &mappings, is_private_memory) {
        return Err(Obstacle::NotPrivate);
    }
    if has_pinned_pages() {
        return Err(Obstacle::Pinned);
    }
    let is_plain =
        |flags: &str, key| key == 0 && flags.split_ascii_whitespace().all(|it| PLAIN.contains(&it));
    let has_policy = mappings.iter().any(|it| has_policy(it.start.max(start)));
    if has_policy || !are_all_flagged(start, len, is_plain) { Err(Obstacle::Special) } else { Ok(()) }
}

/// Is true if the mapping is the program's own memory, without a meaning to the kernel.
fn is_private_memory(mapping: &Mapping) -> bool {
    let name = &mapping.name;
    let is_own = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    mapping.permissions == "rw-p" && mapping.inode == 0 && is_own
}

/// Is true if this thread itself may write there while the pages move.
fn overlaps_thread(start: usize, len: usize) -> bool {
    let end = start + len;
    let overlaps = |from: usize, to: usize| from < end && to > start;
    // SAFETY: attributes of this thread, which are initialised by the call if it succeeds, and then destroyed.
    unsafe {
        let this = libc::pthread_self();
        let pointer = this as usize;
        let (mut stack, mut size) = (std::ptr::null_mut(), 0);
        let mut attributes = std::mem::MaybeUninit::uninit();
        if libc::pthread_getattr_np(this, attributes.as_mut_ptr()) == 0 {
            let got = libc::pthread_attr_getstack(attributes.as_ptr(), &mut stack, &mut size);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            if got != 0 {
                size = 0;
            }
        }
        let (from, to) = (stack.addr(), stack.addr() + size);
        // glibc keeps the storage of each thread but the first in its stack, with other memory right behind it.
        let is_within = (from..to).contains(&pointer);
        let around = (pointer.saturating_sub(OF_THREAD), pointer.saturating_add(OF_THREAD));
        overlaps(from, to) || !is_within && overlaps(around.0, around.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn of<T>(value: &T) -> Result<(), Obstacle> {
        let start = std::ptr::from_ref(value).addr() / PAGE * PAGE;
        check(start, PAGE)
    }

    #[test]
    fn memory_of_malloc_moves_and_what_a_thread_needs_does_not() {
        thread_local!(static OWN: u64 = const { 7 });
        let on_heap = vec![0_u8; 1 << 20];
        assert_eq!(of(&on_heap[5000]), Ok(()));
        // This must run on a thread other than the main thread: such a stack is memory like any other.
        let on_stack = [0_u8; 100];
        assert_eq!(of(&on_stack), Err(Obstacle::OfThread));
        assert_eq!(OWN.with(of), Err(Obstacle::OfThread));
        assert_eq!(check(of::<u8> as *const () as usize / PAGE * PAGE, PAGE), Err(Obstacle::NotPrivate));
    }

    #[test]
    fn memory_right_behind_a_stack_moves() {
        const LEN: usize = 1 << 20;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory: a stack, and what is behind it.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN + PAGE, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        extern "C" fn look(start: *mut libc::c_void) -> *mut libc::c_void {
            let start = start.addr();
            let found = (check(start + LEN - PAGE, PAGE), check(start + LEN, PAGE));
            Box::into_raw(Box::new(found)).cast()
        }
        // SAFETY: a thread on that stack, which ends before the memory goes; it returns a box.
        let found = unsafe {
            let (mut attributes, mut thread, mut found) =
                (std::mem::zeroed(), std::mem::zeroed(), std::ptr::null_mut());
            assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
            assert_eq!(libc::pthread_attr_setstack(&mut attributes, start, LEN), 0);
            assert_eq!(libc::pthread_create(&mut thread, &attributes, look, start), 0);
            assert_eq!(libc::pthread_join(thread, &mut found), 0);
            libc::munmap(start, LEN + PAGE);
            *Box::from_raw(found.cast::<(Result<(), Obstacle>, Result<(), Obstacle>)>())
        };
        assert_eq!(found, (Err(Obstacle::OfThread), Ok(())));
    }
}
