use crate::core::View;
use crate::matching::Matching;
use api::v1;
use config::Protocol;
use executor::FlowInfo;
use tonic::Status;

/// Lists the connections that a text selects. They are collected before any is sent, so a slow client holds
/// up nobody.
pub(super) fn list(view: &View, text: &str) -> Result<Vec<FlowInfo>, Status> {
    let matching = Matching::parse(text).and_then(Matching::of_flows).map_err(super::invalid)?;
    view.executor.settle();
    let mut found = Vec::new();
    view.executor.flows(&mut |flow| {
        if matching.flow(&flow, |vrf| view.network_name(vrf)) {
            found.push(flow);
        }
        true
    });
    Ok(found)
}

/// Removes the connections that a text selects, and returns how many.
pub(super) fn flush(view: &View, text: &str) -> Result<u64, Status> {
    let matching = Matching::parse(text).and_then(Matching::of_flows).map_err(super::invalid)?;
    let flushed = view.executor.flush_flows(&mut |flow| matching.flow(flow, |vrf| view.network_name(vrf)));
    Ok(flushed as u64)
}

pub(super) fn message(view: &View, flow: &FlowInfo) -> v1::Flow {
    let key = &flow.key;
    v1::Flow {
        network: view.network_name(key.src.vrf),
        source: key.src.addr.to_string(),
        source_port: key.src.port.into(),
        destination_network: view.network_name(key.dst.vrf),
        destination: key.dst.addr.to_string(),
        destination_port: key.dst.port.into(),
        protocol: Protocol(key.protocol).to_string(),
        state: flow.state.to_string(),
        rule: flow.rule.map(|rule| rule.0),
        packets: flow.forward.packets,
        bytes: flow.forward.bytes,
        reply_packets: flow.reply.packets,
        reply_bytes: flow.reply.bytes,
        age: flow.age,
        idle: flow.idle,
        approximate: flow.approximate,
    }
}
