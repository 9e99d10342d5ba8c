//! Threads of the libraries, in the program's process. Rust's standard library would start them by functions that only
//! newer versions of glibc have.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

/// A thread's name, and its work.
type Start = (&'static CStr, Box<dyn FnOnce() + Send>);

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: the box that `start_thread` made for this thread.
    let (name, work) = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: a string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    work();
    ptr::null_mut()
}

/// Starts a thread, which takes no signals from the program's threads. It must be joined or detached.
///
/// # Errors
/// The kernel's error.
pub fn start_thread(
    name: &'static CStr,
    work: impl FnOnce() + Send + 'static,
) -> Result<libc::pthread_t, c_int> {
    let start: *mut Start = Box::into_raw(Box::new((name, Box::new(work))));
    let (mut all, mut before, mut thread) =
        (MaybeUninit::uninit(), MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the sets may be written; the first is whole once it is filled, the second once it was exchanged. A thread
    // that started owns the box, and is whole.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let failed = libc::pthread_create(thread.as_mut_ptr(), ptr::null(), run, start.cast());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        if failed != 0 {
            drop(Box::from_raw(start));
            return Err(failed);
        }
        Ok(thread.assume_init())
    }
}
