//! explain.

use super::{Context, value};
use crate::client::Failure;
use crate::output::{bold, print, print_json};
use crate::pcap::{self, Frames};
use api::v1::explain_request::Packet;
use api::v1::{self, Explanation};
use std::fmt::Write;

pub async fn explain(
    on: &mut Context,
    interface: String,
    words: Vec<String>,
    exit_code: bool,
) -> Result<(), Failure> {
    let mut explanations = Vec::new();
    for packet in packets(&words)? {
        let request = v1::ExplainRequest { interface: interface.clone(), packet: Some(packet) };
        explanations.push(on.client.explain(request).await?.into_inner());
    }
    match (&explanations[..], on.json) {
        ([one], true) => print_json(&value(one)),
        (several, true) => print_json(&value(&several)),
        (all, false) => print(&all.iter().map(text).collect::<Vec<_>>().join("\n")),
    }?;
    let any = |is: fn(&Explanation) -> bool| explanations.iter().any(is);
    match exit_code {
        true if any(|one| one.reason.is_some()) => Err(Failure::Dropped),
        true if any(|one| one.verdict == "hold") => Err(Failure::Held),
        _ => Ok(()),
    }
}

/// Reads the packets: those of a file, a frame in hexadecimal digits, or a text for the daemon to parse.
fn packets(words: &[String]) -> Result<Vec<Packet>, Failure> {
    let text = words.join(" ");
    let is_path = text.starts_with(['/', '.']) || text.ends_with(".pcap") || text.ends_with(".pcapng");
    let file = std::fs::read(&text);
    if let (Err(e), true) = (&file, is_path) {
        return Err(Failure::Refused(format!("{text}: {e}")));
    }
    if let Ok(file) = file {
        let Frames { inbound, outbound } = pcap::frames(&file).unwrap_or_default();
        return match (inbound.len(), outbound) {
            (0, 0) => Err(Failure::Refused(format!("{text}: no packets in it; it must be pcap or pcapng"))),
            (0, _) => Err(Failure::Refused(format!("{text}: only packets that left by their interface"))),
            (_, 0) => Ok(inbound.into_iter().map(Packet::Frame).collect()),
            (_, left) => {
                eprintln!("viaduct: {text}: packets that left by their interface are left out: {left}");
                Ok(inbound.into_iter().map(Packet::Frame).collect())
            }
        };
    }
    match api::hex::decode(&text) {
        Some(frame) if !frame.is_empty() => Ok(vec![Packet::Frame(frame)]),
        _ => Ok(vec![Packet::Text(text)]),
    }
}

fn text(explanation: &Explanation) -> String {
    let mut out = bold(explanation.packet.clone()) + "\n";
    let width = |of: fn(&v1::Step) -> &str| {
        explanation.steps.iter().map(|step| of(step).chars().count()).max().unwrap_or(0)
    };
    let (table, key) = (width(|step| &step.table), width(|step| &step.key).min(60));
    for step in &explanation.steps {
        let result = step.result.as_deref().unwrap_or("miss");
        let _ = writeln!(out, "  {:<table$}  {:<key$}  {result}", step.table, step.key);
    }
    for line in &explanation.decision {
        let _ = writeln!(out, "=> {line}");
    }
    out
}
