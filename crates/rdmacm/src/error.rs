//! Error reports to C: -1, and an error number.

use libc::c_int;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

pub fn set(Errno(number): Errno) {
    // SAFETY: it is the thread's own.
    unsafe { *libc::__errno_location() = number };
}

pub fn last() -> Errno {
    // SAFETY: it is the thread's own.
    Errno(unsafe { *libc::__errno_location() })
}

/// Returns 0, or sets `errno` and returns -1.
pub fn returned(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            -1
        }
    }
}

/// Converts the result of a verb that returns 0 or an error number.
pub const fn checked(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        number => Err(Errno(number)),
    }
}

/// Converts a result pointer that is null on failure, with `errno`.
pub fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() { Err(last()) } else { Ok(pointer) }
}
