//! Tests with the flows that Open vSwitch 3.1 sends, as its log shows them in testpmd's syntax.

use crate::encoding::decode;
use crate::kinds::{INGRESS, TRANSFER, action, item};
use crate::protocol::{Create, Item};
use crate::refused::Refused;
use model::VifId;
use model::ovs::{Action, Key, Match};
use packet::{Mac, proto};

/// Makes an item of `len` bytes, with these bytes as value and mask.
fn item(kind: u16, len: usize, fields: &[(usize, &[u8], &[u8])]) -> Item<'static> {
    let (mut spec, mut mask) = (vec![0; len], vec![0; len]);
    for (at, value, over) in fields {
        spec[*at..at + value.len()].copy_from_slice(value);
        mask[*at..at + over.len()].copy_from_slice(over);
    }
    Item { kind, spec: Some(spec.leak()), mask: Some(mask.leak()), last: None }
}

/// Makes an Ethernet item without tag, of this type.
fn eth(ethertype: u16) -> Item<'static> {
    item(item::ETH, 20, &[(12, &ethertype.to_be_bytes(), &[0xff; 2]), (14, &[0], &[1])])
}

fn pattern(items: Vec<Item<'_>>) -> Result<Match, Refused> {
    let create = Create { attributes: TRANSFER, items, ..Create::default() };
    decode(&create, |_| None).map(|(matching, _)| matching)
}

fn actions(actions: Vec<(u16, &[u8])>) -> Result<Vec<Action>, Refused> {
    let create = Create { attributes: TRANSFER, actions, ..Create::default() };
    decode(&create, |number| (number == 3).then_some(VifId(30))).map(|(_, actions)| actions)
}

/// "eth type is 0x0800 has_vlan is 0 / ipv4 proto is 0x11 fragment_offset spec 0x0 mask 0x3fff / udp dst is 1001"
#[test]
fn a_udp_flow() {
    let ip = item(item::IPV4, 20, &[(9, &[17], &[0xff]), (6, &[0; 2], &[0x3f, 0xff]), (1, &[0], &[3])]);
    let udp = item(item::UDP, 8, &[(2, &1001_u16.to_be_bytes(), &[0xff; 2])]);
    let key = Key { eth_type: 0x0800, ip_proto: 17, l4_dst: 1001, ..Key::default() };
    let mask = Key {
        eth_type: 0xffff,
        vlan_tci: Key::TAGGED,
        ip_proto: 0xff,
        ip_tos: 3,
        ip_fragment: Key::FRAGMENT,
        l4_dst: 0xffff,
        ..Key::default()
    };
    assert_eq!(pattern(vec![eth(0x0800), ip, udp]), Ok(Match::new(&key, &mask)));
}

/// With a tag, the Ethernet item has the type behind it.
#[test]
fn a_vlan_flow() {
    let dst = Mac([2, 0, 0, 0, 0, 9]);
    let eth = item(item::ETH, 20, &[(0, &dst.0, &[0xff; 6]), (12, &[8, 6], &[0xff; 2]), (14, &[1], &[1])]);
    let vlan = item(item::VLAN, 8, &[(0, &[0x20, 100], &[0xef, 0xff])]);
    let seen = pattern(vec![eth, vlan]).unwrap();
    assert_eq!(seen.key().vlan_tci, 0x2064 | Key::TAGGED);
    assert_eq!((seen.mask().vlan_tci, seen.mask().vlan_type), (0xffff, 0));
    assert_eq!((seen.key().eth_type, seen.key().eth_dst), (proto::ETHERTYPE_ARP, dst));
    // In DPDK's own reading, the Ethernet item has the tag's type, and the tag has the other.
    let eth = item(item::ETH, 20, &[(12, &[0x88, 0xa8], &[0xff; 2])]);
    let vlan = item(item::VLAN, 8, &[(0, &[0, 5], &[0x0f, 0xff]), (2, &[8, 0], &[0xff; 2])]);
    let seen = pattern(vec![eth, vlan]).unwrap();
    assert_eq!((seen.key().vlan_type, seen.key().eth_type), (0x88a8, 0x0800));
    let second = item(item::VLAN, 8, &[(4, &[1], &[1])]);
    assert!(matches!(pattern(vec![second]), Err(Refused::Field(_))));
}

#[test]
fn fragments() {
    let of_v4 = |value: u16, mask: u16, last: Option<u16>| {
        let mut ip = item(item::IPV4, 20, &[(6, &value.to_be_bytes(), &mask.to_be_bytes())]);
        ip.last = last.map(|last| {
            let mut bytes = vec![0; 20];
            bytes[6..8].copy_from_slice(&last.to_be_bytes());
            &*bytes.leak()
        });
        pattern(vec![eth(0x0800), ip]).map(|seen| (seen.key().ip_fragment, seen.mask().ip_fragment))
    };
    assert_eq!(of_v4(0, 0, None), Ok((0, 0)));
    assert_eq!(of_v4(0, 0x3fff, None), Ok((0, 1)));
    assert_eq!(of_v4(0x2000, 0x3fff, None), Ok((1, 3)));
    assert_eq!(of_v4(8, 0x1fff, Some(0x1fff)), Ok((3, 3)));
    for (value, mask, last) in [(0, 0x1fff, None), (0, 0x2000, None), (1, 0x3fff, None), (1, 0x1fff, Some(9))]
    {
        assert!(of_v4(value, mask, last).is_err(), "{value} {mask:#x}");
    }
    let of_v6 = |has: u8, header: Option<(u16, u16, Option<u16>)>| {
        let ip = item(item::IPV6, 44, &[(40, &[has << 2], &[4])]);
        let header = header.map(|(value, mask, last)| {
            let mut header = item(
                item::IPV6_FRAG,
                8,
                &[(2, &value.to_be_bytes(), &mask.to_be_bytes()), (0, &[17], &[0xff])],
            );
            header.last = last.map(|last| &*[&[0; 2], &last.to_be_bytes()[..], &[0; 4]].concat().leak());
            header
        });
        pattern([eth(0x86dd), ip].into_iter().chain(header).collect())
            .map(|seen| (seen.key().ip_fragment, seen.mask().ip_fragment))
    };
    assert_eq!(of_v6(0, None), Ok((0, 1)));
    assert_eq!(of_v6(1, Some((1, 0xfff9, None))), Ok((1, 3)));
    assert_eq!(of_v6(1, Some((8, 0xfff8, Some(0xfff8)))), Ok((3, 3)));
    // Without fragment header, and yet a fragment: no packet is like that.
    assert!(of_v6(0, Some((1, 0xfff9, None))).is_err());
}

#[test]
fn fields_that_are_not_known_are_refused_by_name() {
    let all = |kind, len: usize| {
        let all: Vec<_> =
            (0..len).map(|at| pattern(vec![item(kind, len, &[(at, &[0], &[0xff])])]).is_ok()).collect();
        all.iter().enumerate().filter(|(_, ok)| **ok).map(|(at, _)| at).collect::<Vec<_>>()
    };
    assert_eq!(all(item::IPV4, 20), [1, 8, 9, 12, 13, 14, 15, 16, 17, 18, 19]);
    assert_eq!(all(item::TCP, 20), [0, 1, 2, 3, 13]);
    assert_eq!((all(item::UDP, 8), all(item::SCTP, 12)), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
    assert_eq!((all(item::ICMP, 8), all(item::ICMP6, 4)), (vec![0, 1], vec![0, 1]));
    let traffic_class = item(item::IPV6, 44, &[(0, &[1, 0x20], &[0x0f, 0xf0])]);
    assert_eq!(pattern(vec![traffic_class]).unwrap().key().ip_tos, 0x12);
    let label = item(item::IPV6, 44, &[(3, &[1], &[0xff])]);
    assert_eq!(pattern(vec![label]), Err(Refused::Field("the flow label of IPv6")));
}

#[test]
fn items_have_an_order_and_masks() {
    let udp = || item(item::UDP, 8, &[]);
    assert_eq!(pattern(vec![udp(), udp()]), Err(Refused::Order));
    assert_eq!(pattern(vec![udp(), eth(0x0800)]), Err(Refused::Order));
    assert_eq!(pattern(vec![Item { mask: None, ..eth(0x0800) }]), Err(Refused::NoMask));
    let mut range = item(item::UDP, 8, &[(2, &[0, 1], &[0xff; 2])]);
    range.last = Some(&[0, 0, 0, 9, 0, 0, 0, 0]);
    assert_eq!(pattern(vec![range]), Err(Refused::Range("ports")));
    // An empty item says that the header is there; a missing item says nothing.
    let empty = Item { kind: item::IPV6, ..Item::default() };
    assert_eq!(pattern(vec![empty]).unwrap().key().eth_type, 0x86dd);
    assert_eq!(pattern(vec![]).unwrap().mask(), &Key::default());
}

/// A part with a wrong length must not be understood in a different way: the flow is refused.
#[test]
fn parts_of_a_wrong_length_are_refused() {
    let cut = |change: &dyn Fn(&mut Item<'_>)| {
        let mut ip = item(item::IPV4, 20, &[(16, &[10, 0, 0, 1], &[0xff; 4])]);
        change(&mut ip);
        pattern(vec![ip])
    };
    assert!(cut(&|_| ()).is_ok());
    for len in [0, 19, 21, 44] {
        let part = || Some(&[0; 44][..len]);
        assert_eq!(cut(&|ip| ip.spec = part()), Err(Refused::Length(item::IPV4)), "{len}");
        assert_eq!(cut(&|ip| ip.mask = part()), Err(Refused::Length(item::IPV4)), "{len}");
        assert_eq!(cut(&|ip| ip.last = part()), Err(Refused::Length(item::IPV4)), "{len}");
        assert_eq!(cut(&|ip| (ip.spec, ip.mask) = (None, part())), Err(Refused::Length(item::IPV4)), "{len}");
    }
    assert_eq!(cut(&|ip| ip.spec = None), Err(Refused::NoMask));
    assert_eq!(
        cut(&|ip| (ip.spec, ip.mask, ip.last) = (None, None, Some(&[0; 20][..]))),
        Err(Refused::NoMask)
    );
}

#[test]
fn a_flow_sends_into_few_tunnels() {
    let mut headers = vec![0; 14 + 20 + 8 + 8];
    headers[12..14].copy_from_slice(&[8, 0]);
    (headers[14], headers[23]) = (0x45, 17);
    let sends = |tunnels: usize| actions(vec![(action::ENCAP, &headers); tunnels]).map(|all| all.len());
    assert_eq!(sends(4), Ok(4));
    assert_eq!(sends(5), Err(Refused::Full("tunnels into which a flow sends")));
}

#[test]
fn all_actions() {
    let port = 3_u32.to_le_bytes();
    let seen = actions(vec![
        (action::COUNT, &[]),
        (action::MAC_SRC, &[2, 0, 0, 0, 0, 1]),
        (action::MAC_DST, &[2, 0, 0, 0, 0, 2]),
        (action::IPV4_SRC, &[10, 0, 0, 1]),
        (action::IPV6_DST, &[0xfd; 16]),
        (action::TTL, &[63]),
        (action::DSCP, &[46]),
        (action::TP_SRC, &[1, 0]),
        (action::TP_DST, &[0, 80]),
        (action::PUSH_VLAN, &[0x81, 0]),
        (action::VLAN_VID, &[0, 100]),
        (action::VLAN_PCP, &[5]),
        (action::OUTPUT, &port),
        (action::POP_VLAN, &[]),
        (action::OUTPUT, &port),
    ]);
    let expected = vec![
        Action::SetMacSrc(Mac([2, 0, 0, 0, 0, 1])),
        Action::SetMacDst(Mac([2, 0, 0, 0, 0, 2])),
        Action::SetIpSrc("10.0.0.1".parse().unwrap()),
        Action::SetIpDst("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd".parse().unwrap()),
        Action::SetTtl(63),
        Action::SetDscp(46),
        Action::SetPortSrc(256),
        Action::SetPortDst(80),
        Action::PushVlan { service: false },
        Action::SetVlanVid(100),
        Action::SetVlanPcp(5),
        Action::Output(VifId(30)),
        Action::PopVlan,
        Action::Output(VifId(30)),
    ];
    assert_eq!(seen, Ok(expected));
    for (kind, value) in [
        (action::OUTPUT, &[3, 0][..]),
        (action::DSCP, &[64]),
        (action::VLAN_VID, &[0x10, 0]),
        (action::VLAN_PCP, &[8]),
        (action::PUSH_VLAN, &[8, 0]),
        (action::TTL, &[]),
    ] {
        assert!(matches!(actions(vec![(kind, value)]), Err(Refused::Value(_))), "{kind}");
    }
    assert!(matches!(actions(vec![(action::ENCAP, &[0; 20])]), Err(Refused::Tunnel(_))));
    assert_eq!(actions(vec![(99, &[])]), Err(Refused::Action("number 99".into())));
}

/// OVS asks for this when it carries a flow out itself: "ingress ... actions mark id 7 / rss".
#[test]
fn a_mark() {
    let asked = |attributes, actions: &[u16]| {
        let actions = actions.iter().map(|kind| (*kind, &[][..])).collect();
        let create = Create { attributes, items: vec![eth(0x0800)], actions, ..Create::default() };
        decode(&create, |_| None)
    };
    let (matching, actions) = asked(INGRESS, &[action::MARK, action::RSS]).unwrap();
    assert_eq!((matching.key().eth_type, actions), (0x0800, vec![Action::Mark]));
    assert!(asked(INGRESS, &[action::MARK]).is_ok());
    // With fewer or more actions, or as a whole flow.
    for others in [&[][..], &[action::RSS], &[action::MARK, action::DROP], &[action::MARK, action::MARK]] {
        assert_eq!(asked(INGRESS, others), Err(Refused::NotTransfer), "{others:?}");
    }
    assert_eq!(asked(INGRESS | TRANSFER, &[action::MARK]), Err(Refused::NotTransfer));
    assert!(matches!(asked(TRANSFER, &[action::MARK]), Err(Refused::Action(_))));
}
