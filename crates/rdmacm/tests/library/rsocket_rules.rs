//! The rules of rsockets: the messages between peers, and when they may send how much.

use proptest::prelude::*;
use rdmacm::rsocket::flow::{Flow, Sizes, Violation};
use rdmacm::rsocket::wire::{Buffer, Hello, Message};
use std::collections::VecDeque;

fn hello(credits: u16, data: u32) -> Hello {
    Hello {
        is_big_endian: false,
        credits,
        table: Buffer { address: 0x1122_3344_5566_7788, key: 0x99aa_bbcc, len: 2 },
        data: Buffer { address: 0x0102_0304_0506_0708, key: 0x090a_0b0c, len: data },
    }
}

/// The bytes are those of rdma-core on a little-endian machine.
#[test]
fn private_data_is_that_of_rdma_core() {
    let bytes = hello(384, 0x10000).to_bytes();
    let wanted = [
        &[1, 2, 0x01, 0x80, 0, 0, 0, 0][..],
        &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 2],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 0, 0],
    ];
    assert_eq!(bytes[..], wanted.concat());
    // Requests have longer private data.
    assert_eq!(Hello::from_bytes(&[&bytes[..], &[0; 16]].concat()), Some(hello(384, 0x10000)));
}

#[test]
fn private_data_of_others_is_refused() {
    let good = hello(384, 4096).to_bytes();
    assert_eq!(Hello::from_bytes(&good[..39]), None);
    // These are wrong: the version, no credits, a table without a second entry, and a table with too many.
    for (at, byte) in [(0, 2), (2, 0), (23, 1), (20, 1)] {
        let mut bad = good;
        bad[at] = byte;
        bad[3] = 0;
        assert_eq!(Hello::from_bytes(&bad), None, "{at}");
    }
}

#[test]
fn buffers_in_memory_are_in_the_peer_order() {
    let buffer = Buffer { address: 0x0102_0304_0506_0708, key: 0x1112_1314, len: 0x2122_2324 };
    let big = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24];
    assert_eq!(buffer.in_memory(true), big);
    let bytes = buffer.in_memory(cfg!(target_endian = "big"));
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(Buffer::from_words(word(0), word(8)), buffer);
}

#[test]
fn messages_are_those_of_rdma_core() {
    for (message, number) in [
        (Message::Data(5), 5),
        (Message::Credits(0xfffe), 0x8000_fffe),
        (Message::Disconnect, 0xe000_0000),
        (Message::KeepAlive, 0xe000_0001),
        (Message::Shutdown, 0xe000_0002),
    ] {
        assert_eq!((message.to_number(), Message::from_number(number)), (number, Some(message)));
    }
    // These are reserved, for mapped memory, or control messages that do not exist.
    for number in [0x2000_0001, 0x4000_0001, 0x6000_0000, 0xa000_0000, 0xc000_0000, 0xe000_0003] {
        assert_eq!(Message::from_number(number), None);
    }
    // The counter went beyond the field.
    assert_eq!(Message::from_number(0x8001_0002), Some(Message::Credits(2)));
}

const SIZES: Sizes = Sizes { send: 4096, receive: 4096, sends: 16, receives: 16 };

#[test]
fn peers_that_break_the_rules_are_caught() {
    let flow = || Flow::new(SIZES, hello(16, 2048));
    let after = |messages: &[Message]| {
        let mut flow = flow();
        messages.iter().try_for_each(|message| flow.hear(*message))
    };
    // Half of the ring was announced.
    assert_eq!(after(&[Message::Data(2048)]), Ok(()));
    assert_eq!(after(&[Message::Data(2049)]), Err(Violation));
    assert_eq!(after(&[Message::Data(2000), Message::Data(49)]), Err(Violation));
    assert_eq!(after(&[Message::Data(0)]), Err(Violation));
    assert_eq!(after(&[Message::Data(1); 16]), Ok(()));
    assert_eq!(after(&[Message::Data(1); 17]), Err(Violation));
    assert_eq!(after(&[Message::Shutdown, Message::Data(1)]), Err(Violation));
    assert_eq!(after(&[Message::Disconnect, Message::Data(1)]), Err(Violation));
    // Credits: 16 at first, and never fewer or more than that at a time.
    assert_eq!(after(&[Message::Credits(16)]), Ok(()));
    assert_eq!(after(&[Message::Credits(15)]), Err(Violation));
    assert_eq!(after(&[Message::Credits(17)]), Err(Violation));
    assert_eq!(after(&[Message::Credits(0xffff)]), Err(Violation));
    // There is room for two buffers, of which one was announced at first.
    let mut flow = flow();
    assert_eq!(flow.announce(Buffer::default()), Ok(()));
    assert_eq!(flow.announce(Buffer::default()), Err(Violation));
}

/// An end of a stream: its flow, its memory, and messages to it.
struct End {
    flow: Flow,
    sizes: Sizes,
    sends: Vec<u8>,
    ring: Vec<u8>,
    table: [Buffer; 2],
    entry: usize,
    /// Messages on their way to the other end, and the places of their bytes.
    wire: VecDeque<(Place, Message)>,
    /// Messages that are not done yet.
    posted: VecDeque<Message>,
}

enum Place {
    Nowhere,
    Ring(usize, Vec<u8>),
    Table(usize, Buffer),
}

/// First addresses, in the test, of the ring's bytes and of the table's entries.
const RING: u64 = 1 << 32;
const TABLE: u64 = 1 << 40;

fn says(sizes: Sizes) -> Hello {
    Hello {
        is_big_endian: false,
        credits: sizes.receives,
        table: Buffer { address: TABLE, key: 7, len: 2 },
        data: Buffer { address: RING, key: 7, len: sizes.receive / 2 },
    }
}

impl End {
    fn new(sizes: Sizes, peer: Sizes) -> Self {
        Self {
            flow: Flow::new(sizes, says(peer)),
            sizes,
            sends: vec![0; sizes.send as usize],
            ring: vec![0; sizes.receive as usize],
            table: [Buffer::default(); 2],
            entry: 1,
            wire: VecDeque::new(),
            posted: VecDeque::new(),
        }
    }

    fn say(&mut self, place: Place, message: Message) {
        self.wire.push_back((place, message));
        self.posted.push_back(message);
        assert!(self.posted.len() <= self.sizes.sends.into());
    }

    /// Sends the next bytes of a stream whose bytes are their positions; returns their number.
    fn send(&mut self, position: usize, most: u32, inline: u32) -> usize {
        let Some(write) = self.flow.send(most, inline) else { return 0 };
        let bytes: Vec<u8> = (position..position + write.len as usize).map(byte).collect();
        let bytes = if write.len > inline {
            let size = self.sends.len();
            let places = || (0..bytes.len()).map(|at| (write.at as usize + at) % size);
            places().zip(&bytes).for_each(|(to, from)| self.sends[to] = *from);
            places().map(|at| self.sends[at]).collect()
        } else {
            bytes
        };
        let at = (write.remote.address - RING) as usize;
        self.say(Place::Ring(at, bytes), Message::Data(write.len));
        write.len as usize
    }

    fn grant(&mut self) {
        while let Some(grant) = self.flow.grant() {
            let place = grant.half.map_or(Place::Nowhere, |(at, entry)| {
                let half = self.sizes.receive / 2;
                let buffer = Buffer { address: RING + u64::from(at), key: 7, len: half };
                Place::Table(((entry.address - TABLE) / 16) as usize, buffer)
            });
            self.say(place, grant.message);
        }
    }

    /// Handles a message that arrives.
    fn hear(&mut self, (place, message): (Place, Message)) {
        match place {
            Place::Nowhere => {}
            Place::Ring(at, bytes) => self.ring[at..at + bytes.len()].copy_from_slice(&bytes),
            Place::Table(at, buffer) => {
                assert_eq!(self.table[at].len, 0, "an entry that was not taken yet");
                self.table[at] = buffer;
            }
        }
        self.flow.hear(message).unwrap();
        while self.table[self.entry].len > 0 {
            self.flow.announce(std::mem::take(&mut self.table[self.entry])).unwrap();
            self.entry ^= 1;
        }
    }

    /// Reads bytes, which must be the next ones; returns their number.
    fn read(&mut self, position: usize, most: u32) -> usize {
        let (at, len) = self.flow.readable();
        let len = len.min(most) as usize;
        let bytes = &self.ring[at as usize..at as usize + len];
        assert!(bytes.iter().copied().eq((position..position + len).map(byte)), "at {position}");
        self.flow.read(len as u32);
        len
    }
}

const fn byte(position: usize) -> u8 {
    (position ^ position >> 8) as u8
}

#[derive(Clone, Debug)]
enum Step {
    Send(bool, u32),
    Read(bool, u32),
    Carry(bool, usize),
    Done(bool, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (any::<bool>(), 1..5000_u32).prop_map(|(end, most)| Step::Send(end, most)),
        (any::<bool>(), 1..5000_u32).prop_map(|(end, most)| Step::Read(end, most)),
        (any::<bool>(), 1..20_usize).prop_map(|(end, count)| Step::Carry(end, count)),
        (any::<bool>(), 1..20_usize).prop_map(|(end, count)| Step::Done(end, count)),
    ];
    proptest::collection::vec(step, 1..400)
}

fn sizes() -> impl Strategy<Value = Sizes> {
    (2048..10_000_u32, 2048..10_000_u32, 16..40_u16, 16..40_u16).prop_map(
        |(send, receive, sends, receives)| Sizes {
            send: send & !63,
            receive: receive & !63,
            sends,
            receives,
        },
    )
}

/// Two ends, and how far each has written and read.
struct Streams {
    ends: [End; 2],
    written: [usize; 2],
    read: [usize; 2],
}

impl Streams {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send(end, most) => {
                let end = usize::from(end);
                self.written[end] += self.ends[end].send(self.written[end], most, 64);
            }
            Step::Read(end, most) => {
                let end = usize::from(end);
                self.read[end] += self.ends[end].read(self.read[end], most);
                self.ends[end].grant();
            }
            Step::Carry(end, count) => {
                let end = usize::from(end);
                for _ in 0..count {
                    let Some(message) = self.ends[end].wire.pop_front() else { break };
                    self.ends[1 - end].hear(message);
                }
            }
            Step::Done(end, count) => {
                let end = &mut self.ends[usize::from(end)];
                // Messages on the wire are not done.
                for _ in 0..count.min(end.posted.len() - end.wire.len()) {
                    let message = end.posted.pop_front().unwrap();
                    end.flow.done(message);
                }
                end.grant();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However writes, reads and messages are mixed, all bytes come in order, and nobody is stuck.
    #[test]
    fn bytes_come_in_order(steps in steps(), first in sizes(), second in sizes()) {
        let ends = [End::new(first, second), End::new(second, first)];
        let mut streams = Streams { ends, written: [0; 2], read: [0; 2] };
        steps.iter().for_each(|step| streams.step(step));
        // Then both ends do all they can, until 100 kB more have come each way.
        let until = streams.written.map(|written| written + 100_000);
        let mut rounds = 0;
        while streams.read[0] < until[1] || streams.read[1] < until[0] {
            for end in [false, true] {
                let left = until[usize::from(end)] - streams.written[usize::from(end)];
                if left > 0 {
                    streams.step(&Step::Send(end, left as u32));
                }
                streams.step(&Step::Carry(end, 100));
                streams.step(&Step::Done(end, 100));
                streams.step(&Step::Read(!end, 5000));
            }
            rounds += 1;
            prop_assert!(rounds < 10_000, "stuck at {:?} and {:?} of {until:?}", streams.written, streams.read);
        }
    }

    /// Whatever a peer sends, nothing panics, and no more arrives than the ring holds.
    #[test]
    fn any_message_is_judged(numbers in proptest::collection::vec(any::<u32>(), 1..200)) {
        let mut flow = Flow::new(SIZES, hello(16, 2048));
        for number in numbers {
            if let Some(message) = Message::from_number(number & 0xe001_0fff) {
                let _ = flow.hear(message);
            }
            let _ = flow.announce(Buffer { address: u64::MAX, key: 0, len: number });
            let _ = flow.send(number, 64);
            let _ = flow.grant();
            let [(at, first), (_, second)] = flow.all_readable();
            prop_assert!(at < SIZES.receive && first + second <= SIZES.receive);
            flow.read(first);
        }
    }
}
