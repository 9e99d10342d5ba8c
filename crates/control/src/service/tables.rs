use super::lists::{Send, in_parts};
use super::users;
use crate::compile::Origins;
use crate::core::View;
use crate::owner::Owned;
use crate::ports::Ports;
use crate::underlay::RemoteStatus;
use api::v1::{self, TableName};
use config::Object;
use model::{BridgeTarget, NeighbourScope, Nexthop, NexthopId, Shape, Vif, VifKind, Vrf};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use tonic::Status;

/// Lists the entries of a table in parts of at most so many bytes.
pub(super) fn parts(
    (view, ports): (&View, &dyn Ports),
    request: &v1::TableRequest,
    most: usize,
    send: &mut Send<'_, v1::TableReply>,
) -> Result<(), Status> {
    let only = match &request.network {
        None => None,
        Some(name) => match view.network(name) {
            Some(network) => Some(network.vrf),
            None => return Err(super::missing(format!("there is no network \"{name}\""))),
        },
    };
    if matches!(request.table(), TableName::Nexthop | TableName::Rule) {
        view.executor.settle();
    }
    macro_rules! send {
        ($list:ident: $entries:expr) => {
            in_parts($entries, most, |$list| send(v1::TableReply { $list, ..v1::TableReply::default() }))
        };
    }
    match request.table() {
        TableName::Unspecified => Err(super::invalid("which table?")),
        TableName::Vif => send!(vifs: vif_entries(view, only)),
        TableName::Nexthop => send!(nexthops: nexthops(view, &ports.remotes())),
        TableName::Route => send!(routes: routes(view, only)),
        TableName::Bridge => send!(bridge: bridge(view, only)),
        TableName::Mpls => send!(mpls: mpls(view)),
        TableName::Vxlan => send!(vxlan: vxlan(view, only)),
        TableName::Rule => send!(rules: rule_entries(view, only)),
        TableName::Neighbour => send!(neighbours: neighbours(view, only)),
    }
}

/// Returns the number of entries of a table, of all networks.
pub(super) fn entries(view: &View, table: TableName) -> usize {
    let tables = &view.tables;
    match table {
        TableName::Unspecified => 0,
        TableName::Vif => tables.vifs.len(),
        TableName::Nexthop => tables.nexthops.len(),
        TableName::Route => tables.routes.len() + tables.learned.len(),
        TableName::Bridge => tables.macs.len() + tables.bridges.macs.len(),
        TableName::Mpls => tables.mpls.len(),
        TableName::Vxlan => tables.vxlan.len(),
        TableName::Rule => tables.rules.len(),
        TableName::Neighbour => 0,
    }
}

fn is_of(only: Option<Vrf>, vrf: Vrf) -> bool {
    only.is_none_or(|only| only == vrf)
}

pub(crate) fn vif_entries(view: &View, only: Option<Vrf>) -> Vec<v1::VifEntry> {
    // A mirror on another host is no interface of this one: its copies count where they leave.
    let is_here = |vif: &Vif| !matches!(vif.kind, VifKind::Mirror(_));
    let wanted = |vif: &&Vif| is_here(vif) && (only.is_none() || vif.vrf == only);
    view.tables.vifs.values().filter(wanted).map(|vif| vif_entry(view, vif)).collect()
}

fn vif_entry(view: &View, vif: &Vif) -> v1::VifEntry {
    let port = view.port(&vif.name);
    let counters = view.vif_counters(vif.id);
    let flows = view.flow_use(vif.id);
    let own = vif.addresses.iter().map(ToString::to_string);
    let underlay = vif.wire.iter().flat_map(|wire| &wire.addresses).map(ToString::to_string);
    v1::VifEntry {
        id: vif.id.0.into(),
        name: vif.name.to_string(),
        kind: match vif.kind {
            VifKind::Vhost => "vhost",
            VifKind::Tap => "tap",
            VifKind::Rdma => "rdma",
            VifKind::Wire => "wire",
            VifKind::Ovs => "ovs",
            VifKind::Tunnel(_) => "tunnel",
            VifKind::Mirror(_) => "mirror",
        }
        .to_owned(),
        network: vif.vrf.map(|vrf| view.network_name(vrf)),
        vrf: vif.vrf.map(|vrf| vrf.0.into()),
        mac: vif.mac.map(|mac| mac.to_string()),
        addresses: own.chain(underlay).collect(),
        mtu: live_mtu(vif, &port).into(),
        policy: vif.policy || vif.rules.is_some(),
        up: port.up && !view.has_lost_tap(&vif.name, || port.clone()),
        features: port.features,
        queues: port.queues.into(),
        fault: port.fault,
        rx_packets: counters.received.packets,
        rx_bytes: counters.received.bytes,
        tx_packets: counters.sent.packets,
        tx_bytes: counters.sent.bytes,
        rx_drops: counters.receive_drops,
        tx_drops: counters.send_drops,
        malformed: port.malformed,
        lost: port.lost,
        refused: port.refused,
        flows_opened: flows.opened,
        flows_from_wire: flows.from_wire,
        flows_refused: flows.refused,
        flows_displaced: flows.displaced,
        shape: shape(view, vif),
    }
}

/// Returns what the shapers of an interface do, if it has any and is not one of another's VLANs.
fn shape(view: &View, vif: &Vif) -> Option<v1::VifShape> {
    let Shape { inward, outward } = vif.shape;
    if vif.trunk.is_some() || inward.or(outward).is_none() {
        return None;
    }
    let mbps = |rate: u64| u32::try_from(rate / 1_000_000).unwrap_or(u32::MAX);
    let now = view.executor.shaping(vif.id);
    Some(v1::VifShape {
        in_mbps: inward.map(mbps),
        out_mbps: outward.map(mbps),
        in_waited: now.in_waited,
        in_marked: now.in_marked,
        in_packets: now.queued.packets,
        in_bytes: now.queued.bytes,
        out_waited: now.out_waited,
    })
}

/// Returns the largest IP packet of an interface, bytes. For a TAP it is the device's present MTU, which its
/// owner may change.
pub(super) fn live_mtu(vif: &Vif, port: &mem::PortStatus) -> u16 {
    port.mtu.filter(|_| vif.kind == VifKind::Tap).unwrap_or(vif.mtu)
}

fn nexthop_text(view: &View, id: NexthopId) -> String {
    match view.tables.nexthops.get(id).as_deref() {
        Some(Nexthop::Ecmp(members)) => {
            let member = |(member, weight)| match weight {
                1 => nexthop_text(view, member),
                _ => format!("{} (weight {weight})", nexthop_text(view, member)),
            };
            let members: Vec<String> = model::weights(members).into_iter().map(member).collect();
            format!("one of: {}", members.join("; "))
        }
        Some(nexthop) => nexthop.words(view),
        None => format!("nexthop {id}"),
    }
}

/// Returns the nexthops of all networks, with their names, their users, and the sessions with their remotes.
fn nexthops(view: &View, remotes: &[RemoteStatus]) -> impl Iterator<Item = v1::NexthopEntry> {
    let (mut users, mut names) = (users::of_nexthops(view), users::nexthop_names(view));
    let sessions: HashMap<_, _> = remotes.iter().map(|of| (of.remote, (of.is_down, &of.session))).collect();
    nexthop_entries(view).map(move |entry| {
        let id = NexthopId(entry.id);
        let remote = view.tables.nexthops.get(id).and_then(|nexthop| nexthop.remote());
        let (down, bfd) = remote.and_then(|remote| sessions.get(&remote)).copied().unzip();
        let (down, bfd) = (down.unwrap_or_default(), bfd.cloned());
        let of = users.remove(&id).unwrap_or_default();
        let names = names.remove(&id).unwrap_or_default();
        v1::NexthopEntry { users: of.names, user_count: of.count, names, bfd, down, ..entry }
    })
}

fn nexthop_entries(view: &View) -> impl Iterator<Item = v1::NexthopEntry> {
    let counted = view.executor.counted_nexthops();
    let entry = move |(id, nexthop): (NexthopId, Cow<'_, Nexthop>)| {
        let used = counted.get(&id).copied().unwrap_or_default();
        v1::NexthopEntry {
            id: id.0,
            kind: nexthop_kind(&nexthop).to_owned(),
            text: nexthop_text(view, id),
            packets: used.packets,
            bytes: used.bytes,
            ..v1::NexthopEntry::default()
        }
    };
    view.tables.nexthops.iter().map(entry)
}

/// Returns the word for nexthops of this kind.
pub(crate) const fn nexthop_kind(nexthop: &Nexthop) -> &'static str {
    match nexthop {
        Nexthop::Discard => "discard",
        Nexthop::Receive => "receive",
        Nexthop::Encap { .. } => "encap",
        Nexthop::Tunnel(_) => "tunnel",
        Nexthop::VrfTranslate { .. } => "vrf-translate",
        Nexthop::Resolve { .. } => "resolve",
        Nexthop::Ecmp(_) => "ecmp",
    }
}

fn routes(view: &View, only: Option<Vrf>) -> impl Iterator<Item = v1::RouteEntry> {
    let origins = Origins::of(&view.objects, &view.away);
    let tables = &view.tables;
    let wanted = tables.routes_in_force().filter(move |((vrf, _), _)| is_of(only, *vrf));
    wanted.map(move |((vrf, prefix), nexthop)| {
        let network = view.network_name(vrf);
        let origin = origins.get(&network, prefix);
        let learned = || tables.learned.best(&(vrf, prefix)).map(|(_, source)| source.name.to_string());
        v1::RouteEntry {
            prefix: prefix.to_string(),
            nexthop: nexthop.0,
            text: nexthop_text(view, nexthop),
            owner: origin.map(|listed| listed.owner().name().to_owned()).or_else(learned).unwrap_or_default(),
            origin: origin.map(|listed| listed.key().to_string()).unwrap_or_default(),
            network,
        }
    })
}

fn bridge(view: &View, only: Option<Vrf>) -> Vec<v1::BridgeEntry> {
    let target = |target: &BridgeTarget| match target {
        BridgeTarget::Vif(vif) => view.vif_name(*vif),
        BridgeTarget::Nexthop(nexthop) => nexthop_text(view, *nexthop),
        BridgeTarget::Vtep { remote, .. } => format!("vxlan to {remote}"),
    };
    let fixed = view.tables.macs_in_force().filter(|((vrf, _), _)| is_of(only, *vrf));
    let fixed = fixed.map(|((vrf, mac), to)| v1::BridgeEntry {
        network: view.network_name(vrf),
        mac: mac.to_string(),
        nexthop: target(&to),
        r#static: true,
        idle: None,
    });
    let learned = view.executor.learned();
    let learned = learned.iter().filter(|entry| is_of(only, entry.vrf)).map(|entry| v1::BridgeEntry {
        network: view.network_name(entry.vrf),
        mac: entry.mac.to_string(),
        nexthop: target(&entry.target),
        r#static: false,
        idle: Some(entry.idle),
    });
    fixed.chain(learned).collect()
}

fn mpls(view: &View) -> impl Iterator<Item = v1::MplsEntry> {
    let entry = move |(&label, &nexthop): (&u32, &NexthopId)| v1::MplsEntry {
        label,
        nexthop: nexthop.0,
        text: nexthop_text(view, nexthop),
    };
    view.tables.mpls.iter().map(entry)
}

fn vxlan(view: &View, only: Option<Vrf>) -> Vec<v1::VxlanEntry> {
    let wanted = view.tables.vxlan.iter().filter(|(_, vrf)| is_of(only, **vrf));
    let entry = |(&vni, &vrf): (&u32, &Vrf)| v1::VxlanEntry {
        vni,
        vrf: vrf.0.into(),
        network: view.network_name(vrf),
    };
    wanted.map(entry).collect()
}

/// Returns the rules, in the order in which they are tried.
pub(crate) fn rule_entries(view: &View, only: Option<Vrf>) -> Vec<v1::RuleEntry> {
    let rules = view.objects.of_kind(config::Kind::Rule);
    let mut entries: Vec<_> = rules.filter_map(|owned| rule(view, only, owned)).collect();
    entries.sort_by(|a, b| (&a.network, a.priority, a.id).cmp(&(&b.network, b.priority, b.id)));
    entries
}

fn rule(view: &View, only: Option<Vrf>, owned: &Owned) -> Option<v1::RuleEntry> {
    let Object::Rule(rule) = &owned.object else { return None };
    let id = view.ids.rule(&rule.network, &rule.to_string())?;
    let compiled = view.tables.rules.get(&id).filter(|compiled| is_of(only, compiled.vrf))?;
    let matched = view.executor.rule_counters(compiled.id);
    Some(v1::RuleEntry {
        id: id.0,
        owner: owned.owner.name().to_owned(),
        network: rule.network.clone(),
        priority: rule.priority,
        from: rule.from.to_string(),
        to: rule.to.to_string(),
        protocol: rule.protocol.map_or("any".to_owned(), |p| p.to_string()),
        ports: rule.ports.map_or("any".to_owned(), |p| p.to_string()),
        action: rule.action.to_string(),
        packets: matched.packets,
        bytes: matched.bytes,
        name: rule.name.clone(),
    })
}

/// Finds rules by the numbers and names by which requests may name them.
pub(super) struct RuleNumbers<'a> {
    view: &'a View,
    known: OnceCell<HashMap<u32, &'a (String, String)>>,
}

impl<'a> RuleNumbers<'a> {
    pub(super) const fn of(view: &'a View) -> Self {
        Self { view, known: OnceCell::new() }
    }

    /// Returns a key with the name of the rule in place of its number.
    pub(super) fn named(&self, mut key: v1::Key) -> v1::Key {
        let number = key.name.parse::<u32>().ok().filter(|_| key.kind() == v1::Kind::Rule);
        let known = || self.known.get_or_init(|| self.view.ids.rules_by_number());
        if let Some((network, text)) = number.and_then(|number| known().get(&number)) {
            (key.network, key.name) = (Some(network.clone()), text.clone());
        } else if let Some(rule) = (key.kind() == v1::Kind::Rule).then(|| self.by_name(&key)).flatten() {
            (key.network, key.name) = (Some(rule.network.clone()), rule.to_string());
        }
        key
    }

    /// Returns the rule that has this name, if there is one alone.
    fn by_name(&self, key: &v1::Key) -> Option<&'a config::Rule> {
        let rules = self.view.objects.of_kind(config::Kind::Rule).filter_map(|owned| match &owned.object {
            Object::Rule(rule) => Some(&**rule),
            _ => None,
        });
        let is_meant = |rule: &&config::Rule| {
            rule.name.as_ref() == Some(&key.name) && key.network.as_ref().is_none_or(|of| *of == rule.network)
        };
        let mut meant = rules.filter(is_meant);
        meant.next().filter(|_| meant.next().is_none())
    }
}

fn neighbours(view: &View, only: Option<Vrf>) -> Vec<v1::NeighbourEntry> {
    let all = view.executor.neighbours();
    let wanted = all.iter().filter(|n| match n.scope {
        NeighbourScope::Network(vrf) => is_of(only, vrf),
        NeighbourScope::Wire(_) => only.is_none(),
    });
    let users = users::of_neighbours(view);
    let entry = |n: &executor::NeighbourInfo| v1::NeighbourEntry {
        scope: match n.scope {
            NeighbourScope::Wire(vif) => view.vif_name(vif),
            NeighbourScope::Network(vrf) => view.network_name(vrf),
        },
        address: n.addr.to_string(),
        mac: n.mac.map(|mac| mac.to_string()),
        held: u32::try_from(n.held).unwrap_or(u32::MAX),
        users: users.get(&n.addr).map(|of| of.names.clone()).unwrap_or_default(),
        user_count: users.get(&n.addr).map_or(0, |of| of.count),
    };
    wanted.map(entry).collect()
}
