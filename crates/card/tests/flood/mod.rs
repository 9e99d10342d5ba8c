//! Floods of punted packets, and the engine's counters, compared with the card's pipe in Rust.
#![cfg(feature = "card-sim")]

mod counts;
use crate::host::pair::Pair;
use card::compile::Attachment;
use card::driver::Driver;
use card::expect::{Outcome, Windows, outcome};
use card::registers::Punt;
use card::sim::{Sent, SimCard};
use card::{Budgets, Commands};
use model::{Change, DropReason, Network, Tables, Vif, VifId, VifKind, Vrf, text};
use packet::Mac;

/// The simulated card, and the model of it.
type Both = Pair<SimCard>;

const SECRET: [u64; 5] = [3, 1, 4, 1, 5];
const VRF: Vrf = Vrf(5);
const BUDGETS: Budgets = Budgets { guest: 7, wire: 3 };
/// Clocks of a window.
const WINDOW: u64 = 1 << 18;
/// Kind of the card's counters of dropped packets, by reason.
const DROPS: u8 = 5;

fn guest(id: u16, policy: bool) -> Change {
    Change::PutVif(Vif {
        vrf: Some(VRF),
        mac: Some(Mac([2, 0, 0, 0, 0, id as u8])),
        addresses: vec![[10, 0, 0, id as u8].into()],
        policy,
        ..Vif::new(VifId(id), "guest", VifKind::Vhost)
    })
}

/// Makes a card with two guests, with or without tracking their connections.
fn host(policy: bool) -> (Tables, Driver<Both>) {
    let cards = Both::of(SimCard::new(hbm::Timing::hbm2()));
    let mut driver = Driver::new(Commands::open(cards).unwrap().with_blank_memory(), SECRET).unwrap();
    let network =
        Change::PutNetwork(Network { members: vec![VifId(1), VifId(2)], ..Network::new(VRF, "net") });
    let changes = [network, guest(1, policy), guest(2, policy)];
    let mut tables = Tables::new();
    tables.apply(&changes).unwrap();
    for id in [1, 2] {
        driver.attach(&tables, VifId(id), Some(Attachment { port: id, egress: 0 })).unwrap();
    }
    driver.apply(&tables, &changes).unwrap();
    (tables, driver)
}

/// Makes a bridged packet of a guest.
fn frame(from: u16, to: u16) -> Vec<u8> {
    let line = format!(
        "eth 02:00:00:00:00:{from:02x} > 02:00:00:00:00:{to:02x} / ip4 10.0.0.{from} > 10.0.0.{to} / udp 7 > 8 / payload 20"
    );
    text::parse(&line).unwrap()
}

/// Sends packets through the simulated card. Returns the port of each packet that leaves, and the punt reason.
fn through(driver: &mut Driver<Both>, packets: &[(u16, bool, Vec<u8>)]) -> Vec<(u16, Option<Punt>)> {
    let sim = &mut driver.commands().card().sim;
    for (port, wire, bytes) in packets {
        sim.send(usize::from(*wire), Sent { port: *port, direct: None, bytes: bytes.clone() });
    }
    let mut left = Vec::new();
    for _ in 0..2000 {
        sim.tick();
        while let Some(received) = sim.receive(0) {
            left.push((
                received.port,
                received.punt.and_then(|meta| Punt::ALL.get(usize::from(meta.reason)).copied()),
            ));
        }
    }
    left.sort();
    left
}

/// Ticks until a window has just begun.
fn next_window(driver: &mut Driver<Both>) {
    let sim = &mut driver.commands().card().sim;
    while !(100..WINDOW / 2).contains(&(sim.cycle() % WINDOW)) {
        sim.tick();
    }
}

#[test]
fn what_is_beyond_a_ports_budget_is_dropped_until_the_next_window() {
    let (_, mut driver) = host(false);
    driver.commands().set_budgets(BUDGETS);
    let mut windows = Windows::default();
    let mut dropped = 0;
    // Nobody has MAC 9; port 77 does not exist on the card; both pipes have a port 2, each its own.
    let mut burst: Vec<(u16, bool, Vec<u8>)> = (0..10).map(|_| (1, false, frame(1, 9))).collect();
    burst.extend((0..4).map(|_| (1, false, frame(1, 2))));
    burst.extend((0..5).map(|_| (2, false, frame(2, 9))));
    burst.extend((0..5).map(|_| (77, true, frame(2, 9))));
    for round in 0..3 {
        if round != 1 {
            next_window(&mut driver);
        }
        let both = driver.commands().card();
        let (clock, mut expected) = (both.sim.cycle(), Vec::new());
        for (port, wire, bytes) in &burst {
            let outcome = outcome(&both.memory, *port, bytes, bytes.len());
            match windows.limit(&both.memory, *port, *wire, clock, outcome) {
                Outcome::Punt(punt) => expected.push((*port, Some(punt))),
                Outcome::Forward { forward, .. } => expected.push((forward.port.0, None)),
                Outcome::Drop(reason) => {
                    assert_eq!(reason, DropReason::PuntBudget as u8);
                    dropped += 1;
                }
            }
        }
        expected.sort();
        assert_eq!(through(&mut driver, &burst), expected, "round {round}");
        if round == 1 {
            // The next window begins.
            let sim = &mut driver.commands().card().sim;
            (0..WINDOW / 2).for_each(|_| sim.tick());
        }
        let counted = driver.commands().counter(DROPS, DropReason::PuntBudget as u32);
        assert_eq!(counted, dropped, "round {round}");
    }
    assert!(dropped > 10 + 5 + 2, "{dropped}");
    driver.commands().set_budgets(Budgets::NONE);
    let punted = through(&mut driver, &burst).iter().filter(|(_, punt)| punt.is_some()).count();
    assert_eq!(punted, burst.len() - 4);
}
