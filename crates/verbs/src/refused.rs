//! Functions that are not supported, and those that have nothing to do.

use crate::abi::*;
use crate::errno::{pointer, set};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    set(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    set(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_descriptor: c_int) -> *mut ibv_context {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
pub const extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
pub const extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
pub const extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _descriptor: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    pointer(Err(libc::EOPNOTSUPP))
}

// No page is pinned: a child of the program gets its own copy of registered memory, and the device keeps using the
// parent's.

#[unsafe(no_mangle)]
pub const extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Returns `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
pub const extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

#[unsafe(no_mangle)]
pub const extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub const extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
