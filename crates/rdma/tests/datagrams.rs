//! Unreliable datagrams.

use crate::common::{PEER, Surroundings};
use packet::roce::{self, Deth, Opcode, Operation, Service};
use rdma::{
    Arrival, Completion, DatagramAttributes, DatagramPair, Destination, LeftOut, Mtu, NETWORK_HEADER,
    Received, SendOperation, SendRequest, State, Status, With,
};

const KEY: u32 = 0x1111_1111;
const HEADER: [u8; NETWORK_HEADER] = [0x45; NETWORK_HEADER];

fn pair(number: u32) -> DatagramPair {
    let (mtu, partition, send_psn) = (Mtu::Bytes1024, 0xffff, 0xff_ffff);
    DatagramPair::new(DatagramAttributes { mtu, partition, number, queue_key: KEY, send_psn })
}

fn request(id: u64, len: u32) -> SendRequest {
    let operation = SendOperation::Send(With::Immediate([1, 2, 3, 4]));
    SendRequest { id, operation, len, signaled: true, solicited: true, fence: false }
}

fn to(queue_key: u32) -> Destination {
    Destination { address: PEER, queue_pair: 22, queue_key }
}

/// Returns the packet of a message of `len` bytes, sent to a queue pair with this key.
fn sent(len: u32, queue_key: u32) -> Vec<u8> {
    let mut verbs = Surroundings::default();
    verbs.local.insert(1, (0..len).map(|i| i as u8).collect());
    pair(11).send(&request(1, len), &to(queue_key), &mut verbs);
    assert_eq!(verbs.completions, [Completion { id: 1, status: Status::Success, len, received: None }]);
    verbs.sent().unwrap()
}

fn received(receive: u32, packet: &[u8]) -> (DatagramPair, Surroundings, Result<(), LeftOut>) {
    let (mut pair, mut verbs) = (pair(22), Surroundings::default());
    verbs.post_receive(9, receive);
    let result = pair.receive(&roce::parse(packet).unwrap(), &HEADER, &mut verbs);
    (pair, verbs, result)
}

#[test]
fn a_message_comes_with_its_network_header() {
    // The highest bit stands for the sender's own key, which is the same here.
    for (len, key) in [(0, KEY), (5, KEY), (1024, 1 << 31 | 7)] {
        let (_, verbs, result) = received(2000, &sent(len, key));
        assert_eq!(result, Ok(()));
        let all = NETWORK_HEADER as u32 + len;
        let came = Received {
            by: Arrival::Send,
            immediate: Some([1, 2, 3, 4]),
            invalidated: None,
            solicited: true,
            source: Some(11),
            by_ipv4: true,
        };
        let done = Completion { id: 9, status: Status::Success, len: all, received: Some(came) };
        assert_eq!(verbs.completions, [done]);
        let bytes = &verbs.memory.received[&9];
        assert_eq!(bytes[..NETWORK_HEADER], HEADER);
        assert!(bytes[NETWORK_HEADER..].iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }
}

#[test]
fn what_is_not_for_it_is_left_out() {
    let (pair, verbs, result) = received(2000, &sent(5, KEY + 1));
    assert_eq!((result, pair.state()), (Err(LeftOut::QueueKey), State::ReadyToSend));
    assert_eq!(verbs.completions, []);
    let mut foreign = sent(5, KEY);
    foreign[2] ^= 1;
    assert_eq!(received(2000, &foreign).2, Err(LeftOut::Partition));
}

#[test]
fn a_receive_that_is_too_short_serves_the_next_message() {
    let (mut pair, mut verbs, result) = received(44, &sent(5, KEY));
    assert_eq!((result, &verbs.completions[..]), (Err(LeftOut::Length), &[][..]));
    let shorter = sent(4, KEY);
    let shorter = roce::parse(&shorter).unwrap();
    assert_eq!(pair.receive(&shorter, &HEADER, &mut verbs), Ok(()));
    assert_eq!((verbs.completions[0].id, verbs.completions[0].len), (9, 44));
    assert_eq!(pair.receive(&shorter, &HEADER, &mut verbs), Err(LeftOut::NotReady));
    // A receive of a shared queue does not wait here.
    verbs.shares_receives = true;
    verbs.post_receive(10, 43);
    assert_eq!(pair.receive(&shorter, &HEADER, &mut verbs), Err(LeftOut::Length));
    assert_eq!((verbs.completions[1].id, verbs.completions[1].status), (10, Status::LocalLength));
}

#[test]
fn what_cannot_be_sent_stops_the_send_queue_alone() {
    let read = SendOperation::Read { address: 0, rkey: 0 };
    for (request, status) in [
        (request(1, 1025), Status::LocalLength),
        (request(77, 5), Status::LocalProtection),
        (SendRequest { operation: read, ..request(1, 5) }, Status::LocalOperation),
    ] {
        let (mut pair, mut verbs) = (pair(11), Surroundings::default());
        verbs.local.insert(1, vec![0; 2000]);
        verbs.post_receive(9, 100);
        let good = self::request(1, 5);
        pair.send(&request, &to(KEY), &mut verbs);
        pair.send(&good, &to(KEY), &mut verbs);
        assert_eq!((pair.state(), verbs.sent()), (State::SendQueueError, None));
        let came = sent(5, KEY);
        assert_eq!(pair.receive(&roce::parse(&came).unwrap(), &HEADER, &mut verbs), Ok(()));
        pair.resume();
        pair.send(&good, &to(KEY), &mut verbs);
        assert!(verbs.sent().is_some());
        let ended: Vec<_> = verbs.completions.iter().map(|done| (done.id, done.status)).collect();
        let success = Status::Success;
        assert_eq!(ended, [(request.id, status), (1, Status::Flushed), (9, success), (1, success)]);
        pair.fail(&mut verbs);
        pair.resume();
        assert_eq!(pair.state(), State::Error);
    }
}

/// Returns a message as it is sent, with this queue key.
fn packet(request: &SendRequest, queue_key: u32) -> Vec<u8> {
    let mut verbs = Surroundings::default();
    verbs.local.insert(request.id, vec![7; request.len as usize]);
    pair(11).send(request, &to(queue_key), &mut verbs);
    verbs.sent().unwrap()
}

#[test]
fn a_packet_says_who_sends_what_to_whom() {
    let plain =
        SendRequest { operation: SendOperation::Send(With::Nothing), solicited: false, ..request(1, 5) };
    for (request, operation, immediate) in [
        (plain, Operation::SendOnly, None),
        (request(1, 5), Operation::SendOnlyImmediate, Some([1, 2, 3, 4])),
    ] {
        let bytes = packet(&request, 9);
        let packet = roce::parse(&bytes).unwrap();
        assert_eq!(packet.bth.opcode, Opcode::Of(Service::Ud, operation));
        assert_eq!((packet.bth.destination, packet.bth.psn, packet.bth.partition), (22, 0xff_ffff, 0xffff));
        assert_eq!((packet.bth.solicited, packet.bth.acknowledge), (request.solicited, false));
        assert_eq!(packet.deth, Some(Deth { queue_key: 9, source: 11 }));
        assert_eq!((packet.immediate, packet.payload), (immediate, &[7; 5][..]));
    }
    // The highest bit stands for the sender's own key.
    for (asked, said) in [(0x7fff_ffff, 0x7fff_ffff), (1 << 31, KEY), (u32::MAX, KEY), (0, 0)] {
        assert_eq!(roce::parse(&packet(&plain, asked)).unwrap().deth.unwrap().queue_key, said);
    }
}

#[test]
fn packets_are_numbered_one_after_the_other() {
    let (mut pair, mut verbs) = (pair(11), Surroundings::default());
    verbs.local.insert(1, vec![0; 2000]);
    let mut number = |len| {
        pair.send(&request(1, len), &to(KEY), &mut verbs);
        pair.resume();
        verbs.sent().map(|bytes| roce::parse(&bytes).unwrap().bth.psn)
    };
    // A message that is not sent gets no number.
    assert_eq!([5, 1025, 5, 1024].map(&mut number), [Some(0xff_ffff), None, Some(0), Some(1)]);
}

#[test]
fn who_asks_for_no_completion_gets_one_of_a_failure() {
    for (signaled, len, status) in [
        (true, 5, Some(Status::Success)),
        (false, 5, None),
        (true, 1025, Some(Status::LocalLength)),
        (false, 1025, Some(Status::LocalLength)),
    ] {
        let (mut pair, mut verbs) = (pair(11), Surroundings::default());
        verbs.local.insert(1, vec![0; 2000]);
        pair.send(&SendRequest { signaled, ..request(1, len) }, &to(KEY), &mut verbs);
        let ended: Vec<_> = verbs.completions.iter().map(|done| done.status).collect();
        assert_eq!(ended, Vec::from_iter(status));
        let failed = status.is_some_and(|status| status != Status::Success);
        assert_eq!(pair.state() == State::SendQueueError, failed);
    }
}

/// The highest bit of a partition key only says whether one is a full member.
#[test]
fn a_message_is_for_members_of_the_partition() {
    for (theirs, ours, is_received) in [
        (0xffff, 0xffff, true),
        (0x7fff, 0xffff, true),
        (0xffff, 0x7fff, true),
        (0x7ffe, 0xffff, false),
        (0xffff, 0xbfff, false),
        (0x8001, 0x0001, true),
        (0x8001, 0x0003, false),
    ] {
        let bytes = packet(&request(1, 5), KEY);
        let mut packet = roce::parse(&bytes).unwrap();
        packet.bth.partition = theirs;
        let (mtu, number) = (Mtu::Bytes1024, 22);
        let attributes = DatagramAttributes { mtu, partition: ours, number, queue_key: KEY, send_psn: 0 };
        let (mut pair, mut verbs) = (DatagramPair::new(attributes), Surroundings::default());
        verbs.post_receive(9, 100);
        let result = pair.receive(&packet, &HEADER, &mut verbs);
        assert_eq!(result, if is_received { Ok(()) } else { Err(LeftOut::Partition) }, "{theirs:x} {ours:x}");
    }
}

#[test]
fn a_queue_key_may_change() {
    let (mut pair, mut verbs) = (pair(22), Surroundings::default());
    verbs.post_receive(9, 100);
    pair.set_queue_key(5);
    let mut receive = |key| pair.receive(&roce::parse(&sent(5, key)).unwrap(), &HEADER, &mut verbs);
    assert_eq!((receive(KEY), receive(5)), (Err(LeftOut::QueueKey), Ok(())));
}

#[test]
fn a_pair_that_failed_takes_nothing() {
    let (mut pair, mut verbs, _) = received(44, &sent(5, KEY));
    verbs.post_receive(10, 100);
    pair.fail(&mut verbs);
    // The receive that was too short for a message comes first.
    let ended: Vec<_> = verbs.completions.iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(ended, [(9, Status::Flushed), (10, Status::Flushed)]);
    verbs.post_receive(11, 100);
    let came = sent(5, KEY);
    assert_eq!(pair.receive(&roce::parse(&came).unwrap(), &HEADER, &mut verbs), Err(LeftOut::Foreign));
    pair.send(&request(1, 5), &to(KEY), &mut verbs);
    assert_eq!((verbs.completions.len(), verbs.completions[2].status), (3, Status::Flushed));
    assert_eq!((verbs.sent(), pair.state()), (None, State::Error));
}

#[test]
fn it_is_told_whether_it_came_by_ipv6() {
    for (first, by_ipv4) in [(0x60, false), (0x6f, false), (0, true)] {
        let (mut pair, mut verbs) = (pair(22), Surroundings::default());
        verbs.post_receive(9, 2000);
        let mut header = HEADER;
        header[0] = first;
        pair.receive(&roce::parse(&sent(5, KEY)).unwrap(), &header, &mut verbs).unwrap();
        assert_eq!(verbs.completions[0].received.unwrap().by_ipv4, by_ipv4);
    }
}
