//! Measures how long the speaker takes for many VPNv4 routes of a reflector, and how much memory.
//!
//!     table [ROUTES]
//!
//! The UPDATE messages were made before.

use bgp::{
    Announcement, Config, Conn, Encapsulation, Event, Family, Import, Label, Nlri, PeerConfig, Rd,
    RouteTarget, Speaker,
};
use ipnet::IpNet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};

const NOW: Duration = Duration::ZERO;

fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, 0, host)
}

/// Makes a speaker, with the other as its peer; one of them calls.
fn speaker(host: u8, other: u8) -> Speaker {
    let config = Config {
        asn: 64512,
        router_id: address(host),
        own: vec![address(host).into()],
        hold_time: 0,
        restarted: false,
        encapsulations: vec![Encapsulation::MplsUdp],
    };
    let mut speaker = Speaker::new(config, 1, NOW);
    let peer = PeerConfig {
        address: address(other).into(),
        port: 179,
        asn: 64512,
        families: vec![Family::Vpnv4],
        encapsulation: Encapsulation::MplsUdp,
        passive: host == 1,
        password: 0,
        restart_time: 0,
        max_routes: usize::MAX,
    };
    speaker.set_peers(vec![peer], NOW);
    speaker
}

/// Moves bytes from one to the other until there are none, and returns them.
fn carry(from: (&mut Speaker, Conn), to: Option<(&mut Speaker, Conn)>) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = from.0.output(from.1, NOW).to_vec();
        if bytes.is_empty() {
            break;
        }
        from.0.sent(from.1, bytes.len(), NOW);
        all.extend(bytes);
    }
    if let Some((speaker, conn)) = to {
        speaker.received(conn, &all, NOW);
    }
    all
}

/// Returns the octets of memory that the process has now.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// Joins two speakers. Returns the connection at each.
fn join(learner: &mut Speaker, source: &mut Speaker) -> Option<(Conn, Conn)> {
    source.tick(NOW);
    let its = learner.accepted(IpAddr::from(address(2)), NOW)?;
    let own = std::iter::from_fn(|| source.next_event()).find_map(|event| match event {
        Event::Connect { conn, .. } => Some(conn),
        _ => None,
    })?;
    source.connected(own, NOW);
    for _ in 0..3 {
        carry((source, own), Some((learner, its)));
        carry((learner, its), Some((source, own)));
    }
    Some((its, own))
}

fn target() -> Vec<RouteTarget> {
    RouteTarget::of_as(64512, 100).into_iter().collect()
}

/// Makes the messages for routes of 500 hosts with a network each, and writes them to the output.
fn make(routes: u32) -> Option<()> {
    let (mut learner, mut source) = (speaker(1, 2), speaker(2, 1));
    let (_, own) = join(&mut learner, &mut source)?;
    for number in 0..routes {
        let host = number % 500;
        let prefix = IpNet::from(IpAddr::from(Ipv4Addr::from(0x0b00_0000 + number)));
        let [_, _, a, b] = host.to_be_bytes();
        let announcement = Announcement {
            next_hop: Ipv4Addr::new(192, 0, a, b).into(),
            label: Label::Mpls(1000 + host),
            routed: None,
            targets: target(),
            router_mac: None,
            mobility: None,
            preference: 100,
        };
        source
            .announce(Nlri::Vpn { rd: Rd::of_address(Ipv4Addr::new(192, 0, a, b), 7), prefix }, announcement);
    }
    std::io::stdout().write_all(&carry((&mut source, own), None)).ok()
}

fn measure(routes: u32, messages: &[u8]) -> Option<()> {
    let (mut learner, mut source) = (speaker(1, 2), speaker(2, 1));
    learner.set_imports(&[Import { vrf: 7, routes: target(), macs: Vec::new(), link: None }], NOW);
    let (its, _) = join(&mut learner, &mut source)?;
    let (before, start, mut changes) = (memory(), Instant::now(), 0);
    for piece in messages.chunks(1 << 16) {
        learner.received(its, piece, NOW);
        changes += learner.take_changes(usize::MAX).len();
    }
    let took = start.elapsed();
    let each = |total: u64| total / u64::from(routes);
    println!(
        "{routes} routes in {} octets: {:.3} s, {} ns and {} octets of memory a route; {changes} changes",
        messages.len(),
        took.as_secs_f64(),
        each(took.as_nanos() as u64),
        each(memory().saturating_sub(before)),
    );
    Some(())
}

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
    if let Some(routes) = number(2) {
        make(routes);
        return Ok(());
    }
    // A process of its own makes them, so that its memory is not counted.
    let routes = number(1).unwrap_or(100_000);
    let maker = Command::new(std::env::current_exe()?).args(["make", &routes.to_string()]).output()?;
    measure(routes, &maker.stdout);
    Ok(())
}
