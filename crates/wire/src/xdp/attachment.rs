//! An XDP program on a device, and the map through which it finds sockets: the part of AF_XDP that needs privileges.

use super::bpf::{self, LoadError, Mode};
use super::program::{self, Filter, Ours};
use crate::packet::socket::open_promiscuous;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Selects the frames of a device that are passed to sockets.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct XdpProgram {
    pub index: i32,
    /// Link-layer address of the interface.
    pub mac: [u8; 6],
    /// Addresses of this port: packets to them are passed to sockets.
    pub addresses: Vec<IpAddr>,
    /// Whether all frames are passed to sockets.
    pub all: bool,
    /// Whether packets may take several frames.
    pub several: bool,
}

/// An attached program. Dropping it detaches the program.
#[derive(Debug)]
pub struct Attachment {
    pub map: OwnedFd,
    /// The link that attaches the program to the device.
    pub link: OwnedFd,
    /// Whether the program runs in the driver or after it.
    pub mode: Mode,
    /// A socket that makes the device accept frames to all addresses, if the program takes all frames.
    pub promiscuous: Option<OwnedFd>,
}

/// The steps of attaching a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Stage {
    Map,
    Load,
    Attach,
    /// Putting sockets into the XSKMAP.
    Fill,
    /// Accepting frames to all addresses.
    Promiscuous,
}

/// The reason why a program is not attached.
#[derive(Debug, thiserror::Error)]
#[error("{stage:?}: {source}")]
pub struct XdpError {
    pub stage: Stage,
    pub source: io::Error,
    /// The verifier's log, if it refused the program.
    pub log: Option<String>,
}

impl Stage {
    fn failed(self, source: io::Error) -> XdpError {
        XdpError { stage: self, source, log: None }
    }

    /// Describes the step in words, for error messages.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Map => "create the XSKMAP",
            Self::Load => "load the XDP program",
            Self::Attach => "attach the XDP program",
            Self::Fill => "fill the XSKMAP",
            Self::Promiscuous => "receive frames for all addresses",
        }
    }
}

impl XdpProgram {
    fn load(&self, map: BorrowedFd<'_>) -> Result<OwnedFd, XdpError> {
        let filter = Filter { mac: self.mac, addresses: self.addresses.clone(), all: self.all };
        let code = program::assemble(&filter, Ours::Redirect { map: map.as_raw_fd() });
        bpf::load_program(&code, self.several).map_err(|error| match error {
            LoadError::System(error) => Stage::Load.failed(error),
            LoadError::Refused(log) => {
                XdpError { log: Some(log), ..Stage::Load.failed(io::ErrorKind::InvalidInput.into()) }
            }
        })
    }
}

impl Attachment {
    pub(crate) fn new(program: &XdpProgram, sockets: &[BorrowedFd<'_>]) -> Result<Self, XdpError> {
        let map = bpf::create_xskmap(sockets.len() as u32).map_err(|e| Stage::Map.failed(e))?;
        for (queue, socket) in (0..).zip(sockets) {
            bpf::set_socket(map.as_fd(), queue, *socket).map_err(|e| Stage::Fill.failed(e))?;
        }
        let loaded = program.load(map.as_fd())?;
        let link = bpf::Link::attach(loaded.as_fd(), program.index).map_err(|e| Stage::Attach.failed(e))?;
        let promiscuous = program.all.then(|| open_promiscuous(program.index)).transpose();
        let promiscuous = promiscuous.map_err(|e| Stage::Promiscuous.failed(e))?;
        Ok(Self { map, mode: link.mode, link: link.fd, promiscuous })
    }

    pub(crate) fn replace(&self, program: &XdpProgram) -> Result<(), XdpError> {
        let loaded = program.load(self.map.as_fd())?;
        bpf::replace(self.link.as_fd(), loaded.as_fd()).map_err(|e| Stage::Attach.failed(e))
    }
}
