//! OPEN messages and the capabilities in them (RFC 4271, 4.2; RFC 5492).
//!
//! Parameters and capabilities are read one by one by their lengths, so that an unknown or broken one spoils no other.

use crate::config::{Config, PeerConfig};
use crate::names::Family;
use crate::notification::{self, Notification};
use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::capabilities::{
    AddPathAddressFamily, AddPathCapability, BgpCapability, ExtendedNextHopEncoding,
    ExtendedNextHopEncodingCapability, FourOctetAsCapability, GracefulRestartAddressFamily,
    GracefulRestartCapability, MultiProtocolExtensionsCapability,
};
use netgauze_bgp_pkt::open::{BgpOpenMessage, BgpOpenMessageParameter};
use netgauze_iana::address_family::{AddressFamily, AddressType};
use netgauze_parse_utils::WritablePdu;
use netgauze_parse_utils::error::ParseError;
use netgauze_parse_utils::reader::SliceReader;
use std::net::Ipv4Addr;

/// The AS in two octets that stands for one which does not fit (RFC 6793).
pub(crate) const AS_TRANS: u16 = 23456;

const CAPABILITIES: u8 = 2;
/// The type, and the length, that say that lengths have two octets (RFC 9072).
const EXTENDED: u8 = 255;

/// The contents of an OPEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) asn: u32,
    pub(crate) hold_time: u16,
    pub(crate) id: Ipv4Addr,
    pub(crate) capabilities: Capabilities,
}

/// The capabilities of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub(crate) families: Vec<Family>,
    /// ROUTE-REFRESH (RFC 2918).
    pub(crate) refresh: bool,
    /// Marks of where a refresh begins and ends (RFC 7313).
    pub(crate) refresh_marks: bool,
    /// Messages of up to 65535 octets (RFC 8654).
    pub(crate) extended: bool,
    /// The peer's AS, in four octets (RFC 6793).
    pub(crate) as4: Option<u32>,
    /// Families of IPv4 routes that it takes with IPv6 next hops (RFC 8950).
    pub(crate) v6_next_hops: Vec<Family>,
    pub(crate) restart: Option<Restart>,
    /// Families whose packets it goes on to forward while it restarts (RFC 4724).
    pub(crate) forwards: Vec<Family>,
    /// Families whose packets it forwarded during the restart that has just ended (the F bit).
    pub(crate) forwarded: Vec<Family>,
    /// Families of which it offers to send several paths of one route (RFC 7911).
    paths: Vec<Family>,
}

/// Graceful restart (RFC 4724).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    /// Seconds that it asks for.
    pub(crate) time: u16,
    /// Whether a NOTIFICATION ends the session gracefully too (RFC 8538).
    pub(crate) notification: bool,
}

impl Open {
    /// Reads the body of an OPEN.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Notification> {
        let unspecific = |_| Notification::new(notification::OPEN, 0);
        let mut at = SliceReader::new(body);
        if at.read_u8().map_err(unspecific)? != 4 {
            return Err(Notification::with(notification::OPEN, 1, &[0, 4]));
        }
        let asn = at.read_u16_be().map_err(unspecific)?;
        let hold_time = at.read_u16_be().map_err(unspecific)?;
        if matches!(hold_time, 1 | 2) {
            return Err(Notification::with(notification::OPEN, 6, &hold_time.to_be_bytes()));
        }
        let id = Ipv4Addr::from(at.read_u32_be().map_err(unspecific)?);
        if id.is_unspecified() || id.is_multicast() || id.is_broadcast() {
            return Err(Notification::with(notification::OPEN, 3, &id.octets()));
        }
        let capabilities = parameters(&mut at).map_err(unspecific)??;
        Ok(Self { asn: capabilities.as4.unwrap_or_else(|| asn.into()), hold_time, id, capabilities })
    }

    /// Returns the message that opens a session with a peer.
    pub(crate) fn message(config: &Config, peer: &PeerConfig) -> Vec<u8> {
        let asn = u16::try_from(config.asn).unwrap_or(AS_TRANS);
        let capabilities = BgpOpenMessageParameter::new_capabilities(capabilities(config, peer));
        let open = BgpOpenMessage::new(asn, config.hold_time, config.router_id, [capabilities]);
        let mut message = Vec::new();
        // It has a bounded size, and memory takes all that is written.
        let written = BgpMessage::Open(open).write(&mut message);
        debug_assert_eq!(written, Ok(()));
        message
    }
}

fn capabilities(config: &Config, peer: &PeerConfig) -> Vec<BgpCapability> {
    let types = || peer.families.iter().map(|family| family.address_type());
    let mut all: Vec<_> = types()
        .map(|family| BgpCapability::MultiProtocolExtensions(MultiProtocolExtensionsCapability::new(family)))
        .collect();
    all.push(BgpCapability::RouteRefresh);
    all.push(BgpCapability::EnhancedRouteRefresh);
    all.push(BgpCapability::FourOctetAs(FourOctetAsCapability::new(config.asn)));
    all.push(BgpCapability::ExtendedMessage);
    let v4 = peer.families.iter().filter(|family| family.is_v4());
    let encodings: Vec<_> =
        v4.map(|family| ExtendedNextHopEncoding::new(family.address_type(), AddressFamily::IPv6)).collect();
    if !encodings.is_empty() {
        all.push(BgpCapability::ExtendedNextHopEncoding(ExtendedNextHopEncodingCapability::new(encodings)));
    }
    let several = peer.families.iter().filter(|family| family.has_targets());
    let several: Vec<_> =
        several.map(|family| AddPathAddressFamily::new(family.address_type(), false, true)).collect();
    if !several.is_empty() {
        all.push(BgpCapability::AddPath(AddPathCapability::new(several)));
    }
    if peer.restart_time > 0 {
        let kept = |family| GracefulRestartAddressFamily::new(config.restarted, family);
        let families: Vec<_> = types().map(kept).collect();
        let time = peer.restart_time.min(0xfff);
        let restart = GracefulRestartCapability::new(config.restarted, true, time, families);
        all.push(BgpCapability::GracefulRestartCapability(restart));
    }
    all
}

fn parameters(at: &mut SliceReader<'_>) -> Result<Result<Capabilities, Notification>, ParseError> {
    let mut length = usize::from(at.read_u8()?);
    let extended = length > 0 && at.as_slice().first() == Some(&EXTENDED);
    if extended {
        at.read_u8()?;
        length = at.read_u16_be()?.into();
    }
    let mut parameters = at.take_slice(length)?;
    let mut found = Capabilities::default();
    while !parameters.is_empty() {
        let kind = parameters.read_u8()?;
        let length = if extended { parameters.read_u16_be()?.into() } else { parameters.read_u8()?.into() };
        let mut value = parameters.take_slice(length)?;
        if kind != CAPABILITIES {
            return Ok(Err(Notification::with(notification::OPEN, 4, &[kind])));
        }
        while !value.is_empty() {
            let code = value.read_u8()?;
            let length = value.read_u8()?;
            found.add(code, value.take_slice(length.into())?.as_slice());
        }
    }
    Ok(Ok(found))
}

impl Capabilities {
    /// Returns whether it sends several paths of one route, each by a number, as this speaker asks for.
    pub(crate) fn offers_paths(&self, family: Family) -> bool {
        family.has_targets() && self.paths.contains(&family)
    }

    /// Notes a capability. Unknown ones, and those of a wrong length, count as absent (RFC 5492).
    fn add(&mut self, code: u8, value: &[u8]) {
        match (code, value) {
            (1, [afi @ .., _, safi]) => {
                if let Some(family) = Family::of(afi, *safi)
                    && !self.families.contains(&family)
                {
                    self.families.push(family);
                }
            }
            (2, []) => self.refresh = true,
            (70, []) => self.refresh_marks = true,
            (5, value) => {
                let v6 = |[a, b, _, safi, next_hop @ ..]: &[u8; 6]| {
                    Family::of(&[*a, *b], *safi).filter(|family| family.is_v4() && next_hop == &[0, 2])
                };
                self.v6_next_hops.extend(value.as_chunks().0.iter().filter_map(v6));
            }
            (6, []) => self.extended = true,
            (64, [high, low, families @ ..]) => {
                let family = |[a, b, safi, _]: &[u8; 4]| Family::of(&[*a, *b], *safi);
                let families = families.as_chunks().0;
                self.forwards.extend(families.iter().filter_map(family));
                self.forwarded
                    .extend(families.iter().filter(|[.., flags]| flags & 0x80 != 0).filter_map(family));
                let word = u16::from_be_bytes([*high, *low]);
                self.restart = Some(Restart { time: word & 0xfff, notification: word & 0x4000 != 0 });
            }
            (69, value) => {
                let offers = |[a, b, safi, way]: &[u8; 4]| {
                    Family::of(&[*a, *b], *safi).filter(|_| matches!(way, 2 | 3))
                };
                self.paths.extend(value.as_chunks().0.iter().filter_map(offers));
            }
            (65, &[a, b, c, d]) => self.as4 = Some(u32::from_be_bytes([a, b, c, d])),
            _ => {}
        }
    }
}

impl Family {
    pub(crate) const fn address_type(self) -> AddressType {
        match self {
            Self::Vpnv4 => AddressType::Ipv4MplsLabeledVpn,
            Self::Vpnv6 => AddressType::Ipv6MplsLabeledVpn,
            Self::Evpn => AddressType::L2VpnBgpEvpn,
            Self::Rtc => AddressType::RouteTargetConstrains,
            Self::Ipv4Unicast => AddressType::Ipv4Unicast,
            Self::Ipv6Unicast => AddressType::Ipv6Unicast,
        }
    }

    /// Returns the AFI and SAFI, with the octet between them that ROUTE-REFRESH has.
    pub(crate) const fn codes(self) -> [u8; 4] {
        match self {
            Self::Vpnv4 => [0, 1, 0, 128],
            Self::Vpnv6 => [0, 2, 0, 128],
            Self::Evpn => [0, 25, 0, 70],
            Self::Rtc => [0, 1, 0, 132],
            Self::Ipv4Unicast => [0, 1, 0, 1],
            Self::Ipv6Unicast => [0, 2, 0, 1],
        }
    }

    /// Returns whether the speaker keeps the routes of this family that networks import by targets, all paths of each.
    pub(crate) const fn has_targets(self) -> bool {
        matches!(self, Self::Vpnv4 | Self::Vpnv6 | Self::Evpn)
    }

    /// Returns whether its routes are prefixes alone.
    pub(crate) const fn is_plain(self) -> bool {
        matches!(self, Self::Ipv4Unicast | Self::Ipv6Unicast)
    }

    /// Returns whether its routes are IPv4 prefixes.
    pub(crate) const fn is_v4(self) -> bool {
        matches!(self, Self::Vpnv4 | Self::Ipv4Unicast)
    }

    pub(crate) fn of(afi: &[u8], safi: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| {
            let [high, low, _, its_safi] = family.codes();
            afi == [high, low] && safi == its_safi
        })
    }
}
