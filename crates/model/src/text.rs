//! Packets as text, for conformance vectors and for people:
//!
//! ```text
//! eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 10.1.1.1 > 10.1.1.2 ttl 64 / udp 1000 > 53 / payload 20
//! ```
//!
//! Layers are separated by ` / `; lengths, checksums and the next layer's number follow from the layers. Words in
//! brackets may be left out.
//!
//! | layer | |
//! |---|---|
//! | `eth SRC > DST [vlan ID\|svlan ID]... [type N]` | Ethernet, with C-tags and S-tags |
//! | `arp request SENDER at MAC for TARGET` | ARP, also `arp reply SENDER at MAC to TARGET at MAC` |
//! | `ip4 SRC > DST [ttl N] [tos N] [id N] [df] [frag OFFSET] [more] [proto N] [len N] [badsum]` | |
//! | `ip6 SRC > DST [ttl N] [tos N] [flow N] [id N] [frag OFFSET] [more] [proto N] [len N]` | `id`: with a fragment header |
//! | `udp SRC > DST [len N] [nosum]` | |
//! | `tcp`, `udp`, `icmp`, `ns` ...: `[badsum\|partial\|sum N]` at the end | wrong; left to a device; this checksum |
//! | `tcp SRC > DST [FLAGS] [seq N] [ack N] [win N] [mss N] [scale N] [options BYTES]` | flags: letters of `FSRPAUEC` |
//! | `sctp SRC > DST` | |
//! | `icmp echo ID SEQ`, `icmp reply ID SEQ`, `icmp TYPE CODE [REST]` | `icmp6` likewise |
//! | `ns TARGET [at MAC]`, `na TARGET [at MAC] [FLAGS]` | flags: letters of `rso` |
//! | `gre`, `mpls LABEL [ttl N] [tc N] [more]`, `vxlan VNI`, `geneve VNI` | tunnels |
//! | `roce rc\|uc\|ud OPERATION > QPN [psn N] [se] [migrated] [fecn] [becn] [ack] [pkey N] ...`, `roce cnp > QPN` | RoCEv2 with its ICRC, in `udp ... nosum` |
//! | ... what the operation has | `from QPN qkey N`, `va N rkey N dma LEN`, `va N rkey N swap N compare N`, `syndrome N msn N`, `original N`, `imm N`, `inv RKEY` |
//! | `payload N` | bytes 0, 1, 2... |
//! | `hex BYTES` | |
//! | `pad N`, `cut N` | at the end: zeros behind the frame; its first bytes alone |

mod encode;
mod roce;
mod show;

pub use show::{describe, show};

/// Most layers of a text. Layers nest, and each holds a copy of all that is inside.
const MOST_LAYERS: usize = 64;
/// Most layers that are told apart in a frame; the rest is bytes. The layers of the last round may exceed it.
const MOST_SHOWN: usize = 32;
/// Most VLAN tags of an Ethernet header, in both directions.
const MOST_TAGS: usize = 8;

/// An error in a packet's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("in '{layer}': {what}")]
pub struct TextError {
    /// The layer.
    pub layer: String,
    /// The error.
    pub what: String,
}

/// Returns the frame that a text describes.
///
/// # Errors
/// [`TextError`].
pub fn parse(text: &str) -> Result<Vec<u8>, TextError> {
    encode::frame(text)
}
