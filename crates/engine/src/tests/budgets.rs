//! Limits on the work that hostile guests can cause: floods, segments, mirrors, solicitations; and what rates count.

use super::harness::{Host, Output};
use super::offloads::{ALL, GATEWAY, unfinished};
use super::world::{WIRE, neighbours, rule, tables};
use crate::capture::Tap;
use crate::hold::Holder;
use crate::meters::Meters;
use crate::replies::ReplyLimits;
use crate::storms::Storms;
use executor::CaptureFilter;
use mem::{Accepts, Csum, NoRoom, Offload, Refusal, Room, TxQueue};
use model::{Change, DropReason, MeterConfig, MeterId, Modifier, NeighbourScope, RuleAction, VifId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

const METER: MeterId = MeterId(9);
const BROADCAST: &str = "eth 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff";

fn host(accepts: Accepts) -> Host {
    Host::new(&tables(), &neighbours(), accepts, 333)
}

fn plain(text: &str) -> (Vec<u8>, Offload) {
    (model::text::parse(text).unwrap(), Offload::default())
}

fn broadcast(n: usize) -> (Vec<u8>, Offload) {
    plain(&format!("{BROADCAST} / ip4 10.1.1.1 > 10.1.1.255 / udp {} > 53 / payload 9", 1000 + n))
}

fn volume(output: &Output) -> (usize, usize) {
    let all = || output.values().flatten();
    (all().count(), all().map(|(frame, _)| frame.len()).sum())
}

/// Gives guest 1 a policer that lets `burst_bytes` pass and nothing after.
fn with_rate(host: &mut Host, burst_bytes: usize) {
    let config = MeterConfig { bits_per_second: 1, burst_bytes: burst_bytes as u64 };
    let mut changes = vec![Change::PutMeter(METER, config)];
    for change in tables() {
        if let Change::PutVif(mut vif) = change
            && vif.id == VifId(1)
        {
            vif.meter = Some(METER);
            changes.push(Change::PutVif(vif));
        }
    }
    host.shared.apply(&changes).unwrap();
    set_meter(host, METER, config);
}

fn set_meter(host: &mut Host, id: MeterId, config: MeterConfig) {
    let mut meters = Meters::default();
    meters.put(id, config);
    host.core.meters = Arc::new(meters);
}

/// A rate counts what leaves: exactly as many bytes pass as come out, for each kind of packet and exit, on the slow
/// path and by the cache.
#[test]
fn a_rate_counts_the_bytes_that_leave() {
    let ways = ["10.1.1.2", "10.9.0.7", "10.9.1.7", "10.9.2.7", "10.9.3.7", "203.0.113.50"];
    let packets = [
        ("udp 1000 > 53 / payload 1", None),
        ("udp 1000 > 53 / payload 1200", None),
        ("tcp 1000 > 80 A / payload 20000", Some(1400)),
        ("tcp 1000 > 80 A / payload 20000", Some(64)),
        ("tcp 1000 > 80 A / payload 40", Some(1)),
    ];
    let frames = ways.iter().flat_map(|way| packets.iter().map(move |(l4, size)| (way, l4, size)));
    for (way, l4, size) in frames {
        let text = format!("{GATEWAY} / ip4 10.1.1.1 > {way} / {l4}");
        let frame = match size {
            Some(size) => unfinished(&text, Some(*size)),
            None => plain(&text),
        };
        let mut host = host(Accepts::default());
        // Packets of a TCP connection are cached once it is established or closing.
        host.run(VifId(1), [plain(&text.replace(" A ", " FPA ").replace("20000", "9"))]);
        let (packets, bytes) = volume(&host.run(VifId(1), [frame.clone()]));
        assert!(packets > 0, "{text}");
        with_rate(&mut host, bytes);
        let config = MeterConfig { bits_per_second: 1, burst_bytes: bytes as u64 };
        for _ in 0..3 {
            set_meter(&mut host, METER, MeterConfig { burst_bytes: bytes as u64 - 1, ..config });
            assert_eq!(volume(&host.run(VifId(1), [frame.clone()])), (0, 0), "{text}");
            set_meter(&mut host, METER, config);
            assert_eq!(volume(&host.run(VifId(1), [frame.clone()])), (packets, bytes), "{text}");
        }
        // Packets translated on their way have too many dependencies to be cached.
        assert!(host.hits() > 0 || way.starts_with("203."), "{text}");
        assert_eq!(host.drops(), [(DropReason::RateLimited, 3)].into(), "{text}");
    }
}

#[test]
fn a_rate_counts_all_fragments_and_a_turn_bounds_them() {
    for way in ["10.1.1.2", "10.9.0.7", "10.9.1.7", "10.9.2.7", "203.0.113.50"] {
        let frame = plain(&format!("{GATEWAY} / ip4 10.1.1.1 > {way} / udp 1000 > 53 / payload 4000"));
        let mut host = host(Accepts::default());
        let (packets, bytes) = volume(&host.run(VifId(1), [frame.clone()]));
        assert_eq!(packets, 3, "{way}");
        with_rate(&mut host, bytes - 1);
        assert_eq!(volume(&host.run(VifId(1), [frame.clone()])), (0, 0), "{way}");
        with_rate(&mut host, bytes);
        assert_eq!(volume(&host.run(VifId(1), [frame])), (packets, bytes), "{way}");
    }
    // A link with the least MTU makes over a thousand fragments of the longest packet.
    let mut host = host(Accepts::default());
    for change in tables() {
        if let Change::PutVif(mut vif) = change
            && vif.id == VifId(2)
        {
            vif.mtu = 68;
            host.shared.apply(&[Change::PutVif(vif)]).unwrap();
        }
    }
    let long = plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp 1000 > 53 / payload 65000"));
    let (packets, _) = volume(&host.run(VifId(1), vec![long; 16]));
    assert!((4096..4096 + 1355).contains(&packets), "{packets}");
    assert!(host.drops().contains_key(&DropReason::TurnBudget));
}

/// The same holds if the receiver takes a large send whole: it counts as its segments.
#[test]
fn a_rate_does_not_depend_on_who_segments() {
    let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / tcp 1000 > 80 A / payload 20000");
    let frame = unfinished(&text, Some(100));
    let (_, bytes) = volume(&host(Accepts::default()).run(VifId(1), [frame.clone()]));
    let mut host = host(ALL);
    with_rate(&mut host, bytes - 1);
    assert_eq!(volume(&host.run(VifId(1), [frame.clone()])), (0, 0));
    with_rate(&mut host, bytes);
    assert_eq!(host.run(VifId(1), [frame])[&VifId(2)].len(), 1);
}

#[test]
fn a_rate_counts_a_flood_once_as_its_longest_copy() {
    let mut host = host(Accepts::default());
    let output = host.run(VifId(1), [broadcast(0)]);
    let longest = output.values().flatten().map(|(frame, _)| frame.len()).max().unwrap();
    assert!(longest > broadcast(0).0.len(), "one goes through a tunnel");
    with_rate(&mut host, longest);
    assert_eq!(host.run(VifId(1), [broadcast(0)]), output);
    with_rate(&mut host, longest - 1);
    assert!(host.run(VifId(1), [broadcast(0)]).is_empty());
}

#[test]
fn tiny_segments_are_made_in_small_numbers_only() {
    for accepts in [Accepts::default(), ALL] {
        let mut host = host(accepts);
        let send = |host: &mut Host, size, payload| {
            let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / tcp 1 > 80 A / payload {payload}");
            !host.run(VifId(1), [unfinished(&text, Some(size))]).is_empty()
        };
        // Short segments that a kernel merged are forwarded, on the slow path and by the cache.
        for _ in 0..2 {
            assert!(send(&mut host, 1, 64) && send(&mut host, 20, 1280) && send(&mut host, 64, 60_000));
            assert!(!send(&mut host, 1, 65) && !send(&mut host, 63, 60_000));
        }
        assert_eq!(host.drops(), [(DropReason::SegmentTooSmall, 4)].into());
    }
}

fn host_of_large_bursts() -> Host {
    Host::new(&tables(), &neighbours(), Accepts::default(), 66_000)
}

/// A full burst of the largest sends, in the smallest segments, to a receiver that takes none whole.
#[test]
fn a_turn_makes_so_many_segments() {
    let mut host = host_of_large_bursts();
    let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.9.2.7 / tcp 1000 > 80 A / payload 60000");
    let frame = unfinished(&text, Some(64));
    let (packets, bytes) = volume(&host.run(VifId(1), vec![frame; mem::BURST]));
    let largest = 60_000_usize.div_ceil(64);
    assert!((largest..=4096 + largest + mem::BURST).contains(&packets), "{packets}");
    assert!(bytes < 2 * (2 << 20), "{bytes}");
    assert!(host.drops()[&DropReason::TurnBudget] > 50, "{:?}", host.drops());
    assert!(host.core.turn.rounds() > 1, "others come first now");
}

/// A full burst of large sends to all members of a network.
#[test]
fn a_turn_makes_so_many_copies() {
    let mut host = host_of_large_bursts();
    let text = format!("{BROADCAST} / ip4 10.1.1.1 > 10.1.1.255 / tcp 1000 > 80 A / payload 60000");
    let frame = unfinished(&text, Some(64));
    let (packets, _) = volume(&host.run(VifId(1), vec![frame; mem::BURST]));
    assert!((4096..6000).contains(&packets), "{packets}");
    assert!(host.drops()[&DropReason::TurnBudget] > 50, "{:?}", host.drops());
    // The next turn has its own budget.
    assert!(!host.run(VifId(1), [broadcast(1)]).is_empty());
}

#[test]
fn a_member_that_is_down_misses_nothing_of_a_flood() {
    let mut host = host(Accepts::default());
    let all = host.run(VifId(1), [broadcast(0)]);
    let guest = *all.keys().find(|vif| **vif != WIRE).unwrap();
    host.ports[&guest].set_down(true);
    let rest = host.run(VifId(1), [broadcast(0)]);
    assert_eq!(rest.len(), all.len() - 1);
    assert_eq!((host.drops(), host.core.cells.vif_counters(guest).send_drops), ([].into(), 0));
    all.keys().for_each(|vif| host.ports[vif].set_down(true));
    assert!(host.run(VifId(1), [broadcast(0)]).is_empty());
    assert_eq!(host.drops(), [(DropReason::NoMember, 1)].into());
    let at = |vif| host.core.cells.drops_at(vif, DropReason::NoMember);
    assert_eq!((at(VifId(1)), at(guest)), (1, 0));
}

#[test]
fn the_copies_of_floods_are_bounded_for_each_second_and_interface() {
    let mut host = host(Accepts::default());
    host.core.storms = Arc::new(Storms::new(20));
    let (copies, _) = volume(&host.run(VifId(1), [broadcast(0)]));
    assert!((3..=8).contains(&copies), "{copies}");
    // Broadcasts, multicasts and frames to unknown MACs share one limit.
    let group = |n| {
        plain(&format!(
            "eth 02:00:00:00:00:01 > 01:00:5e:00:00:0{n} / ip4 10.1.1.1 > 224.0.0.{n} / udp 1 > 2"
        ))
    };
    let unknown =
        || plain("eth 02:00:00:00:00:01 > 02:00:00:00:00:77 / ip4 10.1.1.1 > 10.1.1.77 / udp 1 > 2");
    let all = (0..40).flat_map(|n| [broadcast(n), group(n % 9), unknown()]);
    let (more, _) = volume(&host.run(VifId(1), all));
    assert!((20..20 + copies).contains(&(copies + more)), "{copies} and {more}");
    let floods = (copies + more) / copies;
    assert_eq!(host.drops()[&DropReason::FloodLimited] as usize, 121 - floods);
    // Packets that are not flooded are forwarded, and so are another guest's floods.
    assert_eq!(
        host.run(VifId(1), [plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp 1 > 2"))]).len(),
        1
    );
    let other = "eth 02:00:00:00:00:02 > ff:ff:ff:ff:ff:ff / ip4 10.1.1.2 > 10.1.1.255 / udp 1 > 2";
    assert!(volume(&host.run(VifId(2), [plain(other)])).0 >= 3);
    host.advance(1);
    assert_eq!(volume(&host.run(VifId(1), [broadcast(0)])).0, copies);
}

/// Floods of other hosts' guests in one network keep nobody's broadcasts out of another.
#[test]
fn floods_from_a_wire_are_bounded_by_network() {
    let mut host = host(Accepts::default());
    host.core.storms = Arc::new(Storms::new(2));
    let outer =
        "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.2 > 192.0.2.1 / udp 50000 > 4789 nosum";
    let inner = "eth 02:dd:00:00:00:09 > ff:ff:ff:ff:ff:ff / ip4 10.2.2.9 > 255.255.255.255 / udp 1 > 2";
    let from = |vni| plain(&format!("{outer} / vxlan {vni} / {inner}"));
    let (copies, _) = volume(&host.run(WIRE, (0..50).map(|_| from(5001))));
    assert!((20..40).contains(&copies), "{copies}");
    assert!(host.drops()[&DropReason::FloodLimited] > 30, "{:?}", host.drops());
    assert_eq!(volume(&host.run(WIRE, [from(5002)])).0, 1);
}

/// A guest that scans addresses causes solicitations in a network, which are flooded too.
#[test]
fn a_scan_asks_no_more_than_a_storm_may() {
    let mut host = host(Accepts::default());
    host.shared.apply(&[super::world::route(1, "10.1.1.0/24", 34)]).unwrap();
    host.core.storms = Arc::new(Storms::new(20));
    let scan = |n| plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.{n} / udp 1 > 2"));
    let (questions, _) = volume(&host.run(VifId(1), (100..200).map(scan)));
    assert!((20..30).contains(&questions), "{questions}");
    assert!(host.drops()[&DropReason::FloodLimited] > 80, "{:?}", host.drops());
    // Another guest's first packet to such an address makes the engine ask for it.
    let other = plain("eth 02:00:00:00:00:02 > 00:00:5e:00:01:00 / ip4 10.1.1.2 > 10.1.1.199 / udp 1 > 2");
    assert!(volume(&host.run(VifId(2), [other])).0 >= 3);
}

/// A sender with many expiring packets silences nobody else behind the same wire, and keeps nobody, not even itself,
/// from learning the path MTU.
#[test]
fn errors_are_bounded_for_each_asker() {
    let mut host = host(Accepts::default());
    host.core.replies = ReplyLimits::new(100);
    let outer =
        "eth 02:bb:00:00:00:02 > 02:aa:00:00:00:01 / ip4 192.0.2.2 > 192.0.2.1 / udp 50000 > 4789 nosum";
    let from = |vni, src, rest| {
        plain(&format!(
            "{outer} / vxlan {vni} / eth 02:dd:00:00:00:09 > 00:00:5e:00:01:00 / ip4 {src} > {rest}"
        ))
    };
    let expired = "10.1.1.1 ttl 1 / udp 1 > 2";
    let mut told = |vni, src, rest, n| volume(&host.run(WIRE, (0..n).map(|_| from(vni, src, rest)))).0;
    assert_eq!(told(5001, "10.1.1.9", expired, 300), 100);
    assert_eq!(told(5001, "10.1.1.8", expired, 1), 1, "another host of the network");
    assert_eq!(told(5002, "10.1.1.9", expired, 1), 1, "another network");
    assert_eq!(told(5001, "10.1.1.9", expired, 1), 0);
    assert_eq!(told(5001, "10.1.1.9", "10.1.1.6 df / udp 1 > 2 / payload 1400", 300), 300, "too big");
}

fn unresolved(from: u16, subnet: usize, host: usize) -> (Vec<u8>, Offload) {
    plain(&format!(
        "eth 02:00:00:00:00:0{from} > 00:00:5e:00:01:00 / ip4 10.1.1.{from} > 203.0.{subnet}.{host} / udp 1 > 2 / payload 30"
    ))
}

/// Creates a host of guests on a network attached to a wire, with addresses that nobody has.
fn host_of_the_unresolved() -> Host {
    let host = host(Accepts::default());
    let provider = super::world::route(3, "203.0.0.0/16", 34);
    host.shared.apply(&[super::world::route(1, "203.0.0.0/16", 33), provider]).unwrap();
    host
}

#[test]
fn a_guest_holds_its_share_of_packets_and_leaves_others_theirs() {
    let mut host = host_of_the_unresolved();
    for subnet in 0..8 {
        host.run(VifId(1), (1..200).map(|n| unresolved(1, subnet, n)));
    }
    let scanned = host.core.hold.len();
    assert!((1..=128).contains(&scanned), "{scanned}");
    let before = host.drops();
    let output = host.run(VifId(2), [unresolved(2, 50, 1)]);
    assert_eq!(host.core.hold.len(), scanned + 1);
    assert_eq!(host.drops(), before);
    assert_eq!(volume(&output).0, 1, "it is asked for");
}

#[test]
fn a_neighbour_is_asked_for_also_where_its_packet_finds_no_room() {
    let mut host = host(Accepts::default());
    let holder = Holder { ingress: VifId(1), scope: None };
    for n in 0.. {
        let other = (NeighbourScope::Wire(WIRE), std::net::Ipv4Addr::from(n).into());
        if host.core.hold.push(other, holder, Offload::default(), 0, &[0; 60]).is_err() {
            break;
        }
    }
    let packet = plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.9.5.7 / udp 1000 > 53 / payload 30"));
    let output = host.run(VifId(1), [packet]);
    assert_eq!(host.drops(), [(DropReason::HoldFull, 1)].into());
    assert_eq!(output[&WIRE].len(), 1, "the question");
    assert_eq!(output[&WIRE][0].0[12..14], [8, 6]);
}

/// A queue whose lease is never given back.
#[derive(Default)]
struct Stuck(AtomicUsize);

impl TxQueue for Stuck {
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn burst(&self, _: &mut dyn FnMut(&mut dyn Room)) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// Each attempt to lease it takes as long as a thousand packets of another queue.
#[test]
fn a_queue_that_is_never_given_back_is_seldom_tried() {
    let mut host = host(Accepts::default());
    let stuck: Arc<[Arc<Stuck>]> = (0..100).map(|_| Arc::new(Stuck::default())).collect();
    let tries = || stuck.iter().map(|queue| queue.0.load(Ordering::Relaxed)).sum::<usize>();
    let queues: Vec<Arc<dyn TxQueue>> = stuck.iter().map(|queue| queue.clone() as _).collect();
    host.core.ports.attach(VifId(2), queues.into());
    let to = |n| plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp {n} > 53 / payload 9"));
    for n in 0..1000 {
        host.run(VifId(1), [to(n % 10 + 1)]);
    }
    assert!(tries() <= 2 * stuck.len(), "{} attempts in no time", tries());
    assert_eq!(host.drops(), [(DropReason::TxBusy, 1000)].into());
    for _ in 0..10 {
        host.advance(1);
        host.run(VifId(1), [to(1)]);
    }
    assert!(tries() <= 2 * stuck.len() + 20, "{} attempts in ten seconds", tries());
}

/// Takes all packets, but is leased by a different worker now and then.
struct Contended(AtomicUsize, Arc<dyn TxQueue>);

impl TxQueue for Contended {
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) % 2 == 1 && self.1.burst(fill)
    }
}

#[test]
fn a_queue_that_is_given_back_is_used_again() {
    let mut host = host(Accepts::default());
    let port = host.ports[&VifId(2)].sender();
    host.core.ports.attach(VifId(2), [Arc::new(Contended(AtomicUsize::new(0), port)) as _].into());
    let to = |n| plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp {n} > 53 / payload 9"));
    let mut arrived = 0;
    for _ in 0..20 {
        arrived += volume(&host.run(VifId(1), [to(1)])).0;
        host.advance(1);
    }
    assert_eq!(arrived, 10);
}

/// Refuses some frames that it had room for, as the kernel does: by their number in the burst.
struct Refusing(fn(usize) -> Option<NoRoom>, Arc<dyn TxQueue>);

struct RefusingRoom<'a> {
    refuses: fn(usize) -> Option<NoRoom>,
    room: &'a mut dyn Room,
    lengths: Vec<usize>,
}

impl TxQueue for Refusing {
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        self.1.burst(&mut |room| fill(&mut RefusingRoom { refuses: self.0, room, lengths: Vec::new() }))
    }
}

impl Room for RefusingRoom<'_> {
    fn reserve(&mut self, len: usize, offload: &Offload) -> Result<&[mem::Segment], NoRoom> {
        self.lengths.push(len);
        self.room.reserve(len, offload)
    }

    fn settle(&mut self, refused: &mut dyn FnMut(Refusal)) {
        for (frame, &bytes) in self.lengths.iter().enumerate() {
            if let Some(why) = (self.refuses)(frame) {
                refused(Refusal { frames: frame..frame + 1, bytes, why });
            }
        }
    }
}

/// Packet sockets learn only after a burst what the kernel does not take.
#[test]
fn what_a_port_refuses_late_is_dropped_and_not_sent() {
    let mut host = host(Accepts::default());
    let refuses = |frame| match frame {
        1 | 2 => Some(NoRoom::TooLong),
        4 => Some(NoRoom::Full),
        _ => None,
    };
    let port = host.ports[&VifId(2)].sender();
    let to = |n| plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp {n} > 53 / payload 9"));
    assert_eq!(
        volume(&host.run(VifId(1), (0..6).map(to))),
        (6, 6 * 51),
        "flows that are known go in one burst"
    );
    host.core.ports.attach(VifId(2), [Arc::new(Refusing(refuses, port)) as _].into());
    host.run(VifId(1), (0..6).map(to));
    assert_eq!(host.drops(), [(DropReason::TxFull, 1), (DropReason::TxTooLong, 2)].into());
    let counted = host.core.cells.vif_counters(VifId(2));
    assert_eq!((counted.sent.packets, counted.sent.bytes, counted.send_drops), (9, 9 * 51, 3));
    let ports: Vec<_> = host.core.log.read().iter().map(|packet| packet.head[35]).collect();
    assert_eq!(ports, [1, 2, 4], "the source ports of the refused ones");
}

#[test]
fn a_large_send_of_which_segments_are_refused_late_is_dropped_once() {
    let mut host = host(Accepts::default());
    // The frames are a packet, five segments of a large send, and a packet.
    let refuses = |frame| matches!(frame, 2 | 3 | 6).then_some(NoRoom::Full);
    let port = host.ports[&VifId(2)].sender();
    let small = |n| plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp {n} > 53 / payload 9"));
    let large = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / tcp 7 > 80 A / payload 5000");
    let packets = || [small(1), unfinished(&large, Some(1000)), small(9)];
    assert_eq!(volume(&host.run(VifId(1), packets())).0, 7);
    host.core.ports.attach(VifId(2), [Arc::new(Refusing(refuses, port)) as _].into());
    host.run(VifId(1), packets());
    assert_eq!(host.drops(), [(DropReason::TxFull, 2)].into());
    assert_eq!(host.core.cells.vif_counters(VifId(2)).sent.packets, 7 + 4);
    let ports: Vec<_> = host.core.log.read().iter().map(|packet| packet.head[35]).collect();
    assert_eq!(ports, [7, 9]);
}

/// Keeps the queue that it wraps leased until told to return it.
struct Taken(AtomicBool, Arc<dyn TxQueue>);

impl TxQueue for Taken {
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn burst(&self, fill: &mut dyn FnMut(&mut dyn Room)) -> bool {
        !self.0.load(Ordering::Relaxed) && self.1.burst(fill)
    }
}

/// A worker that fills a guest's only queue keeps others from it no longer than it fills it.
#[test]
fn a_queue_that_was_long_in_use_is_soon_used_again() {
    let mut host = host(Accepts::default());
    let queue = Arc::new(Taken(AtomicBool::new(true), host.ports[&VifId(2)].sender()));
    host.core.ports.attach(VifId(2), [queue.clone() as _].into());
    let packet = || plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp 1 > 53 / payload 9"));
    for _ in 0..30 {
        assert_eq!(volume(&host.run(VifId(1), [packet()])).0, 0);
        host.advance(1);
    }
    host.run(VifId(1), [packet()]);
    queue.0.store(false, Ordering::Relaxed);
    host.core.now = crate::clock::Now::at(host.core.now.ns + 10_000_000, 0);
    assert_eq!(volume(&host.run(VifId(1), [packet()])).0, 1);
}

#[test]
fn a_capture_of_heads_copies_heads() {
    let mut host = host(ALL);
    let (to_tap, captured) = sync_channel(16);
    let filter = CaptureFilter { snap_len: 64, ..CaptureFilter::default() };
    host.core.taps = vec![Arc::new(Tap::new(filter, to_tap))];
    let text = format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / tcp 1000 > 80 A / payload 60000");
    host.run(VifId(1), [unfinished(&text, Some(1400))]);
    let seen: Vec<_> = captured.try_iter().map(|c| (c.vif, c.len, c.bytes.len())).collect();
    assert_eq!(seen, [(VifId(1), 60_054, 64), (VifId(2), 60_054, 64)]);
    assert!(host.core.linear.shown_len() <= 1024, "{}", host.core.linear.shown_len());
}

#[test]
fn mirrored_copies_are_part_of_the_turn() {
    let mut host = host(Accepts::default());
    let changes = [rule(7, 1, 1, (53, 53), RuleAction::Modify(Modifier::Mirror(VifId(5))))];
    host.shared.apply(&changes).unwrap();
    let large = |n| plain(&format!("{GATEWAY} / ip4 10.1.1.1 > 10.1.1.2 / udp {n} > 53 / payload 1400"));
    let output = host.run(VifId(1), (1..=50).map(large));
    assert_eq!((output[&VifId(2)].len(), output[&VifId(5)].len()), (50, 50));
    let mut turn = crate::turn::Turn::NEW;
    turn.take(50, 50 * 1442);
    assert_eq!(host.core.turn, turn);
}

/// A packet whose headers are longer than the rewritten part: extension headers make them so.
#[test]
fn headers_longer_than_what_is_rewritten_are_dropped() {
    for (l4, gso) in [("udp 1 > 2", None), ("tcp 1 > 2 A", Some(100))] {
        for accepts in [Accepts::default(), ALL] {
            for dst in ["02:00:00:00:00:02", "ff:ff:ff:ff:ff:ff"] {
                let text =
                    format!("eth 02:00:00:00:00:01 > {dst} / ip6 fd00:1::1 > fd00:1::2 / {l4} / payload 180");
                let (mut frame, offload) = unfinished(&text, gso);
                let (next, payload) = (frame[20], u16::from_be_bytes([frame[18], frame[19]]));
                // Destination options that are only padding.
                let options = 8 * 140;
                let mut extension = vec![next, (options / 8 - 1) as u8];
                extension.extend((0..options - 2).map(|_| 0));
                frame[20] = packet::proto::DESTINATION_OPTIONS;
                frame[18..20].copy_from_slice(&(payload + options as u16).to_be_bytes());
                frame.splice(54..54, extension);
                let Csum::Partial { start, offset } = offload.csum else { panic!("it is partial") };
                let csum = Csum::Partial { start: start + options as u16, offset };
                let mut host = host(accepts);
                let output = host.run(VifId(1), [(frame, Offload { csum, ..offload })]);
                let reason = gso.map_or(DropReason::HeaderTooLong, |_| DropReason::SegmentFailed);
                if accepts == ALL {
                    // A receiver that takes it unfinished gets it.
                    assert!(!output.is_empty(), "{text}: {:?}", host.drops());
                } else {
                    assert!(output.is_empty() && host.drops().contains_key(&reason), "{text}: {output:?}");
                }
            }
        }
    }
}
