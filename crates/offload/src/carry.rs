//! A card that carries packets.

use card::Card;
use card::buffers::Buffers;
use card::registers::PuntMeta;

/// A packet for the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// For a packet that the host decided: where it leaves, unchanged. Without a frame, it is a mark or a release.
    pub port: u16,
    /// Of what the host decided: where it leaves as it is. Without a frame it is a mark, or a release.
    pub direct: Option<PuntMeta>,
    /// The frame.
    pub bytes: Vec<u8>,
}

/// A packet from the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The port by which it leaves; for a punted packet, the one by which it came in.
    pub port: u16,
    /// Why the host must decide it, if it must.
    pub punt: Option<PuntMeta>,
    /// The frame.
    pub bytes: Vec<u8>,
}

/// A card in this process: it moves only through [`Carry::tick`] and its registers.
pub trait Carry: Card {
    /// Pipes per direction. The inputs are first those from guests, then those from wires. The outputs are first as
    /// many queues to the host, through which guests are reached too, then wires.
    fn pipes(&self) -> usize;
    /// Queues a packet for an input.
    fn send(&mut self, input: usize, packet: Incoming);
    /// Packets queued for an input that have not entered completely.
    fn backlog(&self, input: usize) -> usize;
    /// The next packet that came out.
    fn receive(&mut self, output: usize) -> Option<Outgoing>;
    /// Buffers of frames: sending takes one, and receiving returns one.
    fn buffers(&mut self) -> &mut Buffers;
    /// One clock.
    fn tick(&mut self);
    /// Clocks since reset.
    fn clocks(&self) -> u64;
}

#[cfg(feature = "card-sim")]
impl Carry for card::sim::SimCard {
    fn pipes(&self) -> usize {
        Self::pipes(self)
    }

    fn send(&mut self, input: usize, packet: Incoming) {
        let Incoming { port, direct, bytes } = packet;
        Self::send(self, input, card::sim::Sent { port, direct, bytes });
    }

    fn backlog(&self, input: usize) -> usize {
        Self::backlog(self, input)
    }

    fn receive(&mut self, output: usize) -> Option<Outgoing> {
        let card::sim::Received { port, punt, bytes, .. } = Self::receive(self, output)?;
        Some(Outgoing { port, punt, bytes })
    }

    fn buffers(&mut self) -> &mut Buffers {
        Self::buffers(self)
    }

    fn tick(&mut self) {
        Self::tick(self);
    }

    fn clocks(&self) -> u64 {
        self.cycle()
    }
}
