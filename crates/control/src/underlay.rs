//! Wires and the kernel: the packets that are taken of a wire that the kernel keeps, the remotes whose routes are the
//! kernel's, and the addresses that it must not have.

use crate::core::View;
use api::v1;
use config::{Host, Index, Kind, Object, Way, Wire};
use ipnet::IpNet;
use model::{VifId, VifKind};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// The tunnel packets that are taken of a wire that the kernel keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelTraffic {
    /// Addresses to which they go, at most one per family.
    pub addresses: Vec<IpAddr>,
    /// Whether Geneve is used.
    pub geneve: bool,
    /// Whether tunnel packets over IPv4 may come in fragments.
    pub fragments: bool,
    /// If true, the wire takes BFD packets of remotes.
    pub bfd: bool,
    /// Whether the kernel gets BFD from behind routers as well, for BGP peers.
    pub bfd_of_peers: bool,
}

impl TunnelTraffic {
    pub(crate) fn of(host: &Host, index: &Index) -> Self {
        let geneve = index.wires().iter().any(|wire| matches!(wire.way, Way::Geneve { .. }));
        let sources = index.tunnel_sources().iter().copied();
        let addresses =
            sources.filter(|source| !index.wires().iter().any(|wire| has(wire, *source))).collect();
        let (fragments, bfd) = (!host.tunnel_df, host.tunnel_bfd.is_some());
        let bfd_of_peers = bfd && far_peers(host).next().is_some();
        Self { addresses, geneve, fragments, bfd, bfd_of_peers }
    }
}

/// Names all that makes it different from other traffic, as ports with equal names are handed over.
impl fmt::Display for TunnelTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        write!(f, "tunnels to {}", addresses.join(" and "))?;
        let also = |is, what| if is { what } else { "" };
        write!(f, "{}{}", also(self.geneve, ", geneve"), also(self.fragments, ", fragments"))?;
        write!(
            f,
            "{}{}",
            also(self.bfd, ", bfd of remotes and paths"),
            also(self.bfd_of_peers, " and the kernel's")
        )
    }
}

/// Returns the BGP peers behind routers that are watched by BFD.
fn far_peers(host: &Host) -> impl Iterator<Item = IpAddr> {
    let peers = host.bgp.iter().flat_map(|bgp| &bgp.peers);
    peers.filter(|peer| peer.bfd == config::Bfd::Multihop).map(|peer| peer.address)
}

/// A wire on a network device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderlayWire {
    pub vif: VifId,
    pub name: String,
    pub device: String,
    /// Whether the kernel keeps it.
    pub shared: bool,
    /// Addresses that are the wire's own.
    pub addresses: Vec<IpAddr>,
}

/// Wires and remotes for which the kernel is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Underlay {
    pub wires: Vec<UnderlayWire>,
    /// Remotes of tunnels, if the kernel keeps a wire.
    pub remotes: BTreeSet<IpAddr>,
    /// Source addresses of tunnels that are the kernel's.
    pub sources: Vec<IpAddr>,
    /// Subnets of wires that the kernel does not keep: remotes there are reached by those.
    pub subnets: Vec<IpNet>,
    /// Routers of wires that the kernel does not keep: they take what it has no route for.
    pub gateways: Vec<IpAddr>,
    /// The remotes that are watched by BFD, and how often.
    pub watched: Option<Watched>,
}

/// A remote of tunnels that is watched by BFD.
#[derive(Clone, Debug)]
pub struct RemoteStatus {
    pub remote: IpAddr,
    /// Whether its tunnels are used only where there is no other path.
    pub is_down: bool,
    /// How many of several paths to it are down.
    pub paths_down: usize,
    pub session: v1::BgpBfd,
}

/// Remotes of tunnels that are watched by BFD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    pub remotes: BTreeSet<IpAddr>,
    /// Remotes that must not be watched: BGP peers that have a session with an address of the kernel's.
    pub except: BTreeSet<IpAddr>,
    /// The time between two packets.
    pub interval: Duration,
}

impl Watched {
    /// Returns the remotes of nexthops.
    fn of(view: &View, sources: &[IpAddr]) -> Option<Self> {
        let interval = Duration::from_millis(view.host.tunnel_bfd?.into());
        let is_watched = |peer: &IpAddr| sources.iter().any(|source| source.is_ipv4() == peer.is_ipv4());
        let except: BTreeSet<_> = far_peers(&view.host).filter(is_watched).collect();
        let remotes = view.tables.nexthops.tunnels().map(|tunnel| tunnel.remote);
        Some(Self { remotes: remotes.filter(|remote| !except.contains(remote)).collect(), except, interval })
    }
}

impl Underlay {
    pub(crate) fn of(view: &View) -> Self {
        let wires: Vec<_> =
            view.objects.of_kind(Kind::Wire).filter_map(|owned| of_wire(view, &owned.object)).collect();
        let own: Vec<&Wire> = own_wires(view).collect();
        let is_own = |source: &IpAddr| own.iter().any(|wire| has(wire, *source));
        let sources: Vec<_> =
            view.tables.host.tunnel_source.iter().copied().filter(|source| !is_own(source)).collect();
        let gateways = own.iter().flat_map(|wire| wire.gateway.clone()).collect();
        let subnets = own.iter().flat_map(|wire| wire.addresses.clone()).collect();
        let watched = Watched::of(view, &sources);
        let underlay = Self { wires, remotes: BTreeSet::new(), sources, subnets, gateways, watched };
        Self { remotes: remotes(view).filter(|remote| underlay.is_by_kernel(remote)).collect(), ..underlay }
    }

    /// Returns whether a remote is reached by the kernel's routes.
    #[must_use]
    pub fn is_by_kernel(&self, remote: &IpAddr) -> bool {
        self.wires.iter().any(|wire| wire.shared)
            && !self.subnets.iter().any(|subnet| subnet.contains(remote))
    }
}

/// Returns whether an address is a wire's own.
fn has(wire: &Wire, addr: IpAddr) -> bool {
    !wire.shared && wire.addresses.iter().any(|own| own.addr() == addr)
}

/// Returns the wires that the kernel does not keep.
fn own_wires(view: &View) -> impl Iterator<Item = &Wire> {
    view.objects.of_kind(Kind::Wire).filter_map(|owned| match &owned.object {
        Object::Wire(wire) if !wire.shared => Some(&**wire),
        _ => None,
    })
}

fn of_wire(view: &View, object: &Object) -> Option<UnderlayWire> {
    let Object::Wire(wire) = object else { return None };
    let Wire { name, shared, addresses, .. } = &**wire;
    let (device, vif) = (wire.device()?.to_owned(), view.ids.vif(name)?);
    let addresses = addresses.iter().map(IpNet::addr).collect();
    Some(UnderlayWire { vif, name: name.clone(), device, shared: *shared, addresses })
}

/// Returns the other ends of all tunnels in the tables.
fn remotes(view: &View) -> impl Iterator<Item = IpAddr> {
    let nexthops = view.tables.nexthops.tunnels().map(|tunnel| tunnel.remote);
    let ports = view.tables.vifs.values().filter_map(|vif| match &vif.kind {
        VifKind::Tunnel(tunnel) | VifKind::Mirror(tunnel) => Some(tunnel.remote),
        _ => None,
    });
    nexthops.chain(ports)
}
