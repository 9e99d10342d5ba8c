//! The port's promises: order, whole beats, nothing lost, and when a write is visible.

use std::collections::{HashMap, VecDeque};

use hbm::{Beat, Channel, Controller, Refused, Timing};
use proptest::prelude::*;

fn presets() -> [Timing; 4] {
    [Timing::hbm2(), Timing::hbm2_1800(), Timing::conservative(), Timing::ddr4_2400()]
}

fn mark(addr: u64) -> [u8; 32] {
    let mut data = [0; 32];
    data[..8].copy_from_slice(&addr.to_le_bytes());
    data
}

/// The card's activity in a clock of a random run.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Read { id: u8, line: u64, beats: u8 },
    Write { id: u8, line: u64, beats: u8 },
    Stall(u32),
    Nothing,
}

fn clock() -> impl Strategy<Value = (Clock, bool)> {
    let (id, line, beats) = (0..8u8, 0..512u64, 1..=2u8);
    let clock = prop_oneof![
        8 => (id.clone(), line.clone(), beats.clone()).prop_map(|(id, line, beats)| Clock::Read { id, line, beats }),
        4 => (id, line, beats).prop_map(|(id, line, beats)| Clock::Write { id, line: line + 512, beats }),
        1 => (1..40u32).prop_map(Clock::Stall),
        4 => Just(Clock::Nothing),
    ];
    (clock, prop::bool::weighted(0.4))
}

/// Ticks, and checks that responses which were offered and not accepted are still there.
fn tick(channel: &mut Channel) {
    let before = (channel.r().copied(), channel.b());
    channel.tick();
    let after = (channel.r().copied(), channel.b());
    assert!(before.0.is_none() || before.0 == after.0, "{before:?} became {after:?}");
    assert!(before.1.is_none() || before.1 == after.1, "{before:?} became {after:?}");
}

/// The responses for which each ID still waits.
#[derive(Default)]
struct Waiting {
    beats: HashMap<u8, VecDeque<(u64, bool)>>,
    writes: HashMap<u8, usize>,
    last: Option<Beat>,
}

impl Waiting {
    fn asked(&mut self, id: u8, addr: u64, beats: u8) {
        let beats = (0..beats).map(|beat| (addr + 32 * u64::from(beat), beat + 1 == beats));
        self.beats.entry(id).or_default().extend(beats);
    }

    fn accept(&mut self, channel: &mut Channel) {
        if let Some(beat) = channel.r().copied() {
            channel.accept_r();
            let (addr, last) = self.beats.get_mut(&beat.id).and_then(VecDeque::pop_front).expect("asked for");
            assert_eq!(
                beat,
                Beat { id: beat.id, data: mark(addr), last, error: false },
                "of address {addr:#x}"
            );
            if let Some(before) = self.last.replace(beat) {
                assert!(before.last || before.id == beat.id, "reads are not interleaved");
            }
        }
        if let Some(id) = channel.b() {
            channel.accept_b();
            let left = self.writes.get_mut(&id).expect("written with this ID");
            *left = left.checked_sub(1).expect("written and not yet answered");
        }
    }

    fn nothing(&self) -> bool {
        self.beats.values().all(VecDeque::is_empty) && self.writes.values().all(|left| *left == 0)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every beat arrives once, in the order of its ID, with the right data, even if it is accepted late or stalled.
    #[test]
    fn nothing_is_lost_or_out_of_order(
        clocks in prop::collection::vec(clock(), 1..1500),
        window in 1..=64usize,
        in_order: bool,
        row_hits in 1..4u8,
        preset in 0..3usize,
    ) {
        let controller = Controller { window, in_order, row_hits, ..Controller::default() };
        let mut channel = Channel::new(presets()[preset], controller);
        for line in 0..512 {
            channel.poke(64 * line, &mark(64 * line));
            channel.poke(64 * line + 32, &mark(64 * line + 32));
        }
        let mut waiting = Waiting::default();
        for (clock, accept) in clocks {
            match clock {
                Clock::Read { id, line, beats } if channel.can_read() => {
                    channel.read(id, 64 * line, beats).unwrap();
                    waiting.asked(id, 64 * line, beats);
                }
                Clock::Write { id, line, beats } if channel.can_write() => {
                    channel.write(id, 64 * line, &[mark(line); 2][..beats.into()]).unwrap();
                    *waiting.writes.entry(id).or_default() += 1;
                }
                Clock::Stall(clocks) => channel.stall(clocks),
                _ => {}
            }
            if accept {
                waiting.accept(&mut channel);
            }
            tick(&mut channel);
        }
        let mut clocks = 0;
        while channel.outstanding() != 0 {
            waiting.accept(&mut channel);
            tick(&mut channel);
            clocks += 1;
            prop_assert!(clocks < 200_000, "stuck with {}", channel.outstanding());
        }
        prop_assert!(waiting.nothing());
        prop_assert_eq!((channel.r(), channel.b()), (None, None));
    }

    /// Readers of lines that are being written see beats of one write each, and after its response no older ones.
    #[test]
    fn beats_are_whole_and_writes_are_seen_after_their_response(seed: u64, row_hits in 1..4u8, preset in 0..3usize) {
        let mut channel = Channel::new(presets()[preset], Controller { row_hits, ..Controller::default() });
        let mut random = seed;
        // One writer writes 1, 2, 3 and so on, each after the response to the last one; reads remember what they may
        // see.
        let (mut version, mut answered, mut seen) = (0u8, 0u8, 0);
        let mut floor: HashMap<u8, VecDeque<u8>> = HashMap::new();
        for _ in 0..3000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if version == answered && version < 200 && random >> 60 < 4 {
                version += 1;
                channel.write(0, 0x40, &[[version; 32]; 2]).unwrap();
            }
            let id = (random >> 40) as u8 % 16;
            if channel.can_read() && random >> 50 & 3 != 0 {
                channel.read(id, 0x40, 2).unwrap();
                floor.entry(id).or_default().push_back(answered);
            }
            if channel.b().is_some() {
                channel.accept_b();
                answered = version;
            }
            if let Some(&Beat { id, data, last, .. }) = channel.r() {
                let floor = floor.get_mut(&id).unwrap();
                prop_assert!(data.iter().all(|byte| *byte == data[0]), "torn: {:?}", data);
                prop_assert!((floor[0]..=version).contains(&data[0]), "{} of {}..={version}", data[0], floor[0]);
                seen = seen.max(data[0]);
                if last {
                    floor.pop_front();
                }
                channel.accept_r();
            }
            channel.tick();
        }
        prop_assert!(seen > 1, "the reader saw {seen} writes");
    }
}

#[test]
fn requests_the_port_cannot_carry_are_refused() {
    let mut channel = Channel::new(Timing::hbm2(), Controller { bytes: 4096, ..Controller::default() });
    for (addr, beats) in [(0, 0), (0, 3), (32, 2), (8, 1), (4096, 1), (u64::MAX - 31, 1)] {
        let refused = Refused::Burst { addr, beats: beats.into() };
        assert_eq!(channel.read(0, addr, beats), Err(refused), "{refused}");
        assert_eq!(channel.write(0, addr, &vec![[0; 32]; beats.into()]), Err(refused), "{refused}");
    }
    channel.read(0, 32, 1).unwrap();
    assert_eq!(channel.read(0, 0, 1), Err(Refused::Busy), "a second one in a clock");
    channel.write(0, 0, &[[1; 32]; 2]).unwrap();
    channel.tick();
    assert!(channel.can_read() && !channel.can_write(), "the second beat takes the write data channel");
    channel.tick();
    assert!(channel.can_write());
}

#[test]
fn a_full_port_refuses_until_responses_are_accepted() {
    let mut channel = Channel::new(Timing::hbm2(), Controller::default());
    let mut taken = 0;
    for _ in 0..2000 {
        if channel.can_read() {
            channel.read(taken as u8 % 64, 64 * taken, 1).unwrap();
            taken += 1;
        }
        channel.tick();
    }
    assert!(!channel.can_read() && channel.can_write());
    assert_eq!(channel.outstanding(), taken);
    let mut got = 0;
    while channel.outstanding() != 0 {
        got += u64::from(channel.r().is_some());
        channel.accept_r();
        channel.tick();
    }
    assert_eq!(got, taken);
}

#[test]
fn a_stalled_port_is_still() {
    let mut channel = Channel::new(Timing::hbm2(), Controller::default());
    channel.read(1, 0, 1).unwrap();
    channel.stall(500);
    for _ in 0..499 {
        channel.tick();
        assert!(!channel.can_read() && !channel.can_write() && channel.r().is_none());
    }
    channel.tick();
    assert!(channel.can_read() && channel.r().is_some());
    channel.stall(3);
    channel.tick();
    assert!(channel.r().is_some(), "what was offered stays");
}

/// One read of an idle channel takes half the fixed latency, activate, read, burst, half the fixed latency.
#[test]
fn the_first_read_takes_what_its_parts_take() {
    for timing in [Timing::hbm2(), Timing::ddr4_2400()] {
        let controller = Controller::default();
        let mut channel = Channel::new(timing, controller);
        channel.read(0, 0, 1).unwrap();
        let clocks = (0..).find(|_| {
            channel.tick();
            channel.r().is_some()
        });
        let ns = (clocks.unwrap() + 1) * u64::from(controller.clock_ps) / 1000;
        let memory = timing.act_cycles - 1 + timing.rcd_rd + timing.cl + timing.burst;
        let parts = u64::from(controller.latency_ns) + u64::from(memory * timing.tck_ps) / 1000;
        assert!((parts..=parts + 2 * 4).contains(&ns), "{ns} ns, {parts} of parts");
    }
}

/// Endless reads don't lock out a write of their line, nor writes a read, however the two meet.
#[test]
fn no_direction_starves_the_other() {
    for timing in presets() {
        for after in 0..100 {
            let mut channel = Channel::new(timing, Controller::default());
            let (mut reads, mut writes) = (0, 0);
            for clock in 0..2000 {
                if channel.can_read() {
                    channel.read(clock as u8 % 64, 0, 1).unwrap();
                }
                if clock >= after && channel.can_write() {
                    channel.write(clock as u8 % 64, 0, &[[1; 32]]).unwrap();
                }
                (reads, writes) =
                    (reads + i32::from(channel.r().is_some()), writes + i32::from(channel.b().is_some()));
                channel.accept_r();
                channel.accept_b();
                channel.tick();
            }
            assert!(reads > 20 && writes > 20, "{reads} reads, {writes} writes, {timing:?}");
        }
    }
}
