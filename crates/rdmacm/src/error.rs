//! How errors are reported to C: -1, and an error number.

use libc::c_int;

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// Sets `errno`.
pub fn set(Errno(number): Errno) {
    // SAFETY: it is the thread's own.
    unsafe { *libc::__errno_location() = number };
}

/// What `errno` says.
pub fn last() -> Errno {
    // SAFETY: it is the thread's own.
    Errno(unsafe { *libc::__errno_location() })
}

/// 0, or -1 with `errno`.
pub fn returned(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            -1
        }
    }
}

/// The result of a verb that returns an error number.
pub const fn checked(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        number => Err(Errno(number)),
    }
}

/// A pointer that is null on failure, with `errno`.
pub fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() { Err(last()) } else { Ok(pointer) }
}
