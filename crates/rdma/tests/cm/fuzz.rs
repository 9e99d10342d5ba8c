//! Fuzz target: connection managers that receive anything from anybody, while programs use them.

use super::hosts::{CLIENT, Host, config, ip, parameters};
use crate::moves::Moves;
use proptest::collection::vec;
use proptest::prelude::*;
use rdma::cm::{EventKind, Outgoing, Transport};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// Largest number of moves of an input.
const MOVES: usize = 256;
/// Number of messages that are kept as patterns for others.
const KEPT: usize = 32;
/// Largest number of messages sent because of one that came in: an answer, and the end of a connection.
const ANSWERS: usize = 2;
/// Largest number of an identifier's events in its life, except those that a program requests one by one.
const EVENTS: usize = 8;

struct World {
    hosts: [Host; 2],
    /// Identifiers that programs know.
    ids: [Vec<u32>; 2],
    wire: VecDeque<Outgoing>,
    now: Duration,
}

impl World {
    fn new() -> Self {
        let hosts = ["10.0.0.1", "10.0.0.2"].map(Host::new);
        Self { hosts, ids: [Vec::new(), Vec::new()], wire: VecDeque::new(), now: Duration::ZERO }
    }

    fn any_id(&self, moves: &mut Moves<'_>, at: usize) -> u32 {
        let ids = &self.ids[at];
        if ids.is_empty() { moves.below(4) as u32 } else { ids[moves.below(ids.len())] }
    }

    /// Makes a program's call, perhaps out of turn.
    fn program(&mut self, moves: &mut Moves<'_>, at: usize) {
        let id = self.any_id(moves, at);
        let (now, to) = (self.now, SocketAddr::new(self.hosts[1 - at].address, 7174));
        let [itself, group] = ["127.0.0.1", "239.1.2.3"].map(|address| SocketAddr::new(ip(address), 7174));
        let transport = [Transport::Reliable, Transport::Unreliable, Transport::Datagram][moves.below(3)];
        let manager = &mut self.hosts[at].manager;
        match moves.below(13) {
            11 => drop(manager.join_multicast(CLIENT, id, group, 1)),
            0 | 1 => {
                let made = manager.create_id(CLIENT, self.hosts[at].channel, space(transport), transport);
                self.ids[at].extend(made);
            }
            2 => drop(manager.bind_addr(CLIENT, id, SocketAddr::new(ip("0.0.0.0"), 7174))),
            3 => drop(manager.listen(CLIENT, id, 0)),
            4 => {
                let to = [to, itself, group][moves.below(3)];
                let _ = manager.resolve_addr(CLIENT, id, None, to, |_, _| true);
            }
            5 => drop(manager.resolve_route(CLIENT, id)),
            6 => drop(manager.connect(now, CLIENT, id, &parameters(17, b"hello"))),
            7 => drop(manager.accept(now, CLIENT, id, &parameters(18, b"welcome"))),
            8 => drop(manager.reject(CLIENT, id, moves.byte().into(), b"no")),
            9 => drop(manager.establish(CLIENT, id)),
            10 => drop(manager.disconnect(now, CLIENT, id)),
            _ => {
                if manager.destroy_id(now, CLIENT, id).is_ok() {
                    self.ids[at].retain(|other| *other != id);
                }
            }
        }
    }

    /// Delivers a message: one that was sent, or a similar one, from its sender or somebody else.
    fn message(&mut self, moves: &mut Moves<'_>, at: usize) {
        let Some(mut message) = self.wire.pop_front() else { return };
        if moves.below(4) == 0 {
            self.wire.push_back(message.clone());
        }
        match moves.below(4) {
            0 => message.mad[17] = 0x10 | moves.byte() & 0xf,
            1 => {
                let place = [8, 17, 24, 28, 32][moves.below(5)] + moves.below(8);
                message.mad[place] ^= moves.byte();
            }
            _ => {}
        }
        if moves.below(8) == 0 {
            let names: [u8; 4] = message.mad[24..28].try_into().unwrap();
            message.mad.copy_within(28..32, 24);
            message.mad[28..32].copy_from_slice(&names);
        }
        let from = if moves.below(8) == 0 { ip("10.0.0.66") } else { message.source };
        let to = if moves.below(8) == 0 { self.hosts[at].address } else { message.destination };
        let mad = message.mad;
        self.hear(from, to, &mad);
    }

    fn hear(&mut self, from: std::net::IpAddr, to: std::net::IpAddr, bytes: &[u8]) {
        let Some(host) = self.hosts.iter_mut().find(|host| host.address == to) else { return };
        host.manager.receive(self.now, from, to, bytes);
        let sent = host.sent();
        assert!(sent.len() <= ANSWERS, "{} messages for one", sent.len());
        self.keep(sent);
    }

    fn keep(&mut self, sent: Vec<Outgoing>) {
        self.wire.extend(sent);
        self.wire.truncate(KEPT);
    }

    fn told(&mut self, at: usize) {
        self.hosts[at].take_events();
        let events = std::mem::take(&mut self.hosts[at].events);
        assert!(events.len() <= EVENTS * config().limits.ids, "{} events", events.len());
        let requests = events.iter().filter(|event| event.kind == EventKind::ConnectRequest);
        self.ids[at].extend(requests.map(|event| event.id));
    }

    fn check(&mut self) {
        for host in &mut self.hosts {
            assert!(host.manager.len() <= config().limits.ids);
        }
        let sent: Vec<_> = self.hosts.iter_mut().flat_map(Host::sent).collect();
        self.keep(sent);
    }
}

fn space(transport: Transport) -> rdma::cm::PortSpace {
    if transport == Transport::Datagram { rdma::cm::PortSpace::Udp } else { rdma::cm::PortSpace::Tcp }
}

/// Run a fuzzer with `cargo bolero test fuzz::two_hosts -p rdma`.
#[test]
fn two_hosts() {
    bolero::check!().for_each(|bytes: &[u8]| hostile(bytes));
}

proptest! {
    /// Without a fuzzer, inputs are short; these are long.
    #[test]
    fn at_random(bytes in vec(any::<u8>(), 0..4000)) {
        hostile(&bytes);
    }
}

fn hostile(bytes: &[u8]) {
    let (mut moves, mut world) = (Moves(bytes), World::new());
    // Without these identifiers, connections would hardly ever come about.
    let listener = world.hosts[1].listen("0.0.0.0:7174", Transport::Reliable);
    let to = SocketAddr::new(world.hosts[1].address, 7174);
    let active = world.hosts[0].connect(Duration::ZERO, to, 17);
    world.ids = [vec![active], vec![listener]];
    world.check();
    for _ in 0..MOVES {
        if moves.is_over() {
            break;
        }
        let at = moves.below(2);
        match moves.below(8) {
            0 | 1 => world.program(&mut moves, at),
            2..5 => world.message(&mut moves, at),
            5 => {
                let (from, to) = (world.hosts[1 - at].address, world.hosts[at].address);
                let bytes = [(); 256].map(|()| moves.byte());
                world.hear(from, to, &bytes[..]);
            }
            6 => world.told(at),
            _ => {
                world.now += Duration::from_micros(moves.word().into());
                let now = world.now;
                let next = world.hosts[at].manager.poll(now);
                assert!(next.is_none_or(|next| next > now), "it would spin");
            }
        }
        world.check();
    }
    // The programs end, and in time everything is removed.
    for host in &mut world.hosts {
        host.manager.remove_client(world.now, CLIENT);
        let mut now = world.now;
        while let Some(next) = host.manager.poll(now) {
            assert!(next > now);
            now = next;
        }
        assert!(host.manager.is_empty(), "{} are left", host.manager.len());
    }
}
