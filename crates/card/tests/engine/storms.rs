//! Traffic under conditions that neither tables nor meaningful packets cause.

use super::both::STREAMS;
use super::ledger::RECEIVED;
use super::lockstep::{Lockstep, Prepared};
use super::random::traffic;
use super::weather::Weather;
use crate::host::tables;
use card::Card;
use card::registers::counters;
use model::generate::{Rng, packet};

/// Calls `storm` with random tables and their traffic, for each seed.
fn with_traffic(seeds: std::ops::Range<u64>, mut storm: impl FnMut(&mut Rng, &mut Lockstep, &[Prepared])) {
    let mut bench = Lockstep::new();
    for seed in seeds {
        let mut rng = Rng::new(seed);
        bench = bench.renewed();
        let tables = tables(&mut rng, true);
        bench.host.set_up(&mut rng, &tables);
        let packets = traffic(&mut rng, &mut bench);
        storm(&mut rng, &mut bench, &packets);
    }
    bench.ledger.check_all(bench.host.driver.commands());
    println!("{:#?}", bench.counts);
}

/// Makes a frame from the host, of any length.
fn any_frame(rng: &mut Rng) -> Vec<u8> {
    let len = 1 + rng.one(&[60, 64, 128, 1500, 9000]) + rng.below(70);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

#[test]
fn nothing_is_lost_or_overtaken_where_neighbours_make_it_wait() {
    with_traffic(100..104, |rng, bench, packets| {
        for (offers, takes, stalls) in
            [(100, 25, 0), (30, 100, 0), (50, 50, 0), (100, 100, 300), (60, 60, 100)]
        {
            bench.host.card().weather = Weather::new(rng.next_u64(), offers, takes, stalls);
            bench.round(rng, packets, 1200);
        }
    });
}

#[test]
fn packets_of_the_host_pass_among_others() {
    with_traffic(110..113, |rng, bench, packets| {
        for (offers, takes) in [(100, 100), (80, 60)] {
            bench.host.card().weather = Weather::new(rng.next_u64(), offers, takes, 5);
            for _ in 0..1500 {
                if rng.percent(30) {
                    let (input, egress) = (rng.below(STREAMS), rng.below(STREAMS) as u8);
                    let (port, frame) = (rng.below(1024) as u16, any_frame(rng));
                    bench.feed_direct(input, port, egress, &frame);
                } else {
                    bench.feed(&packets[rng.below(packets.len())]);
                }
            }
            bench.drain();
        }
        assert!(bench.counts.direct > 500);
    });
}

/// Makes a frame that usually has an error.
fn spoilt(rng: &mut Rng, bench: &mut Lockstep) -> Prepared {
    let packet = packet(rng, &bench.host.tables);
    let (input, port) = bench.prepare(&packet).place();
    let mut frame = packet.frame;
    match rng.below(5) {
        0 => frame = any_frame(rng),
        1 => frame.truncate(1 + rng.below(90)),
        2 => frame.resize(1 + rng.below(300), 0xff),
        _ => {}
    }
    for _ in 0..rng.below(6) {
        let near = frame.len().min(70);
        if let Some(byte) = frame.get_mut(rng.below(near)) {
            *byte = rng.next_u64() as u8;
        }
    }
    if frame.is_empty() {
        frame.push(0);
    }
    bench.prepare_frame(input, port, &frame)
}

#[test]
fn malformed_packets_at_line_rate() {
    with_traffic(120..124, |rng, bench, packets| {
        for _ in 0..2500 {
            let packet =
                if rng.percent(90) { spoilt(rng, bench) } else { packets[rng.below(packets.len())].clone() };
            bench.feed(&packet);
        }
        bench.drain();
    });
}

/// Many packets of one flow keep their order, although nothing else distinguishes them.
#[test]
fn one_flow_alone() {
    with_traffic(130..132, |rng, bench, packets| {
        let Some(one) = packets.iter().find(|packet| packet.is_served() && packet.drop().is_none()) else {
            return;
        };
        bench.host.card().weather = Weather::new(rng.next_u64(), 95, 90, 10);
        (0..3000).for_each(|_| bench.feed(one));
        bench.drain();
    });
}

/// A read counter has its value of one moment: otherwise its halves could be from two moments.
#[test]
fn a_counter_is_read_as_it_was_when_it_was_selected() {
    with_traffic(140..141, |rng, bench, packets| {
        let one = rng.one(packets);
        (0..3000).for_each(|_| bench.feed(&one));
        let block = bench.host.driver.commands().identity().counters;
        let card = bench.host.card();
        let select = u32::from(RECEIVED) << 24 | u32::from(one.place().1);
        let mut before = 0;
        for _ in 0..5 {
            (0..500).for_each(|_| card.tick());
            card.write32(block + counters::SELECT, select);
            let count = card.read32(block + counters::LOW);
            assert!(count > before, "packets pass");
            (0..500).for_each(|_| card.tick());
            assert_eq!(card.read32(block + counters::LOW), count);
            before = count;
        }
        bench.drain();
    });
}
