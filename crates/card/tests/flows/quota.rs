//! One guest can't fill the whole table, and the host serves flows that find no place.

use super::host::{Host, colliding, frame, guests};
use card::driver::Refused;
use card::expect::Sizes;

/// Makes a host with tables for 4096 flows, 256 per guest.
fn small() -> Host {
    Host::new(Sizes { flow_buckets: 10, ..Sizes::default() })
}

#[test]
fn a_guest_that_opens_many_flows_has_its_share_and_leaves_the_others_theirs() {
    let mut host = small();
    let flood: Vec<_> = (0..1000).map(|port| frame(1, 2, (port, 9))).collect();
    for packet in &flood {
        host.host(1, packet);
    }
    assert_eq!(host.driver.flows(), 256);
    assert_eq!(host.driver.refused(), Refused { quota: 744, full: 0 });
    let served = flood.iter().filter(|packet| host.is_on_card(1, packet)).count();
    assert_eq!(served, 256, "the others are left to the host");
    let other = frame(3, 2, (5, 6));
    host.host(3, &other);
    assert!(host.is_on_card(3, &other));
    // When the first flow ends, there is room for one more.
    let first = host.tables.connections().map(|(connection, _)| connection.original);
    let first = first.min_by_key(|key| key.src.port).unwrap();
    assert_eq!((first.src.port, host.is_on_card(1, &flood[0])), (0, true));
    host.driver.forgotten(&first).unwrap();
    host.host(1, &flood[999]);
    assert!(host.is_on_card(1, &flood[999]) && !host.is_on_card(1, &flood[0]));
    host.host(1, &flood[998]);
    assert!(!host.is_on_card(1, &flood[998]));
}

#[test]
fn flows_that_collide_find_no_room_beyond_buckets_and_stash_and_nothing_else_suffers() {
    const BITS: u32 = 8;
    let mut host = Host::new(Sizes { flow_buckets: BITS, stash_flows: 2, ..Sizes::default() });
    // Their two buckets have four places.
    let ports: Vec<_> = colliding(false, BITS).take(10).collect();
    for _ in 0..3 {
        for ports in &ports {
            host.host(1, &frame(1, 2, *ports));
        }
        let placed = ports.iter().filter(|ports| host.is_on_card(1, &frame(1, 2, **ports))).count();
        assert_eq!(placed, 6);
        assert_eq!((host.driver.flows(), host.driver.stashed()), (6, 2));
    }
    assert_eq!(host.driver.refused(), Refused { quota: 0, full: 12 });
    let other = frame(1, 2, (7, 7));
    host.host(1, &other);
    assert!(host.is_on_card(1, &other));
    assert_eq!(host.driver.stashed(), 2);
}

#[test]
fn a_full_table_leaves_the_rest_to_the_host_and_takes_flows_again_when_some_end() {
    // A little over 64 places, 4 per guest.
    let mut host = Host::new(Sizes { flow_buckets: 4, stash_flows: 3, ..Sizes::default() });
    let flow = |from: u16, port: u16| frame(from, from % 20 + 1, (port, 9));
    let all = || guests().flat_map(|from| (0..4).map(move |port| (from, port)));
    for (from, port) in all() {
        host.host(from, &flow(from, port));
    }
    let full = host.driver.flows();
    assert!((51..=67).contains(&full) && host.driver.stashed() == 3, "{full}");
    assert_eq!(host.driver.refused(), Refused { quota: 0, full: 80 - full as u64 });
    assert_eq!(all().filter(|(from, port)| host.is_on_card(*from, &flow(*from, *port))).count(), full);
    let gone: Vec<_> =
        host.tables.connections().map(|(connection, _)| connection.original).take(40).collect();
    for connection in &gone {
        host.driver.forgotten(connection).unwrap();
    }
    let left = host.driver.flows();
    for (from, port) in all() {
        host.host(from, &flow(from, port));
    }
    assert!(left < full && host.driver.flows() >= full - 4, "{left} of {full}, then {}", host.driver.flows());
}
