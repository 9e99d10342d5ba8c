//! Memory at the box's AXI masters: writes take effect some clocks later, and reads complete in any order.

use model::generate::Rng;
use rtl::OpennicBox;
use std::collections::{HashMap, VecDeque};

/// Fewest clocks from an address to its first beat.
const LATENCY: u64 = 20;

#[derive(Default)]
pub struct Channel {
    lines: HashMap<u64, [u8; 32]>,
    /// For each read: the clock from which on it may be answered, ID, address, beats.
    reads: VecDeque<(u64, u8, u64, u64)>,
    /// The beat at the port: ID, address, number of beats after it.
    beat: Option<(u8, u64, u64)>,
    address: Option<u64>,
    data: Option<[u8; 32]>,
    answers: u32,
}

pub struct Channels {
    all: Vec<Channel>,
    rng: Rng,
    cycle: u64,
}

impl Channels {
    pub fn new(top: &OpennicBox) -> Self {
        let count = top.m_axi_rdata().words().len() / 8;
        Self { all: (0..count).map(|_| Channel::default()).collect(), rng: Rng::new(7), cycle: 0 }
    }

    /// Sets the engine's inputs for the coming clock.
    pub fn drive(&mut self, top: &mut OpennicBox) {
        self.cycle += 1;
        let (mut r, mut b, mut id, mut last) = (0_u32, 0_u32, 0_u64, 0_u32);
        for (index, channel) in self.all.iter_mut().enumerate() {
            if channel.beat.is_none() {
                let ready = channel.reads.iter().take_while(|read| read.0 <= self.cycle).count();
                let next = (ready > 0).then(|| self.rng.below(ready.min(4)));
                let read = next.and_then(|next| channel.reads.remove(next));
                channel.beat = read.map(|(_, id, address, beats)| (id, address, beats - 1));
            }
            if let Some((beat_id, address, after)) = channel.beat {
                r |= 1 << index;
                id |= u64::from(beat_id) << (6 * index);
                last |= u32::from(after == 0) << index;
                let line = channel.lines.get(&address).copied().unwrap_or_default();
                top.m_axi_rdata_mut().set_bytes(32 * index, &line);
            }
            b |= u32::from(channel.answers > 0) << index;
        }
        let all = ((1_u32 << self.all.len()) - 1) as _;
        top.set_m_axi_arready(all);
        top.set_m_axi_awready(all);
        top.set_m_axi_wready(all);
        top.set_m_axi_rvalid(r as _);
        top.set_m_axi_rid(id as _);
        top.set_m_axi_rlast(last as _);
        top.set_m_axi_bvalid(b as _);
    }

    /// Takes the engine's outputs, and the inputs that it accepted.
    pub fn take(&mut self, top: &OpennicBox) {
        for (index, channel) in self.all.iter_mut().enumerate() {
            let set = |all: u16| all >> index & 1 != 0;
            if set(top.m_axi_rready())
                && let Some((id, address, after)) = channel.beat
            {
                channel.beat = (after > 0).then(|| (id, address + 32, after - 1));
            }
            if set(top.m_axi_bready()) && set(top.m_axi_bvalid()) {
                channel.answers -= 1;
            }
            if set(top.m_axi_arvalid()) {
                let id = (top.m_axi_arid() >> (6 * index) & 0x3f) as u8;
                let address = top.m_axi_araddr().get(33 * index, 33) as u64;
                let beats = (top.m_axi_arlen() >> (4 * index) & 0xf) + 1;
                let used = channel.reads.iter().any(|read| read.1 == id)
                    || channel.beat.is_some_and(|beat| beat.0 == id);
                assert!(!used, "two reads of ID {id} at once");
                channel.reads.push_back((self.cycle + LATENCY, id, address, beats));
            }
            if set(top.m_axi_awvalid()) {
                assert!(channel.address.is_none(), "a write's address before the data of the one before");
                channel.address = Some(top.m_axi_awaddr().get(33 * index, 33) as u64);
            }
            if set(top.m_axi_wvalid()) {
                let mut data = [0; 32];
                top.m_axi_wdata().copy_bytes(32 * index, &mut data);
                channel.data = Some(data);
            }
            if let (Some(address), Some(data)) = (channel.address, channel.data) {
                channel.lines.insert(address, data);
                (channel.address, channel.data) = (None, None);
                channel.answers += 1;
            }
        }
    }
}
