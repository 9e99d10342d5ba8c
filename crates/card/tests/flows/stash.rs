//! Flows that find no place in their buckets are in the stash until a place becomes free.

use super::host::{Host, colliding, frame, frame6, key};
use card::driver::Refused;
use card::expect::{Memory, Outcome, Sizes, held, outcome};
use card::frame::Key;

const BITS: u32 = 8;

/// Makes frames of flows that collide, IPv6 and IPv4 in turn. An IPv6 flow takes a whole bucket.
fn frames(count: usize) -> Vec<Vec<u8>> {
    let v4 = colliding(false, BITS).map(|ports| frame(1, 2, ports));
    let v6 = colliding(true, BITS).map(|ports| frame6(1, 2, ports));
    v6.zip(v4).flat_map(|(v6, v4)| [v6, v4]).take(count).collect()
}

/// Returns the counter of a frame's flow, if the card forwards it.
fn index(memory: &Memory, frame: &[u8]) -> Option<u32> {
    match outcome(memory, 1, frame, frame.len()) {
        Outcome::Forward { index, .. } => index,
        _ => None,
    }
}

/// Ends the connection of a flow.
fn forget(host: &mut Host, key: &Key) {
    let mut known = host.tables.connections().map(|(connection, _)| connection.original);
    let original =
        known.find(|of| of.src.addr == key.src && (of.src.port, of.dst.port) == key.ports).unwrap();
    host.driver.forgotten(&original).unwrap();
}

#[test]
fn flows_come_home_as_others_go_and_are_found_at_every_step() {
    let mut host = Host::new(Sizes { flow_buckets: BITS, ..Sizes::default() });
    let frames = frames(30);
    frames.iter().for_each(|frame| host.host(1, frame));
    let placed: Vec<_> = frames.iter().filter(|frame| host.is_on_card(1, frame)).collect();
    // One IPv6 flow takes one bucket, two IPv4 flows the other.
    assert_eq!((placed.len(), host.driver.flows(), host.driver.stashed()), (19, 19, 16));
    assert_eq!(host.driver.refused(), Refused { quota: 0, full: 11 });
    let (mut left, mut homes) = (0, 0);
    for (gone, frame) in placed.iter().enumerate() {
        let before = host.driver.stashed();
        let mut memory = host.driver.commands().card().clone();
        let known: Vec<_> = placed.iter().map(|frame| index(&memory, frame)).collect();
        host.driver.commands().card().record();
        forget(&mut host, &key(frame));
        let writes = host.driver.commands().card().recorded();
        homes += usize::from(writes.len() > 2);
        for write in writes {
            memory.replay(&write);
            for (other, known) in placed.iter().zip(&known).skip(gone + 1) {
                assert!(known.is_some());
                assert_eq!(index(&memory, other), *known);
            }
        }
        assert_eq!(index(&memory, frame), None);
        left += before - host.driver.stashed();
    }
    assert_eq!((left, host.driver.flows(), host.driver.stashed()), (16, 0, 0));
    assert!(homes > 5, "{homes}");
    // Each place in the stash can be used again.
    frames.iter().for_each(|frame| host.host(1, frame));
    assert_eq!((host.driver.flows(), host.driver.stashed()), (19, 16));
}

#[test]
fn a_flow_in_the_stash_is_held_and_released_there_or_at_home() {
    for (stays, v6) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut host = Host::new(Sizes { flow_buckets: BITS, ..Sizes::default() });
        let ports: Vec<_> = colliding(true, BITS).take(3).collect();
        let frames: Vec<_> = ports.iter().map(|ports| frame6(1, 2, *ports)).collect();
        frames[..2].iter().for_each(|frame| host.host(1, frame));
        let later = colliding(false, BITS).map(|ports| frame(1, 2, ports)).next().filter(|_| !v6);
        let later = later.unwrap_or_else(|| frames[2].clone());
        let hold = host.driver.begin_hold().unwrap();
        let key_of = host.host_behind(Some(hold), 1, &later).unwrap();
        let is_held = |host: &mut Host| held(host.driver.commands().card(), 1, &later, later.len());
        assert_eq!(host.driver.stashed(), 1);
        assert!(host.is_on_card(1, &later) && host.driver.is_held(&key_of, hold));
        assert_eq!(is_held(&mut host), Some(hold));
        if !stays {
            forget(&mut host, &key(&frames[0]));
            assert_eq!(host.driver.stashed(), 0);
            assert!(host.is_on_card(1, &later) && host.driver.is_held(&key_of, hold));
            assert_eq!(is_held(&mut host), Some(hold));
        }
        host.driver.commands().card().record();
        host.driver.end_hold(hold, &[key_of]).unwrap();
        assert_eq!(host.driver.commands().card().recorded().len(), 1, "a line is written at once");
        assert!(host.is_on_card(1, &later) && !host.driver.is_held(&key_of, hold));
        assert_eq!(is_held(&mut host), None);
    }
}
