//! The messages of Linux's active side go to our passive side, and the reverse: the answers are of the same kinds.

use super::hosts::{CLIENT, Host, parameters};
use packet::roce::cm::{self, Ids, Mad, Message};
use packet::{Headers, roce};
use rdma::cm::{EventKind, Outgoing, Transport};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

const NOW: Duration = Duration::ZERO;
const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

/// Returns the messages of a capture, with their senders.
fn messages(capture: &str) -> Vec<(IpAddr, Mad)> {
    let (_, frames) = crate::recordings::roce().into_iter().find(|(name, _)| name == capture).unwrap();
    let message = |frame: &Vec<u8>| {
        let source = Headers::ethernet(frame, 0, frame.len()).unwrap().ip().unwrap().src;
        let (packet, at) = crate::recordings::ip_packet(frame);
        let datagram = roce::parse(&packet[at..]).unwrap();
        let is_management = datagram.bth.destination == cm::QUEUE_PAIR;
        is_management.then(|| (source, cm::parse(datagram.payload).unwrap()))
    };
    frames.iter().filter_map(message).collect()
}

/// A replay of a capture. One side is ours, the other is Linux as captured. Our names and transactions replace those in
/// the capture.
struct Replay {
    ours: Host,
    linux: IpAddr,
    /// Our names, by those of the captured machine; and our transactions.
    names: BTreeMap<u32, u32>,
    transactions: BTreeMap<u64, u64>,
    /// Our identifiers, by the captured machine's names.
    ids: BTreeMap<u32, u32>,
}

impl Replay {
    fn receive(&mut self, mad: &Mad) {
        let mut mad = *mad;
        mad.transaction = self.transactions.get(&mad.transaction).copied().unwrap_or(mad.transaction);
        let name = |name: u32| self.names.get(&name).copied().unwrap_or(name);
        match &mut mad.message {
            Message::Mra { ids, .. }
            | Message::Rtu { ids, .. }
            | Message::Dreq { ids, .. }
            | Message::Drep { ids, .. } => ids.remote = name(ids.remote),
            Message::Rep(rep) => rep.ids.remote = name(rep.ids.remote),
            Message::SidrRep(rep) => rep.request = name(rep.request),
            _ => {}
        }
        self.ours.manager.receive(NOW, self.linux, self.ours.address, &cm::write(&mad));
    }

    /// Checks that our side sends the same kind of message as the captured machine, with the same fields except its own
    /// names.
    fn sends(&mut self, captured: &Mad) {
        let sent = self.ours.manager.next_datagram().unwrap_or_else(|| panic!("nothing, for {captured:?}"));
        let Outgoing { source, destination, mad } = sent;
        assert_eq!((source, destination), (self.ours.address, self.linux));
        let ours = cm::parse(&mad).unwrap();
        if let (Some(own), Some(theirs)) = (own_name(&ours.message), own_name(&captured.message)) {
            self.names.insert(theirs, own);
        }
        self.transactions.insert(captured.transaction, ours.transaction);
        assert_eq!(shape(&ours.message), shape(&captured.message));
    }

    fn event(&mut self, kind: EventKind) -> u32 {
        let event = self.ours.event();
        assert_eq!(event.kind, kind);
        event.id
    }
}

fn own_name(message: &Message) -> Option<u32> {
    match message {
        Message::Req(req) => Some(req.local),
        Message::Rep(rep) => Some(rep.ids.local),
        Message::SidrReq { request, .. } => Some(*request),
        _ => None,
    }
}

/// Clears the fields of a message that each side chooses: names, random numbers, adapters, flow labels, ports.
fn shape(message: &Message) -> Message {
    let mut message = *message;
    let nameless = Ids::default();
    match &mut message {
        Message::Req(req) => {
            (req.local, req.guid, req.psn, req.queue_pair) = (0, 0, 0, 0);
            (req.flow_label, req.rate, req.ack_timeout) = (0, 0, 0);
            (req.private[2], req.private[3]) = (0, 0);
        }
        Message::Rep(rep) => {
            (rep.ids, rep.guid, rep.psn, rep.queue_pair, rep.ack_delay) = (nameless, 0, 0, 0, 0);
            rep.failover = 0;
        }
        Message::Rtu { ids, .. } | Message::Drep { ids, .. } => *ids = nameless,
        Message::Dreq { ids, queue_pair, .. } => (*ids, *queue_pair) = (nameless, 0),
        Message::SidrReq { request, private, .. } => {
            *request = 0;
            (private[2], private[3]) = (0, 0);
        }
        Message::SidrRep(rep) => (rep.request, rep.queue_pair) = (0, 0),
        _ => {}
    }
    message
}

/// Replays a capture with our side in place of A or B.
fn replay(capture: &str, ours_is_active: bool) -> usize {
    let (ours, linux) = if ours_is_active { (A, B) } else { (B, A) };
    let mut replay = Replay {
        ours: Host::new(ours),
        linux: linux.parse().unwrap(),
        names: BTreeMap::new(),
        transactions: BTreeMap::new(),
        ids: BTreeMap::new(),
    };
    let messages = messages(capture);
    let (transport, service) = match messages[0].1.message {
        Message::SidrReq { service, .. } => (Transport::Datagram, service),
        Message::Req(req) => (Transport::Reliable, req.service),
        other => panic!("{other:?}"),
    };
    if !ours_is_active {
        replay.ours.listen(&format!("0.0.0.0:{}", service as u16), transport);
    }
    for (source, mad) in &messages {
        if *source == replay.ours.address {
            act(&mut replay, mad);
            replay.sends(mad);
        } else {
            replay.receive(mad);
        }
    }
    replay.ours.take_events();
    assert!(replay.ours.sent().is_empty());
    let ended = replay.ours.events.iter().filter(|event| event.kind == EventKind::Disconnected).count();
    let requests = messages.iter().filter(|(_, mad)| matches!(mad.message, Message::Req(_))).count();
    assert_eq!(ended, requests, "{:?}", replay.ours.events);
    messages.len()
}

/// Makes the calls of our program that let our side send the captured message.
fn act(replay: &mut Replay, mad: &Mad) {
    match &mad.message {
        Message::Req(req) => {
            let to = format!("{}:{}", replay.linux, req.service as u16).parse().unwrap();
            let id = replay.ours.resolved(to, Transport::Reliable);
            let mut wanted = parameters(req.queue_pair, &req.private[36..]);
            (wanted.responder_resources, wanted.initiator_depth) =
                (req.responder_resources, req.initiator_depth);
            (wanted.retries, wanted.rnr_retries) = (req.retries, req.rnr_retries);
            replay.ours.manager.connect(NOW, CLIENT, id, &wanted).unwrap();
            replay.ids.insert(req.local, id);
        }
        Message::Rep(rep) => {
            let id = replay.event(EventKind::ConnectRequest);
            let mut wanted = parameters(rep.queue_pair, &rep.private);
            (wanted.responder_resources, wanted.initiator_depth) =
                (rep.responder_resources, rep.initiator_depth);
            wanted.rnr_retries = rep.rnr_retries;
            replay.ours.manager.accept(NOW, CLIENT, id, &wanted).unwrap();
            replay.ids.insert(rep.ids.local, id);
        }
        Message::Rtu { ids, .. } => {
            let id = replay.event(EventKind::ConnectResponse);
            assert_eq!(replay.ids[&ids.local], id);
            replay.ours.manager.establish(CLIENT, id).unwrap();
        }
        Message::Dreq { ids, .. } => {
            replay.ours.manager.disconnect(NOW, CLIENT, replay.ids[&ids.local]).unwrap();
        }
        // Our side answers this by itself.
        Message::Drep { .. } => {}
        Message::SidrReq { service, private, .. } => {
            let to = format!("{}:{}", replay.linux, *service as u16).parse().unwrap();
            let id = replay.ours.resolved(to, Transport::Datagram);
            replay.ours.manager.connect(NOW, CLIENT, id, &parameters(1, &private[36..])).unwrap();
        }
        Message::SidrRep(rep) => {
            let id = replay.event(EventKind::ConnectRequest);
            replay.ours.manager.accept(NOW, CLIENT, id, &parameters(rep.queue_pair, &rep.private)).unwrap();
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn linux_connects_to_us() {
    assert_eq!(replay("cm-rping", false), 5);
    assert_eq!(replay("cm-ucmatose", false), 10);
    assert_eq!(replay("cm-udaddy-sidr", false), 2);
}

#[test]
fn we_connect_to_linux() {
    assert_eq!(replay("cm-rping", true), 5);
    assert_eq!(replay("cm-ucmatose", true), 10);
    assert_eq!(replay("cm-udaddy-sidr", true), 2);
}
