//! The unit in front of an output against its model: which packets leave, in which order, which wait, and which are
//! dropped.

use card::expect::Holding;
use card::hold::Hold;
use card::registers::PuntMeta;
use model::generate::Rng;
use std::collections::VecDeque;

/// Parameters of the top module.
const RELEASES: usize = 3;
const ROOM: usize = 16;
const BEAT: u16 = 64;

/// Values of `hold_e`.
const WAIT: u8 = 1;
const RELEASE: u8 = 2;

#[derive(Clone, Copy, Debug)]
enum What {
    Packet(Option<Hold>),
    Release(Hold),
}

/// A packet of `size` bytes, identified by its number.
#[derive(Clone, Copy, Debug)]
struct Packet {
    what: What,
    size: u16,
    number: u32,
}

impl Packet {
    fn beats(&self) -> u16 {
        self.size.div_ceil(BEAT)
    }
}

fn hold(number: usize) -> Hold {
    Hold::of_action(8 + number as u8).unwrap()
}

/// Makes packets of four groups in their turns, and the releases. A group's turns follow each other. Only a few
/// packets, which were under way, come after a release.
fn random(rng: &mut Rng, count: u32, largest: usize) -> Vec<Packet> {
    let mut turns = [4; 4];
    let mut releases = [0; 4];
    (0..count)
        .map(|number| {
            let group = rng.below(4);
            let next = hold(group | turns[group]);
            let what = match rng.below(40) {
                0..3 => {
                    releases[group] += 1;
                    if releases[group] == RELEASES {
                        releases[group] = 0;
                        turns[group] ^= 4;
                    }
                    What::Release(next)
                }
                3..15 => What::Packet(Some(next)),
                15..25 => What::Packet(Some(hold(group | (turns[group] ^ 4)))),
                _ => What::Packet(None),
            };
            let size = if matches!(what, What::Release(_)) { BEAT } else { 1 + rng.below(largest) as u16 };
            Packet { what, size, number }
        })
        .collect()
}

/// Returns the packets that should leave, in order, and the model that decided it.
fn expected(packets: &[Packet]) -> (VecDeque<Packet>, Holding<Packet>) {
    let mut holding = Holding::new(ROOM, RELEASES);
    let mut out = VecDeque::new();
    for packet in packets {
        match packet.what {
            What::Packet(hold) => out.extend(holding.pass(hold, packet.beats().into(), *packet)),
            What::Release(hold) => out.extend(holding.release(hold)),
        }
    }
    (out, holding)
}

fn offer(unit: &mut rtl::Hold, packet: &Packet, beat: u16) {
    let (kind, hold) = match packet.what {
        What::Packet(None) => (0, None),
        What::Packet(Some(hold)) => (WAIT, Some(hold)),
        What::Release(hold) => (RELEASE, Some(hold)),
    };
    unit.set_s_hold(kind << 3 | hold.map_or(0, |hold| hold.action() & 7));
    let mut data = unit.s_beat_mut();
    data.set(0, 128, u128::from(packet.number) << 16 | u128::from(beat));
    data.set(512, 16, packet.size.into());
    data.set(528, 10, u128::from(packet.number & 0x3ff));
    data.set(539, 1, (beat + 1 == packet.beats()).into());
}

/// Sends packets, with each side ready in the given percentage of clocks, and compares the packets that leave with the
/// model. Returns the number of clocks.
fn run(packets: &[Packet], valid: usize, ready: usize, rng: &mut Rng) -> u64 {
    let mut unit = rtl::Hold::new();
    unit.reset(2);
    let (mut out, holding) = expected(packets);
    let (mut next, mut offered) = ((0, 0), false);
    let (mut beat, mut shown) = (0, None);
    let mut clocks = 0;
    while next.0 < packets.len() || !out.is_empty() {
        assert!(clocks < 100_000_000, "nothing moves any more");
        if !offered && next.0 < packets.len() && rng.below(100) < valid {
            offer(&mut unit, &packets[next.0], next.1);
            offered = true;
        }
        unit.set_s_valid(offered);
        unit.set_m_ready(rng.below(100) < ready);
        unit.eval();
        let now = unit.m_valid().then(|| unit.m_beat().words().to_vec());
        if let Some(shown) = shown.take() {
            assert_eq!(now.as_ref(), Some(&shown), "stays until it is taken");
        }
        if unit.m_valid() {
            let front = out.front().expect("nothing is to leave");
            assert_eq!(unit.m_beat().get(0, 64), u128::from(front.number) << 16 | u128::from(beat));
            assert_eq!(
                unit.m_beat().get(512, 26),
                u128::from(front.number & 0x3ff) << 16 | u128::from(front.size)
            );
            let last = beat + 1 == front.beats();
            assert_eq!(unit.m_beat().get(539, 1) != 0, last);
            if !unit.m_ready() {
                shown = now;
            } else if last {
                beat = 0;
                out.pop_front();
            } else {
                beat += 1;
            }
        }
        if offered && unit.s_ready() {
            offered = false;
            let last = next.1 + 1 == packets[next.0].beats();
            next = if last { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        unit.clock();
        clocks += 1;
    }
    unit.set_s_valid(false);
    unit.set_m_ready(true);
    for _ in 0..2 * ROOM {
        unit.clock();
        unit.eval();
        assert!(!unit.m_valid(), "more than was sent");
    }
    assert_eq!((unit.kept(), unit.full()), (holding.kept, holding.full));
    assert_eq!(u32::from(unit.turns()), holding.turns());
    clocks
}

#[test]
fn what_waits_goes_out_at_its_release_and_is_bounded() {
    let mut rng = Rng::new(1);
    for (valid, ready) in [(100, 100), (50, 100), (100, 50), (30, 30), (90, 10)] {
        for largest in [64, 200, 1500] {
            let packets = random(&mut rng, 3000, largest);
            let (_, holding) = expected(&packets);
            assert!(holding.kept > 100 && holding.full > 30, "{} {}", holding.kept, holding.full);
            run(&packets, valid, ready, &mut rng);
        }
    }
}

#[test]
fn one_that_fills_the_ring_waits_and_one_that_is_too_large_is_dropped() {
    let wait = |number, size| Packet { what: What::Packet(Some(hold(5))), size, number };
    let release = |number| Packet { what: What::Release(hold(5)), size: BEAT, number };
    let beats = |beats: usize| beats as u16 * BEAT;
    let packets = [
        wait(0, beats(ROOM)),
        wait(1, 1),
        release(2),
        release(3),
        release(4),
        wait(5, beats(ROOM + 1)),
        Packet { what: What::Packet(Some(hold(1))), size: beats(ROOM + 1), number: 6 },
        Packet { what: What::Packet(Some(hold(1))), size: beats(ROOM) + 1 - BEAT, number: 7 },
        Packet { what: What::Release(hold(1)), size: BEAT, number: 8 },
        Packet { what: What::Release(hold(1)), size: BEAT, number: 9 },
        Packet { what: What::Release(hold(1)), size: BEAT, number: 10 },
    ];
    let (out, holding) = expected(&packets);
    assert_eq!(out.iter().map(|packet| packet.number).collect::<Vec<_>>(), [0, 5, 7]);
    assert_eq!((holding.kept, holding.full), (2, 2));
    run(&packets, 100, 100, &mut Rng::new(1));
}

#[test]
fn a_beat_a_clock_where_nothing_waits() {
    let packets: Vec<_> = (0..1000)
        .map(|number| Packet { what: What::Packet((number % 2 == 0).then(|| hold(2))), size: 100, number })
        .collect();
    // After reset the skid buffer accepts nothing for one clock; the latency adds two.
    let clocks = run(&packets, 100, 100, &mut Rng::new(1));
    assert!(clocks <= 2000 + 4, "{clocks}");
}

#[test]
fn a_release_is_a_packet_of_the_host() {
    let meta = hold(6).release(3);
    let decoded = PuntMeta::decode(&meta.encode());
    assert_eq!((decoded.egress, Hold::of_release(&decoded)), (3, Some(hold(6))));
    assert_eq!(Hold::of_release(&PuntMeta::default()), None);
    assert!(
        hold(6).is_released(0x4404, 1) && hold(6).is_released(0x0044, 2) && !hold(6).is_released(0x0404, 2)
    );
}
