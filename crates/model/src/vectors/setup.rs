//! Tables as lines of text.

use super::Step;
use super::ovs::Flows;
use crate::snat::{ForwardedPort, Mapping, SharedAddress};
use crate::{
    Action, BridgeTarget, Change, Effects, FloatingAddress, GATEWAY_MAC, Host, KernelPath, L2Gateway, Learn,
    MeterConfig, MeterId, Midstream, Modifier, NeighbourFound, NeighbourScope, Network, Nexthop, NexthopId,
    PathMtu, PortRange, Rule, RuleAction, RuleId, Sharing, Tunnel, Vif, VifId, VifKind, Vrf, WireAttachment,
    WireAttributes,
};
use ipnet::IpNet;
use packet::{Mac, TunnelKind};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

/// Tables under construction, and their names. As with the control plane, a network comes with routes to its gateways,
/// subnets and guests.
///
/// ```text
/// host ADDR... [peer PREFIX]...
/// wire NAME [mac M] [address PREFIX]... [gateway ADDR]... [mtu N] [down] [shared]
/// network NAME vrf N [gateway PREFIX]... [vni N] [l3vni N] [learning] [mtu N] [default ACTION] [wire NAME] [vlan N]
///         [l2-gateway here|elsewhere] [no-midstream|reverse-midstream] [asymmetric] [mss-clamp] [routed-outside] [dhcp] [ra] [dns]
/// guest NAME in NETWORK [kind tap|rdma] [mac M] [macs M]... [address ADDR]... [allowed PREFIX]... [mtu N] [policy]
///       [rdma] [router] [dhcp-server] [mirror NAME] [rate BITS/S BYTES] [dscp N]
/// vlan GUEST ID in NETWORK [address ADDR]... [allowed PREFIX]...      (of a guest: the interface GUEST:ID)
/// route NETWORK PREFIX > TARGET [, TARGET]...
/// mac NETWORK MAC > TARGET
/// flood NETWORK > TARGET
/// remote-mirror NAME REMOTE VNI
/// label N > TARGET
/// vni N > NETWORK                          (beside the network's own)
/// nat NETWORK ADDR = NETWORK ADDR          (inside, outside)
/// snat NETWORK = NETWORK ADDR... [ports N] [endpoint-independent]     (inside, outside)
/// forward NETWORK PROTOCOL ADDR PORT > ADDR PORT     (inside network; outside, inside)
/// rule NETWORK PRIORITY [from PREFIX] [to PREFIX] [protocol N] [ports FIRST LAST]
///      ACTION | mirror NAME | police BITS/S BYTES
/// delete rule NETWORK ID
/// neighbour NAME ADDR at MAC               (of a wire or network, learned)
/// learned NETWORK MAC at NAME | ADDR [VNI]
/// path ADDR mtu N                          (to a remote, learned)
/// kernel ADDR [WIRE ADDR MAC|unknown [weight N] [mtu N]]...    (the kernel's paths to a remote)
/// down ADDR [WIRE ADDR]                    (a remote, or one of the paths to it; `up`: no more)
/// ovs NAME [mtu N] [rate BITS/S BYTES] [rules NETWORK]     (a guest that an Open vSwitch programs, and its OVS side,
///                                                          `NAME:ovs`)
/// ovs-tunnel NAME vxlan|geneve REMOTE VNI [mtu N]          (the port of a tunnel; the same)
/// flow NAME [FIELD]... > ACTION [, ACTION]...
/// ```
///
/// `rdma` gives a guest a verbs device beside its port: the interface `NAME:rdma`.
///
/// A target is `drop`, `receive`, `guest NAME [mac M]`, `network NAME`, `resolve [ADDR]`, or a tunnel:
/// `mpls-over-udp`, `mpls-over-gre` or `vxlan`, then `REMOTE ID [mac M]`. Rules are numbered from 1.
///
/// Fields of a flow are `untagged` or NAME VALUE[/MASK] with a name of `eth-src`, `eth-dst`, `type`, `vlan`,
/// `vlan-type`, `src`, `dst` (with the length of a prefix), `proto`, `tos`, `ttl`, `frag` (`no`, `yes`, `first`,
/// `later`), `sport`, `dport`, `flags`. Actions are `output NAME`, `drop`, `push [service]`, `vid N`, `pcp N`, `pop`,
/// `encap PACKET` (headers alone), and `eth-src`, `eth-dst`, `src`, `dst`, `ttl`, `dscp`, `sport`, `dport` with a
/// value.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    vif_names: Vec<String>,
    network_names: Vec<(String, Vrf)>,
    vifs: BTreeMap<VifId, Vif>,
    networks: BTreeMap<Vrf, Network>,
    nexthops: Vec<Nexthop>,
    meters: u32,
    rules: u32,
    /// Changes that the other fields don't hold.
    changes: Vec<Change>,
    pub(super) ovs: Flows,
    learned: Vec<Effects>,
    changed: bool,
}

pub(super) type Words<'t> = std::iter::Peekable<std::str::SplitWhitespace<'t>>;

pub(super) fn value<V: FromStr>(words: &mut Words<'_>) -> Result<V, String> {
    let word = words.next().ok_or("ends too early")?;
    word.parse().map_err(|_| format!("'{word}' is not understood"))
}

pub(super) fn must(words: &mut Words<'_>, expected: &str) -> Result<(), String> {
    if words.next() == Some(expected) { Ok(()) } else { Err(format!("'{expected}' expected")) }
}

impl Setup {
    /// Takes in a line.
    ///
    /// # Errors
    /// The error in the line.
    pub fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace().peekable();
        match words.next().unwrap_or_default() {
            "host" => self.host(&mut words)?,
            "wire" => self.wire(&mut words)?,
            "network" => self.network(&mut words)?,
            "guest" => self.guest(&mut words)?,
            "vlan" => self.vlan(&mut words)?,
            "route" => self.route(&mut words)?,
            "mac" => self.mac(&mut words)?,
            "flood" => self.flood(&mut words)?,
            "label" => self.label(&mut words)?,
            "remote-mirror" => self.remote_mirror(&mut words)?,
            "vni" => self.vni(&mut words)?,
            "nat" => self.nat(&mut words)?,
            "snat" => self.snat(&mut words)?,
            "forward" => self.forward(&mut words)?,
            "rule" => self.rule(&mut words)?,
            "delete" => self.delete(&mut words)?,
            "neighbour" => self.neighbour(&mut words)?,
            "learned" => self.learned(&mut words)?,
            "path" => self.path(&mut words)?,
            "kernel" => self.kernel_paths(&mut words)?,
            "owner" => self.owner(&mut words)?,
            "down" => self.set_down(&mut words, true)?,
            "up" => self.set_down(&mut words, false)?,
            "ovs" => self.ovs_port(&mut words)?,
            "ovs-tunnel" => self.ovs_tunnel(&mut words)?,
            "flow" => self.flow(&mut words)?,
            other => return Err(format!("'{other}' is no table")),
        }
        self.changed = true;
        match words.next() {
            Some(word) => Err(format!("'{word}' is not understood")),
            None => Ok(()),
        }
    }

    /// Returns the steps that bring the tables up to date, if anything changed.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
        if !std::mem::take(&mut self.changed) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        let mut networks = self.networks.clone();
        for vif in self.vifs.values().filter(|vif| !vif.is_second()) {
            if let Some(network) = vif.vrf.and_then(|vrf| networks.get_mut(&vrf)) {
                network.members.push(vif.id);
            }
        }
        for network in networks.values() {
            changes.extend(self.implied(network));
        }
        changes.append(&mut self.changes);
        changes.extend(networks.into_values().map(Change::PutNetwork));
        changes.extend(self.vifs.values().cloned().map(Change::PutVif));
        let nexthops = self.nexthops.iter().cloned().zip(1..);
        changes.extend(nexthops.map(|(nexthop, id)| Change::PutNexthop(NexthopId(id), nexthop)));
        let learned =
            std::mem::take(&mut self.learned).into_iter().map(|effects| Step::Learn(Box::new(effects)));
        std::iter::once(Step::Apply(changes)).chain(learned).collect()
    }

    /// Returns what the control plane derives from a network: routes to gateways, subnets and guests; the
    /// network's VNI.
    fn implied(&mut self, network: &Network) -> Vec<Change> {
        let vrf = network.vrf;
        let mut routes = Vec::new();
        for gateway in &network.gateways {
            routes.push((*gateway, Nexthop::Resolve { via: None }));
            routes.push((gateway.addr().into(), Nexthop::Receive));
        }
        for vif in self.vifs.values().filter(|vif| vif.vrf == Some(vrf)) {
            if let Some(mac) = vif.mac {
                let encap = Nexthop::Encap { vif: vif.id, mac };
                routes.extend(vif.addresses.iter().map(|addr| (IpNet::from(*addr), encap.clone())));
            }
        }
        let mut changes = Vec::new();
        for (prefix, nexthop) in routes {
            changes.push(Change::PutRoute { vrf, prefix, nexthop: self.nexthop_id(nexthop) });
        }
        let vnis = network.vni.into_iter().chain(network.l3vni);
        changes.extend(vnis.map(|vni| Change::PutVxlan { vni, vrf }));
        changes
    }

    /// Returns the id of an interface, even if it is not defined yet.
    pub fn vif_id(&mut self, name: &str) -> VifId {
        let known = self.vif_names.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.vif_names.push(name.into());
            self.vif_names.len() - 1
        });
        VifId(index as u16 + 1)
    }

    /// Returns the name of an interface.
    #[must_use]
    pub fn vif_name(&self, id: VifId) -> &str {
        usize::from(id.0)
            .checked_sub(1)
            .and_then(|index| self.vif_names.get(index))
            .map_or("?", String::as_str)
    }

    /// Returns the name of a network.
    #[must_use]
    pub fn network_name(&self, vrf: Vrf) -> &str {
        self.network_names.iter().find(|(_, known)| *known == vrf).map_or("?", |(name, _)| name)
    }

    pub(super) fn target_words(&self, vrf: Vrf, target: &BridgeTarget) -> String {
        let own = |vni| self.networks.get(&vrf).is_some_and(|network| network.vni == Some(vni));
        match target {
            BridgeTarget::Vif(id) => self.vif_name(*id).into(),
            BridgeTarget::Vtep { remote, vni } if own(*vni) => remote.to_string(),
            BridgeTarget::Vtep { remote, vni } => format!("{remote} {vni}"),
            BridgeTarget::Nexthop(id) => format!("nexthop {id}"),
        }
    }

    pub(super) fn vrf(&self, words: &mut Words<'_>) -> Result<Vrf, String> {
        let name: String = value(words)?;
        let known = self.network_names.iter().find(|(known, _)| *known == name);
        known.map(|(_, vrf)| *vrf).ok_or_else(|| format!("no network '{name}'"))
    }

    pub(super) fn vif(&mut self, words: &mut Words<'_>) -> Result<VifId, String> {
        Ok(self.vif_id(words.next().ok_or("name expected")?))
    }

    fn nexthop_id(&mut self, nexthop: Nexthop) -> NexthopId {
        let known = self.nexthops.iter().position(|known| *known == nexthop);
        let index = known.unwrap_or_else(|| {
            self.nexthops.push(nexthop);
            self.nexthops.len() - 1
        });
        NexthopId(index as u32 + 1)
    }

    fn host(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let mut host = Host { name: "a".into(), ..Host::default() };
        while words.peek().is_some() {
            if words.next_if_eq(&"peer").is_some() {
                host.tunnel_peers.push(value(words)?);
            } else if words.next_if_eq(&"router-mac").is_some() {
                host.router_mac = Some(value(words)?);
            } else if words.next_if_eq(&"udp6-zero-checksum").is_some() {
                host.udp6_zero_checksum = true;
            } else if words.next_if_eq(&"tunnel-fragments").is_some() {
                host.tunnel_fragments = true;
            } else if words.next_if_eq(&"tunnel-bfd").is_some() {
                host.tunnel_bfd = true;
            } else {
                host.tunnel_source.push(value(words)?);
            }
        }
        self.changes.push(Change::SetHost(host));
        Ok(())
    }

    fn kernel_paths(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let remote = value(words)?;
        let mut paths: Vec<KernelPath> = Vec::new();
        while words.peek().is_some() {
            if words.next_if_eq(&"weight").is_some() {
                paths.last_mut().ok_or("a weight of no path")?.weight = value(words)?;
                continue;
            }
            if words.next_if_eq(&"mtu").is_some() {
                paths.last_mut().ok_or("an MTU of no path")?.mtu = Some(value(words)?);
                continue;
            }
            let (wire, hop) = (self.vif(words)?, value(words)?);
            let mac = if words.next_if_eq(&"unknown").is_some() { None } else { Some(value(words)?) };
            paths.push(KernelPath { wire, hop, mac, weight: 1, mtu: None });
        }
        self.changes.push(Change::PutPaths { remote, paths: paths.into() });
        Ok(())
    }

    fn owner(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let (vrf, addr) = (self.vrf(words)?, value(words)?);
        must(words, "at")?;
        self.changes.push(Change::PutOwner { vrf, addr, mac: value(words)? });
        Ok(())
    }

    fn set_down(&mut self, words: &mut Words<'_>, is_down: bool) -> Result<(), String> {
        let remote = value(words)?;
        let change = match words.next() {
            None => Change::SetDown { remote, is_down },
            Some(wire) => {
                Change::SetPathDown { remote, wire: self.vif_id(wire), hop: value(words)?, is_down }
            }
        };
        self.changes.push(change);
        Ok(())
    }

    fn remote_mirror(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let name: String = value(words)?;
        let (id, kind) = (self.vif_id(&name), TunnelKind::Vxlan);
        let tunnel = Tunnel { kind, remote: value(words)?, id: value(words)?, mac: None };
        self.vifs.insert(id, Vif::new(id, &name, VifKind::Mirror(tunnel)));
        Ok(())
    }

    fn wire(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let name: String = value(words)?;
        let id = self.vif_id(&name);
        let mut attributes = WireAttributes::default();
        let mut vif = Vif::new(id, &name, VifKind::Wire);
        while let Some(word) = words.next() {
            match word {
                "mac" => vif.mac = Some(value(words)?),
                "mtu" => vif.mtu = value(words)?,
                "address" => attributes.addresses.push(value(words)?),
                "gateway" => attributes.gateways.push(value(words)?),
                "down" => attributes.is_down = true,
                "shared" => attributes.shared = true,
                other => return Err(format!("'{other}' is not understood")),
            }
        }
        vif.wire = Some(attributes);
        self.vifs.insert(id, vif);
        Ok(())
    }

    fn network(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let name: String = value(words)?;
        must(words, "vrf")?;
        let vrf = Vrf(value(words)?);
        self.network_names.retain(|(known, _)| *known != name);
        self.network_names.push((name.clone(), vrf));
        let mut network = Network { mtu: 9000, ..Network::new(vrf, &name) };
        let (mut wire, mut vlan) = (None, None);
        while let Some(word) = words.next() {
            match word {
                "gateway" => network.gateways.push(value(words)?),
                "vni" => network.vni = Some(value(words)?),
                "l3vni" => network.l3vni = Some(value(words)?),
                "learning" => network.learning = true,
                "l2-gateway" => {
                    let here = words.next() == Some("here");
                    network.overlay.l2_gateway = if here { L2Gateway::Here } else { L2Gateway::Elsewhere };
                }
                "no-midstream" => network.tcp.midstream = Midstream::Never,
                "reverse-midstream" => network.tcp.midstream = Midstream::Reverse,
                "asymmetric" => network.tcp.asymmetric = true,
                "mss-clamp" => network.tcp.mss_clamp = true,
                "dhcp" => network.services.dhcp = true,
                "ra" => network.services.ra = true,
                "dns" => network.services.dns = true,
                "metadata" => network.services.metadata = true,
                "routed-outside" => network.routed_outside = true,
                "mtu" => network.mtu = value(words)?,
                "default" => network.default_action = action(words.next().unwrap_or_default())?,
                "wire" => wire = Some(self.vif(words)?),
                "vlan" => vlan = Some(value(words)?),
                other => return Err(format!("'{other}' is not understood")),
            }
        }
        network.wire = wire.map(|vif| WireAttachment { vif, vlan });
        if let Some(attributes) = wire.and_then(|id| self.vifs.get_mut(&id)?.wire.as_mut()) {
            attributes.networks.retain(|(_, attached)| *attached != vrf);
            attributes.networks.push((vlan, vrf));
        }
        self.networks.insert(vrf, network);
        Ok(())
    }

    fn guest(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let name: String = value(words)?;
        must(words, "in")?;
        let mut vif = Vif::new(self.vif_id(&name), &name, VifKind::Vhost);
        vif.vrf = Some(self.vrf(words)?);
        while let Some(word) = words.next() {
            match word {
                "kind" => vif.kind = if words.next() == Some("tap") { VifKind::Tap } else { VifKind::Rdma },
                "mac" => vif.mac = Some(value(words)?),
                "macs" => vif.macs.push(value(words)?),
                "address" => vif.addresses.push(value(words)?),
                "allowed" => vif.allowed.push(value(words)?),
                "mtu" => vif.mtu = value(words)?,
                "policy" => vif.policy = true,
                "router" => vif.roles.router = true,
                "dhcp-server" => vif.roles.dhcp_server = true,
                "rdma" => vif.rdma = Some(self.vif_id(&format!("{name}:rdma"))),
                "mirror" => vif.mirror = Some(self.vif(words)?),
                "rate" => vif.meter = Some(self.meter(words)?),
                "dscp" => vif.dscp = Some(value(words)?),
                other => return Err(format!("'{other}' is not understood")),
            }
        }
        if let Some(id) = vif.rdma {
            let name = format!("{name}:rdma").into();
            let (kind, rdma) = (VifKind::Rdma, Some(vif.id));
            let (allowed, macs, vlans) = Default::default();
            self.vifs.insert(id, Vif { id, name, kind, allowed, macs, vlans, rdma, ..vif.clone() });
        }
        self.vifs.insert(vif.id, vif);
        Ok(())
    }

    fn vlan(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let (guest, vlan): (String, u16) = (value(words)?, value(words)?);
        must(words, "in")?;
        let vrf = Some(self.vrf(words)?);
        let port = self.vif_id(&guest);
        let name = format!("{guest}:{vlan}");
        let id = self.vif_id(&name);
        let vif = self.vifs.get_mut(&port).ok_or("guest first")?;
        let own = Vif { id, name: name.into(), vrf, trunk: Some((port, vlan)), ..vif.clone() };
        let (addresses, allowed, vlans) = Default::default();
        let mut own = Vif { addresses, allowed, vlans, rdma: None, ..own };
        vif.vlans.push((vlan, id));
        while let Some(word) = words.next() {
            match word {
                "address" => own.addresses.push(value(words)?),
                "allowed" => own.allowed.push(value(words)?),
                other => return Err(format!("'{other}' is not understood")),
            }
        }
        self.vifs.insert(id, own);
        Ok(())
    }

    pub(super) fn put_vif(&mut self, vif: Vif) {
        self.vifs.insert(vif.id, vif);
    }

    pub(super) fn meter(&mut self, words: &mut Words<'_>) -> Result<MeterId, String> {
        let config = MeterConfig { bits_per_second: value(words)?, burst_bytes: value(words)? };
        self.meters += 1;
        self.changes.push(Change::PutMeter(MeterId(self.meters), config));
        Ok(MeterId(self.meters))
    }

    fn target(&mut self, words: &mut Words<'_>) -> Result<Nexthop, String> {
        let kind = match words.next().unwrap_or_default() {
            "drop" => return Ok(Nexthop::Discard),
            "receive" => return Ok(Nexthop::Receive),
            "network" => return Ok(Nexthop::VrfTranslate { vrf: self.vrf(words)? }),
            "resolve" => {
                let via = words.next_if(|word| word.parse::<IpAddr>().is_ok());
                return Ok(Nexthop::Resolve { via: via.and_then(|word| word.parse().ok()) });
            }
            "guest" => {
                let vif = self.vif(words)?;
                let own = self.vifs.get(&vif).and_then(|vif| vif.mac).unwrap_or(GATEWAY_MAC);
                return Ok(Nexthop::Encap { vif, mac: optional_mac(words)?.unwrap_or(own) });
            }
            "mpls-over-udp" => TunnelKind::MplsUdp,
            "mpls-over-gre" => TunnelKind::MplsGre,
            "vxlan" => TunnelKind::Vxlan,
            other => return Err(format!("'{other}' is no target")),
        };
        let (remote, id) = (value(words)?, value(words)?);
        Ok(Nexthop::Tunnel(Tunnel { kind, remote, id, mac: optional_mac(words)? }))
    }

    /// Reads a target, or several: equal-cost paths.
    fn targets(&mut self, words: &mut Words<'_>) -> Result<NexthopId, String> {
        must(words, ">")?;
        let mut members = Vec::new();
        loop {
            let nexthop = self.target(words)?;
            members.push(self.nexthop_id(nexthop));
            if words.next_if_eq(&",").is_none() {
                break;
            }
        }
        Ok(if members.len() == 1 { members[0] } else { self.nexthop_id(Nexthop::Ecmp(members)) })
    }

    fn route(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let (vrf, prefix) = (self.vrf(words)?, value(words)?);
        let nexthop = self.targets(words)?;
        self.changes.push(Change::PutRoute { vrf, prefix, nexthop });
        Ok(())
    }

    fn mac(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let (vrf, mac) = (self.vrf(words)?, value(words)?);
        let target = BridgeTarget::Nexthop(self.targets(words)?);
        self.changes.push(Change::PutMac { vrf, mac, target });
        Ok(())
    }

    fn flood(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let vrf = self.vrf(words)?;
        let nexthop = self.targets(words)?;
        let network = self.networks.get_mut(&vrf).ok_or("network first")?;
        network.flood.push(nexthop);
        if let Some(Nexthop::Tunnel(tunnel)) = self.nexthops.get(nexthop.0 as usize - 1) {
            network.overlay.vnis.push((tunnel.remote, tunnel.id));
            network.overlay.vnis.sort_unstable();
        }
        Ok(())
    }

    fn label(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let label = value(words)?;
        let nexthop = self.targets(words)?;
        self.changes.push(Change::PutMpls { label, nexthop });
        Ok(())
    }

    fn vni(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let vni = value(words)?;
        must(words, ">")?;
        let vrf = self.vrf(words)?;
        self.changes.push(Change::PutVxlan { vni, vrf });
        Ok(())
    }

    fn nat(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let (inside_vrf, inside) = (self.vrf(words)?, value(words)?);
        must(words, "=")?;
        let (outside_vrf, outside) = (self.vrf(words)?, value(words)?);
        let floating = FloatingAddress { inside_vrf, inside, outside_vrf, outside };
        self.changes.push(Change::PutFloating(floating));
        Ok(())
    }

    fn snat(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let vrf = self.vrf(words)?;
        must(words, "=")?;
        let outside_vrf = self.vrf(words)?;
        let network = self.networks.get_mut(&vrf).ok_or("network first")?;
        let mut sharing = Sharing { ports: Sharing::PORTS, ..Sharing::default() };
        while words.peek().is_some() {
            if words.next_if_eq(&"ports").is_some() {
                sharing.ports = value(words)?;
            } else if words.next_if_eq(&"endpoint-independent").is_some() {
                sharing.mapping = Mapping::EndpointIndependent;
            } else {
                sharing.addresses.push(SharedAddress { outside_vrf, outside: value(words)? });
            }
        }
        sharing.addresses.sort_unstable();
        network.sharing = sharing;
        Ok(())
    }

    fn forward(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let vrf = self.vrf(words)?;
        let (protocol, outside, port) = (value(words)?, value(words)?, value(words)?);
        must(words, ">")?;
        let (inside, inside_port) = (value(words)?, value(words)?);
        let network = self.networks.get_mut(&vrf).ok_or("network first")?;
        network.sharing.forwards.push(ForwardedPort { outside, protocol, port, inside, inside_port });
        network.sharing.forwards.sort_unstable();
        Ok(())
    }

    fn rule(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let (vrf, priority) = (self.vrf(words)?, value(words)?);
        self.rules += 1;
        let mut rule = Rule {
            id: RuleId(self.rules),
            vrf,
            priority,
            from: Vec::new(),
            to: Vec::new(),
            protocol: None,
            ports: None,
            action: RuleAction::End(Action::Allow),
        };
        loop {
            match words.next().ok_or("action expected")? {
                "from" => rule.from.push(value(words)?),
                "to" => rule.to.push(value(words)?),
                "protocol" => rule.protocol = Some(value(words)?),
                "ports" => rule.ports = Some(PortRange { first: value(words)?, last: value(words)? }),
                "mirror" => break rule.action = RuleAction::Modify(Modifier::Mirror(self.vif(words)?)),
                "police" => break rule.action = RuleAction::Modify(Modifier::Police(self.meter(words)?)),
                word => break rule.action = RuleAction::End(action(word)?),
            }
        }
        self.changes.push(Change::PutRule(rule));
        Ok(())
    }

    fn delete(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        must(words, "rule")?;
        let (vrf, id) = (self.vrf(words)?, RuleId(value(words)?));
        self.changes.push(Change::DelRule { vrf, id });
        Ok(())
    }

    /// Reads a neighbour's scope and address: `NAME ADDR`.
    pub(super) fn neighbour_key(&mut self, text: &str) -> Result<(NeighbourScope, IpAddr), String> {
        self.neighbour_of(&mut text.split_whitespace().peekable())
    }

    fn neighbour_of(&mut self, words: &mut Words<'_>) -> Result<(NeighbourScope, IpAddr), String> {
        let name: String = value(words)?;
        let network = self.network_names.iter().find(|(known, _)| *known == name).map(|(_, vrf)| *vrf);
        let scope = network.map_or_else(|| NeighbourScope::Wire(self.vif_id(&name)), NeighbourScope::Network);
        Ok((scope, value(words)?))
    }

    fn neighbour(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let (scope, addr) = self.neighbour_of(words)?;
        must(words, "at")?;
        let neighbour = Some(NeighbourFound { scope, addr, mac: value(words)? });
        self.learned.push(Effects { neighbour, ..Effects::default() });
        Ok(())
    }

    fn path(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let remote = value(words)?;
        must(words, "mtu")?;
        let path = Some(PathMtu { remote, mtu: value(words)? });
        self.learned.push(Effects { path, ..Effects::default() });
        Ok(())
    }

    fn learned(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let (vrf, mac) = (self.vrf(words)?, value(words)?);
        must(words, "at")?;
        let word = words.next().unwrap_or_default();
        let at = match word.parse() {
            Ok(remote) => {
                let own = self.networks.get(&vrf).and_then(|network| network.vni);
                let given = words.next_if(|word| word.parse::<u32>().is_ok());
                let vni = given.map_or(own, |word| word.parse().ok()).unwrap_or(0);
                BridgeTarget::Vtep { remote, vni }
            }
            Err(_) => BridgeTarget::Vif(self.vif_id(word)),
        };
        self.learned.push(Effects { learn: Some(Learn { vrf, mac, at }), ..Effects::default() });
        Ok(())
    }
}

fn optional_mac(words: &mut Words<'_>) -> Result<Option<Mac>, String> {
    if words.next_if_eq(&"mac").is_some() { value(words).map(Some) } else { Ok(None) }
}

fn action(word: &str) -> Result<Action, String> {
    match word {
        "allow" => Ok(Action::Allow),
        "drop" => Ok(Action::Drop),
        "reject" => Ok(Action::Reject),
        other => Err(format!("'{other}' is no action")),
    }
}
