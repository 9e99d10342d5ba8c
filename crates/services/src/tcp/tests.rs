//! The bound of what waits for clients, whoever they are.

use super::*;
use packet::{Mac, build, proto};
use std::net::Ipv4Addr;

/// A conversation that holds the last answer.
#[derive(Debug, Default)]
struct Holding(Vec<u8>);

impl Talk for Holding {
    fn hear(&mut self, _: &[u8], _: bool, _: Duration) -> usize {
        0
    }

    fn say(&self) -> &[u8] {
        &self.0
    }

    fn said(&mut self, _: usize) {}

    fn is_over(&self) -> bool {
        false
    }

    fn deliver(&mut self, message: &[u8]) {
        self.0 = message.to_vec();
    }

    fn held(&self) -> usize {
        self.0.len()
    }
}

/// Makes the way back to a client with this port.
fn back(port: u16) -> Back {
    let mut frame = vec![0; proto::ETHERNET_LEN + proto::IPV4_LEN + proto::UDP_LEN];
    let (src, dst) = (Ipv4Addr::new(10, 1, 1, 7), Ipv4Addr::new(169, 254, 169, 254));
    let ip =
        build::Ipv4 { src, dst, protocol: proto::UDP, ttl: 64, tos: 0, id: 0, dont_fragment: true, len: 28 };
    build::ethernet(&mut frame, Mac([2; 6]), Mac([4; 6]), proto::ETHERTYPE_IPV4).unwrap();
    build::ipv4(&mut frame[proto::ETHERNET_LEN..], &ip).unwrap();
    build::udp(&mut frame[proto::ETHERNET_LEN + proto::IPV4_LEN..], port, 80, 8, 0).unwrap();
    Back::of(&Headers::ethernet(&frame, 0, frame.len()).unwrap()).unwrap()
}

/// Answers a new connection of an interface; returns the number of the connection.
fn answer(all: &mut Connections, interface: u16, message: &[u8], results: &mut Results) -> u64 {
    all.last += 1;
    let talk = Box::new(Holding::default());
    let connection = Connection::new(all.last, back(all.last as u16), 1500, Duration::ZERO, talk);
    all.guests.entry(interface).or_default().push(connection);
    assert!(all.deliver((interface, all.last), message, Duration::ZERO, results));
    all.last
}

fn held(all: &Connections, interface: u16) -> usize {
    all.guests[&interface].iter().map(Connection::held).sum()
}

#[test]
fn answers_that_nobody_takes_are_bounded_in_all() {
    let (mut all, mut results) = (Connections::default(), Results::default());
    let long = vec![b'x'; 128 << 10];
    for _ in 0..MOST {
        for interface in 0..40 {
            answer(&mut all, interface, &long, &mut results);
        }
    }
    let total: usize = (0..40).map(|interface| held(&all, interface)).sum();
    assert!(total <= HELD && total > HELD - long.len(), "{total}");
    // Nobody has much more than others, and who is refused is told.
    let shares: Vec<usize> = (0..40).map(|interface| held(&all, interface) / long.len()).collect();
    assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
    assert!(results.outcomes.iter().any(|(_, outcome)| *outcome == Err(Refused::TooMany)));
    // A newcomer takes from those who have most.
    let connection = answer(&mut all, 99, &long, &mut results);
    assert_eq!(held(&all, 99), long.len());
    assert!(all.deliver((99, connection), &[], Duration::ZERO, &mut results));
    assert_eq!(held(&all, 99), 0);
}
