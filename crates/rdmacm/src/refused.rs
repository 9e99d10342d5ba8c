//! Unsupported functions: enhanced connection establishment, rsockets. Their symbols must exist.

use crate::abi::{CmId, Ece};
use crate::error::{Errno, returned};
use libc::c_int;

/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(_: *mut CmId, _: *mut Ece) -> c_int {
    returned(Err(Errno(libc::EOPNOTSUPP)))
}

/// No peer has options.
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

/// Functions of rsockets, which always return -1 with `EOPNOTSUPP`. With C's calling convention, surplus arguments do
/// no harm.
macro_rules! rsockets {
    ($($name:ident),* $(,)?) => {$(
        /// Refused.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> isize {
            returned(Err(Errno(libc::EOPNOTSUPP))) as isize
        }
    )*};
}

rsockets!(
    raccept,
    rbind,
    rclose,
    rconnect,
    rfcntl,
    rgetpeername,
    rgetsockname,
    rgetsockopt,
    riomap,
    riounmap,
    riowrite,
    rlisten,
    rpoll,
    rread,
    rreadv,
    rrecv,
    rrecvfrom,
    rrecvmsg,
    rselect,
    rsend,
    rsendmsg,
    rsendto,
    rsetsockopt,
    rshutdown,
    rsocket,
    rwrite,
    rwritev,
);
