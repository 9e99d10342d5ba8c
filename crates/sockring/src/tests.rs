use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// Memory of a connection.
#[repr(C, align(4096))]
struct Memory([u8; BYTES]);

fn memory() -> Arc<Memory> {
    // SAFETY: any bytes are valid, zeros too.
    unsafe { Arc::<Memory>::new_zeroed().assume_init() }
}

fn link(memory: &Arc<Memory>, side: Side) -> Link {
    // SAFETY: the tests keep the memory as long as its links.
    unsafe { Link::new(Arc::as_ptr(memory).cast(), side) }
}

/// A byte of the kernel's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InKernel {
    Data(u8),
    Bell,
}

/// One direction with the kernel between.
struct Model {
    _memory: Arc<Memory>,
    tx: Link,
    rx: Link,
    sender: Sender,
    reader: Reader,
    kernel: VecDeque<InKernel>,
    /// Bytes of the kernel's stream that are still on their way.
    late: usize,
    sent_k: u64,
    sent: u64,
    got: u64,
    /// The reader sleeps until the kernel has something.
    asleep: bool,
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

impl Model {
    fn new() -> Self {
        let memory = memory();
        let (tx, rx) = (link(&memory, Side::First), link(&memory, Side::Second));
        tx.renew();
        let mut reader = Reader::default();
        reader.start(rx.rx(), 0);
        let (sender, kernel) = Default::default();
        Self {
            _memory: memory,
            tx,
            rx,
            sender,
            reader,
            kernel,
            late: 0,
            sent_k: 0,
            sent: 0,
            got: 0,
            asleep: false,
        }
    }

    fn by_kernel(&mut self, len: usize) {
        for _ in 0..len {
            self.kernel.push_back(InKernel::Data(byte(self.sent)));
            self.sent += 1;
            self.sent_k += 1;
        }
        self.asleep = false;
    }

    fn ring(&mut self) {
        if self.sender.must_ring(self.tx.tx()).is_some() {
            self.kernel.push_back(InKernel::Bell);
            self.sent_k += 1;
            self.asleep = false;
        }
    }

    fn send(&mut self, len: usize) {
        if !self.sender.is_ring() {
            return self.by_kernel(len);
        }
        let bytes: Vec<u8> = (0..len as u64).map(|at| byte(self.sent + at)).collect();
        // SAFETY: the vector has as many bytes.
        let done = unsafe { self.sender.write(&self.tx, bytes.as_ptr(), len) }.unwrap();
        self.sent += done as u64;
        self.ring();
    }

    fn switch(&mut self) {
        if self.sender.is_ring() || self.sender.may_switch(self.tx.tx()) {
            self.sender.switch(self.tx.tx(), self.sent_k);
        }
    }

    fn take(&mut self, len: u64, bell: bool) {
        for _ in 0..len {
            match self.kernel.pop_front().unwrap() {
                InKernel::Bell => assert!(bell, "a bell was read as data"),
                InKernel::Data(value) => {
                    assert!(!bell, "data was taken for a bell");
                    assert_eq!(value, byte(self.got));
                    self.got += 1;
                }
            }
        }
        self.reader.took(self.rx.rx(), len);
    }

    /// Reads up to `len` bytes, then sleeps if there was nothing.
    fn read(&mut self, len: u64) {
        let there = (self.kernel.len() - self.late.min(self.kernel.len())) as u64;
        match self.reader.step(self.rx.rx()).unwrap() {
            Step::Kernel(limit) => {
                let n = self.reader.limit(self.rx.rx(), limit.min(len).min(there)).unwrap();
                self.take(n, false);
            }
            Step::Ring(_) => {
                let mut bytes = vec![0; len as usize];
                // SAFETY: the vector has as many bytes.
                let n = unsafe { self.reader.read(&self.rx, bytes.as_mut_ptr(), bytes.len()) };
                for value in &bytes[..n] {
                    assert_eq!(*value, byte(self.got));
                    self.got += 1;
                }
            }
            Step::Bells(n) => self.take(n.min(there), true),
            Step::Empty => {
                let n = self.reader.bells(self.rx.rx(), there).unwrap();
                self.take(n, true);
                self.rx.rx().arm();
                self.asleep =
                    self.reader.step(self.rx.rx()).unwrap() == Step::Empty && self.kernel.is_empty();
            }
        }
    }

    fn finish(&mut self) {
        self.late = 0;
        for _ in 0..100_000 {
            if self.got == self.sent {
                return;
            }
            assert!(!self.asleep, "the reader sleeps, and {} bytes are there", self.sent - self.got);
            self.read(1 << 20);
        }
        panic!("{} of {}", self.got, self.sent);
    }
}

#[derive(Clone, Debug)]
enum Does {
    Send(usize),
    Switch,
    Read(u64),
    Late(usize),
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![
        4 => prop_oneof![1..100_usize, 1..300_000_usize].prop_map(Does::Send),
        2 => Just(Does::Switch),
        6 => prop_oneof![1..100_u64, 1..300_000_u64].prop_map(Does::Read),
        1 => (0..50_usize).prop_map(Does::Late),
    ]
}

proptest! {
    #[test]
    fn every_byte_comes_once_and_in_order(steps in prop::collection::vec(does(), 1..120)) {
        let mut model = Model::new();
        for step in steps {
            match step {
                Does::Send(len) => model.send(len),
                Does::Switch => model.switch(),
                Does::Read(len) => model.read(len),
                Does::Late(len) => model.late = len,
            }
        }
        model.finish();
    }

    #[test]
    fn a_reader_that_leaves_has_all_by_the_kernel(
        steps in prop::collection::vec(does(), 1..60),
        len in 1..100_000_usize,
    ) {
        let mut model = Model::new();
        for step in steps {
            match step {
                Does::Send(len) => model.send(len),
                Does::Switch => model.switch(),
                Does::Read(len) => model.read(len),
                Does::Late(_) => {}
            }
        }
        let (written, read) = model.rx.rx().positions();
        let unread_before_return = !model.sender.is_ring() && written != read;
        // The sender does its part; what the reader has not read goes by the kernel.
        if model.sender.is_ring() {
            model.sender.switch_back(model.tx.tx(), model.sent_k).unwrap();
            let mut bytes = vec![0; len];
            loop {
                // SAFETY: the vector has as many bytes.
                let n = unsafe { model.sender.unsent(&model.tx, bytes.as_mut_ptr(), len) };
                if n == 0 {
                    break;
                }
                model.kernel.extend(bytes[..n].iter().map(|value| InKernel::Data(*value)));
                model.sender.sent(n);
            }
        }
        // The reader takes bells before it goes, and what reads then knows nothing of rings.
        let Ok(bells) = model.reader.bells_to_leave(model.rx.rx()) else {
            // The sender had gone back just before, and the connection is to be reset.
            prop_assert!(unread_before_return);
            return Ok(());
        };
        model.take(bells.unwrap(), true);
        while let Some(next) = model.kernel.pop_front() {
            prop_assert_eq!(next, InKernel::Data(byte(model.got)));
            model.got += 1;
        }
        prop_assert_eq!(model.got, model.sent);
    }

    #[test]
    fn messages_are_read_as_written(token: u64, pair: u64, second: bool) {
        for message in [
            Message::Offer { token, doors: second, carries: second, relays: !second },
            Message::Cancel { token },
            Message::Poke { pair },
            Message::Gone { token, pair },
            Message::Adopt { token, pair },
            Message::Matched { token, pair, second, offset: pair ^ token, slot: token as u8 },
            Message::File { file: token, second },
            Message::Bell { file: token, second, own: !second },
            Message::Full { file: token },
            Message::Carried { token, pair, second, offset: pair },
            Message::Wake { token, room: second },
            Message::Cut { token },
            Message::Look { token },
            Message::Refused { token },
        ] {
            prop_assert_eq!(Message::read(&message.bytes()), Some(message));
        }
    }
}

/// A peer that writes anything costs its connection at most.
#[test]
fn hostile_peer() {
    bolero::check!().with_type::<Vec<(u8, u8, u64)>>().for_each(|writes| {
        let memory = memory();
        let (ours, theirs) = (link(&memory, Side::First), link(&memory, Side::Second));
        let (mut sender, mut reader) = (Sender::default(), Reader::default());
        ours.renew();
        reader.start(ours.rx(), 5);
        let mut bytes = [0; 5000];
        for (does, word, value) in writes {
            let value = if *value > 1 << 60 { *value } else { *value % (2 * SIZE) };
            match does % 6 {
                0 => {
                    // All words of the header are the peer's to write.
                    let at = usize::from(*word) % (2 * size_of::<Direction>() / 8) * 8;
                    // SAFETY: that is within the memory, and only this thread has it.
                    unsafe { theirs.base().add(at).cast::<u64>().cast_mut().write_volatile(value) };
                }
                // SAFETY: the array has as many bytes.
                1 => _ = unsafe { sender.write(&ours, bytes.as_ptr(), bytes.len()) },
                2 if sender.is_ring() || sender.may_switch(ours.tx()) => sender.switch(ours.tx(), 7),
                3 if sender.is_ring() => {
                    if sender.switch_back(ours.tx(), 9).is_ok() {
                        // SAFETY: the array has as many bytes.
                        while unsafe { sender.unsent(&ours, bytes.as_mut_ptr(), bytes.len()) } > 0 {
                            sender.sent(bytes.len());
                        }
                    }
                }
                _ => match reader.step(ours.rx()) {
                    Ok(Step::Ring(len)) => {
                        assert!(len <= SIZE);
                        // SAFETY: the array has as many bytes.
                        unsafe { reader.peek(&ours, 100, bytes.as_mut_ptr(), bytes.len()) };
                        // SAFETY: as above.
                        unsafe { reader.read(&ours, bytes.as_mut_ptr(), bytes.len()) };
                        _ = reader.must_ring(ours.rx());
                    }
                    Ok(Step::Kernel(most) | Step::Bells(most)) => reader.took(ours.rx(), most.min(10)),
                    _ if does % 6 == 5 && value % 7 == 0 => _ = reader.bells_to_leave(ours.rx()),
                    Ok(Step::Empty) => assert!(reader.bells(ours.rx(), 3).unwrap_or(0) <= 3),
                    Err(_) => return,
                },
            }
            _ = sender.must_ring(ours.tx());
        }
    });
}

/// Two threads have one direction, and a queue in place of the kernel. The sender switches all the time, the reader
/// sleeps as a program does.
#[test]
fn threads_lose_nothing() {
    use std::sync::{Condvar, Mutex};
    const ALL: u64 = 20 << 20;
    let memory = memory();
    let (tx, rx) = (link(&memory, Side::First), link(&memory, Side::Second));
    let mut reader = Reader::default();
    reader.start(rx.rx(), 0);
    let kernel = Arc::new((Mutex::new(VecDeque::<u8>::new()), Condvar::new()));
    let queue = kernel.clone();
    let writer = std::thread::spawn(move || {
        let (mut sender, mut sent, mut sent_k, mut turn) = (Sender::default(), 0_u64, 0_u64, 0_u64);
        let push = |bytes: &[u8]| {
            queue.0.lock().unwrap().extend(bytes);
            queue.1.notify_one();
        };
        while sent < ALL {
            turn += 1;
            let len = (u64::from(byte(turn)) * 97 % 9000 + 1).min(ALL - sent);
            if turn % 3 == 0 && (sender.is_ring() || sender.may_switch(tx.tx())) {
                sender.switch(tx.tx(), sent_k);
            }
            let bytes: Vec<u8> = (0..len).map(|at| byte(sent + at)).collect();
            if sender.is_ring() {
                // SAFETY: the vector has as many bytes.
                let n = unsafe { sender.write(&tx, bytes.as_ptr(), bytes.len()) }.unwrap();
                sent += n as u64;
                if sender.must_ring(tx.tx()).is_some() {
                    sent_k += 1;
                    push(b"!");
                }
                if n == 0 {
                    std::thread::yield_now();
                }
            } else {
                push(&bytes);
                sent += len;
                sent_k += len;
            }
        }
    });
    let mut got = 0_u64;
    let mut buffer = vec![0; 50_000];
    let check = |bytes: &[u8], got: &mut u64| {
        for value in bytes {
            assert_eq!(*value, byte(*got));
            *got += 1;
        }
    };
    while got < ALL {
        match reader.step(rx.rx()).unwrap() {
            Step::Kernel(limit) => {
                let mut waiting = kernel.0.lock().unwrap();
                let there = reader.limit(rx.rx(), limit.min(waiting.len() as u64)).unwrap();
                let bytes: Vec<u8> = waiting.drain(..there as usize).collect();
                reader.took(rx.rx(), there);
                check(&bytes, &mut got);
                if there == 0
                    && matches!(reader.step(rx.rx()).unwrap(), Step::Kernel(1..))
                    && waiting.is_empty()
                {
                    rx.rx().arm();
                    // As `recv` does: the switch comes with a bell.
                    if matches!(reader.step(rx.rx()).unwrap(), Step::Kernel(1..)) {
                        drop(kernel.1.wait_while(waiting, |waiting| waiting.is_empty()).unwrap());
                    }
                }
            }
            Step::Ring(_) => {
                // SAFETY: the vector has as many bytes.
                let n = unsafe { reader.read(&rx, buffer.as_mut_ptr(), buffer.len()) };
                check(&buffer[..n], &mut got);
            }
            Step::Bells(bells) => {
                let mut waiting = kernel.0.lock().unwrap();
                while waiting.is_empty() {
                    waiting = kernel.1.wait(waiting).unwrap();
                }
                let n = bells.min(waiting.len() as u64);
                assert!(waiting.drain(..n as usize).all(|value| value == b'!'));
                reader.took(rx.rx(), n);
            }
            Step::Empty => {
                rx.rx().arm();
                if reader.step(rx.rx()).unwrap() != Step::Empty {
                    continue;
                }
                let mut waiting = kernel.0.lock().unwrap();
                while waiting.is_empty() {
                    waiting = kernel.1.wait(waiting).unwrap();
                }
                let n = reader.bells(rx.rx(), waiting.len() as u64).unwrap();
                assert!(waiting.drain(..n as usize).all(|value| value == b'!'));
                reader.took(rx.rx(), n);
            }
        }
    }
    writer.join().unwrap();
}

/// A sender that has gone back is not followed to its ring again, whatever it writes.
#[test]
fn a_sealed_reader_follows_nothing_more() {
    let mut model = Model::new();
    model.switch();
    model.send(100);
    assert_eq!(model.reader.seal(model.rx.rx()), Ok(false));
    model.switch();
    assert_eq!(model.reader.seal(model.rx.rx()), Ok(false), "it may switch again");
    model.tx.tx().set_left();
    assert_eq!(model.reader.seal(model.rx.rx()), Ok(true));
    let dir = model.tx.tx();
    for (epoch, k, r) in [(1, 1, 1), (2, 2, 2), (3, 0, 1 << 40), (9, 9, 9)] {
        dir.log(epoch, k, r);
    }
    dir.set_wr(1 << 41);
    for _ in 0..2 {
        model.read(1000);
    }
    assert_eq!(model.got, 100, "what was in the ring before is read");
    assert_eq!(model.reader.step(model.rx.rx()), Ok(Step::Kernel(u64::MAX)));
    assert!(model.reader.is_done(model.rx.rx()));
    assert!(!model.reader.has_news(model.rx.rx()));
}

/// Each slot with news is told once, and a side that says that it sleeps is woken.
#[test]
fn doors_tell_of_news() {
    let memory = vec![0_u64; 2 * HEADER / 8];
    let base = memory.as_ptr().cast::<u8>();
    // SAFETY: only the doors are used, for which there is room.
    let doors = unsafe { Doors::new(base.add(base.align_offset(HEADER))) };
    let [ours, theirs] = [Side::First, Side::Second];
    let slots = Slots::none();
    [1, 7, 64, 255].into_iter().for_each(|slot| slots.add(slot));
    assert!(!doors.ring(ours, 1) && !doors.ring(ours, 255));
    assert!(doors.has_news(ours, &slots) && !doors.has_news(theirs, &slots));
    assert!(!doors.sleep(ours, &slots));
    assert!(doors.ring(ours, 64) && !doors.ring(ours, 64));
    let mut told = Vec::new();
    doors.take(ours, &slots, |slot| told.push(slot));
    assert_eq!(told, [1, 64, 255]);
    assert!(doors.sleep(ours, &slots));
    // Whoever rings for slots without a connection wakes the side, which then sleeps on.
    slots.remove(7);
    assert!(doors.ring(ours, 7) && doors.sleep(ours, &slots));
    doors.take(ours, &slots, |slot| panic!("news of {slot}"));
    doors.wake(ours);
    assert!(!doors.ring(ours, 8) && doors.sleep(theirs, &slots));
}

/// Carries what one end has sent, up to `most` bytes, into the memory of the other, as a daemon on each host does.
fn carry(from: &Link, to: &Link, sent: &mut u64, known: &mut Sent, most: u64) -> Result<bool, Breach> {
    let now = from.end_state();
    let (there, begin) = (now.sent.wr - *sent, *sent);
    let mut bytes = vec![0; there.min(most) as usize];
    from.copy_sent(begin, &mut bytes);
    to.copy_received(begin, &bytes);
    *sent += bytes.len() as u64;
    *known = Sent { wr: *sent, ..if there > most { *known } else { now.sent } };
    let state = EndState { sent: *known, ..now };
    assert_eq!(EndState::read(&state.bytes()), state);
    to.set_other(&state, SIZE * 100)
}

#[test]
fn what_is_carried_comes_in_order_and_switches_after_it() {
    let (here, there) = (memory(), memory());
    let (tx, rx) = (link(&here, Side::First), link(&there, Side::Second));
    let (mut sender, mut reader) = (Sender::default(), Reader::default());
    reader.start(rx.rx(), 7);
    let (mut sent, mut back, mut known, mut known_back) = Default::default();
    carry(&rx, &tx, &mut back, &mut known_back, SIZE).unwrap();
    assert!(sender.may_switch(tx.tx()));
    let (mut written, mut got) = (0_u64, 0_u64);
    sender.switch(tx.tx(), 7);
    for round in 0..200_u64 {
        let bytes: Vec<u8> = (0..round * 37).map(|at| byte(written + at)).collect();
        // SAFETY: the bytes are there.
        written += unsafe { sender.write(&tx, bytes.as_ptr(), bytes.len()) }.unwrap() as u64;
        carry(&tx, &rx, &mut sent, &mut known, 3000).unwrap();
        if let Step::Ring(len) = reader.step(rx.rx()).unwrap() {
            let mut taken = vec![0; len as usize];
            // SAFETY: the room is there.
            let n = unsafe { reader.read(&rx, taken.as_mut_ptr(), taken.len()) };
            assert!(taken[..n].iter().enumerate().all(|(at, of)| *of == byte(got + at as u64)));
            got += n as u64;
        }
        carry(&rx, &tx, &mut back, &mut known_back, SIZE).unwrap();
    }
    assert!(sender.is_seen(tx.tx()) && got > SIZE && got < written, "{got} of {written}");
    sender.switch(tx.tx(), 7);
    while got < written {
        carry(&tx, &rx, &mut sent, &mut known, 3000).unwrap();
        let Step::Ring(len) = reader.step(rx.rx()).unwrap() else { panic!("the switch overtook bytes") };
        reader.skip(rx.rx(), len);
        got += len;
    }
    assert_eq!(reader.step(rx.rx()), Ok(Step::Kernel(u64::MAX)));
}

#[test]
fn another_host_that_has_read_what_was_not_sent_is_a_breach() {
    let memory = memory();
    let own = link(&memory, Side::First);
    assert_eq!(own.set_other(&EndState { rd: 10, ..EndState::default() }, 9), Err(Breach::Position));
    assert_eq!(own.set_other(&EndState { rd: 9, wants: 1, ..EndState::default() }, 9), Ok(true));
    assert_eq!(own.set_other(&EndState { rd: 8, ..EndState::default() }, 9), Err(Breach::Position));
}
