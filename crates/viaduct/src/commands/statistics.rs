//! status, stats, dropstats.

use super::apply::warning;
use super::{Context, value};
use crate::client::Failure;
use crate::output::{Column, bold, print, print_json, red, table};
use api::v1;
use serde_json::Value;
use std::fmt::Write;

pub async fn status(on: &mut Context) -> Result<(), Failure> {
    let status = on.client.status(v1::StatusRequest {}).await?.into_inner();
    if on.json { print_json(&value(&status)) } else { print(&status_text(&status)) }
}

/// Describes the host on one screen.
pub fn status_text(status: &v1::StatusReply) -> String {
    let mut out = bold(headline(status)) + "\n";
    if let Some(sandbox) = &status.sandbox {
        out += &sandbox_text(sandbox);
    }
    out.push('\n');
    if let Some(card) = &status.card {
        out += &format!("{}: {}\n\n", status.executor, card_text(card));
    }
    out += &interfaces(&status.vifs);
    for vif in status.vifs.iter().filter(|vif| vif.fault.is_some()) {
        out += &red(format!("{}: disabled: {}\n", vif.name, vif.fault()));
    }
    out += &shaped(&status.vifs);
    out += &crowded(&status.vifs);
    for known in &status.warnings {
        out += &(warning(&known.object, &known.message) + "\n");
    }
    if !status.reasons.is_empty() {
        out += "\n";
        out += &reasons(&status.reasons);
    }
    out
}

/// Makes the first line of status and top.
pub fn headline(status: &v1::StatusReply) -> String {
    format!(
        "{}: viaductd {} (pid {}), up {}, {}, {}, {}, {}, {}",
        status.name,
        status.version,
        status.pid,
        duration(status.uptime),
        counted(status.workers.len() as u64, "worker"),
        counted(status.networks.into(), "network"),
        counted(status.routes.into(), "route"),
        counted(status.rules.into(), "rule"),
        counted(status.flows, "flow")
    )
}

/// Formats a number of things, as in `1 rule`, `2 rules`.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Describes the daemon's remaining rights in a line, and each thing that the sandbox lacks in one more.
fn sandbox_text(sandbox: &v1::Sandbox) -> String {
    if !sandbox.enabled {
        return red(format!("sandbox: none (--no-sandbox): user {}, all its capabilities\n", sandbox.user));
    }
    let (capabilities, helper) = (sandbox.capabilities.join(" "), sandbox.helper.unwrap_or_default());
    let mut text = format!(
        "sandbox: user {}, {}, {}, {}, {}; helper {helper}\n",
        sandbox.user,
        if capabilities.is_empty() { "no capabilities" } else { &capabilities },
        if sandbox.no_new_privs { "no new privileges" } else { "new privileges by programs" },
        if sandbox.seccomp { "system calls filtered" } else { "all system calls" },
        match sandbox.landlock {
            0 => "all files of the user".to_owned(),
            version => format!("files by Landlock {version}"),
        },
    );
    for missing in &sandbox.missing {
        text += &red(format!("sandbox lacks {missing}\n"));
    }
    text
}

/// Describes in a line what a card did.
fn card_text(card: &v1::CardStats) -> String {
    let punted = card.punted.iter().map(|count| format!("{} {}", count.reason, count.packets));
    let punted: Vec<String> = punted.collect();
    let mut text = format!(
        "{} packets: {} forwarded, {} dropped, {} left to the host; {} flows, {} clocks of {} MHz with packets inside",
        card.received,
        card.forwarded,
        card.dropped,
        card.punted.iter().map(|count| count.packets).sum::<u64>(),
        card.flows,
        card.busy,
        card.clock,
    );
    if card.lost > 0 {
        text += &format!(", {} lost", card.lost);
    }
    if card.memory_errors > 0 {
        text += &format!(", {} errors of its memory", card.memory_errors);
    }
    if card.flows_uncounted > 0 {
        text += &format!(", {} of the flows without counters", card.flows_uncounted);
    }
    if card.flows_refused > 0 {
        text += &format!(", {} times no room for a flow", card.flows_refused);
    }
    if !punted.is_empty() {
        text += &format!("\nleft to the host: {}", punted.join(", "));
    }
    text
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min"),
        3600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn interfaces(vifs: &[v1::VifEntry]) -> String {
    let row = |vif: &v1::VifEntry| {
        let mut row = value(vif);
        row["state"] = if vif.fault.is_some() {
            "fault"
        } else if vif.up {
            "up"
        } else {
            "down"
        }
        .into();
        row["flows"] = (vif.flows_opened + vif.flows_from_wire).into();
        row
    };
    let columns: &[Column] = &[
        ("NAME", "name"),
        ("KIND", "kind"),
        ("STATE", "state"),
        ("NETWORK", "network"),
        ("ADDRESSES", "addresses"),
        ("RX", "rx_packets"),
        ("TX", "tx_packets"),
        ("RX-DROP", "rx_drops"),
        ("TX-DROP", "tx_drops"),
        ("FLOWS", "flows"),
    ];
    table(&vifs.iter().map(row).collect::<Vec<_>>(), columns)
}

/// Makes a line for each interface with shapers.
fn shaped(vifs: &[v1::VifEntry]) -> String {
    let line = |vif: &v1::VifEntry| {
        let shape = vif.shape.as_ref()?;
        let inward = shape.in_mbps.map(|mbps| {
            format!(
                "in {mbps} Mbit/s: {} packets waited, {} of them marked, {} wait",
                shape.in_waited, shape.in_marked, shape.in_packets
            )
        });
        let outward =
            shape.out_mbps.map(|mbps| format!("out {mbps} Mbit/s: {} packets waited", shape.out_waited));
        let parts: Vec<_> = inward.into_iter().chain(outward).collect();
        Some(format!("{}: {}\n", vif.name, parts.join("; ")))
    };
    vifs.iter().filter_map(line).collect()
}

/// Makes a line for each interface that had connections refused or displaced.
fn crowded(vifs: &[v1::VifEntry]) -> String {
    let crowded = vifs.iter().filter(|vif| vif.flows_refused + vif.flows_displaced > 0);
    let line = |vif: &v1::VifEntry| {
        format!(
            "{}: {} connections opened, {} from a wire; {} refused, {} gave way to others\n",
            vif.name, vif.flows_opened, vif.flows_from_wire, vif.flows_refused, vif.flows_displaced
        )
    };
    crowded.map(line).collect()
}

fn reasons(reasons: &[v1::DropCount]) -> String {
    let rows: Vec<Value> = reasons.iter().map(value).collect();
    table(&rows, &[("DROPPED", "packets"), ("REASON", "reason"), ("MEANING", "help")])
}

fn explained(count: &v1::DropCount) -> String {
    format!(
        "{} {} packets\n  {}\n  {}\n",
        bold(count.reason.clone()),
        count.packets,
        count.help,
        count.advice
    )
}

pub async fn stats(on: &mut Context, worker: Option<u32>) -> Result<(), Failure> {
    let stats = on.client.stats(v1::StatsRequest { worker }).await?.into_inner();
    if on.json {
        return print_json(&value(&stats));
    }
    let mut out = String::new();
    for worker in &stats.workers {
        out += &worker_text(worker);
    }
    print(&out)
}

fn worker_text(worker: &v1::WorkerStats) -> String {
    let cpu = worker.cpu.map(|cpu| format!(" on CPU {cpu}")).unwrap_or_default();
    let mut out = bold(format!("worker {}{cpu}", worker.worker)) + "\n";
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<12} {text}");
    };
    line("received", format!("{} packets, {} bytes", worker.packets, worker.bytes));
    line("sent", format!("{} packets, {} bytes", worker.sent_packets, worker.sent_bytes));
    let lookups = (worker.hits + worker.misses).max(1);
    let share = worker.hits as f64 * 100.0 / lookups as f64;
    line("flow cache", format!("{} hits, {} misses ({share:.1} % hits)", worker.hits, worker.misses));
    line("replies", worker.replies.to_string());
    line("sleeps", worker.sleeps.to_string());
    if let Some(c) = &worker.cycles_per_packet {
        let text = format!(
            "{:.0} (receive {:.0}, lookup {:.0}, slow path {:.0}, deliver {:.0})",
            c.busy, c.receive, c.lookup, c.slow_path, c.deliver
        );
        line("cycles/packet", text);
    }
    let sizes = ["1", "2-3", "4-7", "8-15", "16-31", "32-63", "64"];
    let bursts = sizes.iter().zip(&worker.bursts).map(|(size, count)| format!("{size}: {count}"));
    line("bursts", bursts.collect::<Vec<_>>().join(", "));
    line("dropped", worker.drops.to_string());
    for reason in &worker.reasons {
        line("", format!("{} {}", reason.packets, reason.reason));
    }
    out
}

pub async fn dropstats(on: &mut Context, request: v1::DropStatsRequest) -> Result<(), Failure> {
    let all = request.all;
    let stats = on.client.drop_stats(request).await?.into_inner();
    if on.json {
        return print_json(&value(&stats));
    }
    let mut out = match &stats.reasons[..] {
        [] => "nothing was dropped\n".to_owned(),
        counts if all => counts.iter().map(explained).collect(),
        counts => reasons(counts),
    };
    if let Some(since) = stats.since {
        out += &format!("counted since {}\n", super::capture::date(since));
    }
    if !stats.log.is_empty() {
        out.push('\n');
    }
    for packet in &stats.log {
        let time = super::capture::time_of_day(packet.time_ns);
        let _ = writeln!(
            out,
            "{time} {} {} {} bytes: {}",
            packet.interface, packet.reason, packet.length, packet.text
        );
    }
    print(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lost_connections_is_named() {
        let vif = |name: &str, flows_refused, flows_displaced| v1::VifEntry {
            name: name.to_owned(),
            flows_opened: 40,
            flows_from_wire: 2,
            flows_refused,
            flows_displaced,
            ..v1::VifEntry::default()
        };
        let status = v1::StatusReply {
            vifs: vec![vif("quiet", 0, 0), vif("full", 3, 0), vif("flooded", 0, 5)],
            ..v1::StatusReply::default()
        };
        let text = status_text(&status);
        let rows = text.lines().filter(|line| line.split_whitespace().any(|word| word == "42")).count();
        assert_eq!(rows, 3, "{text}");
        assert!(
            text.contains("full: 40 connections opened, 2 from a wire; 3 refused, 0 gave way to others\n")
        );
        assert!(
            text.contains("flooded: 40 connections opened, 2 from a wire; 0 refused, 5 gave way to others\n")
        );
        assert!(!text.contains("quiet: "));
    }

    #[test]
    fn a_sandbox_tells_what_it_lacks() {
        let whole = v1::Sandbox {
            enabled: true,
            user: "viaduct".to_owned(),
            no_new_privs: true,
            seccomp: true,
            landlock: 6,
            helper: Some(7),
            ..v1::Sandbox::default()
        };
        let said = "sandbox: user viaduct, no capabilities, no new privileges, system calls filtered, \
                    files by Landlock 6; helper 7\n";
        assert_eq!(sandbox_text(&whole), said);
        let missing = vec!["Landlock: not in this kernel".to_owned()];
        let text = sandbox_text(&v1::Sandbox { landlock: 0, missing, ..whole });
        assert!(
            text.contains("all files of the user") && text.contains("lacks Landlock: not in this"),
            "{text}"
        );
        assert!(sandbox_text(&v1::Sandbox::default()).contains("--no-sandbox"));
    }
}
