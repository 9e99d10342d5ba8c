//! Messages from the wire that belong to no conversation change nothing.

use super::hosts::{CLIENT, Host, carry, connected, hosts, ip, parameters};
use packet::roce::cm::{self, Message};
use proptest::prelude::*;
use rdma::cm::EventKind;
use std::time::Duration;

const NOW: Duration = Duration::ZERO;

/// Generates messages that a stranger might send: attributes, names and transactions that may be right, and arbitrary
/// bytes.
fn message() -> impl Strategy<Value = (Vec<u8>, u8, [bool; 3])> {
    (proptest::collection::vec(any::<u8>(), 256), 0x10_u8..0x20, any::<[bool; 3]>())
}

/// Inserts both names and the transaction of the host's last message, as far as `right` says so.
fn disguise(bytes: &mut [u8], attribute: u8, seen: &[u8; 256], [names, transaction, swapped]: [bool; 3]) {
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[16..18].copy_from_slice(&[0, attribute]);
    if names {
        let (first, second) = if swapped { (28..32, 24..28) } else { (24..28, 28..32) };
        bytes[24..28].copy_from_slice(&seen[first]);
        bytes[28..32].copy_from_slice(&seen[second]);
    }
    if transaction {
        bytes[8..16].copy_from_slice(&seen[8..16]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// From another address, even somebody who guesses all names changes nothing.
    #[test]
    fn strangers_do_not_harm(messages in proptest::collection::vec(message(), 1..20)) {
        let (mut a, mut b, _, to) = hosts();
        let (active, passive) = connected(&mut a, &mut b, to);
        let waiting = a.connect(NOW, to, 77);
        let seen = a.sent().pop().unwrap().mad;
        let before = (a.manager.len(), b.manager.len());
        for (mut bytes, attribute, right) in messages {
            disguise(&mut bytes, attribute, &seen, right);
            for host in [&mut a, &mut b] {
                let to = host.address;
                host.manager.receive(NOW, ip("10.0.0.66"), to, &bytes);
                prop_assert!(host.sent().len() <= 1, "no amplification");
                host.no_event();
            }
        }
        prop_assert_eq!((a.manager.len(), b.manager.len()), before);
        // The connections continue.
        let next = a.manager.poll(NOW).unwrap();
        a.manager.poll(next);
        carry(NOW, &mut a, &mut b);
        prop_assert_eq!(b.event().kind, EventKind::ConnectRequest);
        a.manager.disconnect(NOW, CLIENT, active).unwrap();
        carry(NOW, &mut a, &mut b);
        prop_assert_eq!((a.event().id, b.event().id), (active, passive));
        a.manager.destroy_id(NOW, CLIENT, waiting).unwrap();
    }

    /// The peer itself may send anything: there are never more endpoints than a listener allows.
    #[test]
    fn a_mad_peer_is_survived(messages in proptest::collection::vec(message(), 1..60)) {
        let (mut a, mut b, _, to) = hosts();
        connected(&mut a, &mut b, to);
        a.connect(NOW, to, 77);
        let seen = a.sent().pop().unwrap().mad;
        let mut now = NOW;
        for (mut bytes, attribute, right) in messages {
            disguise(&mut bytes, attribute, &seen, right);
            if attribute == 0x10 {
                // A request that is right except for its names.
                bytes[32..164].copy_from_slice(&seen[32..164]);
                bytes[164..].copy_from_slice(&seen[164..]);
            }
            let (to, from) = (b.address, a.address);
            b.manager.receive(now, from, to, &bytes);
            prop_assert!(b.sent().len() <= 2);
            now += Duration::from_millis(100);
            b.manager.poll(now);
            prop_assert!(b.manager.len() <= 2 + 8, "{}", b.manager.len());
        }
    }

    #[test]
    fn what_is_no_message_is_left_alone(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut b = Host::new("10.0.0.2");
        b.manager.receive(NOW, ip("10.0.0.1"), ip("10.0.0.2"), &bytes);
        b.no_event();
        prop_assert!(b.manager.is_empty());
    }
}

/// Each checked field has a wrong value once.
#[test]
fn requests_that_can_not_be_are_refused() {
    let (mut a, mut b, _, to) = hosts();
    a.connect(NOW, to, 17);
    let request = a.sent().pop().unwrap();
    let mad = cm::parse(&request.mad).unwrap();
    let Message::Req(req) = mad.message else { panic!("{mad:?}") };
    let mut wrong = [(); 7].map(|()| req);
    wrong[0].private[0] = 1;
    wrong[1].private[19] ^= 1;
    wrong[2].private[35] ^= 1;
    wrong[3].gids[0] = "::ffff:10.0.0.3".parse().unwrap();
    wrong[4].mtu = 4;
    wrong[5].mtu = 0;
    wrong[6].service ^= 1 << 32;
    let mut reasons = Vec::new();
    for req in wrong {
        let mad = cm::Mad { message: Message::Req(req), ..mad };
        b.manager.receive(NOW, request.source, request.destination, &cm::write(&mad));
        let sent = b.sent();
        let Message::Rej(rej) = cm::parse(&sent[0].mad).unwrap().message else { panic!() };
        assert_eq!((rej.ids.remote, rej.which), (req.local, 0));
        reasons.push(rej.reason);
    }
    assert_eq!(reasons, [28, 28, 28, 12, 26, 26, 8]);
    b.no_event();
    assert_eq!(b.manager.len(), 1);
}

/// An alternate path is refused if there is a connection, and ignored otherwise.
#[test]
fn there_are_no_alternate_paths() {
    let (mut a, mut b, _, to) = hosts();
    let active = a.connect(NOW, to, 17);
    carry(NOW, &mut a, &mut b);
    let request = b.event();
    b.manager.accept(NOW, CLIENT, request.id, &parameters(18, b"")).unwrap();
    carry(NOW, &mut a, &mut b);
    a.manager.establish(CLIENT, active).unwrap();
    let rtu = a.sent().pop().unwrap();
    b.manager.receive(NOW, rtu.source, rtu.destination, &rtu.mad);
    let mut lap = rtu.mad;
    lap[17] = 0x19;
    b.manager.receive(NOW, rtu.source, rtu.destination, &lap);
    let apr = b.sent().pop().unwrap();
    assert_eq!((apr.mad[17], apr.mad[24 + 9], &apr.mad[28..32]), (0x1a, 1, &lap[24..28]));
    lap[24] ^= 1;
    b.manager.receive(NOW, rtu.source, rtu.destination, &lap);
    assert!(b.sent().is_empty());
}
