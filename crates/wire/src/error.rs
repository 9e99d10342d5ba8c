//! Why a port could not be opened.

use std::io;

/// Why a port could not be opened. Each error names the device and, where known, what would help.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{device}: can't {what}")]
    System {
        /// The network device.
        device: String,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The device's MTU does not fit the frames of AF_XDP.
    #[error(
        "{device}: AF_XDP takes an MTU of {limit} here, not {mtu}: set the MTU to that, or use kernel 6.6 or newer"
    )]
    Mtu {
        /// The network device.
        device: String,
        /// Its MTU, in bytes.
        mtu: u32,
        /// The largest that works, in bytes.
        limit: u32,
    },
    /// The other end of a veth pair leaves checksums unfinished, which AF_XDP cannot convey.
    #[error(
        "{device}: its peer sends unfinished checksums, which AF_XDP cannot see: run `ethtool -K {peer} tx off`"
    )]
    PeerChecksums {
        /// The network device.
        device: String,
        /// The other end of the pair.
        peer: String,
    },
    /// The kernel refused the XDP program.
    #[error("{device}: the kernel refused the XDP program: {log}")]
    Program {
        /// The network device.
        device: String,
        /// What the verifier said.
        log: String,
    },
    /// The kernel was built without an option that the driver needs.
    #[error("{device}: the kernel lacks {option}")]
    Kernel {
        /// The network device.
        device: String,
        /// The missing configuration option.
        option: &'static str,
    },
}

/// Adds device and action to a system call's error.
pub(crate) trait Context<T> {
    fn context(self, device: &str, what: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, device: &str, what: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::System { device: device.to_owned(), what, source: source.into() })
    }
}
