//! A speaker whose peer is written by hand, octet by octet.

use super::net::{AS, Table, config, import, peer};
use crate::{Conn, Event, Family, PeerStatus, Speaker, State};
use std::time::Duration;

pub(super) struct Raw {
    pub(super) speaker: Speaker,
    pub(super) conn: Conn,
    pub(super) table: Table,
    pub(super) now: Duration,
}

/// Returns a message.
pub(super) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (19 + body.len()) as u16;
    [&[0xff; 16][..], &length.to_be_bytes(), &[kind], body].concat()
}

/// Returns an attribute.
pub(super) fn attribute(flags: u8, code: u8, value: &[u8]) -> Vec<u8> {
    let length = (value.len() as u16).to_be_bytes();
    [&[flags | 0x10, code][..], &length, value].concat()
}

/// Returns an UPDATE of these attributes.
pub(super) fn update(attributes: &[Vec<u8>]) -> Vec<u8> {
    let attributes = attributes.concat();
    let length = (attributes.len() as u16).to_be_bytes();
    message(2, &[&[0, 0][..], &length, &attributes].concat())
}

/// Returns an UPDATE that has plain IPv4 routes, withdrawn ones and others, outside of its attributes.
pub(super) fn plain(withdrawn: &[u8], attributes: &[u8], nlri: &[u8]) -> Vec<u8> {
    let length = |part: &[u8]| (part.len() as u16).to_be_bytes();
    message(2, &[&length(withdrawn)[..], withdrawn, &length(attributes), attributes, nlri].concat())
}

/// Returns an OPEN of node 1.
pub(super) fn open(asn: u16, capabilities: &[&[u8]]) -> Vec<u8> {
    let capabilities = capabilities.concat();
    let length = capabilities.len() as u8;
    let fixed = [&[4][..], &asn.to_be_bytes(), &[0, 90, 10, 255, 0, 2]].concat();
    message(1, &[&fixed[..], &[length + 2, 2, length], &capabilities].concat())
}

/// Capabilities of a usual peer: families, ROUTE-REFRESH, AS in four octets.
pub(super) const CAPABILITIES: [&[u8]; 5] =
    [&[1, 4, 0, 1, 0, 128], &[1, 4, 0, 2, 0, 128], &[1, 4, 0, 25, 0, 70], &[2, 0], &[65, 4, 0, 0, 0xfc, 0]];

/// Capabilities of a peer that also speaks plain IPv4 and IPv6.
pub(super) const PLAIN: [&[u8]; 2] = [&[1, 4, 0, 1, 0, 1], &[1, 4, 0, 2, 0, 1]];

impl Raw {
    /// Opens a session as node 1.
    pub(super) fn new(capabilities: &[&[u8]]) -> Self {
        Self::of(AS as u16, capabilities)
    }

    /// Opens a session as node 1, of this AS.
    pub(super) fn of(asn: u16, capabilities: &[&[u8]]) -> Self {
        let mut raw = Self::connected_to(asn.into());
        raw.establish(asn, capabilities);
        raw
    }

    /// Opens another session in place of the one that is there.
    pub(super) fn again(&mut self, asn: u16, capabilities: &[&[u8]]) {
        self.speaker.closed(self.conn, self.now);
        self.conn = self.speaker.accepted(super::net::address(1), self.now).unwrap();
        self.establish(asn, capabilities);
    }

    fn establish(&mut self, asn: u16, capabilities: &[&[u8]]) {
        self.send(&open(asn, capabilities));
        self.send(&message(4, &[]));
        assert_eq!(self.status().state, State::Established, "{:?}", self.status().last);
    }

    /// Opens a connection as node 1.
    pub(super) fn connected() -> Self {
        Self::connected_to(AS)
    }

    fn connected_to(asn: u32) -> Self {
        let now = Duration::from_secs(1);
        let mut speaker = Speaker::new(config(0, AS), 1, now);
        speaker.set_imports(&[import(7, &[100])], now);
        let peer = crate::PeerConfig { passive: true, families: Family::ALL.into(), ..peer(1, asn) };
        speaker.set_peers(vec![peer], now);
        let conn = speaker.accepted(super::net::address(1), now).unwrap();
        Self { speaker, conn, table: Table::default(), now }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.speaker.received(self.conn, bytes, self.now);
        for change in self.speaker.take_changes(usize::MAX) {
            self.table.apply(change);
        }
    }

    pub(super) fn status(&self) -> PeerStatus {
        self.speaker.peers().remove(0)
    }

    /// Returns the bodies of the messages that the speaker sends, with their types.
    pub(super) fn output(&mut self) -> Vec<(u8, Vec<u8>)> {
        let bytes = self.speaker.output(self.conn, self.now).to_vec();
        self.speaker.sent(self.conn, bytes.len(), self.now);
        messages(&bytes)
    }

    /// Returns the message with which the speaker ended the connection.
    pub(super) fn last_words(&mut self) -> Vec<u8> {
        while let Some(event) = self.speaker.next_event() {
            if let Event::Close { last, .. } = event {
                return messages(&last).pop().map(|(_, body)| body).unwrap_or_default();
            }
        }
        panic!("the connection is open")
    }
}

/// Cuts bytes into messages.
pub(super) fn messages(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let [header @ .., kind] = &bytes[..bytes.len().min(19)]
        && header.len() == 18
    {
        let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
        all.push((*kind, bytes[19..length].to_vec()));
        bytes = &bytes[length..];
    }
    all
}
