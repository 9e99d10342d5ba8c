//! Requests without a listener.

use super::hosts::{CLIENT, Host};
use super::peer::{Kind, Talk};
use packet::roce::cm::{Message, Req};
use rdma::cm::{GRACE, Transport};
use std::time::Duration;

/// Creates a host without listeners, and sets the time of the first request.
fn alone() -> Talk {
    let mut talk = Talk::new(Host::new("10.0.0.2"));
    let ids: Vec<_> = talk.host.manager.describe().map(|(_, it)| it.id).collect();
    ids.into_iter().for_each(|id| talk.host.manager.destroy_id(talk.now, CLIENT, id).unwrap());
    talk.now = Duration::from_secs(7);
    talk
}

const MOMENT: Duration = Duration::from_nanos(1);

#[test]
fn it_is_refused_when_its_time_is_over() {
    for (kind, refusal) in [(Kind::Req, "REJ0:8"), (Kind::SidrReq, "SIDR_REP:1")] {
        let mut talk = alone();
        assert_eq!(talk.tell(kind), "");
        let first = talk.now + GRACE;
        talk.now += 10 * MOMENT;
        assert_eq!(talk.tell(kind), "");
        assert_eq!(talk.host.manager.poll(first - MOMENT), Some(first));
        assert_eq!(talk.said(), "");
        let second = first + 10 * MOMENT;
        assert_eq!((talk.host.manager.poll(first), talk.said().as_str()), (Some(second), refusal));
        assert_eq!((talk.host.manager.poll(second), talk.said().as_str()), (None, refusal));
    }
}

#[test]
fn it_is_served_by_who_listens_meanwhile() {
    for (kind, transport) in [(Kind::Req, Transport::Reliable), (Kind::SidrReq, Transport::Datagram)] {
        let mut talk = alone();
        assert_eq!(talk.tell(kind), "");
        let other = if kind == Kind::Req { Transport::Datagram } else { Transport::Reliable };
        talk.host.listen("0.0.0.0:7174", other);
        assert_eq!(talk.host.manager.poll(talk.now), Some(talk.now + GRACE), "it listens for something else");
        let listener = talk.host.listen("10.0.0.2:7174", transport);
        assert_eq!((talk.host.manager.poll(talk.now), talk.said().as_str()), (None, ""));
        assert_eq!(talk.host.event().listener, Some(listener));
    }
}

#[test]
fn a_service_of_no_port_space_is_not_waited_for() {
    for space in [0x0105, 0x0107, 0x0110, 0x0112, 0x013e, 0x0140] {
        let mut talk = alone();
        let req = Req { service: space << 16 | 7174, ..talk.req() };
        assert_eq!(talk.hear(talk.from, talk.to, 1, Message::Req(req)), "REJ0:8");
    }
    for space in [0x0106, 0x0111, 0x013f] {
        let mut talk = alone();
        let req = Req { service: space << 16 | 7174, ..talk.req() };
        assert_eq!(talk.hear(talk.from, talk.to, 1, Message::Req(req)), "");
    }
}
