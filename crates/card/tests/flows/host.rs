//! A host with a card, and guests with tracked connections.

use card::Commands;
use card::compile::Attachment;
use card::cuckoo::Entry;
use card::driver::Driver;
use card::entries;
use card::expect::{Memory, Outcome, Sizes, outcome};
use card::frame::{Frame, Key};
use card::hash::choices;
use card::hold::Hold;
use card::registers::Path;
use model::{Change, Network, PacketView, Tables, Vif, VifId, VifKind, Vrf, decide, text};
use packet::Mac;

pub const VRF: Vrf = Vrf(5);
pub const SECRET: [u64; 5] = [9; 5];

pub fn guests() -> impl Iterator<Item = u16> {
    1..=20
}

/// A host with a card and twenty guests.
pub struct Host {
    pub tables: Tables,
    pub driver: Driver<Memory>,
}

fn guest(id: u16) -> Change {
    Change::PutVif(Vif {
        vrf: Some(VRF),
        mac: Some(Mac([2, 0, 0, 0, 0, id as u8])),
        addresses: vec![[10, 0, 0, id as u8].into(), [0xfd00, 0, 0, 0, 0, 0, 0, id].into()],
        policy: true,
        ..Vif::new(VifId(id), "guest", VifKind::Vhost)
    })
}

impl Host {
    pub fn new(sizes: Sizes) -> Self {
        Self::with(Memory::new(sizes))
    }

    pub fn with(memory: Memory) -> Self {
        let driver = Driver::new(Commands::open(memory).unwrap(), SECRET).unwrap();
        let mut host = Self { tables: Tables::new(), driver };
        let network = Change::PutNetwork(Network {
            members: guests().map(VifId).collect(),
            ..Network::new(VRF, "net")
        });
        let changes: Vec<_> = std::iter::once(network).chain(guests().map(guest)).collect();
        host.tables.apply(&changes).unwrap();
        for id in guests() {
            let at = Attachment { port: id, egress: 0 };
            host.driver.attach(&host.tables, VifId(id), Some(at)).unwrap();
        }
        host.driver.apply(&host.tables, &changes).unwrap();
        host
    }

    pub fn card(&mut self, from: u16, frame: &[u8]) -> Outcome {
        outcome(self.driver.commands().card(), from, frame, frame.len())
    }

    /// Decides about a frame as the host does, and updates the card.
    pub fn host(&mut self, from: u16, frame: &[u8]) {
        self.host_behind(None, from, frame);
    }

    /// Does the same as [`Self::host`], but the flow's packets wait on the card. Returns the flow's key if the flow is
    /// on the card.
    pub fn host_behind(&mut self, hold: Option<Hold>, from: u16, frame: &[u8]) -> Option<Key> {
        let mut view = PacketView::parse(frame, frame.len() as u32, None).unwrap();
        view.checked = true;
        let decision = decide(&self.tables, &view, VifId(from), 0);
        assert!(matches!(decision.verdict, model::Verdict::Forward(_)), "{decision:?}");
        self.tables.commit(&decision.effects, frame.len(), 0).unwrap();
        self.driver.decided_behind(hold, &self.tables, &view, VifId(from), &decision).unwrap()
    }

    /// Returns whether the card forwards a frame; if not, the host must get it.
    pub fn is_on_card(&mut self, from: u16, frame: &[u8]) -> bool {
        match self.card(from, frame) {
            Outcome::Forward { index, .. } => index.is_some(),
            Outcome::Punt(card::registers::Punt::FlowMiss) => false,
            outcome => panic!("{outcome:?}"),
        }
    }
}

/// Makes an IPv4 packet of the flow with these ports.
pub fn frame(from: u16, to: u16, ports: (u16, u16)) -> Vec<u8> {
    datagram(from, to, &format!("ip4 10.0.0.{from} > 10.0.0.{to}"), ports)
}

/// Makes an IPv6 packet of the flow with these ports.
pub fn frame6(from: u16, to: u16, ports: (u16, u16)) -> Vec<u8> {
    datagram(from, to, &format!("ip6 fd00::{from:x} > fd00::{to:x}"), ports)
}

fn datagram(from: u16, to: u16, ip: &str, (sport, dport): (u16, u16)) -> Vec<u8> {
    let eth = format!("eth 02:00:00:00:00:{from:02x} > 02:00:00:00:00:{to:02x}");
    text::parse(&format!("{eth} / {ip} / udp {sport} > {dport} / payload 20")).unwrap()
}

pub fn key(frame: &[u8]) -> Key {
    Frame::parse(frame, frame.len(), false).unwrap().key(VRF.0, Path::Bridged).unwrap()
}

/// Finds ports of UDP flows from the first guest to the second, as an attacker who knew the secret would choose them:
/// in a table of 2^`bits` buckets per way, all of them hash to the same two buckets.
pub fn colliding(v6: bool, bits: u32) -> impl Iterator<Item = (u16, u16)> {
    let model = key(&if v6 { frame6(1, 2, (0, 0)) } else { frame(1, 2, (0, 0)) });
    let buckets = move |key: &Key| {
        choices(&entries::FlowEntry::from(key).key(), &SECRET).map(|choice| choice & ((1 << bits) - 1))
    };
    let wanted = buckets(&key(&frame(1, 2, (0, 0))));
    let all = (0..=u16::MAX).flat_map(|sport| (0..=u16::MAX).map(move |dport| (sport, dport)));
    all.filter(move |ports| buckets(&Key { ports: *ports, ..model }) == wanted)
}
