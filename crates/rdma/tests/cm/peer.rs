//! An identifier at any stage of its life, and a peer that makes its own messages.

use super::hosts::{CLIENT, Host, ip, parameters};
use packet::roce::cm::{self, Ids, Mad, Message, Rej, Rep, Req, SidrRep};
use rdma::cm::{IpHeader, Transport};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The peer's name for the conversation, and its queue pair.
pub const NAME: u32 = 0x0101_0101;
pub const THEIRS: u32 = 0x77;
/// The identifier's queue pair.
pub const OURS: u32 = 0x17;
const PORT: u16 = 7174;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    ReqSent,
    RepReceived,
    /// We established the connection.
    Active,
    ReqReceived,
    RepSent,
    /// The peer established the connection.
    Passive,
    DreqSent,
    TimeWait,
    Ended,
    Rejected,
    /// We rejected the peer.
    Refused,
    Withdrawn,
    SidrReqSent,
    SidrReqReceived,
    SidrFound,
    SidrAnswered,
    SidrRefused,
}

use Stage::{
    Active, AddressResolved, Bound, DreqSent, Ended, Idle, Listening, Passive, Refused, Rejected,
    RepReceived, RepSent, ReqReceived, ReqSent, RouteResolved, SidrAnswered, SidrFound, SidrRefused,
    SidrReqReceived, SidrReqSent, TimeWait, Withdrawn,
};

pub const STAGES: [Stage; 22] = [
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    ReqSent,
    RepReceived,
    Active,
    ReqReceived,
    RepSent,
    Passive,
    DreqSent,
    TimeWait,
    Ended,
    Rejected,
    Refused,
    Withdrawn,
    SidrReqSent,
    SidrReqReceived,
    SidrFound,
    SidrAnswered,
    SidrRefused,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Req,
    Mra(u8),
    Rej,
    Rep,
    Rtu,
    Dreq,
    Drep,
    SidrReq,
    SidrRep(u8),
}

pub struct Talk {
    pub host: Host,
    pub id: u32,
    /// The host's name for the conversation, if the peer knows it.
    pub name: u32,
    pub transaction: u64,
    pub now: Duration,
    pub from: IpAddr,
    pub to: IpAddr,
}

impl Talk {
    /// Adds listeners for connections and datagrams to a host.
    pub fn new(mut host: Host) -> Self {
        host.listen("0.0.0.0:7174", Transport::Datagram);
        let id = host.listen("0.0.0.0:7174", Transport::Reliable);
        let (from, to) = (ip("10.0.0.1"), host.address);
        Self { host, id, name: 0, transaction: 0x55, now: Duration::ZERO, from, to }
    }

    pub fn at(stage: Stage) -> Self {
        let mut talk = Self::before(stage);
        let (now, id) = (talk.now, talk.id);
        let (peer, manager) = (SocketAddr::new(talk.from, PORT), &mut talk.host.manager);
        match stage {
            Idle => talk.id = talk.host.id(Transport::Reliable),
            Bound => drop(manager.bind_addr(CLIENT, id, "10.0.0.2:5".parse().unwrap()).unwrap()),
            AddressResolved => manager.resolve_addr(CLIENT, id, None, peer, |_, _| true).unwrap(),
            RouteResolved => manager.resolve_route(CLIENT, id).unwrap(),
            Listening => {}
            ReqSent => manager.connect(now, CLIENT, id, &parameters(OURS, b"hello")).unwrap(),
            RepReceived => drop(talk.tell(Kind::Rep)),
            Active => manager.establish(CLIENT, id).unwrap(),
            ReqReceived => {
                talk.tell(Kind::Req);
                talk.id = talk.host.events.pop_back().unwrap().id;
                // The answer to the second one carries the host's name.
                talk.hear(talk.from, talk.to, talk.transaction, talk.message(Kind::Req));
            }
            RepSent => manager.accept(now, CLIENT, id, &parameters(OURS, b"welcome")).unwrap(),
            Passive => drop(talk.tell(Kind::Rtu)),
            DreqSent => manager.disconnect(now, CLIENT, id).unwrap(),
            TimeWait => drop(talk.tell(Kind::Drep)),
            Ended => {
                talk.now += Duration::from_secs(3600);
                talk.host.manager.poll(talk.now);
            }
            Rejected | Withdrawn => drop(talk.tell(Kind::Rej)),
            Refused => manager.reject(CLIENT, id, 0, b"no").unwrap(),
            SidrReqSent => {
                talk.id = talk.host.resolved(peer, Transport::Datagram);
                talk.host.manager.connect(now, CLIENT, talk.id, &parameters(OURS, b"")).unwrap();
            }
            SidrReqReceived => {
                talk.tell(Kind::SidrReq);
                talk.id = talk.host.events.pop_back().unwrap().id;
            }
            SidrFound => drop(talk.tell(Kind::SidrRep(0))),
            SidrAnswered => manager.accept(now, CLIENT, id, &parameters(OURS, b"here")).unwrap(),
            SidrRefused => manager.reject(CLIENT, id, 0, b"").unwrap(),
        }
        talk.host.take_events();
        talk.host.events.clear();
        talk.said();
        talk
    }

    fn before(stage: Stage) -> Self {
        match stage {
            Idle | Listening | ReqReceived | SidrReqSent | SidrReqReceived => {
                Self::new(Host::new("10.0.0.2"))
            }
            Bound => Self::at(Idle),
            AddressResolved => Self::at(Bound),
            RouteResolved => Self::at(AddressResolved),
            ReqSent => Self::at(RouteResolved),
            RepReceived | Rejected => Self::at(ReqSent),
            Active => Self::at(RepReceived),
            RepSent | Refused | Withdrawn => Self::at(ReqReceived),
            Passive => Self::at(RepSent),
            DreqSent => Self::at(Active),
            TimeWait => Self::at(DreqSent),
            Ended => Self::at(TimeWait),
            SidrFound => Self::at(SidrReqSent),
            SidrAnswered | SidrRefused => Self::at(SidrReqReceived),
        }
    }

    pub fn message(&self, kind: Kind) -> Message {
        let ids = Ids { local: NAME, remote: self.name };
        match kind {
            Kind::Req => Message::Req(self.req()),
            Kind::Mra(which) => Message::Mra { ids, which, timeout: 21, private: [0; 222] },
            Kind::Rej => {
                let (reason, info, private) = (28, [0; 72], [0; 148]);
                Message::Rej(Rej { ids, which: 2, reason, info_len: 0, info, private })
            }
            Kind::Rep => Message::Rep(self.rep()),
            Kind::Rtu => Message::Rtu { ids, private: [0; 224] },
            Kind::Dreq => Message::Dreq { ids, queue_pair: OURS, private: [0; 220] },
            Kind::Drep => Message::Drep { ids, private: [0; 224] },
            Kind::SidrReq => {
                let mut private = [0; 216];
                private[..36].copy_from_slice(&self.header());
                let service = 0x0111 << 16 | u64::from(PORT);
                Message::SidrReq { request: NAME, partition: 0xffff, service, private }
            }
            Kind::SidrRep(status) => Message::SidrRep(SidrRep {
                request: self.name,
                status,
                info_len: 0,
                queue_pair: THEIRS,
                service: 0x0111 << 16 | u64::from(PORT),
                queue_key: 0x0123_4567,
                info: [0; 72],
                private: [0; 136],
            }),
        }
    }

    fn header(&self) -> [u8; 36] {
        IpHeader { source_port: 99, source: self.from, destination: self.to }.to_bytes()
    }

    pub fn req(&self) -> Req {
        let mut private = [0; 92];
        private[..36].copy_from_slice(&self.header());
        Req {
            local: NAME,
            service: 0x0106 << 16 | u64::from(PORT),
            guid: 9,
            queue_key: 0,
            queue_pair: THEIRS,
            responder_resources: 5,
            initiator_depth: 6,
            remote_timeout: 20,
            transport: 0,
            flow_control: true,
            psn: 0x00ab_cdef,
            local_timeout: 20,
            retries: 3,
            partition: 0xffff,
            mtu: 2,
            rdc: false,
            rnr_retries: 4,
            cm_retries: 15,
            shared_receives: true,
            lids: [0xffff; 2],
            gids: [self.from, self.to].map(gid),
            flow_label: 0,
            rate: 3,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
            subnet_local: false,
            ack_timeout: 11,
            private,
        }
    }

    pub fn rep(&self) -> Rep {
        Rep {
            ids: Ids { local: NAME, remote: self.name },
            queue_key: 0,
            queue_pair: THEIRS,
            psn: 0x00ab_cdef,
            responder_resources: 5,
            initiator_depth: 6,
            ack_delay: 15,
            failover: 1,
            flow_control: true,
            rnr_retries: 4,
            shared_receives: true,
            guid: 9,
            private: [0; 196],
        }
    }

    /// Sends a correct message of the peer. Returns its effect.
    pub fn tell(&mut self, kind: Kind) -> String {
        self.hear(self.from, self.to, self.transaction, self.message(kind))
    }

    /// Sends a message to the host and returns its effect: the messages that the host sends, a REJ or MRA with the
    /// message it is about and the reason or status; the events with their status; and whether the host waits
    /// longer than before.
    pub fn hear(&mut self, from: IpAddr, to: IpAddr, transaction: u64, message: Message) -> String {
        let before = self.host.manager.poll(self.now);
        let mad = Mad { transaction, message };
        self.host.manager.receive(self.now, from, to, &cm::write(&mad));
        let mut all = Vec::new();
        for (source, destination, answer) in self.messages() {
            assert_eq!((source, destination), (to, from), "{answer:?}");
            let is_new = matches!(answer.message, Message::Dreq { .. });
            assert!(is_new || answer.transaction == transaction, "{answer:?}");
            all.push(word(&answer.message));
        }
        self.host.take_events();
        all.extend(self.host.events.iter().map(|event| format!("{:?}:{}", event.kind, event.status)));
        let after = self.host.manager.poll(self.now);
        if before.is_some() && after > before {
            all.push("later".to_owned());
        }
        all.join(" ")
    }

    /// Returns a word for each message that the host has sent.
    pub fn said(&mut self) -> String {
        let words: Vec<_> = self.messages().iter().map(|(.., mad)| word(&mad.message)).collect();
        words.join(" ")
    }

    /// Returns the messages that the host has sent. The peer learns the host's names from them.
    pub fn messages(&mut self) -> Vec<(IpAddr, IpAddr, Mad)> {
        let read = |sent: rdma::cm::Outgoing| (sent.source, sent.destination, cm::parse(&sent.mad).unwrap());
        let all: Vec<_> = self.host.sent().into_iter().map(read).collect();
        for (.., mad) in &all {
            let name = match mad.message {
                Message::Req(Req { local, .. }) => local,
                Message::SidrReq { request, .. } => request,
                Message::Rep(Rep { ids, .. }) | Message::Dreq { ids, .. } | Message::Mra { ids, .. } => {
                    ids.local
                }
                _ => continue,
            };
            (self.name, self.transaction) = (name, mad.transaction);
        }
        all
    }

    /// Returns the identifier's state, as displayed.
    pub fn state(&self) -> &'static str {
        let mut all = self.host.manager.describe();
        all.find(|(_, it)| it.id == self.id).map_or("gone", |(_, it)| it.state)
    }
}

pub fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn word(message: &Message) -> String {
    match message {
        Message::Req(_) => "REQ".to_owned(),
        Message::Mra { which, .. } => format!("MRA{which}"),
        Message::Rej(rej) => format!("REJ{}:{}", rej.which, rej.reason),
        Message::Rep(_) => "REP".to_owned(),
        Message::Rtu { .. } => "RTU".to_owned(),
        Message::Dreq { .. } => "DREQ".to_owned(),
        Message::Drep { .. } => "DREP".to_owned(),
        Message::SidrReq { .. } => "SIDR_REQ".to_owned(),
        Message::SidrRep(rep) => format!("SIDR_REP:{}", rep.status),
    }
}
