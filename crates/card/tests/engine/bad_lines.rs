//! Lines that HBM answers with an error: packets that need them go to the host, others are forwarded, and no cache keeps
//! anything of them.

use crate::both::sim;
use crate::host::{Known, tables, talk};
use crate::lockstep::Lockstep;
use card::registers::{Punt, Table};
use card::{CardError, Commands, MemoryErrors};
use model::generate::{Packet, Rng, packet};

/// Packets of the same tables, each time.
const PACKETS: usize = 4000;

/// Packets that the card left to the host as it could not read.
fn unread(bench: &Lockstep) -> usize {
    bench.counts.punted.get(&Punt::MemoryError).copied().unwrap_or_default()
}

/// Gives the card packets, with lines as they are; how many were forwarded.
fn round(rng: &mut Rng, bench: &mut Lockstep, packets: &[Packet]) -> usize {
    let before = bench.counts.forwarded;
    let prepared: Vec<_> = packets.iter().map(|packet| bench.prepare(packet)).collect();
    bench.round(rng, &prepared, PACKETS);
    bench.counts.forwarded - before
}

#[test]
fn what_can_not_be_read_is_the_hosts_and_is_not_kept() {
    let mut bench = Lockstep::new();
    let (mut failed, mut served, mut unread_of) = ([0; 4], 0, 0);
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        bench = bench.renewed();
        if seed % 2 == 1 {
            bench.host.driver.leave_chip();
        }
        let random = tables(&mut rng, true);
        bench.host.set_up(&mut rng, &random);
        for _ in 0..80 {
            talk::converse(&mut rng, &mut bench);
        }
        for _ in 0..40 {
            let packet = packet(&mut rng, &bench.host.tables);
            talk::Carrier::send(&mut bench, &packet);
        }
        let packets = bench.take_sent();

        // Of each table some lines. No packet came yet, so no line is in a cache.
        let lines = bench.host.card().memory().lines_in_hbm();
        let bad: Vec<_> = lines.into_iter().filter(|_| rng.percent(6)).collect();
        for (table, address) in &bad {
            failed[table_number(*table)] += 1;
            bench.host.card().fail(*table, *address, true);
        }
        bench.errors = None;
        let before = unread(&bench);
        served += round(&mut rng, &mut bench, &packets);
        unread_of += unread(&bench) - before;
        let errors = bench.host.driver.commands().memory_errors();
        assert_eq!(errors.count > 0, unread(&bench) > before, "{errors:?}");
        assert_eq!(errors.count > 0, errors.channels != 0, "{errors:?}");

        // Once they can be read again, they are.
        for (table, address) in bad {
            bench.host.card().fail(table, address, false);
        }
        bench.errors = Some(errors.count);
        let before = unread(&bench);
        round(&mut rng, &mut bench, &packets);
        assert_eq!(unread(&bench), before);
    }
    println!("lines that failed {failed:?}, {unread_of} packets for the host, {served} forwarded");
    // These tables have too few MACs for a line of the bridge table to fail in each run.
    assert!(failed[0] > 0 && failed[2] > 0 && failed[3] > 0, "{failed:?}");
    assert!(unread_of > 500 && served > PACKETS, "{unread_of} {served}");
}

/// Of the tables in HBM.
fn table_number(table: Table) -> usize {
    match table {
        Table::Flow => 0,
        Table::Bridge => 1,
        Table::Route => 2,
        _ => 3,
    }
}

#[test]
fn a_write_that_fails_ends_the_driving_of_the_card() {
    let mut sim = sim();
    sim.fail(Table::Route, 5, true);
    let mut commands = Commands::open(sim).unwrap().with_polls(5000);
    commands.write(Table::Route, 4, &[1; 32]).unwrap();
    assert_eq!(commands.memory_errors(), MemoryErrors::default());
    assert_eq!(commands.write(Table::Route, 5, &[1; 32]), Err(CardError::Unwritten));
    let errors = commands.memory_errors();
    assert_eq!((errors.count, errors.channels.count_ones()), (1, 1));
    assert_eq!(commands.barrier(), Err(CardError::Unwritten));
    // Nobody else drives it either, before it is reset.
    let mut sim = commands.into_card();
    assert_eq!(Commands::open(&mut sim).map(|_| ()), Err(CardError::Unwritten));
    sim.reset();
    assert!(Commands::open(sim).is_ok());
}
