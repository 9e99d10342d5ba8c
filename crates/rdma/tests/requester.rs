//! The packets of a requester, sent to a peer that makes its own answers (IBTA 9.7.2 to 9.7.6).

use crate::common;
use crate::common::{ADDRESS, ATOMICS, READ_ONLY, Surroundings, WRITABLE, attributes};
use packet::roce::{
    self, Aeth, Atomic, Datagram, Nak, Opcode, Operation as O, Reth, RnrTimer, Service, Syndrome,
};
use rdma::{AtomicOperation, Attributes, Mtu, QueuePair, SendOperation, SendRequest, State, Status, With};
use std::time::Duration;

const FIRST_PSN: u32 = 0xff_fffd;
const MS: Duration = Duration::from_millis(1);
/// Time for which the requester waits for an answer at first: 4.096 us times 2^10.
const PATIENCE: Duration = Duration::from_nanos(4096 << 10);

struct Requester {
    qp: QueuePair,
    verbs: Surroundings,
}

/// The examined parts of a sent packet.
#[derive(Debug, Default, PartialEq)]
struct Packet {
    number: u32,
    payload: usize,
    acknowledge: bool,
    solicited: bool,
    immediate: bool,
    invalidate: Option<u32>,
    reth: Option<Reth>,
    atomic: Option<Atomic>,
}

impl Requester {
    fn new() -> Self {
        Self::with(attributes(FIRST_PSN))
    }

    fn with(attributes: Attributes) -> Self {
        let mut qp = QueuePair::new(attributes);
        qp.ready_to_send(attributes);
        Self { qp, verbs: Surroundings::default() }
    }

    fn post(&mut self, id: u64, operation: SendOperation, len: u32) {
        self.post_request(SendRequest { id, operation, len, signaled: true, solicited: false, fence: false });
    }

    fn post_request(&mut self, request: SendRequest) {
        self.verbs.local.insert(request.id, vec![request.id as u8; request.len as usize]);
        self.qp.post_send(request, &mut self.verbs);
    }

    /// Returns the packets that the requester sends, with their operations.
    fn sent(&mut self, now: Duration) -> Vec<(O, Packet)> {
        self.qp.poll(now, 1000, &mut self.verbs);
        let read = |bytes: &Vec<u8>| {
            let packet = roce::parse(bytes).unwrap();
            let Opcode::Of(_, operation) = packet.bth.opcode else { panic!("{packet:?}") };
            let seen = Packet {
                number: packet.bth.psn.wrapping_sub(FIRST_PSN) & 0xff_ffff,
                payload: packet.payload.len(),
                acknowledge: packet.bth.acknowledge,
                solicited: packet.bth.solicited,
                immediate: packet.immediate.is_some(),
                invalidate: packet.invalidate,
                reth: packet.reth,
                atomic: packet.atomic,
            };
            (operation, seen)
        };
        self.verbs.all_sent().iter().map(read).collect()
    }

    /// Returns operations and numbers of the packets that the requester sends.
    fn numbers(&mut self, now: Duration) -> Vec<(O, u32)> {
        self.sent(now).into_iter().map(|(operation, packet)| (operation, packet.number)).collect()
    }

    fn hear(&mut self, packet: &Datagram<'_>, now: Duration) {
        let mut bytes = vec![0; 8192];
        let len = roce::write(packet, &mut bytes).unwrap();
        self.qp.receive(&roce::parse(&bytes[..len]).unwrap(), now, &mut self.verbs);
    }

    fn told(&mut self, number: u32, syndrome: Syndrome) {
        self.hear(&answer(O::Acknowledge, number, syndrome, &[]), Duration::ZERO);
    }

    fn ended(&self) -> Vec<(u64, Status)> {
        self.verbs.completions.iter().map(|done| (done.id, done.status)).collect()
    }
}

fn answer(operation: O, number: u32, syndrome: Syndrome, payload: &[u8]) -> Datagram<'_> {
    let bth = common::bth(Opcode::of(Service::Rc, operation).unwrap(), FIRST_PSN.wrapping_add(number));
    let aeth = operation.has_aeth().then_some(Aeth { syndrome, msn: 0 });
    let original = (operation == O::AtomicAcknowledge).then_some(77);
    Datagram { aeth, original, ..Datagram::new(bth, payload) }
}

const ACK: Syndrome = Syndrome::NO_CREDITS;
const SEND: SendOperation = SendOperation::Send(With::Nothing);
const WRITE: SendOperation = SendOperation::Write { address: ADDRESS, rkey: WRITABLE, immediate: None };
const READ: SendOperation = SendOperation::Read { address: ADDRESS, rkey: READ_ONLY };
const ADD: SendOperation =
    SendOperation::Atomic { address: ADDRESS, rkey: ATOMICS, operation: AtomicOperation::FetchAdd(3) };

/// Returns the packets of one request of 600 bytes, solicited.
fn packets_of(operation: SendOperation) -> Vec<(O, Packet)> {
    let mut requester = Requester::new();
    // Another request comes first, since the very first packet requests an answer, too.
    requester.post(9, SEND, 0);
    requester.post_request(SendRequest {
        id: 1,
        operation,
        len: 600,
        signaled: true,
        solicited: true,
        fence: false,
    });
    requester.sent(Duration::ZERO).split_off(1)
}

#[test]
fn messages_are_cut_into_packets() {
    let middle = |number| Packet { number, payload: 256, ..Packet::default() };
    let last = || Packet { payload: 88, acknowledge: true, solicited: true, ..middle(3) };
    let sent = |end: O, last: Packet| [(O::SendFirst, middle(1)), (O::SendMiddle, middle(2)), (end, last)];
    assert_eq!(packets_of(SEND), sent(O::SendLast, last()));
    let immediate = || Packet { immediate: true, ..last() };
    let with = SendOperation::Send(With::Immediate(*b"abcd"));
    assert_eq!(packets_of(with), sent(O::SendLastImmediate, immediate()));
    let with = SendOperation::Send(With::Invalidate(5));
    assert_eq!(packets_of(with), sent(O::SendLastInvalidate, Packet { invalidate: Some(5), ..last() }));
    let reth = Some(Reth { address: ADDRESS, rkey: WRITABLE, len: 600 });
    let written = |end: O, last: Packet| {
        [(O::WriteFirst, Packet { reth, ..middle(1) }), (O::WriteMiddle, middle(2)), (end, last)]
    };
    assert_eq!(packets_of(WRITE), written(O::WriteLast, last()));
    let with = SendOperation::Write { address: ADDRESS, rkey: WRITABLE, immediate: Some(*b"abcd") };
    assert_eq!(packets_of(with), written(O::WriteLastImmediate, immediate()));
    let reth = Some(Reth { address: ADDRESS, rkey: READ_ONLY, len: 600 });
    let read = Packet { number: 1, acknowledge: true, reth, ..Packet::default() };
    assert_eq!(packets_of(READ), [(O::ReadRequest, read)]);
}

#[test]
fn messages_of_one_packet_and_of_no_bytes_are_one_packet() {
    let immediate = Some(*b"abcd");
    let write_with = SendOperation::Write { address: ADDRESS, rkey: WRITABLE, immediate };
    for (operation, expected) in [
        (SEND, O::SendOnly),
        (SendOperation::Send(With::Immediate(*b"abcd")), O::SendOnlyImmediate),
        (SendOperation::Send(With::Invalidate(5)), O::SendOnlyInvalidate),
        (WRITE, O::WriteOnly),
        (write_with, O::WriteOnlyImmediate),
        (READ, O::ReadRequest),
    ] {
        for len in [0, 1, 256] {
            let mut requester = Requester::new();
            requester.post(1, operation, len);
            requester.post(2, SEND, 0);
            let after = if operation == READ { 1 } else { len.div_ceil(256).max(1) };
            assert_eq!(requester.numbers(Duration::ZERO), [(expected, 0), (O::SendOnly, after)]);
        }
    }
    // A READ takes as many numbers as its answer has packets (IBTA 9.7.3.1), an atomic takes one.
    let mut requester = Requester::new();
    requester.post(1, READ, 257);
    requester.post(2, ADD, 8);
    requester.post(3, SEND, 0);
    let sent = requester.sent(Duration::ZERO);
    let numbers: Vec<_> = sent.iter().map(|(operation, packet)| (*operation, packet.number)).collect();
    assert_eq!(numbers, [(O::ReadRequest, 0), (O::FetchAdd, 2), (O::SendOnly, 3)]);
    let atomic = Atomic { address: ADDRESS, rkey: ATOMICS, swap_add: 3, compare: 0 };
    assert_eq!((sent[1].1.atomic, sent[1].1.acknowledge), (Some(atomic), true));
}

#[test]
fn an_answer_is_asked_for_an_eighth_of_a_window_apart_and_at_its_end() {
    let mut requester = Requester::new();
    requester.post(1, SEND, 300 * 256);
    let asked = |sent: Vec<(O, Packet)>| -> Vec<u32> {
        sent.iter().filter(|(_, packet)| packet.acknowledge).map(|(_, packet)| packet.number).collect()
    };
    let sent = requester.sent(Duration::ZERO);
    assert_eq!(sent.len(), 16, "the first window");
    assert!(requester.qp.awaits_answers());
    assert_eq!(asked(sent), [0, 8, 15]);
    requester.told(0, ACK);
    assert!(!requester.qp.awaits_answers());
    assert_eq!(asked(requester.sent(Duration::ZERO)), [16, 17]);
    requester.told(17, ACK);
    assert_eq!(asked(requester.sent(Duration::ZERO)), [24, 32, 40, 48, 51], "it doubles");
    requester.told(51, ACK);
    requester.sent(Duration::ZERO);
    requester.told(119, ACK);
    let sent = requester.sent(Duration::ZERO);
    assert_eq!(asked(sent), [136, 153, 170, 187, 204, 221, 238, 255]);
    requester.told(255, ACK);
    assert_eq!(asked(requester.sent(Duration::ZERO)), [256, 288, 299], "the largest window is 256");
    assert!(requester.qp.is_sending());
    assert_eq!(requester.ended(), []);
    requester.told(299, ACK);
    assert_eq!(requester.ended(), [(1, Status::Success)]);
    assert!(!requester.qp.is_sending());
}

#[test]
fn an_acknowledgement_ends_what_it_reaches() {
    let mut requester = Requester::new();
    (1..=3).for_each(|id| requester.post(id, SEND, 512));
    requester.sent(Duration::ZERO);
    // Answers with numbers that were never sent, or answered long ago, change nothing.
    requester.told(6, ACK);
    requester.told(0xff_ffff, ACK);
    assert_eq!(requester.ended(), []);
    requester.told(0, ACK);
    assert_eq!(requester.ended(), []);
    requester.told(2, ACK);
    assert_eq!(requester.ended(), [(1, Status::Success)]);
    requester.told(1, ACK);
    assert_eq!(requester.ended().len(), 1);
    requester.told(5, ACK);
    assert_eq!(requester.ended(), [1, 2, 3].map(|id| (id, Status::Success)));
    assert_eq!(requester.sent(100 * PATIENCE), [], "nothing is sent again");
}

#[test]
fn a_refusal_ends_the_first_request_that_it_is_about() {
    for (nak, status) in [
        (Nak::InvalidRequest, Status::RemoteInvalidRequest),
        (Nak::RemoteAccessError, Status::RemoteAccess),
        (Nak::RemoteOperationalError, Status::RemoteOperation),
    ] {
        let mut requester = Requester::new();
        (1..=3).for_each(|id| requester.post(id, SEND, 512));
        requester.sent(Duration::ZERO);
        requester.told(2, Syndrome::Nak(nak));
        assert_eq!(requester.ended(), [(1, Status::Success), (2, status), (3, Status::Flushed)]);
        assert_eq!(requester.qp.state(), State::Error);
    }
}

#[test]
fn what_the_peer_misses_is_sent_again_from_there() {
    let mut requester = Requester::new();
    (1..=3).for_each(|id| requester.post(id, SEND, 512));
    requester.sent(Duration::ZERO);
    requester.told(3, Syndrome::Nak(Nak::PsnSequenceError));
    assert_eq!(requester.ended(), [(1, Status::Success)]);
    let again = [(O::SendLast, 3), (O::SendFirst, 4), (O::SendLast, 5)];
    assert_eq!(requester.numbers(Duration::ZERO), again);
    assert_eq!(requester.qp.counts().packet_seq_err, 1);
    // Retries are used up after the first attempt and seven more, without progress.
    for _ in 0..6 {
        requester.told(3, Syndrome::Nak(Nak::PsnSequenceError));
        assert_eq!(requester.numbers(Duration::ZERO), again);
    }
    requester.told(3, Syndrome::Nak(Nak::PsnSequenceError));
    assert_eq!(requester.ended()[1..], [(2, Status::RetryExceeded), (3, Status::Flushed)]);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut requester = Requester::with(Attributes { retries: 1, rnr_retries: 1, ..attributes(FIRST_PSN) });
    requester.post(1, SEND, 256 * 8);
    let not_ready = Syndrome::ReceiverNotReady(RnrTimer::new(1));
    let mut now = Duration::ZERO;
    for number in 0..4 {
        requester.sent(now);
        requester.told(number, Syndrome::Nak(Nak::PsnSequenceError));
        requester.told(number, not_ready);
        now += MS;
    }
    assert_eq!(requester.ended(), []);
    requester.sent(now);
    requester.told(4, ACK);
    requester.told(5, not_ready);
    requester.sent(now + MS);
    requester.told(5, not_ready);
    assert_eq!(requester.ended(), [(1, Status::RnrRetryExceeded)]);
}

#[test]
fn silence_is_answered_after_twice_the_time_each_time() {
    let mut requester = Requester::with(Attributes { retries: 3, ..attributes(FIRST_PSN) });
    requester.post(1, SEND, 300);
    let first = [(O::SendFirst, 0), (O::SendLast, 1)];
    assert_eq!(requester.numbers(Duration::ZERO), first);
    let mut due = Duration::ZERO;
    for times in [1, 2, 4] {
        due += times * PATIENCE;
        let early = due.checked_sub(Duration::from_nanos(1)).unwrap();
        assert_eq!(requester.numbers(early), []);
        assert_eq!(requester.qp.poll(early, 64, &mut requester.verbs), Some(due));
        assert_eq!(requester.numbers(due), first);
    }
    assert_eq!(requester.numbers(due + 4 * PATIENCE), []);
    assert_eq!(requester.ended(), [(1, Status::RetryExceeded)]);
    assert_eq!(requester.qp.counts().local_ack_timeout_err, 4);
    // Without a timeout, it waits forever.
    let mut patient = Requester::with(Attributes { timeout: 0, ..attributes(FIRST_PSN) });
    patient.post(1, SEND, 0);
    assert_eq!(patient.qp.poll(Duration::ZERO, 64, &mut patient.verbs), None);
}

#[test]
fn a_receiver_that_is_not_ready_has_the_time_that_it_asked_for() {
    let mut requester = Requester::with(Attributes { rnr_retries: 1, ..attributes(FIRST_PSN) });
    requester.post(1, SEND, 300);
    requester.sent(Duration::ZERO);
    let timer = RnrTimer::new(12);
    requester.told(0, Syndrome::ReceiverNotReady(timer));
    let until = timer.duration();
    let early = until.checked_sub(Duration::from_nanos(1)).unwrap();
    assert_eq!(requester.numbers(early), []);
    assert_eq!(requester.qp.poll(early, 64, &mut requester.verbs), Some(until));
    assert_eq!(requester.numbers(until), [(O::SendFirst, 0), (O::SendLast, 1)]);
    requester.told(0, Syndrome::ReceiverNotReady(timer));
    assert_eq!(requester.ended(), [(1, Status::RnrRetryExceeded)]);
    assert_eq!(requester.qp.counts().rnr_nak_retry_err, 2);
    // Seven means forever (IBTA 9.7.5.2.8).
    let mut patient = Requester::new();
    patient.post(1, SEND, 0);
    for round in 0..100 {
        assert_eq!(patient.numbers(round * MS).len(), 1);
        patient.told(0, Syndrome::ReceiverNotReady(RnrTimer::new(1)));
    }
    assert_eq!(patient.ended(), []);
}

#[test]
fn a_fence_waits_for_reads_and_atomics() {
    for before in [READ, ADD] {
        let mut requester = Requester::new();
        requester.post(1, before, 8);
        let fenced =
            SendRequest { id: 2, operation: SEND, len: 0, signaled: true, solicited: false, fence: true };
        requester.post_request(fenced);
        assert_eq!(requester.numbers(Duration::ZERO).len(), 1);
        match before {
            READ => requester.hear(&answer(O::ReadOnly, 0, ACK, &[1; 8]), Duration::ZERO),
            _ => requester.hear(&answer(O::AtomicAcknowledge, 0, ACK, &[]), Duration::ZERO),
        }
        assert_eq!(requester.numbers(Duration::ZERO), [(O::SendOnly, 1)]);
        let expected = if before == READ { vec![1; 8] } else { 77_u64.to_ne_bytes().to_vec() };
        assert_eq!(requester.verbs.local[&1], expected);
        // The request does not wait for sends.
        requester.post_request(SendRequest { id: 3, ..fenced });
        assert_eq!(requester.numbers(Duration::ZERO), [(O::SendOnly, 2)]);
    }
}

#[test]
fn reads_are_under_way_as_many_as_agreed() {
    for (reads, expected) in [(0, 1), (1, 1), (2, 2), (4, 4)] {
        let mut requester = Requester::with(Attributes { reads, ..attributes(FIRST_PSN) });
        (0..6).for_each(|id| requester.post(id, if id % 2 == 0 { READ } else { ADD }, 8));
        assert_eq!(requester.numbers(Duration::ZERO).len(), expected);
        requester.hear(&answer(O::ReadOnly, 0, ACK, &[0; 8]), Duration::ZERO);
        assert_eq!(requester.numbers(Duration::ZERO).len(), 1);
    }
}

#[test]
fn what_a_read_lacks_is_read_again_from_there() {
    let mut requester = Requester::new();
    requester.post(1, READ, 600);
    requester.post(2, SEND, 0);
    requester.sent(Duration::ZERO);
    let part = [1; 256];
    requester.hear(&answer(O::ReadFirst, 0, ACK, &part), Duration::ZERO);
    // The middle one was lost. Those after it report the loss only once.
    requester.hear(&answer(O::ReadLast, 2, ACK, &part[..88]), Duration::ZERO);
    let sent = requester.sent(Duration::ZERO);
    let reth = Reth { address: ADDRESS + 256, rkey: READ_ONLY, len: 344 };
    assert_eq!((sent[0].0, sent[0].1.number, sent[0].1.reth), (O::ReadRequest, 1, Some(reth)));
    assert_eq!((sent[1].0, sent.len()), (O::SendOnly, 2));
    requester.told(3, ACK);
    assert_eq!(requester.sent(Duration::ZERO), []);
    assert_eq!(requester.qp.counts().implied_nak_seq_err, 2);
    requester.hear(&answer(O::ReadFirst, 1, ACK, &[2; 256]), Duration::ZERO);
    requester.hear(&answer(O::ReadLast, 2, ACK, &[3; 88]), Duration::ZERO);
    assert_eq!(requester.ended(), [(1, Status::Success)]);
    let read = &requester.verbs.local[&1];
    assert_eq!((read[255], read[256], read[511], read[512], read.len()), (1, 2, 2, 3, 600));
    requester.told(3, ACK);
    assert_eq!(requester.ended(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_response_tells_that_sends_before_it_are_done() {
    let mut requester = Requester::new();
    requester.post(1, SEND, 300);
    requester.post(2, READ, 8);
    requester.sent(Duration::ZERO);
    // A response to a request that is not a READ changes nothing.
    requester.hear(&answer(O::ReadOnly, 1, ACK, &[1; 8]), Duration::ZERO);
    assert_eq!(requester.ended(), []);
    requester.hear(&answer(O::ReadOnly, 2, ACK, &[1; 8]), Duration::ZERO);
    assert_eq!(requester.ended(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_read_is_not_done_by_an_acknowledgement() {
    let mut requester = Requester::new();
    requester.post(1, SEND, 0);
    requester.post(2, READ, 8);
    requester.post(3, SEND, 0);
    requester.sent(Duration::ZERO);
    requester.told(2, ACK);
    assert_eq!(requester.ended(), [(1, Status::Success)]);
    assert_eq!(requester.numbers(Duration::ZERO), [(O::ReadRequest, 1), (O::SendOnly, 2)]);
}

#[test]
fn what_is_unsignaled_ends_silently_unless_it_fails() {
    let mut requester = Requester::new();
    let quiet =
        |id| SendRequest { id, operation: SEND, len: 5, signaled: false, solicited: false, fence: false };
    (1..=3).for_each(|id| requester.post_request(quiet(id)));
    requester.sent(Duration::ZERO);
    requester.told(0, ACK);
    requester.told(1, Syndrome::Nak(Nak::RemoteAccessError));
    assert_eq!(requester.ended(), [(2, Status::RemoteAccess), (3, Status::Flushed)]);
    assert_eq!(requester.verbs.completions[0].len, 5);
}

#[test]
fn packets_of_others_are_left_alone() {
    let mut requester = Requester::new();
    requester.post(1, SEND, 0);
    requester.sent(Duration::ZERO);
    let right = answer(O::Acknowledge, 0, ACK, &[]);
    let mut other = right;
    other.bth.opcode = Opcode::of(Service::Uc, O::SendOnly).unwrap();
    requester.hear(&Datagram { aeth: None, ..other }, Duration::ZERO);
    let mut other = right;
    other.bth.partition = 0xfffe;
    requester.hear(&other, Duration::ZERO);
    assert_eq!(requester.ended(), []);
    // The highest bit says whether one is a full member; it does not matter here.
    let mut limited = right;
    limited.bth.partition = 0x7fff;
    requester.hear(&limited, Duration::ZERO);
    assert_eq!(requester.ended(), [(1, Status::Success)]);
}

/// The codes of `ibv_mtu` (verbs.h).
#[test]
fn path_mtus_have_their_codes() {
    let known: Vec<_> = (0..10).map(|code| Mtu::from_code(code).map(Mtu::bytes)).collect();
    let expected = [256, 512, 1024, 2048, 4096].map(Some);
    assert_eq!((known[0], &known[1..6], &known[6..]), (None, &expected[..], &[None; 4][..]));
}
