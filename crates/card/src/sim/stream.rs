//! Packets as beats of the engine's streams.

use crate::buffers::Buffers;
use crate::registers::PuntMeta;
use rtl::EngineSim;
use std::collections::VecDeque;

/// Bytes of a beat.
const BEAT: usize = 64;
/// Bytes from one stream to the next in the ports' signals: a beat, its size and its port.
const STRIDE: usize = BEAT + 4;
/// The stride in words of 32 bits.
pub(super) const WORDS: usize = STRIDE / 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Port by which the packet comes in. It doesn't matter for a packet that is sent unchanged.
    pub port: u16,
    /// For a packet that the host decided: port and output by which it leaves. It passes the engine unchanged.
    pub direct: Option<PuntMeta>,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Port by which the packet leaves; for a punted packet, the port by which it came in.
    pub port: u16,
    /// The reason why the host must decide the packet, if it must.
    pub punt: Option<PuntMeta>,
    pub bytes: Vec<u8>,
    /// Clock of the first beat, and of the last.
    pub cycles: (u64, u64),
}

#[derive(Default)]
pub(super) struct Input {
    queue: VecDeque<Sent>,
    /// Number of bytes of the first packet that have gone in, including its metadata.
    done: usize,
    /// Whether the beat at `done` is at the port.
    offered: bool,
    valid: bool,
}

impl Input {
    pub fn push(&mut self, packet: Sent) {
        self.queue.push_back(packet);
    }

    pub fn backlog(&self) -> usize {
        self.queue.len()
    }

    /// Puts the next beat at the port, if there is one and it `may` come.
    pub fn offer(&mut self, engine: &mut EngineSim, index: usize, may: bool) {
        if self.offered {
            return;
        }
        let bit = |all: u32, set: bool| if set { all | 1 << index } else { all & !(1 << index) };
        let Some(packet) = self.queue.front().filter(|_| may) else {
            if self.valid {
                self.valid = false;
                engine.set_s_valid(bit(engine.s_valid().into(), false) as _);
            }
            return;
        };
        let mut beat = [0; BEAT];
        let meta = packet.direct.map_or(0, |_| BEAT);
        let all = meta + packet.bytes.len();
        match (packet.direct, self.done) {
            (Some(meta), 0) => beat.copy_from_slice(&meta.encode()),
            _ => {
                let rest = &packet.bytes[self.done - meta..];
                let len = rest.len().min(BEAT);
                beat[..len].copy_from_slice(&rest[..len]);
            }
        }
        if self.done == 0 {
            let user = u32::from(packet.port) << 16 | packet.bytes.len() as u32;
            engine.s_beats_mut().set_bytes(STRIDE * index + BEAT, &user.to_le_bytes());
            engine.set_s_direct(bit(engine.s_direct().into(), packet.direct.is_some()) as _);
        }
        engine.s_beats_mut().set_bytes(STRIDE * index, &beat);
        engine.set_s_last(bit(engine.s_last().into(), self.done + BEAT >= all) as _);
        engine.set_s_valid(bit(engine.s_valid().into(), true) as _);
        (self.offered, self.valid) = (true, true);
    }

    /// Ends a clock. The engine took the beat if it was `ready`.
    pub fn advance(&mut self, ready: bool, buffers: &mut Buffers) {
        if !(ready && self.offered) {
            return;
        }
        self.offered = false;
        self.done += BEAT;
        let meta = |packet: &Sent| packet.direct.map_or(0, |_| BEAT);
        let has_gone =
            self.queue.front().is_some_and(|packet| self.done >= meta(packet) + packet.bytes.len());
        if has_gone && let Some(packet) = self.queue.pop_front() {
            buffers.give_back(packet.bytes);
            self.done = 0;
        }
    }
}

#[derive(Default)]
pub(super) struct Output {
    packet: Option<Received>,
    done: VecDeque<Received>,
}

impl Output {
    pub fn pop(&mut self) -> Option<Received> {
        self.done.pop_front()
    }

    /// Takes the beat at the port.
    pub fn take(&mut self, engine: &EngineSim, index: usize, cycle: u64, buffers: &mut Buffers) {
        let mut beat = [0; BEAT];
        let mut user = [0; 4];
        engine.m_beats().copy_bytes(STRIDE * index, &mut beat);
        engine.m_beats().copy_bytes(STRIDE * index + BEAT, &mut user);
        let user = u32::from_le_bytes(user);
        let last = u32::from(engine.m_last()) >> index & 1 != 0;
        let Some(packet) = &mut self.packet else {
            let punted = u32::from(engine.m_direct()) >> index & 1 != 0;
            let punt = punted.then(|| PuntMeta::decode(&beat));
            let mut bytes = buffers.take();
            if !punted {
                bytes.extend_from_slice(&beat);
            }
            let packet = Received { port: (user >> 16) as u16, punt, bytes, cycles: (cycle, cycle) };
            self.packet = Some(packet);
            return self.finish(last, user, cycle);
        };
        packet.bytes.extend_from_slice(&beat);
        self.finish(last, user, cycle);
    }

    fn finish(&mut self, last: bool, user: u32, cycle: u64) {
        if !last {
            return;
        }
        if let Some(mut packet) = self.packet.take() {
            let meta = packet.punt.map_or(0, |_| BEAT);
            packet.bytes.truncate((user & 0xffff) as usize - meta);
            packet.cycles.1 = cycle;
            self.done.push_back(packet);
        }
    }
}
