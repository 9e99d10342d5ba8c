//! One connection: its stack, and the talk on it.

use super::link::Link;
use super::{Question, Results, Talk};
use crate::frame::Back;
use crate::{Plan, Refused};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a client that wait to be read, and bytes to it that wait to be acknowledged.
const TO_READ: usize = 2048;
const TO_SEND: usize = 8192;
/// Most packets at a time.
const BURST: usize = 8;
/// Smallest and largest packets that are sent, bytes.
const MTU: [u16; 2] = [576, 1500];
/// How long a client has for the handshake, between two packets, and for all.
const HANDSHAKE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(10);
const LIFE: Duration = Duration::from_secs(60);

/// A TCP connection of a guest.
pub(super) struct Connection {
    number: u64,
    back: Back,
    mtu: usize,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    since: Duration,
    /// When the client's last packet came.
    heard: Duration,
    talk: Box<dyn Talk>,
}

/// The results of an event.
#[derive(Debug, Default)]
pub(super) struct Advance {
    frames: Vec<Vec<u8>>,
    questions: Vec<Question>,
    outcome: Option<Result<(), Refused>>,
}

impl Advance {
    /// Adds them to those of the interface with this number.
    pub(super) fn into_results(self, number: u16, results: &mut Results) {
        results.frames.extend(self.frames.into_iter().map(|frame| (number, frame)));
        let named = |question: Question| Question { from: (number, question.from.1), ..question };
        results.questions.extend(self.questions.into_iter().map(named));
        results.outcomes.extend(self.outcome.map(|outcome| (number, outcome)));
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, back, since, talk, .. } = self;
        write!(f, "Connection {{ {number}, {back:?}, {since:?}, {talk:?} }}")
    }
}

/// Returns the stack at the address that a client speaks to.
fn stack(back: Back, mtu: u16, now: Duration) -> (Interface, usize) {
    let mtu = usize::from(mtu.clamp(MTU[0], MTU[1]));
    let mut config = Config::new(HardwareAddress::Ip);
    // By a key of the kernel's random numbers: nobody guesses sequence numbers.
    config.random_seed = RandomState::new().hash_one(back.ports());
    let own = back.own();
    let mut interface = Interface::new(config, &mut Link { mtu, to: None, from: Vec::new() }, instant(now));
    let len = if own.is_ipv4() { 32 } else { 128 };
    interface.update_ip_addrs(|all| _ = all.push(IpCidr::new(IpAddress::from(own), len)));
    // The link has one other end.
    let routes = interface.routes_mut();
    _ = match own {
        IpAddr::V4(own) => routes.add_default_ipv4_route(own),
        IpAddr::V6(own) => routes.add_default_ipv6_route(own),
    };
    (interface, mtu)
}

fn instant(now: Duration) -> Instant {
    Instant::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

impl Connection {
    pub(super) fn new(number: u64, back: Back, mtu: u16, now: Duration, talk: Box<dyn Talk>) -> Self {
        let (interface, mtu) = stack(back, mtu, now);
        let mut socket =
            Socket::new(SocketBuffer::new(vec![0; TO_READ]), SocketBuffer::new(vec![0; TO_SEND]));
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        // It has no connection yet, and its own port is none but 0.
        _ = socket.listen((IpAddress::from(back.own()), back.ports().0));
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Self { number, back, mtu, interface, sockets, socket, since: now, heard: now, talk }
    }

    /// Returns the answer to a segment of no connection.
    pub(super) fn refuse(back: Back, mtu: u16, packet: &[u8], now: Duration) -> Vec<Vec<u8>> {
        let (mut interface, mtu) = stack(back, mtu, now);
        let mut link = Link { mtu, to: Some(packet), from: Vec::new() };
        interface.poll(instant(now), &mut link, &mut SocketSet::new(Vec::new()));
        framed(back, link.from)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn back(&self) -> Back {
        self.back
    }

    pub(super) fn since(&self) -> Duration {
        self.since
    }

    /// Returns the bytes of answers that wait for the client.
    pub(super) fn held(&self) -> usize {
        self.talk.held()
    }

    fn state(&self) -> State {
        self.sockets.get::<Socket<'_>>(self.socket).state()
    }

    pub(super) fn is_half_open(&self) -> bool {
        matches!(self.state(), State::Listen | State::SynReceived)
    }

    /// Returns whether the connection has ended.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        matches!(self.state(), State::Closed | State::Listen | State::TimeWait) || self.is_late(now)
    }

    fn is_late(&self, now: Duration) -> bool {
        let (life, silence) = (now.saturating_sub(self.since), now.saturating_sub(self.heard));
        life > LIFE || silence > SILENCE || self.is_half_open() && life > HANDSHAKE
    }

    /// Takes a packet of the client.
    pub(super) fn take(&mut self, packet: &[u8], now: Duration) -> Advance {
        self.heard = now;
        self.advance(Some(packet), now)
    }

    pub(super) fn follow(&mut self, plan: &Arc<Plan>) {
        self.talk.follow(plan);
    }

    /// Takes the answer to a question of the client.
    pub(super) fn deliver(&mut self, message: &[u8], now: Duration) -> Advance {
        self.talk.deliver(message);
        self.advance(None, now)
    }

    /// Sends what is due; if the client takes too long, that its connection ends.
    pub(super) fn tick(&mut self, now: Duration) -> Advance {
        if self.is_late(now) {
            self.sockets.get_mut::<Socket<'_>>(self.socket).abort();
        } else if self.interface.poll_at(instant(now), &self.sockets).is_none_or(|at| at > instant(now)) {
            return Advance::default();
        }
        self.advance(None, now)
    }

    fn advance(&mut self, packet: Option<&[u8]>, now: Duration) -> Advance {
        let mut link = Link { mtu: self.mtu, to: packet, from: Vec::new() };
        loop {
            let before = link.from.len();
            self.interface.poll(instant(now), &mut link, &mut self.sockets);
            let moved = self.converse(now);
            if !moved && link.from.len() == before || link.from.len() >= BURST {
                break;
            }
        }
        let question = |message| Question { from: (0, self.number), back: self.back, message };
        Advance {
            frames: framed(self.back, link.from),
            questions: self.talk.questions().into_iter().map(question).collect(),
            outcome: self.talk.outcome(),
        }
    }

    /// Carries bytes between the socket and the talk; returns whether there were some.
    fn converse(&mut self, now: Duration) -> bool {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.socket);
        let talk = &mut *self.talk;
        if !socket.may_send() {
            return false;
        }
        let fin = !socket.may_recv();
        let heard = socket.recv(|bytes| {
            let len = talk.hear(bytes, fin, now).min(bytes.len());
            (len, len)
        });
        if fin && heard.is_err() {
            talk.hear(&[], true, now);
        }
        let sent = socket.send_slice(talk.say()).unwrap_or(0);
        talk.said(sent);
        let ends = talk.is_over() && talk.say().is_empty();
        if ends {
            socket.close();
        }
        ends || sent > 0 || heard.is_ok_and(|len| len > 0)
    }
}

/// Returns frames to the client.
fn framed(back: Back, packets: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    packets.iter().filter_map(|packet| back.framed(packet).ok()).collect()
}
