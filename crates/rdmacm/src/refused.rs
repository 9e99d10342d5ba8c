//! Unsupported functions: enhanced connection establishment. Their symbols must exist.

use crate::abi::{CmId, Ece};
use crate::error::{Errno, returned};
use libc::c_int;

/// Refuses to set options.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(_: *mut CmId, _: *mut Ece) -> c_int {
    returned(Err(Errno(libc::EOPNOTSUPP)))
}

/// Returns no options: no peer has any.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
    if id.is_null() || ece.is_null() {
        return returned(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the caller's promise.
    unsafe { ece.write(Ece::default()) };
    0
}
