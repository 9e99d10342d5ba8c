//! TCP connections of guests to services (RFC 9293), by smoltcp: each has a stack of its own, so that no connection
//! can touch another. The number of a guest's connections is bounded, and so are their memory and their life.

mod connection;
mod link;
mod options;

use crate::frame::Back;
use crate::{Binding, Plan, Refused};
use connection::Connection;
use options::tamed;
use packet::{Headers, L4};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Most connections of a guest's interface, and of all.
const MOST: usize = 8;
const MOST_OF_ALL: usize = 4096;
/// Most bytes of answers that wait for all clients to take them.
const HELD: usize = 32 << 20;
/// Flags of a segment.
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// The conversation of a service with a client.
pub(crate) trait Talk: std::fmt::Debug + Send {
    /// Takes bytes that the client sent, and returns how many of them are read. `fin`: no more come.
    fn hear(&mut self, bytes: &[u8], fin: bool, now: Duration) -> usize;
    /// Returns bytes to send next, if there are some.
    fn say(&self) -> &[u8];
    /// Notes that so many of these bytes were taken.
    fn said(&mut self, len: usize);
    /// Returns whether the connection ends when all is said.
    fn is_over(&self) -> bool;
    /// Goes on by this plan.
    fn follow(&mut self, _plan: &Arc<Plan>) {}
    /// Takes the questions that somebody else answers.
    fn questions(&mut self) -> Vec<Vec<u8>> {
        Vec::new()
    }
    /// Takes the answer to such a question; an empty one if there is none.
    fn deliver(&mut self, _message: &[u8]) {}
    /// Returns the bytes of memory that such answers take.
    fn held(&self) -> usize {
        0
    }
    /// Takes the outcome, once.
    fn outcome(&mut self) -> Option<Result<(), Refused>> {
        None
    }
}

/// A client's question that somebody else answers.
#[derive(Debug)]
pub(crate) struct Question {
    /// The number of the interface, and that of the connection.
    pub(crate) from: (u16, u64),
    pub(crate) back: Back,
    pub(crate) message: Vec<u8>,
}

/// The results of an event, each with the number of an interface.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) frames: Vec<(u16, Vec<u8>)>,
    pub(crate) questions: Vec<Question>,
    pub(crate) outcomes: Vec<(u16, Result<(), Refused>)>,
}

/// The connections of all guests.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// By the number of the guest's interface.
    guests: BTreeMap<u16, Vec<Connection>>,
    /// The number of the last one.
    last: u64,
}

impl Connections {
    /// Takes a segment of a guest. `talk` begins the conversation of a new connection.
    pub(crate) fn take(
        &mut self,
        (number, guest): (u16, &Binding),
        (frame, headers): (&[u8], &Headers),
        now: Duration,
        talk: impl FnOnce(Back) -> Box<dyn Talk>,
        results: &mut Results,
    ) -> Result<(), Refused> {
        let back = Back::of(headers)?;
        let (L4::Tcp { flags, header_len, .. }, Some(ip)) = (headers.l4, headers.ip()) else {
            return Err(Refused::Malformed);
        };
        let from = usize::from(ip.at);
        if !is_host(ip.src) || !is_host(ip.dst) || ip.src == ip.dst {
            return Err(Refused::Malformed);
        }
        let packet = frame.get(from..from + ip.len as usize).ok_or(Refused::Malformed)?;
        let packet = if flags & SYN == 0 {
            Cow::Borrowed(packet)
        } else {
            let segment = usize::from(headers.l4_at).saturating_sub(from);
            Cow::Owned(tamed(packet, segment, header_len.into()))
        };
        let at = |all: &[Connection]| all.iter().position(|its| its.back() == back);
        let mut known = self.guests.get(&number).and_then(|all| at(all));
        if known.is_none() {
            if flags & (SYN | ACK | RST) != SYN {
                let frames = Connection::refuse(back, guest.mtu, &packet, now);
                results.frames.extend(frames.into_iter().map(|frame| (number, frame)));
                return Ok(());
            }
            self.make_room(number)?;
            self.last += 1;
            let own = self.guests.entry(number).or_default();
            own.push(Connection::new(self.last, back, guest.mtu, now, talk(back)));
            known = own.len().checked_sub(1);
        }
        if let Some((all, at)) = self.guests.get_mut(&number).zip(known) {
            all[at].take(&packet, now).into_results(number, results);
            if all[at].is_over(now) {
                all.swap_remove(at);
            }
        }
        Ok(())
    }

    /// Makes room for a connection of a guest's interface. If all are too many, one of the interface that has most
    /// goes, while that is more than this one has; otherwise its own oldest that is half open.
    fn make_room(&mut self, number: u16) -> Result<(), Refused> {
        let all: usize = self.guests.values().map(Vec::len).sum();
        let has = self.guests.get(&number).map_or(0, Vec::len);
        if has < MOST && all < MOST_OF_ALL {
            return Ok(());
        }
        let richest = self.guests.values_mut().max_by_key(|its| its.len());
        if let Some(its) = richest.filter(|its| has < MOST && its.len() > has + 1) {
            _ = remove(its, Connection::is_half_open) || remove(its, |_| true);
            return Ok(());
        }
        let own = self.guests.get_mut(&number);
        let is_removed = own.is_some_and(|own| remove(own, Connection::is_half_open));
        if is_removed { Ok(()) } else { Err(Refused::TooMany) }
    }

    /// Makes room for an answer of `len` bytes to a guest's interface. If all answers are too long, the longest goes of
    /// the interface that has most, with its connection, while that is more than this one has. Returns whether there is
    /// room.
    fn hold(&mut self, number: u16, len: usize, results: &mut Results) -> bool {
        let held = |all: &[Connection]| all.iter().map(Connection::held).sum::<usize>();
        let own = self.guests.get(&number).map_or(0, |all| held(all)) + len;
        loop {
            let mut room = HELD;
            let mut richest = (own, None);
            for (number, all) in &mut self.guests {
                let has = held(all);
                room = room.saturating_sub(has);
                if has > richest.0 {
                    richest = (has, Some((*number, all)));
                }
            }
            match richest {
                _ if len <= room => return true,
                (_, None) => return false,
                (_, Some((number, all))) => {
                    results.outcomes.push((number, Err(Refused::TooMany)));
                    let longest = all.iter().enumerate().max_by_key(|(_, its)| its.held());
                    longest.map(|(at, _)| at).into_iter().for_each(|at| drop(all.swap_remove(at)));
                }
            }
        }
    }

    /// Hands the answer to a question over, if the connection is still there; returns whether it is. If there is no
    /// room for it, the client is told that there is none.
    pub(crate) fn deliver(
        &mut self,
        (number, connection): (u16, u64),
        message: &[u8],
        now: Duration,
        results: &mut Results,
    ) -> bool {
        let is_there = |all: &Vec<Connection>| all.iter().any(|its| its.number() == connection);
        if !self.guests.get(&number).is_some_and(is_there) {
            return false;
        }
        let message = if self.hold(number, message.len(), results) {
            message
        } else {
            results.outcomes.push((number, Err(Refused::TooMany)));
            &[]
        };
        let all = self.guests.get_mut(&number);
        let its = all.and_then(|all| all.iter_mut().find(|its| its.number() == connection));
        its.map(|its| its.deliver(message, now).into_results(number, results)).is_some()
    }

    /// Sends again what got lost, and ends what takes too long.
    pub(crate) fn tick(&mut self, now: Duration, results: &mut Results) {
        for (number, all) in &mut self.guests {
            all.retain_mut(|its| {
                its.tick(now).into_results(*number, results);
                !its.is_over(now)
            });
        }
        self.guests.retain(|_, all| !all.is_empty());
    }

    /// Forgets the connections of interfaces for which this does not hold.
    pub(crate) fn keep(&mut self, holds: impl Fn(u16) -> bool) {
        self.guests.retain(|number, _| holds(*number));
    }

    /// Goes on by this plan: an old one is not kept for the sake of a connection.
    pub(crate) fn follow(&mut self, plan: &Arc<Plan>) {
        self.guests.values_mut().flatten().for_each(|its| its.follow(plan));
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn of(&self, number: u16) -> usize {
        self.guests.get(&number).map_or(0, Vec::len)
    }
}

/// Removes the oldest connection for which this holds; returns whether there was one.
fn remove(all: &mut Vec<Connection>, holds: impl Fn(&Connection) -> bool) -> bool {
    let those = all.iter().enumerate().filter(|(_, its)| holds(its));
    let oldest = those.min_by_key(|(_, its)| its.since()).map(|(at, _)| at);
    oldest.map(|at| drop(all.swap_remove(at))).is_some()
}

/// Returns whether an address may be one host's. The stack does not look at each of them, and ends the process if it is
/// to answer to some.
fn is_host(addr: IpAddr) -> bool {
    let is_broadcast = matches!(addr, IpAddr::V4(v4) if v4.is_broadcast());
    !(addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || is_broadcast)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
