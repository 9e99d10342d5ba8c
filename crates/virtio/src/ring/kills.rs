//! Devices of packed rings that die at any of their stores, and those that come after them.

mod moved;
mod returned;

use super::death::dies_at;
use super::mock::{Buffer, Driver, GPA, RING_LEN, Ram};
use super::*;
use returned::Gap;
use std::collections::VecDeque;

const BUFFERS: u64 = 0x1000;
const LEN: usize = (RING_LEN + BUFFERS) as usize;
const SIZES: &[u16] = if cfg!(miri) { &[5] } else { &[1, 7, 16] };
/// A step through positions: where each takes seconds, only some are tried.
const STEP: usize = if cfg!(miri) { 11 } else { 1 };

#[derive(Clone, Copy, Debug, bolero::TypeGenerator)]
struct Form {
    event_idx: bool,
    in_order: bool,
    /// Whether only the VMM's copy of the journal outlives a device.
    copied: bool,
}

fn forms() -> impl Iterator<Item = Form> {
    (0..8).step_by(if cfg!(miri) { 7 } else { 1 }).map(|bits| Form {
        event_idx: bits & 1 != 0,
        in_order: bits & 2 != 0,
        copied: bits & 4 != 0,
    })
}

fn forms_and_sizes() -> impl Iterator<Item = (Form, u16)> {
    forms().flat_map(|form| SIZES.iter().map(move |size| (form, *size)))
}

/// A round of work of a driver and a device.
#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Round {
    /// Chains to offer: the number of their parts, and whether these are in a table.
    offers: Vec<(u8, bool)>,
    take: u8,
    put_back: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Offered {
    id: u16,
    buffers: Vec<Buffer>,
    /// Whether the VMM returned this chain or a later one.
    may_be_lost: bool,
}

impl Offered {
    /// Returns how many bytes the device says that it wrote: often none.
    fn written(&self) -> u32 {
        self.buffers[0].1 % 3
    }
}

/// A driver, and everything that outlives a device.
struct World {
    memory: Vec<u128>,
    journal: Vec<u64>,
    form: Form,
    driver: Driver,
    /// Chains that are not used yet, oldest first.
    offered: VecDeque<Offered>,
    offers: u32,
    /// The position that the VMM names.
    told: u16,
    /// Whether the VMM returned a chain since the ring was reset: it returns only one.
    has_returned: bool,
    /// The events while there is no device.
    gap: Gap,
}

/// A device, with what it would know of its guest.
struct Device {
    ring: Packed,
    memory: Memory,
    segments: Vec<Segment>,
}

impl World {
    fn new(form: Form, size: u16) -> Self {
        let mut memory = vec![0_u128; LEN / 16];
        let ram = Ram::at(memory.as_mut_ptr().cast(), LEN);
        let driver = Driver::new(ram, 0, size, true, form.in_order);
        let journal = vec![0; Journal::bytes(size) / 8];
        let (offered, told, gap) = (VecDeque::new(), 0x8000, Gap::default());
        Self { memory, journal, form, driver, offered, offers: 0, told, has_returned: false, gap }
    }

    /// Boots the guest anew: its ring is in the same place as before.
    fn reboot(&mut self) {
        let Driver { ram, size, .. } = self.driver;
        self.driver = Driver::new(ram, 0, size, true, self.form.in_order);
        self.offered.clear();
        (self.told, self.has_returned) = (0x8000, false);
    }

    fn identity(&self) -> Identity {
        Identity { at: self.driver.addresses(), size: self.driver.size, base: self.told }
    }

    /// Starts a device in a process that knows nothing.
    fn device(&mut self) -> Device {
        let (identity, regions) = (self.identity(), self.driver.ram.regions());
        let Form { event_idx, in_order, copied } = self.form;
        let size = identity.size;
        let layout = Layout::resolve(&regions, &identity.at, size.into(), true, event_idx).unwrap();
        // SAFETY: the world outlives its devices.
        let (ring, memory) = unsafe {
            let kept = self.journal.as_mut_ptr().cast();
            let journal = if copied {
                let mut journal = Journal::mortal(size);
                journal.copy_to(kept, Box::new(()));
                journal
            } else {
                Journal::over(kept, size, Box::new(()))
            };
            let ring = Packed::new(layout, event_idx, in_order, identity.base.into(), journal);
            (ring, Memory::new(regions, true, None).unwrap())
        };
        let mut device = Device { ring, memory, segments: Vec::with_capacity(2 * MAX_CHAIN) };
        device.ring.begin(&identity, true);
        device
    }

    /// Starts the device that comes after one that died. It may publish what that one had begun.
    fn next(&mut self) -> Device {
        let device = self.device();
        self.collect();
        device
    }

    fn offer(&mut self, parts: u8, indirect: bool) {
        let parts = u16::from(parts % 5 + 1).min(self.driver.size);
        let buffer = |part: u16| {
            self.offers += 1;
            (GPA + RING_LEN + u64::from(part) * 256, 1 + self.offers % 200, false)
        };
        let buffers: Vec<_> = (0..parts).map(buffer).collect();
        if let Some(id) = self.driver.offer(&buffers, indirect) {
            self.offered.push_back(Offered { id, buffers, may_be_lost: false });
        }
    }

    /// Makes the driver look at used chains. Each chain comes once, in order, as the device wrote it.
    fn collect(&mut self) {
        while let Some(used) = self.driver.used() {
            let expected = self.offered.pop_front().expect("more used than offered");
            let written =
                if expected.may_be_lost { used.1.min(expected.written()) } else { expected.written() };
            assert_eq!(used, (expected.id, written));
        }
    }

    /// Plays these rounds. The first device dies before store number `first`, the next before its store
    /// `second`. Returns whether the first one died.
    fn play(&mut self, rounds: &[Round], first: u32, second: Option<u32>) -> bool {
        let mut deaths: VecDeque<u32> = [Some(first), second].into_iter().flatten().collect();
        let mut left = rounds;
        let mut died = false;
        while !left.is_empty() {
            let Some(store) = deaths.pop_front() else {
                let mut device = self.next();
                left.iter().for_each(|round| self.round(round, &mut device));
                break;
            };
            let done = std::cell::Cell::new(0);
            let lived = dies_at(store, || {
                let mut device = self.next();
                for round in left {
                    self.round(round, &mut device);
                    done.set(done.get() + 1);
                }
            });
            if lived.is_some() {
                break;
            }
            died = true;
            self.collect();
            self.pass_gap();
            left = &left[done.get()..];
        }
        // The next device serves the chains that are still there.
        let mut device = self.next();
        while !self.offered.is_empty() {
            let before = self.offered.len();
            self.serve(&mut device, 64, 0);
            self.collect();
            assert!(self.offered.len() < before, "the ring stalls");
        }
        assert!(!device.ring.pending());
        died
    }

    fn round(&mut self, round: &Round, device: &mut Device) {
        round.offers.iter().take(8).for_each(|(parts, indirect)| self.offer(*parts, *indirect));
        self.serve(device, round.take % 8, round.put_back % 4);
        self.collect();
    }

    /// Makes the device take at most `most` chains, put some back, and return the others.
    fn serve(&mut self, device: &mut Device, most: u8, put_back: u8) {
        let Device { ring, memory, segments } = device;
        memory.work.grant_poll();
        let mut taken = Vec::new();
        for expected in self.offered.iter().take(most.into()) {
            segments.clear();
            let chain = ring.take(Access::Read, memory, segments).unwrap().expect("an offered chain");
            let found: Vec<_> =
                segments.iter().map(|s| (self.driver.ram.offset(s.as_ptr()), s.len())).collect();
            let wanted: Vec<_> = expected.buffers.iter().map(|b| (b.0 - GPA, b.1 as usize)).collect();
            assert_eq!((chain.id, chain.ok, found), (expected.id, true, wanted));
            taken.push((chain, expected.written()));
        }
        let kept = taken.len() - usize::from(put_back).min(taken.len());
        ring.rewind(&taken.drain(kept..).map(|(chain, _)| chain).collect::<Vec<_>>());
        taken.iter().for_each(|(chain, written)| ring.complete(*chain, *written));
        ring.publish();
    }
}

/// Returns rounds for some laps of each ring, in bursts of different lengths.
fn rounds() -> Vec<Round> {
    let offers =
        |round: u8| (0..4).map(|chain| (round.wrapping_mul(7).wrapping_add(chain), chain % 3 == 0)).collect();
    (0..16).map(|round| Round { offers: offers(round), take: round % 6 + 1, put_back: round % 3 }).collect()
}

#[test]
#[cfg_attr(miri, ignore = "an hour")]
fn a_device_killed_at_any_store_is_followed_by_one_that_loses_nothing() {
    for (form, size) in forms_and_sizes() {
        let deaths = (0..).take_while(|store| World::new(form, size).play(&rounds(), *store, None)).count();
        assert!(deaths > 20, "{form:?} {size}: only {deaths} stores");
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes of what others do with fewer deaths")]
fn one_that_is_killed_while_it_takes_over_as_well() {
    for (form, size) in forms_and_sizes() {
        for second in 0..24 {
            let died = |first: &u32| World::new(form, size).play(&rounds(), *first, Some(second));
            assert!((0..).take_while(died).count() > 20);
        }
    }
}

#[test]
fn any_traffic_survives_any_death() {
    type Deaths = (u16, u16);
    bolero::check!().with_type::<(Form, u8, u8, Vec<Round>, Deaths, Gap)>().for_each(
        |(form, size, start, rounds, (first, second), gap)| {
            let size = u16::from(size % 32) + 1;
            let mut world = World::started_behind(*form, size, u16::from(*start) % (2 * size));
            world.gap = gap.clone();
            world.play(rounds, u32::from(*first % 512), Some(u32::from(*second % 128)));
        },
    );
}

/// A guest that booted anew while there was no device has its ring in the same place, and starts with the first slot.
#[test]
fn a_ring_that_was_reset_begins_anew() {
    for (form, size) in forms_and_sizes() {
        // Far enough for every position of two laps.
        let positions = (0..2 * size).flat_map(|used| (0..=size).map(move |offered| (used, offered)));
        for (used, offered) in positions.step_by(STEP) {
            let mut world = World::new(form, size);
            let mut device = world.device();
            for chain in 0..used {
                // As Linux has them: a slot each.
                world.offer(chain as u8, true);
                world.serve(&mut device, 1, 0);
                world.collect();
            }
            drop(device);
            world.reboot();
            (0..offered).for_each(|chain| world.offer(chain as u8, true));
            assert!(!world.play(&[Round { offers: vec![(0, true)], take: 7, put_back: 0 }], 1000, None));
        }
    }
}

/// The journal of a different VMM's ring counts for nothing, nor does that of a ring whose VMM knows where it
/// stopped.
#[test]
fn the_journal_of_another_ring_counts_for_nothing() {
    for form in forms() {
        nothing_of_another_ring(form);
    }
}

fn nothing_of_another_ring(form: Form) {
    let change: [fn(&mut Identity); 4] = [
        |ring| ring.at.desc += 16,
        |ring| ring.at.driver += 4,
        |ring| ring.at.device += 4,
        |ring| ring.size -= 1,
    ];
    for change in change {
        let mut world = World::new(form, 16);
        let mut device = world.device();
        (0..5).for_each(|_| world.offer(1, true));
        world.serve(&mut device, 5, 0);
        let mut identity = world.identity();
        change(&mut identity);
        let mut again = world.device();
        assert_eq!(again.ring.base() as u16, 0x8005);
        again.ring.begin(&identity, true);
        // It is in the journal now.
        assert!(again.ring.into_journal().last(&identity).is_some());
        let ours = world.device();
        assert_eq!(ours.ring.base() as u16, 0x8000);
        ours.ring.into_journal().end();
        assert!(world.device().ring.into_journal().last(&world.identity()).is_some());
    }
    let mut world = World::new(form, 16);
    world.device().ring.into_journal().end();
    let mut device = world.device();
    world.offer(1, true);
    world.serve(&mut device, 1, 0);
    device.ring.into_journal().end();
    assert_eq!(world.device().ring.base() as u16, 0x8000, "the VMM stopped it");
}

/// Whatever is in a journal and in the ring, and whatever position the VMM names: the device writes used descriptors
/// into its ring, and nothing else.
#[test]
fn any_journal_is_survived() {
    type Scribbles = Vec<(u8, u64)>;
    bolero::check!().with_type::<(Form, u8, Vec<(Scribbles, Scribbles, u16)>)>().for_each(
        |(form, size, rounds)| {
            let size = u16::from(size % 32) + 1;
            let mut world = World::new(*form, size);
            drop(world.device());
            for (in_journal, in_ring, told) in rounds.iter().take(8) {
                for (at, word) in in_ring {
                    let at = usize::from(*at) % (2 * usize::from(size));
                    world.driver.ram.write(8 * at as u64, &word.to_le_bytes());
                }
                let words = world.journal.len();
                in_journal.iter().for_each(|(at, word)| world.journal[usize::from(*at) % words] = *word);
                // This is most often a position that can be.
                world.told = told & 0x803f;
                let before = world.memory.clone();
                let mut device = world.device();
                assert!(device.ring.base() as u16 & 0x7fff < size);
                let ring = usize::from(size);
                assert_eq!(world.memory[ring..], before[ring..]);
                let addresses =
                    |memory: &[u128]| memory[..ring].iter().map(|slot| *slot as u64).collect::<Vec<_>>();
                assert_eq!(addresses(&world.memory), addresses(&before));
                device.ring.publish();
            }
        },
    );
}
