//! The functions that the transport of a line calls: they copy out of loads, and hand over what arrives.

use super::line::is_remote;
use super::{Ends, Freight, HEAD, Load};
use crate::base::header::source_port;
use crate::base::ids::Qpn;
use crate::inbox::Inbox;
use crate::inbox::message::Message;
use crate::net::adapter::Adapter;
use crate::net::fabric::Fabric;
use crate::net::path::Path;
use crate::net::wire;
use packet::roce::{self, Datagram};
use rdma::{Access, AtomicOperation, Completion, Fault, Payload, SendRequest, Status, Verbs};
use ringport::Uplink;
use std::sync::Arc;
use uverbs::AddressVector;

/// Most bytes of headers and trailers around a payload.
const AROUND: usize = 80;

/// The parts that all lines of a device share.
pub(super) struct Work<'a> {
    pub adapter: &'a Adapter,
    pub fabric: &'a Fabric,
    pub inbox: &'a Arc<Inbox<Message>>,
    pub uplink: &'a Uplink,
    /// Buffer for the next packet.
    pub spare: &'a mut Vec<u8>,
    /// Frames of which the worker was not told.
    pub frames: &'a mut u32,
}

/// A line's way, and what is under way on it.
pub(super) struct Wire {
    ends: Ends,
    path: Path,
    own: Qpn,
    peer: Qpn,
    /// Messages that the other end has not acknowledged, with their numbers.
    posted: Vec<(u64, Load)>,
    next: u64,
    /// The beginning of the message that arrives.
    head: [u8; HEAD],
    is_broken: bool,
}

impl Wire {
    pub const fn new(ends: Ends, path: Path, own: Qpn, peer: Qpn) -> Self {
        Self { ends, path, own, peer, posted: Vec::new(), next: 0, head: [0; HEAD], is_broken: false }
    }

    pub const fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Returns whether the other end sent what no daemon sends.
    pub const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Keeps a message until it is acknowledged. Returns its number.
    pub fn post(&mut self, load: Load) -> u64 {
        self.next += 1;
        self.posted.push((self.next, load));
        self.next
    }
}

impl<'a> Work<'a> {
    /// Finds the way of a line. `None`: the device has no such address, or the peer is on this host.
    pub fn path(&self, ends: Ends) -> Option<Path> {
        let index = self.adapter.spec().gids().iter().position(|own| *own == ends.own)?;
        let vector = AddressVector {
            dgid: ends.peer,
            sgid_index: index as u32,
            is_global: true,
            ..AddressVector::default()
        };
        Path::to_peer(&vector, self.adapter, self.fabric).ok().filter(is_remote)
    }

    /// Returns for how many frames there is room.
    pub fn room(&self) -> usize {
        self.uplink.room()
    }

    /// Sends a packet, which may be lost.
    pub fn send(&mut self, path: &Path, own: Qpn, peer: Qpn, bytes: &[u8]) {
        _ = wire::send(self.uplink, path, source_port(0, own, peer), bytes);
        *self.frames += 1;
        if *self.frames >= wire::FRAMES {
            self.ring();
        }
    }

    /// Tells the worker of what was sent.
    pub fn ring(&mut self) {
        if std::mem::take(self.frames) > 0 {
            self.uplink.ring();
        }
    }

    pub fn verbs<'b>(&'b mut self, wire: &'b mut Wire, freight: &'b mut dyn Freight) -> LineVerbs<'b, 'a> {
        LineVerbs { work: self, wire, freight }
    }
}

/// One line, while its transport runs.
pub(super) struct LineVerbs<'b, 'a> {
    work: &'b mut Work<'a>,
    wire: &'b mut Wire,
    freight: &'b mut dyn Freight,
}

/// Peers send messages and nothing else.
impl Verbs for LineVerbs<'_, '_> {
    fn scatter(&mut self, _: &SendRequest, _: u32, _: &[u8]) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    fn take_receive(&mut self) -> Option<u64> {
        Some(0)
    }

    fn take_flushed(&mut self) -> Option<u64> {
        None
    }

    fn shares_receives(&self) -> bool {
        false
    }

    fn fill(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        let (at, bytes) = match (offset as usize, bytes.split_first_chunk::<HEAD>()) {
            (0, Some((head, rest))) => {
                self.wire.head = *head;
                (0, rest)
            }
            (0, None) => return Err(Fault::Length),
            (offset, _) => (offset.saturating_sub(HEAD), bytes),
        };
        if !bytes.is_empty() {
            self.freight.store(self.wire.ends, &self.wire.head, at as u32, bytes);
        }
        Ok(())
    }

    fn check(&mut self, _: u32, _: u64, _: u32, _: Access) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    fn write(&mut self, _: u32, _: u64, _: &[u8], _: bool) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    fn atomic(&mut self, _: u32, _: u64, _: AtomicOperation) -> Result<u64, Fault> {
        Err(Fault::Protection)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    fn complete(&mut self, completion: Completion) {
        if completion.received.is_some() {
            match (completion.len as usize).checked_sub(HEAD) {
                Some(len) => self.freight.arrived(self.wire.ends, &self.wire.head, len as u32),
                None => self.wire.is_broken = true,
            }
        } else if completion.status == Status::Success {
            self.wire.posted.retain(|(id, _)| *id != completion.id);
        }
    }

    fn send(&mut self, _: Option<u32>, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<(), Fault> {
        let len = match payload {
            Payload::None => 0,
            Payload::Message { len, .. } => len as usize,
            Payload::Region { .. } => return Err(Fault::Protection),
        };
        let Wire { path, own, peer, posted, .. } = &*self.wire;
        let mut bytes = std::mem::take(self.work.spare);
        bytes.resize(len + AROUND, 0);
        let written = roce::write_with::<packet::WriteError>(packet, len, &mut bytes, |out| {
            if let Payload::Message { request, offset, .. } = payload
                && let Some((_, load)) = posted.iter().find(|(id, _)| *id == request.id)
            {
                load.copy(offset, out);
            }
            Ok(())
        });
        // The transport makes whole packets, for which there is room.
        if let Ok(written) = written {
            self.work.send(path, *own, *peer, &bytes[..written]);
        }
        *self.work.spare = bytes;
        Ok(())
    }
}
