//! The driver's knowledge of flows' packets: counters that restart, and flows without a counter.

use super::host::{Host, frame};
use card::Commands;
use card::driver::Usage;
use card::expect::{Memory, Outcome, Sizes};
use card::frame::{Frame, Key};
use card::registers::Path;

/// Puts a flow onto the card. Returns its key and the number of its counter.
fn flow(host: &mut Host, port: u16) -> (Key, u32) {
    let packet = frame(1, 2, (port, 9));
    host.host(1, &packet);
    let Outcome::Forward { index: Some(index), .. } = host.card(1, &packet) else {
        panic!("not on the card")
    };
    let frame = Frame::parse(&packet, packet.len(), false).unwrap();
    (frame.key(super::host::VRF.0, Path::Bridged).unwrap(), index)
}

fn counted(packets: u64, bytes: u64) -> Option<Usage> {
    Some(Usage::Counted { packets, bytes })
}

#[test]
fn no_count_is_lost_where_counters_begin_anew_again_and_again() {
    let mut host = Host::new(Sizes::default());
    let flows: Vec<_> = (0..3).map(|port| flow(&mut host, port)).collect();
    let (packets, bytes) = ((1 << 33) - 5, (1 << 41) - 77);
    for _ in 0..100 {
        for (_, index) in &flows[..2] {
            host.driver.commands().card().count_flow(*index, packets, bytes);
        }
        // Without an event, the driver reads neither counter.
        host.driver.follow_counters(100);
    }
    for (key, _) in &flows[..2] {
        assert_eq!(host.driver.usage(key), counted(100 * packets, 100 * bytes));
    }
    assert_eq!(host.driver.usage(&flows[2].0), counted(0, 0));
}

#[test]
fn where_events_are_lost_all_counters_are_read() {
    let mut host = Host::new(Sizes::default());
    let flows: Vec<_> = (0..800).map(|port| flow(&mut host, port)).collect();
    for round in 1..=20 {
        for (_, index) in &flows {
            host.driver.commands().card().count_flow(*index, 1 << 33, 100);
        }
        host.driver.follow_counters(1000);
        if round % 7 == 0 {
            assert_eq!(host.driver.usage(&flows[799].0), counted(7 << 33, 700));
        }
    }
    for (key, _) in &flows[..799] {
        assert_eq!(host.driver.usage(key), counted(20 << 33, 2000));
    }
    // Packets already reported are not reported again.
    assert_eq!(host.driver.usage(&flows[799].0), counted(6 << 33, 600));
}

#[test]
fn a_flow_has_the_counter_of_one_that_is_gone_but_not_its_count() {
    let mut host = Host::new(Sizes::default());
    let (_, index) = flow(&mut host, 1);
    host.driver.commands().card().count_flow(index, 55, 5555);
    let connection = host.tables.connections().next().unwrap().0.original;
    host.driver.forgotten(&connection).unwrap();
    let (key, again) = flow(&mut host, 2);
    assert_eq!((again, host.driver.usage(&key)), (index, counted(0, 0)));
    host.driver.commands().card().count_flow(index, 1, 60);
    assert_eq!(host.driver.usage(&key), counted(1, 60));
}

#[test]
fn flows_beyond_the_counters_are_known_to_be_in_use_or_not() {
    let mut host = Host::new(Sizes { flow_counters: 2, ..Sizes::default() });
    let flows: Vec<_> = (0..70).map(|port| flow(&mut host, port)).collect();
    assert_eq!(host.driver.uncounted(), 68);
    for used in [2, 63, 64, 65] {
        host.driver.commands().card().count_flow(flows[used].1, 3, 300);
    }
    // The flows of a word are queried one after the other, and each reports its packets once.
    for said in [true, false] {
        let seen: Vec<_> =
            (2..70).filter(|n| host.driver.usage(&flows[*n].0) == Some(Usage::Seen(true))).collect();
        assert_eq!(seen, if said { vec![2, 63, 64, 65] } else { vec![] });
    }
    assert_eq!(host.driver.usage(&flows[0].0), counted(0, 0));
    // Once counters are free again, new flows get them first.
    let first = host.tables.connections().map(|(connection, _)| connection.original);
    let first = first.min_by_key(|key| key.src.port).unwrap();
    host.driver.commands().card().count_flow(flows[9].1, 1, 1);
    host.driver.forgotten(&first).unwrap();
    let (key, index) = flow(&mut host, 100);
    assert!(index < 2 && host.driver.usage(&key) == counted(0, 0));
    // An old bit is not taken for packets of the new flow either.
    let ninth = host.tables.connections().find(|(connection, _)| connection.original.src.port == 9);
    let ninth = ninth.unwrap().0.original;
    host.driver.forgotten(&ninth).unwrap();
    let (key, index) = flow(&mut host, 101);
    assert_eq!((index, host.driver.usage(&key)), (flows[9].1, Some(Usage::Seen(false))));
}

#[test]
fn a_counter_that_an_earlier_driver_used_begins_at_nothing() {
    let mut memory = Memory::new(Sizes::default());
    memory.count_flow(0, 77, 7777);
    let mut host = Host::with(memory);
    let (key, index) = flow(&mut host, 1);
    assert_eq!((index, host.driver.usage(&key)), (0, counted(0, 0)));
    let mut commands = Commands::open(host.driver.commands().card().clone()).unwrap();
    assert_eq!(commands.counter(6, 0), 77);
}
