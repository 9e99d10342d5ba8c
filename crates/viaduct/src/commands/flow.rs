//! flow: list, flush, rate.

use super::{Context, value};
use crate::args::{FlowAction, FlowArgs};
use crate::client::Failure;
use crate::output::{Column, print, print_json, print_rows, scaled};
use api::v1;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;

const COLUMNS: &[Column] = &[
    ("PROTOCOL", "protocol"),
    ("FROM", "from"),
    ("TO", "to"),
    ("NAT", "nat"),
    ("STATE", "state"),
    ("RULE", "rule"),
    ("PACKETS", "packets"),
    ("BYTES", "bytes"),
    ("REPLIES", "reply_packets"),
    ("AGE", "age"),
    ("IDLE", "idle"),
];
/// Columns that may lack packets.
const COUNTS: [&str; 3] = ["packets", "bytes", "reply_packets"];
const MARKED: &str =
    "~ at least: the card forwards packets of this connection without a counter, or did so\n";

pub async fn flow(on: &mut Context, args: FlowArgs) -> Result<(), Failure> {
    match args.action {
        None | Some(FlowAction::List) => list(on, args.matching).await,
        Some(FlowAction::Flush) => flush(on, args.matching).await,
        Some(FlowAction::Rate) => rate(on).await,
    }
}

async fn list(on: &mut Context, matching: String) -> Result<(), Failure> {
    let mut flows = on.client.flows(v1::FlowsRequest { r#match: matching }).await?.into_inner();
    let mut rows: Vec<Value> = Vec::new();
    while let Some(flow) = flows.next().await {
        let flow = flow?;
        rows.push(if on.json { value(&flow) } else { row(&flow) });
    }
    let marked = !on.json && rows.iter().any(|row| row["approximate"] == true);
    print_rows(rows, COLUMNS, on.json)?;
    if marked { print(MARKED) } else { Ok(()) }
}

/// Makes the row of a connection for people. Marks counts that lack packets.
fn row(flow: &v1::Flow) -> Value {
    let mut row = value(flow);
    row["from"] = end(&flow.network, &flow.source, flow.source_port).into();
    row["to"] = end(&flow.destination_network, &flow.destination, flow.destination_port).into();
    let outside = [("from", &flow.source_outside), ("to", &flow.destination_outside)];
    let nat = outside.into_iter().filter_map(|(which, outside)| {
        let at = outside.as_ref()?;
        Some(format!("{which} {}", end(&at.network, &at.address, at.port)))
    });
    row["nat"] = nat.collect::<Vec<_>>().into();
    if flow.approximate {
        COUNTS.iter().for_each(|count| row[*count] = format!("~{}", row[*count]).into());
    }
    row
}

fn end(network: &str, address: &str, port: u32) -> String {
    if address.contains(':') {
        format!("{network} [{address}]:{port}")
    } else {
        format!("{network} {address}:{port}")
    }
}

async fn flush(on: &mut Context, matching: String) -> Result<(), Failure> {
    let done = on.client.flush_flows(v1::FlushFlowsRequest { r#match: matching }).await?.into_inner();
    if on.json { print_json(&value(&done)) } else { print(&format!("{} flows forgotten\n", done.flushed)) }
}

async fn rate(on: &mut Context) -> Result<(), Failure> {
    let (start, before) = (Instant::now(), on.client.status(v1::StatusRequest {}).await?.into_inner());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = on.client.status(v1::StatusRequest {}).await?.into_inner();
    let seconds = start.elapsed().as_secs_f64();
    let per_second =
        |of: &dyn Fn(&v1::StatusReply) -> u64| of(&after).saturating_sub(of(&before)) as f64 / seconds;
    let packets = |status: &v1::StatusReply| status.workers.iter().map(|w| w.packets).sum();
    let misses = |status: &v1::StatusReply| status.workers.iter().map(|w| w.misses).sum();
    let (new, packets, misses) =
        (per_second(&|s| s.flows_created), per_second(&packets), per_second(&misses));
    if on.json {
        return print_json(&json!({
            "flows": after.flows,
            "new_flows_per_second": new,
            "packets_per_second": packets,
            "misses_per_second": misses,
        }));
    }
    print(&format!(
        "{} flows, {} new/s, {} packets/s, {} cache misses/s\n",
        after.flows,
        scaled(new),
        scaled(packets),
        scaled(misses)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::table;

    #[test]
    fn counts_that_lack_packets_are_marked() {
        let exact = v1::Flow { packets: 1200, bytes: 99_000, ..v1::Flow::default() };
        let marked =
            v1::Flow { packets: 3, bytes: 180, reply_packets: 2, approximate: true, ..v1::Flow::default() };
        let counts = &COLUMNS[6..9];
        let text = table(&[row(&exact), row(&marked)], counts);
        assert_eq!(text, "PACKETS  BYTES  REPLIES\n   1200  99000        0\n     ~3   ~180       ~2\n");
        // Marked counts are still aligned as numbers.
        let text = table(&[row(&marked)], counts);
        assert_eq!(text, "PACKETS  BYTES  REPLIES\n     ~3   ~180       ~2\n");
        let json = [value(&exact), value(&marked)].map(|row| row["approximate"].clone());
        assert_eq!((json, &value(&marked)["packets"]), ([false.into(), true.into()], &3.into()));
    }

    #[test]
    fn translated_ends_are_shown() {
        let at =
            |address: &str, port| v1::FlowEnd { network: "public".into(), address: address.into(), port };
        let (from, to) = (Some(at("203.0.113.7", 40000)), Some(at("2001:db8::7", 80)));
        let flow = v1::Flow { source_outside: from, destination_outside: to, ..v1::Flow::default() };
        let nat = |flow: &v1::Flow| table(&[row(flow)], &COLUMNS[3..4]);
        assert_eq!(nat(&flow), "NAT\nfrom public 203.0.113.7:40000, to public [2001:db8::7]:80\n");
        assert_eq!(nat(&v1::Flow::default()), "NAT\n-\n");
        assert_eq!(value(&flow)["source_outside"]["address"], "203.0.113.7");
    }
}
