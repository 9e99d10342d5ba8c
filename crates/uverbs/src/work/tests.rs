use super::*;
use crate::SendSource;
use std::sync::atomic::AtomicU32;

/// Returns both ends of a send queue, and its memory.
fn ends(requests: u32, segments: u32, inline: u32) -> (WorkQueue, SendSource, Arc<Memory>) {
    let (queue, memory, shape) = library(Shape::new(64, requests, segments, inline), requests);
    (queue, SendSource::new(memory.clone(), shape).unwrap(), memory)
}

/// Returns both ends of a receive queue.
fn receives(receives: u32, segments: u32) -> (WorkQueue, WorkSource) {
    let (queue, memory, shape) = library(Shape::of_receives(64, receives, segments), receives);
    (queue, WorkSource::new(memory, shape).unwrap())
}

fn library(shape: Shape, requests: u32) -> (WorkQueue, Arc<Memory>, Shape) {
    let (memory, _) = Memory::create("test", shape.end()).unwrap();
    let memory = Arc::new(memory);
    (WorkQueue::new(memory.clone(), shape, requests).unwrap(), memory, shape)
}

fn request(id: u64, segments: u16) -> WorkRequest {
    WorkRequest { id, segments, ..WorkRequest::default() }
}

fn list() -> [Segment; 2] {
    [Segment { address: 1, len: 2, lkey: 3 }, Segment { address: 4, len: 5, lkey: 6 }]
}

#[test]
fn what_is_posted_is_taken_in_order() {
    let (mut queue, mut source, _) = ends(3, 2, 0);
    let (mut segments, mut inline) = (Vec::new(), Vec::new());
    for round in 0..20 {
        for id in 0..3 {
            assert!(queue.fill(&request(round * 3 + id, 2), &list()));
        }
        assert!(!queue.fill(&request(0, 0), &[]), "only three were asked for");
        assert!(!source.has_next(), "not published");
        queue.publish();
        for id in 0..3 {
            segments.clear();
            assert!(source.has_next());
            let (number, taken) = source.take(&mut segments, &mut inline).unwrap().unwrap();
            assert_eq!((u64::from(number), taken), (round * 3 + id, request(round * 3 + id, 2)));
            assert_eq!(segments, list());
        }
        assert_eq!(source.take(&mut segments, &mut inline), Ok(None));
        assert!(!queue.has_room());
        source.release_taken();
    }
}

#[test]
fn receives_are_taken_in_order() {
    let (mut queue, mut source) = receives(3, 2);
    let mut segments = Vec::new();
    for round in 0..10 {
        for id in 0..3 {
            assert!(queue.fill(&request(round * 3 + id, 2), &list()));
        }
        assert!(!queue.fill(&request(0, 0), &[]), "only three were asked for");
        queue.publish();
        for id in 0..3 {
            segments.clear();
            let (number, taken) = source.take_known(&mut segments, |_, _| ()).unwrap().unwrap();
            assert_eq!((u64::from(number), taken.id), (round * 3 + id, round * 3 + id));
            assert_eq!(segments, list());
            queue.give_back();
        }
        assert_eq!(source.take_known(&mut segments, |_, _| ()), Ok(None));
    }
}

#[test]
fn short_slots_are_few_cache_lines() {
    let receives = |segments| Shape::of_receives(0, 1, segments).stride;
    assert_eq!([receives(2), receives(3), receives(4)], [64, 64, 128]);
    let sends = |segments, inline| Shape::new(0, 1, segments, inline).stride;
    assert_eq!([sends(0, 0), sends(5, 88), sends(6, 0), sends(0, 89)], [128, 128, 192, 192]);
}

/// Every field of a request that its operation needs arrives.
#[test]
fn requests_arrive_whole() {
    let (mut queue, mut source, _) = ends(16, 3, 0);
    let basic = WorkRequest { flags: 7, immediate: 8, number: 9, ..request(1, 1) };
    let to_peer = WorkRequest { address: 1 << 40 | 2, rkey: 3, ..basic };
    let to_anybody = WorkRequest { ah: 1, remote_qpn: 2, remote_qkey: 3, opcode: opcode::SEND, ..basic };
    let operands = |opcode| WorkRequest { opcode, compare_add: u64::MAX - 4, swap: u64::MAX - 5, ..to_peer };
    let asked = [
        WorkRequest { opcode: opcode::RDMA_WRITE, ..to_peer },
        WorkRequest { opcode: opcode::RDMA_READ, ..to_peer },
        operands(opcode::ATOMIC_CMP_AND_SWP),
        operands(opcode::ATOMIC_FETCH_AND_ADD),
        WorkRequest { segments: 0, ..operands(opcode::BIND_MW) },
        to_anybody,
    ];
    for request in &asked {
        assert!(queue.fill(request, &list()[..request.segments.into()]));
    }
    queue.publish();
    let mut segments = Vec::new();
    for mut request in asked {
        // A datagram has no place at the peer, and other requests have no address handle.
        let taken = source.take(&mut segments, &mut Vec::new()).unwrap().unwrap().1;
        if request.opcode == opcode::SEND {
            (request.address, request.rkey) = (taken.address, taken.rkey);
        } else {
            (request.ah, request.remote_qpn, request.remote_qkey) =
                (taken.ah, taken.remote_qpn, taken.remote_qkey);
        }
        assert_eq!(taken, request);
    }
    assert_eq!(segments, [list()[0]; 5]);
}

#[test]
fn inline_bytes_travel_in_the_slot() {
    let (mut queue, mut source, _) = ends(1, 1, 100);
    let bytes: Vec<u8> = (0..100).collect();
    let asked = WorkRequest { inline_len: 100, ..request(1, 0) };
    let parts = [(bytes.as_ptr(), 60), (bytes[60..].as_ptr(), 40)];
    // SAFETY: both parts are of `bytes`.
    assert!(unsafe { queue.fill_inline(&asked, &parts) });
    queue.publish();
    let mut inline = Vec::new();
    assert_eq!(source.take(&mut Vec::new(), &mut inline), Ok(Some((0, asked))));
    assert_eq!(inline, bytes);
}

#[test]
fn what_is_done_before_it_is_published_is_taken_back() {
    let (mut queue, mut source, _) = ends(4, 2, 0);
    for id in 1..=4 {
        assert!(queue.fill(&request(id, 1), &[Segment { address: id, len: 1, lkey: 1 }]));
    }
    let mut segments = Vec::new();
    assert_eq!((queue.peek(1, &mut segments).0.id, segments[0].address), (2, 2));
    queue.take_back(3);
    assert_eq!((queue.unpublished(), queue.is_idle()), (1, true));
    queue.publish();
    segments.clear();
    let (number, taken) = source.take(&mut segments, &mut Vec::new()).unwrap().unwrap();
    assert_eq!((taken.id, segments[0].address, queue.is_idle()), (4, 4, false));
    source.release_before(number + 1);
    assert!(queue.is_idle());
}

#[test]
fn receives_are_put_back_and_given_back() {
    let (mut queue, mut source) = receives(4, 1);
    assert!(queue.fill(&request(4, 1), &[Segment { address: 4, len: 1, lkey: 1 }]));
    queue.publish();
    let mut segments = Vec::new();
    let (number, _) = source.take_known(&mut segments, |_, _| ()).unwrap().unwrap();
    source.put_back(number);
    assert_eq!(source.take_known(&mut segments, |_, _| ()).unwrap().unwrap().1.id, 4);
    assert!(source.was_taken_last(number));
    segments.clear();
    assert_eq!((queue.oldest(&mut segments), segments[0].address), (4, 4));
    queue.give_back();
    assert!(queue.is_idle());
}

#[test]
fn what_is_taken_back_may_be_where_numbers_begin_again() {
    let (mut queue, mut source, _) = ends(4, 1, 0);
    (queue.published, queue.filled, queue.done) = (u32::MAX, u32::MAX, u32::MAX);
    queue.header().tail.store(u32::MAX, Ordering::Relaxed);
    source.reset();
    for id in 1..=3 {
        assert!(queue.fill(&request(id, 0), &[]));
    }
    queue.take_back(0);
    queue.take_back(1);
    queue.publish();
    for id in 2..=3 {
        assert_eq!(source.take(&mut Vec::new(), &mut Vec::new()).unwrap().unwrap().1.id, id);
    }
    assert!(!source.has_next());
}

#[test]
fn what_was_aborted_is_not_seen() {
    let (mut queue, mut source, _) = ends(2, 1, 0);
    assert!(queue.fill(&request(1, 0), &[]));
    queue.abort();
    assert!(queue.fill(&request(2, 0), &[]));
    queue.publish();
    let (_, taken) = source.take(&mut Vec::new(), &mut Vec::new()).unwrap().unwrap();
    assert_eq!((taken.id, source.has_next()), (2, false));
}

#[test]
fn what_a_dead_device_left_is_told_once() {
    let (mut queue, mut source, _) = ends(4, 1, 0);
    for id in 0..4 {
        assert!(queue.fill(&request(id, 0), &[]));
    }
    queue.publish();
    let _ = source.take(&mut Vec::new(), &mut Vec::new()).unwrap();
    source.release_taken();
    let _ = source.take(&mut Vec::new(), &mut Vec::new()).unwrap();
    let mut left = Vec::new();
    queue.abandon(|request| left.push(request.id));
    queue.abandon(|request| left.push(request.id));
    assert_eq!(left, [1, 2, 3]);
    assert!(queue.fill(&request(4, 0), &[]));
}

#[test]
fn receives_are_posted_while_others_are_taken() {
    // On machines other than x86 the processor is emulated.
    let count = if cfg!(miri) {
        50
    } else if cfg!(target_arch = "x86_64") {
        300_000
    } else {
        20_000
    };
    let (mut queue, mut source) = receives(4, 0);
    let (taken, mut is_whole) = (AtomicU32::new(0), true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut given_back = 0;
            while given_back < count {
                while given_back < taken.load(Ordering::Acquire) {
                    queue.give_back();
                    given_back += 1;
                }
                while queue.fill(&request(0, 0), &[]) {}
                queue.publish();
            }
        });
        let mut all = 0;
        while all < count {
            match source.take_known(&mut Vec::new(), |_, _| ()) {
                Ok(found) => all += u32::from(found.is_some()),
                Err(Corrupt) => (all, is_whole) = (count, false),
            }
            taken.store(all, Ordering::Release);
        }
    });
    assert!(is_whole);
}

#[test]
fn known_receives_are_forgotten_when_the_queue_begins_anew() {
    let (mut queue, mut source) = receives(4, 1);
    let take = |source: &mut WorkSource| {
        source.take_known(&mut Vec::new(), |_, _| ()).unwrap().map(|(_, taken)| taken.id)
    };
    (1..=3).for_each(|id| assert!(queue.fill(&request(id, 0), &[])));
    queue.publish();
    assert_eq!(take(&mut source), Some(1));
    queue.reset();
    source.reset();
    assert_eq!(take(&mut source), None);
    assert!(queue.fill(&request(4, 0), &[]));
    queue.publish();
    assert_eq!((take(&mut source), take(&mut source)), (Some(4), None));
}

/// Earlier contents of slots are not taken for new, though no slot is cleared.
#[test]
fn requests_are_forgotten_when_the_queue_begins_anew() {
    let (mut queue, mut source, _) = ends(4, 1, 0);
    for round in 0..40 {
        for id in 0..1 + round % 4 {
            assert!(queue.fill(&request(id, 0), &[]));
        }
        queue.publish();
        if round % 3 == 0 {
            assert!(source.take(&mut Vec::new(), &mut Vec::new()).unwrap().is_some());
        }
        assert!(queue.fill(&request(5, 0), &[]) || round % 4 == 3);
        source.reset();
        queue.reset();
        assert!(!source.has_next() && queue.is_idle() && queue.has_room());
    }
    assert!(queue.fill(&request(7, 0), &[]));
    queue.publish();
    assert_eq!(source.take(&mut Vec::new(), &mut Vec::new()).unwrap().unwrap().1.id, 7);
    assert!(!source.has_next());
}

/// A request is seen at once, and is complete then.
#[test]
fn requests_are_taken_while_others_are_posted() {
    let count = if cfg!(miri) { 50 } else { 2_000 };
    let (mut queue, mut source, _) = ends(4, 1, 64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..count {
                while !queue.has_room() {
                    std::thread::yield_now();
                }
                let bytes = [id as u8; 64];
                let asked = WorkRequest { inline_len: 64, address: id, ..request(id, 0) };
                // SAFETY: the bytes are there.
                assert!(unsafe { queue.fill_inline(&asked, &[(bytes.as_ptr(), 64)]) });
                queue.publish();
            }
        });
        for id in 0..count {
            let mut inline = Vec::new();
            let (number, taken) = loop {
                match source.take(&mut Vec::new(), &mut inline).unwrap() {
                    Some(taken) => break taken,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!((taken.id, taken.address, &inline[..]), (id, id, &[id as u8; 64][..]));
            source.release_before(number.wrapping_add(1));
        }
    });
}

#[test]
fn shapes_that_leave_the_memory_are_refused() {
    let (memory, _) = Memory::create("test", 4096).unwrap();
    let memory = Arc::new(memory);
    let shape = |offset, slots, stride| Shape { offset, slots, stride, list: 16 };
    for wrong in [
        shape(0, 64, 64),
        shape(0, 3, 64),
        shape(0, 0, 64),
        shape(1, 1, 64),
        shape(0, 1, 0),
        shape(0, 1 << 31, 1 << 31),
        shape(u32::MAX - 63, 1, 64),
        Shape { list: 0, ..shape(0, 1, 64) },
        Shape { list: 20, ..shape(0, 1, 64) },
        Shape { list: 80, ..shape(0, 1, 64) },
    ] {
        assert_eq!(WorkSource::new(memory.clone(), wrong).err(), Some(Corrupt), "{wrong:?}");
    }
    assert!(WorkSource::new(memory, shape(0, 32, 64)).is_ok());
}

/// An application may write anything into the queue.
#[test]
fn a_hostile_application_is_found_out() {
    bolero::check!().with_type::<Vec<(u8, u32)>>().for_each(|writes| {
        let (mut queue, mut source, memory) = ends(4, 2, 0);
        let mut under_way = 0;
        for (what, value) in writes {
            match what % 4 {
                // The program acts as if it had published any slot.
                0 => queue.slots.publish(*value),
                1 => {
                    // Sixteen slots of two lines, the first of which is where a program writes most.
                    let (slot, word) = (*value as usize % 16, *value as usize / 16 % 16);
                    let at = 64 + size_of::<Header>() + slot * 128 + word * 4;
                    // SAFETY: aligned, and within the slots.
                    unsafe { memory.at::<u32>(at).write_volatile(value.rotate_left(16)) };
                }
                2 => {
                    let _ = queue.fill(&request((*value).into(), 0), &[]);
                    queue.publish();
                }
                _ => {
                    source.release_taken();
                    under_way = 0;
                }
            }
            let (mut segments, mut inline) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                if !matches!(source.take(&mut segments, &mut inline), Ok(Some(_))) {
                    break;
                }
                under_way += 1;
            }
            assert!(under_way <= 16);
            assert!(segments.len() <= 8 * 5 && inline.len() <= 8 * 88);
        }
    });
}
