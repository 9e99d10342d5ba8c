//! Sockets at memory speed: what the tables say about connections between guests.

mod agents;

use crate::forwarder::Forwarder;
use agents::Agents;
use control::SocketsSpec;
use engine::Engine;
use hca::SocketsService;
use matchmaker::{Carriage, End, GuestSpec, Key, Limits, Service, Ways};
use model::{Decision, FlowKey, Forward, GATEWAY_MAC, Nat, PacketView, Verdict, VifId, Vrf};
use packet::{Ethernet, Fragment, Headers, Ip, L3, L4, Mac, proto};
use sockets::Sockets;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Hops of the packets in the question.
const HOPS: u8 = 64;
/// How long connections with other hosts may take to return to TCP.
const PARTS: Duration = Duration::from_secs(2);
/// The ACK flag of a segment.
const ACK: u8 = 16;

type Specs = Arc<Mutex<Known>>;

#[derive(Default)]
struct Known {
    guests: Vec<SocketsSpec>,
    /// Interfaces with captures; `None`: all.
    captures: Vec<Option<VifId>>,
}

/// The service, with the guests that it is for.
pub struct Matchmaker {
    service: Option<Arc<Service>>,
    specs: Specs,
}

struct Tables {
    engine: Weak<Engine>,
    specs: Specs,
}

fn lock(specs: &Specs) -> MutexGuard<'_, Known> {
    specs.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Matchmaker {
    pub fn start(forwarder: &Forwarder) -> Self {
        let specs = Specs::default();
        let tables = Tables { engine: Arc::downgrade(forwarder.engine()), specs: specs.clone() };
        let service = Service::start(Box::new(tables), Limits::default());
        let service =
            service.inspect_err(|error| tracing::error!("sockets of guests stay with TCP: {error}")).ok();
        Self { service: service.map(Arc::new), specs }
    }

    /// Makes what carries connections of a guest's programs to other hosts, if the guest has sockets.
    pub fn carriage(&self, guest: &str) -> Option<Carriage> {
        self.service.as_ref()?.carriage(guest)
    }

    /// Returns connections with other hosts to TCP, which takes seconds at most, before another daemon takes over.
    pub fn part(&self) {
        self.service.iter().for_each(|service| service.part(PARTS));
    }

    /// Notes that no daemon takes over.
    pub fn stay(&self) {
        self.service.iter().for_each(|service| service.stay());
    }

    /// Returns the way in for programs of virtual machines.
    pub fn agents(&self) -> Option<Arc<dyn SocketsService>> {
        Some(Arc::new(Agents(Arc::downgrade(self.service.as_ref()?))))
    }

    pub fn keep(&self, wanted: &[SocketsSpec], maker: Arc<dyn Sockets>) {
        lock(&self.specs).guests = wanted.to_vec();
        let guest = |spec: &SocketsSpec| GuestSpec { guest: spec.guest.clone(), socket: spec.socket.clone() };
        if let Some(service) = &self.service {
            service.keep(wanted.iter().map(guest).collect(), maker);
            service.review();
        }
    }

    pub fn review(&self) {
        self.service.iter().for_each(|service| service.review());
    }

    /// Notes that a capture begins or ends.
    pub fn note_capture(&self, at: Option<VifId>, begins: bool) {
        let mut known = lock(&self.specs);
        if begins {
            known.captures.push(at);
        } else if let Some(found) = known.captures.iter().position(|its| *its == at) {
            known.captures.swap_remove(found);
        }
        drop(known);
        if begins {
            self.review();
        }
    }

    pub fn status(&self) -> matchmaker::Status {
        self.service.as_ref().map(|service| service.status()).unwrap_or_default()
    }

    pub fn problems(&self) -> Vec<(String, String)> {
        self.service.as_ref().map(|service| service.problems()).unwrap_or_default()
    }
}

impl Ways for Tables {
    fn inside(&self, guest: &str, own: SocketAddr, peer: SocketAddr) -> Option<Key> {
        let known = lock(&self.specs);
        let specs = &known.guests;
        let its = specs.iter().find(|spec| spec.guest == guest && spec.addresses.contains(&own.ip()))?;
        let end = |spec: &SocketsSpec, addr: IpAddr, port: u16| End { vrf: spec.vrf.0, addr, port };
        let own_end = end(its, own.ip(), own.port());
        let key = |spec: &SocketsSpec, addr, shown| Key {
            within: None,
            own: own_end,
            peer: end(spec, addr, peer.port()),
            seen: [shown, peer.ip()],
        };
        if let Some(spec) =
            specs.iter().find(|spec| spec.vrf == its.vrf && spec.addresses.contains(&peer.ip()))
        {
            return Some(key(spec, peer.ip(), own.ip()));
        }
        let engine = self.engine.upgrade()?;
        let there = translated(&engine, its, own, peer)?;
        let spec = specs.iter().find(|spec| spec.vif == there.port)?;
        let addr = there.nat.dst.filter(|inside| spec.addresses.contains(inside))?;
        Some(key(spec, addr, there.nat.src.unwrap_or(own.ip())))
    }

    fn elsewhere(&self, guest: &str, own: SocketAddr, peer: SocketAddr) -> Option<Key> {
        let specs = &lock(&self.specs).guests;
        let its = specs.iter().find(|spec| spec.guest == guest && spec.addresses.contains(&own.ip()))?;
        if specs.iter().any(|spec| spec.vrf == its.vrf && spec.addresses.contains(&peer.ip())) {
            return None;
        }
        let end = |of: SocketAddr| End { vrf: its.vrf.0, addr: of.ip(), port: of.port() };
        Some(Key { within: None, own: end(own), peer: end(peer), seen: [own.ip(), peer.ip()] })
    }

    fn may_carry(&self, guest: &str, key: &Key) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let known = lock(&self.specs);
        let is_its = |spec: &&SocketsSpec| spec.guest == guest && spec.addresses.contains(&key.own.addr);
        let Some(its) = known.guests.iter().find(is_its).cloned() else { return false };
        let is_seen = |at: &Option<VifId>| at.is_none_or(|at| at == its.vif);
        if its.is_watched || known.captures.iter().any(is_seen) {
            return false;
        }
        drop(known);
        let address = |end: &End| SocketAddr::new(end.addr, end.port);
        let decision = decide(&engine, &its, GATEWAY_MAC, (address(&key.own), address(&key.peer)));
        let sent = |forward: &Forward| forward.encap.is_some() && forward.nat == Nat::default();
        !is_watched(&decision) && matches!(&decision.verdict, Verdict::Forward(forward) if sent(forward))
    }

    fn may_share(&self, (a, b): (&str, &str), key: &Key) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let known = lock(&self.specs);
        let spec = |guest: &str, end: &End| {
            let is_its = |spec: &&SocketsSpec| {
                spec.guest == guest && spec.vrf.0 == end.vrf && spec.addresses.contains(&end.addr)
            };
            known.guests.iter().find(is_its).cloned()
        };
        let (Some(a), Some(b)) = (spec(a, &key.own), spec(b, &key.peer)) else { return false };
        let is_seen = |at: &Option<VifId>| at.is_none_or(|at| at == a.vif || at == b.vif);
        if known.captures.iter().any(is_seen) {
            return false;
        }
        drop(known);
        let trusted = a.trust.is_some() && a.trust == b.trust && a.vrf == b.vrf;
        trusted
            && !a.is_watched
            && !b.is_watched
            && delivers(&engine, &a, &b, key)
            && delivers(&engine, &b, &a, &key.reverse())
    }

    fn in_use(&self, key: &Key, bytes: (u64, u64)) {
        if let Some(engine) = self.engine.upgrade() {
            let of = |end: &End| (Vrf(end.vrf), end.addr);
            let (own, peer) = (&key.own, &key.peer);
            engine.count_flow(&FlowKey::new(of(own), of(peer), proto::TCP, (own.port, peer.port)), bytes);
        }
    }
}

/// Returns what workers would do with a segment from a guest to an address that is no guest's of its network, if they
/// would send it somewhere on this host: NAT says whose it is.
fn translated(engine: &Engine, from: &SocketsSpec, own: SocketAddr, peer: SocketAddr) -> Option<Forward> {
    match decide(engine, from, GATEWAY_MAC, (own, peer)).verdict {
        Verdict::Forward(forward) if forward.encap.is_none() => Some(forward),
        _ => None,
    }
}

/// Decides about a segment of a guest, in the middle of a stream.
fn decide(engine: &Engine, from: &SocketsSpec, mac: Mac, ends: (SocketAddr, SocketAddr)) -> Decision {
    let headers = headers(from.mac, mac, ends);
    let len = headers.ip().map_or(0, |ip| u32::from(ip.at) + ip.len);
    engine.decide(from.vif, &PacketView { bytes: &[], len, gso_size: None, headers, checked: true })
}

/// Returns whether somebody counts or copies the packets of a decision.
fn is_watched(decision: &Decision) -> bool {
    let effects = &decision.effects;
    !(effects.meters.is_empty() && effects.mirror_in.is_empty() && effects.mirror_out.is_empty())
}

/// Returns whether workers would do nothing but deliver the segments of one direction, and translate their addresses.
fn delivers(engine: &Engine, from: &SocketsSpec, to: &SocketsSpec, key: &Key) -> bool {
    let [shown, seen] = key.seen;
    let ends = (SocketAddr::new(key.own.addr, key.own.port), SocketAddr::new(seen, key.peer.port));
    let nat = |from: IpAddr, to: IpAddr| (from != to).then_some(to);
    let nat = Nat { src: nat(key.own.addr, shown), dst: nat(seen, key.peer.addr), ..Nat::default() };
    // On its way to a neighbour a frame has his MAC, otherwise the gateway's.
    [to.mac.unwrap_or(GATEWAY_MAC), GATEWAY_MAC].into_iter().any(|destination| {
        let decision = decide(engine, from, destination, ends);
        let delivered =
            |forward: &Forward| forward.port == to.vif && forward.encap.is_none() && forward.nat == nat;
        !is_watched(&decision) && matches!(&decision.verdict, Verdict::Forward(forward) if delivered(forward))
    })
}

/// Makes the headers of a segment in the middle of the stream.
fn headers(mac: Option<Mac>, destination: Mac, (own, peer): (SocketAddr, SocketAddr)) -> Headers {
    let (ethertype, header_len) = match own.ip() {
        IpAddr::V4(_) => (proto::ETHERTYPE_IPV4, proto::IPV4_LEN),
        IpAddr::V6(_) => (proto::ETHERTYPE_IPV6, proto::IPV6_LEN),
    };
    let l3_at = proto::ETHERNET_LEN as u16;
    let ip = Ip {
        at: l3_at,
        header_len: header_len as u16,
        len: (header_len + 20) as u32,
        src: own.ip(),
        dst: peer.ip(),
        protocol: proto::TCP,
        ttl: HOPS,
        tos: 0,
        fragment: Fragment::Whole,
        dont_fragment: true,
    };
    let (src, dst) = (own.port(), peer.port());
    let segment = L4::Tcp { src, dst, flags: ACK, header_len: 20, seq: 0, ack: 0, window: 1000, scale: None };
    Headers {
        eth: Some(Ethernet {
            dst: destination,
            src: mac.unwrap_or(GATEWAY_MAC),
            ethertype,
            ..Ethernet::default()
        }),
        l3_at,
        l3: L3::Ip(ip),
        l4: segment,
        l4_at: l3_at + header_len as u16,
        ..Headers::default()
    }
}
