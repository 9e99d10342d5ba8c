//! Guests that come from a different host, without all that the device there wrote into their rings.

use super::*;

const DESC_LEN: usize = 16;

impl World {
    /// Serves the driver, which fills its ring and sees the return of the first `seen` chains. Then moves the
    /// VMM; in the slots that are `stale`, the ring is as the driver left it.
    fn moved_with(&mut self, parts: u8, seen: u8, stale: impl Fn(usize) -> bool) {
        let Driver { ram, size, .. } = self.driver;
        (0..size).for_each(|_| self.offer(parts, false));
        let before = ram.read(0, DESC_LEN * usize::from(size));
        let mut device = self.device();
        self.serve(&mut device, seen, 0);
        self.collect();
        self.serve(&mut device, 7, 0);
        self.told = device.ring.base() as u16;
        drop(device);
        self.journal.fill(0);
        for (slot, desc) in before.chunks(DESC_LEN).enumerate().filter(|(slot, _)| stale(*slot)) {
            ram.write((DESC_LEN * slot) as u64, desc);
        }
        self.offered.iter_mut().for_each(|chain| chain.may_be_lost = true);
    }
}

/// Which slots did not come along: those of some pages of a few slots each, or the first ones of batches.
const STALE: [fn(usize) -> bool; 5] =
    [|_| true, |slot| slot / 4 % 2 == 0, |slot| slot / 4 % 2 == 1, |slot| slot % 3 == 0, |_| false];

#[test]
fn what_did_not_come_along_is_returned() {
    let (stale, seen_first) =
        if cfg!(miri) { (&STALE[3..4], &[1][..]) } else { (&STALE[..], &[0, 1, 4][..]) };
    for ((form, size), &stale) in forms_and_sizes().flat_map(|of| stale.iter().map(move |stale| (of, stale)))
    {
        let starts = (0..2 * size).step_by(if cfg!(miri) { 7 } else { 1 });
        for (start, parts) in starts.flat_map(|start| [0, 2].map(|parts| (start, parts))) {
            for &seen in seen_first {
                let mut world = World::started_behind(form, size, start);
                world.moved_with(parts, seen, stale);
                let left = world.offered.len().saturating_sub(7);
                drop(world.next());
                assert_eq!(world.offered.len(), left, "{form:?} {size} {start} {parts} {seen}");
                assert!(!world.play(&rounds(), 1000, None));
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "an hour")]
fn a_device_killed_while_it_returns_that_is_followed_by_one_that_does() {
    for (form, size) in forms_and_sizes() {
        let died = |first: &u32| {
            let mut world = World::started_behind(form, size, 3);
            world.moved_with(0, 0, |_| true);
            world.play(&rounds(), *first, None)
        };
        assert!((0..).take_while(died).count() > 20);
    }
}
