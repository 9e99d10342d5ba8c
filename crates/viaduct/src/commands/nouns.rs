//! The kinds of objects: list, show, add, del.

mod add;

use super::{Context, apply, value};
use crate::args::{
    Action, BridgeArgs, GuestArgs, Keys, MplsArgs, NetworkArgs, NexthopArgs, RouteArgs, RuleArgs, VxlanArgs,
    WireArgs,
};
use crate::client::Failure;
use crate::input;
use crate::output::{Column, print_row, print_rows};
use api::v1::object::Object;
use api::v1::{self, Kind, TableName};
use clap::Args;
use serde_json::Value;

/// A kind of thing, as the command line knows it.
struct Noun<'a> {
    /// What messages call it.
    name: &'a str,
    /// The key of a row that identifies it.
    key: &'a str,
    /// The kind of object that is added and removed.
    kind: Kind,
    network: Option<String>,
    columns: &'a [Column],
}

impl Noun<'_> {
    async fn run<A: Args>(
        self,
        on: &mut Context,
        rows: Vec<Value>,
        action: Option<Action<A>>,
        objects: impl FnOnce(A) -> Result<Vec<Object>, Failure>,
    ) -> Result<(), Failure> {
        match action {
            None | Some(Action::List) => print_rows(rows, self.columns, on.json),
            Some(Action::Show { key }) => {
                let found = rows.iter().find(|row| crate::output::cell(&row[self.key]) == key);
                let missing =
                    || Failure::Refused(format!("there is no {} {key}{}", self.name, self.somewhere()));
                print_row(found.ok_or_else(missing)?, on.json)
            }
            Some(Action::Add(args)) => {
                let objects = objects(args)?.into_iter().map(|object| v1::Object { object: Some(object) });
                let objects = objects.collect();
                let changes = on.client.add(v1::AddRequest { objects }).await?.into_inner();
                apply::show(&changes, on.json, "changed")
            }
            Some(Action::Del(keys)) => {
                let key = |name| v1::Key { kind: self.kind.into(), network: self.network.clone(), name };
                let keys = input::keys(keys)?.into_iter().map(key).collect();
                let changes = on.client.remove(v1::RemoveRequest { keys }).await?.into_inner();
                apply::show(&changes, on.json, "changed")
            }
        }
    }

    fn somewhere(&self) -> String {
        self.network.as_ref().map(|network| format!(" in network {network}")).unwrap_or_default()
    }
}

/// The table `table` of the daemon.
async fn table(
    on: &mut Context,
    table: TableName,
    network: Option<String>,
) -> Result<v1::TableReply, Failure> {
    let request = v1::TableRequest { table: table.into(), network };
    Ok(on.client.table(request).await?.into_inner())
}

fn rows<T: serde::Serialize>(entries: &[T]) -> Vec<Value> {
    entries.iter().map(value).collect()
}

/// The objects of a kind as rows: their fields, and their owner.
async fn objects(on: &mut Context, kind: Kind) -> Result<Vec<Value>, Failure> {
    let request = v1::ObjectsRequest { kind: kind.into(), network: None };
    let reply = on.client.objects(request).await?.into_inner();
    let row = |owned: v1::OwnedObject| {
        let mut row = match owned.object?.object? {
            Object::Guest(guest) => value(&guest),
            Object::Wire(wire) => value(&wire),
            Object::Network(network) => value(&network),
            Object::Nexthop(nexthop) => value(&nexthop),
            _ => return None,
        };
        let fields = row.as_object_mut()?;
        // A guest's own `owner` is that of its socket.
        if kind == Kind::Guest {
            let socket_owner = fields.remove("owner").unwrap_or_default();
            fields.insert("socket_owner".to_owned(), socket_owner);
        }
        fields.insert("owner".to_owned(), owned.owner.into());
        Some(row)
    };
    Ok(reply.objects.into_iter().filter_map(row).collect())
}

/// The objects of a kind with the state of their interfaces; what changes with every packet is `vif`'s.
async fn interfaces(on: &mut Context, kind: Kind) -> Result<Vec<Value>, Failure> {
    let vifs = table(on, TableName::Vif, None).await?.vifs;
    let mut rows = objects(on, kind).await?;
    for row in &mut rows {
        let Some(vif) = vifs.iter().find(|vif| row["name"] == *vif.name) else { continue };
        row["state"] = state_of(vif).into();
        row["mtu"] = vif.mtu.into();
        row["features"] = vif.features.clone().into();
        row["fault"] = vif.fault.clone().into();
    }
    Ok(rows)
}

fn state_of(vif: &v1::VifEntry) -> &'static str {
    match (&vif.fault, vif.up) {
        (Some(_), _) => "fault",
        (None, true) => "up",
        (None, false) => "down",
    }
}

/// Interfaces, the daemon's view of guests and wires.
pub async fn vif(on: &mut Context, action: Option<Action<GuestArgs>>) -> Result<(), Failure> {
    let vifs = table(on, TableName::Vif, None).await?.vifs;
    let row = |vif: &v1::VifEntry| {
        let mut row = value(vif);
        row["state"] = state_of(vif).into();
        row
    };
    let is_wire = |key: &str| vifs.iter().any(|vif| vif.name == key && vif.kind == "wire");
    let kind = match &action {
        Some(Action::Del(Keys { keys, .. })) if keys.iter().any(|key| is_wire(key)) => Kind::Wire,
        _ => Kind::Guest,
    };
    let columns: &[Column] = &[
        ("ID", "id"),
        ("NAME", "name"),
        ("KIND", "kind"),
        ("STATE", "state"),
        ("NETWORK", "network"),
        ("MAC", "mac"),
        ("MTU", "mtu"),
        ("RX", "rx_packets"),
        ("TX", "tx_packets"),
        ("RX-DROP", "rx_drops"),
        ("TX-DROP", "tx_drops"),
    ];
    let rows = vifs.iter().map(row).collect();
    Noun { name: "interface", key: "name", kind, network: None, columns }
        .run(on, rows, action, add::guest)
        .await
}

pub async fn guest(on: &mut Context, action: Option<Action<GuestArgs>>) -> Result<(), Failure> {
    let rows = interfaces(on, Kind::Guest).await?;
    let columns: &[Column] = &[
        ("NAME", "name"),
        ("NETWORK", "network"),
        ("KIND", "kind"),
        ("STATE", "state"),
        ("MAC", "mac"),
        ("ADDRESSES", "addresses"),
        ("LABEL", "label"),
        ("MTU", "mtu"),
        ("OWNER", "owner"),
    ];
    Noun { name: "guest", key: "name", kind: Kind::Guest, network: None, columns }
        .run(on, rows, action, add::guest)
        .await
}

pub async fn wire(on: &mut Context, action: Option<Action<WireArgs>>) -> Result<(), Failure> {
    let rows = interfaces(on, Kind::Wire).await?;
    let columns: &[Column] = &[
        ("NAME", "name"),
        ("DRIVER", "driver"),
        ("DEVICE", "device"),
        ("STATE", "state"),
        ("ADDRESSES", "addresses"),
        ("GATEWAY", "gateway"),
        ("MTU", "mtu"),
        ("OWNER", "owner"),
    ];
    Noun { name: "wire", key: "name", kind: Kind::Wire, network: None, columns }
        .run(on, rows, action, add::wire)
        .await
}

pub async fn network(on: &mut Context, action: Option<Action<NetworkArgs>>) -> Result<(), Failure> {
    let rows = objects(on, Kind::Network).await?;
    let columns: &[Column] = &[
        ("NAME", "name"),
        ("VRF", "vrf"),
        ("GATEWAYS", "gateways"),
        ("VNI", "vni"),
        ("LEARNING", "learning"),
        ("WIRE", "wire"),
        ("VLAN", "vlan"),
        ("L2 GATEWAY", "l2_gateway"),
        ("MTU", "mtu"),
        ("OWNER", "owner"),
    ];
    Noun { name: "network", key: "name", kind: Kind::Network, network: None, columns }
        .run(on, rows, action, add::network)
        .await
}

pub async fn nh(on: &mut Context, action: Option<Action<NexthopArgs>>) -> Result<(), Failure> {
    let columns: &[Column] = &[("ID", "id"), ("KIND", "kind"), ("NEXTHOP", "text"), ("PACKETS", "packets")];
    let mut key = "id";
    let mut rows = rows(&table(on, TableName::Nexthop, None).await?.nexthops);
    if let Some(Action::Show { key: wanted }) = &action
        && wanted.parse::<u32>().is_err()
    {
        (rows, key) = (objects(on, Kind::Nexthop).await?, "name");
    }
    Noun { name: "nexthop", key, kind: Kind::Nexthop, network: None, columns }
        .run(on, rows, action, add::nexthop)
        .await
}

/// Whether an action shows rows. A route is added beside a million without asking for them.
fn shows<A: Args>(action: &Option<Action<A>>) -> bool {
    matches!(action, None | Some(Action::List | Action::Show { .. }))
}

/// The network that an action on one entry needs.
fn needed<A: Args>(network: &Option<String>, action: &Option<Action<A>>) -> Result<(), Failure> {
    match (network, action) {
        (None, Some(Action::Show { .. } | Action::Add(_) | Action::Del(_))) => {
            Err(Failure::Usage("which network? Add --network NAME".to_owned()))
        }
        _ => Ok(()),
    }
}

pub async fn rt(
    on: &mut Context,
    network: Option<String>,
    action: Option<Action<RouteArgs>>,
) -> Result<(), Failure> {
    needed(&network, &action)?;
    let rows = match shows(&action) {
        true => rows(&table(on, TableName::Route, network.clone()).await?.routes),
        false => Vec::new(),
    };
    let columns: &[Column] = &[
        ("NETWORK", "network"),
        ("PREFIX", "prefix"),
        ("NH", "nexthop"),
        ("TO", "text"),
        ("OWNER", "owner"),
        ("FROM", "origin"),
    ];
    let of = network.clone().unwrap_or_default();
    Noun { name: "route", key: "prefix", kind: Kind::Route, network, columns }
        .run(on, rows, action, |args| add::route(of, args))
        .await
}

pub async fn bridge(
    on: &mut Context,
    network: Option<String>,
    action: Option<Action<BridgeArgs>>,
) -> Result<(), Failure> {
    needed(&network, &action)?;
    let rows = rows(&table(on, TableName::Bridge, network.clone()).await?.bridge);
    let columns: &[Column] =
        &[("NETWORK", "network"), ("MAC", "mac"), ("TO", "nexthop"), ("STATIC", "static"), ("IDLE", "idle")];
    let of = network.clone().unwrap_or_default();
    Noun { name: "MAC", key: "mac", kind: Kind::Mac, network, columns }
        .run(on, rows, action, |args| add::bridge(of, args))
        .await
}

pub async fn mpls(on: &mut Context, action: Option<Action<MplsArgs>>) -> Result<(), Failure> {
    let rows = rows(&table(on, TableName::Mpls, None).await?.mpls);
    let columns: &[Column] = &[("LABEL", "label"), ("NH", "nexthop"), ("TO", "text")];
    Noun { name: "label", key: "label", kind: Kind::Mpls, network: None, columns }
        .run(on, rows, action, add::mpls)
        .await
}

pub async fn vxlan(on: &mut Context, action: Option<Action<VxlanArgs>>) -> Result<(), Failure> {
    let rows = rows(&table(on, TableName::Vxlan, None).await?.vxlan);
    let columns: &[Column] = &[("VNI", "vni"), ("VRF", "vrf"), ("NETWORK", "network")];
    Noun { name: "VNI", key: "vni", kind: Kind::Vxlan, network: None, columns }
        .run(on, rows, action, add::vxlan)
        .await
}

pub async fn rule(
    on: &mut Context,
    network: Option<String>,
    action: Option<Action<RuleArgs>>,
) -> Result<(), Failure> {
    if let (None, Some(Action::Add(_))) = (&network, &action) {
        return Err(Failure::Usage("which network? Add --network NAME".to_owned()));
    }
    let rows = rows(&table(on, TableName::Rule, network.clone()).await?.rules);
    let columns: &[Column] = &[
        ("ID", "id"),
        ("NETWORK", "network"),
        ("PRIORITY", "priority"),
        ("FROM", "from"),
        ("TO", "to"),
        ("PROTOCOL", "protocol"),
        ("PORTS", "ports"),
        ("ACTION", "action"),
        ("PACKETS", "packets"),
        ("OWNER", "owner"),
    ];
    let of = network.clone().unwrap_or_default();
    let guests = objects(on, Kind::Guest).await?;
    // A rule is named by its id, which says in which network it is.
    let action = match action {
        Some(Action::Del(keys)) => {
            let keys = input::keys(keys)?;
            let is_there = |id: &&String| rows.iter().any(|row| crate::output::cell(&row["id"]) == **id);
            if let Some(id) = keys.iter().find(|id| !is_there(id)) {
                return Err(Failure::Refused(format!("there is no rule {id}; `viaduct rule` lists them")));
            }
            Some(Action::Del(Keys { keys, file: None }))
        }
        other => other,
    };
    Noun { name: "rule", key: "id", kind: Kind::Rule, network, columns }
        .run(on, rows.clone(), action, |args| add::rule(of, args, &guests))
        .await
}
