//! Environment variables.

use std::ffi::{CStr, CString, c_char};

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Returns a variable, unless the program runs with more rights than its user (`secure_getenv(3)`).
pub fn variable(name: &CStr) -> Option<CString> {
    // SAFETY: a C string; the result is one too, or null, and is copied at once.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_owned())
    }
}
