use super::*;
use crate::bells::bell;
use crate::{Limits, Service, Ways};
use sockring::{BYTES, Direction, EndState, Reader, SIZE, Sender, Sent, Side, Step};
use std::sync::atomic::Ordering;

struct Nothing;

impl Ways for Nothing {
    fn inside(&self, _: &str, _: SocketAddr, _: SocketAddr) -> Option<Key> {
        None
    }

    fn elsewhere(&self, _: &str, _: SocketAddr, _: SocketAddr) -> Option<Key> {
        None
    }

    fn may_carry(&self, _: &str, _: &Key) -> bool {
        true
    }

    fn may_share(&self, _: (&str, &str), _: &Key) -> bool {
        false
    }

    fn in_use(&self, _: &Key, _: (u64, u64)) {}
}

fn key() -> Key {
    let end = |number: u8| crate::End { vrf: 1, addr: IpAddr::from([10, 1, 1, number]), port: 80 };
    Key {
        within: None,
        own: end(1),
        peer: end(2),
        seen: [1, 2].map(|number| IpAddr::from([10, 1, 1, number])),
    }
}

/// Makes the carriage of a guest with one pair, number 1.
fn carriage(service: &Service) -> Carriage {
    let (mut carriage, _) = Carriage::new("a", &service.0).unwrap();
    carriage.up(ends(&key()), false);
    add(&mut carriage, key(), None);
    carriage
}

/// Adds pair number 1. Returns its memory.
fn add(carriage: &mut Carriage, key: Key, theirs: Option<u64>) -> Arc<Header> {
    let wake = Wake::Bells([bell().unwrap(), bell().unwrap()]);
    let side = if is_first(&key) { Side::First } else { Side::Second };
    let memory = Arc::new(Header::new(side).unwrap().0);
    carriage.pairs.insert(1, Carried::new(key, New { number: 1, memory: memory.clone(), wake }, theirs));
    memory
}

/// A program whose bytes are carried, and the carriage of its host.
struct End {
    carriage: Carriage,
    at: Ends,
    memory: Arc<Header>,
    sender: Sender,
    reader: Reader,
    sent: u64,
    got: u64,
}

fn byte(position: u64) -> u8 {
    (position ^ (position >> 9)) as u8
}

impl End {
    fn new(service: &Service, key: Key, theirs: Option<u64>) -> Self {
        let (mut carriage, _) = Carriage::new("a", &service.0).unwrap();
        let at = ends(&key);
        carriage.up(at, false);
        let memory = add(&mut carriage, key, theirs);
        let mut reader = Reader::default();
        reader.start(memory.link().rx(), 0);
        Self { carriage, at, memory, sender: Sender::default(), reader, sent: 0, got: 0 }
    }

    /// Writes what there is room for, and reads and checks what there is.
    fn work(&mut self) {
        let link = self.memory.link();
        if !self.sender.is_ring() && self.sender.may_switch(link.tx()) && !link.tx().has_left() {
            self.sender.switch(link.tx(), 0);
        }
        if self.sender.is_ring() {
            let bytes: Vec<u8> = (self.sent..self.sent + 100_000).map(byte).collect();
            // SAFETY: the bytes are there.
            self.sent += unsafe { self.sender.write(&link, bytes.as_ptr(), bytes.len()) }.unwrap() as u64;
        }
        while let Step::Ring(len) = self.reader.step(link.rx()).unwrap() {
            let mut bytes = vec![0; len as usize];
            // SAFETY: there is as much room.
            let n = unsafe { self.reader.read(&link, bytes.as_mut_ptr(), bytes.len()) };
            assert!(bytes[..n].iter().zip(self.got..).all(|(is, at)| *is == byte(at)), "after {}", self.got);
            self.got += n as u64;
        }
    }

    /// Returns to TCP.
    fn leave(&mut self) {
        let link = self.memory.link();
        if link.tx().wanted() != 0 && self.sender.is_ring() && self.sender.is_seen(link.tx()) {
            self.sender.switch(link.tx(), 0);
            link.tx().set_left();
        }
    }

    /// Sends to the other end at most so many messages. Returns how many.
    fn send(&mut self, to: &mut Self, most: usize) -> usize {
        self.carriage.look();
        let mut count = 0;
        while count < most
            && let Some(load) = self.carriage.next(self.at)
        {
            let mut bytes = vec![0; load.len as usize];
            load.cargo.iter().for_each(|cargo| cargo.read(load.from, &mut bytes));
            if !bytes.is_empty() {
                to.carriage.store(to.at, &load.head, 0, &bytes);
            }
            to.carriage.arrived(to.at, &load.head, load.len);
            count += 1;
        }
        count
    }

    /// Begins anew on a new line, after messages were lost.
    fn change_line(&mut self) {
        self.carriage.look();
        while self.carriage.next(self.at).is_some() {}
        self.carriage.down(self.at);
        self.carriage.up(self.at, true);
    }
}

/// Bytes of both directions are under way when a line fails, and messages are lost.
#[test]
fn a_new_line_goes_on_where_the_other_end_is() {
    let service = Service::start(Box::new(Nothing), Limits::default()).unwrap();
    let mut a = End::new(&service, key(), None);
    let mut b = End::new(&service, key().reverse(), Some(1));
    for round in 0..300 {
        a.work();
        b.work();
        a.send(&mut b, round % 7);
        b.send(&mut a, round % 5);
        if round % 20 == 19 {
            a.change_line();
            b.change_line();
        }
    }
    assert!(a.got > SIZE && b.got > SIZE, "{} and {}", a.got, b.got);
    assert_eq!((a.carriage.pairs.len(), b.carriage.pairs.len()), (1, 1));
    // Before the first end's daemon is replaced, both return. Then it may end.
    let asked = a.memory.link();
    [asked.tx(), asked.rx()].iter().for_each(|dir| dir.want_tcp(Direction::RETURNS));
    let mut settled = 0;
    for _ in 0..100 {
        [&mut a, &mut b].into_iter().for_each(End::leave);
        let told = a.send(&mut b, 9) + b.send(&mut a, 9);
        settled += usize::from(told == 0);
        assert!(!a.memory.is_parted.load(Ordering::Acquire) || b.carriage.pairs[&1].is_settled());
        [&mut a, &mut b].into_iter().for_each(End::work);
    }
    assert!(a.memory.is_parted.load(Ordering::Acquire) && settled > 0);
    assert_eq!((a.sent, b.sent), (b.got, a.got));
    b.carriage.down(b.at);
    b.carriage.up(b.at, false);
    assert!(!b.memory.link().rx().is_whole() && b.carriage.pairs.is_empty(), "it is not cut");
}

fn state(from: u64, len: u64) -> Letter {
    let state = EndState { sent: Sent { wr: from + len, ..Sent::default() }, ..EndState::default() };
    Letter { from, ..Letter::new(Kind::State, 1, 9) }.with_state(state)
}

#[test]
fn bytes_come_once_and_only_as_many_as_there_is_room_for() {
    let service = Service::start(Box::new(Nothing), Limits::default()).unwrap();
    let mut carriage = carriage(&service);
    let (at, bytes) = (ends(&key()), vec![7; SIZE as usize]);
    let mut send = |from, len: u64| {
        let letter = state(from, len);
        carriage.store(at, &letter.head(), 0, &bytes[..len as usize]);
        carriage.arrived(at, &letter.head(), len as u32);
        carriage.pairs.contains_key(&1)
    };
    assert!(send(0, SIZE));
    assert!(!send(SIZE, 1), "the program has read nothing");
    // The other daemon numbers its pairs, too.
    assert_eq!(BYTES, 4096 + 2 * SIZE as usize);
}

#[test]
fn hostile_daemons() {
    bolero::check!().with_type::<Vec<([u8; 8], u8, u16, u16)>>().for_each(|letters| {
        let service = Service::start(Box::new(Nothing), Limits::default()).unwrap();
        let mut carriage = carriage(&service);
        let at = ends(&key());
        for (flags, theirs, from, len) in letters {
            let mut head = state((*from).into(), (*len).into()).head();
            head[..4].copy_from_slice(&flags[..4]);
            head[8] = theirs % 3;
            head[40 + usize::from(flags[4]) % 80] = flags[5];
            let bytes = vec![1; usize::from(*len)];
            carriage.store(at, &head, u32::from(flags[6]), &bytes);
            carriage.arrived(at, &head, (*len).into());
            carriage.look();
            while carriage.next(at).is_some() {}
            if flags[7] == 0 {
                carriage.down(at);
                carriage.up(at, flags[6] == 0);
            }
        }
    });
}
