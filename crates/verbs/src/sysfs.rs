//! Files about devices. Ours have none: what programs ask for is not found, as on a kernel without RDMA.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[unsafe(no_mangle)]
pub const extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads `directory/file` without the newline at its end. Bytes, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    to: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: strings of the program's.
    let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
    let path = Path::new(OsStr::from_bytes(directory.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    let Ok(text) = std::fs::read(path) else { return -1 };
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let len = text.len().min(room.saturating_sub(1));
    if room > 0 {
        // SAFETY: the program says how much room there is.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len);
            to.add(len).write(0);
        }
    }
    c_int::try_from(len).unwrap_or(-1)
}
