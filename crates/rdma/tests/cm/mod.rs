//! The connection manager with itself and with Linux.
#![cfg(not(miri))]

mod addresses;
mod backlog;
mod captures;
mod channels;
mod connections;
mod datagrams;
mod early;
mod fields;
mod fuzz;
mod hostile;
mod hosts;
mod loopback;
mod lossy;
mod messages;
mod multicast;
mod peer;
mod requests;
mod states;
mod timers;
