//! The outside ends of connections.

use super::super::tests::{GUEST, key, table};
use super::*;
use executor::FlowInfo;
use model::{Binding, FlowChange, FlowState, Tcp};

/// Returns a connection of a guest that is known outside by this port.
fn bound(n: u32, port: u16) -> Connection {
    // All connections have the same remote end.
    let binding = Some(Binding { tag: 7, port, of_destination: false, for_all: false });
    Connection { original: key(n), state: FlowState::Established, seen: 12, tcp: Tcp::default(), binding }
}

fn create(flows: &Flows, connection: Connection, now: Seconds) -> Result<(), DropReason> {
    flows.apply(&FlowChange::Create { connection, rule: None }, GUEST, now).map(|_| ())
}

#[test]
fn a_port_is_of_one_connection_until_that_ends() {
    let flows = table(64);
    let (first, second) = (bound(1, 1024), bound(2, 1024));
    let outside = first.outside_key().unwrap();
    assert_eq!(flows.bound(&outside, 5), None);
    assert_eq!(create(&flows, first, 5), Ok(()));
    assert_eq!(flows.bound(&outside, 5), Some(first));
    assert_eq!(create(&flows, second, 5), Err(DropReason::SnatPorts));
    assert_eq!((flows.len(), flows.held_by(GUEST)), (1, 1));
    assert_eq!(create(&flows, bound(2, 1025), 5), Ok(()));
    assert_eq!(flows.bound(&outside, 5), Some(first));
    flows.flush(5, &mut |info| info.key == first.original);
    assert_eq!(flows.bound(&outside, 5), None);
    assert_eq!(create(&flows, bound(3, 1024), 5), Ok(()));
    assert_eq!(flows.bound(&outside, 5), Some(bound(3, 1024)));
}

#[test]
fn a_connection_that_timed_out_gives_its_port_to_the_next() {
    let flows = table(64);
    assert_eq!(create(&flows, bound(1, 1024), 5), Ok(()));
    let late = 6 + bound(1, 1024).timeout();
    assert_eq!(flows.bound(&bound(1, 1024).outside_key().unwrap(), late), None);
    assert_eq!(create(&flows, bound(2, 1024), late), Ok(()));
    assert_eq!(
        (flows.len(), flows.bound(&bound(2, 1024).outside_key().unwrap(), late)),
        (1, Some(bound(2, 1024)))
    );
}

#[test]
fn who_comes_second_with_the_same_packet_does_not_get_a_different_port() {
    let flows = table(64);
    assert_eq!(create(&flows, bound(1, 1024), 5), Ok(()));
    assert_eq!(create(&flows, bound(1, 1024), 5), Ok(()));
    assert_eq!(create(&flows, bound(1, 1025), 5), Err(DropReason::SnatPorts));
}

#[test]
fn counters_leave_the_port_as_it_is() {
    let flows = table(64);
    let change = FlowChange::Create { connection: bound(1, u16::MAX), rule: Some(model::RuleId(u32::MAX)) };
    let flow = flows.apply(&change, GUEST, 5).unwrap().unwrap();
    assert!(flows.touch(flow, false, 1 << 40, 1 << 50, 6) && flows.touch(flow, true, 3, 180, 6));
    assert_eq!(flows.connection(flow), Some(bound(1, u16::MAX)));
    let mut infos: Vec<FlowInfo> = Vec::new();
    flows.for_each(6, &mut |info| {
        infos.push(info);
        true
    });
    let [info] = &infos[..] else { panic!("one connection") };
    assert_eq!((info.forward.packets, info.forward.bytes, info.reply.packets), (1 << 40, 1 << 50, 3));
    assert_eq!((info.rule, info.binding), (Some(model::RuleId(u32::MAX)), bound(1, u16::MAX).binding));

    // In the table of the next daemon, packets from outside find it as well.
    let other = table(64);
    assert!(other.enter(info, 6));
    assert_eq!(other.bound(&bound(1, u16::MAX).outside_key().unwrap(), 6), Some(bound(1, u16::MAX)));
}

#[test]
fn threads_never_share_a_port() {
    let flows = table(1024);
    let won: usize = std::thread::scope(|scope| {
        let each = |thread: u32| {
            let flows = &flows;
            scope.spawn(move || {
                let tries = (0..256).flat_map(|port| {
                    (0..4).map(move |n| bound(1000 * thread + port * 4 + n, port as u16 + 1))
                });
                tries.filter(|connection| create(flows, *connection, 5).is_ok()).count()
            })
        };
        let threads: Vec<_> = (1..5).map(each).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((won, flows.len()), (256, 256));
}
