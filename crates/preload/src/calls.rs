//! libc's functions.

mod bytes;
mod descriptors;
mod options;
mod processes;
mod sockets;

pub use processes::{find_lists, follow_forks};

use crate::{daemon, settings, sys, table};
use libc::{c_int, ssize_t};
use std::sync::atomic::Ordering;

/// Returns the connection of a descriptor.
#[inline]
pub fn get(fd: c_int) -> Option<table::Ref> {
    if !settings::is_on() {
        return None;
    }
    let found = table::get(fd)?;
    if daemon::FORKED.load(Ordering::Relaxed)
        && found.is_matched()
        && daemon::FORKED.swap(false, Ordering::AcqRel)
    {
        daemon::adopt_all();
    }
    Some(found)
}

/// Turns a result into what C's functions return.
fn returned(result: Result<usize, c_int>) -> ssize_t {
    match result {
        Ok(n) => n as ssize_t,
        Err(error) => {
            sys::set_errno(error);
            -1
        }
    }
}
