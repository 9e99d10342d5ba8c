use crate::compile::ovs_side;
use crate::core::{Core, View};
use api::v1;
use config::{Key, Kind, Mode, Object};
use executor::OvsPlace;
use model::VifId;
use ovs::{FlowState, FlowStatus, PortStatus};
use std::collections::HashMap;
use tonic::Status;

pub(super) fn reply(core: &Core, request: &v1::OvsRequest) -> Result<v1::OvsReply, Status> {
    let view = core.view();
    check(&view, request.port.as_deref())?;
    let status = core.ports().ovs();
    let ports: Vec<_> = status.ports.iter().filter(|port| is_of(request.port.as_ref(), &port.name)).collect();
    let sessions = status.sessions.iter().map(|session| v1::OvsSession {
        id: session.id,
        pid: session.pid.unsigned_abs(),
        uid: session.uid,
        dpdk: session.dpdk.clone(),
        age: session.age.as_secs(),
    });
    let flows = core.ports().ovs_flows();
    Ok(v1::OvsReply {
        ports: ports.iter().map(|status| port(&view, status, &flows)).collect(),
        refused: ports.iter().flat_map(|status| refused(status)).collect(),
        sessions: sessions.collect(),
    })
}

pub(crate) fn ports(core: &Core) -> v1::OvsReply {
    reply(core, &v1::OvsRequest::default()).unwrap_or_default()
}

pub(super) fn flows(core: &Core, only: Option<&String>) -> Result<Vec<FlowStatus>, Status> {
    let view = core.view();
    check(&view, only.map(String::as_str))?;
    let mut flows = core.ports().ovs_flows();
    flows.retain(|status| is_of(only, &view.vif_name(status.flow.port)));
    Ok(flows)
}

pub(super) fn flow(view: &View, FlowStatus { flow, state, place, counters }: &FlowStatus) -> v1::OvsFlow {
    let (card_entries, stays) = match place {
        None => (None, None),
        Some(OvsPlace::Card(entries)) => (Some(*entries), None),
        Some(OvsPlace::Host(reason)) => (None, Some((*reason).to_owned())),
    };
    v1::OvsFlow {
        id: flow.id.0,
        port: view.vif_name(flow.port),
        r#match: flow.matching.to_string(),
        actions: flow.actions_in_words(view),
        packets: counters.packets,
        bytes: counters.bytes,
        stale: match state {
            FlowState::Live => None,
            FlowState::Stale(since) => Some(since.as_secs()),
        },
        card_entries,
        stays,
    }
}

fn is_of(only: Option<&String>, port: &str) -> bool {
    only.is_none_or(|only| only == port)
}

/// Checks that an Open vSwitch programs the guest or wire of that name.
fn check(view: &View, name: Option<&str>) -> Result<(), Status> {
    let Some(name) = name else { return Ok(()) };
    let is = |object: &Object| match object {
        Object::Guest(guest) => guest.name == name && guest.mode == Mode::Ovs,
        Object::Wire(wire) => wire.name == name && wire.mode == Mode::Ovs,
        _ => false,
    };
    let named = [Kind::Guest, Kind::Wire]
        .into_iter()
        .filter_map(|kind| view.objects.other(&Key { kind, network: None, name: name.to_owned() }));
    if named.into_iter().any(|owned| is(&owned.object)) {
        return Ok(());
    }
    Err(super::missing(format!("there is no guest or wire \"{name}\" with mode = \"ovs\"")))
}

/// Counts the flows of a port for which the card forwards packets, if there is a card, and those that stay,
/// by reason.
fn on_card(port: Option<VifId>, flows: &[FlowStatus]) -> (Option<u64>, HashMap<String, u64>) {
    let (mut carried, mut stays) = (None, HashMap::new());
    for status in flows.iter().filter(|status| Some(status.flow.port) == port) {
        match status.place {
            None => {}
            Some(OvsPlace::Card(entries)) => *carried.get_or_insert(0) += u64::from(entries > 0),
            Some(OvsPlace::Host(reason)) => {
                carried.get_or_insert(0);
                *stays.entry(reason.to_owned()).or_default() += 1;
            }
        }
    }
    (carried, stays)
}

fn port(view: &View, status: &PortStatus, flows: &[FlowStatus]) -> v1::OvsPort {
    let (on_card, stays) = on_card(view.ids.vif(&status.name), flows);
    let side = ovs_side(Mode::Ovs, &status.name).and_then(|name| view.ids.vif(&name));
    let counters = side.map(|side| view.vif_counters(side)).unwrap_or_default();
    v1::OvsPort {
        name: status.name.clone(),
        session: status.session,
        mtu: status.mtu,
        flows: status.flows as u64,
        stale: status.stale as u64,
        to_ovs_packets: counters.sent.packets,
        to_ovs_bytes: counters.sent.bytes,
        from_ovs_packets: counters.received.packets,
        from_ovs_bytes: counters.received.bytes,
        to_ovs_drops: counters.send_drops,
        refused: status.refused.iter().map(|refused| refused.count).sum(),
        malformed: status.malformed,
        qos: status.qos.iter().map(|name| (*name).to_owned()).collect(),
        on_card,
        stays,
    }
}

fn refused(status: &PortStatus) -> impl Iterator<Item = v1::OvsRefused> {
    status.refused.iter().map(|refused| v1::OvsRefused {
        port: status.name.clone(),
        reason: refused.reason.to_owned(),
        count: refused.count,
        last: refused.last.clone(),
    })
}
