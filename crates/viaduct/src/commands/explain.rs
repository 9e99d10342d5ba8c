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
        return of_file(&text, &file);
    }
    match api::hex::decode(&text) {
        Some(frame) if !frame.is_empty() => Ok(vec![Packet::Frame(frame)]),
        _ => Ok(vec![Packet::Text(text)]),
    }
}

/// Reads the packets of a capture file, and says what of it is not explained.
fn of_file(name: &str, file: &[u8]) -> Result<Vec<Packet>, Failure> {
    let refused = |why: &str| Err(Failure::Refused(format!("{name}: {why}")));
    let Frames { inbound, outbound, cut, ends_early } = match pcap::frames(file) {
        Ok(frames) => frames,
        Err(why) => return refused(&why.to_string()),
    };
    match (inbound.is_empty(), outbound, ends_early) {
        (true, 0, true) => return refused("it ends inside its first packet"),
        (true, 0, false) => return refused("no packets in it"),
        (true, ..) => return refused("only packets that left by their interface"),
        _ => {}
    }
    let mut notes = Vec::new();
    if outbound > 0 {
        notes.push(format!("packets that left by their interface are left out: {outbound}"));
    }
    if cut > 0 {
        notes.push(format!("packets whose ends were not captured, and are taken as zeros: {cut}"));
    }
    if ends_early {
        notes.push("it ends inside a packet, which is left out".to_owned());
    }
    notes.iter().for_each(|note| eprintln!("viaduct: {name}: {note}"));
    Ok(inbound.into_iter().map(Packet::Frame).collect())
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
