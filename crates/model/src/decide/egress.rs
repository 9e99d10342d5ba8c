//! Egress: MTU, rewrite, encapsulation.

use super::neighbour::Message;
use super::route::is_ping;
use super::{Frame, Stop, Walk, is_roce};
use crate::{
    Cut, DropReason, EthernetRewrite, Forward, GATEWAY_MAC, Lookup, Nat, Network, Tunnel, Vif, VifId, VifKind,
};
use packet::{Fragment, Headers, IcmpError, Ip, L4, Mac, TunnelKind, ecn_encap, proto};

/// The packets that each link of IPv6 carries, bytes (RFC 8200, 5).
const LEAST_MTU_V6: usize = 1280;

/// The place by which a packet leaves.
#[derive(Clone, Copy)]
pub(super) enum Exit<'a> {
    /// To a guest.
    Guest(&'a Vif),
    /// By the wire to which its network is attached.
    Attached { wire: &'a Vif, vlan: Option<u16> },
    /// To another host.
    Tunnel(Tunnel),
}

impl<'a> Exit<'a> {
    /// Returns the guest, if the packet goes to one.
    pub fn guest(&self) -> Option<&'a Vif> {
        if let Self::Guest(vif) = self { Some(vif) } else { None }
    }

    /// Returns the interface. `None` for a tunnel: its wire is not chosen yet.
    pub fn vif(&self) -> Option<&'a Vif> {
        match self {
            Self::Guest(vif) | Self::Attached { wire: vif, .. } => Some(vif),
            Self::Tunnel(_) => None,
        }
    }
}

impl Frame<'_> {
    /// Forwards the frame as it is.
    pub(super) fn bridged(&self) -> Forward {
        Forward {
            strip: self.headers.at,
            tos: self.new_tos(),
            pop_tags: self.foreign_tags,
            ..Forward::unchanged(VifId(0))
        }
    }

    /// Forwards the packet, routed, in a new frame to this MAC, or without an Ethernet header.
    pub(super) fn routed(&self, nat: Nat, dst: Option<Mac>) -> Forward {
        Forward {
            strip: self.headers.l3_at,
            ttl_decrement: 1,
            nat,
            ethernet: dst.map(|dst| self.ethernet(dst, GATEWAY_MAC)),
            pop_tags: 0,
            ..self.bridged()
        }
    }

    /// Returns a new Ethernet header for the packet.
    pub(super) fn ethernet(&self, dst: Mac, src: Mac) -> EthernetRewrite {
        let ethertype = match (&self.headers.eth, self.headers.ip()) {
            (_, Some(ip)) if ip.src.is_ipv4() => proto::ETHERTYPE_IPV4,
            (_, Some(_)) => proto::ETHERTYPE_IPV6,
            (eth, None) => eth.as_ref().map_or(0, |eth| eth.ethertype),
        };
        EthernetRewrite { dst, src, ethertype }
    }

    /// Returns the length of the packet that counts against an MTU, bytes.
    fn mtu_len(&self, gso_size: Option<u16>) -> usize {
        mtu_len(&self.headers, self.end, gso_size)
    }
}

/// Returns the length that counts against an MTU, bytes, for a frame that ends at `end`: the length of the IP
/// packet. For a large send it is the length of one segment.
pub(super) fn mtu_len(headers: &Headers, end: usize, gso_size: Option<u16>) -> usize {
    let Some(ip) = headers.ip() else {
        return end.saturating_sub(usize::from(headers.l3_at));
    };
    let len = ip.len as usize;
    match (headers.l4, gso_size) {
        (L4::Tcp { header_len, .. }, Some(size)) if ip.fragment == Fragment::Whole => {
            len.min(usize::from(ip.header_len) + usize::from(header_len) + usize::from(size))
        }
        _ => len,
    }
}

/// Returns the payload of TCP segments whose IP packets have this length, bytes. `None` if they have no payload.
pub(crate) fn segment_size(headers: &Headers, len: u16) -> Option<u16> {
    let L4::Tcp { header_len, .. } = headers.l4 else { return None };
    let ip = headers.ip()?;
    let size = usize::from(len).checked_sub(usize::from(ip.header_len) + usize::from(header_len))?;
    u16::try_from(size).ok().filter(|size| *size > 0)
}

/// Returns the cut of a tunnel packet that is too big for a path of `mtu` bytes, if its network has such packets. VTEPs
/// must not fragment (RFC 7348, 4.3).
fn cut_outside(frame: &Frame<'_>, network: &Network, tunnel: &Tunnel, mtu: u16) -> Option<Cut> {
    let len = frame.mtu_len(None);
    let outer = len + tunnel.overhead();
    let may = !tunnel.kind.has_ethernet() && len <= network.mtu.into() && outer <= usize::from(u16::MAX);
    (may && outer > mtu.into()).then_some(Cut::Tunnel(mtu))
}

/// Returns the interface by which a guest receives a packet: RoCEv2 to one of the guest's addresses or to a
/// group goes to its verbs device. Viaduct answers pings to a guest that is only a verbs device, on the
/// guest's behalf.
fn door(frame: &Frame<'_>, vif: &Vif) -> Result<VifId, Stop> {
    let ip = frame.headers.ip();
    let own = ip.is_some_and(|ip| vif.addresses.contains(&ip.dst));
    let group = ip.is_some_and(|ip| ip.dst.is_multicast());
    match vif.verbs() {
        Some(verbs) if frame.is_roce() && (own || group) => Ok(verbs),
        _ if vif.kind != VifKind::Rdma => Ok(vif.id),
        _ if own && ip.is_some_and(|ip| is_ping(ip, &frame.headers.l4)) => Err(Stop::Echo),
        _ => Err(DropReason::VerbsOnly.into()),
    }
}

/// Delivers to a guest. A VLAN interface gets the tag of its VLAN. On a guest with VLANs, the sender's own tags would
/// look like one of those VLANs, so such a frame is dropped.
fn to_guest(frame: &Frame<'_>, base: Forward, vif: &Vif) -> Result<Forward, Stop> {
    let own_tags = if base.ethernet.is_none() { frame.tags().len() } else { 0 };
    match vif.trunk {
        Some(_) if own_tags > 1 => Err(DropReason::TooManyTags.into()),
        Some((port, vlan)) => Ok(Forward { port, push_vlan: Some(vlan), ..base }),
        None if !vif.vlans.is_empty() && own_tags > 0 => Err(DropReason::VlanUnexpected.into()),
        None => Ok(Forward { port: door(frame, vif)?, ..base }),
    }
}

impl<'a, T: Lookup> Walk<'a, T> {
    /// Completes a rewrite for the exit by which the packet leaves `network`.
    pub(super) fn leave(
        &mut self,
        frame: &Frame<'a>,
        base: Forward,
        network: &Network,
        exit: Exit<'a>,
    ) -> Result<Forward, Stop> {
        match exit {
            Exit::Guest(vif) => {
                let base = self.fit(frame, base, network, vif.mtu.into())?;
                self.show(vif);
                to_guest(frame, base, vif)
            }
            Exit::Attached { wire, vlan } => {
                let base = self.fit(frame, base, network, wire.mtu.into())?;
                self.onto(frame, base, wire, vlan)
            }
            Exit::Tunnel(tunnel) => {
                let path = self.path(tunnel.remote, frame.entropy())?;
                let base = self.by_router(base, &tunnel);
                let inner = match (&base.ethernet, tunnel.kind) {
                    (_, TunnelKind::MplsUdp | TunnelKind::MplsGre) => 0,
                    (Some(_), TunnelKind::Vxlan | TunnelKind::Geneve) => proto::ETHERNET_LEN,
                    (None, TunnelKind::Vxlan | TunnelKind::Geneve) => {
                        proto::ETHERNET_LEN + proto::VLAN_LEN * frame.tags().len()
                    }
                };
                let inside = |mtu: u16| usize::from(mtu).saturating_sub(tunnel.overhead() + inner);
                // Routers' word does not make a tunnel less than a link of IPv6 must be (RFC 8200, 5).
                let v6 = frame.headers.ip().is_some_and(|ip| ip.src.is_ipv6());
                let least = if v6 { LEAST_MTU_V6 } else { 0 };
                let learned = self.tables.path_mtu(tunnel.remote);
                let loose = !path.dont_fragment && self.is_loose(frame);
                // Routers on the way may fragment the tunnel packet. But a packet of the flow with Don't Fragment is
                // refused.
                let by_routers = loose && tunnel.kind.has_ethernet();
                let too_big = learned.is_some_and(|mtu| frame.mtu_len(None) > inside(mtu));
                self.effects.once |= by_routers && too_big;
                let learned = learned.filter(|_| !by_routers);
                let carried = learned.map_or(usize::MAX, |mtu| inside(mtu).max(least));
                let mtu = learned.unwrap_or(u16::MAX).min(path.mtu());
                let base = match cut_outside(frame, network, &tunnel, mtu).filter(|_| loose) {
                    None => self.fit(frame, base, network, inside(path.mtu()).min(carried))?,
                    cut => Forward { cut, ..base },
                };
                self.through(frame, base, &tunnel, frame.tos)
            }
        }
    }

    /// Has a packet that is routed to the router MAC of another host come from this host's own (RFC 9135, 5.2).
    fn by_router(&self, base: Forward, tunnel: &Tunnel) -> Forward {
        let is_to_router = |ethernet: &EthernetRewrite| {
            tunnel.mac == Some(ethernet.dst) && ethernet.dst != GATEWAY_MAC && ethernet.src == GATEWAY_MAC
        };
        match (base.ethernet.filter(is_to_router), self.tables.host().router_mac) {
            (Some(ethernet), Some(src)) => {
                Forward { ethernet: Some(EthernetRewrite { src, ..ethernet }), ..base }
            }
            _ => base,
        }
    }

    /// Sends a packet by the wire to which a network is attached. The frame carries the attachment's tag and
    /// no other, because a second tag could put it into one of the wire's other VLANs. Frames of the gateway
    /// come from a MAC of this host. Tunnel packets to hosts of the underlay are dropped.
    pub(super) fn onto(
        &self,
        frame: &Frame<'_>,
        base: Forward,
        wire: &Vif,
        vlan: Option<u16>,
    ) -> Result<Forward, Stop> {
        if base.ethernet.is_none() && !frame.tags().is_empty() {
            return Err(DropReason::VlanUnexpected.into());
        }
        if self.is_underlay_tunnel(frame, base.nat) {
            return Err(DropReason::UnderlayTunnel.into());
        }
        let mut base = Forward { port: wire.id, push_vlan: vlan, ..base };
        let src = frame.headers.eth.as_ref().filter(|_| base.ethernet.is_none());
        if let Some(eth) = src.filter(|eth| eth.src == GATEWAY_MAC) {
            // Another host's gateway sent it, through a tunnel.
            frame
                .headers
                .ip()
                .filter(|_| Message::of(&frame.headers).is_none())
                .ok_or(DropReason::NotForUs)?;
            let ethernet = Some(frame.ethernet(eth.dst, GATEWAY_MAC));
            base = Forward { strip: frame.headers.l3_at, pop_tags: 0, ethernet, ..base };
        }
        if let (Some(ethernet), Some(own)) = (&mut base.ethernet, wire.mac)
            && ethernet.src == GATEWAY_MAC
        {
            ethernet.src = own;
        }
        Ok(base)
    }

    /// Sends a packet through a tunnel. `tos` is the inner traffic class, which is copied to the outer header
    /// (RFC 2983, 3.1; ECN by RFC 6040).
    pub(super) fn through(
        &self,
        frame: &Frame<'_>,
        base: Forward,
        tunnel: &Tunnel,
        tos: u8,
    ) -> Result<Forward, Stop> {
        let entropy = frame.entropy();
        let path = self.path(tunnel.remote, entropy)?;
        let dst_mac = self.hop_mac(&path).map_err(|stop| match stop {
            // A bridge is no router: it informs no senders.
            Stop::Refuse(_, reason) if base.ttl_decrement == 0 => reason.into(),
            stop => stop,
        })?;
        let tos = tos & !packet::ecn::ECN_MASK | ecn_encap(tos);
        let encap = path.encap(tunnel, dst_mac, entropy, tos);
        Ok(Forward { port: path.wire.id, encap: Some(encap), ..base })
    }

    /// Fits a packet to a link with this MTU, bytes, and clamps the MSS of SYNs. A packet that is too big is cut if it is
    /// routed and may be fragmented (RFC 1812, 4.2.2.7), else refused. The gateway informs the senders of packets that
    /// it routes. It informs the senders of bridged packets on behalf of the link, if they set Don't Fragment (RFC
    /// 1191; RFC 8201).
    fn fit(&self, frame: &Frame<'_>, base: Forward, network: &Network, link: usize) -> Result<Forward, Stop> {
        let mtu = link.min(network.mtu.into());
        if frame.mtu_len(self.packet.gso_size) <= mtu {
            let clamps = frame.network.tcp.mss_clamp || network.tcp.mss_clamp;
            let mss = if clamps { self.lower_mss(frame, mtu) } else { None };
            return Ok(Forward { mss, ..base });
        }
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        let whole = frame.headers.ip().is_some_and(|ip| ip.dont_fragment);
        let (routed, roce) = (base.strip == frame.headers.l3_at, is_roce(&frame.headers.l4));
        if routed && !whole && !roce && self.may_be_cut(frame, mtu) {
            return Ok(Forward { cut: Some(Cut::Packet(mtu)), ..base });
        }
        Err(match (whole, routed) {
            (false, true) if !roce => Stop::Refuse(IcmpError::TooBig { mtu }, DropReason::NotFragmented),
            (false, false) => DropReason::Mtu.into(),
            _ => Stop::Refuse(IcmpError::TooBig { mtu }, DropReason::Mtu),
        })
    }

    /// Returns whether the tunnel packet around this packet may be fragmented: the packet's sender is not told that it is
    /// too big.
    fn is_loose(&self, frame: &Frame<'_>) -> bool {
        let small = |ip: &Ip| ip.src.is_ipv6() && ip.len as usize <= LEAST_MTU_V6;
        let may = frame.headers.ip().is_some_and(|ip| ip.src.is_ipv4() && !ip.dont_fragment || small(ip));
        may && self.packet.gso_size.is_none() && !is_roce(&frame.headers.l4)
    }

    /// Returns whether an IPv4 packet can be cut for a link with this MTU, bytes: into fragments, a large send into
    /// smaller segments.
    #[cold]
    fn may_be_cut(&self, frame: &Frame<'_>, mtu: u16) -> bool {
        let Some(ip) = frame.headers.ip().filter(|ip| ip.src.is_ipv4()) else { return false };
        let Some(head) = self.packet.bytes.get(usize::from(ip.at)..) else { return false };
        match self.packet.gso_size {
            Some(_) => segment_size(&frame.headers, mtu).is_some(),
            None => packet::Pieces::new(head, ip.len as usize, mtu.into()).is_some(),
        }
    }

    /// Returns the value to which a SYN's MSS is lowered: as many bytes as fit with IP and TCP headers of
    /// minimum length (RFC 6691, 2). `None` if the SYN announces no more than that.
    #[cold]
    fn lower_mss(&self, frame: &Frame<'_>, mtu: usize) -> Option<u16> {
        let (_, told) = packet::mss(self.packet.bytes, &frame.headers)?;
        let ip = if frame.headers.ip()?.src.is_ipv4() { proto::IPV4_LEN } else { proto::IPV6_LEN };
        let most = u16::try_from(mtu.checked_sub(ip + proto::TCP_LEN)?).ok()?;
        (1..told).contains(&most).then_some(most)
    }
}
