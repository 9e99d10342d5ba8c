//! Numbers that nobody can guess.

use rustix::rand::{GetRandomFlags, getrandom};

/// A random number from the kernel.
///
/// # Panics
/// Never: the kernel gives that many bytes at once after it has started.
pub(crate) fn number() -> u32 {
    let mut bytes = [0; 4];
    while getrandom(&mut bytes, GetRandomFlags::empty()).is_err() {}
    u32::from_ne_bytes(bytes)
}
