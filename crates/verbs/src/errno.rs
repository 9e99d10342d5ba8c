//! How verbs report failure: by `errno`'s value, by -1, or by a null pointer; `errno` is set in any case.

use std::ffi::c_int;

pub type Outcome<T> = Result<T, c_int>;

pub fn set(errno: c_int) -> c_int {
    // SAFETY: the place of this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
    errno
}

/// Returns zero, or sets `errno` and returns it.
pub fn code(outcome: Outcome<()>) -> c_int {
    outcome.map_or_else(set, |()| 0)
}

/// Returns the result, which is not negative, or sets `errno` and returns -1.
pub fn or_minus_one(outcome: Outcome<c_int>) -> c_int {
    outcome.unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}

/// Returns an object that now belongs to the program, or sets `errno` and returns a null pointer.
pub fn pointer<T>(outcome: Outcome<*mut T>) -> *mut T {
    outcome.unwrap_or_else(|errno| {
        set(errno);
        std::ptr::null_mut()
    })
}
