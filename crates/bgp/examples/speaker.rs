//! A speaker by itself, for tests with other implementations: it announces what it reads, and prints what it learns.
//!
//!     speaker ADDRESS AS PEER PEER_AS VRF TARGET...
//!
//! Each line of its input announces or withdraws a route:
//!
//!     [+-] vpn RD PREFIX LABEL TARGET
//!     [+-] prefix RD PREFIX VNI TARGET ROUTER_MAC
//!     [+-] mac RD MAC ADDRESS VNI TARGET SEQUENCE
//!     [+-] flood RD VNI TARGET

use bgp::{
    Announcement, Change, Config, Conn, Encapsulation, Event, Family, Import, Label, Mobility, Nlri,
    PeerConfig, RouteTarget, Speaker,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, asn, peer, peer_as, vrf, targets @ ..] = &words[..] else {
        return Err("speaker ADDRESS AS PEER PEER_AS VRF TARGET...".into());
    };
    let address: IpAddr = address.parse()?;
    let IpAddr::V4(router_id) = address else { return Err("the address is not IPv4".into()) };
    let config = Config {
        asn: asn.parse()?,
        router_id,
        own: vec![address],
        hold_time: 90,
        restarted: false,
        encapsulations: vec![Encapsulation::MplsUdp, Encapsulation::MplsGre, Encapsulation::Vxlan],
    };
    let peer = PeerConfig {
        address: peer.parse()?,
        port: 179,
        asn: peer_as.parse()?,
        families: Family::ALL.into(),
        encapsulation: Encapsulation::MplsUdp,
        passive: false,
        password: 0,
        restart_time: 120,
        max_routes: 2_000_000,
    };
    let targets: Vec<RouteTarget> =
        targets.iter().map(|target| target.parse()).collect::<std::result::Result<_, _>>()?;
    let mut speaker = Speaker::new(config, std::process::id().into(), Duration::ZERO);
    speaker.set_imports(
        &[Import { vrf: vrf.parse()?, routes: targets.clone(), macs: targets, link: None }],
        Duration::ZERO,
    );
    speaker.set_peers(vec![peer], Duration::ZERO);
    let listener = TcpListener::bind((address, 179))?;
    listener.set_nonblocking(true)?;
    Program { speaker, listener, streams: BTreeMap::new(), start: Instant::now(), address }.run(&lines())
}

/// Returns the lines of the input, as they come.
fn lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

struct Program {
    speaker: Speaker,
    listener: TcpListener,
    streams: BTreeMap<Conn, TcpStream>,
    start: Instant,
    address: IpAddr,
}

impl Program {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn run(&mut self, lines: &Receiver<String>) -> Result<()> {
        let mut learned = 0_u64;
        loop {
            for line in lines.try_iter() {
                self.line(&line)?;
            }
            if let Ok((stream, from)) = self.listener.accept() {
                stream.set_nonblocking(true)?;
                if let Some(conn) = self.speaker.accepted(from.ip(), self.now()) {
                    self.streams.insert(conn, stream);
                }
            }
            let moved =
                self.streams.keys().copied().collect::<Vec<_>>().into_iter().any(|conn| self.carry(conn));
            self.speaker.tick(self.now());
            while let Some(event) = self.speaker.next_event() {
                println!("{:.3} {event:?}", self.now().as_secs_f64());
                self.event(event);
            }
            for change in self.speaker.take_changes(10_000) {
                learned += 1;
                if learned < 1000 {
                    println!("{:.3} {}", self.now().as_secs_f64(), text(&change));
                } else if learned.is_multiple_of(100_000) {
                    println!("{:.3} {learned} changes", self.now().as_secs_f64());
                }
            }
            if !moved {
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Connect { conn, to } => match connect(to) {
                Ok(stream) => {
                    self.streams.insert(conn, stream);
                    self.speaker.connected(conn, self.now());
                }
                Err(_) => self.speaker.closed(conn, self.now()),
            },
            Event::Close { conn, last } => {
                if let Some(mut stream) = self.streams.remove(&conn) {
                    let _ = stream.write(&last);
                }
            }
            _ => {}
        }
    }

    /// Moves bytes of a connection. Returns whether there were any.
    fn carry(&mut self, conn: Conn) -> bool {
        let now = self.now();
        let Some(stream) = self.streams.get_mut(&conn) else { return false };
        let output = self.speaker.output(conn, now);
        let mut moved = false;
        if !output.is_empty()
            && let Ok(written) = stream.write(output)
        {
            self.speaker.sent(conn, written, now);
            moved = true;
        }
        let mut buffer = [0; 1 << 16];
        match stream.read(&mut buffer) {
            Ok(0) => self.closed(conn),
            Ok(bytes) => {
                self.speaker.received(conn, &buffer[..bytes], now);
                moved = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.closed(conn),
        }
        moved
    }

    fn closed(&mut self, conn: Conn) {
        self.streams.remove(&conn);
        self.speaker.closed(conn, self.now());
    }

    fn line(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let usual = |label, target: &str| -> Result<Announcement> {
            Ok(Announcement {
                next_hop: self.address,
                label,
                routed: None,
                targets: vec![target.parse()?],
                router_mac: None,
                mobility: None,
                preference: 100,
            })
        };
        let (nlri, announcement) = match words[1..] {
            ["vpn", rd, prefix, label, target] => {
                let nlri = Nlri::Vpn { rd: rd.parse()?, prefix: prefix.parse()? };
                (nlri, usual(Label::Mpls(label.parse()?), target)?)
            }
            ["prefix", rd, prefix, vni, target, mac] => {
                let nlri = Nlri::Prefix { rd: rd.parse()?, prefix: prefix.parse()? };
                let announcement = usual(Label::Vni(vni.parse()?), target)?;
                (nlri, Announcement { router_mac: Some(mac.parse()?), ..announcement })
            }
            ["mac", rd, mac, address, vni, target, sequence] => {
                let (rd, mac, address) = (rd.parse()?, mac.parse()?, Some(address.parse()?));
                let mobility = Some(Mobility { sticky: false, sequence: sequence.parse()? });
                let announcement = usual(Label::Vni(vni.parse()?), target)?;
                (Nlri::Mac { rd, mac, address }, Announcement { mobility, ..announcement })
            }
            ["flood", rd, vni, target] => {
                let nlri = Nlri::Flood { rd: rd.parse()?, originator: self.address };
                (nlri, usual(Label::Vni(vni.parse()?), target)?)
            }
            _ => return Err(format!("'{line}' is no route").into()),
        };
        match words[0] {
            "-" => self.speaker.withdraw(&nlri),
            _ => self.speaker.announce(nlri, announcement),
        }
        Ok(())
    }
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(1))?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Returns a change on one line, for tests to look for.
fn text(change: &Change) -> String {
    let tunnel = |of: &bgp::Tunnel| format!("{} {} {}", of.remote, of.encapsulation.name(), of.label);
    match change {
        Change::Route { vrf, prefix, paths } => {
            let paths: Vec<_> = paths.iter().filter_map(|path| path.tunnel().map(tunnel)).collect();
            format!("route {vrf} {prefix}: {}", paths.join(", "))
        }
        Change::Mac { vrf, mac, path } => match path {
            Some(path) => {
                format!("mac {vrf} {mac}: {} moved {}", tunnel(&path.tunnel), path.mobility.sequence)
            }
            None => format!("mac {vrf} {mac}: "),
        },
        Change::Neighbour { vrf, address, mac } => {
            format!("neighbour {vrf} {address}: {}", mac.map(|mac| mac.to_string()).unwrap_or_default())
        }
        Change::Flood { vrf, tunnels } => {
            let tunnels: Vec<_> = tunnels.iter().map(tunnel).collect();
            format!("flood {vrf}: {}", tunnels.join(", "))
        }
    }
}
