//! A line: the reliable connection between the daemons of two devices, and how it comes to be.
//!
//! Each end offers a queue pair ([`Hello`]) until the other end has answered that very offer. So nobody who only claims
//! an address gets a line, or ends one.

use super::hello::Hello;
use super::work::{Wire, Work};
use super::{Ends, Freight, Load};
use crate::base::ids::Qpn;
use crate::base::random;
use crate::net::path::Path;
use packet::roce::{Datagram, RnrTimer};
use rdma::{Attributes, Mtu, QueuePair, SendOperation, SendRequest, State, With};
use std::time::Duration;

/// Messages of a line that are under way.
const POSTED: usize = 8;
/// Packets that a line sends in a turn.
const TURN: usize = 64;
/// The time until an offer is repeated for the first time, and at most.
const AGAIN: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(1);
/// The time after which nobody is believed to be there.
const PATIENCE: Duration = Duration::from_secs(4);

/// An offered queue pair.
#[derive(Clone, Copy, Debug)]
struct Offer {
    nonce: u64,
    qpn: Qpn,
    psn: u32,
    /// The other end's offer that was heard last.
    heard: u64,
    /// When it is repeated, and how long after that again.
    again: Duration,
    wait: Duration,
    ends: Duration,
}

/// A connected queue pair.
struct Live {
    qp: QueuePair,
    nonce: u64,
    peer: u64,
    qpn: Qpn,
    psn: u32,
    wire: Wire,
}

pub(super) struct Line {
    pub ends: Ends,
    offer: Option<Offer>,
    live: Option<Live>,
    /// The number by which the other daemon is known.
    boot: Option<u64>,
}

/// Everything that a line needs of its thread.
pub(super) struct Surroundings<'a> {
    pub work: Work<'a>,
    pub boot: u64,
    pub mtu: u8,
    pub now: Duration,
}

impl Surroundings<'_> {
    fn qpn(&self) -> Option<Qpn> {
        self.work.adapter.add_qp(self.work.inbox)
    }
}

fn number() -> u64 {
    (u64::from(random::number()) << 32 | u64::from(random::number())).max(1)
}

impl Line {
    pub const fn new(ends: Ends) -> Self {
        Self { ends, offer: None, live: None, boot: None }
    }

    pub const fn is_idle(&self) -> bool {
        self.live.is_none() && self.offer.is_none()
    }

    /// Returns whether a queue pair is this line's.
    pub fn has(&self, qpn: Qpn) -> bool {
        self.live.as_ref().is_some_and(|live| live.qpn == qpn)
    }

    /// Offers a queue pair, if there is neither one nor a connection.
    pub fn call(&mut self, around: &mut Surroundings<'_>) {
        if self.is_idle() && self.make_offer(around) {
            self.say(around, false);
        }
    }

    fn make_offer(&mut self, around: &Surroundings<'_>) -> bool {
        if self.offer.is_some() {
            return true;
        }
        let Some(qpn) = around.qpn() else { return false };
        let (nonce, psn, now) = (number(), random::number() & 0xff_ffff, around.now);
        let (again, ends) = (now + AGAIN, now + PATIENCE);
        self.offer = Some(Offer { nonce, qpn, psn, heard: 0, again, wait: AGAIN, ends });
        true
    }

    /// Sends what this end offers, or has connected.
    fn say(&self, around: &mut Surroundings<'_>, is_up: bool) {
        let (nonce, echo, qpn, psn) = match (&self.live, &self.offer) {
            (Some(live), _) if is_up => (live.nonce, live.peer, live.qpn, live.psn),
            (_, Some(offer)) => (offer.nonce, offer.heard, offer.qpn, offer.psn),
            _ => return,
        };
        let (boot, mtu) = (around.boot, around.mtu);
        let hello = Hello { boot, nonce, echo, qpn: qpn.0, psn, mtu, is_up };
        if let (Some(path), Some(bytes)) = (around.work.path(self.ends), hello.datagram()) {
            around.work.send(&path, qpn, qpn, &bytes);
        }
    }

    /// Handles what the other end offers. Returns whether the line is new.
    pub fn hear(&mut self, hello: &Hello, around: &mut Surroundings<'_>, freight: &mut dyn Freight) {
        if let Some(live) = self.live.as_ref().filter(|live| live.peer == hello.nonce) {
            if !hello.is_up && hello.echo == live.nonce {
                self.say(around, true);
            }
            return;
        }
        let answered = self.offer.filter(|offer| offer.nonce == hello.echo);
        if let Some(offer) = answered {
            self.connect(offer, hello, around, freight);
        } else if hello.echo == 0 && self.make_offer(around) {
            self.offer.iter_mut().for_each(|offer| offer.heard = hello.nonce);
            self.say(around, false);
        }
    }

    fn connect(
        &mut self,
        offer: Offer,
        hello: &Hello,
        around: &mut Surroundings<'_>,
        freight: &mut dyn Freight,
    ) {
        self.end(around, freight);
        let Some(path) = around.work.path(self.ends) else { return };
        let mtu = Mtu::from_code(around.mtu.min(hello.mtu)).unwrap_or(Mtu::Bytes256);
        let attributes = Attributes {
            reliable: true,
            mtu,
            partition: crate::base::limits::PARTITION,
            destination: hello.qpn,
            send_psn: offer.psn,
            receive_psn: hello.psn,
            // 67 ms.
            timeout: 14,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: RnrTimer::new(12),
            reads: 1,
            peer_reads: 1,
        };
        let mut qp = QueuePair::new(attributes);
        qp.ready_to_send(attributes);
        let is_same = self.boot.replace(hello.boot) == Some(hello.boot);
        let wire = Wire::new(self.ends, path, offer.qpn, Qpn(hello.qpn));
        let Offer { nonce, qpn, psn, .. } = offer;
        self.live = Some(Live { qp, nonce, peer: hello.nonce, qpn, psn, wire });
        self.offer = None;
        self.say(around, true);
        freight.up(self.ends, is_same);
    }

    /// Ends the connection.
    pub fn end(&mut self, around: &Surroundings<'_>, freight: &mut dyn Freight) {
        if let Some(live) = self.live.take() {
            around.work.adapter.remove_qp(live.qpn);
            freight.down(self.ends);
        }
    }

    /// Handles a packet of the connection.
    pub fn receive(
        &mut self,
        packet: &Datagram<'_>,
        around: &mut Surroundings<'_>,
        freight: &mut dyn Freight,
    ) {
        if let Some(live) = &mut self.live {
            let mut verbs = around.work.verbs(&mut live.wire, freight);
            live.qp.receive(packet, around.now, &mut verbs);
        }
    }

    /// Sends what there is. Returns when to come again.
    pub fn work(&mut self, around: &mut Surroundings<'_>, freight: &mut dyn Freight) -> Option<Duration> {
        let now = around.now;
        if let Some(offer) = self.offer.filter(|offer| now >= offer.again) {
            if now >= offer.ends {
                self.offer = None;
                around.work.adapter.remove_qp(offer.qpn);
                if self.live.is_none() {
                    freight.unreachable(self.ends);
                }
            } else {
                self.say(around, false);
                let wait = (offer.wait * 2).min(MOST);
                self.offer = Some(Offer { again: now + wait, wait, ..offer });
            }
        }
        let again = self.offer.map(|offer| offer.again);
        let Some(live) = &mut self.live else { return again };
        while live.wire.posted() < POSTED
            && let Some(load) = freight.next(self.ends)
        {
            let len = super::HEAD as u32 + load.len;
            let id = live.wire.post(load);
            let operation = SendOperation::Send(With::Nothing);
            let request = SendRequest { id, operation, len, signaled: true, solicited: false, fence: false };
            let mut verbs = around.work.verbs(&mut live.wire, freight);
            live.qp.post_send(request, &mut verbs);
        }
        let room = around.work.room().min(TURN);
        let next = match room {
            // The worker takes what is there meanwhile.
            0 => Some(now + Duration::from_micros(50)),
            _ => live.qp.poll(now, room, &mut around.work.verbs(&mut live.wire, freight)),
        };
        if live.qp.state() == State::Error || live.wire.is_broken() {
            self.end(around, freight);
            return Some(now);
        }
        next.into_iter().chain(again).min()
    }
}

/// Returns whether packets to a peer leave this host: others are carried by shared memory.
pub(super) const fn is_remote(path: &Path) -> bool {
    matches!(path.way, crate::net::path::Way::Wire)
}

impl Load {
    /// Copies bytes of the message.
    pub(super) fn copy(&self, offset: u32, to: &mut [u8]) {
        let offset = offset as usize;
        let in_head = self.head.get(offset..).unwrap_or_default();
        let first = in_head.len().min(to.len());
        to[..first].copy_from_slice(&in_head[..first]);
        if let (Some(cargo), rest @ [_, ..]) = (&self.cargo, &mut to[first..]) {
            cargo.read(self.from + (offset + first - super::HEAD) as u64, rest);
        }
    }
}
