//! The commands obey the timing rules: every two of them, for random traffic, in every configuration.
//!
//! The checker treats a rule as a minimum distance between two commands and tries all pairs. It shares only the
//! parameters with the scheduler.

use hbm::{BANKS, Channel, Command, Controller, GROUPS, Kind, Refresh, Timing};
use proptest::prelude::*;

#[derive(Debug, PartialEq, Eq)]
struct Broken(&'static str, Command, Command);

/// How far back the rules reach, in tCK: for refreshes past tRFC, for others past tRC and the distance from a write's
/// end to a precharge.
const REACH: u64 = 600;
const NEAR: u64 = 80;

fn check(t: &Timing, trace: &[Command]) -> Result<(), Broken> {
    for (i, later) in trace.iter().enumerate() {
        let reach = |c: &&Command| if matches!(c.kind, Kind::Refresh { .. }) { REACH } else { NEAR };
        let before = trace[..i].iter().rev().take_while(|c| c.at + REACH > later.at);
        for earlier in before.filter(|c| c.at + reach(c) > later.at) {
            let mut broken = None;
            rules(t, earlier.kind, later.kind, |applies, rule, least| {
                if applies && later.at < earlier.at + u64::from(least) {
                    broken = Some(Broken(rule, *earlier, *later));
                }
            });
            broken.map_or(Ok(()), Err)?;
        }
    }
    activates(t, trace)?;
    rows(t, trace)?;
    data(t, trace)
}

/// Calls `rule` for each rule between two commands: whether it applies, its name and the least distance.
fn rules(t: &Timing, earlier: Kind, later: Kind, mut rule: impl FnMut(bool, &'static str, u32)) {
    use Kind::*;
    // A command is alone on its bus; an activate also takes the cycles before the one from which it counts.
    let column = |kind| matches!(kind, Read { .. } | Write { .. });
    let cycles = if matches!(later, Activate { .. }) { t.act_cycles } else { 1 };
    rule(t.shared_bus || column(earlier) == column(later), "command bus", cycles);
    let end_of_write = t.cwl + t.burst;
    match (earlier, later) {
        (Activate { bank: a, .. }, Activate { bank: b, .. }) => {
            rule(true, "tRRD_S", t.rrd_s);
            rule(group(a) == group(b), "tRRD_L", t.rrd_l);
            rule(a == b, "tRC", t.rc);
        }
        (Activate { bank: a, .. }, Read { bank: b, .. }) => rule(a == b, "tRCDRD", t.rcd_rd),
        (Activate { bank: a, .. }, Write { bank: b, .. }) => rule(a == b, "tRCDWR", t.rcd_wr),
        (Activate { bank: a, .. }, Precharge { bank: b }) => rule(a == b, "tRAS", t.ras),
        (Activate { bank, .. }, Refresh { banks }) => {
            rule(banks >> bank & 1 == 1, "tRC", t.rc);
            rule(true, "tRRD_S", t.rrd_s);
        }
        (Read { bank: a, .. }, Read { bank: b, .. }) | (Write { bank: a, .. }, Write { bank: b, .. }) => {
            rule(true, "tCCD_S", t.ccd_s);
            rule(group(a) == group(b), "tCCD_L", t.ccd_l);
        }
        (Read { bank: a, .. }, Precharge { bank: b }) => rule(a == b, "tRTP", t.rtp),
        (Write { bank: a, .. }, Precharge { bank: b }) => rule(a == b, "tWR", end_of_write + t.wr),
        (Write { bank: a, .. }, Read { bank: b, .. }) => {
            rule(true, "tWTR_S", end_of_write + t.wtr_s);
            rule(group(a) == group(b), "tWTR_L", end_of_write + t.wtr_l);
        }
        (Precharge { bank: a }, Activate { bank: b, .. }) => rule(a == b, "tRP", t.rp),
        (Precharge { bank }, Refresh { banks }) => rule(banks >> bank & 1 == 1, "tRP", t.rp),
        (Refresh { banks }, Activate { bank, .. }) => match t.refresh {
            hbm::Refresh::AllBank { rfc, .. } => rule(true, "tRFC", rfc),
            hbm::Refresh::PerBank { rfc, rrefd, .. } => {
                rule(banks >> bank & 1 == 1, "tRFCsb", rfc);
                rule(true, "tRREFD", rrefd);
            }
        },
        _ => {}
    }
}

fn group(bank: u8) -> usize {
    bank as usize % GROUPS
}

/// Checks tFAW: the fifth of five activates is late enough.
fn activates(t: &Timing, trace: &[Command]) -> Result<(), Broken> {
    let activates: Vec<_> = trace.iter().filter(|c| matches!(c.kind, Kind::Activate { .. })).collect();
    for five in activates.windows(5) {
        if five[4].at < five[0].at + u64::from(t.faw) {
            return Err(Broken("tFAW", *five[0], *five[4]));
        }
    }
    Ok(())
}

/// Checks that column commands go to open rows, activates and refreshes to closed banks, and that automatic precharges
/// obey tRAS, tRTP, tWR and tRP.
fn rows(t: &Timing, trace: &[Command]) -> Result<(), Broken> {
    let start = Command { at: 0, kind: Kind::Refresh { banks: 0 } };
    let mut opened = [None::<Command>; BANKS];
    let mut closed = [(0, start); BANKS]; // when the bank's own precharge is over, and after what
    for &now in trace {
        let check = |good: bool, rule, bank: usize| {
            if good { Ok(()) } else { Err(Broken(rule, opened[bank].unwrap_or(closed[bank].1), now)) }
        };
        match now.kind {
            Kind::Activate { bank, .. } => {
                let bank = bank as usize;
                check(opened[bank].is_none(), "activate of an open bank", bank)?;
                check(now.at >= closed[bank].0, "tRP after a precharge of its own", bank)?;
                opened[bank] = Some(now);
            }
            Kind::Precharge { bank } => {
                check(opened[bank as usize].is_some(), "precharge of a closed bank", bank.into())?;
                opened[bank as usize] = None;
            }
            Kind::Read { bank, close } | Kind::Write { bank, close } => {
                check(opened[bank as usize].is_some(), "column of a closed bank", bank.into())?;
                if let Some(activate) = opened[bank as usize]
                    && close
                {
                    let wait = match now.kind {
                        Kind::Read { .. } => t.rtp,
                        _ => t.cwl + t.burst + t.wr,
                    };
                    let precharge = (activate.at + u64::from(t.ras)).max(now.at + u64::from(wait));
                    closed[bank as usize] = (precharge + u64::from(t.rp), now);
                    opened[bank as usize] = None;
                }
            }
            Kind::Refresh { banks } => {
                for bank in (0..BANKS).filter(|bank| banks >> bank & 1 == 1) {
                    check(opened[bank].is_none(), "refresh of an open bank", bank)?;
                    check(now.at >= closed[bank].0, "tRP before a refresh", bank)?;
                }
            }
        }
    }
    Ok(())
}

/// Checks that data of two commands is never on the bus at once, and that the bus turns between a read's data and a
/// write's.
fn data(t: &Timing, trace: &[Command]) -> Result<(), Broken> {
    let column = |c: &Command| match c.kind {
        Kind::Read { .. } => Some((c.at + u64::from(t.cl), false, *c)),
        Kind::Write { .. } => Some((c.at + u64::from(t.cwl), true, *c)),
        _ => None,
    };
    let columns: Vec<_> = trace.iter().filter_map(column).collect();
    for two in columns.windows(2) {
        let [(first, wrote, a), (second, writes, b)] = *two else { continue };
        let turn = if !wrote && writes { t.bus_turn } else { 0 };
        if second < first + u64::from(t.burst + turn) {
            return Err(Broken("data bus", a, b));
        }
    }
    Ok(())
}

/// A small generator, so that a seed describes a failure.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The input: how many requests, for which lines, and which part of them are writes.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    seed: u64,
    read_percent: u64,
    write_percent: u64,
    lines: u64,
    ids: u64,
    accept_percent: u64,
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let lines = prop_oneof![Just(1u64), Just(16), Just(256), Just(1 << 22)];
    (any::<u64>(), 0..=100u64, 0..=100u64, lines, 1..=64u64, 20..=100u64).prop_map(
        |(seed, read_percent, write_percent, lines, ids, accept_percent)| Traffic {
            seed,
            read_percent,
            write_percent,
            lines,
            ids,
            accept_percent,
        },
    )
}

fn controller() -> impl Strategy<Value = Controller> {
    (prop_oneof![Just(1usize), Just(4), Just(16), Just(64)], any::<bool>(), prop_oneof![Just(1u8), Just(4)])
        .prop_map(|(window, in_order, row_hits)| Controller {
            window,
            in_order,
            row_hits,
            clock_ps: 2000, // twice the card's: the memory is to be the limit
            ..Controller::default()
        })
}

fn timings() -> Vec<Timing> {
    let per_bank = Timing { refresh: Refresh::HBM2_PER_BANK, ..Timing::hbm2() };
    let slower = Timing { refresh: Refresh::HBM2_1800_PER_BANK, ..Timing::hbm2_1800() };
    vec![Timing::hbm2(), Timing::hbm2_1800(), Timing::conservative(), per_bank, slower, Timing::ddr4_2400()]
}

fn run(timing: Timing, controller: Controller, traffic: Traffic, clocks: usize) -> Vec<Command> {
    let mut channel = Channel::new(timing, controller);
    let mut random = Random(traffic.seed);
    channel.record();
    for _ in 0..clocks {
        let line = 64 * random.below(traffic.lines);
        let (beats, id) = (1 + random.below(2) as usize, random.below(traffic.ids) as u8);
        if random.below(100) < traffic.read_percent && channel.can_read() {
            channel.read(id, line, beats as u8).expect("ready");
        }
        let line = 64 * random.below(traffic.lines);
        if random.below(100) < traffic.write_percent && channel.can_write() {
            channel.write(id, line, &[[id; 32]; 2][..beats]).expect("ready");
        }
        if random.below(100) < traffic.accept_percent {
            channel.accept_r();
            channel.accept_b();
        }
        channel.tick();
    }
    channel.take_trace()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_rule_is_kept(traffic in traffic(), controller in controller()) {
        for timing in timings() {
            let trace = run(timing, controller, traffic, 3000);
            prop_assert_eq!(check(&timing, &trace), Ok(()), "{:?}", timing);
        }
    }
}

/// The checker objects if any parameter is one longer than the scheduler's. A rule would also hold if the traffic never
/// came close to it; this test excludes that.
#[test]
fn every_parameter_is_met_exactly() {
    type Longer = (&'static str, fn(&mut Timing));
    let longer: &[Longer] = &[
        ("tRCDRD", |t| t.rcd_rd += 1),
        ("tRCDWR", |t| t.rcd_wr += 1),
        ("tRP", |t| t.rp += 1),
        ("tRAS", |t| t.ras += 1),
        ("tRC", |t| t.rc += 1),
        ("tCCD_S", |t| t.ccd_s += 1),
        ("tCCD_L", |t| t.ccd_l += 1),
        ("tRRD_S", |t| t.rrd_s += 1),
        ("tRRD_L", |t| t.rrd_l += 1),
        ("tFAW", |t| t.faw += 1),
        ("tRTP", |t| t.rtp += 1),
        ("tWR", |t| t.wr += 1),
        ("tWTR_S", |t| t.wtr_s += 1),
        ("tWTR_L", |t| t.wtr_l += 1),
        ("bus_turn", |t| t.bus_turn += 1),
        ("burst", |t| t.burst += 1),
        ("tRFC", |t| match &mut t.refresh {
            Refresh::AllBank { rfc, .. } | Refresh::PerBank { rfc, .. } => *rfc += 1,
        }),
        ("tRREFD", |t| {
            if let Refresh::PerBank { rrefd, .. } = &mut t.refresh {
                *rrefd += 1;
            }
        }),
        ("act_cycles", |t| t.act_cycles += 1),
    ];
    for timing in timings() {
        let traces = busy(timing);
        for (name, longer) in longer {
            let mut other = timing;
            longer(&mut other);
            let objected = traces.iter().any(|trace| check(&other, trace).is_err());
            assert_eq!(objected, other != timing, "{name} of {timing:?}");
        }
    }
}

/// Makes traffic of all kinds: random and hot, reads, writes and both.
fn busy(timing: Timing) -> Vec<Vec<Command>> {
    let mut traces = Vec::new();
    for (seed, lines) in [(1, 1 << 22), (2, 16), (3, 1)] {
        for (read_percent, write_percent) in [(100, 0), (0, 100), (100, 30), (3, 3), (10, 90)] {
            for row_hits in [1, 4] {
                let controller = Controller { row_hits, clock_ps: 2000, window: 64, ..Controller::default() };
                let traffic =
                    Traffic { seed, read_percent, write_percent, lines, ids: 64, accept_percent: 100 };
                traces.push(run(timing, controller, traffic, 5000));
            }
        }
    }
    traces
}

#[test]
fn refreshes_are_sent_when_due() {
    for timing in timings() {
        for read_percent in [0, 100] {
            let traffic = Traffic {
                seed: 7,
                read_percent,
                write_percent: 20,
                lines: 1 << 22,
                ids: 64,
                accept_percent: 100,
            };
            let controller = Controller::default();
            let trace = run(timing, controller, traffic, 50_000);
            let cycles = 50_000 * u64::from(controller.clock_ps) / u64::from(timing.tck_ps);
            let (refi, each) = match timing.refresh {
                Refresh::AllBank { refi, .. } => (u64::from(refi), u16::MAX),
                Refresh::PerBank { refi, .. } => (u64::from(refi), 1),
            };
            let refreshes: Vec<_> = trace
                .iter()
                .filter_map(|c| if let Kind::Refresh { banks } = c.kind { Some((c.at, banks)) } else { None })
                .collect();
            for (n, &(at, banks)) in refreshes.iter().enumerate() {
                let due = (n as u64 + 1) * refi;
                assert!(at >= due && at < due + refi, "refresh {n} due at {due} came at {at}");
                let rotated = if each == 1 { 1 << (n % BANKS) } else { each };
                assert_eq!(banks, rotated);
            }
            assert!(refreshes.len() as u64 + 1 >= cycles / refi, "{} in {cycles} tCK", refreshes.len());
        }
    }
}
