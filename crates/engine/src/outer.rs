//! Cache of outer headers: packets of a tunnel differ in only a few of their outer fields. The others are compared
//! word by word with a known header, and not parsed again.
//!
//! It knows the usual form: untagged IPv4 without options, and UDP without a checksum. [`key`](crate::key) parses any
//! form.

use crate::contexts::Context;
use crate::frame::{CHUNK, Chunk};
use crate::key::{Fast, LOW_TTL, Layout, Outer};
use crate::sums::addresses;
use mem::{Burst, Csum, RxPacket};
use packet::checksum::pseudo_header;
use packet::proto;

/// Length of the outer headers in their usual form.
const LEN: usize = proto::ETHERNET_LEN + proto::IPV4_LEN + proto::UDP_LEN;
/// The bytes that are compared, as words: all except UDP's checksum.
type Words = [u64; 5];
/// The bits that packets of a tunnel have in common: not DSCP and ECN, lengths, identification, DF, TTL, checksum and
/// source port.
const COMMON: Words = [u64::MAX, u64::MAX >> 8, 0xff00_ff3f_0000_0000, u64::MAX << 16, 0x0000_ffff_0000_ffff];
/// Number of outer headers known at a time.
const RECENT: usize = 64;

/// Outer headers, and the context of their packets.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    common: Words,
    context: Context,
}

#[derive(Debug)]
pub(crate) struct Outers(Box<[Known; RECENT]>);

impl Default for Outers {
    fn default() -> Self {
        Self(Box::new([Known::default(); RECENT]))
    }
}

/// Reads the start of a frame as words in the wire's byte order. `None` if UDP has a checksum.
#[inline(always)]
fn words(head: &[u8]) -> Option<Words> {
    let headers: &[u8; LEN] = head.first_chunk()?;
    let (words, sum) = headers.as_chunks::<8>();
    let (&[a, b, c, d, e], [0, 0]) = (words, sum) else { return None };
    Some([a, b, c, d, e].map(u64::from_le_bytes))
}

/// Returns the index at which headers are kept. It depends on the sender's address and on the port that
/// determines the kind of tunnel.
#[inline(always)]
const fn place(words: &Words) -> usize {
    let mixed = words[3] >> 16 ^ words[4] & 0xffff_0000_0000;
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

impl Outers {
    /// Strips the outer headers of the frame of `len` bytes that starts with `head`, if they are known; the inner
    /// packet is yet to be parsed. `None` says nothing about the frame.
    #[inline(always)]
    pub fn enter(&self, head: &[u8], len: usize, context: &mut Context) -> Option<Outer> {
        let words = words(head)?;
        let known = &self.0[place(&words)];
        let differs = (0..words.len()).fold(0, |all, i| all | (words[i] & COMMON[i]) ^ known.common[i]);
        let [_, b, c, d, e] = words;
        let ip_len = usize::from((c as u16).swap_bytes());
        let udp_len = usize::from(((e >> 48) as u16).swap_bytes());
        let ip_end = proto::ETHERNET_LEN + ip_len;
        let fits = ip_end <= len && udp_len >= proto::UDP_LEN && proto::IPV4_LEN + udp_len <= ip_len;
        let ttl = (c >> 48) as u8;
        let sum = (b >> 48) + (c & HALF) + (c >> 32) + (d & HALF) + (d >> 32) + (e & 0xffff);
        if differs != 0 || !fits || ttl <= LOW_TTL || folded(sum) != 0xffff {
            return None;
        }
        let kind = known.context.tunnel()?;
        context.enter_as(&known.context);
        let end = proto::ETHERNET_LEN + proto::IPV4_LEN + udp_len;
        Some(Outer { kind, at: LEN, end, ecn: (b >> 56) as u8 & packet::ecn::ECN_MASK })
    }

    /// Remembers the outer headers at the start of `head`, a tunnel packet that was found to be in this context.
    pub fn learn(&mut self, head: &[u8], context: &Context) {
        let Some(words) = words(head) else { return };
        let [_, b, c, ..] = words;
        let ethertype = ((b >> 32) as u16).swap_bytes();
        if ethertype == proto::ETHERTYPE_IPV4 && (c >> 56) as u8 == proto::UDP {
            let common = std::array::from_fn(|i| words[i] & COMMON[i]);
            self.0[place(&words)] = Known { common, context: *context };
        }
    }
}

/// Returns whether the outer UDP checksum of the packet with the snapshot `head` is right. `fast` says that
/// it has one.
#[cold]
pub(crate) fn sum_is_right(
    head: &[u8],
    burst: &Burst,
    packet: &RxPacket,
    fast: &Fast,
    chunk: &mut Chunk,
) -> bool {
    if packet.offload.csum != Csum::Unknown {
        return true;
    }
    let segments = burst.segments(packet);
    let udp = usize::from(fast.summed_at) - proto::UDP_LEN;
    let end = fast.tunnel_end as usize;
    let v6 = head[12..proto::ETHERNET_LEN] == proto::ETHERTYPE_IPV6.to_be_bytes();
    let ip = Layout { l3: proto::ETHERNET_LEN as u16, v6, ..Layout::default() };
    let Some((src, dst)) = addresses(head, &ip) else { return false };
    let mut sum = pseudo_header(src, dst, proto::UDP, (end - udp) as u32);
    sum.add(&head[udp..end.min(head.len())]);
    let mut at = head.len();
    while at < end {
        let part = &mut chunk[..(end - at).min(CHUNK)];
        let had = mem::gather(segments, at, part);
        if had == 0 {
            return false;
        }
        sum.add(&part[..had]);
        at += had;
    }
    sum.fold() == 0xffff
}

const HALF: u64 = 0xffff_ffff;

/// Folds a ones' complement sum over words that began where a header begins.
#[inline(always)]
const fn folded(sum: u64) -> u64 {
    let sum = (sum & HALF) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;
    use model::VifId;
    use packet::TunnelKind;
    use proptest::prelude::*;

    const INNER: &str = "ip4 10.9.0.7 > 10.1.1.1 / udp 5000 > 5001 / payload 20";

    /// Builds a UDP packet in a tunnel.
    fn frame(kind: TunnelKind, remote: &str, source_port: u16) -> Vec<u8> {
        let outer = format!(
            "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 {remote} > 192.0.2.1 / udp {source_port}"
        );
        let text = match kind {
            TunnelKind::Vxlan => {
                let ethernet = "eth 02:dd:00:00:00:01 > 02:00:00:00:00:01";
                format!("{outer} > 4789 nosum / vxlan 5001 / {ethernet} / {INNER}")
            }
            _ => format!("{outer} > 6635 nosum / mpls 16 / {INNER}"),
        };
        model::text::parse(&text).unwrap()
    }

    fn parsed(frame: &[u8]) -> Option<(Context, Fast)> {
        let (mut context, mut fast) = (Context::of(VifId(3)), Fast::default());
        key::parse(frame, frame.len(), true, &mut context, &mut fast).map(|()| (context, fast))
    }

    fn by_known(outers: &Outers, frame: &[u8]) -> Option<Option<(Context, Fast)>> {
        let (mut context, mut fast) = (Context::of(VifId(3)), Fast::default());
        let outer = outers.enter(frame, frame.len(), &mut context)?;
        Some(key::inner(frame, &outer, &mut context, &mut fast).map(|()| (context, fast)))
    }

    fn knowing(frame: &[u8]) -> Outers {
        let mut outers = Outers::default();
        let (context, fast) = parsed(frame).unwrap();
        assert!(fast.at.tunnelled);
        outers.learn(frame, &context);
        outers
    }

    const KINDS: [TunnelKind; 2] = [TunnelKind::Vxlan, TunnelKind::MplsUdp];

    #[test]
    fn packets_of_a_known_tunnel_are_taken() {
        for kind in KINDS {
            let outers = knowing(&frame(kind, "192.0.2.2", 50_000));
            let other_flow = frame(kind, "192.0.2.2", 60_000);
            assert_eq!(by_known(&outers, &other_flow), Some(parsed(&other_flow)));
            assert_eq!(by_known(&outers, &frame(kind, "192.0.2.3", 50_000)), None);
            assert_eq!(by_known(&Outers::default(), &other_flow), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_is_what_parsing_finds(
            kind in proptest::sample::select(&KINDS[..]),
            changes in proptest::collection::vec((0_usize..80, any::<u8>()), 0..4),
            cut in 0_usize..100,
            mend in any::<bool>(),
        ) {
            let outers = knowing(&frame(kind, "192.0.2.2", 50_000));
            let mut changed = frame(kind, "192.0.2.2", 50_000);
            for (at, value) in changes {
                if let Some(byte) = changed.get_mut(at) {
                    *byte = value;
                }
            }
            if mend {
                // Otherwise the checksum would reveal every change of the outer header.
                changed[24..26].fill(0);
                let sum = packet::checksum::sum(&changed[14..34]).finish();
                changed[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            changed.truncate(changed.len() - cut.saturating_sub(60));
            if let Some(taken) = by_known(&outers, &changed) {
                prop_assert_eq!(taken, parsed(&changed));
            }
        }
    }
}
