//! Guests' network devices over virtio: the vhost-user back end (VIRTIO 1.2; QEMU's vhost-user specification).
//!
//! Owns: virtqueues, split and packed, the device's side ([`open`] gives them as `mem`'s queues); the vhost-user
//! protocol on a socket per guest, as server or client, with a control thread each; the checks that keep a
//! hostile driver or a dying VMM from hurting anybody but its own guest; the file by which the next daemon goes on with
//! packed rings ([`Journals`]).
//!
//! Must not know: what is in a guest's frame beyond its length, tables, other ports.

mod announcement;
mod aside;
mod backend;
mod control;
mod features;
mod frames;
mod inflight;
mod journals;
mod lease;
mod log;
mod messages;
mod port;
mod queue;
mod ring;
mod rx;
mod socket;
#[cfg(test)]
#[cfg(not(miri))] // System calls all over.
mod tests;
mod tx;

pub use control::{VmmEvent, Watch};
pub use journals::Journals;
pub use port::{Error, GuestPort, MAX_QUEUES, Role, open, open_by};
