//! Runs the conformance vectors (`vectors/*.txt`, `vectors/ovs/*.txt`) on the naive tables and the reference rewrite.
//!
//! With `BLESS=1` in the environment, expectations are overwritten by what was observed; read the diff.

#![allow(clippy::unwrap_used, reason = "tests")]

use model::vectors::{Case, Expected, Packet, Step, load};
use model::{DropReason, Numbers, PacketView, Tables, Traced, decide};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

fn files() -> Vec<(PathBuf, String)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let dirs = [dir.clone(), dir.join("ovs")].map(|dir| std::fs::read_dir(dir).unwrap());
    let entries = dirs.into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// Returns the result of the model for each packet of a case. Calls `look` with every table that was read,
/// and whether it had the entry.
fn run(case: &Case, mut look: impl FnMut(&'static str, bool)) -> Vec<(Packet, Vec<Expected>)> {
    let mut tables = Tables::new();
    let mut now = 1;
    let mut results = Vec::new();
    for step in &case.steps {
        match step {
            Step::Apply(changes) => {
                tables.apply(changes).unwrap_or_else(|error| panic!("{}: {error}", case.name));
                tables.apply_ovs(&case.flows());
            }
            Step::Learn(effects) => tables.commit(effects, 0, 0).unwrap(),
            Step::GiveUp(scope, addr) => tables.give_up(*scope, *addr),
            Step::Wait(seconds) => {
                now += seconds;
                tables.expire(now);
            }
            Step::Packet(packet) => {
                let observed = receive(case, packet, &mut tables, now, &mut look);
                results.push((packet.clone(), observed));
            }
        }
    }
    results
}

fn receive(
    case: &Case,
    packet: &Packet,
    tables: &mut Tables,
    now: u32,
    look: &mut impl FnMut(&'static str, bool),
) -> Vec<Expected> {
    let len = packet.frame.len();
    let view = match PacketView::parse(&packet.frame, len as u32, packet.gso_size) {
        Ok(view) => view,
        Err(error) => return vec![Expected::Drop(error.into())],
    };
    let traced = Traced::new(tables);
    let decision = decide(&traced, &view, packet.ingress, now);
    traced.into_steps().iter().for_each(|step| look(step.table(), step.result(&Numbers).is_some()));
    let metered = model::rewrite::metered_len(&decision.verdict, &view);
    match tables.commit(&decision.effects, metered, u64::from(now) * 1_000_000_000) {
        Ok(()) => case.observed(tables, &decision, &view),
        Err(reason) => vec![Expected::Drop(reason)],
    }
}

#[test]
fn the_model_agrees_with_the_vectors() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut failures = Vec::new();
    for (path, text) in files() {
        let cases = load(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut blessed = BTreeMap::new();
        for case in &cases {
            for (packet, observed) in run(case, |_, _| {}) {
                let words: Vec<_> = observed.iter().map(|one| case.words(one)).collect();
                if observed != packet.expected {
                    let expected: Vec<_> = packet.expected.iter().map(|one| case.words(one)).collect();
                    let place = format!("{}:{}", path.display(), packet.line);
                    let (expected, words) = (expected.join("\n  "), words.join("\n  "));
                    failures
                        .push(format!("{place} {}\nexpected\n  {expected}\nobserved\n  {words}", case.name));
                }
                blessed.insert(packet.line, words);
            }
        }
        if bless {
            std::fs::write(path, rewritten(&text, &blessed)).unwrap();
        }
    }
    assert!(bless || failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Returns the file with other expectations after its packets, which are identified by their lines.
fn rewritten(text: &str, observed: &BTreeMap<usize, Vec<String>>) -> String {
    let mut out = String::new();
    let expects = |line: &str| {
        ["out ", "drop ", "hold ", "reassemble", "consumed", "effect "]
            .iter()
            .any(|word| line.trim().starts_with(word))
    };
    for (number, line) in (1..).zip(text.lines()) {
        if expects(line) {
            continue;
        }
        out.push_str(line);
        out.push('\n');
        for words in observed.get(&number).into_iter().flatten() {
            out.push_str(&format!("  {words}\n"));
        }
    }
    out
}

/// Drops that an executor makes and `decide` does not: for queues, quotas, ports and the sender's offload requests.
const EXECUTORS: [DropReason; 23] = [
    DropReason::HeaderTooLong,
    DropReason::OffloadMalformed,
    DropReason::HoldFull,
    DropReason::FlowQuota,
    DropReason::FlowTableFull,
    DropReason::ReplyLimited,
    DropReason::RxFull,
    DropReason::TxFull,
    DropReason::TxTooLong,
    DropReason::TxDown,
    DropReason::TxBusy,
    DropReason::SegmentFailed,
    DropReason::PuntBudget,
    DropReason::SegmentTooSmall,
    DropReason::FloodLimited,
    DropReason::TurnBudget,
    DropReason::OvsAbsent,
    DropReason::ServiceFull,
    DropReason::ReassemblyTimeout,
    DropReason::ReassemblyFull,
    DropReason::ReassemblyFailed,
    DropReason::Shaped,
    DropReason::Codel,
];

const TABLES: [&str; 15] = [
    "bridge",
    "flow",
    "fragment",
    "guest",
    "mpls",
    "nat",
    "neighbour",
    "network",
    "nexthop",
    "ovs",
    "remote",
    "route",
    "rule",
    "vif",
    "vxlan",
];

#[test]
fn every_reason_to_drop_and_every_table_is_covered() {
    let (mut reasons, mut looks, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
    for (_, text) in files() {
        for case in load(&text).unwrap() {
            count += 1;
            for (packet, _) in run(&case, |table, hit| {
                looks.insert((table, hit));
            }) {
                reasons.extend(packet.expected.iter().filter_map(|one| match one {
                    Expected::Drop(reason) => Some(*reason),
                    _ => None,
                }));
            }
        }
    }
    let uncovered: Vec<_> = DropReason::ALL
        .iter()
        .filter(|reason| !EXECUTORS.contains(reason))
        .filter(|reason| !reasons.contains(reason))
        .collect();
    assert!(uncovered.is_empty(), "no vector drops for {uncovered:?}");
    for table in TABLES {
        assert!(looks.contains(&(table, true)), "no vector finds something in {table}");
        // Consistent tables never refer to a network or nexthop that does not exist.
        let misses = !["network", "nexthop"].contains(&table);
        assert!(!misses || looks.contains(&(table, false)), "no vector misses in {table}");
    }
    assert!(count >= 150, "{count} vectors");
}
