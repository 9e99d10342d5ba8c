//! Look-ups in the flow table as the driver's shadow lays it out: their results, and their number per clock.
#![cfg(feature = "card-test")]

mod bench;
use crate::channel;

use std::time::Instant;

use bench::{Bench, PIPES, Probe, Store, flow, result};
use card::cuckoo::Entry;
use card::entries::FlowEntry;
use card::step::Step;
use channel::{Adversary, Channel, Random};
use hbm::{Controller, Timing};

/// Loads a table of flows, one in four of them IPv6. Returns probes for them, and for as many flows that are not in the
/// table. One in four of the latter differs in one bit from a flow that is.
fn loaded<C: Channel + Store>(
    bench: &mut Bench<C>,
    random: &mut Random,
    count: u64,
) -> (Vec<FlowEntry>, Vec<FlowEntry>) {
    let there: Vec<_> = (0..count).map(|n| flow(random, n % 4 == 0)).collect();
    there.iter().for_each(|flow| bench.load(*flow));
    let near = |flow: &FlowEntry, bit: u64| match *flow {
        FlowEntry::V4(mut flow) => {
            flow.dst ^= 1 << (bit % 32);
            FlowEntry::V4(flow)
        }
        FlowEntry::V6(mut flow) => {
            flow.dst ^= 1 << (bit % 128);
            FlowEntry::V6(flow)
        }
    };
    let absent = |n: usize| {
        if n.is_multiple_of(4) { near(&there[n], random.next()) } else { flow(random, n.is_multiple_of(3)) }
    };
    let absent = (0..there.len()).map(absent).collect();
    (there, absent)
}

fn hostile(c: usize) -> Adversary {
    Adversary::new(c as u64 + 1, |_| [0; 32])
}

#[test]
fn flows_are_found_and_others_are_not() {
    let mut random = Random(1);
    let mut bench = Bench::new(hostile);
    let (there, absent) = loaded(&mut bench, &mut random, 3000);
    let mut probes: Vec<_> = there.iter().chain(&absent).map(|flow| Probe::new(&bench.table, flow)).collect();
    // Some are looked up again and again.
    probes.extend_from_within(..20);
    for clock in 0..12_000 {
        let hot = clock / 1000 % 2 == 1;
        bench.clock(|_| {
            let among = if hot { 20 } else { probes.len() as u64 };
            random.chance(80).then(|| probes[random.below(among) as usize])
        });
    }
    bench.drain();
    let answered: u64 = bench.answered.iter().sum();
    println!("{answered} answers, {} of them hits", bench.hits);
    assert!(bench.hits > answered / 4 && bench.hits < answered);
}

#[test]
fn flows_stay_found_while_the_table_changes() {
    let mut random = Random(2);
    let mut bench = Bench::new(hostile);
    let (there, _) = loaded(&mut bench, &mut random, 400);
    let mut probes: Vec<_> = there.iter().map(|flow| Probe::new(&bench.table, flow)).collect();
    let mut changes = 0;
    while changes < 150 {
        // Inserts, changes or removes a flow; until that is done, look-ups may find the old or the new value.
        let n = random.below(there.len() as u64) as usize;
        while bench.asks(&probes[n].key) {
            bench.clock(|_| {
                Some(random.below(probes.len() as u64) as usize).filter(|k| *k != n).map(|k| probes[k])
            });
        }
        let before = result(bench.table.find(&probes[n].key));
        let steps = match there[n] {
            _ if before != 0 && random.chance(40) => bench.table.remove(&probes[n].key),
            FlowEntry::V4(flow) => bench
                .table
                .insert(FlowEntry::V4(card::registers::Flow4 { index: changes, ..flow }))
                .expect("room"),
            FlowEntry::V6(flow) => bench
                .table
                .insert(FlowEntry::V6(card::registers::Flow6 { index: changes, ..flow }))
                .expect("room"),
        };
        let after = result(bench.table.find(&probes[n].key));
        // While only one of its two halves is written, an IPv6 flow isn't found.
        let torn = matches!(there[n], FlowEntry::V6(_)) && before != 0 && after != 0;
        probes[n].results = [before, after];
        bench.steps.extend(steps);
        while !bench.steps.is_empty() {
            let barrier = bench.barrier();
            bench.clock(|_| {
                let chosen = if random.chance(50) { n } else { random.below(probes.len() as u64) as usize };
                (!(barrier || torn && chosen == n)).then(|| probes[chosen])
            });
        }
        // From here on look-ups find only the new value.
        probes[n].results = [after; 2];
        changes += 1;
    }
    bench.drain();
    assert!(bench.hits > 1000, "{}", bench.hits);
}

/// The contents of the stash, and the results that a look-up may have.
struct Stash {
    flows: Vec<FlowEntry>,
    probes: Vec<Probe>,
    places: [Option<usize>; 16],
}

impl Stash {
    fn of(flows: Vec<FlowEntry>) -> Self {
        let probes = flows.iter().map(|flow| Probe { key: flow.key(), results: [0; 2] }).collect();
        Self { flows, probes, places: [None; 16] }
    }

    /// Writes a place. Returns the step and the flows that it changes.
    fn write(&mut self, random: &mut Random) -> (Step, Vec<usize>) {
        let number = random.below(16) as usize;
        let (before, chosen) = (self.places[number], random.below(self.flows.len() as u64) as usize);
        let elsewhere = self.places.contains(&Some(chosen)) && before != Some(chosen);
        let after = Some(chosen).filter(|_| !elsewhere && random.chance(80));
        self.places[number] = after;
        if let Some(flow) = after {
            // A value that identifies the flow and its version.
            let value = random.next() as u32 >> 8;
            match &mut self.flows[flow] {
                FlowEntry::V4(flow) => (flow.index, flow.new_src) = (value, !value),
                FlowEntry::V6(flow) => flow.index = value,
            }
        }
        let changed: Vec<_> = before.into_iter().chain(after.filter(|_| after != before)).collect();
        for flow in &changed {
            let now = result(Some(&self.flows[*flow]).filter(|_| after == Some(*flow)));
            self.probes[*flow].results[1] = now;
        }
        let lines = FlowEntry::encode([after.map(|flow| &self.flows[flow]), None], 0);
        (Step::Stash { number: number as u32, lines }, changed)
    }
}

#[test]
fn flows_of_the_stash_are_found_as_they_are_written() {
    let mut random = Random(5);
    let mut bench = Bench::new(hostile);
    let (there, absent) = loaded(&mut bench, &mut random, 24);
    let table: Vec<_> = there.iter().map(|flow| Probe::new(&bench.table, flow)).collect();
    let mut stash = Stash::of(absent);
    for _ in 0..600 {
        let (step, changed) = stash.write(&mut random);
        while changed.iter().any(|flow| bench.asks(&stash.probes[*flow].key)) {
            bench.clock(|_| None);
        }
        // Look-ups of flows being changed may find the old or the new value; others may not.
        let next = |random: &mut Random, stash: &Stash| match random.below(4) {
            0 => table[random.below(24) as usize],
            1 => stash.probes[random.below(24) as usize],
            _ if changed.is_empty() => table[0],
            _ => stash.probes[changed[random.below(changed.len() as u64) as usize]],
        };
        (0..30).for_each(|_| bench.clock(|_| Some(next(&mut random, &stash))));
        bench.steps.push_back(step);
        (0..30).for_each(|_| bench.clock(|_| Some(next(&mut random, &stash))));
        for probe in &mut stash.probes {
            probe.results[0] = probe.results[1];
        }
    }
    bench.drain();
    let answered: u64 = bench.answered.iter().sum();
    println!("{answered} answers, {} of them hits", bench.hits);
    assert!(bench.hits > answered / 3 && bench.hits < answered * 9 / 10);
}

#[test]
fn a_key_written_down_is_hashed_as_the_driver_does() {
    let mut random = Random(3);
    let mut bench = Bench::new(hostile);
    let one = flow(&mut random, false);
    bench.load(one);
    let probe = Probe { key: one.key(), results: [result(Some(&one)); 2] };
    bench.clock(|pipe| (pipe == 2).then_some(probe));
    bench.drain();
    assert_eq!((bench.answered, bench.hits), ([0, 0, 1, 0], 1));
}

/// Returns the look-ups per clock of each pipe, while all ask as fast as they can, over channels with this timing.
fn rate(name: &str, timing: &Timing, flows: u64, clocks: u64) -> f64 {
    let mut random = Random(4);
    let mut bench = Bench::new(|_| hbm::Channel::new(*timing, Controller::default()));
    let there: Vec<_> = (0..flows).map(|_| flow(&mut random, false)).collect();
    there.iter().for_each(|flow| bench.load(*flow));
    let probes: Vec<_> = there.iter().map(|flow| Probe::new(&bench.table, flow)).collect();
    let mut next = |_| Some(probes[random.below(flows) as usize]);
    for _ in 0..1000 {
        bench.clock(&mut next);
    }
    let (before, start) = (bench.answered, Instant::now());
    for _ in 0..clocks {
        bench.clock(&mut next);
    }
    let speed = clocks as f64 / start.elapsed().as_secs_f64();
    let rates =
        bench.answered.iter().zip(before).map(|(after, before)| (after - before) as f64 / clocks as f64);
    let (slowest, all) = rates.fold((f64::MAX, 0.0), |(slowest, all), rate| (rate.min(slowest), rate + all));
    bench.drain();
    println!(
        "{name}, {flows} flows: {all:.3} look-ups a clock of {PIPES} pipes, at 250 MHz {:.0} M/s; the slowest pipe {slowest:.3}; {speed:.0} clocks/s",
        all * 250.0
    );
    slowest
}

#[test]
fn random_flows_at_half_a_lookup_a_clock_and_pipe() {
    for (name, timing) in [("HBM2", Timing::hbm2()), ("HBM2, conservative", Timing::conservative())] {
        assert!(rate(name, &timing, 300_000, 20_000) >= 0.5);
    }
}

#[test]
fn one_flow_at_a_lookup_a_clock_and_pipe() {
    assert!(rate("HBM2", &Timing::hbm2(), 1, 20_000) >= 0.999);
}

#[test]
fn few_flows_at_half_a_lookup_a_clock_and_pipe() {
    for flows in [2, 4, 16, 1000] {
        assert!(rate("HBM2", &Timing::hbm2(), flows, 10_000) >= 0.5, "{flows} flows");
    }
}
