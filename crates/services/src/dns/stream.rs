//! DNS by TCP (RFC 7766): messages with their length before them.

use crate::tcp::Talk;
use std::mem::take;
use std::time::Duration;

/// Most questions of a connection that wait for answers, and bytes of answers with which no more are taken.
const MOST: usize = 8;
const FULL: usize = 16_384;
/// Most bytes of answers that wait: so many that one of any length has room.
const HELD: usize = FULL + 2 + u16::MAX as usize;

/// The messages of a connection.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Bytes that came of a message that is not whole. The socket's buffer is a ring, whose end may cut a message.
    begun: Vec<u8>,
    /// Questions nobody took yet, and how many wait for answers.
    questions: Vec<Vec<u8>>,
    waiting: usize,
    /// Answers, and how many bytes of them were sent.
    answers: Vec<u8>,
    sent: usize,
    /// No more questions come.
    ended: bool,
}

impl Stream {
    fn has_room(&self) -> bool {
        self.waiting < MOST && self.answers.len() < FULL
    }

    /// Returns how many bytes the message that came in part misses, as far as is known.
    fn missing(&self) -> usize {
        let Some((len, rest)) = self.begun.split_first_chunk::<2>() else { return 2 - self.begun.len() };
        usize::from(u16::from_be_bytes(*len)).saturating_sub(rest.len())
    }

    /// Asks what is whole now.
    fn ask(&mut self) {
        let message = take(&mut self.begun).split_off(2);
        self.questions.push(message);
        self.waiting += 1;
    }
}

impl Talk for Stream {
    fn hear(&mut self, bytes: &[u8], fin: bool, _now: Duration) -> usize {
        let mut at = 0;
        while self.has_room() && !self.ended {
            let more = self.missing().min(bytes.len() - at);
            self.begun.extend_from_slice(&bytes[at..at + more]);
            at += more;
            match self.missing() {
                0 => self.ask(),
                missing if missing > super::LONGEST_QUESTION => self.ended = true,
                _ if more == 0 => break,
                _ => {}
            }
        }
        self.ended |= fin && self.has_room();
        if self.ended { bytes.len() } else { at }
    }

    fn say(&self) -> &[u8] {
        &self.answers[self.sent..]
    }

    fn said(&mut self, len: usize) {
        self.sent += len;
        if self.sent == self.answers.len() {
            (self.answers, self.sent) = (Vec::new(), 0);
        }
    }

    fn is_over(&self) -> bool {
        self.ended && self.waiting == 0
    }

    fn questions(&mut self) -> Vec<Vec<u8>> {
        take(&mut self.questions)
    }

    /// Takes an answer; an empty one if there is none, which ends the connection. So does one without room: who asks
    /// for long answers is to take them.
    fn deliver(&mut self, message: &[u8]) {
        self.waiting = self.waiting.saturating_sub(1);
        self.answers.drain(..self.sent);
        self.sent = 0;
        match u16::try_from(message.len()) {
            Ok(len) if len > 0 && self.answers.len() + 2 + message.len() <= HELD => {
                self.answers.reserve_exact(2 + message.len());
                self.answers.extend(len.to_be_bytes());
                self.answers.extend(message);
            }
            _ => self.ended = true,
        }
    }

    fn held(&self) -> usize {
        self.answers.len()
    }
}
