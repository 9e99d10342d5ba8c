//! Managers with one program each, and the wire between them.

use rdma::Mtu;
use rdma::cm::{
    Client, Config, Event, EventKind, Limits, Manager, Outgoing, Parameters, PortSpace, Transport,
};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

pub const CLIENT: Client = Client(1);

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn config() -> Config {
    let limits = Limits { channels: 8, ids: 64, requests: 16, backlog: 8 };
    Config { guid: 7, mtu: Mtu::Bytes1024, max_reads: 16, ack_timeout: 17, limits }
}

pub type Random = Box<dyn FnMut() -> u64 + Send>;

/// Returns numbers that look random.
pub fn random(seed: u64) -> Random {
    let mut state = seed;
    Box::new(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 31
    })
}

/// A guest with one program that has one channel.
pub struct Host {
    pub manager: Manager,
    pub address: IpAddr,
    pub channel: u32,
    pub events: VecDeque<Event>,
}

impl Host {
    pub fn new(address: &str) -> Self {
        Self::seeded(address, 0)
    }

    /// Creates a host whose random numbers depend on its address and this seed.
    pub fn seeded(address: &str, seed: u64) -> Self {
        Self::with(address, config(), |last| random(seed + last))
    }

    pub fn limited(address: &str, limits: Limits) -> Self {
        Self::with(address, Config { limits, ..config() }, random)
    }

    /// Creates a host whose random numbers depend on the last part of its address.
    pub fn with(address: &str, config: Config, random: impl FnOnce(u64) -> Random) -> Self {
        let address = ip(address);
        let IpAddr::V4(v4) = address else { panic!("IPv4, please") };
        let last = v4.octets()[3];
        let gids = vec![
            Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last.into()),
            v4.to_ipv6_mapped(),
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()),
        ];
        let mut manager = Manager::new(config, gids, random(last.into()));
        let channel = manager.create_channel(CLIENT).unwrap();
        Self { manager, address, channel, events: VecDeque::new() }
    }

    pub fn id(&mut self, transport: Transport) -> u32 {
        let space = if transport == Transport::Datagram { PortSpace::Udp } else { PortSpace::Tcp };
        self.manager.create_id(CLIENT, self.channel, space, transport).unwrap()
    }

    pub fn listen(&mut self, address: &str, transport: Transport) -> u32 {
        let id = self.id(transport);
        self.manager.bind_addr(CLIENT, id, address.parse().unwrap()).unwrap();
        self.manager.listen(CLIENT, id, 0).unwrap();
        id
    }

    /// Creates an identifier that is ready to connect.
    pub fn resolved(&mut self, to: SocketAddr, transport: Transport) -> u32 {
        let id = self.id(transport);
        self.manager.resolve_addr(CLIENT, id, None, to, |_, _| true).unwrap();
        let resolved = self.event();
        assert_eq!(resolved.kind, EventKind::AddrResolved);
        assert_eq!(resolved.route.unwrap().peer, to);
        self.manager.resolve_route(CLIENT, id).unwrap();
        assert_eq!(self.event().kind, EventKind::RouteResolved);
        id
    }

    pub fn connect(&mut self, now: Duration, to: SocketAddr, queue_pair: u32) -> u32 {
        let id = self.resolved(to, Transport::Reliable);
        self.manager.connect(now, CLIENT, id, &parameters(queue_pair, b"hello")).unwrap();
        id
    }

    pub fn take_events(&mut self) {
        self.manager.deliver(|event| {
            self.events.push_back(event.clone());
            true
        });
    }

    pub fn event(&mut self) -> Event {
        self.take_events();
        self.events.pop_front().expect("an event")
    }

    pub fn no_event(&mut self) {
        self.take_events();
        assert_eq!(self.events, []);
    }

    pub fn sent(&mut self) -> Vec<Outgoing> {
        std::iter::from_fn(|| self.manager.next_datagram()).collect()
    }
}

pub fn parameters(queue_pair: u32, private: &[u8]) -> Parameters {
    Parameters {
        queue_pair,
        responder_resources: 4,
        initiator_depth: 3,
        private: private.to_vec(),
        ..Parameters::default()
    }
}

pub fn carry(now: Duration, a: &mut Host, b: &mut Host) {
    loop {
        let (from_a, from_b) = (a.sent(), b.sent());
        if from_a.is_empty() && from_b.is_empty() {
            return;
        }
        for Outgoing { source, destination, mad } in from_a.into_iter().chain(from_b) {
            for host in [&mut *a, &mut *b] {
                if host.address == destination {
                    host.manager.receive(now, source, destination, &mad);
                }
            }
        }
    }
}

/// Creates two hosts with a listener on the second; returns them with its identifier and address.
pub fn hosts() -> (Host, Host, u32, SocketAddr) {
    let (a, mut b) = (Host::new("10.0.0.1"), Host::new("10.0.0.2"));
    let listener = b.listen("0.0.0.0:7174", Transport::Reliable);
    let to = SocketAddr::new(b.address, 7174);
    (a, b, listener, to)
}

/// Connects the hosts; returns the identifiers of both ends.
pub fn connected(a: &mut Host, b: &mut Host, to: SocketAddr) -> (u32, u32) {
    let now = Duration::ZERO;
    let active = a.connect(now, to, 17);
    carry(now, a, b);
    let request = b.event();
    assert_eq!(request.kind, EventKind::ConnectRequest);
    b.manager.accept(now, CLIENT, request.id, &parameters(18, b"welcome")).unwrap();
    carry(now, a, b);
    assert_eq!(a.event().kind, EventKind::ConnectResponse);
    a.manager.establish(CLIENT, active).unwrap();
    carry(now, a, b);
    assert_eq!(b.event().kind, EventKind::Established);
    (active, request.id)
}
