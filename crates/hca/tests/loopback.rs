//! Only a guest itself reaches its listeners on loopback addresses.

use crate::common::{Host, IP, frame, frames, open, put, sealed, until};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::AsFd;
use uverbs::cm::{CmEvent, CmParameters, CmRequest};
use uverbs::{Connection, QpType, Refusal, Reply, Request, VERSION};

const TCP: u32 = 0x106;
const CONNECT_REQUEST: u32 = 4;
/// Offset of the datagram to queue pair 1, after an IPv4 header and UDP.
const BTH: usize = IP + 20 + 8;

/// A program that uses the connection manager, with an identifier.
struct Program {
    device: Connection,
    events: Connection,
    id: u32,
}

fn ask(device: &mut Connection, request: CmRequest, end: Option<&dyn AsFd>) -> Reply {
    let along: Vec<_> = end.iter().map(|end| end.as_fd().into()).collect();
    device.send(&Request::Cm(request), &along).unwrap();
    device.receive::<Result<Reply, Refusal>>().unwrap().0.unwrap()
}

impl Program {
    fn new(host: &Host, number: u8) -> Self {
        let kind = SocketType::SEQPACKET;
        let (events, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let mut device = open(&host.socket(number));
        ask(&mut device, CmRequest::Hello { version: VERSION }, None);
        let made = ask(&mut device, CmRequest::CreateChannel { tag: 0 }, Some(&theirs));
        let Reply::Handle(channel) = made else { panic!("{made:?}") };
        let wanted = CmRequest::CreateId { channel, port_space: TCP, qp_type: QpType::Rc };
        let Reply::Handle(id) = ask(&mut device, wanted, None) else { panic!() };
        Self { device, events: Connection::new(events), id }
    }

    fn order(&mut self, request: CmRequest) {
        ask(&mut self.device, request, None);
    }

    fn event(&mut self) -> CmEvent {
        self.events.receive().unwrap().0
    }

    /// Asks for a connection.
    fn connect(&mut self, to: &str, qp_num: u32) {
        let id = self.id;
        self.order(CmRequest::ResolveAddr { id, source: None, destination: to.parse().unwrap() });
        self.order(CmRequest::ResolveRoute { id });
        (0..2).for_each(|_| drop(self.event()));
        let parameters = CmParameters { qp_num, ..CmParameters::default() };
        self.order(CmRequest::Connect { id, parameters });
    }
}

/// Returns the request as the guest itself would have sent it, through 127.0.0.1.
fn forged(mut frame: Vec<u8>) -> Vec<u8> {
    let (own, others) = ([10, 1, 1, 1], [10, 1, 1, 2]);
    let places: Vec<usize> = (IP..frame.len() - 4).filter(|at| frame[*at..*at + 4] == others).collect();
    // In the IP header, among the GIDs, and in the private data's header, which also has the requested address.
    assert_eq!(places.len(), 3);
    for at in &places {
        frame[*at..*at + 4].copy_from_slice(&own);
    }
    for at in [places[2], places[2] + 16] {
        assert_eq!(frame[at..at + 4], own);
        frame[at..at + 4].copy_from_slice(&[127, 0, 0, 1]);
    }
    sealed(frame, |_| ())
}

#[test]
fn nobody_else_may_say_that_it_is_the_guest() {
    let (host, other) = (Host::new(), Host::new());
    let (here, mut port) = host.device_with_port(1, 1);
    let (_there, mut far_port) = other.device_with_port(2, 1);
    let mut server = Program::new(&host, 1);
    let id = server.id;
    server.order(CmRequest::BindAddr { id, address: "127.0.0.1:7".parse().unwrap() });
    server.order(CmRequest::Listen { id, backlog: 0 });
    let mut stranger = Program::new(&other, 2);
    stranger.connect("10.1.1.1:7", 17);
    let request = frame(&mut far_port);
    put(&mut port, &forged(request.clone()));
    put(&mut port, &request);
    // The second one gets the answer that nobody listens; the first one is ignored.
    let answer = frame(&mut port);
    assert_eq!((&answer[IP + 16..IP + 20], answer[BTH]), (&[10, 1, 1, 2][..], 0x64));
    let counted = |name| here.counters(&[]).into_iter().find(|(other, _)| *other == name).unwrap().1;
    assert_eq!((counted("rcvd_pkts_forged"), counted("rcvd_pkts_malformed")), (1, 0));
    // Without the key of queue pair 1, or without a message.
    for at in [BTH + 12, BTH + 12 + 8] {
        let mut wrong = request.clone();
        wrong[at] ^= 1;
        put(&mut port, &sealed(wrong, |_| ()));
    }
    until(|| (counted("qkey_violations"), counted("rcvd_pkts_malformed")) == (1, 1));
    let mut client = Program::new(&host, 1);
    client.connect("127.0.0.1:7", 18);
    let asked = server.event();
    let route = asked.route.unwrap();
    assert_eq!((asked.event, asked.connection.unwrap().qp_num), (CONNECT_REQUEST, 18));
    assert_eq!(route.own, Some([10, 1, 1, 1].into()));
    assert!(route.local.ip().is_loopback() && route.peer.ip().is_loopback());
    assert!(frames(&mut port).is_empty(), "what a guest says to itself does not leave it");
}
