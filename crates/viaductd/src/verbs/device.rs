//! One device, and what it tells the control plane.

use super::AnyError;
use control::{RdmaSpec, RdmaStatus};
use hca::{Answers, ClientDescription, Fabric};
use ringport::{Downlink, Uplink};
use sockets::{Place, Sockets};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A verbs device.
pub struct Device {
    adapter: hca::Device,
}

impl Device {
    /// Opens it, for this user and group.
    ///
    /// # Errors
    /// Where its socket can't be made.
    pub fn open(
        spec: &RdmaSpec,
        owner: Option<(u32, u32)>,
        (fabric, sockets): (&Arc<Fabric>, &dyn Sockets),
        port: (Uplink, Downlink),
    ) -> Result<Self, AnyError> {
        let socket = Place { path: spec.socket.clone(), owner, mode: spec.mode };
        Ok(Self { adapter: hca::Device::open(spec.adapter.clone(), (&socket, sockets), fabric, port)? })
    }

    /// Makes it be another.
    ///
    /// # Errors
    /// Where its socket can't be given to its new owner.
    pub fn update(&self, spec: &RdmaSpec, owner: Option<(u32, u32)>) -> Result<(), AnyError> {
        self.adapter.give_to(owner, spec.mode)?;
        self.adapter.update(spec.adapter.clone());
        Ok(())
    }

    /// A copy of the socket by which its applications come.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn listener(&self) -> io::Result<OwnedFd> {
        self.adapter.listener()
    }

    /// The number of its interface.
    pub fn set_port(&self, port: u16) {
        self.adapter.set_port(port);
    }

    /// Rules or ways may be others now.
    pub fn review(&self) {
        self.adapter.review();
    }

    /// Asks its applications what they have.
    pub fn ask(&self) -> Answers {
        self.adapter.ask()
    }

    /// What it, and these applications, which are all that it has, tell of themselves.
    pub fn describe(&self, name: String, clients: Vec<ClientDescription>) -> RdmaStatus {
        RdmaStatus {
            name,
            counters: self.adapter.counters(&clients),
            clients,
            connections: self.adapter.describe_connections(),
            holders: self.adapter.holders(),
        }
    }
}
