//! Lines that HBM answers with an error: the card punts packets that need them, forwards others, and caches none of
//! these lines.

use super::both::sim;
use super::lockstep::Lockstep;
use crate::host::{Known, tables, talk};
use card::expect::Outcome;
use card::registers::{Punt, Table};
use card::{CardError, Commands, MemoryErrors};
use model::generate::{Packet, Rng, packet};

/// Number of packets that a card gets with lines that fail, and again without.
const PACKETS: usize = 4000;

const TABLES: [Table; 4] = [Table::Flow, Table::Bridge, Table::Route, Table::Nexthop];

/// Sets whether HBM answers requests for these lines with an error.
fn fail(bench: &mut Lockstep, lines: &[(Table, u32)], fails: bool) {
    lines.iter().for_each(|(table, address)| bench.host.card().fail(*table, *address, fails));
}

/// Returns whether the card must punt a packet because it can't read a line.
fn is_unread(bench: &mut Lockstep, packet: &Packet) -> bool {
    matches!(bench.host.outcome(packet), Outcome::Punt(Punt::MemoryError))
}

/// Returns the number of packets that were punted because the card could not read their lines.
fn unread(bench: &Lockstep) -> usize {
    bench.counts.punted.get(&Punt::MemoryError).copied().unwrap_or_default()
}

/// Gives the card packets. Returns how many it forwarded.
fn round(rng: &mut Rng, bench: &mut Lockstep, packets: &[Packet]) -> usize {
    let before = bench.counts.forwarded;
    let prepared: Vec<_> = packets.iter().map(|packet| bench.prepare(packet)).collect();
    bench.round(rng, &prepared, PACKETS);
    bench.counts.forwarded - before
}

/// Chooses a random packet that needs one of these lines. Returns it and the line.
fn needed(
    rng: &mut Rng,
    bench: &mut Lockstep,
    packets: &[Packet],
    lines: &[(Table, u32)],
) -> Option<(Packet, (Table, u32))> {
    fail(bench, lines, true);
    let from = rng.below(packets.len());
    let packet = packets[from..].iter().chain(&packets[..from]).find(|packet| is_unread(bench, packet));
    fail(bench, lines, false);
    let packet = packet?;
    let needs = |line: &&(Table, u32)| {
        fail(bench, &[**line], true);
        let needs = is_unread(bench, packet);
        fail(bench, &[**line], false);
        needs
    };
    let line = lines.iter().find(needs).expect("a packet that needs all lines needs one of them");
    Some((packet.clone(), *line))
}

/// Sets up a card with random tables; all nexthops are in HBM, or some of them on chip. Returns packets, too.
fn set_up(rng: &mut Rng, bench: Lockstep, on_chip: bool) -> (Lockstep, Vec<Packet>) {
    let mut bench = bench.renewed();
    if !on_chip {
        bench.host.driver.leave_chip();
    }
    let random = tables(rng, true);
    bench.host.set_up(rng, &random);
    for _ in 0..80 {
        talk::converse(rng, &mut bench);
    }
    for _ in 0..40 {
        let packet = packet(rng, &bench.host.tables);
        talk::Carrier::send(&mut bench, &packet);
    }
    let packets = bench.take_sent();
    (bench, packets)
}

#[test]
fn the_card_punts_what_it_can_not_read_and_does_not_cache_it() {
    let mut bench = Lockstep::new();
    let (mut failed, mut served, mut unread_of) = ([0; 4], 0, 0);
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let packets;
        (bench, packets) = set_up(&mut rng, bench, seed % 2 == 0);

        // For each table, a line that a packet needs, and some others. No packet came yet, so no line is in a cache.
        let lines = bench.host.card().memory().lines_in_hbm();
        let (mut bad, mut needing) = (Vec::new(), Vec::new());
        for (table, failed) in TABLES.iter().zip(&mut failed) {
            let lines: Vec<_> = lines.iter().copied().filter(|line| line.0 == *table).collect();
            if let Some((packet, line)) = needed(&mut rng, &mut bench, &packets, &lines) {
                needing.push(packet);
                bad.push(line);
                *failed += 1;
            }
            bad.extend(lines.into_iter().filter(|_| rng.percent(3)));
        }
        fail(&mut bench, &bad, true);
        bench.errors = None;
        let before = unread(&bench);
        for packet in &needing {
            let packet = bench.prepare(packet);
            assert_eq!(packet.punt(), Some(Punt::MemoryError));
            bench.feed(&packet);
        }
        served += round(&mut rng, &mut bench, &packets);
        unread_of += unread(&bench) - before;
        let errors = bench.host.driver.commands().memory_errors();
        assert!(errors.count > 0 && errors.channels != 0, "{errors:?}");

        // Once the lines can be read again, the card reads them.
        fail(&mut bench, &bad, false);
        bench.errors = Some(errors.count);
        let before = unread(&bench);
        round(&mut rng, &mut bench, &packets);
        assert_eq!(unread(&bench), before);
    }
    println!("tables {TABLES:?} failed {failed:?} times, {unread_of} packets punted, {served} forwarded");
    assert!(failed.iter().all(|times| *times > 0), "{failed:?}");
    assert!(unread_of > 500 && served > PACKETS, "{unread_of} {served}");
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
    // No other driver opens the card before a reset.
    let mut sim = commands.into_card();
    assert_eq!(Commands::open(&mut sim).map(|_| ()), Err(CardError::Unwritten));
    sim.reset();
    assert!(Commands::open(sim).is_ok());
}
