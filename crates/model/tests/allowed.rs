//! No packet is delivered that no rule allows, whatever encloses it. The oracle knows nothing of how `decide` works:
//! it knows what was delivered before, and finds for each packet the reason why it may pass.

use model::generate::Rng;
use model::vectors::{Case, Step, load};
use model::{PacketView, Tables, Verdict, decide, text};
use std::net::IpAddr;

const WORLDS: u64 = 250;
const PACKETS: usize = 250;
const GUESTS: usize = 4;

/// A rule that allows traffic.
#[derive(Debug)]
struct Rule {
    from: Option<usize>,
    to: Option<usize>,
    protocol: Option<u8>,
    port: Option<u16>,
}

/// The fields of a packet. For ICMP, the ports are type and identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    v6: bool,
    from: usize,
    to: usize,
    protocol: u8,
    ports: (u16, u16),
    /// Flags of TCP.
    flags: &'static str,
}

/// A packet: its fields, or an error about a different packet.
#[derive(Clone, Copy, Debug)]
enum Packet {
    Plain(Said),
    Error { from: usize, to: usize, about: Said },
}

/// The reason why a packet may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    Rule,
    /// A packet delivered before, which this packet answers.
    Answer,
    /// The rules allow the other direction, in which a packet may have been delivered before the start, and the network
    /// picks up such connections.
    Midstream,
    Error,
}

const ICMP4: [(u16, u16); 4] = [(8, 0), (13, 14), (15, 16), (17, 18)];
const ICMP6: [(u16, u16); 3] = [(128, 129), (139, 140), (160, 161)];

impl Said {
    fn is_icmp(&self) -> bool {
        matches!(self.protocol, 1 | 58)
    }

    /// Returns whether this packet answers `asked`.
    fn answers(&self, asked: &Self) -> bool {
        let back =
            (self.from, self.to, self.v6, self.protocol) == (asked.to, asked.from, asked.v6, asked.protocol);
        let pairs: &[(u16, u16)] = if self.v6 { &ICMP6 } else { &ICMP4 };
        let fits = if self.is_icmp() {
            pairs.contains(&(asked.ports.0, self.ports.0)) && asked.ports.1 == self.ports.1
        } else if self.protocol == 17 && (self.ports.1, asked.ports.1) == (4791, 4791) {
            true // RoCEv2 goes by addresses.
        } else {
            self.ports == (asked.ports.1, asked.ports.0)
        };
        back && fits
    }

    /// Returns whether a connection can begin with the packet, or with what is seen of it: other segments of TCP than
    /// a SYN acknowledge something, and are no resets.
    fn begins(&self) -> bool {
        self.protocol != 6 || self.flags.contains(['S', 'A']) && !self.flags.contains('R')
    }

    /// Returns whether both packets belong to one connection.
    fn accompanies(&self, other: &Self) -> bool {
        let ways = |said: &Self| (said.from, said.to, said.v6, said.protocol, said.ports.1);
        let roce = self.protocol == 17 && self.ports.1 == 4791;
        let same = ways(self) == ways(other) && (roce || self.ports.0 == other.ports.0);
        same || self.answers(other) || other.answers(self)
    }
}

impl Rule {
    fn allows(&self, said: &Said) -> bool {
        let dst_port = matches!(said.protocol, 6 | 17 | 132).then_some(said.ports.1);
        let is = |wanted: Option<usize>, actual| wanted.is_none_or(|wanted| wanted == actual);
        is(self.from, said.from)
            && is(self.to, said.to)
            && self.protocol.is_none_or(|protocol| protocol == said.protocol)
            && self.port.is_none_or(|port| dst_port == Some(port))
    }
}

/// Returns the reason why a packet may pass, if any. `reverse`: the network picks up connections against the rules.
fn leave(rules: &[Rule], reverse: bool, delivered: &[Said], packet: &Packet) -> Option<Leave> {
    let ruled = |said: &Said| rules.iter().any(|rule| rule.allows(said));
    match packet {
        Packet::Plain(said) => {
            let turned = |said: &Said| Said {
                from: said.to,
                to: said.from,
                ports: (said.ports.1, said.ports.0),
                ..*said
            };
            // A SYN opens a connection, unless the other side is opening it at the same time.
            let opens = said.protocol == 6 && said.flags == "S";
            let answers = |asked: &&Said| {
                said.answers(asked) && ruled(asked) && asked.begins() && (!opens || asked.flags == "S")
            };
            // More packets of a connection picked up in mid-stream.
            let goes_on = |before: &&Said| {
                said.protocol == 6 && !opens && said.accompanies(before) && ruled(&turned(said))
            };
            let midstream = said.protocol == 6 && !said.flags.contains('S') && said.begins() && reverse;
            match () {
                () if ruled(said) => Some(Leave::Rule),
                () if delivered.iter().any(|asked| answers(&asked)) => Some(Leave::Answer),
                () if midstream && ruled(&turned(said)) => Some(Leave::Midstream),
                () if reverse && delivered.iter().any(|before| goes_on(&before)) => Some(Leave::Midstream),
                () => None,
            }
        }
        Packet::Error { from, to, about } => {
            let error = Said {
                v6: about.v6,
                from: *from,
                to: *to,
                protocol: if about.v6 { 58 } else { 1 },
                ports: (0, 0),
                flags: "",
            };
            // The error goes to the sender of a packet that was delivered, from the receiver of that packet.
            let concerned = (about.from, about.to) == (*to, *from);
            match () {
                () if ruled(&error) => Some(Leave::Rule),
                () if concerned && delivered.iter().any(|said| said.accompanies(about)) => Some(Leave::Error),
                () => None,
            }
        }
    }
}

fn address(v6: bool, guest: usize) -> IpAddr {
    if v6 {
        IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, guest as u16])
    } else {
        IpAddr::from([10, 1, 1, guest as u8])
    }
}

fn layers(said: &Said, inner: &str) -> String {
    let (ip, icmp) = if said.v6 { ("ip6", "icmp6") } else { ("ip4", "icmp") };
    let (a, b) = said.ports;
    let l4 = match said.protocol {
        6 => format!("tcp {a} > {b} {} seq 7 ack 7", said.flags),
        17 => format!("udp {a} > {b}"),
        132 => format!("sctp {a} > {b}"),
        _ => match a {
            8 | 128 => format!("{icmp} echo {b} 1"),
            0 | 129 => format!("{icmp} reply {b} 1"),
            _ => format!("{icmp} {a} 0"),
        },
    };
    let addresses = format!("{} > {}", address(said.v6, said.from), address(said.v6, said.to));
    format!("{ip} {addresses} / {l4}{inner}")
}

fn frame(packet: &Packet) -> (usize, Vec<u8>) {
    let (from, to, inside) = match packet {
        Packet::Plain(said) => (said.from, said.to, layers(said, " / payload 20")),
        Packet::Error { from, to, about } => {
            let (ip, error) = if about.v6 { ("ip6", "icmp6 1 4") } else { ("ip4", "icmp 3 3") };
            let addresses = format!("{} > {}", address(about.v6, *from), address(about.v6, *to));
            (*from, *to, format!("{ip} {addresses} / {error} / {}", layers(about, " / payload 8")))
        }
    };
    let text = format!("eth 02:00:00:00:00:0{from} > 02:00:00:00:00:0{to} / {inside}");
    (from, text::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

fn said(rng: &mut Rng) -> Said {
    let v6 = rng.percent(40);
    let (from, to) = (1 + rng.below(GUESTS), 1 + rng.below(GUESTS));
    let icmp = if v6 { 58 } else { 1 };
    let protocol = rng.one(&[6, 6, 17, 17, icmp, icmp, 132]);
    let mut port = || rng.one(&[53, 80, 1000, 4791]);
    let (mut ports, flags) = ((port(), port()), rng.one(&["S", "SA", "A", "PA", "FA", "R", "RA", "", "FPU"]));
    if protocol == icmp {
        let pairs: &[(u16, u16)] = if v6 { &ICMP6 } else { &ICMP4 };
        let (request, reply) = rng.one(pairs);
        // Also types that are neither: a redirect, a router's message, an unknown one.
        let other = if v6 { 200 } else { rng.one(&[5, 9, 200]) };
        let kind = rng.one(&[request, request, reply, reply, other]);
        let echo = matches!((v6, kind), (false, 0 | 8) | (true, 128 | 129));
        ports = (kind, if echo { rng.one(&[0, 8, 53, 128]) } else { 0 });
    }
    Said { v6, from, to: if to == from { from % GUESTS + 1 } else { to }, protocol, ports, flags }
}

/// Returns a packet to send, usually similar to a delivered one.
fn packet(rng: &mut Rng, delivered: &[Said]) -> Packet {
    let mut said = if delivered.is_empty() || rng.percent(40) { said(rng) } else { rng.one(delivered) };
    if rng.percent(60) {
        (said.from, said.to) = (said.to, said.from);
        let pairs: &[(u16, u16)] = if said.v6 { &ICMP6 } else { &ICMP4 };
        if !said.is_icmp() {
            said.ports = (said.ports.1, said.ports.0);
        } else if let Some((_, reply)) = pairs.iter().find(|(request, _)| *request == said.ports.0) {
            said.ports.0 = *reply;
        }
    }
    match rng.below(8) {
        0 => said.flags = rng.one(&["S", "SA", "A", "FA", "R", "", "F", "P"]),
        1 => said.to = said.from % GUESTS + 1,
        2..=4 => {
            let near = if rng.percent(70) {
                (said.to, said.from)
            } else {
                (1 + rng.below(GUESTS), 1 + rng.below(GUESTS))
            };
            let (from, to) = near;
            let to = if from == to { from % GUESTS + 1 } else { to };
            return Packet::Error { from, to, about: said };
        }
        _ => {}
    }
    Packet::Plain(said)
}

fn rule(rng: &mut Rng) -> Rule {
    let protocol = rng.percent(80).then(|| rng.one(&[6, 17, 1, 58, 132]));
    let ports = protocol.is_some_and(|protocol| matches!(protocol, 6 | 17 | 132)) && rng.percent(60);
    Rule {
        from: rng.percent(80).then(|| 1 + rng.below(GUESTS)),
        to: rng.percent(80).then(|| 1 + rng.below(GUESTS)),
        protocol,
        port: ports.then(|| rng.one(&[53, 80, 4791])),
    }
}

/// Returns the tables of a world, in the language of vectors.
fn world(rules: &[Rule], reverse: bool) -> (Case, Tables) {
    let gateways = "gateway 10.1.1.254/24 gateway fd00:1::ffff/64";
    let midstream = if reverse { " reverse-midstream" } else { "" };
    let mut lines = vec![format!("network blue vrf 1 {gateways} default drop{midstream}")];
    for n in 1..=GUESTS {
        let addresses = [false, true].map(|v6| format!("address {}", address(v6, n))).join(" ");
        lines.push(format!("guest vm{n} in blue mac 02:00:00:00:00:0{n} {addresses} policy"));
    }
    lines.push("case one".into());
    for (priority, rule) in (1..).zip(rules) {
        // A rule has addresses of one family, so each is written twice.
        for v6 in [false, true] {
            let end = |word, guest: Option<usize>| {
                guest.map_or(String::new(), |guest| {
                    format!(" {word} {}/{}", address(v6, guest), if v6 { 128 } else { 32 })
                })
            };
            let protocol = rule.protocol.map_or(String::new(), |protocol| format!(" protocol {protocol}"));
            let ports = rule.port.map_or(String::new(), |port| format!(" ports {port} {port}"));
            let (from, to) = (end("from", rule.from), end("to", rule.to));
            lines.push(format!("rule blue {priority}{from}{to}{protocol}{ports} allow"));
        }
    }
    lines.push("in vm1 eth 02:00:00:00:00:01 > 02:00:00:00:00:02".into());
    let case = load(&lines.join("\n")).unwrap_or_else(|error| panic!("{error}: {lines:#?}")).remove(0);
    let mut tables = Tables::new();
    for step in &case.steps {
        if let Step::Apply(changes) = step {
            tables.apply(changes).unwrap();
        }
    }
    (case, tables)
}

#[test]
fn nothing_is_delivered_that_nobody_allows() {
    let mut passed = [0_usize; 4];
    let mut dropped = 0_usize;
    for seed in 0..WORLDS {
        let mut rng = Rng::new(seed);
        let rules: Vec<Rule> = (0..1 + rng.below(4)).map(|_| rule(&mut rng)).collect();
        let reverse = seed % 3 > 0;
        let (mut case, mut tables) = world(&rules, reverse);
        let mut delivered = Vec::new();
        for _ in 0..PACKETS {
            let packet = packet(&mut rng, &delivered);
            let (from, frame) = frame(&packet);
            let ingress = case.setup.vif_id(&format!("vm{from}"));
            let view = PacketView::parse(&frame, frame.len() as u32, None).unwrap();
            let decision = decide(&tables, &view, ingress, 1);
            let _ = tables.commit(&decision.effects, frame.len(), 1_000_000_000);
            if !matches!(decision.verdict, Verdict::Forward(_) | Verdict::Flood(_)) {
                dropped += 1;
                continue;
            }
            let leave = leave(&rules, reverse, &delivered, &packet);
            let leave = leave.unwrap_or_else(|| {
                panic!("seed {seed}: nobody allows {}\n{packet:?}\n{rules:#?}", text::show(&frame))
            });
            passed[leave as usize] += 1;
            if let Packet::Plain(said) = packet {
                delivered.push(said);
            }
        }
    }
    assert!(passed.iter().all(|count| *count > 150) && dropped > 5000, "{passed:?}, {dropped} dropped");
}
