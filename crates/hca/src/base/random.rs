//! Numbers that nobody can guess.

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a random number from the kernel. After its start, the kernel provides that many bytes at once.
pub(crate) fn number() -> u32 {
    let mut bytes = [0; 4];
    while getrandom(&mut bytes, GetRandomFlags::empty()).is_err() {}
    u32::from_ne_bytes(bytes)
}
