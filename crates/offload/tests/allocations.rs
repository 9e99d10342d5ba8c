//! The carrier allocates nothing for packets, whether the card or the host forwards them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use card::Card;
use card::buffers::Buffers;
use common::{ONE, SoftCard, TWO, World, frame, until};
use model::VifId;
use offload::{Carry, Incoming, Outgoing};
use ringport::{Downlink, RingPort, Uplink};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this is the carrier's thread: only its allocations are counted.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(usize::from(COUNTED.get()), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A card that marks its thread as the one to count. Allocations of the card itself count only if `whole`.
struct Watched<C> {
    card: C,
    whole: bool,
}

impl<C> Watched<C> {
    fn with<R>(&mut self, does: impl FnOnce(&mut C) -> R) -> R {
        COUNTED.set(self.whole);
        let done = does(&mut self.card);
        COUNTED.set(true);
        done
    }
}

impl<C: Card> Card for Watched<C> {
    fn read32(&mut self, offset: u32) -> u32 {
        self.with(|card| card.read32(offset))
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.with(|card| card.write32(offset, value));
    }
}

impl<C: Carry> Carry for Watched<C> {
    fn pipes(&self) -> usize {
        self.card.pipes()
    }

    fn send(&mut self, input: usize, packet: Incoming) {
        self.with(|card| card.send(input, packet));
    }

    fn backlog(&self, input: usize) -> usize {
        self.card.backlog(input)
    }

    fn receive(&mut self, output: usize) -> Option<Outgoing> {
        self.with(|card| card.receive(output))
    }

    fn buffers(&mut self) -> &mut Buffers {
        self.card.buffers()
    }

    fn tick(&mut self) {
        self.with(Carry::tick);
    }

    fn clocks(&self) -> u64 {
        self.card.clocks()
    }
}

/// A guest whose rings are in this process's memory.
struct Guest {
    to: Uplink,
    from: Downlink,
}

impl Guest {
    fn attach(world: &World, vif: VifId) -> Self {
        assert!(world.card.detach(vif));
        let (port, to, from) = ringport::open(&RingPort { mtu: 1500, slots: 64 }).unwrap();
        world.card.attach(vif, port).unwrap();
        Self { to, from }
    }
}

const BURST: usize = 16;

/// Sends this many bursts of a frame from one guest to the other. Returns the number of allocations meanwhile.
fn exchange(one: &Guest, two: &mut Guest, frame: &[u8], bursts: usize) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..bursts {
        for _ in 0..BURST {
            assert!(one.to.send(frame.len(), |to| to.copy_from_slice(frame)));
        }
        one.to.ring();
        let mut left = BURST;
        until(|| {
            while two.from.receive(|got| assert_eq!(got, frame)) {
                left -= 1;
            }
            left == 0
        });
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

fn packets_need_no_allocation<C: Carry + 'static>(
    open: impl FnOnce() -> C + Send + 'static,
    whole: bool,
    bursts: usize,
) {
    static ALONE: Mutex<()> = Mutex::new(());
    // The count is of all carriers' threads.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new(move || Watched { card: open(), whole });
    let (one, mut two) = (Guest::attach(&world, ONE), Guest::attach(&world, TWO));
    let ethernet = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2";
    let (by_card, _) = frame(&format!("{ethernet} / udp 5 > 6 nosum / payload 1400"));
    // The host is asked about each of its packets.
    let (by_host, _) = frame(&format!("{ethernet} / tcp 5 > 6 S"));
    let packets = (bursts * BURST) as u64;
    for (whose, frame, all) in [("the card's", by_card, (packets, 0)), ("the host's", by_host, (0, packets))]
    {
        // Buffers and queues grow to the size they need.
        exchange(&one, &mut two, &frame, bursts);
        let before = world.carried();
        let allocations = exchange(&one, &mut two, &frame, bursts);
        let carried = world.carried();
        assert_eq!((carried.0 - before.0, carried.1 - before.1), all, "{whose}");
        // Once a second, flows are checked.
        assert!(allocations < bursts / 2, "{allocations} for {packets} packets of {whose}");
    }
}

#[test]
fn with_a_card_of_memory() {
    packets_need_no_allocation(SoftCard::new, false, 100);
}

#[cfg(feature = "card-sim")]
#[test]
fn with_the_simulated_card() {
    packets_need_no_allocation(|| card::sim::SimCard::new(hbm::Timing::hbm2()), true, 30);
}
