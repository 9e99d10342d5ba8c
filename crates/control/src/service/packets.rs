//! Requests about packets: explain and capture.

use super::Streamed;
use crate::core::{Core, View};
use crate::matching::Matching;
use crate::packet_text;
use api::v1;
use api::v1::explain_request::Packet;
use executor::Captured;
use model::{Verdict, VifId};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Packets on their way to a capturing client; past that they are lost.
const BACKLOG: usize = 4096;

/// Bytes kept of a captured packet where the client does not say: all there can be.
const SNAP_LENGTH: u32 = 256 * 1024;

fn interface(view: &View, name: &str) -> Result<VifId, Status> {
    view.ids.vif(name).ok_or_else(|| {
        let names: Vec<&str> = view.tables.vifs.values().map(|vif| &*vif.name).collect();
        Status::not_found(format!("there is no interface \"{name}\"; there are: {}", names.join(", ")))
    })
}

pub(super) fn explain(view: &View, request: v1::ExplainRequest) -> Result<v1::Explanation, Status> {
    let ingress = interface(view, &request.interface)?;
    let frame = match request.packet {
        Some(Packet::Frame(frame)) => frame,
        Some(Packet::Text(text)) => {
            packet_text::frame(view, ingress, &text).map_err(Status::invalid_argument)?
        }
        None => return Err(Status::invalid_argument("no packet to explain")),
    };
    let explanation = view.executor.explain(ingress, &frame);
    let step = |step: model::Step| {
        // These tables' keys are numbers; the others' are words.
        let number = step.key.parse::<u16>().ok();
        let key = match (step.table, number) {
            ("vif", Some(id)) => view.vif_name(VifId(id)),
            ("network", Some(vrf)) => view.network_name(model::Vrf(vrf)),
            _ => view.named(&step.key),
        };
        let result = step.result.map(|result| view.named(&result));
        v1::Step { table: step.table.to_owned(), key, result }
    };
    let decision = explanation.decision;
    let verdict = match &decision.verdict {
        Verdict::Forward(_) => "forward",
        Verdict::Flood(_) => "flood",
        Verdict::Reply(_) => "reply",
        Verdict::Hold { .. } => "hold",
        Verdict::Drop(_) => "drop",
        Verdict::Consumed => "consumed",
    };
    let mut lines: Vec<String> = Vec::new();
    lines.extend(decision.verdict.to_string().split("; ").map(|line| view.named(line)));
    lines.extend(
        decision.effects.to_string().split("; ").filter(|line| !line.is_empty()).map(|line| view.named(line)),
    );
    let reason = match &decision.verdict {
        Verdict::Drop(reason) => Some(*reason),
        Verdict::Reply(reply) => reply.dropped,
        _ => None,
    };
    lines.extend(reason.map(|reason| format!("{reason}: {}", reason.help())));
    Ok(v1::Explanation {
        packet: model::text::show(&frame),
        steps: explanation.steps.into_iter().map(step).collect(),
        verdict: verdict.to_owned(),
        decision: lines,
        frame,
    })
}

pub(super) fn capture(
    core: Arc<Core>,
    request: v1::CaptureRequest,
) -> Result<Streamed<v1::CapturedPacket>, Status> {
    let view = core.view();
    let vif = request.interface.as_deref().map(|name| interface(&view, name)).transpose()?;
    let snap_len = if request.snap_length == 0 { SNAP_LENGTH } else { request.snap_length };
    let matching = Matching::parse(&request.filter).map_err(Status::invalid_argument)?;
    let filter = matching.capture(vif, snap_len).map_err(Status::invalid_argument)?;
    let (to, from) = sync_channel(BACKLOG);
    view.executor.capture(filter, to);
    let (sender, receiver) = tokio::sync::mpsc::channel(BACKLOG);
    std::thread::Builder::new()
        .name("capture".to_owned())
        .spawn(move || forward(&core, &from, &sender))
        .map_err(|e| Status::resource_exhausted(format!("no thread for the capture: {e}")))?;
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

/// Passes packets on until the client is gone; then the executor finds its channel closed.
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
        text: model::text::show(&packet.bytes),
        data: packet.bytes,
    }
}
