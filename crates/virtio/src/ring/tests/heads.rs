//! Heads of split rings: which of them are read, and when.

use super::*;

#[test]
fn a_split_ring_that_lies_is_a_fault() {
    let form = Form { packed: false, event_idx: true, in_order: false };
    let mut pair = Pair::new(form, SIZE);
    pair.driver.corrupt(Some(SIZE + 1), None);
    assert_eq!(pair.try_take(Access::Read).unwrap_err(), Fault::IndexJump);
    let mut pair = Pair::new(form, SIZE);
    pair.driver.corrupt(Some(u16::MAX), None);
    assert_eq!(pair.try_take(Access::Read).unwrap_err(), Fault::IndexJump);
    let mut pair = Pair::new(form, SIZE);
    pair.driver.corrupt(Some(1), Some(SIZE));
    assert_eq!(pair.try_take(Access::Read).unwrap_err(), Fault::HeadOutside);
}

#[test]
fn chains_that_a_split_ring_takes_back_are_a_fault() {
    for size in [2, SIZE] {
        let mut pair = Pair::new(Form { packed: false, event_idx: false, in_order: false }, size);
        while pair.driver.offer(&buffers(1, false), false).is_some() {}
        let (chain, _) = pair.take(Access::Read).unwrap();
        pair.complete(chain, 0);
        // The device has read the other heads ahead, too.
        pair.driver.corrupt(Some(1), None);
        assert_eq!(pair.try_take(Access::Read).unwrap_err(), Fault::IndexJump);
    }
}

#[test]
fn a_head_outside_is_a_fault_when_its_turn_comes() {
    let mut pair = Pair::new(Form { packed: false, event_idx: false, in_order: false }, SIZE);
    let offered = [10, 11].map(|len| pair.driver.offer(&[(GPA + RING_LEN, len, false)], false));
    pair.driver.corrupt(Some(3), Some(SIZE));
    for (id, len) in offered.iter().zip([10, 11]) {
        let (chain, parts) = pair.take(Access::Read).unwrap();
        assert_eq!((Some(chain.id), parts[0].1), (*id, len));
        dispatch!(&mut pair.ring, r => r.read_ahead());
    }
    assert_eq!(pair.try_take(Access::Read).unwrap_err(), Fault::HeadOutside);
}

#[test]
fn a_ring_longer_than_what_is_read_ahead_is_taken_in_order() {
    const LONG: u16 = 256;
    let mut pair = Pair::new(Form { packed: false, event_idx: false, in_order: false }, LONG);
    let (mut offered, mut taken) = (0, 0);
    let len = |number: u32| 1 + number % 1000;
    let counts = [1, 64, 200, 0, 240, 129, 127, 128].repeat(if cfg!(miri) { 1 } else { 5 });
    for (lap, count) in counts.into_iter().enumerate() {
        while offered < taken + 240 {
            pair.driver.offer(&[(GPA + RING_LEN, len(offered), false)], false).unwrap();
            offered += 1;
        }
        // No entry after the available ones may be read.
        pair.driver.corrupt(None, Some(LONG));
        for _ in 0..count {
            let (chain, parts) = pair.take(Access::Read).unwrap();
            assert_eq!(parts[0].1, len(taken) as usize);
            taken += 1;
            pair.complete(chain, 0);
            if lap % 2 == 0 {
                dispatch!(&mut pair.ring, r => r.read_ahead());
            }
        }
        while pair.driver.used().is_some() {}
    }
}
