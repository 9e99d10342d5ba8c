//! ovs: guests and wires that an Open vSwitch programs.

use super::{Context, value};
use crate::args::{OvsAction, OvsArgs};
use crate::client::Failure;
use crate::output::{Column, print_rows};
use api::v1;
use serde_json::Value;

const PORTS: &[Column] = &[
    ("PORT", "name"),
    ("SESSION", "session"),
    ("MTU", "mtu"),
    ("FLOWS", "flows"),
    ("STALE", "stale"),
    ("ON-CARD", "on_card"),
    ("STAYS", "stays"),
    ("TO-OVS", "to_ovs_packets"),
    ("LOST", "to_ovs_drops"),
    ("FROM-OVS", "from_ovs_packets"),
    ("QOS", "qos"),
    ("REFUSED", "refused"),
];

const FLOWS: &[Column] = &[
    ("ID", "id"),
    ("PORT", "port"),
    ("PACKETS", "packets"),
    ("BYTES", "bytes"),
    ("STALE", "stale"),
    ("CARD", "card_entries"),
    ("STAYS", "stays"),
    ("MATCH", "match"),
    ("ACTIONS", "actions"),
];

const REFUSED: &[Column] = &[("PORT", "port"), ("REASON", "reason"), ("COUNT", "count"), ("LAST", "last")];

const SESSIONS: &[Column] =
    &[("SESSION", "id"), ("PID", "pid"), ("UID", "uid"), ("AGE", "age"), ("DPDK", "dpdk")];

pub async fn ovs(on: &mut Context, OvsArgs { port, action }: OvsArgs) -> Result<(), Failure> {
    let action = action.unwrap_or(OvsAction::Ports);
    if matches!(action, OvsAction::Flows) {
        return flows(on, port).await;
    }
    let reply = on.client.ovs(v1::OvsRequest { port }).await?.into_inner();
    let (rows, columns): (Vec<Value>, _) = match action {
        OvsAction::Refused => (reply.refused.iter().map(value).collect(), REFUSED),
        OvsAction::Sessions => (reply.sessions.iter().map(value).collect(), SESSIONS),
        OvsAction::Ports | OvsAction::Flows => (reply.ports.iter().map(value).collect(), PORTS),
    };
    print(rows, columns, on.json)
}

/// Prints rows, with the columns about a card only if there is one.
fn print(rows: Vec<Value>, columns: &[Column], json: bool) -> Result<(), Failure> {
    const OF_CARD: [&str; 3] = ["on_card", "card_entries", "stays"];
    let is_set = |value: &Value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty());
    let card = rows.iter().any(|row| OF_CARD.iter().any(|key| is_set(&row[*key])));
    let columns: Vec<_> = columns.iter().filter(|(_, key)| card || !OF_CARD.contains(key)).copied().collect();
    print_rows(rows, &columns, json)
}

async fn flows(on: &mut Context, port: Option<String>) -> Result<(), Failure> {
    let mut stream = on.client.ovs_flows(v1::OvsFlowsRequest { port }).await?.into_inner();
    let mut rows = Vec::new();
    while let Some(flow) = stream.message().await? {
        rows.push(value(&flow));
    }
    print(rows, FLOWS, on.json)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_a_field() {
        let has = |row: Value, columns: &[Column]| {
            for (_, key) in columns {
                assert!(row.get(key).is_some(), "{key} is no field of {row}");
            }
        };
        has(value(&v1::OvsPort::default()), PORTS);
        has(value(&v1::OvsFlow::default()), FLOWS);
        has(value(&v1::OvsRefused::default()), REFUSED);
        has(value(&v1::OvsSession::default()), SESSIONS);
    }
}
