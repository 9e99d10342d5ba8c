//! The tests: every short sequence of moves, batches of every length at every position, and random sequences.

use super::*;

/// The largest ring, in slots.
const MOST: u16 = 16;

/// Plays every sequence of up to `depth` steps out of `all`, after those so far. A sequence ends with a fault. Returns
/// how many sequences were played.
fn play_all(world: &mut World, all: &[Vec<Move>], so_far: &mut Vec<Move>, depth: usize) -> usize {
    let mut played = 0;
    for step in all {
        let before = so_far.len();
        so_far.extend(step);
        played += 1;
        if world.play(so_far) && depth > 1 {
            played += play_all(world, all, so_far, depth - 1);
        }
        so_far.truncate(before);
    }
    played
}

/// Returns the steps that the device may take. A step is one or more moves.
fn device_steps(size: u16) -> Vec<Vec<Move>> {
    let all = |this| vec![this; size.into()];
    let end = [all(Move::Complete(3)), vec![Move::Publish]].concat();
    vec![
        vec![Move::Look, Move::Take],
        vec![Move::Take],
        vec![Move::TakeSingle, Move::TakeSingle],
        vec![Move::Rewind(1)],
        vec![Move::ReadAhead],
        vec![Move::Complete(0), Move::Publish],
        end.clone(),
        [vec![Move::Look, Move::TakeSingle], end.clone()].concat(),
        [vec![Move::Look], all(Move::Take), end].concat(),
    ]
}

fn every_sequence(form: Form, sizes: [(u16, usize); 3], driver_steps: impl Fn(u16) -> Vec<Move>) {
    for (size, depth) in sizes.into_iter().filter(|(size, _)| !cfg!(miri) || *size == 2) {
        let mut steps = device_steps(size);
        steps.extend(driver_steps(size).into_iter().map(|this| vec![this]));
        let depth = if cfg!(miri) { 2 } else { depth };
        let played = play_all(&mut World::new(form, size), &steps, &mut Vec::new(), depth);
        assert!(cfg!(miri) || played > 10_000, "{played}");
    }
}

#[test]
fn every_sequence_of_moves_on_small_split_rings() {
    let form = Form { packed: false, event_idx: true, in_order: false, write: false };
    // From one less than the used index to one more than the ring's size.
    let indexes = |size| (0..=size + 2).map(|ahead: u16| Move::Avail(ahead.wrapping_sub(1))).collect();
    every_sequence(form, [(1, 5), (2, 5), (4, 4)], indexes);
}

#[test]
fn every_sequence_of_moves_on_small_packed_rings() {
    let descriptors = |size| {
        let flags = [AVAIL, USED, AVAIL | NEXT, USED | NEXT];
        let slot = |slot| flags.map(|flags| Move::Desc(slot, flags, 7 * u16::from(slot)));
        (0..size as u8).flat_map(slot).collect()
    };
    for in_order in [false, true] {
        every_sequence(
            Form { packed: true, event_idx: true, in_order, write: false },
            [(1, 5), (2, 4), (4, 4)],
            descriptors,
        );
    }
}

/// Returns moves by which the driver makes `count` buffers available after `before` others, and the device
/// uses them.
fn batch_of(packed: bool, size: u16, before: u16, count: u16) -> Vec<Move> {
    let mut moves = vec![Move::Avail(count)];
    for place in before..before + count {
        let flags = if !packed {
            0
        } else if (place / size).is_multiple_of(2) {
            AVAIL
        } else {
            USED
        };
        moves.push(Move::Desc((place % size) as u8, flags, 0));
    }
    moves.push(Move::Look);
    moves.extend(std::iter::repeat_n(Move::Take, count.into()));
    moves.extend(std::iter::repeat_n(Move::Complete(1), count.into()));
    moves.push(Move::Publish);
    moves
}

#[test]
fn drivers_are_notified_as_they_ask() {
    for (packed, event_idx) in [(false, false), (false, true), (true, false), (true, true)] {
        for size in if packed { [1, 3, 5] } else { [1, 2, 4] } {
            if cfg!(miri) && size > 1 {
                continue;
            }
            let mut world = World::new(Form { packed, event_idx, in_order: false, write: false }, size);
            let positions =
                (0..=size).flat_map(|at| [at, at | 0x8000]).chain([0u16.wrapping_sub(1), 2 * size]);
            // Twice around the ring: batches of each length at each position, with each notification setting.
            for (event, flags) in positions.flat_map(|at| (0..4).map(move |flags| (at, flags))) {
                for (before, batch) in (0..2 * size).flat_map(|n| (1..=size).map(move |k| (n, k))) {
                    let mut moves: Vec<Move> =
                        (0..before).flat_map(|n| batch_of(packed, size, n, 1)).collect();
                    moves.push(Move::Event(event, flags));
                    moves.extend(batch_of(packed, size, before, batch));
                    moves.push(Move::WantKicks(flags & 1 == 0));
                    assert!(world.play(&moves));
                }
            }
        }
    }
}

/// Random moves of a driver and its device, without a reset between bursts.
#[test]
fn bursts_without_end() {
    let iterations = if cfg!(miri) { 5 } else { 2000 };
    bolero::check!().with_iterations(iterations).with_type::<(Form, u8, Vec<Move>)>().for_each(
        |(form, size, moves)| {
            let size = match form.packed {
                true => 1 + u16::from(*size) % MOST,
                false => 1 << (size % 5),
            };
            World::new(*form, size).play(&moves.iter().map(|m| likely(*m, *form, size)).collect::<Vec<_>>());
        },
    );
}

/// Returns the same move with values that are mostly valid.
fn likely(this: Move, form: Form, size: u16) -> Move {
    let flags_of = |word: u16| match word % 8 {
        // Mostly a single buffer of the right kind.
        0 => word >> 3 & 7,
        1 => NEXT | if form.write { 2 } else { 0 },
        2 => 4,
        _ if form.write => 2,
        _ => 0,
    };
    match this {
        Move::Avail(ahead) if ahead % 16 != 0 => Move::Avail(ahead % (size + 1)),
        Move::Entry(i, head) if head % 16 != 0 => Move::Entry(i, head % size),
        Move::Desc(i, flags, id) if form.packed => {
            // Mostly available in one of the two laps.
            let state = [AVAIL, USED, AVAIL, USED, AVAIL, USED, AVAIL | USED, 0][usize::from(flags >> 8) % 8];
            Move::Desc(i, state | flags_of(flags & 0xff), id)
        }
        Move::Desc(i, flags, next) => Move::Desc(i, flags_of(flags), next % (size + 1)),
        // A small buffer, or an indirect table that lies in the ring itself.
        Move::Buffer(i, addr, len) if len % 4 == 0 => {
            Move::Buffer(i, 16 + 16 * (addr % 64), if len % 8 == 0 { len % 80 } else { len % 5 * 16 })
        }
        Move::Buffer(i, addr, len) => Move::Buffer(i, addr % (LEN as u32 + 32), len % 64),
        Move::Event(position, flags) => Move::Event((position % (2 * size)) | (position & 0x8000), flags),
        other => other,
    }
}
