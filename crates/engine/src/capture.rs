//! The drop log and live captures.

use executor::{CaptureFilter, Captured, DroppedPacket, Property};
use model::{DropReason, VifId};
use packet::{Headers, L3};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Mutex, PoisonError};

/// Number of dropped packets that a worker remembers.
const LOG: usize = 1024;
/// Bytes that it remembers of each packet.
pub(crate) const LOG_HEAD: usize = 128;
/// Most drops logged per burst; the others are only counted.
const LOG_PER_BURST: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Dropped {
    time_ns: u64,
    ingress: VifId,
    reason: DropReason,
    len: u32,
    head_len: u8,
    head: [u8; LOG_HEAD],
}

/// A worker's last dropped packets.
#[derive(Debug)]
pub(crate) struct DropLog(Mutex<VecDeque<Dropped>>);

impl DropLog {
    /// Creates an empty log, and allocates all the memory that the log will ever need.
    pub fn new() -> Self {
        Self(Mutex::new(VecDeque::with_capacity(LOG)))
    }

    /// Records a drop, unless somebody is reading the log right now.
    pub fn note(&self, time_ns: u64, ingress: VifId, reason: DropReason, len: usize, bytes: &[u8]) {
        let Ok(mut log) = self.0.try_lock() else { return };
        if log.len() == LOG {
            log.pop_front();
        }
        let mut head = [0; LOG_HEAD];
        let head_len = bytes.len().min(LOG_HEAD);
        head[..head_len].copy_from_slice(&bytes[..head_len]);
        log.push_back(Dropped { time_ns, ingress, reason, len: len as u32, head_len: head_len as u8, head });
    }

    /// Returns the logged packets, oldest first.
    pub fn read(&self) -> Vec<DroppedPacket> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter()
            .map(|d| DroppedPacket {
                time_ns: d.time_ns,
                ingress: d.ingress,
                reason: d.reason,
                len: d.len,
                head: d.head[..usize::from(d.head_len)].to_vec(),
            })
            .collect()
    }
}

/// How many more drops of this burst are logged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogBudget(usize);

impl LogBudget {
    /// Creates the budget of a new burst.
    pub const fn new() -> Self {
        Self(LOG_PER_BURST)
    }

    /// Takes one from the budget, if any is left.
    pub fn take(&mut self) -> bool {
        let more = self.0 > 0;
        self.0 -= usize::from(more);
        more
    }
}

#[derive(Debug)]
pub(crate) struct Tap {
    filter: CaptureFilter,
    to: SyncSender<Captured>,
    lost: AtomicU64,
    gone: AtomicBool,
}

/// A packet at an interface, shown to taps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    pub vif: VifId,
    /// Whether it leaves by the interface; otherwise it came in.
    pub outbound: bool,
    /// The reason, if the packet was dropped.
    pub dropped: Option<DropReason>,
    /// Length of the whole packet, bytes.
    pub len: usize,
    /// The packet's first bytes.
    pub bytes: &'a [u8],
}

impl Tap {
    pub fn new(filter: CaptureFilter, to: SyncSender<Captured>) -> Self {
        Self { filter, to, lost: AtomicU64::new(0), gone: AtomicBool::new(false) }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Returns the number of packets for which the receiver had no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that it takes of each packet.
    pub fn snap_len(&self) -> usize {
        self.filter.snap_len as usize
    }

    /// Takes the packet, if it passes the filter.
    pub fn show(&self, seen: &Seen<'_>) {
        if self.is_gone() || !self.passes(seen) {
            return;
        }
        let captured = Captured {
            time_ns: seen.time_ns,
            vif: seen.vif,
            outbound: seen.outbound,
            dropped: seen.dropped,
            len: seen.len as u32,
            bytes: seen.bytes[..seen.bytes.len().min(self.snap_len())].to_vec(),
        };
        match self.to.try_send(captured) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            Err(TrySendError::Disconnected(_)) => self.gone.store(true, Ordering::Relaxed),
        }
    }

    fn passes(&self, seen: &Seen<'_>) -> bool {
        let filter = &self.filter;
        if filter.vif.is_some_and(|vif| vif != seen.vif) {
            return false;
        }
        if filter.filter.is_everything() {
            return true;
        }
        let outer = Headers::ethernet(seen.bytes, 0, seen.len).ok();
        let inner = outer.as_ref().and_then(|outer| inner(seen, outer));
        filter.filter.holds(&|property| match property {
            Property::Dropped => seen.dropped.is_some(),
            Property::Inbound => !seen.outbound,
            Property::Outbound => seen.outbound,
            other => outer.iter().chain(&inner).any(|headers| has(headers, other)),
        })
    }
}

fn has(headers: &Headers, property: &Property) -> bool {
    let ip = headers.ip();
    match property {
        Property::Net(side, net) => {
            let arp = match headers.l3 {
                L3::Arp(arp) => Some((arp.sender.into(), arp.target.into())),
                _ => None,
            };
            let ends: Option<(IpAddr, IpAddr)> = ip.map(|ip| (ip.src, ip.dst)).or(arp);
            ends.is_some_and(|(src, dst)| side.has(src, dst, |addr| net.contains(&addr)))
        }
        Property::Ports(side, ports) => {
            let (src, dst) = headers.ports();
            ip.is_some() && side.has(src, dst, |port| ports.contains(&port))
        }
        Property::Protocol(protocol) => ip.is_some_and(|ip| ip.protocol == *protocol),
        Property::Ip4 => ip.is_some_and(|ip| ip.src.is_ipv4()),
        Property::Ip6 => ip.is_some_and(|ip| ip.src.is_ipv6()),
        Property::Arp => matches!(headers.l3, L3::Arp(_)),
        Property::Mac(side, mac) => {
            headers.eth.as_ref().is_some_and(|eth| side.has(eth.src, eth.dst, |of| of == *mac))
        }
        Property::Dropped
        | Property::Inbound
        | Property::Outbound
        | Property::State(_)
        | Property::Network(_) => false,
    }
}

/// Returns the headers inside a tunnel, if it is a tunnel packet.
fn inner(seen: &Seen<'_>, outer: &Headers) -> Option<Headers> {
    let tunnel = packet::tunnel(seen.bytes, outer, seen.len).ok()??;
    if tunnel.kind.has_ethernet() {
        Headers::ethernet(seen.bytes, tunnel.inner_at, tunnel.inner_end).ok()
    } else {
        Headers::network(seen.bytes, tunnel.inner_at, tunnel.inner_end).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor::{Filter, Side};

    fn passes(filter: Filter, frame: &str, outbound: bool) -> bool {
        let bytes = model::text::parse(frame).unwrap();
        let tap = Tap::new(
            CaptureFilter { filter, ..CaptureFilter::default() },
            std::sync::mpsc::sync_channel(1).0,
        );
        let vif = VifId(1);
        tap.passes(&Seen { time_ns: 0, vif, outbound, dropped: None, len: bytes.len(), bytes: &bytes })
    }

    #[test]
    fn a_tunnel_packet_has_what_is_outside_and_what_is_inside() {
        let inside = "ip4 10.1.1.1 > 10.1.1.3 / tcp 40000 > 80";
        let plain = format!("eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / {inside}");
        let tunnel = format!(
            "eth 02:00:00:00:00:08 > 02:00:00:00:00:09 / ip4 192.0.2.1 > 192.0.2.2 / udp 50000 > 6635 / mpls 100 / {inside}"
        );
        let is = |property: &Property| Filter::Is(property.clone());
        let source = Property::Net(Side::Source, "10.1.1.1/32".parse().unwrap());
        let remote = Property::Net(Side::Destination, "192.0.2.0/24".parse().unwrap());
        let http = Property::Ports(Side::Destination, 80..=80);
        for property in [&source, &http, &Property::Protocol(6), &Property::Ip4, &Property::Inbound] {
            assert!(
                passes(is(property), &plain, false) && passes(is(property), &tunnel, false),
                "{property:?}"
            );
            assert!(!passes(Filter::Not(is(property).into()), &tunnel, false), "{property:?}");
        }
        assert!(passes(is(&remote), &tunnel, true) && !passes(is(&remote), &plain, true));
        for property in [Property::Arp, Property::Ip6, Property::Dropped, Property::Protocol(1)] {
            assert!(!passes(is(&property), &tunnel, false), "{property:?}");
        }
        assert!(
            !passes(is(&Property::Inbound), &plain, true) && passes(is(&Property::Outbound), &plain, true)
        );
        let mac = Property::Mac(Side::Any, "02:00:00:00:00:09".parse().unwrap());
        assert!(passes(is(&mac), &tunnel, true) && !passes(is(&mac), &plain, true));
    }
}
