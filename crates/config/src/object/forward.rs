//! `[[forward]]`: ports of the host that lead to guests.

use super::{Kind, Place, Protocol, read_network};
use crate::reader::Reader;
use crate::tree::Node;
use crate::value::{Value, Within, describe, display};
use packet::proto;
use serde::Serialize;
use std::net::IpAddr;

/// A port of an address of the host that leads to a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forward {
    /// The guest's network.
    pub network: String,
    /// The host's address.
    pub outside: IpAddr,
    /// TCP or UDP.
    #[serde(serialize_with = "display")]
    pub protocol: Protocol,
    /// The port of that address.
    pub port: u16,
    /// Destination to which it leads.
    pub to: ForwardTo,
}

/// A port of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForwardTo {
    /// The guest.
    pub guest: String,
    /// Port of the guest.
    pub port: u16,
}

type Port = Within<1, 0xffff>;

impl Value for ForwardTo {
    const TABLE: Option<fn(Reader<'_>) -> Option<Self>> = Some(|mut r| {
        let (guest, port) = (r.require("guest"), r.require("port").map(Port::short));
        r.finish();
        Some(Self { guest: guest?, port: port? })
    });

    fn read(value: &Node<'_>) -> Result<Self, String> {
        Err(format!("expected {{ guest = \"NAME\", port = N }}, found {}", describe(value)))
    }
}

impl Value for Protocol {
    fn read(value: &Node<'_>) -> Result<Self, String> {
        crate::value::text(value)?.parse()
    }
}

impl Forward {
    pub(super) fn key(&self) -> (Option<String>, String) {
        (Some(self.network.clone()), self.name())
    }

    /// Returns what tells it from others, as in `tcp 203.0.113.5 8080`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {} {}", self.protocol, self.outside, self.port)
    }

    pub(super) fn read(mut r: Reader<'_>) -> (Option<Self>, Place) {
        let outside: Option<IpAddr> = r.require("outside");
        let network = read_network(&mut r, Kind::Forward, outside.as_ref().map(|a| a as _));
        let protocol: Option<Protocol> = r.require("protocol");
        let port = r.require("port").map(Port::short);
        let to = r.require("to");
        if protocol.is_some_and(|protocol| ![proto::TCP, proto::UDP].contains(&protocol.0)) {
            r.problem(Some("protocol"), "`protocol` is tcp or udp");
        }
        let read = || {
            let (network, outside, protocol) = (network?, outside?, protocol?);
            Some(Self { network, outside, protocol, port: port?, to: to? })
        };
        (read(), r.finish())
    }
}
