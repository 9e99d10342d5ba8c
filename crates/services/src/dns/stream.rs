//! DNS by TCP (RFC 7766): messages with their length before them.

use crate::tcp::Talk;
use std::mem::take;
use std::time::Duration;

/// Most questions of a connection that wait for answers, and bytes of answers that wait to be sent.
const MOST: usize = 8;
const FULL: usize = 16_384;

/// The messages of a connection.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Questions nobody took yet, and how many wait for answers.
    questions: Vec<Vec<u8>>,
    waiting: usize,
    /// Answers, and how many bytes of them were sent.
    answers: Vec<u8>,
    sent: usize,
    /// No more questions come.
    ended: bool,
}

impl Talk for Stream {
    fn hear(&mut self, bytes: &[u8], fin: bool, _now: Duration) -> usize {
        let mut at = 0;
        while self.waiting < MOST && self.answers.len() < FULL && !self.ended {
            let Some((len, rest)) = bytes[at..].split_first_chunk::<2>() else { break };
            let len = usize::from(u16::from_be_bytes(*len));
            if len > super::LONGEST_QUESTION {
                self.ended = true;
                break;
            }
            let Some(message) = rest.get(..len) else { break };
            self.questions.push(message.to_vec());
            self.waiting += 1;
            at += 2 + len;
        }
        let has_room = self.waiting < MOST && self.answers.len() < FULL;
        self.ended |= fin && has_room;
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

    /// Takes an answer; an empty one if there is none, which ends the connection.
    fn deliver(&mut self, message: &[u8]) {
        self.waiting = self.waiting.saturating_sub(1);
        match u16::try_from(message.len()) {
            Ok(len) if len > 0 => {
                self.answers.extend(len.to_be_bytes());
                self.answers.extend(message);
            }
            _ => self.ended = true,
        }
    }
}
