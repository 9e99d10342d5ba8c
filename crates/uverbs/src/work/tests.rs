use super::*;

fn ends(requests: u32, segments: u32, inline: u32) -> (WorkQueue, WorkSource, Arc<Memory>) {
    ends_of(Shape::new(64, requests, segments, inline), requests)
}

fn ends_of(shape: Shape, requests: u32) -> (WorkQueue, WorkSource, Arc<Memory>) {
    let (memory, _) = Memory::create("test", shape.end()).unwrap();
    let memory = Arc::new(memory);
    let queue = WorkQueue::new(memory.clone(), shape, requests).unwrap();
    (queue, WorkSource::new(memory.clone(), shape).unwrap(), memory)
}

fn request(id: u64, segments: u16) -> WorkRequest {
    WorkRequest { id, segments, ..WorkRequest::default() }
}

#[test]
fn what_is_posted_is_taken_in_order() {
    posted_and_taken(Shape::new(64, 3, 2, 0));
}

#[test]
fn receives_of_few_segments_are_a_cache_line() {
    let shape = Shape::of_receives(64, 3, 2);
    assert_eq!(
        (shape.stride, Shape::of_receives(0, 1, 3).stride, Shape::of_receives(0, 1, 4).stride),
        (64, 64, 128)
    );
    posted_and_taken(shape);
}

fn posted_and_taken(shape: Shape) {
    let (mut queue, mut source, _) = ends_of(shape, 3);
    let list = [Segment { address: 1, len: 2, lkey: 3 }, Segment { address: 4, len: 5, lkey: 6 }];
    let (mut segments, mut inline) = (Vec::new(), Vec::new());
    for round in 0..10 {
        for id in 0..3 {
            assert!(queue.fill(&request(round * 3 + id, 2), &list));
        }
        assert!(!queue.fill(&request(0, 0), &[]), "only three were asked for");
        assert_eq!(source.waiting(), Ok(0), "not published");
        queue.publish();
        for id in 0..3 {
            segments.clear();
            let (number, taken) = source.take(&mut segments, &mut inline).unwrap().unwrap();
            assert_eq!((u64::from(number), taken.id), (round * 3 + id, round * 3 + id));
            assert_eq!(segments, list);
        }
        assert_eq!(source.take(&mut segments, &mut inline), Ok(None));
        assert!(!queue.has_room());
        source.release_taken();
    }
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
    source.put_back(number);
    assert!(source.take(&mut segments, &mut Vec::new()).unwrap().is_some());
    segments.clear();
    assert_eq!((queue.oldest(&mut segments), segments[0].address), (4, 4));
    queue.give_back();
    assert!(queue.is_idle());
}

#[test]
fn what_is_taken_back_may_be_where_numbers_begin_again() {
    let (mut queue, mut source, _) = ends(4, 1, 0);
    (queue.published, queue.filled) = (u32::MAX, u32::MAX);
    source.header().tail.store(u32::MAX, Ordering::Relaxed);
    source.header().taken.store(u32::MAX, Ordering::Relaxed);
    source.release_before(u32::MAX);
    for id in 1..=3 {
        assert!(queue.fill(&request(id, 0), &[]));
    }
    queue.take_back(0);
    queue.take_back(1);
    queue.publish();
    for id in 2..=3 {
        assert_eq!(source.take(&mut Vec::new(), &mut Vec::new()).unwrap().unwrap().1.id, id);
    }
    assert_eq!(source.waiting(), Ok(0));
}

#[test]
fn what_was_aborted_is_not_seen() {
    let (mut queue, mut source, _) = ends(2, 1, 0);
    assert!(queue.fill(&request(1, 0), &[]));
    queue.abort();
    assert!(queue.fill(&request(2, 0), &[]));
    queue.publish();
    let (_, taken) = source.take(&mut Vec::new(), &mut Vec::new()).unwrap().unwrap();
    assert_eq!((taken.id, source.waiting()), (2, Ok(0)));
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
    let (mut queue, mut source, _) = ends(4, 0, 0);
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
            match source.take(&mut Vec::new(), &mut Vec::new()) {
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
    let (mut queue, mut source, _) = ends_of(Shape::of_receives(0, 4, 1), 4);
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

/// An application may write anything there.
#[test]
fn a_hostile_application_is_found_out() {
    bolero::check!().with_type::<Vec<(u8, u32)>>().for_each(|writes| {
        let (mut queue, mut source, memory) = ends(4, 2, 0);
        for (what, value) in writes {
            match what % 4 {
                0 => queue.header().tail.store(*value, Ordering::Relaxed),
                1 => {
                    let at = 64 + size_of::<Header>() + *value as usize % 95 * 4;
                    // SAFETY: aligned, and within the slots.
                    unsafe { memory.at::<u32>(at).write_volatile(value.rotate_left(16)) };
                }
                2 => {
                    let _ = queue.fill(&request((*value).into(), 0), &[]);
                    queue.publish();
                }
                _ => source.release_taken(),
            }
            let (mut segments, mut inline) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                if !matches!(source.take(&mut segments, &mut inline), Ok(Some(_))) {
                    break;
                }
            }
            assert!(segments.len() <= 8 * 2 && inline.len() <= 8 * 64);
        }
    });
}
