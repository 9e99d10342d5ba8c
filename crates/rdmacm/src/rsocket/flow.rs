//! Flow control of a stream: what may be sent where, what has arrived, what the peer is to be told. It knows no memory
//! and no queue pair, and believes nothing that the peer says.
//!
//! A receiver has a ring of two halves. It tells the peer of a half when all of its bytes have been read, by an entry
//! in the peer's table of buffers. A sender fills one buffer after the other. In addition it counts data messages: the
//! receiver says up to which number they may come.

use super::wire::{Buffer, Hello, Message, TABLE};
use std::collections::VecDeque;

/// Control messages that may be under way, for which the peer has no credits.
pub const CONTROLS: u16 = 4;
/// A stream is writable while at least as many bytes fit.
pub const LOW_WATER: u32 = 2048;

/// Sizes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of what was sent and is not acknowledged.
    pub send: u32,
    /// Bytes of what has arrived and is not read: two halves.
    pub receive: u32,
    /// Entries of the send queue.
    pub sends: u16,
    /// Entries of the receive queue.
    pub receives: u16,
}

/// The peer broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// Where the next bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where the peer wants them.
    pub remote: Buffer,
    /// Where they are to be put in the ring of what is sent; they may continue at its start.
    pub at: u32,
    /// How many they are.
    pub len: u32,
}

/// What the peer is to be told: a limit, and perhaps a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The message.
    pub message: Message,
    /// The offset of a half of the ring, and the entry of the peer's table for it.
    pub half: Option<(u32, Buffer)>,
}

/// The state of a stream.
#[derive(Debug)]
pub struct Flow {
    sizes: Sizes,
    peer: Hello,
    // Sending.
    buffers: VecDeque<Buffer>,
    sent: u16,
    limit: u16,
    places: u16,
    room: u32,
    position: u32,
    // Receiving.
    arrived: VecDeque<u32>,
    /// Bytes that the peer may still write.
    announced: u32,
    /// Bytes that were read, in halves that the peer does not know of yet.
    free: u32,
    /// The next half to announce.
    next_half: u32,
    read_at: u32,
    consumed: u16,
    /// At this number of consumed messages the peer is told of credits.
    tell_at: u16,
    /// The next entry in the peer's table.
    entry: u32,
    controls: u16,
    /// The peer may send.
    pub peer_sends: bool,
    /// The peer receives.
    pub peer_receives: bool,
}

impl Flow {
    /// A stream to the peer that said so. The peer knows of the first half of our ring.
    #[must_use]
    pub fn new(sizes: Sizes, peer: Hello) -> Self {
        let half = sizes.receive / 2;
        Self {
            sizes,
            peer,
            buffers: VecDeque::from_iter([peer.data].into_iter().filter(|first| first.len > 0)),
            sent: 0,
            limit: peer.credits,
            places: sizes.sends - CONTROLS,
            room: sizes.send,
            position: 0,
            arrived: VecDeque::with_capacity(sizes.receives.into()),
            announced: half,
            free: half,
            next_half: half,
            read_at: 0,
            consumed: 0,
            tell_at: sizes.receives / 2,
            entry: 1,
            controls: CONTROLS,
            peer_sends: true,
            peer_receives: true,
        }
    }

    /// Whether the peer stores numbers with the most significant byte first.
    #[must_use]
    pub const fn peer_is_big_endian(&self) -> bool {
        self.peer.is_big_endian
    }

    /// Whether bytes can be sent now.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.places > 0
            && self.room >= LOW_WATER.min(self.sizes.send)
            && self.sent != self.limit
            && !self.buffers.is_empty()
    }

    /// Takes room for the next bytes, at most as many. Inline ones need no place in the ring.
    pub fn send(&mut self, most: u32, inline: u32) -> Option<Write> {
        if !self.can_send() {
            return None;
        }
        let target = self.buffers.front_mut()?;
        let len = most.min(self.room).min(target.len);
        let write = Write { remote: Buffer { len, ..*target }, at: self.position, len };
        target.address = target.address.wrapping_add(len.into());
        target.len -= len;
        if target.len == 0 {
            self.buffers.pop_front();
        }
        if len > inline {
            self.position = (self.position + len) % self.sizes.send;
        }
        self.room -= len;
        self.places -= 1;
        self.sent = self.sent.wrapping_add(1);
        Some(write)
    }

    /// A message of ours is done.
    pub fn done(&mut self, message: Message) {
        if let Message::Data(len) = message {
            self.places = (self.places + 1).min(self.sizes.sends - CONTROLS);
            self.room = self.room.saturating_add(len).min(self.sizes.send);
        } else {
            self.controls = (self.controls + 1).min(CONTROLS);
        }
    }

    /// Whether all messages of ours are done.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.places == self.sizes.sends - CONTROLS && self.controls == CONTROLS
    }

    /// Takes the place for a control message.
    pub const fn control(&mut self) -> bool {
        let may = self.controls > 0;
        self.controls -= may as u16;
        may
    }

    /// The peer has announced a buffer, in its place in our table.
    ///
    /// # Errors
    /// It has announced more than there are entries.
    pub fn announce(&mut self, buffer: Buffer) -> Result<(), Violation> {
        if self.buffers.len() >= TABLE as usize {
            return Err(Violation);
        }
        self.buffers.push_back(buffer);
        Ok(())
    }

    /// The peer has sent a message.
    ///
    /// # Errors
    /// It may not.
    pub fn hear(&mut self, message: Message) -> Result<(), Violation> {
        match message {
            Message::Data(len) => self.hear_data(len)?,
            Message::Credits(limit) => {
                // It has granted no less before, and grants no more than at first.
                let (before, now) = (self.limit.wrapping_sub(self.sent), limit.wrapping_sub(self.sent));
                if now < before || now > self.peer.credits {
                    return Err(Violation);
                }
                self.limit = limit;
            }
            Message::KeepAlive => {}
            Message::Shutdown => self.peer_sends = false,
            Message::Disconnect => (self.peer_sends, self.peer_receives) = (false, false),
        }
        Ok(())
    }

    fn hear_data(&mut self, len: u32) -> Result<(), Violation> {
        let fits = len > 0 && len <= self.announced && self.arrived.len() < self.sizes.receives.into();
        if !fits || !self.peer_sends {
            return Err(Violation);
        }
        self.announced -= len;
        self.arrived.push_back(len);
        Ok(())
    }

    /// Bytes to read, without a gap: where they are in the ring, and how many; none: 0.
    #[must_use]
    pub fn readable(&self) -> (u32, u32) {
        let len = self.arrived.iter().fold(0_u32, |all, len| all.saturating_add(*len));
        (self.read_at, len.min(self.sizes.receive - self.read_at))
    }

    /// Whether there are bytes to read.
    #[must_use]
    pub fn has_data(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// All bytes that have arrived: where they are in the ring; the second part is at its start.
    #[must_use]
    pub fn all_readable(&self) -> [(u32, u32); 2] {
        let len = self.arrived.iter().fold(0_u32, |all, len| all.saturating_add(*len));
        let (at, first) = self.readable();
        [(at, first), (0, len - first)]
    }

    /// Bytes from the front of the readable ones have been read.
    pub fn read(&mut self, mut len: u32) {
        self.read_at = (self.read_at + len) % self.sizes.receive;
        self.free += len;
        while let Some(first) = self.arrived.front_mut() {
            if *first > len {
                *first -= len;
                break;
            }
            len -= *first;
            self.arrived.pop_front();
            self.consumed = self.consumed.wrapping_add(1);
        }
    }

    /// What the peer is to be told now.
    pub fn grant(&mut self) -> Option<Grant> {
        let half = self.sizes.receive / 2;
        let has_half = self.free >= half;
        let is_due = (self.consumed.wrapping_sub(self.tell_at) as i16) >= 0;
        if !self.peer_sends || !(has_half || is_due) || !self.control() {
            return None;
        }
        self.tell_at = self.consumed.wrapping_add(self.sizes.receives / 2);
        let message = Message::Credits(self.consumed.wrapping_add(self.sizes.receives));
        let half = has_half.then(|| self.announce_half(half));
        Some(Grant { message, half })
    }

    fn announce_half(&mut self, half: u32) -> (u32, Buffer) {
        let at = self.next_half;
        let address =
            self.peer.table.address.wrapping_add(u64::from(self.entry) * super::wire::BUFFER as u64);
        let entry = Buffer { address, ..self.peer.table };
        self.free -= half;
        self.announced += half;
        self.next_half = (self.next_half + half) % (2 * half);
        self.entry = (self.entry + 1) % self.peer.table.len;
        (at, entry)
    }
}
