//! Frames in every form of ring: their buffers, offloads, queues and events.

use super::*;

#[test]
fn frames_pass_in_every_form_of_ring() {
    for packed in [Features::default(), Features::RING_PACKED] {
        for event in [Features::default(), Features::EVENT_IDX] {
            for order in [Features::default(), Features::IN_ORDER] {
                let (_dir, mut port, mut vmm) = connected("forms", with(&[packed, event, order]), 1);
                for _ in 0..100 {
                    works(&mut port, &mut vmm);
                }
                assert_eq!(port.port.status().malformed, 0);
            }
        }
    }
}

#[test]
fn a_long_frame_takes_several_mergeable_buffers() {
    for packed in [Features::default(), Features::RING_PACKED] {
        let (_dir, port, mut vmm) = connected("mergeable", with(&[Features::MRG_RXBUF, packed]), 1);
        (0..5).for_each(|i| vmm.offer(i, 100));
        // 488 bytes and a header fill five buffers to the last byte.
        assert_eq!(deliver(&port, 0, &frame(489, 3), &Offload::default()), Err(NoRoom::Full));
        assert!(vmm.drivers[TO_GUEST].used().is_none());
        deliver(&port, 0, &frame(388, 3), &Offload::default()).unwrap();
        let mut received = Vec::new();
        for i in 0..4 {
            assert_eq!(vmm.drivers[TO_GUEST].used().unwrap().1, 100);
            received.extend(vmm.memory.ram.read(vmm.buffer(i), 100));
        }
        assert_eq!(received[10..12], [4, 0], "num_buffers");
        assert_eq!(received[12..], frame(388, 3));
        assert!(vmm.drivers[TO_GUEST].used().is_none());
    }
}

#[test]
fn a_frame_longer_than_single_buffers_is_refused() {
    let (_dir, mut port, mut vmm) = connected("single", BASE, 1);
    vmm.offer(0, 1000);
    assert_eq!(deliver(&port, 0, &frame(989, 0), &Offload::default()), Err(NoRoom::TooLong));
    deliver(&port, 0, &frame(988, 0), &Offload::default()).unwrap();
    assert_eq!(vmm.drivers[TO_GUEST].used().unwrap().1, 1000);
    assert_eq!(deliver(&port, 0, &frame(100, 0), &Offload::default()), Err(NoRoom::Full));
    works(&mut port, &mut vmm);
}

#[test]
fn offloads_pass_as_negotiated() {
    let features = with(&[Features::CSUM, Features::HOST_TSO4, Features::GUEST_CSUM, Features::GUEST_TSO4]);
    let (_dir, mut port, mut vmm) = connected("offload", features, 1);
    let offload = Offload {
        csum: Csum::Partial { start: 34, offset: 16 },
        gso: Some(Gso { v6: false, size: 1448, hdr_len: 54, ecn: false }),
    };
    let header = mem::vnet::build(&offload);
    vmm.send_by(FROM_GUEST, 0, &header, &frame(3000, 0));
    assert_eq!(receive(&mut port, 0)[0].1, offload);
    // TSO over IPv6 was not negotiated; a runt is not a frame.
    let v6 = mem::vnet::build(&Offload { gso: offload.gso.map(|g| Gso { v6: true, ..g }), ..offload });
    vmm.send_by(FROM_GUEST, 1, &v6, &frame(3000, 0));
    vmm.send_by(FROM_GUEST, 2, &[0; 12], &frame(13, 0));
    assert_eq!(receive(&mut port, 0), []);
    assert_eq!(port.port.status().malformed, 2);
    assert_eq!((0..3).filter_map(|_| vmm.drivers[FROM_GUEST].used()).count(), 3);
    let accepts = port.tx[0].accepts();
    assert!(accepts.csum && accepts.tso4 && !accepts.tso6 && !accepts.ecn);
    vmm.offer(0, 4096);
    deliver(&port, 0, &frame(3000, 0), &offload).unwrap();
    assert_eq!(vmm.memory.ram.read(vmm.buffer(0), 10), header[..10]);
}

#[test]
fn a_legacy_driver_has_a_short_header() {
    let (_dir, mut port, mut vmm) = connected("legacy", Features::default(), 1);
    let at = vmm.buffer(0);
    vmm.memory.ram.write(at + 10, &frame(60, 9));
    vmm.drivers[FROM_GUEST].offer(&[(GPA + at, 70, false)], false).unwrap();
    assert_eq!(receive(&mut port, 0), [(frame(60, 9), Offload::default())]);
    vmm.drivers[TO_GUEST].offer(&[(GPA + at, 100, true)], false).unwrap();
    deliver(&port, 0, &frame(60, 5), &Offload::default()).unwrap();
    assert_eq!(vmm.drivers[TO_GUEST].used().unwrap().1, 70);
}

#[test]
fn each_queue_is_enabled_on_its_own() {
    let (_dir, mut port, mut vmm) = connected("queues", with(&[Features::MQ]), 2);
    works(&mut port, &mut vmm);
    vmm.send_by(3, 1, &[0; 12], &frame(90, 1));
    assert_eq!(receive(&mut port, 1), [(frame(90, 1), Offload::default())]);
    vmm.enable(2, false);
    vmm.enable(3, false);
    assert_eq!(port.port.status().queues, 1);
    assert_eq!(deliver(&port, 1, &frame(60, 0), &Offload::default()), Err(NoRoom::Down));
    // The frames that a disabled queue holds are discarded and returned.
    while vmm.drivers[3].used().is_some() {}
    vmm.send_by(3, 1, &[0; 12], &frame(90, 1));
    assert_eq!(receive(&mut port, 1), []);
    assert!(vmm.drivers[3].used().is_some());
    works(&mut port, &mut vmm);
}

#[test]
fn events_come_only_while_armed() {
    for form in [&[][..], &[Features::EVENT_IDX], &[Features::RING_PACKED, Features::EVENT_IDX]] {
        let event_idx = form.contains(&Features::EVENT_IDX);
        let (_dir, mut port, mut vmm) = connected("events", with(form), 1);
        let readable = |port: &Opened, timeout: Duration| {
            let fd = PollFd::from_borrowed_fd(port.rx[0].event_fd(), PollFlags::IN);
            poll(&mut [fd], Some(&Timespec::try_from(timeout).unwrap())).unwrap() == 1
        };
        assert!(readable(&port, PATIENCE), "a queue that came up wants to be looked at");
        port.rx[0].disarm();
        assert!(!readable(&port, Duration::ZERO));
        for _ in 0..10 {
            assert!(!port.rx[0].arm());
            vmm.send(1, &frame(60, 0));
            assert!(vmm.drivers[FROM_GUEST].kick_wanted(event_idx, 1));
            vmm.kicks[FROM_GUEST].write(1).unwrap();
            assert!(readable(&port, PATIENCE));
            assert!(port.rx[0].arm(), "packets are waiting");
            port.rx[0].disarm();
            assert!(!readable(&port, Duration::ZERO));
            assert_eq!(receive(&mut port, 0).len(), 1);
            vmm.send(1, &frame(60, 0));
            assert!(!vmm.drivers[FROM_GUEST].kick_wanted(event_idx, 1));
            while vmm.drivers[FROM_GUEST].used().is_some() {}
            vmm.drivers[FROM_GUEST].want_interrupts(true, event_idx);
            let _ = vmm.calls[FROM_GUEST].read();
            assert_eq!(receive(&mut port, 0).len(), 1);
            while vmm.drivers[FROM_GUEST].used().is_some() {}
            assert_eq!(vmm.calls[FROM_GUEST].read().unwrap(), 1, "the driver is interrupted once");
            vmm.drivers[FROM_GUEST].want_interrupts(false, event_idx);
        }
    }
}

#[test]
fn new_buffers_need_no_event() {
    for form in [&[][..], &[Features::EVENT_IDX], &[Features::RING_PACKED]] {
        let event_idx = form.contains(&Features::EVENT_IDX);
        let (_dir, _port, mut vmm) = connected("buffers", with(form), 1);
        // According to its index, the first one is wanted in memory that is all zero.
        vmm.offer(2, 2000);
        vmm.offer(3, 2000);
        assert!(!vmm.drivers[TO_GUEST].kick_wanted(event_idx, 1), "{form:?}");
    }
}

/// While a port's memory is under suspicion, frames take a way of their own, in every form of ring.
#[test]
fn a_port_under_suspicion_works_on() {
    for features in [Features::default(), Features::RING_PACKED, Features::MRG_RXBUF, Features::GUEST_CSUM] {
        let (_dir, mut port, mut vmm) = connected("suspect", with(&[features]), 1);
        works(&mut port, &mut vmm);
        port.rx[0].suspect();
        port.tx[0].suspect();
        for _ in 0..100 {
            works(&mut port, &mut vmm);
        }
        assert!(!port.rx[0].arm(), "nothing waits");
        vmm.send(0, &frame(300, 1));
        assert!(port.rx[0].arm(), "a frame waits");
        port.rx[0].disarm();
        assert_eq!(receive(&mut port, 0), [(frame(300, 1), Offload::default())]);
        assert!(vmm.drivers[FROM_GUEST].used().is_some());
        // Frames that find no room are counted.
        deliver(&port, 0, &frame(60, 1), &Offload::default()).unwrap();
        let status = port.port.status();
        assert_eq!((status.refused, status.malformed, status.pages_aside), (1, 0, false));
        let offload = Offload { csum: Csum::Partial { start: 34, offset: 6 }, gso: None };
        vmm.offer(1, 2048);
        deliver(&port, 0, &frame(60, 1), &offload).unwrap();
        let takes = features == Features::GUEST_CSUM;
        assert_eq!(vmm.drivers[TO_GUEST].used().is_some(), takes, "{features:?}");
    }
}
