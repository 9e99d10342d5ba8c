//! Descriptions of a manager's identifiers, for display.

use super::endpoint::State;
use super::{Client, Manager, PortSpace};
use std::net::SocketAddr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub id: u32,
    /// The state, in a word.
    pub state: &'static str,
    pub space: PortSpace,
    /// The guest's address and port.
    pub local: Option<SocketAddr>,
    /// The peer's address and port.
    pub peer: Option<SocketAddr>,
    pub queue_pair: Option<u32>,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Bound => "bound",
            Self::AddressResolved | Self::RouteResolved => "resolved",
            Self::Listening => "listen",
            Self::ReqSent | Self::RepReceived | Self::SidrReqSent => "connect",
            Self::ReqReceived | Self::SidrReqReceived => "request",
            Self::RepSent => "accept",
            Self::Established | Self::SidrDone => "established",
            Self::DreqSent => "disconnect",
            Self::TimeWait => "timewait",
            Self::Closed => "disconnected",
        }
    }
}

impl Manager {
    pub fn describe(&self) -> impl Iterator<Item = (Client, Description)> + '_ {
        self.endpoints.iter().filter_map(|(id, endpoint)| {
            let client = *self.channels.get(&endpoint.channel?)?;
            let description = Description {
                id: *id,
                state: endpoint.state.name(),
                space: endpoint.space,
                local: endpoint.local,
                peer: endpoint.peer,
                queue_pair: Some(endpoint.ours.queue_pair).filter(|qpn| *qpn != 0),
            };
            Some((client, description))
        })
    }
}
