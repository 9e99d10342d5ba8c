//! Tests which flows are left to OVS, and that counts reach OVS in time and in full.

use super::fake::{World, to_mac};
use crate::kinds::{INGRESS, action, qos};
use crate::protocol::{Create, LEVEL, Request};
use crate::state::Times;
use executor::Counters;
use model::VifId;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn open(port: u32, name: &str, device: &str) -> Request<'static> {
    Request::PortOpen { port, name: name.into(), down: false, device: device.into() }
}

/// Begins a session that has these guests open under these devices, by port numbers from 0 on.
fn driver(world: &mut World, session: u64, ports: &[(&str, &str)]) {
    world.driver(session, &[]);
    for (number, (name, device)) in ports.iter().enumerate() {
        assert_eq!(world.ask(session, open(number as u32, name, device)), 0);
    }
}

/// Returns the last bytes of the MACs that the tables' flows match.
fn macs(world: &World) -> Vec<u8> {
    world.tables.flows.lock().unwrap().values().map(|flow| flow.matching.key().eth_dst.0[5]).collect()
}

fn refused(world: &World, port: usize) -> Vec<(&'static str, u64)> {
    let status = world.state.status(world.now);
    status.ports[port].refused.iter().map(|refused| (refused.reason, refused.count)).collect()
}

/// OVS forwards what it sends to a port that has a different guest now, and still reads the flow's counter.
#[test]
fn flows_to_a_port_end_with_it() {
    let mut world = World::new(3);
    driver(&mut world, 1, &[("p0", "a"), ("p1", "b")]);
    let flow = world.create(1, &to_mac(0, 1, Some(1))).unwrap();
    let mut both = to_mac(0, 2, Some(1));
    both.actions.push((action::OUTPUT, &[0; 4]));
    world.create(1, &both).unwrap();
    world.create(1, &to_mac(0, 3, Some(0))).unwrap();
    let waited = world.tables.waited.load(Ordering::Relaxed);
    assert_eq!(world.ask(1, Request::PortClose { port: 1 }), 0);
    assert_eq!(macs(&world), [3]);
    assert!(world.tables.waited.load(Ordering::Relaxed) > waited, "a packet may still take an old flow");
    assert_eq!(refused(&world, 0), [("foreign_port", 2)]);
    assert_eq!((world.state.flows(world.now).len(), world.state.status(world.now).ports[0].flows), (1, 1));
    // The same number is a different guest now, and then the same guest again.
    for name in ["p2", "p1"] {
        assert_eq!(world.ask(1, open(1, name, "c")), 0);
        assert_eq!(world.ask(1, Request::PortLink { port: 1, down: true }), 0);
        assert_eq!(world.ask(1, Request::PortLink { port: 1, down: false }), 0);
        assert_eq!(macs(&world), [3]);
        assert_eq!(world.ask(1, Request::PortClose { port: 1 }), 0);
    }
    // Nothing gets its counter before OVS has destroyed it.
    let counters = world.state.flows.counters();
    assert_eq!(counters.len(), 3);
    assert_eq!(world.ask(1, Request::FlowDestroy { flow, seen: None }), 0);
    assert_eq!(world.state.flows.counters().len(), 2);
    world.create(1, &to_mac(0, 1, None)).unwrap();
    assert_eq!(macs(&world), [3, 1]);
    // The next session adopts none of those.
    world.state.end(1, world.now);
    assert_eq!(macs(&world), [3, 1]);
    driver(&mut world, 2, &[("p0", "a"), ("p1", "b")]);
    world.create(2, &both).unwrap();
    assert_eq!(macs(&world), [3, 1, 2]);
}

/// An Open vSwitch was killed, and comes again with other ports.
#[test]
fn flows_of_an_earlier_session_go_where_its_ports_have_other_guests() {
    let flows = |ports: &[(&str, &str)], after: Duration| {
        let mut world = World::new(3);
        driver(&mut world, 1, &[("p0", "a"), ("p1", "b"), ("p2", "c")]);
        for (from, to) in [(0, 1), (1, 0), (0, 2)] {
            world.create(1, &to_mac(from, 10 * from as u8 + to as u8, Some(to))).unwrap();
        }
        world.state.end(1, world.now);
        driver(&mut world, 2, ports);
        world.now += after;
        world.state.tick(world.now);
        let mut left = macs(&world);
        left.sort_unstable();
        left
    };
    let (soon, later) = (Duration::ZERO, Times::default().settle);
    // The same ports.
    assert_eq!(flows(&[("p0", "a"), ("p1", "b"), ("p2", "c")], later), [1, 2, 10]);
    // It is about to open the others.
    assert_eq!(flows(&[("p0", "a")], soon), [1, 2, 10]);
    // It has no more ports than these.
    assert_eq!(flows(&[("p0", "a"), ("p1", "b")], later), [1, 10]);
    assert_eq!(flows(&[("p0", "a")], later), [0; 0]);
    assert_eq!(flows(&[("p2", "c")], later), [1, 10]);
    // It says itself that it has no more.
    let mut world = World::new(3);
    driver(&mut world, 1, &[("p0", "a"), ("p1", "b"), ("p2", "c")]);
    world.create(1, &to_mac(0, 1, Some(1))).unwrap();
    world.create(1, &to_mac(0, 2, Some(2))).unwrap();
    world.state.end(1, world.now);
    driver(&mut world, 2, &[("p0", "a"), ("p1", "b")]);
    assert_eq!(macs(&world), [1, 2]);
    assert_eq!(world.ask(2, Request::Settled), 0);
    world.state.tick(world.now);
    assert_eq!(macs(&world), [1]);
    // Two ports have each other's guest.
    assert_eq!(flows(&[("p0", "a"), ("p2", "b"), ("p1", "c")], soon), [0; 0]);
    // A port has a different guest, which was not there before.
    assert_eq!(flows(&[("p0", "a"), ("p2", "b")], soon), [0; 0]);
    // An older driver does not tell devices.
    assert_eq!(flows(&[("p0", ""), ("p2", ""), ("p1", "")], later), [1, 2, 10]);
}

/// Flows that OVS has to police or shape, which only it can.
#[test]
fn policed_flows_are_left_to_ovs() {
    let mut world = World::new(3);
    driver(&mut world, 1, &[("p0", "a"), ("p1", "b"), ("p2", "c")]);
    let mark = Create { attributes: INGRESS, actions: vec![(action::MARK, &[][..])], ..to_mac(0, 9, None) };
    world.create(1, &to_mac(0, 1, Some(1))).unwrap();
    world.create(1, &to_mac(1, 10, Some(0))).unwrap();
    world.create(1, &to_mac(2, 20, Some(0))).unwrap();
    world.create(1, &mark).unwrap();
    let set = |world: &mut World, qos| assert_eq!(world.ask(1, Request::PortQos { port: 0, qos }), 0);
    let text = "Open vSwitch polices the port, or has a QoS for a port that the flow sends to";
    set(&mut world, qos::IN);
    assert_eq!(macs(&world), [9, 10, 20]);
    assert_eq!(world.create(1, &to_mac(0, 2, Some(1))), Err(text.into()));
    set(&mut world, qos::OUT);
    assert_eq!(macs(&world), [1, 9]);
    assert_eq!(world.create(1, &to_mac(2, 21, Some(0))), Err(text.into()));
    assert_eq!((refused(&world, 0), refused(&world, 1)), (vec![("qos", 2)], vec![("qos", 1)]));
    // Neither a link that goes down and up nor a flow of another port changes that.
    for down in [true, false] {
        assert_eq!(world.ask(1, Request::PortLink { port: 1, down }), 0);
    }
    assert_eq!(macs(&world), [1, 9]);
    set(&mut world, 0);
    assert_eq!(macs(&world), [1, 9, 10, 20]);
    // When OVS ends, nobody polices: such flows end, too.
    set(&mut world, qos::OUT);
    world.state.end(1, world.now);
    assert_eq!(macs(&world), [1, 9]);
    driver(&mut world, 2, &[("p0", "a"), ("p1", "b"), ("p2", "c")]);
    world.create(2, &to_mac(1, 10, Some(0))).unwrap();
    assert_eq!(macs(&world), [1, 9, 10]);
}

/// A driver that can't read the database says so, and then nothing is left to OVS.
#[test]
fn ports_tell_what_ovs_does_itself() {
    let mut world = World::new(1);
    driver(&mut world, 1, &[("p0", "a")]);
    world.create(1, &to_mac(0, 1, Some(0))).unwrap();
    let told = |world: &mut World, qos| {
        assert_eq!(world.ask(1, Request::PortQos { port: 0, qos }), 0);
        (world.state.status(world.now).ports[0].qos.clone(), macs(world))
    };
    assert_eq!(told(&mut world, qos::UNKNOWN), (vec!["unknown"], vec![1]));
    assert_eq!(told(&mut world, qos::IN | qos::OUT), (vec!["policing", "qos"], vec![]));
    assert_eq!(told(&mut world, 0), (vec![], vec![1]));
    assert_eq!(world.ask(1, Request::PortQos { port: 0, qos: qos::OUT }), 0);
    world.state.end(1, world.now);
    assert_eq!(world.state.status(world.now).ports[0].qos, [""; 0]);
}

/// The page that drivers read.
struct Page(File);

impl Page {
    fn of(world: &mut World, session: u64) -> Self {
        world.state.begin(session, uverbs::Peer { pid: 1, uid: 0 }, world.now);
        let hello = Request::Hello { version: 1, pid: 1, answers: 0, dpdk: "DPDK 22.11.11".into() };
        let mut reply = world.state.handle(session, hello, world.now);
        assert_eq!(reply.answer.level, LEVEL);
        Self(File::from(reply.files.pop().unwrap()))
    }

    fn packets(&self, counter: u32) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, u64::from(counter) * 16).unwrap();
        u64::from_ne_bytes(bytes)
    }
}

const fn packets(packets: u64) -> Counters {
    Counters { packets, bytes: 100 * packets }
}

#[test]
fn counters_are_fresh_when_ovs_asks() {
    let mut world = World::new(1);
    let page = Page::of(&mut world, 1);
    assert_eq!(world.ask(1, open(0, "p0", "a")), 0);
    world.create(1, &to_mac(0, 1, None)).unwrap();
    world.tables.pending.lock().unwrap().insert(0, packets(7));
    assert_eq!((world.ask(1, Request::Count), page.packets(0)), (0, 7));
    // A driver that asks without end has no more effect.
    (0..1000).for_each(|_| assert_eq!(world.ask(1, Request::Count), 0));
    assert!(world.tables.settled.load(Ordering::Relaxed) < 100);
    world.driver(2, &[]);
    assert_eq!(world.ask(2, Request::Count), 0);
}

/// OVS reads a counter, and a moment later changes or removes the flow: what passes meanwhile, and what
/// workers count later still, is the next flow's.
#[test]
fn counts_of_removed_flows_are_not_lost() {
    let mut world = World::new(1);
    let page = Page::of(&mut world, 1);
    assert_eq!(world.ask(1, open(0, "p0", "a")), 0);
    let count = |world: &World, counter: u32, n: u64| {
        world.tables.counts.lock().unwrap().insert(counter, packets(n));
    };
    let first = world.create(1, &to_mac(0, 1, Some(0))).unwrap();
    count(&world, 0, 100);
    let destroy = Request::FlowDestroy { flow: first, seen: Some(packets(90)) };
    let make = |last, output| Request::FlowCreate(Create { ahead: true, ..to_mac(0, last, output) });
    let replies = world.state.handle_all(1, [destroy, make(2, None), make(1, None)], world.now);
    let seen = |at: usize| (replies[at].answer.counter, replies[at].answer.seen.packets);
    assert_eq!((seen(1), seen(2)), ((1, 0), (2, 0)));
    // A flow for other packets gets nothing.
    assert_eq!((page.packets(1), page.packets(2)), (0, 10));
    count(&world, 0, 103);
    count(&world, 2, 5);
    world.state.tick(world.now);
    assert_eq!((page.packets(1), page.packets(2)), (0, 18));
    // Once workers have passed everything on, a new flow may have the first one's counter.
    world.now += Duration::from_secs(1);
    world.tables.pending.lock().unwrap().insert(0, packets(104));
    assert_eq!((world.ask(1, Request::Count), page.packets(2)), (0, 19));
    count(&world, 0, 1000);
    world.state.tick(world.now);
    assert_eq!(page.packets(2), 19);
    // A flow with a different mask gets those of both, also of which OVS read nothing.
    let second = replies[2].answer.flow;
    assert_eq!(world.ask(1, Request::FlowDestroy { flow: second, seen: Some(packets(12)) }), 0);
    count(&world, 1, 2);
    let other = replies[1].answer.flow;
    assert_eq!(world.ask(1, Request::FlowDestroy { flow: other, seen: Some(packets(0)) }), 0);
    let mut wide = to_mac(0, 1, None);
    wide.items[0].mask = Some(&[0; 20]);
    let answer = world.state.handle(1, Request::FlowCreate(wide), world.now).answer;
    assert_eq!(page.packets(answer.counter) - answer.seen.packets, 19 - 12 + 2);
    // Nothing is known of a flow that an older driver destroys, or of which it says nonsense.
    count(&world, answer.counter, 50);
    assert_eq!(
        world.ask(1, Request::FlowDestroy { flow: answer.flow, seen: Some(packets(u64::MAX / 200)) }),
        0
    );
    let answer = world.state.handle(1, Request::FlowCreate(to_mac(0, 1, None)), world.now).answer;
    assert_eq!(page.packets(answer.counter), answer.seen.packets);
    assert_eq!(world.ask(1, Request::FlowDestroy { flow: answer.flow, seen: None }), 0);
    assert_eq!(world.tables.flows.lock().unwrap().keys().filter(|(port, _)| *port == VifId(0)).count(), 0);
}
