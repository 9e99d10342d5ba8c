//! VMMs that return what the driver sends while there is no device, at the only position that they know.

use super::*;

const DESC_LEN: u64 = 16;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const NEXT: u16 = 1;

/// The events while there is no device.
#[derive(Clone, Debug, Default, bolero::TypeGenerator)]
pub(super) struct Gap {
    /// Chains that are offered before the VMM looks.
    before: Vec<(u8, bool)>,
    vmm_returns: bool,
    driver_looks: bool,
    /// Chains that are offered afterwards.
    after: Vec<(u8, bool)>,
}

impl World {
    /// Creates a ring that its VMM starts behind `slots` slots.
    pub(super) fn started_behind(form: Form, size: u16, slots: u16) -> Self {
        let mut world = Self::new(form, size);
        let mut device = world.device();
        for slot in 0..slots {
            world.offer(0, slot.is_multiple_of(2));
            world.serve(&mut device, 1, 0);
            world.collect();
        }
        world.told = device.ring.base() as u16;
        let journal = device.ring.into_journal();
        journal.end();
        world
    }

    pub(super) fn pass_gap(&mut self) {
        let Gap { before, vmm_returns, driver_looks, after } = self.gap.clone();
        before.iter().take(16).for_each(|(parts, indirect)| self.offer(*parts, *indirect));
        if vmm_returns {
            self.return_one();
        }
        if driver_looks {
            self.collect();
        }
        after.iter().take(16).for_each(|(parts, indirect)| self.offer(*parts, *indirect));
    }

    /// Does what QEMU's `virtqueue_packed_drop_all` does. Returns whether it returned a chain: it does so
    /// only once until the ring is reset.
    fn return_one(&mut self) -> bool {
        let Driver { ram, size, .. } = self.driver;
        let word = |index: u16, at| {
            let bytes = ram.read(DESC_LEN * u64::from(index) + at, 2);
            u16::from_le_bytes([bytes[0], bytes[1]])
        };
        let (first, lap) = (self.told & 0x7fff, self.told & 0x8000);
        let (avail, used) = if lap == 0 { (USED, 0) } else { (AVAIL, AVAIL | USED) };
        if self.has_returned || word(first, 14) & (AVAIL | USED) != avail {
            return false;
        }
        self.has_returned = true;
        let id = word(first, 12);
        let mut last = first;
        while word(last % size, 14) & NEXT != 0 {
            last += 1;
        }
        let rest = [0, 0, id, used];
        ram.write(DESC_LEN * u64::from(first) + 8, rest.map(u16::to_le_bytes).as_flattened());
        let next = last + 1;
        self.told = if next < size { next | lap } else { (next - size) | (lap ^ 0x8000) };
        if let Some(this) = self.offered.iter().position(|chain| chain.id == id) {
            self.offered.range_mut(..=this).for_each(|chain| chain.may_be_lost = true);
        }
        true
    }
}

fn chains(count: u8, parts: u8) -> Vec<(u8, bool)> {
    (0..count).map(|chain| (if chain % 2 == 0 { parts } else { 0 }, chain % 3 == 2)).collect()
}

fn gaps() -> impl Iterator<Item = Gap> {
    let counts = [(1, 0), (3, 2), (16, 16)];
    counts.into_iter().flat_map(|(before, after)| {
        [0, 3].into_iter().flat_map(move |parts| {
            [false, true].map(|driver_looks| Gap {
                before: chains(before, parts),
                vmm_returns: true,
                driver_looks,
                after: chains(after, parts),
            })
        })
    })
}

#[test]
#[cfg_attr(miri, ignore = "minutes of what others do with fewer deaths")]
fn what_the_vmm_returned_is_passed() {
    let mut returned = 0;
    let forms_and_sizes = forms_and_sizes().filter(|(form, _)| !form.event_idx);
    for ((form, size), gap) in forms_and_sizes.flat_map(|of| gaps().map(move |gap| (of, gap))) {
        for start in [0, 3, size + 1] {
            for second in [None, Some(3), Some(9)] {
                let play = |first: &u32| {
                    let mut world = World::started_behind(form, size, start);
                    let told = world.told;
                    world.gap = gap.clone();
                    let died = world.play(&rounds(), *first, second);
                    returned += u32::from(world.told != told);
                    died
                };
                assert!((0..).take_while(play).count() > 20);
            }
        }
    }
    assert!(returned > 1000, "only {returned} chains");
}

/// A guest that boots anew finds a VMM that returns its first chain, and may have done so of the former ring.
#[test]
fn a_ring_that_was_reset_and_used_by_the_vmm_begins_anew() {
    for (form, size) in forms_and_sizes() {
        let many = (0..2 * size).flat_map(|used| (1..=size).map(move |offered| (used, offered)));
        for ((used, offered), bits) in many.flat_map(|of| (0..8_u8).map(move |bits| (of, bits))).step_by(STEP)
        {
            let [before, parts, looks] = [1, 2, 4].map(|bit| bits & bit != 0);
            let mut world = World::new(form, size);
            let mut device = world.device();
            for _ in 0..used {
                world.offer(0, true);
                world.serve(&mut device, 1, 0);
                world.collect();
            }
            drop(device);
            if before {
                // If that is where the VMM is, it moves; the next device learns of it.
                (0..size).for_each(|_| world.offer(0, true));
                world.return_one();
                drop(world.next());
            }
            world.reboot();
            world.offer(if parts { 2 } else { 0 }, false);
            assert!(world.return_one());
            if looks {
                world.collect();
            }
            (1..offered).for_each(|_| world.offer(0, true));
            let told = world.told;
            let device = world.next();
            assert_eq!(device.ring.base() as u16, told, "{form:?} {size}: {used}, {offered}, {bits}");
            drop(device);
            world.play(&rounds(), 1000, None);
        }
    }
}

/// All slots but the end of a chain are filled anew, up to where the VMM started the ring, which is within that chain.
#[test]
fn a_full_ring_is_not_taken_for_one_that_was_reset() {
    for form in forms_and_sizes().map(|(form, _)| form) {
        let mut world = World::started_behind(form, 4, 2);
        let mut device = world.device();
        for parts in [0, 0, 0, 0, 0, 0, 0, 1] {
            world.offer(parts, false);
            world.serve(&mut device, 1, 0);
            world.collect();
        }
        drop(device);
        (0..3).for_each(|_| world.offer(0, true));
        assert_eq!(world.next().ring.base() as u16, 0x8003, "{form:?}");
        world.play(&rounds(), 1000, None);
    }
}

/// A position that went back, or on by more than a lap, counts: the VMM describes a different ring, or its
/// guest was reset.
#[test]
fn a_position_that_can_not_be_reached_by_returning_chains_counts() {
    for (form, size) in forms_and_sizes() {
        let mut world = World::started_behind(form, size, 2 * size + 1);
        let mut device = world.device();
        (0..size).for_each(|_| world.offer(0, true));
        world.serve(&mut device, 64, 0);
        drop(device);
        world.told = 0x8000;
        assert_eq!(world.device().ring.base() as u16, 0x8000);
    }
}
