//! Why a port could not be opened.

use std::io;

/// Why a port could not be opened. Each error names the device and, where known, what would help.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{device}: can't {what}")]
    System {
        device: String,
        /// The action that failed.
        what: &'static str,
        source: io::Error,
    },
    /// A system call needs a right that the process lacks.
    #[error(
        "{device}: cannot {what}: that needs {capability}; start viaductd as root, or with the capabilities of \
         dist/viaductd.service"
    )]
    Capability {
        device: String,
        /// The action that failed.
        what: &'static str,
        /// The capability, as capabilities(7) names it.
        capability: &'static str,
        source: io::Error,
    },
    /// The device's MTU does not fit the frames of AF_XDP.
    #[error(
        "{device}: AF_XDP takes an MTU of {limit} here, not {mtu}: set the MTU to that, or use kernel 6.6 or newer"
    )]
    Mtu {
        device: String,
        /// The device's MTU, in bytes.
        mtu: u32,
        /// The largest that works, in bytes.
        limit: u32,
    },
    /// The other end of a veth pair leaves checksums unfinished, which AF_XDP cannot convey.
    #[error(
        "{device}: its peer sends unfinished checksums, which AF_XDP cannot see: run `ethtool -K {peer} tx off`"
    )]
    PeerChecksums {
        device: String,
        /// The other end of the pair.
        peer: String,
    },
    /// The kernel refused the XDP program.
    #[error("{device}: the kernel refused the XDP program: {log}")]
    Program {
        device: String,
        /// The verifier's log.
        log: String,
    },
    /// The kernel was built without an option that the driver needs.
    #[error("{device}: the kernel lacks {option}")]
    Kernel { device: String, option: &'static str },
}

/// Adds device and action to a system call's error.
pub(crate) trait Context<T> {
    fn context(self, device: &str, what: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, device: &str, what: &'static str) -> Result<T, Error> {
        self.map_err(|source| {
            let (device, source) = (device.to_owned(), source.into());
            match capability(what).filter(|_| source.kind() == io::ErrorKind::PermissionDenied) {
                Some(capability) => Error::Capability { device, what, capability, source },
                None => Error::System { device, what, source },
            }
        })
    }
}

/// Returns the capability without which the kernel refuses an action.
fn capability(what: &str) -> Option<&'static str> {
    match what {
        "create the tap" => Some("CAP_NET_ADMIN"),
        "open a packet socket" => Some("CAP_NET_RAW"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_that_lacks_is_named() {
        let refused = |what| {
            let refused: Result<(), _> = Err(rustix::io::Errno::PERM);
            refused.context("c1", what).unwrap_err().to_string()
        };
        assert!(refused("create the tap").contains("CAP_NET_ADMIN; start viaductd as root"));
        assert!(refused("open a packet socket").contains("CAP_NET_RAW"));
        assert_eq!(refused("find the device"), "c1: can't find the device");
        let other: Result<(), io::Error> = Err(io::ErrorKind::AlreadyExists.into());
        assert_eq!(
            other.context("c1", "create the tap").unwrap_err().to_string(),
            "c1: can't create the tap"
        );
    }
}
