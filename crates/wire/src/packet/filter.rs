//! The packet filter (classic BPF) of a wire that the kernel keeps: only tunnel packets to this host pass, and what
//! routers say about them.

use crate::shared::TunnelTraffic;
use libc::sock_filter;
use packet::proto;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

// Fields of a packet besides its bytes (linux/filter.h).
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
const VLAN_TAG: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG) as u32;
/// The VLAN in a tag; 0 means that the tag has a priority alone.
const VLAN: u32 = 0xfff;

// Offsets in a frame without tags.
const ETHERTYPE: u32 = 12;
const IP: u32 = proto::ETHERNET_LEN as u32;
/// IPv4 without options.
const PLAIN_IPV4: u32 = 0x45;
const OFFSET_BITS: u32 = 0x1fff;
/// Type and code of "fragmentation needed and DF set" (RFC 792).
const ICMP_TOO_BIG: u32 = 0x0304;

const ALL: u32 = u32::MAX;

/// A step of the program.
#[derive(Clone, Copy)]
enum Do {
    /// Loads a field at this offset: one, two or four bytes.
    Byte(u32),
    Half(u32),
    Word(u32),
    /// Loads the length of the IPv4 header, to which the offsets of the following two are relative.
    HeaderLen,
    ByteBehind(u32),
    HalfBehind(u32),
    /// Keeps these bits of what is loaded.
    And(u32),
    /// Goes on at one place if what is loaded has this value, else at another one.
    If(u32, To, To),
    /// The same, if it has one of these bits.
    IfBits(u32, To, To),
}

/// The place to go on at.
#[derive(Clone, Copy, PartialEq)]
enum To {
    Next,
    Take,
    Leave,
    At(&'static str),
}
use Do::{And, Byte, ByteBehind, Half, HalfBehind, HeaderLen, If, IfBits, Word};
use To::{At, Leave, Next, Take};

/// Returns the filter for this traffic.
pub(super) fn program(traffic: &TunnelTraffic) -> Vec<sock_filter> {
    let mut steps = Steps::default();
    steps.add([
        Byte(PACKET_TYPE),
        If(libc::PACKET_HOST.into(), Next, Leave),
        Half(VLAN_TAG),
        And(VLAN),
        If(0, Next, Leave),
        Half(ETHERTYPE),
    ]);
    let v4 = traffic
        .addresses
        .iter()
        .find_map(|addr| if let IpAddr::V4(addr) = addr { Some(*addr) } else { None });
    let v6 = traffic
        .addresses
        .iter()
        .find_map(|addr| if let IpAddr::V6(addr) = addr { Some(*addr) } else { None });
    steps.add([If(proto::ETHERTYPE_IPV4.into(), if v4.is_some() { At("ip4") } else { Leave }, Next)]);
    steps.add([If(proto::ETHERTYPE_IPV6.into(), if v6.is_some() { At("ip6") } else { Leave }, Leave)]);
    if let Some(addr) = v4 {
        ipv4(&mut steps, addr, traffic);
    }
    if let Some(addr) = v6 {
        ipv6(&mut steps, addr, traffic);
    }
    steps.finish()
}

fn ipv4(steps: &mut Steps, addr: Ipv4Addr, traffic: &TunnelTraffic) {
    steps.label("ip4");
    steps.add([
        Word(IP + 16),
        If(addr.to_bits(), Next, Leave),
        Byte(IP + 9),
        If(proto::GRE.into(), Take, Next),
        If(proto::UDP.into(), At("udp4"), Next),
        If(proto::ICMP.into(), Next, Leave),
        Half(IP + 6),
        IfBits(OFFSET_BITS, Leave, Next),
        HeaderLen,
        HalfBehind(IP),
        If(ICMP_TOO_BIG, Next, Leave),
        ByteBehind(IP + 8),
        If(PLAIN_IPV4, Next, Leave),
        ByteBehind(IP + 8 + 9),
        If(proto::GRE.into(), Take, Next),
        If(proto::UDP.into(), Next, Leave),
        HalfBehind(IP + 8 + 20 + 2),
    ]);
    steps.ports(traffic);
    steps.label("udp4");
    // A later fragment has no ports: whoever puts fragments together finds out whose it is.
    let fragment = if traffic.fragments { Take } else { Leave };
    steps.add([Half(IP + 6), IfBits(OFFSET_BITS, fragment, Next), HeaderLen, HalfBehind(IP + 2)]);
    steps.ports(traffic);
}

fn ipv6(steps: &mut Steps, addr: Ipv6Addr, traffic: &TunnelTraffic) {
    steps.label("ip6");
    for (word, at) in addr.octets().chunks_exact(4).zip((IP + 24..).step_by(4)) {
        let word = word.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        steps.add([Word(at), If(word, Next, Leave)]);
    }
    steps.add([
        Byte(IP + 6),
        If(proto::GRE.into(), Take, Next),
        If(proto::UDP.into(), At("udp6"), Next),
        If(proto::ICMPV6.into(), Next, Leave),
        Byte(IP + 40),
        If(proto::ICMPV6_TOO_BIG.into(), Next, Leave),
        Byte(IP + 40 + 8 + 6),
        If(proto::GRE.into(), Take, Next),
        If(proto::UDP.into(), Next, Leave),
        Half(IP + 40 + 8 + 40 + 2),
    ]);
    steps.ports(traffic);
    steps.label("udp6");
    steps.add([Half(IP + 40 + 2)]);
    steps.ports(traffic);
}

/// Steps in their order, and the places to which others go.
#[derive(Default)]
struct Steps {
    steps: Vec<Do>,
    labels: Vec<(&'static str, usize)>,
}

impl Steps {
    fn add<const N: usize>(&mut self, steps: [Do; N]) {
        self.steps.extend(steps);
    }

    fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.steps.len()));
    }

    /// Takes the packet if the loaded port is one of tunnels, else leaves it.
    fn ports(&mut self, traffic: &TunnelTraffic) {
        let ports = traffic.ports();
        for (index, port) in ports.iter().enumerate() {
            let other = if index + 1 == ports.len() { Leave } else { Next };
            self.add([If((*port).into(), Take, other)]);
        }
    }

    fn finish(&self) -> Vec<sock_filter> {
        let end = self.steps.len();
        let jump = |from: usize, to: To| {
            let to = match to {
                Next => from + 1,
                Leave => end,
                Take => end + 1,
                At(name) => self.labels.iter().find(|(label, _)| *label == name).map_or(end, |(_, at)| *at),
            };
            // The whole program has fewer than 100 steps.
            (to - from - 1) as u8
        };
        let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
        let load = |code, k| step(libc::BPF_LD | code, 0, 0, k);
        let branch = |from, code, k, yes, no| {
            step(libc::BPF_JMP | code | libc::BPF_K, jump(from, yes), jump(from, no), k)
        };
        let made = self.steps.iter().enumerate().map(|(from, what)| match *what {
            Byte(at) => load(libc::BPF_B | libc::BPF_ABS, at),
            Half(at) => load(libc::BPF_H | libc::BPF_ABS, at),
            Word(at) => load(libc::BPF_W | libc::BPF_ABS, at),
            HeaderLen => step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, IP),
            ByteBehind(at) => load(libc::BPF_B | libc::BPF_IND, at),
            HalfBehind(at) => load(libc::BPF_H | libc::BPF_IND, at),
            And(bits) => step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, bits),
            If(value, yes, no) => branch(from, libc::BPF_JEQ, value, yes, no),
            IfBits(bits, yes, no) => branch(from, libc::BPF_JSET, bits, yes, no),
        });
        let ends = [0, ALL].map(|len| step(libc::BPF_RET | libc::BPF_K, 0, 0, len));
        made.chain(ends).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
    use std::os::fd::{AsFd, OwnedFd};

    /// The kernel runs the filter: on datagrams between two sockets, which stand for frames.
    struct Filter(OwnedFd, OwnedFd);

    impl Filter {
        fn new(traffic: &TunnelTraffic) -> Self {
            let (to, from) =
                socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None).unwrap();
            sys::attach_filter(from.as_fd(), &mut program(traffic)).unwrap();
            Self(to, from)
        }

        fn takes(&self, frame: &[u8]) -> bool {
            // A refused datagram is an error on some kernels, and lost on others.
            let _ = send(&self.0, frame, SendFlags::empty());
            let mut bytes = [0; 2048];
            match recv(&self.1, bytes.as_mut_slice(), RecvFlags::empty()) {
                Ok((len, _)) => {
                    assert_eq!(bytes[..len], *frame, "it is whole");
                    true
                }
                Err(_) => false,
            }
        }
    }

    fn traffic(addresses: &[&str], geneve: bool, fragments: bool) -> TunnelTraffic {
        let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
        TunnelTraffic { addresses, geneve, fragments, bfd: false, bfd_of_peers: false }
    }

    /// Returns a frame with an IPv4 header of `words` words.
    fn ip4(dst: [u8; 4], protocol: u8, fragment: u16, words: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&[2; 12][..], &[8, 0]].concat();
        frame.extend([0x40 | words, 0, 0, 0, 0, 0]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 192, 0, 2, 2]);
        frame.extend(dst);
        frame.resize(14 + 4 * usize::from(words), 1);
        [&frame, payload].concat()
    }

    fn ip6(dst: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let dst: Ipv6Addr = dst.parse().unwrap();
        let head = [&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, protocol, 64], &[1; 16], &dst.octets()];
        [&head.concat(), payload].concat()
    }

    fn udp(port: u16) -> Vec<u8> {
        [&[0xc0, 1][..], &port.to_be_bytes(), &[0; 20]].concat()
    }

    const US: [u8; 4] = [192, 0, 2, 1];

    #[test]
    fn only_tunnel_packets_to_this_host_pass() {
        let filter = Filter::new(&traffic(&["192.0.2.1", "2001:db8::1"], false, false));
        for words in [5, 6, 15] {
            for (port, takes) in [(6635, true), (4789, true), (6081, false), (53, false), (0, false)] {
                assert_eq!(filter.takes(&ip4(US, 17, 0, words, &udp(port))), takes, "{port} {words}");
            }
            assert!(filter.takes(&ip4(US, 47, 0, words, &[0; 4])));
            assert!(!filter.takes(&ip4([192, 0, 2, 3], 17, 0, words, &udp(6635))));
            assert!(!filter.takes(&ip4([192, 0, 2, 3], 47, 0, words, &[0; 4])));
            assert!(!filter.takes(&ip4(US, 6, 0, words, &udp(6635))), "TCP");
            // The first fragment has the port, later ones do not.
            assert!(filter.takes(&ip4(US, 17, 0x2000, words, &udp(6635))));
            assert!(!filter.takes(&ip4(US, 17, 0x2001, words, &udp(6635))));
        }
        for (port, takes) in [(6635, true), (4789, true), (6081, false), (22, false)] {
            assert_eq!(filter.takes(&ip6("2001:db8::1", 17, &udp(port))), takes, "{port}");
        }
        assert!(filter.takes(&ip6("2001:db8::1", 47, &[0; 4])));
        for other in ["2001:db8::2", "2001:db8:0:1::1", "2001:db9::1", "2001:db8::1:0:1"] {
            assert!(!filter.takes(&ip6(other, 17, &udp(6635))));
        }
        let arp = [&[0xff; 6][..], &[2; 6], &[8, 6], &[0; 28]].concat();
        assert!(!filter.takes(&arp));
    }

    #[test]
    fn no_length_confuses_it() {
        let filter = Filter::new(&traffic(&["192.0.2.1", "2001:db8::1"], true, false));
        for frame in [
            ip4(US, 17, 0, 5, &udp(6635)),
            ip4(US, 17, 0, 15, &udp(6635)),
            ip6("2001:db8::1", 17, &udp(4789)),
        ] {
            let needed = frame.len() - 20;
            for len in 0..frame.len() {
                assert_eq!(filter.takes(&frame[..len]), len >= needed, "{len}");
            }
        }
    }

    #[test]
    fn geneve_and_fragments_pass_where_they_are_used() {
        let filter = Filter::new(&traffic(&["192.0.2.1"], true, true));
        assert!(filter.takes(&ip4(US, 17, 0, 5, &udp(6081))));
        assert!(filter.takes(&ip4(US, 17, 0x2001, 5, &udp(53))));
        assert!(!filter.takes(&ip4(US, 17, 0, 5, &udp(53))));
        assert!(!filter.takes(&ip6("2001:db8::1", 17, &udp(6635))), "there is no IPv6 address");
        let none = Filter::new(&traffic(&[], true, true));
        assert!(!none.takes(&ip4(US, 17, 0, 5, &udp(6635))) && !none.takes(&ip4([0; 4], 47, 0, 5, &[0; 4])));
    }

    #[test]
    fn bfd_passes_where_remotes_are_watched() {
        let watching = TunnelTraffic { bfd: true, ..traffic(&["192.0.2.1", "2001:db8::1"], false, false) };
        let filter = Filter::new(&watching);
        for (port, takes) in [(4784, true), (6635, true), (3784, false)] {
            assert_eq!(filter.takes(&ip4(US, 17, 0, 5, &udp(port))), takes, "{port}");
            assert_eq!(filter.takes(&ip6("2001:db8::1", 17, &udp(port))), takes, "{port}");
        }
        assert!(!filter.takes(&ip4([192, 0, 2, 3], 17, 0, 5, &udp(4784))));
        assert_eq!(watching.silent_ports(), [6635, 4789, 4784, 7784]);
        assert_eq!(TunnelTraffic { bfd_of_peers: true, ..watching }.silent_ports(), [6635, 4789, 7784]);
    }

    #[test]
    fn routers_are_heard_about_tunnel_packets_alone() {
        let filter = Filter::new(&traffic(&["192.0.2.1", "2001:db8::1"], false, false));
        let quoted = |protocol: u8, port: u16, words: u8| {
            let refused = ip4([192, 0, 2, 9], protocol, 0x4000, words, &udp(port));
            [&[3, 4, 0, 0, 0, 0, 5, 0][..], &refused[14..]].concat()
        };
        for words in [5, 8] {
            let told = |quoted: &[u8]| filter.takes(&ip4(US, 1, 0, words, quoted));
            assert!(told(&quoted(17, 6635, 5)) && told(&quoted(47, 0, 5)));
            assert!(!told(&quoted(17, 53, 5)) && !told(&quoted(6, 6635, 5)) && !told(&quoted(17, 6635, 6)));
            let mut unreachable = quoted(17, 6635, 5);
            unreachable[1] = 3;
            assert!(!told(&unreachable) && !told(&[8, 0, 0, 0, 0, 0, 0, 0]), "not too big, and a ping");
        }
        let refused = ip6("2001:db8::9", 17, &udp(4789));
        let too_big = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &refused[14..]].concat();
        assert!(filter.takes(&ip6("2001:db8::1", 58, &too_big)));
        let solicitation = [&[135, 0, 0, 0][..], &too_big[4..]].concat();
        assert!(!filter.takes(&ip6("2001:db8::1", 58, &solicitation)));
    }
}
