//! Flow control of a stream: what may be sent where, what has arrived, what to tell the peer. It knows no memory and no
//! queue pair, and does not trust the peer's messages.
//!
//! A receiver has a ring of two halves. When all bytes of a half have been read, it announces the half to the
//! peer, with an entry in the peer's table of buffers. A sender fills one buffer after the other. In addition,
//! data messages are counted: the receiver says up to which number they may come.

use super::wire::{Buffer, Hello, Message, TABLE};
use std::collections::VecDeque;

/// Number of control messages that may be under way. They need no credits from the peer.
pub const CONTROLS: u16 = 4;
/// A stream is writable while at least this many bytes fit.
pub const LOW_WATER: u32 = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the ring of data that was sent and is not acknowledged.
    pub send: u32,
    /// Bytes of the ring of data that has arrived and is not read: two halves.
    pub receive: u32,
    pub sends: u16,
    pub receives: u16,
}

/// The peer broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// The places of the next bytes to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The destination in the peer's memory.
    pub remote: Buffer,
    /// The offset in our send ring; the bytes may continue at the ring's start.
    pub at: u32,
    pub len: u32,
}

/// A message that gives the peer a new limit, and perhaps a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub message: Message,
    /// The offset of the half of our ring that is the buffer, and the entry for it in the peer's table.
    pub half: Option<(u32, Buffer)>,
}

/// The flow control's state of a stream.
#[derive(Debug)]
pub struct Flow {
    sizes: Sizes,
    peer: Hello,
    // Fields for sending.
    buffers: VecDeque<Buffer>,
    sent: u16,
    limit: u16,
    places: u16,
    room: u32,
    position: u32,
    // Fields for receiving.
    arrived: VecDeque<u32>,
    /// Bytes that the peer may still write.
    announced: u32,
    /// Bytes that were read, in halves that were not announced to the peer again yet.
    free: u32,
    /// The offset of the next half to announce.
    next_half: u32,
    read_at: u32,
    consumed: u16,
    /// Number of consumed messages at which the peer gets new credits.
    tell_at: u16,
    /// The next entry to use in the peer's table.
    entry: u32,
    controls: u16,
    pub peer_sends: bool,
    pub peer_receives: bool,
}

impl Flow {
    /// Creates the state for the peer that sent `peer`. The peer already knows the first half of our ring.
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

    /// Is true if the peer stores numbers with the most significant byte first.
    #[must_use]
    pub const fn peer_is_big_endian(&self) -> bool {
        self.peer.is_big_endian
    }

    #[must_use]
    pub fn can_send(&self) -> bool {
        self.places > 0
            && self.room >= LOW_WATER.min(self.sizes.send)
            && self.sent != self.limit
            && !self.buffers.is_empty()
    }

    /// Takes room for the next bytes, at most `most`. Messages of up to `inline` bytes need no place in the ring.
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

    /// Frees the room of a message of ours that is done.
    pub fn done(&mut self, message: Message) {
        if let Message::Data(len) = message {
            self.places = (self.places + 1).min(self.sizes.sends - CONTROLS);
            self.room = self.room.saturating_add(len).min(self.sizes.send);
        } else {
            self.controls = (self.controls + 1).min(CONTROLS);
        }
    }

    /// Is true if all messages of ours are done.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.places == self.sizes.sends - CONTROLS && self.controls == CONTROLS
    }

    /// Takes a place for a control message. Returns false if none is free.
    pub const fn control(&mut self) -> bool {
        let may = self.controls > 0;
        self.controls -= may as u16;
        may
    }

    /// Adds a buffer that the peer has announced in our table.
    ///
    /// # Errors
    /// If the peer has announced more buffers than the table has entries.
    pub fn announce(&mut self, buffer: Buffer) -> Result<(), Violation> {
        if self.buffers.len() >= TABLE as usize {
            return Err(Violation);
        }
        self.buffers.push_back(buffer);
        Ok(())
    }

    /// Handles a message of the peer.
    ///
    /// # Errors
    /// If the peer may not send it.
    pub fn hear(&mut self, message: Message) -> Result<(), Violation> {
        match message {
            Message::Data(len) => self.hear_data(len)?,
            Message::Credits(limit) => {
                // The limit must not fall, and the peer must not grant more messages than at first.
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

    /// Returns offset and number of the bytes in the ring that can be read without a gap; the number is 0 if there are
    /// none.
    #[must_use]
    pub fn readable(&self) -> (u32, u32) {
        let len = self.arrived.iter().fold(0_u32, |all, len| all.saturating_add(*len));
        (self.read_at, len.min(self.sizes.receive - self.read_at))
    }

    #[must_use]
    pub fn has_data(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Returns offset and number of all bytes that have arrived, in two parts; the second part is at the ring's start.
    #[must_use]
    pub fn all_readable(&self) -> [(u32, u32); 2] {
        let len = self.arrived.iter().fold(0_u32, |all, len| all.saturating_add(*len));
        let (at, first) = self.readable();
        [(at, first), (0, len - first)]
    }

    /// Frees `len` bytes that were read.
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

    /// Returns the message that the peer should get now, if any, and takes a place for it.
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
