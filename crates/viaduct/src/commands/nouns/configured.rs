//! Objects that are shown as they are configured: named nexthops, floating addresses, floods, default actions.

use super::{Action, Context, Noun, add, listed, needed};
use crate::args::{DefaultArgs, FloodArgs, ForwardArgs, NatArgs, NexthopArgs};
use crate::client::Failure;
use crate::output::Column;
use api::v1::Kind;
use serde_json::Value;
use std::net::IpAddr;

pub async fn nexthop(on: &mut Context, action: Option<Action<NexthopArgs>>) -> Result<(), Failure> {
    let rows = listed(on, Kind::Nexthop, &action).await?;
    let columns: &[Column] = &[("NAME", "name"), ("TO", "to"), ("USERS", "user_count"), ("OWNER", "owner")];
    Noun { name: "nexthop", keys: &["name"], kind: Kind::Nexthop, network: None, columns }
        .run(on, rows, action, add::nexthop)
        .await
}

/// Returns the ports that guests have of addresses that they share, for each network or for one.
fn shared(networks: &[Value], guests: &[Value], of: Option<&str>) -> Vec<Value> {
    let addresses = |list: &Value| -> Vec<IpAddr> {
        let all = list.as_array().into_iter().flatten();
        all.filter_map(|addr| addr.as_str()?.parse().ok()).collect()
    };
    let mut rows = Vec::new();
    for network in networks.iter().filter(|network| of.is_none_or(|of| network["name"] == *of)) {
        let mut outside = addresses(&network["snat"]);
        outside.sort_unstable();
        let ports = network["snat_ports"].as_u64().and_then(|ports| u16::try_from(ports).ok());
        let ports = ports.unwrap_or(config::Network::SNAT_PORTS);
        for guest in guests.iter().filter(|guest| guest["network"] == network["name"]) {
            for inside in addresses(&guest["addresses"]) {
                let of_family = || outside.iter().filter(|addr| addr.is_ipv4() == inside.is_ipv4());
                let Some(block) = config::PortBlock::of(inside, of_family().count(), ports) else { continue };
                rows.push(serde_json::json!({
                    "network": network["name"],
                    "inside": inside,
                    "guest": guest["name"],
                    "outside": of_family().nth(block.address),
                    "ports": format!("{}-{}", block.first, block.last()),
                }));
            }
        }
    }
    rows
}

pub async fn nat(
    on: &mut Context,
    network: Option<String>,
    action: Option<Action<NatArgs>>,
) -> Result<(), Failure> {
    let network = needed(on, network, &action).await?;
    let guests = listed(on, Kind::Guest, &action).await?;
    let mut rows = listed(on, Kind::Nat, &action).await?;
    rows.retain(|row| network.as_ref().is_none_or(|network| row["network"] == **network));
    for row in &mut rows {
        let has_it = |guest: &&serde_json::Value| {
            let addresses = guest["addresses"].as_array();
            guest["network"] == row["network"] && addresses.is_some_and(|all| all.contains(&row["inside"]))
        };
        row["guest"] = guests.iter().find(has_it).map(|guest| guest["name"].clone()).unwrap_or_default();
    }
    let networks = listed(on, Kind::Network, &action).await?;
    rows.extend(shared(&networks, &guests, network.as_deref()));
    let columns: &[Column] = &[
        ("NETWORK", "network"),
        ("INSIDE", "inside"),
        ("GUEST", "guest"),
        ("OUTSIDE", "outside"),
        ("PORTS", "ports"),
        ("OUTSIDE NETWORK", "outside_network"),
        ("OWNER", "owner"),
    ];
    let of = network.clone().unwrap_or_default();
    Noun { name: "floating address", keys: &["inside", "outside"], kind: Kind::Nat, network, columns }
        .run(on, rows, action, |args| add::nat(of, args))
        .await
}

pub async fn forward(
    on: &mut Context,
    network: Option<String>,
    action: Option<Action<ForwardArgs>>,
) -> Result<(), Failure> {
    let network = needed(on, network, &action).await?;
    let mut rows = listed(on, Kind::Forward, &action).await?;
    rows.retain(|row| network.as_ref().is_none_or(|network| row["network"] == **network));
    for row in &mut rows {
        let word = |key: &str| crate::output::cell(&row[key]);
        let key = format!("{} {} {}", word("protocol"), word("outside"), word("port"));
        let to = format!("{} {}", crate::output::cell(&row["to"]["guest"]), row["to"]["port"]);
        (row["key"], row["to"]) = (key.into(), to.into());
    }
    let columns: &[Column] = &[("NETWORK", "network"), ("KEY", "key"), ("TO", "to"), ("OWNER", "owner")];
    let of = network.clone().unwrap_or_default();
    Noun { name: "forwarded port", keys: &["key"], kind: Kind::Forward, network, columns }
        .run(on, rows, action, |args| Ok(add::forward(of, args)))
        .await
}

pub async fn flood(on: &mut Context, action: Option<Action<FloodArgs>>) -> Result<(), Failure> {
    let rows = listed(on, Kind::Flood, &action).await?;
    let columns: &[Column] = &[("NETWORK", "network"), ("TO", "to"), ("OWNER", "owner")];
    Noun { name: "flood of network", keys: &["network"], kind: Kind::Flood, network: None, columns }
        .run(on, rows, action, add::flood)
        .await
}

pub async fn default(on: &mut Context, action: Option<Action<DefaultArgs>>) -> Result<(), Failure> {
    let mut rows = listed(on, Kind::Default, &action).await?;
    // The default of networks without an entry.
    for network in listed(on, Kind::Network, &action).await? {
        if rows.iter().all(|row| row["network"] != network["name"]) {
            rows.push(serde_json::json!({ "network": network["name"], "action": network["default"].as_str().unwrap_or("allow"), "owner": "" }));
        }
    }
    let columns: &[Column] = &[("NETWORK", "network"), ("ACTION", "action"), ("OWNER", "owner")];
    Noun { name: "default of network", keys: &["network"], kind: Kind::Default, network: None, columns }
        .run(on, rows, action, add::default)
        .await
}
