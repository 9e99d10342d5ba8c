//! Ends with one port for all destinations.

use super::super::tests::{GUEST, key, table};
use super::*;
use executor::FlowInfo;
use model::snat::tag;
use model::{Connection, FlowChange, FlowState, Seconds, Tcp};
use packet::proto::TCP;

const SHARED: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 5));

/// Returns a connection of the end `n` of a guest, which has this port for all destinations, to one of them.
fn mapped(n: u32, port: u16, to: u16) -> Connection {
    let FlowKey { src, dst, protocol } = key(n);
    let original = FlowKey { src, dst: Endpoint { port: to, ..dst }, protocol };
    let binding = Some(Binding { tag: tag(SHARED), port, of_destination: false, for_all: true });
    Connection { original, state: FlowState::Established, seen: 12, tcp: Tcp::default(), binding }
}

fn create(flows: &Flows, connection: Connection, now: Seconds) -> Result<(), DropReason> {
    flows.apply(&FlowChange::Create { connection, rule: None }, GUEST, now).map(|_| ())
}

fn port_of(flows: &Flows, n: u32) -> Option<u16> {
    flows.mapping(&key(n).src, TCP, &|port| port.tag == tag(SHARED)).map(|found| found.port)
}

fn is_mapped(flows: &Flows, port: u16) -> bool {
    flows.is_mapped(Vrf(1), (SHARED, port), TCP)
}

#[test]
fn an_end_keeps_its_port_until_its_last_connection_ends() {
    let flows = table(64);
    assert_eq!((port_of(&flows, 1), is_mapped(&flows, 1024)), (None, false));
    for to in 1..=3 {
        assert_eq!(create(&flows, mapped(1, 1024, to), 5), Ok(()));
    }
    assert_eq!((port_of(&flows, 1), port_of(&flows, 2), is_mapped(&flows, 1024)), (Some(1024), None, true));
    assert_eq!(create(&flows, mapped(1, 1025, 4), 5), Err(DropReason::SnatPorts), "it has a port");
    assert_eq!(create(&flows, mapped(2, 1024, 5), 5), Err(DropReason::SnatPorts), "it is another's");
    assert_eq!((flows.len(), flows.held_by(GUEST), is_mapped(&flows, 1025)), (3, 3, false));
    for to in 1..=3 {
        assert_eq!((port_of(&flows, 1), is_mapped(&flows, 1024)), (Some(1024), true));
        assert_eq!(flows.flush(5, &mut |info| info.key.dst.port == to), 1);
    }
    assert_eq!((port_of(&flows, 1), is_mapped(&flows, 1024)), (None, false));
    assert_eq!(create(&flows, mapped(2, 1024, 5), 5), Ok(()));
}

#[test]
fn the_same_connection_counts_once() {
    let flows = table(64);
    assert_eq!(create(&flows, mapped(1, 1024, 1), 5), Ok(()));
    assert_eq!(create(&flows, mapped(1, 1024, 1), 5), Ok(()), "a second worker");
    assert_eq!(create(&flows, mapped(1, 1024, 1), 6), Ok(()), "anew");
    flows.flush(6, &mut |_| true);
    assert_eq!((port_of(&flows, 1), is_mapped(&flows, 1024)), (None, false));
}

#[test]
fn an_end_may_have_a_port_of_each_address_and_the_lowest_usable_one_is_found() {
    let flows = table(64);
    let on = |tag, port, to| {
        let connection = mapped(1, port, to);
        let binding = connection.binding.map(|binding| Binding { tag, ..binding });
        Connection { binding, ..connection }
    };
    assert_eq!(create(&flows, on(9, 1030, 1), 5), Ok(()));
    assert_eq!(create(&flows, on(8, 1040, 2), 5), Ok(()));
    let found = |tags: &[u16]| flows.mapping(&key(1).src, TCP, &|port| tags.contains(&port.tag));
    assert_eq!(found(&[8, 9]), Some(OutsidePort { tag: 8, port: 1040 }));
    assert_eq!(found(&[9]), Some(OutsidePort { tag: 9, port: 1030 }));
    assert_eq!((found(&[7]), flows.mapping(&key(1).src, 17, &|_| true)), (None, None));
}

#[test]
fn the_next_daemon_knows_it() {
    let (flows, next) = (table(64), table(64));
    for to in 1..=2 {
        assert_eq!(create(&flows, mapped(1, 1024, to), 5), Ok(()));
    }
    let mut infos: Vec<FlowInfo> = Vec::new();
    flows.for_each(6, &mut |info| {
        infos.push(info);
        true
    });
    assert!(infos.iter().all(|info| next.enter(info, 6)));
    assert_eq!((port_of(&next, 1), is_mapped(&next, 1024)), (Some(1024), true));
    assert_eq!(create(&next, mapped(2, 1024, 5), 6), Err(DropReason::SnatPorts));
    next.flush(6, &mut |_| true);
    assert_eq!((port_of(&next, 1), is_mapped(&next, 1024)), (None, false));
}

#[test]
fn threads_agree_on_the_port_of_an_end() {
    const ENDS: u32 = 8;
    let flows = table(4096);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let flows = &flows;
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_u32.wrapping_mul(thread + 1);
                for to in 0..500_u16 {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let n = 1 + (random >> 8) % ENDS;
                    // As a decision does: the port that the end has, or one that seems free.
                    let free = || 1024 + (random >> 16) as u16 % 12;
                    let port = port_of(flows, n).unwrap_or_else(free);
                    let _ = create(flows, mapped(n, port, 1000 * (1 + thread as u16) + to), 5);
                    if random >> 28 == 0 {
                        flows.flush(5, &mut |info| info.key.src == key(n).src);
                    }
                }
            });
        }
    });
    let mut ports = [None; ENDS as usize + 1];
    flows.for_each(5, &mut |info| {
        let port = info.binding.map(|binding| binding.port);
        let known = &mut ports[info.key.src.port as usize];
        assert!(known.is_none() || *known == port, "{info:?}");
        *known = port;
        true
    });
    let mut taken: Vec<_> = ports.iter().flatten().collect();
    assert!(!taken.is_empty());
    assert!((1..=ENDS).all(|n| port_of(&flows, n) == ports[n as usize]), "{ports:?}");
    taken.sort_unstable();
    assert!(taken.windows(2).all(|pair| pair[0] != pair[1]), "{ports:?}");
    flows.flush(5, &mut |_| true);
    assert!((1..=ENDS).all(|n| port_of(&flows, n).is_none()));
    assert!((1024..1036).all(|port| !is_mapped(&flows, port)));
}
