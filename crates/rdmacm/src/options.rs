//! Options of identifiers.

use crate::abi::CmId;
use crate::error::{Errno, returned};
use crate::id::Id;
use libc::{c_int, c_void};
use uverbs::cm::{CmOption, CmRequest};

/// `RDMA_OPTION_ID`.
const LEVEL_ID: c_int = 0;

/// Reads an option from C.
///
/// # Safety
/// `len` bytes must be readable at `value`.
unsafe fn option(level: c_int, name: c_int, value: *const c_void, len: usize) -> Result<CmOption, Errno> {
    let invalid = Errno(libc::EINVAL);
    let byte = || {
        // SAFETY: the caller's promise: there is one byte.
        (len == 1 && !value.is_null()).then(|| unsafe { value.cast::<u8>().read() }).ok_or(invalid)
    };
    let number = || {
        let is_number = len == size_of::<c_int>() && !value.is_null();
        // SAFETY: the caller's promise: there are as many bytes.
        is_number.then(|| unsafe { value.cast::<c_int>().read_unaligned() } != 0).ok_or(invalid)
    };
    match (level, name) {
        (LEVEL_ID, 0) => Ok(CmOption::TypeOfService(byte()?)),
        (LEVEL_ID, 1) => Ok(CmOption::ReuseAddress(number()?)),
        (LEVEL_ID, 2) => Ok(CmOption::OnlyIpv6(number()?)),
        (LEVEL_ID, 3) => Ok(CmOption::AckTimeout(byte()?)),
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// Sets an option at all bindings, and at later ones.
pub fn set(id: &Id, option: CmOption) -> Result<(), Errno> {
    for binding in id.state(|state| state.bindings.clone()) {
        binding.device.order(CmRequest::SetOption { id: binding.handle, option })?;
    }
    id.state(|state| state.options.push(option));
    Ok(())
}

/// Sets an option of an identifier.
///
/// # Safety
/// C's rules: see the crate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut CmId,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (id, option) = unsafe { (Id::of(id), option(level, optname, optval, optlen)) };
    returned(id.and_then(|id| set(id, option?)))
}
