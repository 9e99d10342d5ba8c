//! The kinds of objects: list, show, add, del.

mod add;
mod configured;
mod look;
mod set;

pub use configured::{default, flood, forward, nat, nexthop};
pub use look::neigh;

use super::{Context, apply, value};
use crate::args::{
    Action, GuestArgs, Keys, LeaseArgs, MacArgs, MplsArgs, NetworkArgs, NexthopArgs, RouteArgs, RuleArgs,
    VxlanArgs, WireArgs,
};
use crate::client::Failure;
use crate::input;
use crate::lists;
use crate::output::{Column, cell, print_row, print_rows};
use api::v1::object::Object;
use api::v1::operation::Operation as Step;
use api::v1::{self, Kind, TableName};
use clap::Args;
use ipnet::IpNet;
use serde_json::Value;
use std::net::IpAddr;

/// A kind of thing, as the command line knows it.
struct Noun<'a> {
    /// Name of the kind in messages.
    name: &'a str,
    /// Columns in which a key is looked for.
    keys: &'a [&'a str],
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
                let is_wanted = |row: &&Value| self.keys.iter().any(|name| cell(&row[*name]) == key);
                let found = rows.iter().find(is_wanted);
                print_row(found.ok_or_else(|| self.missing(&rows, &key))?, on.json)
            }
            Some(Action::Add(args)) => {
                let object = |object| Step::Create(v1::Object { object: Some(object) });
                transact(on, objects(*args)?.into_iter().map(object), false).await
            }
            Some(Action::Set(fields)) => {
                let request = set::request(self.key(fields.key.clone()), &fields)?;
                let request = v1::TransactRequest { owner: on.owner.clone(), ..request };
                let changes = on.client.transact(request).await?.into_inner();
                apply::show(&changes, on.json, &apply::done(false, fields.confirm))
            }
            Some(Action::Del(keys)) => {
                let take_over = keys.take_over;
                let keys = input::keys(keys)?.into_iter().map(|name| Some(self.key(name)));
                let steps = keys.map(|key| Step::Delete(v1::Delete { key, allow_missing: false }));
                transact(on, steps, take_over).await
            }
        }
    }

    fn missing(&self, rows: &[Value], key: &str) -> Failure {
        let known: Vec<&str> =
            rows.iter().flat_map(|row| self.keys.iter().filter_map(|name| row[*name].as_str())).collect();
        let near = match config::did_you_mean(key, known.iter().copied()) {
            none if none.is_empty() && (1..=MAX_NAMED).contains(&known.len()) => {
                format!("; there are: {}", known.join(", "))
            }
            near => near,
        };
        Failure::Refused(format!("there is no {} \"{key}\"{}{near}", self.name, self.somewhere()))
    }

    /// Makes the key of the object with this name.
    fn key(&self, name: String) -> v1::Key {
        let kind = self.kind.into();
        match self.kind {
            // A network has one of each, so its name is the key.
            Kind::Flood | Kind::Default => v1::Key { kind, network: Some(name), name: String::new() },
            _ => v1::Key { kind, network: self.network.clone(), name },
        }
    }

    fn somewhere(&self) -> String {
        self.network.as_ref().map(|network| format!(" in network \"{network}\"")).unwrap_or_default()
    }
}

/// Most names in a message about a name that does not exist.
const MAX_NAMED: usize = 16;

/// Carries out the steps, all or none, and shows what changed.
async fn transact(
    on: &mut Context,
    steps: impl Iterator<Item = Step>,
    take_over: bool,
) -> Result<(), Failure> {
    let operations = steps.map(|step| v1::Operation { operation: Some(step) }).collect();
    let owner = on.owner.clone();
    let request = v1::TransactRequest { operations, owner, take_over, ..Default::default() };
    let changes = on.client.transact(request).await?.into_inner();
    apply::show(&changes, on.json, "changed")
}

async fn table(
    on: &mut Context,
    table: TableName,
    network: Option<String>,
) -> Result<v1::TableReply, Failure> {
    let request = v1::TableRequest { table: table.into(), network };
    lists::table(&mut on.client, request).await
}

fn rows<T: serde::Serialize>(entries: &[T]) -> Vec<Value> {
    entries.iter().map(value).collect()
}

/// Requests the objects of a kind as rows: their fields, their owner, and the objects that refer to them.
async fn objects(on: &mut Context, kind: Kind) -> Result<Vec<Value>, Failure> {
    let request = v1::ObjectsRequest { kind: kind.into(), network: None, users: true };
    let reply = lists::objects(&mut on.client, request).await?;
    let row = |owned: v1::OwnedObject| {
        let mut row = match owned.object?.object? {
            Object::Wire(object) => value(&object),
            Object::Network(object) => value(&object),
            Object::Guest(object) => value(&object),
            Object::Lease(object) => value(&object),
            Object::Nexthop(object) => value(&object),
            Object::Route(object) => value(&object),
            Object::Mac(object) => value(&object),
            Object::Flood(object) => value(&object),
            Object::Nat(object) => value(&object),
            Object::Forward(object) => value(&object),
            Object::Rule(object) => value(&object),
            Object::Default(object) => value(&object),
            Object::Mpls(object) => value(&object),
            Object::Vxlan(object) => value(&object),
        };
        let fields = row.as_object_mut()?;
        // A guest's own `owner` is the owner of its socket.
        if kind == Kind::Guest {
            let socket_owner = fields.remove("owner").unwrap_or_default();
            fields.insert("socket_owner".to_owned(), socket_owner);
        }
        fields.insert("owner".to_owned(), owned.owner.into());
        fields.insert("users".to_owned(), owned.users.into());
        fields.insert("user_count".to_owned(), owned.user_count.into());
        Some(row)
    };
    Ok(reply.objects.into_iter().filter_map(row).collect())
}

/// Returns the network that was named, or the only one.
async fn the_network(on: &mut Context, named: Option<String>) -> Result<String, Failure> {
    if let Some(name) = named {
        return Ok(name);
    }
    let request = v1::ObjectsRequest { kind: Kind::Network.into(), network: None, users: false };
    let reply = lists::objects(&mut on.client, request).await?;
    let name = |owned: v1::OwnedObject| match owned.object?.object? {
        Object::Network(network) => Some(network.name),
        _ => None,
    };
    let mut names: Vec<String> = reply.objects.into_iter().filter_map(name).collect();
    match (names.pop(), &names[..]) {
        (None, _) => {
            Err(Failure::Refused("there is no network yet; see `viaduct network add --help`".to_owned()))
        }
        (Some(only), []) => Ok(only),
        (Some(last), others) => Err(Failure::Usage(format!(
            "which network? Add --network NAME; there are: {}, {last}",
            others.join(", ")
        ))),
    }
}

/// Returns the network for an action on one entry: the named or the only one. Lists may be of all networks.
async fn needed<A: Args>(
    on: &mut Context,
    network: Option<String>,
    action: &Option<Action<A>>,
) -> Result<Option<String>, Failure> {
    match action {
        None | Some(Action::List) => Ok(network),
        Some(Action::Show { .. } | Action::Add(_) | Action::Set(_) | Action::Del(_)) => {
            the_network(on, network).await.map(Some)
        }
    }
}

/// Requests the objects of a kind with the state of their interfaces. Counters belong to `vif`. Fills in the
/// default mode, which the API leaves out.
async fn interfaces(on: &mut Context, kind: Kind) -> Result<Vec<Value>, Failure> {
    let vifs = table(on, TableName::Vif, None).await?.vifs;
    let mut rows = objects(on, kind).await?;
    for row in &mut rows {
        if row["mode"].is_null() {
            row["mode"] = "vrouter".into();
        }
        let Some(vif) = vifs.iter().find(|vif| row["name"] == *vif.name) else { continue };
        row["state"] = state_of(vif).into();
        // With the addresses that the guest leased.
        if kind == Kind::Guest && !vif.addresses.is_empty() {
            row["mac"] = vif.mac.clone().into();
            row["addresses"] = vif.addresses.clone().into();
        }
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

/// Puts a new guest into the only network, unless a network is named or an Open vSwitch programs the guest.
async fn add_to_network(on: &mut Context, args: &mut GuestArgs) -> Result<(), Failure> {
    if args.mode.as_deref() != Some("ovs") {
        args.network = Some(the_network(on, args.network.take()).await?);
    }
    Ok(())
}

/// Runs a command on interfaces, the daemon's view of guests and wires.
pub async fn vif(on: &mut Context, mut action: Option<Action<GuestArgs>>) -> Result<(), Failure> {
    if let Some(Action::Add(args)) = &mut action {
        add_to_network(on, args).await?;
    }
    let vifs = match &action {
        Some(Action::Add(_)) => Vec::new(),
        _ => table(on, TableName::Vif, None).await?.vifs,
    };
    let row = |vif: &v1::VifEntry| {
        let mut row = value(vif);
        row["state"] = state_of(vif).into();
        row
    };
    let is_wire = |key: &str| vifs.iter().any(|vif| vif.name == key && vif.kind == "wire");
    let kind = match &action {
        Some(Action::Del(Keys { keys, .. })) if keys.iter().any(|key| is_wire(key)) => Kind::Wire,
        Some(Action::Set(fields)) if is_wire(&fields.key) => Kind::Wire,
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
    Noun { name: "interface", keys: &["name"], kind, network: None, columns }
        .run(on, rows, action, add::guest)
        .await
}

pub async fn guest(on: &mut Context, mut action: Option<Action<GuestArgs>>) -> Result<(), Failure> {
    if let Some(Action::Add(args)) = &mut action {
        add_to_network(on, args).await?;
    }
    let rows = shown(&action, interfaces(on, Kind::Guest)).await?;
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
    Noun { name: "guest", keys: &["name"], kind: Kind::Guest, network: None, columns }
        .run(on, rows, action, add::guest)
        .await
}

pub async fn wire(on: &mut Context, action: Option<Action<WireArgs>>) -> Result<(), Failure> {
    let rows = shown(&action, interfaces(on, Kind::Wire)).await?;
    let columns: &[Column] = &[
        ("NAME", "name"),
        ("DRIVER", "driver"),
        ("DEVICE", "device"),
        ("STATE", "state"),
        ("ADDRESSES", "addresses"),
        ("GATEWAY", "gateway"),
        ("REMOTE", "remote"),
        ("VNI", "vni"),
        ("MTU", "mtu"),
        ("OWNER", "owner"),
    ];
    Noun { name: "wire", keys: &["name"], kind: Kind::Wire, network: None, columns }
        .run(on, rows, action, add::wire)
        .await
}

pub async fn network(on: &mut Context, action: Option<Action<NetworkArgs>>) -> Result<(), Failure> {
    let rows = listed(on, Kind::Network, &action).await?;
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
    Noun { name: "network", keys: &["name"], kind: Kind::Network, network: None, columns }
        .run(on, rows, action, add::network)
        .await
}

/// Runs a command on nexthops in use. Also adds and removes nexthops with names.
pub async fn nh(on: &mut Context, action: Option<Action<NexthopArgs>>) -> Result<(), Failure> {
    match &action {
        Some(Action::Show { key }) if key.parse::<u32>().is_err() => return nexthop(on, action).await,
        Some(Action::Add(_) | Action::Set(_) | Action::Del(_)) => return nexthop(on, action).await,
        _ => {}
    }
    let columns: &[Column] = &[
        ("ID", "id"),
        ("KIND", "kind"),
        ("NEXTHOP", "text"),
        ("NAMES", "names"),
        ("USERS", "user_count"),
        ("BFD", "bfd"),
        ("PACKETS", "packets"),
    ];
    let nexthops = table(on, TableName::Nexthop, None).await?.nexthops;
    let mut rows = rows(&nexthops);
    if !on.json {
        let sessions = nexthops.iter().map(|nexthop| nexthop.bfd.as_ref().map(super::bgp::words));
        rows.iter_mut().zip(sessions).for_each(|(row, session)| row["bfd"] = session.into());
    }
    Noun { name: "nexthop", keys: &["id"], kind: Kind::Nexthop, network: None, columns }
        .run(on, rows, action, add::nexthop)
        .await
}

/// Requests rows if an action shows them. Others skip the request, so adding one route to a million is quick.
async fn shown<A: Args>(
    action: &Option<Action<A>>,
    rows: impl Future<Output = Result<Vec<Value>, Failure>>,
) -> Result<Vec<Value>, Failure> {
    match action {
        None | Some(Action::List | Action::Show { .. }) => rows.await,
        Some(Action::Add(_) | Action::Set(_) | Action::Del(_)) => Ok(Vec::new()),
    }
}

/// Requests the rows of a kind of objects if an action shows them.
async fn listed<A: Args>(
    on: &mut Context,
    kind: Kind,
    action: &Option<Action<A>>,
) -> Result<Vec<Value>, Failure> {
    shown(action, objects(on, kind)).await
}

pub async fn rt(
    on: &mut Context,
    network: Option<String>,
    mut action: Option<Action<RouteArgs>>,
) -> Result<(), Failure> {
    let network = needed(on, network, &action).await?;
    let routes = async { Ok(rows(&table(on, TableName::Route, network.clone()).await?.routes)) };
    let rows = shown(&action, routes).await?;
    if let Some(Action::Show { key }) = &mut action {
        *key = longest_match(&rows, key).unwrap_or(std::mem::take(key));
    }
    let columns: &[Column] = &[
        ("NETWORK", "network"),
        ("PREFIX", "prefix"),
        ("NH", "nexthop"),
        ("TO", "text"),
        ("OWNER", "owner"),
        ("FROM", "origin"),
    ];
    let of = network.clone().unwrap_or_default();
    Noun { name: "route", keys: &["prefix"], kind: Kind::Route, network, columns }
        .run(on, rows, action, |args| add::route(of, args))
        .await
}

/// Returns the longest prefix that matches an address; `None` if `key` is no address.
fn longest_match(rows: &[Value], key: &str) -> Option<String> {
    let addr: IpAddr = key.parse().ok()?;
    let prefixes = rows.iter().filter_map(|row| row["prefix"].as_str()?.parse::<IpNet>().ok());
    let longest = prefixes.filter(|prefix| prefix.contains(&addr)).max_by_key(IpNet::prefix_len);
    longest.map(|prefix| prefix.to_string())
}

pub async fn bridge(
    on: &mut Context,
    network: Option<String>,
    action: Option<Action<MacArgs>>,
) -> Result<(), Failure> {
    let network = needed(on, network, &action).await?;
    let entries = async { Ok(rows(&table(on, TableName::Bridge, network.clone()).await?.bridge)) };
    let rows = shown(&action, entries).await?;
    let columns: &[Column] =
        &[("NETWORK", "network"), ("MAC", "mac"), ("TO", "nexthop"), ("STATIC", "static"), ("IDLE", "idle")];
    let of = network.clone().unwrap_or_default();
    Noun { name: "MAC", keys: &["mac"], kind: Kind::Mac, network, columns }
        .run(on, rows, action, |args| add::bridge(of, args))
        .await
}

pub async fn mpls(on: &mut Context, action: Option<Action<MplsArgs>>) -> Result<(), Failure> {
    let entries = async { Ok(rows(&table(on, TableName::Mpls, None).await?.mpls)) };
    let rows = shown(&action, entries).await?;
    let columns: &[Column] = &[("LABEL", "label"), ("NH", "nexthop"), ("TO", "text")];
    Noun { name: "label", keys: &["label"], kind: Kind::Mpls, network: None, columns }
        .run(on, rows, action, add::mpls)
        .await
}

pub async fn vxlan(on: &mut Context, mut action: Option<Action<VxlanArgs>>) -> Result<(), Failure> {
    if let Some(Action::Add(args)) = &mut action {
        args.network = Some(the_network(on, args.network.take()).await?);
    }
    let entries = async { Ok(rows(&table(on, TableName::Vxlan, None).await?.vxlan)) };
    let rows = shown(&action, entries).await?;
    let columns: &[Column] = &[("VNI", "vni"), ("VRF", "vrf"), ("NETWORK", "network")];
    Noun { name: "VNI", keys: &["vni"], kind: Kind::Vxlan, network: None, columns }
        .run(on, rows, action, add::vxlan)
        .await
}

/// Runs a command on leases: what guests without addresses got of the pools. A guest's own MAC is shown, too.
pub async fn lease(on: &mut Context, mut action: Option<Action<LeaseArgs>>) -> Result<(), Failure> {
    if let Some(Action::Add(args)) = &mut action {
        args.network = Some(the_network(on, args.network.take()).await?);
    }
    let leases = async {
        let vifs = table(on, TableName::Vif, None).await?.vifs;
        let mut rows = objects(on, Kind::Lease).await?;
        for row in &mut rows {
            let vif = vifs.iter().find(|vif| row["guest"] == *vif.name);
            row["mac"] = vif.and_then(|vif| vif.mac.clone()).into();
        }
        Ok(rows)
    };
    let rows = shown(&action, leases).await?;
    let columns: &[Column] = &[
        ("GUEST", "guest"),
        ("NETWORK", "network"),
        ("MAC", "mac"),
        ("ADDRESSES", "addresses"),
        ("FOREIGN", "foreign"),
        ("OWNER", "owner"),
    ];
    Noun { name: "lease", keys: &["guest"], kind: Kind::Lease, network: None, columns }
        .run(on, rows, action, add::lease)
        .await
}

pub async fn rule(
    on: &mut Context,
    network: Option<String>,
    action: Option<Action<RuleArgs>>,
) -> Result<(), Failure> {
    // Existing rules are named by a number that is unique on the host.
    let network = match &action {
        Some(Action::Add(_)) => Some(the_network(on, network).await?),
        _ => network,
    };
    let rules = async { Ok(rows(&table(on, TableName::Rule, network.clone()).await?.rules)) };
    let rows = shown(&action, rules).await?;
    let columns: &[Column] = &[
        ("ID", "id"),
        ("NAME", "name"),
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
    let guests = match &action {
        Some(Action::Add(args)) if add::may_name_guests(args) => objects(on, Kind::Guest).await?,
        _ => Vec::new(),
    };
    Noun { name: "rule", keys: &["id", "name"], kind: Kind::Rule, network, columns }
        .run(on, rows, action, |args| add::rule(of, args, &guests))
        .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn an_address_takes_the_longest_prefix() {
        let rows =
            ["0.0.0.0/0", "10.9.0.0/16", "10.9.3.0/24", "fd00::/8"].map(|prefix| json!({ "prefix": prefix }));
        let found = |key| super::longest_match(&rows, key);
        assert_eq!(found("10.9.3.4").as_deref(), Some("10.9.3.0/24"));
        assert_eq!(found("192.0.2.1").as_deref(), Some("0.0.0.0/0"));
        assert_eq!((found("2001:db8::1"), found("10.9.3.0/24")), (None, None));
    }
}
