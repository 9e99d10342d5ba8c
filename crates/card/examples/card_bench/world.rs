//! The workload: networks, guests, routes and flows, as lines of a card's tables.

use card::cuckoo::{Cuckoo, Entry};
use card::entries::FlowEntry;
use card::expect::{Memory, Outcome, Sizes, outcome};
use card::registers::{
    Flow4, FlowAction, Label, LabelKind, Nexthop, NexthopKind, Path, Port, Remote, Table, Tunnel, Vrf,
};
use card::sim::SimCard;
use card::step::{Line, Step};
use card::trie::Trie;
use card::{CardError, Commands};
use model::{PacketView, rewrite};
use packet::{Mac, build, proto};
use std::net::Ipv4Addr;

/// Networks, with a guest each, whose port has the network's number.
pub const VRFS: u32 = 64;
/// Tunnels: nexthops from the first on.
const TUNNELS: u32 = 4096;
/// Nexthops of guests come behind that many.
const GUESTS: u32 = 8192;
/// A number from which on nexthops are not on chip.
const IN_MEMORY: u32 = 1 << 17;
/// The first label of a guest.
const LABELS: u32 = 1000;
/// The first wire's port.
const WIRES: u16 = 200;
/// Entries of the filled flow table: four fifths of 2^22.
const FILL: usize = (1 << 22) / 5 * 4;
const SECRET: [u64; 5] = [0x0123_4567_89ab_cdef, 2, 3, 0xfedc_ba98_7654_3210, 5];
const HOST: u32 = 0xc0a8_0001;
const HOST_MAC: u64 = 0x0200_0000_0001;
/// Bytes of a frame from a guest before its payload.
const INNER: usize = 42;
/// Bytes in front of a guest's IP packet on a wire: Ethernet, IPv4, UDP, label.
const OUTER: usize = 46;

/// Where nexthops are.
#[derive(Clone, Copy, PartialEq)]
pub enum Hops {
    OnChip,
    InMemory,
}

/// Downstream, upstream.
pub type Direction = usize;

/// What the tables hold.
pub struct World {
    /// The tables in Rust, which say what becomes of a packet.
    memory: Commands<Memory>,
    flows: Cuckoo<FlowEntry>,
    lines: Vec<(Table, u32, Line)>,
    /// What is written by commands.
    chip: Vec<(Table, u32, Vec<u8>)>,
    /// How many flows there are, each in both directions.
    pub count: u32,
    pipes: u8,
    /// Nexthops count from here.
    first: u32,
    /// Flows that no packet is of, so far.
    extra: u32,
}

impl World {
    /// Tables for that many flows on a card with so many pipes, its nexthops on chip or not; the flow table filled up
    /// with others that no packet is of.
    pub fn new(count: u32, pipes: usize, fill: bool, hops: Hops) -> Result<Self, Box<dyn std::error::Error>> {
        let sizes = Sizes { flow_buckets: 20, bridge_lines: 12, route6_lines: 12, ..Sizes::default() };
        let mut world = Self {
            memory: Commands::open(Memory::new(sizes))?,
            flows: Cuckoo::new(20, SECRET),
            lines: Vec::new(),
            chip: Vec::new(),
            count,
            pipes: pipes as u8,
            first: if hops == Hops::OnChip { 0 } else { IN_MEMORY },
            extra: 0,
        };
        let mut trie = Trie::new(8192);
        let mut steps = Vec::new();
        for vrf in 1..=VRFS {
            let (root, fresh) = trie.add(vrf as u16)?;
            steps.extend(fresh);
            world.network(vrf, root);
        }
        world.nexthops();
        for flow in 0..count {
            let (vrf, dst, nexthop) = (world.vrf(flow), world.remote(flow), world.nexthop(flow));
            steps.extend(trie.insert(vrf as u16, dst, 32, nexthop)?);
            for direction in 0..2 {
                let entry = FlowEntry::V4(world.entry(flow, direction));
                steps.extend(world.flows.insert(entry)?);
            }
        }
        while fill && world.flows.len() < FILL {
            let entry = world.another();
            steps.extend(world.flows.insert(entry)?);
        }
        for step in &steps {
            if let Step::Write { table, address, data } = step {
                world.memory.write(*table, *address, data)?;
                world.lines.push((*table, *address, *data));
            }
        }
        for (table, address, line) in &world.chip {
            world.memory.write(*table, *address, line)?;
        }
        world.memory.enable(true);
        world.memory.set_secret(&SECRET);
        Ok(world)
    }

    fn network(&mut self, vrf: u32, root: u32) {
        let line = Vrf { valid: true, generation: 7, root, lengths6: u128::MAX, ..Vrf::default() };
        self.chip.push((Table::Vrf, vrf, line.encode().to_vec()));
        let port = Port {
            valid: true,
            policy: true,
            check_mac: true,
            check_addresses: true,
            addresses4: 1,
            vrf: vrf as u16,
            mac: guest_mac(vrf),
            address4_0: guest(vrf),
            ..Port::default()
        };
        self.chip.push((Table::Port, vrf, port.encode().to_vec()));
        let label =
            Label { kind: LabelKind::Nexthop as u8, vrf: vrf as u16, nexthop: self.first + GUESTS + vrf };
        self.chip.push((Table::Label, LABELS + vrf, label.encode().to_vec()));
        let hop = Nexthop {
            kind: NexthopKind::Guest as u8,
            policy: true,
            port: vrf as u16,
            egress: self.queue(vrf),
            mtu: 9000,
            mac: guest_mac(vrf),
            ..Nexthop::default()
        };
        self.chip.push((Table::Nexthop, self.first + GUESTS + vrf, hop.encode().to_vec()));
    }

    fn nexthops(&mut self) {
        for number in 1..=TUNNELS {
            let wire = self.wire(number);
            let hop = Nexthop {
                kind: NexthopKind::Tunnel as u8,
                tunnel: Tunnel::MplsUdp as u8,
                port: WIRES + u16::from(wire),
                egress: self.pipes + wire,
                mtu: 9000,
                id: 16 + number,
                outer_src: HOST.into(),
                outer_dst: u128::from(0xc0a8_1000 + number),
                outer_src_mac: HOST_MAC,
                outer_dst_mac: 0x0200_0001_0000 + u64::from(number),
                ..Nexthop::default()
            };
            self.chip.push((Table::Nexthop, self.first + number, hop.encode().to_vec()));
            let remote = Remote { address: hop.outer_dst, valid: true, ..Remote::default() };
            self.chip.push((Table::Remote, hop.outer_dst as u32 & 0xfff, remote.encode().to_vec()));
        }
        for wire in 0..u32::from(self.pipes) {
            let port = Port {
                valid: true,
                is_wire: true,
                mac: HOST_MAC,
                addresses4: 1,
                address4_0: HOST,
                ..Port::default()
            };
            self.chip.push((Table::Port, u32::from(WIRES) + wire, port.encode().to_vec()));
        }
    }

    /// Puts everything onto a card: memory at once, the rest as its driver does.
    pub fn load(&self, card: &mut Commands<SimCard>) -> Result<(), CardError> {
        for (table, address, line) in &self.lines {
            card.card().load(*table, *address, line);
        }
        card.set_secret(&SECRET);
        for (table, address, line) in &self.chip {
            card.write(*table, *address, line)?;
        }
        card.enable(true);
        Ok(())
    }

    // ---- Flows

    fn vrf(&self, flow: u32) -> u32 {
        1 + flow % VRFS
    }

    /// Spread over the trie's levels, and over their lines: 16 blocks of 65536 addresses in each network.
    fn remote(&self, flow: u32) -> u32 {
        let n = flow / VRFS;
        10 << 24 | (n % 16 * 17) << 16 | (n / 16 % 256) << 8 | n.wrapping_mul(0x9e37_79b1) >> 24
    }

    /// The queue to the host by which a network's guest is reached.
    const fn queue(&self, vrf: u32) -> u8 {
        vrf as u8 % self.pipes
    }

    /// The wire that a tunnel leaves by.
    const fn wire(&self, nexthop: u32) -> u8 {
        nexthop as u8 % self.pipes
    }

    /// The output that packets of a flow which is not local leave by, counted among those of its kind.
    pub fn output(&self, flow: u32, direction: Direction) -> u8 {
        if direction == 0 { self.wire(self.nexthop(flow)) } else { self.queue(self.vrf(flow)) }
    }

    fn nexthop(&self, flow: u32) -> u32 {
        let any = flow.wrapping_mul(0x9e37_79b1);
        self.first + 1 + if Self::is_local(flow) { GUESTS + any % VRFS } else { any % TUNNELS }
    }

    /// Whether it is between guests of this host: every eighth.
    pub const fn is_local(flow: u32) -> bool {
        (flow / VRFS).is_multiple_of(8)
    }

    fn entry(&self, flow: u32, direction: Direction) -> Flow4 {
        let (near, far) = (guest(self.vrf(flow)), self.remote(flow));
        let (src, dst) = if direction == 0 { (near, far) } else { (far, near) };
        let (sport, dport) = if direction == 0 { ports(flow) } else { (ports(flow).1, ports(flow).0) };
        Flow4 {
            src,
            dst,
            sport,
            dport,
            protocol: proto::UDP,
            vrf: self.vrf(flow) as u16,
            path: if direction == 0 { Path::Routed as u8 } else { Path::Labelled as u8 },
            from_tunnel: direction == 1,
            kind: card::registers::FlowKind::V4 as u8,
            action: FlowAction::Forward as u8,
            generation: 7,
            index: 2 * flow + direction as u32,
            ..Flow4::default()
        }
    }

    /// A flow that no packet is of.
    fn another(&mut self) -> FlowEntry {
        self.extra += 1;
        FlowEntry::V4(Flow4 { protocol: proto::TCP, src: self.extra, ..self.entry(0, 0) })
    }

    /// What an update does. Two of three give a flow's line another counter; the third adds a flow for which others
    /// have to be moved, if such a one is found, and takes one away that was added before.
    pub fn update(&mut self, number: u32) -> Vec<Step> {
        if !number.is_multiple_of(3) {
            let flow = number.wrapping_mul(0x9e37_79b1) % self.count;
            let mut entry = self.entry(flow, number as usize % 2);
            entry.index ^= 1 << 21;
            return self.flows.insert(FlowEntry::V4(entry)).unwrap_or_default();
        }
        let oldest = Flow4 { protocol: proto::TCP, src: number / 3 + 1, ..self.entry(0, 0) };
        let mut steps = self.flows.remove(&FlowEntry::V4(oldest).key());
        for _ in 0..100 {
            let entry = self.another();
            let key = entry.key();
            let added = self.flows.insert(entry).unwrap_or_default();
            if added.contains(&Step::Barrier) {
                steps.extend(added);
                break;
            }
            self.flows.remove(&key);
        }
        steps
    }

    // ---- Packets

    /// The port that a flow's packets come in by.
    pub fn port(&self, flow: u32, direction: Direction, pipe: usize) -> u16 {
        if direction == 0 { self.vrf(flow) as u16 } else { WIRES + pipe as u16 }
    }

    /// A packet: the frame that a guest sends or gets is of `size` bytes. It carries what tells it from others.
    pub fn packet(&self, flow: u32, direction: Direction, size: usize, mark: Mark) -> Vec<u8> {
        let entry = self.entry(flow, direction);
        let vrf = self.vrf(flow);
        let mut out = vec![0; size.max(60) + OUTER];
        let mut at = 0;
        let inner = size - 14;
        if direction == 0 {
            at += ethernet(&mut out, model::GATEWAY_MAC, mac(guest_mac(vrf)), proto::ETHERTYPE_IPV4);
        } else {
            at += ethernet(&mut out, mac(HOST_MAC), mac(0x0200_0001_0000), proto::ETHERTYPE_IPV4);
            let source = 0xc0a8_1001 + flow % TUNNELS;
            at += ipv4(&mut out[at..], source, HOST, 20 + 8 + 4 + inner);
            at += udp(&mut out[at..], 49152 + flow as u16 % 16384, 6635, 8 + 4 + inner);
            out[at..at + 4].copy_from_slice(&((LABELS + vrf) << 12 | 1 << 8 | 64).to_be_bytes());
            at += 4;
        }
        at += ipv4(&mut out[at..], entry.src, entry.dst, inner);
        at += udp(&mut out[at..], entry.sport, entry.dport, inner - 20);
        out.truncate(at + inner - 28);
        for (bytes, word) in out[at..].chunks_mut(4).zip([flow, mark.number, mark.cycle]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// What leaves where for it: output, port, bytes.
    pub fn expected(&mut self, port: u16, frame: &[u8]) -> Option<(u8, u16, Vec<u8>)> {
        let Outcome::Forward { forward, egress, .. } = outcome(self.memory.card(), port, frame, frame.len())
        else {
            return None;
        };
        let view = PacketView::parse(frame, frame.len() as u32, None).ok()?;
        Some((egress, forward.port.0, rewrite::rewrite(&forward, &view)?))
    }
}

/// What tells a packet from others of its flow.
#[derive(Clone, Copy)]
pub struct Mark {
    /// Counts within the flow.
    pub number: u32,
    /// When it came.
    pub cycle: u32,
}

/// Flow and mark of a packet that left by a wire, or to a guest.
pub fn read_mark(frame: &[u8], by_wire: bool) -> Option<(u32, Mark)> {
    let at = if by_wire { OUTER + INNER - 14 } else { INNER };
    let word = |n: usize| Some(u32::from_le_bytes(frame.get(at + 4 * n..at + 4 * n + 4)?.try_into().ok()?));
    Some((word(0)?, Mark { number: word(1)?, cycle: word(2)? }))
}

fn ports(flow: u32) -> (u16, u16) {
    (5000 + (flow % 40_009) as u16, 443)
}

fn guest(vrf: u32) -> u32 {
    172 << 24 | 16 << 16 | vrf
}

fn guest_mac(vrf: u32) -> u64 {
    0x0200_0002_0000 + u64::from(vrf)
}

fn mac(bits: u64) -> Mac {
    let bytes = bits.to_be_bytes();
    Mac(std::array::from_fn(|at| bytes[at + 2]))
}

fn ipv4(out: &mut [u8], src: u32, dst: u32, len: usize) -> usize {
    let (src, dst) = (Ipv4Addr::from_bits(src), Ipv4Addr::from_bits(dst));
    let (id, tos, len) = (0, 0, len as u16);
    let header = build::Ipv4 { src, dst, protocol: proto::UDP, ttl: 64, tos, id, dont_fragment: true, len };
    build::ipv4(out, &header).expect("room for a header")
}

fn udp(out: &mut [u8], src: u16, dst: u16, len: usize) -> usize {
    build::udp(out, src, dst, len as u16, 0).expect("room for a header")
}

fn ethernet(out: &mut [u8], dst: Mac, src: Mac, ethertype: u16) -> usize {
    out[..6].copy_from_slice(&dst.0);
    out[6..12].copy_from_slice(&src.0);
    out[12..14].copy_from_slice(&ethertype.to_be_bytes());
    14
}
