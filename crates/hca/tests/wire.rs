//! Devices of two hosts, and an unreliable wire between them.

use crate::common::{Host, PATIENCE, SIGNALED, Two, between, frames, gid, next, segment, until, vector};
use mem::{Offload, Opened};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use uverbs::{QpType, Reply, Request, WorkRequest};

/// How many of a thousand frames have each fault.
#[derive(Clone, Copy, Default)]
struct Faults {
    lost: u64,
    doubled: u64,
    reordered: u64,
    corrupted: u64,
    congested: u64,
}

/// Carries frames from port to port until it is dropped.
struct Wire {
    stop: Arc<AtomicBool>,
    /// Every frame arrives once and whole from now on.
    faultless: Arc<AtomicBool>,
    carried: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Marks IPv4 frames as a router with a long queue does (RFC 3168).
fn mark_congested(frame: &mut [u8]) {
    frame[15] |= 3;
    frame[24..26].fill(0);
    let sum = packet::checksum::sum(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn carry(mut ports: [Opened; 2], faults: Faults) -> Wire {
    let (stop, carried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let faultless = Arc::new(AtomicBool::new(false));
    let (stops, count, no_faults) = (stop.clone(), carried.clone(), faultless.clone());
    let mut seed = 1_u64;
    let mut chance = move |of_a_thousand: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % 1000 < of_a_thousand
    };
    let thread = std::thread::spawn(move || {
        while !stops.load(Ordering::Relaxed) {
            let faults = if no_faults.load(Ordering::Relaxed) { Faults::default() } else { faults };
            for from in 0..2 {
                let mut out: Vec<Vec<u8>> = Vec::new();
                for mut frame in frames(&mut ports[from]) {
                    count.fetch_add(1, Ordering::Relaxed);
                    if chance(faults.lost) {
                        continue;
                    }
                    if chance(faults.doubled) {
                        out.push(frame.clone());
                    }
                    if chance(faults.corrupted) {
                        let at = frame.len() / 2;
                        frame[at] ^= 4;
                    }
                    if chance(faults.congested) {
                        mark_congested(&mut frame);
                    }
                    let at = if chance(faults.reordered) { out.len().saturating_sub(1) } else { out.len() };
                    out.insert(at, frame);
                }
                ports[1 - from].tx[0].burst(&mut |room| {
                    for frame in &out {
                        // A full ring loses it.
                        let _ = room.put(frame, &[], 0, 0, &Offload::default());
                    }
                });
            }
            std::thread::yield_now();
        }
    });
    Wire { stop, faultless, carried, thread: Some(thread) }
}

fn two_hosts(kind: QpType, faults: Faults) -> (Two, Wire, Host) {
    let (host, other) = (Host::new(), Host::new());
    let (a, port_a) = host.device_with_port(1, 1);
    let (b, port_b) = other.device_with_port(2, 1);
    let wire = carry([port_a, port_b], faults);
    let (one, two) = (host.socket(1), other.socket(2));
    (between(kind, host, [a, b], &one, &two), wire, other)
}

fn asked(opcode: u8, id: u64) -> WorkRequest {
    WorkRequest { id, opcode, flags: SIGNALED, ..WorkRequest::default() }
}

#[test]
fn hosts_talk_over_a_wire() {
    let (mut t, wire, _other) = two_hosts(QpType::Rc, Faults::default());
    t.b.post_receive(&mut t.qb, 1, &[segment(&t.mb, t.kb)]);
    t.a.post_send(&mut t.qa, asked(2, 1), &[segment(&t.ma[..100_000], t.ka)]);
    assert_eq!((next(&mut t.ca).status, next(&mut t.cb).byte_len), (0, 100_000));
    assert!(t.mb[..100_000] == t.ma[..100_000]);
    // 1024 bytes per packet, and acknowledgements.
    assert!(wire.carried.load(Ordering::Relaxed) > 98);
    let there = t.mb.as_ptr() as u64;
    let read = WorkRequest { address: there, rkey: t.kb, ..asked(4, 2) };
    t.a.post_send(&mut t.qa, read, &[segment(&t.ma[200_000..250_000], t.ka)]);
    assert_eq!(next(&mut t.ca).status, 0);
    assert!(t.ma[200_000..250_000] == t.mb[..50_000]);
}

#[test]
fn data_stays_whole_on_bad_wires() {
    for faults in [
        Faults { lost: 1, ..Faults::default() },
        Faults { lost: 10, doubled: 10, reordered: 10, ..Faults::default() },
        Faults { lost: 50, doubled: 20, reordered: 20, corrupted: 20, congested: 0 },
    ] {
        let (mut t, _wire, _other) = two_hosts(QpType::Rc, faults);
        for round in 0..20_usize {
            let (from, len) = (round * 1000, 40_000 + round);
            let address = t.mb.as_ptr() as u64 + from as u64;
            let write = WorkRequest { address, rkey: t.kb, ..asked(0, round as u64) };
            t.a.post_send(&mut t.qa, write, &[segment(&t.ma[from * 2..from * 2 + len], t.ka)]);
            let done = next(&mut t.ca);
            assert_eq!((done.id, done.status), (round as u64, 0));
            assert!(t.mb[from..from + len] == t.ma[from * 2..from * 2 + len], "round {round}");
        }
    }
}

/// Windows that are bound, used once and invalidated by a message, on a wire that duplicates packets.
#[test]
fn windows_are_for_peers_on_other_hosts_too() {
    let (bind_mw, send_with_inv, remote_write) = (8, 9, 0b10);
    let faults = Faults { lost: 50, doubled: 50, reordered: 20, ..Faults::default() };
    let (mut t, wire, _other) = two_hosts(QpType::Rc, faults);
    let Reply::Mw { rkey: first, .. } = t.b.ask(&Request::AllocMw { pd: t.b.pd, mw_type: 2 }).unwrap().0
    else {
        panic!()
    };
    let mut used = 0;
    for round in 0..20_u32 {
        let (rkey, at) = (first & !0xff | (first + round) & 0xff, round as usize * 5000);
        let address = t.mb[at..].as_ptr() as u64;
        let bind = WorkRequest {
            address,
            compare_add: 5000,
            swap: remote_write,
            rkey,
            immediate: t.kb,
            ..asked(bind_mw, 3)
        };
        t.b.post_send(&mut t.qb, bind, &[]);
        assert_eq!(next(&mut t.cb).status, 0);
        t.b.post_receive(&mut t.qb, 4, &[]);
        t.a.post_send(
            &mut t.qa,
            WorkRequest { address, rkey, ..asked(0, 1) },
            &[segment(&t.ma[at..at + 5000], t.ka)],
        );
        t.a.post_send(&mut t.qa, WorkRequest { immediate: rkey, ..asked(send_with_inv, 2) }, &[]);
        assert_eq!((next(&mut t.ca).status, next(&mut t.ca).status), (0, 0));
        assert_eq!(next(&mut t.cb).immediate, rkey);
        assert!(t.mb[at..at + 5000] == t.ma[at..at + 5000], "round {round}");
        used = rkey;
    }
    // The responder says it once: who loses that NAK sees its retries exceeded.
    wire.faultless.store(true, Ordering::Relaxed);
    let write = WorkRequest { address: t.mb.as_ptr() as u64, rkey: used, ..asked(0, 9) };
    t.a.post_send(&mut t.qa, write, &[segment(&t.ma[..8], t.ka)]);
    assert_eq!(next(&mut t.ca).status, 10, "a remote access error");
}

#[test]
fn datagrams_travel_too() {
    let (mut t, _wire, _other) = two_hosts(QpType::Ud, Faults::default());
    let ah = t.a.handle(&Request::CreateAh { pd: t.a.pd, vector: vector(gid(2)) });
    t.b.post_receive(&mut t.qb, 1, &[segment(&t.mb, t.kb)]);
    let to = WorkRequest { ah, remote_qpn: t.qb.qpn, remote_qkey: 0x1234, ..asked(2, 1) };
    t.a.post_send(&mut t.qa, to, &[segment(&t.ma[..500], t.ka)]);
    assert_eq!((next(&mut t.ca).status, next(&mut t.cb).byte_len), (0, 540));
    assert!(t.mb[40..540] == t.ma[..500]);
}

#[test]
fn a_peer_behind_a_cut_wire_is_given_up() {
    let (mut t, wire, _other) = two_hosts(QpType::Rc, Faults::default());
    drop(wire);
    t.a.post_send(&mut t.qa, asked(2, 1), &[segment(&t.ma[..10], t.ka)]);
    assert_eq!(next(&mut t.ca).status, 12);
}

#[test]
fn doorbells_are_spared_while_the_window_is_full() {
    let (mut t, wire, _other) = two_hosts(QpType::Rc, Faults::default());
    drop(wire);
    let long = segment(&t.ma[..300_000], t.ka);
    t.a.post_send(&mut t.qa, asked(2, 1), &[long]);
    until(|| t.qa.sends.is_spared_doorbell());
    // Not announced, but seen all the same.
    t.a.post_send(&mut t.qa, asked(2, 2), &[segment(&t.ma[..10], t.ka)]);
    let (first, second) = (next(&mut t.ca), next(&mut t.ca));
    assert_eq!(((first.id, first.status), (second.id, second.status)), ((1, 12), (2, 5)));
    assert!(!t.qa.sends.is_spared_doorbell());
}

#[test]
fn congestion_is_told_of() {
    let faults = Faults { congested: 1000, ..Faults::default() };
    let (mut t, _wire, _other) = two_hosts(QpType::Rc, faults);
    t.b.post_receive(&mut t.qb, 1, &[segment(&t.mb, t.kb)]);
    t.a.post_send(&mut t.qa, asked(2, 1), &[segment(&t.ma[..1000], t.ka)]);
    assert_eq!((next(&mut t.ca).status, next(&mut t.cb).byte_len), (0, 1000));
    // The message arrives before its announcement.
    for (device, name) in [(1, "np_cnp_sent"), (0, "rp_cnp_handled")] {
        let start = Instant::now();
        while !t.devices[device].describe().iter().any(|client| client.counters.get(name) > Some(0)) {
            assert!(start.elapsed() < PATIENCE, "{name}");
        }
    }
}
