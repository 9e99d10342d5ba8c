//! The HBM channels at the engine's AXI ports.

use hbm::{Channel, Controller, Timing};
use rtl::EngineSim;

/// All channels, in the order of the engine's ports.
pub(super) struct Channels {
    all: Vec<Channel>,
    /// For each channel, address and data of a write whose other half has not arrived.
    writes: Vec<(Option<u64>, Option<[u8; 32]>)>,
    /// The transfers that channels accept or offer in this clock, one bit for each channel.
    ready: Ready,
}

#[derive(Default)]
struct Ready {
    ar: u32,
    aw: u32,
    w: u32,
    r: u32,
    b: u32,
}

/// Returns the channel of a table's line, and the line in that channel, like `rtl/memory/memory.sv`. The number of
/// channels is a power of two.
#[must_use]
pub fn place(line: u32, channels: usize) -> (usize, u32) {
    let bits = channels.trailing_zeros();
    let groups = (0..u32::BITS).step_by(bits.max(1) as usize).map(|shift| line >> shift);
    (groups.fold(0, |all, group| all ^ group) as usize & (channels - 1), line >> bits)
}

impl Channels {
    pub fn new(engine: &EngineSim, timing: Timing) -> Self {
        let count = engine.rdata().words().len() / 8;
        // The route table has 4 GiB of lines, here in four channels.
        let controller = Controller { bytes: 1 << 30, ..Controller::default() };
        Self {
            all: (0..count).map(|_| Channel::new(timing, controller)).collect(),
            writes: vec![(None, None); count],
            ready: Ready::default(),
        }
    }

    pub fn all(&mut self) -> &mut [Channel] {
        &mut self.all
    }

    /// Sets the engine's inputs for the coming clock.
    pub fn drive(&mut self, engine: &mut EngineSim) {
        let (mut ready, mut b_error) = (Ready::default(), 0_u32);
        for (index, (channel, write)) in self.all.iter().zip(&self.writes).enumerate() {
            let bit = 1 << index;
            ready.ar |= if channel.can_read() { bit } else { 0 };
            ready.aw |= if write.0.is_none() { bit } else { 0 };
            ready.w |= if write.1.is_none() { bit } else { 0 };
            if let Some(beat) = channel.r() {
                ready.r |= bit;
                // SLVERR is 2.
                let tag = u128::from(beat.error) << 10 | u128::from(beat.last) << 8 | u128::from(beat.id);
                engine.r_mut().set(32 * index, 32, tag);
                engine.rdata_mut().set_bytes(32 * index, &beat.data);
            }
            ready.b |= if channel.b().is_some() { bit } else { 0 };
            b_error |= if channel.b_error() { bit } else { 0 };
        }
        engine.set_arready(ready.ar as _);
        engine.set_awready(ready.aw as _);
        engine.set_wready(ready.w as _);
        engine.set_rvalid(ready.r as _);
        engine.set_bvalid(ready.b as _);
        engine.set_b_error(b_error as _);
        self.ready = ready;
    }

    /// Takes the engine's outputs, and lets a clock pass in every channel.
    #[allow(clippy::useless_conversion, reason = "with two pipes of each direction ports are that wide")]
    pub fn take(&mut self, engine: &EngineSim) {
        let ar = u32::from(engine.arvalid()) & self.ready.ar;
        let aw = u32::from(engine.awvalid()) & self.ready.aw;
        let w = u32::from(engine.wvalid()) & self.ready.w;
        let r = u32::from(engine.rready()) & self.ready.r;
        let b = u32::from(engine.bready()) & self.ready.b;
        for (index, (channel, write)) in self.all.iter_mut().zip(&mut self.writes).enumerate() {
            let set = |all: u32| all >> index & 1 != 0;
            if set(ar) {
                let read = engine.ar().get(64 * index, 64) as u64;
                let (id, beats) = ((read >> 40 & 0x3f) as u8, (read >> 48 & 0xf) as u8 + 1);
                channel
                    .read(id, read & 0x1_ffff_ffff, beats)
                    .expect("within the channel, and there was room");
            }
            if set(aw) {
                write.0 = Some(engine.aw().get(64 * index, 64) as u64);
            }
            if set(w) {
                let mut data = [0; 32];
                engine.wdata().copy_bytes(32 * index, &mut data);
                write.1 = Some(data);
            }
            if let (Some(address), Some(data)) = *write
                && channel.can_write()
            {
                channel.write(0, address, &[data]).expect("within the channel, and there was room");
                *write = (None, None);
            }
            if set(r) {
                channel.accept_r();
            }
            if set(b) {
                channel.accept_b();
            }
            channel.tick();
        }
    }
}
