//! Owns the memory of a program as its keys name it: address space, memory regions, memory windows, atomic operations.
//! May import `window`, `base`.

pub(crate) mod address_space;
pub(crate) mod atomics;
pub(crate) mod keys;
pub(crate) mod regions;
pub(crate) mod registered;
pub(crate) mod windows;
