//! Requests about packets: explain and capture.

use super::Streamed;
use crate::core::{Core, View};
use crate::matching::Matching;
use crate::packet_text;
use crate::ports::Ports;
use api::v1;
use api::v1::explain_request::Packet;
use config::Protocol;
use executor::Captured;
use ipnet::IpNet;
use model::{DropReason, NexthopId, Verdict, VifId, VifKind, Vrf};
use packet::Mac;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Most packets on their way to a capturing client; further ones are lost.
const BACKLOG: usize = 4096;

/// Bytes kept of a captured packet if the client does not say: the longest possible packet.
const SNAP_LENGTH: u32 = 256 * 1024;

pub(super) fn interface(view: &View, name: &str) -> Result<VifId, Status> {
    view.ids.vif(name).ok_or_else(|| {
        let names: Vec<&str> = view.tables.vifs.values().map(|vif| &*vif.name).collect();
        super::missing(format!("there is no interface \"{name}\"; there are: {}", names.join(", ")))
    })
}

pub(super) fn explain(core: &Core, request: v1::ExplainRequest) -> Result<v1::Explanation, Status> {
    let view = &*core.view();
    let ingress = interface(view, &request.interface)?;
    let is_captured = matches!(request.packet, Some(Packet::Frame(_)));
    let frame = match request.packet {
        Some(Packet::Frame(frame)) if frame.len() > SNAP_LENGTH as usize => {
            return Err(super::invalid(format!("a frame of {} bytes; at most {SNAP_LENGTH}", frame.len())));
        }
        Some(Packet::Frame(frame)) => frame,
        Some(Packet::Text(text)) => packet_text::frame(view, ingress, &text).map_err(super::invalid)?,
        None => return Err(super::invalid("no packet to explain")),
    };
    let gso_size = if is_captured { large_send(view, ingress, &frame) } else { None };
    let explanation = view.executor.explain(ingress, &frame, gso_size);
    let verdict = explanation.decision.verdict;
    let (entry, exits) = (port(view, ingress), verdict.egress());
    // The port whose packet goes to its Open vSwitch.
    let by_ovs = exits.first().and_then(|vif| of_side(view, *vif));
    let exits: Vec<_> = exits.into_iter().map(|vif| port(view, vif)).collect();
    // The tables don't have the state of ports. A reply goes back to where the packet came from, so that port
    // is up.
    let is_answer = matches!(verdict, Verdict::Reply(_));
    let is_lost = !is_answer && !exits.is_empty() && exits.iter().all(|port| !port.up);
    let lost = is_lost.then(|| match verdict {
        Verdict::Flood(_) => DropReason::NoMember,
        _ if by_ovs.is_some() => DropReason::OvsAbsent,
        _ => DropReason::TxDown,
    });
    let reason = lost.or_else(|| verdict.reason());
    let mut lines = verdict_lines(view, &verdict, &exits, by_ovs, lost);
    lines.extend(explanation.decision.effects.lines(view));
    if gso_size.is_some() {
        lines.push(
            "a large send, longer than packets may be here: explained for segments that fit, as the capture does not \
             have their length"
                .to_owned(),
        );
    }
    if !entry.up {
        let why = of_side(view, ingress).map(|port| format!("no Open vSwitch has {port} open"));
        let why = why.unwrap_or_else(|| not_connected(&entry));
        lines.push(format!("at present nothing comes in here: {why}"));
    }
    lines.extend(reason.map(|reason| format!("{reason}: {}", reason.help())));
    let with_bgp = |of| std::iter::once(step(view, of)).chain(by_bgp(core.ports(), view, of));
    let mut steps: Vec<_> = explanation.steps.iter().flat_map(with_bgp).collect();
    steps.extend(exits.iter().filter(|_| !is_answer).map(port_step));
    Ok(v1::Explanation {
        packet: model::text::describe(&frame, frame.len()),
        steps,
        verdict: if is_lost { "drop" } else { verdict.name() }.to_owned(),
        decision: lines,
        frame,
        reason: reason.map(|reason| reason.name().to_owned()),
        ingress: Some(entry),
        egress: exits,
    })
}

/// Returns the payload of the segments of a captured TCP packet that is longer than its interface's MTU: only a large
/// send is, which is cut later. The capture does not say how; the length that fits everywhere (RFC 9293, 3.7.1) is
/// assumed.
fn large_send(view: &View, ingress: VifId, frame: &[u8]) -> Option<u16> {
    const DEFAULT_SEGMENT: u16 = 536;
    let headers = packet::Headers::ethernet(frame, 0, frame.len()).ok()?;
    let mtu = view.tables.vifs.get(&ingress)?.mtu;
    let is_tcp = matches!(headers.l4, packet::L4::Tcp { .. });
    (is_tcp && frame.len() - usize::from(headers.l3_at) > mtu.into()).then_some(DEFAULT_SEGMENT)
}

/// Describes what happens to the packet. `lost`: the reason for which it is dropped because no port that it
/// goes to is up. `by_ovs`: the port whose Open vSwitch gets it.
fn verdict_lines(
    view: &View,
    verdict: &Verdict,
    exits: &[v1::ExplainedPort],
    by_ovs: Option<String>,
    lost: Option<DropReason>,
) -> Vec<String> {
    let mut lines: Vec<_> = lost.iter().map(|reason| format!("drop {reason}")).collect();
    match (by_ovs, lost) {
        (Some(port), Some(_)) => {
            lines.push(format!("once an Open vSwitch has {port} open: it gets the packet and decides"));
        }
        (Some(port), None) => {
            lines.push(format!("the Open vSwitch that has {port} open gets the packet and decides"));
        }
        (None, _) => {
            let otherwise = if lost.is_some() { "otherwise: " } else { "" };
            lines.extend(verdict.lines(view).into_iter().map(|line| format!("{otherwise}{line}")));
            // A reply goes back to where the packet came from.
            let is_answer = matches!(verdict, Verdict::Reply(_));
            lines.extend(exits.iter().filter(|port| !is_answer && !port.up).map(not_connected));
        }
    }
    lines
}

/// Returns the port to which an OVS side belongs.
fn of_side(view: &View, side: VifId) -> Option<String> {
    let side = view.tables.vifs.get(&side).filter(|vif| vif.kind == VifKind::Ovs)?;
    Some(view.vif_name(side.ovs?))
}

fn not_connected(port: &v1::ExplainedPort) -> String {
    let why = port.fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default();
    format!("{} is down{why}", port.interface)
}

/// Shows a port's state as a look-up.
fn port_step(port: &v1::ExplainedPort) -> v1::Step {
    let state = if port.up { "up" } else { "down" };
    v1::Step {
        table: "port".to_owned(),
        key: port.interface.clone(),
        result: Some(state.to_owned()),
        protocol: None,
    }
}

fn step(view: &View, of: &model::Step) -> v1::Step {
    v1::Step {
        table: of.table().to_owned(),
        key: of.key(view),
        result: of.result(view),
        protocol: of.protocol().map(|protocol| Protocol(protocol).to_string()),
    }
}

/// Returns the BGP paths behind the route, or the owner of an address, that a look-up found, if it was learned.
fn by_bgp(ports: &dyn Ports, view: &View, of: &model::Step) -> Vec<v1::Step> {
    if let model::Step::Owner { vrf, addr, found } = of {
        return owner_by_bgp(ports, view, (*vrf, *addr, *found)).into_iter().collect();
    }
    let model::Step::Route { vrf, addr, found: Some(found) } = of else { return Vec::new() };
    let Ok(prefix) = IpNet::new(*addr, found.prefix_len).map(|prefix| prefix.trunc()) else {
        return Vec::new();
    };
    let place = (*vrf, prefix);
    let is_other = |(learned, _): (NexthopId, _)| learned != found.nexthop;
    if view.tables.learned.best(&place).is_none_or(is_other) {
        return Vec::new();
    }
    let path = |path: v1::BgpPath| v1::Step {
        table: "bgp".to_owned(),
        key: format!("{} {prefix}", view.network_name(*vrf)),
        result: Some(match path.rd.as_str() {
            "" => format!("peer {}", path.peer),
            rd => format!("peer {}, rd {rd}", path.peer),
        }),
        protocol: None,
    };
    ports.bgp_paths(vrf.0, prefix).into_iter().filter(|path| path.used).map(path).collect()
}

/// Returns the EVPN route by which a MAC address has an IP address.
fn owner_by_bgp(ports: &dyn Ports, view: &View, (vrf, addr, mac): (Vrf, IpAddr, Mac)) -> Option<v1::Step> {
    let its =
        ports.bgp_macs(vrf.0, mac.before(), 1).into_iter().find(|entry| entry.mac == mac.to_string())?;
    Some(v1::Step {
        table: "bgp".to_owned(),
        key: format!("{} {mac} {addr}", view.network_name(vrf)),
        result: Some(format!("type 2, remote {}, label {}", its.remote, its.label)),
        protocol: None,
    })
}

fn port(view: &View, vif: VifId) -> v1::ExplainedPort {
    let interface = view.vif_name(vif);
    let status = view.port(&interface);
    v1::ExplainedPort { interface, up: status.up, fault: status.fault }
}

pub(super) fn capture(
    core: Arc<Core>,
    request: v1::CaptureRequest,
) -> Result<Streamed<v1::CapturedPacket>, Status> {
    let view = core.view();
    let vif = request.interface.as_deref().map(|name| interface(&view, name)).transpose()?;
    let snap_len = if request.snap_length == 0 { SNAP_LENGTH } else { request.snap_length };
    let matching = Matching::parse(&request.filter).map_err(super::invalid)?;
    let filter = matching.capture(vif, snap_len).map_err(super::invalid)?;
    let (to, from) = sync_channel(BACKLOG);
    core.ports().note_capture(vif, true);
    view.executor.capture(filter, to);
    let (sender, receiver) = tokio::sync::mpsc::channel(BACKLOG);
    std::thread::Builder::new()
        .name("capture".to_owned())
        .spawn({
            let core = core.clone();
            move || {
                forward(&core, &from, &sender);
                core.ports().note_capture(vif, false);
            }
        })
        .inspect_err(|_| core.ports().note_capture(vif, false))
        .map_err(|e| Status::resource_exhausted(format!("no thread for the capture: {e}")))?;
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

/// Passes packets on until the client is gone. Then the executor finds its channel closed.
fn forward(
    core: &Core,
    from: &Receiver<Captured>,
    to: &tokio::sync::mpsc::Sender<Result<v1::CapturedPacket, Status>>,
) {
    while !to.is_closed() {
        match from.recv_timeout(Duration::from_secs(1)) {
            Ok(packet) => {
                if to.blocking_send(Ok(message(&core.view(), packet))).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn message(view: &View, packet: Captured) -> v1::CapturedPacket {
    v1::CapturedPacket {
        time_ns: packet.time_ns,
        vif: packet.vif.0.into(),
        interface: view.vif_name(packet.vif),
        outbound: packet.outbound,
        dropped: packet.dropped.map(|reason| reason.name().to_owned()),
        length: packet.len,
        text: model::text::describe(&packet.bytes, packet.len as usize),
        data: packet.bytes,
    }
}
