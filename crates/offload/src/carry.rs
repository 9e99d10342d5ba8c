//! A card that carries packets.

use card::Card;
use card::buffers::Buffers;
use card::registers::PuntMeta;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The port by which the packet came in; for one that the host decided, the port by which it leaves.
    pub port: u16,
    /// Present if the host decided the packet: the card sends it unchanged to this output. Without a frame, the packet
    /// is a mark or a release.
    pub direct: Option<PuntMeta>,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The port by which the packet leaves; for a punted packet, the port by which it came in.
    pub port: u16,
    /// The reason why the host must decide the packet, if it must.
    pub punt: Option<PuntMeta>,
    pub bytes: Vec<u8>,
}

/// A card in this process. It advances only through [`Carry::tick`] and accesses to its registers.
pub trait Carry: Card {
    /// Returns the number of pipes per direction. There are twice as many inputs: first those from guests, then those
    /// from wires. There are as many outputs: first queues to the host, which also lead to guests, then wires.
    fn pipes(&self) -> usize;
    fn send(&mut self, input: usize, packet: Incoming);
    /// Returns how many packets queued for an input have not entered completely.
    fn backlog(&self, input: usize) -> usize;
    fn receive(&mut self, output: usize) -> Option<Outgoing>;
    /// Returns the buffers for frames: sending takes one, and receiving returns one.
    fn buffers(&mut self) -> &mut Buffers;
    fn tick(&mut self);
    /// Returns the number of clocks since reset.
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
