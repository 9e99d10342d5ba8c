//! Two managers over a wire that loses, duplicates and reorders.

use super::hosts::{CLIENT, Host, hosts, parameters};
use proptest::prelude::*;
use rdma::cm::{EventKind, Outgoing, Refused};
use std::time::Duration;

/// The fate of a message: it is lost, or arrives once or twice, sooner or later.
#[derive(Clone, Debug)]
struct Fate {
    lost: bool,
    doubled: bool,
    /// Delay in tenths of a second.
    late: u8,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = (0_u8..100, any::<bool>(), 0_u8..80).prop_map(|(percent, doubled, late)| Fate {
        lost: percent < 45,
        doubled,
        late,
    });
    proptest::collection::vec(fate, 40..80)
}

/// The state of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fared {
    Waits,
    Connected,
    Failed,
}

struct World {
    now: Duration,
    hosts: [Host; 2],
    fates: Vec<Fate>,
    sent: usize,
    /// For each host: messages lost in a row, and how many may be.
    losses: [u32; 2],
    most_losses: u32,
    /// The time during which nothing arrives.
    cut: std::ops::Range<Duration>,
    under_way: Vec<(Duration, Outgoing)>,
    fared: [Fared; 2],
    ids: [u32; 2],
}

impl World {
    fn new(fates: Vec<Fate>, cut: std::ops::Range<Duration>) -> Self {
        let (mut a, b, _, to) = hosts();
        let id = a.connect(Duration::ZERO, to, 17);
        Self {
            now: Duration::ZERO,
            hosts: [a, b],
            fates,
            sent: 0,
            losses: [0; 2],
            most_losses: u32::MAX,
            cut,
            under_way: Vec::new(),
            fared: [Fared::Waits; 2],
            ids: [id, 0],
        }
    }

    fn send(&mut self) {
        for (host, losses) in self.hosts.iter_mut().zip(&mut self.losses) {
            for message in host.sent() {
                let fate = &self.fates[self.sent % self.fates.len()];
                self.sent += 1;
                if fate.lost && *losses < self.most_losses || self.cut.contains(&self.now) {
                    *losses += 1;
                    continue;
                }
                *losses = 0;
                let at = self.now + Duration::from_millis(100) * fate.late.into();
                if fate.doubled {
                    self.under_way.push((at + Duration::from_secs(1), message.clone()));
                }
                self.under_way.push((at, message));
            }
        }
    }

    /// Runs programs that connect, and accept every request.
    fn programs(&mut self) {
        for which in 0..2 {
            self.hosts[which].take_events();
            while let Some(event) = self.hosts[which].events.pop_front() {
                let manager = &mut self.hosts[which].manager;
                match event.kind {
                    EventKind::ConnectRequest => {
                        assert_eq!(self.ids[1], 0, "a request came twice");
                        self.ids[1] = event.id;
                        let accepted = manager.accept(self.now, CLIENT, event.id, &parameters(18, b""));
                        // The peer may have given up meanwhile; the program learns that next.
                        assert!(matches!(accepted, Ok(()) | Err(Refused::State)), "{accepted:?}");
                    }
                    EventKind::ConnectResponse => match manager.establish(CLIENT, event.id) {
                        Ok(()) => self.fared[which] = Fared::Connected,
                        other => assert_eq!(other, Err(Refused::State)),
                    },
                    EventKind::Established => self.fared[which] = Fared::Connected,
                    EventKind::Unreachable | EventKind::Rejected | EventKind::Disconnected => {
                        assert_ne!(self.fared[which], Fared::Failed, "told twice");
                        self.fared[which] = Fared::Failed;
                    }
                    EventKind::TimewaitExit => assert_eq!(self.fared[which], Fared::Failed),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Runs until nothing happens any more.
    fn run(&mut self) {
        for _ in 0..10_000 {
            self.programs();
            self.send();
            let arrives = self.under_way.iter().map(|(at, _)| *at).min();
            let now = self.now;
            let timers = self.hosts.each_mut().map(|host| host.manager.poll(now));
            self.programs();
            self.send();
            let Some(next) = timers.into_iter().flatten().chain(arrives).min() else { return };
            self.now = self.now.max(next);
            let (now, due): (_, Vec<_>) =
                (self.now, self.under_way.extract_if(.., |(at, _)| *at <= next).collect());
            for (_, message) in due {
                for host in self.hosts.iter_mut().filter(|host| host.address == message.destination) {
                    host.manager.receive(now, message.source, message.destination, &message.mad);
                }
            }
        }
        panic!("it never ends");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// If at most two messages of a host are lost in a row, both ends are connected in the end; then both end the
    /// connection.
    #[test]
    fn both_get_there(fates in fates()) {
        let mut world = World::new(fates, Duration::MAX..Duration::MAX);
        world.most_losses = 2;
        world.run();
        prop_assert_eq!(world.fared, [Fared::Connected; 2]);
        let id = world.ids[0];
        world.hosts[0].manager.disconnect(world.now, CLIENT, id).unwrap();
        world.run();
        prop_assert_eq!(world.fared, [Fared::Failed; 2]);
    }

    /// If the wire is cut for a while, at any time, either both ends are connected or both fail. One may have to find
    /// out that the other is gone: nothing that it sends is acknowledged, and it disconnects.
    #[test]
    fn both_agree_in_the_end(fates in fates(), from in 0_u64..30_000, len in 0_u64..200_000) {
        let from = Duration::from_millis(from);
        let mut world = World::new(fates, from..from + Duration::from_millis(len));
        world.run();
        prop_assert!(!world.fared.contains(&Fared::Waits) || world.ids[1] == 0, "{:?}", world.fared);
        for which in 0..2 {
            let other = world.fared[1 - which];
            if world.fared[which] == Fared::Connected && other != Fared::Connected {
                let (now, id) = (world.now, world.ids[which]);
                world.hosts[which].manager.disconnect(now, CLIENT, id).unwrap();
                world.run();
                prop_assert_eq!(world.fared[which], Fared::Failed);
            }
        }
        let connected = world.fared.map(|fared| fared == Fared::Connected);
        prop_assert_eq!(connected[0], connected[1], "{:?}", world.fared);
        // Only what the programs have remains.
        let now = world.now;
        world.hosts.iter_mut().for_each(|host| host.manager.remove_client(now, CLIENT));
        world.run();
        prop_assert!(world.hosts.iter().all(|host| host.manager.is_empty()));
    }
}
