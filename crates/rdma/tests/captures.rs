//! The responder, compared with Linux's: the same requests get the same answers.

use crate::recordings as captures;

use packet::Headers;
use packet::roce::{self, Datagram, Nak, Opcode, Operation, RnrTimer, Service, Syndrome};
use rdma::{
    Access, AtomicOperation, Attributes, Completion, Fault, Mtu, Payload, QueuePair, SendRequest, Verbs,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// The compared parts of answers: opcode, PSN, syndrome and MSN, length.
type Answer = (Operation, u32, Option<(Syndrome, u32)>, usize);

fn answer(packet: &Datagram<'_>) -> Option<Answer> {
    let Opcode::Of(Service::Rc, operation) = packet.bth.opcode else { return None };
    let aeth = packet.aeth.map(|aeth| (aeth.syndrome, aeth.msn));
    operation.is_answer().then_some((operation, packet.bth.psn, aeth, packet.payload.len()))
}

/// The responder's surroundings, as far as the capture shows them.
#[derive(Default)]
struct Captured {
    /// The bytes that READs returned.
    memory: BTreeMap<u64, u8>,
    /// The values that atomics returned.
    originals: VecDeque<u64>,
    /// The result of the next request.
    next: Option<Syndrome>,
    receives: u32,
    answers: Vec<Answer>,
}

impl Captured {
    fn refused(&self, nak: Nak, fault: Fault) -> Result<(), Fault> {
        if self.next == Some(Syndrome::Nak(nak)) { Err(fault) } else { Ok(()) }
    }
}

impl Verbs for Captured {
    fn scatter(&mut self, _: &SendRequest, _: u32, _: &[u8]) -> Result<(), Fault> {
        unreachable!("nothing is sent")
    }

    fn take_receive(&mut self) -> Option<u64> {
        self.receives = self.receives.checked_sub(1)?;
        Some(0)
    }

    fn take_flushed(&mut self) -> Option<u64> {
        self.take_receive()
    }

    fn shares_receives(&self) -> bool {
        false
    }

    fn fill(&mut self, _: u32, _: &[u8]) -> Result<(), Fault> {
        self.refused(Nak::RemoteOperationalError, Fault::Length)
    }

    fn check(&mut self, _: u32, _: u64, _: u32, _: Access) -> Result<(), Fault> {
        self.refused(Nak::RemoteAccessError, Fault::Protection)
    }

    fn write(&mut self, _: u32, _: u64, _: &[u8], _: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn atomic(&mut self, _: u32, _: u64, _: AtomicOperation) -> Result<u64, Fault> {
        Ok(self.originals.pop_front().unwrap())
    }

    fn invalidate(&mut self, _: u32) -> Result<(), Fault> {
        Ok(())
    }

    fn complete(&mut self, _: Completion) {}

    fn send(&mut self, _: Option<u32>, packet: &Datagram<'_>, payload: Payload<'_>) -> Result<(), Fault> {
        let bytes: Vec<u8> = match payload {
            Payload::None => Vec::new(),
            Payload::Message { .. } => unreachable!("nothing is sent"),
            Payload::Region { address, len, .. } => {
                (address..address + u64::from(len)).map(|at| self.memory[&at]).collect()
            }
        };
        self.answers.extend(answer(&Datagram { payload: &bytes, ..*packet }));
        Ok(())
    }
}

/// Requests of one side to the other's only queue pair, and their answers, as UDP payloads in order.
struct Conversation {
    requests_and_answers: Vec<(bool, Vec<u8>)>,
}

/// Returns the conversations of a capture, one for each direction, where each side has one connected queue pair.
fn conversations(frames: &[Vec<u8>]) -> Vec<Conversation> {
    let mut packets = Vec::new();
    for frame in frames {
        let source = Headers::ethernet(frame, 0, frame.len()).unwrap().ip().unwrap().src;
        let (packet, at) = captures::ip_packet(frame);
        let payload = packet[at..].to_vec();
        let parsed = roce::parse(&payload).unwrap();
        if let Opcode::Of(Service::Rc, operation) = parsed.bth.opcode {
            packets.push((source, parsed.bth.destination, operation.is_answer(), payload.clone()));
        }
    }
    let mut pairs: BTreeMap<IpAddr, Vec<u32>> = BTreeMap::new();
    for (source, destination, ..) in &packets {
        let known = pairs.entry(*source).or_default();
        if !known.contains(destination) {
            known.push(*destination);
        }
    }
    if pairs.values().any(|known| known.len() > 1) {
        return Vec::new();
    }
    let conversation = |requester: &IpAddr| {
        let of = packets.iter().filter(|(source, _, is_answer, _)| (source == requester) != *is_answer);
        Conversation {
            requests_and_answers: of
                .map(|(_, _, is_answer, payload)| (*is_answer, payload.clone()))
                .collect(),
        }
    };
    pairs
        .keys()
        .map(conversation)
        .filter(|c| c.requests_and_answers.iter().any(|(answer, _)| !answer))
        .collect()
}

impl Conversation {
    fn parsed(&self, answers: bool) -> impl Iterator<Item = Datagram<'_>> {
        let of = self.requests_and_answers.iter().filter(move |(is_answer, _)| *is_answer == answers);
        of.map(|(_, payload)| roce::parse(payload).unwrap())
    }

    fn mtu(&self) -> Mtu {
        let longest = self.parsed(false).chain(self.parsed(true)).map(|packet| packet.payload.len()).max();
        if longest.unwrap() <= 256 { Mtu::Bytes256 } else { Mtu::Bytes1024 }
    }

    /// Returns surroundings that contain the results of READs and atomics.
    fn surroundings(&self) -> Captured {
        let mut found = Captured::default();
        let mtu = u32::from(self.mtu().bytes());
        for request in self.parsed(false) {
            let Some(reth) =
                request.reth.filter(|_| request.bth.opcode.operation() == Some(Operation::ReadRequest))
            else {
                continue;
            };
            for answer in self.parsed(true) {
                let packets = answer.bth.psn.wrapping_sub(request.bth.psn) & 0xff_ffff;
                if answer.aeth.is_none_or(|_| !answer.payload.is_empty()) && packets < reth.len.div_ceil(mtu)
                {
                    let address = reth.address + u64::from(packets * mtu);
                    found.memory.extend((address..).zip(answer.payload.iter().copied()));
                }
            }
        }
        found.originals = self.parsed(true).filter_map(|answer| answer.original).collect();
        found
    }

    /// Returns Linux's answers, and ours.
    fn replay(&self) -> (Vec<Answer>, Vec<Answer>) {
        let first = self.parsed(false).next().unwrap().bth;
        let mut verbs = self.surroundings();
        let mut qp = QueuePair::new(Attributes {
            reliable: true,
            mtu: self.mtu(),
            partition: first.partition,
            destination: 1,
            send_psn: 0,
            receive_psn: first.psn,
            timeout: 14,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: RnrTimer::new(14),
            reads: 16,
            peer_reads: 16,
        });
        let answers: Vec<_> = self.parsed(true).filter_map(|packet| answer(&packet)).collect();
        for request in self.parsed(false) {
            let refusal = |(_, psn, aeth, _): &Answer| {
                let (syndrome, _) = aeth.filter(|_| *psn == request.bth.psn)?;
                (!matches!(syndrome, Syndrome::Ack(_))).then_some(syndrome)
            };
            verbs.next = answers.get(verbs.answers.len()).and_then(refusal);
            verbs.receives = u32::from(!matches!(verbs.next, Some(Syndrome::ReceiverNotReady(_))));
            qp.receive(&request, Duration::ZERO, &mut verbs);
            qp.poll(Duration::ZERO, usize::MAX, &mut verbs);
        }
        (answers, verbs.answers)
    }
}

/// Captures without retransmissions.
const CLEAN: [&str; 8] = [
    "cm-rping",
    "mix-nak-rkey",
    "mix-rc-ops",
    "mix-rc-ops-mtu256",
    "rc-read-64",
    "rc-send-bw-2049",
    "rc-write-64",
    "rc-write-8192",
];

#[test]
fn requests_are_answered_as_linux_does() {
    let captures = captures::roce();
    let mut replayed = 0;
    for name in CLEAN {
        let (_, frames) = captures.iter().find(|(each, _)| each == name).unwrap();
        let conversations = conversations(frames);
        assert!(!conversations.is_empty(), "{name}");
        for conversation in conversations {
            let (linux, ours) = conversation.replay();
            assert_eq!(ours, linux, "{name}");
            replayed += linux.len();
        }
    }
    assert!(replayed > 150, "{replayed}");
}

/// IBTA 9.7.5.2.8: a message longer than its receive is an invalid request. Linux 6.1 reports an operational error.
#[test]
fn a_message_too_long_is_an_invalid_request() {
    let captures = captures::roce();
    let (_, frames) = captures.iter().find(|(name, _)| name == "mix-nak-len").unwrap();
    let (linux, ours) = conversations(frames)[0].replay();
    let syndrome = |answers: &[Answer]| answers.last().and_then(|(_, _, aeth, _)| *aeth).unwrap();
    assert_eq!(syndrome(&linux).0, Syndrome::Nak(Nak::RemoteOperationalError));
    assert_eq!(syndrome(&ours).0, Syndrome::Nak(Nak::InvalidRequest));
    assert_eq!(syndrome(&ours).1, syndrome(&linux).1);
}

/// IBTA 9.7.5.2.8: packets after one that must be repeated are dropped. Linux 6.1 asks for it as if it were lost.
#[test]
fn a_receiver_that_is_not_ready_says_so_alone() {
    let captures = captures::roce();
    let (_, frames) = captures.iter().find(|(name, _)| name == "mix-rnr-nak").unwrap();
    let (linux, ours) = conversations(frames)[0].replay();
    assert!(matches!(ours[0].2, Some((Syndrome::ReceiverNotReady(timer), 0)) if timer.code() == 14));
    assert_eq!(ours[0], linux[0]);
    let is_lost = |answer: &Answer| matches!(answer.2, Some((Syndrome::Nak(Nak::PsnSequenceError), _)));
    assert!(linux.iter().any(is_lost) && !ours.iter().any(is_lost), "{ours:?}");
}
