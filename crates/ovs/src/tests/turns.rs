//! Tests several requests at once.

use super::fake::{World, open, to_mac};
use crate::kinds::{INGRESS, action};
use crate::protocol::{AHEAD, Create, Request};
use model::ovs::FlowId;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

fn create(last: u8) -> Request<'static> {
    Request::FlowCreate(to_mac(0, last, Some(1)))
}

/// Returns the flows of the tables, as the last bytes of the MACs that they match.
fn macs(world: &World) -> BTreeSet<u8> {
    world.tables.flows.lock().unwrap().values().map(|flow| flow.matching.key().eth_dst.0[5]).collect()
}

#[test]
fn the_flows_of_a_turn_are_one_version() {
    let mut world = World::new(2);
    world.driver(1, &[0, 1]);
    let before = world.tables.applied.load(Ordering::Relaxed);
    let replies = world.state.handle_all(1, (0..64).map(create), world.now);
    assert_eq!(world.tables.applied.load(Ordering::Relaxed), before + 1);
    let ids: Vec<_> = replies.iter().map(|reply| reply.answer.flow).collect();
    assert_eq!(ids, (1..=64).collect::<Vec<_>>());
    // OVS changes a flow by destroying it and making a new one with the same match.
    let change = |id: &u64| {
        let create = Create { ahead: true, ..to_mac(0, (id - 1) as u8, None) };
        [Request::FlowDestroy { flow: *id, seen: None }, Request::FlowCreate(create)]
    };
    let replies = world.state.handle_all(1, ids.iter().flat_map(change), world.now);
    assert!(replies.iter().all(|reply| reply.answer.status == 0));
    assert_eq!(world.tables.applied.load(Ordering::Relaxed), before + 2);
    let flows = world.tables.flows.lock().unwrap();
    assert!(flows.keys().map(|(_, id)| *id).eq((65..=128).map(FlowId)));
}

/// An answer waits for workers only if OVS relies on it: OVS then gives a removed mark to a different flow,
/// or expects nothing more from a port that it has set down.
#[test]
fn workers_are_waited_for_only_where_a_driver_relies_on_it() {
    let mut world = World::new(2);
    world.driver(1, &[0, 1]);
    let mark = Create { attributes: INGRESS, actions: vec![(action::MARK, &[][..])], ..to_mac(0, 1, None) };
    let (mark, other) = (world.create(1, &mark).unwrap(), world.create(1, &to_mac(0, 2, Some(1))).unwrap());
    let mut waits = |request| {
        let before = world.tables.waited.load(Ordering::Relaxed);
        assert_eq!(world.ask(1, request), 0);
        world.tables.waited.load(Ordering::Relaxed) - before
    };
    assert_eq!(waits(Request::FlowDestroy { flow: other, seen: None }), 0);
    assert_eq!(waits(create(3)), 0);
    assert_eq!(waits(Request::FlowDestroy { flow: mark, seen: None }), 1);
    assert_eq!(waits(Request::PortLink { port: 1, down: true }), 1);
    assert_eq!(waits(create(4)), 0);
    assert_eq!(waits(Request::FlowFlush { port: 0 }), 1);
}

#[test]
fn a_flow_that_is_refused_takes_no_other_along() {
    let mut world = World::new(2);
    world.driver(1, &[0, 1]);
    let old = world.create(1, &to_mac(0, 9, Some(1))).unwrap();
    *world.tables.refuses_mac.lock().unwrap() = Some(2);
    let requests = [create(1), create(2), Request::FlowDestroy { flow: old, seen: None }, create(3)];
    let replies = world.state.handle_all(1, requests, world.now);
    let texts: Vec<_> = replies.iter().map(|reply| reply.answer.text.as_str()).collect();
    assert_eq!(texts, ["", "not this", "", ""]);
    assert_eq!(macs(&world), [1, 3].into());
    let refused = &world.state.status(world.now).ports[0].refused;
    assert!(refused.iter().any(|refused| (refused.reason, refused.count) == ("executor", 1)));
    // Nothing is left of the refused flow.
    *world.tables.refuses_mac.lock().unwrap() = None;
    world.create(1, &to_mac(0, 2, Some(1))).unwrap();
    assert_eq!(macs(&world), [1, 2, 3].into());
}

/// An old driver, which tells no number, takes one answer at a time.
#[test]
fn a_driver_says_how_many_answers_it_takes_together() {
    let mut world = World::new(1);
    for (answers, together) in [(0, 1), (7, 7), (u32::MAX, AHEAD as usize)] {
        world.state.begin(1, uverbs::Peer { pid: 1, uid: 0 }, world.now);
        assert_eq!(world.state.answers(1), 1);
        assert_eq!(world.ask(1, Request::Hello { version: 1, pid: 1, answers, dpdk: String::new() }), 0);
        assert_eq!(world.state.answers(1), together);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8, Option<u32>),
    Destroy(u64),
    Flush,
    Down(bool),
    Reopen,
}

impl Step {
    fn request(&self) -> Request<'static> {
        match *self {
            Self::Create(last, output) => Request::FlowCreate(to_mac(0, last, output)),
            Self::Destroy(flow) => Request::FlowDestroy { flow, seen: None },
            Self::Flush => Request::FlowFlush { port: 0 },
            Self::Down(down) => Request::PortLink { port: 1, down },
            Self::Reopen => open(0, "p0"),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6_u8, prop::option::of(0..3_u32)).prop_map(|(last, output)| Step::Create(last, output)),
        5 => (0..30_u64).prop_map(Step::Destroy),
        1 => Just(Step::Flush),
        1 => any::<bool>().prop_map(Step::Down),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    /// Requests in one turn get the same answers as one by one, and leave the same flows, also if an earlier
    /// session left some.
    #[test]
    fn a_turn_does_what_its_requests_do_one_by_one(
        left in prop::collection::vec((0..6_u8, prop::option::of(0..2_u32)), 0..5),
        turns in prop::collection::vec(prop::collection::vec(step(), 1..20), 1..5),
    ) {
        let worlds = [false, true].map(|together| {
            let mut world = World::new(2);
            world.driver(1, &[0, 1]);
            for (last, output) in &left {
                let _ = world.create(1, &to_mac(0, *last, *output));
            }
            world.state.end(1, world.now);
            world.driver(2, &[0, 1]);
            let mut answers = Vec::new();
            for turn in &turns {
                let requests = turn.iter().map(Step::request);
                if together {
                    let replies = world.state.handle_all(2, requests, world.now);
                    answers.extend(replies.into_iter().map(|reply| reply.answer));
                } else {
                    answers.extend(requests.map(|request| world.state.handle(2, request, world.now).answer));
                }
            }
            let flows = world.tables.flows.lock().unwrap().clone();
            let told: Vec<_> = world.state.flows(world.now).into_iter().map(|told| told.flow).collect();
            (answers, flows, told)
        });
        prop_assert_eq!(&worlds[0], &worlds[1]);
    }
}
