//! A card's registers, and opening a card: what it is, and where its blocks are.

use crate::registers::{self, command, counters, engine, identity};

/// `VDCT`, the value of [`identity::MAGIC`].
const MAGIC: u32 = 0x5644_4354;
/// Bytes of a block, which are the unit of the directory.
const BLOCK: u32 = 4096;
/// Most entries of the directory.
const DIRECTORY: u32 = 16;
/// Written to the scratch register, and then its complement: an absent device returns neither.
const PATTERN: u32 = 0x5aa5_1e78;

/// Registers of 32 bits at offsets in bytes, multiples of four: a mapped BAR, or a simulated card.
pub trait Card {
    fn read32(&mut self, offset: u32) -> u32;
    fn write32(&mut self, offset: u32, value: u32);
}

impl<C: Card + ?Sized> Card for &mut C {
    fn read32(&mut self, offset: u32) -> u32 {
        (**self).read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        (**self).write32(offset, value);
    }
}

/// The reason why a card can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// Not a card, or no device that answers.
    #[error(
        "no card here: the first register reads {0:#010x}; give the BAR of the card, with its bitstream loaded"
    )]
    Magic(u32),
    /// The bitstream has a different version.
    #[error(
        "the card's registers are of version {card}, this driver's of {driver}: install the bitstream of this release"
    )]
    Revision { card: u32, driver: u32 },
    /// Writes do not arrive.
    #[error(
        "wrote {wrote:#010x} to the card and read {read:#010x}: check that the BAR is enabled and the slot sound"
    )]
    Scratch { wrote: u32, read: u32 },
    /// The card has a block that this driver doesn't know.
    #[error(
        "the card has a block of unknown type {block} version {version}: install the driver of its bitstream's release"
    )]
    Block { block: u8, version: u8 },
    /// The card lacks a block that the driver needs.
    #[error("the card has no {0} block: its bitstream is incomplete")]
    Missing(&'static str),
    /// The directory is longer than possible.
    #[error("the card's directory has {0} blocks, but at most 16 fit: its bitstream is broken")]
    Directory(u32),
    /// A table has an impossible size.
    #[error("the card says that its {what} is {value}: its bitstream is broken")]
    Size {
        /// The table.
        what: &'static str,
        value: u32,
    },
    /// A write to memory failed: nobody knows what the line holds.
    #[error(
        "the card's memory answered a write with an error, so its tables may hold old lines; reset the card and start \
         the driver again"
    )]
    Unwritten,
    /// A command does not finish.
    #[error(
        "the card hangs: command {command} was not done after {polls} reads; reset it and start the driver again"
    )]
    Hangs {
        command: &'static str,
        /// How often the driver polled.
        polls: u32,
    },
}

/// The properties of a card, and the offsets of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Pipes from guests.
    pub downstream: u8,
    /// Pipes from wires.
    pub upstream: u8,
    /// Clock of the pipes, in MHz.
    pub clock: u32,
    /// Number of nexthops for which there is room.
    pub nexthops: u32,
    /// Number of nexthops on chip: those with the lowest numbers.
    pub nexthops_on_chip: u32,
    /// Binary logarithm of the number of buckets in a way of the flow table.
    pub flow_buckets: u32,
    /// Binary logarithm of the number of lines in a way of the bridge table.
    pub bridge_lines: u32,
    /// Binary logarithm of the number of lines in a way of the table of IPv6 prefixes.
    pub route6_lines: u32,
    /// Number of flows that have counters.
    pub flow_counters: u32,
    /// Number of flows with a seen bit, which shows whether packets arrived.
    pub flows_seen: u32,
    /// Number of flows for which the stash has room.
    pub stash_flows: u32,
    /// Offset of the command block.
    pub command: u32,
    /// Offset of the engine block.
    pub engine: u32,
    /// Offset of the counters.
    pub counters: u32,
}

impl Identity {
    /// Identifies a card.
    ///
    /// # Errors
    /// If this driver can't drive it.
    pub fn read<C: Card>(card: &mut C) -> Result<Self, CardError> {
        let magic = card.read32(identity::MAGIC);
        if magic != MAGIC {
            return Err(CardError::Magic(magic));
        }
        let revision = card.read32(identity::REVISION);
        if revision != registers::VERSION {
            return Err(CardError::Revision { card: revision, driver: registers::VERSION });
        }
        for wrote in [PATTERN, !PATTERN] {
            card.write32(identity::SCRATCH, wrote);
            let read = card.read32(identity::SCRATCH);
            if read != wrote {
                return Err(CardError::Scratch { wrote, read });
            }
        }
        let [command, engine, counters] = directory(card)?;
        let pipes = card.read32(identity::PIPES);
        let mut size = |what, register, limits: std::ops::RangeInclusive<u32>| {
            let value = card.read32(register);
            if limits.contains(&value) { Ok(value) } else { Err(CardError::Size { what, value }) }
        };
        Ok(Self {
            downstream: pipes as u8,
            upstream: (pipes >> 8) as u8,
            nexthops: size("number of nexthops", identity::NEXTHOPS, 1..=1 << 20)?,
            nexthops_on_chip: size("number of nexthops on chip", identity::NEXTHOPS_ON_CHIP, 1..=1 << 20)?,
            flow_buckets: size("flow table's logarithm", identity::FLOW_BUCKETS, 1..=26)?,
            bridge_lines: size("bridge table's logarithm", identity::BRIDGE_LINES, 1..=26)?,
            route6_lines: size("IPv6 routes' logarithm", identity::ROUTE6_LINES, 1..=25)?,
            flow_counters: size("number of flows' counters", identity::FLOW_COUNTERS, 1..=1 << 24)?,
            flows_seen: size("number of flows' bits", identity::FLOWS_SEEN, 64..=1 << 24)?,
            stash_flows: size("number of stashed flows", identity::STASH_FLOWS, 0..=1 << 16)?,
            clock: card.read32(identity::CLOCK),
            command,
            engine,
            counters,
        })
    }
}

/// Walks the directory. Returns the offsets of the blocks that the driver needs.
fn directory<C: Card>(card: &mut C) -> Result<[u32; 3], CardError> {
    let known = [
        (command::TYPE, command::VERSION, "command"),
        (engine::TYPE, engine::VERSION, "engine"),
        (counters::TYPE, counters::VERSION, "counters"),
    ];
    let blocks = card.read32(identity::BLOCKS);
    if blocks > DIRECTORY {
        return Err(CardError::Directory(blocks));
    }
    let mut found = [None; 3];
    for number in 0..blocks {
        let entry = card.read32(identity::DIRECTORY + 4 * number);
        let (block, version, offset) = ((entry >> 24) as u8, (entry >> 16) as u8, (entry & 0xffff) * BLOCK);
        if (block, version) == (identity::TYPE, identity::VERSION) {
            continue;
        }
        let place = known.iter().position(|(b, v, _)| (*b, *v) == (block, version));
        found[place.ok_or(CardError::Block { block, version })?] = Some(offset);
    }
    let mut offsets = [0; 3];
    for ((offset, found), (.., name)) in offsets.iter_mut().zip(found).zip(known) {
        *offset = found.ok_or(CardError::Missing(name))?;
    }
    Ok(offsets)
}
