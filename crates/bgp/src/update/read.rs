//! Reading UPDATE messages, by the rules of RFC 7606 for what is malformed.
//!
//! Attributes are found here by their lengths: a broken one costs its routes, and the others are still read.

use super::nlri;
use crate::names::Family;
use crate::notification::{self, Notification};
use netgauze_bgp_pkt::path_attribute::{AsPath, AsPathSegmentType};
use netgauze_parse_utils::error::ParseError;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithTwoInputs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Everything that reading depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// Whether AS numbers have four octets.
    pub(crate) as4: bool,
    /// Whether the peer is of a different AS.
    pub(crate) external: bool,
    pub(crate) asn: u32,
    pub(crate) router_id: Ipv4Addr,
}

/// The contents of an UPDATE.
#[derive(Debug)]
pub(crate) struct Update<'a> {
    /// Routes of a family that is known.
    pub(crate) reach: Option<Reach<'a>>,
    /// Withdrawn ones.
    pub(crate) unreach: Option<(Family, &'a [u8])>,
    /// Their attributes.
    pub(crate) attributes: Received<'a>,
    /// Why the routes are withdrawn in place of being taken (RFC 7606, 2).
    pub(crate) fault: Option<&'static str>,
    /// Plain IPv4 routes outside of attributes (RFC 4271, 4.3): withdrawn ones, and others.
    pub(crate) plain: (&'a [u8], &'a [u8]),
    /// True without attributes: an end of IPv4 routes, if there are no routes either.
    pub(crate) is_bare: bool,
    /// Whether there are routes of a family that is not known.
    pub(crate) foreign: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach<'a> {
    pub(crate) family: Family,
    pub(crate) next_hop: IpAddr,
    pub(crate) nlri: &'a [u8],
}

/// Attributes, as far as they matter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received<'a> {
    pub(crate) origin: Option<u8>,
    pub(crate) path: Option<Path>,
    /// The next hop of plain routes outside of attributes.
    pub(crate) next_hop: Option<Ipv4Addr>,
    pub(crate) med: Option<u32>,
    pub(crate) preference: Option<u32>,
    pub(crate) originator: Option<Ipv4Addr>,
    /// The length of the cluster list.
    pub(crate) clusters: u16,
    /// Whether the route went through this speaker, or through a cluster of this number.
    pub(crate) looped: bool,
    /// Whether it is about to end (RFC 8326).
    pub(crate) leaves: bool,
    /// Extended communities, of eight octets each.
    pub(crate) communities: &'a [u8],
    /// The label of a tunnel for floods, by ingress replication (RFC 6514, 5).
    pub(crate) flood_label: Option<[u8; 3]>,
}

/// An AS path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// The length: a set counts as one (RFC 4271, 9.1.2.2).
    pub(crate) length: u16,
    /// The AS at its beginning.
    pub(crate) neighbour: u32,
    /// Whether the own AS is in it.
    pub(crate) looped: bool,
}

mod code {
    pub(super) const ORIGIN: u8 = 1;
    pub(super) const AS_PATH: u8 = 2;
    pub(super) const NEXT_HOP: u8 = 3;
    pub(super) const MED: u8 = 4;
    pub(super) const LOCAL_PREF: u8 = 5;
    pub(super) const COMMUNITIES: u8 = 8;
    pub(super) const ORIGINATOR_ID: u8 = 9;
    pub(super) const CLUSTER_LIST: u8 = 10;
    pub(super) const MP_REACH: u8 = 14;
    pub(super) const MP_UNREACH: u8 = 15;
    pub(super) const EXTENDED_COMMUNITIES: u8 = 16;
    pub(super) const PMSI_TUNNEL: u8 = 22;
}

const OPTIONAL: u8 = 0x80;
const TRANSITIVE: u8 = 0x40;
const EXTENDED: u8 = 0x10;

/// Returns the flags that an attribute must have.
const fn flags(code: u8) -> Option<u8> {
    match code {
        // Besides those that are read: ATOMIC_AGGREGATE.
        code::ORIGIN | code::AS_PATH | code::NEXT_HOP | code::LOCAL_PREF | 6 => Some(TRANSITIVE),
        code::MED | code::ORIGINATOR_ID | code::CLUSTER_LIST | code::MP_REACH | code::MP_UNREACH => {
            Some(OPTIONAL)
        }
        code::COMMUNITIES | code::EXTENDED_COMMUNITIES | code::PMSI_TUNNEL => Some(OPTIONAL | TRANSITIVE),
        _ => None,
    }
}

/// Reads the body of an UPDATE.
pub(crate) fn read<'a>(body: &'a [u8], context: &Context) -> Result<Update<'a>, Notification> {
    let malformed = |_: ParseError| Notification::new(notification::UPDATE, 1);
    let mut at = SliceReader::new(body);
    let length = at.read_u16_be().map_err(malformed)?;
    let withdrawn = at.take_slice(length.into()).map_err(malformed)?;
    let length = at.read_u16_be().map_err(malformed)?;
    let mut attributes = at.take_slice(length.into()).map_err(malformed)?;
    let mut update = Update {
        reach: None,
        unreach: None,
        attributes: Received::default(),
        fault: None,
        plain: (withdrawn.as_slice(), at.as_slice()),
        is_bare: attributes.is_empty(),
        foreign: false,
    };
    let mut seen = [false; 256];
    while !attributes.is_empty() {
        let Ok(attribute) = Attribute::take(&mut attributes) else {
            update.fault = Some("the attributes end early");
            // The rest may name routes, and nobody knows which.
            if update.reach.is_none() {
                return Err(Notification::new(notification::UPDATE, 1));
            }
            break;
        };
        if std::mem::replace(&mut seen[usize::from(attribute.code)], true) {
            if matches!(attribute.code, code::MP_REACH | code::MP_UNREACH) {
                return Err(Notification::new(notification::UPDATE, 1));
            }
            continue;
        }
        update.add(&attribute, context)?;
    }
    let has_plain = !update.plain.1.is_empty();
    if (update.reach.is_some() || has_plain) && update.fault.is_none() {
        update.fault = match update.attributes {
            Received { origin: None, .. } => Some("no ORIGIN"),
            Received { path: None, .. } => Some("no AS_PATH"),
            Received { next_hop: None, .. } if has_plain => Some("no NEXT_HOP, or a malformed one"),
            _ => None,
        };
    }
    Ok(update)
}

#[derive(Clone, Copy, Debug)]
struct Attribute<'a> {
    flags: u8,
    code: u8,
    /// Begins with the length.
    whole: SliceReader<'a>,
    value: &'a [u8],
}

impl<'a> Attribute<'a> {
    fn take(at: &mut SliceReader<'a>) -> Result<Self, ParseError> {
        let (flags, code) = (at.read_u8()?, at.read_u8()?);
        let whole = *at;
        let length = if flags & EXTENDED != 0 { at.read_u16_be()?.into() } else { at.read_u8()?.into() };
        Ok(Self { flags, code, whole, value: at.take_slice(length)?.as_slice() })
    }

    fn number(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.value.try_into().ok()?))
    }

    fn path(&self, context: &Context) -> Option<Path> {
        let path = AsPath::parse(&mut self.whole.clone(), self.flags & EXTENDED != 0, context.as4).ok()?;
        let mut found = Path::default();
        let mut add = |set: bool, numbers: &mut dyn Iterator<Item = u32>| {
            let before = found.length;
            for number in numbers {
                if found.length == 0 {
                    found.neighbour = number;
                }
                found.length = found.length.saturating_add(1);
                found.looped |= number == context.asn;
            }
            if set {
                found.length = before.saturating_add(1);
            }
        };
        let is_set = |kind| kind == AsPathSegmentType::AsSet;
        match path {
            AsPath::As2PathSegments(segments) => segments.iter().for_each(|segment| {
                add(
                    is_set(segment.segment_type()),
                    &mut segment.as_numbers().iter().map(|asn| u32::from(*asn)),
                );
            }),
            AsPath::As4PathSegments(segments) => segments.iter().for_each(|segment| {
                add(is_set(segment.segment_type()), &mut segment.as_numbers().iter().copied());
            }),
        }
        Some(found)
    }
}

impl<'a> Update<'a> {
    fn add(&mut self, attribute: &Attribute<'a>, context: &Context) -> Result<(), Notification> {
        match flags(attribute.code) {
            Some(flags) if (attribute.flags ^ flags) & (OPTIONAL | TRANSITIVE) != 0 => {
                self.fault = Some("an attribute has wrong flags");
            }
            None if attribute.flags & OPTIONAL == 0 => {
                // It is well known, but not here.
                return Err(Notification::with(notification::UPDATE, 2, &[attribute.flags, attribute.code]));
            }
            _ => {}
        }
        let malformed = || Notification::new(notification::UPDATE, 9);
        match attribute.code {
            code::MP_REACH => match reach(attribute.value).ok_or_else(malformed)? {
                Some(reach) => self.reach = Some(reach),
                None => self.foreign = true,
            },
            code::MP_UNREACH => {
                let ([a, b, safi], nlri) = attribute.value.split_first_chunk().ok_or_else(malformed)?;
                match Family::of(&[*a, *b], *safi) {
                    Some(family) => self.unreach = Some((family, nlri)),
                    None => self.foreign = true,
                }
            }
            _ => {
                if let Err(fault) = self.attributes.add(attribute, context) {
                    self.fault = Some(fault);
                }
            }
        }
        Ok(())
    }

    /// Returns the family whose routes have all been sent (RFC 4724, 2).
    pub(crate) fn end_of_rib(&self) -> Option<Family> {
        match self {
            Self { reach: Some(_), .. } | Self { foreign: true, .. } => None,
            Self { unreach: Some((family, [])), plain: ([], []), .. } => Some(*family),
            Self { plain: ([], []), is_bare: true, .. } => Some(Family::Ipv4Unicast),
            _ => None,
        }
    }
}

impl<'a> Received<'a> {
    fn add(&mut self, attribute: &Attribute<'a>, context: &Context) -> Result<(), &'static str> {
        let value = attribute.value;
        match attribute.code {
            code::ORIGIN => match value {
                [origin @ 0..=2] => self.origin = Some(*origin),
                _ => return Err("malformed ORIGIN"),
            },
            code::AS_PATH => self.path = Some(attribute.path(context).ok_or("malformed AS_PATH")?),
            // Routes in attributes have another (RFC 4760, 3).
            code::NEXT_HOP => self.next_hop = attribute.number().map(Into::into),
            code::MED => self.med = Some(attribute.number().ok_or("malformed MULTI_EXIT_DISC")?),
            // These mean nothing between autonomous systems (RFC 7606, 7).
            code::LOCAL_PREF | code::ORIGINATOR_ID | code::CLUSTER_LIST if context.external => {}
            code::LOCAL_PREF => self.preference = Some(attribute.number().ok_or("malformed LOCAL_PREF")?),
            code::ORIGINATOR_ID => {
                let id = Ipv4Addr::from(attribute.number().ok_or("malformed ORIGINATOR_ID")?);
                self.looped |= id == context.router_id;
                self.originator = Some(id);
            }
            code::CLUSTER_LIST => {
                let (clusters, []) = value.as_chunks::<4>() else { return Err("malformed CLUSTER_LIST") };
                self.looped |= clusters.contains(&context.router_id.octets());
                self.clusters = clusters.len() as u16;
            }
            code::COMMUNITIES => {
                let (all @ [_, ..], []) = value.as_chunks::<4>() else { return Err("malformed communities") };
                self.leaves = all.contains(&super::GRACEFUL_SHUTDOWN.to_be_bytes());
            }
            code::EXTENDED_COMMUNITIES => {
                if value.is_empty() || !value.len().is_multiple_of(8) {
                    return Err("malformed extended communities");
                }
                self.communities = value;
            }
            code::PMSI_TUNNEL => match value {
                // Flags, type 6, label, the address of its end.
                [_, 6, a, b, c, end @ ..] if matches!(end.len(), 4 | 16) => {
                    self.flood_label = Some([*a, *b, *c])
                }
                [_, kind, _, _, _, ..] if *kind != 6 => {}
                _ => return Err("malformed PMSI_TUNNEL"),
            },
            _ => {}
        }
        Ok(())
    }
}

/// Reads MP_REACH_NLRI (RFC 4760, 3): nothing inside if its family is not known.
fn reach(value: &[u8]) -> Option<Option<Reach<'_>>> {
    let ([a, b, safi, length], rest) = value.split_first_chunk()?;
    let (next_hop, rest) = rest.split_at_checked(usize::from(*length))?;
    let (_, nlri) = rest.split_first()?;
    let Some(family) = Family::of(&[*a, *b], *safi) else { return Some(None) };
    // In VPN families a distinguisher of zeros is in front of each address.
    let address = match family {
        Family::Vpnv4 | Family::Vpnv6 => match next_hop.len() {
            12 | 24 => &next_hop[8..],
            48 => &next_hop[8..24],
            // RFC 8950, 3 as some understood it.
            16 | 32 => &next_hop[..16],
            _ => return None,
        },
        Family::Evpn | Family::Rtc | Family::Ipv4Unicast | Family::Ipv6Unicast => match next_hop.len() {
            4 | 16 => next_hop,
            32 => &next_hop[..16],
            _ => return None,
        },
    };
    let next_hop = match <[u8; 4]>::try_from(address) {
        Ok(v4) => IpAddr::from(v4),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?).to_canonical(),
    };
    Some(Some(Reach { family, next_hop, nlri }))
}

impl From<nlri::Malformed> for Notification {
    fn from(_: nlri::Malformed) -> Self {
        Self::new(notification::UPDATE, 10)
    }
}
