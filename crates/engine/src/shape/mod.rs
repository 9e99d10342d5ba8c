//! Shaping: what is over the rate of a guest waits, and is not dropped as by a policer.
//!
//! Packets from a guest wait in its own ring: a worker polls the ring only as far as the guest's [`Pacer`] allows.
//! Packets towards a guest wait in a queue before its ring. All workers put them in by an [`Inlet`]; one worker takes
//! them out by the [`Outlet`], which drops or marks some if they wait too long ([`Codel`]).

mod codel;
mod congestion;
mod inlet;
mod outlet;
mod pacer;

pub(crate) use inlet::{Inlet, Waker};
pub(crate) use outlet::{BYTES, FRAMES, Outlet};
pub(crate) use pacer::{Pace, Pacer};

use executor::{Counters, Shaping};
use mem::{Burst, Gso};
use model::Shape;
use std::sync::atomic::{AtomicU64, Ordering};

/// The shapers of a guest, shared by all workers.
#[derive(Debug, Default)]
pub(crate) struct Shaper {
    pub inward: Pacer,
    pub outward: Pacer,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    in_waited: AtomicU64,
    in_marked: AtomicU64,
    in_packets: AtomicU64,
    in_bytes: AtomicU64,
    out_waited: AtomicU64,
}

impl Shaper {
    pub fn set(&self, shape: Shape) {
        self.inward.set(shape.inward.unwrap_or(0));
        self.outward.set(shape.outward.unwrap_or(0));
    }

    /// Counts packets that waited in the guest's ring.
    pub fn waited(&self, packets: usize) {
        self.counts.out_waited.fetch_add(packets as u64, Ordering::Relaxed);
    }

    pub fn shaping(&self) -> Shaping {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { in_waited, in_marked, in_packets, in_bytes, out_waited } = &self.counts;
        Shaping {
            in_waited: get(in_waited),
            in_marked: get(in_marked),
            queued: Counters { packets: get(in_packets), bytes: get(in_bytes) },
            out_waited: get(out_waited),
        }
    }
}

/// Headers of a large send, bytes: Ethernet, IPv4 and TCP without options, and with all that fast paths look at.
/// Guests only claim a length.
const HEADERS: std::ops::RangeInclusive<u16> = 54..=192;

/// Returns the bytes of all packets of a burst.
pub(crate) fn burst_len(burst: &Burst) -> u64 {
    burst.packets().iter().map(|packet| shaped_len(packet.len, packet.offload.gso)).sum()
}

/// Returns how many bytes a packet of `len` bytes counts: a large send as many as its segments have.
pub(crate) fn shaped_len(len: u32, gso: Option<Gso>) -> u64 {
    let Some(gso) = gso else { return len.into() };
    let headers = u32::from(gso.hdr_len.clamp(*HEADERS.start(), *HEADERS.end()));
    let payload = len.saturating_sub(headers);
    let segments = payload.div_ceil(u32::from(gso.size.max(1))).max(1);
    u64::from(payload) + u64::from(segments) * u64::from(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_send_counts_as_its_segments() {
        let gso = |size, hdr_len| Some(Gso { v6: false, size, hdr_len, ecn: false });
        assert_eq!(shaped_len(1514, None), 1514);
        assert_eq!(shaped_len(66 + 10 * 1448, gso(1448, 66)), 10 * 1514);
        assert_eq!(shaped_len(66 + 1449, gso(1448, 66)), 1449 + 2 * 66);
        // A guest that claims no headers gains less than a percent.
        let lies = shaped_len(66 + 40 * 1448, gso(1448, 0));
        assert!(lies * 100 >= 40 * 1514 * 99, "{lies}");
        assert_eq!(shaped_len(60, gso(0, u16::MAX)), 192);
    }
}
