//! The answers of a responder to single packets of a peer that makes its own packets (IBTA 9.7.4, 9.7.5).

use crate::common;
use crate::common::{ADDRESS, ATOMICS, READ_ONLY, Surroundings, WRITABLE, attributes};
use packet::roce::{
    self, Atomic, Bth, Datagram, Nak, Opcode, Operation as O, Reth, RnrTimer, Service, Syndrome,
};
use rdma::{Arrival, Attributes, QueuePair, State, Status};
use std::time::Duration;

const ACK: Syndrome = Syndrome::NO_CREDITS;
const INVALID: Syndrome = Syndrome::Nak(Nak::InvalidRequest);
const NO_ACCESS: Syndrome = Syndrome::Nak(Nak::RemoteAccessError);
const MISSING: Syndrome = Syndrome::Nak(Nak::PsnSequenceError);
const FIRST_PSN: u32 = 0xff_fffe;

/// A responder, and the data from which its peer makes packets.
struct Responder {
    qp: QueuePair,
    verbs: Surroundings,
}

/// Operation, PSN, syndrome, and message sequence number.
type Answer = (O, u32, Option<(Syndrome, u32)>);

impl Responder {
    fn new() -> Self {
        Self::with(attributes(FIRST_PSN))
    }

    fn with(attributes: Attributes) -> Self {
        Self { qp: QueuePair::new(attributes), verbs: Surroundings::default() }
    }

    fn ask(&mut self, packet: &Datagram<'_>) -> Vec<Answer> {
        self.take(packet);
        self.answers()
    }

    fn take(&mut self, packet: &Datagram<'_>) {
        let mut bytes = vec![0; 8192];
        let len = roce::write(packet, &mut bytes).unwrap();
        self.qp.receive(&roce::parse(&bytes[..len]).unwrap(), Duration::ZERO, &mut self.verbs);
    }

    fn answers(&mut self) -> Vec<Answer> {
        self.qp.poll(Duration::ZERO, 64, &mut self.verbs);
        let sent = self.verbs.all_sent();
        let read = |bytes: &Vec<u8>| {
            let packet = roce::parse(bytes).unwrap();
            let Opcode::Of(_, operation) = packet.bth.opcode else { panic!("{packet:?}") };
            (operation, packet.bth.psn, packet.aeth.map(|aeth| (aeth.syndrome, aeth.msn)))
        };
        sent.iter().map(read).collect()
    }

    fn ended(&self) -> Vec<(u64, Status, u32)> {
        self.verbs.completions.iter().map(|done| (done.id, done.status, done.len)).collect()
    }
}

/// Returns the `number`-th packet, which requests an acknowledgement.
fn packet(operation: O, number: u32, payload: &[u8]) -> Datagram<'_> {
    let bth = Bth {
        acknowledge: true,
        ..common::bth(Opcode::of(Service::Rc, operation).unwrap(), FIRST_PSN.wrapping_add(number))
    };
    Datagram {
        immediate: operation.has_immediate().then_some(*b"abcd"),
        invalidate: operation.has_invalidate().then_some(WRITABLE),
        ..Datagram::new(bth, payload)
    }
}

fn write(operation: O, number: u32, payload: &[u8], len: u32) -> Datagram<'_> {
    Datagram {
        reth: Some(Reth { address: ADDRESS, rkey: WRITABLE, len }),
        ..packet(operation, number, payload)
    }
}

fn read(number: u32, offset: u64, len: u32) -> Datagram<'static> {
    let reth = Reth { address: ADDRESS + offset, rkey: READ_ONLY, len };
    Datagram { reth: Some(reth), ..packet(O::ReadRequest, number, &[]) }
}

fn add(number: u32, address: u64) -> Datagram<'static> {
    let atomic = Atomic { address, rkey: ATOMICS, swap_add: 3, compare: 0 };
    Datagram { atomic: Some(atomic), ..packet(O::FetchAdd, number, &[]) }
}

fn acknowledged(number: u32, msn: u32) -> Vec<Answer> {
    said(number, ACK, msn)
}

fn said(number: u32, syndrome: Syndrome, msn: u32) -> Vec<Answer> {
    vec![(O::Acknowledge, FIRST_PSN.wrapping_add(number) & 0xff_ffff, Some((syndrome, msn)))]
}

/// Checks that all packets before the last one are accepted, and that the responder answers that the last one is an
/// invalid request, and gives up.
fn assert_invalid(packets: &[Datagram<'_>]) {
    let mut responder = Responder::new();
    responder.verbs.post_receive(1, 4096);
    let (last, before) = packets.split_last().unwrap();
    for packet in before {
        assert!(responder.ask(packet).iter().all(|(.., said)| said.is_none_or(|(what, _)| what == ACK)));
    }
    let answers = responder.ask(last);
    assert_eq!(answers.last().unwrap().2.unwrap().0, INVALID, "{packets:?}");
    assert_eq!(responder.qp.state(), State::Error);
}

const MTU: [u8; 256] = [0xab; 256];

#[test]
fn packets_of_a_message_come_in_their_order() {
    for last in [O::SendMiddle, O::SendLast, O::SendLastImmediate, O::WriteMiddle, O::WriteLast] {
        assert_invalid(&[packet(last, 0, &MTU)]);
    }
    for next in [O::SendFirst, O::SendOnly, O::WriteMiddle, O::WriteLast] {
        assert_invalid(&[packet(O::SendFirst, 0, &MTU), packet(next, 1, &MTU)]);
    }
    for next in [O::WriteFirst, O::WriteOnly] {
        assert_invalid(&[packet(O::SendFirst, 0, &MTU), write(next, 1, &MTU, 600)]);
        assert_invalid(&[write(O::WriteFirst, 0, &MTU, 600), write(next, 1, &MTU, 600)]);
    }
    for next in [O::SendMiddle, O::SendLast, O::SendOnly] {
        assert_invalid(&[write(O::WriteFirst, 0, &MTU, 600), packet(next, 1, &MTU)]);
    }
    assert_invalid(&[packet(O::SendFirst, 0, &MTU), read(1, 0, 8)]);
    assert_invalid(&[write(O::WriteFirst, 0, &MTU, 600), add(1, ADDRESS)]);
}

#[test]
fn payloads_have_the_length_that_their_place_asks_for() {
    let longer = [0; 257];
    assert_invalid(&[packet(O::SendOnly, 0, &longer)]);
    assert_invalid(&[packet(O::SendFirst, 0, &longer)]);
    assert_invalid(&[packet(O::SendFirst, 0, &MTU[..255])]);
    for next in [&MTU[..255], &MTU[..0], &longer] {
        assert_invalid(&[packet(O::SendFirst, 0, &MTU), packet(O::SendMiddle, 1, next)]);
        assert_invalid(&[write(O::WriteFirst, 0, &MTU, 2000), packet(O::WriteMiddle, 1, next)]);
    }
    for next in [&MTU[..0], &longer] {
        assert_invalid(&[packet(O::SendFirst, 0, &MTU), packet(O::SendLast, 1, next)]);
    }
    let mut responder = Responder::new();
    responder.verbs.post_receive(1, 0);
    responder.verbs.post_receive(2, 256);
    assert_eq!(responder.ask(&packet(O::SendOnly, 0, &[])), acknowledged(0, 1));
    assert_eq!(responder.ask(&packet(O::SendOnly, 1, &MTU)), acknowledged(1, 2));
    assert_eq!(responder.ended(), [(1, Status::Success, 0), (2, Status::Success, 256)]);
}

#[test]
fn a_write_is_as_long_as_it_says() {
    assert_invalid(&[write(O::WriteOnly, 0, &MTU[..8], 7)]);
    assert_invalid(&[write(O::WriteOnly, 0, &MTU[..8], 9)]);
    // The first packet of a message must be followed by others.
    assert_invalid(&[write(O::WriteFirst, 0, &MTU, 256)]);
    assert_invalid(&[write(O::WriteFirst, 0, &MTU, 100)]);
    for len in [43, 45] {
        assert_invalid(&[write(O::WriteFirst, 0, &MTU, 300), packet(O::WriteLast, 1, &MTU[..len])]);
    }
    assert_invalid(&[write(O::WriteFirst, 0, &MTU, 512), packet(O::WriteMiddle, 1, &MTU)]);
    assert_invalid(&[write(O::WriteFirst, 0, &MTU, (1 << 31) + 1)]);
    let mut responder = Responder::new();
    assert_eq!(responder.ask(&write(O::WriteFirst, 0, &MTU, 513)), acknowledged(0, 0));
    assert_eq!(responder.ask(&packet(O::WriteMiddle, 1, &MTU)), acknowledged(1, 0));
    assert_eq!(responder.ask(&packet(O::WriteLast, 2, &[7])), acknowledged(2, 1));
    let memory = &responder.verbs.memory.writable;
    assert_eq!((&memory[..512], &memory[512..514]), (&[0xab; 512][..], &[7, 0][..]));
    assert_eq!(responder.ended(), []);
    // The address is not checked if there are no bytes.
    let nowhere = Reth { address: 0, rkey: 1, len: 0 };
    let empty = Datagram { reth: Some(nowhere), ..packet(O::WriteOnly, 3, &[]) };
    assert_eq!(responder.ask(&empty), acknowledged(3, 2));
}

#[test]
fn a_write_with_immediate_takes_a_receive() {
    let mut responder = Responder::new();
    let timer = RnrTimer::new(12);
    let last = write(O::WriteOnlyImmediate, 0, &MTU[..8], 8);
    assert_eq!(responder.ask(&last), said(0, Syndrome::ReceiverNotReady(timer), 0));
    assert_eq!(responder.verbs.memory.writable[..8], [0; 8], "it comes again as a whole");
    responder.verbs.post_receive(1, 0);
    assert_eq!(responder.ask(&last), acknowledged(0, 1));
    let done = responder.verbs.completions[0];
    let received = done.received.unwrap();
    assert_eq!((done.id, done.status, done.len), (1, Status::Success, 8));
    assert_eq!((received.by, received.immediate), (Arrival::WriteWithImmediate, Some(*b"abcd")));
    // The length includes all packets.
    responder.verbs.post_receive(2, 0);
    responder.ask(&write(O::WriteFirst, 1, &MTU, 260));
    assert_eq!(responder.ask(&packet(O::WriteLastImmediate, 2, &MTU[..4])), acknowledged(2, 2));
    assert_eq!(responder.ended()[1], (2, Status::Success, 260));
}

#[test]
fn packets_that_are_missing_are_asked_for_once() {
    let mut responder = Responder::new();
    (1..5).for_each(|id| responder.verbs.post_receive(id, 256));
    assert_eq!(responder.ask(&packet(O::SendOnly, 1, &[])), said(0, MISSING, 0));
    assert_eq!(responder.ask(&packet(O::SendOnly, 2, &[])), []);
    assert_eq!(responder.ask(&packet(O::SendOnly, 0, &[])), acknowledged(0, 1));
    assert_eq!(responder.ask(&packet(O::SendOnly, 2, &[])), said(1, MISSING, 1));
    assert_eq!(responder.qp.counts().out_of_sequence, 3);
    // Repeated packets are acknowledged again, as far as all came, but not executed again.
    assert_eq!(responder.ask(&packet(O::SendOnly, 1, &[])), acknowledged(1, 2));
    assert_eq!(responder.ask(&packet(O::SendOnly, 0, &[])), acknowledged(1, 2));
    assert_eq!(responder.qp.counts().duplicate_request, 1);
    assert_eq!(responder.ended().len(), 2);
}

#[test]
fn what_comes_behind_one_that_was_not_ready_is_not_missing() {
    let mut responder = Responder::new();
    let not_ready = said(0, Syndrome::ReceiverNotReady(RnrTimer::new(12)), 0);
    assert_eq!(responder.ask(&packet(O::SendOnly, 0, &[])), not_ready);
    assert_eq!(responder.ask(&packet(O::SendOnly, 1, &[])), []);
    assert_eq!(responder.ask(&packet(O::SendOnly, 0, &[])), not_ready);
    assert_eq!(responder.qp.counts().rnr_nak, 2);
}

#[test]
fn an_acknowledgement_is_sent_where_one_is_asked_for_and_stands_for_those_before() {
    let mut responder = Responder::new();
    (1..5).for_each(|id| responder.verbs.post_receive(id, 256));
    let mut quiet = packet(O::SendOnly, 0, &[]);
    quiet.bth.acknowledge = false;
    assert_eq!(responder.ask(&quiet), []);
    responder.take(&packet(O::SendOnly, 1, &[]));
    responder.take(&packet(O::SendOnly, 2, &[]));
    assert_eq!(responder.answers(), acknowledged(2, 3));
    // A waiting acknowledgement is replaced by the NAK of a later packet.
    responder.take(&packet(O::SendOnly, 3, &[]));
    responder.take(&packet(O::SendOnly, 5, &[]));
    assert_eq!(responder.answers(), said(4, MISSING, 4));
}

#[test]
fn reads_are_answered_again_in_whole_or_their_end() {
    let mut responder = Responder::new();
    let psn = |number: u32| FIRST_PSN.wrapping_add(number) & 0xff_ffff;
    let (first, middle, last) = (O::ReadFirst, O::ReadMiddle, O::ReadLast);
    let all = [(first, psn(0), Some((ACK, 1))), (middle, psn(1), None), (last, psn(2), Some((ACK, 1)))];
    assert_eq!(responder.ask(&read(0, 16, 600)), all);
    assert_eq!(responder.ask(&read(0, 16, 600)), all);
    let end = [(first, psn(1), Some((ACK, 1))), (last, psn(2), Some((ACK, 1)))];
    assert_eq!(responder.ask(&read(1, 16 + 256, 344)), end);
    assert_eq!(responder.ask(&read(2, 16 + 512, 88)), [(O::ReadOnly, psn(2), Some((ACK, 1)))]);
    // A smaller request is a part of the former one; a larger one, or one elsewhere, is not.
    assert_eq!(responder.ask(&read(2, 16 + 512, 87)).len(), 1);
    assert_eq!(responder.ask(&read(2, 16 + 512, 89)), []);
    assert_eq!(responder.ask(&read(2, 16 + 511, 88)), []);
    let other_key = Reth { address: ADDRESS + 16, rkey: WRITABLE, len: 600 };
    assert_eq!(responder.ask(&Datagram { reth: Some(other_key), ..read(0, 0, 0) }), []);
    assert_eq!(responder.ask(&add(0, ADDRESS)), [], "it was a READ");
    // The next request's PSN comes after the last packet of the answer; a READ of no bytes takes a packet, too.
    assert_eq!(responder.ask(&read(3, 0, 0)), [(O::ReadOnly, psn(3), Some((ACK, 2)))]);
    assert_eq!(responder.ask(&read(4, 0, 1)), [(O::ReadOnly, psn(4), Some((ACK, 3)))]);
}

#[test]
fn an_atomic_is_done_once() {
    let mut responder = Responder::new();
    let answer = [(O::AtomicAcknowledge, FIRST_PSN, Some((ACK, 1)))];
    assert_eq!(responder.ask(&add(0, ADDRESS)), answer);
    assert_eq!(responder.ask(&add(0, ADDRESS)), answer);
    assert_eq!(responder.ask(&read(0, 0, 8)), [], "it was no READ");
    assert_eq!(responder.verbs.memory.counter, 5 + 3);
    // Four are remembered. The peer already has its answer to the fifth before the last.
    (1..5).for_each(|number| drop(responder.ask(&add(number, ADDRESS))));
    assert_eq!(responder.ask(&add(0, ADDRESS)), []);
    assert_eq!(responder.ask(&add(1, ADDRESS)).len(), 1);
    assert_invalid(&[add(0, ADDRESS + 4)]);
}

#[test]
fn no_more_reads_and_atomics_are_under_way_than_agreed() {
    let allowed = u32::from(attributes(0).peer_reads);
    let asked = |more: u32| {
        let mut responder = Responder::new();
        (0..allowed + more).for_each(|number| match number % 2 {
            0 => responder.take(&read(number, 0, 8)),
            _ => responder.take(&add(number, ADDRESS)),
        });
        (responder.answers(), responder.qp.state())
    };
    let (answers, state) = asked(0);
    assert_eq!((answers.len(), state), (4, State::ReadyToReceive));
    let (answers, state) = asked(1);
    assert_eq!((answers.last().unwrap().2.unwrap().0, state), (INVALID, State::Error));
    // Only this many repeated requests are answered at a time.
    let mut responder = Responder::new();
    responder.ask(&read(0, 0, 8));
    (0..9).for_each(|_| responder.take(&read(0, 0, 8)));
    assert_eq!(responder.answers().len(), 4);
    // Repeated requests do not take the room of new ones.
    (0..9).for_each(|_| responder.take(&read(0, 0, 8)));
    (1..5).for_each(|number| responder.take(&read(number, 0, 8)));
    assert_eq!((responder.answers().len(), responder.qp.state()), (8, State::ReadyToReceive));
}

#[test]
fn memory_is_accessed_as_its_key_allows() {
    let foreign = |operation: O, rkey: u32, address: u64, payload: &'static [u8]| Datagram {
        reth: Some(Reth { address, rkey, len: 8 }),
        ..packet(operation, 0, payload)
    };
    for wrong in [
        foreign(O::WriteOnly, READ_ONLY, ADDRESS, &[0; 8]),
        foreign(O::WriteOnly, WRITABLE, ADDRESS - 1, &[0; 8]),
        foreign(O::ReadRequest, WRITABLE, ADDRESS, &[]),
        foreign(O::ReadRequest, READ_ONLY, ADDRESS + common::SIZE as u64 - 7, &[]),
        add(0, ADDRESS + 8),
    ] {
        let mut responder = Responder::new();
        assert_eq!(responder.ask(&wrong), said(0, NO_ACCESS, 0), "{wrong:?}");
        assert_eq!(responder.qp.state(), State::Error);
        assert!(responder.verbs.memory.writable.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_send_that_invalidates_what_it_may_not_ends_its_receive() {
    let mut responder = Responder::new();
    responder.verbs.post_receive(1, 256);
    assert_eq!(responder.ask(&packet(O::SendOnlyInvalidate, 0, &[1])), said(0, NO_ACCESS, 0));
    assert_eq!(responder.ended(), [(1, Status::LocalProtection, 0)]);
}

#[test]
fn a_receive_that_is_too_short_ends_in_its_first_packet_too_many() {
    let mut responder = Responder::new();
    responder.verbs.post_receive(1, 300);
    assert_eq!(responder.ask(&packet(O::SendFirst, 0, &MTU)), acknowledged(0, 0));
    assert_eq!(responder.ask(&packet(O::SendMiddle, 1, &MTU)), said(1, INVALID, 0));
    assert_eq!(responder.ended(), [(1, Status::LocalLength, 0)]);
}

#[test]
fn an_atomic_on_memory_that_is_in_use_is_not_answered_until_it_comes_again() {
    let mut responder = Responder::new();
    responder.verbs.memory.is_busy = true;
    let asked = add(0, ADDRESS);
    assert_eq!(responder.ask(&asked), []);
    // The packets after it are repeated with it.
    responder.verbs.post_receive(1, 256);
    assert_eq!(responder.ask(&packet(O::SendOnly, 1, &[1])), []);
    assert_eq!(responder.qp.state(), State::ReadyToReceive);
    responder.verbs.memory.is_busy = false;
    assert_eq!(responder.ask(&asked), [(O::AtomicAcknowledge, FIRST_PSN, Some((ACK, 1)))]);
    assert_eq!(responder.ask(&packet(O::SendOnly, 1, &[1])), acknowledged(1, 2));
}
