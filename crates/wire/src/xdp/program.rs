//! The XDP program: redirects our frames to the socket of their queue and leaves the rest to the kernel.
//!
//! It is a few dozen instructions that depend on the addresses, so it is assembled here rather than compiled.

use std::net::IpAddr;

/// Selects the arriving frames that are ours.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    /// The device's address: unicast frames to other addresses are not ours.
    pub mac: [u8; 6],
    /// Our IP addresses: packets, ARP and neighbour solicitations for them are ours.
    pub addresses: Vec<IpAddr>,
    /// Whether all frames are ours.
    pub all: bool,
}

/// The end of the program for frames that are ours.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ours {
    /// Redirects them to the queue's socket in this XSKMAP, or to the kernel if there is none.
    Redirect { map: i32 },
    /// Returns this verdict, for tests.
    #[cfg(test)]
    Verdict(i32),
}

/// Verdict that passes the frame to the kernel (linux/bpf.h).
pub(crate) const XDP_PASS: i32 = 2;

// Registers. Calls clobber R0..R5; R1 holds the context at first.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const CONTEXT: u8 = 6;
const DATA: u8 = 7;
const END: u8 = 8;
const T: u8 = 5;

// Fields of struct xdp_md.
const XDP_DATA: i16 = 0;
const XDP_DATA_END: i16 = 4;
const XDP_RX_QUEUE_INDEX: i16 = 16;

const BPF_FUNC_REDIRECT_MAP: i32 = 51;
const BPF_PSEUDO_MAP_FD: u8 = 1;

// Offsets of fields in a frame without a VLAN tag, bytes.
const ETHERTYPE: i16 = 12;
const ARP_TARGET: i16 = 38;
const IPV4_DESTINATION: i16 = 30;
const IPV6_NEXT_HEADER: i16 = 20;
const IPV6_DESTINATION: i16 = 38;
const ICMPV6_TYPE: i16 = 54;
const ND_TARGET: i16 = 62;

const ICMPV6: i32 = 58;
const NEIGHBOUR_SOLICITATION: i32 = 135;

/// The width of a load: one, two or four bytes.
#[derive(Clone, Copy)]
enum Size {
    B = 0x10,
    H = 0x08,
    W = 0x00,
}

/// A jump target. Its position is known once the code before it is assembled.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Label(usize);

/// Encodes an instruction as a struct bpf_insn.
const fn instruction(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | (offset as u16 as u64) << 16
        | (immediate as u32 as u64) << 32
}

#[derive(Default)]
struct Assembler {
    code: Vec<u64>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn emit(&mut self, code: u8, dst: u8, src: u8, offset: i16, immediate: i32) {
        self.code.push(instruction(code, dst, src, offset, immediate));
    }

    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn jump_with(&mut self, code: u8, dst: u8, src: u8, immediate: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(code, dst, src, 0, immediate);
    }

    /// Emits `dst = immediate`.
    fn set(&mut self, dst: u8, immediate: i32) {
        self.emit(0xb7, dst, 0, 0, immediate);
    }

    /// Emits `dst = src`.
    fn copy(&mut self, dst: u8, src: u8) {
        self.emit(0xbf, dst, src, 0, 0);
    }

    /// Emits `dst = *(size *)(src + offset)`.
    fn load(&mut self, size: Size, dst: u8, src: u8, offset: i16) {
        self.emit(0x61 | size as u8, dst, src, offset, 0);
    }

    fn jump(&mut self, to: Label) {
        self.jump_with(0x05, 0, 0, 0, to);
    }

    /// Emits a jump that is taken if the low 32 bits of `T` are `immediate`.
    fn jump_if(&mut self, immediate: i32, to: Label) {
        self.jump_with(0x16, T, 0, immediate, to);
    }

    /// Emits a jump that is taken if the low 32 bits of `T` are not `immediate`.
    fn jump_unless(&mut self, immediate: i32, to: Label) {
        self.jump_with(0x56, T, 0, immediate, to);
    }

    /// Emits a jump that is taken if the frame is shorter than `len` bytes.
    fn jump_if_shorter(&mut self, len: i32, to: Label) {
        self.copy(T, DATA);
        self.emit(0x07, T, 0, 0, len);
        self.jump_with(0x2d, T, END, 0, to);
    }

    /// Emits a jump that is taken if the bytes at `at` of the frame are not `bytes`.
    fn jump_unless_bytes(&mut self, at: i16, bytes: &[u8], to: Label) {
        let mut at = at;
        for part in bytes.chunks(4) {
            match *part {
                [a, b, c, d] => {
                    self.load(Size::W, T, DATA, at);
                    self.jump_unless(i32::from_ne_bytes([a, b, c, d]), to);
                }
                [a, b] => {
                    self.load(Size::H, T, DATA, at);
                    self.jump_unless(u16::from_ne_bytes([a, b]).into(), to);
                }
                _ => unreachable!("addresses have an even length"),
            }
            at += part.len() as i16;
        }
    }

    /// Emits a jump that is taken if the bytes at `at` are one of the addresses; otherwise the program continues.
    fn jump_if_any<const N: usize>(&mut self, at: i16, addresses: impl Iterator<Item = [u8; N]>, to: Label) {
        for address in addresses {
            let next = self.label();
            self.jump_unless_bytes(at, &address, next);
            self.jump(to);
            self.place(next);
        }
    }

    /// Returns the code, with resolved jumps.
    fn finish(mut self) -> Vec<u64> {
        for (from, label) in self.jumps {
            let to = self.labels[label.0].expect("every label is placed");
            self.code[from] |= u64::from((to as i64 - from as i64 - 1) as i16 as u16) << 16;
        }
        self.code
    }
}

/// Assembles the program, as the kernel's `struct bpf_insn`s.
pub(crate) fn assemble(filter: &Filter, ours: Ours) -> Vec<u64> {
    let mut a = Assembler::default();
    let (pass, take) = (a.label(), a.label());
    a.copy(CONTEXT, R1);
    if !filter.all {
        classify(&mut a, filter, take, pass);
        a.place(pass);
        a.set(R0, XDP_PASS);
        a.emit(0x95, 0, 0, 0, 0);
        if filter.addresses.is_empty() {
            // The verifier allows no unreachable code.
            return a.finish();
        }
        a.place(take);
    }
    match ours {
        Ours::Redirect { map } => {
            // Two slots: a 64-bit immediate, here the map's descriptor.
            a.emit(0x18, R1, BPF_PSEUDO_MAP_FD, 0, map);
            a.emit(0, 0, 0, 0, 0);
            a.load(Size::W, R2, CONTEXT, XDP_RX_QUEUE_INDEX);
            a.set(R3, XDP_PASS);
            a.emit(0x85, 0, 0, 0, BPF_FUNC_REDIRECT_MAP);
        }
        #[cfg(test)]
        Ours::Verdict(verdict) => a.set(R0, verdict),
    }
    a.emit(0x95, 0, 0, 0, 0);
    a.finish()
}

/// Emits code that jumps to `take` or to `pass`, or continues with the code after it, which must be that of `pass`.
fn classify(a: &mut Assembler, filter: &Filter, take: Label, pass: Label) {
    let v4 = || {
        filter.addresses.iter().filter_map(|a| if let IpAddr::V4(a) = a { Some(a.octets()) } else { None })
    };
    let v6 = || {
        filter.addresses.iter().filter_map(|a| if let IpAddr::V6(a) = a { Some(a.octets()) } else { None })
    };
    let (arp, ipv4, ipv6, unicast6) = (a.label(), a.label(), a.label(), a.label());
    a.load(Size::W, DATA, CONTEXT, XDP_DATA);
    a.load(Size::W, END, CONTEXT, XDP_DATA_END);
    a.jump_if_shorter(42, pass);
    a.load(Size::H, T, DATA, ETHERTYPE);
    for (ethertype, label) in [(0x0806, arp), (0x0800, ipv4), (0x86dd, ipv6)] {
        a.jump_if(u16::to_be(ethertype).into(), label);
    }
    a.jump(pass);

    a.place(arp);
    a.jump_if_any(ARP_TARGET, v4(), take);
    a.jump(pass);

    a.place(ipv4);
    a.jump_unless_bytes(0, &filter.mac, pass);
    a.jump_if_any(IPV4_DESTINATION, v4(), take);
    a.jump(pass);

    // Solicitations go to a multicast address that several of the host's addresses may share.
    a.place(ipv6);
    a.jump_if_shorter(i32::from(ND_TARGET) + 16, unicast6);
    a.load(Size::B, T, DATA, IPV6_NEXT_HEADER);
    a.jump_unless(ICMPV6, unicast6);
    a.load(Size::B, T, DATA, ICMPV6_TYPE);
    a.jump_unless(NEIGHBOUR_SOLICITATION, unicast6);
    a.jump_if_any(ND_TARGET, v6(), take);

    a.place(unicast6);
    a.jump_if_shorter(i32::from(IPV6_DESTINATION) + 16, pass);
    a.jump_unless_bytes(0, &filter.mac, pass);
    a.jump_if_any(IPV6_DESTINATION, v6(), take);
}

#[cfg(test)]
mod tests {
    use super::super::bpf::{create_xskmap, load_program, tests::verdict};
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const BROADCAST: [u8; 6] = [0xff; 6];
    const XDP_TX: u32 = 3;

    fn filter(addresses: &[&str], all: bool) -> Filter {
        Filter { mac: MAC, addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(), all }
    }

    /// Returns a filter with two addresses of each family.
    fn ours() -> Filter {
        filter(&["192.0.2.1", "2001:db8::1", "192.0.2.129", "2001:db8::8000:1"], false)
    }

    /// Runs the program in the kernel; returns whether it takes the frame.
    fn takes(filter: &Filter, frame: &[u8]) -> bool {
        let program = load_program(&assemble(filter, Ours::Verdict(XDP_TX as i32)), false).unwrap();
        match verdict(program.as_fd(), frame) {
            XDP_TX => true,
            pass => {
                assert_eq!(pass, XDP_PASS as u32);
                false
            }
        }
    }

    fn frame(to: [u8; 6], ethertype: u16, body: &[u8]) -> Vec<u8> {
        [&to, &OTHER[..], &ethertype.to_be_bytes(), body].concat()
    }

    fn ipv4(to: [u8; 6], destination: &str) -> Vec<u8> {
        let IpAddr::V4(address) = destination.parse().unwrap() else { panic!("not IPv4") };
        let mut body = [0u8; 28];
        body[0] = 0x45;
        body[16..20].copy_from_slice(&address.octets());
        frame(to, 0x0800, &body)
    }

    fn ipv6(to: [u8; 6], next: u8, destination: &str, payload: &[u8]) -> Vec<u8> {
        let IpAddr::V6(address) = destination.parse().unwrap() else { panic!("not IPv6") };
        let mut body = [0u8; 40];
        body[0] = 0x60;
        body[6] = next;
        body[24..40].copy_from_slice(&address.octets());
        frame(to, 0x86dd, &[&body, payload].concat())
    }

    fn arp(to: [u8; 6], target: [u8; 4]) -> Vec<u8> {
        let mut body = [0u8; 28];
        body[24..28].copy_from_slice(&target);
        frame(to, 0x0806, &body)
    }

    fn nd(kind: u8, target: &str) -> Vec<u8> {
        let IpAddr::V6(address) = target.parse().unwrap() else { panic!("not IPv6") };
        let payload =
            [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &address.octets(), &[1, 1, 2, 0, 0, 0, 0, 2]].concat();
        ipv6([0x33, 0x33, 0xff, 0, 0, 1], 58, "ff02::1:ff00:1", &payload)
    }

    #[test]
    fn packets_to_our_addresses_are_ours() {
        for address in ["192.0.2.1", "192.0.2.129"] {
            assert!(takes(&ours(), &ipv4(MAC, address)), "{address}");
        }
        for address in ["2001:db8::1", "2001:db8::8000:1"] {
            assert!(takes(&ours(), &ipv6(MAC, 17, address, &[0; 8])), "{address}");
            assert!(takes(&ours(), &ipv6(MAC, 58, address, &[128; 40])), "{address}: echo request");
        }
    }

    #[test]
    fn packets_to_others_are_the_kernels() {
        for address in ["192.0.2.2", "192.0.3.1", "0.0.0.0", "255.255.255.255"] {
            assert!(!takes(&ours(), &ipv4(MAC, address)), "{address}");
        }
        for address in ["2001:db8::2", "2001:db9::1", "2001:db8::1:0:0:1", "::"] {
            assert!(!takes(&ours(), &ipv6(MAC, 17, address, &[0; 40])), "{address}");
        }
        assert!(!takes(&ours(), &ipv4(OTHER, "192.0.2.1")), "another device's");
        assert!(!takes(&ours(), &ipv6(OTHER, 17, "2001:db8::1", &[0; 8])), "another device's");
    }

    #[test]
    fn who_asks_for_our_addresses_asks_us() {
        assert!(takes(&ours(), &arp(BROADCAST, [192, 0, 2, 1])));
        assert!(takes(&ours(), &arp(MAC, [192, 0, 2, 129])), "an answer to us");
        assert!(!takes(&ours(), &arp(BROADCAST, [192, 0, 2, 2])));
        assert!(takes(&ours(), &nd(135, "2001:db8::8000:1")));
        assert!(
            !takes(&ours(), &nd(135, "2001:db8::1:8000:1")),
            "the host's, of the same solicited-node group"
        );
        assert!(!takes(&ours(), &nd(134, "2001:db8::1")), "not a solicitation");
    }

    #[test]
    fn the_rest_is_the_kernels() {
        assert!(!takes(&ours(), &frame(MAC, 0x88cc, &[0; 60])), "LLDP");
        assert!(!takes(&ours(), &frame(MAC, 0x8100, &[0; 60])), "a VLAN");
        let whole = ipv6(MAC, 17, "2001:db8::1", &[]);
        for len in 14..whole.len() {
            assert!(!takes(&ours(), &whole[..len]), "{len} bytes of an IPv6 header");
        }
        assert!(!takes(&filter(&[], false), &ipv4(MAC, "192.0.2.1")), "no address is ours");
    }

    #[test]
    fn with_all_every_frame_is_taken() {
        for frame in [frame(OTHER, 0x8100, &[0; 60]), ipv4(OTHER, "192.0.2.2"), frame(BROADCAST, 0x1234, &[])]
        {
            assert!(takes(&filter(&[], true), &frame));
        }
    }

    #[test]
    fn without_a_socket_the_kernel_gets_it() {
        let map = create_xskmap(1).unwrap();
        let code = assemble(&ours(), Ours::Redirect { map: map.as_raw_fd() });
        let program = load_program(&code, true).unwrap();
        assert_eq!(verdict(program.as_fd(), &ipv4(MAC, "192.0.2.1")), XDP_PASS as u32);
    }

    #[test]
    fn many_addresses_pass_the_verifier() {
        let addresses: Vec<String> =
            (0..200).flat_map(|i| [format!("192.0.2.{i}"), format!("2001:db8::{i}")]).collect();
        let many = filter(&addresses.iter().map(String::as_str).collect::<Vec<_>>(), false);
        assert!(takes(&many, &ipv4(MAC, "192.0.2.199")));
        assert!(takes(&many, &ipv6(MAC, 17, "2001:db8::199", &[0; 8])));
        assert!(!takes(&many, &ipv4(MAC, "192.0.2.200")));
    }
}
