//! RoCEv2 against packets of Linux, and against itself.
#![cfg(not(miri))]

use crate::captures;
use crate::captures::ip_packet;
use packet::WriteError;
use packet::roce::cm::{self, CmError, Message};
use packet::roce::{
    self, Aeth, Atomic, Bth, Datagram, Deth, Nak, Opcode, Operation, Reth, Service, Syndrome,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn what_linux_sends_is_read_and_written_back_bit_for_bit() {
    let captures = captures::roce();
    assert_eq!(captures.len(), 23);
    let mut operations = BTreeMap::new();
    for (name, frames) in &captures {
        for (number, frame) in frames.iter().enumerate() {
            let (packet, payload_at) = ip_packet(frame);
            assert!(roce::has_right_icrc(packet), "{name}, packet {number}");
            let payload = &packet[payload_at..];
            let datagram = roce::parse(payload).unwrap_or_else(|e| panic!("{name}, packet {number}: {e}"));
            *operations.entry(datagram.bth.opcode.byte()).or_insert(0) += 1;
            let mut written = [0xee; 2048];
            let len = roce::write(&datagram, &mut written).unwrap();
            let icrc = len - roce::ICRC_LEN;
            assert_eq!(written[..icrc], payload[..payload.len() - roce::ICRC_LEN], "{name}, packet {number}");
            assert_eq!(len, payload.len());
        }
    }
    assert!(operations.values().sum::<i32>() > 2400);
    // All operations but SEND with invalidate, which nobody sent.
    let rc = Operation::all().filter(|operation| !operation.has_invalidate());
    for operation in rc {
        let opcode = Opcode::of(Service::Rc, operation).unwrap();
        assert!(operations.contains_key(&opcode.byte()), "no capture has {}", operation.name());
    }
}

#[test]
fn refusals_are_those_that_linux_gave() {
    let naks = |capture: &str| -> Vec<Syndrome> {
        let (_, frames) = captures::roce().into_iter().find(|(name, _)| name == capture).unwrap();
        let aeth = |frame: &Vec<u8>| {
            let (packet, at) = ip_packet(frame);
            roce::parse(&packet[at..]).unwrap().aeth.map(|aeth| aeth.syndrome)
        };
        frames.iter().filter_map(aeth).filter(|syndrome| !matches!(syndrome, Syndrome::Ack(_))).collect()
    };
    assert_eq!(naks("mix-nak-rkey"), [Syndrome::Nak(Nak::RemoteAccessError)]);
    assert_eq!(naks("mix-nak-len"), [Syndrome::Nak(Nak::RemoteOperationalError)]);
    let not_ready: Vec<u8> = naks("mix-rnr-nak")
        .into_iter()
        .filter_map(|syndrome| match syndrome {
            Syndrome::ReceiverNotReady(timer) => Some(timer.code()),
            _ => None,
        })
        .collect();
    assert!(!not_ready.is_empty() && not_ready.iter().all(|code| *code == 14), "{not_ready:?}");
}

fn any_opcode() -> impl Strategy<Value = Opcode> {
    any::<u8>().prop_filter_map("known", Opcode::from_byte)
}

prop_compose! {
    fn any_bth()(
        opcode in any_opcode(),
        flags in any::<[bool; 5]>(),
        partition: u16,
        destination in 0_u32..1 << 24,
        psn in 0_u32..1 << 24,
    ) -> Bth {
        let [solicited, migrated, forward_congestion, backward_congestion, acknowledge] = flags;
        Bth {
            opcode, solicited, migrated, partition, forward_congestion, backward_congestion, destination, acknowledge, psn,
        }
    }
}

proptest! {
    #[test]
    fn what_was_written_is_read_again(
        bth in any_bth(),
        numbers in any::<[u64; 4]>(),
        msn in 0_u32..1 << 24,
        syndrome in any::<u8>().prop_filter_map("known", |byte| Syndrome::from_byte(byte).ok()),
        payload in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let [address, a, b, c] = numbers;
        let operation = bth.opcode.operation();
        let has = |header: fn(Operation) -> bool| operation.is_some_and(header);
        let is_datagram = matches!(bth.opcode, Opcode::Of(Service::Ud, _));
        let rkey = a as u32;
        let datagram = Datagram {
            bth,
            deth: is_datagram.then_some(Deth { queue_key: b as u32, source: msn }),
            reth: has(Operation::has_reth).then_some(Reth { address, rkey, len: b as u32 }),
            atomic: has(Operation::has_atomic).then_some(Atomic { address, rkey, swap_add: b, compare: c }),
            aeth: has(Operation::has_aeth).then_some(Aeth { syndrome, msn }),
            original: (operation == Some(Operation::AtomicAcknowledge)).then_some(c),
            immediate: has(Operation::has_immediate).then_some(rkey.to_be_bytes()),
            invalidate: has(Operation::has_invalidate).then_some(rkey),
            payload: if has(Operation::has_payload) { &payload } else { &[] },
        };
        let mut out = [0xee; 128];
        let len = roce::write(&datagram, &mut out).unwrap();
        prop_assert!(len.is_multiple_of(4));
        prop_assert_eq!(datagram.bytes(datagram.payload.len()), len);
        prop_assert_eq!(roce::parse(&out[..len]), Ok(datagram));
        prop_assert_eq!(roce::write(&datagram, &mut out[..len - 1]), Err(WriteError::TooShort));
        for shorter in 0..len {
            // A packet with less payload is a packet too; one with headers cut off isn't.
            let cut = roce::parse(&out[..shorter]);
            prop_assert!(cut.is_err() || has(Operation::has_payload) && cut != Ok(datagram));
        }
        let one_too_many = match datagram.reth {
            None => Datagram { reth: Some(Reth { address, rkey, len: 0 }), ..datagram },
            Some(_) => Datagram { reth: None, ..datagram },
        };
        prop_assert_eq!(roce::write(&one_too_many, &mut out), Err(WriteError::Mismatch));
    }
}

/// Returns the messages of the connection manager, in the order in which a capture has them.
fn messages(capture: &str) -> Vec<cm::Mad> {
    let (_, frames) = captures::roce().into_iter().find(|(name, _)| name == capture).unwrap();
    let message = |frame: &Vec<u8>| {
        let (packet, at) = ip_packet(frame);
        let datagram = roce::parse(&packet[at..]).unwrap();
        let deth = datagram.deth.filter(|_| datagram.bth.destination == cm::QUEUE_PAIR)?;
        assert_eq!((deth.queue_key, deth.source), (cm::QUEUE_KEY, cm::QUEUE_PAIR));
        let mad = cm::parse(datagram.payload).unwrap();
        assert_eq!(cm::write(&mad), datagram.payload);
        Some(mad)
    };
    frames.iter().filter_map(message).collect()
}

#[test]
fn connections_are_managed_as_linux_does() {
    let rping = messages("cm-rping");
    let [req, rep, rtu, ..] = &rping[..] else { panic!("{rping:?}") };
    let Message::Req(request) = req.message else { panic!("{req:?}") };
    let Message::Rep(reply) = rep.message else { panic!("{rep:?}") };
    let Message::Rtu { ids, .. } = rtu.message else { panic!("{rtu:?}") };
    // Port space TCP, and rping's port.
    assert_eq!(request.service, 0x0106 << 16 | 7174);
    assert_eq!(request.gids.map(|gid| gid.to_ipv4_mapped().unwrap().octets()[3]), [1, 2]);
    assert_eq!((request.transport, request.partition, request.lids), (0, 0xffff, [0xffff; 2]));
    assert_eq!(reply.ids.remote, request.local);
    assert_eq!(ids, cm::Ids { local: request.local, remote: reply.ids.local });
    assert!(req.transaction == rep.transaction && rep.transaction == rtu.transaction);
    let ended: Vec<_> = rping
        .iter()
        .filter(|mad| matches!(mad.message, Message::Dreq { .. } | Message::Drep { .. }))
        .collect();
    assert!(ended.len() >= 2 && ended[0].transaction == ended[1].transaction, "{ended:?}");

    assert_eq!(
        messages("cm-ucmatose").iter().filter(|mad| matches!(mad.message, Message::Req(_))).count(),
        2
    );

    let sidr = messages("cm-udaddy-sidr");
    let (asked, answered) = (sidr[0].message, sidr[1].message);
    let (Message::SidrReq { request, service, .. }, Message::SidrRep(reply)) = (asked, answered) else {
        panic!("{sidr:?}")
    };
    assert_eq!((reply.request, reply.service, reply.status), (request, service, 0));
    assert_eq!(reply.queue_key, 0x0123_4567);
}

#[test]
fn what_is_no_message_is_refused() {
    let mad = messages("cm-rping")[0];
    let bytes = cm::write(&mad);
    assert_eq!(cm::parse(&bytes[..255]), Err(CmError::Length(255)));
    for (at, value, error) in
        [(0, 2, CmError::Class), (3, 1, CmError::Class), (17, 0x19, CmError::Message(0x19))]
    {
        let mut wrong = bytes;
        wrong[at] = value;
        assert_eq!(cm::parse(&wrong), Err(error));
    }
}
