//! The workload: networks, guests, routes and flows, as lines of a card's tables.

use crate::shape::Shape;
use card::cuckoo::{Cuckoo, Entry};
use card::entries::FlowEntry;
use card::expect::{Memory, Outcome, Sizes, outcome};
use card::registers::{
    Bridge, Flow4, Flow6, FlowAction, FlowKind, Label, LabelKind, Nexthop, NexthopKind, Path, Port, Remote,
    Table, Tunnel, Vni, Vrf,
};
use card::route6::Routes6;
use card::sim::SimCard;
use card::step::{Line, Step};
use card::trie::Trie;
use card::{CardError, Commands};
use model::{PacketView, rewrite};
use packet::proto;

/// Number of networks. Each has one guest, and its port has the network's number.
pub const VRFS: u32 = 64;
/// Number of tunnels of MPLS over UDP. They have the first nexthops.
pub const TUNNELS: u32 = 4096;
/// Offsets of the numbers of other nexthops: guests, then GRE and VXLAN tunnels; and the number of each of the latter.
const GUESTS: u32 = 8192;
const GRE: u32 = 10_240;
const VXLAN: u32 = 12_288;
const OTHER_TUNNELS: u32 = 1024;
/// A number from which on nexthops are not on chip.
const IN_MEMORY: u32 = 1 << 17;
/// The first label of a guest, and the first VXLAN network identifier.
pub const LABELS: u32 = 1000;
pub const VNIS: u32 = 5000;
const WIRES: u16 = 200;
/// Number of entries of the filled flow table: four fifths of 2^22.
const FILL: usize = (1 << 22) / 5 * 4;
/// For so many flows of the first shape, there is one flow of each other shape.
const SHAPED: u32 = 32;
/// Number of MACs of other hosts' guests in each network.
pub const MACS: u32 = 128;
/// Number of IPv6 prefixes in each network, and their lengths.
const PREFIXES: u32 = 48;
const LENGTHS: [u8; 3] = [64, 56, 48];
/// Number of flows for which the card's stash has room.
const STASH: u32 = 16;
const SECRET: [u64; 5] = [0x0123_4567_89ab_cdef, 2, 3, 0xfedc_ba98_7654_3210, 5];
pub const HOST: u32 = 0xc0a8_0001;
/// The address of host number 0; tunnels lead to the following ones.
pub const FAR: u32 = 0xc0a8_1000;
pub const HOST_MAC: u64 = 0x0200_0000_0001;
const FAR_MAC: u64 = 0x0200_0001_0000;
/// Binary logarithm of the number of lines for MACs, and for IPv6 prefixes.
const SMALL: u32 = 12;

#[derive(Clone, Copy, PartialEq)]
pub enum Hops {
    OnChip,
    InMemory,
}

/// 0: downstream; 1: upstream.
pub type Direction = usize;

/// The contents of the tables.
pub struct World {
    /// The model of the tables, which determines what the card must do with a packet.
    memory: Commands<Memory>,
    flows: Cuckoo<FlowEntry>,
    lines: Vec<(Table, u32, Line)>,
    /// Lines to be written with commands.
    chip: Vec<(Table, u32, Vec<u8>)>,
    /// Number of flows of the first shape, each in both directions.
    pub count: u32,
    pipes: u8,
    /// Number of the first nexthop.
    first: u32,
    /// Number of flows added so far that have no packets.
    extra: u32,
}

impl World {
    /// Makes tables for `count` flows on a card with so many pipes, with nexthops on chip or not. With `fill`, fills
    /// the flow table with flows that have no packets.
    pub fn new(count: u32, pipes: usize, fill: bool, hops: Hops) -> Result<Self, Box<dyn std::error::Error>> {
        let sizes = Sizes { flow_buckets: 20, bridge_lines: SMALL, route6_lines: SMALL, ..Sizes::default() };
        let mut world = Self {
            memory: Commands::open(Memory::new(sizes))?,
            flows: Cuckoo::new(20, SECRET).with_stash(STASH),
            lines: Vec::new(),
            chip: Vec::new(),
            count,
            pipes: pipes as u8,
            first: if hops == Hops::OnChip { 0 } else { IN_MEMORY },
            extra: 0,
        };
        let (mut trie, mut routes6) = (Trie::new(8192), Routes6::new(SMALL, SECRET));
        let mut steps = Vec::new();
        for vrf in 1..=VRFS {
            let (root, fresh) = trie.add(vrf as u16)?;
            steps.extend(fresh);
            for number in 0..PREFIXES {
                let (prefix, length, nexthop) = world.prefix6(vrf, number);
                steps.extend(routes6.insert(vrf as u16, prefix, length, nexthop)?);
            }
            steps.extend(trie.insert(vrf as u16, guest(vrf), 32, world.first + GUESTS + vrf)?);
            world.network(vrf, root, routes6.lengths(vrf as u16));
        }
        world.nexthops();
        steps.extend(world.macs()?);
        for flow in world.all_flows() {
            let (vrf, nexthop) = (world.vrf(flow), world.nexthop(flow));
            if matches!(Shape::of(flow).0, Shape::Plain | Shape::Gre | Shape::Vxlan) {
                steps.extend(trie.insert(vrf as u16, world.remote(flow), 32, nexthop)?);
            }
            for direction in 0..2 {
                let entry = world.entry(flow, direction);
                steps.extend(world.flows.insert(entry)?);
            }
        }
        // An IPv6 flow takes the room of two.
        let fill = if fill { FILL - 2 * world.count_of(Shape::Ipv6) as usize } else { 0 };
        while world.flows.len() < fill {
            let entry = world.another();
            // A rare flow finds no place within reach of a search; it would go to the stash or stay on the host.
            steps.extend(world.flows.insert(entry).unwrap_or_default());
        }
        for step in &steps {
            match step {
                Step::Write { table, address, data } => {
                    world.memory.write(*table, *address, data)?;
                    world.lines.push((*table, *address, *data));
                }
                Step::Stash { number, lines } => {
                    world.chip.push((Table::Stash, *number, lines.as_flattened().to_vec()));
                }
                Step::Barrier => {}
            }
        }
        for (table, address, line) in &world.chip {
            world.memory.write(*table, *address, line)?;
        }
        world.memory.enable(true);
        world.memory.set_secret(&SECRET);
        Ok(world)
    }

    fn network(&mut self, vrf: u32, root: u32, lengths6: u128) {
        let line = Vrf { valid: true, generation: 7, root, lengths6, ..Vrf::default() };
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
            addresses6: 1,
            address6_0: guest6(vrf),
            ..Port::default()
        };
        self.chip.push((Table::Port, vrf, port.encode().to_vec()));
        let label =
            Label { kind: LabelKind::Nexthop as u8, vrf: vrf as u16, nexthop: self.first + GUESTS + vrf };
        self.chip.push((Table::Label, LABELS + vrf, label.encode().to_vec()));
        let vni = Vni { vni: VNIS + vrf, vrf: vrf as u16, valid: true };
        self.chip.push((Table::Vni, vni.vni & 0xfff, vni.encode().to_vec()));
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
            self.tunnel(number, number, Tunnel::MplsUdp, 16 + number);
            let address = u128::from(FAR + number);
            let remote = Remote { address, valid: true, ..Remote::default() };
            self.chip.push((Table::Remote, address as u32 & 0xfff, remote.encode().to_vec()));
        }
        for number in 0..OTHER_TUNNELS {
            self.tunnel(GRE + number, 1 + number, Tunnel::MplsGre, 16 + number);
            self.tunnel(VXLAN + number, 1 + number, Tunnel::Vxlan, VNIS + 1 + number % VRFS);
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

    /// Adds a nexthop that leads to a host. Its number selects the wire.
    fn tunnel(&mut self, nexthop: u32, host: u32, tunnel: Tunnel, id: u32) {
        let wire = self.wire(nexthop);
        let hop = Nexthop {
            kind: NexthopKind::Tunnel as u8,
            tunnel: tunnel as u8,
            port: WIRES + u16::from(wire),
            egress: self.pipes + wire,
            mtu: 9000,
            id,
            mac: 0x0200_0004_0000 + u64::from(host),
            outer_src: HOST.into(),
            outer_dst: u128::from(FAR + host),
            outer_src_mac: HOST_MAC,
            outer_dst_mac: FAR_MAC + u64::from(host),
            ..Nexthop::default()
        };
        self.chip.push((Table::Nexthop, self.first + nexthop, hop.encode().to_vec()));
    }

    /// Returns the steps that add the MACs of this host's guests and of others'.
    fn macs(&self) -> Result<Vec<Step>, card::cuckoo::Full> {
        let mut table = Cuckoo::new(SMALL, SECRET);
        let mut steps = Vec::new();
        for vrf in 1..=VRFS {
            let blank = Bridge { vrf: vrf as u16, valid: true, fixed: true, ..Bridge::default() };
            let nexthop = self.first + GUESTS + vrf;
            steps.extend(table.insert(Bridge { mac: guest_mac(vrf), nexthop, at: vrf, ..blank })?);
            for number in 0..MACS {
                let nexthop = self.vxlan(vrf, number);
                let at = FAR + 1 + (nexthop - self.first - VXLAN);
                let mac = far_mac(vrf, number);
                steps.extend(table.insert(Bridge { mac, nexthop, at_tunnel: true, at, ..blank })?);
            }
        }
        Ok(steps)
    }

    /// Loads everything onto a card: memory at once, the rest with commands, as the driver does.
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

    /// Returns the number of flows of a shape, each in both directions.
    pub fn count_of(&self, shape: Shape) -> u32 {
        if shape == Shape::Plain { self.count } else { self.count / SHAPED }
    }

    fn all_flows(&self) -> Vec<u32> {
        let of_shape = |shape: Shape| (0..self.count_of(shape)).map(move |number| shape.flow(number));
        // Flows that need a bucket of their own come first.
        let (ipv6, others): (Vec<_>, Vec<_>) =
            Shape::ALL.into_iter().partition(|shape| *shape == Shape::Ipv6);
        ipv6.into_iter().chain(others).flat_map(of_shape).collect()
    }

    pub fn vrf(&self, flow: u32) -> u32 {
        1 + flow % VRFS
    }

    /// Returns the remote address of a flow. Addresses spread over the trie's levels and lines: 16 blocks of 65536
    /// addresses in each network.
    fn remote(&self, flow: u32) -> u32 {
        let (shape, number) = Shape::of(flow);
        let n = number / VRFS;
        (10 + shape as u32) << 24
            | (n % 16 * 17) << 16
            | (n / 16 % 256) << 8
            | n.wrapping_mul(0x9e37_79b1) >> 24
    }

    /// Returns which of `of` IPv6 prefixes or MACs of its network a flow goes to.
    pub fn far(&self, flow: u32, of: u32) -> u32 {
        Shape::of(flow).1 / VRFS % of
    }

    /// Returns an IPv6 prefix of a network, its length, and its nexthop.
    fn prefix6(&self, vrf: u32, number: u32) -> (u128, u8, u32) {
        let prefix = 0x2001_0db8_u128 << 96 | u128::from(vrf) << 88 | u128::from(number) << 80;
        let nexthop = self.first + 1 + number * VRFS + vrf - 1;
        (prefix, LENGTHS[number as usize % LENGTHS.len()], nexthop)
    }

    fn remote6(&self, flow: u32) -> u128 {
        self.prefix6(self.vrf(flow), self.far(flow, PREFIXES)).0 | u128::from(Shape::of(flow).1 + 1)
    }

    /// Returns a VXLAN nexthop of a network. The networks share the VXLAN nexthops equally.
    fn vxlan(&self, vrf: u32, number: u32) -> u32 {
        self.first + VXLAN + number % (OTHER_TUNNELS / VRFS) * VRFS + vrf - 1
    }

    /// Returns the queue to the host that leads to a network's guest.
    const fn queue(&self, vrf: u32) -> u8 {
        vrf as u8 % self.pipes
    }

    /// Returns the wire by which a tunnel leaves.
    const fn wire(&self, nexthop: u32) -> u8 {
        nexthop as u8 % self.pipes
    }

    /// Returns the output of a flow that is not local, as a number among the outputs of its kind.
    pub fn output(&self, flow: u32, direction: Direction) -> u8 {
        if direction == 0 { self.wire(self.nexthop(flow)) } else { self.queue(self.vrf(flow)) }
    }

    fn nexthop(&self, flow: u32) -> u32 {
        let (shape, number) = Shape::of(flow);
        let any = number.wrapping_mul(0x9e37_79b1);
        match shape {
            Shape::Plain if Self::is_local(flow) => self.first + 1 + GUESTS + any % VRFS,
            Shape::Plain => self.first + 1 + any % TUNNELS,
            Shape::Ipv6 => self.prefix6(self.vrf(flow), self.far(flow, PREFIXES)).2,
            Shape::Gre => self.first + GRE + any % OTHER_TUNNELS,
            Shape::Vxlan => self.vxlan(self.vrf(flow), any),
            Shape::Bridged => self.vxlan(self.vrf(flow), self.far(flow, MACS)),
        }
    }

    /// Returns the number of the host from which packets of a flow come.
    pub fn host(&self, flow: u32) -> u32 {
        1 + flow % if Shape::of(flow).0 == Shape::Plain { TUNNELS } else { OTHER_TUNNELS }
    }

    /// Returns whether a flow is between guests of this host: every eighth plain flow is.
    pub const fn is_local(flow: u32) -> bool {
        flow >> 24 == 0 && (flow / VRFS).is_multiple_of(8)
    }

    pub fn entry(&self, flow: u32, direction: Direction) -> FlowEntry {
        let plain = self.entry4(flow, direction);
        if Shape::of(flow).0 != Shape::Ipv6 {
            return FlowEntry::V4(plain);
        }
        let (near, far) = (guest6(self.vrf(flow)), self.remote6(flow));
        let (src, dst) = if direction == 0 { (near, far) } else { (far, near) };
        let Flow4 { sport, dport, protocol, vrf, path, from_tunnel, action, generation, index, .. } = plain;
        let kind = FlowKind::V6Low as u8;
        FlowEntry::V6(Flow6 {
            src,
            dst,
            sport,
            dport,
            protocol,
            vrf,
            path,
            from_tunnel,
            action,
            generation,
            index,
            kind,
            ..Flow6::default()
        })
    }

    fn entry4(&self, flow: u32, direction: Direction) -> Flow4 {
        let (shape, number) = Shape::of(flow);
        let (near, far) = (guest(self.vrf(flow)), self.remote(flow));
        let (src, dst) = if direction == 0 { (near, far) } else { (far, near) };
        let (sport, dport) = if direction == 0 { ports(number) } else { (ports(number).1, ports(number).0) };
        let path = match shape {
            Shape::Bridged => Path::Bridged,
            Shape::Vxlan => Path::Routed,
            _ if direction == 0 => Path::Routed,
            _ => Path::Labelled,
        };
        // Numbers after those that updates use.
        let base = if shape == Shape::Plain { 0 } else { 1 << 22 | (shape as u32) << 17 };
        Flow4 {
            src,
            dst,
            sport,
            dport,
            protocol: proto::UDP,
            vrf: self.vrf(flow) as u16,
            path: path as u8,
            from_tunnel: direction == 1,
            kind: FlowKind::V4 as u8,
            action: FlowAction::Forward as u8,
            generation: 7,
            index: base + 2 * number + direction as u32,
            ..Flow4::default()
        }
    }

    /// Makes a flow that has no packets.
    fn another(&mut self) -> FlowEntry {
        self.extra += 1;
        FlowEntry::V4(Flow4 { protocol: proto::TCP, src: self.extra, ..self.entry4(0, 0) })
    }

    /// Makes an update. Two of three give a flow's line a different counter. The third removes a flow that an earlier
    /// one added, and adds a flow for which others must be moved, if it finds such a flow.
    pub fn update(&mut self, number: u32) -> Vec<Step> {
        if !number.is_multiple_of(3) {
            let flow = number.wrapping_mul(0x9e37_79b1) % self.count;
            let mut entry = self.entry4(flow, number as usize % 2);
            entry.index ^= 1 << 21;
            return self.flows.insert(FlowEntry::V4(entry)).unwrap_or_default();
        }
        let oldest = Flow4 { protocol: proto::TCP, src: number / 3 + 1, ..self.entry4(0, 0) };
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

    /// Returns the port by which a flow's packets come in.
    pub fn port(&self, flow: u32, direction: Direction, pipe: usize) -> u16 {
        if direction == 0 { self.vrf(flow) as u16 } else { WIRES + pipe as u16 }
    }

    /// Returns the output, port and bytes of the packet that must leave.
    pub fn expected(&mut self, port: u16, frame: &[u8]) -> Option<(u8, u16, Vec<u8>)> {
        let Outcome::Forward { forward, egress, .. } = outcome(self.memory.card(), port, frame, frame.len())
        else {
            return None;
        };
        let view = PacketView::parse(frame, frame.len() as u32, None).ok()?;
        Some((egress, forward.port.0, rewrite::rewrite(&forward, &view)?))
    }
}

fn ports(flow: u32) -> (u16, u16) {
    (5000 + (flow % 40_009) as u16, 443)
}

fn guest(vrf: u32) -> u32 {
    172 << 24 | 16 << 16 | vrf
}

pub fn guest_mac(vrf: u32) -> u64 {
    0x0200_0002_0000 + u64::from(vrf)
}

fn guest6(vrf: u32) -> u128 {
    0xfd00_u128 << 112 | u128::from(vrf)
}

/// Returns the MAC of another host's guest.
pub fn far_mac(vrf: u32, number: u32) -> u64 {
    0x0200_0100_0000 + u64::from(vrf << 12 | number)
}
