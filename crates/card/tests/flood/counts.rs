//! Flow counters and seen bits at the highest packet rate, and lines that are cleared during it.

use super::Both;
use super::{SECRET, frame, host, through};
use card::Card;
use card::cuckoo::Entry;
use card::driver::{Driver, Usage};
use card::entries;
use card::expect::{Outcome, outcome};
use card::frame::{Frame, Key};
use card::registers::{Flow4, Path, Punt, Table, identity};
use card::sim::{Sent, place};
use model::{PacketView, VifId, decide};

/// Makes a card with a flow from the first guest to the second. Returns the number of its bucket in the first way, too.
fn with_flow() -> (Driver<Both>, Key, u32) {
    let (mut tables, mut driver) = host(true);
    let bytes = frame(1, 2);
    let view = PacketView::parse(&bytes, bytes.len() as u32, None).unwrap();
    let decision = decide(&tables, &view, VifId(1), 0);
    tables.commit(&decision.effects, bytes.len(), 0).unwrap();
    let key = driver.decided(&tables, &view, VifId(1), &decision).unwrap().unwrap();
    let [bucket, _] = card::hash::choices(&entries::FlowEntry::from(&key).key(), &SECRET);
    let buckets = driver.commands().identity().flow_buckets;
    assert_eq!(key, Frame::parse(&bytes, bytes.len(), false).unwrap().key(5, Path::Bridged).unwrap());
    (driver, key, bucket & ((1 << buckets) - 1))
}

/// Returns whether both cards forward the flow's packet; otherwise both must punt it.
fn is_forwarded(driver: &mut Driver<Both>) -> bool {
    let bytes = frame(1, 2);
    let said = outcome(&driver.commands().card().memory, 1, &bytes, bytes.len());
    let left = through(driver, &[(1, false, bytes)]);
    match &said {
        Outcome::Forward { .. } => assert_eq!(left, [(2, None)]),
        outcome => {
            assert_eq!((outcome, left), (&Outcome::Punt(Punt::FlowMiss), vec![(1, Some(Punt::FlowMiss))]))
        }
    }
    matches!(said, Outcome::Forward { .. })
}

#[test]
fn bits_are_taken_among_packets_and_neither_is_lost() {
    const PACKETS: usize = 3000;
    const LAST: u32 = (1 << 23) - 1;
    let (mut driver, key, bucket) = with_flow();
    for index in [0, LAST] {
        // The same flow with a different counter.
        let line = driver.commands().card().memory.line::<32>(Table::Flow, bucket << 1);
        let line = Flow4 { index, ..Flow4::decode(&line) }.encode();
        driver.commands().write(Table::Flow, bucket << 1, &line).unwrap();
        assert_eq!(driver.commands().take_seen(index / 64), 0);
        for _ in 0..PACKETS {
            let sent = Sent { port: 1, direct: None, bytes: frame(1, 2) };
            driver.commands().card().sim.send(0, sent);
        }
        let (mut came, mut takes) = (0, 0);
        while came < PACKETS {
            let bits = driver.commands().take_seen(index / 64);
            assert!(bits == 0 || bits == 1 << (index % 64), "{bits:#x}");
            takes += usize::from(bits != 0);
            assert_eq!(driver.commands().take_seen(77), 0, "another word");
            while driver.commands().card().sim.receive(0).is_some() {
                came += 1;
            }
        }
        assert!(takes > PACKETS / 100, "{takes} takes saw packets");
        assert!(through(&mut driver, &[]).is_empty(), "more than was sent");
        driver.commands().take_seen(index / 64);
        assert_eq!(driver.commands().take_seen(index / 64), 0);
        assert!(is_forwarded(&mut driver));
        assert_eq!(driver.commands().take_seen(index / 64), 1 << (index % 64));
        // The second number has no counters.
        let packets = if index == 0 { PACKETS as u64 + 1 } else { 0 };
        let bytes = packets * frame(1, 2).len() as u64;
        assert_eq!(driver.usage(&key), Some(Usage::Counted { packets, bytes }));
        assert_eq!(driver.commands().flow_event().flow, None);
    }
}

/// Returns the location in memory of a line in the flow table's first way.
fn at(driver: &mut Driver<Both>, line: u32) -> (usize, u64) {
    // Half of the channels of the flow table; lines of two halves.
    let channels = driver.commands().card().sim.read32(identity::CHANNELS) as u8 / 2;
    let (channel, place) = place(line >> 1, channels.into());
    (channel, u64::from(place) << 6 | u64::from(line & 1) << 5)
}

#[test]
fn what_is_cleared_is_not_found_and_what_is_beside_it_stays() {
    let (mut driver, _, bucket) = with_flow();
    let line = bucket << 1;
    assert!(is_forwarded(&mut driver), "so that the line is in the cache");
    let held = driver.commands().card().memory.line::<32>(Table::Flow, line);
    // Old lines, before, after and within the cleared range.
    let old = [line - 9, line - 8, line - 1, line + 1, line + 90, line + 91];
    for beside in old {
        let (channel, address) = at(&mut driver, beside);
        driver.commands().card().sim.memory()[channel].poke(address, &[0xee; 32]);
    }
    driver.commands().clear(Table::Flow, line - 8, 8).unwrap();
    driver.commands().clear(Table::Flow, line + 1, 90).unwrap();
    driver.commands().clear(Table::Flow, 1 << 31 | (line - 9), 200).unwrap();
    assert!(is_forwarded(&mut driver), "it was spared");
    let stay = old.map(|line| {
        let (channel, address) = at(&mut driver, line);
        driver.commands().card().sim.memory()[channel].peek(address) == [0xee; 32]
    });
    assert_eq!(stay, [true, false, false, false, false, true]);
    driver.commands().clear(Table::Flow, line, 1).unwrap();
    assert!(!is_forwarded(&mut driver));
    driver.commands().write(Table::Flow, line, &held).unwrap();
    assert!(is_forwarded(&mut driver));
    driver.commands().clear(Table::Port, 2, 1).unwrap();
    assert!(is_forwarded(&mut driver));
    driver.commands().clear(Table::Port, 0, 2).unwrap();
    let left = through(&mut driver, &[(1, false, frame(1, 2))]);
    assert_eq!(left, [(1, Some(Punt::HostPort))]);
}
