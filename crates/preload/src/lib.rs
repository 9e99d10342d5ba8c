//! `libviaduct-sockets.so`, which a program takes by `LD_PRELOAD` (`viaduct run`): it moves TCP connections between
//! programs of one host from the kernel to rings in shared memory.
//!
//! Owns: what libc's functions on sockets do for such connections; when a connection is offered to the daemon, moved,
//! and returned to TCP.
//!
//! Must not know: addresses, rules, which programs may share memory: the daemon decides about that.
//!
//! The kernel's socket stays beneath each connection, and the descriptor is the kernel's. Calls allocate nothing: they
//! may come from handlers of signals. docs/sockets.md tells what programs see.
//!
//! # Safety
//! Functions with libc's names follow libc's rules.
#![allow(clippy::missing_safety_doc, reason = "they are libc's functions")]
#![allow(clippy::unnecessary_cast, reason = "musl has other types of the same numbers")]

mod calls;
mod conn;
mod cursor;
mod daemon;
mod doors;
mod epoll;
mod leaving;
mod lock;
mod polling;
mod real;
mod receiving;
mod sending;
mod settings;
mod signals;
mod sys;
mod table;
mod waiting;

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the program ends in order.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    // The kernel resets a connection that is closed while a bell waits.
    if settings::is_on() {
        table::each(|fd, conn| {
            if conn.is_matched() && conn.is_alone() {
                conn.has_unread(fd);
            }
        });
    }
}

extern "C" fn start() {
    settings::read();
    calls::find_lists();
    if settings::is_on() {
        table::open();
        calls::follow_forks();
    }
}
