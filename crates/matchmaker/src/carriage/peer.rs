//! The calls of one line in both directions, and messages that wait to be sent.

use super::letter::{Kind, Letter};
use crate::offer::Key;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Calls of the other end that are remembered.
const CALLS: usize = 4096;

/// A call of this end.
#[derive(Clone, Copy)]
struct Call {
    number: u64,
    /// The other end's number, once it has answered.
    answer: Option<u64>,
}

/// A call of the other end.
#[derive(Clone, Copy)]
struct Called {
    number: u64,
    at: Instant,
    /// The number of this end's answer.
    answer: Option<u64>,
}

/// The thing to do when a socket was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was seen before the call came.
    AskAgain,
    /// Nothing, or nothing more.
    Nothing,
}

#[derive(Default)]
pub struct Peer {
    pub is_up: bool,
    pub silent_until: Option<Instant>,
    pub letters: VecDeque<Letter>,
    /// Pairs that have something to send.
    pub ready: VecDeque<u64>,
    calls: HashMap<Key, Call>,
    called: HashMap<Key, Called>,
    next: u64,
}

impl Peer {
    pub fn is_silent(&self, now: Instant) -> bool {
        !self.is_up && self.silent_until.is_some_and(|until| now < until)
    }

    /// Returns whether calls wait for the line.
    pub fn calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub fn post(&mut self, letter: Letter) {
        // A daemon that takes no messages is told no more.
        if self.is_up && self.letters.len() < 2 * CALLS {
            self.letters.push_back(letter);
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Calls for a connection whose socket was seen. Returns the answer, if there is one.
    pub fn call(&mut self, key: Key) -> Option<u64> {
        if let Some(call) = self.calls.get(&key) {
            let answer = call.answer?;
            self.calls.remove(&key);
            return Some(answer);
        }
        let number = self.number();
        self.calls.insert(key, Call { number, answer: None });
        self.post(Letter::call(number, &key));
        None
    }

    pub fn withdraw(&mut self, key: &Key) {
        if let Some(call) = self.calls.remove(key) {
            self.post(Letter::new(Kind::Withdraw, 0, call.number));
        }
        if let Some(called) = self.called.get_mut(key) {
            called.answer = None;
        }
    }

    pub fn take_calls(&mut self) -> Vec<Key> {
        self.calls.drain().map(|(key, _)| key).collect()
    }

    /// Notes the other end's answer. Returns the connection.
    pub fn answered(&mut self, number: u64, answer: u64) -> Option<Key> {
        let (key, call) = self.calls.iter_mut().find(|(_, call)| call.number == number)?;
        call.answer = Some(answer);
        Some(*key)
    }

    /// Notes a call of the other end.
    pub fn called(&mut self, key: Key, number: u64) {
        if self.called.len() < CALLS || self.called.contains_key(&key) {
            self.called.insert(key, Called { number, at: Instant::now(), answer: None });
        }
    }

    pub fn uncalled(&mut self, number: u64) {
        self.called.retain(|_, called| called.number != number);
    }

    /// Answers the other end's call, if there is one that came before the socket was seen.
    pub fn answer(&mut self, key: &Key, seen: Instant) -> Answer {
        self.next += 1;
        let Some(called) = self.called.get_mut(key) else { return Answer::Nothing };
        if seen < called.at {
            return Answer::AskAgain;
        }
        if called.answer.is_none() {
            called.answer = Some(self.next);
            let letter = Letter::new(Kind::Answer, called.number, self.next);
            self.post(letter);
        }
        Answer::Nothing
    }

    /// Takes the connection of an answer that the other end has followed.
    pub fn joined(&mut self, answer: u64) -> Option<Key> {
        let (key, _) = self.called.iter().find(|(_, called)| called.answer == Some(answer))?;
        let key = *key;
        self.called.remove(&key);
        Some(key)
    }

    /// Notes that there is a line, and calls again.
    pub fn rises(&mut self) {
        self.falls();
        (self.is_up, self.silent_until) = (true, None);
        for (key, call) in &mut self.calls {
            call.answer = None;
            self.letters.push_back(Letter::call(call.number, key));
        }
    }

    pub fn falls(&mut self) {
        self.is_up = false;
        self.letters.clear();
        self.ready.clear();
        self.called.clear();
    }
}
