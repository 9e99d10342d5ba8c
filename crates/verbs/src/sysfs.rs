//! Files about devices. They exist if somebody mounted the output of `viaduct rdma tree`; otherwise programs do not
//! find them, as on a kernel without RDMA.

use crate::environment::variable;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// Largest number of bytes in the path of sysfs.
const MAX_PATH: usize = 255;

/// Returns the path of sysfs: `SYSFS_PATH`, if set, or the usual one.
pub fn root() -> &'static CStr {
    static ROOT: OnceLock<CString> = OnceLock::new();
    ROOT.get_or_init(|| variable(c"SYSFS_PATH").map_or_else(|| c"/sys".to_owned(), |path| cleaned(&path)))
}

/// Removes trailing slashes, and truncates the path to the limit.
fn cleaned(path: &CStr) -> CString {
    let bytes = path.to_bytes();
    let bytes = &bytes[..bytes.len().min(MAX_PATH)];
    let len = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    // A former C string has no zero inside.
    CString::new(&bytes[..len]).unwrap_or_default()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    root().as_ptr()
}

/// Reads `directory/file` without the newline at its end. Returns the number of bytes, or -1.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_no_slash_at_its_end() {
        assert_eq!(cleaned(c"/mnt/sys//"), c"/mnt/sys".to_owned());
        assert_eq!(cleaned(c"/"), c"".to_owned());
    }

    #[test]
    fn files_are_read_without_their_newline() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("node_type"), "1: CA\n").unwrap();
        let path = CString::new(dir.path().as_os_str().as_bytes()).unwrap();
        let mut to = [b'x' as c_char; 8];
        // SAFETY: C strings, and as much room as stated.
        let read = |name: &CStr, to: &mut [c_char]| unsafe {
            ibv_read_sysfs_file(path.as_ptr(), name.as_ptr(), to.as_mut_ptr(), to.len())
        };
        assert_eq!(read(c"node_type", &mut to), 5);
        assert_eq!(to.map(|c| c as u8), *b"1: CA\0xx");
        assert_eq!((read(c"node_type", &mut to[..3]), to[2]), (2, 0));
        assert_eq!(read(c"none", &mut to), -1);
    }
}
