//! Numbers that nobody can guess.

use rustix::rand::{GetRandomFlags, getrandom};

/// A number of the kernel's choice.
///
/// # Panics
/// Never: the kernel gives that many bytes at once, once it is up.
pub(crate) fn number() -> u32 {
    let mut bytes = [0; 4];
    while getrandom(&mut bytes, GetRandomFlags::empty()).is_err() {}
    u32::from_ne_bytes(bytes)
}
