//! Two queue pairs. Each treats what the other sends as hostile, and also receives packets from others.

use super::guarded::{ADDRESS, Guarded, RKEY, SIZE, Work};
use crate::moves::Moves;
use packet::roce::{
    self, Aeth, Atomic, Bth, Datagram, Deth, Opcode, Operation, Reth, RnrTimer, Service, Syndrome,
};
use proptest::collection::vec;
use proptest::prelude::*;
use rdma::{
    AtomicOperation, Attributes, DatagramAttributes, DatagramPair, Destination, Mtu, NETWORK_HEADER,
    QueuePair, SendOperation, SendRequest, State, With,
};
use std::time::Duration;

/// Largest number of moves of an input, and of requests that wait at a side.
const MOVES: usize = 512;
const MOST_POSTED: usize = 32;
/// Largest number of calls to its surroundings that a queue pair makes for an incoming packet, without completions.
const CALLS: usize = 5;

pub struct Side {
    qp: QueuePair,
    attributes: Attributes,
    pub verbs: Guarded,
    /// The PSN that the side expects, as far as can be told from outside.
    expects: u32,
}

fn any_attributes(moves: &mut Moves<'_>) -> Attributes {
    let first_psn = [0, 5, 0xff_fffc, 0x7f_fffe][moves.below(4)];
    Attributes {
        reliable: moves.below(4) != 0,
        mtu: [Mtu::Bytes256, Mtu::Bytes1024][moves.below(2)],
        partition: 0xffff,
        destination: 17,
        send_psn: first_psn,
        receive_psn: first_psn,
        timeout: moves.byte() & 15,
        retries: moves.byte() & 7,
        rnr_retries: moves.byte() & 7,
        rnr_timer: RnrTimer::new(1),
        reads: moves.byte() & 3,
        peer_reads: moves.byte() & 3,
    }
}

/// Returns attributes of a reliable connection.
pub fn attributes() -> Attributes {
    any_attributes(&mut Moves(&[0, 1]))
}

fn length(moves: &mut Moves<'_>) -> u32 {
    match moves.below(4) {
        0 => moves.byte().into(),
        1 => [0, 1, 255, 256, 257, 512, 1024, 1025][moves.below(8)],
        2 => moves.word() % (SIZE + 2),
        _ => moves.word(),
    }
}

/// Returns an address and a length, mostly within the region.
fn place(moves: &mut Moves<'_>) -> (u64, u32) {
    let address = match moves.below(4) {
        0 => u64::from(moves.word()) << 32 | u64::from(moves.word()),
        1 => ADDRESS + u64::from(moves.word() % (2 * SIZE)),
        _ => ADDRESS + 8 * u64::from(moves.byte()),
    };
    (address, length(moves))
}

fn request(moves: &mut Moves<'_>, id: u64) -> SendRequest {
    let (address, len) = place(moves);
    let rkey = RKEY;
    let operation = match moves.below(8) {
        0 => SendOperation::Send(With::Immediate([1; 4])),
        1 => SendOperation::Send(With::Invalidate(RKEY + u32::from(moves.byte() & 1))),
        2 => SendOperation::Write { address, rkey, immediate: None },
        3 => SendOperation::Write { address, rkey, immediate: Some([2; 4]) },
        4 => SendOperation::Read { address, rkey },
        5 => SendOperation::Atomic { address, rkey, operation: AtomicOperation::FetchAdd(1) },
        _ => SendOperation::Send(With::Nothing),
    };
    SendRequest { id, operation, len, signaled: true, solicited: moves.flag(), fence: moves.flag() }
}

/// Returns a packet of any kind, with the headers of its kind and numbers close to the expected ones.
fn forged(moves: &mut Moves<'_>, attributes: &Attributes, expects: u32) -> Vec<u8> {
    let opcode = Opcode::from_byte(match moves.below(8) {
        0 => moves.byte(),
        _ if attributes.reliable => moves.byte() % 0x18,
        _ => 0x20 + moves.byte() % 0x0c,
    })
    .unwrap_or(Opcode::CongestionNotification);
    let operation = opcode.operation();
    let has = |header: fn(Operation) -> bool| operation.is_some_and(header);
    let psn = expects.wrapping_add(match moves.below(16) {
        0 => moves.word(),
        1 => u32::from(moves.byte()),
        2..5 => (moves.below(4) as u32).wrapping_neg(),
        _ => 0,
    });
    let (address, len) = place(moves);
    let rkey = if moves.below(8) == 0 { moves.word() } else { RKEY };
    let mtu = usize::from(attributes.mtu.bytes());
    let payload =
        vec![0xdd; [0, 1, mtu, mtu, mtu - 1, usize::from(moves.byte()), mtu + 1, 4096][moves.below(8)]];
    let len = if moves.flag() { len } else { payload.len() as u32 };
    let syndrome = Syndrome::from_byte(moves.byte()).unwrap_or(Syndrome::NO_CREDITS);
    let packet = Datagram {
        bth: Bth {
            opcode,
            solicited: moves.flag(),
            migrated: true,
            partition: if moves.below(32) == 0 { 0x1234 } else { 0xffff },
            forward_congestion: false,
            backward_congestion: false,
            destination: 17,
            acknowledge: moves.flag(),
            psn: psn & 0xff_ffff,
        },
        deth: matches!(opcode, Opcode::Of(Service::Ud, _))
            .then_some(Deth { queue_key: u32::from(moves.byte() & 1), source: 1 }),
        reth: has(Operation::has_reth).then_some(Reth { address, rkey, len }),
        atomic: has(Operation::has_atomic).then_some(Atomic { address, rkey, swap_add: 1, compare: 5 }),
        aeth: has(Operation::has_aeth).then_some(Aeth { syndrome, msn: 0 }),
        original: (operation == Some(Operation::AtomicAcknowledge)).then_some(1),
        immediate: has(Operation::has_immediate).then_some([0; 4]),
        invalidate: has(Operation::has_invalidate).then_some(rkey.wrapping_add(1)),
        payload: if has(Operation::has_payload) { &payload } else { &[] },
    };
    let mut out = vec![0; 8192];
    let written = roce::write(&packet, &mut out).unwrap_or(0);
    out.truncate(written);
    out
}

impl Side {
    pub fn new(attributes: Attributes, shares_receives: bool) -> Self {
        let verbs = Guarded::new(shares_receives);
        Self { qp: QueuePair::new(attributes), attributes, verbs, expects: attributes.receive_psn }
    }

    /// Returns the header of a packet to this side.
    pub fn bth(&self, operation: Operation) -> Bth {
        let service = if self.attributes.reliable { Service::Rc } else { Service::Uc };
        Bth {
            opcode: Opcode::Of(service, operation),
            solicited: false,
            migrated: true,
            partition: 0xffff,
            forward_congestion: false,
            backward_congestion: false,
            destination: 17,
            acknowledge: true,
            psn: 0,
        }
    }

    /// Counts the requests that wait for their completion.
    fn waiting(&self) -> usize {
        self.verbs.due.len() + self.verbs.taken.len() + self.verbs.posted.len()
    }

    pub fn receive(&mut self, bytes: &[u8], now: Duration) {
        let Ok(packet) = roce::parse(bytes) else { return };
        if packet.bth.psn == self.expects & 0xff_ffff && packet.aeth.is_none() {
            let reads = matches!(packet.bth.opcode, Opcode::Of(_, Operation::ReadRequest));
            let len = packet.reth.filter(|_| reads).map_or(0, |reth| reth.len);
            self.expects = self.expects.wrapping_add(len.div_ceil(self.attributes.mtu.bytes().into()).max(1));
        }
        let before = self.waiting();
        self.verbs.work = Work::default();
        self.qp.receive(&packet, now, &mut self.verbs);
        let work = self.verbs.work;
        assert_eq!(work.sent, 0, "packets are sent by poll");
        assert!(work.completed <= before && work.calls <= CALLS + before, "{work:?}, {before} wait");
    }

    pub fn poll(&mut self, now: Duration, budget: usize) {
        self.verbs.work = Work::default();
        let (before, next) = (self.waiting(), self.qp.poll(now, budget, &mut self.verbs));
        let work = self.verbs.work;
        assert!(work.sent <= budget && work.completed <= before, "{work:?} of {budget}, {before} wait");
        // The number of waiting answers does not grow with the number of packets that came in.
        let most = 2 * (2 * usize::from(self.attributes.peer_reads) + 1);
        assert!(work.acknowledgements <= most, "{work:?}");
        assert!(
            next.is_none_or(|next| next > now) || work.sent == budget || self.qp.state() == State::Error,
            "it would spin"
        );
    }

    fn post(&mut self, moves: &mut Moves<'_>) {
        // The owner of a queue pair accepts no requests before it is ready to send.
        if self.verbs.due.len() < MOST_POSTED && self.qp.state() != State::ReadyToReceive {
            let id = self.verbs.name();
            let request = request(moves, id);
            self.verbs.due.insert(id, request);
            self.qp.post_send(request, &mut self.verbs);
        }
    }

    fn control(&mut self, moves: &mut Moves<'_>) {
        match moves.below(16) {
            0 => self.qp.fail(&mut self.verbs),
            1 => self.qp.resume(),
            2 => self.verbs.gone = moves.flag(),
            3 => self.qp.set_rnr_timer(RnrTimer::new(moves.byte() & 31)),
            4 => assert!(self.qp.counts().out_of_sequence < MOVES as u64),
            _ => {
                self.qp.ready_to_send(self.attributes);
                assert_ne!(self.qp.state(), State::ReadyToReceive);
            }
        }
    }

    /// Ends the queue pair, and checks that each request is completed once.
    pub fn end(mut self) {
        self.qp.fail(&mut self.verbs);
        self.qp.poll(Duration::MAX / 2, 1000, &mut self.verbs);
        assert_eq!((self.qp.state(), self.qp.is_sending()), (State::Error, false));
        assert!(self.verbs.due.is_empty() && self.verbs.taken.is_empty(), "requests are lost");
        assert!(self.verbs.posted.is_empty() || self.verbs.shares_receives);
    }
}

/// Run a fuzzer with `cargo bolero test transport::pair -p rdma`.
#[test]
fn pair() {
    bolero::check!().for_each(|bytes: &[u8]| hostile_pair(bytes));
}

/// Run a fuzzer with `cargo bolero test transport::datagrams -p rdma`.
#[test]
fn datagrams() {
    bolero::check!().for_each(|bytes: &[u8]| hostile_datagrams(bytes));
}

proptest! {
    /// Without a fuzzer, inputs are short; these are long.
    #[test]
    fn at_random(bytes in vec(any::<u8>(), 0..4000)) {
        hostile_pair(&bytes);
        hostile_datagrams(&bytes);
    }
}

fn hostile_pair(bytes: &[u8]) {
    let mut moves = Moves(bytes);
    let attributes = any_attributes(&mut moves);
    let shared = moves.flag();
    let mut sides = [(); 2].map(|()| Side::new(attributes, shared));
    let mut now = Duration::ZERO;
    for _ in 0..MOVES {
        if moves.is_over() {
            break;
        }
        let which = moves.below(2);
        let [a, b] = &mut sides;
        let (side, peer) = if which == 0 { (a, b) } else { (b, a) };
        match moves.below(16) {
            0..4 => {
                let bytes = forged(&mut moves, &attributes, side.expects);
                side.receive(&bytes, now);
            }
            4..8 => {
                let Some(mut bytes) = peer.verbs.out.pop_front() else { continue };
                if moves.below(4) == 0 {
                    let at = moves.below(bytes.len());
                    bytes[at] ^= moves.byte();
                }
                if moves.below(8) == 0 {
                    peer.verbs.out.push_back(bytes.clone());
                }
                side.receive(&bytes, now);
            }
            8 | 9 => side.post(&mut moves),
            10 | 11 => {
                if side.verbs.posted.len() < MOST_POSTED && side.qp.state() != State::Error {
                    side.verbs.post_receive(length(&mut moves));
                }
            }
            12 | 13 => side.poll(now, [1, 4, 16, 1000][moves.below(4)]),
            14 => now += Duration::from_micros(moves.word().into()),
            _ => side.control(&mut moves),
        }
    }
    sides.into_iter().for_each(Side::end);
}

fn hostile_datagrams(bytes: &[u8]) {
    let mut moves = Moves(bytes);
    let connection = any_attributes(&mut moves);
    let attributes = DatagramAttributes {
        number: 17,
        mtu: connection.mtu,
        partition: 0xffff,
        queue_key: 1,
        send_psn: connection.send_psn,
    };
    let mut verbs = Guarded::new(moves.flag());
    let mut pair = DatagramPair::new(attributes);
    for _ in 0..MOVES {
        if moves.is_over() {
            break;
        }
        verbs.work = Work::default();
        match moves.below(8) {
            0..4 => {
                let bytes = forged(&mut moves, &connection, 0);
                if let Ok(packet) = roce::parse(&bytes) {
                    let before = verbs.posted.len() + verbs.taken.len();
                    let _ = pair.receive(&packet, &[0; NETWORK_HEADER], &mut verbs);
                    assert!(verbs.work.calls <= CALLS + before && verbs.work.completed <= before);
                }
            }
            4 | 5 => {
                if verbs.posted.len() < MOST_POSTED {
                    verbs.post_receive(length(&mut moves));
                }
            }
            6 => verbs.gone = moves.flag(),
            _ => {
                let id = verbs.name();
                let request = request(&mut moves, id);
                let to = Destination { address: 3, queue_pair: 18, queue_key: moves.word() };
                verbs.due.insert(id, request);
                pair.send(&request, &to, &mut verbs);
                assert!(verbs.due.is_empty() && verbs.work.sent <= 1);
            }
        }
    }
    pair.fail(&mut verbs);
    assert!(verbs.taken.is_empty() && (verbs.posted.is_empty() || verbs.shares_receives));
}
