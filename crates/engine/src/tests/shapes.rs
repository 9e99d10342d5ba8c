//! Shaped guests: what is over their rates waits, and nothing is lost without a name.

use super::world::tables;
use crate::testing::{Packet, TestPort};
use crate::{Engine, EngineConfig};
use executor::Executor;
use mem::{Accepts, Offload};
use model::{Change, DropReason, Shape, VifId};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const ONE: VifId = VifId(1);
const TWO: VifId = VifId(2);
/// Bytes of each packet.
const LEN: usize = 1000;

struct World {
    engine: Arc<Engine>,
    one: TestPort,
    two: TestPort,
}

impl World {
    fn new(workers: usize) -> Self {
        let config = EngineConfig {
            workers: vec![None; workers],
            cache_entries: 1 << 12,
            announces: false,
            ..EngineConfig::default()
        };
        let engine = Engine::new(&config).unwrap();
        engine.apply(&tables()).unwrap();
        let (one, two) = (TestPort::new(Accepts::default(), 700), TestPort::new(Accepts::default(), 700));
        engine.attach(ONE, one.open()).unwrap();
        engine.attach(TWO, two.open()).unwrap();
        Self { engine, one, two }
    }

    fn shape(&self, id: VifId, inward: Option<u64>, outward: Option<u64>) {
        let mut vif = self.engine.tables().snapshot().vif(id).unwrap().clone();
        vif.shape = Shape { inward, outward };
        self.engine.apply(&[Change::PutVif(vif)]).unwrap();
    }

    fn drops(&self) -> [u64; 2] {
        let at = self.engine.drops_at(TWO);
        [DropReason::Shaped, DropReason::Codel].map(|reason| at[reason as usize])
    }
}

/// Builds a packet from guest 1 to guest 2 with a number in it.
fn numbered(number: u32) -> Packet {
    let text = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 / udp 7 > 53 nosum / payload 958";
    let mut frame = model::text::parse(text).unwrap();
    assert_eq!(frame.len(), LEN);
    frame[LEN - 4..].copy_from_slice(&number.to_be_bytes());
    (frame, Offload::default())
}

fn number_of((frame, _): &Packet) -> u32 {
    u32::from_be_bytes(frame[LEN - 4..].try_into().unwrap())
}

fn until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}

/// Returns the shortest time for this many packets, less what may go at once.
fn shortest(packets: u32, bits_per_second: u64) -> Duration {
    let all = Duration::from_nanos(u64::from(packets) * LEN as u64 * 8 * 1_000_000_000 / bits_per_second);
    all.saturating_sub(Duration::from_micros(10_500))
}

#[test]
fn what_a_guest_sends_waits_in_its_ring_and_nothing_is_lost() {
    for workers in [1, 2] {
        let world = World::new(workers);
        world.shape(ONE, None, Some(80_000_000));
        let began = Instant::now();
        world.one.send((0..2000).map(numbered));
        let mut got = Vec::new();
        until(|| world.engine.shaping(ONE).out_waited > 0);
        while got.len() < 2000 {
            let more = world.two.wait(1, PATIENCE);
            assert!(!more.is_empty(), "{} came", got.len());
            got.extend(more);
        }
        assert!(began.elapsed() >= shortest(2000, 80_000_000), "{:?}", began.elapsed());
        assert!(got.iter().map(number_of).eq(0..2000));
        assert_eq!(world.engine.vif_counters(ONE).receive_drops, 0);
    }
}

#[test]
fn queues_of_one_guest_share_its_rate() {
    let world = World::new(2);
    let queues = [TestPort::new(Accepts::default(), 700), TestPort::new(Accepts::default(), 700)];
    world.engine.detach(ONE);
    world.shape(ONE, None, Some(80_000_000));
    world.engine.attach(ONE, TestPort::open_all(&queues)).unwrap();
    let began = Instant::now();
    queues.iter().for_each(|queue| queue.send((0..1000).map(numbered)));
    assert_eq!(world.two.wait(2000, PATIENCE).len(), 2000);
    assert!(began.elapsed() >= shortest(2000, 80_000_000), "{:?}", began.elapsed());
}

#[test]
fn a_worker_that_waits_for_a_rate_sleeps() {
    let world = World::new(1);
    world.shape(ONE, None, Some(1_000_000));
    let sleeps = || world.engine.workers()[0].sleeps;
    let before = sleeps();
    world.one.send((0..10).map(numbered));
    assert_eq!(world.two.wait(10, PATIENCE).len(), 10);
    // Each packet takes 8 ms.
    assert!(sleeps() - before >= 5, "{} times", sleeps() - before);
}

#[test]
fn what_comes_to_a_guest_waits_for_its_rate() {
    for workers in [1, 2] {
        let world = World::new(workers);
        world.shape(TWO, Some(80_000_000), None);
        let began = Instant::now();
        world.one.send((0..200).map(numbered));
        let got = world.two.wait(200, PATIENCE);
        assert!(began.elapsed() >= shortest(200, 80_000_000), "{:?}", began.elapsed());
        assert!(got.iter().map(number_of).eq(0..200), "{} of 200", got.len());
        until(|| world.engine.vif_counters(TWO).sent.packets == 200);
        let counters = world.engine.vif_counters(TWO);
        assert_eq!((counters.sent.bytes, counters.send_drops), (200_000, 0));
        until(|| world.engine.shaping(TWO).queued.packets == 0);
        assert!(world.engine.shaping(TWO).in_waited > 0);
    }
}

#[test]
fn too_much_for_a_guest_is_dropped_by_name_and_the_rest_comes_when_the_rate_ends() {
    let world = World::new(2);
    world.shape(TWO, Some(1_000_000), None);
    world.one.send((0..4000).map(numbered));
    until(|| world.drops()[0] > 0 && world.engine.vif_counters(ONE).received.packets == 4000);
    assert!(world.engine.shaping(TWO).queued.packets > 1000);
    world.shape(TWO, None, None);
    let got = world.two.take();
    let dropped: u64 = world.drops().iter().sum();
    assert_eq!(got.len() as u64 + dropped, 4000, "{:?}", world.drops());
    let counters = world.engine.vif_counters(TWO);
    assert_eq!((counters.sent.packets, counters.send_drops), (got.len() as u64, dropped));
    assert_eq!(counters.sent.bytes, got.len() as u64 * LEN as u64);
    world.one.send([numbered(7)]);
    assert_eq!(world.two.wait(1, PATIENCE).iter().map(number_of).collect::<Vec<_>>(), [7]);
}

#[test]
fn packets_that_wait_too_long_are_dropped_or_marked() {
    for (tos, name) in [("", "dropped"), (" tos 1", "marked")] {
        let world = World::new(1);
        world.shape(TWO, Some(4_000_000), None);
        let text = format!(
            "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2{tos} / udp 7 > 53 nosum / payload 958"
        );
        let packet = (model::text::parse(&text).unwrap(), Offload::default());
        world.one.send((0..500).map(|_| packet.clone()));
        let acted = || (world.drops()[1], world.engine.shaping(TWO).in_marked);
        until(|| acted() != (0, 0) && world.engine.vif_counters(ONE).received.packets == 500);
        assert_eq!(acted().0 > 0, tos.is_empty(), "{name}");
        world.shape(TWO, None, None);
        let got = world.two.take();
        assert_eq!(got.len() as u64 + world.drops()[1], 500, "{name}");
        let marked = got.iter().filter(|(frame, _)| frame[15] & 3 == 3).count();
        assert_eq!(marked > 0, !tos.is_empty(), "{name}");
    }
}

#[test]
fn what_waits_goes_out_before_a_pause_and_when_the_port_leaves() {
    let world = World::new(2);
    world.shape(TWO, Some(1_000_000), None);
    for ends in [false, true] {
        world.one.send((0..100).map(numbered));
        let sent = if ends { 200 } else { 100 };
        until(|| world.engine.vif_counters(ONE).received.packets == sent);
        until(|| world.engine.shaping(TWO).queued.packets > 50);
        let mut got = world.two.take();
        if ends {
            assert!(world.engine.detach(TWO));
        } else {
            world.engine.pause().unwrap();
        }
        got.extend(world.two.take());
        assert!(got.iter().map(number_of).eq(0..100), "{} came", got.len());
        world.engine.resume();
    }
    assert!(world.two.is_alone(), "somebody still holds the queues");
}

#[test]
fn rates_change_while_packets_wait() {
    let world = World::new(2);
    world.shape(TWO, Some(1_000_000), None);
    world.one.send((0..300).map(numbered));
    until(|| world.engine.shaping(TWO).queued.packets > 100);
    world.shape(TWO, Some(10_000_000_000), None);
    let dropped = || world.drops().iter().sum::<u64>() as usize;
    let mut got = world.two.take().len();
    until(|| world.engine.shaping(TWO).queued.packets == 0);
    got += world.two.wait(300 - got - dropped(), PATIENCE).len();
    assert_eq!(got + dropped(), 300);
}

#[test]
fn packets_for_a_shaped_guest_that_is_off_do_not_wait() {
    let world = World::new(1);
    world.shape(TWO, Some(1_000_000), None);
    world.two.set_down(true);
    world.one.send((0..10).map(numbered));
    until(|| world.engine.drops_at(TWO)[DropReason::TxDown as usize] == 10);
    until(|| world.engine.vif_counters(TWO).sent.packets == 0);
    world.two.set_down(false);
    until(|| {
        world.one.send([numbered(7)]);
        !world.two.wait(1, Duration::from_millis(50)).is_empty()
    });
}
