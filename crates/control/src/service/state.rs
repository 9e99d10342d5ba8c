//! Status and statistics.

use super::Sandbox;
use super::packets::interface;
use super::tables::{live_mtu, vif_entries};
use crate::core::{Core, View};
use crate::kernel;
use api::v1;
use config::{Guest, Kind, Nat, Object};
use executor::WorkerCounters;
use model::{DropReason, VifKind};
use tonic::Status;

pub(super) fn status(core: &Core) -> v1::StatusReply {
    let view = &*core.view();
    let workers = view.executor.workers();
    let reasons = reasons(&workers);
    let executor = view.executor.status();
    v1::StatusReply {
        name: view.host.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime: view.started.elapsed().as_secs(),
        executor: executor.name,
        networks: count(view.tables.networks.len()),
        routes: count(view.tables.routes.len() + view.tables.learned.len()),
        rules: count(view.tables.rules.len()),
        flows: view.executor.flow_count() as u64,
        flows_created: view.executor.flows_created(),
        drops: reasons.iter().map(|reason| reason.packets).sum(),
        vifs: vif_entries(view, None),
        reasons,
        workers: workers.iter().map(worker).collect(),
        pid: std::process::id(),
        card: executor.card.map(card),
        warnings: all_warnings(view)
            .into_iter()
            .chain(stalled(&executor.stalled))
            .chain(executor.connections_lack.map(without_memory))
            .chain(
                core.store_problems()
                    .into_iter()
                    .map(|message| v1::Warning { object: "store".into(), message }),
            )
            .chain(difference(core))
            .chain(
                core.ports()
                    .memory_problem()
                    .map(|message| v1::Warning { object: "guests' memory".to_owned(), message }),
            )
            .chain(
                core.ports()
                    .window_problems()
                    .into_iter()
                    .map(|(object, message)| v1::Warning { object, message }),
            )
            .chain(
                core.ports()
                    .underlay_problems()
                    .into_iter()
                    .map(|(object, message)| v1::Warning { object, message }),
            )
            .chain(silent_peers(core))
            .collect(),
        sandbox: None,
    }
}

/// Returns a warning for each BGP peer without a session.
fn silent_peers(core: &Core) -> impl Iterator<Item = v1::Warning> {
    let peers = core.ports().bgp().unwrap_or_default().peers.into_iter();
    // Peers of a range come and go as they like.
    let is_missing = |peer: &v1::BgpPeer| peer.state != "Established" && peer.range.is_none();
    peers.filter(is_missing).map(|peer| {
        let why = peer.reason.map(|why| format!(": {why}")).unwrap_or_default();
        let message = format!("there is no session with it (state {}){why}", peer.state);
        v1::Warning { object: format!("bgp peer \"{}\"", peer.address), message }
    })
}

pub(super) fn sandbox(of: &Sandbox) -> v1::Sandbox {
    let report = of.report.clone();
    v1::Sandbox {
        enabled: of.helper.is_some(),
        user: report.user,
        uid: report.uid,
        capabilities: report.capabilities,
        bounding: report.bounding,
        no_new_privs: report.no_new_privs,
        seccomp: report.seccomp,
        landlock: report.landlock,
        helper: of.helper,
        missing: report.missing,
    }
}

pub(super) fn all_warnings(view: &View) -> Vec<v1::Warning> {
    let of = |kind| view.objects.of_kind(kind).map(|owned| &owned.object);
    let is_checked = |object: &&Object| crate::leases::of(&view.objects, object).is_some();
    let guests = of(Kind::Guest).filter(|object| !is_checked(object));
    let mut all = warnings(guests.chain(of(Kind::Wire)));
    all.extend(without_floating_address(view));
    all.extend(unguarded(view));
    all.extend(mtus(view));
    all.extend(wire_mtus(view));
    all.extend(ways_out(view));
    all.extend(aside(view));
    all.extend(lost_taps(view));
    all
}

/// Returns a warning for each network with floating addresses that nothing guards.
fn unguarded(view: &View) -> impl Iterator<Item = v1::Warning> {
    let kinds = [Kind::Network, Kind::Default, Kind::Rule, Kind::Guest, Kind::Nat].into_iter();
    let has_floating = view.objects.of_kind(Kind::Nat).next().is_some();
    let objects = kinds.filter(|_| has_floating).flat_map(|kind| view.objects.of_kind(kind));
    let objects: Vec<_> = objects.map(|owned| &owned.object).collect();
    let warnings = config::unguarded(objects.into_iter());
    let warning = |(network, message)| v1::Warning { object: format!("network \"{network}\""), message };
    warnings.into_iter().map(warning)
}

/// Returns a warning for each guest that can't be answered from outside: it has no floating address on an
/// attached network, while others of its network have one.
fn without_floating_address(view: &View) -> Vec<v1::Warning> {
    let nats: Vec<_> = view.objects.of_kind(Kind::Nat).filter_map(|owned| as_nat(&owned.object)).collect();
    let is_attached = |name: &str| view.network(name).is_some_and(|network| network.wire.is_some());
    let warning = |guest: &Guest| {
        let of_its =
            nats.iter().filter(|nat| nat.network == guest.network && is_attached(&nat.outside_network));
        let lacking = of_its.clone().find(|nat| {
            let family = guest.addresses.iter().filter(|addr| addr.is_ipv4() == nat.inside.is_ipv4());
            family.clone().next().is_some()
                && family.clone().all(|addr| of_its.clone().all(|nat| nat.inside != *addr))
        })?;
        let message = format!(
            "it has no floating address on network \"{}\", so that hosts there can't answer it; add a [[nat]] for it, \
             or a rule that refuses what it sends there",
            lacking.outside_network
        );
        Some(v1::Warning { object: format!("guest \"{}\"", guest.name), message })
    };
    let guests = view.objects.of_kind(Kind::Guest).filter_map(|owned| match &owned.object {
        Object::Guest(guest) => Some(&**guest),
        _ => None,
    });
    let shares = |guest: &&Guest| {
        view.network(&guest.network).is_some_and(|network| !network.sharing.addresses.is_empty())
    };
    guests.filter(|guest| !shares(guest)).filter_map(warning).collect()
}

fn as_nat(object: &Object) -> Option<&Nat> {
    match object {
        Object::Nat(nat) => Some(nat),
        _ => None,
    }
}

/// Returns a warning for each TAP whose device has a different MTU than the configuration.
fn mtus(view: &View) -> impl Iterator<Item = v1::Warning> {
    view.tables.vifs.values().filter_map(|vif| {
        let live = live_mtu(vif, &view.port(&vif.name));
        (live != vif.mtu).then(|| v1::Warning {
            object: format!("guest \"{}\"", vif.name),
            message: format!(
                "its device has MTU {live}, and the configuration {}: run `ip link set DEVICE mtu {}` in the network \
                 namespace that the device is in",
                vif.mtu, vif.mtu
            ),
        })
    })
}

/// Returns a warning for each interface whose calls of the kernel, or whose memory, are left to a thread of low weight.
fn aside(view: &View) -> impl Iterator<Item = v1::Warning> {
    let warning = |name: &str, why: &str| v1::Warning {
        object: format!("guest \"{name}\""),
        message: format!("{why}: a thread of low weight does this work now, and packets may be late or lost"),
    };
    view.tables.vifs.values().flat_map(move |vif| {
        let port = view.port(&vif.name);
        let calls = port.aside.then(|| warning(&vif.name, CALLS));
        let pages = port.pages_aside.then(|| warning(&vif.name, PAGES));
        calls.into_iter().chain(pages)
    })
}

const CALLS: &str = "the kernel works too long for each of its packets or interrupts (many watch its VMM's eventfd or its \
                     container's socket, or the container has many filters)";
const PAGES: &str =
    "pages of its memory take too long to come (its VMM punches holes into it, or the host swaps)";

/// Returns a warning for each TAP that is no longer in its container.
fn lost_taps(view: &View) -> impl Iterator<Item = v1::Warning> {
    let taps = view.tables.vifs.values().filter(|vif| vif.kind == VifKind::Tap && !vif.is_second());
    taps.filter(|vif| view.has_lost_tap(&vif.name, || view.port(&vif.name))).map(|vif| v1::Warning {
        object: format!("guest \"{}\"", vif.name),
        message: "its tap is no longer in its container: it was created anew in the daemon's network namespace; move \
                  it into the container as at first"
            .to_owned(),
    })
}

/// Returns a warning for each network whose packets can't leave by the host.
fn ways_out(view: &View) -> impl Iterator<Item = v1::Warning> {
    view.objects.of_kind(Kind::Network).filter_map(|owned| {
        let Object::Network(network) = &owned.object else { return None };
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let (what, advice) = config::forwarding_problem(network, read)?;
        Some(v1::Warning { object: owned.object.key().to_string(), message: format!("{what}: {advice}") })
    })
}

/// Returns a warning for each wire whose device takes less than the wire's `mtu`.
fn wire_mtus(view: &View) -> impl Iterator<Item = v1::Warning> {
    view.objects.of_kind(Kind::Wire).filter_map(|owned| {
        let Object::Wire(wire) = &owned.object else { return None };
        let message = wire.device_too_small(view.port(&wire.name).mtu?)?;
        Some(v1::Warning { object: owned.object.key().to_string(), message })
    })
}

pub(super) fn warnings<'a>(objects: impl Iterator<Item = &'a Object>) -> Vec<v1::Warning> {
    let warning = |object: &Object| {
        let message = match object {
            Object::Wire(wire) => kernel::forwarding(wire),
            other => other.warning().map(str::to_owned),
        }?;
        Some(v1::Warning { object: object.key().to_string(), message })
    };
    objects.filter_map(warning).collect()
}

pub(super) fn stalled(workers: &[usize]) -> impl Iterator<Item = v1::Warning> {
    let message = "does not take up changes: what was removed may still be in force for its packets";
    workers
        .iter()
        .map(move |worker| v1::Warning { object: format!("worker {worker}"), message: message.to_owned() })
}

/// Returns a warning that new connections are dropped, for this reason.
fn without_memory(why: String) -> v1::Warning {
    let message = format!(
        "the run-dir has no memory for more of them ({why}), and new ones are dropped as flow_table_full: free some, or \
         give it more (`mount -o remount,size=...`)"
    );
    v1::Warning { object: "connections".to_owned(), message }
}

/// Returns a warning if the daemon's file is not what is in force.
fn difference(core: &Core) -> Option<v1::Warning> {
    let message = core.config().difference(&core.view())?;
    Some(v1::Warning { object: core.config().path().display().to_string(), message })
}

fn card(card: executor::CardCounters) -> v1::CardStats {
    let punted = |(reason, packets): (&str, u64)| v1::PuntCount { reason: reason.to_owned(), packets };
    v1::CardStats {
        clock: card.clock,
        clocks: card.clocks,
        busy: card.busy,
        received: card.received,
        forwarded: card.forwarded,
        dropped: card.dropped,
        lost: card.lost,
        punted: card.punted.into_iter().map(punted).collect(),
        flows: card.flows,
        flows_refused: card.flows_refused,
        flows_uncounted: card.flows_uncounted,
        memory_errors: card.memory_errors,
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

pub(super) fn stats(view: &View, only: Option<u32>) -> Result<v1::StatsReply, Status> {
    let workers = view.executor.workers();
    let wanted = |w: &&WorkerCounters| only.is_none_or(|only| w.worker == only as usize);
    let found: Vec<_> = workers.iter().filter(wanted).map(worker).collect();
    match only {
        Some(worker) if found.is_empty() => {
            Err(super::missing(format!("there is no worker {worker}; there are {}, from 0", workers.len())))
        }
        _ => Ok(v1::StatsReply { workers: found }),
    }
}

fn worker(w: &WorkerCounters) -> v1::WorkerStats {
    let per_packet = |cycles: u64| match w.received.packets {
        0 => 0.0,
        packets => cycles as f64 / packets as f64,
    };
    let cycles = &w.cycles;
    v1::WorkerStats {
        worker: count(w.worker),
        cpu: w.cpu.map(count),
        packets: w.received.packets,
        bytes: w.received.bytes,
        sent_packets: w.sent.packets,
        sent_bytes: w.sent.bytes,
        drops: w.drops.iter().sum(),
        reasons: reasons(std::slice::from_ref(w)),
        hits: w.hits,
        misses: w.misses,
        replies: w.replies,
        sleeps: w.sleeps,
        cycles: Some(v1::StageCycles {
            receive: cycles.receive,
            lookup: cycles.lookup,
            slow_path: cycles.slow_path,
            deliver: cycles.deliver,
            busy: cycles.busy,
            idle: cycles.idle,
            asleep: cycles.asleep,
        }),
        cycles_per_packet: Some(v1::CyclesPerPacket {
            receive: per_packet(cycles.receive),
            lookup: per_packet(cycles.lookup),
            slow_path: per_packet(cycles.slow_path),
            deliver: per_packet(cycles.deliver),
            busy: per_packet(cycles.busy),
        }),
        bursts: w.bursts.to_vec(),
    }
}

/// Returns the reasons that dropped packets, most packets first.
pub(crate) fn reasons(workers: &[WorkerCounters]) -> Vec<v1::DropCount> {
    let total = |reason: DropReason| workers.iter().filter_map(|w| w.drops.get(reason as usize)).sum();
    let mut counts = counts(total);
    counts.retain(|count| count.packets > 0);
    counts
}

/// Returns all reasons, most packets first.
fn counts(packets: impl Fn(DropReason) -> u64) -> Vec<v1::DropCount> {
    let count = |reason: &DropReason| v1::DropCount {
        reason: reason.name().to_owned(),
        help: reason.help().to_owned(),
        packets: packets(*reason),
        advice: reason.advice().to_owned(),
    };
    let mut counts: Vec<_> = DropReason::ALL.iter().map(count).collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.packets));
    counts
}

pub(super) fn drops(core: &Core, request: &v1::DropStatsRequest) -> Result<v1::DropStatsReply, Status> {
    let view = &*core.view();
    for name in &request.reasons {
        if DropReason::ALL.iter().all(|reason| reason.name() != name) {
            let text =
                format!("there is no drop reason \"{name}\"; `viaduct dropstats --explain` lists them");
            return Err(super::invalid(text));
        }
    }
    let vif = request.interface.as_deref().map(|name| interface(view, name)).transpose()?;
    let is_wanted =
        |reason: &str| request.reasons.is_empty() || request.reasons.iter().any(|name| name == reason);
    let mut log = match request.log {
        0 => Vec::new(),
        _ => view.executor.dropped(usize::MAX),
    };
    log.retain(|packet| vif.is_none_or(|vif| vif == packet.ingress) && is_wanted(packet.reason.name()));
    let workers = view.executor.workers();
    let mut reasons = match vif {
        Some(vif) => {
            let at = view.drops_at(vif);
            counts(|reason| at.get(reason as usize).copied().unwrap_or_default())
        }
        None => counts(|reason| workers.iter().filter_map(|w| w.drops.get(reason as usize)).sum()),
    };
    reasons.retain(|count| (request.all || count.packets > 0) && is_wanted(&count.reason));
    let log = log.split_off(log.len().saturating_sub(request.log as usize));
    let entry = |packet: executor::DroppedPacket| v1::DroppedPacket {
        time_ns: packet.time_ns,
        interface: view.vif_name(packet.ingress),
        reason: packet.reason.name().to_owned(),
        length: packet.len,
        text: model::text::describe(&packet.head, packet.len as usize),
        head: packet.head,
    };
    let log = log.into_iter().map(entry).collect();
    Ok(v1::DropStatsReply { reasons, log, since: core.counted_since() })
}
