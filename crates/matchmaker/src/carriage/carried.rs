//! A connection whose other end is on another host: how far its bytes have come.

use super::letter::{Kind, Letter};
use super::{New, Wake};
use crate::bells::ring;
use crate::offer::Key;
use crate::pairs::Header;
use sockring::{Breach, EndState, SIZE, Sent};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes of a message.
const PIECE: u64 = 32 << 10;
/// Bytes that a program has read until the other end is told that there is room.
const ROOM: u64 = SIZE / 4;

pub struct Carried {
    pub key: Key,
    pub memory: Arc<Header>,
    wake: Wake,
    /// The program's agent is to wake it: for anything, or for room as well.
    woken: Option<bool>,
    /// The other daemon's number of the pair, once it is known.
    pub theirs: Option<u64>,
    /// Bytes of the program that were sent, and of the other end that are here.
    sent: u64,
    got: u64,
    /// The state that the other end was told last.
    told: EndState,
    /// The other end's sender when all of its bytes were here.
    known: Sent,
    pub is_queued: bool,
    /// The line is new: the other end is told what is here, and tells what is there.
    must_resume: bool,
    awaits_resume: bool,
    /// No program of this host has it any more. All that it wrote still goes to the other end.
    is_ending: bool,
    has_told_end: bool,
    /// Nothing comes any more.
    has_ended: bool,
    is_wrong: bool,
    /// How far both ends are with the return to TCP: this one, as it is and as it was told, and the other one.
    settled: Settled,
    told_settled: Settled,
    their_settled: Settled,
}

/// How far an end is with the return to TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The other end's sender has left, and all that it wrote is here.
    pub has_all: bool,
    /// It is known that the same holds there.
    pub knows: bool,
}

impl Settled {
    const DONE: Self = Self { has_all: true, knows: true };
}

impl Carried {
    pub fn new(key: Key, new: New, theirs: Option<u64>) -> Self {
        let New { memory, wake, .. } = new;
        Self {
            key,
            memory,
            wake,
            woken: None,
            theirs,
            sent: 0,
            got: 0,
            told: EndState::default(),
            known: Sent::default(),
            is_queued: false,
            // The first message tells the other end this one's number.
            must_resume: theirs.is_some(),
            awaits_resume: false,
            is_ending: false,
            has_told_end: false,
            has_ended: false,
            is_wrong: false,
            settled: Settled::default(),
            told_settled: Settled::default(),
            their_settled: Settled::default(),
        }
    }

    /// Returns whether both programs are with TCP, and have all that went by rings.
    pub fn is_settled(&self) -> bool {
        self.settled == Settled::DONE
    }

    /// Wakes the program, also a thread that waits for room if there `is_room`.
    fn wake(&mut self, is_room: bool) {
        match &self.wake {
            Wake::Bells(bells) => bells[..1 + usize::from(is_room)].iter().for_each(ring),
            Wake::Agent { .. } => self.woken = Some(is_room || self.woken == Some(true)),
        }
    }

    /// Returns the program that is to be woken by its agent, its name of the connection, and whether there is room.
    pub const fn take_woken(&mut self) -> Option<(u64, u64, bool)> {
        match (self.woken.take(), &self.wake) {
            (Some(room), Wake::Agent { program, token }) => Some((*program, *token, room)),
            _ => None,
        }
    }

    /// Notes that no program of this host has it any more.
    pub const fn ends(&mut self) {
        self.is_ending = true;
    }

    /// Returns whether both ends know of the end.
    pub const fn is_finished(&self) -> bool {
        self.has_told_end
    }

    /// Returns whether nobody waits for anything any more.
    pub const fn is_over(&self) -> bool {
        self.has_ended || self.is_ending
    }

    /// Begins anew on a new line.
    pub fn resume(&mut self) {
        (self.must_resume, self.awaits_resume) = (true, true);
        // Nobody knows what of this has arrived.
        (self.told, self.has_told_end) = (EndState::default(), false);
        self.told_settled = Settled::default();
    }

    /// Lets go of it though the other end is not told what is there. Returns whether the connection can go on by TCP: the
    /// other end has never heard of it.
    pub fn abandon(&self) -> bool {
        let is_kept = self.theirs.is_none();
        let link = self.memory.link();
        if is_kept {
            link.rx().set_left();
        }
        link.rx().set_whole();
        is_kept
    }

    /// Asks the program to tell when it goes on.
    pub fn arm(&self) {
        let link = self.memory.link();
        link.tx().arm();
        if self.got.wrapping_sub(self.told.rd) >= ROOM {
            link.rx().arm_room();
        }
    }

    /// Returns whether there is something to send.
    pub fn has_news(&self) -> Result<bool, Breach> {
        let now = self.memory.link().end_state();
        if self.is_wrong || now.sent.wr.wrapping_sub(self.sent) > SIZE {
            return Err(Breach::Position);
        }
        if self.must_resume || self.awaits_resume {
            return Ok(self.must_resume);
        }
        let told = &self.told;
        let is_new =
            EndState { rd: told.rd, rx_k: told.rx_k, ..now } != *told || self.settled != self.told_settled;
        Ok(is_new || now.rd.wrapping_sub(told.rd) >= ROOM || (self.is_ending && !self.has_told_end))
    }

    /// Returns the next message, and how many bytes come along.
    pub fn letter(&mut self, number: u64) -> Option<(Letter, u32)> {
        let letter = Letter::new(Kind::State, self.theirs?, number);
        let letter = Letter { got: self.got, from: self.sent, settled: self.settled, ..letter };
        let now = self.memory.link().end_state();
        if self.must_resume {
            self.must_resume = false;
            return Some((Letter { resumes: true, ..letter }.with_state(now), 0));
        }
        let there = now.sent.wr.wrapping_sub(self.sent);
        if there > SIZE {
            self.is_wrong = true;
            return None;
        }
        let len = there.min(PIECE);
        self.sent += len;
        // Switches come after all bytes before them.
        let is_partial = there > len;
        let sent = Sent { wr: self.sent, ..if is_partial { self.told.sent } else { now.sent } };
        self.told = EndState { sent, ..now };
        self.told_settled = self.settled;
        let is_last = self.is_ending && there == len;
        self.has_told_end |= is_last;
        Some((Letter { is_last, is_partial, ..letter }.with_state(self.told), len as u32))
    }

    /// Notes how far both ends are with the return to TCP.
    fn settle(&mut self, theirs: Settled) {
        self.their_settled = theirs;
        // The sender had left when it was told so, or the other end would not say that.
        self.settled.has_all |= self.known.has_left;
        if theirs.has_all && self.told.sent.has_left && !self.settled.knows {
            self.settled.knows = true;
            self.memory.link().tx().set_settled();
        }
        if self.settled == Settled::DONE && theirs == Settled::DONE {
            self.memory.is_parted.store(true, Ordering::Release);
        }
    }

    /// Takes bytes of a message to where the program reads them.
    pub fn store(&mut self, letter: &Letter, offset: u32, bytes: &[u8]) {
        let at = letter.from.wrapping_add(offset.into());
        let end = at.wrapping_add(bytes.len() as u64);
        let link = self.memory.link();
        if letter.from != self.got || end.wrapping_sub(link.end_state().rd) > SIZE {
            self.is_wrong = true;
            return;
        }
        link.copy_received(at, bytes);
    }

    /// Takes note of a message with so many bytes. Returns whether the program must look at what is wanted.
    pub fn arrived(&mut self, letter: &Letter, len: u32) -> Result<bool, Breach> {
        let Some(state) = letter.state() else { return Err(Breach::Position) };
        if letter.resumes {
            // It goes on from where the other end is.
            if letter.got > self.sent || letter.got.wrapping_sub(self.memory.link().tx().positions().1) > SIZE
            {
                return Err(Breach::Position);
            }
            (self.sent, self.awaits_resume) = (letter.got, false);
            return Ok(false);
        }
        if self.is_wrong || letter.from != self.got || state.sent.wr != self.got.wrapping_add(len.into()) {
            return Err(Breach::Position);
        }
        self.got = state.sent.wr;
        let link = self.memory.link();
        let (before, had_left) = (self.known.epoch, link.rx().has_left());
        self.known = if letter.is_partial { Sent { wr: self.got, ..self.known } } else { state.sent };
        let must_look = link.set_other(&EndState { sent: self.known, ..*state }, self.sent)?;
        self.settle(letter.settled);
        let is_new = len > 0 || self.known.epoch != before;
        let leaves = link.rx().has_left() && !had_left;
        if letter.is_last {
            self.has_ended = true;
            link.rx().set_whole();
        }
        let (wr, rd) = link.tx().positions();
        let has_room = wr.wrapping_sub(rd) <= SIZE / 2 && link.tx().take_room_armed();
        // Who waits for the end of the stream does not ask for a bell.
        if (is_new && link.rx().take_armed().is_some()) || has_room || leaves || letter.is_last {
            self.wake(has_room || letter.is_last);
        }
        Ok(must_look)
    }
}
