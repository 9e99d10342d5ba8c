//! A driver takes over a card from a driver that has ended.

use super::host::{Host, frame};
use card::Commands;
use card::driver::Driver;
use card::expect::{Memory, Outcome, Sizes};
use card::registers::{Punt, Table};

/// Returns sizes of small tables, because clearing large ones takes long.
fn sizes() -> Sizes {
    Sizes { flow_buckets: 6, ..Sizes::default() }
}

#[test]
fn nothing_of_an_earlier_drivers_tables_is_found() {
    let mut host = Host::new(sizes());
    let packet = frame(1, 2, (7, 9));
    host.host(1, &packet);
    assert!(host.is_on_card(1, &packet));
    let memory = host.driver.commands().card().clone();
    let mut anew = Driver::new(Commands::open(memory).unwrap(), [9; 5]).unwrap();
    let memory = anew.commands().card();
    let outcome = card::expect::outcome(memory, 1, &packet, packet.len());
    assert_eq!(outcome, Outcome::Punt(Punt::HostPort));
    // The same tables and the same secret, but without the flow.
    let mut host = Host::with(memory.clone());
    assert!(!host.is_on_card(1, &packet));
    host.host(1, &packet);
    assert!(host.is_on_card(1, &packet));
}

#[test]
fn every_table_is_cleared_from_the_first_line_to_the_last() {
    let mut memory = Memory::new(sizes());
    let last = |bits: u32| (1 << bits) - 1;
    let Sizes { flow_buckets, bridge_lines, route6_lines, .. } = sizes();
    let ends = [
        (Table::Flow, 0),
        (Table::Flow, last(flow_buckets + 1)),
        (Table::Flow, 1 << 31),
        (Table::Flow, 1 << 31 | last(flow_buckets + 1)),
        (Table::Bridge, 0),
        (Table::Bridge, last(bridge_lines + 1)),
        (Table::Route, 1 << 26),
        (Table::Route, 1 << 26 | last(route6_lines)),
        (Table::Route, 3 << 25),
        (Table::Route, 3 << 25 | last(route6_lines)),
        (Table::Port, 0),
        (Table::Port, 1023),
        (Table::Vrf, 0),
        (Table::Vrf, 4095),
        (Table::Label, 0),
        (Table::Label, 65_535),
        (Table::Vni, 0),
        (Table::Vni, 8191),
        (Table::Remote, 0),
        (Table::Remote, 8191),
        (Table::Stash, 0),
        (Table::Stash, 15),
    ];
    let mut commands = Commands::open(&mut memory).unwrap();
    for (table, line) in ends {
        commands.write(table, line, &[0xff; 32]).unwrap();
    }
    let mut driver = Driver::new(commands, [9; 5]).unwrap();
    for (table, line) in ends {
        assert_eq!(driver.commands().card().line::<32>(table, line), [0; 32], "{table:?} {line:#x}");
    }
}

#[test]
fn a_cleared_line_is_written_again_to_a_blank_card() {
    let mut commands = Commands::open(Memory::new(sizes())).unwrap().with_blank_memory();
    for line in [5, 6, 7] {
        commands.write(Table::Bridge, line, &[1; 32]).unwrap();
    }
    commands.clear(Table::Bridge, 6, 1).unwrap();
    commands.write(Table::Bridge, 7, &[0; 32]).unwrap();
    let held = |commands: &mut Commands<Memory>| {
        [5, 6, 7].map(|line| commands.card().line::<1>(Table::Bridge, line)[0])
    };
    assert_eq!(held(&mut commands), [1, 0, 0]);
    commands.write(Table::Bridge, 6, &[2; 32]).unwrap();
    assert_eq!(held(&mut commands), [1, 2, 0]);
}
