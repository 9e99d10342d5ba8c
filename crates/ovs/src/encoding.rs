//! Decodes a driver's items and actions: the one place that knows which flows can be carried out.

use crate::kinds::{FOREIGN, INGRESS, TRANSFER, action, item};
use crate::protocol::{Create, Item, item_len, name};
use crate::refused::Refused;
use model::VifId;
use model::ovs::{Action, Key, Match, Outer};
use packet::{Mac, proto};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Most tunnels into which a flow sends. Each takes its headers' bytes, and a copy of each packet.
const TUNNELS: usize = 4;

/// Decodes the flow that a driver asks for. `port_of` finds the guest or wire behind the driver's number of a
/// port.
///
/// # Errors
/// [`Refused`]: OVS carries the flow out itself.
pub fn decode(
    create: &Create<'_>,
    port_of: impl Fn(u32) -> Option<VifId>,
) -> Result<(Match, Vec<Action>), Refused> {
    let is_mark = create.attributes == INGRESS && is_mark(&create.actions);
    if create.attributes != TRANSFER && !is_mark {
        return Err(Refused::NotTransfer);
    }
    if (create.group, create.priority) != (0, 0) {
        return Err(Refused::Group);
    }
    let mut pattern = Pattern::default();
    create.items.iter().try_for_each(|item| pattern.add(item))?;
    if is_mark {
        return Ok((Match::new(&pattern.key, &pattern.mask), vec![Action::Mark]));
    }
    // Allocates exactly the actions that are kept, because these bytes are counted against the limit.
    let done = create.actions.iter().filter(|(kind, _)| *kind != action::COUNT).count();
    let mut actions = Vec::with_capacity(done);
    for (kind, value) in &create.actions {
        actions.extend(decode_action(*kind, value, &port_of)?);
    }
    if actions.iter().filter(|action| matches!(action, Action::Encap(_))).count() > TUNNELS {
        return Err(Refused::Full("tunnels into which a flow sends"));
    }
    Ok((Match::new(&pattern.key, &pattern.mask), actions))
}

/// Is true if a flow's packets are to go to OVS with a mark, and nothing else.
const fn is_mark(actions: &[(u16, &[u8])]) -> bool {
    matches!(actions, [(action::MARK, _)] | [(action::MARK, _), (action::RSS, _)])
}

/// Fields of a packet and their masks, as items add them.
#[derive(Debug, Default)]
struct Pattern {
    key: Key,
    mask: Key,
    /// The layer of the last item: items come from the outside in.
    layer: Layer,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    #[default]
    Nothing,
    Ethernet,
    Vlan,
    Ip,
    Fragment,
    L4,
}

/// Value, mask and upper end of an item, each with the length of its kind.
struct Parts<'a> {
    spec: &'a [u8],
    mask: &'a [u8],
    last: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    /// Returns the parts of an item; `None` if it matches everything of its kind.
    fn of(item: &Item<'a>, len: usize) -> Result<Option<Self>, Refused> {
        let Item { spec, mask, last, .. } = *item;
        // Shorter bytes would be read as if zeros followed, and so match more than requested.
        if [spec, mask, last].into_iter().flatten().any(|part| part.len() != len) {
            return Err(Refused::Length(item.kind));
        }
        match (spec, mask, last) {
            (None, None, None) => Ok(None),
            (Some(spec), Some(mask), last) => Ok(Some(Self { spec, mask, last })),
            _ => Err(Refused::NoMask),
        }
    }

    fn value<const N: usize>(&self, at: usize) -> ([u8; N], [u8; N]) {
        let array = |of: &[u8]| of.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N]);
        (array(self.spec), array(self.mask))
    }

    fn byte(&self, at: usize) -> (u8, u8) {
        let ([value], [mask]) = self.value(at);
        (value, mask)
    }

    fn word(&self, at: usize) -> (u16, u16) {
        let (value, mask) = self.value(at);
        (u16::from_be_bytes(value), u16::from_be_bytes(mask))
    }

    /// Refuses a mask in these bytes, if the item has them.
    fn no(&self, bytes: std::ops::Range<usize>, what: &'static str) -> Result<(), Refused> {
        let mut mask = self.mask.iter().take(bytes.end).skip(bytes.start);
        if mask.any(|byte| *byte != 0) { Err(Refused::Field(what)) } else { Ok(()) }
    }

    fn no_range(&self, what: &'static str) -> Result<(), Refused> {
        let ends = self.last.is_some_and(|last| {
            let differ = |((end, begin), mask): ((&u8, &u8), &u8)| (end ^ begin) & mask != 0;
            last.iter().any(|byte| *byte != 0) && last.iter().zip(self.spec).zip(self.mask).any(differ)
        });
        if ends { Err(Refused::Range(what)) } else { Ok(()) }
    }
}

/// Byte of an Ethernet item that has `has_vlan` in its first bit: in the C ABI, a bit field shares the word
/// in which the EtherType ends.
const HAS_VLAN: usize = 14;
/// Bits of IPv4's fragment field: more fragments, and the offset.
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// The same bits of IPv6's fragment header.
const MORE_V6: u16 = 1;
const OFFSET_V6: u16 = 0xfff8;
/// Bit of an IPv6 item: there is a fragment header.
const HAS_FRAGMENT: u32 = 1 << 2;

impl Pattern {
    fn add(&mut self, item: &Item<'_>) -> Result<(), Refused> {
        let Some(len) = item_len(item.kind) else { return Err(Refused::Item(item.name())) };
        let layer = match item.kind {
            item::ETH => Layer::Ethernet,
            item::VLAN => Layer::Vlan,
            item::IPV4 | item::IPV6 => Layer::Ip,
            item::IPV6_FRAG => Layer::Fragment,
            _ => Layer::L4,
        };
        if layer <= self.layer {
            return Err(Refused::Order);
        }
        self.layer = layer;
        self.imply(item.kind);
        let Some(parts) = Parts::of(item, len)? else { return Ok(()) };
        match item.kind {
            item::ETH => self.ethernet(&parts),
            item::VLAN => self.vlan(&parts),
            item::IPV4 => self.ipv4(&parts),
            item::IPV6 => self.ipv6(&parts),
            item::IPV6_FRAG => self.ipv6_fragment(&parts),
            kind => self.l4(kind, &parts),
        }
    }

    /// Adds what the mere presence of an item says about the packet.
    fn imply(&mut self, kind: u16) {
        let (mut ethertype, mut protocol) = (None, None);
        match kind {
            item::VLAN => {
                self.key.vlan_tci |= Key::TAGGED;
                self.mask.vlan_tci |= Key::TAGGED;
            }
            item::IPV4 => ethertype = Some(proto::ETHERTYPE_IPV4),
            item::IPV6 | item::IPV6_FRAG => ethertype = Some(proto::ETHERTYPE_IPV6),
            item::TCP => protocol = Some(proto::TCP),
            item::UDP => protocol = Some(proto::UDP),
            item::SCTP => protocol = Some(proto::SCTP),
            item::ICMP => protocol = Some(proto::ICMP),
            item::ICMP6 => protocol = Some(proto::ICMPV6),
            _ => {}
        }
        if let Some(ethertype) = ethertype {
            (self.key.eth_type, self.mask.eth_type) = (ethertype, u16::MAX);
        }
        if let Some(protocol) = protocol {
            (self.key.ip_proto, self.mask.ip_proto) = (protocol, u8::MAX);
        }
    }

    /// Adds an Ethernet item. As in OVS, its type is the one behind a tag, unless it is a tag's own type.
    fn ethernet(&mut self, parts: &Parts<'_>) -> Result<(), Refused> {
        parts.no_range("Ethernet headers")?;
        let (dst, dst_mask) = parts.value(0);
        let (src, src_mask) = parts.value(6);
        (self.key.eth_dst, self.mask.eth_dst) = (Mac(dst), Mac(dst_mask));
        (self.key.eth_src, self.mask.eth_src) = (Mac(src), Mac(src_mask));
        match parts.word(12) {
            (ethertype @ (proto::ETHERTYPE_VLAN | proto::ETHERTYPE_QINQ), u16::MAX) => {
                (self.key.vlan_type, self.mask.vlan_type) = (ethertype, u16::MAX);
                self.imply(item::VLAN);
            }
            (ethertype, mask) => (self.key.eth_type, self.mask.eth_type) = (ethertype, mask),
        }
        let (tagged, matters) = parts.byte(HAS_VLAN);
        if matters & 1 != 0 {
            self.mask.vlan_tci |= Key::TAGGED;
            self.key.vlan_tci |= if tagged & 1 == 0 { 0 } else { Key::TAGGED };
        }
        Ok(())
    }

    fn vlan(&mut self, parts: &Parts<'_>) -> Result<(), Refused> {
        parts.no_range("VLAN tags")?;
        let (tci, mask) = parts.word(0);
        if mask & Key::TAGGED != 0 {
            return Err(Refused::Field("the drop eligibility of a VLAN tag"));
        }
        self.key.vlan_tci |= tci & mask;
        self.mask.vlan_tci |= mask;
        if let (ethertype, mask @ 1..) = parts.word(2) {
            (self.key.eth_type, self.mask.eth_type) = (ethertype, mask);
        }
        parts.no(4..8, "a second VLAN tag")
    }

    fn ipv4(&mut self, parts: &Parts<'_>) -> Result<(), Refused> {
        parts.no(0..1, "the length of IPv4 headers")?;
        parts.no(2..6, "length or identification of IPv4 packets")?;
        parts.no(10..12, "IPv4 checksums")?;
        self.ip(parts.byte(1), parts.byte(8), parts.byte(9));
        self.ipv4_fragment(parts)?;
        let address = |(value, mask): ([u8; 4], [u8; 4])| {
            (u32::from_be_bytes(value).into(), u32::from_be_bytes(mask).into())
        };
        (self.key.ip_src, self.mask.ip_src) = address(parts.value(12));
        (self.key.ip_dst, self.mask.ip_dst) = address(parts.value(16));
        Ok(())
    }

    fn ip(&mut self, tos: (u8, u8), ttl: (u8, u8), protocol: (u8, u8)) {
        (self.key.ip_tos, self.mask.ip_tos) = tos;
        (self.key.ip_ttl, self.mask.ip_ttl) = ttl;
        (self.key.ip_proto, self.mask.ip_proto) = protocol;
    }

    /// Adds one of the three matches on fragments that OVS has: none, first ones, later ones (a range).
    fn ipv4_fragment(&mut self, parts: &Parts<'_>) -> Result<(), Refused> {
        let last = parts.last.and_then(|last| last.get(6..8)?.first_chunk().copied());
        let last = last.map_or(0, u16::from_be_bytes) & OFFSET;
        let (value, mask) = parts.word(6);
        match (value & mask, mask, last) {
            (_, 0, _) => Ok(()),
            (0, mask, 0) if mask == MORE | OFFSET => self.fragment(Some(false), None),
            (MORE, mask, 0) if mask == MORE | OFFSET => self.fragment(Some(true), Some(false)),
            (1.., OFFSET, OFFSET) => self.fragment(Some(true), Some(true)),
            _ => Err(Refused::Field("these fragments of IPv4")),
        }
    }

    /// Adds whether the packet is a fragment, and whether a later one.
    fn fragment(&mut self, any: Option<bool>, later: Option<bool>) -> Result<(), Refused> {
        for (is, bit) in [(any, Key::FRAGMENT), (later, Key::LATER)] {
            let Some(is) = is else { continue };
            let known = self.mask.ip_fragment & bit != 0;
            if known && (self.key.ip_fragment & bit != 0) != is {
                return Err(Refused::Field("these fragments of IPv6"));
            }
            self.mask.ip_fragment |= bit;
            self.key.ip_fragment |= if is { bit } else { 0 };
        }
        Ok(())
    }

    fn ipv6(&mut self, parts: &Parts<'_>) -> Result<(), Refused> {
        parts.no_range("IPv6 headers")?;
        let (first, mask) = parts.value(0);
        let (first, mask) = (u32::from_be_bytes(first), u32::from_be_bytes(mask));
        if mask & !0x0ff0_0000 != 0 {
            return Err(Refused::Field("the flow label of IPv6"));
        }
        parts.no(4..6, "the length of IPv6 packets")?;
        self.ip(((first >> 20) as u8, (mask >> 20) as u8), parts.byte(7), parts.byte(6));
        let address = |(value, mask)| (u128::from_be_bytes(value), u128::from_be_bytes(mask));
        (self.key.ip_src, self.mask.ip_src) = address(parts.value(8));
        (self.key.ip_dst, self.mask.ip_dst) = address(parts.value(24));
        // A word of bits, in the host's byte order.
        let (bits, mask) = parts.value(40);
        let (bits, mask) = (u32::from_le_bytes(bits), u32::from_le_bytes(mask));
        if mask & !HAS_FRAGMENT != 0 {
            return Err(Refused::Field("extension headers of IPv6 other than a fragment's"));
        }
        if mask == 0 { Ok(()) } else { self.fragment(Some(bits & HAS_FRAGMENT != 0), None) }
    }

    fn ipv6_fragment(&mut self, parts: &Parts<'_>) -> Result<(), Refused> {
        parts.no(1..2, "a fragment header's reserved byte")?;
        parts.no(4..8, "a fragment's identification")?;
        if let (protocol, mask @ 1..) = parts.byte(0) {
            (self.key.ip_proto, self.mask.ip_proto) = (protocol, mask);
        }
        let last = parts.last.and_then(|last| last.get(2..4)?.first_chunk().copied());
        let last = last.map_or(0, u16::from_be_bytes) & OFFSET_V6;
        let (value, mask) = parts.word(2);
        match (value & mask, mask, last) {
            (_, 0, _) => self.fragment(Some(true), None),
            (MORE_V6, mask, 0) if mask == MORE_V6 | OFFSET_V6 => self.fragment(Some(true), Some(false)),
            (1.., OFFSET_V6, OFFSET_V6) => self.fragment(Some(true), Some(true)),
            _ => Err(Refused::Field("these fragments of IPv6")),
        }
    }

    fn l4(&mut self, kind: u16, parts: &Parts<'_>) -> Result<(), Refused> {
        if matches!(kind, item::ICMP | item::ICMP6) {
            parts.no_range("ICMP headers")?;
            parts.no(2..8, "ICMP fields other than type and code")?;
            let wide = |(value, mask): (u8, u8)| (value.into(), mask.into());
            (self.key.l4_src, self.mask.l4_src) = wide(parts.byte(0));
            (self.key.l4_dst, self.mask.l4_dst) = wide(parts.byte(1));
            return Ok(());
        }
        parts.no_range("ports")?;
        (self.key.l4_src, self.mask.l4_src) = parts.word(0);
        (self.key.l4_dst, self.mask.l4_dst) = parts.word(2);
        match kind {
            item::TCP => {
                parts.no(4..12, "TCP sequence numbers")?;
                parts.no(12..13, "TCP flags beyond the first eight")?;
                parts.no(14..20, "TCP windows and checksums")?;
                (self.key.tcp_flags, self.mask.tcp_flags) = parts.byte(13);
                Ok(())
            }
            _ => parts.no(4..12, "fields of UDP or SCTP other than ports"),
        }
    }
}

/// Decodes an action; `None` if nothing needs to be done for it.
fn decode_action(
    kind: u16,
    value: &[u8],
    port_of: impl Fn(u32) -> Option<VifId>,
) -> Result<Option<Action>, Refused> {
    fn array<const N: usize>(value: &[u8], what: &'static str) -> Result<[u8; N], Refused> {
        value.try_into().map_err(|_| Refused::Value(what))
    }
    let word = |what| array(value, what).map(u16::from_be_bytes);
    let byte = |what| array(value, what).map(|[byte]| byte);
    Ok(Some(match kind {
        action::COUNT => return Ok(None),
        action::DROP => Action::Drop,
        action::OUTPUT => {
            let number = u32::from_le_bytes(array(value, "output")?);
            let port = Some(number).filter(|number| *number != FOREIGN).and_then(port_of);
            Action::Output(port.ok_or(Refused::ForeignPort)?)
        }
        action::MAC_SRC => Action::SetMacSrc(Mac(array(value, "set_mac_src")?)),
        action::MAC_DST => Action::SetMacDst(Mac(array(value, "set_mac_dst")?)),
        action::IPV4_SRC => Action::SetIpSrc(Ipv4Addr::from(array(value, "set_ipv4_src")?).into()),
        action::IPV4_DST => Action::SetIpDst(Ipv4Addr::from(array(value, "set_ipv4_dst")?).into()),
        action::IPV6_SRC => Action::SetIpSrc(Ipv6Addr::from(array(value, "set_ipv6_src")?).into()),
        action::IPV6_DST => Action::SetIpDst(Ipv6Addr::from(array(value, "set_ipv6_dst")?).into()),
        action::TTL => Action::SetTtl(byte("set_ttl")?),
        action::DSCP => match byte("set_dscp")? {
            dscp @ ..0x40 => Action::SetDscp(dscp),
            _ => return Err(Refused::Value("set_dscp")),
        },
        action::TP_SRC => Action::SetPortSrc(word("set_tp_src")?),
        action::TP_DST => Action::SetPortDst(word("set_tp_dst")?),
        action::PUSH_VLAN => match word("of_push_vlan")? {
            proto::ETHERTYPE_VLAN => Action::PushVlan { service: false },
            proto::ETHERTYPE_QINQ => Action::PushVlan { service: true },
            _ => return Err(Refused::Value("of_push_vlan")),
        },
        action::VLAN_VID => match word("of_set_vlan_vid")? {
            vid @ ..0x1000 => Action::SetVlanVid(vid),
            _ => return Err(Refused::Value("of_set_vlan_vid")),
        },
        action::VLAN_PCP => match byte("of_set_vlan_pcp")? {
            pcp @ ..8 => Action::SetVlanPcp(pcp),
            _ => return Err(Refused::Value("of_set_vlan_pcp")),
        },
        action::POP_VLAN => Action::PopVlan,
        action::ENCAP => Action::Encap(Outer::new(value).map_err(Refused::Tunnel)?),
        action::OTHER => return Err(Refused::Action(name(value))),
        _ => return Err(Refused::Action(format!("number {kind}"))),
    }))
}
