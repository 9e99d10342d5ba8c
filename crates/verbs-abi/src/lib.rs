//! Layouts of `libibverbs`' structures, by their C names: programs were compiled with them.
//!
//! Owns: the structures, and their conversion to control messages ([`uverbs`]). Must not know: what is done with them.
//! `tests/layout.rs` compares each structure with the system's headers.

#![deny(unsafe_code)]
#![allow(non_camel_case_types)]

mod address;
mod completion;
mod context;
mod device;
mod kernel;
mod memory;
mod queue_pair;
mod shared_receive;
mod work_request;

pub use address::*;
pub use completion::*;
pub use context::*;
pub use device::*;
pub use kernel::*;
pub use memory::*;
pub use queue_pair::*;
pub use shared_receive::*;
pub use work_request::*;

use std::ffi::c_void;

/// An unsupported operation: always `None`, so its arguments don't matter.
pub type Absent = Option<unsafe extern "C" fn() -> *mut c_void>;
