//! The memory behind an AXI port of the card: a channel, and the clock-by-clock handshakes with it.

use std::collections::HashMap;

/// Numbers that look random and are the same in every run (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    /// Returns true in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Thirty-two bytes that memory reads and writes at once.
pub type Word = [u8; 32];

#[derive(Clone, Copy)]
pub struct Beat {
    pub id: u8,
    pub data: Word,
    pub last: bool,
}

/// A channel of memory. The requests that it accepts and the answers that it offers in a clock stay the same until
/// [`Channel::tick`].
pub trait Channel {
    fn takes_read(&self) -> bool;
    fn read(&mut self, id: u8, addr: u64, beats: u8);
    fn takes_write(&self) -> bool;
    fn write(&mut self, addr: u64, data: &Word);
    fn r(&self) -> Option<Beat>;
    fn accept_r(&mut self);
    fn b(&self) -> bool;
    fn accept_b(&mut self);
    fn tick(&mut self);
}

/// The card's signals at a memory port in a clock.
pub struct Master {
    /// ID, address and beats of AR.
    pub ar: Option<(u8, u64, u8)>,
    pub rready: bool,
    pub awaddr: Option<u64>,
    pub wdata: Option<Word>,
    pub bready: bool,
}

/// The channel's signals at a memory port in a clock.
#[derive(Default)]
pub struct Slave {
    pub arready: bool,
    pub awready: bool,
    pub wready: bool,
    pub r: Option<Beat>,
    pub bvalid: bool,
}

/// A channel at a port. Address and data of a write may come in either order.
pub struct Port<C> {
    pub channel: C,
    awaddr: Option<u64>,
    wdata: Option<Word>,
}

impl<C: Channel> Port<C> {
    pub fn new(channel: C) -> Self {
        Self { channel, awaddr: None, wdata: None }
    }

    /// Returns the channel's signals in this clock.
    pub fn offer(&self) -> Slave {
        let channel = &self.channel;
        let takes_write = channel.takes_write();
        Slave {
            arready: channel.takes_read(),
            awready: takes_write && self.awaddr.is_none(),
            wready: takes_write && self.wdata.is_none(),
            r: channel.r(),
            bvalid: channel.b(),
        }
    }

    /// Ends the clock in which `offered` met `master`.
    pub fn clock(&mut self, offered: &Slave, master: &Master) {
        if let Some((id, addr, beats)) = master.ar.filter(|_| offered.arready) {
            self.channel.read(id, addr, beats);
        }
        if offered.r.is_some() && master.rready {
            self.channel.accept_r();
        }
        if offered.awready {
            self.awaddr = self.awaddr.or(master.awaddr);
        }
        if offered.wready {
            self.wdata = self.wdata.or(master.wdata);
        }
        if offered.bvalid && master.bready {
            self.channel.accept_b();
        }
        if let (Some(addr), Some(data)) = (self.awaddr, self.wdata)
            && self.channel.takes_write()
        {
            self.channel.write(addr, &data);
            (self.awaddr, self.wdata) = (None, None);
        }
        self.channel.tick();
    }
}

struct Read {
    id: u8,
    addr: u64,
    beats: u8,
    sent: u8,
    /// The content when the read arrived. If `None`, it is read when the answer leaves.
    early: [Option<Word>; 2],
}

struct Write {
    addr: u64,
    data: Word,
    stored: bool,
}

/// A channel as unpleasant as AXI allows. It answers at any time and in any order, mixes beats of different reads, and
/// reads and writes bytes at any moment between request and answer.
pub struct Adversary {
    random: Random,
    pub words: HashMap<u64, Word>,
    /// Returns the content of a word that was never written.
    untouched: fn(u64) -> Word,
    reads: Vec<Read>,
    writes: Vec<Write>,
    beat: Option<Beat>,
    answered: bool,
    takes_read: bool,
    takes_write: bool,
    /// Chance of each activity in a clock, in percent.
    pub eager: u64,
}

impl Adversary {
    pub fn new(seed: u64, untouched: fn(u64) -> Word) -> Self {
        Self {
            random: Random(seed),
            words: HashMap::new(),
            untouched,
            reads: Vec::new(),
            writes: Vec::new(),
            beat: None,
            answered: false,
            takes_read: false,
            takes_write: false,
            eager: 50,
        }
    }

    fn at(&self, addr: u64) -> Word {
        self.words.get(&addr).copied().unwrap_or_else(|| (self.untouched)(addr))
    }

    /// Offers a beat of some read.
    fn send(&mut self) {
        let chosen = self.random.below(self.reads.len() as u64) as usize;
        let Read { id, addr, beats, sent, early } = self.reads[chosen];
        let data = early[usize::from(sent)].unwrap_or_else(|| self.at(addr + 32 * u64::from(sent)));
        let last = sent + 1 == beats;
        self.beat = Some(Beat { id, data, last });
        if last {
            self.reads.swap_remove(chosen);
        } else {
            self.reads[chosen].sent += 1;
        }
    }

    /// Stores a write that is not stored yet, or answers it.
    fn finish_write(&mut self) {
        let write = &mut self.writes[0];
        if write.stored {
            self.answered = true;
            self.writes.remove(0);
        } else {
            write.stored = true;
            self.words.insert(write.addr, write.data);
        }
    }
}

impl Channel for Adversary {
    fn takes_read(&self) -> bool {
        self.takes_read
    }

    fn read(&mut self, id: u8, addr: u64, beats: u8) {
        let early = [addr, addr + 32].map(|addr| self.random.chance(50).then(|| self.at(addr)));
        self.reads.push(Read { id, addr, beats, sent: 0, early });
    }

    fn takes_write(&self) -> bool {
        self.takes_write
    }

    fn write(&mut self, addr: u64, data: &Word) {
        self.writes.push(Write { addr, data: *data, stored: false });
    }

    fn r(&self) -> Option<Beat> {
        self.beat
    }

    fn accept_r(&mut self) {
        self.beat = None;
    }

    fn b(&self) -> bool {
        self.answered
    }

    fn accept_b(&mut self) {
        self.answered = false;
    }

    fn tick(&mut self) {
        if self.beat.is_none() && !self.reads.is_empty() && self.random.chance(self.eager) {
            self.send();
        }
        if !self.answered && !self.writes.is_empty() && self.random.chance(self.eager / 2) {
            self.finish_write();
        }
        self.takes_read = self.random.chance(self.eager);
        self.takes_write = self.random.chance(self.eager);
    }
}

impl Channel for hbm::Channel {
    fn takes_read(&self) -> bool {
        self.can_read()
    }

    fn read(&mut self, id: u8, addr: u64, beats: u8) {
        self.read(id, addr, beats).expect("a read that was offered where it can be taken");
    }

    fn takes_write(&self) -> bool {
        self.can_write()
    }

    fn write(&mut self, addr: u64, data: &Word) {
        self.write(0, addr, &[*data]).expect("a write that was offered where it can be taken");
    }

    fn r(&self) -> Option<Beat> {
        self.r().map(|beat| Beat { id: beat.id, data: beat.data, last: beat.last })
    }

    fn accept_r(&mut self) {
        self.accept_r();
    }

    fn b(&self) -> bool {
        self.b().is_some()
    }

    fn accept_b(&mut self) {
        self.accept_b();
    }

    fn tick(&mut self) {
        self.tick();
    }
}
