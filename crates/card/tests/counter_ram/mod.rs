//! Counters compared with sums, for events with few numbers, in bursts and with pauses, and what a reader gets
//! meanwhile.
#![cfg(feature = "card-test")]

use model::generate::Rng;
use rtl::CounterRam;

/// Clocks until an event has reached the RAM and, from there, the reader.
const LATENCY: usize = 6;

#[test]
fn every_event_counts_once_and_reads_are_no_older_than_the_last_gap() {
    let mut top = CounterRam::new();
    top.reset(4);
    let mut rng = Rng::new(3);
    let mut sums = [(0_u64, 0_u64); 16];
    let mut checked = 0;
    for _ in 0..2000 {
        // A burst, of one number or of several.
        let numbers = 1 + rng.below(4);
        let pauses = rng.one(&[0, 30, 90]);
        for _ in 0..rng.below(60) {
            let valid = !rng.percent(pauses);
            let (number, size) = (rng.below(numbers), 60 + rng.below(1500) as u16);
            top.set_valid(valid);
            top.set_number(number as u8);
            top.set_size(size);
            top.clock();
            if valid {
                sums[number].0 += 1;
                sums[number].1 += u64::from(size);
            }
        }
        top.set_valid(false);
        let number = rng.below(16);
        top.set_rd_number(number as u8);
        for _ in 0..LATENCY {
            top.clock();
        }
        assert_eq!((top.rd_packets(), top.rd_bytes()), sums[number]);
        checked += u64::from(sums[number].0 > 0);
        // During events without a gap, the reader keeps its last value.
        top.set_valid(true);
        top.set_number(number as u8);
        top.set_size(64);
        for _ in 0..5 {
            top.clock();
            sums[number] = (sums[number].0 + 1, sums[number].1 + 64);
            assert!(top.rd_packets() <= sums[number].0);
        }
    }
    assert!(checked > 100);
}
