//! Attaches containers to Viaduct: the protocols of container runtimes' plug-ins, and the work that the
//! plug-ins share.
//!
//! Owns: CNI (`viaduct-cni`), the plug-in protocol of Podman's netavark (`netavark-viaduct`), the way of a
//! tap from the daemon into a container's network namespace, and the records of attachments.
//!
//! A container's interface is a guest of kind `tap`. The daemon creates the device; a plug-in moves it into
//! the container and configures it there. Removing the guest removes the device, wherever it is.
//!
//! Must not know: how the daemon forwards, how a runtime makes containers.
#![deny(unsafe_code)]

mod attachment;
mod attend;
mod daemon;
mod error;
#[cfg(test)]
mod hostile;
mod interface;
mod netns;
mod records;

pub mod cni;
pub mod netavark;

pub use error::Error;

/// Returns the words after the program's name. Words that are not UTF-8 become other text, which is no
/// command: they cause no panic.
fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}
