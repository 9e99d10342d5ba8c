//! Queries for queue pairs of datagrams.

use super::hosts::{CLIENT, carry, hosts, parameters};
use rdma::cm::{DatagramDetails, EventKind, GRACE, Target, Transition, Transport, UDP_QUEUE_KEY};
use std::time::Duration;

const NOW: Duration = Duration::ZERO;

#[test]
fn a_queue_pair_is_found() {
    let (mut a, mut b, ..) = hosts();
    let listener = b.listen("10.0.0.2:7174", Transport::Datagram);
    let id = a.resolved("10.0.0.2:7174".parse().unwrap(), Transport::Datagram);
    let queue_key = UDP_QUEUE_KEY;
    let init = Transition::InitDatagram { queue_key };
    assert_eq!(a.manager.transition(CLIENT, id, Target::Init), Ok(init));
    a.manager.connect(NOW, CLIENT, id, &parameters(17, b"where?")).unwrap();
    carry(NOW, &mut a, &mut b);
    let request = b.event();
    assert_eq!((request.kind, request.listener), (EventKind::ConnectRequest, Some(listener)));
    assert_eq!((&request.private[..7], request.private.len()), (&b"where?\0"[..], 180));
    // The query is repeated meanwhile, and after the answer was lost.
    let next = a.manager.poll(NOW).unwrap();
    a.manager.poll(next);
    carry(next, &mut a, &mut b);
    b.no_event();
    b.manager.accept(NOW, CLIENT, request.id, &parameters(99, b"here")).unwrap();
    assert_eq!(b.sent().len(), 1);
    let next = a.manager.poll(next).unwrap();
    a.manager.poll(next);
    carry(next, &mut a, &mut b);
    let found = a.event();
    assert_eq!((found.kind, found.id, found.status), (EventKind::Established, id, 0));
    assert_eq!(found.datagram, Some(DatagramDetails { queue_pair: 99, queue_key }));
    assert_eq!((&found.private[..4], found.private.len()), (&b"here"[..], 136));
    b.no_event();
    assert_eq!((a.manager.poll(next), b.manager.poll(next)), (None, None));
}

#[test]
fn a_question_may_be_turned_down() {
    let (mut a, mut b, ..) = hosts();
    let to = "10.0.0.2:7174".parse().unwrap();
    // A listener for connections does not serve datagrams.
    let ask = |a: &mut super::hosts::Host| {
        let id = a.resolved(to, Transport::Datagram);
        a.manager.connect(NOW, CLIENT, id, &parameters(17, b"")).unwrap();
    };
    ask(&mut a);
    carry(NOW, &mut a, &mut b);
    b.manager.poll(NOW + GRACE);
    carry(NOW, &mut a, &mut b);
    let refused = a.event();
    assert_eq!((refused.kind, refused.status), (EventKind::Unreachable, 1));
    b.listen("[::]:7174", Transport::Datagram);
    ask(&mut a);
    carry(NOW, &mut a, &mut b);
    let request = b.event();
    b.manager.reject(CLIENT, request.id, 0, b"").unwrap();
    carry(NOW, &mut a, &mut b);
    assert_eq!(a.event().status, 2);
}
