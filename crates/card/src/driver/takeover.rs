//! Taking over a card that a different driver used: look-ups must find nothing in its tables.

use crate::commands::Commands;
use crate::compile::ALL_VRFS;
use crate::cuckoo::Entry;
use crate::entries;
use crate::registers::{Bridge, Route6, Table};
use crate::{Card, CardError};

/// Numbers of ports, labels, and places of VNIs and remotes on chip.
const PORTS: u32 = 1024;
const LABELS: u32 = 1 << 16;
const VNIS: u32 = 1 << 13;
const REMOTES: u32 = 1 << 13;

/// Clears the tables of a card that isn't blank and forwards nothing. Of the route memory, clears only IPv6's part:
/// IPv4 tries, like nexthops, are written completely before anything refers to them.
pub fn clear<C: Card>(commands: &mut Commands<C>) -> Result<(), CardError> {
    if commands.is_blank() {
        return Ok(());
    }
    commands.barrier()?;
    let on_chip = [
        (Table::Port, PORTS),
        (Table::Vrf, ALL_VRFS.into()),
        (Table::Label, LABELS),
        (Table::Vni, VNIS),
        (Table::Remote, REMOTES),
    ];
    for (table, lines) in on_chip {
        commands.clear(table, 0, lines)?;
    }
    commands.write(Table::NexthopChange, 0, &[])?;
    let identity = *commands.identity();
    commands.clear(Table::Stash, 0, identity.stash_flows)?;
    clear_ways::<entries::FlowEntry, C>(commands, identity.flow_buckets)?;
    clear_ways::<Bridge, C>(commands, identity.bridge_lines)?;
    clear_ways::<Route6, C>(commands, identity.route6_lines)
}

/// Clears both ways of a table of 2^`bits` buckets each.
fn clear_ways<E: Entry, C: Card>(commands: &mut Commands<C>, bits: u32) -> Result<(), CardError> {
    let lines = (E::LINES as u32) << bits;
    E::ways(bits).into_iter().try_for_each(|first| commands.clear(E::TABLE, first, lines))
}
