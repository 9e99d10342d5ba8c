//! The driver's writes for flows that change hands, as the card's pipe reads them.

use super::world::{Flow, ONE, tables};
use card::Commands;
use card::compile::Attachment;
use card::driver::Driver;
use card::expect::{Memory, Outcome, Sizes, held, outcome};
use card::hold::GROUPS;
use card::registers::Punt;
use model::{Effects, GATEWAY_MAC, PacketView, Tables, VifId, decide, text};

struct Host {
    tables: Tables,
    driver: Driver<Memory>,
}

impl Host {
    fn new() -> Self {
        let commands = Commands::open(Memory::new(Sizes::default())).unwrap();
        let mut host = Self { tables: Tables::new(), driver: Driver::new(commands, [3; 5]).unwrap() };
        let (changes, neighbour) = tables();
        host.tables.apply(&changes).unwrap();
        let effects = Effects { neighbour: Some(neighbour), ..Effects::default() };
        host.tables.commit(&effects, 0, 0).unwrap();
        for (vif, egress) in [(1, 0), (2, 0), (10, 1)] {
            let at = Attachment { port: vif, egress };
            host.driver.attach(&host.tables, VifId(vif), Some(at)).unwrap();
        }
        host.driver.apply(&host.tables, &changes).unwrap();
        host
    }

    fn memory(&mut self) -> &mut Memory {
        self.driver.commands().card()
    }

    fn is_forwarded(&mut self, port: u16, frame: &[u8]) -> bool {
        matches!(outcome(self.memory(), port, frame, frame.len()), Outcome::Forward { .. })
    }
}

/// Makes frames of IPv4 flows on all paths, and one of an IPv6 flow.
fn frames() -> Vec<(u16, Vec<u8>)> {
    let mut frames: Vec<_> = [0, 2, 3].map(|number| Flow::new(number, 9).packet(40)).into();
    let v6 =
        format!("eth 02:00:00:00:00:01 > {GATEWAY_MAC} / ip6 fd00:1::1 > fd00:2::5 / udp 5 > 6 / payload 40");
    frames.push((ONE.0, text::parse(&v6).unwrap(), false));
    frames.into_iter().map(|(port, frame, _)| (port, frame)).collect()
}

#[test]
fn a_flow_is_held_then_forwarded_and_found_at_every_moment() {
    let mut host = Host::new();
    for (port, frame) in frames() {
        let view = PacketView::parse(&frame, frame.len() as u32, None).unwrap();
        let decision = decide(&host.tables, &view, VifId(port), 0);
        host.tables.commit(&decision.effects, 0, 0).unwrap();
        assert_eq!(outcome(host.memory(), port, &frame, frame.len()), Outcome::Punt(Punt::FlowMiss));
        let hold = host.driver.begin_hold().unwrap();
        let key = host.driver.decided_behind(Some(hold), &host.tables, &view, VifId(port), &decision);
        let key = key.unwrap().expect("a flow");
        assert!(host.is_forwarded(port, &frame) && host.driver.is_held(&key, hold));
        assert_eq!(held(host.memory(), port, &frame, frame.len()), Some(hold));
        host.memory().record();
        host.driver.end_hold(hold, &[key]).unwrap();
        assert_eq!(host.memory().recorded().len(), 1, "a line is written at once");
        assert!(host.is_forwarded(port, &frame) && !host.driver.is_held(&key, hold));
        assert_eq!(held(host.memory(), port, &frame, frame.len()), None);
    }
}

#[test]
fn groups_are_used_one_after_the_other_each_in_its_other_turn() {
    let mut host = Host::new();
    let mut taken = Vec::new();
    for _ in 0..3 * GROUPS {
        let hold = host.driver.begin_hold().unwrap();
        host.driver.end_hold(hold, []).unwrap();
        taken.push((hold.group(), hold.turn()));
    }
    for (first, second) in taken.iter().zip(&taken[GROUPS..]) {
        assert_eq!((second.0, second.1), (first.0, !first.1));
    }
    let hold = host.driver.begin_hold().unwrap();
    host.driver.cancel_hold(hold);
    assert_eq!(host.driver.begin_hold(), Some(hold), "nobody was in it");
    let others = (1..GROUPS).filter(|_| host.driver.begin_hold().is_some()).count();
    assert_eq!((others, host.driver.begin_hold()), (GROUPS - 1, None));
}
