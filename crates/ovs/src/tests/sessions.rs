//! Tests the life of flows with sessions that end and come again.

use super::fake::{World, open, to_mac};
use crate::protocol::{AHEAD, Answer, Create, Item, Request, TOGETHER, requests};
use crate::refused::Refused;
use crate::ring::Rings;
use crate::state::Times;
use executor::{Counters, VifCounters};
use mem::{NoRoom, Offload};
use model::VifId;
use model::ovs::Action;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn flows_are_there_until_they_are_destroyed() {
    let mut world = World::new(2);
    world.driver(1, &[0, 1]);
    let flow = world.create(1, &to_mac(0, 1, Some(1))).unwrap();
    assert_eq!(world.create(1, &to_mac(0, 1, None)), Err("the port has a flow with this match".into()));
    world.create(1, &to_mac(1, 1, None)).unwrap();
    assert_eq!(world.flows(), 2);
    // A session can't remove a different session's flow.
    world.driver(2, &[]);
    assert_eq!(world.ask(2, Request::FlowDestroy { flow, seen: None }), 0);
    assert_eq!(world.flows(), 2);
    assert_eq!(world.ask(1, Request::FlowDestroy { flow, seen: None }), 0);
    assert_eq!(world.ask(1, Request::FlowDestroy { flow, seen: None }), 0);
    assert_eq!(world.flows(), 1);
    assert_eq!(world.ask(1, Request::PortClose { port: 1 }), 0);
    assert_eq!((world.flows(), world.ports[1].1.port.is_up()), (0, false));
}

#[test]
fn a_session_that_comes_again_adopts_what_is_equal_and_the_rest_is_swept() {
    let mut world = World::new(2);
    world.driver(1, &[0, 1]);
    let equal = world.create(1, &to_mac(0, 1, Some(1))).unwrap();
    let other = world.create(1, &to_mac(0, 2, Some(1))).unwrap();
    world.create(1, &to_mac(0, 3, Some(1))).unwrap();
    let of_other_port = world.create(1, &to_mac(1, 1, None)).unwrap();
    world.state.end(1, world.now);
    assert_eq!((world.flows(), world.ports[0].1.port.is_up()), (4, false));
    assert_eq!(world.state.status(world.now).ports[0].stale, 3);
    world.now += Duration::from_secs(5);
    // Ports have different numbers now.
    world.driver(2, &[]);
    for (port, name) in [(7, "p0"), (0, "p1")] {
        assert_eq!(world.ask(2, open(port, name)), 0);
    }
    assert_eq!(world.create(2, &to_mac(7, 1, Some(0))), Ok(equal));
    let changed = world.create(2, &to_mac(7, 2, None)).unwrap();
    assert!(changed != other);
    world.now += Times::default().sweep - Duration::from_secs(1);
    world.state.tick(world.now);
    assert_eq!(world.flows(), 4);
    world.now += Duration::from_secs(1);
    world.state.tick(world.now);
    // Flows of both ports, which the session has open.
    let left: Vec<_> = world.tables.flows.lock().unwrap().keys().map(|(_, id)| id.0).collect();
    assert_eq!(left, [equal, changed]);
    assert!(!left.contains(&of_other_port));
    assert_eq!(world.state.status(world.now).ports[0].stale, 0);
}

#[test]
fn without_a_session_flows_end_at_last() {
    let mut world = World::new(1);
    world.driver(1, &[0]);
    world.create(1, &to_mac(0, 1, None)).unwrap();
    world.state.end(1, world.now);
    world.now += Times::default().stale - Duration::from_secs(1);
    world.state.tick(world.now);
    assert_eq!((world.flows(), world.state.is_idle()), (1, false));
    world.now += Duration::from_secs(1);
    world.state.tick(world.now);
    assert_eq!((world.flows(), world.state.is_idle()), (0, true));
}

#[test]
fn a_port_that_goes_takes_what_sends_to_it_along() {
    let mut world = World::new(3);
    world.driver(1, &[0, 1, 2]);
    world.create(1, &to_mac(0, 1, Some(1))).unwrap();
    let stays = world.create(1, &to_mac(0, 2, Some(2))).unwrap();
    world.create(1, &to_mac(1, 1, Some(0))).unwrap();
    let (shared, opened) = world.ports.remove(1);
    drop(opened);
    world.state.remove_port(&shared, world.now);
    let left: Vec<_> = world.tables.flows.lock().unwrap().keys().map(|(_, id)| id.0).collect();
    assert_eq!((left, world.state.take_ended()), (vec![stays], vec![1]));
    // A new port of the same name is a different port.
    world.add_port(1);
    world.state.remove_port(&shared, world.now);
    assert_eq!(world.state.status(world.now).ports.len(), 3);
}

/// Nothing comes from a port that OVS has down, and nothing goes there. OVS still sees its flows unchanged.
#[test]
fn what_is_of_a_port_that_is_down_is_dropped() {
    let mut world = World::new(3);
    world.driver(1, &[0, 1, 2]);
    let mut both = to_mac(1, 2, Some(0));
    both.actions.push((crate::kinds::action::OUTPUT, &[2, 0, 0, 0]));
    world.create(1, &to_mac(0, 1, Some(1))).unwrap();
    world.create(1, &both).unwrap();
    world.create(1, &to_mac(2, 3, Some(1))).unwrap();
    // Ports to which the flows of the tables send.
    let outputs = |world: &World| -> Vec<Vec<u16>> {
        let to = |action: &Action| if let Action::Output(to) = action { Some(to.0) } else { None };
        let flows = world.tables.flows.lock().unwrap();
        flows.values().map(|flow| flow.actions.iter().filter_map(to).collect()).collect()
    };
    let all = vec![vec![1], vec![0, 2], vec![1]];
    assert_eq!(outputs(&world), all);
    assert_eq!(world.ask(1, Request::PortLink { port: 0, down: true }), 0);
    let without = vec![vec![], vec![2], vec![1]];
    assert_eq!(outputs(&world), without);
    assert!(!world.ports[0].1.port.is_up() && world.ports[1].1.port.is_up());
    let put = |world: &World| {
        let mut put = Ok(());
        world.ports[0].1.tx[0].burst(&mut |room| put = room.put(&[0; 14], &[], 0, 0, &Offload::default()));
        put
    };
    assert_eq!(put(&world), Err(NoRoom::Down));
    let new = world.create(1, &to_mac(2, 4, Some(0))).unwrap();
    assert_eq!(outputs(&world), [&without[..], &[vec![]]].concat());
    let told = world.state.flows(world.now);
    assert_eq!(told.last().unwrap().flow.actions, [Action::Output(VifId(0))]);
    assert_eq!(world.ask(1, Request::PortLink { port: 0, down: false }), 0);
    assert_eq!(outputs(&world), [&all[..], &[vec![0]]].concat());
    assert_eq!((put(&world), world.ask(1, Request::FlowDestroy { flow: new, seen: None })), (Ok(()), 0));
    // Flows outlive the session, with the port as it was; the next session says how the port is.
    for (session, down, expected) in [(2, true, &without), (3, false, &all)] {
        world.state.end(session - 1, world.now);
        world.driver(session, &[]);
        assert_eq!(
            world.ask(session, Request::PortOpen { port: 0, name: "p0".into(), down, device: String::new() }),
            0
        );
        assert_eq!(&outputs(&world), expected);
    }
    assert!(world.ask(3, Request::PortLink { port: 1, down: true }) != 0, "it is not open");
}

#[test]
fn counters_are_there_when_the_answer_is() {
    let mut world = World::new(1);
    world.driver(1, &[0]);
    let there = Counters { packets: 5, bytes: 500 };
    world.tables.counts.lock().unwrap().insert(0, there);
    let answer = world.state.handle(1, Request::FlowCreate(to_mac(0, 1, None)), world.now).answer;
    assert_eq!((answer.status, answer.counter), (0, 0));
    // A driver that does not wait for the answer reads the page later, and may send more such flows.
    assert_eq!((answer.seen, answer.ahead), (there, AHEAD));
    let bytes = answer.encode();
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    assert_eq!([word(48), word(56)], [5, 500]);
    assert_eq!(word(32) as u32, AHEAD);
    let more = Counters { packets: 8, bytes: 900 };
    world.tables.counts.lock().unwrap().insert(0, more);
    assert_eq!(world.state.flows(world.now)[0].counters, Counters { packets: 3, bytes: 400 });
}

/// Each session has its own bell, with which the driver wakes a port's worker. No later session has it, and
/// it is silent once the driver has lost the port.
#[test]
fn a_driver_that_breaks_its_bell_harms_no_later_one() {
    use rustix::net::{SendFlags, Shutdown, connect_unspec, send, shutdown};
    let mut world = World::new(1);
    let bell = |world: &mut World, session: u64| {
        world.driver(session, &[]);
        world.state.handle(session, open(0, "p0"), world.now).files.pop().unwrap()
    };
    let ring = |bell: &OwnedFd| send(bell, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    // Whether the worker is woken. It sleeps again afterwards.
    let is_woken = |world: &mut World| {
        let rx = &mut world.ports[0].1.rx[0];
        let event = rx.event_fd();
        let woken = poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1;
        rx.disarm();
        assert!(!rx.arm());
        woken
    };
    assert!(!is_woken(&mut world));
    let first = bell(&mut world, 1);
    // First by the change of drivers, then by the bell.
    assert!(is_woken(&mut world) && !is_woken(&mut world));
    ring(&first).unwrap();
    assert!(is_woken(&mut world) && !is_woken(&mut world));
    let second = {
        world.state.end(1, world.now);
        assert!(is_woken(&mut world) && !is_woken(&mut world));
        bell(&mut world, 2)
    };
    assert!(is_woken(&mut world) && !is_woken(&mut world));
    let _ = ring(&first);
    assert!(!is_woken(&mut world), "a driver that has the port no more rings its bell");
    connect_unspec(&first).unwrap();
    shutdown(&first, Shutdown::Both).unwrap();
    ring(&second).unwrap();
    assert!(is_woken(&mut world) && !is_woken(&mut world));
    // A driver that breaks its bell harms only itself: the worker neither spins nor misses the next driver.
    connect_unspec(&second).unwrap();
    let _ = (is_woken(&mut world), shutdown(&second, Shutdown::Both));
    assert!(ring(&second).is_err() && !is_woken(&mut world));
    world.state.end(2, world.now);
    assert!(is_woken(&mut world));
    let third = bell(&mut world, 3);
    assert!(is_woken(&mut world) && !is_woken(&mut world));
    ring(&third).unwrap();
    assert!(is_woken(&mut world) && !is_woken(&mut world));
}

#[test]
fn a_driver_is_told_of_link_and_counts() {
    let mut world = World::new(2);
    let rings = Arc::new(Rings::create().unwrap().0);
    let guest = world.ports[0].1.port.clone();
    world.state.attached(VifId(1), &guest, None);
    let _bell = world.ports[1].0.give_to(rings.clone()).unwrap();
    world.state.tick(world.now);
    assert!(!rings.told().0);
    // The guest's port is up; here, a second OVS side stands for it.
    world.driver(1, &[0]);
    received(&world, 1, 9);
    world.state.tick(world.now);
    let (up, numbers) = rings.told();
    assert_eq!((up, numbers.all), (true, [9, 900, 0, 0, 0, 0]));
}

/// Sets the number of packets that an interface has received.
fn received(world: &World, vif: u16, packets: u64) {
    let received = Counters { packets, bytes: packets.wrapping_mul(100) };
    let counters = VifCounters { received, ..VifCounters::default() };
    world.tables.vifs.lock().unwrap().insert(VifId(vif), counters);
}

/// A port that reuses a number begins at zero, even if the counters of the earlier port wrap around.
/// Published counters stay when the daemon ends.
#[test]
fn a_driver_is_told_of_a_ports_own_counts() {
    let mut world = World::new(0);
    received(&world, 0, u64::MAX - 1);
    world.add_port(0);
    let rings = Arc::new(Rings::create().unwrap().0);
    let _bell = world.ports[0].0.give_to(rings.clone()).unwrap();
    let told = |world: &mut World| {
        world.state.tick(world.now);
        rings.told().1.all
    };
    assert_eq!(told(&mut world), [0; 6]);
    received(&world, 0, 3);
    assert_eq!(told(&mut world), [5, 500, 0, 0, 0, 0]);
    // The port's OVS side is attached again.
    let device = world.ports[0].1.port.clone();
    let shared = world.ports[0].0.clone();
    world.state.attached(VifId(100), &device, Some(&shared));
    assert_eq!(told(&mut world), [5, 500, 0, 0, 0, 0]);
    world.tables.ends.store(true, Ordering::Relaxed);
    assert_eq!(told(&mut world), [5, 500, 0, 0, 0, 0]);
}

/// If a flow's counter wraps around, the flow's own count goes on. When the daemon ends, the page stays as it
/// is.
#[test]
fn counters_of_flows_wrap_around_and_never_go_back() {
    let mut world = World::new(1);
    world.state.begin(1, uverbs::Peer { pid: 1, uid: 0 }, world.now);
    let hello = Request::Hello { version: 1, pid: 1, answers: 0, dpdk: "DPDK 22.11.11".into() };
    let page = File::from(world.state.handle(1, hello, world.now).files.pop().unwrap());
    assert_eq!(world.ask(1, open(0, "p0")), 0);
    let in_page = || {
        let mut bytes = [0; 16];
        page.read_exact_at(&mut bytes, 0).unwrap();
        let [packets, bytes] = [0, 8].map(|at| u64::from_ne_bytes(*bytes[at..].first_chunk().unwrap()));
        Counters { packets, bytes }
    };
    let last = Counters { packets: u64::MAX, bytes: u64::MAX - 10 };
    world.tables.counts.lock().unwrap().insert(0, last);
    world.create(1, &to_mac(0, 1, None)).unwrap();
    assert_eq!((in_page(), world.state.flows(world.now)[0].counters), (last, Counters::default()));
    let wrapped = Counters { packets: 1, bytes: 117 };
    world.tables.counts.lock().unwrap().insert(0, wrapped);
    world.state.tick(world.now);
    let own = Counters { packets: 2, bytes: 128 };
    assert_eq!((in_page(), world.state.flows(world.now)[0].counters), (wrapped, own));
    world.tables.ends.store(true, Ordering::Relaxed);
    world.state.tick(world.now);
    assert_eq!(in_page(), wrapped);
}

#[test]
fn what_is_refused_is_counted_with_its_reason() {
    let mut world = World::new(2);
    world.driver(1, &[0]);
    let refused = |world: &mut World, change: &dyn Fn(&mut Create<'_>)| {
        let mut create = to_mac(0, 1, None);
        change(&mut create);
        world.create(1, &create).unwrap_err()
    };
    let text = refused(&mut world, &|create| create.attributes = 1);
    assert_eq!(text, Refused::NotTransfer.to_string());
    let text = refused(&mut world, &|create| create.priority = 1);
    assert_eq!(text, Refused::Group.to_string());
    let name = |name: &'static str| Item { spec: Some(name.as_bytes()), ..Item::default() };
    let text = refused(&mut world, &|create| create.items.push(name("GENEVE\n")));
    assert_eq!(text, "the match on GENEVE is not known");
    let text = refused(&mut world, &|create| create.actions.push((0, b"METER")));
    assert_eq!(text, "the action METER is not known");
    // A port that is not open, and one of a different driver.
    for port in [&[1, 0, 0, 0], &[0xff; 4]] {
        let text = refused(&mut world, &|create| create.actions.push((3, port)));
        assert_eq!(text, Refused::ForeignPort.to_string());
    }
    *world.tables.refuses.lock().unwrap() = Some("no".into());
    assert_eq!(refused(&mut world, &|_| {}), "no");
    *world.tables.refuses.lock().unwrap() = None;
    let port = world.state.status(world.now).ports.remove(0);
    let counts: Vec<_> = port.refused.iter().map(|refused| (refused.reason, refused.count)).collect();
    let all =
        [("action", 1), ("executor", 1), ("foreign_port", 2), ("group", 1), ("item", 1), ("not_transfer", 1)];
    assert_eq!(counts, all);
    assert_eq!(world.flows(), 0);
    // Refusals for an unknown port are not counted.
    assert!(world.create(1, &to_mac(9, 1, None)).is_err());
}

/// A look-up may try each mask of a port, so there must be few, and each port has its own.
#[test]
fn a_port_has_few_masks() {
    let mut world = World::new(2);
    world.driver(1, &[0, 1]);
    let masked = |port: u32, mask: u16, last: u8| {
        let mut create = to_mac(port, last, None);
        let mut bytes = create.items[0].mask.unwrap().to_vec();
        bytes[3..5].copy_from_slice(&mask.to_be_bytes());
        create.items[0].mask = Some(bytes.leak());
        create
    };
    let flows: Vec<_> = (0..512).map(|mask| world.create(1, &masked(0, mask, 1)).unwrap()).collect();
    let full = Err("there are as many masks of a port's flows as there can be".to_owned());
    assert_eq!(world.create(1, &masked(0, 512, 1)), full);
    world.create(1, &masked(0, 7, 2)).unwrap();
    world.create(1, &masked(1, 512, 1)).unwrap();
    // First one of two flows with a mask, then the only one with a different mask.
    assert_eq!(world.ask(1, Request::FlowDestroy { flow: flows[7], seen: None }), 0);
    assert_eq!(world.create(1, &masked(0, 512, 1)), full);
    assert_eq!(world.ask(1, Request::FlowDestroy { flow: flows[8], seen: None }), 0);
    world.create(1, &masked(0, 512, 1)).unwrap();
    let refused = &world.state.status(world.now).ports[0].refused;
    assert_eq!((refused.len(), refused[0].reason, refused[0].count), (1, "full", 2));
}

#[test]
fn nothing_is_answered_before_a_hello() {
    let mut world = World::new(1);
    world.state.begin(1, uverbs::Peer { pid: 1, uid: 0 }, world.now);
    assert!(world.ask(1, open(0, "p0")) != 0);
    assert!(world.ask(1, Request::Hello { version: 2, pid: 1, answers: 0, dpdk: String::new() }) != 0);
    assert!(world.state.status(world.now).sessions.is_empty());
    assert!(world.ask(5, Request::FlowFlush { port: 0 }) != 0);
    world.driver(2, &[0]);
    // Only one session can have a port at a time.
    world.driver(3, &[]);
    let answer = world.state.handle(3, open(0, "p0"), world.now).answer;
    assert_eq!(answer.text, "\"p0\" is open already, in session 2");
    let answer = world.state.handle(3, open(0, "p9"), world.now).answer;
    assert_eq!(answer.text, "there is no guest or wire \"p9\" with mode = \"ovs\"");
    assert!(world.ask(2, Request::PortMtu { port: 0, mtu: 20 }) != 0);
    assert!(world.ask(2, Request::PortMtu { port: 0, mtu: 9711 }) != 0);
    assert_eq!(world.ask(2, Request::PortMtu { port: 0, mtu: 9710 }), 0);
}

#[test]
fn long_texts_are_cut_between_characters() {
    let answer = Answer { text: "é".repeat(200), ..Answer::default() };
    let bytes = answer.encode();
    let text: Vec<u8> = bytes[48..].iter().copied().take_while(|byte| *byte != 0).collect();
    assert_eq!(String::from_utf8(text).unwrap(), "é".repeat(95));
}

fn message(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = 8 + body.len() as u32;
    [&kind.to_le_bytes(), &len.to_le_bytes(), body].concat()
}

/// A message holds several requests about one flow each, up to a limit. No byte is read twice or left out.
#[test]
fn a_message_has_several_requests_about_one_flow_each() {
    let (flow, other) = (message(6, &[1; 8]), message(7, &[0; 8]));
    let lens = |messages: &[&Vec<u8>]| {
        let all: Vec<u8> = messages.iter().flat_map(|message| message.iter().copied()).collect();
        let parts: Vec<_> = requests(&all).map(<[u8]>::len).collect();
        assert_eq!(requests(&all).flatten().count(), all.len());
        parts
    };
    assert_eq!(lens(&[]), [0; 0]);
    assert_eq!(lens(&[&flow, &flow, &flow]), [16; 3]);
    assert_eq!(lens(&[&flow, &other]), [16; 2]);
    // The last of these requests have wrong lengths.
    assert_eq!(lens(&[&other, &flow]), [32]);
    assert_eq!(lens(&[&flow, &vec![6; 7]]), [16, 7]);
    assert_eq!(lens(&[&flow, &[[6, 0, 0, 0], [0; 4]].concat(), &flow]), [16, 8, 16]);
    assert_eq!(lens(&[&flow, &[[6, 0, 0, 0], [0xff; 4]].concat(), &flow]), [16, 24]);
    let all = lens(&[&flow; TOGETHER as usize + 2]);
    assert_eq!((all.len(), all.last()), (TOGETHER as usize, Some(&48)));
}

/// Several sessions come and go, and send requests in any order, with any bytes in them. Nothing panics, and
/// the tables have exactly the flows that the state has.
#[test]
fn hostile_drivers() {
    type Step = (u8, u8, u8, Vec<u8>);
    bolero::check!().with_type::<Vec<Step>>().for_each(|steps| {
        let mut world = World::new(3);
        world.driver(1, &[0, 1]);
        for (what, session, port, bytes) in steps {
            let (session, port) = (u64::from(session % 3), u32::from(port % 4));
            let word = port.to_le_bytes();
            let text = |len: usize| {
                let mut field = format!("p{port}").into_bytes();
                field.resize(len, 0);
                field
            };
            let request = match what % 15 {
                0 => {
                    world.state.begin(session, uverbs::Peer { pid: 1, uid: 0 }, world.now);
                    continue;
                }
                1 => {
                    world.state.end(session, world.now);
                    continue;
                }
                2 => message(
                    1,
                    &[&0x5356_4f56_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0; 8], &[0; 32]].concat(),
                ),
                3 => message(2, &[&word[..], &[0; 4], &text(64)].concat()),
                4 => message(
                    [3, 4, 8, 9][usize::from(what / 15 % 4)],
                    &[word, 1500_u32.to_le_bytes()].concat(),
                ),
                5 => message(7, &[word; 2].concat()),
                6 => message(6, &u64::from(bytes.first().copied().unwrap_or(0)).to_le_bytes()),
                7 => {
                    world.now += Duration::from_secs(u64::from(*what));
                    world.state.tick(world.now);
                    continue;
                }
                8 => {
                    let last = bytes.first().copied().unwrap_or(0) % 4;
                    let _ = world.create(session, &to_mac(port, last, Some(u32::from(last))));
                    continue;
                }
                // An item and an action of any kind.
                9 => {
                    let head = [&word[..], &[4, 0, 0, 0], &[0; 8], &[1, 0, 1, 0], &[0; 4]].concat();
                    message(5, &[&head, &bytes[..]].concat())
                }
                10 => message(u32::from(*what), bytes),
                11 => message(10, &[]),
                12 => message(2, &[&word[..], &[0; 4], &text(64), &text(64)].concat()),
                13 => message(
                    6,
                    &[[bytes.first().copied().unwrap_or(0), 0, 0, 0, 0, 0, 0, 0], [0; 8], [1; 8]].concat(),
                ),
                _ => bytes.clone(),
            };
            for request in requests(&request).map_while(|request| Request::decode(request).ok()) {
                world.state.handle(session, request, world.now);
            }
            let told: Vec<_> = world.state.flows(world.now).iter().map(|flow| flow.flow.id).collect();
            let mut known: Vec<_> = world.tables.flows.lock().unwrap().keys().map(|(_, id)| *id).collect();
            known.sort_unstable();
            assert_eq!(told, known);
        }
    });
}

/// Descriptors that a driver sends to its bell are closed by nobody who carries packets, and wake nobody again.
#[test]
fn descriptors_by_a_bell_hold_up_no_worker() {
    use rustix::net::SendFlags;
    use sockets::testing::{lingering, send_with};
    let work = || {
        let mut world = World::new(1);
        world.driver(1, &[]);
        let bell = world.state.handle(1, open(0, "p0"), world.now).files.pop().unwrap();
        world.ports[0].1.rx[0].disarm();
        assert!(!world.ports[0].1.rx[0].arm());
        let (stream, unread) = lingering();
        send_with(&bell, b"x", (&stream, 1), SendFlags::empty()).unwrap();
        drop(stream);
        let rx = &mut world.ports[0].1.rx[0];
        rx.disarm();
        let event = rx.event_fd();
        assert_eq!(
            poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec::default())),
            Ok(0),
            "it spins"
        );
        world.state.end(1, world.now);
        world.ports[0].1.rx[0].arm();
        drop(world);
        unread
    };
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    finished.recv_timeout(Duration::from_secs(20)).expect("it waits until the descriptor is closed");
}
