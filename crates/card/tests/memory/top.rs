//! Both tops, with lines of 64 and of 32 bytes, as one trait.

use crate::channel::{Master, Slave, Word};

pub const REQUESTERS: usize = 4;
pub const BANKS: usize = 4;

#[derive(Default)]
pub struct Inputs {
    /// Line and context of each requester's request.
    pub requests: [Option<(u32, u16)>; REQUESTERS],
    pub resp_ready: [bool; REQUESTERS],
    /// Line, half of the line, and bytes.
    pub write: Option<(u32, bool, Word)>,
    pub slaves: [Slave; BANKS],
    /// Whether the channels' answers are errors.
    pub bad: bool,
}

/// Outputs of a top's ports in a clock.
pub struct Outputs {
    pub req_ready: [bool; REQUESTERS],
    /// Context and bytes of each requester's answer.
    pub answers: [Option<(u16, Vec<Word>)>; REQUESTERS],
    pub wr_ready: bool,
    pub wr_done: bool,
    pub error: bool,
    pub masters: [Master; BANKS],
}

pub trait Top {
    /// Number of 32-byte words in a line.
    const WORDS: usize;
    fn new() -> Self;
    fn set(&mut self, inputs: &Inputs);
    fn get(&self) -> Outputs;
    fn clock(&mut self);
    fn cycle(&self) -> u64;
}

fn mask(bits: impl Iterator<Item = bool>) -> u8 {
    bits.enumerate().fold(0, |mask, (i, bit)| mask | u8::from(bit) << i)
}

fn word(bits: rtl::Bits<'_>, index: usize) -> Word {
    let mut word = [0; 32];
    bits.copy_bytes(32 * index, &mut word);
    word
}

macro_rules! top {
    ($top:ident, $words:expr) => {
        impl Top for rtl::$top {
            const WORDS: usize = $words;

            fn new() -> Self {
                let mut top = rtl::$top::new();
                top.reset(4);
                top
            }

            fn set(&mut self, inputs: &Inputs) {
                self.set_req_valid(mask(inputs.requests.iter().map(Option::is_some)));
                let mut contexts = 0;
                for (r, (line, context)) in
                    inputs.requests.iter().enumerate().filter_map(|(r, q)| Some((r, (*q)?)))
                {
                    self.req_line_mut().set(27 * r, 27, line.into());
                    contexts |= u64::from(context) << (16 * r);
                }
                self.set_req_context(contexts);
                self.set_resp_ready(mask(inputs.resp_ready.into_iter()));
                self.set_wr_valid(inputs.write.is_some());
                if let Some((line, half, data)) = inputs.write {
                    self.set_wr_line(line);
                    self.set_wr_half(half);
                    self.wr_data_mut().set_bytes(0, &data);
                }
                let slaves = &inputs.slaves;
                self.set_arready(mask(slaves.iter().map(|slave| slave.arready)));
                self.set_awready(mask(slaves.iter().map(|slave| slave.awready)));
                self.set_wready(mask(slaves.iter().map(|slave| slave.wready)));
                self.set_bvalid(mask(slaves.iter().map(|slave| slave.bvalid)));
                self.set_rvalid(mask(slaves.iter().map(|slave| slave.r.is_some())));
                self.set_rlast(mask(slaves.iter().map(|slave| slave.r.is_some_and(|beat| beat.last))));
                self.set_rresp(if inputs.bad { 0xaa } else { 0 });
                self.set_bresp(if inputs.bad { 0xaa } else { 0 });
                let mut ids = 0;
                for (b, beat) in slaves.iter().enumerate().filter_map(|(b, slave)| Some((b, slave.r?))) {
                    ids |= u32::from(beat.id) << (6 * b);
                    self.rdata_mut().set_bytes(32 * b, &beat.data);
                }
                self.set_rid(ids);
                self.eval();
            }

            fn get(&self) -> Outputs {
                let answer = |r: usize| {
                    let words = (0..$words).map(|w| word(self.resp_data(), $words * r + w)).collect();
                    (self.resp_valid() >> r & 1 == 1)
                        .then_some(((self.resp_context() >> (16 * r)) as u16, words))
                };
                let master = |b: usize| Master {
                    ar: (self.arvalid() >> b & 1 == 1).then(|| {
                        ((self.arid() >> (6 * b) & 63) as u8, self.araddr().get(33 * b, 33) as u64, $words)
                    }),
                    rready: self.rready() >> b & 1 == 1,
                    awaddr: (self.awvalid() >> b & 1 == 1).then(|| self.awaddr().get(33 * b, 33) as u64),
                    wdata: (self.wvalid() >> b & 1 == 1).then(|| word(self.wdata(), b)),
                    bready: self.bready() >> b & 1 == 1,
                };
                Outputs {
                    req_ready: std::array::from_fn(|r| self.req_ready() >> r & 1 == 1),
                    answers: std::array::from_fn(answer),
                    wr_ready: self.wr_ready(),
                    wr_done: self.wr_done(),
                    error: self.error() != 0,
                    masters: std::array::from_fn(master),
                }
            }

            fn clock(&mut self) {
                rtl::Model::clock(self);
            }

            fn cycle(&self) -> u64 {
                rtl::Model::cycle(self)
            }
        }
    };
}

top!(MemorySim, 2);
top!(Memory32Sim, 1);
