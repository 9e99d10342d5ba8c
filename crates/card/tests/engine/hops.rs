//! Nexthops that are not on chip: their lines are in HBM, and packets wait for them.

use super::both::STREAMS;
use super::lockstep::Lockstep;
use super::weather::Weather;
use crate::host::port_of;
use card::compile::Attachment;
use card::sim::{Received, Sent};
use model::generate::{Packet, Rng};
use model::{Change, Nexthop, NexthopId, VifId, Vrf, text};
use packet::Mac;

const WORLD: &str = "\
    network blue vrf 1 gateway 10.1.1.254/24\n\
    guest vm1 in blue mac 02:00:00:00:00:01 address 10.1.1.1\n\
    guest vm2 in blue mac 02:00:00:00:00:02 address 10.1.1.2\n\
    case any\n\
    in vm1 eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / payload 46\n";
/// Interfaces, numbered as in `WORLD`.
const ONE: VifId = VifId(1);
const TWO: VifId = VifId(2);

/// Adds a route to the second guest. Each number has a MAC of its own, and so a nexthop of its own.
fn way(number: u16) -> [Change; 2] {
    let [high, low] = number.to_be_bytes();
    let (id, mac) = (NexthopId(number.into()), Mac([2, 7, 7, 7, high, low]));
    [
        Change::PutNexthop(id, Nexthop::Encap { vif: TWO, mac }),
        Change::PutRoute {
            vrf: Vrf(1),
            prefix: format!("10.9.{high}.{low}/32").parse().unwrap(),
            nexthop: id,
        },
    ]
}

fn packet(number: u16) -> Packet {
    let [high, low] = number.to_be_bytes();
    let frame = format!(
        "eth 02:00:00:00:00:01 > 00:00:5e:00:01:00 / ip4 10.1.1.1 > 10.9.{high}.{low} / udp 1 > 2 / payload 26"
    );
    Packet { ingress: ONE, frame: text::parse(&frame).unwrap(), gso_size: None }
}

#[test]
fn nexthops_on_chip_and_in_memory_side_by_side() {
    let (mut bench, mut rng) = (Lockstep::of(WORLD).0, Rng::new(1));
    let apply = |bench: &mut Lockstep, numbers: std::ops::Range<u16>| {
        let changes: Vec<_> = numbers.flat_map(way).collect();
        assert!(bench.host.apply(&changes));
    };
    apply(&mut bench, 1..40);
    bench.host.driver.leave_chip();
    apply(&mut bench, 40..700);
    for (weather, numbers) in [
        (Weather::calm(), 1..700),
        (Weather::calm(), 30..50),
        // All packets use one line.
        (Weather::calm(), 60..61),
        (Weather::new(5, 90, 70, 30), 1..700),
    ] {
        let packets: Vec<_> = numbers.map(|number| bench.prepare(&packet(number))).collect();
        assert!(packets.iter().all(|packet| packet.is_served()));
        bench.host.card().weather = weather;
        bench.round(&mut rng, &packets, 4000);
    }
}

/// Takes the packets that left: their outputs and ports.
fn outputs(bench: &mut Lockstep, left: &mut Vec<(usize, u16)>) {
    for output in 0..STREAMS {
        let card = bench.host.card();
        left.extend(std::iter::from_fn(|| card.receive(output)).map(|received: Received| {
            assert!(received.punt.is_none(), "{received:?}");
            (output, received.port)
        }));
    }
}

#[test]
fn a_nexthop_in_memory_changes_at_once() {
    const PACKETS: usize = 600;
    let mut bench = Lockstep::of(WORLD).0;
    bench.host.driver.leave_chip();
    assert!(bench.host.apply(&way(1)));
    let place = |round: usize| {
        // Port and output are in different halves of the line.
        let odd = round % 2 == 1;
        Attachment {
            port: if odd { 77 } else { port_of(TWO) },
            egress: if odd { STREAMS as u8 - 1 } else { 0 },
        }
    };
    let mut amid = 0;
    for round in 0..12 {
        let (before, after) = (place(round), place(round + 1));
        bench.host.driver.attach(&bench.host.tables, TWO, Some(before)).unwrap();
        let bytes = packet(1).frame;
        for _ in 0..PACKETS {
            bench.host.card().send(0, Sent { port: port_of(ONE), direct: None, bytes: bytes.clone() });
        }
        (0..40 * round).for_each(|_| bench.host.card().tick());
        bench.host.driver.attach(&bench.host.tables, TWO, Some(after)).unwrap();
        let mut left = Vec::new();
        while bench.host.card().sim().backlog(0) > 0 {
            bench.host.card().tick();
        }
        bench.host.driver.commands().barrier().unwrap();
        (0..200).for_each(|_| bench.host.card().tick());
        outputs(&mut bench, &mut left);
        let of = |place: Attachment| {
            left.iter().filter(|left| **left == (usize::from(place.egress), place.port)).count()
        };
        println!("{} by the old nexthop, {} by the new one", of(before), of(after));
        assert_eq!(of(before) + of(after), PACKETS, "{left:?}");
        amid += usize::from(of(before) > 0 && of(after) > 0);
    }
    assert!(amid > 3, "changes amid traffic: {amid}");
}
