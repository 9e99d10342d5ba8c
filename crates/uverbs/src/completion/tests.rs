use super::*;

fn ends(entries: u32) -> (CompletionSink, CompletionQueue) {
    let (memory, file) = Memory::create("test", bytes(entries)).unwrap();
    let same = Memory::open(&file, bytes(entries)).unwrap();
    (CompletionSink::new(memory, entries), CompletionQueue::new(same, entries))
}

fn completion(id: u64) -> Completion {
    Completion { id, ..Completion::default() }
}

#[test]
fn completions_come_in_order_and_go_round() {
    let (sink, mut queue) = ends(4);
    for round in 0..5 {
        for id in 0..4 {
            assert_eq!(sink.push(&completion(round * 4 + id), false), Ok(false));
        }
        assert_eq!(sink.push(&completion(99), false), Err(Overrun));
        for id in 0..4 {
            assert_eq!(queue.poll(), Some(completion(round * 4 + id)));
        }
        assert_eq!(queue.poll(), None);
    }
}

#[test]
fn completions_of_the_gone_are_left_out() {
    let (sink, mut queue) = ends(4);
    for id in 0..4 {
        sink.push(&Completion { qpn: id as u32 % 2, ..completion(id) }, false).unwrap();
    }
    queue.forget(0);
    sink.push(&completion(9), false).unwrap_err();
    assert_eq!(
        [queue.poll(), queue.poll(), queue.poll()].map(|one| one.map(|one| one.id)),
        [Some(1), Some(3), None]
    );
    sink.push(&completion(4), false).unwrap();
    assert_eq!(queue.poll(), Some(completion(4)));
}

#[test]
fn a_channel_is_told_once_and_of_what_was_asked() {
    let (sink, queue) = ends(8);
    queue.arm(Arm::Solicited);
    assert_eq!(sink.push(&completion(1), false), Ok(false));
    assert_eq!(sink.push(&completion(2), true), Ok(true));
    assert_eq!(sink.push(&completion(3), true), Ok(false));
    queue.arm(Arm::Any);
    queue.arm(Arm::Solicited);
    assert_eq!(sink.push(&completion(4), false), Ok(true));
}

#[test]
fn who_adds_completions_alone_may_be_joined_by_others_later() {
    let (mut sink, mut queue) = ends(4);
    queue.arm(Arm::Any);
    assert_eq!(sink.push_alone(&completion(0), true, false), Ok(false), "there is no channel");
    assert_eq!(sink.push_alone(&completion(1), false, true), Ok(true));
    assert_eq!(sink.push(&completion(2), false), Ok(false));
    assert_eq!(sink.push_alone(&completion(3), false, true), Ok(false), "it was told");
    assert_eq!(sink.push_alone(&completion(9), false, true), Err(Overrun));
    let polled: Vec<_> = std::iter::from_fn(|| queue.poll()).map(|one| one.id).collect();
    assert_eq!(polled, [0, 1, 2, 3]);
    assert_eq!(
        (sink.push_alone(&completion(4), false, true), queue.poll()),
        (Ok(false), Some(completion(4)))
    );
}

#[test]
fn a_solicited_completion_that_comes_before_its_turn_is_told_of() {
    let (sink, mut queue) = ends(8);
    queue.arm(Arm::Solicited);
    let first = sink.reserve(|_| ()).unwrap();
    assert_eq!(sink.push(&completion(2), true), Ok(true));
    // After the notification, the program finds nothing and asks again.
    assert_eq!(queue.poll(), None);
    queue.arm(Arm::Solicited);
    assert_eq!(queue.poll(), None);
    assert!(sink.fill(first, &completion(1), false));
    assert_eq!([queue.poll(), queue.poll()].map(|one| one.map(|one| one.id)), [Some(1), Some(2)]);
    queue.arm(Arm::Solicited);
    assert_eq!(sink.push(&completion(3), false), Ok(false));
}

#[test]
fn a_place_that_nobody_fills_is_found_and_filled() {
    let (sink, mut queue) = ends(2);
    let noted = std::cell::Cell::new(None);
    let reserved = sink.reserve(|at| noted.set(Some(at))).unwrap();
    assert_eq!((noted.get(), sink.look(reserved), sink.look(1)), (Some(0), Place::Empty, Place::Free));
    sink.push(&completion(1), false).unwrap();
    assert_eq!((queue.poll(), sink.look(1)), (None, Place::Filled));
    sink.fill(reserved, &Completion { status: FORGOTTEN, ..completion(0) }, true);
    assert_eq!((queue.poll(), queue.poll()), (Some(completion(1)), None));
    sink.push(&completion(2), false).unwrap();
    assert_eq!((sink.look(0), queue.poll()), (Place::Filled, Some(completion(2))));
}

#[test]
fn a_resized_queue_goes_on() {
    let (sink, mut queue) = ends(4);
    for id in 0..3 {
        sink.push(&completion(id), false).unwrap();
    }
    assert_eq!(queue.poll(), Some(completion(0)));
    let (small, _) = Memory::create("test", bytes(1)).unwrap();
    assert!(!sink.move_to(&CompletionSink::new(small, 1)));
    let (memory, file) = Memory::create("test", bytes(16)).unwrap();
    let bigger = CompletionSink::new(memory, 16);
    assert!(sink.move_to(&bigger));
    bigger.push(&completion(3), false).unwrap();
    let mut queue = CompletionQueue::new(Memory::open(&file, bytes(16)).unwrap(), 16);
    for id in 1..4 {
        assert_eq!(queue.poll(), Some(completion(id)));
    }
    assert_eq!(queue.poll(), None);
}

#[test]
fn a_library_that_lies_harms_nobody_else() {
    let (sink, queue) = ends(4);
    for head in [u32::MAX, 77, 5] {
        queue.ring.header().head.store(head, Ordering::Relaxed);
        queue.ring.header().tail.store(head.rotate_left(9), Ordering::Relaxed);
        let pushed = (0..10).filter(|id| sink.push(&completion(*id), false).is_ok()).count();
        assert!(pushed <= 10 && sink.waiting() <= 4);
    }
}

#[test]
fn several_may_complete_at_once() {
    let (memory, file) = Memory::create("test", bytes(64)).unwrap();
    let sinks =
        [memory, Memory::open(&file, bytes(64)).unwrap()].map(|memory| CompletionSink::new(memory, 64));
    let mut queue = CompletionQueue::new(Memory::open(&file, bytes(64)).unwrap(), 64);
    let mut last = [0; 2];
    std::thread::scope(|scope| {
        for (qpn, sink) in sinks.iter().enumerate() {
            scope.spawn(move || {
                for id in 1..=5000 {
                    let message = Placement::Here([u64::from(id as u8); 5]);
                    let placement = if id % 3 == 0 { message } else { Placement::There };
                    let completion =
                        Completion { id, qpn: qpn as u32, byte_len: id as u32, placement, ..completion(id) };
                    while sink.push(&completion, false) == Err(Overrun) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        while last != [5000; 2] {
            let Some(done) = queue.poll() else { continue };
            let last = &mut last[done.qpn as usize];
            assert_eq!(done.byte_len, *last + 1);
            *last += 1;
            match done.placement {
                Placement::Here(message) => assert_eq!(message, [u64::from(done.byte_len as u8); 5]),
                other => assert_eq!((other, done.id), (Placement::There, done.byte_len.into())),
            }
        }
    });
}
