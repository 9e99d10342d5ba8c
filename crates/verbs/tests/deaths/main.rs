//! A process that takes part in shared memory or a connection is killed or stopped at each point of the protocol: all
//! others continue, each request has one completion, nothing is written to withdrawn memory, and the daemon recovers
//! all resources.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod daemon;
mod parties;
#[macro_use]
#[path = "../program/mod.rs"]
mod program;
mod receiver;
mod scene;
mod sender;

use scene::{Fate, Kind, Reached, Role, Victim, play};
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use uverbs::Point;

/// Scenes that run at a time: they wait more than they compute.
const AT_ONCE: usize = 4;
/// Attempts for a victim that may or may not reach its point in a run: the system decides which thread sleeps, and
/// when.
const ATTEMPTS: usize = 5;

/// This is a process of a scene, not a test of its own.
#[test]
#[ignore = "others run it"]
fn party() {
    let Ok(what) = std::env::var("DEATHS") else { return };
    let directory = std::env::var("DEATHS_IN").unwrap();
    let (role, kind) = what.split_once(' ').unwrap();
    let kind = Kind::all().nth(kind.parse().unwrap()).unwrap();
    match role {
        "Daemon" => daemon::run(kind.way, Path::new(&directory)),
        "Receiver" => receiver::run(kind),
        _ => sender::run(kind),
    }
}

const DEATHS: usize = 10_000;
/// Victims die at one of the first occurrences of a point, at this one at the latest.
const LATEST: usize = 12;

/// A kind of scene, and its victims in order.
type Case = (Kind, Vec<Victim>);

/// A victim that leaves a hole in the receiver's completion queue.
const LEAVES_A_HOLE: Victim =
    Victim { role: Role::Sender, point: Point::PlaceHeld, time: 1, fate: Fate::Killed };

/// Plays a scene of each choice, some at a time, until victims reach their points; returns the points reached in each.
fn play_all(choices: &[Vec<Case>]) -> Vec<Option<Reached>> {
    let outcomes = try_all(choices, ATTEMPTS);
    for (outcome, choice) in outcomes.iter().zip(choices) {
        assert!(outcome.is_some(), "not reached: {choice:?}");
    }
    outcomes
}

/// Plays a scene of each choice, some at a time. If a victim does not reach its point, plays the next case of the
/// choice, each case at least once, and at least `attempts` scenes in all. Returns `None` for a choice if no victim
/// reached its point.
fn try_all(choices: &[Vec<Case>], attempts: usize) -> Vec<Option<Reached>> {
    let next = Mutex::new(0);
    let outcomes = Mutex::new(vec![None; choices.len()]);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let at = {
                        let mut next = next.lock().unwrap();
                        *next += 1;
                        *next - 1
                    };
                    let Some(choice) = choices.get(at) else { return };
                    let mut scenes = choice.iter().cycle().take(attempts.max(choice.len()));
                    match catch_unwind(move || scenes.find_map(|(kind, victims)| play(*kind, victims))) {
                        Ok(reached) => outcomes.lock().unwrap()[at] = reached,
                        Err(_) => failures.lock().unwrap().push(format!("{choice:?}")),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), choices.len(), failures.join("\n"));
    outcomes.into_inner().unwrap()
}

/// Makes a choice of one from each case.
fn without_choice(cases: &[Case]) -> Vec<Vec<Case>> {
    cases.iter().map(|case| vec![case.clone()]).collect()
}

/// Finds, for each role and point, the scenes and earlier deaths with which the role reaches the point.
fn census() -> Vec<((Role, Point), Vec<Case>)> {
    let mut cases: Vec<Case> = Kind::all().map(|kind| (kind, Vec::new())).collect();
    let with_hole = Kind::all().filter(|kind| kind.way.shares());
    cases.extend(with_hole.map(|kind| (kind, vec![LEAVES_A_HOLE])));
    let mut found: HashMap<_, Vec<Case>> = HashMap::new();
    for (case, reached) in cases.iter().zip(play_all(&without_choice(&cases))) {
        for (role, point, _) in reached.unwrap() {
            // The other sender does the same as the first one, and need not die, too.
            if role != Role::Third && !case.1.iter().any(|victim| victim.role == role) {
                found.entry((role, point)).or_default().push(case.clone());
            }
        }
    }
    for point in Point::ALL {
        assert!(found.keys().any(|(_, one)| one == point), "{point:?} is never reached");
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(who, _)| format!("{who:?}"));
    found
}

fn fates(role: Role) -> &'static [Fate] {
    if role == Role::Sender {
        &[Fate::Killed, Fate::StoppedAndKilled, Fate::Stopped]
    } else {
        &[Fate::Killed, Fate::Stopped]
    }
}

fn victim((role, point): (Role, Point), fate: Fate) -> Victim {
    Victim { role, point, time: 1, fate }
}

/// Covers each point and each role that reaches it, in one of the scenes.
#[test]
fn each_point_is_survived() {
    let mut choices = Vec::new();
    for (at, (who, scenes)) in census().into_iter().enumerate() {
        // Cases without earlier deaths are preferred.
        let alone: Vec<_> = scenes.iter().filter(|(_, others)| others.is_empty()).collect();
        let mut scenes = if alone.is_empty() { scenes.iter().collect() } else { alone };
        let first = at % scenes.len();
        scenes.rotate_left(first);
        for fate in fates(who.0) {
            // A scene that reached the point by chance may not reach it again.
            let of = |(kind, others): &&Case| (*kind, [others.clone(), vec![victim(who, *fate)]].concat());
            choices.push(scenes.iter().map(of).collect());
            scenes.rotate_left(1);
        }
    }
    play_all(&choices);
    println!("{} deaths and stops", choices.len());
}

/// Covers each point and role in all scenes: `make soak`. After an earlier death, chance decides whether a process
/// still reaches a point.
#[test]
#[ignore = "takes minutes"]
fn each_point_is_survived_in_each_scene() {
    let mut cases = Vec::new();
    for (who, scenes) in census() {
        for (kind, others) in scenes {
            let of = |fate: &Fate| (kind, [others.clone(), vec![victim(who, *fate)]].concat());
            cases.extend(fates(who.0).iter().map(of));
        }
    }
    let outcomes = try_all(&without_choice(&cases), ATTEMPTS);
    let missed = cases.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_none());
    let missed: Vec<_> = missed.map(|(case, _)| case).collect();
    println!("{} deaths and stops, besides {} that were not reached: {missed:?}", cases.len(), missed.len());
    assert!(missed.iter().all(|(_, victims)| victims.len() > 1) && missed.len() * 20 < cases.len());
}

/// Random deaths happen for `SOAK_SECONDS`, at most 10000 of them: `make soak`.
#[test]
#[ignore = "takes as long as it is told to"]
fn random_deaths_are_survived() {
    use std::hash::{BuildHasher, RandomState};
    let seconds = std::env::var("SOAK_SECONDS").map_or(20, |seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let places = census();
    let mut number = 0_u64;
    let seed = RandomState::new();
    let mut chance = |below: usize| {
        number += 1;
        seed.hash_one(number) as usize % below
    };
    let mut deaths = 0;
    while deaths < DEATHS && Instant::now() < end {
        let mut case = || {
            let (who, scenes) = &places[chance(places.len())];
            let (kind, others) = &scenes[chance(scenes.len())];
            let fate = [Fate::Killed, Fate::StoppedAndKilled][chance(2)];
            let victim = Victim { time: 1 + chance(LATEST) as u32, ..victim(*who, fate) };
            (*kind, [others.clone(), vec![victim]].concat())
        };
        let cases: Vec<_> = (0..10 * AT_ONCE).map(|_| case()).collect();
        let outcomes = try_all(&without_choice(&cases), 1);
        let died = cases.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_some());
        deaths += died.map(|((_, victims), _)| victims.len()).sum::<usize>();
    }
    println!("{deaths} random deaths");
}
