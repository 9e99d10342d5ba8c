//! Messages of DHCPv6: each goes within a message of the relay, and so does the answer (RFC 8415, 9 and 19).

use super::{Client, Id};
use crate::dhcpv6::message::{Message, options};
use crate::dhcpv6::{CLIENT, SERVER};
use crate::frame::{Datagram, datagram6};
use crate::{Binding, Plan, Refused};
use dhcproto::v6::{MessageType, OptionCode};
use packet::{Mac, proto};
use std::net::Ipv6Addr;

/// Fixed fields of a relay's message: its kind, hops, the addresses of the link and of the client.
const FIXED: usize = 34;

/// Returns the relay's message with a client's in it.
pub(super) fn forward(
    guest: &Binding,
    asked: &Datagram<'_>,
    peer: Ipv6Addr,
) -> Result<(Id, Vec<u8>), Refused> {
    let read = Message::read(asked.payload)?;
    let is_clients = matches!(
        read.kind,
        MessageType::Solicit
            | MessageType::Request
            | MessageType::Confirm
            | MessageType::Renew
            | MessageType::Rebind
            | MessageType::Release
            | MessageType::Decline
            | MessageType::InformationRequest
    );
    if !is_clients {
        return Err(Refused::Malformed);
    }
    let link = guest.gateways6().next().ok_or(Refused::NoAddress)?.addr();
    let mut message = vec![u8::from(MessageType::RelayForw), 0];
    message.extend(link.octets());
    message.extend(peer.octets());
    for (code, value) in
        [(OptionCode::InterfaceId, guest.guest.as_bytes()), (OptionCode::RelayMsg, asked.payload)]
    {
        let len = u16::try_from(value.len()).map_err(|_| Refused::Malformed)?;
        message.extend(u16::from(code).to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(value);
    }
    Ok((Id::V6 { xid: read.xid, peer }, message))
}

/// An answer of a server.
pub(super) struct Answer<'a> {
    peer: Ipv6Addr,
    guest: &'a [u8],
    message: &'a [u8],
    xid: [u8; 3],
}

impl<'a> Answer<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>()?;
        let peer = Ipv6Addr::from(*fixed[FIXED - 16..].first_chunk::<16>()?);
        let (mut guest, mut message) = (None, None);
        options(rest, &mut |code, value| {
            match code {
                OptionCode::InterfaceId => guest = Some(value),
                OptionCode::RelayMsg => message = Some(value),
                _ => {}
            }
            Some(())
        })?;
        let message: &[u8] = message?;
        let ([kind, xid @ ..], _) = message.split_first_chunk::<4>()?;
        let is_answer = matches!((*kind).into(), MessageType::Advertise | MessageType::Reply);
        let is_relays = MessageType::from(fixed[0]) == MessageType::RelayRepl && fixed[1] == 0;
        (is_answer && is_relays).then_some(Self { peer, guest: guest?, message, xid: *xid })
    }

    /// Returns how its guest is found.
    pub(super) fn id(&self) -> Id {
        Id::V6 { xid: self.xid, peer: self.peer }
    }

    pub(super) fn is_for(&self, client: &Client) -> bool {
        client.guest.as_bytes() == self.guest
    }

    /// Returns the frame for the guest.
    pub(super) fn frame(&self, plan: &Plan, guest: &Binding, to: Mac) -> Result<Vec<u8>, Refused> {
        if self.message.len() + proto::IPV6_LEN + proto::UDP_LEN > guest.mtu.into() {
            return Err(Refused::Malformed);
        }
        datagram6(plan, guest, (SERVER, CLIENT), (to, self.peer), self.message)
    }
}
