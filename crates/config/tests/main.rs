//! The tests of the crate as programs use it, in one program, because each one more takes seconds to link.

mod config;
mod ovs;
mod tunnels;
mod warnings;
