//! The heap of a process with many threads, and large requests.

/// Lets all threads share so many arenas of the C library's allocator. By default there are eight for each CPU, and
/// threads that come and go leave in each of them what the largest request took.
pub fn share_arenas(most: usize) {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call sets a number, and is made before there are other threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, i32::try_from(most).unwrap_or(i32::MAX));
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = most;
}

/// Gives freed memory back to the kernel. By itself, the C library keeps free pieces that lie between used ones: after
/// a large request, most of the memory that it took.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
