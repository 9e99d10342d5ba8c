//! Tunnel packets that came in fragments, of which some are missing: limited, and given up after a second.

use model::{DropReason, VifId};
use packet::{Fit, Fragment, Headers, Reassembly};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Most packets of one remote.
const PER_REMOTE: usize = 64;
/// Most bytes of one remote: a part of the whole, which leaves the rest to others.
const BYTES_PER_REMOTE: usize = BYTES / 4;
/// Most packets, and bytes, of a worker.
const TOTAL: usize = 1024;
const BYTES: usize = 4 << 20;
/// How long a packet waits for its fragments, nanoseconds.
const PATIENCE_NS: u64 = 1_000_000_000;

/// The fields that fragments of a packet of one remote have in common (RFC 791, 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    dst: IpAddr,
    protocol: u8,
    id: u32,
}

#[derive(Debug)]
struct Waiting {
    key: Key,
    ingress: VifId,
    /// When its first fragment came, by the engine's clock.
    since_ns: u64,
    packet: Reassembly,
}

/// Fragments that are dropped, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub reason: DropReason,
    pub fragments: usize,
    /// The start of one of them.
    pub head: Vec<u8>,
    pub ingress: VifId,
}

impl Waiting {
    fn lost(self, reason: DropReason, more: usize) -> Lost {
        let (head, fragments) = (self.packet.head().to_vec(), self.packet.fragments() + more);
        Lost { reason, fragments, head, ingress: self.ingress }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Added {
    /// The frame with the whole packet, if no fragment is missing.
    pub whole: Option<Vec<u8>>,
    pub lost: Vec<Lost>,
}

/// A worker's packets in fragments, of each remote in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Reassemblies {
    remotes: HashMap<IpAddr, VecDeque<Waiting>>,
    packets: usize,
    bytes: usize,
    /// No packet is late before this.
    due_ns: u64,
}

impl Reassemblies {
    pub const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Adds a fragment. If its remote has too many packets here, the oldest one is lost.
    pub fn add(&mut self, frame: &[u8], headers: &Headers, ingress: VifId, now_ns: u64) -> Added {
        let refused = |reason| {
            let head = frame[..frame.len().min(64)].to_vec();
            Added { lost: vec![Lost { reason, fragments: 1, head, ingress }], whole: None }
        };
        let Some(ip) = headers.ip() else { return refused(DropReason::ReassemblyFailed) };
        let (Fragment::First { id } | Fragment::Later { id }) = ip.fragment else {
            return refused(DropReason::ReassemblyFailed);
        };
        let key = Key { dst: ip.dst, protocol: ip.protocol, id };
        let line = self.remotes.get(&ip.src);
        let held: usize = line.into_iter().flatten().map(|waiting| waiting.packet.bytes()).sum();
        let known = line.and_then(|line| line.iter().position(|waiting| waiting.key == key));
        // A fragment makes its packet as long as its end at most.
        let begins = known.map_or(0, |at| line.map_or(0, |line| line[at].packet.bytes()));
        let more = Reassembly::least(frame, headers).saturating_sub(begins);
        let full = known.is_none() && self.packets >= TOTAL;
        if full || self.bytes + more > BYTES || held + more > BYTES_PER_REMOTE {
            return refused(DropReason::ReassemblyFull);
        }
        let mut added = Added::default();
        let line = self.remotes.entry(ip.src).or_default();
        let at = known.unwrap_or_else(|| {
            if line.len() >= PER_REMOTE
                && let Some(oldest) = line.pop_front()
            {
                self.packets -= 1;
                self.bytes -= oldest.packet.bytes();
                added.lost.push(oldest.lost(DropReason::ReassemblyFull, 0));
            }
            self.packets += 1;
            self.due_ns = self.due_ns.min(now_ns + PATIENCE_NS + 1);
            line.push_back(Waiting { key, ingress, since_ns: now_ns, packet: Reassembly::default() });
            line.len() - 1
        });
        let before = line[at].packet.bytes();
        let fit = line[at].packet.add(frame, headers);
        self.bytes += line[at].packet.bytes() - before;
        match fit {
            Fit::Partial => return added,
            Fit::Duplicate => return refused(DropReason::ReassemblyFailed),
            Fit::Whole | Fit::Misfit => {}
        }
        let Some(waiting) = self.remove(ip.src, at) else { return added };
        added.whole = if fit == Fit::Whole { waiting.packet.finish() } else { None };
        if added.whole.is_none() {
            let more = usize::from(fit == Fit::Misfit);
            let mut lost = waiting.lost(DropReason::ReassemblyFailed, more);
            if lost.head.is_empty() {
                lost.head = frame[..frame.len().min(64)].to_vec();
            }
            added.lost.push(lost);
        }
        added
    }

    /// Takes out a packet that waited long enough.
    pub fn pop_late(&mut self, now_ns: u64) -> Option<Lost> {
        let is_late = |line: &VecDeque<Waiting>| {
            line.front().is_some_and(|oldest| now_ns.saturating_sub(oldest.since_ns) > PATIENCE_NS)
        };
        if now_ns < self.due_ns {
            return None;
        }
        let Some((&remote, _)) = self.remotes.iter().find(|(_, line)| is_late(line)) else {
            let oldest = self.remotes.values().filter_map(|line| Some(line.front()?.since_ns)).min();
            self.due_ns = oldest.map_or(u64::MAX, |since| since + PATIENCE_NS + 1);
            return None;
        };
        Some(self.remove(remote, 0)?.lost(DropReason::ReassemblyTimeout, 0))
    }

    fn remove(&mut self, remote: IpAddr, at: usize) -> Option<Waiting> {
        let line = self.remotes.get_mut(&remote)?;
        let waiting = line.remove(at)?;
        if line.is_empty() {
            self.remotes.remove(&remote);
        }
        self.packets -= 1;
        self.bytes -= waiting.packet.bytes();
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a fragment of `len` bytes of payload at `at` (both multiples of 8) of a packet that goes on.
    fn fragment(remote: u8, id: u16, at: usize, len: usize) -> Vec<u8> {
        let text = format!(
            "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip4 192.0.2.{remote} > 192.0.2.1 id {id} frag {at} more proto 47 / \
             payload {len}"
        );
        model::text::parse(&text).unwrap()
    }

    fn add(to: &mut Reassemblies, frame: &[u8], now_ns: u64) -> Added {
        to.add(frame, &Headers::ethernet(frame, 0, frame.len()).unwrap(), VifId(9), now_ns)
    }

    fn reasons(added: &Added) -> Vec<(DropReason, usize)> {
        added.lost.iter().map(|lost| (lost.reason, lost.fragments)).collect()
    }

    #[test]
    fn a_remote_has_64_packets_and_the_oldest_goes() {
        let mut all = Reassemblies::default();
        for id in 0..PER_REMOTE as u16 {
            assert!(add(&mut all, &fragment(2, id, 0, 16), 0).lost.is_empty());
        }
        add(&mut all, &fragment(2, 0, 16, 16), 0);
        assert_eq!(reasons(&add(&mut all, &fragment(2, 999, 0, 16), 0)), [(DropReason::ReassemblyFull, 2)]);
        assert!(add(&mut all, &fragment(3, 0, 0, 16), 0).lost.is_empty(), "another remote has its own");
        assert_eq!((all.packets, all.bytes), (65, 65 * 16));
    }

    #[test]
    fn bytes_and_packets_are_bounded() {
        let mut all = Reassemblies::default();
        let full = |added: Added| reasons(&added) == [(DropReason::ReassemblyFull, 1)];
        let most = (0..64).take_while(|id| !full(add(&mut all, &fragment(2, *id, 64_000, 1000), 0))).count();
        assert_eq!(most, BYTES_PER_REMOTE / 65_000);
        for remote in 3..=255 {
            for id in 0..64 {
                add(&mut all, &fragment(remote, id, 64_000, 1000), 0);
            }
        }
        assert!(all.bytes <= BYTES && all.bytes > BYTES - 65_000, "{}", all.bytes);
        let mut all = Reassemblies::default();
        let added = (0..2000).map(|n| add(&mut all, &fragment((n / 64) as u8, n, 0, 8), 0));
        assert_eq!(added.filter(|added| added.lost.is_empty()).count(), TOTAL);
    }

    #[test]
    fn a_packet_waits_a_second() {
        let mut all = Reassemblies::default();
        add(&mut all, &fragment(2, 1, 0, 16), 5);
        add(&mut all, &fragment(2, 1, 16, 16), 900_000_000);
        add(&mut all, &fragment(2, 2, 0, 16), 900_000_000);
        assert_eq!(all.pop_late(PATIENCE_NS + 5), None);
        let late = all.pop_late(PATIENCE_NS + 6).unwrap();
        assert_eq!((late.reason, late.fragments, late.ingress), (DropReason::ReassemblyTimeout, 2, VifId(9)));
        assert_eq!(all.pop_late(PATIENCE_NS + 6), None);
        assert!(
            all.pop_late(u64::MAX).is_some() && all.is_empty() && all.bytes == 0 && all.remotes.is_empty()
        );
    }

    #[test]
    fn fragments_that_do_not_fit_end_their_packet() {
        let mut all = Reassemblies::default();
        add(&mut all, &fragment(2, 1, 0, 16), 0);
        assert_eq!(reasons(&add(&mut all, &fragment(2, 1, 0, 16), 0)), [(DropReason::ReassemblyFailed, 1)]);
        assert_eq!(all.packets, 1, "one that came twice does not");
        assert_eq!(reasons(&add(&mut all, &fragment(2, 1, 8, 16), 0)), [(DropReason::ReassemblyFailed, 2)]);
        assert!(all.is_empty() && all.bytes == 0);
    }
}
